//! Floor 2: a segment is mapped bytes, the name by which they were found, and the lease that marks them as in use.
//!
//! Knows bytes, lengths and locks; knows no element types and hands out no references, only pointers.

mod aftermath;
mod attach;
mod counted;
pub(crate) mod counts;
mod description;
mod draft;
pub(crate) mod footer;
mod home;
mod joint;
mod lock_file;
pub(crate) mod locks;
mod mapping;
mod open_file;
mod plain;
mod reclaim;
mod recycle;
mod renumber;
mod room;
mod sharing;
pub(crate) mod stay;
pub(crate) mod trailer;
mod words;

use std::fs::File;

pub(crate) use self::aftermath::Aftermath;
pub(crate) use self::attach::{Attach, CellWait};
pub(crate) use self::counted::{CountedBy, CountedSegment, DROP_WAIT};
pub(crate) use self::description::{FoundDescription, LONGEST_DESCRIPTION, describe, read_description};
pub(crate) use self::draft::{AfterUse, DraftSegment};
pub(crate) use self::home::{Home, has_name, pin};
pub(crate) use self::joint::Mark;
pub(crate) use self::lock_file::LockFile;
use self::locks::{Hold, Token, Wait};
use self::mapping::{fill_holes, map, map_length};
pub(crate) use self::open_file::{is_attached, is_leased, read_footer, read_trailer};
use self::open_file::{is_named, look, refuse_bookkeeping, unlinked};
pub(crate) use self::plain::Expect;
pub(crate) use self::reclaim::{Tickets, Verdict, reclaim_if_orphaned, reclaim_unused};
pub(crate) use self::recycle::{is_possible as can_recycle, recycle};
pub(crate) use self::room::{set_make_room, with_room};
pub use self::sharing::SharedWith;
pub(crate) use self::words::SharedWords;
use crate::backend::lock_space::{ALL_CELLS, LEASE};
use crate::backend::{Access, Backend, Directory, IntoLocation, Location, PageUse, Turn};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, Facts, FileId, LockKind, LockRange, Mapping};

/// A file's bytes in memory.
#[derive(Debug)]
pub(crate) struct Mapped {
    map: Mapping,
    /// Bytes of the payload.
    length: usize,
    /// Bytes of the file.
    file_length: u64,
    id: FileId,
    access: Access,
    /// Fork generation of the process that made the mapping. A forked child shares the open file description.
    generation: u64,
    /// How many forks that process had begun before, or `None` if one was under way.
    forks: Option<u64>,
}

/// Mapped bytes, the name by which they were found, and their lease, which lasts exactly as long as the mapping.
#[derive(Debug)]
pub(crate) struct Segment {
    mapped: Mapped,
    /// Where the name is, or would be.
    home: Home,
    /// Dropped after the mapping.
    kept: Kept,
    /// Notes which cells this mapping has locked, so that the thread that locked them never waits for itself.
    held: Option<Token>,
}

/// Whether the descriptor of a mapping's own open file description is open, and what for.
#[derive(Debug)]
enum Kept {
    /// It was closed: the mapping carries the lease.
    Nothing,
    /// The lease ends with it, or a pool needs it to convert the lease. Guards open the name.
    ForLease(KeptDescriptor),
    /// Guards go through it, so that they need no name.
    ForGuards(KeptDescriptor),
}

impl Kept {
    fn file(&self) -> Option<&File> {
        match self {
            Self::Nothing => None,
            Self::ForLease(kept) | Self::ForGuards(kept) => Some(&kept.file),
        }
    }

    /// Returns the descriptor that guards go through.
    fn file_for_guards(&self) -> Option<&File> {
        if let Self::ForGuards(kept) = self { Some(&kept.file) } else { None }
    }
}

/// A descriptor that is kept beside a mapping, and dropped after it.
///
/// Some systems do not delete a mapped file: a file that was unlinked meanwhile is deleted with the last of these.
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

impl std::ops::Deref for Segment {
    type Target = Mapped;

    fn deref(&self) -> &Mapped {
        &self.mapped
    }
}

impl Mapped {
    /// Joins a mapping, which starts at the beginning of the file, with what the file was then.
    fn new(map: Mapping, payload: u64, facts: &Facts, access: Access, name: &str) -> Result<Self> {
        Ok(Self {
            map,
            length: map_length(payload, name)?,
            file_length: facts.length,
            id: facts.id,
            access,
            generation: os::fork_generation(),
            forks: os::forks(),
        })
    }

    /// Maps a draft and leases it, so that it is attached from the moment it has a name.
    pub(crate) fn of_draft(file: &File, length: u64, name: &str) -> Result<Self> {
        attach::lease_own(file, LEASE, name)?;
        let facts = look(file, name)?;
        Self::new(map(file, 0, facts.length, Access::ReadWrite, name)?, length, &facts, Access::ReadWrite, name)
    }

    /// Maps sealed memory read-only. It needs no lease: it has no name that could be removed.
    pub(crate) fn of_sealed(file: &File, length: u64, name: &str) -> Result<Self> {
        // Before Linux 6.7 a descriptor open for writing cannot be mapped shared any more once it is sealed.
        let reopened = os::reopen(file, false).ok();
        let file = reopened.as_ref().unwrap_or(file);
        let facts = look(file, name)?;
        Self::new(map(file, 0, length, Access::Read, name)?, length, &facts, Access::Read, name)
    }

    /// Maps a file with a footer that was opened by name, without a lease, and fills its holes.
    pub(crate) fn unleased(file: &File, facts: &Facts, home: &Home, access: Access) -> Result<Self> {
        if os::has_holes(file, facts) != Some(false) {
            fill_holes(file, facts, home, access)?;
        }
        Self::unreserved(file, facts, home, access)
    }

    /// Maps a file without a lease. Its holes stay.
    pub(crate) fn unreserved(file: &File, facts: &Facts, home: &Home, access: Access) -> Result<Self> {
        let name = home.location.as_str();
        Self::new(map(file, 0, facts.length, access, name)?, facts.length, facts, access, name)
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

    /// Queries the kernel for the pages of the bytes.
    pub(crate) fn pages(&self, name: &str) -> Result<PageUse> {
        let length = self.length as u64;
        // The mapping may be longer than the payload: bookkeeping follows it.
        let huge = self.map.huge_bytes().map_err(|error| Error::os("ask for the pages of", name, error))?.min(length);
        Ok(PageUse { huge, base: length - huge })
    }

    /// Returns whether this process made the mapping, and did not inherit it.
    pub(crate) fn is_own_process(&self) -> bool {
        self.generation == os::fork_generation()
    }

    /// Returns whether this process made the mapping and has certainly not forked since.
    fn is_unforked(&self) -> bool {
        self.is_own_process() && self.forks.is_some() && self.forks == os::forks()
    }

    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    /// Fails if the length of the file is not the one it had when it was mapped.
    fn check_length(&self, facts: &Facts, location: &Location) -> Result<()> {
        let (expected, found) = (self.file_length, facts.length);
        if found == expected {
            return Ok(());
        }
        Err(ErrorKind::SizeMismatch { expected, found, description: None }.at(location))
    }
}

impl Segment {
    fn new(mapped: Mapped, home: Home, kept: Kept) -> Self {
        Self { mapped, home, kept, held: None }
    }

    /// Returns where its name is, or would be.
    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    /// Returns the name by which it was found, or the one that it would have.
    pub(crate) fn location(&self) -> &Location {
        &self.home.location
    }

    /// Notes that the file has been renamed.
    pub(crate) fn renamed(self, home: Home) -> Self {
        Self { home, ..self }
    }

    /// Refuses an inherited mapping if the parent can recycle its memory. Parent and child share the open file
    /// description: the parent can convert the lease of both, and use the memory for a buffer with other chunks.
    pub(crate) fn refuse_inherited(&self) -> Result<()> {
        if self.is_own_process() || matches!(self.kept, Kept::Nothing) {
            return Ok(());
        }
        Err(inherited(&self.home))
    }

    /// Returns whether guards go through a descriptor that is kept for them.
    pub(crate) fn keeps_descriptor(&self) -> bool {
        self.kept.file_for_guards().is_some()
    }

    /// Returns the file's present metadata: links, length, allocated bytes.
    pub(crate) fn facts(&self) -> Result<Facts> {
        look(&self.open_again(Access::Read)?, self.location())
    }

    /// Returns whether the file has holes, as far as the system tells.
    pub(crate) fn is_sparse(&self) -> Result<bool> {
        let file = self.open_again(Access::Read)?;
        let facts = look(&file, self.location())?;
        Ok(os::has_holes(&file, &facts).unwrap_or(facts.allocated < facts.length))
    }

    /// Fails if a wait for these cells could never end, because this thread itself has them locked.
    pub(crate) fn refuse_deadlock(&self, kind: LockKind, range: LockRange) -> Result<()> {
        if locks::is_own_conflict(self.id, kind, range) {
            return Err(ErrorKind::WouldDeadlock.at(self.location()));
        }
        Ok(())
    }

    /// Locks cells of a plain array, on an open file description of their own.
    ///
    /// Fails with `Unlinked` if the name does not lead to the mapped file, unless guards go through the kept
    /// descriptor. In a forked child that inherited the mapping, the description gets a lease too, and a kept
    /// descriptor is refused.
    pub(crate) fn hold(&self, kind: LockKind, range: LockRange, wait: Wait<'_>) -> Result<Hold> {
        if self.is_own_process() {
            return self.hold_counted(kind, range, wait);
        }
        let turn = self.lease_inherited(self.access_for(kind)?, wait)?;
        self.lock_cells(turn, kind, range, wait)
    }

    /// As [`hold`](Self::hold), for a counted array. No process recycles its memory that has forked since it mapped it,
    /// so a forked child needs no lease of its own.
    pub(crate) fn hold_counted(&self, kind: LockKind, range: LockRange, wait: Wait<'_>) -> Result<Hold> {
        let turn = Turn::open(|| self.open_again(self.access_for(kind)?))?;
        self.lock_cells(turn, kind, range, wait)
    }

    /// Returns for what the file must be opened to lock it like this.
    fn access_for(&self, kind: LockKind) -> Result<Access> {
        match kind {
            LockKind::Exclusive if self.access == Access::Read => Err(self.read_only()),
            LockKind::Exclusive => Ok(Access::ReadWrite),
            LockKind::Shared => Ok(Access::Read),
        }
    }

    fn lock_cells(&self, turn: Turn, kind: LockKind, range: LockRange, wait: Wait<'_>) -> Result<Hold> {
        let location = self.location();
        os::step("hold: opened");
        let hold = Hold::take(turn, self.id, kind, range, wait, location.as_str())?;
        os::step("hold: granted");
        // During a long wait the name may have been removed or replaced: check that it still leads to the mapped file.
        let facts = look(hold.file(), location)?;
        if !self.keeps_descriptor() && !self.has_name(&facts)? {
            return Err(unlinked(&self.home));
        }
        // Checked before any byte is read: an access beyond the end of a shortened file raises SIGBUS.
        self.check_length(&facts, location)?;
        Ok(hold)
    }

    /// Returns whether the file still has its name, as far as that decides what the memory is.
    ///
    /// In the process that made the mapping, the link count tells on most systems. The mapping's lease keeps the memory
    /// from being recycled, so no rename has given the file another name: only this process can convert that lease, and
    /// to do so it takes the segment itself (recycle.rs), which no guard can outlive. A forked child's lease is its
    /// parent's, so there the name decides.
    fn has_name(&self, facts: &Facts) -> Result<bool> {
        let links_tell = os::LINKS_TELL && self.is_own_process();
        Ok(facts.links > 0 && (links_tell || self.home.leads_to(self.id)?))
    }

    /// Opens and leases the file of an inherited mapping of a plain array.
    ///
    /// The lease of the mapping is on a description that parent and child share. The parent's pool can convert it and
    /// use the memory for another array. Nothing can convert the lease taken here. When it is granted and the name
    /// still leads to the file, the memory is that of the array, and stays so until the turn is dropped.
    fn lease_inherited(&self, access: Access, wait: Wait<'_>) -> Result<Turn> {
        let home = &self.home;
        if self.keeps_descriptor() {
            return Err(inherited(home)); // without a name, nothing tells whether the memory is still that of the array
        }
        let mut turn = Turn::open(|| self.open_by_name(access))?;
        os::step("hold: inherited and opened");
        attach::lease_named(&mut turn, LEASE, wait, home)?;
        let facts = look(turn.file(), &home.location)?;
        if !is_named(&facts, home)? {
            return Err(unlinked(home));
        }
        // The memory may have become that of another array with the same name. Elements can be used all the same, but
        // the counts of a counted array are no elements. The array cannot become a counted one while this lease is
        // held.
        refuse_bookkeeping(turn.file(), &facts, &home.location).map_err(|error| match error {
            Error { kind: ErrorKind::Reserved { .. }, .. } => unlinked(home),
            other => other,
        })?;
        Ok(turn)
    }

    /// Locks all cells on the mapping's own description, for as long as the mapping lives. Returns the metadata read
    /// under the lock.
    fn hold_all(&mut self, kind: LockKind, wait: Wait<'_>) -> Result<Facts> {
        let location = &self.home.location;
        let file = self.kept.file().ok_or_else(|| unlinked(&self.home))?;
        self.held = Some(locks::take(file, self.id, kind, ALL_CELLS, wait, location.as_str())?);
        let facts = look(file, location)?;
        self.check_length(&facts, location)?;
        Ok(facts)
    }

    /// Releases the cells that the mapping's own description holds, and the lease of a plain array, while the
    /// descriptor is there. Closing is not enough: see attach.rs. The lease of a counted array is released when its
    /// handle leaves.
    fn release_all(&self) {
        for range in [ALL_CELLS, LEASE] {
            // If this fails, the locks end with the last copy of the descriptor.
            let _ = self.kept.file().map(|file| os::unlock(file, range));
        }
    }

    /// Opens a new description of the mapped file.
    fn open_again(&self, access: Access) -> Result<File> {
        let Some(file) = self.kept.file_for_guards() else { return self.open_by_name(access) };
        os::reopen(file, access == Access::ReadWrite).or_else(|error| {
            // A descriptor cannot always be reopened. As long as the file has its name, it can be opened by that.
            self.open_by_name(access).map_err(|by_name| match by_name {
                Error { kind: ErrorKind::Unlinked, .. } => {
                    Error::os("open again by descriptor", self.location(), error)
                }
                other => other,
            })
        })
    }

    /// Opens a descriptor with a lease of its own, which lasts until the last duplicate of the descriptor is closed, in
    /// whatever process.
    ///
    /// The description is a new one. On a duplicate of ours, unlocking here would end the borrower's lease too, and a
    /// pool that converts its own lease would not see the borrower.
    pub(crate) fn leased_descriptor(&self, access: Access, lease: LockRange) -> Result<File> {
        let location = self.location();
        if !os::DESCRIPTORS_CAN_BE_SHARED {
            let what = "a descriptor with a lease of its own, because this platform was not shown to keep a lock when a duplicate \
                        of its descriptor is closed";
            return Err(ErrorKind::Unsupported { what: what.into() }.at(location));
        }
        let file = self.open_again(access)?;
        attach::lease_own(&file, lease, location.as_str())?;
        // In a forked child, the parent's pool may have recycled the memory between opening and leasing: see attach.rs.
        let checked = look(&file, location).and_then(|facts| {
            if !self.keeps_descriptor() && !is_named(&facts, &self.home)? {
                return Err(unlinked(&self.home));
            }
            self.check_length(&facts, location)
        });
        if let Err(error) = checked {
            let _ = os::unlock(&file, lease); // closing is not enough: see attach.rs
            return Err(error);
        }
        Ok(file)
    }

    fn open_by_name(&self, access: Access) -> Result<File> {
        let home = &self.home;
        let file = match home.backend.open(&home.location, access) {
            Err(Error { kind: ErrorKind::NotFound | ErrorKind::NotAnArray { .. }, .. }) => return Err(unlinked(home)),
            other => other?,
        };
        if look(&file, &home.location)?.id == self.id { Ok(file) } else { Err(unlinked(home)) }
    }

    /// Returns the error for writing to a read-only attachment.
    pub(crate) fn read_only(&self) -> Error {
        let (owner, mode) = self.facts().map_or((0, 0), |facts| (facts.owner, facts.mode));
        ErrorKind::PermissionDenied {
            owner,
            mode,
            reason: "it was opened read-only (open it for writing, or take a read guard)",
        }
        .at(self.location())
    }
}

impl Directory {
    /// Returns whether any process is attached to the array of this name.
    ///
    /// Queries the kernel's lock table: killed processes do not count, and no process is disturbed.
    ///
    /// # Errors
    ///
    /// [`NotFound`](ErrorKind::NotFound), and those of the location.
    pub fn attached(&self, location: impl IntoLocation) -> Result<bool> {
        is_attached(self, &location.into_location()?)
    }
}

/// Returns the error for an inherited attachment, if the parent could recycle its memory unnoticed.
fn inherited(home: &Home) -> Error {
    let what = "it was opened by the parent of this forked process, which can recycle its memory (open it again here)";
    ErrorKind::Unsupported { what: what.into() }.at(&home.location)
}
