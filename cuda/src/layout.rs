//! Checks of layouts, with the errors of this crate.

use ndarray::{ArrayRef, Dimension, IxDyn, ShapeBuilder};
use ndarray_shm::array::Layout;
use ndarray_shm::{DType, Element, Order};

use crate::error::{Error, Result};

/// Checks a shape.
pub(crate) fn of_shape<T: Element, D: Dimension>(shape: impl ShapeBuilder<Dim = D>) -> Result<Layout<T, D>> {
    Layout::new(shape).map_err(too_large)
}

/// Returns the layout of a copy of an array: Fortran order is kept, every other order becomes C.
pub(crate) fn of_copy<T: Element, D: Dimension>(array: &ArrayRef<T, D>) -> Result<Layout<T, D>> {
    Layout::like(array).map_err(too_large)
}

/// Checks what a message says about an array.
pub(crate) fn of_message<T: Element, D: Dimension>(
    dtype: DType,
    shape: &[usize],
    order: Order,
) -> Result<Layout<T, D>> {
    if dtype != T::DTYPE {
        return Err(Error::DType { expected: T::DTYPE, found: dtype });
    }
    let wrong = || {
        let expected = D::NDIM.map_or_else(|| "any".into(), |axes| format!("one of {axes} axes"));
        Error::Shape { expected, found: shape.to_vec() }
    };
    let dim = D::from_dimension(&IxDyn(shape)).ok_or_else(wrong)?;
    of_shape(dim.set_f(order == Order::F))
}

/// Fails if the elements, from this offset on, are not aligned or do not lie within memory of this length.
pub(crate) fn require_within<T: Element, D: Dimension>(
    layout: &Layout<T, D>,
    offset: usize,
    bytes: usize,
) -> Result<()> {
    match offset.checked_add(in_memory(layout)).filter(|end| *end <= bytes) {
        Some(_) if offset.is_multiple_of(align_of::<T>()) => Ok(()),
        _ => Err(Error::malformed("its shape does not fit its memory")),
    }
}

/// Returns the size of all elements in bytes, which fits the address space.
pub(crate) fn in_memory<T: Element, D: Dimension>(layout: &Layout<T, D>) -> usize {
    layout.len() * size_of::<T>()
}

fn too_large(error: ndarray_shm::Error) -> Error {
    match error {
        ndarray_shm::Error { kind: ndarray_shm::ErrorKind::TooLarge { shape, item, .. }, .. } => {
            Error::TooLarge { shape, item }
        }
        other => other.into(),
    }
}
