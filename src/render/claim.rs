//! Claims and chunk guards: a view of one chunk together with the kernel lock on its cell.

use std::fmt;
use std::ops::{Deref, Range};

use ndarray::{ArrayRef, ArrayView, ArrayViewMut, Axis, Dimension, RawArrayViewMut, Slice};

use super::RenderBuffer;
use super::schedule::ScheduledChunk;
use crate::array::Element;
use crate::error::{ErrorKind, Result};
use crate::segment::locks::Hold;

/// The exclusive right to paint one chunk of a [`RenderBuffer`](crate::RenderBuffer).
///
/// Until it is [committed](Self::commit) or dropped, claims on the same chunk return [`Busy`](Claim::Busy). If the
/// process dies, the kernel releases the lock, and another painter can claim and paint the chunk. A claim holds one
/// descriptor.
#[must_use = "dropping a claim releases its chunk unpainted"]
pub struct ChunkClaim<'a, T: Element, D: Dimension> {
    buffer: &'a RenderBuffer<T, D>,
    index: usize,
    region: Vec<Range<usize>>,
    view: ArrayViewMut<'a, T, D>,
    /// The write lock on the chunk's cell. Dropped after the view.
    hold: Hold,
    /// Dropped after the lock: otherwise another thread could try the chunk again while it is still locked.
    scheduled: Option<ScheduledChunk>,
}

impl<'a, T: Element, D: Dimension> ChunkClaim<'a, T, D> {
    /// Returns the claim of a chunk. `hold` is the write lock on its cell.
    #[allow(unsafe_code)]
    pub(super) fn new(buffer: &'a RenderBuffer<T, D>, index: usize, raw: RawArrayViewMut<T, D>, hold: Hold) -> Self {
        let region = buffer.grid().region(index);
        let raw = cut(raw, &region);
        // SAFETY: the elements lie in the buffer's mapping, which lives for 'a. The hold is a write lock on the chunk's
        // cell, so no other guard, claim or chunk guard, in any thread or process, gives access to the chunk while the
        // hold lives. Other chunks share no element with it. The claim owns both view and hold.
        let view = unsafe { raw.deref_into_view_mut() };
        Self { buffer, index, region, view, hold, scheduled: None }
    }

    /// Notes that the claim is that of a chunk of the schedule.
    pub(super) fn scheduled(self, scheduled: ScheduledChunk) -> Self {
        Self { scheduled: Some(scheduled), ..self }
    }

    /// Returns the chunk's number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns which elements of the buffer the chunk covers, as one range for each axis.
    pub fn region(&self) -> &[Range<usize>] {
        &self.region
    }

    /// Returns a view of the chunk. Its first element has index 0 along every axis.
    ///
    /// Initially the elements are zeros, or what an earlier painter wrote before it died or dropped its claim. In
    /// [pool memory](crate::render::RenderOptions::pool) they can be anything.
    pub fn view_mut(&mut self) -> ArrayViewMut<'_, T, D> {
        self.view.view_mut()
    }

    /// Marks the chunk as finished and releases it.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported): this process was forked from the one that has the claim. The parent may
    /// still be painting the chunk, so it stays claimed and unfinished.
    pub fn commit(self) -> Result<()> {
        let Self { buffer, index, view, hold, scheduled, .. } = self;
        drop(view);
        if !hold.is_own_process() {
            let what = "the claim belongs to the parent of this forked process (claim a chunk here)".into();
            return Err(ErrorKind::Unsupported { what }.at(buffer.location()));
        }
        // Before the lock is released. Otherwise another painter could take the lock, find the chunk unfinished, and
        // paint it again.
        buffer.pair.chunks.set_done(index);
        // Also before, so that the last chunk's end is known as soon as the ledger says it.
        if let Some(scheduled) = scheduled {
            scheduled.finish();
        }
        drop(hold);
        Ok(())
    }
}

impl<T: Element, D: Dimension> fmt::Debug for ChunkClaim<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkClaim").field("index", &self.index).field("region", &self.region).finish_non_exhaustive()
    }
}

/// Read access to a finished chunk, while other chunks are still being painted.
///
/// Dereferences to ndarray's array.
#[must_use = "the chunk is unlocked when the guard is dropped"]
pub struct ChunkGuard<'a, T: Element, D: Dimension> {
    region: Vec<Range<usize>>,
    view: ArrayView<'a, T, D>,
    /// The read lock on the chunk's cell. Dropped after the view.
    _hold: Hold,
}

impl<'a, T: Element, D: Dimension> ChunkGuard<'a, T, D> {
    /// Returns the guard of a chunk. `hold` is the read lock on its cell.
    #[allow(unsafe_code)]
    pub(super) fn new(buffer: &'a RenderBuffer<T, D>, index: usize, raw: RawArrayViewMut<T, D>, hold: Hold) -> Self {
        let region = buffer.grid().region(index);
        let raw = cut(raw, &region);
        // SAFETY: the elements lie in the buffer's mapping, which lives for 'a. The hold is a read lock on the chunk's
        // cell, so no guard or claim of any thread or process can write to the chunk while the hold lives. The guard
        // owns both view and hold.
        let view = unsafe { raw.deref_into_view() };
        Self { region, view, _hold: hold }
    }

    /// Returns which elements of the buffer the chunk covers, as one range for each axis.
    pub fn region(&self) -> &[Range<usize>] {
        &self.region
    }
}

impl<T: Element, D: Dimension> Deref for ChunkGuard<'_, T, D> {
    type Target = ArrayRef<T, D>;

    fn deref(&self) -> &Self::Target {
        &self.view
    }
}

impl<T: Element, D: Dimension> fmt::Debug for ChunkGuard<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkGuard").field("region", &self.region).finish_non_exhaustive()
    }
}

/// Restricts a pointer to the whole array to a region. No element is read.
fn cut<T: Element, D: Dimension>(mut whole: RawArrayViewMut<T, D>, region: &[Range<usize>]) -> RawArrayViewMut<T, D> {
    for (axis, range) in region.iter().enumerate() {
        whole.slice_axis_inplace(Axis(axis), Slice::from(range.clone()));
    }
    whole
}

/// Result of claiming one chunk.
#[derive(Debug)]
pub enum Claim<'a, T: Element, D: Dimension> {
    /// The chunk was claimed.
    Chunk(ChunkClaim<'a, T, D>),
    /// The chunk is claimed already, or another lock covers it.
    Busy,
    /// The chunk is finished.
    Done,
}

/// Result of claiming any chunk.
#[derive(Debug)]
pub enum NextClaim<'a, T: Element, D: Dimension> {
    /// A chunk was claimed.
    Chunk(ChunkClaim<'a, T, D>),
    /// Every unfinished chunk is claimed or locked already, or another thread is trying to claim it.
    Busy,
    /// Every chunk is finished.
    AllDone,
}

/// Progress of a renderbuffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RenderProgress {
    /// Number of finished chunks.
    pub done: usize,
    /// Number of all chunks.
    pub total: usize,
}

impl RenderProgress {
    /// Returns whether every chunk is finished.
    pub fn is_complete(self) -> bool {
        self.done == self.total
    }
}
