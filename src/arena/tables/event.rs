//! Sleeping until another process has done something, on a word of shared memory (a futex). Any of the processes may be killed.
//!
//! ```text
//! | turns: 31 bits | a process may sleep: 1 |
//! ```
//!
//! The *waiter* sets the flag and adds a turn, checks the condition once more, and sleeps while the word has this value. The *waker*
//! makes the condition true, and if the flag is set adds a turn and wakes. The flag stays set until a waker finds no sleeper.
//!
//! Sleepers are not counted, because a killed sleeper would stay counted. Three interleavings shape the protocol:
//!
//! - **The waiter checks while the waker acts.** The waiter sets the flag and then loads the condition; the waker stores the condition
//!   and then loads the flag. A fence between the two steps of each makes sure that at least one sees the other's store.
//!   Without the fences, both could miss it, and the waiter would sleep through the event.
//! - **The waker wakes before the waiter sleeps.** The waiter has checked and is about to sleep; the waker finds no sleeper to wake.
//!   The waker's turn has changed the word, so the kernel does not put the waiter to sleep.
//! - **Another waiter comes while the waker clears the flag.** The waker has found no sleeper; a second waiter sets the flag, checks in
//!   vain and sleeps. The second waiter's turn has changed the word, so the waker's exchange fails and the flag stays.
//!
//! One case is beyond the protocol: the process that was woken is killed before it has looked, and the others sleep on. (So would a
//! waiter that is stopped before it sleeps while 2^31 turns pass.) Therefore callers sleep for a limited time and look again.

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
    /// Wakes at most so many sleepers, and returns how many it has woken.
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

/// An event that happens again and again, and for which processes sleep.
#[derive(Debug)]
pub(crate) struct Event<'a, B = AtomicU32>(&'a B);

/// The word that a waiter sleeps on, as [`Event::prepare`] left it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen(u32);

impl<'a, B: Bed> Event<'a, B> {
    pub(crate) fn new(word: &'a B) -> Self {
        Self(word)
    }

    /// Sets the flag before sleeping. The caller checks the condition once more, and [sleeps](Self::sleep) if it is still false.
    pub(crate) fn prepare(&self) -> Seen {
        let mut word = self.0.load();
        loop {
            let new = word.wrapping_add(TURN) | SLEEPER;
            match self.0.exchange(word, new) {
                Ok(()) => {
                    // Between the flag and the caller's check; goes with the fence in `rouse`.
                    B::fence();
                    return Seen(new);
                }
                // A turn of another waiter or waker: the caller has not checked yet, so no event is missed.
                Err(now) => word = now,
            }
        }
    }

    /// Sleeps until the event, or for `limit`. May return earlier for no reason. Returns at once after any turn since `prepare`.
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
        // Between the caller's change and the load of the flag; goes with the fence in `prepare`.
        B::fence();
        let mut word = self.0.load();
        // Without the flag there is no sleeper to wake: a waiter that sets it later checks the condition later, too, and finds it true.
        while word & SLEEPER != 0 {
            let turned = word.wrapping_add(TURN);
            match self.0.exchange(word, turned) {
                Ok(()) => {
                    if self.0.wake(how_many) == 0 {
                        let _ = self.0.exchange(turned, turned & !SLEEPER); // fails if a waiter has come since: the flag is its own
                    }
                    return;
                }
                // A turn of a waiter that may sleep by now, or of another waker. If that cleared the flag, it found no sleeper.
                Err(now) => word = now,
            }
        }
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
#[path = "event_tests.rs"]
mod tests;
