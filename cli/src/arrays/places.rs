//! The directories that `ls`, `info`, `unlink` and `doctor` search, and how a name is found in them.
//!
//! A search creates no directory: an emulated directory that does not exist contains nothing. The exception is
//! `EMULATE_SHM`: if it selects the emulated directory, `default_directory` creates the directory.

use std::io::Write;
use std::path::Path;

use ndarray_shm::backend::{DirectoryEntry, EntryKind};
use ndarray_shm::render::{self, Ledger};
use ndarray_shm::{Directory, Error, ErrorKind, Location, default_directory};

use crate::args::words::BackendChoice;
use crate::exit::{Exit, Failure};

/// Environment variable that selects real or emulated shared memory.
pub(crate) const EMULATE_SHM: &str = "EMULATE_SHM";
/// Environment variable with the path of the emulated directory.
pub(crate) const NDSHM_EMULATED_DIR: &str = "NDSHM_EMULATED_DIR";

/// Returns the directories that exist, or only the chosen one if that exists.
pub(crate) fn existing(choice: Option<BackendChoice>) -> Result<Vec<Directory>, Failure> {
    let mut places: Vec<Directory> = Vec::new();
    if choice != Some(BackendChoice::Emulated) {
        match Directory::shm() {
            Ok(shm) if shm.path().is_dir() => places.push(shm),
            // If there is no real shared memory, it contains nothing either.
            Ok(_) | Err(Error { kind: ErrorKind::Unsupported { .. }, .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if choice != Some(BackendChoice::Shm) && Directory::emulated_path()?.symlink_metadata().is_ok() {
        match Directory::emulated() {
            Ok(emulated) => places.push(emulated),
            // The command did not name this directory, and arrays in real shared memory can still be shown.
            Err(error) if choice.is_none() && !places.is_empty() => {
                let _ = writeln!(std::io::stderr(), "warning: not searched: {error}"); // stderr may be closed
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(places)
}

/// Returns both usual directories, without those that are missing or unusable. Creates none.
fn existing_in_silence() -> impl Iterator<Item = Directory> {
    let shm = Directory::shm().ok().filter(|shm| shm.path().is_dir());
    let path = Directory::emulated_path().ok().filter(|path| path.is_dir());
    shm.into_iter().chain(path.and_then(|_| Directory::emulated().ok()))
}

/// Returns the directories to search for a name: the chosen one, else the one that `EMULATE_SHM` selects, else all.
fn searched(choice: Option<BackendChoice>) -> Result<Vec<Directory>, Failure> {
    if choice.is_none() && std::env::var_os(EMULATE_SHM).is_some() {
        // The library parses the variable, so the program accepts the same values.
        let chosen = default_directory()?;
        let choice = if chosen.name() == "emulated" { BackendChoice::Emulated } else { BackendChoice::Shm };
        return existing(Some(choice));
    }
    existing(choice)
}

/// The files of a name in one directory.
#[derive(Debug)]
pub(crate) struct NameMatch {
    pub(crate) backend: Directory,
    /// The array with this name.
    pub(crate) array: Option<DirectoryEntry>,
    /// The renderbuffer that gets this name when it is finished.
    pub(crate) partial: Option<DirectoryEntry>,
    /// The frames of the stream with this name.
    pub(crate) frames: Option<DirectoryEntry>,
    /// The keeper of that stream.
    pub(crate) keeper: Option<DirectoryEntry>,
    /// The cache of chunks with this name.
    pub(crate) cache: Option<DirectoryEntry>,
}

/// The listings of the searched directories: each directory is read once for several names.
#[derive(Debug)]
pub(crate) struct Search {
    places: Vec<(Directory, Vec<DirectoryEntry>)>,
    /// Directories that exist and are not searched.
    others: Vec<Directory>,
}

impl Search {
    /// Reads the directories.
    pub(crate) fn new(choice: Option<BackendChoice>) -> Result<Self, Failure> {
        let mut places = Vec::new();
        for backend in searched(choice)? {
            let entries = backend.list()?;
            places.push((backend, entries));
        }
        // These only serve advice, so their errors are ignored.
        let others = existing_in_silence().filter(|other| places.iter().all(|(place, _)| place.path() != other.path()));
        Ok(Self { others: others.collect(), places })
    }

    /// Finds the directory in which a name has a file of the wanted kinds.
    ///
    /// Fails if no directory has one, or if two have one.
    pub(crate) fn find(&self, location: &Location, wanted: &[EntryKind]) -> Result<NameMatch, Failure> {
        let mut found: Vec<NameMatch> = self
            .places
            .iter()
            .filter_map(|(backend, entries)| {
                let of_kind = |kind| entries.iter().find(|e| e.kind == kind && e.location().as_ref() == Some(location));
                wanted.iter().any(|kind| of_kind(*kind).is_some()).then(|| NameMatch {
                    backend: backend.clone(),
                    array: of_kind(EntryKind::Array).cloned(),
                    partial: of_kind(EntryKind::Partial).cloned(),
                    frames: of_kind(EntryKind::Frames).cloned(),
                    keeper: of_kind(EntryKind::Keeper).cloned(),
                    cache: of_kind(EntryKind::Cache).cloned(),
                })
            })
            .collect();
        match found.len() {
            0 => Err(Failure::new(Exit::NotFound, format!("nothing is called `{location}` {}", self.describe()))
                .advice(self.advice(location, wanted))),
            1 => Ok(found.remove(0)),
            _ => Err(Failure::new(Exit::Failed, format!("`{location}` exists more than once {}", self.describe()))
                .advice("choose one with --backend shm or --backend emulated")),
        }
    }

    /// Returns advice about a name that was not found. A directory that was not searched may have it, or a stream.
    fn advice(&self, location: &Location, wanted: &[EntryKind]) -> String {
        let is_stream =
            |entry: &DirectoryEntry| entry.kind == EntryKind::Frames && entry.location().as_ref() == Some(location);
        if !wanted.contains(&EntryKind::Frames) && self.places.iter().any(|(_, entries)| entries.iter().any(is_stream))
        {
            return format!(
                "there is only a stream of that name: `ndshm info --stream {location}` describes it, and `ndshm view --live {location}` \
                 draws its frames"
            );
        }
        let has_it = |place: &&Directory| {
            let entries = place.list().unwrap_or_default();
            entries.iter().any(|entry| wanted.contains(&entry.kind) && entry.location().as_ref() == Some(location))
        };
        if let Some(other) = self.others.iter().find(has_it) {
            let (place, emulate) = if other.name() == "emulated" { ("emulated", 1) } else { ("shm", 0) };
            return format!(
                "there is one of that name in {}: select it with --backend {place} or {EMULATE_SHM}={emulate}",
                shown(other.path())
            );
        }
        let names = "`ndshm ls` lists all names; --backend selects the directory to search";
        if Path::new(location.as_str()).is_dir() {
            return format!(
                "{names}; if the directory `{location}` is a volume, `ndshm download` makes an array of it first"
            );
        }
        names.to_owned()
    }

    fn describe(&self) -> String {
        let directories: Vec<String> = self.places.iter().map(|(backend, _)| shown(backend.path())).collect();
        match directories.as_slice() {
            [] => "(there is neither shared memory nor an emulated directory)".to_owned(),
            some => format!("in {}", some.join(" or ")),
        }
    }
}

/// Returns whether a process is attached to an entry; `None` if this user may not ask, or if the file no longer exists.
pub(crate) fn attached(backend: &Directory, entry: &DirectoryEntry) -> Option<bool> {
    let location = entry.location()?;
    match entry.kind {
        EntryKind::Array => backend.attached(&location).ok(),
        _ => render::attached(backend, &location).ok(),
    }
}

/// Reads the ledger of an unfinished renderbuffer.
pub(crate) fn ledger(backend: &Directory, entry: &DirectoryEntry) -> Result<Ledger, Failure> {
    let location = entry
        .location()
        .ok_or_else(|| Failure::new(Exit::Failed, format!("`{}` belongs to no location", entry.name)))?;
    Ok(render::ledger(backend, &location)?)
}

fn shown(path: &Path) -> String {
    crate::show::units::printable(&path.display().to_string())
}
