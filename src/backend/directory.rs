//! The handle by which programs choose where arrays live.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::files::Files;
use super::{Access, Backend, DirectoryEntry, DraftFile, DraftOptions, IntoLocation, Location, Pages, Publish};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::os::{self, FileId};

/// A directory in which arrays live: real shared memory, its emulation by files, or any other directory.
///
/// All options take one (`directory`), and every array returns its own. [`default_directory`](crate::default_directory)
/// returns the one that is used otherwise. Cloning is cheap.
///
/// A program may choose a directory on tmpfs with huge pages, or on a fast disk. The semantics are the same everywhere,
/// and the speed is that of the file system. `Directory::from` wraps a [`Backend`] of the program itself.
///
/// # Examples
///
/// ```
/// use ndarray_shm::{CreateOptions, Directory, SharedArray};
///
/// let scratch = std::env::temp_dir().join("ndarray-shm-directory-example");
/// std::fs::create_dir_all(&scratch)?;
/// let directory = Directory::new("scratch", &scratch);
///
/// let options = CreateOptions::new().directory(directory.clone());
/// let array = options.create::<u8, _>("example", (2, 3))?;
/// assert_eq!(array.directory().path(), scratch);
///
/// directory.unlink("example")?;
/// std::fs::remove_dir(&scratch)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Directory(Arc<dyn Backend>);

impl Directory {
    /// Uses the directory at `path`, which must exist when the first array is made, and calls it `name`.
    ///
    /// Nothing is checked here: making an array in a directory that is missing fails with
    /// [`NoDirectory`](crate::ErrorKind::NoDirectory). Every process that can write to the directory can replace what
    /// is in it.
    pub fn new(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Self(Arc::new(Files::new(name.into(), path.into())))
    }

    /// Returns its short name: "shm", "emulated", or the name given by the program.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Returns its path. Other programs find the arrays there as files.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns whether its file system makes files without a name that can get one later, as Linux does on most file
    /// systems.
    ///
    /// Elsewhere a draft has a hidden name, and a counted array that is shared by descriptor can never be published.
    pub fn makes_nameless_files(&self) -> bool {
        os::create_nameless(self.path(), 0o600).is_ok()
    }

    /// Lists its regular files, sorted by name.
    ///
    /// # Errors
    ///
    /// Those of reading the directory.
    pub fn list(&self) -> Result<Vec<DirectoryEntry>> {
        self.0.list()
    }

    /// Returns how many bytes a new array could take now.
    ///
    /// # Errors
    ///
    /// Those of asking the file system.
    pub fn available(&self) -> Result<u64> {
        self.0.available()
    }

    /// Returns whether an attachment needs no descriptor here, because its mapping keeps the lock after the descriptor
    /// is closed.
    ///
    /// Tested once, by making a file. Where mappings keep no locks (overlayfs), or where this process may not make a
    /// file, every attachment keeps its descriptor.
    ///
    /// # Errors
    ///
    /// Those of making a test file.
    pub fn lock_survives_close(&self) -> Result<bool> {
        self.0.lock_survives_close()
    }

    /// Removes a name. Attached processes keep the bytes, and the memory is freed with the last of them.
    ///
    /// Returns `Ok(false)` if the name did not exist.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](crate::ErrorKind::PermissionDenied), [`NotAnArray`](crate::ErrorKind::NotAnArray), and
    /// those of the location.
    pub fn unlink(&self, location: impl IntoLocation) -> Result<bool> {
        self.0.unlink(&location.into_location()?, None)
    }
}

#[cfg(test)]
impl Directory {
    /// Returns whether both are one instance.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<B: Backend + 'static> From<Arc<B>> for Directory {
    fn from(backend: Arc<B>) -> Self {
        Self(backend)
    }
}

// SAFETY: every promise is that of the backend inside: its functions are called with the same arguments.
#[allow(unsafe_code)]
unsafe impl Backend for Directory {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn draft(&self, length: u64, options: DraftOptions) -> Result<DraftFile> {
        self.0.draft(length, options)
    }

    fn reserve(&self, file: &File) -> Result<()> {
        self.0.reserve(file)
    }

    fn reserve_part(&self, file: &File, part: Range<u64>) -> Result<()> {
        self.0.reserve_part(file, part)
    }

    fn reserve_draft(&self, draft: &DraftFile, pages: Pages) -> Result<()> {
        self.0.reserve_draft(draft, pages)
    }

    fn publish(&self, draft: &mut DraftFile, at: &Location, mode: Publish) -> Result<()> {
        self.0.publish(draft, at, mode)
    }

    fn open(&self, at: &Location, access: Access) -> Result<File> {
        self.0.open(at, access)
    }

    fn rename(&self, from: &Location, to: &Location, id: FileId, mode: Publish) -> Result<()> {
        self.0.rename(from, to, id, mode)
    }

    fn rename_within(&self, from: &Location, to: &Location, id: FileId, mode: Publish, limit: Duration) -> Result<()> {
        self.0.rename_within(from, to, id, mode, limit)
    }

    fn leads_to(&self, at: &Location, id: FileId) -> Result<bool> {
        self.0.leads_to(at, id)
    }

    fn unlink(&self, at: &Location, id: Option<FileId>) -> Result<bool> {
        self.0.unlink(at, id)
    }

    fn unlink_within(&self, at: &Location, id: Option<FileId>, limit: Duration) -> Result<bool> {
        self.0.unlink_within(at, id, limit)
    }

    fn list(&self) -> Result<Vec<DirectoryEntry>> {
        self.0.list()
    }

    fn available(&self) -> Result<u64> {
        self.0.available()
    }

    fn set_attribute(&self, file: &File, text: Option<&[u8]>) -> Result<()> {
        self.0.set_attribute(file, text)
    }

    fn attribute(&self, file: &File, buffer: &mut [u8]) -> Result<Option<usize>> {
        self.0.attribute(file, buffer)
    }

    fn lock_survives_close(&self) -> Result<bool> {
        self.0.lock_survives_close()
    }
}
