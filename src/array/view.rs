//! The one place where bytes become views of a whole array: from a mapping's pointer and a checked layout to an ndarray
//! view.

use ndarray::{ArrayView, ArrayViewMut, Dimension, RawArrayView, RawArrayViewMut};

use super::{Element, Layout};
use crate::backend::Access;
use crate::segment::Mapped;

/// Returns a raw view; reading its elements is `unsafe`.
#[allow(unsafe_code)]
pub(crate) fn raw<T: Element, D: Dimension>(mapped: &Mapped, layout: &Layout<T, D>) -> RawArrayView<T, D> {
    let pointer = pointer::<T, D>(mapped, layout);
    // SAFETY: nothing is dereferenced; the pointer is not null, and the layout was checked not to overflow.
    unsafe { RawArrayView::from_shape_ptr(layout.shape_with_order(), pointer.cast_const()) }
}

/// Returns a mutable raw view, or `None` if the bytes are mapped read-only; accessing its elements is `unsafe`.
#[allow(unsafe_code)]
pub(crate) fn raw_mut<T: Element, D: Dimension>(
    mapped: &Mapped,
    layout: &Layout<T, D>,
) -> Option<RawArrayViewMut<T, D>> {
    let pointer = pointer::<T, D>(mapped, layout);
    // SAFETY: nothing is dereferenced; the pointer is not null, and the layout was checked not to overflow.
    let view = unsafe { RawArrayViewMut::from_shape_ptr(layout.shape_with_order(), pointer) };
    (mapped.access() == Access::ReadWrite).then_some(view)
}

/// Returns the address of the elements. Panics if mapping and layout differ in size: all callers pass matching pairs,
/// so another pair is a bug in this crate.
fn pointer<T: Element, D: Dimension>(mapped: &Mapped, layout: &Layout<T, D>) -> *mut T {
    assert_eq!(mapped.length() as u64, layout.bytes(), "a mapping of another size than its layout");
    let pointer = mapped.pointer().cast::<T>();
    assert!(pointer.is_aligned(), "mappings begin on a page, which every element type divides");
    pointer
}

/// Panics in a forked child: the parent may still write to the same memory.
pub(crate) fn require_creator(draft: &Mapped) {
    assert!(
        draft.is_own_process(),
        "the draft belongs to the parent of this forked process: create another draft here"
    );
}

/// Returns a view of the elements.
///
/// # Safety
///
/// As long as the view lives, no process and no thread writes to these elements.
#[allow(unsafe_code)]
pub(crate) unsafe fn shared<'a, T: Element, D: Dimension>(
    mapped: &'a Mapped,
    layout: &Layout<T, D>,
) -> ArrayView<'a, T, D> {
    // SAFETY: `raw` checked size and alignment; the mapping lives as long as the borrow of it; every bit pattern
    // is a value of `T`; the caller promises that nothing writes.
    unsafe { raw(mapped, layout).deref_into_view() }
}

/// Returns a mutable view of the elements; `None` if the bytes are mapped read-only.
///
/// # Safety
///
/// As long as the view lives, nothing else reads or writes these elements: no process, no thread, no other view.
#[allow(unsafe_code)]
pub(crate) unsafe fn exclusive<'a, T: Element, D: Dimension>(
    mapped: &'a Mapped,
    layout: &Layout<T, D>,
) -> Option<ArrayViewMut<'a, T, D>> {
    let view = raw_mut(mapped, layout)?;
    // SAFETY: as in `shared`; the mapping is writable; the caller promises that nothing else accesses the elements.
    Some(unsafe { view.deref_into_view_mut() })
}
