//! Shapes and orders of contiguous arrays.

use ndarray::{Array, ArrayRef, Dimension, IxDyn, ShapeBuilder};
use ndarray_shm::{DType, Element, Order};

use crate::error::{Error, Result};

/// A shape and its order, checked to fit the address space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceLayout<D> {
    pub(crate) dim: D,
    pub(crate) order: Order,
    /// Number of elements.
    pub(crate) len: usize,
}

impl<D: Dimension> DeviceLayout<D> {
    pub(crate) fn new<T: Element>(shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
        let shape = shape.into_shape_with_order();
        let checked = Self::of::<T>(shape.raw_dim().clone(), Order::C)?;
        // ndarray shows the order of a shape only by the strides of an array, here of one that takes no memory.
        let strides = Array::<(), D>::uninit(checked.dim.clone()).strides().to_vec();
        let order = if Array::<(), D>::uninit(shape).strides() == strides { Order::C } else { Order::F };
        Ok(Self { order, ..checked })
    }

    /// Returns the layout of a copy of an array: Fortran order is kept, every other order becomes C.
    pub(crate) fn like<T: Element>(array: &ArrayRef<T, D>) -> Result<Self> {
        let fortran = !array.is_standard_layout() && array.t().is_standard_layout();
        Self::of::<T>(array.raw_dim(), if fortran { Order::F } else { Order::C })
    }

    /// Checks what a message says about an array.
    pub(crate) fn described<T: Element>(dtype: DType, shape: &[usize], order: Order) -> Result<Self> {
        if dtype != T::DTYPE {
            return Err(Error::DType { expected: T::DTYPE, found: dtype });
        }
        let wrong = || {
            let expected = D::NDIM.map_or_else(|| "any".into(), |axes| format!("one of {axes} axes"));
            Error::Shape { expected, found: shape.to_vec() }
        };
        let dim = D::from_dimension(&IxDyn(shape)).ok_or_else(wrong)?;
        Self::of::<T>(dim, order)
    }

    fn of<T: Element>(dim: D, order: Order) -> Result<Self> {
        let too_large = || Error::TooLarge { shape: dim.slice().to_vec(), item: size_of::<T>() };
        // ndarray allows no product of non-zero lengths beyond isize, even if another length is zero.
        let nonzero = dim.slice().iter().filter(|length| **length != 0).try_fold(size_of::<T>(), |bytes, length| {
            bytes.checked_mul(*length).filter(|bytes| isize::try_from(*bytes).is_ok())
        });
        nonzero.ok_or_else(too_large)?;
        let len = dim.size();
        Ok(Self { dim, order, len })
    }

    /// Fails if the elements, from this offset on, are not aligned or do not lie within memory of this length.
    pub(crate) fn require_within<T>(&self, offset: usize, bytes: usize) -> Result<()> {
        let end = offset.checked_add(self.bytes::<T>()).filter(|end| *end <= bytes);
        match end {
            Some(_) if offset.is_multiple_of(align_of::<T>()) => Ok(()),
            _ => Err(Error::malformed("its shape does not fit its memory")),
        }
    }

    pub(crate) fn bytes<T>(&self) -> usize {
        self.len * size_of::<T>()
    }
}
