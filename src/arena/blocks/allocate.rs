//! Finding a free block: first where this process found free blocks before (`hints.rs`), then in a free span, then everywhere.
//!
//! A process that waits for memory polls: a block is freed by one exchange or by a death, and neither wakes a process.

use std::thread;
use std::time::{Duration, Instant};

use crate::arena::header::{ArenaHeader, TURN_WAIT};
use crate::arena::hints::{AreaHints, HintSet};
use crate::arena::tables::geometry::{SLOTS_OF_SPAN, SPAN};
use crate::arena::tables::sizes::Size;
use crate::arena::tables::span::Area;
use crate::error::{Error, Result};

/// Maximum number of searches while other processes change spans.
const TRIES: u32 = 64;
/// How many remembered areas are searched for a free block before another span is cut.
const LOOKS: usize = 8;

/// Pauses between two searches: the first, the longest, and a minimum as a multiple of the time that the last search took.
/// Searching a large arena that is full takes milliseconds.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
const PAUSE_PER_LOOK: u32 = 4;

/// A block that this member has taken exclusively.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) slot: u32,
    /// Offset in bytes from the first span.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

impl ArenaHeader {
    /// Takes a block of at least `bytes` bytes exclusively.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`]: no block is free, not even after reclaiming the holds of dead members.
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
            // Frees blocks of dead members, and unused spans that are cut into blocks of another size.
            self.reclaim_dead(TURN_WAIT)?;
            for _ in 0..TRIES {
                // Another process in this loop holds free blocks for a moment, or cuts the spans that this one has freed. Then
                // spans have changed, and another search may succeed.
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

    /// Takes a block of at least `bytes` bytes exclusively. Waits while none is free.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`]: no block became free. [`Error::NoSpace`], at once: the arena is too small for the block.
    pub(crate) fn allocate_wait(&self, bytes: u64, limit: Duration) -> Result<Taken> {
        // A deadline beyond the range of the clock counts as no limit.
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

    /// Returns the size of a block for this many bytes, if the arena is large enough.
    fn size_that_fits(&self, bytes: u64) -> Option<Size> {
        Size::of(bytes).filter(|size| size.block() <= self.geometry.capacity())
    }

    /// Takes a block of a remembered area.
    fn take_hinted(&self, hints: &mut AreaHints) -> Option<(Area, u32)> {
        for _ in 0..LOOKS.min(hints.areas.len()) {
            let area = *hints.areas.front()?;
            if let Some(block) = self.take_block(area, hints.next) {
                return Some((area, block));
            }
            hints.next = 0;
            hints.areas.pop_front();
            // A full area goes to the end of the list. An area that was freed meanwhile is forgotten.
            if self.span(area.span) == Some(area.word) {
                hints.areas.push_back(area);
            }
        }
        None
    }

    /// Makes an area of free spans and takes a block of it. If no spans are free, searches all areas for a free block.
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
            // Another process may have found the new area and taken all of its blocks, or freed it again: make another area.
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

    /// Locates the block of a slot that this process holds. `None` if the span has no such block: its bytes are damaged.
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
            advice: "the arena is full: drop arrays that are no longer needed (in every process: stats() says how many each \
                     holds), or create a larger one",
        }
    }
}
