//! The reference count of an array, and its tickets: words in shared memory, each changed by compare-and-exchange.
//!
//! Everything that must be decided together is in one word: how many handles are attached, and whether the array is
//! kept, frozen, named or dead. A process that is killed between two steps therefore leaves no half-done change. Dead
//! is final: the release that brings the count to 0 decides in the same exchange whether another attachment is
//! possible, and no acquire succeeds afterwards.
//!
//! A *ticket* stands for a handle that was sent and is not attached yet (in flight). The receiver uses it up when it
//! attaches, or it expires. Tickets are not in the word. The last release scans them before it changes the word, and
//! the result of that scan must still be true at the exchange, although other processes may have attached and left in
//! between. The word therefore also counts arrivals.
//!
//! The count is only half of the truth: a killed process never subtracts its handles. The other half is the lease, a
//! kernel lock that ends with the process.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::os;

/// Most tickets that can be in flight at once.
pub(crate) const MOST_TICKETS: usize = 128;

/// Longest time for which a ticket may protect an array without attachments. A deadline further away is ignored: it was
/// written before the machine was started, or by another program.
pub(crate) const LONGEST_GRACE: Duration = Duration::from_secs(7 * 24 * 3600);

/// How much further away a deadline may be, for a process that read its clock before another one set the deadline.
const STALENESS: Duration = Duration::from_secs(3600);

const HANDLES: u64 = 0xffff_ffff;
/// Number of arrivals, wrapping around. It keeps a word from looking unchanged to a release that other processes
/// overtook (ABA).
const ARRIVALS: u64 = 0x0fff_ffff << 32;
const ARRIVAL: u64 = 1 << 32;
/// The last handle left a named array. The name is about to be removed, and attaching is refused.
const DEAD: u64 = 1 << 63;
/// The name stays when the last handle leaves.
const KEPT: u64 = 1 << 62;
/// Writing is forbidden for ever.
const FROZEN: u64 = 1 << 61;
/// The array has a name, or is about to get one.
const NAMED: u64 = 1 << 60;

/// Set in the number of a ticket that may be used many times (a reusable handle).
const MANY: u64 = 1 << 63;

/// How often a ticket can be used beyond once, in its slot's number. 0 in the handle that names the ticket, and in that
/// of a reusable one.
const FURTHER_USES: u64 = 0x3fff << 48;
const FURTHER_USE: u64 = 1 << 48;

/// In the number of a reusable ticket's slot, a bit of the field [`FURTHER_USES`], which such a ticket does not need: a
/// process has attached with it since it was issued or last renewed. Versions of this library that do not know the bit
/// never set it, and ignore it.
const USED: u64 = FURTHER_USE;

/// A ticket is not renewed if its deadline is closer than this, because another sender may be about to take its slot.
const RENEWAL_MARGIN: Duration = Duration::from_millis(10);

/// Set in the number of a ticket that is being issued. It stays set if the sender is killed meanwhile.
const PENDING: u64 = 1 << 62;

/// Lower bits of a deadline: microseconds since boot. Upper bits: which boot, an odd number.
const BOOT_SHIFT: u32 = 48;

/// The upper bits of a deadline by a process that could not tell the boot. The clock alone judges it.
const NO_BOOT: u64 = 0;

/// The upper bits of a deadline by a process that could not tell the time. A process that can exchanges it for one in
/// [`LONGEST_GRACE`].
const NO_CLOCK: u64 = 2;

/// A word of shared memory. A trait, so that loom can check the protocol with its own words.
pub(crate) trait Word {
    fn load(&self) -> u64;
    fn store(&self, value: u64);
    /// Changes `current` to `new`, or returns the value found instead.
    fn exchange(&self, current: u64, new: u64) -> Result<(), u64>;
}

impl Word for AtomicU64 {
    // Release and acquire order two words twice. A sender writes a ticket's deadline before its number: a process that
    // reads the number sees the deadline. A sender issues a ticket before it subtracts its handle: the last release,
    // which reads that count, sees the ticket.
    #[inline]
    fn load(&self) -> u64 {
        if cfg!(all(ndshm_steps, debug_assertions)) && self.load(Ordering::Relaxed) != 0 {
            os::point(false); // not of unused slots, of which there are many
        }
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, value: u64) {
        os::point(true);
        self.store(value, Ordering::Release);
    }

    #[inline]
    fn exchange(&self, current: u64, new: u64) -> Result<(), u64> {
        os::point(true);
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }
}

/// A ticket: its random number and how often it can be used (0: the slot is free), and the deadline until which it
/// protects the array.
#[repr(C)]
#[derive(Debug)]
struct TicketSlot<W> {
    number: W,
    until: W,
}

/// The changing part of a counted array's trailer, as it lies in shared memory.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Counts<W = AtomicU64, const SLOTS: usize = MOST_TICKETS> {
    word: W,
    _rest_of_the_cache_line: [u64; 7],
    slots: [TicketSlot<W>; SLOTS],
}

/// A copy of the word, as it was read at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct State(u64);

impl State {
    /// Returns the state of a new array, with one handle.
    pub(crate) fn new(named: bool) -> Self {
        Self(1 | if named { NAMED } else { 0 })
    }

    /// Returns the state of a segment with users that are counted elsewhere. Only whether its name is kept is stored
    /// here.
    pub(crate) fn unattended(keep: bool) -> Self {
        Self(if keep { KEPT } else { 0 })
    }

    pub(crate) fn of_bytes(bytes: [u8; 8]) -> Self {
        Self(u64::from_le_bytes(bytes))
    }

    pub(crate) fn to_bytes(self) -> [u8; 8] {
        self.0.to_le_bytes()
    }

    /// Returns how many handles are counted, including those of killed processes.
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

/// Why a handle cannot be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CountRefusal {
    /// The last handle has left. Its name is removed next, unless that process was killed before it could do so.
    Dead,
    /// The count is at its maximum.
    Full,
}

/// What a release has left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing. The caller removes the name; no other release gets this answer.
    Nothing,
    /// No handle, and no name either: a process with a descriptor can still attach.
    Nameless,
    /// Other handles, some or all of which may belong to killed processes.
    Others,
    /// No handle, but a ticket is in flight.
    InFlight,
    /// The array is kept, whatever the count.
    Kept,
}

/// The number of a ticket.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Ticket(u64);

impl Ticket {
    /// Makes a ticket from a random number.
    #[allow(clippy::cast_possible_truncation)] // any 48 bits will do
    pub(crate) fn new(random: u128, many: bool) -> Self {
        let number = (random as u64 & !(MANY | PENDING | FURTHER_USES)).max(1);
        Self(if many { number | MANY } else { number })
    }

    pub(crate) fn from_number(number: u64) -> Option<Self> {
        (is_ticket(number) && number & FURTHER_USES == 0).then_some(Self(number))
    }

    /// Returns whether a slot's number is that of this ticket, however often it can still be used.
    fn is_in(self, number: u64) -> bool {
        number & !FURTHER_USES == self.0
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// Returns whether it may be used more than once.
    pub(crate) fn is_many(self) -> bool {
        self.0 & MANY != 0
    }

    /// Returns whether a slot's number is that of this ticket, it is reusable, and a process has used it since it was
    /// last renewed.
    pub(crate) fn is_used_in(self, number: u64) -> bool {
        self.is_many() && self.is_in(number) && number & USED != 0
    }
}

/// Returns whether a slot's number is that of an issued ticket.
pub(crate) fn is_ticket(number: u64) -> bool {
    number & PENDING == 0 && number & !(MANY | FURTHER_USES) != 0
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({:016x})", self.0)
    }
}

/// The part of a deadline that identifies this boot.
fn boot() -> u64 {
    os::known_boot_id().map_or(NO_BOOT, |id| u64::from(crc32fast::hash(&id) | 1) & u64::MAX >> BOOT_SHIFT)
}

/// Returns the time left until a deadline; `None` if it has passed, was set before this boot, or is not a deadline.
///
/// `now` is `None` in a process that cannot tell the time. What cannot be judged counts as ahead: a deadline of an
/// unknown boot is judged by the clock alone, and one by an unknown clock is a week ahead until a process that knows
/// the time has [dated](dated) it.
pub(crate) fn remaining(until: u64, now: Option<Duration>) -> Option<Duration> {
    let (set_in, micros) = (until >> BOOT_SHIFT, until & !(u64::MAX << BOOT_SHIFT));
    if until == 0 || ![NO_BOOT, NO_CLOCK].contains(&set_in) && ![NO_BOOT, set_in].contains(&boot()) {
        return None;
    }
    let Some(now) = now.filter(|_| set_in != NO_CLOCK) else { return Some(LONGEST_GRACE) };
    let left = Duration::from_micros(micros).checked_sub(now)?;
    (!left.is_zero() && left <= LONGEST_GRACE + STALENESS).then_some(left.min(LONGEST_GRACE))
}

/// Returns the deadline of a ticket that is valid for `grace` from `now`.
fn deadline(now: Option<Duration>, grace: Duration) -> u64 {
    let Some(now) = now else { return NO_CLOCK << BOOT_SHIFT };
    let micros = (now + grace.min(LONGEST_GRACE)).as_micros();
    boot() << BOOT_SHIFT | u64::try_from(micros).unwrap_or(u64::MAX) & !(u64::MAX << BOOT_SHIFT)
}

/// Returns the deadline that replaces one by an unknown clock; `None` if it needs no replacement, or this process
/// cannot tell the time either.
pub(crate) fn dated(until: u64, now: Option<Duration>) -> Option<u64> {
    (until >> BOOT_SHIFT == NO_CLOCK && now.is_some()).then(|| deadline(now, LONGEST_GRACE))
}

/// Returns the later one of a deadline and that of a ticket which is valid for `grace` from `now`.
fn later(until: u64, now: Option<Duration>, grace: Duration) -> u64 {
    let new = deadline(now, grace);
    // In a process that cannot tell the time both seem to protect for as long; the new one does so for certain.
    if now.is_some() && remaining(until, now) >= remaining(new, now) { until } else { new }
}

impl<W: Word> TicketSlot<W> {
    /// Returns the deadline, after it was [dated](dated) if it was by an unknown clock.
    fn until(&self, now: Option<Duration>) -> u64 {
        let until = self.until.load();
        let Some(new) = dated(until, now) else { return until };
        self.until.exchange(until, new).map_or_else(|found| found, |()| new)
    }

    /// Changes the number of this slot while it is that of `ticket`. Returns `false` if it is another one, or if
    /// `change` refuses.
    ///
    /// Two receivers with the same ticket may both find the slot. Each exchange succeeds for one of them; the other one
    /// looks again.
    fn update(&self, ticket: Ticket, change: impl Fn(u64) -> Option<u64>) -> bool {
        let mut number = self.number.load();
        while ticket.is_in(number) {
            let Some(new) = change(number) else { return false };
            match self.number.exchange(number, new) {
                Ok(()) => return true,
                Err(now) => number = now,
            }
        }
        false
    }

    /// Subtracts one use of a ticket; a reusable one is marked as used. Returns `false` if another number is in the
    /// slot.
    fn use_once(&self, ticket: Ticket) -> bool {
        self.update(ticket, |number| {
            Some(match number & FURTHER_USES {
                _ if ticket.is_many() => number | USED,
                0 => 0,
                _ => number - FURTHER_USE,
            })
        })
    }

    /// Changes the deadline of a ticket to what `change` makes of it and the time. Returns `false` if the ticket is not
    /// in this slot any more, has expired or is about to.
    ///
    /// The deadline is loaded before the number is compared. Another sender changes the number first and the deadline
    /// second, and never to the deadline that it found. So this deadline belongs to `ticket`, and the exchange fails if
    /// another sender has set its own: a process that is killed anywhere in here has changed the deadline of its own
    /// ticket, or none. (Only if two senders take the slot one after the other in between, and the second by chance
    /// sets the very microsecond that was loaded, would that one's be changed.)
    fn defer(
        &self,
        ticket: Ticket,
        clock: impl Fn() -> Option<Duration>,
        change: impl Fn(u64, Option<Duration>) -> u64,
    ) -> bool {
        let is_ahead = |until| remaining(until, clock()).is_some_and(|left| left >= RENEWAL_MARGIN);
        loop {
            let until = self.until(clock());
            if !ticket.is_in(self.number.load()) || !is_ahead(until) {
                return false;
            }
            let new = change(until, clock());
            os::step("ticket: deadline read");
            if new == until || self.until.exchange(until, new).is_ok() {
                return ticket.is_in(self.number.load()) && is_ahead(until);
            }
        }
    }

    /// Puts a ticket into this slot, if `may_take` allows it for the slot's number and for whether its deadline has
    /// passed.
    ///
    /// Three exchanges, each from the value that was read: the number becomes pending, the deadline is set, the number
    /// becomes the ticket's. A sender that is killed in between leaves a pending number, and the slot can be taken
    /// again once the deadline beside it has passed.
    ///
    /// Two senders in one slot: A makes the number pending and is stopped. B finds the pending number with a passed
    /// deadline, leaves the number as it is, and sets its own deadline. A continues, its exchange of the deadline
    /// fails, and A gives the slot up. If A is stopped after it has set its deadline, B can take the slot only when
    /// that has passed too; then the last exchange decides, which succeeds for one of them.
    fn make(&self, ticket: Ticket, deadline: u64, now: Option<Duration>, may_take: fn(u64, bool) -> bool) -> bool {
        // The number is read before the deadline. The other way round, a sender could pair the old, passed deadline
        // with a number that another sender put there in between, and overwrite a valid ticket.
        let number = self.number.load();
        let until = self.until(now);
        if !may_take(number, remaining(until, now).is_none()) {
            return false;
        }
        let pending = if number & PENDING == 0 { ticket.0 | PENDING } else { number };
        let deadline = if deadline == until { deadline + 1 } else { deadline }; // see `defer`
        (number == pending || self.number.exchange(number, pending).is_ok())
            && self.until.exchange(until, deadline).is_ok()
            && self.number.exchange(pending, ticket.0).is_ok()
    }
}

impl<W: Word, const SLOTS: usize> Counts<W, SLOTS> {
    pub(crate) fn state(&self) -> State {
        State(self.word.load())
    }

    /// Changes the word in one exchange, or not at all. `step` runs again whenever another process changed the word in
    /// between.
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

    /// Counts one handle less. At most one release is told that nothing is left.
    ///
    /// The scan of the tickets runs between the load of the word and its exchange. Process L releases the last handle
    /// and finds no ticket; S attaches, issues a ticket and leaves; the count is 1 again, but the number of arrivals
    /// differs, so L's exchange fails and L scans again instead of declaring the array dead. The other way round: L
    /// finds a ticket, its receiver attaches, uses it up and leaves; again L's exchange fails, and L removes the name,
    /// which no process would otherwise do.
    pub(crate) fn release(&self, now: Option<Duration>) -> Left {
        self.change(|state| match state.handles() {
            // An attached process never finds 0 here, unless the bytes were damaged. Then the lease decides.
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

    /// Sets a flag. Returns whether it was not set before.
    fn set(&self, flag: u64) -> bool {
        self.change(|state| Ok((State(state.0 | flag), state.0 & flag == 0)))
    }

    /// Makes the name outlive the last handle. The caller is attached.
    ///
    /// Returns `false`, and changes nothing, if the last handle has left: the name has gone, or is about to.
    pub(crate) fn keep(&self) -> bool {
        self.change(|state| if state.is_dead() { Err(false) } else { Ok((State(state.0 | KEPT), true)) })
    }

    /// Forbids writing for ever. The caller holds a write lock on every cell.
    pub(crate) fn freeze(&self) {
        self.set(FROZEN);
    }

    /// Notes that the last handle must remove a name. The caller is attached.
    ///
    /// Returns whether the flag was not set before.
    pub(crate) fn name(&self) -> bool {
        self.set(NAMED)
    }

    /// Notes that there is no name after all. The caller is attached. Returns whether the flag was set before.
    pub(crate) fn unname(&self) -> bool {
        self.change(|state| Ok((State(state.0 & !NAMED), state.is_named())))
    }

    /// Issues a ticket that protects the array for `grace`. Returns `false` if all slots are in use. The caller is
    /// attached.
    pub(crate) fn issue(&self, ticket: Ticket, now: Option<Duration>, grace: Duration) -> bool {
        let until = deadline(now, grace);
        let make =
            |may_take: fn(u64, bool) -> bool| self.slots.iter().any(|slot| slot.make(ticket, until, now, may_take));
        // Free slots are used first: an expired ticket still works as long as its slot is not taken.
        make(|number, _is_late| number == 0) || make(|_number, is_late| is_late)
    }

    /// Renews a ticket: it protects the array for at least `grace` from now, and it can be used once more. A reusable
    /// one, which can be used anyway, counts as unused. A later deadline that was promised before stays. Returns
    /// `false` if it was used up, revoked, or is about to expire; then another one must be issued. The caller is
    /// attached.
    ///
    /// The use is added first. From then on the receivers that are on their way cannot empty the slot, so no other
    /// sender takes it before its deadline. A reusable ticket can still be revoked, and its slot be taken.
    ///
    /// One interleaving could lose the ticket: sender B finds the old deadline passed, this call renews it, and B makes
    /// the number pending. B's exchange of the deadline then fails, but the number is gone. Therefore the clock is read
    /// again at the end. If the old deadline is still ahead, B has read its clock after the exchange, and finds the new
    /// deadline. The margin covers the time that an exchange takes to become visible.
    pub(crate) fn renew(&self, ticket: Ticket, grace: Duration, clock: impl Fn() -> Option<Duration>) -> bool {
        let Some(slot) = self.slot_of(ticket) else { return false };
        let added = slot.update(ticket, |number| match number & FURTHER_USES {
            _ if ticket.is_many() => Some(number & !USED),
            FURTHER_USES => None,
            _ => Some(number + FURTHER_USE),
        });
        if !added {
            return false;
        }
        let is_renewed = slot.defer(ticket, clock, |until, now| later(until, now, grace));
        if !is_renewed && !ticket.is_many() {
            slot.use_once(ticket); // the one that was added
        }
        is_renewed
    }

    /// Lets a ticket protect the array for at most `grace` from now. An earlier deadline stays, and so does any in a
    /// process that cannot tell the time. Returns `false` if it was used up, revoked, or has expired or is about to.
    /// The caller is attached.
    pub(crate) fn expire(&self, ticket: Ticket, grace: Duration, clock: impl Fn() -> Option<Duration>) -> bool {
        let earlier = |until, now: Option<Duration>| {
            let new = deadline(now, grace);
            if now.is_none() || remaining(until, now) <= remaining(new, now) { until } else { new }
        };
        self.slot_of(ticket).is_some_and(|slot| slot.defer(ticket, clock, earlier))
    }

    /// Lets a ticket protect the array for at least `grace` from now. Its uses do not change. A later deadline stays.
    /// Returns `false` as [`expire`](Self::expire) does. The caller is attached.
    pub(crate) fn prolong(&self, ticket: Ticket, grace: Duration, clock: impl Fn() -> Option<Duration>) -> bool {
        self.slot_of(ticket).is_some_and(|slot| slot.defer(ticket, clock, |until, now| later(until, now, grace)))
    }

    fn slot_of(&self, ticket: Ticket) -> Option<&TicketSlot<W>> {
        self.slots.iter().find(|slot| ticket.is_in(slot.number.load()))
    }

    /// Uses a ticket. Returns `false` if it was used up before, revoked, or expired and replaced. The caller is
    /// attached.
    pub(crate) fn redeem(&self, ticket: Ticket) -> bool {
        self.slots.iter().any(|slot| slot.use_once(ticket))
    }

    /// Revokes a ticket with all its uses, reusable or not. Returns `false` if it does not exist any more.
    pub(crate) fn revoke(&self, ticket: Ticket) -> bool {
        self.slots.iter().any(|slot| slot.update(ticket, |_| Some(0)))
    }

    /// Revokes a reusable ticket, if a process has used it since it was last renewed. Returns `false` if it was not
    /// used or does not exist.
    ///
    /// The mark and the number are one word. So a renewal that comes first clears the mark, and the ticket stays; one
    /// that comes second finds no ticket, and its caller issues another.
    pub(crate) fn revoke_used(&self, ticket: Ticket) -> bool {
        self.slots.iter().any(|slot| slot.update(ticket, |number| ticket.is_used_in(number).then_some(0)))
    }

    /// Begins the counts of the next array in the same memory, with one handle. The caller holds COUNTED alone.
    ///
    /// The arrivals go on, and expired tickets stay until their slots are needed: the next array has another random
    /// number, which a handle is compared with before its ticket is used.
    pub(crate) fn begin_again(&self) {
        self.change(|state| Ok::<_, ()>((State(NAMED | state.0 & ARRIVALS).with_handles(1).with_arrival(), ())));
    }

    /// Returns how many tickets protect the array, and how long the last of them does so.
    pub(crate) fn in_flight(&self, now: Option<Duration>) -> (usize, Duration) {
        // The number before the deadline, as in `TicketSlot::make`.
        let ticket = |slot: &TicketSlot<W>| {
            let number = slot.number.load();
            (number, if is_ticket(number) { slot.until(now) } else { 0 })
        };
        count(self.slots.iter().map(ticket), now)
    }
}

/// Counts the tickets that have not expired, and returns how long the last of them is still valid.
pub(crate) fn count(tickets: impl Iterator<Item = (u64, u64)>, now: Option<Duration>) -> (usize, Duration) {
    let valid = tickets.filter(|(number, _)| is_ticket(*number)).filter_map(|(_, until)| remaining(until, now));
    valid.fold((0, Duration::ZERO), |(count, last), left| (count + 1, last.max(left)))
}

#[cfg(test)]
#[path = "counts_tests.rs"]
mod tests;
