//! The directory and the name of a segment, and the file that this name leads to now.

use std::fs::File;
use std::time::Duration;

use super::{Verdict, reclaim_if_orphaned};
use crate::backend::{
    Access, Backend, Companion, Directory, IntoLocation, Location, default_directory, found_elsewhere,
};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, Facts, FileId};

/// The directory and the name of a segment.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    pub(crate) backend: Directory,
    pub(crate) location: Location,
}

impl Home {
    /// Returns a name in the given directory, or in the default one.
    pub(crate) fn new(backend: Option<&Directory>, location: impl IntoLocation) -> Result<Self> {
        let location = location.into_location()?;
        let backend = match backend {
            Some(backend) => backend.clone(),
            None => default_directory()?,
        };
        Ok(Self { backend, location })
    }

    /// Returns the directory and name of the bookkeeping that belongs to the segment.
    pub(crate) fn companion(&self, kind: Companion) -> Result<Self> {
        Ok(Self { backend: self.backend.clone(), location: self.location.companion(kind)? })
    }

    /// Returns the error of opening the name. If the name is free here and the other usual place has it, the error says
    /// so.
    pub(crate) fn or_elsewhere(&self, error: Error) -> Error {
        match error {
            Error { kind: ErrorKind::NotFound, .. } => found_elsewhere(&self.backend, &self.location).unwrap_or(error),
            other => other,
        }
    }

    /// Refuses a name that is taken.
    pub(crate) fn refuse_taken(&self) -> Result<()> {
        match self.backend.open(&self.location, Access::Read) {
            Err(Error { kind: ErrorKind::NotFound, .. }) => Ok(()),
            Ok(_) | Err(Error { kind: ErrorKind::PermissionDenied { .. }, .. }) => {
                Err(ErrorKind::AlreadyExists.at(&self.location))
            }
            Err(error) => Err(error),
        }
    }

    /// Refuses a name that is taken, unless its file is an orphan: then this process removes the name, unless another
    /// has just done so.
    pub(crate) fn refuse_taken_by_the_living(&self) -> Result<()> {
        let refused = self.refuse_taken();
        if refused.as_ref().is_err_and(|error| error.kind == ErrorKind::AlreadyExists)
            && matches!(reclaim_if_orphaned(self, None, true), Ok(Verdict::Orphan(_) | Verdict::Gone))
        {
            return self.refuse_taken();
        }
        refused
    }

    /// Removes the name, if it leads to this file.
    pub(crate) fn unlink(&self, id: FileId) -> Result<bool> {
        Backend::unlink(&self.backend, &self.location, Some(id))
    }

    /// As [`unlink`](Self::unlink). Waits at most `limit` for another process that changes the name.
    pub(crate) fn unlink_within(&self, id: FileId, limit: Duration) -> Result<bool> {
        self.backend.unlink_within(&self.location, Some(id), limit)
    }

    /// Returns whether the name leads to this file.
    pub(crate) fn leads_to(&self, id: FileId) -> Result<bool> {
        self.backend.leads_to(&self.location, id)
    }
}

/// Opens the file of this name. While the descriptor is open, no other file gets the same identity. Returns `Ok(None)`
/// if the name does not exist.
pub(crate) fn pin(backend: &Directory, at: &Location, access: Access) -> Result<Option<(File, Facts)>> {
    let file = match backend.open(at, access) {
        Err(Error { kind: ErrorKind::NotFound, .. }) => return Ok(None),
        other => other?,
    };
    let facts = os::facts(&file).map_err(|error| Error::os("look at", at, error))?;
    Ok(Some((file, facts)))
}

/// Returns whether the name is taken.
pub(crate) fn has_name(backend: &Directory, at: &Location) -> Result<bool> {
    match backend.open(at, Access::Read) {
        Err(Error { kind: ErrorKind::NotFound, .. }) => Ok(false),
        Err(error @ Error { kind: ErrorKind::TooManyOpenFiles { .. }, .. }) => Err(error),
        _ => Ok(true),
    }
}
