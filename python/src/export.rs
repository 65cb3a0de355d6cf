//! The buffer protocol: how `memoryview`, numpy and others reach the elements without a copy.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use ndarray_shm::Order;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::memory::{Memory, Shape, signed};

/// What an exported buffer points to. It lives until the buffer is released, so the memory stays attached and mapped that long.
struct Exported {
    lengths: Vec<isize>,
    strides: Vec<isize>,
    _memory: Arc<dyn Memory>,
}

/// Fills `view` with the elements of `memory`, for the exporting object `owner`.
///
/// # Errors
///
/// `BufferError`: the request needs another order of the axes, or write access to a read-only buffer.
///
/// # Safety
///
/// - `view` points to a `Py_buffer` that the interpreter wants filled: the argument of `bf_getbuffer`.
/// - `shape` describes `memory`.
/// - `release` is called once with this buffer, as `bf_releasebuffer` of `owner`'s class.
pub(crate) unsafe fn fill(
    view: *mut ffi::Py_buffer,
    flags: c_int,
    owner: &Bound<'_, PyAny>,
    memory: &Arc<dyn Memory>,
    shape: &Shape,
    readonly: bool,
) -> PyResult<()> {
    let asks = |flag: c_int| flags & flag == flag;
    if readonly && asks(ffi::PyBUF_WRITABLE) {
        return Err(PyBufferError::new_err("the array is read-only here"));
    }
    let (c, f) = (shape.is_contiguous(Order::C), shape.is_contiguous(Order::F));
    if !c && (asks(ffi::PyBUF_C_CONTIGUOUS) || !asks(ffi::PyBUF_STRIDES)) {
        return Err(PyBufferError::new_err("the array is in Fortran order, and the caller needs C order"));
    }
    if !f && asks(ffi::PyBUF_F_CONTIGUOUS) {
        return Err(PyBufferError::new_err("the array is in C order, and the caller needs Fortran order"));
    }
    let exported = Box::new(Exported {
        lengths: shape.lengths.iter().map(|length| signed(*length)).collect(),
        strides: shape.strides(),
        _memory: Arc::clone(memory),
    });
    let optional = |asked: bool, values: &[isize]| {
        if asked && !values.is_empty() { values.as_ptr().cast_mut() } else { null_mut() }
    };
    let filled = ffi::Py_buffer {
        buf: memory.pointer().cast(),
        obj: owner.clone().into_ptr(),
        len: signed(shape.bytes()),
        itemsize: signed(shape.element.dtype.size()),
        readonly: c_int::from(readonly),
        ndim: c_int::try_from(shape.lengths.len()).unwrap_or(0), // `Array` refuses more than 64 axes
        format: if asks(ffi::PyBUF_FORMAT) { shape.element.format().as_ptr().cast_mut() } else { null_mut() },
        shape: optional(asks(ffi::PyBUF_ND), &exported.lengths),
        strides: optional(asks(ffi::PyBUF_STRIDES), &exported.strides),
        suboffsets: null_mut(),
        internal: Box::into_raw(exported).cast::<c_void>(),
    };
    // SAFETY: the caller promises that `view` may be written.
    unsafe { view.write(filled) };
    Ok(())
}

/// Ends an export.
///
/// # Safety
///
/// `view` was filled by [`fill`], and is released once.
pub(crate) unsafe fn release(view: *mut ffi::Py_buffer) {
    // SAFETY: `fill` wrote the whole buffer.
    let internal = unsafe { (*view).internal };
    // SAFETY: `fill` made this pointer from a box, and the caller promises that it is released once.
    drop(unsafe { Box::from_raw(internal.cast::<Exported>()) });
}
