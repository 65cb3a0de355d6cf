//! The entry table: for each block one word of shared memory that says which members hold it.
//!
//! ```text
//! bits 63..48  generation: changes whenever a member takes the block exclusively
//! bit  47      ORPHAN: an orphaned message keeps the block
//! bit  46      FLIGHT: a handle in flight keeps the block; one receiver may take it over
//! bits 45..0   one for each member: it holds the block, once or many times
//! ```
//!
//! A block is free when bits 0 to 47 are zero. There is no free list: the exchange that clears the last of these bits
//! frees the block. Setting or clearing a bit twice has the effect of doing it once, so reclaiming a dead member's
//! holds may be interrupted and repeated.
//!
//! Beside the word is the *serial*, which never repeats. A handle leads to its block only while the low 16 bits of the
//! serial are the generation. Taking a block changes the generation, so no handle leads to a draft. Storing the new
//! serial shares it.
//!
//! The word has one bit per member. How many holds a member has is counted in its own process (`held`). The highest bit
//! of that count is a lock: while a thread sets or clears the member's bit, the other threads of the process wait.
//!
//! # Memory order
//!
//! Every exchange acquires and releases, every load acquires and every store releases. Two pairs matter for the
//! elements:
//!
//! - The exchange that clears a reader's bit releases; the exchange that takes the free block acquires. So all reads of
//!   the old elements come before the first write of the new ones.
//! - The store of the serial in [`EntryTable::share`] releases; the load in [`EntryTable::hold`] acquires. So a process
//!   that gets the block by its handle sees all elements. (A receiver gets this order from the message's cell instead,
//!   see `ring.rs`.)
//!
//! Threads of one process are ordered by `held`: a thread that gives up its hold releases there, and the thread that
//! gives up the last one acquires before it clears the bit.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

pub(crate) use crate::segment::counts::Word;

/// Maximum number of members of an arena at one time.
pub(crate) const SEATS: u32 = 46;

const GENERATION: u32 = 48;
const HOLDERS: u64 = (1 << GENERATION) - 1;
const ORPHAN: u64 = 1 << 47;
const FLIGHT: u64 = 1 << SEATS;

/// Set in the number of holds while a thread sets or clears its process's bit.
///
/// It is a spin lock in private memory. A killed process takes the lock with it, so no other process can wait for it.
const CHANGING: u32 = 1 << 31;

/// The holds of one process on one block. A trait, so that loom can try every interleaving.
pub(crate) trait Holds {
    fn load(&self) -> u32;
    fn store(&self, value: u32);
    /// Changes `current` to `new`. Returns `false` if the value was another one.
    fn exchange(&self, current: u32, new: u32) -> bool;
    /// Gives way to the thread that has set [`CHANGING`], which needs a few more instructions.
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

/// One block's entry in the entry table.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct BlockEntry<W> {
    word: W,
    serial: W,
}

/// Result of giving up a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    /// The block is still held, by this or another member.
    Held,
    /// That was the last hold: the block is free.
    Freed,
    /// This member did not hold the block.
    NotHeld,
}

/// Returns the generation, which is compared with the low bits of the serial.
fn generation(word: u64) -> u64 {
    word >> GENERATION
}

fn holders(word: u64) -> u64 {
    word & HOLDERS
}

fn low(serial: u64) -> u64 {
    serial & (u64::MAX >> GENERATION)
}

/// Returns the next generation. Skips the low bits of `serial`, with which the block would look shared before it is.
fn next_generation(word: u64, serial: u64) -> u64 {
    let next = low(generation(word) + 1);
    if next == low(serial) { low(next + 1) } else { next }
}

/// The entry table as one member sees it.
#[derive(Debug)]
pub(crate) struct EntryTable<'a, W, H> {
    table: &'a [BlockEntry<W>],
    held: &'a [H],
    bit: u64,
}

impl<'a, W: Word, H: Holds> EntryTable<'a, W, H> {
    /// Returns the table for the member in `seat`. `held` counts the holds of its process.
    pub(crate) fn new(table: &'a [BlockEntry<W>], held: &'a [H], seat: u32) -> Self {
        debug_assert!(seat < SEATS && held.len() == table.len());
        Self { table, held, bit: 1 << seat }
    }

    fn at(&self, index: u32) -> Option<(&'a BlockEntry<W>, &'a H)> {
        Some((self.table.get(index as usize)?, self.held.get(index as usize)?))
    }

    /// Returns how many holds this process has, after waiting for a thread that is changing its bit.
    fn holds(held: &H) -> u32 {
        loop {
            let holds = held.load();
            if holds & CHANGING == 0 {
                return holds;
            }
            H::pause();
        }
    }

    /// Takes a free block exclusively. Returns `false` if it is held, or another thread or process is just taking it.
    ///
    /// No handle leads to it until it is [shared](Self::share).
    pub(crate) fn allocate(&self, index: u32) -> bool {
        self.take_free(index, 0)
    }

    /// Takes a free block for this member and for one receiver. Once the block is shared, the receiver takes over
    /// FLIGHT with the handle.
    pub(crate) fn allocate_in_flight(&self, index: u32) -> bool {
        self.take_free(index, FLIGHT)
    }

    fn take_free(&self, index: u32, also: u64) -> bool {
        let Some((entry, held)) = self.at(index) else { return false };
        let word = entry.word.load();
        if holders(word) != 0 || !held.exchange(0, CHANGING) {
            return false;
        }
        let new = next_generation(word, entry.serial.load());
        // If two members found the same free word, the exchange of only one succeeds.
        let taken = entry.word.exchange(word, new << GENERATION | self.bit | also).is_ok();
        // The generation has 16 bits. While this thread was stopped between its loads and its exchange, other members
        // may have taken and freed the block 2^16 times: the word is the same again, but the serial is not, and its low
        // bits may be the generation chosen above. An old handle would lead to this draft. While this member holds the
        // block, the serial cannot change, so this second check is final. An old handle that is used between exchange
        // and check, or before the seat of a member killed there is reclaimed, shows bytes of a later draft, but harms
        // none: this member writes only after the check, and no other can take the block while it is held.
        if taken && low(entry.serial.load()) == new {
            entry.change(|word| Some(word & !(self.bit | also)));
            held.store(0);
            return false;
        }
        held.store(u32::from(taken));
        taken
    }

    /// Shares a block that this member has taken exclusively, and returns the new serial.
    ///
    /// From now on the handle with this serial leads to it. The store releases what was written to the block.
    pub(crate) fn share(&self, index: u32) -> u64 {
        let Some((entry, _)) = self.at(index) else { return 0 };
        // Load and store need not be one step: only the member that has the block exclusively stores its serial.
        let old = entry.serial.load();
        let ahead = generation(entry.word.load()).wrapping_sub(low(old));
        let serial = old.wrapping_add(low(ahead));
        entry.serial.store(serial);
        serial
    }

    /// Takes a shared block exclusively again, if no other member holds it and this process holds it once.
    pub(crate) fn make_exclusive(&self, index: u32) -> bool {
        let Some((entry, held)) = self.at(index) else { return false };
        if !held.exchange(1, CHANGING) {
            return false;
        }
        let word = entry.word.load();
        let new = next_generation(word, entry.serial.load()) << GENERATION | self.bit;
        // A member that uses the handle at the same time exchanges the same word. If its exchange is first, this one
        // fails. If this one is first, the other member finds another generation and is refused.
        let taken = holders(word) == self.bit && entry.word.exchange(word, new).is_ok();
        held.store(1);
        taken
    }

    /// Holds a block that is held already, by a message's sender or by this process. Returns `false` if it is free.
    pub(crate) fn hold_invited(&self, index: u32) -> bool {
        self.hold_if(index, 0, |_| true)
    }

    /// Holds the block that a handle leads to. Returns `false` if the block is not shared under this serial, or was
    /// freed.
    pub(crate) fn hold(&self, index: u32, serial: u64) -> bool {
        self.hold_shared(index, serial, 0)
    }

    /// Takes over the block that a handle in flight leads to. Returns `false` if the handle was received before, or is
    /// void.
    pub(crate) fn receive(&self, index: u32, serial: u64) -> bool {
        self.hold_shared(index, serial, FLIGHT)
    }

    fn hold_shared(&self, index: u32, serial: u64, over: u64) -> bool {
        let Some((entry, _)) = self.at(index) else { return false };
        if entry.serial.load() != serial || !self.hold_if(index, over, |word| generation(word) == low(serial)) {
            return false;
        }
        // Now that this member holds the block, neither serial nor generation can change, so check again. The block is
        // another one
        // - if all holders released it after the first check, and it went through 2^16 generations until this one came
        //   again;
        // - if this process has the block as a draft: then `hold_if` counted one more hold without checking the
        //   generation.
        if self.is_shared_as(index, serial) {
            return true;
        }
        // The FLIGHT bit that was taken over belongs to another handle.
        if over != 0 {
            entry.change(|word| Some(word | over));
        }
        self.release(index);
        false
    }

    /// Returns whether a block is shared under this serial. The answer lasts only while this member holds the block.
    pub(crate) fn is_shared_as(&self, index: u32, serial: u64) -> bool {
        self.at(index)
            .is_some_and(|(entry, _)| generation(entry.word.load()) == low(serial) && entry.serial.load() == serial)
    }

    /// Returns the serial of a block that this member holds, if it is shared.
    pub(crate) fn serial(&self, index: u32) -> Option<u64> {
        let (entry, _) = self.at(index)?;
        let serial = entry.serial.load();
        self.is_shared_as(index, serial).then_some(serial)
    }

    /// Adds one hold. With `over`, clears that bit of the word in the same step.
    ///
    /// `may` decides whether the word allows it. It is not called if this process holds the block already and
    /// `over` is 0.
    fn hold_if(&self, index: u32, over: u64, may: impl Fn(u64) -> bool) -> bool {
        let Some((entry, held)) = self.at(index) else { return false };
        loop {
            let before = Self::holds(held);
            if before == CHANGING - 1 {
                return false;
            }
            if before > 0 && over == 0 {
                // The member's bit is set, and stays set as long as this number is not 0. The exchange fails if another
                // thread has given up or added a hold since the load.
                if held.exchange(before, before + 1) {
                    return true;
                }
                continue;
            }
            // Without CHANGING, a thread that gives up the last hold could clear the bit after this thread has set it.
            if !held.exchange(before, CHANGING) {
                continue;
            }
            let set = entry.change(|word| {
                // Refuses a bit of this member that this process did not set: the bytes were forged.
                let fits = (holders(word) & self.bit != 0) == (before > 0) && word & over == over;
                (holders(word) != 0 && fits && may(word)).then_some(word & !over | self.bit)
            });
            held.store(before + u32::from(set.is_some()));
            return set.is_some();
        }
    }

    /// Gives up one hold.
    pub(crate) fn release(&self, index: u32) -> Released {
        let Some((entry, held)) = self.at(index) else { return Released::NotHeld };
        loop {
            match Self::holds(held) {
                0 => return Released::NotHeld,
                // CHANGING keeps a thread that adds a hold from setting the bit until it is cleared here.
                1 if held.exchange(1, CHANGING) => {
                    let left = entry.change(|word| (word & self.bit != 0).then_some(word & !self.bit));
                    held.store(0);
                    return match left.map(holders) {
                        None => Released::NotHeld, // forged bytes: only this process clears its bit
                        Some(0) => Released::Freed,
                        Some(_) => Released::Held,
                    };
                }
                before if before > 1 && held.exchange(before, before - 1) => return Released::Held,
                _ => {} // another thread changed the number after the load
            }
        }
    }

    /// Returns whether this process holds the block once, no other member holds it, and no handle to it is in flight.
    pub(crate) fn is_held_by_us_alone(&self, index: u32) -> bool {
        self.at(index).is_some_and(|(entry, held)| holders(entry.word.load()) == self.bit && held.load() == 1)
    }
}

/// Queries of an entry, and changes on behalf of other members.
impl<W: Word> BlockEntry<W> {
    /// Makes an entry without a table.
    #[cfg(test)]
    pub(crate) fn of(word: W, serial: W) -> Self {
        Self { word, serial }
    }

    /// Returns how many members hold the block. Orphaned messages and handles in flight do not count.
    pub(crate) fn members(&self) -> u32 {
        (self.word.load() & (FLIGHT - 1)).count_ones()
    }

    /// Returns how many receivers hold a loan or have its handle in flight: the producer does not count.
    pub(crate) fn borrowers(&self) -> u32 {
        let word = self.word.load();
        if word & FLIGHT != 0 { 1 } else { self.members().saturating_sub(1) }
    }

    /// Returns whether the block is free.
    pub(crate) fn is_free(&self) -> bool {
        holders(self.word.load()) == 0
    }

    /// Returns whether the block would be free if the members of these bits did not hold it.
    pub(crate) fn is_free_without(&self, members: u64) -> bool {
        holders(self.word.load()) & !members == 0
    }

    /// Returns whether the member in `seat` holds the block.
    pub(crate) fn is_held_by(&self, seat: u32) -> bool {
        self.word.load() >> seat & 1 != 0
    }

    /// Returns whether a handle is in flight.
    #[cfg(test)]
    pub(crate) fn is_in_flight(&self) -> bool {
        self.word.load() & FLIGHT != 0
    }

    /// Returns whether the block is kept for an orphaned message.
    pub(crate) fn is_orphaned(&self) -> bool {
        self.word.load() & ORPHAN != 0
    }

    /// Changes the word in one exchange, and returns the new word. `None` if `step` refuses the current one.
    ///
    /// An exchange fails if another process or thread has changed the word. Then `step` decides again, about the new
    /// word.
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

    /// Keeps a block for an orphaned message until the message is received. Returns `false` if the block is free.
    ///
    /// The caller has locked RECOVER. The sender's bit is cleared only after this, so the block is never free in
    /// between.
    pub(crate) fn orphan(&self) -> bool {
        self.change(|word| (holders(word) != 0).then_some(word | ORPHAN)).is_some()
    }

    /// Clears ORPHAN. Returns whether this freed the block.
    pub(crate) fn release_orphan(&self) -> bool {
        self.change(|word| (word & ORPHAN != 0).then_some(word & !ORPHAN)).map(holders) == Some(0)
    }

    /// Clears the bit of a member that is dead or leaving. Returns whether this freed the block.
    ///
    /// If a handle in flight is all that is left, it becomes void: the producer's memory is gone with the producer.
    pub(crate) fn clear_seat(&self, seat: u32) -> bool {
        let bit = 1 << seat;
        let left = self.change(|word| {
            let rest = word & !bit;
            (rest != word).then_some(if holders(rest) == FLIGHT { rest & !FLIGHT } else { rest })
        });
        left.map(holders) == Some(0)
    }

    /// Revokes a handle in flight. Returns `false` if it was received, or is void.
    pub(crate) fn revoke(&self) -> bool {
        self.change(|word| (word & FLIGHT != 0).then_some(word & !FLIGHT)).is_some()
    }
}

#[cfg(test)]
#[path = "entries_tests.rs"]
mod tests;
