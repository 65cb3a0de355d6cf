//! Creating arrays under a name, plain and counted ones alike.

use ndarray::{ArrayViewMut, Dimension, ShapeBuilder};

use super::{Description, Draft, Element, Layout, SharedArray, description};
use crate::backend::{Access, Directory, DraftOptions, IntoLocation, Pages, Publish, default_directory};
use crate::error::{Error, ErrorKind, IntoError, Result};
use crate::segment::{Attach, Home, Segment};

/// How often [`CreationMode::OpenOrCreate`] tries to create and to open, while other processes create and remove the
/// same name.
const TRIES: u32 = 1000;

/// What to do if the name of a new array is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum CreationMode {
    /// Fails with [`AlreadyExists`](ErrorKind::AlreadyExists).
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

/// An array that is created under a name: the steps that differ between plain and counted arrays.
pub(crate) trait Creatable<T: Element, D: Dimension>: Sized {
    /// Whether its file has a trailer.
    const COUNTED: bool;

    /// Fails if the name is taken.
    fn refuse_taken(home: &Home) -> Result<()>;

    /// Opens the existing array of this name, if it has this layout.
    fn open_same(home: &Home, layout: &Layout<T, D>, how: Attach) -> Result<Self>;

    /// Gives a draft its name.
    fn publish(draft: Draft<T, D>, home: &Home, mode: Publish) -> Result<Self, IntoError<Draft<T, D>>>;
}

/// Options for creating arrays, plain ones ([`SharedArray`]) and counted ones
/// ([`RefcountedArray`](crate::RefcountedArray)).
///
/// They may be set in any order. A setting that an array of this kind cannot have is refused with
/// [`InvalidSetting`](ErrorKind::InvalidSetting) when it is created.
///
/// | setting | `create` | `create_counted` | `share` |
/// |---|---|---|---|
/// | [`directory`](Self::directory), [`permissions`](Self::permissions), [`pages`](Self::pages), [`keep_fd`](Self::keep_fd) | yes | yes | yes |
/// | [`mode`](Self::mode) | yes | yes | only [`CreateNew`](CreationMode::CreateNew) |
/// | [`note`](Self::note) | yes | | |
///
/// # Examples
///
/// ```
/// use ndarray_shm::ndarray::ShapeBuilder;
/// use ndarray_shm::{unlink, CreateOptions, CreationMode};
///
/// let options = CreateOptions::new().permissions(0o640).mode(CreationMode::Replace);
/// let array = options.create::<u16, _>("options-example", (4, 5).f())?;
/// assert_eq!(array.shape(), [4, 5]);
/// unlink("options-example")?;
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "options do nothing until an array is created with them"]
pub struct CreateOptions {
    backend: Option<Directory>,
    mode: CreationMode,
    draft: DraftOptions,
    keep_descriptor: bool,
    notes: Vec<(String, String)>,
}

impl CreateOptions {
    /// Begins with the defaults: the default directory, mode 0600, all memory reserved at once, a name that must be
    /// free.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses this directory instead of the [default](crate::default_directory).
    pub fn directory(mut self, directory: Directory) -> Self {
        self.backend = Some(directory);
        self
    }

    /// Creates the file with these permission bits, whatever the umask. The default is 0600. Windows has no permission
    /// bits.
    ///
    /// A user that may only read a plain array's file can delay its owner. Write access waits for that user's read
    /// guards without limit, and pool memory is not used again while that user is attached. Other read locks that the
    /// user holds delay the owner for at most 10 seconds: each thread that writes, and each removal or replacement of
    /// the name; renaming then fails with [`TimedOut`](ErrorKind::TimedOut). Attaching to a counted array needs write
    /// permission, because attaching changes the count.
    pub fn permissions(mut self, bits: u32) -> Self {
        self.draft.permissions = bits & 0o777;
        self
    }

    /// Chooses which memory is allocated in advance, and on which pages. The default is [`Pages::Auto`].
    pub fn pages(mut self, pages: Pages) -> Self {
        self.draft.pages = pages;
        self
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

    /// Adds a note to the array's [description](super::Description), or replaces the one with this key. An array that
    /// is opened keeps its own.
    ///
    /// The note is there when the name appears. Creating fails with [`InvalidSetting`](ErrorKind::InvalidSetting) for a
    /// malformed note, see [`with_note`](super::Description::with_note), and for a counted array, which has none.
    pub fn note(mut self, key: &str, text: &str) -> Self {
        self.notes.push((key.to_owned(), text.to_owned()));
        self
    }

    /// Creates an array of zeros.
    ///
    /// # Errors
    ///
    /// As [`SharedArray::create`]; with [`CreationMode::OpenOrCreate`] also as [`SharedArray::open`].
    pub fn create<T: Element, D: Dimension>(
        &self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
    ) -> Result<SharedArray<T, D>> {
        self.create_with(location, shape, |_| {})
    }

    /// Creates an array that `fill` writes before other processes can see it. An existing array that is opened is not
    /// filled.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn create_with<T: Element, D: Dimension>(
        &self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
        fill: impl FnOnce(ArrayViewMut<'_, T, D>),
    ) -> Result<SharedArray<T, D>> {
        self.create_named(location, shape, |view| {
            fill(view);
            Ok::<_, Error>(())
        })
    }

    /// Creates an array that `fill` writes before other processes can see it. If `fill` fails, no array is created.
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray_shm::{attached, CreateOptions, CreationMode, Error};
    ///
    /// let options = CreateOptions::new().mode(CreationMode::Replace).permissions(0o640).note("unit", "nm");
    /// let torn = options.try_create_with("try-create-example", (4, 5), |mut view| {
    ///     view.fill(1.0f32);
    ///     Err::<(), Error>("Q".parse::<ndarray_shm::Order>().unwrap_err())
    /// });
    /// assert!(torn.is_err() && attached("try-create-example").is_err(), "nothing has the name");
    /// ```
    ///
    /// # Errors
    ///
    /// That of `fill`, and those of [`create`](Self::create).
    pub fn try_create_with<T: Element, D: Dimension, E: From<Error>>(
        &self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
        fill: impl FnOnce(ArrayViewMut<'_, T, D>) -> Result<(), E>,
    ) -> Result<SharedArray<T, D>, E> {
        self.create_named(location, shape, fill)
    }

    /// Creates an array of any kind under a name.
    pub(crate) fn create_named<T: Element, D: Dimension, A: Creatable<T, D>, E: From<Error>>(
        &self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
        fill: impl FnOnce(ArrayViewMut<'_, T, D>) -> Result<(), E>,
    ) -> Result<A, E> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let layout = Layout::<T, _>::named(shape, home.location.as_str())?;
        if A::COUNTED {
            self.refuse_notes()?;
        }
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
        let mut draft =
            self.draft_in(&home.backend, layout.copied(), A::COUNTED).map_err(|error| error.about(&home.location))?;
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
            if self.mode != CreationMode::OpenOrCreate || error.error().kind != ErrorKind::AlreadyExists {
                return Err(Error::from(error).into());
            }
            match open() {
                Err(gone) if gone.is_not_found() => draft = error.into_inner(),
                other => return Ok(other?),
            }
        }
        Err(ErrorKind::WouldBlock.at(&home.location).into())
    }

    /// Creates a counted draft with `fill`, to be shared without a name of the caller's choice.
    pub(crate) fn create_nameless<T: Element, D: Dimension, E: From<Error>>(
        &self,
        shape: impl ShapeBuilder<Dim = D>,
        fill: impl FnOnce(ArrayViewMut<'_, T, D>) -> Result<(), E>,
    ) -> Result<Draft<T, D>, E> {
        if self.mode != CreationMode::CreateNew {
            let (setting, value) = ("the creation mode", format!("{:?}", self.mode));
            let expected = "CreateNew, because a shared array gets a random name";
            return Err(Error::setting(setting, value, expected).into());
        }
        self.refuse_notes()?;
        let backend = self.backend.clone().map_or_else(default_directory, Ok)?;
        let mut draft = self.draft_in(&backend, Layout::new(shape)?, true)?;
        fill(draft.view_mut())?;
        Ok(draft)
    }

    /// Refuses notes for a counted array.
    fn refuse_notes(&self) -> Result<()> {
        let Some((key, _)) = self.notes.first() else { return Ok(()) };
        let (setting, value) = ("a note of a counted array", key.clone());
        let expected = "none: only plain arrays have a description with notes";
        Err(Error::setting(setting, value, expected))
    }

    /// Returns the text of the description, if it has notes.
    fn described<T: Element, D: Dimension>(&self, layout: &Layout<T, D>) -> Result<Option<String>> {
        if self.notes.is_empty() {
            return Ok(None);
        }
        let mut description = Description::new(T::DTYPE, layout.shape(), layout.order())?;
        for (key, text) in &self.notes {
            description = description.with_note(key, text)?;
        }
        Ok(Some(description.to_text()))
    }

    fn draft_in<T: Element, D: Dimension>(
        &self,
        backend: &Directory,
        layout: Layout<T, D>,
        counted: bool,
    ) -> Result<Draft<T, D>> {
        Draft::in_backend(backend.clone(), layout, counted, self.draft, self.keep_descriptor)
    }
}

impl<T: Element, D: Dimension> Creatable<T, D> for SharedArray<T, D> {
    const COUNTED: bool = false;

    fn refuse_taken(home: &Home) -> Result<()> {
        home.refuse_taken()
    }

    fn open_same(home: &Home, layout: &Layout<T, D>, how: Attach) -> Result<Self> {
        let check = |length, text: Option<&[u8]>| description::check::<T, D>(layout, length, text, &home.location);
        let (segment, ()) = Segment::attach_described(home, how, check)?;
        Ok(Self::of(segment, layout.copied()))
    }

    fn publish(draft: Draft<T, D>, home: &Home, mode: Publish) -> Result<Self, IntoError<Draft<T, D>>> {
        draft.publish_as(&home.location, mode)
    }
}
