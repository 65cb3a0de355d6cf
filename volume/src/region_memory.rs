//! The memory into which a region is read, of any element type and any strides.

use std::fmt;

use ndarray::{ArrayViewMut, IxDyn};
use ndarray_shm::{Element, Order};

use crate::copy::Copier;
use crate::scratch::{self, BlockWindow, Decoded, Scratch};

/// Memory of exactly the elements of a region.
///
/// [`ChunkSource::decode_into`](crate::ChunkSource::decode_into) writes the elements to it. After an error its content
/// is arbitrary.
pub struct RegionMemory<'a> {
    place: &'a mut dyn RegionPlace,
    is_c: bool,
    is_f: bool,
}

/// The elements of a region, of any type.
trait RegionPlace {
    /// Returns the bytes of all elements, in their order in memory. There are no gaps.
    fn bytes(&mut self) -> Option<&mut [u8]>;

    /// Copies elements from a block. Returns `false` if they do not fit, or if this place has no shape.
    fn copy(&mut self, block: &BlockWindow<'_>) -> bool;

    /// Gives all elements the same value, by its bytes. Returns `false` if that is no element.
    fn fill(&mut self, element: &[u8]) -> bool;
}

/// A view, and what copies to it.
pub(crate) struct ViewPlace<'p, 'v, T> {
    view: ArrayViewMut<'v, T, IxDyn>,
    copier: &'p mut Copier<T>,
}

impl<'p, 'v, T: Element> ViewPlace<'p, 'v, T> {
    pub(crate) fn new(view: ArrayViewMut<'v, T, IxDyn>, copier: &'p mut Copier<T>) -> Self {
        Self { view, copier }
    }
}

impl<T: Element> RegionPlace for ViewPlace<'_, '_, T> {
    fn bytes(&mut self) -> Option<&mut [u8]> {
        self.view.as_slice_memory_order_mut().map(bytemuck::cast_slice_mut)
    }

    fn copy(&mut self, block: &BlockWindow<'_>) -> bool {
        let Some(cut) = scratch::window_of::<T>(block) else { return false };
        let fits = cut.shape() == self.view.shape();
        if fits {
            self.copier.copy(&cut, self.view.view_mut());
        }
        fits
    }

    fn fill(&mut self, element: &[u8]) -> bool {
        bytemuck::try_pod_read_unaligned(element).map(|value| self.view.fill(value)).is_ok()
    }
}

/// Bytes without a shape.
pub(crate) struct BytesPlace<'a>(pub(crate) &'a mut [u8]);

impl RegionPlace for BytesPlace<'_> {
    fn bytes(&mut self) -> Option<&mut [u8]> {
        Some(self.0)
    }

    fn copy(&mut self, _: &BlockWindow<'_>) -> bool {
        false
    }

    fn fill(&mut self, _: &[u8]) -> bool {
        false
    }
}

impl<'a> RegionMemory<'a> {
    /// Takes the memory of a view, with any strides.
    pub(crate) fn of<T: Element>(place: &'a mut ViewPlace<'_, '_, T>) -> Self {
        let (is_c, is_f) = (place.view.is_standard_layout(), place.view.t().is_standard_layout());
        Self { place, is_c, is_f }
    }

    /// Takes bytes for elements in this order.
    pub(crate) fn of_bytes(place: &'a mut BytesPlace<'_>, order: Order) -> Self {
        Self { place, is_c: order == Order::C, is_f: order == Order::F }
    }

    /// Returns the bytes of all elements, if they are in this order without gaps. They are native endian.
    pub fn in_order(&mut self, order: Order) -> Option<&mut [u8]> {
        let fits = match order {
            Order::C => self.is_c,
            Order::F => self.is_f,
        };
        if fits { self.place.bytes() } else { None }
    }

    /// Copies the elements that were decoded. Returns `false` if there are none, or if they do not fit.
    pub(crate) fn take(&mut self, scratch: &Scratch) -> bool {
        match scratch.decoded() {
            Some(Decoded::Block(block)) => self.copy(&block),
            Some(Decoded::Fill(element)) => self.place.fill(element),
            None => false,
        }
    }

    /// Copies the elements from a block that they are in. Returns `false` if they do not fit.
    pub(crate) fn copy(&mut self, block: &BlockWindow<'_>) -> bool {
        self.place.copy(block)
    }
}

impl fmt::Debug for RegionMemory<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionMemory").field("is_c", &self.is_c).field("is_f", &self.is_f).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_contiguous_views_are_bytes_in_order() {
        let mut array = ndarray::Array3::<u16>::zeros((2, 3, 4)).into_dyn();
        let orders = |view: ArrayViewMut<'_, u16, IxDyn>| {
            let mut copier = Copier::new();
            let mut place = ViewPlace::new(view, &mut copier);
            let mut memory = RegionMemory::of(&mut place);
            [Order::C, Order::F].map(|order| memory.in_order(order).map(|bytes| bytes.len()))
        };
        let (none, both) = ([None, None], [Some(2), Some(2)]);
        assert_eq!(orders(array.view_mut()), [Some(48), None]);
        assert_eq!(orders(array.view_mut().reversed_axes()), [None, Some(48)]);
        assert_eq!(orders(array.slice_each_axis_mut(|axis| (0..axis.len.min(1)).into())), both);
        assert_eq!(orders(array.slice_each_axis_mut(|axis| (0..axis.len.min(3)).into())), none);
        let mut reversed = array.view_mut();
        reversed.invert_axis(ndarray::Axis(0));
        assert_eq!(orders(reversed), none);
        assert_eq!(orders(array.view_mut().permuted_axes(IxDyn(&[1, 0, 2]))), none, "neither C nor F");
    }

    #[test]
    fn region_is_copied_out_of_a_block_into_any_strides() {
        let block: Vec<u16> = (0..24).collect();
        let window = BlockWindow {
            bytes: bytemuck::cast_slice(&block),
            shape: &[2, 3, 4],
            order: Order::C,
            window: &[0..2, 1..3, 2..3],
        };
        let mut array = ndarray::Array3::<u16>::zeros((2, 4, 2)).into_dyn();
        let mut copier = Copier::new();
        let every_second = array.slice_each_axis_mut(|axis| match axis.axis.index() {
            1 => (0..4).into(),
            _ => ndarray::Slice::new(0, None, 1),
        });
        let mut place = ViewPlace::new(every_second.permuted_axes(IxDyn(&[0, 2, 1])), &mut copier);
        assert!(!RegionMemory::of(&mut place).copy(&window), "another shape");
        let mut narrow = array.slice_each_axis_mut(|axis| (0..[2, 1, 2][axis.axis.index()]).into());
        narrow = narrow.permuted_axes(IxDyn(&[0, 2, 1]));
        let mut place = ViewPlace::new(narrow, &mut copier);
        assert!(RegionMemory::of(&mut place).copy(&window));
        assert_eq!(array.iter().copied().filter(|element| *element > 0).collect::<Vec<_>>(), [6, 10, 18, 22]);
        let short = BlockWindow { bytes: &window.bytes[1..], ..window };
        let mut place = ViewPlace::new(array.view_mut(), &mut copier);
        assert!(!RegionMemory::of(&mut place).copy(&short), "half an element is missing");
        assert!(!RegionMemory::of_bytes(&mut BytesPlace(&mut [0; 8]), Order::C).copy(&window), "bytes have no shape");
    }
}
