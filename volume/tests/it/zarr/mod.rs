//! Zarr volumes of other programs, for other programs, and damaged ones.

mod hostile;
mod numcodecs;
mod peers;
mod written;

use std::ops::Range;
use std::path::Path;

use ndarray::{ArrayD, ArrayViewD, Axis, IxDyn, Slice};
use ndarray_shm::{DType, Element, Order, with_element};
use ndarray_shm_volume::{Bbox, ChunkSink, ChunkSource, Elements, Gather, Result, Scratch};

/// Reads a region chunk by chunk, as native bytes in C order.
pub(crate) fn read(source: &dyn ChunkSource, bbox: &Bbox) -> Result<Vec<u8>> {
    with_element!(
        source.meta().dtype,
        T => read_elements::<T>(source, bbox),
        else => panic!("{} has no element type", source.meta().dtype)
    )
}

fn read_elements<T: Element>(source: &dyn ChunkSource, bbox: &Bbox) -> Result<Vec<u8>> {
    let zero: T = bytemuck::pod_read_unaligned(&vec![0; size_of::<T>()]);
    let mut array = ArrayD::from_elem(IxDyn(&bbox.shape()), zero);
    let mut scratch = Scratch::new();
    for region in source.meta().chunks(bbox) {
        source.read(&region, &mut scratch)?;
        if let Some(fill) = &source.meta().fill {
            scratch.fill_if_missing(fill);
        }
        let mut place = array.view_mut();
        for (axis, (range, whole)) in region.iter().zip(bbox.ranges()).enumerate() {
            place.slice_axis_inplace(Axis(axis), inside(range, whole));
        }
        match scratch.elements::<T>(&region)? {
            Elements::Missing => panic!("{region:?} is not stored"),
            Elements::Fill(value) => place.fill(value),
            Elements::Block(block) => place.assign(&block),
        }
    }
    Ok(bytemuck::cast_slice(array.as_slice().expect("C order")).to_vec())
}

fn inside(range: &Range<i64>, whole: &Range<i64>) -> Slice {
    let at = |coordinate: i64| isize::try_from(coordinate - whole.start).expect("small");
    Slice::from(at(range.start)..at(range.end))
}

/// Cuts a region out of elements in C order.
pub(crate) fn cut(bytes: &[u8], shape: &[u64], size: usize, region: &[Range<i64>], order: Order) -> Vec<u8> {
    let mut axes: Vec<usize> = shape.iter().map(|length| usize::try_from(*length).expect("small")).collect();
    axes.push(size);
    let mut view = ArrayViewD::from_shape(IxDyn(&axes), bytes).expect("dense");
    for (axis, range) in region.iter().enumerate() {
        view.slice_axis_inplace(Axis(axis), inside(range, &(0..i64::MAX)));
    }
    if order == Order::F {
        let axes: Vec<usize> = (0..region.len()).rev().chain([region.len()]).collect();
        view = view.permuted_axes(IxDyn(&axes));
    }
    view.iter().copied().collect()
}

/// Elements of a whole volume, in C order.
pub(crate) struct Whole<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) shape: &'a [u64],
    pub(crate) dtype: DType,
}

impl Gather for Whole<'_> {
    fn gather(&self, region: &[Range<i64>], order: Order, bytes: &mut Vec<u8>) -> Result<()> {
        *bytes = cut(self.bytes, self.shape, self.dtype.size(), region, order);
        Ok(())
    }
}

/// Stores a whole volume.
pub(crate) fn write(sink: &dyn ChunkSink, from: &Whole<'_>) -> Result<()> {
    for region in sink.meta().stored(&sink.meta().domain()) {
        sink.store(&region, sink.encode(&region, from)?)?;
    }
    Ok(())
}

#[test]
fn cut_returns_elements_in_both_orders() {
    let bytes: Vec<u8> = (0..12).collect();
    assert_eq!(cut(&bytes, &[3, 4], 1, &[1..3, 0..2], Order::C), [4, 5, 8, 9]);
    assert_eq!(cut(&bytes, &[3, 4], 1, &[1..3, 0..2], Order::F), [4, 8, 5, 9]);
    assert_eq!(cut(&bytes, &[3, 2], 2, &[1..3, 0..2], Order::F), [4, 5, 8, 9, 6, 7, 10, 11]);
}

/// Runs the Python script, and returns its output.
pub(crate) fn python(arguments: &[&Path], input: &str) -> String {
    crate::python::run("zarr_cases.py", "zarr and tensorstore", arguments, input)
}
