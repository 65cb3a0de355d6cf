//! Output files: a file has its name only when it is complete.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::exit::{Exit, Failure};
use crate::machine::host;

/// A file that gets its name in [`finish`](Self::finish). If dropped before, the temporary file is removed.
#[derive(Debug)]
pub(crate) struct Output {
    path: PathBuf,
    replace: bool,
    file: BufWriter<NamedTempFile>,
}

impl Output {
    /// Creates a temporary file in the directory of `path`.
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

    /// Reserves space for this many bytes, so that a full disk is an error before the work.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<(), Failure> {
        let file: &File = self.file.get_ref().as_file();
        host::reserve(file, bytes).map_err(|error| failed(&self.path, &error))
    }

    /// Renames the temporary file to `path`.
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

    /// Writes bytes. An error names the file.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).map_err(|error| failed(&self.path, &error))
    }
}

fn taken(path: &Path) -> Failure {
    Failure::new(Exit::Failed, format!("`{}` already exists", path.display()))
        .advice("give --replace to replace it, or choose another file")
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    let failure = Failure::new(Exit::Failed, error).while_doing(format!("cannot write `{}`", path.display()));
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            failure.advice("free some of the disk that has this file, or choose a file on another disk")
        }
        _ => failure,
    }
}
