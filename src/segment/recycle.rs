//! Memory that is used again: a published segment loses its name and becomes a draft, when nobody else has it any more.
//!
//! Every attachment has a read lock on LEASE, through its own description. The memory's owner *changes* its own read lock to a
//! write lock, which the kernel allows only if nobody else has one. From then on nobody can attach, and nobody has guards,
//! because all cells are locked the same way. It stays so until the memory has a public name again.
//!
//! Somebody may have opened the old name and not have leased the file yet. He is refused, or gets his lease when the file has
//! its next name, and then sees that his name does not lead to it: segment/attach.rs looks.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use super::attach::lease_own;
use super::mapping::{map, map_length};
use super::{DraftSegment, Home, Segment, look};
use crate::backend::lock_space::{ALL_CELLS, COUNTED, LEASE};
use crate::backend::{Access, Backend, Directory, DraftFile, DraftOptions, Location, Publish};
use crate::error::{Error, Result};
use crate::os::{self, FileId, LockKind};
use crate::random;

/// What stands for the name in errors about memory that has none.
const NAMELESS: &str = "(recycled memory)";

/// How often a hidden name is made up that somebody has.
const TRIES: u32 = 1000;

/// Whether memory that had a name can be used again here. Where a lock cannot be changed from one kind to the other in one
/// step, nobody can know that he is alone.
pub(crate) fn is_possible() -> bool {
    os::LOCKS_CONVERT
}

/// Takes the name of a plain segment away, waiting no longer than this for others who are at it, and keeps its memory, to which
/// others may still be attached. `Ok(None)`: it had lost its name before, or the memory cannot be used again; it goes with the
/// last that is attached.
///
/// `options` are those that a new draft in its place would have; they must be the segment's own.
#[allow(clippy::result_large_err)] // moved once, on the way to an error that boxes it
pub(crate) fn recycle(
    segment: Segment,
    home: &Home,
    options: DraftOptions,
    limit: Duration,
) -> Result<Option<DraftSegment>, (Error, Segment)> {
    if !is_possible() {
        return match home.backend.unlink_within(&home.location, Some(segment.id), limit) {
            Ok(_) => Ok(None),
            Err(error) => Err((error, segment)),
        };
    }
    let own = match own_description(&segment, home) {
        Ok(own) => own,
        Err(Error::Unlinked { .. }) => return Ok(None),
        Err(error) => return Err((error, segment)),
    };
    let hidden = own.check(&segment, home, options).and_then(|()| hide(segment.id, home, limit));
    os::step("recycle: hidden");
    match hidden {
        Ok(path) => Ok(own.into_draft(segment, path, home, options)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err((error, segment)),
    }
}

impl Segment {
    /// Closes the descriptor that is kept for recycling, where nothing else depends on it.
    pub(crate) fn stop_recycling(&mut self, backend: &Directory) {
        if !self.guards_by_descriptor && backend.lock_survives_close().unwrap_or(false) {
            self.descriptor = None;
        }
    }
}

/// A descriptor of the description that shall have the memory alone.
struct LeaseDescriptor {
    file: File,
    /// It is that of the mapping. Otherwise the mapping has another one, with a lease that cannot be changed.
    is_mapped: bool,
}

fn own_description(segment: &Segment, home: &Home) -> Result<LeaseDescriptor> {
    let failed = |error| Error::os("keep the descriptor", &home.location, error);
    // What a forked child has was made by its parent, who may have the same locks changed.
    let kept = segment.descriptor.as_ref().filter(|_| segment.is_own_process());
    if let (Some(kept), Access::ReadWrite) = (kept, segment.access) {
        return Ok(LeaseDescriptor { file: kept.file.try_clone().map_err(failed)?, is_mapped: true });
    }
    let file = segment.open_by_name(home, Access::ReadWrite)?;
    lease_own(&file, LEASE, home.location.as_str())?;
    Ok(LeaseDescriptor { file, is_mapped: false })
}

impl LeaseDescriptor {
    /// Refuses memory of which a new draft could not be made, while it still has its name.
    fn check(&self, segment: &Segment, home: &Home, options: DraftOptions) -> Result<()> {
        let facts = look(&self.file, &home.location)?;
        let (owner, mode) = (facts.owner, facts.mode);
        let reason = if !os::is_user(owner) {
            "it belongs to another user, and only memory of this user can be used again"
        } else if mode & 0o777 != options.permissions {
            "it has other permissions than the pool's arrays, and so cannot become one of them"
        } else {
            return segment.check_length(&facts, &home.location);
        };
        Err(Error::PermissionDenied { location: home.location.to_string(), owner, mode, reason })
    }

    /// Makes a draft of what has a hidden name by now; where that fails, the name goes too.
    fn into_draft(
        self,
        mut segment: Segment,
        path: PathBuf,
        home: &Home,
        options: DraftOptions,
    ) -> Option<DraftSegment> {
        let file = DraftFile::hidden(self.file, path);
        let facts = os::facts(file.file()).ok()?;
        if facts.links != 1 {
            return None; // somebody gave it a second name, under which it could be met later
        }
        if options.pages.are_reserved() && facts.allocated < facts.length {
            home.backend.reserve(file.file()).ok()?;
        }
        if !self.is_mapped {
            let name = home.location.as_str();
            // The old mapping goes, and with it the lease that could not be changed.
            segment.map = map(file.file(), 0, segment.file_length, Access::ReadWrite, name).ok()?;
            segment.access = Access::ReadWrite;
            segment.generation = os::fork_generation();
        }
        segment.descriptor = None; // the draft has one
        segment.guards_by_descriptor = false;
        Some(DraftSegment::of_used(segment, file, home.backend.clone(), options))
    }
}

impl DraftSegment {
    /// Keeps everybody away from memory that was published before. `Ok(false)`: somebody is still attached, or has cells.
    pub(crate) fn isolate(&mut self) -> Result<bool> {
        let failed = |error| Error::os("lock", NAMELESS, error);
        let take = |range| os::try_lock(self.file().file(), LockKind::Exclusive, range).map_err(failed);
        // The lease alone would do among those who know the rules. But cells can be held without one, and what has opened the name for
        // a counted array has the other lease until it has looked.
        os::step("recycle: to be alone");
        self.alone = self.alone || (take(LEASE)? && take(COUNTED)? && take(ALL_CELLS)?);
        if self.alone {
            // It would describe the next array. Before this moment another process could still have rewritten it.
            self.set_description(None)?;
        }
        Ok(self.alone)
    }

    /// Whether nobody else has the memory, nor can get it.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone
    }

    /// Returns how many bytes the file has, which may be more than the segment.
    pub(crate) fn room(&self) -> u64 {
        self.segment().file_length
    }

    /// Begins anew, with as many bytes of the room. `Ok(false)`: somebody removed its hidden name, so that it could never
    /// have another.
    pub(crate) fn reuse(&mut self, length: u64) -> Result<bool> {
        let id = self.segment().id;
        if self.file().path().is_some_and(|path| !os::facts_at(path).is_ok_and(|facts| facts.id == id)) {
            return Ok(false);
        }
        self.segment.length = map_length(length, NAMELESS)?;
        Ok(true)
    }

    /// Lets others attach to what has a public name by now. On failure it is hidden again.
    pub(super) fn admit(&mut self, at: &Location) -> Result<()> {
        self.open_to_others(at.as_str()).inspect_err(|_| {
            let home = Home { backend: self.backend.clone(), location: at.clone() };
            if let Ok(path) = hide(self.segment().id, &home, Duration::ZERO) {
                self.file.set_path(path);
            }
        })
    }

    /// Changes the locks that kept everybody away to an ordinary lease.
    pub(super) fn open_to_others(&mut self, name: &str) -> Result<()> {
        if self.alone {
            let file = self.file().file();
            let given = os::unlock(file, ALL_CELLS).and_then(|()| os::unlock(file, COUNTED));
            let shared = given.and_then(|()| os::try_lock(file, LockKind::Shared, LEASE));
            shared.map_err(|error| Error::os("lease", name, error))?;
            self.alone = false;
        }
        Ok(())
    }
}

/// Moves a file to a name that nobody has and no location can be.
fn hide(id: FileId, home: &Home, limit: Duration) -> Result<PathBuf> {
    for _ in 0..TRIES {
        let hidden = Location::hidden(random::number());
        match home.backend.rename_within(&home.location, &hidden, id, Publish::New, limit) {
            Ok(()) => return Ok(home.backend.path().join(hidden.as_str())),
            Err(Error::AlreadyExists { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Error::WouldBlock { location: home.location.to_string() })
}
