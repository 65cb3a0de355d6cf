//! Files that the program writes: complete under their name, or not there.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::exit::{Exit, Failure};
use crate::host;

/// A file that gets its name when all of it is written. Dropped before, it leaves nothing.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    replace: bool,
    file: BufWriter<NamedTempFile>,
}

impl Output {
    /// Begins a file beside where it is to be.
    pub(crate) fn begin(path: &Path, replace: bool) -> Result<Self, Failure> {
        if !replace && path.symlink_metadata().is_ok() {
            return Err(taken(path));
        }
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".ndshm-").suffix(".partial");
        host::permit_as_usual(&mut builder);
        let file = builder.tempfile_in(directory).map_err(|error| failed(path, &error))?;
        Ok(Self { path: path.to_owned(), replace, file: BufWriter::with_capacity(1 << 16, file) })
    }

    /// Takes room for this many bytes at once, so that a full disk is known before the work.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<(), Failure> {
        let file: &File = self.file.get_ref().as_file();
        host::reserve(file, bytes).map_err(|error| failed(&self.path, &error))
    }

    /// Gives it its name.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let Self { path, replace, file } = self;
        let file = file.into_inner().map_err(|error| failed(&path, error.error()))?;
        let named = if replace { file.persist(&path) } else { file.persist_noclobber(&path) };
        match named {
            Ok(_) => Ok(()),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Err(taken(&path)),
            Err(error) => Err(failed(&path, &error.error)),
        }
    }

    /// Writes bytes, and says which file it was if that fails.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(|error| failed(&self.path, &error))
    }
}

fn taken(path: &Path) -> Failure {
    Failure::new(Exit::Failed, format!("`{}` is there already", path.display()))
        .advice("--replace replaces it; or choose another file")
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Failed, error).while_doing(format!("cannot write `{}`", path.display()))
}
