//! What a file in a directory of arrays is. Lists of arrays, in every language, ask here.

use ndarray_shm::arena::{self, ArenaInspection};
use ndarray_shm::array::Description;
use ndarray_shm::backend::{DirectoryEntry, EntryKind};
use ndarray_shm::counted::{Inspection, inspect_in};
use ndarray_shm::{Directory, Error, ErrorKind};

use crate::leftovers::is_lock;

/// What a file in a directory is.
#[derive(Debug)]
#[non_exhaustive]
pub enum Found {
    /// A counted array.
    Counted(Box<Inspection>),
    /// An arena, or a file of counters.
    Arena(Box<ArenaInspection>),
    /// A plain array with its description if that is valid, or another program's file.
    Plain(Option<Description>),
    /// A counted array or an arena with an invalid trailer.
    Damaged(Error),
    /// A file that could not be inspected, and why.
    Unknown(Error),
    /// Another reserved file, or a file that no longer exists.
    Other,
}

/// What a file is for that is no array although it has an ordinary name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OtherUse {
    /// A file of one byte that uploads lock.
    UploadLock,
    /// A named semaphore of the C library, such as those of Python's `multiprocessing` and `joblib`.
    Semaphore,
}

impl Found {
    /// Inspects an entry. Only a file with an ordinary name can be an array.
    pub fn at(directory: &Directory, entry: &DirectoryEntry) -> Self {
        let Some(location) = entry.location().filter(|_| entry.kind == EntryKind::Array) else { return Self::Other };
        match inspect_in(directory, &location) {
            Ok(inspection) => Self::Counted(Box::new(inspection)),
            // Arenas and counters have reserved names: they are not arrays.
            Err(Error { kind: ErrorKind::Reserved { .. }, .. }) => match arena::inspect_in(directory, &location) {
                Ok(inspection) => Self::Arena(Box::new(inspection)),
                Err(Error { kind: ErrorKind::Reserved { .. }, .. }) => Self::Other,
                Err(error) => Self::failed(error),
            },
            Err(Error { kind: ErrorKind::NotCounted, .. }) => match directory.description(&location) {
                Ok(description) => Self::Plain(description),
                Err(Error { kind: ErrorKind::PermissionDenied { .. }, .. }) => Self::Plain(None),
                Err(error) => Self::failed(error),
            },
            Err(error) => Self::failed(error),
        }
    }

    fn failed(error: Error) -> Self {
        match error.kind {
            ErrorKind::NotFound | ErrorKind::Elsewhere { .. } | ErrorKind::Unlinked | ErrorKind::NotAnArray { .. } => {
                Self::Other
            }
            ErrorKind::Trailer { .. } => Self::Damaged(error),
            _ => Self::Unknown(error),
        }
    }

    /// Returns what the file of `entry` is for if it is no array, as far as name, length and inspection tell.
    pub fn other_use(&self, entry: &DirectoryEntry) -> Option<OtherUse> {
        match self {
            Self::Plain(_) | Self::Unknown(_) if is_lock(entry) => Some(OtherUse::UploadLock),
            Self::Plain(None) | Self::Unknown(_) if is_semaphore(entry) => Some(OtherUse::Semaphore),
            _ => None,
        }
    }
}

/// Returns whether a file is a named semaphore of the C library: a `sem_t` in `sem.NAME`.
fn is_semaphore(entry: &DirectoryEntry) -> bool {
    entry.name.starts_with("sem.") && [16, 32].contains(&entry.len)
}

#[cfg(test)]
mod tests {
    use ndarray_shm::CreateOptions;

    use super::*;

    const LOCK: &str = "ndshm-write-0123abcd";

    #[test]
    fn each_kind_of_file_is_found() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let directory = Directory::new("test", folder.path());
        let options = CreateOptions::new().directory(directory.clone());
        let _plain = options.create::<u16, _>("plain", [2, 3]).expect("created");
        let _counted = options.create_counted::<u16, _>("counted", [2, 3]).expect("created");
        let semaphore = [0; 32];
        let files = [("sem.x", &semaphore[..]), ("sem.larger", &[0; 33]), (LOCK, &[0]), (".ndshm-x", &[0])];
        for (name, bytes) in files {
            std::fs::write(folder.path().join(name), bytes).expect("written");
        }
        for entry in directory.list().expect("a list") {
            let found = Found::at(&directory, &entry);
            let is_right = match entry.name.as_str() {
                "plain" => matches!(found, Found::Plain(_)),
                "counted" => matches!(found, Found::Counted(_)),
                ".ndshm-x" => matches!(found, Found::Other),
                _ => matches!(found, Found::Plain(None)),
            };
            assert!(is_right, "{}: {found:?}", entry.name);
            let other_use = match entry.name.as_str() {
                "sem.x" => Some(OtherUse::Semaphore),
                LOCK => Some(OtherUse::UploadLock),
                _ => None,
            };
            assert_eq!(found.other_use(&entry), other_use, "{}", entry.name);
        }
    }
}
