//! Floor 2: a segment is bytes in memory and the lease that tells everyone that they are in use.
//!
//! Knows bytes, lengths and locks; knows no element types and hands out no references, only pointers.

pub(crate) mod footer;
pub(crate) mod locks;

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};

use self::footer::{FOOTER, RawFooter};
use self::locks::{Hold, Token, Wait};
use crate::backend::lock_space::{ALL_CELLS, LEASE};
use crate::backend::{Access, Backend, DraftFile, DraftOptions, IntoLocation, Location, Publish, default_backend};
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::os::{self, Facts, FileId, LockKind, LockRange};

/// How long an attachment waits for its lease while somebody decides whether the segment is an orphan.
const LEASE_WAIT: Duration = Duration::from_secs(5);

/// How often an attachment begins anew because the name was replaced under it.
const TRIES: u32 = 1000;

/// Where a segment has its name.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) location: Location,
}

impl Home {
    /// A name in the given backend, or in the default one.
    pub(crate) fn new(backend: Option<&Arc<dyn Backend>>, location: impl IntoLocation) -> Result<Self> {
        let location = location.into_location()?;
        let backend = match backend {
            Some(backend) => Arc::clone(backend),
            None => default_backend()?,
        };
        Ok(Self { backend, location })
    }

    /// Refuses a name that is taken.
    pub(crate) fn refuse_taken(&self) -> Result<()> {
        match self.backend.open(&self.location, Access::Read) {
            Err(Error::NotFound { .. }) => Ok(()),
            Ok(_) | Err(Error::PermissionDenied { .. }) => {
                Err(Error::AlreadyExists { location: self.location.to_string() })
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the name leads to this file.
    pub(crate) fn leads_to(&self, id: FileId) -> Result<bool> {
        match self.backend.open(&self.location, Access::Read) {
            Ok(file) => Ok(os::facts(&file).is_ok_and(|facts| facts.id == id)),
            Err(Error::NotFound { .. } | Error::NotAnArray { .. } | Error::PermissionDenied { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

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
}

impl Attach {
    pub(crate) fn new(access: Access) -> Self {
        Self { access, sparse: false, keep_descriptor: false, held: None }
    }
}

/// Mapped bytes and their lease, which lasts exactly as long as the mapping.
#[derive(Debug)]
pub(crate) struct Segment {
    map: MmapRaw,
    length: usize,
    id: FileId,
    access: Access,
    descriptor: Option<Kept>,
    /// Guards go through the descriptor instead of the name.
    guards_by_descriptor: bool,
    /// Keeps the thread that took the cells from waiting for itself.
    _held: Option<Token>,
}

/// A descriptor that is kept beside a mapping, and dropped after it.
///
/// Some systems do not remove what is mapped: what was unlinked meanwhile goes with the last of these.
#[derive(Debug)]
struct Kept {
    file: File,
    directory: PathBuf,
}

impl Kept {
    fn new(file: File, backend: &dyn Backend) -> Self {
        Self { file, directory: backend.directory().to_owned() }
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

    /// Leases and maps a file that was opened by name. `Ok(None)`: the name was taken away before the lease was had.
    pub(crate) fn attach_file(file: File, home: &Home, expect: Expect, how: Attach) -> Result<Option<Self>> {
        let Home { backend, location } = home;
        let failed = |op| move |error| Error::os(op, location, error);
        lease(&file, location.as_str())?;
        let facts = os::facts(&file).map_err(failed("look at"))?;
        if facts.links == 0 {
            return Ok(None);
        }
        check(&file, &facts, expect, location)?;
        let mut held = None;
        if let Some((kind, wait)) = how.held {
            held = Some(locks::take(&file, facts.id, kind, ALL_CELLS, wait, location.as_str())?);
            let now = os::facts(&file).map_err(failed("look at"))?;
            if now.links == 0 {
                return Ok(None);
            }
            check(&file, &now, expect, location)?;
        }
        if !how.sparse && facts.allocated < facts.length {
            fill_holes(&file, &facts, home, how.access)?;
        }
        let map = map(&file, facts.length, how.access, location.as_str())?;
        let keep = how.keep_descriptor || !backend.lock_survives_close()?;
        Ok(Some(Self {
            length: map_length(facts.length, location.as_str())?,
            map,
            id: facts.id,
            access: how.access,
            descriptor: keep.then(|| Kept::new(file, &**backend)),
            guards_by_descriptor: how.keep_descriptor,
            _held: held,
        }))
    }

    /// Maps a draft and leases it, so that it is attached from the moment it has a name.
    pub(crate) fn of_draft(file: &File, length: u64, name: &str) -> Result<Self> {
        lease(file, name)?;
        let facts = os::facts(file).map_err(|error| Error::os("look at", name, error))?;
        let map = map(file, length, Access::ReadWrite, name)?;
        Ok(Self {
            length: map_length(length, name)?,
            map,
            id: facts.id,
            access: Access::ReadWrite,
            descriptor: None,
            guards_by_descriptor: false,
            _held: None,
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
            map: map(file, length, Access::Read, name)?,
            id: facts.id,
            access: Access::Read,
            descriptor: None,
            guards_by_descriptor: false,
            _held: None,
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

    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    pub(crate) fn access(&self) -> Access {
        self.access
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
        if facts.links == 0 && !self.guards_by_descriptor {
            return Err(unlinked(home));
        }
        let expected = self.length as u64;
        if facts.length != expected {
            return Err(Error::SizeMismatch { location: home.location.to_string(), expected, found: facts.length });
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
            reason: "it was opened read-only (open it for writing, or take a read guard)",
        }
    }

    /// Closes the draft's descriptor, or keeps it where the lease depends on it or guards are to use it.
    fn settle(&mut self, draft: &DraftFile, backend: &dyn Backend, keep: bool, name: &str) -> Result<()> {
        if keep || !backend.lock_survives_close()? {
            let file = draft.file().try_clone().map_err(|error| Error::os("keep the descriptor", name, error))?;
            self.descriptor = Some(Kept::new(file, backend));
            self.guards_by_descriptor = keep;
        }
        Ok(())
    }
}

/// A mapped file without a name: only this process can reach it.
#[derive(Debug)]
pub(crate) struct DraftSegment {
    segment: Segment,
    file: DraftFile,
    backend: Arc<dyn Backend>,
}

impl DraftSegment {
    pub(crate) fn new(backend: Arc<dyn Backend>, length: u64, options: DraftOptions) -> Result<Self> {
        let file = backend.draft(length, options)?;
        let name = backend.directory().display().to_string();
        let segment = Segment::of_draft(file.file(), length, &name)?;
        Ok(Self { segment, file, backend })
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Takes room for the whole draft, if it was made sparse.
    pub(crate) fn reserve(&self) -> Result<()> {
        self.backend.reserve_draft(&self.file)
    }

    /// Gives the draft its name; on failure it is given back as it was.
    #[allow(clippy::result_large_err)] // moved once, on the way to an error that boxes it
    pub(crate) fn publish(mut self, at: &Location, mode: Publish, keep: bool) -> Result<Segment, (Error, Self)> {
        let settled = self.segment.settle(&self.file, &*self.backend, keep, at.as_str());
        match settled.and_then(|()| self.backend.publish(&mut self.file, at, mode)) {
            Ok(()) => Ok(self.segment),
            Err(error) => Err((error, self)),
        }
    }
}

/// Whether any process is attached to what has the name; asks the kernel and disturbs nobody.
pub(crate) fn is_attached(backend: &dyn Backend, at: &Location) -> Result<bool> {
    is_leased(&backend.open(at, Access::Read)?, at)
}

/// Whether anybody but this very description has a lease on the file.
pub(crate) fn is_leased(file: &File, at: &Location) -> Result<bool> {
    // GETLK answers for a lock of the kind that would be set, and asking needs no descriptor open for writing.
    os::is_locked(file, LockKind::Exclusive, LEASE).map_err(|error| Error::os("ask for the lease", at, error))
}

/// Returns the footer at the end of a file, if there is room for one.
pub(crate) fn read_footer(file: &File, length: u64, at: &Location) -> Result<Option<RawFooter>> {
    read_tail(file, length).map_err(|error| Error::os("read the end of", at, error))
}

fn lease(file: &File, name: &str) -> Result<()> {
    let mut backoff = Backoff::new(LEASE_WAIT);
    loop {
        match os::try_lock(file, LockKind::Shared, LEASE) {
            Ok(true) => return Ok(()),
            Ok(false) if backoff.pause() => {}
            Ok(false) => return Err(Error::TimedOut { location: name.to_owned(), waited: LEASE_WAIT }),
            Err(error) => return Err(Error::os("lease", name, error)),
        }
    }
}

/// Holds the file against what is expected of it.
fn check(file: &File, facts: &Facts, expect: Expect, location: &Location) -> Result<()> {
    let ours = read_footer(file, facts.length, location)?.is_some_and(|footer| footer.is_ours());
    match expect {
        Expect::Payload(_) if ours => Err(Error::Reserved {
            location: location.to_string(),
            reason: "it is bookkeeping of this crate, not an array",
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

/// Takes the room that a foreign file only promises, where touching its holes would take it.
fn fill_holes(file: &File, facts: &Facts, home: &Home, access: Access) -> Result<()> {
    let Home { backend, location } = home;
    if access == Access::ReadWrite {
        return backend.reserve(file).map_err(|error| error.about(location));
    }
    // On a disk a hole is read as zeros at no cost; in memory the reader pays.
    if !os::holes_take_memory(file) {
        return Ok(());
    }
    match backend.open(location, Access::ReadWrite) {
        Ok(writable) if os::facts(&writable).is_ok_and(|now| now.id == facts.id) => {
            backend.reserve(&writable).map_err(|error| error.about(location))
        }
        Err(Error::PermissionDenied { .. }) => Err(Error::Unsupported {
            location: location.to_string(),
            what: "it has holes, reading them takes memory, and this user may not fill them beforehand; open it with \
                   options().sparse(true)"
                .into(),
        }),
        // Replaced or removed meanwhile: what is attached is the caller's file, whoever has the name.
        Ok(_) | Err(Error::NotFound { .. }) => Err(unlinked(home)),
        Err(error) => Err(error),
    }
}

fn map_length(length: u64, name: &str) -> Result<usize> {
    usize::try_from(length).ok().filter(|length| isize::try_from(*length).is_ok()).ok_or_else(|| Error::TooLarge {
        location: name.to_owned(),
        shape: Vec::new(),
        item: 1,
    })
}

/// An empty file is mapped too, one byte long and never touched: the mapping carries the lease. Where that cannot be, the
/// descriptor is kept and carries it, and any memory will do.
fn map(file: &File, length: u64, access: Access, name: &str) -> Result<MmapRaw> {
    if length == 0 && !os::EMPTY_FILES_CAN_BE_MAPPED {
        let memory = MmapOptions::new().len(1).map_anon();
        return memory.map(MmapRaw::from).map_err(|error| Error::os("make a mapping", name, error));
    }
    let mut options = MmapOptions::new();
    options.len(map_length(length, name)?.max(1));
    let mapped = match access {
        Access::Read => options.map_raw_read_only(file),
        Access::ReadWrite => options.map_raw(file),
    };
    mapped.map_err(|error| Error::os(os::MAPPING, name, error))
}

fn unlinked(home: &Home) -> Error {
    Error::Unlinked { location: home.location.to_string() }
}
