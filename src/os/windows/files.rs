//! Files: opened so that other processes can still open, rename and remove them; names that change while files are in
//! use.
//!
//! Windows does not remove a mapped file, and while it removes a file, opening the name is refused as if a right were
//! missing. So a name is removed in two steps. The file moves *aside*, to a hidden name that no location can have.
//! There it is removed at once if it is not mapped, otherwise by the last process that unmaps it ([`finish_unlink`]).
//! If all processes that map it are killed, the hidden file stays until it is reclaimed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::windows::ffi::OsStrExt;
use std::os::windows::fs::{FileExt, OpenOptionsExt};
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::time::Duration;

use windows_sys::Win32::Foundation as code;
use windows_sys::Win32::Storage::FileSystem as fs;
use windows_sys::Win32::System::IO::DeviceIoControl;
use windows_sys::Win32::System::Ioctl::FSCTL_SET_COMPRESSION;

use super::facts::{ASIDE, by_handle, facts, facts_at, open_as, path_of, set, vanishing};
use super::{check, is_one_of};
use crate::os::fill::fill;
use crate::os::{Bound, Room, is_out_of_room};

/// Milliseconds before each further try of an operation that a virus scanner or an indexer may block for a moment.
const PAUSES: [u64; 5] = [1, 4, 16, 32, 64];

/// Opens the file at `path`, for writing too if `write`. A link is opened itself, which [`facts`] shows.
pub(crate) fn open(path: &Path, write: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(write).custom_flags(fs::FILE_FLAG_OPEN_REPARSE_POINT);
    patiently(|| options.open(path)).map_err(vanishing)
}

/// Creates an empty file at `path`, which must be free. There are no permission bits: the directory's rights apply.
pub(crate) fn create_hidden(path: &Path, _mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    // Temporary: the cache writes it to disk late, or never.
    let file = options.attributes(fs::FILE_ATTRIBUTE_TEMPORARY | fs::FILE_ATTRIBUTE_NOT_CONTENT_INDEXED).open(path)?;
    let stored_as_it_is = by_handle(&file).and_then(|facts| {
        // In a compressed directory the file is compressed too, and its room would depend on its bytes.
        let compressed = facts.dwFileAttributes & fs::FILE_ATTRIBUTE_COMPRESSED != 0;
        if compressed { decompress(&file) } else { Ok(()) }
    });
    if let Err(error) = stored_as_it_is {
        drop(file);
        let _ = std::fs::remove_file(path); // may be gone already
        return Err(error);
    }
    Ok(file)
}

/// Reads bytes at an offset. The handle's own offset is not used.
pub(crate) fn read_exact_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.seek_read(&mut bytes[done..], at + done as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => done += count,
        }
    }
    Ok(())
}

/// Writes bytes at an offset.
pub(crate) fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.seek_write(&bytes[done..], at + done as u64)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => done += count,
        }
    }
    Ok(())
}

/// Opens the same file again: a new open file, with locks and offset of its own.
///
/// # Errors
///
/// `Unsupported` for a file that was unlinked while it was not mapped: an empty array.
#[allow(unsafe_code)]
pub(crate) fn reopen(file: &File, write: bool) -> io::Result<File> {
    let number = facts(file)?.id.number;
    let access = if write { fs::FILE_GENERIC_READ | fs::FILE_GENERIC_WRITE } else { fs::FILE_GENERIC_READ };
    let shared = fs::FILE_SHARE_READ | fs::FILE_SHARE_WRITE | fs::FILE_SHARE_DELETE; // as `OpenOptions` does
    // SAFETY: the handle is open for the whole call.
    let handle = unsafe { fs::ReOpenFile(file.as_raw_handle(), access, shared, 0) };
    let error = if handle == code::INVALID_HANDLE_VALUE {
        io::Error::last_os_error()
    } else {
        // SAFETY: the handle was made by the call above, and no other value owns it.
        let again = File::from(unsafe { OwnedHandle::from_raw_handle(handle) });
        // Wine follows the old name of the file, which may be another file's by now.
        if facts(&again)?.id.number == number {
            return Ok(again);
        }
        io::ErrorKind::NotFound.into()
    };
    if let Some(again) = reopen_by_path(file, number, write) {
        return Ok(again);
    }
    if facts(file).is_ok_and(|facts| facts.links > 0) {
        return Err(error);
    }
    let reason = "Windows cannot open a file again after it was removed";
    Err(io::Error::new(io::ErrorKind::Unsupported, reason))
}

/// Reopens the file on file systems (and Wine) that follow the path and not the handle: the file may have been moved
/// aside.
fn reopen_by_path(file: &File, number: u64, write: bool) -> Option<File> {
    let path = path_of(file)?;
    let aside = path.with_file_name(aside_name(number));
    [path, aside].iter().find_map(|path| {
        let again = open(path, write).ok()?;
        (facts(&again).ok()?.id.number == number).then_some(again)
    })
}

/// Renames without replacing anything.
#[allow(unsafe_code)]
pub(crate) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = (wide(from)?, wide(to)?);
    patiently(|| {
        // SAFETY: both names end with NUL. Without flags an existing name is an error.
        check(unsafe { fs::MoveFileExW(from.as_ptr(), to.as_ptr(), 0) })
    })
}

/// Renames `from` to `to`, and replaces the file that has this name: in one step, unless that file is mapped. Then the
/// name is free for a moment in between.
pub(crate) fn rename_over(from: &Path, to: &Path) -> io::Result<()> {
    match patiently(|| std::fs::rename(from, to)) {
        Err(error) if is_in_use(&error) && facts_at(to).is_ok_and(|facts| facts.other.is_none()) => {}
        other => return other,
    }
    let aside = move_aside(to)?;
    let renamed = rename_new(from, to);
    // If that failed, the old file gets its name back, unless another process took the name in that moment.
    let is_taken = |error: io::Error| error.kind() == io::ErrorKind::AlreadyExists;
    if renamed.is_ok() || rename_new(&aside, to).is_err_and(is_taken) {
        remove_aside(&aside);
    }
    renamed
}

/// Removes a name. Processes that have the file open or mapped keep it.
pub(crate) fn unlink(path: &Path) -> io::Result<()> {
    remove_aside(&move_aside(path)?);
    Ok(())
}

/// Removes a file of `directory` that was moved aside, if this was its last mapping; does nothing for any other.
pub(crate) fn finish_unlink(file: &File, directory: &Path) {
    if let Ok(facts) = facts(file) {
        let aside = directory.join(aside_name(facts.id.number));
        let _ = open_to_remove(&aside).and_then(|file| remove(&file)); // fails if it is mapped or gone
    }
}

/// Removes a file that was just moved aside, unless it is mapped.
fn remove_aside(aside: &Path) {
    let _ = patiently(|| open_to_remove(aside)).and_then(|file| remove(&file)); // fails if it is mapped or gone
}

fn open_to_remove(path: &Path) -> io::Result<File> {
    open_as(path, fs::DELETE | fs::FILE_READ_ATTRIBUTES, fs::FILE_FLAG_OPEN_REPARSE_POINT)
}

/// Moves a file to a hidden name in the same directory. A process that has the file open can compute that name too.
fn move_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = path.with_file_name(aside_name(facts_at(path)?.id.number));
    rename_new(path, &aside)?;
    Ok(aside)
}

/// Returns the hidden name of a file. No two files of one directory have the same number, so no two get the same name.
fn aside_name(number: u64) -> String {
    format!("{ASIDE}{number:x}")
}

/// Removes the file with its name: at once, or with the last handle where the system has only the older call.
///
/// Newer versions of Windows would remove a mapped file too, and then it could not be opened again by a kept handle.
/// `FORCE_IMAGE_SECTION_CHECK` makes them refuse, as older versions do anyway.
fn remove(file: &File) -> io::Result<()> {
    let flags = fs::FILE_DISPOSITION_FLAG_DELETE
        | fs::FILE_DISPOSITION_FLAG_POSIX_SEMANTICS
        | fs::FILE_DISPOSITION_FLAG_FORCE_IMAGE_SECTION_CHECK
        | fs::FILE_DISPOSITION_FLAG_IGNORE_READONLY_ATTRIBUTE;
    set(file, &fs::FILE_DISPOSITION_INFO_EX { Flags: flags })
        .or_else(|_| set(file, &fs::FILE_DISPOSITION_INFO { DeleteFile: true }))
}

/// Whether the operation failed because another process uses the file.
fn is_in_use(error: &io::Error) -> bool {
    is_one_of(error, &[code::ERROR_ACCESS_DENIED, code::ERROR_SHARING_VIOLATION, code::ERROR_USER_MAPPED_FILE])
}

/// Retries for a short time while another program has the file open without sharing it, as scanners do.
fn patiently<R>(mut operation: impl FnMut() -> io::Result<R>) -> io::Result<R> {
    let is_unshared =
        |error: &io::Error| is_one_of(error, &[code::ERROR_SHARING_VIOLATION, code::ERROR_LOCK_VIOLATION]);
    for pause in PAUSES.map(Duration::from_millis) {
        match operation() {
            Err(error) if is_unshared(&error) => std::thread::sleep(pause),
            other => return other,
        }
    }
    operation().map_err(|error| {
        if !is_unshared(&error) {
            return error;
        }
        let reason = "another program has the file open in a way that forbids this (without FILE_SHARE_READ, \
                      FILE_SHARE_WRITE or FILE_SHARE_DELETE): close it there";
        io::Error::new(io::ErrorKind::ResourceBusy, reason)
    })
}

/// Converts a path to the form of the system calls: absolute, of any length, with NUL at the end.
pub(super) fn wide(path: &Path) -> io::Result<Vec<u16>> {
    let path = std::path::absolute(path)?;
    let mut units: Vec<u16> = path.as_os_str().encode_wide().collect();
    if units.contains(&0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path contains a NUL"));
    }
    let is = |prefix: &str| prefix.encode_utf16().eq(units.iter().copied().take(prefix.len()));
    let verbatim = |prefix: &str, skip: usize| prefix.encode_utf16().chain(units.iter().copied().skip(skip)).collect();
    if !is(r"\\?\") && !is(r"\\.\") {
        units = if is(r"\\") { verbatim(r"\\?\UNC\", 2) } else { verbatim(r"\\?\", 0) };
    }
    units.push(0);
    Ok(units)
}

/// Allocates the first `length` bytes. Bytes already written stay.
///
/// NTFS does so whenever the length of an ordinary file grows. Where that did not happen, a file that no other process
/// can see (`exclusive`) is written from end to end. For other files there is no way.
pub(crate) fn reserve(file: &File, length: u64, exclusive: bool) -> io::Result<()> {
    let now = facts(file)?;
    if now.allocated >= length {
        return Ok(());
    }
    let thin = fs::FILE_ATTRIBUTE_SPARSE_FILE | fs::FILE_ATTRIBUTE_COMPRESSED;
    if by_handle(file)?.dwFileAttributes & thin == 0 {
        // Not less than the length, which would shorten the file.
        let size = length.max(now.length).try_into().map_err(|_| io::ErrorKind::FileTooLarge)?;
        match set(file, &fs::FILE_ALLOCATION_INFO { AllocationSize: size }) {
            Ok(()) if facts(file)?.allocated >= length => return Ok(()),
            Err(error) if is_out_of_room(&error) => return Err(error),
            _ => {} // a file system, or Wine, that does not allocate ahead
        }
    }
    if exclusive { fill(file, length) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// Switches the compression of the file off.
#[allow(unsafe_code)]
fn decompress(file: &File) -> io::Result<()> {
    let (none, mut written) = (0u16, 0); // COMPRESSION_FORMAT_NONE
    let (file, none) = (file.as_raw_handle(), (&raw const none).cast());
    // SAFETY: the handle is open and synchronous; the input is the 16-bit number that this command reads, and there is
    // no output but the count.
    check(unsafe { DeviceIoControl(file, FSCTL_SET_COMPRESSION, none, 2, null_mut(), 0, &raw mut written, null_mut()) })
}

/// Returns how many bytes a new file in `directory` could take now, within the user's quota.
#[allow(unsafe_code)]
pub(crate) fn available(directory: &Path) -> io::Result<Room> {
    let directory = wide(directory)?;
    let mut bytes = 0;
    // SAFETY: the name ends with NUL, `bytes` may be written, and the other two results are not requested.
    check(unsafe { fs::GetDiskFreeSpaceExW(directory.as_ptr(), &raw mut bytes, null_mut(), null_mut()) })?;
    Ok(Room { bytes, bound: Bound::FileSystem })
}

/// Whether this process may make and remove names in `directory`.
pub(crate) fn is_writable_directory(directory: &Path) -> bool {
    let opened = open_as(directory, fs::FILE_ADD_FILE | fs::FILE_DELETE_CHILD, fs::FILE_FLAG_BACKUP_SEMANTICS);
    opened.is_ok_and(|directory| directory.metadata().is_ok_and(|metadata| metadata.is_dir()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fresh directory with a file "one" that holds these bytes.
    fn directory_with(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("one");
        std::fs::write(&path, bytes).expect("a file");
        (directory, path)
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(directory).expect("a listing");
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
    }

    fn map(file: &File) -> memmap2::MmapRaw {
        memmap2::MmapOptions::new().map_raw_read_only(file).expect("a mapping")
    }

    #[allow(unsafe_code)]
    fn first_byte(mapping: &memmap2::MmapRaw) -> u8 {
        // SAFETY: the mapped files are not empty, and no thread writes to them.
        unsafe { mapping.as_ptr().read() }
    }

    #[test]
    fn unlinked_file_vanishes_with_its_last_mapping() {
        let (directory, path) = directory_with(b"1");
        let (one, two) = (open(&path, true).expect("the file"), open(&path, true).expect("the file"));
        let (first, second) = (map(&one), map(&two));
        unlink(&path).expect("unlinked");
        assert_eq!(facts_at(&path).expect_err("gone").kind(), io::ErrorKind::NotFound);
        std::fs::write(&path, b"2").expect("the name is free");
        assert_eq!((first_byte(&first), first_byte(&second)), (b'1', b'1'));
        drop(first);
        finish_unlink(&one, directory.path());
        drop(one);
        assert_eq!(first_byte(&second), b'1');
        drop(second);
        finish_unlink(&two, directory.path());
        drop(two);
        assert_eq!(names(directory.path()), ["one"]);
    }

    #[test]
    fn replaced_file_keeps_its_bytes_while_mapped() {
        let (directory, path) = directory_with(b"1");
        let hidden = directory.path().join("two");
        std::fs::write(&hidden, b"2").expect("a file");
        let file = open(&path, false).expect("the file");
        let mapping = map(&file);
        rename_over(&hidden, &path).expect("replaced");
        assert_eq!(std::fs::read(&path).expect("the new file"), b"2");
        assert_eq!(first_byte(&mapping), b'1');
        let again = reopen(&file, false).expect("opened without its name");
        let mut byte = [0];
        read_exact_at(&again, &mut byte, 0).expect("a byte");
        assert_eq!(byte, *b"1");
        drop((mapping, again));
        finish_unlink(&file, directory.path());
        drop(file);
        assert_eq!(names(directory.path()), ["one"]);
    }

    #[test]
    fn mapped_file_can_be_renamed_to_a_free_name() {
        let (directory, path) = directory_with(b"1");
        let other = directory.path().join("two");
        std::fs::write(&other, b"2").expect("a file");
        let file = open(&path, true).expect("the file");
        let mapping = map(&file);
        assert_eq!(rename_new(&path, &other).expect_err("taken").kind(), io::ErrorKind::AlreadyExists);
        std::fs::remove_file(&other).expect("removed");
        rename_new(&path, &other).expect("free");
        // Wine does not know the volume of a renamed file.
        assert_eq!(facts(&file).expect("facts").id.number, facts_at(&other).expect("facts").id.number);
        drop(mapping);
    }

    #[test]
    fn unshared_file_is_reported_as_the_reason() {
        let (_directory, path) = directory_with(b"1");
        let _unshared = OpenOptions::new().read(true).share_mode(fs::FILE_SHARE_READ).open(&path).expect("the file");
        let error = unlink(&path).expect_err("it cannot be removed");
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert!(error.to_string().contains("another program"), "{error}");
    }

    #[test]
    fn reserve_allocates_and_keeps_bytes() {
        let (_directory, path) = directory_with(b"kept");
        let file = open(&path, true).expect("the file");
        reserve(&file, 100_000, true).expect("room");
        file.set_len(100_000).expect("a length");
        let facts = facts(&file).expect("facts");
        assert!(facts.allocated >= facts.length, "{facts:?}");
        assert_eq!(std::fs::read(&path).expect("the bytes")[..4], *b"kept");
    }

    #[test]
    fn paths_of_every_form_become_verbatim() {
        let text = |path: &str| String::from_utf16(&wide(Path::new(path)).expect("a path")).expect("text");
        assert_eq!(text(r"C:\a\b"), "\\\\?\\C:\\a\\b\0");
        assert_eq!(text(r"C:/a/./b"), "\\\\?\\C:\\a\\b\0");
        assert_eq!(text(r"\\server\share\a"), "\\\\?\\UNC\\server\\share\\a\0");
        assert_eq!(text(r"\\?\C:\a"), "\\\\?\\C:\\a\0");
    }
}
