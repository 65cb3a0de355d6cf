//! Many arrays in one file and one mapping, and queues that pass them between processes within a microsecond.
//!
//! An [`Arena`] is for thousands to millions of arrays. Up to 46 processes create, share and release them without a
//! system call, a descriptor or a mapping per array. A [`Queue`] passes an array to another process as one word.
//!
//! ```
//! use ndarray_shm::ndarray::Ix1;
//! use ndarray_shm::Arena;
//!
//! let arena = Arena::create("arena-room-example", 1 << 20)?;
//! arena.queue(0)?.send(arena.from_array(&ndarray_shm::ndarray::arr1(&[1.0, 2.0]))?)?;
//!
//! // in another process
//! let received = Arena::open("arena-room-example")?.queue(0)?.recv::<f64, Ix1>()?;
//! assert_eq!(received.view().sum(), 3.0);
//! # Ok::<(), ndarray_shm::Error>(())
//! ```
//!
//! | to | use |
//! |---|---|
//! | create an array, fill it, share it | [`Arena::draft`], [`ArenaDraft::share`] |
//! | wait for memory that other processes hold | [`Arena::draft_wait`] |
//! | send a reference to an array by other means | [`ArenaHandle`], 24 bytes |
//! | pass arrays between processes | [`Queue`] |
//! | end receivers when the last sender ends or is killed | [`Queue::sender`] |
//! | see and reclaim what killed members held | [`Arena::stats`], [`Arena::reclaim`] |
//! | inspect an arena without joining it | [`inspect()`] |
//! | lend memory that lies elsewhere | [`loans`] |
//!
//! Not for arrays that other programs open by name (numpy, CloudVolume): those are
//! [`SharedArray`](crate::SharedArray)s. Not for more than 46 processes. All members trust one another: each of them
//! can write to all of the memory.
//!
//! Processes change shared state one word at a time, in an order that leaves a valid state after every step. So a
//! process may be killed at any instruction, and there is no journal.

mod array;
mod blocks;
mod handle;
mod header;
mod hints;
mod inspect;
pub mod loans;
mod members;
mod options;
mod queues;
mod sent;
mod tables;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ndarray::{ArrayRef, Dimension, ShapeBuilder};

pub use self::array::{ArenaArray, ArenaDraft};
pub use self::handle::ArenaHandle;
use self::header::{ArenaHeader, TURN_WAIT};
pub use self::inspect::{ArenaInspection, inspect, inspect_in};
pub use self::members::ReclaimedBlocks;
pub use self::options::ArenaOptions;
pub use self::queues::{ArenaMessage, Queue, ReceiveError, Sendable, Sender};
use self::tables::entries::SEATS;
use crate::array::Element;
use crate::array::layout::{Layout, shape_like};
use crate::backend::{Directory, IntoLocation, Location, default_directory};
use crate::backoff::Deadline;
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;

/// Many arrays in one segment and one mapping, for up to 46 processes.
///
/// Creating, sharing, getting or releasing a small array takes well under a microsecond and no system call, descriptor
/// or mapping: the kernel sees one file, however many arrays it holds. Each array has one bit for each process that
/// holds it, and is free when the last bit is cleared. A process may be killed at any instruction: what it held is
/// reclaimed by [`reclaim`](Self::reclaim), or by the next process that finds no free memory.
///
/// The last process that leaves the arena removes its name, unless the arena was created with
/// [`keep`](ArenaOptions::keep). If all processes were killed, [`reclaim`](crate::counted::reclaim()) removes the name.
/// A forked child is not a member: the values that it inherits return errors, and it has to open the arena again.
///
/// Cloning is cheap, and clones are the same member. This process leaves the arena when it drops the last clone, array
/// and draft.
///
/// ```
/// use ndarray_shm::Arena;
///
/// let arena = Arena::create("arena-example", 1 << 24)?;
/// let mut draft = arena.draft::<f32, _>((100, 100))?;
/// draft.view_mut().fill(1.0);
/// let array = draft.share()?;
/// let handle = array.handle(); // 24 bytes, to be sent by any means
///
/// // in another process
/// let same = Arena::open("arena-example")?.get::<f32, ndarray_shm::ndarray::Ix2>(&handle)?;
/// assert_eq!((same.view().sum(), same.members()), (10_000.0, 2));
///
/// drop((array, same)); // no process holds it: its memory is free
/// assert!(arena.get::<f32, ndarray_shm::ndarray::Ix2>(&handle).is_err());
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Clone)]
pub struct Arena {
    header: Arc<ArenaHeader>,
}

/// Usage of an arena at one moment, returned by [`Arena::stats`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArenaStats {
    /// Bytes for arrays in total.
    pub capacity: u64,
    /// Bytes that new arrays of any size can have: spans of the arena in which there is no array, except arrays that
    /// only dead members hold. Arrays that were dropped do not count as arrays, also those that were sent and received
    /// meanwhile.
    pub unused: u64,
    /// Arrays and drafts that processes hold, dead ones included.
    pub arrays: usize,
    /// Of these, arrays that an orphaned message keeps.
    pub orphaned_messages: usize,
    /// The members, and how many arrays each holds.
    pub members: Vec<ArenaMember>,
}

/// A member of an arena: a process that has opened it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArenaMember {
    /// Number of the process, in its own pid namespace.
    pub process: u32,
    /// Whether it is alive, according to the kernel's lock table.
    pub is_alive: bool,
    /// How many arrays it holds.
    pub arrays: usize,
}

impl Arena {
    /// Creates an arena with `capacity` bytes for arrays under a name that must be free, and reserves all its memory.
    ///
    /// # Errors
    ///
    /// As [`ArenaOptions::create`].
    pub fn create(location: impl IntoLocation, capacity: u64) -> Result<Self> {
        ArenaOptions::new().create(location, capacity)
    }

    /// Opens an existing arena. Its options are stored in its file.
    ///
    /// An arena that was created with [`Pages::Sparse`](crate::Pages::Sparse) is refused, because an access to it may
    /// end this process. [`ArenaOptions::open`] joins it by choice.
    ///
    /// # Errors
    ///
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): it was created with `Pages::Sparse`.
    /// - [`NoSpace`](crate::ErrorKind::NoSpace): it has holes for another reason, and there is not enough memory to
    ///   fill them.
    /// - [`NotFound`](crate::ErrorKind::NotFound), or [`Elsewhere`](crate::ErrorKind::Elsewhere) if the other usual
    ///   place has it: no arena has the name, or its last member is just leaving.
    /// - [`TooManyProcesses`](crate::ErrorKind::TooManyProcesses): 46 processes are members already.
    /// - [`TimedOut`](crate::ErrorKind::TimedOut): a process was stopped while it reclaimed a dead member, or a thread
    ///   of this process while it forked.
    /// - [`Reserved`](crate::ErrorKind::Reserved), [`NotCounted`](crate::ErrorKind::NotCounted): the file is not an
    ///   arena.
    /// - [`Trailer`](crate::ErrorKind::Trailer): its trailer is damaged.
    /// - [`PermissionDenied`](crate::ErrorKind::PermissionDenied): every member needs permission to write, because it
    ///   counts its holds in the file.
    pub fn open(location: impl IntoLocation) -> Result<Self> {
        Self::open_in(&default_directory()?, location)
    }

    /// Opens an existing arena in a given directory.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_in(backend: &Directory, location: impl IntoLocation) -> Result<Self> {
        ArenaOptions::new().directory(backend.clone()).open(location)
    }

    #[allow(clippy::unnecessary_wraps)] // ends a chain of results
    fn of(header: ArenaHeader) -> Result<Self> {
        Ok(Self { header: Arc::new(header) })
    }

    /// Allocates an array that no other process can reach until it is shared. Its elements are whatever the memory held
    /// before.
    ///
    /// # Errors
    ///
    /// - [`NoSpace`](crate::ErrorKind::NoSpace): no memory is free, not even after reclaiming the holds of dead
    ///   members.
    /// - [`TimedOut`](crate::ErrorKind::TimedOut): none was found, and for 10 seconds another process was stopped while
    ///   it reclaimed, or while it made or freed room for large arrays.
    /// - [`TooLarge`](crate::ErrorKind::TooLarge); [`InvalidSetting`](crate::ErrorKind::InvalidSetting): more than 32
    ///   axes.
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): this is a forked child.
    pub fn draft<T: Element, D: Dimension>(&self, shape: impl ShapeBuilder<Dim = D>) -> Result<ArenaDraft<T, D>> {
        let layout = Layout::<T, _>::named(shape, self.header.name())?;
        ArenaDraft::new(&self.header, layout, None)
    }

    /// As [`draft`](Self::draft), but waits while no memory is free, until arrays are dropped or processes that hold
    /// them die. [`Duration::MAX`] waits without limit.
    ///
    /// The wait does not free arrays that this thread holds itself. It is not longer than `limit` when another process
    /// is stopped while it reclaims, and memory that becomes free meanwhile is found.
    ///
    /// # Errors
    ///
    /// - [`TimedOut`](crate::ErrorKind::TimedOut): no memory became free.
    /// - [`NoSpace`](crate::ErrorKind::NoSpace), at once: the arena is smaller than the array.
    /// - As [`draft`](Self::draft).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use ndarray_shm::{Arena, ErrorKind};
    ///
    /// let arena = Arena::create("draft-wait-example", 1 << 16)?;
    /// let held = arena.draft::<u8, _>(50_000)?;
    /// assert!(matches!(arena.draft::<u8, _>(50_000).unwrap_err().kind, ErrorKind::NoSpace { .. }));
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| drop(held)); // usually in another process
    ///     arena.draft_wait::<u8, _>(50_000, Duration::from_secs(60)).map(drop)
    /// })?;
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    pub fn draft_wait<T: Element, D: Dimension>(
        &self,
        shape: impl ShapeBuilder<Dim = D>,
        limit: Duration,
    ) -> Result<ArenaDraft<T, D>> {
        let layout = Layout::<T, _>::named(shape, self.header.name())?;
        ArenaDraft::new(&self.header, layout, Some(limit))
    }

    /// As [`draft`](Self::draft), with elements that are zero.
    ///
    /// # Errors
    ///
    /// As [`draft`](Self::draft).
    pub fn zeroed<T: Element, D: Dimension>(&self, shape: impl ShapeBuilder<Dim = D>) -> Result<ArenaDraft<T, D>> {
        let mut draft = self.draft(shape)?;
        draft.view_mut().fill(T::zeroed());
        Ok(draft)
    }

    /// Copies an array into the arena and shares it. Keeps Fortran order; every other order of axes becomes C.
    ///
    /// # Errors
    ///
    /// As [`draft`](Self::draft).
    pub fn from_array<T: Element, D: Dimension>(&self, array: &ArrayRef<T, D>) -> Result<ArenaArray<T, D>> {
        let mut draft = self.draft(shape_like(array))?;
        draft.view_mut().assign(array);
        Ok(draft.share()?)
    }

    /// Returns the array that a handle leads to, and holds it.
    ///
    /// # Errors
    ///
    /// - [`HandleSpent`](crate::ErrorKind::HandleSpent): no process holds the array any more.
    /// - [`DTypeMismatch`](crate::ErrorKind::DTypeMismatch), [`ShapeMismatch`](crate::ErrorKind::ShapeMismatch): it has
    ///   another element type or another number of axes.
    /// - [`InvalidSetting`](crate::ErrorKind::InvalidSetting): the handle is of another arena.
    /// - [`Unsupported`](crate::ErrorKind::Unsupported): this is a forked child.
    pub fn get<T: Element, D: Dimension>(&self, handle: &ArenaHandle) -> Result<ArenaArray<T, D>> {
        let expected = "a handle of this arena: this is one of another arena, or of an earlier one with the same name";
        self.header.check_handle(handle.owner, handle, expected)?;
        if !self.header.entries().hold(handle.entry, handle.serial) {
            return Err(self.header.spent());
        }
        ArenaArray::of_held(&self.header, handle.entry, handle.serial)
    }

    /// Reclaims what dead processes held.
    ///
    /// Calling it is optional: a process that finds no free memory reclaims as well. It takes a few system calls, and
    /// visits all arrays if a process has died.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](crate::ErrorKind::TimedOut): another process was stopped while it reclaimed.
    /// [`Unsupported`](crate::ErrorKind::Unsupported): this is a forked child.
    pub fn reclaim(&self) -> Result<ReclaimedBlocks> {
        self.header.end_sent();
        self.header.reclaim_dead(Deadline::after(TURN_WAIT))
    }

    /// Counts arrays and members. Visits all arrays, and blocks no other process.
    ///
    /// # Errors
    ///
    /// The kernel's error, if it cannot tell which members are alive. [`Unsupported`](crate::ErrorKind::Unsupported):
    /// this is a forked child.
    pub fn stats(&self) -> Result<ArenaStats> {
        self.header.check_process()?;
        self.header.stats()
    }

    /// Returns the arena's name.
    pub fn location(&self) -> &Location {
        &self.header.home.location
    }

    /// Returns the number of bytes for arrays in total. An array takes its elements and 64 bytes or more, rounded up.
    pub fn capacity(&self) -> u64 {
        self.header.geometry.capacity()
    }

    /// Removes the name, if it still leads to this arena. Processes that are attached can go on using the arena.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](crate::ErrorKind::PermissionDenied).
    pub fn unlink(&self) -> Result<bool> {
        self.header.home.unlink(self.header.segment().id())
    }

    /// Leaves the arena, and reports errors. Dropping leaves it too, and ignores them. If this process has clones or
    /// arrays, it leaves with the last of them.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](crate::ErrorKind::PermissionDenied): this process was the last one and is not permitted to
    /// remove the name.
    pub fn close(self) -> Result<()> {
        Arc::into_inner(self.header).map_or(Ok(()), ArenaHeader::close)
    }
}

impl ArenaHeader {
    fn stats(&self) -> Result<ArenaStats> {
        self.end_sent();
        let mut held = [0usize; SEATS as usize];
        let mut dead = 0;
        let mut stats = ArenaStats { capacity: self.geometry.capacity(), ..ArenaStats::default() };
        for entry in self.touched_entries().iter().filter(|entry| !entry.is_free()) {
            stats.arrays += 1;
            stats.orphaned_messages += usize::from(entry.is_orphaned());
            for (seat, held) in (0..).zip(&mut held) {
                *held += usize::from(entry.is_held_by(seat));
            }
        }
        for (seat, arrays) in (0..).zip(held).filter(|(seat, _)| self.is_taken(*seat)) {
            let (process, is_alive) = (self.process_of(seat), self.is_alive(seat)?);
            dead |= u64::from(!is_alive) << seat;
            stats.members.push(ArenaMember { process, is_alive, arrays });
        }
        stats.unused = self.unused(dead);
        Ok(stats)
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("location", self.location())
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}
