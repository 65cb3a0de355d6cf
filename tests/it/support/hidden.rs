//! A directory of the plainest kind: drafts cannot be nameless, as on platforms and file systems without `O_TMPFILE`,
//! and files have no extended attributes, so that arrays cannot describe themselves.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ndarray_shm::backend::{Backend, DirectoryEntry, DraftFile, DraftOptions, FileId, Publish};
use ndarray_shm::{Access, Directory, ErrorKind, Location, Pages, Result};

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// Makes every draft under a hidden name, and has no attributes. Everything else is passed on to the directory.
#[derive(Debug)]
struct HiddenDrafts(Directory);

/// Returns such a directory.
pub fn directory(path: &Path) -> Directory {
    Directory::from(Arc::new(HiddenDrafts(Directory::new("hidden", path))))
}

// SAFETY: a hidden name is made exclusively, and no other process uses it; the rest is passed on.
#[allow(unsafe_code)]
unsafe impl Backend for HiddenDrafts {
    fn name(&self) -> &'static str {
        "hidden"
    }
    fn path(&self) -> &Path {
        self.0.path()
    }
    fn draft(&self, length: u64, options: DraftOptions) -> Result<DraftFile> {
        if length > self.available()? {
            return self.0.draft(length, options); // fails with `NoSpace`
        }
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = self.path().join(format!(".ndshm-draft-{}-{number}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).expect("a hidden file");
        file.set_permissions(std::fs::Permissions::from_mode(options.permissions)).expect("a mode");
        file.set_len(length).expect("a length");
        let draft = DraftFile::hidden(file, path);
        if options.pages != Pages::Sparse {
            self.reserve(draft.file())?;
        }
        Ok(draft)
    }
    fn reserve(&self, file: &File) -> Result<()> {
        self.0.reserve(file)
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
        Backend::unlink(&self.0, at, id)
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
    fn set_attribute(&self, _file: &File, text: Option<&[u8]>) -> Result<()> {
        let refused = || ErrorKind::Unsupported { what: "attributes".into() }.at("hidden");
        text.map_or(Ok(()), |_| Err(refused()))
    }
    fn attribute(&self, _file: &File, _buffer: &mut [u8]) -> Result<Option<usize>> {
        Ok(None)
    }
    fn lock_survives_close(&self) -> Result<bool> {
        self.0.lock_survives_close()
    }
}
