//! A draft: an array that only its maker can reach, until it is published under a name or frozen.

use std::marker::PhantomData;

use ndarray::{ArrayView, ArrayViewMut, Dimension, ShapeBuilder};

use super::layout::{Layout, Order};
use super::{Element, SealableDraft, SharedArray, description, view};
use crate::backend::{Directory, DraftOptions, IntoLocation, Location, PageUse, Publish, default_backend};
use crate::error::{IntoError, Result};
use crate::segment::{DraftSegment, Home};

/// What stands for the name in errors about arrays that have none.
pub(crate) const NAMELESS: &str = "(nameless)";

/// An array in shared memory that has no name yet, so that filling it is ordinary, safe Rust.
///
/// [`publish`](Self::publish) gives it its name in one step: nobody ever sees it half-made. Dropped or killed before that,
/// it leaves nothing behind (killed where files cannot be nameless: a hidden file). It costs one descriptor while it lives.
///
/// ```
/// use ndarray_shm::Draft;
///
/// let mut draft = Draft::<f32, _>::new((2, 3))?;
/// draft.view_mut().fill(1.5);
/// let array = draft.publish("draft-example")?;
/// assert_eq!(array.read()?.sum(), 9.0);
/// ndarray_shm::unlink("draft-example")?;
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug)]
pub struct Draft<T, D> {
    memory: DraftSegment,
    layout: Layout<D>,
    keep_descriptor: bool,
    elements: PhantomData<T>,
}

impl<T: Element, D: Dimension> Draft<T, D> {
    /// Makes an array of zeros in the default backend.
    ///
    /// # Errors
    ///
    /// [`NoSpace`](crate::Error::NoSpace), [`TooLarge`](crate::Error::TooLarge), and those of [`default_backend`].
    pub fn new(shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
        let layout = Layout::new::<T>(shape, NAMELESS)?;
        Self::in_backend(default_backend()?, layout, false, DraftOptions::default(), false)
    }

    /// Makes an array of zeros that can be frozen instead of published: the kernel seals only memory that has no name
    /// and never can have one.
    ///
    /// # Errors
    ///
    /// As [`SealableDraft::new`].
    pub fn new_sealable(shape: impl ShapeBuilder<Dim = D>) -> Result<SealableDraft<T, D>> {
        SealableDraft::new(shape)
    }

    /// Makes an array of zeros, with room for a trailer behind them if it is to be counted.
    pub(crate) fn in_backend(
        backend: Directory,
        layout: Layout<D>,
        counted: bool,
        options: DraftOptions,
        keep_descriptor: bool,
    ) -> Result<Self> {
        let new = if counted { DraftSegment::new_counted } else { DraftSegment::new };
        let memory = new(backend, layout.bytes::<T>(), options)?;
        Ok(Self { memory, layout, keep_descriptor, elements: PhantomData })
    }

    /// Returns the lengths of the axes.
    pub fn shape(&self) -> &[usize] {
        self.layout.dim.slice()
    }

    /// Returns the order of the axes in memory.
    pub fn order(&self) -> Order {
        self.layout.order
    }

    /// Tells on what pages the elements are; see [`SharedArray::pages`].
    ///
    /// # Errors
    ///
    /// [`Os`](crate::Error::Os): /proc is not mounted.
    pub fn pages(&self) -> Result<PageUse> {
        self.memory.segment().pages(NAMELESS)
    }

    /// Looks at the elements.
    ///
    /// # Panics
    ///
    /// In a forked child: the draft is its parent's.
    #[allow(unsafe_code)]
    pub fn view(&self) -> ArrayView<'_, T, D> {
        view::require_creator(self.memory.segment());
        // SAFETY: no other process can reach a file without a name, nor one that was recycled, whose locks keep everybody away
        // (segment/recycle.rs); in this one the borrow of `self` keeps writers out.
        unsafe { view::shared(self.memory.segment(), &self.layout) }
    }

    /// Looks at and writes to the elements.
    ///
    /// # Panics
    ///
    /// In a forked child: the draft is its parent's.
    #[allow(unsafe_code)]
    pub fn view_mut(&mut self) -> ArrayViewMut<'_, T, D> {
        view::require_creator(self.memory.segment());
        // SAFETY: no other process can reach a file without a name, nor one that was recycled, whose locks keep everybody away
        // (segment/recycle.rs); in this one `&mut self` keeps everyone else out.
        let view = unsafe { view::exclusive(self.memory.segment(), &self.layout) };
        view.expect("a draft is mapped for writing")
    }

    /// Gives the array its name: from this moment others can open it.
    ///
    /// # Errors
    ///
    /// The error gives the draft back. [`AlreadyExists`](crate::Error::AlreadyExists): the name is taken.
    /// [`InvalidLocation`](crate::Error::InvalidLocation), [`Reserved`](crate::Error::Reserved): it cannot be a name.
    pub fn publish(self, location: impl IntoLocation) -> Result<SharedArray<T, D>, IntoError<Self>> {
        match location.into_location() {
            Ok(location) => self.publish_as(location, Publish::New),
            Err(error) => Err(IntoError::new(error, self)),
        }
    }

    /// Returns where it will have its name.
    pub(crate) fn backend(&self) -> Directory {
        self.memory.backend().clone()
    }

    pub(crate) fn layout(&self) -> &Layout<D> {
        &self.layout
    }

    /// Takes it apart: memory, layout, and whether the descriptor is to be kept.
    pub(crate) fn into_parts(self) -> (DraftSegment, Layout<D>, bool) {
        (self.memory, self.layout, self.keep_descriptor)
    }

    pub(crate) fn from_parts(memory: DraftSegment, layout: Layout<D>, keep_descriptor: bool) -> Self {
        Self { memory, layout, keep_descriptor, elements: PhantomData }
    }

    pub(crate) fn publish_as(self, location: Location, mode: Publish) -> Result<SharedArray<T, D>, IntoError<Self>> {
        let Self { memory, layout, keep_descriptor, elements } = self;
        let backend = memory.backend().clone();
        let description = description::text_of::<T, D>(&layout);
        match memory.publish(&location, mode, keep_descriptor, Some(description.as_bytes())) {
            Ok(segment) => Ok(SharedArray::of(segment, Home { backend, location }, layout)),
            Err((error, memory)) => Err(IntoError::new(error, Self { memory, layout, keep_descriptor, elements })),
        }
    }
}
