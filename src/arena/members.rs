//! The members of an arena, and how the holds of a dead member are reclaimed.
//!
//! An arena has 46 seats, each with a lock byte that the kernel unlocks when its process dies. A seat's state is 0 when
//! no process has taken it and nothing is left of an earlier member. *A state other than 0 with a free lock is a
//! death*: the process that takes the lock reclaims the member's holds before it sets the state to 0. A member sets its
//! state before it sets its first bit in any entry, and sets it back to 0 after it has cleared the last.
//!
//! # Reclaiming
//!
//! The process that reclaims holds RECOVER and the lock of the seat. Every step sets or clears a bit, or one word, so
//! all steps can be repeated. A process that is killed midway leaves the seat dead, and the next one starts again.
//!
//! 1. Messages that the member sent and that have not been received become *orphaned*: first the block gets ORPHAN,
//!    then the message names ORPHAN as its sender. A receiver that takes the message in between holds the block
//!    already.
//! 2. Its registrations as a sender end, and its bit is cleared in every entry. This comes after 1, so that the block
//!    of a message is never free.
//! 3. Spans that the member was joining to a run, or taking apart, are freed (`blocks/spans.rs`).
//! 4. The seat's state becomes 0. This comes last: until then the seat is found dead again.
//!
//! When the orphaned message has been received, its ORPHAN bit is cleared by the next process that reclaims.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::arena::header::{ArenaHeader, Membership};
use crate::arena::tables::entries::{BlockEntry, SEATS};
use crate::arena::tables::ring::{ORPHAN_SENDER, Ring};
use crate::backend::Turn;
use crate::backend::lock_space::{self, RECOVER};
use crate::backoff::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, LockKind};
use crate::segment::Mark;

/// How long a joining process waits in total: for seats that other processes are reclaiming, for the locks with which
/// it reclaims one itself, and until no thread of its own is forking.
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
    /// Takes a free seat, or that of a dead member.
    pub(super) fn take_seat(&mut self) -> Result<()> {
        let until = Deadline::after(JOIN_WAIT);
        let mut backoff = Backoff::until(until);
        loop {
            if let Some((seat, mark)) = self.try_seats(until)? {
                self.membership = Membership::Seated { seat, _mark: mark };
                return Ok(());
            }
            // If a member is not alive, its seat may become free at any moment: it is leaving, or is dead and being
            // reclaimed.
            let all_alive = (0..SEATS).all(|seat| self.is_taken(seat) && self.is_alive(seat).unwrap_or(true));
            if all_alive {
                return Err(ErrorKind::TooManyProcesses { limit: SEATS }.at(self.name()));
            }
            if !backoff.pause() {
                return Err(ErrorKind::TimedOut { waited: JOIN_WAIT }.at(self.name()));
            }
        }
    }

    fn try_seats(&self, until: Deadline) -> Result<Option<(u32, Mark)>> {
        // While another thread forks, the child may get a copy of the file description that is opened now: retry later.
        let Some(forks) = os::forks() else { return Ok(None) };
        let mut mark = self.segment().mark()?;
        // Free seats first: reclaiming a dead member takes longer.
        let free = (0..SEATS).filter(|seat| !self.is_taken(*seat));
        for seat in free.chain(0..SEATS) {
            let range = lock_space::seat(seat);
            if !mark.try_take(range, &self.home)? {
                continue;
            }
            // If another thread has forked since, the child may have the description too. It would keep the lock after
            // this process has died, and so hide the death.
            if !mark.confirm(range, forks) {
                os::step("seat: a child may have its lock");
                return Ok(None);
            }
            // The state is loaded again under the lock: before, another process could have taken the seat and died, or
            // reclaimed it.
            if self.is_taken(seat) {
                let turn = self.turn(RECOVER, until)?;
                self.reclaim_seat(seat, &turn, until)?;
            }
            let Some(member) = self.members().get(seat as usize) else { continue };
            member.process.store(std::process::id().into(), Ordering::Relaxed);
            member.state.store(self.next_member(), Ordering::Release);
            return Ok(Some((seat, mark)));
        }
        Ok(None)
    }

    /// Returns whether the seat's state is not 0: it has a member, alive or dead.
    pub(crate) fn is_taken(&self, seat: u32) -> bool {
        self.members().get(seat as usize).is_some_and(|member| member.state.load(Ordering::Acquire) != 0)
    }

    /// Asks the kernel whether the process that took the seat is alive.
    pub(crate) fn is_alive(&self, seat: u32) -> Result<bool> {
        Ok(seat == self.own_seat() || self.segment().is_range_locked(lock_space::seat(seat))?)
    }

    /// Returns the number of the process in a seat, only for display.
    pub(crate) fn process_of(&self, seat: u32) -> u32 {
        let process = self.members().get(seat as usize).map(|member| member.process.load(Ordering::Relaxed));
        process.and_then(|process| u32::try_from(process).ok()).unwrap_or(0)
    }

    /// Gives up this member's seat and holds. Its messages stay valid: those that have not been received become
    /// orphaned.
    pub(super) fn give_up_seat(&self, until: Deadline) -> Result<()> {
        let Membership::Seated { seat, .. } = self.membership else { return Ok(()) };
        let turn = self.turn(RECOVER, until)?;
        self.reclaim_seat(seat, &turn, until).map(drop)
    }

    /// Reclaims the holds of the member in `seat`, and returns how many blocks became free. The caller holds that
    /// seat's lock.
    ///
    /// Waits for SPANS until the deadline. If that fails, the seat's state stays, and the next process that reclaims
    /// starts again.
    pub(super) fn reclaim_seat(&self, seat: u32, _recover: &Turn, until: Deadline) -> Result<usize> {
        let entries = self.entry_table();
        for ring in self.rings() {
            ring.orphan_messages(seat, |entry| entries.get(entry as usize).is_some_and(BlockEntry::orphan));
        }
        for queue in self.queues() {
            if queue.senders.leave(seat) {
                queue.filled.notify_all();
            }
        }
        let freed = self.touched_entries().iter().filter(|entry| entry.clear_seat(seat)).count();
        self.free_loose_spans(until)?;
        if let Some(member) = self.members().get(seat as usize) {
            // A release store: the next process that takes the seat loads this 0 before it sets its first bit, and so
            // sees that everything is cleared.
            member.state.store(0, Ordering::Release);
        }
        Ok(freed)
    }

    /// Reclaims the holds of dead members, and frees the blocks of orphaned messages that have been received.
    ///
    /// Waits until the deadline for RECOVER, which another reclaiming process holds.
    pub(crate) fn reclaim_dead(&self, until: Deadline) -> Result<ReclaimedBlocks> {
        self.check_process()?;
        let mut reclaimed = ReclaimedBlocks::default();
        let failed = |error| Error::os("lock", &self.home.location, error);
        let mut recover = self.turn(RECOVER, until)?;
        os::step("reclaim: alone");
        for seat in (0..SEATS).filter(|seat| *seat != self.own_seat()) {
            let range = lock_space::seat(seat);
            if !self.is_taken(seat) || !recover.try_lock(LockKind::Exclusive, range).map_err(failed)? {
                continue;
            }
            // The state is loaded again under the lock: before, the member could have left.
            if self.is_taken(seat) {
                reclaimed.blocks += self.reclaim_seat(seat, &recover, until)?;
                reclaimed.members += 1;
            }
            recover.unlock(range).map_err(failed)?;
        }
        // Messages become orphaned only under RECOVER, which this process holds. So an ORPHAN bit without an orphaned
        // message belongs to a message that was received, or that a receiver took while it was being orphaned.
        let messages = self.rings().flat_map(Ring::messages).filter(|message| message.sender == ORPHAN_SENDER);
        let kept: HashSet<u32> = messages.map(|message| message.entry).collect();
        for (index, entry) in (0u32..).zip(self.touched_entries()).filter(|(_, entry)| entry.is_orphaned()) {
            if !kept.contains(&index) && entry.release_orphan() {
                reclaimed.blocks += 1;
            }
        }
        Ok(reclaimed)
    }
}
