//! Reclaiming what only dead processes had counted: take the lease *alone*, so that no process can attach meanwhile,
//! check again, and remove the name.

use std::fs::File;
use std::time::Duration;

use super::footer::Kind;
use super::open_file::{is_leased, look};
use super::trailer::Trailer;
use super::{DROP_WAIT, Home};
use crate::backend::lock_space::COUNTED;
use crate::backend::{Access, Backend, Turn};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, FileId, LockKind};

/// Result of looking at a counted array or an arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The name has gone, or leads to another file.
    Gone,
    /// A process is attached.
    Attached,
    /// No process is attached, but a ticket protects it for this long.
    InFlight(Duration),
    /// No process is attached, and its name is kept.
    Kept,
    /// It was created under another name, or in another file: a copy, which is never removed.
    Copy,
    /// No process is attached and none will be: an orphan of this kind.
    Orphan(Kind),
}

/// Whether tickets protect an array without attachments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tickets {
    Protect,
    Ignored,
}

/// Finds out whether a counted array, or an arena, is still in use, and removes its name if it is not.
///
/// With an `id`, only a name that leads to that file counts. Without `remove`, nothing is changed or locked.
pub(crate) fn reclaim_if_orphaned(home: &Home, id: Option<FileId>, remove: bool) -> Result<Verdict> {
    reclaim_unused(home, id, remove, Tickets::Protect, DROP_WAIT)
}

/// Like [`reclaim_if_orphaned`], for callers that choose whether tickets protect an array, and how long to wait for
/// another process that has locked the name.
pub(crate) fn reclaim_unused(
    home: &Home,
    id: Option<FileId>,
    remove: bool,
    tickets: Tickets,
    patience: Duration,
) -> Result<Verdict> {
    let open = |access| match home.backend.open(&home.location, access) {
        Err(Error { kind: ErrorKind::NotFound | ErrorKind::NotAnArray { .. }, .. }) => Ok(None),
        other => other.map(Some),
    };
    let Some(file) = open(Access::Read)? else { return Ok(Verdict::Gone) };
    let Judgement { found, id, dated } = judge(&file, id, home, tickets)?;
    if found != Verdict::Gone && is_leased(&file, &home.location)? {
        return Ok(Verdict::Attached);
    }
    if !remove || !matches!(found, Verdict::Orphan(_)) && dated.is_empty() {
        return Ok(found);
    }
    // While this process holds COUNTED alone, no process can attach, and only attached processes change the trailer. A
    // process that attached between the first look and this lock makes the lock fail; one that comes later waits, and
    // then finds the name gone.
    let Some(mut alone) = open(Access::ReadWrite)?.map(Turn::new) else { return Ok(Verdict::Gone) };
    let lease = alone.try_lock(LockKind::Exclusive, COUNTED);
    if !lease.map_err(|error| Error::os("lease", &home.location, error))? {
        return Ok(Verdict::Attached);
    }
    os::step("collect: alone");
    let Judgement { found, dated, .. } = judge(alone.file(), Some(id), home, tickets)?;
    if !matches!(found, Verdict::Orphan(_)) {
        // No process is attached that could date them, and none can attach meanwhile.
        for (at, deadline) in dated {
            os::write_all_at(alone.file(), &deadline.to_le_bytes(), at)
                .map_err(|error| Error::os("write the deadline of a handle of", &home.location, error))?;
        }
        return Ok(found);
    }
    match home.backend.unlink_within(&home.location, Some(id), patience) {
        Ok(true) => Ok(found),
        Ok(false) => Ok(Verdict::Gone),
        // Another process holds the lock on the name. It is not waited for longer, because attachments wait for this
        // process.
        Err(Error { kind: ErrorKind::TimedOut { .. }, .. }) => Ok(Verdict::Attached),
        Err(error) => Err(error),
    }
}

/// What is to become of an array without attachments.
struct Judgement {
    found: Verdict,
    id: FileId,
    /// The deadlines that must be written so that the time of tickets by an unknown clock begins to pass: see
    /// [`Trailer::dated`].
    dated: Vec<(u64, u64)>,
}

/// Judges an array without attachments. With an `id`, only that file is judged.
fn judge(file: &File, id: Option<FileId>, home: &Home, tickets: Tickets) -> Result<Judgement> {
    let name = home.location.as_str();
    let facts = look(file, name)?;
    if id.is_some_and(|id| id != facts.id) {
        return Ok(Judgement { found: Verdict::Gone, id: facts.id, dated: Vec::new() });
    }
    let trailer = Trailer::read_any(file, &facts, name)?;
    let now = os::since_boot();
    let in_flight = trailer.in_flight(now);
    let found = if trailer.refuse_copy(name).is_err() || !trailer.is_original() {
        Verdict::Copy
    } else if trailer.state.is_dead() {
        Verdict::Orphan(trailer.kind) // the process of the last handle was killed before it could remove the name
    } else if trailer.state.is_kept() {
        Verdict::Kept
    } else if let (1.., left, Tickets::Protect) = (in_flight.0, in_flight.1, tickets) {
        Verdict::InFlight(left)
    } else {
        Verdict::Orphan(trailer.kind)
    };
    let dated = if matches!(found, Verdict::InFlight(_)) { trailer.dated(now) } else { Vec::new() };
    Ok(Judgement { found, id: facts.id, dated })
}
