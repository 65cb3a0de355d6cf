//! Waiting for events without a notification: short sleeps that grow, and deadlines.

use std::time::{Duration, Instant};

/// A time limit that several waits share: each gets what the earlier ones have left of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    limit: Duration,
    /// `None`: never, because the clock cannot represent so late a time.
    at: Option<Instant>,
}

impl Deadline {
    /// Begins a time limit; a duration too long for the clock means for ever.
    pub(crate) fn after(limit: Duration) -> Self {
        Self { limit, at: Instant::now().checked_add(limit) }
    }

    /// Returns the limit as it was in the beginning, for errors.
    pub(crate) fn limit(self) -> Duration {
        self.limit
    }

    /// Returns a later deadline: work of this process's own, which took so long, is no wait.
    pub(crate) fn later_by(self, own_work: Duration) -> Self {
        Self { at: self.at.and_then(|at| at.checked_add(own_work)), ..self }
    }

    /// Returns how much of the limit is left.
    pub(crate) fn left(self) -> Duration {
        self.at.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }
}

/// Sleeps longer from call to call: a hand-over between running processes is quick, and waiting costs little.
#[derive(Debug)]
pub(crate) struct Backoff {
    pause: Duration,
    deadline: Deadline,
}

impl Backoff {
    const FIRST: Duration = Duration::from_micros(20);
    const LONGEST: Duration = Duration::from_millis(2);

    /// Begins to wait; a duration too long for the clock means for ever.
    pub(crate) fn new(limit: Duration) -> Self {
        Self::until(Deadline::after(limit))
    }

    /// Begins to wait until a deadline.
    pub(crate) fn until(deadline: Deadline) -> Self {
        Self { pause: Self::FIRST, deadline }
    }

    /// Sleeps a little; `false` when the time has run out.
    pub(crate) fn pause(&mut self) -> bool {
        let left = self.deadline.left();
        if left.is_zero() {
            return false;
        }
        std::thread::sleep(self.pause.min(left));
        self.pause = (self.pause * 2).min(Self::LONGEST);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_share_a_deadline() {
        let deadline = Deadline::after(Duration::from_millis(20));
        let mut first = Backoff::until(deadline);
        while first.pause() {}
        assert!(deadline.left().is_zero() && !Backoff::until(deadline).pause());
        assert_eq!(deadline.limit(), Duration::from_millis(20));
        assert!(deadline.later_by(Duration::from_secs(60)).left() > Duration::from_secs(1));
        for for_ever in [Deadline::after(Duration::MAX), deadline.later_by(Duration::MAX)] {
            assert_eq!(for_ever.left(), Duration::MAX);
        }
    }
}
