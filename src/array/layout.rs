//! Shapes and orders: the size of an array in bytes, and the view that its bytes are read through.

use std::fmt;
use std::str::FromStr;

use ndarray::{Array, ArrayRef, Dimension, IxDyn, Shape, ShapeBuilder};

use super::{DType, Element};
use crate::error::{Error, Result};

/// The order of an array's axes in memory: which axis is contiguous.
///
/// If both orders give the same bytes (one axis, or no axis longer than 1), the order is C.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Order {
    /// The last axis: row-major, the default of numpy and Zarr.
    #[default]
    C,
    /// The first axis: column-major, the default of Fortran, Julia and CloudVolume. Written `shape.f()`.
    F,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::C => "C",
            Self::F => "F",
        })
    }
}

impl FromStr for Order {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "C" | "c" => Ok(Self::C),
            "F" | "f" => Ok(Self::F),
            _ => Err(Error::InvalidSetting { setting: "the order", value: text.to_owned(), expected: "C or F" }),
        }
    }
}

/// A shape and its order, checked to fit the address space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout<D> {
    pub(crate) dim: D,
    pub(crate) order: Order,
    /// Number of elements.
    pub(crate) len: usize,
}

impl<D: Dimension> Layout<D> {
    /// Checks a shape for elements of type `T`.
    pub(crate) fn new<T: Element>(shape: impl ShapeBuilder<Dim = D>, name: &str) -> Result<Self> {
        let shape = shape.into_shape_with_order();
        let dim = shape.raw_dim().clone();
        Self::checked::<T>(dim, name, || order_of(shape))
    }

    /// Checks lengths for elements of type `T`. Calls `order` only if they fit.
    fn checked<T: Element>(dim: D, name: &str, order: impl FnOnce() -> Order) -> Result<Self> {
        // ndarray computes strides, so the product of the non-empty axes must fit even if another axis is empty.
        let lengths = dim.slice();
        let span =
            lengths.iter().filter(|length| **length > 0).try_fold(1usize, |so_far, length| so_far.checked_mul(*length));
        let bytes =
            span.and_then(|span| span.checked_mul(size_of::<T>())).filter(|bytes| isize::try_from(*bytes).is_ok());
        if bytes.is_none() {
            let (location, shape) = (name.to_owned(), lengths.to_vec());
            return Err(Error::TooLarge { location, shape, item: size_of::<T>() });
        }
        let len = dim.size();
        Ok(Self { order: order(), dim, len })
    }

    /// Checks a description against element type `T` and the number of axes of `D`.
    pub(crate) fn described<T: Element>(dtype: DType, shape: &[usize], order: Order, name: &str) -> Result<Self> {
        let location = || name.to_owned();
        if dtype != T::DTYPE {
            let (expected, found) = (T::DTYPE.to_string(), dtype.to_string());
            return Err(Error::DTypeMismatch { location: location(), expected, found });
        }
        let dim = D::from_dimension(&IxDyn(shape)).ok_or_else(|| Error::ShapeMismatch {
            location: location(),
            expected: D::NDIM.map_or_else(|| "any".to_owned(), |axes| format!("one of {axes} axes")),
            found: format!("{shape:?}"),
        })?;
        match order {
            Order::C => Self::checked::<T>(dim, name, || Order::C),
            Order::F => Self::new::<T>(dim.f(), name),
        }
    }

    /// Returns the size of all elements of type `T` in bytes.
    pub(crate) fn bytes<T: Element>(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    /// Returns the shape and order as ndarray's type.
    pub(crate) fn shape(&self) -> Shape<D> {
        self.dim.clone().set_f(self.order == Order::F)
    }
}

/// Returns the shape of `array`: in Fortran order if its elements have that order in memory, else in C order.
pub(crate) fn shape_like<T, D: Dimension>(array: &ArrayRef<T, D>) -> Shape<D> {
    let fortran = array.t().is_standard_layout() && !array.is_standard_layout();
    array.raw_dim().set_f(fortran)
}

/// Returns the order of a shape. ndarray does not expose it, but shows the strides of an array with that shape. The
/// array's elements have size zero, so it takes no memory.
fn order_of<D: Dimension>(shape: Shape<D>) -> Order {
    let probe = Array::<(), D>::uninit(shape);
    let dim = probe.raw_dim();
    let c_strides = Array::<(), D>::uninit(dim.into_shape_with_order());
    if probe.strides() == c_strides.strides() { Order::C } else { Order::F }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_detects_order_of_shape() {
        let order = |layout: Result<Layout<_>>| layout.expect("it fits").order;
        assert_eq!(order(Layout::new::<u8>((3, 4, 5), "x")), Order::C);
        assert_eq!(order(Layout::new::<u8>((3, 4, 5).f(), "x")), Order::F);
        assert_eq!(Layout::new::<u8>(IxDyn(&[2, 2]).f(), "x").expect("it fits").order, Order::F);
        assert_eq!(Layout::new::<u8>(7.f(), "x").expect("it fits").order, Order::C);
        assert_eq!(Layout::new::<u8>((), "x").expect("it fits").len, 1);
        assert_eq!(Layout::new::<u64>((0, 9), "x").expect("it fits").len, 0);
    }

    #[test]
    fn layout_refuses_shape_beyond_address_space() {
        let half = usize::MAX / 2;
        assert!(matches!(Layout::new::<u8>((half, 3), "x"), Err(Error::TooLarge { .. })));
        assert!(matches!(Layout::new::<u16>(half, "x"), Err(Error::TooLarge { item: 2, .. })));
        assert!(matches!(Layout::new::<u8>((0, half, 3), "x"), Err(Error::TooLarge { .. })));
        assert!(Layout::new::<u8>(half, "x").is_ok());
    }
}
