//! Which members have registered as senders of a queue: one word of shared memory.
//!
//! ```text
//! bits 63..46  0 until the first registration; then changes with each, and is never 0 again
//! bits 45..0   one for each member: its process has registered senders
//! ```
//!
//! A member sets its bit before its first message as a sender and clears it after its last one. The bit of a killed
//! member is cleared by any process that finds its seat free. How many senders a process has is known to that process
//! only.
//!
//! The end of a queue is a moment at which no bit is set and no message is left. A receiver loads the word, tries to
//! receive, and loads the word again. If the word is the same, no sender has registered in between. (If the receiver is
//! stopped between the two loads while a multiple of 2^18 - 1 registrations is made, it misses them and reports the end
//! too early. The next call receives again.)

use std::sync::atomic::AtomicU64;

use crate::arena::tables::entries::{SEATS, Word};
use crate::arena::tables::ring::RingRefusal;

const MEMBERS: u64 = (1 << SEATS) - 1;
const MOST: u64 = u64::MAX >> SEATS;

/// The registered senders of a queue.
#[derive(Debug)]
pub(crate) struct SenderWord<'a, W = AtomicU64>(&'a W);

/// The value of the word at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Registrations(u64);

impl Registrations {
    /// Returns whether members have registered, and all of them have left or been found dead.
    pub(crate) fn are_over(self) -> bool {
        self.0 != 0 && self.0 & MEMBERS == 0
    }

    /// Iterates over the seats of registered members.
    pub(crate) fn seats(self) -> impl Iterator<Item = u32> {
        (0..SEATS).filter(move |seat| self.0 >> seat & 1 != 0)
    }

    fn with(self, seat: u32) -> Self {
        let number = self.0 >> SEATS;
        let next = if number == MOST { 1 } else { number + 1 };
        Self(next << SEATS | self.0 & MEMBERS | 1 << seat)
    }

    fn without(self, members: u64) -> Self {
        Self(self.0 & !members)
    }
}

impl<'a, W: Word> SenderWord<'a, W> {
    /// Returns the registrations in a word; zero means that no sender has ever registered.
    pub(crate) fn new(word: &'a W) -> Self {
        Self(word)
    }

    pub(crate) fn load(&self) -> Registrations {
        Registrations(self.0.load())
    }

    /// Registers a member. The bit and the next number are set in one exchange.
    pub(crate) fn register(&self, seat: u32) {
        let mut seen = self.load();
        while let Err(now) = self.0.exchange(seen.0, seen.with(seat).0) {
            seen = Registrations(now);
        }
    }

    /// Ends the registration of a member, if it has one. Returns whether that was the last registration.
    ///
    /// The exchange releases: a receiver that finds the bit cleared sees all messages that the member sent before.
    pub(crate) fn leave(&self, seat: u32) -> bool {
        let mut seen = self.load();
        loop {
            let left = seen.without(1 << seat);
            if left == seen {
                return false;
            }
            match self.0.exchange(seen.0, left.0) {
                Ok(()) => return left.are_over(),
                Err(now) => seen = Registrations(now),
            }
        }
    }

    /// Ends all registrations, unless any has changed since `seen` was loaded. The caller has found their members dead.
    ///
    /// After the caller has asked the kernel, another process may take the seat of a dead member and register. That
    /// changes the number, so the exchange fails and the new sender stays registered.
    pub(crate) fn forget(&self, seen: Registrations) -> bool {
        self.0.exchange(seen.0, seen.without(MEMBERS).0).is_ok()
    }

    /// Receives. Fails with [`Deserted`](RingRefusal::Deserted) if the queue has ended, and with
    /// [`Empty`](RingRefusal::Empty) if it is only empty.
    pub(crate) fn receive<R>(&self, mut receive: impl FnMut() -> Result<R, RingRefusal>) -> Result<R, RingRefusal> {
        match receive() {
            Err(RingRefusal::Empty) => {}
            other => return other,
        }
        let seen = self.load();
        if !seen.are_over() {
            return Err(RingRefusal::Empty);
        }
        // The last sender may have sent its last message and left between the first `receive` and the load: receive
        // again. If there is still no message, a new sender may have registered since the load, and its messages may
        // even have been received. Then the word has changed, and the queue is empty but has not ended.
        match receive() {
            Err(RingRefusal::Empty) if self.load() == seen => Err(RingRefusal::Deserted),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_without_registered_senders_never_ends() {
        let word = AtomicU64::new(0);
        let senders = SenderWord::new(&word);
        assert_eq!(senders.receive(|| Err::<(), _>(RingRefusal::Empty)), Err(RingRefusal::Empty));
        assert!(!senders.leave(3));
    }

    #[test]
    fn last_of_several_senders_ends_the_queue() {
        let word = AtomicU64::new(0);
        let senders = SenderWord::new(&word);
        let receive = || senders.receive(|| Err::<(), _>(RingRefusal::Empty));
        for seat in [0, 45] {
            senders.register(seat);
        }
        assert!(senders.load().seats().eq([0, 45]));
        assert!(!senders.leave(0) && !senders.leave(0));
        assert_eq!(receive(), Err(RingRefusal::Empty));
        assert!(senders.leave(45));
        assert_eq!(receive(), Err(RingRefusal::Deserted));
        senders.register(7);
        assert_eq!(receive(), Err(RingRefusal::Empty));
        assert!(senders.forget(senders.load()));
        assert_eq!(receive(), Err(RingRefusal::Deserted));
    }

    #[test]
    fn forget_fails_after_a_new_registration() {
        let word = AtomicU64::new(0);
        let senders = SenderWord::new(&word);
        senders.register(7);
        let seen = senders.load();
        senders.leave(7);
        senders.register(7); // by another process, which has taken the same seat
        assert!(!senders.forget(seen));
        assert!(senders.load().seats().eq([7]));
    }

    #[test]
    fn number_of_registrations_is_never_zero_again() {
        let word = AtomicU64::new(MOST << SEATS);
        let senders = SenderWord::new(&word);
        senders.register(1);
        assert!(senders.leave(1));
        assert!(senders.load().are_over());
    }
}
