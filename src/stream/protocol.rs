//! In which order the words of a frame change: its number, its place in the ring, the head. Any process may be killed.
//! It maps no memory and makes no system call: it is generic over the words and the locks, so that loom can try every
//! interleaving.

use std::collections::BTreeSet;

use super::geometry::StreamGeometry;
use super::memory::{StreamMemory, StreamWords};
use crate::os;

/// The numbers, the ring, the head and the copied elements of a frames file.
#[derive(Debug)]
pub(super) struct FrameTable<'a, M = StreamMemory> {
    memory: &'a M,
    geometry: &'a StreamGeometry,
}

/// Result of locking the slot of a frame for reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Locked {
    /// The slot, which has the frame until it is released.
    Slot(usize),
    /// The frame is not there, or is being overwritten.
    Gone,
    /// The frame is there, and another process has its lock: the writer, which is about to overwrite it.
    Busy,
}

/// The frame that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WhichFrame {
    /// The newest one, if it is newer than the last one that was returned.
    Latest,
    /// The oldest one that is newer than the last one that was returned.
    Next,
}

impl<'a, M: StreamWords> FrameTable<'a, M> {
    pub(super) fn new(memory: &'a M, geometry: &'a StreamGeometry) -> Self {
        Self { memory, geometry }
    }

    /// Returns the number of the frame in a slot; 0: none.
    pub(super) fn number(&self, slot: usize) -> u64 {
        self.memory.load(StreamGeometry::entry(slot))
    }

    /// Returns the slot that the ring has for a number, if it is one and has that frame.
    pub(super) fn slot_of(&self, number: u64) -> Option<usize> {
        let slot = usize::try_from(self.memory.load(self.geometry.place(number))).ok()?;
        (slot < self.geometry.slots && self.number(slot) == number).then_some(slot)
    }

    /// Returns the number of the newest frame; 0: none.
    pub(super) fn head(&self) -> u64 {
        self.memory.load(StreamGeometry::HEAD)
    }

    /// Finds a frame that was not returned yet. `take` gets a frame by its number: `None` if it is gone, `Some(None)`
    /// if the search is to end there.
    pub(super) fn find<F, E>(
        &self,
        which: WhichFrame,
        last: u64,
        mut take: impl FnMut(u64) -> Result<Option<Option<F>>, E>,
    ) -> Result<Option<F>, E> {
        loop {
            let head = self.head();
            let oldest = last.saturating_add(1).max(head.saturating_sub(self.geometry.slots as u64 - 1)).max(1);
            let mut numbers = match which {
                WhichFrame::Next => oldest..=head,
                WhichFrame::Latest => head.max(oldest)..=head,
            };
            if let Some(found) = numbers.find_map(|number| take(number).transpose()) {
                return found;
            }
            // The frames were overwritten while this looked for them: later ones are there.
            if self.head() == head {
                return Ok(None);
            }
        }
    }

    /// Makes sure that a slot has this frame and keeps it, once `lock` has taken its lock.
    pub(super) fn hold<E>(
        &self,
        slot: usize,
        number: u64,
        lock: impl FnOnce() -> Result<bool, E>,
        unlock: impl FnOnce() -> Result<(), E>,
    ) -> Result<Locked, E> {
        if !lock()? {
            let is_there = self.number(slot) == number;
            return Ok(if is_there { Locked::Busy } else { Locked::Gone });
        }
        os::step("stream: slot locked");
        // The writer clears the number under its lock before it changes an element, and gives another number after
        // that. So with this lock, and with the number unchanged, the elements are those of the frame.
        if self.number(slot) != number {
            unlock()?;
            return Ok(Locked::Gone);
        }
        Ok(Locked::Slot(slot))
    }

    /// Copies the elements of a slot, and what `rest` loads. `None`: the slot was given another frame meanwhile.
    pub(super) fn copy<R>(&self, slot: usize, number: u64, rest: impl FnOnce() -> R) -> Option<(Vec<u64>, R)> {
        let elements = self.memory.copy_words_out(self.geometry.elements(slot), self.geometry.frame_words());
        let rest = rest();
        // The writer clears the number, fences, and then stores words. So if one of these was among those that were
        // loaded above, this sees that the number has gone.
        M::fence();
        (self.number(slot) == number).then_some((elements, rest))
    }
}

/// Which frame is in which slot, as the writer knows it.
#[derive(Debug)]
pub(super) struct SlotOrder {
    /// Slots by the number of their frame. Those without one come first.
    oldest: BTreeSet<(u64, usize)>,
    head: u64,
}

impl SlotOrder {
    /// Reads what the writers before have left, and repairs ring and head: they may have been killed at any step.
    pub(super) fn repaired<M: StreamWords>(table: &FrameTable<'_, M>) -> Self {
        let (memory, geometry) = (table.memory, table.geometry);
        let oldest: BTreeSet<_> = (0..geometry.slots).map(|slot| (table.number(slot), slot)).collect();
        let head = oldest.last().map_or(0, |(number, _)| *number).max(table.head());
        // The last numbers have a place each. An older frame, which a reader held, has none: its place is that of a
        // later frame, which would be hidden for a moment.
        for (number, slot) in oldest.iter().filter(|(number, _)| *number > head.saturating_sub(geometry.slots as u64)) {
            memory.store(geometry.place(*number), *slot as u64);
        }
        memory.store(StreamGeometry::HEAD, head);
        Self { oldest, head }
    }

    /// Returns the number of the newest frame; 0 before the first.
    pub(super) fn head(&self) -> u64 {
        self.head
    }

    /// Returns slots and their frames, the oldest first, without the newest one.
    pub(super) fn older(&self) -> impl Iterator<Item = (u64, usize)> {
        self.oldest.iter().copied().filter(|(number, _)| *number < self.head)
    }

    /// Takes the slot with the oldest frame that may be overwritten, and clears its number. `is_kept` says whether a
    /// cursor keeps a frame, `try_lock` locks a slot. If frames are copied, it locks nothing.
    pub(super) fn take<M: StreamWords, E>(
        &mut self,
        table: &FrameTable<'_, M>,
        is_kept: impl Fn(u64) -> Result<bool, E>,
        try_lock: impl Fn(usize) -> Result<bool, E>,
    ) -> Result<Option<usize>, E> {
        for (number, slot) in self.oldest.iter().copied() {
            // The newest frame stays, so that there is always one to read.
            if number > 0 && (number == self.head || is_kept(number)?) {
                continue;
            }
            if !table.geometry.is_copied && !try_lock(slot)? {
                continue;
            }
            os::step("stream: slot locked for writing");
            table.memory.store(StreamGeometry::entry(slot), 0);
            // No element is changed before the number is gone: a reader would copy a torn frame, and a killed writer
            // would leave one under a number. Pairs with the fence in `copy`, and with that of a new cursor.
            M::fence();
            os::step("stream: number cleared");
            self.oldest.remove(&(number, slot));
            self.oldest.insert((0, slot));
            return Ok(Some(slot));
        }
        Ok(None)
    }

    /// Lets readers see the next frame, which is in `slot`. Returns its number.
    pub(super) fn publish<M: StreamWords>(&mut self, table: &FrameTable<'_, M>, slot: usize) -> u64 {
        let (memory, number) = (table.memory, self.head.saturating_add(1));
        memory.store(StreamGeometry::entry(slot), number);
        // In most rounds the slots come in the same order. A word that is not stored stays in the readers' caches.
        let place = table.geometry.place(number);
        if memory.load(place) != slot as u64 {
            memory.store(place, slot as u64);
        }
        memory.store(StreamGeometry::HEAD, number);
        os::step("stream: head stored");
        self.head = number;
        self.oldest.remove(&(0, slot));
        self.oldest.insert((number, slot));
        number
    }
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64"))]
#[path = "protocol_model.rs"]
mod model;
