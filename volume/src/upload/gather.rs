//! Gathers the elements of one stored object: from the array, and where the array does not cover the object, from the
//! volume.

use std::cell::RefCell;
use std::ops::Range;

use ndarray::{ArrayD, ArrayViewD, ArrayViewMutD, Axis, IxDyn, ShapeBuilder as _, Slice};
use ndarray_shm::{Element, Order};

use crate::bbox::{Bbox, length, ranges_text};
use crate::copy::Copier;
use crate::error::{Cause, Error, Result};
use crate::scratch::{Elements, Scratch};
use crate::upload::units::Units;
use crate::volume::{ChunkSink, Gather};

/// The state of one gathering thread. It holds one chunk at a time.
pub(crate) struct FromArray<'a, T> {
    sink: &'a dyn ChunkSink,
    array: ArrayViewD<'a, T>,
    /// The first element of the array, in the volume's coordinates.
    origin: Vec<i64>,
    units: &'a Units,
    background: T,
    copier: RefCell<Copier<T>>,
    scratch: RefCell<Scratch>,
}

impl<'a, T: Element> FromArray<'a, T> {
    pub(crate) fn new(sink: &'a dyn ChunkSink, array: ArrayViewD<'a, T>, bbox: &Bbox, units: &'a Units) -> Self {
        let fill = sink.meta().fill.as_deref().and_then(|fill| bytemuck::try_pod_read_unaligned(fill).ok());
        Self {
            sink,
            array,
            origin: bbox.ranges().iter().map(|range| range.start).collect(),
            units,
            background: fill.unwrap_or_else(bytemuck::Zeroable::zeroed),
            copier: RefCell::new(Copier::new()),
            scratch: RefCell::new(Scratch::new()),
        }
    }

    /// Whether an object would hold only background, compared bit by bit.
    pub(crate) fn is_background(&self, region: &[Range<i64>]) -> Result<bool> {
        let is = |element: &T| bytemuck::bytes_of(element) == bytemuck::bytes_of(&self.background);
        let Some(written) = self.units.written(region) else { return Ok(false) };
        if !self.part(&written).iter().all(is) {
            return Ok(false);
        }
        if self.units.cover(region) {
            return Ok(true);
        }
        for cell in self.sink.meta().chunks(&Bbox::new(region.to_vec())?) {
            let mut block = self.block(&cell, Order::C)?;
            self.keep(&cell, &mut block.view_mut())?;
            if !block.iter().all(is) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns a view of a region of the array.
    fn part(&self, region: &[Range<i64>]) -> ArrayViewD<'_, T> {
        let mut view = self.array.view();
        for (axis, (range, origin)) in region.iter().zip(&self.origin).enumerate() {
            view.slice_axis_inplace(Axis(axis), inside(range, *origin));
        }
        view
    }

    /// Returns a block of background.
    fn block(&self, region: &[Range<i64>], order: Order) -> Result<ArrayD<T>> {
        elements(region).ok_or_else(|| too_large(region))?;
        let shape: Vec<usize> = region.iter().map(length).collect();
        Ok(ArrayD::from_elem(IxDyn(&shape).set_f(order == Order::F), self.background))
    }

    /// Copies the volume's elements of a region into a block, except chunks that the array covers.
    fn keep(&self, region: &[Range<i64>], block: &mut ArrayViewMutD<'_, T>) -> Result<()> {
        let mut scratch = self.scratch.borrow_mut();
        for cell in self.sink.meta().chunks(&Bbox::new(region.to_vec())?) {
            if self.units.cover(&cell) {
                continue;
            }
            self.sink.read(&cell, &mut scratch)?;
            let mut to = block.view_mut();
            for (axis, (range, all)) in cell.iter().zip(region).enumerate() {
                to.slice_axis_inplace(Axis(axis), inside(range, all.start));
            }
            match scratch.elements::<T>(&cell)? {
                Elements::Missing => {}
                Elements::Fill(value) => to.fill(value),
                Elements::Block(from) => self.copy(from, to),
            }
        }
        Ok(())
    }

    fn copy(&self, mut from: ArrayViewD<'_, T>, mut to: ArrayViewMutD<'_, T>) {
        // The copier expects the last axis of its source to be the contiguous one.
        let strides = from.strides();
        if strides.first().copied().unwrap_or(1).unsigned_abs() < strides.last().copied().unwrap_or(1).unsigned_abs() {
            from = from.reversed_axes();
            to = to.reversed_axes();
        }
        self.copier.borrow_mut().copy(&from, to);
    }
}

impl<T: Element> Gather for FromArray<'_, T> {
    fn gather(&self, region: &[Range<i64>], order: Order, bytes: &mut Vec<u8>) -> Result<()> {
        let all = elements(region).and_then(|count| count.checked_mul(size_of::<T>()));
        let all = all.ok_or_else(|| too_large(region))?;
        bytes.truncate(all);
        bytes.try_reserve_exact(all - bytes.len()).map_err(|_| too_large(region))?;
        bytes.resize(all, 0);
        if self.units.cover(region) {
            // Allocators align large blocks for every type, but a vector of bytes does not promise it: the cast may
            // fail.
            if let Ok(place) = bytemuck::try_cast_slice_mut(bytes) {
                let shape: Vec<usize> = region.iter().map(length).collect();
                if let Ok(to) = ArrayViewMutD::from_shape(IxDyn(&shape).set_f(order == Order::F), place) {
                    self.copy(self.part(region), to);
                    return Ok(());
                }
            }
        }
        let mut block = self.block(region, order)?;
        if !self.units.cover(region) {
            self.keep(region, &mut block.view_mut())?;
        }
        if let Some(written) = self.units.written(region) {
            let mut to = block.view_mut();
            for (axis, (range, all)) in written.iter().zip(region).enumerate() {
                to.slice_axis_inplace(Axis(axis), inside(range, all.start));
            }
            self.copy(self.part(&written), to);
        }
        if let Some(dense) = block.as_slice_memory_order() {
            bytes.copy_from_slice(bytemuck::cast_slice(dense));
        }
        Ok(())
    }
}

/// Returns the position of a range in an array that begins at `origin`. The range lies in the array, so the difference
/// fits.
fn inside(range: &Range<i64>, origin: i64) -> Slice {
    let start = length(&(origin..range.start));
    Slice::from(start..start + length(range))
}

fn elements(region: &[Range<i64>]) -> Option<usize> {
    region.iter().try_fold(1_usize, |product, range| product.checked_mul(length(range)))
}

fn too_large(region: &[Range<i64>]) -> Error {
    let region = ranges_text(region);
    let cause: Cause = "there is no memory for so large a chunk".into();
    Error::Chunk { chunk: region.clone(), region, cause }
}
