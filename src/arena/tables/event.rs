//! Waiting until somebody has done something: a word of shared memory on which processes sleep, any of which may be killed.
//!
//! ```text
//! | turns: 31 bits | somebody may sleep: 1 |
//! ```
//!
//! Sleepers are not counted, since one who is killed would stay counted. Who sleeps says that *somebody* does; who wakes
//! nobody although it was said takes it back. A turn is counted with each, so that whoever is about to sleep meanwhile does not,
//! and what he said is not taken back. What no word can help against is that the one who was woken is killed before he has
//! looked: so sleep for a limited time, and look again.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use crate::os;

const SOMEBODY: u32 = 1;
const TURN: u32 = 2;

/// A word on which one can sleep. A trait, so that every interleaving can be tried.
pub(crate) trait Bed {
    fn load(&self) -> u32;
    /// Changes `current` to `new`, or returns what is there instead.
    fn exchange(&self, current: u32, new: u32) -> Result<(), u32>;
    /// What was written before by this thread can be seen by all whose fence comes later.
    fn fence();
    fn sleep(&self, expected: u32, limit: Duration);
    fn wake(&self, how_many: u32) -> usize;
}

impl Bed for AtomicU32 {
    fn load(&self) -> u32 {
        self.load(Ordering::Acquire)
    }

    fn exchange(&self, current: u32, new: u32) -> Result<(), u32> {
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }

    fn sleep(&self, expected: u32, limit: Duration) {
        os::wait_on(self, expected, limit);
    }

    fn wake(&self, how_many: u32) -> usize {
        os::wake(self, how_many)
    }
}

/// Something that happens again and again.
#[derive(Debug)]
pub(crate) struct Event<'a, B = AtomicU32>(&'a B);

/// What somebody who is about to sleep has seen of an event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen(u32);

impl<'a, B: Bed> Event<'a, B> {
    pub(crate) fn new(word: &'a B) -> Self {
        Self(word)
    }

    /// Says that somebody is about to sleep. Look once more for what is waited for, and if it has not happened,
    /// [sleep](Self::sleep).
    pub(crate) fn prepare(&self) -> Seen {
        let mut word = self.0.load();
        loop {
            let new = word.wrapping_add(TURN) | SOMEBODY;
            match self.0.exchange(word, new) {
                Ok(()) => {
                    B::fence();
                    return Seen(new);
                }
                Err(now) => word = now,
            }
        }
    }

    /// Sleeps until it happens, or for `limit`, or for no reason shorter.
    pub(crate) fn sleep(&self, seen: Seen, limit: Duration) {
        self.0.sleep(seen.0, limit);
    }

    /// Wakes one of those who wait for what has just been done.
    pub(crate) fn notify(&self) {
        self.rouse(1);
    }

    /// Wakes all of them.
    pub(crate) fn notify_all(&self) {
        self.rouse(u32::MAX);
    }

    fn rouse(&self, how_many: u32) {
        B::fence();
        let mut word = self.0.load();
        // Whoever says so later looks again later too.
        while word & SOMEBODY != 0 {
            let turned = word.wrapping_add(TURN);
            match self.0.exchange(word, turned) {
                Ok(()) => {
                    if self.0.wake(how_many) == 0 {
                        let _somebody_came = self.0.exchange(turned, turned & !SOMEBODY);
                    }
                    return;
                }
                Err(now) => word = now,
            }
        }
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
#[path = "event_tests.rs"]
mod tests;
