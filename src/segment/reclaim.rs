//! Collecting what only the dead have counted: take the lease *alone*, so that nobody can attach meanwhile, look again, and
//! remove the name.

use std::fs::File;
use std::time::Duration;

use super::footer::Kind;
use super::locks::Turn;
use super::trailer::Trailer;
use super::{Home, is_leased, look};
use crate::backend::lock_space::COUNTED;
use crate::backend::{Access, Backend};
use crate::error::{Error, Result};
use crate::os::{self, FileId, LockKind};

/// What collecting found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
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
    /// Nobody is attached and nobody will be: an orphan of this kind.
    Orphan(Kind),
}

/// Finds out whether a counted array, or an arena, is still of use to anybody, and if it is not, removes its name.
///
/// With an `id`, only what leads to that file is looked at. Without `remove`, nothing is changed or locked.
pub(crate) fn reclaim_if_orphaned(home: &Home, id: Option<FileId>, remove: bool) -> Result<Verdict> {
    let open = |access| match home.backend.open(&home.location, access) {
        Err(Error::NotFound { .. } | Error::NotAnArray { .. }) => Ok(None),
        other => other.map(Some),
    };
    let Some(file) = open(Access::Read)? else { return Ok(Verdict::Gone) };
    let (found, id) = judge(&file, id, home)?;
    if found != Verdict::Gone && is_leased(&file, &home.location)? {
        return Ok(Verdict::Attached);
    }
    if !matches!(found, Verdict::Orphan(_)) || !remove {
        return Ok(found);
    }
    // From here on nobody can attach, and only those who are attached change anything: what is seen now stays.
    let Some(alone) = open(Access::ReadWrite)? else { return Ok(Verdict::Gone) };
    let lease = os::try_lock(&alone, LockKind::Exclusive, COUNTED);
    if !lease.map_err(|error| Error::os("lease", &home.location, error))? {
        return Ok(Verdict::Attached);
    }
    let alone = Turn::of(alone, COUNTED);
    os::step("collect: alone");
    let (found, _) = judge(&alone.file, Some(id), home)?;
    if !matches!(found, Verdict::Orphan(_)) {
        return Ok(found);
    }
    match home.backend.unlink_within(&home.location, Some(id), Duration::ZERO) {
        Ok(true) => Ok(found),
        Ok(false) => Ok(Verdict::Gone),
        // Somebody is about to remove or replace it, or pretends to. It is not waited for: attachers wait for us.
        Err(Error::TimedOut { .. }) => Ok(Verdict::Attached),
        Err(error) => Err(error),
    }
}

/// What is to become of an array to which nothing is attached, and which file has it. With an `id`, only that file is judged.
fn judge(file: &File, id: Option<FileId>, home: &Home) -> Result<(Verdict, FileId)> {
    let name = home.location.as_str();
    let facts = look(file, name)?;
    if id.is_some_and(|id| id != facts.id) {
        return Ok((Verdict::Gone, facts.id));
    }
    let trailer = Trailer::read_any(file, &facts, name)?;
    let in_flight = trailer.in_flight(os::since_boot());
    let found = if trailer.refuse_copy(name).is_err() || !trailer.is_original() {
        Verdict::Copy
    } else if trailer.state.is_dead() {
        Verdict::Orphan(trailer.kind) // the last handle's process was killed before it could remove the name
    } else if trailer.state.is_kept() {
        Verdict::Kept
    } else if let (1.., left) = in_flight {
        Verdict::InFlight(left)
    } else {
        Verdict::Orphan(trailer.kind)
    };
    Ok((found, facts.id))
}
