//! Everything that creating and opening decide by themselves unless told otherwise.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use ndarray::{ArrayViewMut, Dimension, ShapeBuilder};

use super::layout::Layout;
use super::{ArrayReader, ArrayWriter, Draft, Element, SharedArray};
use crate::backend::{Access, Backend, DraftOptions, IntoLocation, Pages, Publish};
use crate::error::{Error, Result};
use crate::os::LockKind;
use crate::segment::locks::Wait;
use crate::segment::{Attach, Expect, Home, Segment};

/// How often opening and creating take turns while others create and unlink the same name.
const TRIES: u32 = 1000;

/// What creating does with a name that is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum CreationMode {
    /// It is an error.
    #[default]
    CreateNew,
    /// The array that has the name is opened; its size must match, its elements stay.
    OpenOrCreate,
    /// The name moves to the new array in one step; attachments of the old one keep its bytes. (A process killed in that
    /// instant may leave a file whose name begins with `.ndshm-draft-`.)
    Replace,
}

/// Options for creating and opening arrays, from [`SharedArray::options`].
///
/// ```
/// use ndarray::{Ix2, ShapeBuilder};
/// use ndarray_shm::{CreationMode, SharedArray, unlink};
///
/// let array = SharedArray::<u16, Ix2>::options()
///     .mode(CreationMode::Replace)
///     .permissions(0o640)
///     .create("options-example", (4, 5).f())?;
/// assert_eq!(array.shape(), [4, 5]);
/// unlink("options-example")?;
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "options do nothing until `create` or `open` is called"]
pub struct ArrayOptions<T, D> {
    backend: Option<Arc<dyn Backend>>,
    mode: CreationMode,
    draft: DraftOptions,
    keep_descriptor: bool,
    wait: Wait,
    elements: PhantomData<fn() -> (T, D)>,
}

impl<T: Element, D: Dimension> Default for ArrayOptions<T, D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Element, D: Dimension> ArrayOptions<T, D> {
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

    /// Uses this backend instead of the [default](crate::default_backend).
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Decides what creating does with a name that is taken.
    pub fn mode(mut self, mode: CreationMode) -> Self {
        self.mode = mode;
        self
    }

    /// Creates the file with these permission bits, whatever the umask; 0600 if not said. Windows has none.
    ///
    /// A user that may read the file may keep reading it: write access waits for its read guards without limit, and its attachment
    /// keeps memory from being used again. Other read locks that such a user keeps delay the owner for at most 10 seconds:
    /// each thread that writes, and each removal or replacement of the name. Renaming is [`TimedOut`](Error::TimedOut) then.
    pub fn permissions(mut self, bits: u32) -> Self {
        self.draft.permissions = bits & 0o777;
        self
    }

    /// Takes memory only when it is touched, and leaves holes of an opened file as they are.
    ///
    /// A process that touches memory that is not there is killed (SIGBUS); in /dev/shm, by reading too.
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

    /// Lets [`open_reader`](Self::open_reader) and [`open_writer`](Self::open_writer) wait no longer than this; zero means
    /// not at all.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.wait = if limit.is_zero() { Wait::No } else { Wait::For(limit) };
        self
    }

    /// Creates an array of zeros.
    ///
    /// # Errors
    ///
    /// As [`SharedArray::create`]; with [`CreationMode::OpenOrCreate`] also those of [`SharedArray::open`].
    pub fn create(self, location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<SharedArray<T, D>> {
        self.create_with(location, shape, |_| {})
    }

    /// Creates an array that `fill` writes before anyone else can see it; one that is opened instead is not filled.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn create_with(
        self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
        fill: impl FnOnce(ArrayViewMut<'_, T, D>),
    ) -> Result<SharedArray<T, D>> {
        self.try_create_with(location, shape, |view| {
            fill(view);
            Ok(())
        })
    }

    /// Creates an array that `fill` writes before anyone else can see it, unless it fails: then nothing was created.
    ///
    /// # Errors
    ///
    /// That of `fill`, and those of [`create`](Self::create).
    pub fn try_create_with<E: From<Error>>(
        self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
        fill: impl FnOnce(ArrayViewMut<'_, T, D>) -> Result<(), E>,
    ) -> Result<SharedArray<T, D>, E> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let layout = Layout::new::<T>(shape, home.location.as_str())?;
        // Looking first keeps a full disk from hiding that the name is taken, and a taken name from costing a fill.
        match self.mode {
            CreationMode::CreateNew => home.refuse_taken()?,
            CreationMode::OpenOrCreate => match self.attach(&home, &layout, Access::ReadWrite, None) {
                Err(Error::NotFound { .. }) => {}
                other => return Ok(other.map(|segment| SharedArray::of(segment, home, layout))?),
            },
            CreationMode::Replace => {}
        }
        let mut draft = self.draft(&home, layout.clone())?;
        fill(draft.view_mut())?;
        Ok(self.publish(draft, home, layout)?)
    }

    fn draft(&self, home: &Home, layout: Layout<D>) -> Result<Draft<T, D>> {
        // The backend knows only its directory; whoever reads the error wants to know which array it was.
        Draft::in_backend(Arc::clone(&home.backend), layout, self.draft, self.keep_descriptor)
            .map_err(|error| error.about(&home.location))
    }

    fn publish(&self, mut draft: Draft<T, D>, home: Home, layout: Layout<D>) -> Result<SharedArray<T, D>> {
        let mode = if self.mode == CreationMode::Replace { Publish::Replace } else { Publish::New };
        for _ in 0..TRIES {
            let error = match draft.publish_as(home.location.clone(), mode) {
                Ok(array) => return Ok(array),
                Err(error) => error,
            };
            if self.mode != CreationMode::OpenOrCreate || !error.error().is_already_exists() {
                return Err(error.into());
            }
            match self.attach(&home, &layout, Access::ReadWrite, None) {
                Err(Error::NotFound { .. }) => draft = error.into_inner(),
                other => return other.map(|segment| SharedArray::of(segment, home, layout)),
            }
        }
        Err(Error::WouldBlock { location: home.location.to_string() })
    }

    /// Attaches for reading and writing.
    ///
    /// # Errors
    ///
    /// As [`SharedArray::open`].
    pub fn open(self, location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<SharedArray<T, D>> {
        self.open_for(location, shape, Access::ReadWrite)
    }

    /// Attaches for reading only.
    ///
    /// # Errors
    ///
    /// As [`SharedArray::open`].
    pub fn open_readonly(
        self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
    ) -> Result<SharedArray<T, D>> {
        self.open_for(location, shape, Access::Read)
    }

    fn open_for(
        self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
        access: Access,
    ) -> Result<SharedArray<T, D>> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let layout = Layout::new::<T>(shape, home.location.as_str())?;
        let segment = self.attach(&home, &layout, access, None)?;
        Ok(SharedArray::of(segment, home, layout))
    }

    /// Attaches for reading, keeping writers out for as long as the value lives.
    ///
    /// # Errors
    ///
    /// As [`SharedArray::open_reader`]; with a [`timeout`](Self::timeout) also [`TimedOut`](Error::TimedOut) or
    /// [`WouldBlock`](Error::WouldBlock).
    pub fn open_reader(
        self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
    ) -> Result<ArrayReader<T, D>> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let layout = Layout::new::<T>(shape, home.location.as_str())?;
        let segment = self.attach(&home, &layout, Access::Read, Some(LockKind::Shared))?;
        Ok(ArrayReader::of(segment, home.location, layout))
    }

    /// Attaches for reading and writing, keeping everyone else out for as long as the value lives.
    ///
    /// # Errors
    ///
    /// As [`open_reader`](Self::open_reader).
    pub fn open_writer(
        self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
    ) -> Result<ArrayWriter<T, D>> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let layout = Layout::new::<T>(shape, home.location.as_str())?;
        let segment = self.attach(&home, &layout, Access::ReadWrite, Some(LockKind::Exclusive))?;
        Ok(ArrayWriter::of(segment, home.location, layout))
    }

    fn attach(&self, home: &Home, layout: &Layout<D>, access: Access, held: Option<LockKind>) -> Result<Segment> {
        let how = Attach {
            sparse: self.draft.pages == Pages::Sparse,
            keep_descriptor: self.keep_descriptor,
            held: held.map(|kind| (kind, self.wait)),
            ..Attach::new(access)
        };
        Segment::attach(home, Expect::Payload(layout.bytes::<T>()), how)
    }
}
