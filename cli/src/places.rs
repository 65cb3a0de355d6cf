//! The directories that `ls`, `info`, `unlink` and `doctor` look into, and finding a name in them.
//!
//! Looking makes no directory, as an emulated directory that is not there has nothing in it; only where `EMULATE_SHM`
//! chooses it, asking the library what is chosen makes it.

use std::io::Write;
use std::path::Path;

use ndarray_shm::backend::{DirectoryEntry, EntryKind};
use ndarray_shm::render::{self, Ledger};
use ndarray_shm::{Directory, Error, Location, default_backend};
use ndarray_shm_volume::is_upload_lock;

use crate::exit::{Exit, Failure};
use crate::words::BackendChoice;

/// Chooses between real and emulated shared memory when it is set.
pub(crate) const EMULATE_SHM: &str = "EMULATE_SHM";
/// Names the emulated directory when it is set.
pub(crate) const NDSHM_EMULATED_DIR: &str = "NDSHM_EMULATED_DIR";

/// Returns the places that exist, or the one that was chosen if that exists.
pub(crate) fn existing(choice: Option<BackendChoice>) -> Result<Vec<Directory>, Failure> {
    let mut places: Vec<Directory> = Vec::new();
    if choice != Some(BackendChoice::Emulated) {
        match Directory::shm() {
            Ok(shm) if shm.path().is_dir() => places.push(shm),
            // Real shared memory that is not there has nothing in it either.
            Ok(_) | Err(Error::Unsupported { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if choice != Some(BackendChoice::Shm) && Directory::emulated_path()?.symlink_metadata().is_ok() {
        match Directory::emulated() {
            Ok(emulated) => places.push(emulated),
            // The command did not ask for this place in particular, and what is in real shared memory can be shown even so.
            Err(error) if choice.is_none() && !places.is_empty() => {
                let _whether_anybody_listens = writeln!(std::io::stderr(), "warning: not looked at: {error}");
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(places)
}

/// Returns both usual places as far as they are there and sound; makes none.
fn existing_in_silence() -> impl Iterator<Item = Directory> {
    let shm = Directory::shm().ok().filter(|shm| shm.path().is_dir());
    let path = Directory::emulated_path().ok().filter(|path| path.is_dir());
    shm.into_iter().chain(path.and_then(|_| Directory::emulated().ok()))
}

/// Returns the places to search for a name: the chosen one; else what `EMULATE_SHM` says; else all.
fn searched(choice: Option<BackendChoice>) -> Result<Vec<Directory>, Failure> {
    if choice.is_none() && std::env::var_os(EMULATE_SHM).is_some() {
        // The library reads the setting, so that both agree on which words it may have.
        let chosen = default_backend()?;
        let choice = if chosen.name() == "emulated" { BackendChoice::Emulated } else { BackendChoice::Shm };
        return existing(Some(choice));
    }
    existing(choice)
}

/// What a name leads to in one place.
#[derive(Debug)]
pub(crate) struct NameMatch {
    pub(crate) backend: Directory,
    /// The array that has the name.
    pub(crate) array: Option<DirectoryEntry>,
    /// The renderbuffer that will have it once it is finished.
    pub(crate) partial: Option<DirectoryEntry>,
}

/// The searched places, so that several names are found with one look at each directory.
#[derive(Debug)]
pub(crate) struct Search {
    places: Vec<(Directory, Vec<DirectoryEntry>)>,
    /// The places that are there and were not meant.
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
        // They only serve advice: what is wrong with them is not said here.
        let others = existing_in_silence().filter(|other| places.iter().all(|(place, _)| place.path() != other.path()));
        Ok(Self { others: others.collect(), places })
    }

    /// Finds the place where a name leads to something of the wanted kinds.
    ///
    /// Fails if nothing has it, or if it means different things in two places.
    pub(crate) fn find(&self, location: &Location, wanted: &[EntryKind]) -> Result<NameMatch, Failure> {
        let mut found: Vec<NameMatch> = self
            .places
            .iter()
            .filter_map(|(backend, entries)| {
                let of_kind = |kind| entries.iter().find(|e| e.kind == kind && e.location().as_ref() == Some(location));
                let (array, partial) = (of_kind(EntryKind::Array), of_kind(EntryKind::Partial));
                let is_wanted = |entry: &DirectoryEntry| wanted.contains(&entry.kind);
                (array.is_some_and(is_wanted) || partial.is_some_and(is_wanted)).then(|| NameMatch {
                    backend: backend.clone(),
                    array: array.cloned(),
                    partial: partial.cloned(),
                })
            })
            .collect();
        match found.len() {
            0 => Err(Failure::new(Exit::NotFound, format!("nothing is called `{location}` {}", self.describe()))
                .advice(self.advice(location, wanted))),
            1 => Ok(found.remove(0)),
            _ => Err(Failure::new(Exit::Failed, format!("`{location}` exists more than once {}", self.describe()))
                .advice("say which one is meant with --backend shm or --backend emulated")),
        }
    }

    /// Says what to do about a name that was not found: another place may have it.
    fn advice(&self, location: &Location, wanted: &[EntryKind]) -> String {
        let has_it = |place: &&Directory| {
            let entries = place.list().unwrap_or_default();
            entries.iter().any(|entry| wanted.contains(&entry.kind) && entry.location().as_ref() == Some(location))
        };
        match self.others.iter().find(has_it) {
            Some(other) => {
                let (place, emulate) = if other.name() == "emulated" { ("emulated", 1) } else { ("shm", 0) };
                format!(
                    "there is one of that name in {}: --backend {place} means that one, and so does {EMULATE_SHM}={emulate}",
                    shown(other.path())
                )
            }
            None => "`ndshm ls` lists what there is; --backend chooses where to look".to_owned(),
        }
    }

    fn describe(&self) -> String {
        let directories: Vec<String> = self.places.iter().map(|(backend, _)| shown(backend.path())).collect();
        match directories.as_slice() {
            [] => "(there is neither shared memory nor an emulated directory)".to_owned(),
            some => format!("in {}", some.join(" or ")),
        }
    }
}

/// Returns whether some process has an entry mapped; `None` if this user may not ask, or it is gone by now.
pub(crate) fn attached(backend: &Directory, entry: &DirectoryEntry) -> Option<bool> {
    let location = entry.location()?;
    match entry.kind {
        EntryKind::Array => backend.attached(&location).ok(),
        _ => render::attached(backend, &location).ok(),
    }
}

/// Reads the ledger that belongs to a half-painted payload.
pub(crate) fn ledger(backend: &Directory, entry: &DirectoryEntry) -> Result<Ledger, Failure> {
    let location = entry
        .location()
        .ok_or_else(|| Failure::new(Exit::Failed, format!("`{}` belongs to no location", entry.name)))?;
    Ok(render::ledger(backend, &location)?)
}

fn shown(path: &Path) -> String {
    crate::units::printable(&path.display().to_string())
}

/// Whether a file is what uploads lock: an array of one byte under a name of theirs.
pub(crate) fn is_lock(entry: &DirectoryEntry) -> bool {
    entry.kind == EntryKind::Array && entry.len == 1 && is_upload_lock(&entry.name)
}
