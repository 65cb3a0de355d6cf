//! Events: sleeping on a word of shared memory (a futex) until another process wakes the sleepers. Any process may be
//! killed.
//!
//! ```text
//! | turns: 31 bits | a process may sleep: 1 |
//! ```
//!
//! The *waiter* sets the flag and adds a turn, checks the condition again, and sleeps while the word has this value.
//! The *waker* makes the condition true. If the flag is set, it adds a turn and wakes. The flag stays set until a waker
//! finds no sleeper.
//!
//! Sleepers are not counted, because a killed sleeper would stay counted. Three interleavings shape the protocol:
//!
//! - **The waiter checks while the waker acts.** The waiter sets the flag and then loads the condition; the waker
//!   stores the condition and then loads the flag. Each has a fence between its two steps, so at least one of them sees
//!   the store of the other. Without the fences both could miss it, and the waiter would sleep through the event.
//! - **The waker wakes before the waiter sleeps.** The waiter has checked and is about to sleep; the waker finds no
//!   sleeper to wake. The waker's turn has changed the word, so the kernel does not put the waiter to sleep.
//! - **Another waiter arrives while the waker clears the flag.** The waker has found no sleeper. A second waiter sets
//!   the flag, finds the condition false and sleeps. Its turn has changed the word, so the waker's exchange fails and
//!   the flag stays.
//!
//! Two cases are not covered. The woken process may be killed before it has checked the condition: the other sleepers
//! sleep on. And 2^31 turns may pass while a waiter is stopped before it sleeps. Therefore callers sleep for a limited
//! time and check again.

use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use crate::os;

/// The flag: a process may sleep, or is about to.
const SLEEPER: u32 = 1;
const TURN: u32 = 2;

/// A word on which threads sleep. A trait, so that loom can try every interleaving.
pub(crate) trait Bed {
    fn load(&self) -> u32;
    /// Changes `current` to `new`, or returns the value that it found instead.
    fn exchange(&self, current: u32, new: u32) -> Result<(), u32>;
    /// Sequentially consistent fence: a thread that passes its fence later sees what this thread has written before.
    fn fence();
    /// Sleeps if the word is `expected`, in one step with the comparison.
    fn sleep(&self, expected: u32, limit: Duration);
    /// Wakes at most `how_many` sleepers, and returns how many it has woken.
    fn wake(&self, how_many: u32) -> usize;
}

impl Bed for AtomicU32 {
    fn load(&self) -> u32 {
        os::point(false);
        self.load(Ordering::Acquire)
    }

    fn exchange(&self, current: u32, new: u32) -> Result<(), u32> {
        os::point(true);
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

/// A recurring event that processes sleep for.
#[derive(Debug)]
pub(crate) struct Event<'a, B = AtomicU32>(&'a B);

/// The word that a waiter sleeps on, as [`Event::prepare`] left it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen(u32);

impl<'a, B: Bed> Event<'a, B> {
    pub(crate) fn new(word: &'a B) -> Self {
        Self(word)
    }

    /// Sets the flag before sleeping. Then the caller checks the condition again, and [sleeps](Self::sleep) if it is
    /// still false.
    pub(crate) fn prepare(&self) -> Seen {
        let mut word = self.0.load();
        loop {
            let new = word.wrapping_add(TURN) | SLEEPER;
            match self.0.exchange(word, new) {
                Ok(()) => {
                    // Between the store of the flag and the caller's check. Pairs with the fence in `rouse`.
                    B::fence();
                    return Seen(new);
                }
                // Another waiter or waker has added a turn. The caller has not checked yet, so no event is missed.
                Err(now) => word = now,
            }
        }
    }

    /// Sleeps until the event, or for `limit`. May return early without a reason. Returns at once if a turn was added
    /// since `prepare`.
    pub(crate) fn sleep(&self, seen: Seen, limit: Duration) {
        self.0.sleep(seen.0, limit);
    }

    /// Wakes one sleeper. The caller has made the condition true.
    pub(crate) fn notify(&self) {
        self.rouse(1);
    }

    /// Wakes all sleepers. The caller has made the condition true.
    pub(crate) fn notify_all(&self) {
        self.rouse(u32::MAX);
    }

    fn rouse(&self, how_many: u32) {
        // Between the caller's change and the load of the flag. Pairs with the fence in `prepare`.
        B::fence();
        let mut word = self.0.load();
        // Without the flag there is no sleeper to wake. A waiter that sets it later also checks the condition later,
        // and finds it true.
        while word & SLEEPER != 0 {
            let turned = word.wrapping_add(TURN);
            match self.0.exchange(word, turned) {
                Ok(()) => {
                    if self.0.wake(how_many) == 0 {
                        // Fails if another waiter has set the flag since. Then the flag is its own and stays.
                        let _ = self.0.exchange(turned, turned & !SLEEPER);
                    }
                    return;
                }
                // A waiter has added a turn and may sleep by now, or another waker has. If the flag is clear now, the
                // waker found no sleeper.
                Err(now) => word = now,
            }
        }
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
#[path = "event_tests.rs"]
mod tests;
