//! The one place where bytes become views: pointers of a segment and a checked layout go in, ndarray views come out.

use ndarray::{ArrayView, ArrayViewMut, Dimension, RawArrayView, RawArrayViewMut};

use super::Element;
use super::layout::Layout;
use crate::backend::Access;
use crate::segment::Segment;

/// Returns a view that may be looked at only inside `unsafe`.
#[allow(unsafe_code)]
pub(crate) fn raw<T: Element, D: Dimension>(segment: &Segment, layout: &Layout<D>) -> RawArrayView<T, D> {
    let pointer = pointer::<T, D>(segment, layout);
    // SAFETY: nothing is dereferenced; the pointer is not null, and the layout was checked not to overflow.
    unsafe { RawArrayView::from_shape_ptr(layout.shape(), pointer.cast_const()) }
}

/// Returns a view that may be written to only inside `unsafe`; `None` if the bytes are mapped read-only.
#[allow(unsafe_code)]
pub(crate) fn raw_mut<T: Element, D: Dimension>(
    segment: &Segment,
    layout: &Layout<D>,
) -> Option<RawArrayViewMut<T, D>> {
    let pointer = pointer::<T, D>(segment, layout);
    // SAFETY: nothing is dereferenced; the pointer is not null, and the layout was checked not to overflow.
    let view = unsafe { RawArrayViewMut::from_shape_ptr(layout.shape(), pointer) };
    (segment.access() == Access::ReadWrite).then_some(view)
}

/// Where the elements are. Whoever made the pair of segment and layout promised that they fit; a pair that does not is a
/// defect of this crate, and stops here.
fn pointer<T: Element, D: Dimension>(segment: &Segment, layout: &Layout<D>) -> *mut T {
    assert_eq!(segment.length() as u64, layout.bytes::<T>(), "a segment of another size than its layout");
    let pointer = segment.pointer().cast::<T>();
    assert!(pointer.is_aligned(), "mappings begin on a page, which every element type divides");
    pointer
}

/// Stops a forked child that looks into a draft of its parent, which goes on writing to the same memory.
pub(crate) fn require_creator(draft: &Segment) {
    assert!(
        draft.is_own_process(),
        "the draft belongs to the process that this one was forked from: make another one here"
    );
}

/// Looks at the elements.
///
/// # Safety
///
/// For as long as the view lives, nobody writes to these elements: no process, no thread.
#[allow(unsafe_code)]
pub(crate) unsafe fn shared<'a, T: Element, D: Dimension>(
    segment: &'a Segment,
    layout: &Layout<D>,
) -> ArrayView<'a, T, D> {
    // SAFETY: `raw` checked size and alignment; the mapping lives as long as the borrow of the segment; every bit pattern
    // is a value of `T`; that nobody writes is the caller's promise.
    unsafe { raw(segment, layout).deref_into_view() }
}

/// Looks at and writes to the elements; `None` if the bytes are mapped read-only.
///
/// # Safety
///
/// For as long as the view lives, nobody else reads or writes these elements: no process, no thread, no other view.
#[allow(unsafe_code)]
pub(crate) unsafe fn exclusive<'a, T: Element, D: Dimension>(
    segment: &'a Segment,
    layout: &Layout<D>,
) -> Option<ArrayViewMut<'a, T, D>> {
    let view = raw_mut(segment, layout)?;
    // SAFETY: as in `shared`; the mapping is writable; that nobody else looks is the caller's promise.
    Some(unsafe { view.deref_into_view_mut() })
}
