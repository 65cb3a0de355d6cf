//! The chunk grid: which elements belong to which chunk. Arithmetic only; no shared memory.

use std::ops::Range;

use ndarray::Dimension;

use crate::error::{Error, ErrorKind, Result};

/// A regular grid of chunks over an array.
///
/// Chunks are numbered in C order of the grid: the last axis runs fastest, whatever the order in memory. Chunks at the
/// edges are clipped to the array, so every element belongs to exactly one chunk.
///
/// Along each axis, the first chunk may begin before the array, by the *offset*. So a region of a larger chunked volume
/// can keep the chunk boundaries of the volume.
///
/// # Examples
///
/// ```
/// use ndarray_shm::ndarray::Ix2;
/// use ndarray_shm::render::ChunkGrid;
///
/// let grid = ChunkGrid::new(Ix2(6, 8), Ix2(4, 4), Ix2(2, 0))?;
/// assert_eq!(grid.len(), 4);
/// assert_eq!(grid.region(0), [0..2, 0..4]); // the first chunk of the first axis begins before the array
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkGrid<D> {
    shape: D,
    chunk: D,
    offset: D,
    counts: D,
    len: usize,
}

impl<D: Dimension> ChunkGrid<D> {
    /// Divides `shape` into chunks of shape `chunk`. The first chunk along each axis lacks `offset` elements. All are
    /// in elements per axis.
    ///
    /// # Errors
    ///
    /// - [`InvalidSetting`](ErrorKind::InvalidSetting): a chunk has no extent, an offset is not less than its chunk, or
    ///   the numbers of axes differ.
    /// - [`TooLarge`](ErrorKind::TooLarge): there are more chunks than the address space has bytes.
    pub fn new(shape: D, chunk: D, offset: D) -> Result<Self> {
        let invalid =
            |setting, value: &D, expected| Err(Error::setting(setting, format!("{:?}", value.slice()), expected));
        if chunk.ndim() != shape.ndim() {
            return invalid("the chunk shape", &chunk, "as many axes as the array has");
        }
        if offset.ndim() != shape.ndim() {
            return invalid("the chunk offset", &offset, "as many axes as the array has");
        }
        if chunk.slice().contains(&0) {
            return invalid("the chunk shape", &chunk, "at least 1 along every axis");
        }
        if offset.slice().iter().zip(chunk.slice()).any(|(offset, chunk)| offset >= chunk) {
            return invalid("the chunk offset", &offset, "less than the chunk shape along every axis");
        }
        let too_large = || ErrorKind::TooLarge { shape: shape.slice().to_vec(), item: 1 }.at("chunks");
        let mut counts = shape.clone();
        let mut len = 1usize;
        for axis in 0..shape.ndim() {
            let span = shape[axis].checked_add(offset[axis]).ok_or_else(too_large)?;
            counts[axis] = if shape[axis] == 0 { 0 } else { span.div_ceil(chunk[axis]) };
            len = len.checked_mul(counts[axis]).ok_or_else(too_large)?;
        }
        Ok(Self { shape, chunk, offset, counts, len })
    }

    /// Returns the number of chunks.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no chunks, because the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the lengths of the array's axes.
    pub fn shape(&self) -> &[usize] {
        self.shape.slice()
    }

    /// Returns the lengths of the axes of a chunk that is not clipped.
    pub fn chunk_shape(&self) -> &[usize] {
        self.chunk.slice()
    }

    /// Returns how many elements the first chunk lacks along each axis.
    pub fn chunk_offset(&self) -> &[usize] {
        self.offset.slice()
    }

    /// Returns the number of chunks along each axis.
    pub fn counts(&self) -> &[usize] {
        self.counts.slice()
    }

    /// Returns which elements chunk `index` covers, as one range for each axis.
    ///
    /// # Panics
    ///
    /// If `index` is not less than the number of chunks.
    pub fn region(&self, index: usize) -> Vec<Range<usize>> {
        assert!(index < self.len, "chunk {index} of {}", self.len);
        let mut left = index;
        let mut region = vec![0..0; self.shape.ndim()];
        for axis in (0..self.shape.ndim()).rev() {
            let position = left % self.counts[axis];
            left /= self.counts[axis];
            let start = (position * self.chunk[axis]).saturating_sub(self.offset[axis]);
            let end = ((position + 1).saturating_mul(self.chunk[axis]) - self.offset[axis]).min(self.shape[axis]);
            region[axis] = start..end;
        }
        region
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{Array, Dim, IntoDimension, IxDyn};

    use super::*;

    fn grid<D: Dimension>(shape: D, chunk: D, offset: D) -> ChunkGrid<D> {
        ChunkGrid::new(shape, chunk, offset).expect("a grid")
    }

    #[test]
    fn every_element_belongs_to_exactly_one_chunk() {
        for (shape, chunk, offset) in [
            ([7, 5, 3], [2, 5, 2], [0, 0, 0]),
            ([7, 5, 3], [4, 4, 4], [3, 1, 2]),
            ([1, 1, 1], [9, 9, 9], [8, 0, 4]),
            ([6, 4, 2], [3, 2, 1], [0, 0, 0]),
            ([5, 0, 3], [2, 2, 2], [1, 1, 1]),
        ] {
            let grid = grid(Dim(shape), Dim(chunk), Dim(offset));
            let mut hits = Array::<u8, _>::zeros(shape);
            for index in 0..grid.len() {
                let region = grid.region(index);
                assert!(region.iter().all(|range| !range.is_empty()), "{region:?}");
                for (place, hit) in hits.indexed_iter_mut() {
                    let place = place.into_dimension();
                    if place.slice().iter().zip(&region).all(|(at, range)| range.contains(at)) {
                        *hit += 1;
                    }
                }
            }
            assert!(hits.iter().all(|hit| *hit == 1), "{shape:?} {chunk:?} {offset:?}");
        }
    }

    #[test]
    fn array_without_axes_is_one_chunk() {
        let grid = grid(Dim(()), Dim(()), Dim(()));
        assert_eq!(grid.len(), 1);
        assert!(grid.region(0).is_empty());
    }

    #[test]
    fn impossible_chunks_and_offsets_are_refused() {
        assert!(ChunkGrid::new(Dim([4, 4]), Dim([2, 0]), Dim([0, 0])).is_err());
        assert!(ChunkGrid::new(Dim([4, 4]), Dim([2, 2]), Dim([2, 0])).is_err());
        assert!(ChunkGrid::new(IxDyn(&[4, 4]), IxDyn(&[2]), IxDyn(&[0])).is_err());
        assert!(ChunkGrid::new(Dim([usize::MAX]), Dim([2]), Dim([1])).is_err());
    }
}
