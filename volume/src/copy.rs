//! Copies decoded chunks, in C or F order, to places in C or F order.
//!
//! Pure memory work through ndarray's views: nothing here knows volumes or claims.

use ndarray::{ArrayView2, ArrayViewD, ArrayViewMut2, ArrayViewMutD, Axis, Dimension, Ix1, Ix2, Ix3, Ix4, IxDyn};

/// Rows that are turned from C to F order together.
const ROWS: usize = 64;

/// Bytes of each row that are turned together: one cache line, so that none is fetched twice.
const ROW_BYTES: usize = 64;

/// Copies chunks of one element type, and keeps the memory for turning them.
#[derive(Debug)]
pub(crate) struct Copier<T> {
    tile: Vec<T>,
}

impl<T: Copy> Copier<T> {
    pub(crate) fn new() -> Self {
        Self { tile: Vec::new() }
    }

    /// Copies a block, or a window of one, to a place of the same shape.
    pub(crate) fn copy(&mut self, from: &ArrayViewD<'_, T>, mut to: ArrayViewMutD<'_, T>) {
        let mut from = from.view();
        // An axis of one element, such as a single channel, has any stride: without it, it is clear which axis is contiguous.
        for axis in (0..from.ndim().min(to.ndim())).rev().map(Axis) {
            if from.len_of(axis) == 1 && to.len_of(axis) == 1 {
                (from, to) = (from.index_axis_move(axis, 0), to.index_axis_move(axis, 0));
            }
        }
        // Named the other way round, axes of a block in F order are those of one in C order.
        if is_f_order(from.strides()) {
            self.copy_from_c(&from.reversed_axes(), to.reversed_axes());
        } else {
            self.copy_from_c(&from, to);
        }
    }

    fn copy_from_c(&mut self, from: &ArrayViewD<'_, T>, to: ArrayViewMutD<'_, T>) {
        if is_f_order(to.strides()) {
            return self.turn(from, to);
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

    /// Copies from C to F order, plane by plane: along one axis the source is contiguous, along the other the target.
    fn turn(&mut self, from: &ArrayViewD<'_, T>, mut to: ArrayViewMutD<'_, T>) {
        if from.ndim() > 2 {
            for (from, to) in from.axis_iter(Axis(1)).zip(to.axis_iter_mut(Axis(1))) {
                self.turn(&from, to);
            }
            return;
        }
        let (Ok(from), Ok(mut to)) = (from.view().into_dimensionality::<Ix2>(), to.into_dimensionality::<Ix2>()) else {
            return;
        };
        let columns = (ROW_BYTES / size_of::<T>()).max(1);
        for (from, mut to) in from.axis_chunks_iter(Axis(0), ROWS).zip(to.axis_chunks_iter_mut(Axis(0), ROWS)) {
            for (from, to) in from.axis_chunks_iter(Axis(1), columns).zip(to.axis_chunks_iter_mut(Axis(1), columns)) {
                self.turn_tile(&from, to);
            }
        }
    }

    /// Reads a tile row by row and writes it column by column. In between it lies dense: with the strides of a volume,
    /// often powers of two, its rows or columns would fall on a few lines of the cache and drive each other out.
    fn turn_tile(&mut self, from: &ArrayView2<'_, T>, mut to: ArrayViewMut2<'_, T>) {
        let rows = from.nrows();
        let Some(any) = from.first() else { return };
        self.tile.resize(from.len(), *any);
        for (x, row) in from.rows().into_iter().enumerate() {
            for (cell, element) in self.tile[x..].iter_mut().step_by(rows).zip(row) {
                *cell = *element;
            }
        }
        for (mut column, dense) in to.columns_mut().into_iter().zip(self.tile.chunks_exact(rows)) {
            match column.as_slice_mut() {
                Some(column) => column.copy_from_slice(dense),
                None => column.iter_mut().zip(dense).for_each(|(to, from)| *to = *from),
            }
        }
    }
}

fn assign_point<T: Copy>(from: &ArrayViewD<'_, T>, mut to: ArrayViewMutD<'_, T>) {
    to.assign(from);
}

fn is_f_order(strides: &[isize]) -> bool {
    matches!(strides, [1, .., last] if *last != 1)
}

/// Copies row by row where rows are contiguous on both sides: a processor's own way of copying, instead of one element at a time.
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

    /// Copies a window of a larger block to a window of a larger array, and compares one by one.
    fn check<T: Copy + PartialEq + std::fmt::Debug>(
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
    fn every_element_arrives_at_its_place_in_both_orders() {
        let shapes: [&[usize]; 10] = [
            &[5, 70, 9, 1],
            &[],
            &[7],
            &[1, 9],
            &[9, 1],
            &[65, 67],
            &[5, 70, 130],
            &[1, 1, 1],
            &[3, 2, 4, 5],
            &[2, 3, 2, 2, 3],
        ];
        for shape in shapes {
            for f_order in [[false, false], [false, true], [true, false], [true, true]] {
                check::<u8>(shape, f_order, 0, |n| u8::try_from(n % 255 + 1).expect("small"));
                check::<u64>(shape, f_order, 0, |n| n as u64);
                check::<[u64; 2]>(shape, f_order, [0; 2], |n| [n as u64, 1]);
            }
        }
    }
}
