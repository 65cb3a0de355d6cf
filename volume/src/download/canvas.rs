//! What the workers of a download paint: a renderbuffer, which other processes may paint too, or elements that only
//! this process can reach.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ndarray::{ArrayViewMut, Axis, IxDyn};
use ndarray_shm::render::{ChunkClaim, RenderProgress};
use ndarray_shm::{Element, NextClaim, RenderBuffer};

use crate::bbox::{Bbox, to_usize};
use crate::error::Result;
use crate::progress::StopFlag;
use crate::volume::VolumeMeta;

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
    /// Returns which region of the volume it shows. `bbox` is the region of the whole canvas.
    fn region(&self, bbox: &Bbox) -> Vec<Range<i64>>;

    fn view_mut(&mut self) -> ArrayViewMut<'_, T, IxDyn>;

    /// Whether a chunk may be decoded straight into this memory: no other process sees it. In a renderbuffer, only
    /// whole decoded chunks are copied into the memory that processes share.
    const IS_PRIVATE: bool;

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
    const IS_PRIVATE: bool = false;

    fn region(&self, bbox: &Bbox) -> Vec<Range<i64>> {
        in_volume(self.region(), bbox)
    }

    fn view_mut(&mut self) -> ArrayViewMut<'_, T, IxDyn> {
        self.view_mut()
    }

    fn commit(self) -> Result<()> {
        Ok(self.commit()?)
    }
}

/// Moves a region of a renderbuffer to the volume's coordinates.
pub(crate) fn in_volume(region: &[Range<usize>], bbox: &Bbox) -> Vec<Range<i64>> {
    let moved = |(range, origin): (&Range<usize>, &Range<i64>)| {
        origin.start.saturating_add_unsigned(range.start as u64)..origin.start.saturating_add_unsigned(range.end as u64)
    };
    region.iter().zip(bbox.ranges()).map(moved).collect()
}

/// A region of the volume, in one chunk, and the memory of its elements.
type Piece<'m, T> = (Vec<Range<i64>>, ArrayViewMut<'m, T, IxDyn>);

/// Elements that only this process can reach, cut into chunks.
pub(crate) struct OwnCanvas<'m, T> {
    /// The chunks that no worker has taken.
    left: Mutex<std::vec::IntoIter<Piece<'m, T>>>,
    done: AtomicUsize,
    total: usize,
}

impl<'m, T: Element> OwnCanvas<'m, T> {
    /// Cuts regions of a volume, each with memory of its shape, into the chunks of the volume.
    pub(crate) fn new<'b>(
        meta: &VolumeMeta,
        regions: impl IntoIterator<Item = (&'b Bbox, ArrayViewMut<'m, T, IxDyn>)>,
    ) -> Self {
        let mut chunks = Vec::new();
        for (bbox, elements) in regions {
            let cells = meta.chunks(bbox);
            chunks.reserve(to_usize(cells.total()));
            cut(elements, bbox, meta, &mut Vec::with_capacity(bbox.ranges().len()), &mut chunks);
        }
        Self { total: chunks.len(), left: Mutex::new(chunks.into_iter()), done: AtomicUsize::new(0) }
    }
}

/// Cuts along the axis after those in `region`; the chunks of the last axis come first.
fn cut<'m, T>(
    elements: ArrayViewMut<'m, T, IxDyn>,
    bbox: &Bbox,
    meta: &VolumeMeta,
    region: &mut Vec<Range<i64>>,
    chunks: &mut Vec<Piece<'m, T>>,
) {
    let axis = region.len();
    if axis == elements.ndim() {
        chunks.push((region.clone(), elements));
        return;
    }
    let (mut rest, mut start) = (elements, bbox.ranges()[axis].start);
    let whole = to_usize(meta.chunk_shape[axis]);
    let mut length = whole - to_usize(start.abs_diff(meta.origin[axis]) % meta.chunk_shape[axis]);
    while rest.len_of(Axis(axis)) > 0 {
        length = length.min(rest.len_of(Axis(axis)));
        let (chunk, behind) = rest.split_at(Axis(axis), length);
        let end = start.saturating_add_unsigned(length as u64);
        region.push(start..end);
        cut(chunk, bbox, meta, region, chunks);
        region.pop();
        start = end;
        (rest, length) = (behind, whole);
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
    region: Vec<Range<i64>>,
    elements: ArrayViewMut<'m, T, IxDyn>,
    done: &'a AtomicUsize,
}

impl<T: Element> CanvasChunk<T> for OwnChunk<'_, '_, T> {
    const IS_PRIVATE: bool = true;

    fn region(&self, _: &Bbox) -> Vec<Range<i64>> {
        self.region.clone()
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
    use ndarray_shm::DType;

    use super::*;

    fn meta(origin: &[i64], shape: &[u64], chunk: &[u64]) -> VolumeMeta {
        VolumeMeta { origin: origin.to_vec(), ..VolumeMeta::new(shape, chunk, DType::U32) }
    }

    #[test]
    fn own_elements_are_cut_as_the_volume_is() {
        for (meta, region) in [
            (meta(&[0, 0, 0], &[9, 5, 6], &[3, 5, 2]), "1:9,0:5,1:6"),
            (meta(&[-7, 100, 5], &[9, 5, 6], &[4, 2, 6]), "-5:1,101:105,5:11"),
            (meta(&[0, 0, 0], &[4, 1, 1], &[2, 1, 1]), "0:4,0:1,0:1"),
        ] {
            let bbox = meta.parse_bbox(region).expect("a region");
            let mut elements = ArrayD::<u32>::zeros(IxDyn(&bbox.shape()).f());
            let never = StopFlag::new();
            let canvas = OwnCanvas::new(&meta, [(&bbox, elements.view_mut())]);
            let total = canvas.progress().total;
            let mut cells = meta.chunks(&bbox);
            assert_eq!(total as u64, cells.total());
            for done in 1..=total {
                let NextChunk::Chunk(mut chunk) = canvas.next([&never, &never]).expect("a chunk") else {
                    panic!("{done} of {total}")
                };
                assert_eq!(Some(chunk.region(&bbox)), cells.next());
                chunk.view_mut().fill(u32::try_from(done).expect("few chunks"));
                chunk.commit().expect("a commit");
                assert_eq!(canvas.progress(), RenderProgress { done, total });
            }
            assert!(matches!(canvas.next([&never, &never]), Ok(NextChunk::End(PaintEnd::Complete))));
            drop(canvas);
            for (number, cell) in meta.chunks(&bbox).enumerate() {
                let of_chunk = elements.slice_each_axis(|axis| {
                    let (axis, cell) = (axis.axis.index(), &cell);
                    let start = bbox.ranges()[axis].start;
                    let from = |at: i64| isize::try_from(at - start).expect("small");
                    (from(cell[axis].start)..from(cell[axis].end)).into()
                });
                assert!(of_chunk.iter().all(|element| *element as usize == number + 1), "chunk {number}");
            }
        }
    }

    #[test]
    fn elements_without_axes_are_one_chunk() {
        let mut elements = ArrayD::<u32>::zeros(IxDyn(&[]));
        let canvas = OwnCanvas::new(&meta(&[], &[], &[]), [(&Bbox::whole(&[]), elements.view_mut())]);
        assert_eq!(canvas.progress().total, 1);
    }
}
