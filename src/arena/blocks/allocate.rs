//! Finding a free block: first where this process found free blocks before (`hints.rs`), then in a free span, then
//! everywhere.
//!
//! A process that waits for memory polls: a block is freed by one exchange or by a death, and neither wakes a process.

use std::thread;
use std::time::Duration;

use crate::arena::header::{ArenaHeader, TURN_WAIT};
use crate::arena::tables::geometry::{ENTRIES_OF_SPAN, SPAN};
use crate::arena::tables::sizes::Size;
use crate::arena::tables::span::Area;
use crate::backoff::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::os;
use crate::search_time::SearchTime;

/// Maximum number of searches while other processes change spans.
const TRIES: u32 = 64;
/// How many remembered areas are searched for a free block before another span is cut.
const LOOKS: usize = 8;

/// Pauses between two searches: the first, and the longest after short searches. Searching a large arena that is full
/// takes milliseconds, and makes the pause longer.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// How long each search of a waiting process waits for locks of the arena (RECOVER, SPANS). If a member is stopped
/// while it holds one, blocks can become free all the same, and the next search finds them.
const TURN_IN_WAIT: Duration = Duration::from_millis(100);

/// A block that this member has taken exclusively.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) entry: u32,
    /// Offset in bytes from the first span.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

impl ArenaHeader {
    /// Takes a block of at least `bytes` bytes exclusively.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NoSpace`]: no block is free, not even after reclaiming the holds of dead members.
    /// [`ErrorKind::TimedOut`]: a member was stopped while it held a lock that was needed.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<Taken> {
        let size = self.size_that_fits(bytes)?;
        self.end_sent();
        match self.take_hinted(size) {
            Some(taken) => Ok(taken),
            None => self.search(size, bytes, Deadline::after(TURN_WAIT)),
        }
    }

    /// Searches everywhere for a block, and makes one if possible. Waits for locks until the deadline.
    fn search(&self, size: Size, bytes: u64, until: Deadline) -> Result<Taken> {
        if let Some(taken) = self.find(size, until)? {
            return Ok(taken);
        }
        // Frees blocks of dead members. If that fails because a member is stopped while it reclaims, the search goes
        // on: spans that members have left are found without it.
        let refused = match self.reclaim_dead(until) {
            Ok(_) => None,
            Err(error) if matches!(error.kind, ErrorKind::TimedOut { .. }) => Some(error),
            Err(error) => return Err(error),
        };
        for _ in 0..TRIES {
            // Another process in this loop holds free blocks for a moment, or cuts the spans that this one has freed.
            // Then spans have changed, and another search may succeed.
            let before = self.span_changes();
            self.free_unused_spans(until)?; // they may be cut into blocks of another size
            if let Some(taken) = self.find(size, until)? {
                return Ok(taken);
            }
            if self.span_changes() == before {
                break;
            }
        }
        Err(refused.unwrap_or_else(|| self.full(bytes)))
    }

    /// Takes a block of at least `bytes` bytes exclusively. Waits while none is free.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`]: no block became free. [`ErrorKind::NoSpace`], at once: the arena is too small for the
    /// block.
    pub(crate) fn allocate_wait(&self, bytes: u64, limit: Duration) -> Result<Taken> {
        let size = self.size_that_fits(bytes)?;
        let until = Deadline::after(limit);
        let mut pause = FIRST_PAUSE;
        loop {
            self.end_sent();
            // Not measured, because asking for the processor time is a system call.
            if let Some(taken) = self.take_hinted(size) {
                return Ok(taken);
            }
            let search = SearchTime::begin();
            match self.search(size, bytes, Deadline::after(TURN_IN_WAIT.min(until.left()))) {
                Err(Error { kind: ErrorKind::NoSpace { .. } | ErrorKind::TimedOut { .. }, .. }) => {}
                answer => return answer,
            }
            os::step("allocate: none free");
            let rest = SearchTime::rest_after(search.spent());
            let left = until.left();
            if left.is_zero() {
                return Err(ErrorKind::TimedOut { waited: limit }.at(self.name()));
            }
            thread::sleep(pause.max(rest).min(left));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Returns the size of a block for this many bytes. Fails in a forked child, and if the arena is too small.
    fn size_that_fits(&self, bytes: u64) -> Result<Size> {
        self.check_process()?;
        let size = Size::of(bytes).filter(|size| size.block() <= self.geometry.capacity());
        size.ok_or_else(|| self.full(bytes))
    }

    /// Takes a block of a remembered area.
    fn take_hinted(&self, size: Size) -> Option<Taken> {
        let mut hints = self.hints.lock();
        let hints = hints.of(size);
        for _ in 0..LOOKS.min(hints.areas.len()) {
            let area = *hints.areas.front()?;
            if let Some(block) = self.take_block(area, hints.next) {
                hints.remember(area, block);
                return Some(Self::taken(area, size, block));
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
    ///
    /// Waits for SPANS until the deadline, if a run is needed. Without SPANS it finds only runs that exist and are
    /// free.
    fn find(&self, size: Size, until: Deadline) -> Result<Option<Taken>> {
        // Before the hints are locked: another thread, perhaps with less time, may wait for them.
        let (turn, refused) = match size {
            Size::Small(_) => (None, None),
            Size::Run(_) => match self.turn_at_spans(until) {
                Ok(turn) => (Some(turn), None),
                Err(error) if matches!(error.kind, ErrorKind::TimedOut { .. }) => (None, Some(error)),
                Err(error) => return Err(error),
            },
        };
        let mut hints = self.hints.lock();
        let made = loop {
            let made = match size {
                Size::Small(class) => self.cut_span(class, hints.cursor),
                Size::Run(spans) => turn.as_ref().and_then(|turn| self.join_spans(spans, hints.cursor, turn)),
            };
            let Some(area) = made else { break None };
            hints.cursor = area.span + if let Size::Run(spans) = size { spans } else { 1 };
            // Another process may have found the new area and taken all of its blocks, or freed it again: make another
            // area.
            if let Some(block) = self.take_block(area, 0) {
                break Some((area, block));
            }
        };
        drop(turn); // other members need not wait for the search
        let known = hints.of(size);
        let found = made.or_else(|| {
            let found = self.search_block(size, known.searched);
            known.searched = found.map_or(0, |(area, _)| area.span);
            found
        });
        let Some((area, block)) = found else { return refused.map_or(Ok(None), Err) };
        known.remember(area, block);
        Ok(Some(Self::taken(area, size, block)))
    }

    fn taken(area: Area, size: Size, block: u32) -> Taken {
        Taken {
            entry: Self::first_entry(area.span) + block,
            at: u64::from(area.span) * SPAN + u64::from(block) * size.block(),
            bytes: size.block(),
        }
    }

    /// Locates the block of an entry that this process holds. `None` if the span has no such block: its bytes are
    /// damaged.
    pub(crate) fn locate(&self, entry: u32) -> Option<Taken> {
        let (span, block) = (entry / ENTRIES_OF_SPAN, entry % ENTRIES_OF_SPAN);
        let word = self.span(span)?;
        let size = word.size().filter(|size| block < size.blocks())?;
        let taken = Self::taken(Area { span, word }, size, block);
        (taken.at + taken.bytes <= self.geometry.capacity()).then_some(taken)
    }

    fn full(&self, needed: u64) -> Error {
        let advice = "the arena is full: drop arrays that are no longer needed (in every process: stats() says how many each \
                      holds), or create a larger one";
        let available = self.unused(0);
        ErrorKind::NoSpace { needed, available, in_flight: 0, advice: advice.into() }.at(self.name())
    }
}
