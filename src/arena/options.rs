//! Options for creating an arena.

use crate::arena::Arena;
use crate::arena::header::ArenaHeader;
use crate::arena::tables::geometry::{Geometry, MOST_CELLS, MOST_QUEUES, MOST_SPANS, SPAN};
use crate::backend::{Directory, DraftOptions, IntoLocation, Pages};
use crate::error::{Error, ErrorKind, Result};
use crate::os;
use crate::segment::Home;
use crate::segment::footer::Kind;

/// Options for creating an arena.
///
/// ```
/// use ndarray_shm::arena::ArenaOptions;
///
/// let arena = ArenaOptions::new().queues(0).create("arena-options-example", 1 << 20)?;
/// assert_eq!(arena.capacity(), 1 << 20);
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is done until `create` is called"]
pub struct ArenaOptions {
    backend: Option<Directory>,
    draft: DraftOptions,
    keep: bool,
    queues: u32,
    cells: u32,
}

impl Default for ArenaOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl ArenaOptions {
    /// Returns the defaults: the default directory, mode 0600, 8 queues of 1024 messages, all memory reserved at
    /// creation.
    pub fn new() -> Self {
        Self { backend: None, draft: DraftOptions::default(), keep: false, queues: 8, cells: 1024 }
    }

    /// Uses this directory instead of the [default](crate::default_directory).
    pub fn directory(mut self, directory: Directory) -> Self {
        self.backend = Some(directory);
        self
    }

    /// Creates files with these permission bits, whatever the umask. The default is 0600. Windows has no permission
    /// bits.
    ///
    /// Do not let other users read the file: a user that may only read it can still take locks that members wait
    /// for.
    pub fn permissions(mut self, bits: u32) -> Self {
        self.draft.permissions = bits & 0o777;
        self
    }

    /// Chooses which memory is allocated in advance, and on which pages. The default is [`Pages::Auto`].
    pub fn pages(mut self, pages: Pages) -> Self {
        self.draft.pages = pages;
        self
    }

    /// Sets whether the name outlives all members. If so, only [`Arena::unlink`] removes it.
    pub fn keep(mut self, keep: bool) -> Self {
        self.keep = keep;
        self
    }

    /// Sets how many queues there are, at most 1024.
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = queues;
        self
    }

    /// Sets how many messages each queue has room for, at most 2^24; rounded up to a power of two.
    pub fn queue_capacity(mut self, messages: u32) -> Self {
        self.cells = messages;
        self
    }

    /// Creates an arena with `capacity` bytes for arrays, rounded up to 64 KiB, and joins it.
    ///
    /// The file has 1/16 of that in addition, for the counts.
    ///
    /// # Errors
    ///
    /// - [`AlreadyExists`](ErrorKind::AlreadyExists): the name is taken, and not by an orphan.
    /// - [`NoSpace`](ErrorKind::NoSpace): there is not enough memory.
    /// - [`TooLarge`](ErrorKind::TooLarge): the capacity exceeds 1 TiB - 64 KiB, or the arena the address space.
    /// - [`InvalidSetting`](ErrorKind::InvalidSetting): the number of queues or messages is out of range.
    pub fn create(self, location: impl IntoLocation, capacity: u64) -> Result<Arena> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let spans = capacity.div_ceil(SPAN).max(1);
        if spans > MOST_SPANS {
            let shape = vec![usize::try_from(capacity).unwrap_or(usize::MAX)];
            return Err(ErrorKind::TooLarge { shape, item: 1 }.at(&home.location));
        }
        if self.queues > MOST_QUEUES || self.cells > MOST_CELLS || (self.queues > 0 && self.cells == 0) {
            return Err(Error::setting(
                "the choice of queues",
                format!("{} of {} messages", self.queues, self.cells),
                "at most 1024 queues, of 1 to 2^24 messages each",
            ));
        }
        let geometry = Geometry {
            spans: u32::try_from(spans).unwrap_or(u32::MAX),
            queues: self.queues,
            cells: self.cells.next_power_of_two(),
            sparse: self.draft.pages == Pages::Sparse,
            counters: false,
            creator: os::process_number(),
        };
        Arena::of(ArenaHeader::create(home, Kind::Arena, geometry, self.draft, self.keep)?)
    }

    /// Opens an existing arena.
    ///
    /// Of these options only the directory and the pages count; the file has the others. With
    /// [`Pages::Sparse`](crate::Pages::Sparse) an arena is joined whatever memory it lacks: if an access finds none,
    /// the process is killed (SIGBUS).
    ///
    /// # Errors
    ///
    /// As [`Arena::open`]. With `Pages::Sparse` neither `NoSpace` nor `Unsupported` because of holes.
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray_shm::arena::ArenaOptions;
    /// use ndarray_shm::{Arena, Pages};
    ///
    /// let sparse = ArenaOptions::new().pages(Pages::Sparse); // takes memory as it is used
    /// let arena = sparse.clone().create("arena-options-open-example", 1 << 30)?;
    ///
    /// // in another process
    /// assert!(Arena::open("arena-options-open-example").is_err(), "it has not accepted that memory may be missing");
    /// let same = sparse.open("arena-options-open-example")?;
    /// assert_eq!(same.capacity(), arena.capacity());
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    pub fn open(self, location: impl IntoLocation) -> Result<Arena> {
        let home = Home::new(self.backend.as_ref(), location)?;
        Arena::of(ArenaHeader::open(home, Kind::Arena, !self.draft.pages.are_reserved())?)
    }
}
