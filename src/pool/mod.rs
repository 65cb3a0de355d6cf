//! Memory that is used again from one array to the next, for programs that make large arrays one after the other.
//!
//! New shared memory is slow: the kernel clears each page and maps it at its first touch. A [`Pool`] keeps the memory that an
//! array leaves, and gives it to the next one as soon as the kernel says that no other process is attached.
//!
//! ```
//! use ndarray_shm::Pool;
//!
//! let pool = Pool::new()?;
//! for frame in 0..3u8 {
//!     let mut draft = pool.take::<u8, _>((480, 640))?; // its elements are those of an earlier frame
//!     draft.view_mut().fill(frame);
//!     let array = draft.publish("pool-room-example")?;
//!     assert_eq!(array.read()?[[7, 7]], frame);
//! } // the name goes, the memory comes back
//! # Ok::<(), ndarray_shm::Error>(())
//! ```
//!
//! Not for arrays that outlive the program, for memory that programs map without this crate's locks, or for many small arrays:
//! those live in an [`Arena`](crate::Arena). A pool has no thread; each call does what is due.

mod loan;
mod shelf;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ndarray::{Dimension, ShapeBuilder};

pub use self::loan::{PooledArray, PooledDraft};
use self::shelf::{Limits, Shelf};
use crate::array::layout::Layout;
use crate::array::{Draft, Element, NAMELESS, SharedArray};
use crate::backend::{Directory, DraftOptions, common_settings, default_backend};
use crate::error::{Error, IntoError, Result};
use crate::os;
use crate::segment::{DraftSegment, can_recycle, recycle};

/// How long taking a name away waits for others who are at it, if it is asked for, and if an array is merely dropped.
const PUT_WAIT: Duration = Duration::from_secs(10);
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
    /// Begins with the defaults: at most 1 GiB and 64 arrays, each for a minute.
    pub fn new() -> Self {
        Self::default()
    }

    common_settings! {}

    /// Keeps at most so many bytes that nobody uses; beyond them the oldest go.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.limits.bytes = bytes;
        self
    }

    /// Keeps the memory of at most so many arrays: each costs a descriptor and a mapping.
    pub fn max_arrays(mut self, count: usize) -> Self {
        self.limits.segments = count;
        self
    }

    /// Keeps no memory for longer than this without using it. The next call of any function of the pool drops what is older.
    pub fn max_age(mut self, age: Duration) -> Self {
        self.limits.age = age;
        self
    }

    /// Makes a pool, which has no memory yet.
    ///
    /// # Errors
    ///
    /// Those of [`default_backend`].
    pub fn create(self) -> Result<Pool> {
        let backend = self.backend.map_or_else(default_backend, Ok)?;
        let Self { draft, limits, .. } = self;
        let generation = os::fork_generation();
        Ok(Pool { shared: Arc::new(PoolState { backend, draft, limits, generation, shelf: Mutex::default() }) })
    }
}

/// A number of arrays and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolAmount {
    /// How many.
    pub arrays: usize,
    /// Their bytes in all.
    pub bytes: u64,
}

impl PoolAmount {
    fn add(&mut self, bytes: u64) {
        self.arrays += 1;
        self.bytes += bytes;
    }
}

/// What a pool has, and what it has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Requests that were served with memory used before.
    pub hits: u64,
    /// Requests that took new memory.
    pub misses: u64,
    /// Memory that came back and was given up: too old, beyond the capacity, in the way of a request that did not fit, or not
    /// to be used again.
    pub dropped: u64,
    /// Memory that can be taken.
    pub idle: PoolAmount,
    /// Memory that came back, but others are still attached to it.
    pub draining: PoolAmount,
    /// [`PooledDraft`]s and [`PooledArray`]s that will come back.
    pub lent: PoolAmount,
}

/// Memory that stays reserved and mapped from one array to the next, so that filling it costs no more than filling private
/// memory: new shared memory takes several times as long.
///
/// [`take`](Self::take) gives a draft. When it is dropped, or when the array that it was [published](PooledDraft::publish) as is
/// dropped, its memory comes back, **and the array loses its name**. Processes that are attached keep the bytes: the memory waits
/// *draining* until the kernel says that the last of them has gone, and only then can it be taken again.
///
/// A clone is the same pool. It has no thread: each call does what is due, such as dropping what is too old. What it keeps costs
/// one descriptor each, and goes with its last clone. A process that is killed leaves hidden files at most, which
/// [`reclaim`](crate::counted::reclaim()) removes.
///
/// # Limits
///
/// - The kernel knows of everyone who attaches by the rules of `docs/layout.md`. A program that maps files without them, such as
///   one with `numpy.memmap`, **sees its memory being used again**: give it arrays that are no pool's.
/// - Memory is used again on Linux. Elsewhere nobody can know that he is alone, so each request takes new memory, and everything
///   else is as said here.
/// - Publishing takes two steps here, the name and then the locks. Whoever opens the name of a process that is stopped between them
///   gets `TimedOut` after five seconds.
/// - A forked child's copy of a pool is empty and stays empty, and what the child has of its parent's drafts and arrays gives
///   nothing back. It may make a pool of its own.
///
/// ```
/// use ndarray_shm::Pool;
///
/// let pool = Pool::new()?;
/// for frame in 0..3u8 {
///     let mut draft = pool.take::<u8, _>((480, 640))?; // the second time, what the first frame left
///     draft.view_mut().fill(frame);
///     let array = draft.publish("pool-example")?;
///     assert_eq!(array.read()?[[7, 7]], frame);
/// } // the name goes, the memory comes back
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
    /// Of the process that made it. A forked child has the same memory and the same descriptions: both would be alone.
    generation: u64,
    shelf: Mutex<Shelf>,
}

impl Drop for PoolState {
    fn drop(&mut self) {
        // Another thread may have been at work on it when this process was forked: then it is no use looking into.
        if self.generation != os::fork_generation() && self.shelf.try_lock().is_err() {
            let broken = self.shelf.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::take(broken));
        }
    }
}

impl Pool {
    /// Makes a pool in the default backend, with the default limits.
    ///
    /// # Errors
    ///
    /// Those of [`default_backend`].
    pub fn new() -> Result<Self> {
        PoolOptions::new().create()
    }

    /// Returns where its arrays live.
    pub fn backend(&self) -> &Directory {
        &self.shared.backend
    }

    /// Takes memory for an array, **with whatever was there**: elements of this pool's earlier arrays, or zeros.
    ///
    /// Idle memory serves if it is as large, or at most a quarter larger; otherwise new memory is taken. If there is too little
    /// room or are too few descriptors for that, idle memory is given up first.
    ///
    /// # Errors
    ///
    /// As [`Draft::new`].
    pub fn take<T: Element, D: Dimension>(&self, shape: impl ShapeBuilder<Dim = D>) -> Result<PooledDraft<T, D>> {
        let layout = Layout::new::<T>(shape, NAMELESS)?;
        let bytes = layout.bytes::<T>();
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

    /// Takes an array's name away and keeps its memory, however the array was made: created, opened, painted by many.
    ///
    /// Nothing but the name is gone for others who are attached. If the name had gone already, the memory goes with the last of
    /// them.
    ///
    /// # Errors
    ///
    /// The error gives the array back, with its name. [`PermissionDenied`](Error::PermissionDenied): it is another user's, has
    /// other permissions than the pool's arrays, or may not be written or renamed.
    /// [`InvalidSetting`](Error::InvalidSetting): it lives in another directory than the pool's arrays.
    /// [`SizeMismatch`](Error::SizeMismatch): another program changed the length of the file.
    /// [`TimedOut`](Error::TimedOut): somebody has been about to remove or replace the name for 10 s.
    /// [`Unsupported`](Error::Unsupported): the pool is that of a parent process.
    pub fn put<T: Element, D: Dimension>(&self, array: SharedArray<T, D>) -> Result<(), IntoError<SharedArray<T, D>>> {
        self.require_own(array).and_then(|array| self.absorb(array, PUT_WAIT))
    }

    /// Arranges that an array loses its name and gives its memory to this pool when it is dropped, as if it had been taken from
    /// it.
    ///
    /// # Errors
    ///
    /// The error gives the array back. [`InvalidSetting`](Error::InvalidSetting) and [`Unsupported`](Error::Unsupported), as for
    /// [`put`](Self::put).
    pub fn adopt<T: Element, D: Dimension>(
        &self,
        array: SharedArray<T, D>,
    ) -> Result<PooledArray<T, D>, IntoError<SharedArray<T, D>>> {
        Ok(PooledArray::new(self.require_own(array)?, self.clone()))
    }

    /// Gives up all idle memory.
    pub fn trim(&self) {
        self.maintain();
        while let Some(_given_up) = self.with_shelf(Shelf::give_up_oldest).flatten() {}
    }

    /// Does what is due: memory that has drained is idle again, and memory that is too old is dropped.
    pub fn maintain(&self) {
        let _dropped_unlocked = self.with_shelf(|shelf| shelf.tidy(self.shared.limits));
    }

    /// Returns what the pool has, after [maintenance](Self::maintain), and what it has done.
    pub fn stats(&self) -> PoolStats {
        self.maintain();
        self.with_shelf(|shelf| shelf.stats()).unwrap_or_default()
    }

    /// Returns the permission bits of its files.
    pub(crate) fn permissions(&self) -> u32 {
        self.shared.draft.permissions
    }

    /// Hands out memory for so many bytes, and whether it was used before. What is new is made with these options.
    pub(crate) fn lend(&self, bytes: u64, options: DraftOptions) -> Result<(DraftSegment, bool)> {
        let take = |shelf: &mut Shelf| (shelf.tidy(self.shared.limits), shelf.take(bytes));
        while let Some((_dropped_unlocked, Some(mut memory))) = self.with_shelf(take) {
            if memory.reuse(bytes)? {
                self.with_shelf(|shelf| shelf.stats.hits += 1);
                return Ok((memory, true));
            }
            self.count_dropped();
        }
        let backend = || self.shared.backend.clone();
        let mut memory = self.making_room(|| DraftSegment::new(backend(), bytes, options))?;
        let is_mine = self.with_shelf(|shelf| shelf.stats.misses += 1).is_some();
        memory.set_recyclable(is_mine && can_recycle());
        Ok((memory, false))
    }

    /// Tries again with less idle memory, as long as there is too little room or are too few descriptors.
    pub(crate) fn making_room<R>(&self, mut attempt: impl FnMut() -> Result<R>) -> Result<R> {
        loop {
            match attempt() {
                Err(error @ (Error::NoSpace { .. } | Error::TooManyOpenFiles { .. })) => {
                    self.with_shelf(Shelf::give_up_oldest).flatten().ok_or(error)?;
                }
                other => return other,
            }
        }
    }

    /// Keeps memory that has no name.
    pub(crate) fn keep(&self, mut memory: DraftSegment) {
        if !self.is_mine() {
            return; // the parent has it
        }
        if !can_recycle() || memory.isolate().is_err() {
            return self.count_dropped();
        }
        let _dropped_unlocked = self.with_shelf(|shelf| {
            shelf.put(memory);
            shelf.tidy(self.shared.limits)
        });
    }

    /// Takes the name away and keeps the memory.
    fn absorb<T: Element, D: Dimension>(
        &self,
        array: SharedArray<T, D>,
        limit: Duration,
    ) -> Result<(), IntoError<SharedArray<T, D>>> {
        let (segment, home, layout) = array.into_parts();
        match recycle(segment, &home, self.shared.draft, limit) {
            Ok(Some(memory)) => self.keep(memory),
            Ok(None) => self.count_dropped(),
            Err((error, segment)) => return Err(IntoError::new(error, SharedArray::of(segment, home, layout))),
        }
        Ok(())
    }

    fn require_own<T: Element, D: Dimension>(
        &self,
        array: SharedArray<T, D>,
    ) -> Result<SharedArray<T, D>, IntoError<SharedArray<T, D>>> {
        let found = array.backend().path();
        let error = if found != self.shared.backend.path() {
            let value = found.display().to_string();
            Error::InvalidSetting { setting: "the array's directory", value, expected: "that of the pool" }
        } else if self.is_mine() {
            return Ok(array);
        } else {
            let location = array.location().to_string();
            Error::Unsupported { location, what: FOREIGN.into() }
        };
        Err(IntoError::new(error, array))
    }

    /// Notes that memory came back and was given up.
    fn count_dropped(&self) {
        self.with_shelf(|shelf| shelf.stats.dropped += 1);
    }

    /// Whether this process made it.
    fn is_mine(&self) -> bool {
        self.shared.generation == os::fork_generation()
    }

    /// Does something with what it has; `None` in a forked child: its copy forgets what it has.
    ///
    /// What is to be dropped is returned: unmapping takes long, and others wait.
    fn with_shelf<R>(&self, act: impl FnOnce(&mut Shelf) -> R) -> Option<R> {
        if self.is_mine() {
            return Some(act(&mut self.shared.shelf.lock().unwrap_or_else(PoisonError::into_inner)));
        }
        // Not `lock`: a thread that does not exist here may have it. What is dropped is only unmapped, the names are the
        // parent's.
        let forgotten = self.shared.shelf.try_lock().ok().map(|mut shelf| std::mem::take(&mut *shelf));
        drop(forgotten);
        None
    }
}

/// Why a forked child cannot use its parent's pool.
const FOREIGN: &str = "the pool belongs to the process that this one was forked from (make another one here)";
