//! The types of arrays that can be page-locked, and what each promises about its elements.
//!
//! All are arrays of the core crate. The traits are sealed.

#![allow(unsafe_code)]

use std::ffi::c_void;

use ndarray::{ArrayView, ArrayViewMut, Dimension};
use ndarray_shm::array::SealableDraft;
use ndarray_shm::pool::{PooledArray, PooledDraft};
use ndarray_shm::{ArrayReader, ArrayWriter, Draft, Element, FrozenArray, RefcountedArray, SharedArray};

/// Stands for the name of an array that has none.
const NAMELESS: &str = "(nameless)";

/// The elements of an array, as memory.
#[derive(Debug)]
pub struct LockedElements {
    pub(crate) start: *mut c_void,
    pub(crate) bytes: usize,
    /// Whether they are mapped for writing.
    pub(crate) are_writable: bool,
}

impl LockedElements {
    fn new<T>(start: *const T, len: usize, are_writable: bool) -> Self {
        Self { start: start.cast_mut().cast(), bytes: len * size_of::<T>(), are_writable }
    }
}

mod sealed {
    /// # Safety
    ///
    /// What [`elements`](Self::elements) returns is mapped, and stays so at the same address as long as the value
    /// lives, whatever is done through shared references to it.
    pub unsafe trait Mapped {
        fn elements(&self) -> super::LockedElements;

        /// Returns what the array is called in errors.
        fn name(&self) -> String;
    }
}

/// An array that can be page-locked. See [`PageLocked`](crate::PageLocked).
pub trait PageLockable: sealed::Mapped {}

impl<A: sealed::Mapped> PageLockable for A {}

/// An array that no other code can change while it lives, and that a GPU may therefore read in the background. See
/// [`DeviceArray::upload`](crate::DeviceArray::upload).
///
/// A [`SharedArray`] is none: open an [`ArrayReader`] instead. A [`RefcountedArray`] becomes one with
/// [`into_reader`](RefcountedArray::into_reader).
///
/// # Safety
///
/// As long as the value lives and is not borrowed mutably, no process writes to the elements of
/// [`source_view`](Self::source_view), which are all elements of the array, contiguous and in C or Fortran order.
pub unsafe trait LockedSource: PageLockable {
    /// The type of the elements.
    type Element: Element;
    /// The dimension of the array.
    type Dim: Dimension;

    /// Returns the view that is copied.
    fn source_view(&self) -> ArrayView<'_, Self::Element, Self::Dim>;
}

/// An array that no other process can reach, and that a GPU may therefore write in the background. See
/// [`DeviceArray::download`](crate::DeviceArray::download).
///
/// An [`ArrayWriter`] is none: the kernel would release its lock when this process is killed, while a GPU may still be
/// writing.
///
/// # Safety
///
/// As long as the value lives, no process reads or writes the elements except through it. That does not change when
/// this process is killed.
pub unsafe trait LockedTarget: LockedSource {
    /// Returns the view that is written.
    fn target_view(&mut self) -> ArrayViewMut<'_, Self::Element, Self::Dim>;
}

/// Implements [`Mapped`](sealed::Mapped) with the array's raw view.
macro_rules! raw {
    ($($array:ident: $name:expr;)*) => {$(
        // SAFETY: the raw view is that of the array's mapping, which only dropping or consuming the array unmaps.
        unsafe impl<T: Element, D: Dimension> sealed::Mapped for $array<T, D> {
            fn elements(&self) -> LockedElements {
                let view = self.raw_view();
                LockedElements::new(view.as_ptr(), view.len(), !self.is_readonly())
            }

            fn name(&self) -> String {
                let name: fn(&Self) -> String = $name;
                name(self)
            }
        }
    )*};
}

/// Implements [`Mapped`](sealed::Mapped) and [`LockedSource`] with the array's safe view.
macro_rules! viewed {
    ($($array:ident: $are_writable:expr, $name:expr;)*) => {$(
        // SAFETY: the view is that of the array's mapping, which only dropping, consuming or mutably borrowing the
        // array unmaps.
        unsafe impl<T: Element, D: Dimension> sealed::Mapped for $array<T, D> {
            fn elements(&self) -> LockedElements {
                let view = self.view();
                LockedElements::new(view.as_ptr(), view.len(), $are_writable)
            }

            fn name(&self) -> String {
                let name: fn(&Self) -> String = $name;
                name(self)
            }
        }

        // SAFETY: the core gives out this view in safe code: a read lock, a write lock, a seal or the lack of a name
        // excludes writers as long as the array lives. The view is that of the whole array.
        unsafe impl<T: Element, D: Dimension> LockedSource for $array<T, D> {
            type Element = T;
            type Dim = D;

            fn source_view(&self) -> ArrayView<'_, T, D> {
                self.view()
            }
        }
    )*};
}

/// Implements [`LockedTarget`].
macro_rules! nameless {
    ($($array:ident)*) => {$(
        // SAFETY: a draft has no name, or a hidden one in a pool, under which no process opens it.
        unsafe impl<T: Element, D: Dimension> LockedTarget for $array<T, D> {
            fn target_view(&mut self) -> ArrayViewMut<'_, T, D> {
                self.view_mut()
            }
        }
    )*};
}

raw! {
    SharedArray: |array| path(array.directory().path(), array.location().as_str());
    PooledArray: |array| path(array.directory().path(), array.location().as_str());
    RefcountedArray: |array| {
        path(array.directory().path(), array.location().map_or(NAMELESS, |location| location.as_str()))
    };
}

viewed! {
    Draft: true, |draft| path(draft.directory().path(), NAMELESS);
    PooledDraft: true, |draft| path(draft.directory().path(), NAMELESS);
    SealableDraft: true, |_| NAMELESS.to_owned();
    FrozenArray: false, |_| NAMELESS.to_owned();
    ArrayReader: false, |array| array.location().to_string();
    ArrayWriter: true, |array| array.location().to_string();
}

nameless! { Draft PooledDraft SealableDraft }

fn path(directory: &std::path::Path, name: &str) -> String {
    directory.join(name).display().to_string()
}
