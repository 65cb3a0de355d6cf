//! The buffer protocol: how `memoryview`, numpy and other libraries reach the elements without a copy.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ndarray_shm::Order;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::memory::{ElementType, Memory, signed};
use crate::part::Window;

/// An owner that keeps exported memory mapped and its array attached.
pub(crate) trait Kept: Send + Sync {}

impl Kept for Arc<dyn Memory> {}

/// Counts what can write to the elements of an array without a lock. `freeze` waits for none of these, and is refused
/// while there are any.
#[derive(Debug, Default, Clone)]
pub(crate) struct Writers(Arc<AtomicUsize>);

impl Writers {
    /// Counts one more until the result is dropped.
    pub(crate) fn enter(&self) -> Writer {
        self.0.fetch_add(1, Ordering::Relaxed);
        Writer(self.clone())
    }

    /// Returns how many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// One of the counted writers.
#[derive(Debug)]
pub(crate) struct Writer(Writers);

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Elements that can be exported: their address and layout, and the owner that keeps them mapped.
#[derive(Clone)]
pub(crate) struct Elements {
    address: Address,
    element: ElementType,
    window: Window,
    kept: Arc<dyn Kept>,
}

/// The address of the first element.
#[derive(Clone, Copy)]
struct Address(*mut u8);

// SAFETY: this crate only copies the address. Reads and writes through it are Python's, beyond what Rust can prove.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Elements {
    /// Describes elements that `kept` keeps mapped. Strides are in bytes.
    pub(crate) fn new(
        address: *mut u8,
        element: ElementType,
        lengths: Vec<usize>,
        strides: Vec<isize>,
        kept: Arc<dyn Kept>,
    ) -> Self {
        Self { address: Address(address), element, window: Window { offset: 0, lengths, strides }, kept }
    }

    /// Describes elements of an array, which are inside of it.
    pub(crate) fn of(memory: &Arc<dyn Memory>, element: ElementType, window: &Window) -> Self {
        let (address, kept) = (memory.pointer().wrapping_offset(window.offset), Arc::new(Arc::clone(memory)));
        Self { address: Address(address), element, window: window.clone(), kept }
    }

    /// Returns the address of the first element.
    pub(crate) fn address(&self) -> *mut u8 {
        self.address.0
    }

    /// Returns lengths and strides.
    pub(crate) fn window(&self) -> &Window {
        &self.window
    }

    fn is_contiguous(&self, order: Order) -> bool {
        self.window.is_contiguous(self.element.dtype.size(), order)
    }
}

/// The data that an exported buffer points to. It lives until the buffer is released, and keeps the memory mapped until
/// then.
struct ExportedArray {
    lengths: Vec<isize>,
    strides: Vec<isize>,
    _writer: Option<Writer>,
    _kept: Arc<dyn Kept>,
}

/// Fills `view` with the elements, for the exporting object `owner`. `writer` counts the buffer as long as it lives.
///
/// # Errors
///
/// `BufferError`: the request needs another order of the axes, or write access to a read-only buffer.
///
/// # Safety
///
/// - `view` points to a `Py_buffer` that the interpreter wants filled: the argument of `bf_getbuffer`.
/// - `release` is called once with this buffer, as `bf_releasebuffer` of `owner`'s class.
pub(crate) unsafe fn fill(
    view: *mut ffi::Py_buffer,
    flags: c_int,
    owner: &Bound<'_, PyAny>,
    elements: &Elements,
    readonly: bool,
    writer: Option<Writer>,
) -> PyResult<()> {
    let asks = |flag: c_int| flags & flag == flag;
    if readonly && asks(ffi::PyBUF_WRITABLE) {
        return Err(PyBufferError::new_err("the array is read-only here"));
    }
    let (c, f) = (elements.is_contiguous(Order::C), elements.is_contiguous(Order::F));
    if !c && (asks(ffi::PyBUF_C_CONTIGUOUS) || !asks(ffi::PyBUF_STRIDES)) {
        return Err(PyBufferError::new_err("the elements are not in C order, and the caller needs C order"));
    }
    if !f && asks(ffi::PyBUF_F_CONTIGUOUS) {
        return Err(PyBufferError::new_err(
            "the elements are not in Fortran order, and the caller needs Fortran order",
        ));
    }
    if !c && !f && asks(ffi::PyBUF_ANY_CONTIGUOUS) {
        return Err(PyBufferError::new_err("the elements are not contiguous, and the caller needs contiguous ones"));
    }
    let exported = Box::new(ExportedArray {
        lengths: elements.window.lengths.iter().map(|length| signed(*length)).collect(),
        strides: elements.window.strides.clone(),
        _writer: writer,
        _kept: Arc::clone(&elements.kept),
    });
    let optional = |asked: bool, values: &[isize]| {
        if asked && !values.is_empty() { values.as_ptr().cast_mut() } else { null_mut() }
    };
    let item = signed(elements.element.dtype.size());
    let filled = ffi::Py_buffer {
        buf: elements.address.0.cast(),
        obj: owner.clone().into_ptr(),
        len: exported.lengths.iter().product::<isize>() * item,
        itemsize: item,
        readonly: c_int::from(readonly),
        ndim: c_int::try_from(elements.window.lengths.len()).unwrap_or(0), // an array has at most 64 axes
        format: if asks(ffi::PyBUF_FORMAT) { elements.element.format().as_ptr().cast_mut() } else { null_mut() },
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
    drop(unsafe { Box::from_raw(internal.cast::<ExportedArray>()) });
}
