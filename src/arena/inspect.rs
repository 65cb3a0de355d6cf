//! Inspecting an arena, or a file of counters, without joining it.

use crate::arena::tables::entries::SEATS;
use crate::arena::tables::geometry::Geometry;
use crate::backend::lock_space;
use crate::backend::{Access, Backend, Directory, IntoLocation, Location};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, LockKind};
use crate::segment::footer::Kind;
use crate::segment::trailer::Trailer;
use crate::segment::{Home, is_leased};

/// State of an arena or a file of counters at one moment, returned by [`inspect()`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArenaInspection {
    /// Its name.
    pub location: Location,
    /// Whether it has counters only, and no arrays.
    pub is_counters: bool,
    /// Bytes for arrays; 0 for counters.
    pub capacity: u64,
    /// How many queues it has.
    pub queues: u32,
    /// How many messages each queue has room for.
    pub queue_capacity: u32,
    /// How many processes are members, according to the kernel's lock table.
    pub members: u32,
    /// Maximum number of members.
    pub most_members: u32,
    /// Whether any process is attached, according to the kernel's lock table.
    pub is_attached: bool,
    /// Whether the name outlives all members: it was created so, or this is a copy of the original file.
    pub is_kept: bool,
    /// Number of the process that created it.
    pub creator: u32,
}

impl ArenaInspection {
    /// Returns whether no process is attached and the name is not kept: [`reclaim`](crate::counted::reclaim()) would
    /// remove it.
    pub fn is_orphaned(&self) -> bool {
        !self.is_attached && !self.is_kept
    }
}

/// Inspects an arena, or counters, in the default directory, without joining it.
///
/// # Examples
///
/// ```
/// use ndarray_shm::Arena;
/// use ndarray_shm::arena::inspect;
///
/// let arena = Arena::create("arena-inspect-example", 1 << 20)?;
/// let found = inspect("arena-inspect-example")?;
/// assert_eq!((found.capacity, found.members, found.is_attached), (1 << 20, 1, true));
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
///
/// # Errors
///
/// - [`NotFound`](ErrorKind::NotFound): no file has the name.
/// - [`NotCounted`](ErrorKind::NotCounted), [`Reserved`](ErrorKind::Reserved): the file is neither an arena nor
///   counters.
/// - [`Trailer`](ErrorKind::Trailer): its trailer is damaged, or that of a file with another name.
pub fn inspect(location: impl IntoLocation) -> Result<ArenaInspection> {
    let home = Home::new(None, location)?;
    inspect_in(&home.backend, &home.location)
}

/// Inspects an arena, or counters, in a given directory, as [`inspect()`] does in the default one.
///
/// # Errors
///
/// As [`inspect`].
pub fn inspect_in(backend: &Directory, location: &Location) -> Result<ArenaInspection> {
    let name = location.as_str();
    let file = backend.open(location, Access::Read)?;
    let facts = os::facts(&file).map_err(|error| Error::os("look at", name, error))?;
    let trailer = Trailer::read_any(&file, &facts, name)?;
    let is_counters = trailer.kind == Kind::Counters;
    let trailer = trailer.of_kind(if is_counters { Kind::Counters } else { Kind::Arena }, name)?;
    trailer.refuse_copy(name)?;
    let geometry = Geometry::of_record(trailer.kind, &trailer.record, trailer.payload)
        .map_err(|reason| ErrorKind::Trailer { reason }.at(name))?;
    let mut members = 0;
    for seat in 0..SEATS {
        let is_alive = os::is_locked(&file, LockKind::Exclusive, lock_space::seat(seat));
        members += u32::from(is_alive.map_err(|error| Error::os("ask for the members of", name, error))?);
    }
    Ok(ArenaInspection {
        location: location.clone(),
        is_counters,
        capacity: geometry.capacity(),
        queues: geometry.queues,
        queue_capacity: geometry.cells,
        members,
        most_members: SEATS,
        is_attached: is_leased(&file, location)?,
        is_kept: trailer.state.is_kept() || !trailer.is_original(),
        creator: geometry.creator,
    })
}
