//! The description on which a process takes the locks of a file with bookkeeping.

use std::fs::File;

use super::{DraftSegment, Home};
use crate::backend::{Access, Backend, Directory, Location, Turn};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, FileId, LockKind, LockRange};

/// An open file description for locks alone. It is never mapped, so that no forked child inherits it in a mapping, and
/// forked children give up their copies of its descriptor.
#[derive(Debug)]
pub(crate) struct LockFile {
    turn: Turn,
    directory: Directory,
}

impl LockFile {
    /// Opens the file of this name. Returns `None` if the name does not lead to the file `id` any more.
    pub(crate) fn open(home: &Home, access: Access, id: FileId) -> Result<Option<Self>> {
        let opened = Turn::open(|| home.backend.open(&home.location, access));
        let turn = match opened {
            Err(Error { kind: ErrorKind::NotFound, .. }) => return Ok(None),
            other => other?,
        };
        let facts = os::facts(turn.file()).map_err(|error| Error::os("look at", &home.location, error))?;
        Ok((facts.id == id).then(|| Self { turn, directory: home.backend.clone() }))
    }

    /// Opens the file of a draft once more.
    pub(crate) fn of_draft(draft: &DraftSegment, name: &Location) -> Result<Self> {
        let again = || os::reopen(draft.file().file(), true);
        let turn = Turn::open(again).map_err(|error| Error::os("open again by descriptor", name, error))?;
        Ok(Self { turn, directory: draft.directory().clone() })
    }

    /// Returns the description. Locks on it that are not those of the turn are released by the caller.
    pub(crate) fn file(&self) -> &File {
        self.turn.file()
    }

    /// Returns the turn, for locks that last as long as this.
    pub(crate) fn turn(&mut self) -> &mut Turn {
        &mut self.turn
    }

    /// Returns whether this process opened it, and did not inherit it by a fork.
    pub(crate) fn is_own_process(&self) -> bool {
        self.turn.is_own_process()
    }

    /// Takes a lock, unless another description has one that conflicts.
    pub(crate) fn try_lock(&self, kind: LockKind, range: LockRange, home: &Home) -> Result<bool> {
        os::try_lock(self.file(), kind, range).map_err(|error| Error::os("lock", &home.location, error))
    }

    /// Releases a lock.
    pub(crate) fn unlock(&self, range: LockRange, home: &Home) -> Result<()> {
        os::unlock(self.file(), range).map_err(|error| Error::os("unlock", &home.location, error))
    }

    /// Returns whether another description has a lock that would refuse one of this kind.
    pub(crate) fn is_locked(&self, kind: LockKind, range: LockRange, home: &Home) -> Result<bool> {
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
