//! The handles of this process that still protect their arrays, as Python sees them. Issuing a handle and noting it is
//! one step, so that no handle is issued that Python does not know, whatever interrupts it.

use std::sync::Arc;
use std::time::Instant;

use ndarray_shm::counted::SharingStrategy;
use ndarray_shm::{DType, Error, Order};
use pyo3::prelude::*;

use crate::arguments::seconds;
use crate::array::RawArray;
use crate::attachment::Attachment;
use crate::errors::exception;
use crate::memory::{ElementType, Shape};
use crate::notes::{self, Page};
use crate::recycle::Shelf;
use crate::shared::create;

/// Every handle of this process that has not expired.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct InFlight(&'static Page);

#[pymethods]
impl InFlight {
    /// Begins the notes of a process: when the package is imported, and in a forked child, which has one thread then.
    #[new]
    fn new() -> Self {
        Self(notes::begin())
    }

    /// Returns the handle of an array, good for one process more, or for any number of processes if it is reusable. It
    /// protects the array for `grace` seconds from now.
    fn issue(&self, py: Python<'_>, array: &Bound<'_, RawArray>, reusable: bool, grace: f64) -> PyResult<String> {
        let grace = seconds(grace)?;
        let memory = array.get().memory(py)?;
        if let Some(counted) = memory.counted().filter(|_| !memory.name().is_empty()) {
            // A few words of shared memory change. (An array without a name gets one, by calls of the system.)
            if let Some(issued) = self.0.try_with(|notes| notes.issue(counted, reusable, grace)) {
                return issued.map_err(|error| exception(py, &error));
            }
        }
        array.get().counted(py, |array| self.0.with(|notes| notes.issue(array, reusable, grace)))
    }

    /// Creates a counted array of bytes, in memory that this process has used before if it can. Also returns whether
    /// the bytes are zeros.
    ///
    /// At most `most` bytes are kept to be used again.
    fn share_bytes(&self, py: Python<'_>, length: usize, most: usize) -> PyResult<(Attachment, bool)> {
        let shape =
            Shape { element: ElementType { dtype: DType::U8, is_bool: false }, lengths: vec![length], order: Order::C };
        let page = self.0;
        let made = py.detach(|| {
            if let Some((memory, before)) = page.with_shelf(|shelf| shelf.take(length))? {
                page.with(|notes| notes.forget_array(before));
                return Ok((memory, false));
            }
            let is_kept = page.with_shelf(|shelf| shelf.has_room(length, most));
            let memory = create(&shape, SharingStrategy::FileSystem, is_kept, |_| ())?;
            if is_kept {
                page.with_shelf(|shelf| shelf.keep(Arc::clone(&memory), length));
            }
            Ok((memory, true))
        });
        let (memory, is_zeroed) = made.map_err(|error: Error| exception(py, &error))?;
        Ok((Attachment::new(memory, shape), is_zeroed))
    }

    /// Lets go of the memory that is kept to be used again.
    fn clear_recycled(&self, py: Python<'_>) {
        py.detach(|| self.0.with_shelf(Shelf::clear));
    }

    /// Returns all handles.
    fn handles(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| self.0.with(|notes| notes.texts()))
    }

    /// Returns the reusable handles that protect their arrays for more than `after` seconds.
    fn reusable_after(&self, py: Python<'_>, after: f64) -> PyResult<Vec<String>> {
        let soon = Instant::now() + seconds(after)?;
        Ok(py.detach(|| self.0.with(|notes| notes.reusable_after(soon))))
    }

    /// Forgets a handle.
    fn forget(&self, py: Python<'_>, handle: &str) {
        py.detach(|| self.0.with(|notes| notes.forget(handle)));
    }
}
