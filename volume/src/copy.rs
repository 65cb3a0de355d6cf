//! Copies decoded chunks between C and F order.
//!
//! Pure memory work through ndarray's views: nothing here knows volumes or claims.

use bytemuck::Pod;
use ndarray::{ArrayViewD, ArrayViewMutD, Axis, Dimension, Ix1, Ix2, Ix3, Ix4, IxDyn};

use crate::turn::Turner;

/// Copies chunks of one element type, and keeps the memory for transposing them.
#[derive(Debug)]
pub(crate) struct Copier<T> {
    turner: Turner<T>,
}

impl<T: Pod> Copier<T> {
    pub(crate) fn new() -> Self {
        Self { turner: Turner::new() }
    }

    /// Copies a block, or a window of one, to a place of the same shape.
    pub(crate) fn copy(&mut self, from: &ArrayViewD<'_, T>, mut to: ArrayViewMutD<'_, T>) {
        let mut from = from.view();
        // The stride of an axis of one element, such as a single channel, is arbitrary. Without such axes it is clear
        // which axis is contiguous.
        for axis in (0..from.ndim().min(to.ndim())).rev().map(Axis) {
            if from.len_of(axis) == 1 && to.len_of(axis) == 1 {
                (from, to) = (from.index_axis_move(axis, 0), to.index_axis_move(axis, 0));
            }
        }
        // A block in F order with its axes reversed is a block in C order.
        if is_f_order(from.strides()) {
            self.copy_from_c(&from.reversed_axes(), to.reversed_axes());
        } else {
            self.copy_from_c(&from, to);
        }
    }

    fn copy_from_c(&mut self, from: &ArrayViewD<'_, T>, to: ArrayViewMutD<'_, T>) {
        if is_f_order(to.strides()) {
            return self.turner.turn(from, to);
        }
        // A number of axes known to the compiler makes ndarray's loops up to twice as fast.
        match from.ndim() {
            0 => assign_point(from, to),
            1 => assign::<T, Ix1>(from, to),
            2 => assign::<T, Ix2>(from, to),
            3 => assign::<T, Ix3>(from, to),
            4 => assign::<T, Ix4>(from, to),
            _ => assign::<T, IxDyn>(from, to),
        }
    }
}

fn assign_point<T: Copy>(from: &ArrayViewD<'_, T>, mut to: ArrayViewMutD<'_, T>) {
    to.assign(from);
}

fn is_f_order(strides: &[isize]) -> bool {
    matches!(strides, [1, .., last] if *last != 1)
}

/// Copies row by row. Rows that are contiguous on both sides are copied as memory blocks instead of one element at a
/// time.
fn assign<T: Copy, D: Dimension>(from: &ArrayViewD<'_, T>, to: ArrayViewMutD<'_, T>) {
    let (Ok(from), Ok(mut to)) = (from.view().into_dimensionality::<D>(), to.into_dimensionality::<D>()) else {
        return;
    };
    for (mut to, from) in to.rows_mut().into_iter().zip(from.rows()) {
        match (to.as_slice_mut(), from.as_slice()) {
            (Some(to), Some(from)) => to.copy_from_slice(from),
            _ => to.assign(&from),
        }
    }
}

#[cfg(test)]
mod tests {
    use ndarray::{ArrayD, ShapeBuilder as _, Slice};

    use super::*;

    /// Copies a window of a larger block to a window of a larger array, and compares each element.
    fn check<T: Pod + PartialEq + std::fmt::Debug>(
        shape: &[usize],
        [f_block, f_order]: [bool; 2],
        zero: T,
        value: impl Fn(usize) -> T,
    ) {
        let around: Vec<usize> = shape.iter().map(|length| length + 3).collect();
        let mut count = 0;
        let block = ArrayD::from_shape_simple_fn(IxDyn(&around).set_f(f_block), || {
            count += 1;
            value(count)
        });
        let mut array = ArrayD::from_elem(IxDyn(&around).set_f(f_order), zero);
        let (mut from, mut to) = (block.view(), array.view_mut());
        for (axis, length) in shape.iter().enumerate() {
            from.slice_axis_inplace(Axis(axis), Slice::from(1..=*length));
            to.slice_axis_inplace(Axis(axis), Slice::from(2..2 + length));
        }
        let expected = from.to_owned();
        Copier::new().copy(&from, to.view_mut());
        assert_eq!(to, expected, "shape {shape:?}, F {f_block} to {f_order}");
        let touched = array.iter().filter(|element| **element != zero).count();
        assert_eq!(touched, shape.iter().product::<usize>(), "nothing around it changes");
    }

    #[test]
    fn elements_arrive_in_both_orders() {
        let shapes: [&[usize]; 14] = [
            &[5, 70, 9, 1],
            &[],
            &[7],
            &[1, 9],
            &[9, 1],
            &[64, 64],
            &[65, 67],
            &[64, 5, 128],
            &[5, 70, 130],
            &[130, 3, 5],
            &[1, 1, 1],
            &[0, 4, 3],
            &[3, 2, 4, 5],
            &[2, 3, 2, 2, 3],
        ];
        for shape in shapes {
            for f_order in [[false, false], [false, true], [true, false], [true, true]] {
                check::<u8>(shape, f_order, 0, |n| u8::try_from(n % 251 + 1).expect("small"));
                check::<u16>(shape, f_order, 0, |n| u16::try_from(n % 65_521 + 1).expect("small"));
                check::<u32>(shape, f_order, 0, |n| u32::try_from(n).expect("small").wrapping_mul(0x9e37_79b1));
                check::<u64>(shape, f_order, 0, |n| (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                check::<[u8; 3]>(shape, f_order, [0; 3], |n| [n.to_le_bytes()[0], n.to_le_bytes()[1], 1]);
                check::<[u64; 2]>(shape, f_order, [0; 2], |n| [n as u64, 1]);
            }
        }
    }

    #[test]
    fn views_without_a_contiguous_axis_are_copied() {
        let value = |at: IxDyn| u16::try_from((at[0] * 70 + at[1]) * 12 + at[2]).expect("small");
        let block = ArrayD::from_shape_fn(IxDyn(&[20, 70, 12]), value);
        for axes in [[0, 1, 2], [1, 0, 2], [1, 2, 0], [2, 0, 1]] {
            for step in [1, 2, -1] {
                let mut from = block.view();
                from.slice_axis_inplace(Axis(2), Slice::new(0, None, step));
                let from = from.permuted_axes(IxDyn(&axes));
                for f_order in [false, true] {
                    let mut to = ArrayD::zeros(IxDyn(from.shape()).set_f(f_order));
                    Copier::new().copy(&from, to.view_mut());
                    assert_eq!(to, from, "axes {axes:?}, step {step}, F {f_order}");
                    let mut reversed = ArrayD::zeros(to.raw_dim().set_f(f_order));
                    reversed.invert_axis(Axis(0));
                    Copier::new().copy(&from, reversed.view_mut());
                    assert_eq!(reversed, from, "axes {axes:?}, step {step}, F {f_order}, into a reversed axis");
                }
            }
        }
    }
}
