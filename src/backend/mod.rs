//! Where arrays live, and how they get, keep and lose their names.
//!
//! [`default_directory`] returns where arrays are made by default: in `/dev/shm` on Linux, and as files elsewhere. A
//! [`Directory`] chooses another place.
//!
//! ```
//! use ndarray_shm::{CreateOptions, Directory, SharedArray};
//!
//! let emulated = Directory::emulated()?; // files with the same semantics, on every platform
//! let array = CreateOptions::new().directory(emulated.clone()).create::<f32, _>("backend-example", 100)?;
//! assert_eq!(array.directory().name(), "emulated");
//! emulated.unlink("backend-example")?;
//! # Ok::<(), ndarray_shm::Error>(())
//! ```
//!
//! Most programs need nothing of this module. [`set_emulate_shm`] and the environment variables `EMULATE_SHM` and
//! `NDSHM_EMULATED_DIR` choose between the two usual places for a whole program; `NDSHM_EMULATED_LIMIT` limits the room
//! that emulation takes. [`interruptible`] lets a callback end calls that take long. The `unsafe` trait [`Backend`] is
//! for programs that bring a place of their own, or inject faults in tests.
//!
//! A backend opens files. It maps nothing and knows no elements. On Linux real shared memory *is* a directory, so one
//! implementation serves both it and its emulation, errors included.

mod advice;
mod directory;
mod files;
mod filling;
mod location;
pub(crate) mod lock_space;
mod name_lock;
mod options;
mod pages;
mod reserve;
mod selection;
mod turn;

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

pub(crate) use self::advice::{Place, advice};
pub use self::directory::Directory;
pub(crate) use self::files::check_length;
pub(crate) use self::location::Companion;
pub use self::location::{IntoLocation, Location, RESERVED_PREFIX};
pub(crate) use self::name_lock::{Alone, lock_name};
pub use self::options::DraftOptions;
pub use self::pages::{PageUse, Pages};
pub(crate) use self::reserve::reserve;
pub(crate) use self::selection::{chosen_variable, found_elsewhere, remembered};
pub use self::selection::{default_directory, set_emulate_shm};
pub(crate) use self::turn::Turn;
use crate::error::{Error, Result};
pub use crate::interrupt::{goes_on, interruptible};
use crate::os;
pub use crate::os::FileId;

/// Returns how many bytes of memory this process could allocate now: what the machine has free or can reclaim, with
/// swap, and at most what the process's control groups have left. `None` if the system does not report it.
///
/// The number is old when it returns. It tells what surely does not fit.
///
/// # Examples
///
/// ```
/// let fits = |bytes: u64| ndarray_shm::backend::available_memory().is_none_or(|available| bytes <= available);
/// assert!(fits(1));
/// ```
pub fn available_memory() -> Option<u64> {
    os::available_memory().map(|room| room.bytes)
}

/// A place for segments.
///
/// Only for programs that implement one: all others choose a [`Directory`]. A `Directory` is a backend too, so that an
/// implementation can wrap it, to inject faults for example. `Directory::from(Arc::new(..))` makes a directory of an
/// implementation.
///
/// # Safety
///
/// Safe code above relies on all of this:
/// - no other process can reach what [`draft`](Self::draft) returns until it is published;
/// - a file's length never changes after it was drafted, except while one process provably has it alone, and its bytes
///   change only through mappings and descriptors that take part in the locks;
/// - [`publish`](Self::publish) and [`rename`](Self::rename) give a name in one step, or not at all, and no process
///   finds a mix of two segments under it. (Replacing a mapped file takes Windows two steps; between them the name is
///   free.)
/// - [`lock_survives_close`](Self::lock_survives_close) is `true` only where that was tested.
#[allow(unsafe_code)]
pub unsafe trait Backend: fmt::Debug + Send + Sync {
    /// Returns the backend's short name: "shm", "emulated", or the name that the program gave it.
    fn name(&self) -> &str;

    /// Returns the directory in which other programs find the segments as files.
    fn path(&self) -> &Path;

    /// Makes a file of `length` zero bytes without a name, with its room reserved.
    ///
    /// # Errors
    ///
    /// [`NoSpace`](crate::ErrorKind::NoSpace), before anything is allocated.
    fn draft(&self, length: u64, options: DraftOptions) -> Result<DraftFile>;

    /// Allocates every byte of a file that may have holes. Bytes already written stay.
    ///
    /// # Errors
    ///
    /// [`NoSpace`](crate::ErrorKind::NoSpace); [`Unsupported`](crate::ErrorKind::Unsupported) where the file system
    /// cannot allocate ahead and other processes may be writing.
    fn reserve(&self, file: &File) -> Result<()>;

    /// Allocates a part of a file that may have holes. Bytes already written stay.
    ///
    /// The default allocates all of it.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve).
    fn reserve_part(&self, file: &File, part: Range<u64>) -> Result<()> {
        let _ = part;
        self.reserve(file)
    }

    /// Allocates every byte of a draft that was made sparse. Bytes already written stay.
    ///
    /// No other process can reach a draft, so this can also be done where the file system cannot allocate ahead.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve).
    fn reserve_draft(&self, draft: &DraftFile, pages: Pages) -> Result<()> {
        let _ = pages; // the default has no choice of pages
        self.reserve(draft.file())
    }

    /// Gives a draft its name.
    ///
    /// # Errors
    ///
    /// [`AlreadyExists`](crate::ErrorKind::AlreadyExists) if the name is taken and `mode` is [`Publish::New`].
    fn publish(&self, draft: &mut DraftFile, at: &Location, mode: Publish) -> Result<()>;

    /// Opens a regular file by name; never follows a link, never creates.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound), [`NotAnArray`](crate::ErrorKind::NotAnArray),
    /// [`PermissionDenied`](crate::ErrorKind::PermissionDenied),
    /// [`TooManyOpenFiles`](crate::ErrorKind::TooManyOpenFiles).
    fn open(&self, at: &Location, access: Access) -> Result<File>;

    /// Moves the file `id` from one name to another.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if `from` does not lead to `id` (any more);
    /// [`AlreadyExists`](crate::ErrorKind::AlreadyExists) as for [`publish`](Self::publish).
    fn rename(&self, from: &Location, to: &Location, id: FileId, mode: Publish) -> Result<()>;

    /// As [`rename`](Self::rename), but waits at most this long for other processes that remove or replace the name.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](crate::ErrorKind::TimedOut), and those of [`rename`](Self::rename).
    fn rename_within(&self, from: &Location, to: &Location, id: FileId, mode: Publish, limit: Duration) -> Result<()> {
        let _ = limit; // the default waits as long as `rename` does
        self.rename(from, to, id, mode)
    }

    /// Returns whether a name leads to this file now.
    ///
    /// # Errors
    ///
    /// Those of querying the name. A free name, and a name that this user may not query, give `Ok(false)`.
    fn leads_to(&self, at: &Location, id: FileId) -> Result<bool> {
        match os::facts_at(&self.path().join(at.as_str())) {
            Ok(facts) => Ok(facts.id == id),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
                Ok(false)
            }
            Err(error) => Err(Error::os("look at", at, error)),
        }
    }

    /// Removes a name. Attached processes keep the bytes. Returns `Ok(false)` if the name did not exist, or did not
    /// lead to `id`.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](crate::ErrorKind::PermissionDenied), [`NotAnArray`](crate::ErrorKind::NotAnArray).
    fn unlink(&self, at: &Location, id: Option<FileId>) -> Result<bool>;

    /// As [`unlink`](Self::unlink), but waits at most this long for other processes that remove or replace the name.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](crate::ErrorKind::TimedOut), and those of [`unlink`](Self::unlink).
    fn unlink_within(&self, at: &Location, id: Option<FileId>, limit: Duration) -> Result<bool> {
        let _ = limit; // the default waits as long as `unlink` does
        self.unlink(at, id)
    }

    /// Lists everything in the directory that is a regular file, sorted by name.
    ///
    /// # Errors
    ///
    /// Those of reading the directory.
    fn list(&self) -> Result<Vec<DirectoryEntry>>;

    /// Returns how many bytes a new segment could take now.
    ///
    /// # Errors
    ///
    /// Those of querying the file system.
    fn available(&self) -> Result<u64>;

    /// Writes the description beside a file's bytes, or with `None` removes it. It is a text of at most 3,500 bytes, in
    /// the form of `docs/layout.md`.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) where files have no attributes: arrays do not describe themselves
    /// there, and everything else is the same. Removing succeeds there.
    fn set_attribute(&self, file: &File, text: Option<&[u8]>) -> Result<()> {
        let done = match text {
            Some(text) => os::set_attribute(file, text),
            None => os::remove_attribute(file),
        };
        done.map_err(|error| Error::os("describe an array in", self.path().display(), error))
    }

    /// Reads the description beside a file's bytes into `buffer`. Returns its length, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// The description is longer than the buffer, or this user may not read the file.
    fn attribute(&self, file: &File, buffer: &mut [u8]) -> Result<Option<usize>> {
        os::attribute(file, buffer).map_err(|error| Error::os("read a description in", self.path().display(), error))
    }

    /// Returns whether a mapping keeps a lock after the descriptor is closed. Tested once. Where it does not
    /// (overlayfs), or where this user may not make a test file, every attachment keeps its descriptor.
    ///
    /// # Errors
    ///
    /// Those of making a test file.
    fn lock_survives_close(&self) -> Result<bool>;
}

/// What an opened file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading only.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// Whether a file that has the name already may lose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Publish {
    /// The name must be free.
    New,
    /// The file that has the name loses it in the same step. Its attachments keep the old bytes.
    Replace,
}

/// A file of a [`Backend`] that no other process can reach yet: a [`Draft`](crate::Draft) before it knows its elements.
///
/// If it is dropped unpublished, nothing remains: it has either no name, or a hidden one that dropping removes.
#[derive(Debug)]
pub struct DraftFile {
    file: File,
    hidden: Option<PathBuf>,
    /// Fork generation of the process that made it. The copy in a forked child must not remove the parent's hidden
    /// name.
    generation: u64,
}

impl DraftFile {
    /// Wraps a file that has no name.
    pub fn nameless(file: File) -> Self {
        Self { file, hidden: None, generation: os::fork_generation() }
    }

    /// Wraps a file with a hidden, unique name; dropping it removes that name.
    pub fn hidden(file: File, path: PathBuf) -> Self {
        Self { file, hidden: Some(path), generation: os::fork_generation() }
    }

    /// Returns the open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the hidden name, if it has one.
    pub fn path(&self) -> Option<&Path> {
        self.hidden.as_deref()
    }

    /// Returns whether this process made it, and did not inherit it by a fork.
    pub(crate) fn is_own_process(&self) -> bool {
        self.generation == os::fork_generation()
    }

    /// Notes that the file has a hidden name by now.
    pub(crate) fn set_path(&mut self, path: PathBuf) {
        self.hidden = Some(path);
    }

    /// Notes that the hidden name has gone, because the file was renamed.
    pub fn clear_path(&mut self) {
        self.hidden = None;
    }
}

impl Drop for DraftFile {
    fn drop(&mut self) {
        if let Some(path) = self.hidden.as_ref().filter(|_| self.is_own_process()) {
            let _ = os::unlink(path); // may be gone already
        }
    }
}

/// One file of a directory, as [`Directory::list`] returns it.
#[derive(Debug, Clone)]
pub struct DirectoryEntry {
    /// File name.
    pub name: String,
    /// Length in bytes.
    pub len: u64,
    /// Allocated bytes, on disks those of attributes included. If they are fewer than `len`, the file has holes.
    pub allocated: u64,
    /// Identity.
    pub id: FileId,
    /// The owner's number; 0 where users have none.
    pub owner: u32,
    /// Permission bits.
    pub mode: u32,
    /// When bytes were last written through a descriptor, or length or room last changed.
    pub modified: SystemTime,
    /// What the file is, by its name.
    pub kind: EntryKind,
}

/// What a file is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EntryKind {
    /// An ordinary name: an array, or some other program's file.
    Array,
    /// The payload of an unfinished renderbuffer.
    Partial,
    /// The ledger of a renderbuffer.
    Ledger,
    /// The frames of a stream.
    Frames,
    /// The keeper of a stream: its writer's lock and its cursors.
    Keeper,
    /// A cache of chunks.
    Cache,
    /// A draft that could not be nameless, or one that a killed creator left.
    Draft,
}

impl DirectoryEntry {
    /// Returns the public name it belongs to: its own, or that of the renderbuffer or stream. `None` for drafts, and
    /// for names that no location can have.
    pub fn location(&self) -> Option<Location> {
        Location::new(&self.name).ok().or_else(|| Some(Location::of_companion(&self.name)?.1))
    }

    /// Returns whether this user may remove it from a directory that all users share: its owner may, and root.
    pub fn is_own(&self) -> bool {
        os::owns_files_of(self.owner)
    }
}

/// Whether processes can share anything on this platform, in real shared memory or in files.
///
/// Where it is `false`, this crate compiles, and making or attaching to an array fails with
/// [`Unsupported`](crate::ErrorKind::Unsupported). Where it is `true`, a directory or file system may still be unable
/// to.
pub const SUPPORTED: bool = os::SUPPORTED;
