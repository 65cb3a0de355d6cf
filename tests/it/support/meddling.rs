//! A backend that injects faults: before each operation a test may make it fail, or act as another process might.

use std::fmt;
use std::fs::File;
use std::path::Path;

use ndarray_shm::backend::{Backend, DirectoryEntry, DraftFile, DraftOptions, FileId, Publish};
use ndarray_shm::{Access, Directory, Location, Result};

/// Called before each operation, with its name and the location it is about; and after opening, as "opened".
pub type Before = dyn Fn(&'static str, Option<&Location>) -> Result<()> + Send + Sync;

pub struct Meddling {
    pub inner: Directory,
    pub before: Box<Before>,
}

impl fmt::Debug for Meddling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meddling").field("inner", &self.inner).finish_non_exhaustive()
    }
}

// SAFETY: everything is passed on to a backend that keeps the contract, or not done at all.
#[allow(unsafe_code)]
unsafe impl Backend for Meddling {
    fn name(&self) -> &'static str {
        "meddling"
    }
    fn path(&self) -> &Path {
        self.inner.path()
    }
    fn draft(&self, length: u64, options: DraftOptions) -> Result<DraftFile> {
        (self.before)("draft", None)?;
        self.inner.draft(length, options)
    }
    fn reserve(&self, file: &File) -> Result<()> {
        (self.before)("reserve", None)?;
        self.inner.reserve(file)
    }
    fn publish(&self, draft: &mut DraftFile, at: &Location, mode: Publish) -> Result<()> {
        (self.before)("publish", Some(at))?;
        self.inner.publish(draft, at, mode)
    }
    fn open(&self, at: &Location, access: Access) -> Result<File> {
        (self.before)("open", Some(at))?;
        let file = self.inner.open(at, access)?;
        (self.before)("opened", Some(at))?;
        Ok(file)
    }
    fn rename(&self, from: &Location, to: &Location, id: FileId, mode: Publish) -> Result<()> {
        (self.before)("rename", Some(from))?;
        self.inner.rename(from, to, id, mode)
    }
    /// Passed on without a call of `before`: it stands for a look at an open file, which is no operation.
    fn leads_to(&self, at: &Location, id: FileId) -> Result<bool> {
        self.inner.leads_to(at, id)
    }
    fn unlink(&self, at: &Location, id: Option<FileId>) -> Result<bool> {
        (self.before)("unlink", Some(at))?;
        Backend::unlink(&self.inner, at, id)
    }
    fn list(&self) -> Result<Vec<DirectoryEntry>> {
        self.inner.list()
    }
    fn available(&self) -> Result<u64> {
        self.inner.available()
    }
    fn set_attribute(&self, file: &File, text: Option<&[u8]>) -> Result<()> {
        (self.before)(if text.is_some() { "describe" } else { "clear" }, None)?;
        self.inner.set_attribute(file, text)
    }
    fn attribute(&self, file: &File, buffer: &mut [u8]) -> Result<Option<usize>> {
        self.inner.attribute(file, buffer)
    }
    fn lock_survives_close(&self) -> Result<bool> {
        (self.before)("probe", None)?;
        self.inner.lock_survives_close()
    }
}
