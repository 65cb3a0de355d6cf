//! The two files of a stream: how they are named, opened and checked, and the description on which each is locked.
//!
//! The *frames* file has the elements. Readers open and map it for reading only. The *keeper* has the locks and words
//! of those that may write: the writer's lock and the cursors. A user that may only read cannot open it, and so cannot
//! keep a writer out.
//!
//! The frames file says which keeper it belongs to. Without that keeper it belongs to no writer.

use std::fs::File;

use super::geometry::{LONGEST_TRAILER, StreamGeometry};
use super::memory::StreamMemory;
use crate::backend::{Access, Backend, Companion, Directory, DraftOptions, Location, Turn};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, Facts, FileId, LockKind, LockRange};
use crate::segment::footer::{FOOTER, Footer, Kind};
use crate::segment::{DraftSegment, Home, Mapped, pin, read_footer};

/// How many times a file is opened again because another one got its name.
const TRIES: usize = 1000;

/// An open file description for locks alone. It is never mapped, so that no forked child inherits it in a mapping, and
/// forked children give up their copies of its descriptor.
#[derive(Debug)]
pub(super) struct LockFile {
    turn: Turn,
    directory: Directory,
}

impl LockFile {
    /// Opens the file of this name. Returns `None` if the name does not lead to the file `id` any more.
    pub(super) fn open(home: &Home, access: Access, id: FileId) -> Result<Option<Self>> {
        let opened = Turn::open(|| home.backend.open(&home.location, access));
        let turn = match opened {
            Err(Error { kind: ErrorKind::NotFound, .. }) => return Ok(None),
            other => other?,
        };
        let facts = os::facts(turn.file()).map_err(|error| Error::os("look at", &home.location, error))?;
        Ok((facts.id == id).then(|| Self { turn, directory: home.backend.clone() }))
    }

    /// Opens the file of a draft once more.
    fn of_draft(draft: &DraftSegment, name: &Location) -> Result<Self> {
        let again = || os::reopen(draft.file().file(), true);
        let turn = Turn::open(again).map_err(|error| Error::os("open again by descriptor", name, error))?;
        Ok(Self { turn, directory: draft.directory().clone() })
    }

    /// Returns the description. Locks on it that are not those of the turn are released by the caller.
    pub(super) fn file(&self) -> &File {
        self.turn.file()
    }

    /// Returns the turn, for locks that last as long as this.
    pub(super) fn turn(&mut self) -> &mut Turn {
        &mut self.turn
    }

    /// Returns whether this process opened it, and did not inherit it by a fork.
    pub(super) fn is_own_process(&self) -> bool {
        self.turn.is_own_process()
    }

    /// Takes a lock, unless another description has one that conflicts.
    pub(super) fn try_lock(&self, kind: LockKind, range: LockRange, home: &Home) -> Result<bool> {
        os::try_lock(self.file(), kind, range).map_err(|error| Error::os("lock", &home.location, error))
    }

    /// Releases a lock.
    pub(super) fn unlock(&self, range: LockRange, home: &Home) -> Result<()> {
        os::unlock(self.file(), range).map_err(|error| Error::os("unlock", &home.location, error))
    }

    /// Returns whether another description has a lock that would refuse one of this kind.
    pub(super) fn is_locked(&self, kind: LockKind, range: LockRange, home: &Home) -> Result<bool> {
        os::is_locked(self.file(), kind, range).map_err(|error| Error::os("query a lock of", &home.location, error))
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if self.is_own_process() {
            os::finish_unlink(self.file(), self.directory.path());
        }
    }
}

/// An opened and mapped frames file.
#[derive(Debug)]
pub(super) struct FramesFile {
    /// Unmapped before the lock file is closed, which may remove an unlinked file.
    pub(super) memory: StreamMemory,
    pub(super) geometry: StreamGeometry,
    /// The public name.
    pub(super) home: Home,
    pub(super) file: FileId,
    /// The random number of this stream.
    pub(super) id: u128,
}

/// What an open frames file says about itself.
pub(super) fn read_geometry(file: &File, facts: &Facts, home: &Home) -> Result<(StreamGeometry, u128)> {
    let (footer, trailer) = read_trailer(file, facts, Kind::Frames, home)?;
    let geometry = StreamGeometry::parse(&trailer, footer.payload);
    let geometry = geometry.map_err(|reason| ErrorKind::Trailer { reason }.at(&home.location))?;
    geometry.check(home.location.as_str())?;
    Ok((geometry, footer.id))
}

/// Reads the end of a file of a stream, and checks its two checksums.
fn read_trailer(file: &File, facts: &Facts, kind: Kind, home: &Home) -> Result<(Footer, Vec<u8>)> {
    let invalid = |reason| ErrorKind::Trailer { reason }.at(&home.location);
    let raw = read_footer(file, facts.length, &home.location)?;
    let raw = raw.ok_or_else(|| invalid("it is shorter than a footer".into()))?;
    let footer = raw.validate(kind, facts.length).map_err(invalid)?;
    if footer.trailer as usize > LONGEST_TRAILER {
        return Err(invalid(format!(
            "the trailer has {} bytes, but may have at most {LONGEST_TRAILER}",
            footer.trailer
        )));
    }
    let mut trailer = vec![0; footer.trailer as usize - FOOTER];
    os::read_exact_at(file, &mut trailer, footer.payload)
        .map_err(|error| Error::os("read the end of", &home.location, error))?;
    if !raw.covers(&trailer) {
        return Err(invalid("the trailer's checksum is wrong".into()));
    }
    Ok((footer, trailer))
}

impl FramesFile {
    /// Opens the frames file of a stream. Returns `None` if there is none.
    pub(super) fn open(home: &Home, access: Access) -> Result<Option<(Self, LockFile)>> {
        let frames = home.companion(Companion::Frames)?;
        for _ in 0..TRIES {
            let opened = pin(&frames.backend, &frames.location, access);
            let Some((file, facts)) = opened.map_err(|error| error.about(&home.location))? else { return Ok(None) };
            let (geometry, id) = read_geometry(&file, &facts, home)?;
            let mapped = Mapped::unleased(&file, &facts, &frames, access);
            let mapped = mapped.map_err(|error| error.about(&home.location))?;
            let memory = StreamMemory::new(mapped, geometry.words());
            let locks = LockFile::open(&frames, access, facts.id).map_err(|error| error.about(&home.location))?;
            if let Some(locks) = locks {
                return Ok(Some((Self { memory, geometry, home: home.clone(), file: facts.id, id }, locks)));
            }
        }
        Err(ErrorKind::Unlinked.at(&home.location))
    }

    /// Makes the frames file of a new stream, without a name.
    pub(super) fn draft(
        home: &Home,
        geometry: StreamGeometry,
        options: DraftOptions,
    ) -> Result<(DraftSegment, Self, LockFile)> {
        let name = home.companion(Companion::Frames)?.location;
        let (payload, id) = (geometry.length().unwrap_or(u64::MAX), crate::random::number());
        let trailer = geometry.to_trailer(payload, id);
        let draft = draft_with(home, payload, &trailer, options)?;
        let (memory, locks) = map_draft(&draft, &name, geometry.words())?;
        let file = draft.mapped().id();
        Ok((draft, Self { memory, geometry, home: home.clone(), file, id }, locks))
    }

    /// Returns the name of the file.
    pub(super) fn frames_home(&self) -> Result<Home> {
        self.home.companion(Companion::Frames)
    }

    /// Returns the number of the frame in a slot; 0: none.
    pub(super) fn number(&self, slot: usize) -> u64 {
        self.memory.load(StreamGeometry::entry(slot))
    }

    /// Returns the slot that the ring has for a number, if it is one and has that frame.
    pub(super) fn slot_of(&self, number: u64) -> Option<usize> {
        let slot = usize::try_from(self.memory.load(self.geometry.place(number))).ok()?;
        (slot < self.geometry.slots && self.number(slot) == number).then_some(slot)
    }

    /// Returns the number of the newest frame; 0: none.
    pub(super) fn head(&self) -> u64 {
        self.memory.load(StreamGeometry::HEAD)
    }
}

/// Makes a file of zeros that ends with a trailer.
pub(super) fn draft_with(home: &Home, payload: u64, trailer: &[u8], options: DraftOptions) -> Result<DraftSegment> {
    let length = payload.saturating_add(trailer.len() as u64);
    let draft =
        DraftSegment::new(home.backend.clone(), length, options).map_err(|error| error.about(&home.location))?;
    let written = os::write_all_at(draft.file().file(), trailer, payload);
    written.map_err(|error| Error::os("write the end of", &home.location, error))?;
    Ok(draft)
}

/// Maps a draft through a description of its own, and opens another one for locks.
fn map_draft(draft: &DraftSegment, name: &Location, words: u64) -> Result<(StreamMemory, LockFile)> {
    let failed = |error| Error::os("open again by descriptor", name, error);
    let again = os::reopen(draft.file().file(), true).map_err(failed)?;
    let facts = os::facts(&again).map_err(failed)?;
    let home = Home { backend: draft.directory().clone(), location: name.clone() };
    // The draft has its memory already, or is to have none.
    let mapped = Mapped::unreserved(&again, &facts, &home, Access::ReadWrite)?;
    Ok((StreamMemory::new(mapped, words), LockFile::of_draft(draft, name)?))
}

/// An opened keeper, mapped for writing.
#[derive(Debug)]
pub(super) struct KeeperFile {
    pub(super) memory: StreamMemory,
    pub(super) locks: LockFile,
    /// The name of the file itself.
    pub(super) home: Home,
    pub(super) file: FileId,
    /// The random number of this keeper.
    pub(super) id: u128,
}

/// Bytes of a keeper before its footer, all of them words.
pub(super) const KEEPER: u64 = 4096;

impl KeeperFile {
    /// Opens the keeper of a stream. Returns `None` if there is none.
    pub(super) fn open(stream: &Home) -> Result<Option<Self>> {
        let home = stream.companion(Companion::Keeper)?;
        for _ in 0..TRIES {
            let opened = pin(&home.backend, &home.location, Access::ReadWrite);
            let Some((file, facts)) = opened.map_err(|error| error.about(&stream.location))? else { return Ok(None) };
            let id = keeper_id(&file, &facts, stream)?;
            let mapped = Mapped::unleased(&file, &facts, &home, Access::ReadWrite);
            let memory = StreamMemory::new(mapped.map_err(|error| error.about(&stream.location))?, KEEPER);
            let locks = LockFile::open(&home, Access::ReadWrite, facts.id);
            if let Some(locks) = locks.map_err(|error| error.about(&stream.location))? {
                return Ok(Some(Self { memory, locks, home, file: facts.id, id }));
            }
        }
        Err(ErrorKind::Unlinked.at(&stream.location))
    }

    /// Makes a keeper under its name, unless there is one.
    pub(super) fn create(stream: &Home) -> Result<()> {
        let home = stream.companion(Companion::Keeper)?;
        let mut trailer = Vec::new();
        Footer::append_to(Kind::Keeper, KEEPER, crate::random::number(), &mut trailer);
        let options = DraftOptions { permissions: 0o600, pages: crate::backend::Pages::Base };
        let draft = draft_with(stream, KEEPER, &trailer, options)?;
        match draft.publish(&home.location, crate::backend::Publish::New, false, None) {
            Ok(_) | Err((Error { kind: ErrorKind::AlreadyExists, .. }, _)) => Ok(()),
            Err((error, _)) => Err(error.about(&stream.location)),
        }
    }

    /// Returns whether the name still leads to this file.
    pub(super) fn is_current(&self) -> Result<bool> {
        self.home.leads_to(self.file)
    }
}

/// Returns the random number of an open keeper.
pub(super) fn keeper_id(file: &File, facts: &Facts, stream: &Home) -> Result<u128> {
    let (footer, _) = read_trailer(file, facts, Kind::Keeper, stream)?;
    if footer.payload != KEEPER {
        let reason = format!("a keeper has {KEEPER} bytes before its footer, not {}", footer.payload);
        return Err(ErrorKind::Trailer { reason }.at(&stream.location));
    }
    Ok(footer.id)
}
