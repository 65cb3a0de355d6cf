//! Copies between host and GPU, on the stream of this crate. Each waits for its end, so that the host's memory may be
//! used again.

#![allow(unsafe_code)]

use std::borrow::Cow;

use cudarc::driver::sys::CUdeviceptr;
use ndarray::{Array, ArrayRef, Dimension};
use ndarray_shm::array::Layout;
use ndarray_shm::{Element, Order};

use crate::context::may_still_run;
use crate::device::Device;
use crate::driver::call;
use crate::error::Result;
use crate::layout;

/// Fills bytes of a GPU, which the caller has to itself.
pub(crate) fn fill(device: Device, at: CUdeviceptr, value: u8, bytes: usize) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let (current, stream) = (device.enter()?, device.stream());
    // SAFETY: the range is mapped memory of the caller.
    let enqueued = unsafe { call!(current.functions, cuMemsetD8Async(at, value, bytes, stream.raw())) };
    // The driver also answers with errors of earlier work, after which it may have enqueued this one.
    let ended = stream.settle();
    enqueued.and(ended)
}

/// Copies an array of the layout's shape to a GPU, into the layout's order.
pub(crate) fn upload<T: Element, D: Dimension>(
    device: Device,
    to: CUdeviceptr,
    layout: &Layout<T, D>,
    array: &ArrayRef<T, D>,
) -> Result<()> {
    let elements = in_order(array, layout.order());
    if elements.is_empty() {
        return Ok(());
    }
    let (current, stream) = (device.enter()?, device.stream());
    let bytes = size_of_val(&*elements);
    // SAFETY: the source is valid for reads of `bytes` until this function has waited for the copy, and so is the
    // target, which the caller has mapped for an array of this layout. If the end of the copy stays unknown, the target
    // is never unmapped, and a GPU that goes on to read memory that the host uses for something else gets wrong bytes,
    // no more.
    let enqueued =
        unsafe { call!(current.functions, cuMemcpyHtoDAsync_v2(to, elements.as_ptr().cast(), bytes, stream.raw())) };
    let ended = stream.settle();
    enqueued.and(ended)
}

/// Copies an array from a GPU.
pub(crate) fn download<T: Element, D: Dimension>(
    device: Device,
    from: CUdeviceptr,
    layout: &Layout<T, D>,
) -> Result<Array<T, D>> {
    let mut elements: Vec<T> = Vec::with_capacity(layout.len());
    if !layout.is_empty() {
        let (current, stream) = (device.enter()?, device.stream());
        let (to, bytes) = (elements.as_mut_ptr().cast(), layout::in_memory(layout));
        // SAFETY: the source is a mapped array of this layout; the target has room for it until this function has
        // waited for the copy.
        let enqueued = unsafe { call!(current.functions, cuMemcpyDtoHAsync_v2(to, from, bytes, stream.raw())) };
        let ended = stream.settle();
        if let Err(error) = enqueued.and(ended) {
            if may_still_run() {
                std::mem::forget(elements); // the GPU may still write to it
            }
            return Err(error);
        }
    }
    // SAFETY: the copy has written all elements, for which every bit pattern is valid, within the capacity.
    unsafe { elements.set_len(layout.len()) };
    Ok(Array::from_shape_vec(layout.shape_with_order(), elements).expect("the vector has the length of the shape"))
}

/// Returns the elements in an order, without a copy if they are contiguous in it.
fn in_order<T: Element, D: Dimension>(array: &ArrayRef<T, D>, order: Order) -> Cow<'_, [T]> {
    let contiguous = match order {
        Order::C => array.view().to_slice(),
        Order::F => array.t().to_slice(),
    };
    match (contiguous, order) {
        (Some(elements), _) => Cow::Borrowed(elements),
        (None, Order::C) => Cow::Owned(array.iter().copied().collect()),
        (None, Order::F) => Cow::Owned(array.t().iter().copied().collect()),
    }
}
