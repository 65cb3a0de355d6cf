//! Counted arrays of four ones, which most tests of counted arrays begin with.

use ndarray::Ix1;
use ndarray_shm::{RefcountedArray, Result};

use super::{Name, Place};

/// Creates one under the name.
pub fn create(place: &Place, name: &Name) -> RefcountedArray<u32, Ix1> {
    place.options().create_counted_with(name.location(), 4, |mut view| view.fill(1)).expect("the name is free")
}

/// Attaches to the one with the name.
pub fn open(place: &Place, name: &Name) -> Result<RefcountedArray<u32, Ix1>> {
    place.open_options().open_counted(name.location())
}
