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

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::ground::Ground;
use super::ring::{ESTATE_SENDER, Ring};
use super::slots::{SEATS, Slot};
use crate::backend::lock_space::{self, RECOVER};
use crate::error::Result;
use crate::segment::Turn;

/// What settling estates has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Collected {
    /// Members that had died.
    pub members: usize,
    /// Blocks that became free.
    pub blocks: usize,
}

impl Ground {
    /// Settles the estate of the member in `seat`, and returns how many blocks became free. The caller has that seat's lock.
    ///
    /// Waits no longer than this for those who change spans; the seat stays dead then, and is settled by whoever comes next.
    pub(super) fn settle_seat(&self, seat: u32, _recover: &Turn, limit: Duration) -> Result<usize> {
        let slots = self.slot_table();
        for ring in self.rings() {
            ring.inherit(seat, |slot| slots.get(slot as usize).is_some_and(Slot::keep_for_estate));
        }
        let freed = self.touched_slots().iter().filter(|slot| slot.clear_seat(seat)).count();
        self.free_loose_spans(limit)?;
        if let Some(member) = self.members().get(seat as usize) {
            member.state.store(0, Ordering::Release); // free, and nothing is left
        }
        Ok(freed)
    }

    /// Settles what dead members have left, and ends what their estates need not keep any more.
    ///
    /// Waits no longer than this for a process that does the same.
    pub(crate) fn settle_estates(&self, limit: Duration) -> Result<Collected> {
        self.check_process()?;
        let mut collected = Collected::default();
        let recover = self.turn(RECOVER, limit)?;
        for seat in (0..SEATS).filter(|seat| *seat != self.seat) {
            let range = lock_space::seat(seat);
            if !self.is_taken(seat) || !recover.try_also(range, &self.home)? {
                continue;
            }
            // Asked again: it may have left, or been settled, before its lock was had.
            if self.is_taken(seat) {
                collected.blocks += self.settle_seat(seat, &recover, limit)?;
                collected.members += 1;
            }
            recover.give_back(range);
        }
        // Estates get no message while RECOVER is locked: what is not found is not there.
        let messages = self.rings().flat_map(Ring::messages).filter(|message| message.sender == ESTATE_SENDER);
        let kept: HashSet<u32> = messages.map(|message| message.slot).collect();
        for (index, slot) in (0u32..).zip(self.touched_slots()).filter(|(_, slot)| slot.is_in_estate()) {
            if !kept.contains(&index) && slot.settle_estate() {
                collected.blocks += 1;
            }
        }
        Ok(collected)
    }
}
