//! Many arrays in one file and one mapping, and queues that pass them on in a microsecond.
//!
//! An [`Arena`] is for thousands to millions of arrays that up to 46 processes make, share and release: none of it takes a
//! system call, a descriptor or a mapping of its own. A [`Queue`] passes an array to another process as one word.
//!
//! ```
//! use ndarray::Ix1;
//! use ndarray_shm::Arena;
//!
//! let arena = Arena::create("arena-room-example", 1 << 20)?;
//! arena.queue(0)?.send(arena.from_array(&ndarray::arr1(&[1.0, 2.0]))?)?;
//!
//! // in another process
//! let received = Arena::open("arena-room-example")?.queue(0)?.recv::<f64, Ix1>()?;
//! assert_eq!(received.view().sum(), 3.0);
//! # Ok::<(), ndarray_shm::Error>(())
//! ```
//!
//! | to | use |
//! |---|---|
//! | make an array, fill it, share it | [`Arena::draft`], [`ArenaDraft::share`] |
//! | wait for memory that others hold | [`Arena::draft_wait`] |
//! | send a reference to one by other means | [`ArenaHandle`], 24 bytes |
//! | pass arrays on between processes | [`Queue`] |
//! | let receivers end with the last sender, also if it is killed | [`Queue::sender`] |
//! | see and free what killed members held | [`Arena::stats`], [`Arena::reclaim`] |
//! | look at an arena without joining it | [`inspect()`] |
//! | lend memory that lies elsewhere | [`loans`] |
//!
//! Not for arrays that other programs open by name (numpy, CloudVolume): those are [`SharedArray`](crate::SharedArray)s. Not for more
//! than 46 processes. All members trust one another: each of them can write to all of the memory.
//!
//! Whatever several processes change is one word at a time, or a bit that may be set or cleared again. So a process may be killed
//! at any instruction, and there is no journal.

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
use self::tables::slots::SEATS;
use crate::array::Element;
use crate::array::layout::{Layout, shape_like};
use crate::backend::{Directory, IntoLocation, Location, default_backend};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::segment::Home;
use crate::segment::footer::Kind;

/// Many arrays in one segment and one mapping, for up to 46 processes.
///
/// Making, sharing, getting and releasing a small array takes well under a microsecond, no system call, no descriptor and no mapping:
/// a million arrays are no more to the kernel than one. Each array is held by bits, one for each process that has it; whoever gives
/// up the last one has freed it, and nothing else says that it is free. So a process may be killed at any instruction: what it
/// held is free as soon as somebody looks ([`reclaim`](Self::reclaim), or whoever finds no memory otherwise).
///
/// The arena's name goes with the last process that has it open, unless it was made with [`keep`](ArenaOptions::keep); if all were
/// killed, [`reclaim`](crate::counted::reclaim()) removes it. A forked child is no member: what it inherits answers errors, and it opens the
/// arena again.
///
/// Cloning is cheap and stays the same member. The arena is left when the last clone, array and draft of this process is dropped.
///
/// ```
/// use ndarray_shm::Arena;
///
/// let arena = Arena::create("arena-example", 1 << 24)?;
/// let mut draft = arena.draft::<f32, _>((100, 100))?;
/// draft.view_mut().fill(1.0);
/// let array = draft.share()?;
/// let handle = array.handle(); // 24 bytes, to be sent as one likes
///
/// // in another process
/// let same = Arena::open("arena-example")?.get::<f32, ndarray::Ix2>(&handle)?;
/// assert_eq!((same.view().sum(), same.members()), (10_000.0, 2));
///
/// drop((array, same)); // nobody holds it: its memory is used again
/// assert!(arena.get::<f32, ndarray::Ix2>(&handle).is_err());
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Clone)]
pub struct Arena {
    header: Arc<ArenaHeader>,
}

/// What an arena holds at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArenaStats {
    /// Bytes that blocks can have.
    pub capacity: u64,
    /// Bytes of spans in which nothing is, and which any array can have.
    pub unused: u64,
    /// Arrays and drafts that somebody holds, dead processes included.
    pub arrays: usize,
    /// Of these, arrays that a message of a process that has gone keeps.
    pub orphaned_messages: usize,
    /// Who has the arena open, by the number of the process, and how many arrays each holds.
    pub members: Vec<ArenaMember>,
}

/// One who has an arena open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArenaMember {
    /// Number of the process, in its own pid namespace.
    pub process: u32,
    /// Whether it lives, as the kernel says.
    pub is_alive: bool,
    /// How many arrays it holds.
    pub arrays: usize,
}

impl Arena {
    /// Makes an arena under a name that must be free, with room for blocks of so many bytes in all, and takes the memory.
    ///
    /// # Errors
    ///
    /// As [`ArenaOptions::create`].
    pub fn create(location: impl IntoLocation, capacity: u64) -> Result<Self> {
        ArenaOptions::new().create(location, capacity)
    }

    /// Opens an arena that another process made. What was chosen about it is in its file.
    ///
    /// # Errors
    ///
    /// - [`NotFound`](Error::NotFound), also when the last member is just leaving.
    /// - [`TooManyProcesses`](Error::TooManyProcesses): 46 processes have it open already.
    /// - [`TimedOut`](Error::TimedOut): a process was stopped while it settled what a dead one left, or a thread of this process
    ///   while it forked.
    /// - [`Reserved`](Error::Reserved), [`NotCounted`](Error::NotCounted): it is something else.
    /// - [`Trailer`](Error::Trailer): what it says about itself cannot be true.
    /// - [`PermissionDenied`](Error::PermissionDenied): every member writes to it, to count.
    pub fn open(location: impl IntoLocation) -> Result<Self> {
        Self::open_in(&default_backend()?, location)
    }

    /// Opens an arena that another process made in a given backend.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_in(backend: &Directory, location: impl IntoLocation) -> Result<Self> {
        Self::of(ArenaHeader::open(Home::new(Some(backend), location)?, Kind::Arena)?)
    }

    #[allow(clippy::unnecessary_wraps)] // ends a chain of results
    fn of(header: ArenaHeader) -> Result<Self> {
        Ok(Self { header: Arc::new(header) })
    }

    /// Takes memory for an array, which is filled before anyone else can see it. Its elements are whatever was there.
    ///
    /// # Errors
    ///
    /// - [`NoSpace`](Error::NoSpace): nothing is free, not even after the dead's was freed.
    /// - [`TooLarge`](Error::TooLarge); [`InvalidSetting`](Error::InvalidSetting): more than 32 axes.
    /// - [`Unsupported`](Error::Unsupported): this is a forked child.
    pub fn draft<T: Element, D: Dimension>(&self, shape: impl ShapeBuilder<Dim = D>) -> Result<ArenaDraft<T, D>> {
        let layout = Layout::new::<T>(shape, self.header.name())?;
        ArenaDraft::new(&self.header, layout, None)
    }

    /// As [`draft`](Self::draft), but while nothing is free waits until arrays are dropped, or processes that held some have died;
    /// [`Duration::MAX`] waits without limit.
    ///
    /// A thread that holds the arrays itself would wait for itself.
    ///
    /// # Errors
    ///
    /// - [`TimedOut`](Error::TimedOut): nothing became free.
    /// - [`NoSpace`](Error::NoSpace), at once: the arena is smaller than the array.
    /// - As [`draft`](Self::draft).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use ndarray_shm::Arena;
    ///
    /// let arena = Arena::create("draft-wait-example", 1 << 16)?;
    /// let held = arena.draft::<u8, _>(50_000)?;
    /// assert!(arena.draft::<u8, _>(50_000).unwrap_err().is_no_space());
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| drop(held)); // mostly in another process
    ///     arena.draft_wait::<u8, _>(50_000, Duration::from_secs(60)).map(drop)
    /// })?;
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    pub fn draft_wait<T: Element, D: Dimension>(
        &self,
        shape: impl ShapeBuilder<Dim = D>,
        limit: Duration,
    ) -> Result<ArenaDraft<T, D>> {
        let layout = Layout::new::<T>(shape, self.header.name())?;
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

    /// Copies an array into the arena and shares it; Fortran order is kept, every other order of axes becomes C.
    ///
    /// # Errors
    ///
    /// As [`draft`](Self::draft).
    pub fn from_array<T: Element, D: Dimension>(&self, array: &ArrayRef<T, D>) -> Result<ArenaArray<T, D>> {
        let mut draft = self.draft(shape_like(array))?;
        draft.view_mut().assign(array);
        Ok(draft.share()?)
    }

    /// Gets the array that a handle leads to, which somebody holds.
    ///
    /// # Errors
    ///
    /// - [`HandleSpent`](Error::HandleSpent): nobody holds it any more.
    /// - [`DTypeMismatch`](Error::DTypeMismatch), [`ShapeMismatch`](Error::ShapeMismatch): it has other elements, or another
    ///   number of axes.
    /// - [`InvalidSetting`](Error::InvalidSetting): it is another arena's.
    /// - [`Unsupported`](Error::Unsupported): this is a forked child.
    pub fn get<T: Element, D: Dimension>(&self, handle: &ArenaHandle) -> Result<ArenaArray<T, D>> {
        let expected = "one of this arena's: this is another's, or that of an arena which had the name before";
        self.header.check_handle(handle.owner, handle, expected)?;
        if !self.header.slots().hold(handle.slot, handle.serial) {
            return Err(self.header.spent());
        }
        ArenaArray::of_held(&self.header, handle.slot, handle.serial)
    }

    /// Frees what only the dead hold.
    ///
    /// Nobody needs to: whoever finds no memory does it too. It takes a few system calls, and looks through all arrays if
    /// somebody has died.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](Error::TimedOut): somebody was stopped in the middle of the same. [`Unsupported`](Error::Unsupported): this is a
    /// forked child.
    pub fn reclaim(&self) -> Result<ReclaimedBlocks> {
        self.header.end_sent();
        self.header.reclaim_dead(TURN_WAIT)
    }

    /// Counts what is there. Looks through everything, and disturbs nobody.
    ///
    /// # Errors
    ///
    /// What the kernel answers when it is asked who lives. [`Unsupported`](Error::Unsupported): this is a forked child.
    pub fn stats(&self) -> Result<ArenaStats> {
        self.header.check_process()?;
        self.header.stats()
    }

    /// Returns the arena's name.
    pub fn location(&self) -> &Location {
        &self.header.home.location
    }

    /// Returns how many bytes blocks can have in all; every array takes 64 bytes beside its elements, and rounding.
    pub fn capacity(&self) -> u64 {
        self.header.geometry.capacity()
    }

    /// Removes the name, if it still leads here. Whoever has the arena open keeps it.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](Error::PermissionDenied).
    pub fn unlink(&self) -> Result<bool> {
        self.header.home.unlink(self.header.segment()?.id())
    }

    /// Leaves, and says if something went wrong: dropping does the same in silence. While this process has clones or arrays,
    /// the arena is left when the last of them goes.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](Error::PermissionDenied): the last one out may not remove the name.
    pub fn close(self) -> Result<()> {
        Arc::into_inner(self.header).map_or(Ok(()), ArenaHeader::close)
    }
}

impl ArenaHeader {
    fn stats(&self) -> Result<ArenaStats> {
        let mut held = [0usize; SEATS as usize];
        let mut stats =
            ArenaStats { capacity: self.geometry.capacity(), unused: self.unused(), ..ArenaStats::default() };
        for slot in self.touched_slots().iter().filter(|slot| !slot.is_free()) {
            stats.arrays += 1;
            stats.orphaned_messages += usize::from(slot.is_orphaned());
            for (seat, held) in (0..).zip(&mut held) {
                *held += usize::from(slot.is_held_by(seat));
            }
        }
        for (seat, arrays) in (0..).zip(held).filter(|(seat, _)| self.is_taken(*seat)) {
            let process = self.process_of(seat);
            stats.members.push(ArenaMember { process, is_alive: self.is_alive(seat)?, arrays });
        }
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
