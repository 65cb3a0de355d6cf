//! Calls that the interpreter makes as soon as the C code that asks for them has returned.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use pyo3::ffi;
use pyo3::prelude::*;

/// A callback for a weak reference that calls a Python function later: when the object is gone, and not while it is
/// being freed.
///
/// Python code in the callback itself runs before the object's memory is freed, and the interpreter makes pending calls
/// between any two of its steps. So the callback must not be Python code.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct Soon(Py<PyAny>);

#[pymethods]
impl Soon {
    #[new]
    fn new(function: Py<PyAny>) -> Self {
        Self(function)
    }

    fn __call__(&self, py: Python<'_>, _reference: &Bound<'_, PyAny>) {
        let argument = self.0.clone_ref(py).into_ptr().cast();
        // SAFETY: `call` may be called from the interpreter's loop, with this argument, which has a reference of its
        // own.
        if unsafe { ffi::Py_AddPendingCall(Some(call), argument) } != 0 {
            call(argument); // the interpreter has room for few pending calls: too early is better than never
        }
    }
}

/// Calls a function, and reports an exception as those of destructors are.
extern "C" fn call(function: *mut c_void) -> c_int {
    Python::attach(|py| {
        // SAFETY: `__call__` made this reference, and the interpreter makes each pending call once.
        let function = unsafe { Bound::from_owned_ptr(py, function.cast()) };
        if let Err(error) = function.call0() {
            error.write_unraisable(py, Some(&function));
        }
    });
    0
}
