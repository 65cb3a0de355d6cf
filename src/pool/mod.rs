//! Memory that is used again from one array to the next, for programs that create large arrays one after another.
//!
//! New shared memory is slow: the kernel clears each page and maps it at its first touch. A [`Pool`] keeps the memory
//! of a dropped array, and uses it for another one once the kernel's lock table shows that no other process is
//! attached.
//!
//! ```
//! use ndarray_shm::Pool;
//!
//! let pool = Pool::new()?;
//! for frame in 0..3u8 {
//!     let mut draft = pool.take::<u8, _>((480, 640))?; // from the second frame on, it holds an earlier frame
//!     draft.view_mut().fill(frame);
//!     let array = draft.publish("pool-room-example")?;
//!     assert_eq!(array.read()?[[7, 7]], frame);
//! } // the name is removed, the memory returns to the pool
//! # Ok::<(), ndarray_shm::Error>(())
//! ```
//!
//! Not for arrays that outlive the program, for memory that programs map without this crate's locks, or for many small
//! arrays (an [`Arena`](crate::Arena) holds those). A pool has no thread: each call does the maintenance that is due.

mod loan;
mod shelf;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ndarray::{Dimension, ShapeBuilder};

pub use self::loan::{PooledArray, PooledDraft};
use self::shelf::{Limits, Shelf};
use crate::array::{Draft, Element, Layout, SharedArray};
use crate::backend::{Directory, DraftOptions, Pages, default_directory};
use crate::error::{Error, ErrorKind, IntoError, Result};
use crate::os;
use crate::segment::{AfterUse, DraftSegment, can_recycle, recycle};

/// How long `put` waits for another process that removes or replaces the same name.
const PUT_WAIT: Duration = Duration::from_secs(10);

/// The same for a drop, which must not wait for long.
const DROP_WAIT: Duration = Duration::from_millis(100);

/// Options for pools.
///
/// ```
/// use std::time::Duration;
///
/// use ndarray_shm::pool::PoolOptions;
///
/// let pool = PoolOptions::new().capacity(4 << 30).max_age(Duration::from_secs(10)).create()?;
/// assert_eq!(pool.stats().idle.bytes, 0);
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "options do nothing until `create` is called"]
pub struct PoolOptions {
    backend: Option<Directory>,
    draft: DraftOptions,
    limits: Limits,
}

impl Default for PoolOptions {
    fn default() -> Self {
        let limits = Limits { bytes: 1 << 30, segments: 64, age: Duration::from_secs(60) };
        Self { backend: None, draft: DraftOptions::default(), limits }
    }
}

impl PoolOptions {
    /// Begins with the defaults: keeps at most 1 GiB and 64 arrays, each for a minute.
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
    pub fn permissions(mut self, bits: u32) -> Self {
        self.draft.permissions = bits & 0o777;
        self
    }

    /// Chooses which memory is allocated in advance, and on which pages. The default is [`Pages::Auto`].
    pub fn pages(mut self, pages: Pages) -> Self {
        self.draft.pages = pages;
        self
    }

    /// Keeps at most this many bytes of memory that is not lent, idle and draining together. Beyond that the oldest is
    /// dropped.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.limits.bytes = bytes;
        self
    }

    /// Keeps the memory of at most this many arrays. Each costs a descriptor and a mapping.
    pub fn max_arrays(mut self, count: usize) -> Self {
        self.limits.segments = count;
        self
    }

    /// Keeps unused memory for at most this long. The next call of any function of the pool drops older memory.
    pub fn max_age(mut self, age: Duration) -> Self {
        self.limits.age = age;
        self
    }

    /// Creates a pool, which has no memory yet.
    ///
    /// # Errors
    ///
    /// Those of [`default_directory`].
    pub fn create(self) -> Result<Pool> {
        let backend = self.backend.map_or_else(default_directory, Ok)?;
        let Self { draft, limits, .. } = self;
        let generation = os::fork_generation();
        Ok(Pool { shared: Arc::new(PoolState { backend, draft, limits, generation, shelf: Mutex::default() }) })
    }
}

/// A number of arrays and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolAmount {
    /// Number of arrays.
    pub arrays: usize,
    /// Total of their bytes.
    pub bytes: u64,
}

impl PoolAmount {
    fn add(&mut self, bytes: u64) {
        self.arrays += 1;
        self.bytes += bytes;
    }
}

/// Counts of a pool's memory and requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Requests that were served with memory used before.
    pub hits: u64,
    /// Requests that took new memory.
    pub misses: u64,
    /// Memory that returned to the pool and was freed: too old, beyond the capacity, freed to make room for a new
    /// request, or not reusable.
    pub dropped: u64,
    /// Memory that can be taken.
    pub idle: PoolAmount,
    /// Memory that returned to the pool while other processes are still attached to it.
    pub draining: PoolAmount,
    /// [`PooledDraft`]s and [`PooledArray`]s that return their memory when they are dropped.
    pub lent: PoolAmount,
}

/// Memory that stays reserved and mapped from one array to the next.
///
/// Filling it costs no more than filling private memory. Filling new shared memory takes several times as long.
///
/// [`take`](Self::take) returns a draft. When the draft is dropped, or the array that it was
/// [published](PooledDraft::publish) as, its memory returns to the pool, **and the array loses its name**. Attached
/// processes keep the bytes: the memory is *draining* until the last of them detaches, and can be taken again only
/// then.
///
/// Clones share one pool. A pool has no thread: each call does the maintenance that is due, such as dropping memory
/// that is too old. Each array's memory that it keeps costs one descriptor, and is freed with the last clone. A killed
/// process leaves at most hidden files, which [`reclaim`](crate::counted::reclaim()) removes.
///
/// # Limits
///
/// - Only processes that attach by the rules of `docs/layout.md` are noticed. A program that maps files without them,
///   for example with `numpy.memmap`, **sees its memory being used again**. Do not give it arrays of a pool.
/// - Memory is used again on Linux only. Elsewhere a process cannot find out that no other is attached, so each request
///   takes new memory. Everything else is the same.
/// - Publishing takes two steps: the name, then the locks. If a process is stopped between them, opening the name fails
///   with `TimedOut` after five seconds.
/// - In a forked child the pool is empty and stays empty, and its copies of the parent's drafts and arrays return
///   nothing. The child may create a pool of its own.
///
/// ```
/// use ndarray_shm::Pool;
///
/// let pool = Pool::new()?;
/// for frame in 0..3u8 {
///     let mut draft = pool.take::<u8, _>((480, 640))?; // from the second frame on, it holds an earlier frame
///     draft.view_mut().fill(frame);
///     let array = draft.publish("pool-example")?;
///     assert_eq!(array.read()?[[7, 7]], frame);
/// } // the name is removed, the memory returns to the pool
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Pool {
    shared: Arc<PoolState>,
}

#[derive(Debug)]
struct PoolState {
    backend: Directory,
    draft: DraftOptions,
    limits: Limits,
    /// Fork generation of the creator. Parent and forked child share the open file descriptions, so the kernel would
    /// let both take the same memory alone.
    generation: u64,
    shelf: Mutex<Shelf>,
}

impl Drop for PoolState {
    fn drop(&mut self) {
        // In a forked child, the mutex can be locked by a thread that exists only in the parent, which was changing the
        // shelf at the fork. Such a shelf may be inconsistent, so it is leaked, not dropped.
        if self.generation != os::fork_generation() && self.shelf.try_lock().is_err() {
            let broken = self.shelf.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(broken));
        }
    }
}

impl Pool {
    /// Creates a pool in the default directory, with the default limits.
    ///
    /// # Errors
    ///
    /// Those of [`default_directory`].
    pub fn new() -> Result<Self> {
        PoolOptions::new().create()
    }

    /// Returns the directory of the pool's arrays.
    pub fn directory(&self) -> &Directory {
        &self.shared.backend
    }

    /// Takes memory for an array, **with its old contents**: elements of the pool's earlier arrays, or zeros.
    ///
    /// Idle memory is used if it is as large as needed, or at most a quarter larger. Otherwise new memory is taken. If
    /// there is too little room for that, or there are too few descriptors, idle memory is freed first.
    ///
    /// # Errors
    ///
    /// As [`Draft::new`].
    pub fn take<T: Element, D: Dimension>(&self, shape: impl ShapeBuilder<Dim = D>) -> Result<PooledDraft<T, D>> {
        let layout = Layout::<T, _>::new(shape)?;
        let bytes = layout.bytes();
        let (memory, is_recycled) = self.lend(bytes, self.shared.draft)?;
        Ok(PooledDraft::new(Draft::from_parts(memory, layout, false), self.clone(), is_recycled))
    }

    /// Takes memory for an array of zeros.
    ///
    /// # Errors
    ///
    /// As [`take`](Self::take).
    pub fn take_zeroed<T: Element, D: Dimension>(
        &self,
        shape: impl ShapeBuilder<Dim = D>,
    ) -> Result<PooledDraft<T, D>> {
        let mut draft = self.take::<T, D>(shape)?;
        if draft.is_recycled() {
            draft.view_mut().fill(T::zeroed());
        }
        Ok(draft)
    }

    /// Removes an array's name and keeps its memory. The array need not come from this pool: it may have been created,
    /// opened, or painted as a renderbuffer.
    ///
    /// Other attached processes keep the bytes; the array only loses its name. If the name was removed before, the
    /// memory is not kept. It is freed when the last process detaches.
    ///
    /// # Errors
    ///
    /// The error returns the array, with its name.
    /// - [`PermissionDenied`](ErrorKind::PermissionDenied): the file is another user's, has other permissions than the
    ///   pool's arrays, or may not be written or renamed.
    /// - [`InvalidSetting`](ErrorKind::InvalidSetting): the array is in another directory than the pool's arrays.
    /// - [`SizeMismatch`](ErrorKind::SizeMismatch): another program changed the length of the file.
    /// - [`TimedOut`](ErrorKind::TimedOut): another process kept the name locked for 10 s, to remove or replace it.
    /// - [`Unsupported`](ErrorKind::Unsupported): this process is a forked child, and the pool belongs to its parent.
    pub fn put<T: Element, D: Dimension>(&self, array: SharedArray<T, D>) -> Result<(), IntoError<SharedArray<T, D>>> {
        self.require_own(array).and_then(|array| self.absorb(array, PUT_WAIT))
    }

    /// Makes an array one of this pool's: when the returned value is dropped, the array loses its name and the pool
    /// keeps its memory.
    ///
    /// # Errors
    ///
    /// The error returns the array. [`InvalidSetting`](ErrorKind::InvalidSetting) and
    /// [`Unsupported`](ErrorKind::Unsupported), as for [`put`](Self::put).
    pub fn adopt<T: Element, D: Dimension>(
        &self,
        array: SharedArray<T, D>,
    ) -> Result<PooledArray<T, D>, IntoError<SharedArray<T, D>>> {
        Ok(PooledArray::new(self.require_own(array)?, self.clone()))
    }

    /// Frees all idle memory.
    pub fn trim(&self) {
        self.maintain();
        while let Some(_given_up) = self.with_shelf(Shelf::give_up_oldest).flatten() {}
    }

    /// Does the maintenance that is due: drained memory becomes idle, and memory that is too old is dropped.
    pub fn maintain(&self) {
        drop(self.with_shelf(|shelf| shelf.tidy(self.shared.limits))); // unmaps it, after the shelf was unlocked
    }

    /// Returns the pool's counts, after [maintenance](Self::maintain).
    pub fn stats(&self) -> PoolStats {
        self.maintain();
        self.with_shelf(|shelf| shelf.stats()).unwrap_or_default()
    }

    /// Returns the permission bits of the pool's files.
    pub(crate) fn permissions(&self) -> u32 {
        self.shared.draft.permissions
    }

    /// Returns memory of this many bytes, and whether it was used before. New memory is created with these options.
    pub(crate) fn lend(&self, bytes: u64, options: DraftOptions) -> Result<(DraftSegment, bool)> {
        let take = |shelf: &mut Shelf| (shelf.tidy(self.shared.limits), shelf.take(bytes));
        while let Some((_dropped, Some(mut memory))) = self.with_shelf(take) {
            // False if another process removed the hidden name. The file could never get a name again, so it is
            // dropped.
            if memory.reuse(bytes)? {
                self.with_shelf(|shelf| shelf.stats.hits += 1);
                return Ok((memory, true));
            }
            self.count_dropped();
        }
        let backend = || self.shared.backend.clone();
        let mut memory = self.making_room(|| DraftSegment::new(backend(), bytes, options))?;
        let is_mine = self.with_shelf(|shelf| shelf.stats.misses += 1).is_some();
        if is_mine && can_recycle() {
            memory.set_after_use(AfterUse::Recycled);
        }
        Ok((memory, false))
    }

    /// Retries `attempt` while there is too little room or there are too few descriptors, and frees idle memory before
    /// each retry.
    pub(crate) fn making_room<R>(&self, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
        loop {
            match attempt() {
                Err(error @ Error { kind: ErrorKind::NoSpace { .. } | ErrorKind::TooManyOpenFiles { .. }, .. }) => {
                    self.with_shelf(Shelf::give_up_oldest).flatten().ok_or(error)?;
                }
                other => return other,
            }
        }
    }

    /// Keeps memory that has no public name.
    pub(crate) fn keep(&self, mut memory: DraftSegment) {
        if !self.is_mine() {
            return; // it belongs to the parent
        }
        if !can_recycle() || memory.isolate().is_err() {
            return self.count_dropped();
        }
        let dropped = self.with_shelf(|shelf| {
            shelf.put(memory);
            shelf.tidy(self.shared.limits)
        });
        drop(dropped); // unmaps it, after the shelf was unlocked
    }

    /// Removes the name and keeps the memory.
    fn absorb<T: Element, D: Dimension>(
        &self,
        array: SharedArray<T, D>,
        limit: Duration,
    ) -> Result<(), IntoError<SharedArray<T, D>>> {
        let (segment, layout) = array.into_parts();
        match recycle(segment, self.shared.draft, limit) {
            Ok(Some(memory)) => self.keep(memory),
            Ok(None) => self.count_dropped(),
            Err((error, segment)) => return Err(IntoError::new(error, SharedArray::of(segment, layout))),
        }
        Ok(())
    }

    fn require_own<T: Element, D: Dimension>(
        &self,
        array: SharedArray<T, D>,
    ) -> Result<SharedArray<T, D>, IntoError<SharedArray<T, D>>> {
        let found = array.directory().path();
        let error = if found != self.shared.backend.path() {
            Error::setting("the array's directory", found.display(), "that of the pool")
        } else if self.is_mine() {
            return Ok(array);
        } else {
            ErrorKind::Unsupported { what: FOREIGN.into() }.at(array.location())
        };
        Err(IntoError::new(error, array))
    }

    /// Counts memory that returned to the pool and was freed.
    fn count_dropped(&self) {
        self.with_shelf(|shelf| shelf.stats.dropped += 1);
    }

    /// Returns whether this process created the pool.
    fn is_mine(&self) -> bool {
        self.shared.generation == os::fork_generation()
    }

    /// Calls `act` with the locked shelf. In a forked child, empties the child's copy and returns `None`.
    ///
    /// `act` returns memory to drop instead of dropping it, so that it is unmapped after the shelf is unlocked:
    /// unmapping takes long, and other threads wait for the lock.
    fn with_shelf<R>(&self, act: impl FnOnce(&mut Shelf) -> R) -> Option<R> {
        if self.is_mine() {
            return Some(act(&mut self.shared.shelf.lock().unwrap_or_else(PoisonError::into_inner)));
        }
        // Not `lock`: a thread that exists only in the parent may have held the lock at the fork, and would never
        // release it here. Dropping the child's copy only unmaps the memory. The hidden names belong to the parent.
        let forgotten = self.shared.shelf.try_lock().ok().map(|mut shelf| std::mem::take(&mut *shelf));
        drop(forgotten);
        None
    }
}

/// Why a forked child cannot use its parent's pool.
const FOREIGN: &str = "the pool belongs to the parent of this forked process (create another pool here)";
