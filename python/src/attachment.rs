//! An array on its way from Rust to the constructor of Python's `Array`.

use std::sync::{Arc, Mutex};

use ndarray_shm::array::Description;
use pyo3::prelude::*;

use crate::export::Writers;
use crate::forks::forks;
use crate::memory::{Memory, Shape};
use crate::part::Window;

/// An array that was created or opened, on its way to the constructor of `Array`.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct Attachment(pub(crate) Mutex<Option<Content>>);

/// What an array is made of: the description is the one that it had when it was attached. A part has none, which would
/// speak of the whole.
pub(crate) struct Content {
    pub(crate) memory: Arc<dyn Memory>,
    pub(crate) shape: Shape,
    pub(crate) part: Option<Part>,
    pub(crate) description: Option<Description>,
    /// The value of `FORKS` when the memory was attached.
    pub(crate) forks: u32,
    /// What can write without a lock, of an array that shows the same memory; a part has that of its array.
    pub(crate) writers: Writers,
    /// Whether the new object counts as such as long as it lives.
    pub(crate) is_writer: bool,
}

impl Attachment {
    pub(crate) fn new(memory: Arc<dyn Memory>, shape: Shape) -> Self {
        Self::described(memory, shape, None)
    }

    /// With the description that the array had when it was attached.
    pub(crate) fn described(memory: Arc<dyn Memory>, shape: Shape, description: Option<Description>) -> Self {
        Self::of(memory, shape, description, forks(), Writers::default())
    }

    /// Of memory that an array of this process, or of the process that it was forked from, has attached.
    pub(crate) fn again(memory: Arc<dyn Memory>, shape: Shape, forks: u32) -> Self {
        Self::of(memory, shape, None, forks, Writers::default())
    }

    pub(crate) fn of(
        memory: Arc<dyn Memory>,
        shape: Shape,
        description: Option<Description>,
        forks: u32,
        writers: Writers,
    ) -> Self {
        let is_writer = false;
        Self(Mutex::new(Some(Content { memory, shape, part: None, description, forks, writers, is_writer })))
    }
}

/// A part of an attached array.
pub(crate) struct Part {
    pub(crate) window: Window,
    /// Whether the array's mapping is the private one of a frozen array.
    pub(crate) private: bool,
}
