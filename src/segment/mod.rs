//! Floor 2: a segment is bytes in memory and the lease that tells everyone that they are in use.
//!
//! Knows bytes, lengths and locks; knows no element types and hands out no references, only pointers.

mod attach;
mod counted;
pub(crate) mod counts;
mod description;
mod draft;
pub(crate) mod footer;
mod home;
mod joint;
pub(crate) mod locks;
mod mapping;
mod plain;
mod reclaim;
mod recycle;
pub(crate) mod trailer;

use std::fmt;
use std::fs::File;
use std::time::Duration;

pub(crate) use self::attach::Attach;
#[cfg(feature = "channel")]
pub(crate) use self::counted::DROP_WAIT;
pub(crate) use self::counted::{CountedBy, CountedSegment};
pub(crate) use self::description::{LONGEST_DESCRIPTION, describe, read_description};
pub(crate) use self::draft::DraftSegment;
use self::footer::{FOOTER, RawFooter};
pub(crate) use self::home::{Home, has_name, pin};
pub(crate) use self::joint::Mark;
pub(crate) use self::locks::Turn;
use self::locks::{Hold, Token, Wait};
use self::mapping::{map, map_length};
pub(crate) use self::plain::Expect;
pub(crate) use self::reclaim::{Verdict, reclaim_if_orphaned};
pub(crate) use self::recycle::{is_possible as can_recycle, recycle};
use crate::backend::lock_space::{ALL_CELLS, COUNTED, LEASE};
use crate::backend::{Access, Backend, Directory, IntoLocation, Location, PageUse};
use crate::error::{Error, Result};
use crate::os::{self, Facts, FileId, LockKind, LockRange, Mapping};

/// Called when only tickets keep a name, with the time for which they do. It runs while an array is dropped, so it must neither wait
/// nor fail.
pub(crate) type Farewell = fn(&Home, Duration);

/// Mapped bytes and their lease, which lasts exactly as long as the mapping.
#[derive(Debug)]
pub(crate) struct Segment {
    map: Mapping,
    /// Bytes of the payload.
    length: usize,
    /// Bytes of the file.
    file_length: u64,
    id: FileId,
    access: Access,
    /// It goes after the mapping.
    descriptor: Option<KeptDescriptor>,
    /// Guards go through the descriptor instead of the name.
    guards_by_descriptor: bool,
    /// Keeps the thread that took the cells from waiting for itself.
    held: Option<Token>,
    /// Of the process that has the mapping's description to itself: a forked child shares it.
    generation: u64,
}

/// A descriptor that is kept beside a mapping, and dropped after it.
///
/// Some systems do not remove what is mapped: what was unlinked meanwhile goes with the last of these.
#[derive(Debug)]
struct KeptDescriptor {
    file: File,
    backend: Directory,
}

impl KeptDescriptor {
    fn new(file: File, backend: &Directory) -> Self {
        Self { file, backend: backend.clone() }
    }
}

impl Drop for KeptDescriptor {
    fn drop(&mut self) {
        os::finish_unlink(&self.file, self.backend.path());
    }
}

impl AsMut<Self> for Segment {
    fn as_mut(&mut self) -> &mut Self {
        self
    }
}

impl Segment {
    /// What is mapped of a file, from its beginning.
    fn new(map: Mapping, payload: u64, facts: &Facts, access: Access, name: &str) -> Result<Self> {
        Ok(Self {
            map,
            length: map_length(payload, name)?,
            file_length: facts.length,
            id: facts.id,
            access,
            descriptor: None,
            guards_by_descriptor: false,
            held: None,
            generation: os::fork_generation(),
        })
    }

    /// Maps a draft and leases it, so that it is attached from the moment it has a name.
    pub(crate) fn of_draft(file: &File, length: u64, name: &str) -> Result<Self> {
        attach::lease_own(file, LEASE, name)?;
        let facts = look(file, name)?;
        Self::new(map(file, 0, facts.length, Access::ReadWrite, name)?, length, &facts, Access::ReadWrite, name)
    }

    /// Maps sealed memory read-only. It needs no lease: it has no name that could be taken away.
    pub(crate) fn of_sealed(file: &File, length: u64, name: &str) -> Result<Self> {
        // Before Linux 6.7 a descriptor open for writing cannot be mapped shared any more once it is sealed.
        let reopened = os::reopen(file, false).ok();
        let file = reopened.as_ref().unwrap_or(file);
        let facts = look(file, name)?;
        Self::new(map(file, 0, length, Access::Read, name)?, length, &facts, Access::Read, name)
    }

    /// Returns where the bytes begin: page-aligned, valid for [`length`](Self::length) bytes, for reads and, with
    /// [`Access::ReadWrite`], for writes.
    pub(crate) fn pointer(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Returns how many bytes there are.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Asks the kernel on what pages the bytes are.
    pub(crate) fn pages(&self, name: &str) -> Result<PageUse> {
        let length = self.length as u64;
        // Behind the bytes there may be bookkeeping.
        let huge = self.map.huge_bytes().map_err(|error| Error::os("ask for the pages of", name, error))?.min(length);
        Ok(PageUse { huge, base: length - huge })
    }

    /// Whether this process made the mapping, and did not inherit it.
    pub(crate) fn is_own_process(&self) -> bool {
        self.generation == os::fork_generation()
    }

    /// Refuses what a forked child has inherited, if its parent can have the memory alone: through the kept descriptor the parent
    /// can take the lease of both away, and use the memory for a buffer with other chunks.
    pub(crate) fn refuse_inherited(&self, home: &Home) -> Result<()> {
        if self.is_own_process() || self.descriptor.is_none() {
            return Ok(());
        }
        let what =
            "it was opened by the process that this one was forked from, which can use its memory again (open it here)"
                .into();
        Err(Error::Unsupported { location: home.location.to_string(), what })
    }

    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Whether guards go through a descriptor that is kept for them.
    pub(crate) fn keeps_descriptor(&self) -> bool {
        self.guards_by_descriptor
    }

    /// What the file says now: links, length, room.
    pub(crate) fn facts(&self, home: &Home) -> Result<Facts> {
        look(&self.open_again(home, Access::Read)?, &home.location)
    }

    /// Fails if a wait for these cells could never end, because this thread itself has them locked.
    pub(crate) fn refuse_deadlock(&self, home: &Home, kind: LockKind, range: LockRange) -> Result<()> {
        if locks::is_own_conflict(self.id, kind, range) {
            return Err(Error::WouldDeadlock { location: home.location.to_string() });
        }
        Ok(())
    }

    /// Takes cells on a description of their own.
    pub(crate) fn hold(&self, home: &Home, kind: LockKind, range: LockRange, wait: Wait) -> Result<Hold> {
        let access = match kind {
            LockKind::Exclusive if self.access == Access::Read => return Err(self.read_only(home)),
            LockKind::Exclusive => Access::ReadWrite,
            LockKind::Shared => Access::Read,
        };
        let file = self.open_again(home, access)?;
        os::step("hold: opened");
        let hold = Hold::take(file, self.id, kind, range, wait, home.location.as_str())?;
        os::step("hold: granted");
        // The wait may have been long, and the name may have been removed or replaced meanwhile: is it still the mapped file?
        let facts = look(hold.file(), &home.location)?;
        if !self.guards_by_descriptor && (facts.links == 0 || (!os::LINKS_TELL && !home.leads_to(self.id)?)) {
            return Err(unlinked(home));
        }
        // Before anything is looked at in memory: what a shortened file has lost is a signal there.
        self.check_length(&facts, &home.location)?;
        Ok(hold)
    }

    /// Refuses a file that has another length than the one that was mapped.
    fn check_length(&self, facts: &Facts, location: &Location) -> Result<()> {
        let (expected, found) = (self.file_length, facts.length);
        if found == expected {
            return Ok(());
        }
        Err(Error::SizeMismatch { location: location.to_string(), expected, found, description: None })
    }

    /// Locks all cells through the mapping's own description, for as long as it lives. Returns what the file is then.
    fn hold_all(&mut self, kind: LockKind, wait: Wait, location: &Location) -> Result<Facts> {
        let gone = || Error::Unlinked { location: location.to_string() };
        let file = self.descriptor.as_ref().map(|kept| &kept.file).ok_or_else(gone)?;
        self.held = Some(locks::take(file, self.id, kind, ALL_CELLS, wait, location.as_str())?);
        let facts = look(file, location)?;
        self.check_length(&facts, location)?;
        Ok(facts)
    }

    /// Opens a new description of the very file that is mapped.
    fn open_again(&self, home: &Home, access: Access) -> Result<File> {
        let (true, Some(descriptor)) = (self.guards_by_descriptor, &self.descriptor) else {
            return self.open_by_name(home, access);
        };
        os::reopen(&descriptor.file, access == Access::ReadWrite).or_else(|error| {
            // Not every system can, at least not always; as long as it has its name, that leads there too.
            self.open_by_name(home, access).map_err(|by_name| match by_name {
                Error::Unlinked { .. } => Error::os("open again by descriptor", &home.location, error),
                other => other,
            })
        })
    }

    fn open_by_name(&self, home: &Home, access: Access) -> Result<File> {
        let file = match home.backend.open(&home.location, access) {
            Err(Error::NotFound { .. } | Error::NotAnArray { .. }) => return Err(unlinked(home)),
            other => other?,
        };
        if look(&file, &home.location)?.id == self.id { Ok(file) } else { Err(unlinked(home)) }
    }

    /// Says that it was attached for reading only.
    pub(crate) fn read_only(&self, home: &Home) -> Error {
        let (owner, mode) = self.facts(home).map_or((0, 0), |facts| (facts.owner, facts.mode));
        Error::PermissionDenied {
            location: home.location.to_string(),
            owner,
            mode,
            reason: "it was opened read-only (open it for writing, or take a read guard)",
        }
    }
}

impl Directory {
    /// Whether any process is attached to the array of this name.
    ///
    /// The kernel answers: processes that were killed do not count, and the question disturbs no process.
    ///
    /// # Errors
    ///
    /// [`NotFound`](Error::NotFound), and those of the location.
    pub fn attached(&self, location: impl IntoLocation) -> Result<bool> {
        is_attached(self, &location.into_location()?)
    }
}

pub(crate) fn is_attached(backend: &Directory, at: &Location) -> Result<bool> {
    is_leased(&backend.open(at, Access::Read)?, at)
}

/// Whether any description other than this one has a lease on the file, as a plain array or a counted one.
pub(crate) fn is_leased(file: &File, at: &Location) -> Result<bool> {
    // GETLK answers for a lock of the kind that would be set, and asking needs no descriptor open for writing.
    let asked = |lease| os::is_locked(file, LockKind::Exclusive, lease);
    asked(LEASE)
        .and_then(|plain| Ok(plain || asked(COUNTED)?))
        .map_err(|error| Error::os("ask for the lease", at, error))
}

/// Returns the footer at the end of a file, if there is room for one.
pub(crate) fn read_footer(file: &File, length: u64, at: &Location) -> Result<Option<RawFooter>> {
    let Some(start) = length.checked_sub(FOOTER as u64) else { return Ok(None) };
    let mut tail = [0; FOOTER];
    os::read_exact_at(file, &mut tail, start).map_err(|error| Error::os("read the end of", at, error))?;
    Ok(RawFooter::of(&tail))
}

/// Asks for the facts of an open file.
fn look(file: &File, name: impl fmt::Display) -> Result<Facts> {
    os::facts(file).map_err(|error| Error::os("look at", name, error))
}

/// Whether the name still leads to a file that was opened by it. Links alone do not tell: recycled memory has been renamed, and
/// off Linux an unlinked file may have moved to a hidden name.
fn is_named(facts: &Facts, home: &Home) -> Result<bool> {
    Ok(facts.links > 0 && home.leads_to(facts.id)?)
}

fn unlinked(home: &Home) -> Error {
    Error::Unlinked { location: home.location.to_string() }
}
