//! How many use an array, and which handles to it are on their way: numbers in shared memory, changed one at a time.
//!
//! Everything that must be decided at once is in one word, so that no death between two steps leaves a half-done
//! change: how many handles are attached, whether the array is kept, frozen, named, or dead. Dead is for ever: whoever
//! brings the number of handles to 0 decides in the same step whether anybody may still come, and nobody is let in
//! afterwards.
//!
//! Tickets are not in that word. Whoever leaves as the last looks at them before he changes it, and what he saw must still be
//! true then, although others may have come and gone meanwhile: so the word also counts those who came.
//!
//! A *ticket* stands for a handle on its way. It is taken by whoever attaches with it, or expires. What the numbers say
//! is only half of the truth: a process that was killed never subtracts itself. The other half is the lease, which the
//! kernel keeps.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::os;

/// Most handles that can be on their way at once.
pub(crate) const MOST_TICKETS: usize = 128;

/// Longest time that a ticket may protect an array to which nobody is attached. A deadline further away than this is
/// none: it was written before the machine was started, or by a stranger.
pub(crate) const LONGEST_GRACE: Duration = Duration::from_secs(7 * 24 * 3600);

const HANDLES: u64 = 0xffff_ffff;
/// How many have come so far, around and around: nobody sees the same word twice while he makes up his mind.
const ARRIVALS: u64 = 0x0fff_ffff << 32;
const ARRIVAL: u64 = 1 << 32;
/// The last name is the only way to it, and it is about to go: nobody may attach.
const DEAD: u64 = 1 << 63;
/// Its name stays when nobody is attached.
const KEPT: u64 = 1 << 62;
/// Nobody may write to it again.
const FROZEN: u64 = 1 << 61;
/// It has, or is about to have, a name.
const NAMED: u64 = 1 << 60;

/// Set in the number of a ticket that may be used many times.
const MANY: u64 = 1 << 63;

/// Set in the number of a ticket that is just being made, or whose maker was killed.
const PENDING: u64 = 1 << 62;

/// The lower part of a deadline is microseconds since boot, the upper part tells the boot.
const BOOT_SHIFT: u32 = 48;

/// A word of shared memory. A trait, so that the protocol can be checked with words whose every interleaving is tried.
pub(crate) trait Word {
    fn load(&self) -> u64;
    fn store(&self, value: u64);
    /// Changes `current` to `new`, or returns what is there instead.
    fn exchange(&self, current: u64, new: u64) -> Result<(), u64>;
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self) -> u64 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, value: u64) {
        self.store(value, Ordering::Release);
    }

    #[inline]
    fn exchange(&self, current: u64, new: u64) -> Result<(), u64> {
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }
}

/// A handle on its way: its random number (0: none), and until when it protects the array.
#[repr(C)]
#[derive(Debug)]
struct TicketSlot<W> {
    number: W,
    until: W,
}

/// The changing part of a counted array's last page, as it lies in shared memory.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Counts<W = AtomicU64, const SLOTS: usize = MOST_TICKETS> {
    word: W,
    _rest_of_the_cache_line: [u64; 7],
    slots: [TicketSlot<W>; SLOTS],
}

/// What the word says, as it was read at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State(u64);

impl State {
    /// The state of a new array: one handle.
    pub(crate) fn new(named: bool) -> Self {
        Self(1 | if named { NAMED } else { 0 })
    }

    /// The state of what is counted otherwise: only whether its name stays is said here.
    pub(crate) fn unattended(keep: bool) -> Self {
        Self(if keep { KEPT } else { 0 })
    }

    pub(crate) fn of_bytes(bytes: [u8; 8]) -> Self {
        Self(u64::from_le_bytes(bytes))
    }

    pub(crate) fn to_bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    /// How many handles are attached, those of killed processes included.
    #[allow(clippy::cast_possible_truncation)] // the lower half is what is asked for
    pub(crate) fn handles(self) -> u32 {
        (self.0 & HANDLES) as u32
    }

    pub(crate) fn is_dead(self) -> bool {
        self.0 & DEAD != 0
    }

    pub(crate) fn is_kept(self) -> bool {
        self.0 & KEPT != 0
    }

    pub(crate) fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    pub(crate) fn is_named(self) -> bool {
        self.0 & NAMED != 0
    }

    fn with_handles(self, handles: u64) -> Self {
        Self(self.0 & !HANDLES | handles)
    }

    fn with_arrival(self) -> Self {
        Self(self.0 & !ARRIVALS | (self.0 & ARRIVALS).wrapping_add(ARRIVAL) & ARRIVALS)
    }
}

/// Why nobody more is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CountRefusal {
    /// The last handle went; the name is about to go too, if its owner has not been killed before that.
    Dead,
    /// The number would not fit.
    Full,
}

/// What is left when a handle went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing: the name is to be removed by whoever got this answer, and nobody else gets it.
    Nothing,
    /// Nobody, and no name either: who has a descriptor may still come.
    Nameless,
    /// Other handles, or what others left who were killed.
    Others,
    /// Nobody, but a handle is on its way.
    InFlight,
    /// It is kept, whoever comes and goes.
    Kept,
}

/// The number of a handle on its way.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ticket(u64);

impl Ticket {
    /// Makes a ticket of a random number.
    #[allow(clippy::cast_possible_truncation)] // any 62 bits will do
    pub(crate) fn new(random: u128, many: bool) -> Self {
        let number = (random as u64 & !(MANY | PENDING)).max(1);
        Self(if many { number | MANY } else { number })
    }

    pub(crate) fn from_number(number: u64) -> Option<Self> {
        is_ticket(number).then_some(Self(number))
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// Whether it may be used more than once.
    pub(crate) fn is_many(self) -> bool {
        self.0 & MANY != 0
    }
}

/// Whether the number of a slot is that of a ticket that was sent.
fn is_ticket(number: u64) -> bool {
    number & PENDING == 0 && number & !MANY != 0
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({:016x})", self.0)
    }
}

/// What stands for this boot in a deadline; 0 where the system does not tell it.
fn boot() -> u64 {
    let id = os::known_boot_id().map(|id| crc32fast::hash(&id) | 1);
    u64::from(id.unwrap_or(0)) << BOOT_SHIFT
}

/// How long a deadline is still away; `None` if it has passed, was set before the machine was started, or never was one.
pub(crate) fn remaining(until: u64, now: Duration) -> Option<Duration> {
    let micros = until & !(u64::MAX << BOOT_SHIFT);
    let left = Duration::from_micros(micros).checked_sub(now)?;
    let this_boot = until - micros == boot();
    (this_boot && !left.is_zero() && left <= LONGEST_GRACE).then_some(left)
}

/// The deadline of a ticket that is valid for `grace` from `now`.
fn deadline(now: Duration, grace: Duration) -> u64 {
    let micros = (now + grace.min(LONGEST_GRACE)).as_micros();
    boot() | u64::try_from(micros).unwrap_or(u64::MAX) & !(u64::MAX << BOOT_SHIFT)
}

impl<W: Word> TicketSlot<W> {
    /// Puts a ticket here, if the number and whether its deadline has passed allow that.
    ///
    /// Each of the two words changes only from what was seen at first. A maker that is killed in between leaves a pending number,
    /// which makes room when the deadline beside it has passed. Then the deadline decides: a maker that was only stopped finds
    /// another one there, and gives the slot up.
    fn make(&self, ticket: Ticket, deadline: u64, now: Duration, may_take: fn(u64, bool) -> bool) -> bool {
        // In this order: a number that was just put there has its deadline already.
        let number = self.number.load();
        let until = self.until.load();
        if !may_take(number, remaining(until, now).is_none()) {
            return false;
        }
        let pending = if number & PENDING == 0 { ticket.0 | PENDING } else { number };
        (number == pending || self.number.exchange(number, pending).is_ok())
            && self.until.exchange(until, deadline).is_ok()
            && self.number.exchange(pending, ticket.0).is_ok()
    }
}

impl<W: Word, const SLOTS: usize> Counts<W, SLOTS> {
    pub(crate) fn state(&self) -> State {
        State(self.word.load())
    }

    /// Changes the word in one step, or not at all.
    fn change<R>(&self, mut step: impl FnMut(State) -> Result<(State, R), R>) -> R {
        let mut current = self.word.load();
        loop {
            match step(State(current)) {
                Err(answer) => return answer,
                Ok((new, answer)) => match self.word.exchange(current, new.0) {
                    Ok(()) => return answer,
                    Err(now) => current = now,
                },
            }
        }
    }

    /// Counts one handle more.
    pub(crate) fn acquire(&self) -> Result<(), CountRefusal> {
        self.change(|state| {
            let handles = u64::from(state.handles());
            if state.is_dead() {
                Err(Err(CountRefusal::Dead))
            } else if handles == HANDLES {
                Err(Err(CountRefusal::Full))
            } else {
                Ok((state.with_handles(handles + 1).with_arrival(), Ok(())))
            }
        })
    }

    /// Counts one handle less. Of all who leave, one at most is told that nothing is left.
    pub(crate) fn release(&self, now: Duration) -> Left {
        self.change(|state| match state.handles() {
            // Nobody who is attached can meet this, unless the bytes are not to be trusted: the lease will tell.
            0 => Err(if state.is_kept() { Left::Kept } else { Left::Others }),
            handles => {
                let left = state.with_handles(u64::from(handles) - 1);
                if state.is_kept() {
                    Ok((left, Left::Kept))
                } else if handles > 1 {
                    Ok((left, Left::Others))
                } else if !state.is_named() {
                    Ok((left, Left::Nameless))
                } else if self.in_flight(now).0 > 0 {
                    Ok((left, Left::InFlight))
                } else {
                    Ok((State(left.0 | DEAD), Left::Nothing))
                }
            }
        })
    }

    /// Returns whether the flag was not set before.
    fn set(&self, flag: u64) -> bool {
        self.change(|state| Ok((State(state.0 | flag), state.0 & flag == 0)))
    }

    /// Makes the name outlive those who are attached. The caller is attached.
    pub(crate) fn keep(&self) {
        self.set(KEPT);
    }

    /// Forbids writing, for ever. The caller has every cell locked.
    pub(crate) fn freeze(&self) {
        self.set(FROZEN);
    }

    /// Notes that there is a name to be removed at the end. The caller is attached.
    ///
    /// Returns whether that was news.
    pub(crate) fn name(&self) -> bool {
        self.set(NAMED)
    }

    /// Notes that there is no name after all. The caller is attached. Returns whether that was news.
    pub(crate) fn unname(&self) -> bool {
        self.change(|state| Ok((State(state.0 & !NAMED), state.is_named())))
    }

    /// Sends a handle on its way, for `grace`; `false` if as many are on their way as there can be. The caller is
    /// attached.
    pub(crate) fn issue(&self, ticket: Ticket, now: Duration, grace: Duration) -> bool {
        let until = deadline(now, grace);
        let make =
            |may_take: fn(u64, bool) -> bool| self.slots.iter().any(|slot| slot.make(ticket, until, now, may_take));
        // Expired tickets make room, but while there is other room they stay: what comes late may yet be in time.
        make(|number, _is_late| number == 0) || make(|_number, is_late| is_late)
    }

    /// Uses a ticket; `false` if it was used, taken back, or expired and made room. The caller is attached.
    pub(crate) fn redeem(&self, ticket: Ticket) -> bool {
        let Some(slot) = self.slots.iter().find(|slot| slot.number.load() == ticket.0) else { return false };
        ticket.is_many() || slot.number.exchange(ticket.0, 0).is_ok()
    }

    /// Takes a ticket back, however often it may be used; `false` if there is none any more.
    pub(crate) fn revoke(&self, ticket: Ticket) -> bool {
        self.slots.iter().any(|slot| slot.number.exchange(ticket.0, 0).is_ok())
    }

    /// How many handles on their way protect the array, and for how long the last of them will.
    pub(crate) fn in_flight(&self, now: Duration) -> (usize, Duration) {
        count(self.slots.iter().map(|slot| (slot.number.load(), slot.until.load())), now)
    }
}

/// Counts tickets that have not expired, and says how long the last of them has.
pub(crate) fn count(tickets: impl Iterator<Item = (u64, u64)>, now: Duration) -> (usize, Duration) {
    let valid = tickets.filter(|(number, _)| is_ticket(*number)).filter_map(|(_, until)| remaining(until, now));
    valid.fold((0, Duration::ZERO), |(count, last), left| (count + 1, last.max(left)))
}

#[cfg(test)]
#[path = "counts_tests.rs"]
mod tests;
