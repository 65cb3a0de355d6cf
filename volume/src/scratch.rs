//! The buffer between decoding a chunk and copying it to its place.

use std::fmt;
use std::ops::Range;

use ndarray::{ArrayViewD, Axis, IxDyn, ShapeBuilder as _, Slice};
use ndarray_shm::{Element, Order};

use crate::bbox::{length, ranges_text};
use crate::error::{Cause, Error, Result};

/// A buffer for a decoded chunk, from which the chunk is copied to its place. Each worker has one and reuses it.
///
/// A source calls [`missing`](Self::missing), [`fill`](Self::fill) or [`block`](Self::block). The painter then gets the
/// [`elements`](Self::elements).
#[derive(Default)]
pub struct Scratch {
    content: Content,
    /// Memory aligned for every element type, for blocks that are not aligned.
    aligned: Vec<u64>,
}

#[derive(Default)]
enum Content {
    #[default]
    Nothing,
    Missing,
    Fill(Vec<u8>),
    Block {
        bytes: Vec<u8>,
        shape: Vec<usize>,
        order: Order,
        window: Vec<Range<usize>>,
    },
}

/// The decoded elements of a region.
#[derive(Debug)]
pub enum Elements<'a, T> {
    /// The region was never stored.
    Missing,
    /// All elements have the same value.
    Fill(T),
    /// One value for each element. The view has the shape of the region.
    Block(ArrayViewD<'a, T>),
}

/// The elements of a region in a larger block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockWindow<'a> {
    /// The elements of the block, native endian.
    pub(crate) bytes: &'a [u8],
    pub(crate) shape: &'a [usize],
    pub(crate) order: Order,
    /// Where the region is in the block.
    pub(crate) window: &'a [Range<usize>],
}

/// What a source has decoded, without its type.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Decoded<'a> {
    Block(BlockWindow<'a>),
    /// Every element has these bytes.
    Fill(&'a [u8]),
}

impl Scratch {
    /// Creates an empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Marks the region as never stored.
    pub fn missing(&mut self) {
        self.content = Content::Missing;
    }

    /// Sets every element of the region to this one, given as native bytes.
    pub fn fill(&mut self, element: &[u8]) {
        self.content = Content::Fill(element.to_vec());
    }

    /// Whether the region was never stored, and has not been filled since.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self.content, Content::Missing)
    }

    /// Fills the region with this element, given as native bytes, if it was never stored.
    pub fn fill_if_missing(&mut self, element: &[u8]) {
        if self.is_missing() {
            self.fill(element);
        }
    }

    /// Stores a decoded block in native bytes, with its shape and order, and the window of it that is the region.
    ///
    /// A block may be larger than the region, so that a source can pass a whole decoded chunk without copying the
    /// window first.
    pub fn block(&mut self, bytes: Vec<u8>, shape: Vec<usize>, order: Order, window: Vec<Range<usize>>) {
        crate::spare::give(self.take_block());
        self.content = Content::Block { bytes, shape, order, window };
    }

    /// Returns what was decoded; `None` if the region was never stored.
    pub(crate) fn decoded(&self) -> Option<Decoded<'_>> {
        match &self.content {
            Content::Nothing | Content::Missing => None,
            Content::Fill(element) => Some(Decoded::Fill(element)),
            Content::Block { bytes, shape, order, window } => {
                Some(Decoded::Block(BlockWindow { bytes, shape, order: *order, window }))
            }
        }
    }

    /// Takes the memory of the last block, to decode the next one into. Its length and content are arbitrary.
    pub fn take_memory(&mut self) -> Vec<u8> {
        let memory = self.take_block();
        if memory.capacity() == 0 { crate::spare::take(1) } else { memory }
    }

    fn take_block(&mut self) -> Vec<u8> {
        match std::mem::take(&mut self.content) {
            Content::Block { bytes, .. } => bytes,
            Content::Nothing | Content::Missing | Content::Fill(_) => Vec::new(),
        }
    }

    /// Returns the decoded elements of `region`, which is in the volume's coordinates.
    ///
    /// # Errors
    ///
    /// [`Chunk`](Error::Chunk) if the number of bytes from the source does not fit its shape and the element type, if
    /// the window is not in the block, or if the window's shape differs from the region's.
    pub fn elements<T: Element>(&mut self, region: &[Range<i64>]) -> Result<Elements<'_, T>> {
        let broken = |what: String| {
            let cause: Cause = format!("the source broke its promise: {what}").into();
            let region = ranges_text(region);
            Error::Chunk { chunk: region.clone(), region, cause }
        };
        match &self.content {
            Content::Nothing => Err(broken("it decoded nothing".to_owned())),
            Content::Missing => Ok(Elements::Missing),
            Content::Fill(element) => match bytemuck::try_pod_read_unaligned(element) {
                Ok(value) => Ok(Elements::Fill(value)),
                Err(_) => Err(broken(format!("a fill value of {} bytes for {}", element.len(), T::DTYPE))),
            },
            Content::Block { bytes, shape, order, window } => {
                let elements = match bytemuck::try_cast_slice(bytes) {
                    Ok(elements) => Some(elements),
                    Err(_) => realigned::<T>(bytes, &mut self.aligned),
                };
                let block = elements
                    .and_then(|elements| ArrayViewD::from_shape(IxDyn(shape).set_f(*order == Order::F), elements).ok())
                    .ok_or_else(|| broken(format!("{} bytes for the shape {shape:?} of {}", bytes.len(), T::DTYPE)))?;
                let cut = cut(block, window)
                    .ok_or_else(|| broken(format!("the window {window:?} of a block of shape {shape:?}")))?;
                let lengths = region.iter().map(length);
                if !lengths.eq(cut.shape().iter().copied()) {
                    return Err(broken(format!("a block of shape {:?}", cut.shape())));
                }
                Ok(Elements::Block(cut))
            }
        }
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.content {
            Content::Nothing => f.write_str("Scratch(nothing)"),
            Content::Missing => f.write_str("Scratch(missing)"),
            Content::Fill(element) => write!(f, "Scratch(fill {element:?})"),
            Content::Block { shape, order, window, .. } => {
                write!(f, "Scratch(block {shape:?} in {order} order, window {window:?})")
            }
        }
    }
}

/// Copies bytes to memory aligned for `T`. Allocators align large blocks for every type, but a vector of bytes does not
/// promise it.
fn realigned<'a, T: Element>(bytes: &[u8], aligned: &'a mut Vec<u64>) -> Option<&'a [T]> {
    aligned.resize(bytes.len().div_ceil(size_of::<u64>()), 0);
    let copy = bytemuck::cast_slice_mut::<u64, u8>(aligned).get_mut(..bytes.len())?;
    copy.copy_from_slice(bytes);
    bytemuck::try_cast_slice(copy).ok()
}

/// Returns a region that is in a block, if its bytes are aligned elements of the block's shape.
pub(crate) fn window_of<'a, T: Element>(block: &BlockWindow<'a>) -> Option<ArrayViewD<'a, T>> {
    let elements = bytemuck::try_cast_slice(block.bytes).ok()?;
    let shape = IxDyn(block.shape).set_f(block.order == Order::F);
    cut(ArrayViewD::from_shape(shape, elements).ok()?, block.window)
}

fn cut<'a, T>(mut block: ArrayViewD<'a, T>, window: &[Range<usize>]) -> Option<ArrayViewD<'a, T>> {
    let fits = window.len() == block.ndim()
        && window.iter().zip(block.shape()).all(|(range, length)| range.start <= range.end && range.end <= *length);
    if !fits {
        return None;
    }
    for (axis, range) in window.iter().enumerate() {
        block.slice_axis_inplace(Axis(axis), Slice::from(range.clone()));
    }
    Some(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_of_a_block_is_read_at_any_alignment() {
        let values: Vec<u16> = (0..12).collect();
        // One byte in front makes at least one of the two blocks misaligned.
        for skip in [0, 1] {
            let mut bytes = vec![0; skip];
            bytes.extend_from_slice(bytemuck::cast_slice(&values));
            let mut scratch = Scratch::new();
            scratch.block(bytes.split_off(skip), vec![3, 4], Order::C, vec![1..3, 0..2]);
            let Elements::Block(view) = scratch.elements::<u16>(&[4..6, 8..10]).expect("it fits") else {
                panic!("a block")
            };
            assert_eq!(view, ndarray::arr2(&[[4u16, 5], [8, 9]]).into_dyn());
        }
        let mut aligned = Vec::new();
        let odd = &bytemuck::cast_slice::<u16, u8>(&values)[1..9];
        assert_eq!(realigned::<u16>(odd, &mut aligned).expect("whole elements"), [256, 512, 768, 1024]);
        assert!(realigned::<u64>(&odd[..7], &mut aligned).is_none());
    }

    #[test]
    fn inconsistent_blocks_are_errors() {
        let mut scratch = Scratch::new();
        assert!(scratch.elements::<u8>(&[0..2, 0..3]).is_err());
        scratch.fill(&[1, 2, 3]);
        assert!(scratch.elements::<u16>(&[0..2, 0..3]).is_err());
        scratch.block(vec![0; 5], vec![2, 3], Order::C, vec![0..2, 0..3]);
        assert!(scratch.elements::<u8>(&[0..2, 0..3]).is_err());
        scratch.block(vec![0; 6], vec![2, 3], Order::C, vec![0..2, 0..4]);
        assert!(scratch.elements::<u8>(&[0..2, 0..3]).is_err());
        scratch.block(vec![0; 6], vec![2, 3], Order::C, vec![]);
        assert!(scratch.elements::<u8>(&[0..2, 0..3]).is_err());
        scratch.block(vec![0; 6], vec![3, 2], Order::C, vec![0..3, 0..2]);
        assert!(scratch.elements::<u8>(&[0..2, 0..3]).is_err());
        assert_eq!(scratch.take_memory().len(), 6);
    }
}
