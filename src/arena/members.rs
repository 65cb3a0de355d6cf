//! Who is here: 46 seats, each a lock that the kernel gives back when its process dies.
//!
//! A seat's state is 0 when nobody has it and nothing is left of anybody who had. A state other than 0 whose lock is free is a
//! death: whoever takes that lock settles the estate (`estate.rs`) before he sets the state to 0.
//!
//! A process sets its state before its first bit in any slot, and back to 0 after its last.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::ground::{Ground, TURN_WAIT};
use super::slots::SEATS;
use crate::backend::lock_space::{self, RECOVER};
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::os;

/// How long a member that joins waits for seats that others are just settling, and for a moment in which no thread forks.
const JOIN_WAIT: Duration = Duration::from_secs(5);

impl Ground {
    /// Takes a seat that nobody has, or one of a dead member.
    pub(super) fn take_seat(&mut self) -> Result<()> {
        let mut backoff = Backoff::new(JOIN_WAIT);
        loop {
            if let Some(seat) = self.try_seats()? {
                self.seat = seat;
                return Ok(());
            }
            // Some may be free at any moment: of members that leave, or whose estate is being settled.
            let all_alive = (0..SEATS).all(|seat| self.is_taken(seat) && self.is_alive(seat).unwrap_or(true));
            let location = || self.name().to_owned();
            if all_alive {
                return Err(Error::TooManyHandles { location: location(), limit: SEATS.into(), doing: "attached" });
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
            if !mark.settle(range, forks) {
                os::step("seat: a child may have its lock");
                return Ok(None);
            }
            // Asked when the lock is had: until then the state may change.
            if self.is_taken(seat) {
                let turn = self.turn(RECOVER, TURN_WAIT)?;
                self.settle_seat(seat, &turn, TURN_WAIT)?;
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

    /// Settles this member's own estate: messages that nobody has received yet stay valid.
    pub(super) fn give_up_seat(&mut self, limit: Duration) -> Result<()> {
        let turn = self.turn(RECOVER, limit)?;
        let settled = self.settle_seat(self.seat, &turn, limit);
        self.seat = SEATS;
        settled.map(drop)
    }
}
