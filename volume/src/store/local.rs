//! Objects that are files of a directory.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::error::{Error, Result};
use crate::store::{Object, Store};

/// A directory.
#[derive(Debug)]
pub(crate) struct LocalStore {
    root: PathBuf,
}

impl LocalStore {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Part by part, so that all separators are those of the platform.
    fn path(&self, key: &str) -> PathBuf {
        let mut path = self.root.clone();
        path.extend(key.split('/'));
        path
    }

    fn packed_path(&self, key: &str) -> PathBuf {
        let mut path = self.path(key).into_os_string();
        path.push(".gz");
        path.into()
    }

    fn open(&self, op: &'static str, path: &Path) -> Result<Option<File>> {
        match File::open(path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(failed(op, path, error)),
        }
    }
}

fn failed(op: &'static str, path: &Path, error: io::Error) -> Error {
    Error::Store { op, object: path.display().to_string(), cause: Box::new(error) }
}

impl Store for LocalStore {
    fn locate(&self, key: &str) -> String {
        self.path(key).display().to_string()
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn get(&self, key: &str) -> Result<Option<Object>> {
        for (path, gzip) in [(self.path(key), false), (self.packed_path(key), true)] {
            let Some(mut file) = self.open("reading", &path)? else { continue };
            let read = || -> io::Result<Object> {
                let facts = file.metadata()?;
                let mut bytes = Vec::with_capacity(usize::try_from(facts.len()).unwrap_or(0));
                file.read_to_end(&mut bytes)?;
                let time = facts.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
                Ok(Object { bytes, gzip, version: format!("{}.{:09}", time.as_secs(), time.subsec_nanos()) })
            };
            let mut read = read;
            return read().map(Some).map_err(|error| failed("reading", &path, error));
        }
        Ok(None)
    }

    fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<Vec<u8>>> {
        let path = self.path(key);
        let Some(mut file) = self.open("reading", &path)? else { return Ok(None) };
        let mut read = || -> io::Result<Vec<u8>> {
            file.seek(SeekFrom::Start(range.start))?;
            let mut bytes = vec![0; usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX)];
            file.read_exact(&mut bytes)?;
            Ok(bytes)
        };
        read().map(Some).map_err(|error| failed("reading", &path, error))
    }

    fn get_suffix(&self, key: &str, length: u64) -> Result<Option<Vec<u8>>> {
        let path = self.path(key);
        let Some(mut file) = self.open("reading", &path)? else { return Ok(None) };
        let mut read = || -> io::Result<Vec<u8>> {
            let all = file.metadata()?.len();
            file.seek(SeekFrom::Start(all.saturating_sub(length)))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map(Some).map_err(|error| failed("reading", &path, error))
    }

    fn size(&self, key: &str) -> Result<Option<u64>> {
        let path = self.path(key);
        let Some(file) = self.open("reading", &path)? else { return Ok(None) };
        file.metadata().map(|facts| Some(facts.len())).map_err(|error| failed("reading", &path, error))
    }

    fn put(&self, key: &str, bytes: Vec<u8>, gzip: bool) -> Result<()> {
        let (path, other) =
            if gzip { (self.packed_path(key), self.path(key)) } else { (self.path(key), self.packed_path(key)) };
        let write = || -> io::Result<()> {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            let mut file = File::create(&path)?;
            file.write_all(&bytes)?;
            match fs::remove_file(&other) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        };
        write().map_err(|error| failed("writing", &path, error))
    }

    fn delete(&self, key: &str) -> Result<bool> {
        let mut was_there = false;
        for path in [self.path(key), self.packed_path(key)] {
            match fs::remove_file(&path) {
                Ok(()) => was_there = true,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(failed("removing", &path, error)),
            }
        }
        Ok(was_there)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let path = if prefix.is_empty() { self.root.clone() } else { self.path(prefix) };
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed("listing", &path, error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| failed("listing", &path, error))?;
            let mut name = entry.file_name().to_string_lossy().into_owned();
            if entry.path().is_dir() {
                name.push('/');
            }
            names.push(name);
        }
        names.sort();
        Ok(names)
    }
}
