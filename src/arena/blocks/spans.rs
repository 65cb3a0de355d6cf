//! Spans: free spans, spans that are cut into blocks, and runs of spans that are one block.
//!
//! A free span is cut by one exchange, without a lock. Everything else is done under SPANS. To join a run, a process
//! makes each span a part, then the first part the head: that exchange completes the run. It takes a run apart in the
//! reverse order. So parts without a head were left by a killed process, and the next process that holds SPANS frees
//! them.
//!
//! A process frees a span only while it holds every block of it. A process that takes a block loads the span's word
//! again afterwards. If one process takes a block while another frees its span, either the second finds the block held,
//! or the first finds that the span has changed. So a held block keeps its span as it is.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::arena::header::ArenaHeader;
use crate::arena::tables::entries::BlockEntry;
use crate::arena::tables::geometry::{ENTRIES_OF_SPAN, SPAN};
use crate::arena::tables::sizes::Size;
use crate::arena::tables::span::{Area, BLOCKS, FREE, HEAD, PART, Span, around, exchange};
use crate::backend::Turn;
use crate::backend::lock_space::SPANS;
use crate::backoff::Deadline;
use crate::error::Result;
use crate::os;

impl ArenaHeader {
    pub(crate) fn span(&self, index: u32) -> Option<Span> {
        self.spans().get(index as usize).map(|word| Span(word.load(Ordering::Acquire)))
    }

    /// Returns the number of the first entry of a span.
    pub(crate) fn first_entry(span: u32) -> u32 {
        span * ENTRIES_OF_SPAN
    }

    /// Takes a block of an area, searching from block `from` on. `None` if all are held, or the area has been freed.
    pub(crate) fn take_block(&self, area: Area, from: u32) -> Option<u32> {
        let count = area.word.size()?.blocks();
        if self.span(area.span)? != area.word {
            return None;
        }
        let entries = self.entries();
        let first = Self::first_entry(area.span);
        let block = around(count, from).find(|block| entries.allocate(first + block))?;
        // Between the first check and the exchange in `allocate`, another process may have freed the span, and cut or
        // joined it again: then this entry belongs to another block. The held block keeps the span as it is, so this
        // second check is final.
        if self.span(area.span) == Some(area.word) && self.is_whole(area) {
            return Some(block);
        }
        entries.release(first + block);
        None
    }

    /// Returns whether all spans of a run behind its head are parts. They do not change while the run's block is held.
    fn is_whole(&self, area: Area) -> bool {
        let Some(Size::Run(spans)) = area.word.size() else { return true };
        let run = self.spans().get(area.span as usize..).and_then(|run| run.get(1..spans as usize));
        run.is_some_and(|parts| parts.iter().all(|word| Span(word.load(Ordering::Acquire)).is_part()))
    }

    /// Cuts a free span into blocks, searching from span `from` on.
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
            // Fails if another process has cut or joined the span since the load: try the next one.
            exchange(word, found, cut).then_some(Area { span, word: cut })
        })
    }

    /// Waits until the deadline for SPANS, with which runs are joined and spans are freed.
    pub(crate) fn turn_at_spans(&self, until: Deadline) -> Result<Turn> {
        let turn = self.turn(SPANS, until)?;
        os::step("spans: alone");
        Ok(turn)
    }

    /// Joins free spans to a run, searching from span `from` on. The caller holds SPANS.
    pub(crate) fn join_spans(&self, spans: u32, from: u32, _turn: &Turn) -> Option<Area> {
        let words = self.spans();
        if spans as usize > words.len() || spans == 0 {
            return None;
        }
        let last = words.len() - spans as usize;
        let from = (from as usize).min(last + 1);
        // The second search covers runs that begin before `from` and end behind it.
        self.join_between(words, spans, from, last + 1).or_else(|| self.join_between(words, spans, 0, from))
    }

    fn join_between(&self, words: &[AtomicU64], spans: u32, start: usize, end: usize) -> Option<Area> {
        let mut at = start;
        while at < end {
            let run = &words[at..at + spans as usize];
            // Searched from the end: the next candidate begins after the last of these spans that is not free.
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
            // Another process has cut the next span meanwhile, which needs no lock. Give up the parts before it.
            run[..got].iter().for_each(free_part);
            at += got + 1;
        }
        None
    }

    /// Takes a block of any area of this size, also of other processes. Searches from span `from` on.
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

    /// Frees every span and run whose blocks are all free. Returns how many spans it has freed.
    pub(crate) fn free_unused_spans(&self, until: Deadline) -> Result<usize> {
        let _turn = self.turn_at_spans(until)?;
        let words = self.spans();
        let mut freed = 0;
        for span in 0..self.touched() {
            let Some((word, size)) = self.span(span).and_then(|word| Some((word, word.size()?))) else { continue };
            // First the head of a run becomes a part. If this process is killed after that, it leaves parts without a
            // head, and the next process that holds SPANS frees them.
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

    /// Runs `action` while this member holds every block of a span, if all of them are free.
    fn with_all_blocks(&self, span: u32, size: Size, action: impl FnOnce() -> usize) -> usize {
        let first = Self::first_entry(span);
        let blocks = first..first + size.blocks();
        let table = self.entry_table();
        if !blocks.clone().all(|entry| table.get(entry as usize).is_some_and(BlockEntry::is_free)) {
            return 0;
        }
        let entries = self.entries();
        // Another process may have taken one of the blocks since the check. Then the blocks before it are released.
        let got = blocks.clone().take_while(|entry| entries.allocate(*entry)).count();
        let done = if got == blocks.len() { action() } else { 0 };
        blocks.take(got).for_each(|entry| {
            entries.release(entry);
        });
        done
    }

    /// Frees parts of runs that have no head: a process was killed while it joined them or took them apart.
    pub(crate) fn free_loose_spans(&self, until: Deadline) -> Result<()> {
        let _turn = self.turn_at_spans(until)?;
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

    /// Returns the sum of all epochs. It changes with every change of a span.
    pub(crate) fn span_changes(&self) -> u64 {
        self.spans().iter().fold(0, |sum: u64, word| sum.wrapping_add(word.load(Ordering::Acquire) >> 32))
    }

    /// Returns the bytes of the spans that are free now, or that a search for memory would free: no member holds a
    /// block of them, except members with a bit in `dead`.
    pub(crate) fn unused(&self, dead: u64) -> u64 {
        let table = self.entry_table();
        let (mut unused, mut covered) = (0, 0);
        for (span, word) in (0u32..).zip(self.spans()) {
            let found = Span(word.load(Ordering::Acquire));
            let Some(size) = found.size() else {
                // A part behind a head belongs to its run. Without a head, a killed process has left it.
                unused += u64::from(found.is_free() || span >= covered);
                continue;
            };
            let spans = if let Size::Run(spans) = size { spans } else { 1 };
            covered = span.saturating_add(spans);
            let first = Self::first_entry(span);
            let mut blocks = first..first + size.blocks();
            let is_free = |entry: u32| table.get(entry as usize).is_some_and(|entry| entry.is_free_without(dead));
            unused += if blocks.all(is_free) { u64::from(spans) } else { 0 };
        }
        (unused * SPAN).min(self.geometry.capacity())
    }
}

/// Frees a part of a run. The caller holds SPANS.
fn free_part(word: &AtomicU64) {
    let found = Span(word.load(Ordering::Acquire));
    if found.is_part() {
        exchange(word, found, found.become_(FREE, 0));
    }
}

#[cfg(test)]
#[path = "spans_tests.rs"]
mod tests;
