//! The default directory: chosen by the program, by the environment, or by what the machine has.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use super::filling::{self, EMULATED};
use super::{Directory, Location};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, MOMENT, PerProcess};

const EMULATE: &str = "EMULATE_SHM";
const EMULATED_DIRECTORY: &str = "NDSHM_EMULATED_DIR";

/// How many directories are remembered.
const DIRECTORIES: usize = 64;

/// 0: the environment decides; 1: real; 2: emulated. It guards no other data, so Relaxed suffices.
static CHOICE: AtomicU8 = AtomicU8::new(0);

/// Chooses for this process between real and emulated shared memory; `None` leaves it to `EMULATE_SHM` again.
///
/// Arrays that are attached already stay where they are. Children of [`process::spawn`](crate::process::spawn()) begin
/// with the same choice, in their `EMULATE_SHM`.
///
/// # Examples
///
/// ```standalone_crate
/// use ndarray_shm::{default_directory, set_emulate_shm};
///
/// set_emulate_shm(Some(true)); // as EMULATE_SHM=1
/// assert_eq!(default_directory()?.name(), "emulated");
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
pub fn set_emulate_shm(emulate: Option<bool>) {
    CHOICE.store(emulate.map_or(0, |emulate| 1 + u8::from(emulate)), Ordering::Relaxed);
}

/// Returns the choice of [`set_emulate_shm`] as an environment variable that makes another process choose the same.
pub(crate) fn chosen_variable() -> Option<(&'static str, &'static str)> {
    match CHOICE.load(Ordering::Relaxed) {
        0 => None,
        choice => Some((EMULATE, if choice == 2 { "1" } else { "0" })),
    }
}

/// Returns the directory that is used when none is given.
///
/// The first of these that applies: the choice of [`set_emulate_shm`]; the environment variable `EMULATE_SHM` (1, true,
/// yes or 0, false, no); real shared memory if this process can write to it, which is checked until it can; emulation
/// by files.
///
/// # Examples
///
/// ```
/// use ndarray_shm::default_directory;
///
/// let directory = default_directory()?;
/// println!("arrays are files in {}: {} bytes are free", directory.path().display(), directory.available()?);
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
///
/// # Errors
///
/// - [`InvalidSetting`](ErrorKind::InvalidSetting): `EMULATE_SHM` is set to something else.
/// - [`Unsupported`](ErrorKind::Unsupported): real shared memory was asked for where there is none.
/// - [`PermissionDenied`](ErrorKind::PermissionDenied): the emulated directory is a link, another user's, or writable
///   by other users.
pub fn default_directory() -> Result<Directory> {
    let emulate = match CHOICE.load(Ordering::Relaxed) {
        0 => emulate_from(std::env::var_os(EMULATE))?,
        choice => Some(choice == 2),
    };
    Ok(match emulate {
        Some(false) => Directory::shm()?,
        None if shm_is_writable() => Directory::shm()?,
        Some(true) | None => Directory::emulated()?,
    })
}

/// Returns whether this process can write to real shared memory.
///
/// If it can, that is remembered: the check takes a tenth of the time of making a small array, and the arrays of one
/// process stay in one place.
fn shm_is_writable() -> bool {
    static WRITABLE: AtomicBool = AtomicBool::new(false);
    if WRITABLE.load(Ordering::Relaxed) {
        return true;
    }
    let writable = os::SHARED_MEMORY.is_some_and(|path| os::is_writable_directory(Path::new(path)));
    WRITABLE.store(writable, Ordering::Relaxed);
    writable
}

fn emulate_from(value: Option<OsString>) -> Result<Option<bool>> {
    let Some(value) = value else { return Ok(None) };
    let value = value.to_string_lossy();
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" => Ok(Some(true)),
        "0" | "false" | "no" => Ok(Some(false)),
        _ => Err(Error::setting(EMULATE, value, "1, true or yes, or 0, false or no, or unset")),
    }
}

impl Directory {
    /// Returns real shared memory.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) off Linux.
    pub fn shm() -> Result<Self> {
        let Some(path) = os::SHARED_MEMORY else {
            let what = "this platform has no shared memory that can be listed and reserved; leave EMULATE_SHM unset or set \
                        it to 1";
            return Err(ErrorKind::Unsupported { what: what.into() }.at("/dev/shm"));
        };
        Ok(remembered("shm", Path::new(path)))
    }

    /// Returns emulated shared memory: `NDSHM_EMULATED_DIR`, or `ndarray-shm-<uid>` in the temporary directory, made if
    /// it is missing.
    ///
    /// # Errors
    ///
    /// - [`PermissionDenied`](ErrorKind::PermissionDenied): it is a link, another user's, or writable by other users.
    /// - [`InvalidSetting`](ErrorKind::InvalidSetting): `NDSHM_EMULATED_DIR` is empty, or the directory above the one
    ///   it names is missing.
    pub fn emulated() -> Result<Self> {
        let path = Self::emulated_path()?;
        os::private_directory(&path).map_err(|error| match error {
            os::PrivateDirectoryError::Unsafe { reason, owner, mode } => {
                ErrorKind::PermissionDenied { owner, mode, reason }.at(path.display())
            }
            os::PrivateDirectoryError::Os(source) => no_emulated_directory(&path, source),
        })?;
        Ok(remembered(EMULATED, &path))
    }

    /// Returns how many bytes the files of emulated shared memory may take together, as `NDSHM_EMULATED_LIMIT` says;
    /// `None` if it is not set, and the disk is the limit.
    ///
    /// Memory that was reserved in advance counts, and so do files of other programs in the directory. Arrays that have
    /// lost their names and are still attached do not count.
    ///
    /// # Errors
    ///
    /// [`InvalidSetting`](ErrorKind::InvalidSetting): it is set to something else than a number of bytes, such as
    /// `10G`.
    pub fn emulated_limit() -> Result<Option<u64>> {
        filling::limit()
    }

    /// Returns where emulated shared memory is, without making or checking the directory.
    ///
    /// # Errors
    ///
    /// [`InvalidSetting`](ErrorKind::InvalidSetting): `NDSHM_EMULATED_DIR` is empty.
    pub fn emulated_path() -> Result<PathBuf> {
        let path = match std::env::var_os(EMULATED_DIRECTORY) {
            Some(path) if path.is_empty() => {
                return Err(Error::setting(EMULATED_DIRECTORY, "", "the path of a directory of yours, or unset"));
            }
            Some(path) => PathBuf::from(path),
            None => {
                let temporary = os::temporary_directory();
                let temporary = temporary
                    .map_err(|error| Error::os("looking for a temporary directory", "emulated shared memory", error))?;
                temporary.join(format!("ndarray-shm-{}", os::user_tag()))
            }
        };
        std::path::absolute(&path).map_err(|error| Error::os("resolve", path.display(), error))
    }
}

/// Returns the error for an emulated directory that cannot be made. Only the last part of its path is ever made,
/// because a missing parent is most likely a typing error.
fn no_emulated_directory(path: &Path, source: std::io::Error) -> Error {
    let is_orphan = path.parent().is_some_and(|parent| !parent.exists());
    match std::env::var_os(EMULATED_DIRECTORY) {
        Some(value) if is_orphan => Error::setting(
            EMULATED_DIRECTORY,
            value.to_string_lossy(),
            "the path of a directory in an existing one: correct it, or create its parent",
        ),
        _ => {
            let op = "making the directory for emulated shared memory (NDSHM_EMULATED_DIR names another)";
            ErrorKind::Os { op }.at(path.display()).because(source)
        }
    }
}

/// Returns the error for a name that is free in one of the two usual places, if the other one has a file of this name.
/// Makes no directory.
pub(crate) fn found_elsewhere(searched: &Directory, location: &Location) -> Option<Error> {
    let (directory, emulate) = match searched.name() {
        EMULATED => (PathBuf::from(os::SHARED_MEMORY?), 0),
        _ if os::SHARED_MEMORY.is_some_and(|path| Path::new(path) == searched.path()) => {
            (Directory::emulated_path().ok()?, 1)
        }
        _ => return None, // a directory of the program's own, for which there is no other one
    };
    let facts = os::facts_at(&directory.join(location.as_str())).ok()?;
    (directory != searched.path() && facts.other.is_none()).then(|| {
        ErrorKind::Elsewhere {
            searched: searched.path().display().to_string(),
            directory: directory.display().to_string(),
            emulate,
        }
        .at(location)
    })
}

/// Returns the directory with this name and path. The instances used last are kept, so that each tests its locks only
/// once.
pub(crate) fn remembered(name: &str, path: &Path) -> Directory {
    static KNOWN: PerProcess<Vec<Directory>> = PerProcess::new();
    let make = || Directory::new(name, path);
    // Without the list a new instance works as well, and tests the locks again.
    let Some(mut slot) = KNOWN.lock(MOMENT) else { return make() };
    os::step("directories: locked");
    let known = slot.value.get_or_insert_default();
    let is_meant = |directory: &Directory| directory.name() == name && directory.path() == path;
    let directory = known.iter().position(is_meant).map_or_else(make, |at| known.remove(at));
    known.truncate(DIRECTORIES - 1);
    known.insert(0, directory.clone());
    directory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_used_directories_are_remembered() {
        let of = |number: usize| remembered("some", Path::new(&format!("/directory/{number}")));
        let (first, second) = (of(0), of(1));
        for number in 2..=DIRECTORIES {
            of(number);
            assert!(first.is_same(&of(0)));
        }
        assert!(!second.is_same(&of(1)), "it was forgotten");
    }

    #[test]
    fn only_six_words_are_booleans() {
        for (word, meaning) in
            [("1", true), ("true", true), ("YES", true), ("0", false), ("False", false), ("no", false)]
        {
            assert_eq!(emulate_from(Some(word.into())).expect(word), Some(meaning));
        }
        assert_eq!(emulate_from(None).expect("unset"), None);
        for word in ["", "on", "2", "emulate"] {
            match emulate_from(Some(word.into())) {
                Err(Error { kind: ErrorKind::InvalidSetting { expected, .. }, .. }) => {
                    assert!(expected.contains("1, true or yes"));
                }
                other => panic!("{word:?}: {other:?}"),
            }
        }
    }
}
