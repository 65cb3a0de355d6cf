//! Locks, and views of the elements that end with them.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use ndarray_shm::array::ArrayLock;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::export::{self, Elements};

/// A lock on a whole array. The kernel releases it when the process dies.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct Lock {
    held: Mutex<Option<ArrayLock>>,
    elements: Elements,
    write: bool,
}

impl Lock {
    pub(crate) fn new(held: ArrayLock, elements: Elements, write: bool) -> Self {
        Self { held: Mutex::new(Some(held)), elements, write }
    }
}

#[pymethods]
impl Lock {
    /// Returns an exporter of the elements.
    fn view(&self) -> PyResult<View> {
        if self.held.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return Err(PyBufferError::new_err("the lock has been released"));
        }
        Ok(View::new(self.elements.clone(), self.write))
    }

    /// Releases the lock. Does nothing if it is released already.
    fn release(&self, py: Python<'_>) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(held));
    }
}

/// Exports the elements under a lock.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct View {
    elements: Elements,
    writable: bool,
    open: AtomicBool,
}

impl View {
    pub(crate) fn new(elements: Elements, writable: bool) -> Self {
        Self { elements, writable, open: AtomicBool::new(true) }
    }
}

#[pymethods]
impl View {
    /// Refuses further exports. Existing exports stay valid.
    fn end(&self) {
        self.open.store(false, Ordering::Release);
    }

    #[allow(unsafe_code)]
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        if !this.open.load(Ordering::Acquire) {
            return Err(PyBufferError::new_err("the guard has ended: take another one"));
        }
        // SAFETY: the interpreter calls this with a buffer to fill, and `__releasebuffer__` releases it.
        unsafe { export::fill(view, flags, slf.as_any(), &this.elements, !this.writable) }
    }

    #[allow(unsafe_code)]
    #[allow(clippy::unused_self)] // the interpreter's signature
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: the interpreter releases each buffer that `__getbuffer__` filled once.
        unsafe { export::release(view) };
    }
}
