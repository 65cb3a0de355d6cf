//! Options for creating and attaching, for plain and counted arrays alike.

use std::marker::PhantomData;

use ndarray::{ArrayViewMut, Dimension, Ix1, ShapeBuilder};

use super::layout::Layout;
use super::{Description, Draft, Element, SharedArray, description};
use crate::backend::{Access, Directory, DraftOptions, IntoLocation, Pages, Publish, common_settings};
use crate::error::{Error, IntoError, Result};
use crate::segment::{Attach, Home, Segment};

/// How often [`CreationMode::OpenOrCreate`] tries to create and to open, while other processes create and remove the
/// same name.
const TRIES: u32 = 1000;

/// What to do if the name of a new array is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum CreationMode {
    /// Fails with [`AlreadyExists`](Error::AlreadyExists).
    #[default]
    CreateNew,
    /// Opens the existing array for reading and writing. Its size must match. So must its type, shape and order, if it
    /// has a [description](super::Description). Elements and permissions stay as they are, and with [`Pages::Sparse`]
    /// so do its holes.
    OpenOrCreate,
    /// Moves the name to the new array in one step. Attachments of the old array keep its bytes. (A process that is
    /// killed in that instant may leave a file with a name that begins with `.ndshm-draft-`.)
    Replace,
}

/// An array that can be created under a name: the steps that differ between plain and counted arrays.
#[allow(private_interfaces)] // not exported, so no other crate can name or implement it
pub trait Creatable: Sized {
    /// The element type.
    type Element: Element;
    /// The type of the shape.
    type Dim: Dimension;
    /// Whether its file has a trailer.
    const COUNTED: bool;

    /// Fails if the name is taken.
    fn refuse_taken(home: &Home) -> Result<()>;

    /// Opens the existing array of this name, if it has this layout.
    fn open_same(home: &Home, layout: &Layout<Self::Dim>, how: Attach) -> Result<Self>;

    /// Gives a draft its name.
    fn publish(draft: DraftOf<Self>, home: &Home, mode: Publish) -> Result<Self, IntoError<DraftOf<Self>>>;
}

/// An array that can be attached to.
#[allow(private_interfaces)] // as above
pub trait Attachable: Sized {
    /// How it is attached by default.
    fn how() -> Attach;
}

/// The draft of an array of type `A`.
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
    notes: Vec<(String, String)>,
    array: PhantomData<fn() -> A>,
}

// Not derived: a derived impl would require `A: Clone`, and arrays cannot be cloned.
impl<A> Clone for CreateOptions<A> {
    fn clone(&self) -> Self {
        Self { backend: self.backend.clone(), notes: self.notes.clone(), ..*self }
    }
}

impl<A: Creatable> Default for CreateOptions<A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A: Creatable> CreateOptions<A> {
    /// Begins with the defaults: the default backend, mode 0600, all memory reserved at once, a name that must be free.
    pub fn new() -> Self {
        let (mode, draft) = (CreationMode::default(), DraftOptions::default());
        Self { backend: None, mode, draft, keep_descriptor: false, notes: Vec::new(), array: PhantomData }
    }

    common_settings! {
        /// A user that may only read a plain array's file can delay its owner. Write access waits for that user's read
        /// guards without limit, and pool memory is not used again while that user is attached. Other read locks that
        /// the user holds delay the owner for at most 10 seconds: each thread that writes, and each removal or
        /// replacement of the name; renaming then fails with [`TimedOut`](Error::TimedOut). Attaching to a counted
        /// array needs write permission, because attaching changes the count.
    }

    /// Sets what to do if the name is taken.
    pub fn mode(mut self, mode: CreationMode) -> Self {
        self.mode = mode;
        self
    }

    /// Keeps one descriptor open as long as the array lives, so that guards are available after the name is removed.
    pub fn keep_fd(mut self, keep: bool) -> Self {
        self.keep_descriptor = keep;
        self
    }

    /// Creates an array of zeros.
    ///
    /// # Errors
    ///
    /// As [`SharedArray::create`]; with [`CreationMode::OpenOrCreate`] also as [`SharedArray::open`].
    pub fn create(&self, location: impl IntoLocation, shape: impl ShapeBuilder<Dim = A::Dim>) -> Result<A> {
        self.create_with(location, shape, |_| {})
    }

    /// Creates an array that `fill` writes before other processes can see it. An existing array that is opened is not
    /// filled.
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

    /// Creates an array that `fill` writes before other processes can see it. If `fill` fails, no array is created.
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
        let description = self.described(&layout)?;
        let (sparse, keep_descriptor) = (self.draft.pages == Pages::Sparse, self.keep_descriptor);
        let open =
            || A::open_same(&home, &layout, Attach { sparse, keep_descriptor, ..Attach::new(Access::ReadWrite) });
        // Checking the name first reports a taken name even if the disk is full, and saves a useless fill.
        match self.mode {
            CreationMode::CreateNew => A::refuse_taken(&home)?,
            CreationMode::OpenOrCreate => match open() {
                Err(error) if error.is_not_found() => {}
                other => return Ok(other?),
            },
            CreationMode::Replace => {}
        }
        // The backend knows only its directory; the error shall name the array.
        let mut draft = self.draft(&home.backend, layout.clone()).map_err(|error| error.about(&home.location))?;
        draft.set_description(description);
        fill(draft.view_mut())?;
        let mode = if self.mode == CreationMode::Replace { Publish::Replace } else { Publish::New };
        // With OpenOrCreate, publishing fails if another process created the name after the check above. Opening that
        // array fails with NotFound if it was unlinked in between. Then the draft, still filled, is published again.
        for _ in 0..TRIES {
            let error = match A::publish(draft, &home, mode) {
                Ok(array) => return Ok(array),
                Err(error) => error,
            };
            if self.mode != CreationMode::OpenOrCreate || !error.error().is_already_exists() {
                return Err(Error::from(error).into());
            }
            match open() {
                Err(gone) if gone.is_not_found() => draft = error.into_inner(),
                other => return Ok(other?),
            }
        }
        Err(Error::WouldBlock { location: home.location.to_string() }.into())
    }

    /// Returns the text of the description, if it has notes.
    fn described(&self, layout: &Layout<A::Dim>) -> Result<Option<String>> {
        if self.notes.is_empty() {
            return Ok(None);
        }
        let mut description = Description::new(A::Element::DTYPE, layout.dim.slice(), layout.order)?;
        for (key, text) in &self.notes {
            description = description.with_note(key, text)?;
        }
        Ok(Some(description.to_text()))
    }

    pub(crate) fn draft(&self, backend: &Directory, layout: Layout<A::Dim>) -> Result<DraftOf<A>> {
        Draft::in_backend(backend.clone(), layout, A::COUNTED, self.draft, self.keep_descriptor)
    }
}

impl<T: Element, D: Dimension> CreateOptions<SharedArray<T, D>> {
    /// Adds a note to the array's [description](super::Description), or replaces the one with this key. An array that
    /// is opened keeps its own.
    ///
    /// The note is there when the name appears. Creating fails with [`InvalidSetting`](Error::InvalidSetting) for a
    /// malformed note; see [`with_note`](super::Description::with_note).
    pub fn note(mut self, key: &str, text: &str) -> Self {
        self.notes.push((key.to_owned(), text.to_owned()));
        self
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
        Ok(Self::of(segment, layout.clone()))
    }

    fn publish(draft: Draft<T, D>, home: &Home, mode: Publish) -> Result<Self, IntoError<Draft<T, D>>> {
        draft.publish_as(&home.location, mode)
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
    /// Begins with the defaults: the default backend, the usual access of the array type, holes filled.
    pub fn new() -> Self {
        Self { backend: None, how: A::how(), reinterpret: false, array: PhantomData }
    }

    /// Uses this directory instead of the [default](crate::default_backend), or instead of the one that a handle names.
    pub fn backend(mut self, directory: Directory) -> Self {
        self.backend = Some(directory);
        self
    }

    /// Leaves the holes of a sparse file as they are, instead of reserving memory for them.
    ///
    /// If no memory is left when a process touches a hole, the process is killed (SIGBUS). In /dev/shm this applies to
    /// reading too.
    pub fn leave_holes(mut self, leave: bool) -> Self {
        self.how.sparse = leave;
        self
    }

    /// Ignores the [description](super::Description) of a plain array, and uses the requested type, shape and order for
    /// its bytes.
    ///
    /// The number of bytes must still match. The record of a counted array is never ignored.
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
    ) -> Result<(Segment, Layout<D>)> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let layout = Layout::new::<T>(shape, home.location.as_str())?;
        let check = |length, text: Option<&[u8]>| {
            let text = text.filter(|_| !self.reinterpret);
            description::check::<T, D>(&layout, length, text, &home.location)
        };
        let (segment, ()) = Segment::attach_described(&home, self.how, check)?;
        Ok((segment, layout))
    }

    /// Attaches a plain array with the shape and order of its description.
    pub(crate) fn plain_dyn<T: Element, D: Dimension>(
        &self,
        location: impl IntoLocation,
    ) -> Result<(Segment, Layout<D>)> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let check = |length, text: Option<&[u8]>| description::layout_of::<T, D>(length, text, &home.location);
        let (segment, layout) = Segment::attach_described(&home, self.how, check)?;
        Ok((segment, layout))
    }
}

impl<A: Creatable> AttachOptions<A> {
    /// Maps the elements for reading only, or for reading and writing, which is the default.
    ///
    /// A plain array that is only read needs no write permission, with one exception: where reading a hole takes memory
    /// (in /dev/shm), the holes of a sparse file are filled, unless [`leave_holes`](Self::leave_holes) is set. A
    /// counted array always needs write permission, because attaching changes the count.
    pub fn access(mut self, access: Access) -> Self {
        self.how.access = access;
        self.how.copy_on_write = false;
        self
    }

    /// Keeps one descriptor open as long as the array lives, so that guards are available after the name is removed.
    pub fn keep_fd(mut self, keep: bool) -> Self {
        self.how.keep_descriptor = keep;
        self
    }

    /// Attaches for reading only, through a private copy-on-write mapping (`MAP_PRIVATE`). Overrides
    /// [`access`](Self::access).
    ///
    /// The array is [read-only](SharedArray::is_readonly), and its reads see what other processes write. It is for code
    /// that may ignore that, such as a library in another language that gets the pointer of
    /// [`raw_view`](SharedArray::raw_view): a write through the pointer changes a copy of the page in this process,
    /// instead of ending the process with SIGSEGV. From then on this attachment no longer sees changes of that page.
    /// The copies take memory that is not reserved.
    pub fn copy_on_write(mut self) -> Self {
        self.how.access = Access::Read;
        self.how.copy_on_write = true;
        self
    }
}

impl<T: Element, D: Dimension> AttachOptions<SharedArray<T, D>> {
    /// Attaches to the array of this name.
    ///
    /// # Errors
    ///
    /// As [`SharedArray::open`].
    pub fn open(&self, location: impl IntoLocation, shape: impl ShapeBuilder<Dim = D>) -> Result<SharedArray<T, D>> {
        let (segment, layout) = self.plain::<T, D>(location, shape)?;
        Ok(SharedArray::of(segment, layout))
    }

    /// Attaches to the array of this name, with the shape and order of its description.
    ///
    /// # Errors
    ///
    /// As [`SharedArray::open_dyn`].
    pub fn open_dyn(&self, location: impl IntoLocation) -> Result<SharedArray<T, D>> {
        let (segment, layout) = self.plain_dyn::<T, D>(location)?;
        Ok(SharedArray::of(segment, layout))
    }
}

impl AttachOptions<SharedArray<u8, Ix1>> {
    /// Attaches to all bytes of the plain array of this name, whatever its element type is, and returns its
    /// description, if it has one.
    ///
    /// For programs that learn the element type at run time.
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray_shm::{unlink, AttachOptions, DType, SharedArray};
    ///
    /// SharedArray::<f32, _>::create("bytes-example", (2, 5))?;
    /// let (bytes, description) = AttachOptions::<SharedArray<u8, _>>::new().open_bytes("bytes-example")?;
    /// assert_eq!(bytes.len(), 40);
    /// assert!(description.is_none_or(|found| found.dtype() == DType::F32 && found.shape() == [2, 5]));
    /// unlink("bytes-example")?;
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`SharedArray::open`], except those of a mismatch.
    pub fn open_bytes(&self, location: impl IntoLocation) -> Result<(SharedArray<u8, Ix1>, Option<Description>)> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let check = |length: u64, text: Option<&[u8]>| {
            let elements = usize::try_from(length).unwrap_or(usize::MAX); // too many elements: refused by the layout
            let layout = Layout::new::<u8>(elements, home.location.as_str())?;
            Ok((layout, text.and_then(Description::parse).filter(|found| found.bytes() == length)))
        };
        let (segment, (layout, description)) = Segment::attach_described(&home, self.how, check)?;
        Ok((SharedArray::of(segment, layout), description))
    }
}
