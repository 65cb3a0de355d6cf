//! Finding a block: first where this process has found some before, then a free span, then everywhere.
//!
//! What a process remembers is a hint; every claim is checked where it lies. Threads that allocate at the same time use
//! different memories as long as there are some.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use super::geometry::{SLOTS_OF_SPAN, SPAN};
use super::ground::{Ground, TURN_WAIT};
use super::sizes::{CLASSES, Size};
use super::slots::Released;
use super::spans::Area;
use crate::error::{Error, Result};

/// Memories of one process.
const SHELVES: usize = 8;
/// How often room is looked for anew, because others changed spans meanwhile.
const TRIES: u32 = 64;
/// How many spans are looked through for free blocks before another is cut.
const LOOKS: usize = 8;

/// A block that was taken for this member alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) slot: u32,
    /// Where it begins, in bytes from the first span.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

/// Areas of one size that this process has used.
#[derive(Debug, Default)]
struct Shelf {
    /// The first is the one that was used last.
    areas: VecDeque<Area>,
    /// The block of the first area that is tried next.
    next: u32,
    /// The span at which the last search among everybody's ended.
    searched: u32,
}

#[derive(Debug, Default)]
struct Shelves {
    small: [Shelf; CLASSES],
    runs: BTreeMap<u32, Shelf>,
    /// The span from which a free one is looked for.
    cursor: u32,
}

impl Shelves {
    fn of(&mut self, size: Size) -> &mut Shelf {
        match size {
            Size::Small(class) => &mut self.small[usize::from(class)],
            Size::Run(spans) => self.runs.entry(spans).or_default(),
        }
    }
}

/// What a process remembers of where blocks were free.
#[derive(Debug, Default)]
pub(super) struct Memory([Mutex<Shelves>; SHELVES]);

impl Memory {
    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        for shelves in &self.0 {
            match shelves.try_lock() {
                Ok(shelves) => return shelves,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        self.0[0].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf {
    /// Takes a block of an area that is remembered.
    fn take(&mut self, ground: &Ground) -> Option<(Area, u32)> {
        for _ in 0..LOOKS.min(self.areas.len()) {
            let area = *self.areas.front()?;
            if let Some(block) = ground.take_block(area, self.next) {
                return Some((area, block));
            }
            self.next = 0;
            self.areas.pop_front();
            // What is something else by now is forgotten.
            if ground.span(area.span) == Some(area.word) {
                self.areas.push_back(area);
            }
        }
        None
    }

    fn remember(&mut self, area: Area, block: u32) {
        self.next = block + 1;
        if self.areas.front() != Some(&area) {
            self.areas.push_front(area);
        }
    }
}

impl Ground {
    /// Takes a block of at least so many bytes for this member alone.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when nothing is free, not even after what the dead held was freed.
    pub(super) fn allocate(&self, bytes: u64) -> Result<Taken> {
        self.check_process()?;
        self.end_sent();
        let size = Size::of(bytes).filter(|size| size.block() <= self.geometry.capacity());
        let Some(size) = size else { return Err(self.full(bytes)) };
        let mut shelves = self.memory.shelves();
        let mut found = shelves.of(size).take(self);
        if found.is_none() {
            found = self.find(size, &mut shelves)?;
        }
        if found.is_none() {
            // What is held by the dead, and what stands empty in another size, is room too.
            self.settle_estates(TURN_WAIT)?;
            for _ in 0..TRIES {
                // While others look for room they hold for a moment what is free, or cut it for themselves.
                let before = self.span_changes();
                self.free_unused_spans()?;
                found = self.find(size, &mut shelves)?;
                if found.is_some() || self.span_changes() == before {
                    break;
                }
            }
        }
        let (area, block) = found.ok_or_else(|| self.full(bytes))?;
        shelves.of(size).remember(area, block);
        Ok(Self::taken(area, size, block))
    }

    /// Makes an area of free spans, or finds one that others have made.
    fn find(&self, size: Size, shelves: &mut Shelves) -> Result<Option<(Area, u32)>> {
        loop {
            let made = match size {
                Size::Small(class) => self.cut_span(class, shelves.cursor),
                Size::Run(spans) => self.join_spans(spans, shelves.cursor)?,
            };
            let Some(area) = made else {
                let known = shelves.of(size);
                let found = self.search_block(size, known.searched);
                known.searched = found.map_or(0, |(area, _)| area.span);
                return Ok(found);
            };
            shelves.cursor = area.span + if let Size::Run(spans) = size { spans } else { 1 };
            // Others may have been quicker; then there is another span, or none.
            if let Some(block) = self.take_block(area, 0) {
                return Ok(Some((area, block)));
            }
        }
    }

    fn taken(area: Area, size: Size, block: u32) -> Taken {
        Taken {
            slot: Self::first_slot(area.span) + block,
            at: u64::from(area.span) * SPAN + u64::from(block) * size.block(),
            bytes: size.block(),
        }
    }

    /// Where the block of a slot is that is held; `None` if the bytes say nothing that can be.
    pub(super) fn locate(&self, slot: u32) -> Option<Taken> {
        let (span, block) = (slot / SLOTS_OF_SPAN, slot % SLOTS_OF_SPAN);
        let word = self.span(span)?;
        let size = word.size().filter(|size| block < size.blocks())?;
        let taken = Self::taken(Area { span, word }, size, block);
        (taken.at + taken.bytes <= self.geometry.capacity()).then_some(taken)
    }

    /// Gives up one hold of a block.
    ///
    /// # Errors
    ///
    /// [`Error::HandleSpent`]: this process does not hold it.
    pub(crate) fn release(&self, slot: u32) -> Result<()> {
        self.check_process()?;
        if self.slots().release(slot) == Released::NotHeld { Err(self.spent()) } else { Ok(()) }
    }

    pub(super) fn spent(&self) -> Error {
        Error::HandleSpent { location: self.name().to_owned() }
    }

    fn full(&self, needed: u64) -> Error {
        Error::NoSpace {
            location: self.name().to_owned(),
            needed,
            available: self.unused(),
            advice: "the arena is full: drop arrays that are no longer needed (in every process: stats() says who holds \
                     how many), or create a larger one",
        }
    }
}
