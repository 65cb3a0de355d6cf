//! The members of an arena: 46 seats, each a lock that the kernel releases when its process dies, and what a member leaves.
//!
//! A seat's state is 0 when no process has it and nothing is left of one that had. A state other than 0 whose lock is free is a
//! death: the process that takes that lock reclaims the member's holds before it sets the state to 0. A process sets its state
//! before its first bit in any slot, and back to 0 after its last.
//!
//! # What a member leaves
//!
//! All of it is done under RECOVER, by a process that has the lock of the seat, and may be done again from the beginning: every
//! step sets or clears a bit, or one word. A process that is killed at it leaves the seat as it was, dead.
//!
//! 1. Messages that the member sent and that are not yet received become *orphaned*: first the block gets ORPHAN, then the
//!    message names ORPHAN as its sender. A consumer that takes the message in between has the block by then.
//! 2. Its registrations as a sender end, and its bit is cleared in every slot.
//! 3. Spans that it was putting together, or taking apart, are freed (`blocks/spans.rs`).
//! 4. The seat's state becomes 0.
//!
//! ORPHAN bits whose message has been received since are cleared by the next process that reclaims.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::arena::header::{ArenaHeader, TURN_WAIT};
use crate::arena::tables::ring::{ORPHAN_SENDER, Ring};
use crate::arena::tables::slots::{SEATS, Slot};
use crate::backend::lock_space::{self, RECOVER};
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::os;
use crate::segment::Turn;

/// How long a member that joins waits for seats that others are just settling, and for a moment in which no thread forks.
const JOIN_WAIT: Duration = Duration::from_secs(5);

/// Result of reclaiming the holds of dead members, by [`Arena::reclaim`](crate::Arena::reclaim) or
/// [`Counters::reclaim`](crate::arena::loans::Counters::reclaim).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReclaimedBlocks {
    /// Members that had died.
    pub members: usize,
    /// Blocks that became free.
    pub blocks: usize,
}

impl ArenaHeader {
    /// Takes a seat that nobody has, or one of a dead member.
    pub(super) fn take_seat(&mut self) -> Result<()> {
        let mut backoff = Backoff::new(JOIN_WAIT);
        loop {
            if let Some(seat) = self.try_seats()? {
                self.seat = seat;
                return Ok(());
            }
            // Some may be free at any moment: of members that leave, or whose holds are being reclaimed.
            let all_alive = (0..SEATS).all(|seat| self.is_taken(seat) && self.is_alive(seat).unwrap_or(true));
            let location = || self.name().to_owned();
            if all_alive {
                return Err(Error::TooManyProcesses { location: location(), limit: SEATS });
            }
            if !backoff.pause() {
                return Err(Error::TimedOut { location: location(), waited: JOIN_WAIT });
            }
        }
    }

    fn try_seats(&mut self) -> Result<Option<u32>> {
        // The child of a fork that is going on may have a copy of what is opened now.
        let Some(forks) = os::forks() else { return Ok(None) };
        let mut mark = self.segment()?.mark(&self.home)?;
        // A free seat if there is one: what a dead member has left in its seat takes longer.
        let free = (0..SEATS).filter(|seat| !self.is_taken(*seat));
        for seat in free.chain(0..SEATS) {
            let range = lock_space::seat(seat);
            if !mark.try_take(range, &self.home)? {
                continue;
            }
            // A child that has the description too would hide this process's death.
            if !mark.confirm(range, forks) {
                os::step("seat: a child may have its lock");
                return Ok(None);
            }
            // Asked when the lock is had: until then the state may change.
            if self.is_taken(seat) {
                let turn = self.turn(RECOVER, TURN_WAIT)?;
                self.reclaim_seat(seat, &turn, TURN_WAIT)?;
            }
            let Some(member) = self.members().get(seat as usize) else { continue };
            member.process.store(std::process::id().into(), Ordering::Relaxed);
            member.state.store(self.next_member(), Ordering::Release);
            self.mark = Some(mark);
            return Ok(Some(seat));
        }
        Ok(None)
    }

    /// Whether the seat's state says that somebody has it, or has died in it.
    pub(crate) fn is_taken(&self, seat: u32) -> bool {
        self.members().get(seat as usize).is_some_and(|member| member.state.load(Ordering::Acquire) != 0)
    }

    /// Whether the process that took the seat is alive, as the kernel says.
    pub(crate) fn is_alive(&self, seat: u32) -> Result<bool> {
        Ok(seat == self.seat || self.segment()?.is_range_locked(lock_space::seat(seat), &self.home)?)
    }

    /// Number of the process in a seat, to be shown.
    pub(crate) fn process_of(&self, seat: u32) -> u32 {
        let process = self.members().get(seat as usize).map(|member| member.process.load(Ordering::Relaxed));
        process.and_then(|process| u32::try_from(process).ok()).unwrap_or(0)
    }

    /// Gives up this member's holds; messages not yet received stay valid.
    pub(super) fn give_up_seat(&mut self, limit: Duration) -> Result<()> {
        let turn = self.turn(RECOVER, limit)?;
        let settled = self.reclaim_seat(self.seat, &turn, limit);
        self.seat = SEATS;
        settled.map(drop)
    }

    /// Reclaims the holds of the member in `seat`, and returns how many blocks became free. The caller has that seat's lock.
    ///
    /// Waits no longer than this for those who change spans; the seat stays dead then, and is settled by whoever comes next.
    pub(super) fn reclaim_seat(&self, seat: u32, _recover: &Turn, limit: Duration) -> Result<usize> {
        let slots = self.slot_table();
        for ring in self.rings() {
            ring.orphan_messages(seat, |slot| slots.get(slot as usize).is_some_and(Slot::orphan));
        }
        for queue in self.queues() {
            if queue.senders.leave(seat) {
                queue.filled.notify_all();
            }
        }
        let freed = self.touched_slots().iter().filter(|slot| slot.clear_seat(seat)).count();
        self.free_loose_spans(limit)?;
        if let Some(member) = self.members().get(seat as usize) {
            member.state.store(0, Ordering::Release); // free, and nothing is left
        }
        Ok(freed)
    }

    /// Reclaims the holds of dead members, and frees the blocks of orphaned messages received since.
    ///
    /// Waits no longer than this for a process that does the same.
    pub(crate) fn reclaim_dead(&self, limit: Duration) -> Result<ReclaimedBlocks> {
        self.check_process()?;
        let mut reclaimed = ReclaimedBlocks::default();
        let recover = self.turn(RECOVER, limit)?;
        for seat in (0..SEATS).filter(|seat| *seat != self.seat) {
            let range = lock_space::seat(seat);
            if !self.is_taken(seat) || !recover.try_also(range, &self.home)? {
                continue;
            }
            // Asked again: it may have left, or been settled, before its lock was had.
            if self.is_taken(seat) {
                reclaimed.blocks += self.reclaim_seat(seat, &recover, limit)?;
                reclaimed.members += 1;
            }
            recover.unlock(range);
        }
        // Estates get no message while RECOVER is locked: what is not found is not there.
        let messages = self.rings().flat_map(Ring::messages).filter(|message| message.sender == ORPHAN_SENDER);
        let kept: HashSet<u32> = messages.map(|message| message.slot).collect();
        for (index, slot) in (0u32..).zip(self.touched_slots()).filter(|(_, slot)| slot.is_orphaned()) {
            if !kept.contains(&index) && slot.release_orphan() {
                reclaimed.blocks += 1;
            }
        }
        Ok(reclaimed)
    }
}
