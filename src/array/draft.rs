//! Drafts: an array that only its creator can reach, until it is published under a name.

use std::ops::Deref;

use ndarray::{ArrayView, ArrayViewMut, Dimension, ShapeBuilder};

use super::{Element, Layout, SealableDraft, SharedArray, description, view};
use crate::backend::{Directory, DraftOptions, IntoLocation, Location, PageUse, Publish, default_directory};
use crate::error::{IntoError, Result};
use crate::segment::DraftSegment;

/// Stands for the name in errors about arrays without one.
pub(crate) const NAMELESS: &str = "(nameless)";

/// An array in shared memory without a name. No other process can reach it, so filling it is ordinary, safe Rust.
///
/// [`publish`](Self::publish) gives it its name in one step, so no process ever sees it half-filled. If the draft is
/// dropped, or its process killed, before that, nothing is left behind. (Where files cannot be nameless, a killed
/// process leaves a hidden file.) A draft holds one descriptor. [`CreateOptions::try_create_with`] does both steps in
/// one call, with permissions, notes and replacement.
///
/// [`CreateOptions::try_create_with`]: crate::CreateOptions::try_create_with
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
    layout: Layout<T, D>,
    keep_descriptor: bool,
    /// The text of the description, if it is not that of the layout alone.
    description: Option<String>,
}

impl<T: Element, D: Dimension> Draft<T, D> {
    /// Creates a draft of zeros in the default directory.
    ///
    /// # Errors
    ///
    /// [`NoSpace`](crate::ErrorKind::NoSpace), [`TooLarge`](crate::ErrorKind::TooLarge), and those of
    /// [`default_directory`].
    pub fn new(shape: impl ShapeBuilder<Dim = D>) -> Result<Self> {
        let layout = Layout::new(shape)?;
        Self::in_backend(default_directory()?, layout, false, DraftOptions::default(), false)
    }

    /// Creates a draft of zeros that can be frozen instead of published. It is a type of its own because the kernel
    /// seals only memory that can never have a name.
    ///
    /// # Errors
    ///
    /// As [`SealableDraft::new`].
    pub fn new_sealable(shape: impl ShapeBuilder<Dim = D>) -> Result<SealableDraft<T, D>> {
        SealableDraft::new(shape)
    }

    /// Creates a draft of zeros; one for a counted array has room for the trailer behind the elements.
    pub(crate) fn in_backend(
        backend: Directory,
        layout: Layout<T, D>,
        counted: bool,
        options: DraftOptions,
        keep_descriptor: bool,
    ) -> Result<Self> {
        let new = if counted { DraftSegment::new_counted } else { DraftSegment::new };
        let memory = new(backend, layout.bytes(), options)?;
        Ok(Self::from_parts(memory, layout, keep_descriptor))
    }

    /// Returns on what kind of pages the elements are; see [`SharedArray::pages`].
    ///
    /// # Errors
    ///
    /// [`Os`](crate::ErrorKind::Os): /proc is not mounted.
    pub fn pages(&self) -> Result<PageUse> {
        self.memory.mapped().pages(NAMELESS)
    }

    /// Returns a view of the elements.
    ///
    /// # Panics
    ///
    /// Panics in a forked child: the draft belongs to its parent.
    #[allow(unsafe_code)]
    pub fn view(&self) -> ArrayView<'_, T, D> {
        view::require_creator(self.memory.mapped());
        // SAFETY: no other process can reach a file without a name, nor recycled memory while this process holds the
        // write locks on its leases and cells (segment/recycle.rs). Within this process, the borrow of `self` excludes
        // writers.
        unsafe { view::shared(self.memory.mapped(), &self.layout) }
    }

    /// Returns a mutable view of the elements.
    ///
    /// # Panics
    ///
    /// Panics in a forked child: the draft belongs to its parent.
    #[allow(unsafe_code)]
    pub fn view_mut(&mut self) -> ArrayViewMut<'_, T, D> {
        view::require_creator(self.memory.mapped());
        // SAFETY: no other process can reach a file without a name, nor recycled memory while this process holds the
        // write locks on its leases and cells (segment/recycle.rs). Within this process, `&mut self` excludes every
        // other access.
        let view = unsafe { view::exclusive(self.memory.mapped(), &self.layout) };
        view.expect("a draft is mapped for writing")
    }

    /// Gives the array its name, in one step. From then on other processes can open it.
    ///
    /// # Errors
    ///
    /// The error returns the draft.
    /// - [`AlreadyExists`](crate::ErrorKind::AlreadyExists): the name is taken.
    /// - [`InvalidLocation`](crate::ErrorKind::InvalidLocation), [`Reserved`](crate::ErrorKind::Reserved): the location
    ///   is not a valid name.
    pub fn publish(self, location: impl IntoLocation) -> Result<SharedArray<T, D>, IntoError<Self>> {
        match location.into_location() {
            Ok(location) => self.publish_as(&location, Publish::New),
            Err(error) => Err(IntoError::new(error, self)),
        }
    }

    /// Returns the directory that the draft is in and will be published in.
    pub fn directory(&self) -> &Directory {
        self.memory.directory()
    }

    /// Returns the parts: memory, layout, and whether to keep the descriptor.
    pub(crate) fn into_parts(self) -> (DraftSegment, Layout<T, D>, bool) {
        (self.memory, self.layout, self.keep_descriptor)
    }

    pub(crate) fn from_parts(memory: DraftSegment, layout: Layout<T, D>, keep_descriptor: bool) -> Self {
        Self { memory, layout, keep_descriptor, description: None }
    }

    pub(crate) fn set_description(&mut self, text: Option<String>) {
        self.description = text;
    }

    pub(crate) fn publish_as(self, location: &Location, mode: Publish) -> Result<SharedArray<T, D>, IntoError<Self>> {
        let Self { memory, layout, keep_descriptor, description } = self;
        let text = description.clone().unwrap_or_else(|| description::text_of::<T, D>(&layout));
        match memory.publish(location, mode, keep_descriptor, Some(text.as_bytes())) {
            Ok(segment) => Ok(SharedArray::of(segment, layout)),
            Err((error, memory)) => Err(IntoError::new(error, Self { memory, layout, keep_descriptor, description })),
        }
    }
}

impl<T, D> Deref for Draft<T, D> {
    type Target = Layout<T, D>;

    fn deref(&self) -> &Self::Target {
        &self.layout
    }
}
