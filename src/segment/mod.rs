//! Floor 2: a segment is bytes in memory and the lease that tells everyone that they are in use.
//!
//! Knows bytes, lengths and locks; knows no element types and hands out no references, only pointers.

mod collect;
mod counted;
pub(crate) mod counts;
mod draft;
pub(crate) mod footer;
mod home;
mod joint;
pub(crate) mod locks;
mod mapping;
mod recycle;
pub(crate) mod trailer;

use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use self::collect::{Found, collect};
pub(crate) use self::counted::Entry;
use self::counted::{Aftermath, DROP_WAIT, Membership};
pub(crate) use self::draft::DraftSegment;
use self::footer::{FOOTER, Kind, RawFooter};
pub(crate) use self::home::Home;
pub(crate) use self::joint::{Mark, Turn};
use self::locks::{Hold, Token, Wait};
use self::mapping::{fill_holes, map, map_length};
pub(crate) use self::recycle::{is_possible as can_recycle, recycle};
use crate::backend::lock_space::{ALL_CELLS, COUNTED, LEASE};
use crate::backend::{Access, Backend, DraftFile, Location, PageUse};
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::os::{self, Facts, FileId, LockKind, LockRange, Mapping};

/// How long an attachment waits for its lease while somebody decides whether the segment is an orphan.
const LEASE_WAIT: Duration = Duration::from_secs(5);

/// How often an attachment begins anew because the name was replaced under it.
const TRIES: u32 = 1000;

/// What a file that is attached must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Exactly this many bytes, and none of ours among them.
    Payload(u64),
    /// A file with a footer, of any length.
    Bookkeeping,
}

/// How a segment is attached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attach {
    pub(crate) access: Access,
    /// Leave holes as they are.
    pub(crate) sparse: bool,
    /// Keep the descriptor, so that guards work after the name has gone.
    pub(crate) keep_descriptor: bool,
    /// Lock all cells through the mapping itself, for as long as it lives.
    pub(crate) held: Option<(LockKind, Wait)>,
    /// Who is told when leaving leaves a name that only handles on their way keep.
    pub(crate) farewell: Option<Farewell>,
}

/// Is told of a name that nobody but handles on their way keeps any more, and for how long they will. Called while an array is
/// dropped: it must neither wait nor fail.
pub(crate) type Farewell = fn(&Home, Duration);

impl Attach {
    pub(crate) fn new(access: Access) -> Self {
        Self { access, sparse: false, keep_descriptor: false, held: None, farewell: None }
    }
}

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
    /// Of a counted segment: where the others count it. It may have a mapping too, and goes before the descriptor.
    membership: Option<Membership>,
    descriptor: Option<Kept>,
    /// Guards go through the descriptor instead of the name.
    guards_by_descriptor: bool,
    /// Keeps the thread that took the cells from waiting for itself.
    #[allow(dead_code)] // it is there to be dropped
    held: Option<Token>,
    /// What is done when everything above has been dropped.
    aftermath: Option<Aftermath>,
}

impl Drop for Segment {
    fn drop(&mut self) {
        let _reported_by_close = self.leave(DROP_WAIT);
    }
}

/// What a draft's descriptor is kept for when it is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    /// For the lease, where that needs it.
    IfNeeded,
    /// To have the memory alone again one day.
    ToRecycle,
    /// For guards, so that they work after the name has gone.
    ForGuards,
}

/// A descriptor that is kept beside a mapping, and dropped after it.
///
/// Some systems do not remove what is mapped: what was unlinked meanwhile goes with the last of these.
#[derive(Debug)]
struct Kept {
    file: File,
    directory: PathBuf,
    /// Of the process that has the description to itself: a forked child shares it.
    generation: u64,
}

impl Kept {
    fn new(file: File, backend: &dyn Backend) -> Self {
        Self { file, directory: backend.directory().to_owned(), generation: os::fork_generation() }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        os::sweep(&self.file, &self.directory);
    }
}

impl Segment {
    /// Opens, leases and maps what has the name.
    pub(crate) fn attach(home: &Home, expect: Expect, how: Attach) -> Result<Self> {
        for _ in 0..TRIES {
            let file = home.backend.open(&home.location, how.access)?;
            if let Some(segment) = Self::attach_file(file, home, expect, how)? {
                return Ok(segment);
            }
        }
        Err(Error::Unlinked { location: home.location.to_string() })
    }

    /// Leases and maps a file that was opened by name. `Ok(None)`: the name was taken away before the lease was had; what is
    /// in the file by now may be another array, whose name is not this one.
    pub(crate) fn attach_file(file: File, home: &Home, expect: Expect, how: Attach) -> Result<Option<Self>> {
        let Home { backend, location } = home;
        let failed = |op| move |error| Error::os(op, location, error);
        if !lease_by_name(&file, home)? {
            return Ok(None);
        }
        let facts = os::facts(&file).map_err(failed("look at"))?;
        if !is_named(&facts, home)? {
            return Ok(None);
        }
        check(&file, &facts, expect, location)?;
        let mut held = None;
        if let Some((kind, wait)) = how.held {
            held = Some(locks::take(&file, facts.id, kind, ALL_CELLS, wait, location.as_str())?);
            let now = os::facts(&file).map_err(failed("look at"))?;
            if !is_named(&now, home)? {
                return Ok(None);
            }
            check(&file, &now, expect, location)?;
        }
        if !how.sparse && facts.allocated < facts.length {
            fill_holes(&file, &facts, home, how.access)?;
        }
        let map = map(&file, 0, facts.length, how.access, location.as_str())?;
        let keep = how.keep_descriptor || !backend.lock_survives_close()?;
        Ok(Some(Self {
            length: map_length(facts.length, location.as_str())?,
            file_length: facts.length,
            map,
            id: facts.id,
            access: how.access,
            descriptor: keep.then(|| Kept::new(file, &**backend)),
            guards_by_descriptor: how.keep_descriptor,
            held,
            membership: None,
            aftermath: None,
        }))
    }

    /// Maps a draft and leases it, so that it is attached from the moment it has a name.
    pub(crate) fn of_draft(file: &File, length: u64, name: &str) -> Result<Self> {
        lease(file, LEASE, name)?;
        let facts = os::facts(file).map_err(|error| Error::os("look at", name, error))?;
        let map = map(file, 0, length, Access::ReadWrite, name)?;
        Ok(Self {
            length: map_length(length, name)?,
            file_length: length,
            map,
            id: facts.id,
            access: Access::ReadWrite,
            descriptor: None,
            guards_by_descriptor: false,
            held: None,
            membership: None,
            aftermath: None,
        })
    }

    /// Maps sealed memory read-only. It needs no lease: it has no name that could be taken away.
    pub(crate) fn of_sealed(file: &File, length: u64, name: &str) -> Result<Self> {
        // Before Linux 6.7 a descriptor open for writing cannot be mapped shared any more once it is sealed.
        let reopened = os::reopen(file, false).ok();
        let file = reopened.as_ref().unwrap_or(file);
        let facts = os::facts(file).map_err(|error| Error::os("look at", name, error))?;
        Ok(Self {
            length: map_length(length, name)?,
            file_length: length,
            map: map(file, 0, length, Access::Read, name)?,
            id: facts.id,
            access: Access::Read,
            descriptor: None,
            guards_by_descriptor: false,
            held: None,
            membership: None,
            aftermath: None,
        })
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

    /// Leaves the end of a draft's file to bookkeeping.
    fn shorten(&mut self, length: u64, name: &str) -> Result<()> {
        self.length = map_length(length, name)?;
        Ok(())
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
        let file = self.open_again(home, Access::Read)?;
        os::facts(&file).map_err(|error| Error::os("look at", &home.location, error))
    }

    /// Takes cells on a description of their own.
    pub(crate) fn hold(&self, home: &Home, kind: LockKind, range: LockRange, wait: Wait) -> Result<Hold> {
        let access = match kind {
            LockKind::Exclusive if self.access == Access::Read => return Err(self.read_only(home)),
            LockKind::Exclusive => Access::ReadWrite,
            LockKind::Shared => Access::Read,
        };
        let file = self.open_again(home, access)?;
        let hold = Hold::take(file, self.id, kind, range, wait, home.location.as_str())?;
        // Waiting may have taken long, and others are not bound to our rules: is it still what was mapped?
        let facts = os::facts(hold.file()).map_err(|error| Error::os("look at", &home.location, error))?;
        if !self.guards_by_descriptor && (facts.links == 0 || (!os::LINKS_TELL && !home.leads_to(self.id)?)) {
            return Err(unlinked(home));
        }
        // Before anything is looked at in memory: what a shortened file has lost is a signal there.
        let expected = self.file_length;
        if facts.length != expected {
            return Err(Error::SizeMismatch { location: home.location.to_string(), expected, found: facts.length });
        }
        if kind == LockKind::Exclusive && self.is_frozen() {
            return Err(counted::frozen(home, hold.file()));
        }
        Ok(hold)
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
        let facts = os::facts(&file).map_err(|error| Error::os("look at", &home.location, error))?;
        if facts.id == self.id { Ok(file) } else { Err(unlinked(home)) }
    }

    /// Says that it was attached for reading only.
    pub(crate) fn read_only(&self, home: &Home) -> Error {
        let (owner, mode) = self.facts(home).map_or((0, 0), |facts| (facts.owner, facts.mode));
        Error::PermissionDenied {
            location: home.location.to_string(),
            owner,
            mode,
            reason: if self.is_frozen() {
                counted::FROZEN
            } else {
                "it was opened read-only (open it for writing, or take a read guard)"
            },
        }
    }

    /// Closes the draft's descriptor, or keeps it where the lease depends on it or something is to use it.
    fn settle(&mut self, draft: &DraftFile, backend: &dyn Backend, keep: Keep, name: &str) -> Result<()> {
        if keep != Keep::IfNeeded || !backend.lock_survives_close()? {
            let file = draft.file().try_clone().map_err(|error| Error::os("keep the descriptor", name, error))?;
            self.descriptor = Some(Kept::new(file, backend));
            self.guards_by_descriptor = keep == Keep::ForGuards;
        }
        Ok(())
    }
}

/// Whether any process is attached to what has the name; asks the kernel and disturbs nobody.
pub(crate) fn is_attached(backend: &dyn Backend, at: &Location) -> Result<bool> {
    is_leased(&backend.open(at, Access::Read)?, at)
}

/// Whether anybody but this very description has a lease on the file, as a plain array or a counted one.
pub(crate) fn is_leased(file: &File, at: &Location) -> Result<bool> {
    // GETLK answers for a lock of the kind that would be set, and asking needs no descriptor open for writing.
    let asked = |lease| os::is_locked(file, LockKind::Exclusive, lease);
    asked(LEASE)
        .and_then(|plain| Ok(plain || asked(COUNTED)?))
        .map_err(|error| Error::os("ask for the lease", at, error))
}

/// Returns the footer at the end of a file, if there is room for one.
pub(crate) fn read_footer(file: &File, length: u64, at: &Location) -> Result<Option<RawFooter>> {
    read_tail(file, length).map_err(|error| Error::os("read the end of", at, error))
}

/// Takes the lease of a plain array. `Ok(false)`: it is refused, and meanwhile the name leads elsewhere.
fn lease_by_name(file: &File, home: &Home) -> Result<bool> {
    let failed = |error| Error::os("lease", &home.location, error);
    let mut backoff = Backoff::new(LEASE_WAIT);
    while !os::try_lock(file, LockKind::Shared, LEASE).map_err(failed)? {
        if !is_named(&os::facts(file).map_err(failed)?, home)? {
            return Ok(false);
        }
        if !backoff.pause() {
            return Err(Error::TimedOut { location: home.location.to_string(), waited: LEASE_WAIT });
        }
    }
    Ok(true)
}

/// Whether the name still leads to a file that was opened by it. Links alone do not tell: recycled memory has been renamed, and
/// off Linux an unlinked file may have moved to a hidden name.
fn is_named(facts: &Facts, home: &Home) -> Result<bool> {
    Ok(facts.links > 0 && home.leads_to(facts.id)?)
}

/// Takes a lease; waits while somebody has it alone to decide whether the segment is an orphan.
fn lease(file: &File, lease: LockRange, name: &str) -> Result<()> {
    let mut backoff = Backoff::new(LEASE_WAIT);
    loop {
        match os::try_lock(file, LockKind::Shared, lease) {
            Ok(true) => return Ok(()),
            Ok(false) if backoff.pause() => {}
            Ok(false) => return Err(Error::TimedOut { location: name.to_owned(), waited: LEASE_WAIT }),
            Err(error) => return Err(Error::os("lease", name, error)),
        }
    }
}

/// Leases a counted array, which must not be attached as a plain one: then its bytes are elements that safe code reads and
/// writes, and not counts.
fn lease_counted(file: &File, name: &str) -> Result<()> {
    lease(file, COUNTED, name)?;
    let mut backoff = Backoff::new(LEASE_WAIT);
    loop {
        match os::is_locked(file, LockKind::Exclusive, LEASE) {
            Ok(false) => {
                os::step("attach: leased");
                return Ok(());
            }
            Ok(true) => return Err(Error::NotCounted { location: name.to_owned() }),
            // On Windows processes that ask take turns, and the one before this may be suspended.
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                if !backoff.pause() {
                    return Err(Error::TimedOut { location: name.to_owned(), waited: LEASE_WAIT });
                }
            }
            Err(error) => return Err(Error::os("ask for the lease", name, error)),
        }
    }
}

/// Holds the file against what is expected of it.
fn check(file: &File, facts: &Facts, expect: Expect, location: &Location) -> Result<()> {
    let footer = read_footer(file, facts.length, location)?.filter(RawFooter::is_ours);
    let ours = footer.is_some();
    match expect {
        Expect::Payload(_) if ours => Err(Error::Reserved {
            location: location.to_string(),
            reason: if footer.as_ref().is_some_and(|footer| footer.validate(Kind::Counted, facts.length).is_ok()) {
                "it is a counted array (open it as a RefcountedArray)"
            } else if footer.is_some_and(|footer| footer.claims(Kind::Arena)) {
                "it is an arena (open it as an Arena)"
            } else {
                "it is bookkeeping of this crate, not an array"
            },
        }),
        Expect::Payload(expected) if expected != facts.length => {
            Err(Error::SizeMismatch { location: location.to_string(), expected, found: facts.length })
        }
        Expect::Bookkeeping if !ours => {
            Err(Error::Trailer { location: location.to_string(), reason: "it has no footer of this crate".into() })
        }
        _ => Ok(()),
    }
}

fn read_tail(file: &File, length: u64) -> std::io::Result<Option<RawFooter>> {
    let Some(start) = length.checked_sub(FOOTER as u64) else { return Ok(None) };
    let mut tail = [0; FOOTER];
    os::read_exact_at(file, &mut tail, start)?;
    Ok(RawFooter::of(&tail))
}

fn unlinked(home: &Home) -> Error {
    Error::Unlinked { location: home.location.to_string() }
}
