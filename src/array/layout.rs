//! Shapes and orders: the size of an array in bytes, and the view that its bytes are read through.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use ndarray::{Array, ArrayRef, ArrayView, ArrayViewMut, Dimension, IxDyn, Shape, ShapeBuilder};

use super::{DType, Element, NAMELESS};
use crate::error::{Error, ErrorKind, Result};

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
            _ => Err(Error::setting("the order", text, "C or F")),
        }
    }
}

/// Shape, order and element type of an array, checked to fit the address space.
///
/// Arrays and drafts dereference to their layout, so these are methods of each of them. (A frozen array dereferences to
/// ndarray's array, which has most of them.)
///
/// ```
/// use ndarray_shm::{Draft, Order, ndarray::ShapeBuilder};
///
/// let draft = Draft::<f32, _>::new((4, 5).f())?;
/// assert_eq!((draft.shape(), draft.order(), draft.len()), (&[4, 5][..], Order::F, 20));
/// let alike = Draft::<u8, _>::new(draft.shape_with_order())?; // any other element type has the same shapes
/// assert_eq!((alike.raw_dim(), alike.bytes()), (draft.raw_dim(), 20));
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
pub struct Layout<T, D> {
    dim: D,
    order: Order,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Element, D: Dimension> Layout<T, D> {
    /// Checks a shape: any that ndarray accepts, such as `(3, 4)`, or `(3, 4).f()` for Fortran order.
    ///
    /// # Errors
    ///
    /// [`TooLarge`](ErrorKind::TooLarge): the array fits no address space.
    pub fn new(shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
        Self::named(shape, NAMELESS)
    }

    /// Returns the layout of a copy of an array. Fortran order is kept; every other order of axes becomes C.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new): an array with strides of zero can have more elements than the address space.
    pub fn like(array: &ArrayRef<T, D>) -> Result<Self> {
        Self::new(shape_like(array))
    }

    /// Checks a shape. The error names the array.
    pub(crate) fn named(shape: impl ShapeBuilder<Dim = D>, name: &str) -> Result<Self> {
        let shape = shape.into_shape_with_order();
        let dim = shape.raw_dim().clone();
        Self::checked(dim, name, || order_of(shape))
    }

    /// Checks lengths. Calls `order` only if they fit.
    fn checked(dim: D, name: &str, order: impl FnOnce() -> Order) -> Result<Self> {
        // ndarray computes strides, so the product of the non-empty axes must fit even if another axis is empty.
        let lengths = dim.slice();
        let span =
            lengths.iter().filter(|length| **length > 0).try_fold(1usize, |so_far, length| so_far.checked_mul(*length));
        let bytes =
            span.and_then(|span| span.checked_mul(size_of::<T>())).filter(|bytes| isize::try_from(*bytes).is_ok());
        if bytes.is_none() {
            return Err(ErrorKind::TooLarge { shape: lengths.to_vec(), item: size_of::<T>() }.at(name));
        }
        let len = dim.size();
        Ok(Self { order: order(), dim, len, elements: PhantomData })
    }

    /// Checks a description against element type `T` and the number of axes of `D`.
    pub(crate) fn described(dtype: DType, shape: &[usize], order: Order, name: &str) -> Result<Self> {
        if dtype != T::DTYPE {
            let (expected, found) = (T::DTYPE.to_string(), dtype.to_string());
            return Err(ErrorKind::DTypeMismatch { expected, found }.at(name));
        }
        let dim = D::from_dimension(&IxDyn(shape)).ok_or_else(|| {
            ErrorKind::ShapeMismatch {
                expected: D::NDIM.map_or_else(|| "any".to_owned(), |axes| format!("one of {axes} axes")),
                found: format!("{shape:?}"),
            }
            .at(name)
        })?;
        match order {
            Order::C => Self::checked(dim, name, || Order::C),
            Order::F => Self::named(dim.f(), name),
        }
    }

    /// Returns the lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        self.dim.slice()
    }

    /// Returns the lengths of the axes as ndarray's dimension type.
    pub fn raw_dim(&self) -> D {
        self.dim.clone()
    }

    /// Returns the order of the axes in memory.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Returns the lengths of the axes and their order as ndarray's type, from which arrays are created.
    pub fn shape_with_order(&self) -> Shape<D> {
        self.dim.clone().set_f(self.order == Order::F)
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// Returns the size of all elements in bytes.
    pub fn bytes(&self) -> u64 {
        (self.len * size_of::<T>()) as u64
    }

    /// Returns a view of elements in private memory, of which there are enough.
    pub(crate) fn view_of<'a>(&self, elements: &'a [T]) -> ArrayView<'a, T, D> {
        let view = ArrayView::from_shape(self.shape_with_order(), &elements[..self.len()]);
        view.unwrap_or_else(|error| unreachable!("the layout was checked: {error}"))
    }

    /// As [`view_of`](Self::view_of), for writing.
    pub(crate) fn view_of_mut<'a>(&self, elements: &'a mut [T]) -> ArrayViewMut<'a, T, D> {
        let view = ArrayViewMut::from_shape(self.shape_with_order(), &mut elements[..self.len()]);
        view.unwrap_or_else(|error| unreachable!("the layout was checked: {error}"))
    }
}

// Not `Clone`: `array.clone()` would then give a layout, which keeps no array attached.
impl<T, D: Clone> Layout<T, D> {
    pub(crate) fn copied(&self) -> Self {
        Self { dim: self.dim.clone(), ..*self }
    }
}

impl<T, D: PartialEq> PartialEq for Layout<T, D> {
    fn eq(&self, other: &Self) -> bool {
        (&self.dim, self.order) == (&other.dim, other.order)
    }
}

impl<T, D: Eq> Eq for Layout<T, D> {}

impl<T, D: fmt::Debug> fmt::Debug for Layout<T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layout").field("dim", &self.dim).field("order", &self.order).finish_non_exhaustive()
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
        fn order<T: Element, D: Dimension>(layout: Result<Layout<T, D>>) -> Order {
            layout.expect("it fits").order
        }
        assert_eq!(order(Layout::<u8, _>::named((3, 4, 5), "x")), Order::C);
        assert_eq!(order(Layout::<u8, _>::named((3, 4, 5).f(), "x")), Order::F);
        assert_eq!(Layout::<u8, _>::named(IxDyn(&[2, 2]).f(), "x").expect("it fits").order, Order::F);
        assert_eq!(Layout::<u8, _>::named(7.f(), "x").expect("it fits").order, Order::C);
        assert_eq!(Layout::<u8, _>::named((), "x").expect("it fits").len, 1);
        assert_eq!(Layout::<u64, _>::named((0, 9), "x").expect("it fits").len, 0);
    }

    #[test]
    fn layout_refuses_shape_beyond_address_space() {
        let half = usize::MAX / 2;
        assert!(matches!(Layout::<u8, _>::named((half, 3), "x"), Err(Error { kind: ErrorKind::TooLarge { .. }, .. })));
        assert!(matches!(
            Layout::<u16, _>::named(half, "x"),
            Err(Error { kind: ErrorKind::TooLarge { item: 2, .. }, .. })
        ));
        assert!(matches!(
            Layout::<u8, _>::named((0, half, 3), "x"),
            Err(Error { kind: ErrorKind::TooLarge { .. }, .. })
        ));
        assert!(Layout::<u8, _>::named(half, "x").is_ok());
    }
}
