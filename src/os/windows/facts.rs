//! The metadata of open files: identity, names, length, and the structures by which Windows reads and sets them.

#![allow(unsafe_code)]

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::windows::ffi::OsStringExt;
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::AsRawHandle;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use windows_sys::Win32::Foundation::{ERROR_DELETE_PENDING, FILETIME};
use windows_sys::Win32::Storage::FileSystem as fs;

use super::{check, is_one_of};
use crate::os::{Facts, FileId};

/// The prefix of the names of files that were unlinked or replaced, until they are not mapped any more.
pub(super) const ASIDE: &str = ".ndshm-gone-";

/// Units of UTF-16 of the longest possible path, and a NUL.
const LONGEST_PATH: usize = 1 << 15;

/// Reads identity, links, length and times.
pub(crate) fn facts(file: &File) -> io::Result<Facts> {
    let by_handle = by_handle(file)?;
    let attributes = by_handle.dwFileAttributes;
    let other = if attributes & fs::FILE_ATTRIBUTE_REPARSE_POINT != 0 {
        Some("a symbolic link or another reparse point")
    } else if attributes & fs::FILE_ATTRIBUTE_DIRECTORY != 0 {
        Some("a directory")
    } else {
        None
    };
    let standard: fs::FILE_STANDARD_INFO = get(file)?;
    let gone = standard.DeletePending || (other.is_none() && is_aside(file));
    Ok(Facts {
        id: id(file, &by_handle),
        links: if gone { 0 } else { standard.NumberOfLinks.into() },
        length: bytes(standard.EndOfFile),
        allocated: bytes(standard.AllocationSize),
        block: 0,
        owner: 0,
        group: 0,
        // Only these bits exist: reading for the owner, and writing unless the file is marked read-only.
        mode: if attributes & fs::FILE_ATTRIBUTE_READONLY != 0 { 0o400 } else { 0o600 },
        modified: system_time(by_handle.ftLastWriteTime),
        other,
    })
}

/// Reads the facts of the file at `path` itself, without following a link.
pub(crate) fn facts_at(path: &Path) -> io::Result<Facts> {
    facts(&open_as(path, fs::FILE_READ_ATTRIBUTES, fs::FILE_FLAG_OPEN_REPARSE_POINT | fs::FILE_FLAG_BACKUP_SEMANTICS)?)
}

/// Opens the file or directory at `path` with exactly these rights and flags, and shares every kind of access.
pub(super) fn open_as(path: &Path, rights: u32, flags: u32) -> io::Result<File> {
    OpenOptions::new().access_mode(rights).custom_flags(flags).open(path).map_err(vanishing)
}

/// Returns `NotFound` for a file that is about to disappear.
pub(super) fn vanishing(error: io::Error) -> io::Error {
    if is_one_of(&error, &[ERROR_DELETE_PENDING]) { io::ErrorKind::NotFound.into() } else { error }
}

/// Reads the identity of a file. `ReFS` numbers its files with 128 bits; elsewhere the upper half is zero. Old and
/// foreign file systems have only 64.
fn id(file: &File, by_handle: &fs::BY_HANDLE_FILE_INFORMATION) -> FileId {
    match get::<fs::FILE_ID_INFO>(file) {
        Ok(info) => {
            let number = u128::from_le_bytes(info.FileId.Identifier);
            #[allow(clippy::cast_possible_truncation)] // the halves are wanted
            let (low, high) = (number as u64, (number >> 64) as u64);
            // Spread by an odd constant (2^64 divided by the golden ratio), so that small halves do not cancel out.
            FileId { device: info.VolumeSerialNumber, number: low ^ high.wrapping_mul(0x9e37_79b9_7f4a_7c15) }
        }
        Err(_) => FileId {
            device: by_handle.dwVolumeSerialNumber.into(),
            number: u64::from(by_handle.nFileIndexHigh) << 32 | u64::from(by_handle.nFileIndexLow),
        },
    }
}

/// Converts a length, which Windows returns as a signed number and never negative.
fn bytes(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Converts a time, which Windows counts from 1601 in steps of 100 ns.
fn system_time(time: FILETIME) -> SystemTime {
    const UNIX_EPOCH: u64 = 116_444_736_000_000_000;
    let ticks = u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime);
    let since = ticks.saturating_sub(UNIX_EPOCH);
    let nanoseconds = u32::try_from(since % 10_000_000 * 100).unwrap_or(0);
    SystemTime::UNIX_EPOCH + Duration::new(since / 10_000_000, nanoseconds)
}

/// Whether the file has one of the names that [`unlink`](super::unlink) gives.
fn is_aside(file: &File) -> bool {
    let path = path_units(file, fs::VOLUME_NAME_NONE).unwrap_or_default();
    let name = path.rsplit(|unit| *unit == u16::from(b'\\')).next().unwrap_or_default();
    ASIDE.encode_utf16().eq(name.iter().copied().take(ASIDE.len()))
}

/// Returns the path that leads to an open file now.
pub(super) fn path_of(file: &File) -> Option<PathBuf> {
    Some(OsString::from_wide(&path_units(file, fs::VOLUME_NAME_DOS)?).into())
}

/// Reads the path of an open file. `volume` chooses how the path begins; without the volume it is found the fastest.
fn path_units(file: &File, volume: fs::GETFINALPATHNAMEBYHANDLE_FLAGS) -> Option<Vec<u16>> {
    let mut units = vec![0u16; LONGEST_PATH];
    let (size, flags) = (u32::try_from(LONGEST_PATH).ok()?, volume | fs::FILE_NAME_OPENED);
    // SAFETY: the handle is open, and `units` has `size` units, which may be written.
    let length = unsafe { fs::GetFinalPathNameByHandleW(file.as_raw_handle(), units.as_mut_ptr(), size, flags) };
    // 0: it failed.
    let length = usize::try_from(length).ok().filter(|length| (1..LONGEST_PATH).contains(length))?;
    units.truncate(length);
    Some(units)
}

pub(super) fn by_handle(file: &File) -> io::Result<fs::BY_HANDLE_FILE_INFORMATION> {
    let mut information = fs::BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: the handle is open, and the structure is the one that is written.
    check(unsafe { fs::GetFileInformationByHandle(file.as_raw_handle(), &raw mut information) })?;
    Ok(information)
}

/// A kind of information that can be read or set for an open file.
///
/// # Safety
///
/// The type is the structure of the class `CLASS`, and every answer of the system is a value of it.
pub(super) unsafe trait Information {
    /// The class of the information.
    const CLASS: fs::FILE_INFO_BY_HANDLE_CLASS;
}

macro_rules! information {
    ($($class:ident: $structure:ident),*) => {
        // SAFETY: the pairs are those of the documentation; the structures are made of integers, and of booleans that
        // the system sets to 0 or 1.
        $(unsafe impl Information for fs::$structure {
            const CLASS: fs::FILE_INFO_BY_HANDLE_CLASS = fs::$class;
        })*
    };
}

information!(
    FileStandardInfo: FILE_STANDARD_INFO,
    FileIdInfo: FILE_ID_INFO,
    FileAllocationInfo: FILE_ALLOCATION_INFO,
    FileDispositionInfo: FILE_DISPOSITION_INFO,
    FileDispositionInfoEx: FILE_DISPOSITION_INFO_EX
);

fn get<T: Information + Default>(file: &File) -> io::Result<T> {
    let mut answer = T::default();
    let size = u32::try_from(size_of::<T>()).unwrap_or(0);
    // SAFETY: the handle is open, and `answer` is the structure of this class.
    check(unsafe { fs::GetFileInformationByHandleEx(file.as_raw_handle(), T::CLASS, (&raw mut answer).cast(), size) })?;
    Ok(answer)
}

pub(super) fn set<T: Information>(file: &File, value: &T) -> io::Result<()> {
    let size = u32::try_from(size_of::<T>()).unwrap_or(0);
    // SAFETY: the handle is open, and `value` is the structure of this class, which is only read.
    check(unsafe {
        fs::SetFileInformationByHandle(file.as_raw_handle(), T::CLASS, std::ptr::from_ref(value).cast(), size)
    })
}
