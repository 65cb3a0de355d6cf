//! Objects as files of a directory.
//!
//! An object is replaced by renaming: it is written beside its place, under a hidden name `.ndshm-NUMBERS.partial`, and
//! readers see the old object or the new one. A killed writer leaves such a file behind. It is never read or listed,
//! and `find DIRECTORY -name '.ndshm-*.partial' -delete` removes such files while no process writes. Only a durable
//! store calls `fsync`: after a power failure the writes of the last seconds may be lost; repeating the upload restores
//! them.

#[cfg(test)]
mod tests;
mod version;

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::error::{Cause, Error, Result};
use crate::spare;
use crate::store::url::resolved;
use crate::store::{LARGEST_OBJECT, Object, ObjectPart, Store, StoredVersion, key, too_long};

/// Prefix and suffix of the names of unfinished objects.
const PARTIAL: (&str, &str) = (".ndshm-", ".partial");

/// Longest time that a replacement waits while another process has the old object open.
const RENAME_WAIT: Duration = Duration::from_secs(2);

/// Pause between two attempts.
const RENAME_PAUSE: Duration = Duration::from_millis(1);

/// A directory.
#[derive(Debug)]
pub(crate) struct LocalStore {
    root: PathBuf,
    /// Whether an object is on the disk, under its name, when a call that writes it returns.
    is_durable: bool,
}

fn failed(op: &'static str, path: &Path, cause: impl Into<Cause>) -> Error {
    Error::Store { op, object: path.display().to_string(), cause: cause.into() }
}

/// Turns "not found" into `None`.
fn if_there<T>(answer: io::Result<T>) -> io::Result<Option<T>> {
    match answer {
        Ok(there) => Ok(Some(there)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

fn wrong(reason: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, reason)
}

impl LocalStore {
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), is_durable: false }
    }

    /// Opens a directory in which every object survives a power failure from the moment when it was written.
    pub(crate) fn durable(root: &Path) -> Self {
        Self { root: root.to_owned(), is_durable: true }
    }

    /// Builds the path part by part, so that all separators are those of the platform.
    fn unchecked_path(&self, key: &str) -> PathBuf {
        let mut path = self.root.clone();
        path.extend(key.split('/'));
        path
    }

    fn path(&self, op: &'static str, key: &str) -> Result<PathBuf> {
        match key::complaint(key) {
            Some(complaint) => Err(failed(op, &self.root, complaint)),
            None => Ok(self.unchecked_path(key)),
        }
    }

    /// Looks at the file of a key, or at the packed one.
    fn look<T>(&self, key: &str, told: impl Fn(&Metadata) -> io::Result<T>) -> Result<Option<T>> {
        let path = self.path("reading", key)?;
        for path in [packed(&path), path].into_iter().rev() {
            let answer = open(&path).and_then(|found| found.map(|(_, facts)| told(&facts)).transpose());
            match answer {
                Ok(None) => {}
                other => return other.map_err(|error| failed("reading", &path, error)),
            }
        }
        Ok(None)
    }
}

fn packed(path: &Path) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(".gz");
    path.into()
}

/// Opens a regular file. Refuses directories, and special files: opening a pipe would wait for a writer.
fn open(path: &Path) -> io::Result<Option<(File, Metadata)>> {
    let Some(found) = if_there(fs::metadata(path))? else { return Ok(None) };
    if !found.is_file() {
        let what = if found.is_dir() { "a directory" } else { "a special file" };
        return Err(wrong(format!("it is {what} where a file should be")));
    }
    let Some(file) = if_there(File::open(path))? else { return Ok(None) };
    // The metadata of the open file: the name may lead to another file by now.
    let facts = file.metadata()?;
    Ok(Some((file, facts)))
}

/// Reads up to `length` bytes; fewer if the file ends before.
fn read(mut file: &File, length: u64, most: u64) -> io::Result<Vec<u8>> {
    let memory = usize::try_from(length).ok().filter(|_| length <= most);
    let memory = memory.ok_or_else(|| wrong(too_long(length, most)))?;
    let mut bytes = spare::take(memory);
    bytes.try_reserve_exact(memory.saturating_sub(bytes.len()))?;
    // Writes zeros only behind the bytes that the reused memory already has.
    bytes.resize(memory, 0);
    let mut filled = 0;
    while filled < memory {
        match file.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Reads bytes into memory. Returns whether they are there.
fn fill(path: &Path, start: Option<u64>, memory: &mut [u8]) -> io::Result<bool> {
    let Some((mut file, facts)) = open(path)? else { return Ok(false) };
    let length = memory.len() as u64;
    let fits = match start {
        Some(start) => start.checked_add(length).is_some_and(|end| end <= facts.len()),
        None => facts.len() == length,
    };
    if !fits {
        return Ok(false);
    }
    if let Some(start) = start.filter(|start| *start > 0) {
        file.seek(SeekFrom::Start(start))?;
    }
    match file.read_exact(memory) {
        Ok(()) => Ok(true),
        // It was cut meanwhile.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the text by which a volume's description is told from a later one.
fn mark(facts: &Metadata) -> io::Result<String> {
    let time = facts.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(format!("{}.{:09}", time.as_secs(), time.subsec_nanos()))
}

/// Returns the version of bytes that were read from an open file. `opened` is a time before it was opened, and `facts`
/// are from before the read: a file that changes meanwhile has other facts now.
fn version_of_read(file: &File, facts: &Metadata, opened: SystemTime) -> io::Result<StoredVersion> {
    Ok(version::of(facts, opened)?.and(&version::of(&file.metadata()?, opened)?))
}

/// Reads a range; `range` gets the length of the file.
fn read_range(path: &Path, range: impl FnOnce(u64) -> Range<u64>) -> io::Result<Option<ObjectPart>> {
    let opened = SystemTime::now();
    let Some((mut file, facts)) = open(path)? else { return Ok(None) };
    let range = range(facts.len());
    if range.start > range.end || range.end > facts.len() {
        return Err(wrong(format!("bytes {range:?} were wanted, and the object has {}", facts.len())));
    }
    file.seek(SeekFrom::Start(range.start))?;
    let length = range.end - range.start;
    let bytes = read(&file, length, LARGEST_OBJECT)?;
    if bytes.len() as u64 != length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(ObjectPart { bytes, length: facts.len(), version: version_of_read(&file, &facts, opened)? }))
}

/// Reads a whole file.
fn read_whole(path: &Path, gzip: bool, most: u64) -> io::Result<Option<Object>> {
    let opened = SystemTime::now();
    let Some((file, facts)) = open(path)? else { return Ok(None) };
    let bytes = read(&file, facts.len(), most)?;
    let version = version_of_read(&file, &facts, opened)?;
    Ok(Some(Object { bytes, gzip, mark: mark(&facts)?, version }))
}

/// Writes the bytes to a partial file beside `path`, then renames it.
fn replace(path: &Path, bytes: &[u8], is_durable: bool) -> io::Result<()> {
    let partial = beside(path, bytes, is_durable)?;
    let replaced = rename_over(&partial, path);
    if replaced.is_err() {
        let _ = fs::remove_file(&partial);
    }
    replaced?;
    if is_durable { sync_directory(path.parent()) } else { Ok(()) }
}

/// Writes the names of a directory to the disk. Windows cannot, and keeps them in its journal.
fn sync_directory(path: Option<&Path>) -> io::Result<()> {
    let path = path.filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if cfg!(windows) { Ok(()) } else { File::open(path)?.sync_all() }
}

/// Creates a directory and its parents. If that is to be durable, the names of the new ones are on the disk.
fn make_directories(path: &Path, is_durable: bool) -> io::Result<()> {
    if !is_durable || path.as_os_str().is_empty() || path.is_dir() {
        return fs::create_dir_all(path);
    }
    path.parent().map_or(Ok(()), |parent| make_directories(parent, true))?;
    match fs::create_dir(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => sync_directory(path.parent()),
    }
}

/// Renames a file over another. Windows may refuse while a reader or a virus scanner has the target open, which lasts
/// moments: retry.
fn rename_over(from: &Path, to: &Path) -> io::Result<()> {
    let since = Instant::now();
    loop {
        match fs::rename(from, to) {
            Err(error) if is_in_use(&error) && since.elapsed() < RENAME_WAIT => thread::sleep(RENAME_PAUSE),
            done => return done,
        }
    }
}

fn is_in_use(error: &io::Error) -> bool {
    /// The Windows error if another process has the file open and forbids sharing it.
    const ERROR_SHARING_VIOLATION: i32 = 32;
    let is_unshared = error.raw_os_error() == Some(ERROR_SHARING_VIOLATION);
    cfg!(windows) && (is_unshared || error.kind() == ErrorKind::PermissionDenied)
}

/// Writes the bytes to a partial file beside `path`, then gives it the name, unless the name is taken.
fn put_new(path: &Path, bytes: &[u8], is_durable: bool) -> io::Result<bool> {
    let partial = beside(path, bytes, is_durable)?;
    let named = match fs::hard_link(&partial, path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => name_without_links(&partial, path),
        named => named,
    };
    let _ = fs::remove_file(&partial);
    match named {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        named => named.and_then(|()| if is_durable { sync_directory(path.parent()) } else { Ok(()) }).map(|()| true),
    }
}

/// Names the file on a file system without hard links: an empty file takes the name, and is then replaced. A reader in
/// between sees the empty file.
fn name_without_links(partial: &Path, path: &Path) -> io::Result<()> {
    File::create_new(path)?;
    let renamed = rename_over(partial, path);
    if renamed.is_err() {
        let _ = fs::remove_file(path);
    }
    renamed
}

/// Writes a partial file beside `path`, and returns its path.
fn beside(path: &Path, bytes: &[u8], is_durable: bool) -> io::Result<PathBuf> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let directory = path.parent().unwrap_or(Path::new(""));
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let partial = directory.join(format!("{}{}-{number}{}", PARTIAL.0, unique(), PARTIAL.1));
    let mut file = match File::create_new(&partial) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            make_directories(directory, is_durable)?;
            File::create_new(&partial)?
        }
        other => other?,
    };
    let written = file.write_all(bytes).and_then(|()| if is_durable { file.sync_all() } else { Ok(()) });
    drop(file);
    if written.is_err() {
        let _ = fs::remove_file(&partial);
    }
    written.map(|()| partial)
}

/// Returns a text that differs between processes, also between processes of different machines with one file system.
fn unique() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    format!("{}-{:016x}", std::process::id(), RandomState::new().hash_one(0))
}

fn is_partial(name: &str) -> bool {
    name.starts_with(PARTIAL.0) && name.ends_with(PARTIAL.1)
}

impl Store for LocalStore {
    fn locate(&self, key: &str) -> String {
        self.unchecked_path(key).display().to_string()
    }

    fn locate_stored(&self, key: &str) -> String {
        let (plain, packed) = (self.unchecked_path(key), packed(&self.unchecked_path(key)));
        let path = if !plain.exists() && packed.exists() { packed } else { plain };
        path.display().to_string()
    }

    fn cache_place(&self, key: &str) -> Option<String> {
        let path = if key.is_empty() { self.root.clone() } else { self.unchecked_path(key) };
        let path = resolved(&path).or_else(|_| std::path::absolute(&path)).ok()?;
        // Processes with other mounts may have another disk at the same path.
        let directory = version::directory(&path);
        Some(format!("file \"{}\"{directory}", path.as_os_str().as_encoded_bytes().escape_ascii()))
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn get_at_most(&self, key: &str, most: u64) -> Result<Option<Object>> {
        let path = self.path("reading", key)?;
        for (path, gzip) in [(packed(&path), true), (path, false)].into_iter().rev() {
            let object = read_whole(&path, gzip, most).map_err(|error| failed("reading", &path, error))?;
            if object.is_some() {
                return Ok(object);
            }
        }
        Ok(None)
    }

    fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<ObjectPart>> {
        let path = self.path("reading", key)?;
        read_range(&path, |_| range).map_err(|error| failed("reading", &path, error))
    }

    fn fill(&self, key: &str, start: Option<u64>, memory: &mut [u8]) -> Result<bool> {
        let path = self.path("reading", key)?;
        fill(&path, start, memory).map_err(|error| failed("reading", &path, error))
    }

    fn get_suffix(&self, key: &str, length: u64) -> Result<Option<ObjectPart>> {
        let path = self.path("reading", key)?;
        let range = |whole: u64| whole.saturating_sub(length)..whole;
        read_range(&path, range).map_err(|error| failed("reading", &path, error))
    }

    fn size(&self, key: &str) -> Result<Option<u64>> {
        self.look(key, |facts| Ok(facts.len()))
    }

    fn version(&self, key: &str) -> Result<Option<StoredVersion>> {
        let asked = SystemTime::now();
        self.look(key, |facts| version::of(facts, asked))
    }

    fn put(&self, key: &str, bytes: Vec<u8>, gzip: bool) -> Result<()> {
        let plain = self.path("writing", key)?;
        let packed = packed(&plain);
        let (path, other) = if gzip { (packed, plain) } else { (plain, packed) };
        replace(&path, &bytes, self.is_durable).map_err(|error| failed("writing", &path, error))?;
        // Until the other file is removed, readers take the plain one: the whole old object or the whole new one.
        if_there(fs::remove_file(&other)).map_err(|error| failed("removing", &other, error))?;
        Ok(())
    }

    fn put_new(&self, key: &str, bytes: Vec<u8>) -> Result<bool> {
        let path = self.path("writing", key)?;
        let packed = packed(&path);
        if packed.try_exists().map_err(|error| failed("reading", &packed, error))? {
            return Ok(false);
        }
        put_new(&path, &bytes, self.is_durable).map_err(|error| failed("writing", &path, error))
    }

    fn delete(&self, key: &str) -> Result<bool> {
        let plain = self.path("removing", key)?;
        let mut was_there = false;
        // The packed file first: if the plain one went first, readers would find the packed one in between.
        for path in [packed(&plain), plain] {
            let removed = if_there(fs::remove_file(&path)).map_err(|error| failed("removing", &path, error))?;
            was_there |= removed.is_some();
        }
        Ok(was_there)
    }

    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let path = if prefix.is_empty() { self.root.clone() } else { self.path("listing", prefix)? };
        let list = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            let Some(entries) = if_there(fs::read_dir(&path))? else { return Ok(names) };
            for entry in entries {
                let entry = entry?;
                // A name that is not UTF-8 has no key.
                let Ok(name) = entry.file_name().into_string() else { continue };
                let kind = entry.file_type()?;
                let is_group =
                    kind.is_dir() || kind.is_symlink() && fs::metadata(entry.path()).is_ok_and(|facts| facts.is_dir());
                if is_group {
                    names.push(format!("{name}/"));
                } else if !is_partial(&name) {
                    names.push(name.strip_suffix(".gz").unwrap_or(&name).to_owned());
                }
            }
            names.sort();
            names.dedup();
            Ok(names)
        };
        list().map_err(|error| failed("listing", &path, error))
    }
}
