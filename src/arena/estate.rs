//! What the dead leave, and those who leave with messages on their way.
//!
//! Everything here is done under RECOVER, by somebody who has the lock of the seat that it is about, and may be done again from
//! the beginning: every step sets or clears a bit, or one word. Whoever is killed at it leaves the seat as it was, dead.
//!
//! 1. Messages that the member sent and nobody has received go over to the estate: first the block gets ESTATE, then the
//!    message names ESTATE as its sender. A consumer that takes the message in between has the block by then.
//! 2. The member's bit is cleared in every slot.
//! 3. Spans that it was just putting together, or taking apart, are freed (`spans.rs`).
//! 4. The seat's state becomes 0.
//!
//! ESTATE bits whose message has been received since are cleared by whoever comes here next.

use std::sync::atomic::AtomicU64;

use super::ground::Ground;
use super::slots::SEATS;
use crate::backend::lock_space;
use crate::error::Result;
use crate::segment::Turn;

/// The sender of messages that an estate keeps.
pub(crate) const ESTATE_SENDER: u32 = SEATS + 1;

/// What settling estates has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collected {
    /// Members that had died.
    pub members: usize,
    /// Blocks that became free.
    pub blocks: usize,
}

/// What estates ask of a queue.
pub(crate) trait Carrier {
    /// Makes every message of this sender one of the estate's, if `keep` can keep its slot: that is called first.
    fn inherit(&self, sender: u32, keep: &mut dyn FnMut(u32) -> bool);

    /// Whether a message of this sender about this slot waits.
    fn carries(&self, slot: u32, sender: u32) -> bool;
}

/// A queue that nobody has sent to.
struct Unused;

impl Carrier for Unused {
    fn inherit(&self, _sender: u32, _keep: &mut dyn FnMut(u32) -> bool) {}

    fn carries(&self, _slot: u32, _sender: u32) -> bool {
        false
    }
}

/// Reads the words of a queue as what carries messages.
fn carrier(_words: &[AtomicU64]) -> impl Carrier {
    Unused
}

impl Ground {
    fn carriers(&self) -> impl Iterator<Item = impl Carrier> {
        (0..self.geometry().queues).map(|queue| carrier(self.queue_words(queue)))
    }

    /// Settles the estate of the member in `seat`, and returns how many blocks became free. The caller has that seat's lock.
    pub(super) fn settle_seat(&self, seat: u32, _recover: &Turn) -> Result<usize> {
        let slots = self.slot_table();
        for carrier in self.carriers() {
            carrier.inherit(seat, &mut |slot| slots.get(slot as usize).is_some_and(|slot| slot.keep_for_estate()));
        }
        let freed = self.touched_slots().iter().filter(|slot| slot.clear_seat(seat)).count();
        self.free_loose_spans()?;
        self.clear_state(seat);
        Ok(freed)
    }

    /// Settles what dead members have left, and ends what their estates need not keep any more.
    pub(crate) fn settle_estates(&self) -> Result<Collected> {
        self.check_process()?;
        let mut collected = Collected::default();
        let recover = self.recover_turn()?;
        for seat in (0..SEATS).filter(|seat| *seat != self.seat()) {
            let range = lock_space::seat(seat);
            if !self.is_taken(seat) || !recover.try_also(range, self.home())? {
                continue;
            }
            // Asked again: it may have left, or been settled, before its lock was had.
            if self.is_taken(seat) {
                collected.blocks += self.settle_seat(seat, &recover)?;
                collected.members += 1;
            }
            recover.give_back(range);
        }
        for (index, slot) in (0u32..).zip(self.touched_slots()).filter(|(_, slot)| slot.is_in_estate()) {
            let waits = self.carriers().any(|carrier| carrier.carries(index, ESTATE_SENDER));
            if !waits && slot.settle_estate() {
                collected.blocks += 1;
            }
        }
        Ok(collected)
    }
}
