//! Who holds what: one word of shared memory for each block, changed one at a time.
//!
//! ```text
//! bits 63..48  generation: changes whenever somebody gets the block for himself
//! bit  47      ORPHAN: a message that a dead member sent keeps it
//! bit  46      FLIGHT: whoever has its handle may take it over, once
//! bits 45..0   one for each member: it holds the block, once or many times
//! ```
//!
//! A block is free when nobody holds it, and there is nothing else that says so: whoever clears the last bit has freed it. A
//! bit says the same however often it is set or cleared, so reclaiming a dead member's holds may begin anew.
//!
//! Beside the word stands the *serial*, which never repeats. A block can be had by its handle only while the serial's low
//! bits are the generation. They are not while somebody has it for himself, to fill it: storing the serial is what shares it.
//!
//! How often a member holds a block is known to its process only (`held`). That number also has a bit which keeps two of its
//! threads from setting and clearing the member's bit at the same time.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

pub(crate) use crate::segment::counts::Word;

/// Members that an arena can have at once.
pub(crate) const SEATS: u32 = 46;

const GENERATION: u32 = 48;
const HOLDERS: u64 = (1 << GENERATION) - 1;
const ORPHAN: u64 = 1 << 47;
const FLIGHT: u64 = 1 << SEATS;

/// Set in the number of holds while a thread sets or clears its process's bit.
const CHANGING: u32 = 1 << 31;

/// The holds of one process on one block. A trait, so that every interleaving can be tried.
pub(crate) trait Holds {
    fn load(&self) -> u32;
    fn store(&self, value: u32);
    /// Changes `current` to `new`; whether that was there.
    fn exchange(&self, current: u32, new: u32) -> bool;
    /// Lets another thread of the process come to an end with what takes it a few instructions.
    fn pause();
}

impl Holds for AtomicU32 {
    #[inline]
    fn load(&self) -> u32 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, value: u32) {
        self.store(value, Ordering::Release);
    }

    #[inline]
    fn exchange(&self, current: u32, new: u32) -> bool {
        self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    #[inline]
    fn pause() {
        thread::yield_now();
    }
}

/// One block's place in the slot table.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Slot<W> {
    word: W,
    serial: W,
}

/// What became of a hold that was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    /// This member, or others, hold it still.
    Held,
    /// Nobody does: it is free.
    Freed,
    /// This member did not hold it.
    NotHeld,
}

/// Returns what the low bits of a serial are compared with.
fn generation(word: u64) -> u64 {
    word >> GENERATION
}

fn holders(word: u64) -> u64 {
    word & HOLDERS
}

fn low(serial: u64) -> u64 {
    serial & (u64::MAX >> GENERATION)
}

/// The next generation, other than that of `serial`: what is not shared yet must not look shared.
fn next_generation(word: u64, serial: u64) -> u64 {
    let next = low(generation(word) + 1);
    if next == low(serial) { low(next + 1) } else { next }
}

/// The slot table as one member sees it.
#[derive(Debug)]
pub(crate) struct Slots<'a, W, H> {
    table: &'a [Slot<W>],
    held: &'a [H],
    bit: u64,
}

impl<'a, W: Word, H: Holds> Slots<'a, W, H> {
    /// Looks at the table with the eyes of the member in `seat`, whose process keeps its holds in `held`.
    pub(crate) fn new(table: &'a [Slot<W>], held: &'a [H], seat: u32) -> Self {
        debug_assert!(seat < SEATS && held.len() == table.len());
        Self { table, held, bit: 1 << seat }
    }

    fn at(&self, index: u32) -> Option<(&'a Slot<W>, &'a H)> {
        Some((self.table.get(index as usize)?, self.held.get(index as usize)?))
    }

    /// How often this process holds a block, when no thread of it is changing that.
    fn holds(held: &H) -> u32 {
        loop {
            let holds = held.load();
            if holds & CHANGING == 0 {
                return holds;
            }
            H::pause();
        }
    }

    /// Takes a free block for this member alone; `false` if somebody has it, or is about to.
    ///
    /// No handle leads to it until it is [shared](Self::share).
    pub(crate) fn allocate(&self, index: u32) -> bool {
        self.take_free(index, 0)
    }

    /// Takes a free block for this member, and for one more who will come with its handle once it is shared.
    pub(crate) fn allocate_in_flight(&self, index: u32) -> bool {
        self.take_free(index, FLIGHT)
    }

    fn take_free(&self, index: u32, also: u64) -> bool {
        let Some((slot, held)) = self.at(index) else { return false };
        let word = slot.word.load();
        if holders(word) != 0 || !held.exchange(0, CHANGING) {
            return false;
        }
        let new = next_generation(word, slot.serial.load());
        let taken = slot.word.exchange(word, new << GENERATION | self.bit | also).is_ok();
        // The serial may have changed before the exchange, if the word came back to what it was after a whole turn.
        if taken && low(slot.serial.load()) == new {
            slot.change(|word| Some(word & !(self.bit | also)));
            held.store(0);
            return false;
        }
        held.store(u32::from(taken));
        taken
    }

    /// Lets whoever has the handle have the block, with everything that was written to it, and returns the new serial. The
    /// caller has it for himself.
    pub(crate) fn share(&self, index: u32) -> u64 {
        let Some((slot, _)) = self.at(index) else { return 0 };
        let old = slot.serial.load();
        let ahead = generation(slot.word.load()).wrapping_sub(low(old));
        let serial = old.wrapping_add(low(ahead));
        slot.serial.store(serial);
        serial
    }

    /// Takes a shared block that nobody else holds, and this process once, for this member alone again.
    pub(crate) fn make_exclusive(&self, index: u32) -> bool {
        let Some((slot, held)) = self.at(index) else { return false };
        if !held.exchange(1, CHANGING) {
            return false;
        }
        let word = slot.word.load();
        let new = next_generation(word, slot.serial.load()) << GENERATION | self.bit;
        let taken = holders(word) == self.bit && slot.word.exchange(word, new).is_ok();
        held.store(1);
        taken
    }

    /// Holds a block that somebody else keeps for the length of the call; `false` if nobody does.
    pub(crate) fn hold_invited(&self, index: u32) -> bool {
        self.hold_if(index, 0, |_| true)
    }

    /// Holds the block that a handle leads to; `false` if that is not shared, or was freed.
    pub(crate) fn hold(&self, index: u32, serial: u64) -> bool {
        self.hold_shared(index, serial, 0)
    }

    /// Takes over the block that a handle in flight leads to; `false` if somebody else has, or it came too late.
    pub(crate) fn receive(&self, index: u32, serial: u64) -> bool {
        self.hold_shared(index, serial, FLIGHT)
    }

    fn hold_shared(&self, index: u32, serial: u64, over: u64) -> bool {
        let Some((slot, _)) = self.at(index) else { return false };
        if slot.serial.load() != serial || !self.hold_if(index, over, |word| generation(word) == low(serial)) {
            return false;
        }
        // Only what is held stays what it is: look again.
        if self.is_shared_as(index, serial) {
            return true;
        }
        if over != 0 {
            slot.change(|word| Some(word | over));
        }
        self.release(index);
        false
    }

    /// Whether a block that is held is shared under this serial.
    pub(crate) fn is_shared_as(&self, index: u32, serial: u64) -> bool {
        self.at(index)
            .is_some_and(|(slot, _)| generation(slot.word.load()) == low(serial) && slot.serial.load() == serial)
    }

    /// The serial of a block that is held, if it is shared.
    pub(crate) fn serial(&self, index: u32) -> Option<u64> {
        let (slot, _) = self.at(index)?;
        let serial = slot.serial.load();
        self.is_shared_as(index, serial).then_some(serial)
    }

    /// Holds once more. With `over`, takes that bit over, whatever this process holds already.
    fn hold_if(&self, index: u32, over: u64, may: impl Fn(u64) -> bool) -> bool {
        let Some((slot, held)) = self.at(index) else { return false };
        loop {
            let before = Self::holds(held);
            if before == CHANGING - 1 {
                return false;
            }
            if before > 0 && over == 0 {
                if held.exchange(before, before + 1) {
                    return true;
                }
                continue;
            }
            if !held.exchange(before, CHANGING) {
                continue;
            }
            let set = slot.change(|word| {
                // A member's bit that its process knows nothing of is not believed.
                let fits = (holders(word) & self.bit != 0) == (before > 0) && word & over == over;
                (holders(word) != 0 && fits && may(word)).then_some(word & !over | self.bit)
            });
            held.store(before + u32::from(set.is_some()));
            return set.is_some();
        }
    }

    /// Gives up one hold.
    pub(crate) fn release(&self, index: u32) -> Released {
        let Some((slot, held)) = self.at(index) else { return Released::NotHeld };
        loop {
            match Self::holds(held) {
                0 => return Released::NotHeld,
                1 if held.exchange(1, CHANGING) => {
                    let left = slot.change(|word| (word & self.bit != 0).then_some(word & !self.bit));
                    held.store(0);
                    return match left.map(holders) {
                        None => Released::NotHeld, // forged bytes: the bit was ours alone to clear
                        Some(0) => Released::Freed,
                        Some(_) => Released::Held,
                    };
                }
                before if before > 1 && held.exchange(before, before - 1) => return Released::Held,
                _another_thread_was_quicker => {}
            }
        }
    }

    /// Whether nobody but this process holds the block, once, and no handle to it is in flight.
    pub(crate) fn is_held_by_us_alone(&self, index: u32) -> bool {
        self.at(index).is_some_and(|(slot, held)| holders(slot.word.load()) == self.bit && held.load() == 1)
    }
}

/// What is done with slots on behalf of others, and questions about them.
impl<W: Word> Slot<W> {
    /// Makes a slot of a table by itself.
    #[cfg(test)]
    pub(crate) fn of(word: W, serial: W) -> Self {
        Self { word, serial }
    }

    /// How many members hold the block, orphaned messages and flights not counted.
    pub(crate) fn members(&self) -> u32 {
        (self.word.load() & (FLIGHT - 1)).count_ones()
    }

    /// How many others than its producer have a loan, or are to have it.
    pub(crate) fn borrowers(&self) -> u32 {
        let word = self.word.load();
        if word & FLIGHT != 0 { 1 } else { self.members().saturating_sub(1) }
    }

    /// Whether nobody holds it.
    pub(crate) fn is_free(&self) -> bool {
        holders(self.word.load()) == 0
    }

    /// Whether the member has its bit here.
    pub(crate) fn is_held_by(&self, seat: u32) -> bool {
        self.word.load() >> seat & 1 != 0
    }

    /// Whether its handle is on its way to somebody.
    #[cfg(test)]
    pub(crate) fn is_in_flight(&self) -> bool {
        self.word.load() & FLIGHT != 0
    }

    /// Whether a message of a dead member keeps it.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.word.load() & ORPHAN != 0
    }

    /// Changes the word in one step and returns the new one, unless `step` says that there is nothing to change.
    fn change(&self, step: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let mut current = self.word.load();
        loop {
            let new = step(current)?;
            match self.word.exchange(current, new) {
                Ok(()) => return Some(new),
                Err(now) => current = now,
            }
        }
    }

    /// Keeps a block that a dead member holds until its message is received. The caller has RECOVER locked.
    pub(crate) fn orphan(&self) -> bool {
        self.change(|word| (holders(word) != 0).then_some(word | ORPHAN)).is_some()
    }

    /// Ends that. Returns whether the block is free now.
    pub(crate) fn release_orphan(&self) -> bool {
        self.change(|word| (word & ORPHAN != 0).then_some(word & !ORPHAN)).map(holders) == Some(0)
    }

    /// Clears the bit of a member that is dead, or on its way out. Returns whether the block is free now; a handle in flight
    /// that only this member could honour is void with it.
    pub(crate) fn clear_seat(&self, seat: u32) -> bool {
        let bit = 1 << seat;
        let left = self.change(|word| {
            let rest = word & !bit;
            (rest != word).then_some(if holders(rest) == FLIGHT { rest & !FLIGHT } else { rest })
        });
        left.map(holders) == Some(0)
    }

    /// Takes a handle in flight back; `false` if there is none any more.
    pub(crate) fn revoke(&self) -> bool {
        self.change(|word| (word & FLIGHT != 0).then_some(word & !FLIGHT)).is_some()
    }
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
