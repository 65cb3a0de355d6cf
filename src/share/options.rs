//! Everything that creating and opening a counted array decides by itself unless told otherwise.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use ndarray::{ArrayViewMut, Dimension, ShapeBuilder};

use super::handle::Handle;
use super::refcounted::{RefcountedArray, read, share_as};
use super::strategy::SharingStrategy;
use crate::array::layout::Layout;
use crate::array::{ArrayReader, CreationMode, Draft, Element};
use crate::backend::{Access, Backend, DraftOptions, IntoLocation, Pages, Publish, default_backend};
use crate::error::{Error, Result};
use crate::manager_client;
use crate::os::LockKind;
use crate::random;
use crate::segment::locks::Wait;
use crate::segment::{Attach, CountedSegment, Entry, Home};

/// How often opening and creating take turns while others create and leave under the same name.
const TRIES: u32 = 1000;

/// Options for creating, opening and attaching counted arrays, from [`RefcountedArray::options`].
#[derive(Debug, Clone)]
#[must_use = "options do nothing until `create`, `open` or `attach` is called"]
pub struct RefcountedOptions<T, D> {
    backend: Option<Arc<dyn Backend>>,
    mode: CreationMode,
    draft: DraftOptions,
    keep_descriptor: bool,
    wait: Wait,
    elements: PhantomData<fn() -> (T, D)>,
}

impl<T: Element, D: Dimension> Default for RefcountedOptions<T, D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Element, D: Dimension> RefcountedOptions<T, D> {
    /// Begins with the defaults.
    pub fn new() -> Self {
        Self {
            backend: None,
            mode: CreationMode::default(),
            draft: DraftOptions::default(),
            keep_descriptor: false,
            wait: Wait::Forever,
            elements: PhantomData,
        }
    }

    /// Uses this backend instead of the [default](crate::default_backend), or of the one that a handle names.
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Decides what creating does with a name that is taken.
    pub fn mode(mut self, mode: CreationMode) -> Self {
        self.mode = mode;
        self
    }

    /// Creates the file with these permission bits, whatever the umask; 0600 if not said. Who may not write cannot attach.
    pub fn permissions(mut self, bits: u32) -> Self {
        self.draft.permissions = bits & 0o777;
        self
    }

    /// Takes memory only when it is touched. A process that touches memory that is not there is killed (SIGBUS).
    pub fn sparse(mut self, sparse: bool) -> Self {
        self.draft.pages = self.draft.pages.with_sparse(sparse);
        self
    }

    /// Chooses what memory a new array gets; [`Pages::Auto`] if not said.
    pub fn pages(mut self, pages: Pages) -> Self {
        self.draft.pages = pages;
        self
    }

    /// Keeps one descriptor for as long as the handle lives, so that guards can be had after the name has gone.
    pub fn keep_fd(mut self, keep: bool) -> Self {
        self.keep_descriptor = keep;
        self
    }

    /// Lets [`open_reader`](Self::open_reader) wait no longer than this; zero means not at all.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.wait = if limit.is_zero() { Wait::No } else { Wait::For(limit) };
        self
    }

    /// Creates an array of zeros under a name.
    ///
    /// # Errors
    ///
    /// As [`RefcountedArray::create`]; with [`CreationMode::OpenOrCreate`] also those of [`RefcountedArray::open`].
    pub fn create(
        self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
    ) -> Result<RefcountedArray<T, D>> {
        self.create_with(location, shape, |_| {})
    }

    /// Creates an array that `fill` writes before anyone else can see it; one that is opened instead is not filled.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create); [`ShapeMismatch`](Error::ShapeMismatch) if what is opened has another shape.
    pub fn create_with(
        self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
        fill: impl FnOnce(ArrayViewMut<'_, T, D>),
    ) -> Result<RefcountedArray<T, D>> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let layout = Layout::new::<T>(shape, home.location.as_str())?;
        match self.mode {
            CreationMode::CreateNew => home.refuse_taken_by_the_living()?,
            CreationMode::OpenOrCreate => match self.open_same(&home, &layout) {
                Err(Error::NotFound { .. }) => {}
                other => return other,
            },
            CreationMode::Replace => {}
        }
        let mut draft = self.draft(&home.backend, layout.clone()).map_err(|error| error.about(&home.location))?;
        fill(draft.view_mut());
        let mode = if self.mode == CreationMode::Replace { Publish::Replace } else { Publish::New };
        for _ in 0..TRIES {
            let error = match share_as(draft, &home, Some(mode), random::number()) {
                Ok(array) => return Ok(array),
                Err(error) => error,
            };
            if self.mode != CreationMode::OpenOrCreate || !error.error().is_already_exists() {
                return Err(error.into());
            }
            match self.open_same(&home, &layout) {
                Err(Error::NotFound { .. }) => draft = error.into_inner(),
                other => return other,
            }
        }
        Err(Error::WouldBlock { location: home.location.to_string() })
    }

    /// Makes an array that other processes can be given, by descriptor or under a name that nobody guesses.
    ///
    /// # Errors
    ///
    /// As [`Draft::share`].
    pub fn share(self, strategy: SharingStrategy, shape: impl ShapeBuilder<Dim = D>) -> Result<RefcountedArray<T, D>> {
        self.share_with(strategy, shape, |_| {})
    }

    /// As [`share`](Self::share), with elements that `fill` writes.
    ///
    /// # Errors
    ///
    /// As [`Draft::share`].
    pub fn share_with(
        self,
        strategy: SharingStrategy,
        shape: impl ShapeBuilder<Dim = D>,
        fill: impl FnOnce(ArrayViewMut<'_, T, D>),
    ) -> Result<RefcountedArray<T, D>> {
        let backend = match &self.backend {
            Some(backend) => Arc::clone(backend),
            None => default_backend()?,
        };
        let layout = Layout::new::<T>(shape, crate::array::NAMELESS)?;
        let mut draft = self.draft(&backend, layout)?;
        fill(draft.view_mut());
        Ok(draft.share(strategy)?)
    }

    fn draft(&self, backend: &Arc<dyn Backend>, layout: Layout<D>) -> Result<Draft<T, D>> {
        Draft::with_trailer(Arc::clone(backend), layout, self.draft, self.keep_descriptor)
    }

    /// Attaches for reading and writing.
    ///
    /// # Errors
    ///
    /// As [`RefcountedArray::open`].
    pub fn open(self, location: impl IntoLocation) -> Result<RefcountedArray<T, D>> {
        self.open_for(location, Access::ReadWrite)
    }

    /// Attaches with the elements mapped read-only.
    ///
    /// # Errors
    ///
    /// As [`RefcountedArray::open`].
    pub fn open_readonly(self, location: impl IntoLocation) -> Result<RefcountedArray<T, D>> {
        self.open_for(location, Access::Read)
    }

    pub(super) fn open_for(self, location: impl IntoLocation, access: Access) -> Result<RefcountedArray<T, D>> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let (memory, layout, id) = self.attach_segment(&home, access, None, Entry::Name)?;
        Ok(RefcountedArray::of(memory, layout, id))
    }

    /// Opens what has the name, which must be what was to be created.
    fn open_same(&self, home: &Home, layout: &Layout<D>) -> Result<RefcountedArray<T, D>> {
        let (memory, found, id) = self.attach_segment(home, Access::ReadWrite, None, Entry::Name)?;
        if found != *layout {
            let describe = |layout: &Layout<D>| format!("{:?} in {} order", layout.dim.slice(), layout.order);
            let (expected, found) = (describe(layout), describe(&found));
            return Err(Error::ShapeMismatch { location: home.location.to_string(), expected, found });
        }
        Ok(RefcountedArray::of(memory, found, id))
    }

    /// Attaches for reading, keeping writers out for as long as the value lives.
    ///
    /// # Errors
    ///
    /// As [`RefcountedArray::open_reader`]; with a [`timeout`](Self::timeout) also [`TimedOut`](Error::TimedOut) or
    /// [`WouldBlock`](Error::WouldBlock).
    pub fn open_reader(self, location: impl IntoLocation) -> Result<ArrayReader<T, D>> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let (memory, layout, _) = self.attach_segment(&home, Access::Read, Some(LockKind::Shared), Entry::Name)?;
        Ok(ArrayReader::of(memory, home.location, layout))
    }

    /// Attaches with a handle, using it up if it is for one.
    ///
    /// # Errors
    ///
    /// [`HandleSpent`](Error::HandleSpent), and those of [`RefcountedArray::open`].
    pub fn attach(self, handle: &Handle) -> Result<RefcountedArray<T, D>> {
        let home = handle.home(self.backend.as_ref())?;
        let (memory, layout, id) = self.attach_segment(&home, Access::ReadWrite, None, handle.entry())?;
        Ok(RefcountedArray::of(memory, layout, id))
    }

    /// Attaches with a handle, with the elements mapped read-only.
    ///
    /// # Errors
    ///
    /// As [`attach`](Self::attach).
    pub fn attach_readonly(self, handle: &Handle) -> Result<RefcountedArray<T, D>> {
        let home = handle.home(self.backend.as_ref())?;
        let (memory, layout, id) = self.attach_segment(&home, Access::Read, None, handle.entry())?;
        Ok(RefcountedArray::of(memory, layout, id))
    }

    /// Attaches with a handle for reading, keeping writers out for as long as the value lives.
    ///
    /// # Errors
    ///
    /// As [`attach`](Self::attach) and [`open_reader`](Self::open_reader).
    pub fn attach_reader(self, handle: &Handle) -> Result<ArrayReader<T, D>> {
        let home = handle.home(self.backend.as_ref())?;
        let (memory, layout, _) = self.attach_segment(&home, Access::Read, Some(LockKind::Shared), handle.entry())?;
        Ok(ArrayReader::of(memory, home.location, layout))
    }

    fn attach_segment(
        &self,
        home: &Home,
        access: Access,
        held: Option<LockKind>,
        entry: Entry,
    ) -> Result<(CountedSegment, Layout<D>, u128)> {
        let how = Attach {
            sparse: self.draft.pages == Pages::Sparse,
            keep_descriptor: self.keep_descriptor,
            farewell: Some(manager_client::remind),
            held: held.map(|kind| (kind, self.wait)),
            ..Attach::new(access)
        };
        let read = |trailer: &_| read::<T, D>(trailer, home);
        manager_client::announce(&*home.backend); // before there is anything that our death could leave behind
        let (memory, (layout, id)) = CountedSegment::attach(home, how, entry, read)?;
        Ok((memory, layout, id))
    }
}
