//! What is done when a library has let go of an array that it borrowed.

use pyo3::prelude::*;

use crate::errors::exception;
use crate::memory::Settle;

/// A counted array that a library has borrowed by descriptor. The library closes that without a word, so the array must
/// be looked at.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct Loan(pub(crate) Settle);

#[pymethods]
impl Loan {
    /// Removes the array, unless a process has it. Returns whether it is settled: the array is gone, or a handle in
    /// flight keeps it.
    fn settle(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(&self.0).map_err(|error| exception(py, &error))
    }
}
