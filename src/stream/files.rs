//! The two files of a stream: how they are named, opened and checked.
//!
//! The *frames* file has the elements. Readers open and map it for reading only. The *keeper* has the locks and words
//! of those that may write: the writer's lock and the cursors. A user that may only read cannot open it, and so cannot
//! keep a writer out.
//!
//! The frames file says which keeper it belongs to. Without that keeper it belongs to no writer.

use std::fs::File;

use super::geometry::{LONGEST_TRAILER, StreamGeometry};
use super::memory::StreamMemory;
use super::protocol::FrameTable;
use crate::backend::{Access, Companion, DraftOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{Facts, FileId};
use crate::segment::footer::{Footer, Kind};
use crate::segment::{DraftSegment, Home, LockFile, Mapped, pin, read_trailer};

/// How many times a file is opened again because another one got its name.
const TRIES: usize = 1000;

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
    let (footer, trailer) = read_trailer(file, facts.length, Kind::Frames, LONGEST_TRAILER, &home.location)?;
    let geometry = StreamGeometry::parse(&trailer, footer.payload);
    let geometry = geometry.map_err(|reason| ErrorKind::Trailer { reason }.at(&home.location))?;
    geometry.check(home.location.as_str())?;
    Ok((geometry, footer.id))
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
        let draft = DraftSegment::with_trailer(home, payload, &trailer, options)?;
        let memory = StreamMemory::new(draft.map_again(&name)?, geometry.words());
        let locks = LockFile::of_draft(&draft, &name)?;
        let file = draft.mapped().id();
        Ok((draft, Self { memory, geometry, home: home.clone(), file, id }, locks))
    }

    /// Returns the name of the file.
    pub(super) fn frames_home(&self) -> Result<Home> {
        self.home.companion(Companion::Frames)
    }

    /// Returns the words that say which frames there are.
    pub(super) fn table(&self) -> FrameTable<'_> {
        FrameTable::new(&self.memory, &self.geometry)
    }

    /// Returns the number of the frame in a slot; 0: none.
    pub(super) fn number(&self, slot: usize) -> u64 {
        self.table().number(slot)
    }

    /// Returns the number of the newest frame; 0: none.
    pub(super) fn head(&self) -> u64 {
        self.table().head()
    }
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
        let draft = DraftSegment::with_trailer(stream, KEEPER, &trailer, options)?;
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
    let (footer, _) = read_trailer(file, facts.length, Kind::Keeper, LONGEST_TRAILER, &stream.location)?;
    if footer.payload != KEEPER {
        let reason = format!("a keeper has {KEEPER} bytes before its footer, not {}", footer.payload);
        return Err(ErrorKind::Trailer { reason }.at(&stream.location));
    }
    Ok(footer.id)
}
