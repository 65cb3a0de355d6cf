//! The elements of test arrays; tests/it/python/sample.py computes the same ones.
//!
//! An element depends on its number in C order, whatever the order in memory, so that a transposed or shifted array is
//! noticed. Values use all bytes of their type, so that a wrong width, sign or byte order is noticed.

use ndarray::{ArrayD, ArrayViewMutD, Dimension, IntoDimension, IxDyn, ShapeBuilder};
use ndarray_shm::render::ChunkClaim;
use ndarray_shm::{Element, Order, SharedArray};

use crate::support::{Name, Place};

/// Factors that spread the values of longer types over all their bytes.
const OVER_4: i32 = 65537;
const OVER_8: i64 = 281_474_976_710_597;

/// Returns one of 65521 values, for types that can represent as many.
fn wide(number: u64) -> u16 {
    (number % 65521) as u16
}

/// Returns one of 251 values, for types of one byte and short floats.
fn narrow(number: u64) -> u8 {
    (number % 251) as u8
}

/// An element type of sample arrays.
pub trait Sample: Element + PartialEq {
    /// Returns the element for a number.
    fn sample(number: u64) -> Self;
}

macro_rules! samples {
    ($($type:ty: $number:ident => $value:expr;)*) => {
        $(impl Sample for $type {
            fn sample($number: u64) -> Self { $value }
        })*
    };
}

samples! {
    u8: n => narrow(n);
    u16: n => wide(n);
    u32: n => u32::from(wide(n)) * OVER_4.unsigned_abs();
    u64: n => u64::from(wide(n)) * OVER_8.unsigned_abs();
    i8: n => (i16::from(narrow(n)) - 125) as i8;
    i16: n => (i32::from(wide(n)) - 32760) as i16;
    i32: n => (i32::from(wide(n)) - 32760) * OVER_4;
    i64: n => (i64::from(wide(n)) - 32760) * OVER_8;
    f32: n => (f32::from(wide(n)) - 32760.0) * 0.5;
    f64: n => (f64::from(wide(n)) - 32760.0) * 0.5;
}

#[cfg(feature = "half")]
samples! {
    half::f16: n => half::f16::from_f32((f32::from(narrow(n)) - 125.0) * 0.5);
    half::bf16: n => half::bf16::from_f32((f32::from(narrow(n)) - 125.0) * 0.5);
}

#[cfg(feature = "num-complex")]
samples! {
    num_complex::Complex<f32>: n => { let re = f32::sample(n); num_complex::Complex { re, im: -1.0 - re } };
    num_complex::Complex<f64>: n => { let re = f64::sample(n); num_complex::Complex { re, im: -1.0 - re } };
}

/// Returns the element at an index of a sample array.
pub fn element<T: Sample>(shape: &[usize], at: &[usize], seed: usize) -> T {
    let number = shape.iter().zip(at).fold(0, |number, (length, at)| number * length + at);
    T::sample((number * 3 + seed) as u64)
}

/// Returns a whole sample array.
pub fn sample<T: Sample>(shape: &[usize], seed: usize) -> ArrayD<T> {
    ArrayD::from_shape_fn(IxDyn(shape), |at| element(shape, at.slice(), seed))
}

/// Creates a sample array under a name.
pub fn create<T: Sample>(
    place: &Place,
    name: &Name,
    shape: &[usize],
    order: Order,
    seed: usize,
) -> SharedArray<T, IxDyn> {
    let shape_and_order = IxDyn(shape).set_f(order == Order::F);
    let fill = |mut view: ArrayViewMutD<'_, T>| view.assign(&sample(shape, seed));
    place.options().create_with(name.location(), shape_and_order, fill).unwrap()
}

/// Opens the array with this name.
pub fn open<T: Sample>(place: &Place, name: &Name, shape: &[usize], order: Order) -> SharedArray<T, IxDyn> {
    place.open_options().open(name.location(), IxDyn(shape).set_f(order == Order::F)).unwrap()
}

/// Writes another sample into an array.
pub fn fill<T: Sample, D: Dimension>(array: &SharedArray<T, D>, seed: usize) {
    let shape = array.shape().to_vec();
    let mut guard = array.write().unwrap();
    guard.indexed_iter_mut().for_each(|(at, value)| *value = element(&shape, at.into_dimension().slice(), seed));
}

/// Paints a chunk of a buffer of this shape, and commits it.
pub fn paint<T: Sample, D: Dimension>(mut chunk: ChunkClaim<'_, T, D>, shape: &[usize], seed: usize) {
    let first: Vec<usize> = chunk.region().iter().map(|range| range.start).collect();
    for (at, value) in chunk.view_mut().indexed_iter_mut() {
        let at: Vec<usize> = at.into_dimension().slice().iter().zip(&first).map(|(at, first)| at + first).collect();
        *value = element(shape, &at, seed);
    }
    chunk.commit().unwrap();
}

/// Asserts that every element is the sample's.
#[track_caller]
pub fn assert_same<T: Sample, D: Dimension>(array: &SharedArray<T, D>, seed: usize) {
    let (shape, guard) = (array.shape(), array.read().unwrap());
    for (at, found) in guard.indexed_iter() {
        let at = at.into_dimension();
        assert_eq!(*found, element::<T>(shape, at.slice(), seed), "{} at {:?}", T::DTYPE, at.slice());
    }
}
