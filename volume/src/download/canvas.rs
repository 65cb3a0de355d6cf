//! What the workers of a download paint: a renderbuffer, which other processes may paint too, or elements that only
//! this process can reach.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ndarray::{ArrayViewMut, Axis, IxDyn};
use ndarray_shm::render::{ChunkClaim, ChunkGrid, RenderProgress};
use ndarray_shm::{Element, NextClaim, RenderBuffer};

use crate::error::Result;
use crate::progress::StopFlag;

/// Longest time until a worker that waits for a chunk notices a raised flag.
const LOOK: Duration = Duration::from_millis(20);

/// Elements in chunks, which the workers of this process paint at once.
pub(crate) trait Canvas<T: Element>: Sync {
    /// The exclusive right to paint one chunk.
    type Chunk<'a>: CanvasChunk<T>
    where
        Self: 'a;

    /// Takes the next chunk, unless a flag is raised. While all unfinished chunks of a renderbuffer are claimed, waits
    /// until one is released or all are finished.
    fn next(&self, flags: [&StopFlag; 2]) -> Result<NextChunk<Self::Chunk<'_>>>;

    fn progress(&self) -> RenderProgress;
}

/// What a worker does next.
#[allow(clippy::large_enum_variant)] // a claim is large, and moved once
pub(crate) enum NextChunk<Chunk> {
    /// Paints a chunk.
    Chunk(Chunk),
    /// Ends.
    End(PaintEnd),
}

/// Why a worker ended without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PaintEnd {
    /// Every chunk is finished. In an [`OwnCanvas`], other workers may still be painting the last ones.
    Complete,
    /// A flag was raised.
    Stopped,
}

/// A chunk that one worker paints.
pub(crate) trait CanvasChunk<T: Element>: Send {
    /// Returns which elements of the canvas it covers.
    fn region(&self) -> &[Range<usize>];

    fn view_mut(&mut self) -> ArrayViewMut<'_, T, IxDyn>;

    /// Marks it as painted.
    fn commit(self) -> Result<()>;
}

impl<T: Element> Canvas<T> for RenderBuffer<T, IxDyn> {
    type Chunk<'a>
        = ChunkClaim<'a, T, IxDyn>
    where
        Self: 'a;

    fn next(&self, flags: [&StopFlag; 2]) -> Result<NextChunk<Self::Chunk<'_>>> {
        let is_stopped = || flags.iter().any(|flag| flag.is_stopped());
        while !is_stopped() {
            match self.claim_next_wait(LOOK)? {
                // A worker that failed raises its flag and then releases its chunk, for which this one may have waited.
                NextClaim::Chunk(_) if is_stopped() => break,
                NextClaim::Chunk(chunk) => return Ok(NextChunk::Chunk(chunk)),
                NextClaim::AllDone => return Ok(NextChunk::End(PaintEnd::Complete)),
                NextClaim::Busy => {}
            }
        }
        Ok(NextChunk::End(PaintEnd::Stopped))
    }

    fn progress(&self) -> RenderProgress {
        self.progress()
    }
}

impl<T: Element> CanvasChunk<T> for ChunkClaim<'_, T, IxDyn> {
    fn region(&self) -> &[Range<usize>] {
        self.region()
    }

    fn view_mut(&mut self) -> ArrayViewMut<'_, T, IxDyn> {
        self.view_mut()
    }

    fn commit(self) -> Result<()> {
        Ok(self.commit()?)
    }
}

/// A chunk of memory, and which elements of the whole it covers.
type Piece<'m, T> = (Vec<Range<usize>>, ArrayViewMut<'m, T, IxDyn>);

/// Elements that only this process can reach, cut into chunks.
pub(crate) struct OwnCanvas<'m, T> {
    /// The chunks that no worker has taken.
    left: Mutex<std::vec::IntoIter<Piece<'m, T>>>,
    done: AtomicUsize,
    total: usize,
}

impl<'m, T: Element> OwnCanvas<'m, T> {
    /// Cuts elements of the grid's shape.
    pub(crate) fn new(elements: ArrayViewMut<'m, T, IxDyn>, grid: &ChunkGrid<IxDyn>) -> Self {
        let mut chunks = Vec::with_capacity(grid.len());
        cut(elements, grid, &mut Vec::new(), &mut chunks);
        Self { total: chunks.len(), left: Mutex::new(chunks.into_iter()), done: AtomicUsize::new(0) }
    }
}

/// Cuts along the axis after those in `region`, in the grid's order of chunks.
fn cut<'m, T>(
    elements: ArrayViewMut<'m, T, IxDyn>,
    grid: &ChunkGrid<IxDyn>,
    region: &mut Vec<Range<usize>>,
    chunks: &mut Vec<Piece<'m, T>>,
) {
    let axis = region.len();
    if axis == elements.ndim() {
        chunks.push((region.clone(), elements));
        return;
    }
    let (mut rest, mut start) = (elements, 0);
    let mut length = grid.chunk_shape()[axis] - grid.chunk_offset()[axis];
    while rest.len_of(Axis(axis)) > 0 {
        length = length.min(rest.len_of(Axis(axis)));
        let (chunk, behind) = rest.split_at(Axis(axis), length);
        region.push(start..start + length);
        cut(chunk, grid, region, chunks);
        region.pop();
        start += length;
        (rest, length) = (behind, grid.chunk_shape()[axis]);
    }
}

impl<'m, T: Element> Canvas<T> for OwnCanvas<'m, T> {
    type Chunk<'a>
        = OwnChunk<'a, 'm, T>
    where
        Self: 'a;

    fn next(&self, flags: [&StopFlag; 2]) -> Result<NextChunk<Self::Chunk<'_>>> {
        if flags.iter().any(|flag| flag.is_stopped()) {
            return Ok(NextChunk::End(PaintEnd::Stopped));
        }
        // No thread panics while it holds this lock.
        let next = self.left.lock().unwrap_or_else(PoisonError::into_inner).next();
        Ok(next.map_or(NextChunk::End(PaintEnd::Complete), |(region, elements)| {
            NextChunk::Chunk(OwnChunk { region, elements, done: &self.done })
        }))
    }

    fn progress(&self) -> RenderProgress {
        // Acquire: who sees all chunks painted also sees what was painted.
        RenderProgress { done: self.done.load(Ordering::Acquire), total: self.total }
    }
}

/// A chunk of an [`OwnCanvas`].
pub(crate) struct OwnChunk<'a, 'm, T> {
    region: Vec<Range<usize>>,
    elements: ArrayViewMut<'m, T, IxDyn>,
    done: &'a AtomicUsize,
}

impl<T: Element> CanvasChunk<T> for OwnChunk<'_, '_, T> {
    fn region(&self) -> &[Range<usize>] {
        &self.region
    }

    fn view_mut(&mut self) -> ArrayViewMut<'_, T, IxDyn> {
        self.elements.view_mut()
    }

    fn commit(self) -> Result<()> {
        self.done.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{ArrayD, ShapeBuilder as _};

    use super::*;

    #[test]
    fn own_elements_are_cut_as_the_grid_cuts_them() {
        for (shape, chunk, offset) in [
            (vec![7, 5, 4], [3, 5, 2], [2, 0, 1]),
            (vec![4, 1, 1], [2, 1, 1], [0, 0, 0]),
            (vec![3, 0, 2], [2, 2, 2], [0; 3]),
        ] {
            let grid = ChunkGrid::new(IxDyn(&shape), IxDyn(&chunk), IxDyn(&offset)).expect("a grid");
            let mut elements = ArrayD::<u32>::zeros(IxDyn(&shape).f());
            let (canvas, never) = (OwnCanvas::new(elements.view_mut(), &grid), StopFlag::new());
            let mut index = 0;
            while let NextChunk::Chunk(mut chunk) = canvas.next([&never, &never]).expect("a chunk or the end") {
                assert_eq!(chunk.region(), grid.region(index));
                chunk.view_mut().fill(u32::try_from(index + 1).expect("few chunks"));
                chunk.commit().expect("a commit");
                index += 1;
                assert_eq!(canvas.progress(), RenderProgress { done: index, total: grid.len() });
            }
            assert_eq!(index, grid.len());
            drop(canvas);
            for index in 0..grid.len() {
                let of_chunk = elements.slice_each_axis(|axis| grid.region(index)[axis.axis.index()].clone().into());
                assert!(of_chunk.iter().all(|element| *element as usize == index + 1), "chunk {index}");
            }
        }
    }

    #[test]
    fn elements_without_axes_are_one_chunk() {
        let grid = ChunkGrid::new(IxDyn(&[]), IxDyn(&[]), IxDyn(&[])).expect("a grid");
        let mut elements = ArrayD::<u8>::zeros(IxDyn(&[]));
        assert_eq!(OwnCanvas::new(elements.view_mut(), &grid).progress().total, grid.len());
    }
}
