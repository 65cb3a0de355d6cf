//! Everything that creating and attaching decide by themselves unless told otherwise, for plain and counted arrays alike.

use std::marker::PhantomData;

use ndarray::{ArrayViewMut, Dimension, ShapeBuilder};

use super::layout::Layout;
use super::{Draft, Element, SharedArray, description};
use crate::backend::{Access, Directory, DraftOptions, IntoLocation, Pages, Publish, common_settings};
use crate::error::{Error, IntoError, Result};
use crate::segment::{Attach, Home, Segment};

/// How often opening and creating take turns while others create and remove the same name.
const TRIES: u32 = 1000;

/// What creating does with a name that is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum CreationMode {
    /// It is an error.
    #[default]
    CreateNew,
    /// The array that has the name is opened for reading and writing. Its size must match, and its type, shape and order where it
    /// [says](super::Description) what it is; elements and permissions stay, and with [`Pages::Sparse`] its holes.
    OpenOrCreate,
    /// The name moves to the new array in one step; attachments of the old one keep its bytes. (A process killed in that
    /// instant may leave a file whose name begins with `.ndshm-draft-`.)
    Replace,
}

/// An array that can be created under a name: what is different for plain and for counted ones.
#[allow(private_interfaces)] // not exported: a bound that nothing outside can name or meet
pub trait Creatable: Sized {
    /// The element type.
    type Element: Element;
    /// The type of the shape.
    type Dim: Dimension;
    /// Whether its file has a trailer.
    const COUNTED: bool;

    /// Refuses a name that is taken.
    fn refuse_taken(home: &Home) -> Result<()>;

    /// Opens what has the name, if it is what was to be created.
    fn open_same(home: &Home, layout: &Layout<Self::Dim>, how: Attach) -> Result<Self>;

    /// Gives a draft its name.
    fn publish(draft: DraftOf<Self>, home: &Home, mode: Publish) -> Result<Self, IntoError<DraftOf<Self>>>;
}

/// An array that can be attached to: how, unless its options say otherwise.
#[allow(private_interfaces)] // as above
pub trait Attachable: Sized {
    /// How it is attached.
    fn how() -> Attach;
}

/// What becomes such an array.
pub(crate) type DraftOf<A> = Draft<<A as Creatable>::Element, <A as Creatable>::Dim>;

/// Options for creating a [`SharedArray`] or a [`RefcountedArray`](crate::RefcountedArray).
///
/// # Examples
///
/// ```
/// use ndarray::{Ix2, ShapeBuilder};
/// use ndarray_shm::{unlink, CreateOptions, CreationMode, SharedArray};
///
/// let options = CreateOptions::<SharedArray<u16, Ix2>>::new().permissions(0o640);
/// let array = options.clone().mode(CreationMode::Replace).create("options-example", (4, 5).f())?;
/// assert_eq!(array.shape(), [4, 5]);
/// unlink("options-example")?;
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "options do nothing until `create` is called"]
pub struct CreateOptions<A> {
    pub(crate) backend: Option<Directory>,
    pub(crate) mode: CreationMode,
    draft: DraftOptions,
    keep_descriptor: bool,
    array: PhantomData<fn() -> A>,
}

// Not derived: arrays cannot be cloned, but what is said about them can.
impl<A> Clone for CreateOptions<A> {
    fn clone(&self) -> Self {
        Self { backend: self.backend.clone(), ..*self }
    }
}

impl<A: Creatable> Default for CreateOptions<A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A: Creatable> CreateOptions<A> {
    /// Begins with the defaults: the default backend, mode 0600, all memory taken at once, a name that must be free.
    pub fn new() -> Self {
        let (mode, draft) = (CreationMode::default(), DraftOptions::default());
        Self { backend: None, mode, draft, keep_descriptor: false, array: PhantomData }
    }

    common_settings! {
        /// A user that may read a plain array's file may keep reading it: write access waits for its read guards without limit, and its
        /// attachment keeps memory from being used again. Other read locks that such a user keeps delay the owner for at most
        /// 10 seconds: each thread that writes, and each removal or replacement of the name. Renaming is
        /// [`TimedOut`](Error::TimedOut) then. A counted array cannot be attached without the right to write, for attaching counts.
    }

    /// Decides what creating does with a name that is taken.
    pub fn mode(mut self, mode: CreationMode) -> Self {
        self.mode = mode;
        self
    }

    /// Keeps one descriptor for as long as the array lives, so that guards can be had after the name has gone.
    pub fn keep_fd(mut self, keep: bool) -> Self {
        self.keep_descriptor = keep;
        self
    }

    /// Creates an array of zeros.
    ///
    /// # Errors
    ///
    /// As [`SharedArray::create`]; with [`CreationMode::OpenOrCreate`] also those of opening.
    pub fn create(&self, location: impl IntoLocation, shape: impl ShapeBuilder<Dim = A::Dim>) -> Result<A> {
        self.create_with(location, shape, |_| {})
    }

    /// Creates an array that `fill` writes before anyone else can see it; one that is opened instead is not filled.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn create_with(
        &self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = A::Dim>,
        fill: impl FnOnce(ArrayViewMut<'_, A::Element, A::Dim>),
    ) -> Result<A> {
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
        &self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = A::Dim>,
        fill: impl FnOnce(ArrayViewMut<'_, A::Element, A::Dim>) -> Result<(), E>,
    ) -> Result<A, E> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let layout = Layout::new::<A::Element>(shape, home.location.as_str())?;
        let (sparse, keep_descriptor) = (self.draft.pages == Pages::Sparse, self.keep_descriptor);
        let open =
            || A::open_same(&home, &layout, Attach { sparse, keep_descriptor, ..Attach::new(Access::ReadWrite) });
        // Looking first keeps a full disk from hiding that the name is taken, and a taken name from costing a fill.
        match self.mode {
            CreationMode::CreateNew => A::refuse_taken(&home)?,
            CreationMode::OpenOrCreate => match open() {
                Err(Error::NotFound { .. }) => {}
                other => return Ok(other?),
            },
            CreationMode::Replace => {}
        }
        // The backend knows only its directory; the error is about the array.
        let mut draft = self.draft(&home.backend, layout.clone()).map_err(|error| error.about(&home.location))?;
        fill(draft.view_mut())?;
        let mode = if self.mode == CreationMode::Replace { Publish::Replace } else { Publish::New };
        for _ in 0..TRIES {
            let error = match A::publish(draft, &home, mode) {
                Ok(array) => return Ok(array),
                Err(error) => error,
            };
            if self.mode != CreationMode::OpenOrCreate || !error.error().is_already_exists() {
                return Err(Error::from(error).into());
            }
            match open() {
                Err(Error::NotFound { .. }) => draft = error.into_inner(),
                other => return Ok(other?),
            }
        }
        Err(Error::WouldBlock { location: home.location.to_string() }.into())
    }

    pub(crate) fn draft(&self, backend: &Directory, layout: Layout<A::Dim>) -> Result<DraftOf<A>> {
        Draft::in_backend(backend.clone(), layout, A::COUNTED, self.draft, self.keep_descriptor)
    }
}

#[allow(private_interfaces)] // as above
impl<T: Element, D: Dimension> Creatable for SharedArray<T, D> {
    type Element = T;
    type Dim = D;
    const COUNTED: bool = false;

    fn refuse_taken(home: &Home) -> Result<()> {
        home.refuse_taken()
    }

    fn open_same(home: &Home, layout: &Layout<D>, how: Attach) -> Result<Self> {
        let check = |length, text: Option<&[u8]>| description::check::<T, D>(layout, length, text, &home.location);
        let (segment, ()) = Segment::attach_described(home, how, check)?;
        Ok(Self::of(segment, home.clone(), layout.clone()))
    }

    fn publish(draft: Draft<T, D>, home: &Home, mode: Publish) -> Result<Self, IntoError<Draft<T, D>>> {
        draft.publish_as(home.location.clone(), mode)
    }
}

/// Options for attaching to an array that exists, as a [`SharedArray`], [`RefcountedArray`](crate::RefcountedArray),
/// [`ArrayReader`](super::ArrayReader) or [`ArrayWriter`](super::ArrayWriter).
///
/// # Examples
///
/// ```
/// use ndarray_shm::{unlink, Access, AttachOptions, SharedArray};
///
/// SharedArray::<u16, _>::create("attach-options-example", (4, 5))?;
/// let options = AttachOptions::<SharedArray<u16, _>>::new().access(Access::Read);
/// let array = options.open("attach-options-example", (4, 5))?;
/// assert!(array.write().is_err(), "it can only be read");
/// unlink("attach-options-example")?;
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "options do nothing until `open` or `attach` is called"]
pub struct AttachOptions<A> {
    pub(crate) backend: Option<Directory>,
    pub(crate) how: Attach,
    reinterpret: bool,
    array: PhantomData<fn() -> A>,
}

impl<A> Clone for AttachOptions<A> {
    fn clone(&self) -> Self {
        Self { backend: self.backend.clone(), ..*self }
    }
}

impl<A: Attachable> Default for AttachOptions<A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A: Attachable> AttachOptions<A> {
    /// Begins with the defaults: the default backend, access as the type says, holes filled.
    pub fn new() -> Self {
        Self { backend: None, how: A::how(), reinterpret: false, array: PhantomData }
    }

    /// Uses this directory instead of the [default](crate::default_backend), or of the one that a handle names.
    pub fn backend(mut self, directory: Directory) -> Self {
        self.backend = Some(directory);
        self
    }

    /// Leaves holes of the file as they are, instead of taking memory for them.
    ///
    /// A process that touches memory that is not there is killed (SIGBUS); in /dev/shm, by reading too.
    pub fn leave_holes(mut self, leave: bool) -> Self {
        self.how.sparse = leave;
        self
    }

    /// Reads the bytes of a plain array as the type, shape and order asked for, whatever the array [says](super::Description) about
    /// itself. Their number must still be right. A counted array is always what it says.
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray_shm::{unlink, AttachOptions, SharedArray};
    ///
    /// SharedArray::<f32, _>::create("reinterpret-example", 10)?;
    /// let bits = AttachOptions::<SharedArray<u32, _>>::new().reinterpret(true).open("reinterpret-example", 10)?;
    /// assert_eq!(bits.read()?[3], 0f32.to_bits());
    /// unlink("reinterpret-example")?;
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    pub fn reinterpret(mut self, reinterpret: bool) -> Self {
        self.reinterpret = reinterpret;
        self
    }

    /// Attaches a plain array.
    pub(crate) fn plain<T: Element, D: Dimension>(
        &self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
    ) -> Result<(Segment, Home, Layout<D>)> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let layout = Layout::new::<T>(shape, home.location.as_str())?;
        let check = |length, text: Option<&[u8]>| {
            let text = text.filter(|_| !self.reinterpret);
            description::check::<T, D>(&layout, length, text, &home.location)
        };
        let (segment, ()) = Segment::attach_described(&home, self.how, check)?;
        Ok((segment, home, layout))
    }

    /// Attaches a plain array as what it says it is.
    pub(crate) fn plain_dyn<T: Element, D: Dimension>(
        &self,
        location: impl IntoLocation,
    ) -> Result<(Segment, Home, Layout<D>)> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let check = |length, text: Option<&[u8]>| description::layout_of::<T, D>(length, text, &home.location);
        let (segment, layout) = Segment::attach_described(&home, self.how, check)?;
        Ok((segment, home, layout))
    }
}

impl<A: Creatable> AttachOptions<A> {
    /// Maps the elements for reading only, or, as if nothing was said, for reading and writing.
    ///
    /// A plain array that is only read needs no permission to write, with one exception: where reading a hole takes memory (in
    /// /dev/shm), the holes of a sparse file are filled, unless [they are left](Self::leave_holes). A counted array needs that
    /// permission always, for attaching counts.
    pub fn access(mut self, access: Access) -> Self {
        self.how.access = access;
        self
    }

    /// Keeps one descriptor for as long as the array lives, so that guards can be had after the name has gone.
    pub fn keep_fd(mut self, keep: bool) -> Self {
        self.how.keep_descriptor = keep;
        self
    }
}

impl<T: Element, D: Dimension> AttachOptions<SharedArray<T, D>> {
    /// Attaches to the array that has the name.
    ///
    /// # Errors
    ///
    /// As [`SharedArray::open`].
    pub fn open(&self, location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<SharedArray<T, D>> {
        let (segment, home, layout) = self.plain::<T, D>(location, shape)?;
        Ok(SharedArray::of(segment, home, layout))
    }

    /// Attaches to the array that has the name, with the shape and order that it says.
    ///
    /// # Errors
    ///
    /// As [`SharedArray::open_dyn`].
    pub fn open_dyn(&self, location: impl IntoLocation) -> Result<SharedArray<T, D>> {
        let (segment, home, layout) = self.plain_dyn::<T, D>(location)?;
        Ok(SharedArray::of(segment, home, layout))
    }
}
