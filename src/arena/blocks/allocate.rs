//! Finding a block: first where this process has found some before, then a free span, then everywhere.
//!
//! What a process remembers (`hints.rs`) is only a hint; every claim is checked in the shared tables.
//!
//! Waiting for room is looking again and again: a block is freed by one exchange, or by a death, and neither wakes a process.

use std::thread;
use std::time::{Duration, Instant};

use crate::arena::header::{ArenaHeader, TURN_WAIT};
use crate::arena::hints::{AreaHints, HintSet};
use crate::arena::tables::geometry::{SLOTS_OF_SPAN, SPAN};
use crate::arena::tables::sizes::Size;
use crate::arena::tables::span::Area;
use crate::error::{Error, Result};

/// How often room is looked for anew, because others changed spans meanwhile.
const TRIES: u32 = 64;
/// How many spans are looked through for free blocks before another is cut.
const LOOKS: usize = 8;

/// Pauses between two looks for room: the first, the longest, and how many times as long as the last look one is at least. Looking
/// through a large arena that is full takes milliseconds.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
const PAUSE_PER_LOOK: u32 = 4;

/// A block that was taken for this member alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) slot: u32,
    /// Where it begins, in bytes from the first span.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

impl ArenaHeader {
    /// Takes a block of at least so many bytes for this member alone.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when nothing is free, not even after what the dead held was freed.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<Taken> {
        self.check_process()?;
        self.end_sent();
        let Some(size) = self.size_that_fits(bytes) else { return Err(self.full(bytes)) };
        let mut hints = self.hints.lock();
        let mut found = self.take_hinted(hints.of(size));
        if found.is_none() {
            found = self.find(size, &mut hints)?;
        }
        if found.is_none() {
            // What is held by the dead, and what stands empty in another size, is room too.
            self.reclaim_dead(TURN_WAIT)?;
            for _ in 0..TRIES {
                // While others look for room they hold for a moment what is free, or cut it for themselves.
                let before = self.span_changes();
                self.free_unused_spans()?;
                found = self.find(size, &mut hints)?;
                if found.is_some() || self.span_changes() == before {
                    break;
                }
            }
        }
        let (area, block) = found.ok_or_else(|| self.full(bytes))?;
        hints.of(size).remember(area, block);
        Ok(Self::taken(area, size, block))
    }

    /// Takes a block of at least so many bytes for this member alone; while all are taken, waits for one.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`]; [`Error::NoSpace`] at once where so many bytes never fit.
    pub(crate) fn allocate_wait(&self, bytes: u64, limit: Duration) -> Result<Taken> {
        // A deadline beyond what the clock can say is none.
        let deadline = Instant::now().checked_add(limit);
        let mut pause = FIRST_PAUSE;
        loop {
            let look = Instant::now();
            match self.allocate(bytes) {
                Err(Error::NoSpace { .. }) if self.size_that_fits(bytes).is_some() => {}
                answer => return answer,
            }
            let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(Error::TimedOut { location: self.name().to_owned(), waited: limit });
            }
            thread::sleep(pause.max(look.elapsed() * PAUSE_PER_LOOK).min(left));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// What so many bytes take, if the arena is large enough for them.
    fn size_that_fits(&self, bytes: u64) -> Option<Size> {
        Size::of(bytes).filter(|size| size.block() <= self.geometry.capacity())
    }

    /// Takes a block of an area that is remembered.
    fn take_hinted(&self, hints: &mut AreaHints) -> Option<(Area, u32)> {
        for _ in 0..LOOKS.min(hints.areas.len()) {
            let area = *hints.areas.front()?;
            if let Some(block) = self.take_block(area, hints.next) {
                return Some((area, block));
            }
            hints.next = 0;
            hints.areas.pop_front();
            // An area that is something else by now is forgotten.
            if self.span(area.span) == Some(area.word) {
                hints.areas.push_back(area);
            }
        }
        None
    }

    /// Makes an area of free spans, or finds one that others have made.
    fn find(&self, size: Size, hints: &mut HintSet) -> Result<Option<(Area, u32)>> {
        loop {
            let made = match size {
                Size::Small(class) => self.cut_span(class, hints.cursor),
                Size::Run(spans) => self.join_spans(spans, hints.cursor)?,
            };
            let Some(area) = made else {
                let known = hints.of(size);
                let found = self.search_block(size, known.searched);
                known.searched = found.map_or(0, |(area, _)| area.span);
                return Ok(found);
            };
            hints.cursor = area.span + if let Size::Run(spans) = size { spans } else { 1 };
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
    pub(crate) fn locate(&self, slot: u32) -> Option<Taken> {
        let (span, block) = (slot / SLOTS_OF_SPAN, slot % SLOTS_OF_SPAN);
        let word = self.span(span)?;
        let size = word.size().filter(|size| block < size.blocks())?;
        let taken = Self::taken(Area { span, word }, size, block);
        (taken.at + taken.bytes <= self.geometry.capacity()).then_some(taken)
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
