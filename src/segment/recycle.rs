//! Recycled memory: a published segment loses its name and becomes a draft once no other process is attached.
//!
//! Every attachment holds a read lock on LEASE, through a description of its own. The memory's owner *converts* its own
//! read lock to a write lock, which the kernel grants only if no other description holds one. From then on no process
//! can attach, and none holds guards, because all cells are locked the same way. This lasts until the memory has a
//! public name again.
//!
//! Another process may have opened the old name without having leased the file yet. Its lease is refused, or granted
//! when the file has its next name. In the second case the name check after the lease (segment/attach.rs) finds that
//! the old name leads elsewhere.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use super::attach::lease_own_until;
use super::draft::Reachability;
use super::mapping::{map, map_length};
use super::open_file::look;
use super::{DraftSegment, Home, Kept, Segment};
use crate::backend::lock_space::{ALL_CELLS, COUNTED, LEASE};
use crate::backend::{Access, Backend, DraftFile, DraftOptions, Location, Publish};
use crate::backoff::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, FileId, LockKind};
use crate::random;

/// Stands for the name in errors about memory without a name.
const NAMELESS: &str = "(recycled memory)";

/// How many random hidden names are tried, in case one is taken.
const TRIES: u32 = 1000;

/// Returns whether memory that had a name can be recycled on this platform. Where a lock cannot be converted from one
/// kind to the other in one step, a process cannot prove that it holds the memory alone.
pub(crate) fn is_possible() -> bool {
    os::LOCKS_CONVERT
}

/// Removes the name of a plain segment and keeps its memory, to which other processes may still be attached. Waits at
/// most `limit` for another process that changes the same name. Returns `Ok(None)` if the segment had lost its name
/// before, or if its memory cannot be recycled; the memory is freed with the last attachment.
///
/// `options` are those of a new draft in its place; they must be the segment's own.
#[allow(clippy::result_large_err)] // moved once, on the way to an error that boxes it
pub(crate) fn recycle(
    segment: Segment,
    options: DraftOptions,
    limit: Duration,
) -> Result<Option<DraftSegment>, (Error, Segment)> {
    if !is_possible() {
        return match segment.home.unlink_within(segment.id, limit) {
            Ok(_) => Ok(None),
            Err(error) => Err((error, segment)),
        };
    }
    let until = Deadline::after(limit);
    let own = match own_description(&segment, until) {
        Ok(own) => own,
        Err(Error { kind: ErrorKind::Unlinked, .. }) => return Ok(None),
        Err(error) => return Err((error, segment)),
    };
    let hidden = own.check(&segment, options).and_then(|()| hide(segment.id, &segment.home, until.left()));
    os::step("recycle: hidden");
    match hidden {
        Ok(path) => Ok(own.into_draft(segment, path, options)),
        Err(error) => {
            own.release();
            if matches!(error.kind, ErrorKind::NotFound) { Ok(None) } else { Err((error, segment)) }
        }
    }
}

impl Segment {
    /// Closes the descriptor that is kept for recycling, where nothing else depends on it.
    pub(crate) fn stop_recycling(&mut self) {
        if matches!(self.kept, Kept::ForLease(_)) && self.home.backend.lock_survives_close().unwrap_or(false) {
            self.kept = Kept::Nothing;
        }
    }
}

/// A descriptor of the open file description that is to hold the memory alone.
struct LeaseDescriptor {
    file: File,
    /// Whether the mapping was made from this description. Otherwise the mapping keeps another one, with a lease that
    /// cannot be converted.
    is_mapped: bool,
}

fn own_description(segment: &Segment, until: Deadline) -> Result<LeaseDescriptor> {
    let failed = |error| Error::os("keep the descriptor", segment.location(), error);
    // A forked child shares the description with its parent, which may convert the same locks.
    let kept = segment.kept.file().filter(|_| segment.is_own_process());
    if let (Some(kept), Access::ReadWrite) = (kept, segment.access) {
        return Ok(LeaseDescriptor { file: kept.try_clone().map_err(failed)?, is_mapped: true });
    }
    let file = segment.open_by_name(Access::ReadWrite)?;
    lease_own_until(&file, LEASE, until, segment.location().as_str())?;
    Ok(LeaseDescriptor { file, is_mapped: false })
}

impl LeaseDescriptor {
    /// Refuses memory that could not become a new draft, while it still has its name.
    fn check(&self, segment: &Segment, options: DraftOptions) -> Result<()> {
        let location = segment.location();
        let facts = look(&self.file, location)?;
        let (owner, mode) = (facts.owner, facts.mode);
        let reason = if !os::is_user(owner) {
            "it belongs to another user, and only memory of this user can be used again"
        } else if mode & 0o777 != options.permissions {
            "it has other permissions than the pool's arrays, and so cannot become one of them"
        } else {
            return segment.check_length(&facts, location);
        };
        Err(ErrorKind::PermissionDenied { owner, mode, reason }.at(location))
    }

    /// Releases the lease, unless it is also that of the mapping. Closing is not enough: see attach.rs.
    fn release(&self) {
        if !self.is_mapped {
            let _ = os::unlock(&self.file, LEASE); // if this fails, closing unlocks
        }
    }

    /// Makes a draft of the file, which has a hidden name by now. If that fails, dropping the draft file removes the
    /// name.
    fn into_draft(self, segment: Segment, path: PathBuf, options: DraftOptions) -> Option<DraftSegment> {
        // Bound in this order, so that the descriptor is closed after the mapping. The draft has one of its own.
        let Segment { kept: _kept, home, mut mapped, .. } = segment;
        let file = DraftFile::hidden(self.file, path);
        let facts = os::facts(file.file()).ok()?;
        if facts.links != 1 {
            return None; // a process gave it a second name, under which it could be opened later
        }
        if options.pages.are_reserved() && os::has_holes(file.file(), &facts) != Some(false) {
            home.backend.reserve(file.file()).ok()?;
        }
        if !self.is_mapped {
            let name = home.location.as_str();
            // Replacing the old mapping releases the lease that could not be converted.
            mapped.map = map(file.file(), 0, mapped.file_length, Access::ReadWrite, name).ok()?;
            mapped.access = Access::ReadWrite;
            mapped.generation = os::fork_generation();
        }
        Some(DraftSegment::of_used(mapped, file, home.backend, options))
    }
}

impl DraftSegment {
    /// Takes recycled memory for this draft alone. Returns `Ok(false)` if another process is still attached, or holds
    /// cells.
    pub(crate) fn isolate(&mut self) -> Result<bool> {
        let failed = |error| Error::os("lock", NAMELESS, error);
        let take = |range| os::try_lock(self.file().file(), LockKind::Exclusive, range).map_err(failed);
        // LEASE alone does not exclude everything: another program can hold cells without a lease, and a process that
        // opened the name as a counted array holds COUNTED until it has read the end of the file.
        os::step("recycle: to be alone");
        if self.is_alone() || (take(LEASE)? && take(COUNTED)? && take(ALL_CELLS)?) {
            self.reach = Reachability::Locked;
            // The old description would become that of the next array. It is removed only now, because until the locks
            // were granted another process could have written it again.
            self.set_description(None)?;
        }
        Ok(self.is_alone())
    }

    /// Returns whether this draft's locks keep out the processes that used the memory before.
    pub(crate) fn is_alone(&self) -> bool {
        self.reach == Reachability::Locked
    }

    /// Returns how many bytes the file has, which may be more than the segment.
    pub(crate) fn room(&self) -> u64 {
        self.mapped.file_length
    }

    /// Begins a new array of `length` bytes in the file. Returns `Ok(false)` if the hidden name was removed: the file
    /// cannot get another name.
    pub(crate) fn reuse(&mut self, length: u64) -> Result<bool> {
        let id = self.mapped.id;
        if self.file().path().is_some_and(|path| !os::facts_at(path).is_ok_and(|facts| facts.id == id)) {
            return Ok(false);
        }
        self.mapped.length = map_length(length, NAMELESS)?;
        Ok(true)
    }

    /// Lets other processes attach, once the file has its public name. On failure the file is hidden again.
    pub(super) fn admit(&mut self, home: &Home) -> Result<()> {
        self.open_to_others(home.location.as_str()).inspect_err(|_| {
            if let Ok(path) = hide(self.mapped.id, home, Duration::ZERO) {
                self.file.set_path(path);
            }
        })
    }

    /// Converts the exclusive locks back to an ordinary lease.
    pub(super) fn open_to_others(&mut self, name: &str) -> Result<()> {
        if self.is_alone() {
            let file = self.file().file();
            let given = os::unlock(file, ALL_CELLS).and_then(|()| os::unlock(file, COUNTED));
            let shared = given.and_then(|()| os::try_lock(file, LockKind::Shared, LEASE));
            shared.map_err(|error| Error::os("lease", name, error))?;
            self.reach = Reachability::Earlier;
        }
        Ok(())
    }
}

/// Renames a file to a free name that no location can have.
fn hide(id: FileId, home: &Home, limit: Duration) -> Result<PathBuf> {
    for _ in 0..TRIES {
        let hidden = Location::hidden(random::number());
        match home.backend.rename_within(&home.location, &hidden, id, Publish::New, limit) {
            Ok(()) => return Ok(home.backend.path().join(hidden.as_str())),
            Err(Error { kind: ErrorKind::AlreadyExists, .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Err(ErrorKind::WouldBlock.at(&home.location))
}
