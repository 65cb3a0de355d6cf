//! Collecting what only the dead have counted: take the lease *alone*, so that nobody can attach meanwhile, look again, and
//! remove the name.

use std::time::Duration;

use super::trailer::Trailer;
use super::{Home, is_leased};
use crate::backend::Access;
use crate::backend::lock_space::COUNTED;
use crate::error::{Error, Result};
use crate::os::{self, FileId, LockKind};

/// What collecting found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The name has gone, or leads to another file.
    Gone,
    /// Somebody is attached.
    Attached,
    /// Nobody is attached, but a handle on its way protects it so much longer.
    InFlight(Duration),
    /// Nobody is attached, and its name is to stay.
    Kept,
    /// It was made for another name, or in another file: a copy, which is not ours to remove.
    Copy,
    /// Nobody is attached and nobody will be.
    Orphan,
}

/// Finds out whether a counted array, or an arena, is still of use to anybody, and if it is not, removes its name.
///
/// With an `id`, only what leads to that file is looked at. Without `remove`, nothing is changed or locked.
pub(crate) fn collect(home: &Home, id: Option<FileId>, remove: bool) -> Result<Found> {
    let open = |access| match home.backend.open(&home.location, access) {
        Err(Error::NotFound { .. } | Error::NotAnArray { .. }) => Ok(None),
        other => other.map(Some),
    };
    let Some(file) = open(Access::Read)? else { return Ok(Found::Gone) };
    let name = home.location.as_str();
    let facts = os::facts(&file).map_err(|error| Error::os("look at", name, error))?;
    if id.is_some_and(|id| id != facts.id) {
        return Ok(Found::Gone);
    }
    let trailer = Trailer::read_any(&file, &facts, name)?;
    if is_leased(&file, &home.location)? {
        return Ok(Found::Attached);
    }
    let found = judge(&trailer, home);
    if found != Found::Orphan || !remove {
        return Ok(found);
    }
    // From here on nobody can attach, and only those who are attached change anything: what is seen now stays.
    let Some(alone) = open(Access::ReadWrite)? else { return Ok(Found::Gone) };
    if !os::try_lock(&alone, LockKind::Exclusive, COUNTED).map_err(|error| Error::os("lease", name, error))? {
        return Ok(Found::Attached);
    }
    os::step("collect: alone");
    let now = os::facts(&alone).map_err(|error| Error::os("look at", name, error))?;
    let trailer = Trailer::read_any(&alone, &now, name)?;
    if trailer.file != facts.id {
        return Ok(Found::Gone);
    }
    let found = judge(&trailer, home);
    if found != Found::Orphan {
        return Ok(found);
    }
    match home.backend.unlink_within(&home.location, Some(facts.id), Duration::ZERO) {
        Ok(true) => Ok(found),
        Ok(false) => Ok(Found::Gone),
        // Somebody is about to remove or replace it, or pretends to. It is not waited for: attachers wait for us.
        Err(Error::TimedOut { .. }) => Ok(Found::Attached),
        Err(error) => Err(error),
    }
}

/// What is to become of an array to which nobody is attached.
fn judge(trailer: &Trailer, home: &Home) -> Found {
    if trailer.refuse_copy(home.location.as_str()).is_err() || !trailer.is_original() {
        return Found::Copy;
    }
    if trailer.state.is_dead() {
        return Found::Orphan; // whose last user was killed before he could remove the name
    }
    if trailer.state.is_kept() {
        return Found::Kept;
    }
    match trailer.in_flight(os::since_boot()) {
        (0, _) => Found::Orphan,
        (_, left) => Found::InFlight(left),
    }
}
