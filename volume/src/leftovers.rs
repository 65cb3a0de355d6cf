//! What killed uploads and downloads leave beside the files that the core reclaims: one decision for `ndshm gc` and
//! Python's `gc`.

use std::time::SystemTime;

use ndarray_shm::backend::{DirectoryEntry, EntryKind};
use ndarray_shm::counted::{Reclaim, Reclaimed};
use ndarray_shm::{Directory, Error, Result};

use crate::download::{is_nameless_download, remove_nameless_download};
use crate::upload::{is_upload_lock, remove_upload_lock};

/// A file of a killed upload or download that was removed, or that a dry run would have removed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leftover {
    /// Its file name.
    pub name: String,
    /// Bytes of memory that it took.
    pub bytes: u64,
    /// What it was.
    pub kind: LeftoverKind,
}

/// The kind of a [`Leftover`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeftoverKind {
    /// The file that uploads to one volume lock.
    UploadLock,
    /// What a download without a name had painted.
    Download,
}

/// Result of [`reclaim`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Cleared {
    /// What the core has reclaimed.
    pub reclaimed: Reclaimed,
    /// The files of uploads and downloads that were removed, or that a dry run would have removed.
    pub leftovers: Vec<Leftover>,
    /// Those that could not be removed, with the reason.
    pub failed: Vec<(String, Error)>,
}

/// Removes what killed processes left in one directory: what [`Reclaim::run`] removes, the locks of killed uploads, and
/// what killed downloads without a name had painted. Files of other users are left alone.
///
/// # Examples
///
/// ```
/// use ndarray_shm::counted::Reclaim;
///
/// let found = ndarray_shm_volume::reclaim(Reclaim::new().dry_run(true), &ndarray_shm::default_directory()?)?;
/// println!("{} files could be removed", found.reclaimed.removed.len() + found.leftovers.len());
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
///
/// # Errors
///
/// Those of listing the directory. Errors of single files are in the result.
pub fn reclaim(options: Reclaim, backend: &Directory) -> Result<Cleared> {
    let mut cleared = Cleared { reclaimed: options.run(backend)?, ..Cleared::default() };
    for entry in backend.list()? {
        let Some((kind, location)) = kind_of(&entry).zip(entry.location()) else { continue };
        let age = SystemTime::now().duration_since(entry.modified).unwrap_or_default();
        let is_counted = cleared.reclaimed.removed.iter().any(|removed| removed.name == entry.name); // in a dry run
        if age < options.least_age() || !entry.is_own() || is_counted {
            continue;
        }
        let removed = match kind {
            LeftoverKind::UploadLock => remove_upload_lock(backend, &location, options.is_dry_run()),
            LeftoverKind::Download => remove_nameless_download(backend, &location, options.is_dry_run()),
        };
        match removed {
            Ok(true) => cleared.leftovers.push(Leftover { name: entry.name, bytes: entry.allocated, kind }),
            Ok(false) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => cleared.failed.push((entry.name, error)),
        }
    }
    Ok(cleared)
}

fn kind_of(entry: &DirectoryEntry) -> Option<LeftoverKind> {
    if is_lock(entry) {
        return Some(LeftoverKind::UploadLock);
    }
    let is_download = entry.kind == EntryKind::Partial
        && entry.location().is_some_and(|location| is_nameless_download(location.as_str()));
    is_download.then_some(LeftoverKind::Download)
}

/// Returns whether a file is a lock of uploads: one byte, under a name that uploads reserve.
pub(crate) fn is_lock(entry: &DirectoryEntry) -> bool {
    entry.kind == EntryKind::Array && entry.len == 1 && is_upload_lock(&entry.name)
}
