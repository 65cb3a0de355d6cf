//! What a file in a directory of arrays is. Lists of arrays, in every language, ask here.

use ndarray_shm::arena::{self, ArenaInspection};
use ndarray_shm::array::Description;
use ndarray_shm::backend::{DirectoryEntry, EntryKind};
use ndarray_shm::counted::{Inspection, inspect_in};
use ndarray_shm::{Directory, Error, ErrorKind, Location};

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
    /// A file of one byte that uploads lock.
    UploadLock,
    /// A named semaphore of the C library, such as those of Python's `multiprocessing` and `joblib`.
    Semaphore,
    /// A counted array or an arena with an invalid trailer.
    Damaged(Error),
    /// A file that could not be inspected, and why.
    Unknown(Error),
    /// Another reserved file, or a file that no longer exists.
    Other,
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
                Err(error) => Self::failed(error, entry),
            },
            Err(Error { kind: ErrorKind::NotCounted, .. }) => Self::plain(directory, entry, &location),
            Err(error) => Self::failed(error, entry),
        }
    }

    fn plain(directory: &Directory, entry: &DirectoryEntry, location: &Location) -> Self {
        match directory.description(location).unwrap_or_default() {
            _ if is_lock(entry) => Self::UploadLock,
            None if is_semaphore(entry) => Self::Semaphore,
            description => Self::Plain(description),
        }
    }

    fn failed(error: Error, entry: &DirectoryEntry) -> Self {
        match error.kind {
            ErrorKind::NotFound | ErrorKind::Elsewhere { .. } | ErrorKind::NotAnArray { .. } => Self::Other,
            ErrorKind::Trailer { .. } => Self::Damaged(error),
            // Another user's. Names and lengths are no secret.
            _ if is_lock(entry) => Self::UploadLock,
            _ if is_semaphore(entry) => Self::Semaphore,
            _ => Self::Unknown(error),
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
                "sem.x" => matches!(found, Found::Semaphore),
                LOCK => matches!(found, Found::UploadLock),
                "sem.larger" => matches!(found, Found::Plain(None)),
                ".ndshm-x" => matches!(found, Found::Other),
                _ => false,
            };
            assert!(is_right, "{}: {found:?}", entry.name);
        }
    }
}
