//! `RenderOptions`: options for beginning and joining a renderbuffer, and their defaults.

use std::time::Duration;

use ndarray::{Dimension, IntoDimension, IxDyn, ShapeBuilder};

use super::RenderBuffer;
use super::SharedWith;
use super::grid::ChunkGrid;
use super::ledger::RenderSpec;
use super::pair::{Making, Pair, WORK_NOTE};
use crate::array::{Description, Element, Layout, Order};
use crate::backend::{Directory, DraftOptions, IntoLocation, Pages};
use crate::backoff::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::pool::Pool;
use crate::segment::Home;

/// Default time to wait for another process that begins the buffer: long enough to reserve 100 GiB of memory.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Options for beginning and joining renderbuffers.
///
/// ```
/// use ndarray_shm::render::RenderOptions;
///
/// let buffer = RenderOptions::new()
///     .chunk_offset(&[2, 0])
///     .create::<u8, _>("render-options-example", (6, 8), (4, 4), "an example")?;
/// assert_eq!(buffer.grid().region(0), [0..2, 0..4]);
/// buffer.discard()?;
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "options do nothing until `create` or `open` is called"]
pub struct RenderOptions {
    backend: Option<Directory>,
    pub(super) replace: bool,
    accept_finished: bool,
    permissions: Option<u32>,
    pages: Pages,
    chunk_offset: Option<Vec<usize>>,
    notes: Vec<(String, String)>,
    pool: Option<Pool>,
    pub(super) shared_with: SharedWith,
    pub(super) timeout: Duration,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self {
            backend: None,
            replace: false,
            accept_finished: false,
            permissions: None,
            pages: Pages::default(),
            chunk_offset: None,
            notes: Vec::new(),
            pool: None,
            shared_with: SharedWith::default(),
            timeout: TIMEOUT,
        }
    }
}

impl RenderOptions {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses this directory instead of the [default](crate::default_directory).
    pub fn directory(mut self, directory: Directory) -> Self {
        self.backend = Some(directory);
        self
    }

    /// Creates files with these permission bits, whatever the umask. The default is 0600. Windows has no permission
    /// bits.
    ///
    /// A buffer with files that every user may write to can be joined only with options that have that bit too: any
    /// user can shorten such files, which kills this process (SIGBUS).
    pub fn permissions(mut self, bits: u32) -> Self {
        self.permissions = Some(bits & 0o777);
        self
    }

    /// Chooses which memory is allocated in advance, and on which pages. The default is [`Pages::Auto`].
    pub fn pages(mut self, pages: Pages) -> Self {
        self.pages = pages;
        self
    }

    /// Chooses whether the finished array may replace an existing one. The old array keeps its name until then.
    ///
    /// It also replaces an unfinished buffer with other work, such as another fingerprint or shape, if no process is
    /// attached to it: a killed run leaves one. A stopped process (SIGSTOP) and a forked child are attached as long as
    /// they live.
    ///
    /// Only one process should create a buffer with this option; all other processes [`open`](Self::open) it. A process
    /// that calls [`create`](Self::create) after the array is finished would begin it again, unless it
    /// [accepts](Self::accept_finished) the array.
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// Accepts an array of this name that is finished, if it is of the same work. The buffer has no chunk to paint
    /// then, and [`finish`](RenderBuffer::finish) returns the array. So processes that paint together need not know
    /// whether they come first or last.
    ///
    /// A finished array keeps a digest of its work (type, shape, order, chunks and fingerprint) as the note `work` of
    /// its [description](crate::array::Description). Like the rest of the description, the note is a claim: a program
    /// that may write to the file can change both. The digest tells works apart that differ by accident, not by an
    /// attacker's design.
    ///
    /// An array with another digest is a [`Mismatch`](ErrorKind::Mismatch), and one without is
    /// [`AlreadyExists`](ErrorKind::AlreadyExists): it was created in another way or by an earlier version, or where
    /// files have no descriptions, as on Windows or in /dev/shm before Linux 6.6. With [`replace`](Self::replace) such
    /// arrays are replaced, and an array of the same work is accepted.
    ///
    /// ```
    /// use ndarray_shm::render::RenderOptions;
    /// use ndarray_shm::{NextClaim, RenderBuffer, default_directory, unlink};
    ///
    /// // Each of several processes runs this, whenever it starts.
    /// let paint = || -> ndarray_shm::Result<u8> {
    ///     let options = RenderOptions::new().accept_finished(true);
    ///     let buffer: RenderBuffer<u8, _> = options.create("accept-example", 8, 4, "sevens")?;
    ///     while let NextClaim::Chunk(mut chunk) = buffer.claim_next()? {
    ///         chunk.view_mut().fill(7);
    ///         chunk.commit()?;
    ///     }
    ///     Ok(buffer.finish()?.read()?[5])
    /// };
    /// assert_eq!(paint()?, 7);
    /// if default_directory()?.can_describe()? {
    ///     assert_eq!(paint()?, 7); // finished before: nothing is painted
    /// }
    /// unlink("accept-example")?;
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    pub fn accept_finished(mut self, accept: bool) -> Self {
        self.accept_finished = accept;
        self
    }

    /// Uses memory of this pool, with the pool's directory and permissions, if this process begins the buffer. A
    /// [`directory`](Self::directory) or [`permissions`](Self::permissions) that are chosen too must be those of the
    /// pool.
    ///
    /// **Chunks contain arbitrary old data** until they are painted. The buffer and the finished array keep one
    /// descriptor open. The memory returns to the pool when the array is [put](Pool::put) into it, or is
    /// [adopted](Pool::adopt) by it and dropped. In all other respects the array is an ordinary one.
    pub fn pool(mut self, pool: &Pool) -> Self {
        self.pool = Some(pool.clone());
        self
    }

    /// Chooses the users that may paint this buffer together. The default is [`SharedWith::OnlyMe`]. These users have
    /// to trust one another.
    pub fn shared_with(mut self, users: SharedWith) -> Self {
        self.shared_with = users;
        self
    }

    /// Limits how long [`create`](Self::create) and [`open`](Self::open) wait in total for other processes: for one
    /// that is just beginning the buffer, and for those that use its files for a moment, such as a pool or another
    /// discard. It also limits how long [`finish`](RenderBuffer::finish) waits where only another user may name the
    /// array.
    ///
    /// The default is 60 seconds; [`Duration::MAX`] waits for ever. Beginning a buffer reserves all its memory, which
    /// can take as long as writing to all of it.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Lets the first chunk of each axis begin this many elements before the buffer. The default is 0 for each axis.
    pub fn chunk_offset(mut self, offset: &[usize]) -> Self {
        self.chunk_offset = Some(offset.to_vec());
        self
    }

    /// Adds a note, such as its source, to the array's [description](crate::array::Description). Only the process that
    /// begins the buffer writes it; [`open`](Self::open) refuses it.
    ///
    /// Keys and texts follow the rules of [`with_note`](crate::array::Description::with_note). The key `work` is
    /// [used by the library](Self::accept_finished).
    pub fn note(mut self, key: &str, text: &str) -> Self {
        self.notes.push((key.to_owned(), text.to_owned()));
        self
    }

    /// Begins a buffer, joins one that another process began, or resumes an interrupted one.
    ///
    /// # Errors
    ///
    /// [`InvalidSetting`](ErrorKind::InvalidSetting): a note is malformed, the chunk offset has another number of axes
    /// than the array, or the pool does not fit the other options. Also the errors of [`RenderBuffer::create`].
    pub fn create<T: Element, D: Dimension>(
        self,
        location: impl IntoLocation,
        shape: impl ShapeBuilder<Dim = D>,
        chunk_shape: impl IntoDimension<Dim = D>,
        fingerprint: &str,
    ) -> Result<RenderBuffer<T, D>> {
        let home = Home::new(self.chosen_directory(), location)?;
        let layout = Layout::<T, _>::named(shape, home.location.as_str())?;
        let offset = match &self.chunk_offset {
            Some(offset) => dimension(offset, layout.shape().len()).ok_or_else(|| {
                Error::setting("the chunk offset", format!("{offset:?}"), "as many axes as the array has")
            })?,
            None => D::zeros(layout.shape().len()),
        };
        let grid = ChunkGrid::new(layout.raw_dim(), chunk_shape.into_dimension(), offset)?;
        let work = RenderSpec {
            dtype: T::DTYPE,
            order: layout.order(),
            shape: grid.shape().to_vec(),
            chunk_shape: grid.chunk_shape().to_vec(),
            chunk_offset: grid.chunk_offset().to_vec(),
            fingerprint: fingerprint.to_owned(),
        };
        work.check()?;
        if let Some(pool) = &self.pool {
            require_same(pool, &home, &self)?;
        }
        // First, so that there is room for it.
        let mut description =
            Description::new(T::DTYPE, &work.shape, work.order)?.with_note(WORK_NOTE, &work.digest())?;
        for (key, text) in &self.notes {
            if key == WORK_NOTE {
                let (value, expected) =
                    (key.clone(), "another one: renderbuffers keep the digest of their work as `work`");
                return Err(Error::setting("the key of a note", value, expected));
            }
            description = description.with_note(key, text)?;
        }
        let making = Making { description: Some(&description), ..self.making() };
        let pair = Pair::open_or_create(&home, &work, layout.bytes(), &making)
            .map_err(|error| error.about(&home.location).with_limit(self.timeout))?;
        Ok(RenderBuffer::of(pair, home, layout, grid, &self))
    }

    /// Joins a buffer that another process began, of any shape.
    ///
    /// # Errors
    ///
    /// [`InvalidSetting`](ErrorKind::InvalidSetting): a chunk offset, a pool, a note, or pages other than
    /// [`Pages::Sparse`] were chosen. Also the errors of [`RenderBuffer::open`].
    pub fn open<T: Element, D: Dimension>(self, location: impl IntoLocation) -> Result<RenderBuffer<T, D>> {
        if self.chunk_offset.is_some()
            || self.pool.is_some()
            || !self.notes.is_empty()
            || ![Pages::default(), Pages::Sparse].contains(&self.pages)
        {
            return Err(Error::setting(
                "the choice of options for joining a buffer",
                "chunk offset, pool, note or pages",
                "without these, except Pages::Sparse: the process that begins the buffer chooses them",
            ));
        }
        let home = Home::new(self.backend.as_ref(), location)?;
        let pair =
            Pair::open(&home, &self.making()).map_err(|error| error.about(&home.location).with_limit(self.timeout))?;
        let work = pair.chunks.work();
        if work.dtype != T::DTYPE {
            return Err(ErrorKind::DTypeMismatch { expected: T::DTYPE.to_string(), found: work.dtype.to_string() }
                .at(&home.location));
        }
        let axes = |lengths: &[usize]| {
            dimension::<D>(lengths, work.shape.len()).ok_or_else(|| {
                ErrorKind::ShapeMismatch {
                    expected: format!("{} axes", D::NDIM.unwrap_or_default()),
                    found: format!("{:?}", work.shape),
                }
                .at(&home.location)
            })
        };
        let dim = axes(&work.shape)?;
        let grid = ChunkGrid::new(dim.clone(), axes(&work.chunk_shape)?, axes(&work.chunk_offset)?)?;
        let layout = Layout::<T, _>::named(dim.set_f(work.order == Order::F), home.location.as_str())?;
        Ok(RenderBuffer::of(pair, home, layout, grid, &self))
    }

    /// Returns the directory that was chosen, by itself or with the pool.
    fn chosen_directory(&self) -> Option<&Directory> {
        self.backend.as_ref().or_else(|| self.pool.as_ref().map(Pool::directory))
    }

    /// Returns the permission bits of the files: those that were chosen, by themselves or with the pool.
    fn file_permissions(&self) -> u32 {
        let of_pool = || self.pool.as_ref().map(Pool::permissions);
        self.permissions.or_else(of_pool).unwrap_or(DraftOptions::default().permissions)
    }

    fn making(&self) -> Making<'_> {
        let Self { pages, replace, accept_finished, ref pool, ref shared_with, timeout, .. } = *self;
        // Mode 0600 until the file has the chosen group. With more permissions, the group that new files get would be
        // able to open it.
        let permissions = if matches!(shared_with, SharedWith::Group(_)) { 0o600 } else { self.file_permissions() };
        let (draft, pool) = (DraftOptions { permissions, pages }, pool.as_ref());
        let until = Deadline::after(timeout);
        Making { draft, replace, accept_finished, pool, shared_with, description: None, until }
    }
}

/// Refuses a pool with another directory or other permissions than the buffer, and a buffer that is shared with a
/// group.
fn require_same(pool: &Pool, home: &Home, options: &RenderOptions) -> Result<()> {
    let permissions = options.file_permissions();
    if matches!(options.shared_with, SharedWith::Group(_)) {
        let (setting, value) = ("the sharing of a pool's memory", format!("{:?}", options.shared_with));
        return Err(Error::setting(
            setting,
            value,
            "without a group, because only this user may use the pool's memory",
        ));
    }
    let (setting, value) = if pool.directory().path() != home.backend.path() {
        ("the pool's directory", pool.directory().path().display().to_string())
    } else if pool.permissions() != permissions {
        ("the permissions of the pool", format!("{:o}", pool.permissions()))
    } else {
        return Ok(());
    };
    Err(Error::setting(setting, value, "that of the buffer"))
}

/// Returns the lengths as a `D`. `None`: their number is not `axes`, or `D` has another number of axes.
fn dimension<D: Dimension>(lengths: &[usize], axes: usize) -> Option<D> {
    (lengths.len() == axes).then(|| D::from_dimension(&IxDyn(lengths))).flatten()
}
