//! Waiting for events without a notification: short sleeps that grow.

use std::time::{Duration, Instant};

/// Sleeps longer from call to call: a hand-over between running processes is quick, and waiting costs little.
#[derive(Debug)]
pub(crate) struct Backoff {
    pause: Duration,
    deadline: Option<Instant>,
}

impl Backoff {
    const FIRST: Duration = Duration::from_micros(20);
    const LONGEST: Duration = Duration::from_millis(2);

    /// Begins to wait; a duration too long for the clock means for ever.
    pub(crate) fn new(limit: Duration) -> Self {
        Self { pause: Self::FIRST, deadline: Instant::now().checked_add(limit) }
    }

    /// Sleeps a little; `false` when the time has run out.
    pub(crate) fn pause(&mut self) -> bool {
        let left = self.deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return false;
        }
        std::thread::sleep(self.pause.min(left));
        self.pause = (self.pause * 2).min(Self::LONGEST);
        true
    }
}
