//! What a counted array says about itself and its users, without attaching to it.

use std::time::{Duration, SystemTime};

use super::record::ArrayRecord;
use crate::array::{DType, Order};
use crate::backend::{Access, Backend, Directory, IntoLocation, Location};
use crate::error::{Error, Result};
use crate::os;
use crate::segment::trailer::Trailer;
use crate::segment::{Home, is_leased};

/// What a counted array said about itself and its users at one moment, as [`inspect()`] found it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// Its name.
    pub location: Location,
    /// Type of the elements.
    pub dtype: DType,
    /// Order of the axes in memory.
    pub order: Order,
    /// Lengths of the axes.
    pub shape: Vec<usize>,
    /// Bytes of the elements.
    pub bytes: u64,
    /// How many handles are counted, those of killed processes included.
    pub refcount: u32,
    /// How many handles are on their way and have not expired.
    pub in_flight: usize,
    /// How much longer they keep the array by themselves.
    pub protected_for: Duration,
    /// Whether any process is attached: the kernel's answer.
    pub is_attached: bool,
    /// Whether the name outlives all handles, as it was wished, or because this is a copy of the file that was made.
    pub is_kept: bool,
    /// Whether no process can write to it any more.
    pub is_frozen: bool,
    /// Number of the process that made it.
    pub creator: u32,
    /// When it was made.
    pub created: SystemTime,
}

impl Inspection {
    /// Whether no process uses it and none will: [`reclaim`](crate::counted::reclaim()) would remove it.
    pub fn is_orphaned(&self) -> bool {
        !self.is_attached && !self.is_kept && self.in_flight == 0
    }
}

/// Looks at a counted array in the default backend, whatever its type and shape, without attaching to it.
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
/// [`NotFound`](crate::Error::NotFound); [`NotCounted`](crate::Error::NotCounted): it is a plain array;
/// [`Trailer`](crate::Error::Trailer): what it says cannot be true.
pub fn inspect(location: impl IntoLocation) -> Result<Inspection> {
    let home = Home::new(None, location)?;
    inspect_in(&home.backend, &home.location)
}

/// Looks at a counted array in a given directory, as [`inspect()`] does in the default one.
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
