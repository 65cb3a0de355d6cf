//! A backend of real shared memory without extended attributes, to measure arrays without their descriptions.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use ndarray_shm::backend::{Backend, DirectoryEntry, DraftFile, DraftOptions, FileId, Publish};
use ndarray_shm::{Access, Directory, Location, Pages, Result};

/// Returns a directory in which arrays have no descriptions.
pub(crate) fn directory(described: Directory) -> Directory {
    Directory::from(Arc::new(Undescribed(described)))
}

#[derive(Debug)]
struct Undescribed(Directory);

// SAFETY: the wrapped directory keeps every promise.
#[allow(unsafe_code)]
unsafe impl Backend for Undescribed {
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
    fn leads_to(&self, at: &Location, id: FileId) -> Result<bool> {
        self.0.leads_to(at, id)
    }
    fn unlink(&self, at: &Location, id: Option<FileId>) -> Result<bool> {
        Backend::unlink(&self.0, at, id)
    }
    fn list(&self) -> Result<Vec<DirectoryEntry>> {
        self.0.list()
    }
    fn available(&self) -> Result<u64> {
        self.0.available()
    }
    fn lock_survives_close(&self) -> Result<bool> {
        self.0.lock_survives_close()
    }
    fn set_attribute(&self, _file: &File, _text: Option<&[u8]>) -> Result<()> {
        Ok(())
    }
    fn attribute(&self, _file: &File, _buffer: &mut [u8]) -> Result<Option<usize>> {
        Ok(None)
    }
}
