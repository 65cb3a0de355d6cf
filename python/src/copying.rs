//! Copying numpy arrays into new memory, before other processes can see it.

#![allow(unsafe_code)]

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyMemoryView};

use crate::memory::{Shape, signed};

/// A numpy array, and the indices of pieces that are copied one after the other.
///
/// numpy copies, because it releases the interpreter's lock while it copies a piece, and knows every order of the axes.
/// Between the pieces signals are handled.
#[derive(FromPyObject)]
pub(crate) struct Source(Py<PyAny>, Vec<Py<PyAny>>);

impl Source {
    /// Copies the elements into the bytes of an array of this shape. Its caller has released the interpreter's lock.
    pub(crate) fn copy_to(&self, bytes: &mut [u8], shape: &Shape) -> PyResult<()> {
        Python::attach(|py| {
            let (numpy, source) = (py.import("numpy")?, self.0.bind(py));
            let (start, length) = (bytes.as_mut_ptr().cast(), signed(bytes.len()));
            // SAFETY: the bytes are valid for writing until this function returns. Until then it releases the
            // memoryview and drops the array that is made of it. No Python code gets either of them: numpy's functions
            // below are not written in Python, and a signal's handler gets no variable of this function.
            let memory = unsafe { ffi::PyMemoryView_FromMemory(start, length, ffi::PyBUF_WRITE) };
            // SAFETY: `PyMemoryView_FromMemory` returns a new reference, or null with an exception set.
            let memory = unsafe { Bound::from_owned_ptr_or_err(py, memory) }?.cast_into::<PyMemoryView>()?;
            let copied = (|| {
                let order = shape.order_name().into_pyobject(py)?;
                let arguments = [("buffer", memory.as_any()), ("order", order.as_any())];
                let what = (source.getattr("shape")?, source.getattr("dtype")?);
                let target = numpy.getattr("ndarray")?.call(what, Some(&arguments.into_py_dict(py)?))?;
                let copyto = numpy.getattr("copyto")?;
                for piece in &self.1 {
                    copyto.call1((target.get_item(piece)?, source.get_item(piece)?))?;
                    py.check_signals()?;
                }
                Ok(())
            })();
            memory.call_method0("release")?;
            copied
        })
    }
}
