//! Which members have registered as senders of a queue: one word of shared memory, of which no part depends on another.
//!
//! ```text
//! bits 63..46  0 until the first registration; then changes with each, and is never 0 again
//! bits 45..0   one for each member: its process has registered senders
//! ```
//!
//! A member sets its bit before its first message as a sender and clears it after its last one. The bit of a killed member is
//! cleared by any process that finds its seat free. How many senders a process has is known to that process only.
//!
//! The end of a queue is a moment at which no bit is set and no message is left. A receiver looks at the word, then for a message,
//! then at the word again: as long as the word is the same, no sender has registered in between. (A receiver that is stopped
//! between its two looks while a multiple of 2^18 - 1 registrations is made could miss them; it would report an end too early,
//! and receive on when asked again.)

use std::sync::atomic::AtomicU64;

use crate::arena::tables::ring::RingRefusal;
use crate::arena::tables::slots::{SEATS, Word};

const MEMBERS: u64 = (1 << SEATS) - 1;
const MOST: u64 = u64::MAX >> SEATS;

/// The registered senders of a queue.
#[derive(Debug)]
pub(crate) struct SenderWord<'a, W = AtomicU64>(&'a W);

/// Registrations, as they were read at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Registrations(u64);

impl Registrations {
    /// Whether members have registered, and all of them have left or been found dead.
    pub(crate) fn are_over(self) -> bool {
        self.0 != 0 && self.0 & MEMBERS == 0
    }

    /// The seats of registered members.
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
    /// Takes a word; zero says that no sender has ever registered.
    pub(crate) fn new(word: &'a W) -> Self {
        Self(word)
    }

    pub(crate) fn load(&self) -> Registrations {
        Registrations(self.0.load())
    }

    /// Registers a member.
    pub(crate) fn register(&self, seat: u32) {
        let mut seen = self.load();
        while let Err(now) = self.0.exchange(seen.0, seen.with(seat).0) {
            seen = Registrations(now);
        }
    }

    /// Ends the registration of a member, if it has one. Returns whether it was the last.
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

    /// Ends all registrations, unless any has changed since they were read. Their members must have been found dead.
    pub(crate) fn forget(&self, seen: Registrations) -> bool {
        self.0.exchange(seen.0, seen.without(MEMBERS).0).is_ok()
    }

    /// Receives, and tells a queue that has ended from one that is empty.
    pub(crate) fn receive<R>(&self, mut receive: impl FnMut() -> Result<R, RingRefusal>) -> Result<R, RingRefusal> {
        match receive() {
            Err(RingRefusal::Empty) => {}
            other => return other,
        }
        let seen = self.load();
        if !seen.are_over() {
            return Err(RingRefusal::Empty);
        }
        // The last one may have sent something before it left.
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
    fn registration_since_the_look_is_not_forgotten() {
        let word = AtomicU64::new(0);
        let senders = SenderWord::new(&word);
        senders.register(7);
        let seen = senders.load();
        senders.leave(7);
        senders.register(7); // another process in the same seat
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
