//! Reads the trailer of a counted array without attaching to it.

use std::time::{Duration, SystemTime};

use super::record::ArrayRecord;
use crate::array::{DType, Order};
use crate::backend::{Access, Backend, Directory, IntoLocation, Location};
use crate::error::{Error, Result};
use crate::os;
use crate::segment::trailer::Trailer;
use crate::segment::{Home, is_leased};

/// The properties of a counted array at one moment, returned by [`inspect()`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// Its name.
    pub location: Location,
    /// Element type.
    pub dtype: DType,
    /// Order of the axes in memory.
    pub order: Order,
    /// Lengths of the axes.
    pub shape: Vec<usize>,
    /// Size of the elements in bytes.
    pub bytes: u64,
    /// Reference count: the number of attached handles, including those of killed processes.
    pub refcount: u32,
    /// Number of handles in flight that have not expired.
    pub in_flight: usize,
    /// Time until the last of them expires. Until then they protect the array.
    pub protected_for: Duration,
    /// Whether any process is attached, according to the kernel's lock table.
    pub is_attached: bool,
    /// Whether the name outlives all handles: the array was [kept](crate::RefcountedArray::keep), or the file is a copy
    /// of the one in which the array was created.
    pub is_kept: bool,
    /// Whether the array is frozen, so that it cannot be written any more.
    pub is_frozen: bool,
    /// Process number of the creator.
    pub creator: u32,
    /// Time of creation.
    pub created: SystemTime,
}

impl Inspection {
    /// Returns whether the array is an orphan, which [`reclaim`](crate::counted::reclaim()) removes: no process is
    /// attached, no handle protects it, and it is not kept.
    pub fn is_orphaned(&self) -> bool {
        !self.is_attached && !self.is_kept && self.in_flight == 0
    }
}

/// Returns the properties of a counted array in the default directory, without attaching to it.
///
/// # Examples
///
/// ```
/// use ndarray_shm::RefcountedArray;
/// use ndarray_shm::counted::inspect;
///
/// let array = RefcountedArray::<u16, _>::create("inspect-example", (3, 4))?;
/// let found = inspect("inspect-example")?;
/// assert_eq!((found.refcount, found.shape, found.is_attached), (1, vec![3, 4], true));
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
///
/// # Errors
///
/// - [`NotFound`](crate::ErrorKind::NotFound): no file has the name.
/// - [`NotCounted`](crate::ErrorKind::NotCounted): it is a plain array.
/// - [`Reserved`](crate::ErrorKind::Reserved): it is an arena or a file of counters.
/// - [`Trailer`](crate::ErrorKind::Trailer): its trailer is malformed, or that of an array with another name.
pub fn inspect(location: impl IntoLocation) -> Result<Inspection> {
    let home = Home::new(None, location)?;
    inspect_in(&home.backend, &home.location)
}

/// Returns the properties of a counted array in the given directory, without attaching to it. See [`inspect()`].
///
/// # Errors
///
/// As [`inspect`].
pub fn inspect_in(backend: &Directory, location: &Location) -> Result<Inspection> {
    let file = backend.open(location, Access::Read)?;
    let facts = os::facts(&file).map_err(|error| Error::os("look at", location, error))?;
    let trailer = Trailer::read(&file, &facts, location.as_str())?;
    trailer.refuse_copy(location.as_str())?;
    let ArrayRecord { dtype, order, shape, creator, created, .. } = ArrayRecord::of(&trailer, location.as_str())?;
    let (in_flight, protected_for) = trailer.in_flight(os::since_boot());
    Ok(Inspection {
        location: location.clone(),
        dtype,
        order,
        shape,
        bytes: trailer.payload,
        refcount: trailer.state.handles(),
        in_flight,
        protected_for,
        is_attached: is_leased(&file, location)?,
        is_kept: trailer.state.is_kept() || !trailer.is_original(),
        is_frozen: trailer.state.is_frozen(),
        creator,
        created,
    })
}
