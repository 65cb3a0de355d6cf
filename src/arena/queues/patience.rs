//! How a process waits for another one: it spins for some microseconds, then it sleeps.
//!
//! Waking a thread takes microseconds on the same CPU, and tens of microseconds on an idle CPU that has to wake up
//! first. Spinning is cheaper if the wait is shorter than that. The time to spin is learnt from earlier waits: a short
//! wait sets it to the maximum, a long one halves it. On a single CPU the other process cannot run while this one
//! spins, so this one does not spin.

use std::hint;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::arena::tables::event::Event;
use crate::os::Fact;

/// The longest time to spin.
const LONGEST_LOOK: Duration = Duration::from_micros(50);
/// A wait up to this long counts as short.
const SHORT: Duration = Duration::from_micros(100);
/// How many attempts are made between two readings of the clock.
const LOOKS: u32 = 16;
/// The longest sleep without an attempt. A waker wakes one sleeper. If that sleeper is killed before its attempt,
/// another sleeper has to find the message by itself.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// How long to spin, as learnt from earlier waits for the same event.
#[derive(Debug)]
pub(super) struct Patience {
    /// Nanoseconds to spin. Relaxed order is enough: it is only an estimate.
    look: AtomicU32,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { look: AtomicU32::new(LONGEST_LOOK.subsec_nanos()) }
    }

    /// Calls `attempt` until it returns a result, at least once. Returns `None` after `limit`. Calls `between` after
    /// every sleep.
    pub(super) fn wait<R>(
        &self,
        event: &Event<'_>,
        limit: Option<Duration>,
        mut attempt: impl FnMut() -> Option<R>,
        between: impl Fn(),
    ) -> Option<R> {
        if let Some(result) = attempt() {
            return Some(result);
        }
        let begin = Instant::now();
        // A deadline beyond the range of the clock counts as no limit.
        let deadline = limit.and_then(|limit| begin.checked_add(limit));
        let look = if may_look() { self.look.load(Ordering::Relaxed) } else { 0 };
        let look = Duration::from_nanos(look.into()).min(limit.unwrap_or(Duration::MAX));
        while begin.elapsed() < look {
            for _ in 0..LOOKS {
                hint::spin_loop();
                if let Some(result) = attempt() {
                    self.learn(Duration::ZERO);
                    return Some(result);
                }
            }
        }
        let result = loop {
            let seen = event.prepare();
            // The event may have happened before `prepare`, when its waker found no flag and woke no sleeper: see
            // `event.rs`.
            if let Some(result) = attempt() {
                break Some(result);
            }
            let left = deadline.map_or(LONGEST_SLEEP, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break None;
            }
            event.sleep(seen, left.min(LONGEST_SLEEP));
            if let Some(result) = attempt() {
                break Some(result);
            }
            between();
        };
        self.learn(begin.elapsed());
        result
    }

    fn learn(&self, waited: Duration) {
        let look = self.look.load(Ordering::Relaxed);
        let learnt = if waited <= SHORT { LONGEST_LOOK.subsec_nanos() } else { look / 2 };
        if learnt != look {
            self.look.store(learnt, Ordering::Relaxed);
        }
    }
}

/// Returns whether another process can run while this thread spins.
fn may_look() -> bool {
    static MAY: Fact = Fact::new();
    MAY.get_or(|| thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1).into()) == 1
}
