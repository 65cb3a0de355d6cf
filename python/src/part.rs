//! Parts of arrays: which elements of the memory a Python array shows, and how far they are apart.

use ndarray_shm::Order;

use crate::memory::{Shape, signed};

/// Elements of an array: the distance of the first one from the array's first, and lengths and strides. Distances are
/// in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) offset: isize,
    pub(crate) lengths: Vec<usize>,
    pub(crate) strides: Vec<isize>,
}

impl Window {
    /// Returns the window of the whole array.
    pub(crate) fn whole(shape: &Shape) -> Self {
        Self { offset: 0, lengths: shape.lengths.clone(), strides: shape.strides() }
    }

    /// Returns whether every element of the window is an element of the array, and none is there twice.
    ///
    /// So a window has no more elements than the array, and their number does not overflow.
    pub(crate) fn is_inside(&self, shape: &Shape) -> bool {
        self.lengths.len() == self.strides.len()
            && self.is_regular(shape.element.dtype.size())
            && self.reach(shape).is_some()
    }

    /// Returns whether each axis steps over all elements, of `item` bytes, of the axes with smaller steps. A window
    /// without elements only needs lengths that can be multiplied.
    pub(crate) fn is_regular(&self, item: usize) -> bool {
        if self.lengths.contains(&0) {
            let mut others = self.lengths.iter().filter(|length| **length != 0);
            let bytes = others.try_fold(item, |bytes, length| bytes.checked_mul(*length));
            return bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok());
        }
        let axes = self.lengths.iter().zip(&self.strides).filter(|(length, _)| **length > 1);
        let mut axes: Vec<(usize, usize)> = axes.map(|(length, stride)| (stride.unsigned_abs(), *length)).collect();
        axes.sort_unstable();
        let mut covered = Some(item);
        for (stride, length) in axes {
            covered = covered
                .filter(|covered| stride >= *covered)
                .and_then(|covered| stride.checked_mul(length - 1)?.checked_add(covered));
        }
        covered.is_some()
    }

    /// Returns the first and the last byte, or `None` if one is outside of the array or between two elements.
    fn reach(&self, shape: &Shape) -> Option<()> {
        let item = signed(shape.element.dtype.size());
        let is_step = |distance: &isize| distance % item == 0;
        if !is_step(&self.offset) || !self.strides.iter().all(is_step) {
            return None;
        }
        if self.lengths.contains(&0) {
            return (0..=signed(shape.bytes())).contains(&self.offset).then_some(());
        }
        let (mut first, mut last) = (self.offset, self.offset);
        for (length, stride) in self.lengths.iter().zip(&self.strides) {
            let along = isize::try_from(length - 1).ok()?.checked_mul(*stride)?;
            let end = if along < 0 { &mut first } else { &mut last };
            *end = end.checked_add(along)?;
        }
        (first >= 0 && last.checked_add(item)? <= signed(shape.bytes())).then_some(())
    }

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        self.lengths.iter().product()
    }

    /// Returns whether the elements, of `item` bytes, follow one another in this order. Axes of length 1 do not matter.
    pub(crate) fn is_contiguous(&self, item: usize, order: Order) -> bool {
        if self.lengths.contains(&0) {
            return true;
        }
        let mut step = signed(item);
        let mut follows = |axis: usize| {
            let fits = self.lengths[axis] == 1 || self.strides[axis] == step;
            step *= signed(self.lengths[axis]);
            fits
        };
        match order {
            Order::C => (0..self.lengths.len()).rev().all(&mut follows),
            Order::F => (0..self.lengths.len()).all(&mut follows),
        }
    }
}
