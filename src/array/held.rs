//! Access that is held as long as the array is attached. The cells are locked on the mapping's own open file
//! description, so it costs no descriptor.

use std::ops::Deref;

use ndarray::{ArrayView, ArrayViewMut, Dimension, ShapeBuilder};

use super::memory::ArrayMemory;
use super::{Element, Layout, OpenOptions, view};
use crate::backend::{IntoLocation, Location};
use crate::error::Result;

/// An array attached for reading. It excludes writers until it is dropped.
///
/// If another thread was spawning a process when the array was opened, the lock can last a moment longer: until the
/// child calls exec.
///
/// It costs no descriptor (on overlayfs: one). For short accesses use [`SharedArray::read`](super::SharedArray::read).
/// [`OpenOptions`] attaches with a timeout, to counted arrays and by handle.
#[derive(Debug)]
pub struct ArrayReader<T, D> {
    memory: ArrayMemory,
    layout: Layout<T, D>,
}

impl<T: Element, D: Dimension> ArrayReader<T, D> {
    /// Attaches to a plain array. Waits until the lock is free.
    ///
    /// # Errors
    ///
    /// As [`SharedArray::open`](super::SharedArray::open), and [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock): this
    /// thread holds a conflicting lock.
    pub fn open(location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
        OpenOptions::new().open_reader(location, shape)
    }

    /// Attaches to a plain array, with the shape and order of its description. Waits until the lock is free.
    ///
    /// # Errors
    ///
    /// As [`SharedArray::open_dyn`](super::SharedArray::open_dyn), and
    /// [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock): this thread holds a conflicting lock.
    pub fn open_dyn(location: impl IntoLocation) -> Result<Self> {
        OpenOptions::new().open_reader_dyn(location)
    }

    pub(crate) fn of(memory: impl Into<ArrayMemory>, layout: Layout<T, D>) -> Self {
        Self { memory: memory.into(), layout }
    }

    /// Returns a view of the elements.
    #[allow(unsafe_code)]
    pub fn view(&self) -> ArrayView<'_, T, D> {
        // SAFETY: the mapping's own description keeps every cell locked until it is unmapped, so no other process or
        // handle writes. Writing through this handle needs `&mut self`.
        unsafe { view::shared(self.memory.segment(), &self.layout) }
    }

    /// Returns the name under which the array was attached.
    pub fn location(&self) -> &Location {
        self.memory.segment().location()
    }
}

impl<T, D> Deref for ArrayReader<T, D> {
    type Target = Layout<T, D>;

    fn deref(&self) -> &Self::Target {
        &self.layout
    }
}

/// An array attached for writing. It excludes all other readers and writers until it is dropped.
///
/// If another thread was spawning a process when the array was opened, the lock can last a moment longer: until the
/// child calls exec.
///
/// It dereferences to a reader. It costs no descriptor (on overlayfs: one). For short accesses use
/// [`SharedArray::write`](super::SharedArray::write). [`OpenOptions`] attaches with a timeout.
#[derive(Debug)]
pub struct ArrayWriter<T, D> {
    /// Mapped for writing, and all cells are locked for writing.
    array: ArrayReader<T, D>,
}

impl<T: Element, D: Dimension> ArrayWriter<T, D> {
    /// Attaches to a plain array. Waits until the lock is free.
    ///
    /// # Errors
    ///
    /// As [`ArrayReader::open`].
    pub fn open(location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
        OpenOptions::new().open_writer(location, shape)
    }

    /// Attaches to a plain array, with the shape and order of its description. Waits until the lock is free.
    ///
    /// # Errors
    ///
    /// As [`ArrayReader::open_dyn`].
    pub fn open_dyn(location: impl IntoLocation) -> Result<Self> {
        OpenOptions::new().open_writer_dyn(location)
    }

    pub(super) fn of(memory: impl Into<ArrayMemory>, layout: Layout<T, D>) -> Self {
        Self { array: ArrayReader::of(memory, layout) }
    }

    /// Returns a mutable view of the elements.
    #[allow(unsafe_code)]
    #[allow(clippy::missing_panics_doc)] // a writer is never mapped read-only
    pub fn view_mut(&mut self) -> ArrayViewMut<'_, T, D> {
        let ArrayReader { memory, layout } = &mut self.array;
        // SAFETY: as in `ArrayReader::view`, with write locks; `&mut self` excludes every other view of this handle.
        let view = unsafe { view::exclusive(memory.segment(), layout) };
        view.expect("a writer is mapped for writing")
    }
}

impl<T, D> Deref for ArrayWriter<T, D> {
    type Target = ArrayReader<T, D>;

    fn deref(&self) -> &Self::Target {
        &self.array
    }
}
