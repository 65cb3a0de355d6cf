//! Claims and finished chunks: views of one chunk, with the kernel's lock on its cell.

use std::fmt;
use std::ops::{Deref, Range};

use ndarray::{ArrayRef, ArrayView, ArrayViewMut, Axis, Dimension, RawArrayViewMut, Slice};

use super::RenderBuffer;
use crate::array::Element;
use crate::error::Result;
use crate::segment::locks::Hold;

/// A chunk of a [`RenderBuffer`](crate::RenderBuffer) that only its holder may paint.
///
/// Other painters find it busy until it is [committed](Self::commit) or dropped. If the holder dies, the kernel frees the chunk,
/// and another worker paints it again. Costs one descriptor while it lives.
#[must_use = "a claim that is dropped leaves its chunk to be painted again"]
pub struct ChunkClaim<'a, T: Element, D: Dimension> {
    buffer: &'a RenderBuffer<T, D>,
    index: usize,
    region: Vec<Range<usize>>,
    view: ArrayViewMut<'a, T, D>,
    hold: Hold,
}

impl<'a, T: Element, D: Dimension> ChunkClaim<'a, T, D> {
    /// Makes the view of a chunk; `hold` write-locks its cell.
    #[allow(unsafe_code)]
    pub(super) fn new(buffer: &'a RenderBuffer<T, D>, index: usize, raw: RawArrayViewMut<T, D>, hold: Hold) -> Self {
        let region = buffer.grid().region(index);
        let raw = cut(raw, &region);
        // SAFETY: the elements lie in the buffer's mapping, which lives for 'a. The hold has the chunk's cell
        // write-locked: no guard, claim or chunk reader of any process or thread looks at the chunk while it lives, and
        // other chunks have no element in common with it. The claim keeps view and hold together.
        let view = unsafe { raw.deref_into_view_mut() };
        Self { buffer, index, region, view, hold }
    }

    /// Returns the chunk's number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns which elements of the buffer the chunk covers, axis by axis.
    pub fn region(&self) -> &[Range<usize>] {
        &self.region
    }

    /// Returns a view for writing. The first element of the chunk has index 0 along every axis.
    ///
    /// It holds zeros, or what an earlier painter left before it died or gave up.
    pub fn view_mut(&mut self) -> ArrayViewMut<'_, T, D> {
        self.view.view_mut()
    }

    /// Marks the chunk as finished and lets go of it.
    ///
    /// # Errors
    ///
    /// None at present.
    pub fn commit(self) -> Result<()> {
        let Self { buffer, index, view, hold, .. } = self;
        drop(view);
        buffer.pair.ledger.set_done(index);
        drop(hold);
        Ok(())
    }
}

impl<T: Element, D: Dimension> fmt::Debug for ChunkClaim<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkClaim").field("index", &self.index).field("region", &self.region).finish_non_exhaustive()
    }
}

/// A finished chunk, to be read while others are still being painted.
///
/// Dereferences to ndarray's array.
#[must_use = "the chunk is unlocked when the guard is dropped"]
pub struct ChunkGuard<'a, T: Element, D: Dimension> {
    region: Vec<Range<usize>>,
    view: ArrayView<'a, T, D>,
    _hold: Hold,
}

impl<'a, T: Element, D: Dimension> ChunkGuard<'a, T, D> {
    /// Makes the view of a chunk; `hold` read-locks its cell.
    #[allow(unsafe_code)]
    pub(super) fn new(buffer: &'a RenderBuffer<T, D>, index: usize, raw: RawArrayViewMut<T, D>, hold: Hold) -> Self {
        let region = buffer.grid().region(index);
        let raw = cut(raw, &region);
        // SAFETY: the elements lie in the buffer's mapping, which lives for 'a. The hold has the chunk's cell
        // read-locked: no process writes to the chunk while it lives. The guard keeps view and hold together.
        let view = unsafe { raw.deref_into_view() };
        Self { region, view, _hold: hold }
    }

    /// Returns which elements of the buffer the chunk covers, axis by axis.
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

/// Cuts a region out of the whole array, without looking at an element.
fn cut<T: Element, D: Dimension>(mut whole: RawArrayViewMut<T, D>, region: &[Range<usize>]) -> RawArrayViewMut<T, D> {
    for (axis, range) in region.iter().enumerate() {
        whole.slice_axis_inplace(Axis(axis), Slice::from(range.clone()));
    }
    whole
}

/// The answer to a claim on one chunk.
#[derive(Debug)]
pub enum Claim<'a, T: Element, D: Dimension> {
    /// It is yours to paint.
    Chunk(ChunkClaim<'a, T, D>),
    /// Another worker paints it, or the array is locked as a whole.
    Busy,
    /// It is finished.
    Done,
}

/// The answer to a claim on any chunk.
#[derive(Debug)]
pub enum NextClaim<'a, T: Element, D: Dimension> {
    /// One to paint.
    Chunk(ChunkClaim<'a, T, D>),
    /// All that are not finished are being painted by others.
    Busy,
    /// All are finished.
    AllDone,
}

/// How far a renderbuffer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RenderProgress {
    /// Chunks that are finished.
    pub done: usize,
    /// Chunks there are.
    pub total: usize,
}

impl RenderProgress {
    /// Whether every chunk is finished.
    pub fn is_complete(self) -> bool {
        self.done == self.total
    }
}
