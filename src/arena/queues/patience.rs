//! How a process waits for another: it looks for a little while, then it sleeps.
//!
//! To be woken takes microseconds on the same CPU, and tens of them on another, which has to be woken itself. Whoever expects
//! an answer sooner than that does better to keep looking. How long that pays is learnt from the last waits: as long as they were
//! short, it is tried; one long wait halves what the next one tries. Where there is one CPU, nobody can answer while
//! somebody looks.

use std::hint;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::arena::tables::event::Event;
use crate::os::Fact;

/// The longest time for which it is ever worth looking.
const LONGEST_LOOK: Duration = Duration::from_micros(50);
/// A wait that is over so soon could have been spent looking.
const SHORT: Duration = Duration::from_micros(100);
/// How often is looked between two looks at the clock.
const LOOKS: u32 = 16;
/// Nobody sleeps longer without looking. Whoever was to be woken may have been killed just then, and took the call along.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// What was learnt about how long somebody has to wait for something.
#[derive(Debug)]
pub(super) struct Patience {
    /// For how many nanoseconds it seems worth to look.
    look: AtomicU32,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { look: AtomicU32::new(LONGEST_LOOK.subsec_nanos()) }
    }

    /// Tries until something comes of it, at least once; `None` when the time is over. `between` is done after every sleep.
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
        // A deadline beyond what the clock can say is none.
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

/// Whether somebody else can do something while this thread looks.
fn may_look() -> bool {
    static MAY: Fact = Fact::new();
    MAY.get_or(|| thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1).into()) == 1
}
