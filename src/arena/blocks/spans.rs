//! Spans: which are free, which are cut into blocks, which are one block together.
//!
//! A free span is cut by one exchange. Everything else is done under SPANS. A run is put together from its parts, and the
//! exchange that makes one of them the head is what makes it a run; it is taken apart the other way round. So parts that no
//! head covers are what somebody was killed over, and free for whoever has SPANS next.
//!
//! A span is freed only by who has taken every block of it, and who takes a block looks at the span's word again afterwards:
//! a block that is held keeps its span what it is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::arena::header::{ArenaHeader, TURN_WAIT};
use crate::arena::tables::geometry::{SLOTS_OF_SPAN, SPAN};
use crate::arena::tables::sizes::Size;
use crate::arena::tables::slots::Slot;
use crate::arena::tables::span::{Area, BLOCKS, FREE, HEAD, PART, Span, around, exchange};
use crate::backend::lock_space::SPANS;
use crate::error::Result;

impl ArenaHeader {
    pub(crate) fn span(&self, index: u32) -> Option<Span> {
        self.spans().get(index as usize).map(|word| Span(word.load(Ordering::Acquire)))
    }

    /// Number of the first slot of a span.
    pub(crate) fn first_slot(span: u32) -> u32 {
        span * SLOTS_OF_SPAN
    }

    /// Takes a block of an area, looking from block `from` on; `None` if all are taken, or the area is something else by now.
    pub(crate) fn take_block(&self, area: Area, from: u32) -> Option<u32> {
        let count = area.word.size()?.blocks();
        if self.span(area.span)? != area.word {
            return None;
        }
        let slots = self.slots();
        let first = Self::first_slot(area.span);
        let block = around(count, from).find(|block| slots.allocate(first + block))?;
        if self.span(area.span) == Some(area.word) && self.is_whole(area) {
            return Some(block);
        }
        slots.release(first + block);
        None
    }

    /// Whether the parts of a run are what they are said to be: nobody changes them while its block is held.
    fn is_whole(&self, area: Area) -> bool {
        let Some(Size::Run(spans)) = area.word.size() else { return true };
        let run = self.spans().get(area.span as usize..).and_then(|run| run.get(1..spans as usize));
        run.is_some_and(|parts| parts.iter().all(|word| Span(word.load(Ordering::Acquire)).is_part()))
    }

    /// Cuts a free span into blocks, looking from span `from` on.
    pub(crate) fn cut_span(&self, class: u8, from: u32) -> Option<Area> {
        let words = self.spans();
        around(self.geometry.spans, from).find_map(|span| {
            let word = words.get(span as usize)?;
            let found = Span(word.load(Ordering::Acquire));
            if !found.is_free() {
                return None;
            }
            self.touch(span + 1);
            let cut = found.become_(BLOCKS, class.into());
            exchange(word, found, cut).then_some(Area { span, word: cut })
        })
    }

    /// Puts a run of free spans together, looking from span `from` on.
    pub(crate) fn join_spans(&self, spans: u32, from: u32) -> Result<Option<Area>> {
        let words = self.spans();
        if spans as usize > words.len() || spans == 0 {
            return Ok(None);
        }
        let _turn = self.turn(SPANS, TURN_WAIT)?;
        let last = words.len() - spans as usize;
        let from = (from as usize).min(last + 1);
        // A run may begin before the middle and end behind it.
        Ok(self.join_between(words, spans, from, last + 1).or_else(|| self.join_between(words, spans, 0, from)))
    }

    fn join_between(&self, words: &[AtomicU64], spans: u32, start: usize, end: usize) -> Option<Area> {
        let mut at = start;
        while at < end {
            let run = &words[at..at + spans as usize];
            // From its end: the last that is taken says where the next try begins.
            if let Some(taken) = run.iter().rposition(|word| !Span(word.load(Ordering::Acquire)).is_free()) {
                at += taken + 1;
                continue;
            }
            let first = u32::try_from(at).ok()?;
            self.touch(first + spans);
            let as_part = |word: &AtomicU64| {
                let found = Span(word.load(Ordering::Acquire));
                found.is_free() && exchange(word, found, found.become_(PART, 0))
            };
            let got = run.iter().take_while(|word| as_part(word)).count();
            if got == run.len() {
                let part = Span(run[0].load(Ordering::Acquire));
                let head = part.become_(HEAD, spans.into());
                return exchange(&run[0], part, head).then_some(Area { span: first, word: head });
            }
            run[..got].iter().for_each(free_part); // somebody has cut one of them
            at += got + 1;
        }
        None
    }

    /// Looks for an area of a size among those that anybody has made, from span `from` on, and takes a block of it.
    pub(crate) fn search_block(&self, size: Size, from: u32) -> Option<(Area, u32)> {
        around(self.touched(), from).find_map(|span| {
            let word = self.span(span)?;
            if word.size() != Some(size) {
                return None;
            }
            let area = Area { span, word };
            Some((area, self.take_block(area, 0)?))
        })
    }

    /// Frees every span and run all of whose blocks are free. Returns how many spans that were.
    pub(crate) fn free_unused_spans(&self) -> Result<usize> {
        let _turn = self.turn(SPANS, TURN_WAIT)?;
        let words = self.spans();
        let mut freed = 0;
        for span in 0..self.touched() {
            let Some((word, size)) = self.span(span).and_then(|word| Some((word, word.size()?))) else { continue };
            // Without its head a run is loose parts, which are free for the next that has SPANS.
            let (count, next) = match size {
                Size::Small(_) => (1, FREE),
                Size::Run(spans) => (spans as usize, PART),
            };
            let Some(run) = words.get(span as usize..).and_then(|run| run.get(..count)) else { continue };
            freed += self.with_all_blocks(span, size, || {
                if !exchange(&run[0], word, word.become_(next, 0)) {
                    return 0;
                }
                run.iter().for_each(free_part);
                run.len()
            });
        }
        Ok(freed)
    }

    /// Does something while this member has every block of a span, if all are free.
    fn with_all_blocks(&self, span: u32, size: Size, action: impl FnOnce() -> usize) -> usize {
        let first = Self::first_slot(span);
        let blocks = first..first + size.blocks();
        let table = self.slot_table();
        if !blocks.clone().all(|slot| table.get(slot as usize).is_some_and(Slot::is_free)) {
            return 0;
        }
        let slots = self.slots();
        let got = blocks.clone().take_while(|slot| slots.allocate(*slot)).count();
        let done = if got == blocks.len() { action() } else { 0 };
        blocks.take(got).for_each(|slot| {
            slots.release(slot);
        });
        done
    }

    /// Frees parts of runs that have no head.
    pub(crate) fn free_loose_spans(&self, limit: Duration) -> Result<()> {
        let _turn = self.turn(SPANS, limit)?;
        let mut covered = 0;
        for (span, word) in (0..self.touched()).zip(self.spans()) {
            let found = Span(word.load(Ordering::Acquire));
            match found.size() {
                Some(Size::Run(spans)) if span >= covered => covered = span.saturating_add(spans),
                _ if found.is_part() && span >= covered => free_part(word),
                _ => {}
            }
        }
        Ok(())
    }

    /// A number that is another one as soon as any span has become something else.
    pub(crate) fn span_changes(&self) -> u64 {
        self.spans().iter().fold(0, |sum: u64, word| sum.wrapping_add(word.load(Ordering::Acquire) >> 32))
    }

    /// Bytes of the spans that are free now.
    pub(crate) fn unused(&self) -> u64 {
        self.spans().iter().filter(|word| Span(word.load(Ordering::Relaxed)).is_free()).count() as u64 * SPAN
    }
}

/// Frees a part of a run. The caller has SPANS.
fn free_part(word: &AtomicU64) {
    let found = Span(word.load(Ordering::Acquire));
    if found.is_part() {
        exchange(word, found, found.become_(FREE, 0));
    }
}

#[cfg(test)]
#[path = "spans_tests.rs"]
mod tests;
