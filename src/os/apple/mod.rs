//! Apple systems: no nameless files, no sealed memory, and a lock ends with its descriptor, mapped or not.
//!
//! Type-checked, never run.

mod children;

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{self, CWD, FallocateFlags, RenameFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::time::ClockId;

pub(crate) use self::children::{create_report, prepare_child};
use super::fill::fill;
pub(crate) use super::posix::*;
pub(crate) use super::posix::groups::is_listed_member as is_member;
use super::{Bound, Room};

/// Renames without replacing anything.
pub(crate) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    // renamex_np(2): "RENAME_EXCL".
    match fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::NOTSUP | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {}
        other => return Ok(other?),
    }
    // A hard link refuses a taken name too, but link and removal are two steps: a crash in between leaves both names.
    std::fs::hard_link(from, to)?;
    std::fs::remove_file(from)
}

/// Opens the same file again: a new description, with locks and offset of its own.
///
/// # Errors
///
/// `Unsupported` once its name is gone: `/dev/fd` only duplicates the description, which would share its locks.
pub(crate) fn reopen(file: &File, write: bool) -> io::Result<File> {
    let nameless = || {
        let reason = "this system cannot open a file again after its name was removed or replaced";
        io::Error::new(io::ErrorKind::Unsupported, reason)
    };
    // F_GETPATH: the kernel follows the name through renames.
    let path = fs::getpath(file).map_err(|_| nameless())?;
    match open(Path::new(OsStr::from_bytes(path.as_bytes())), write) {
        Ok(again) if facts(&again)?.id == facts(file)?.id => Ok(again),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Err(nameless()),
    }
}

/// Allocates the first `length` bytes. Bytes already written stay.
///
/// An empty file gets room beyond its end, and the caller sets its length afterwards. Where the file system cannot fill
/// holes by itself, a file that no other process can see (`exclusive`) is written from end to end.
pub(crate) fn reserve(file: &File, length: u64, exclusive: bool) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    let now = facts(file)?;
    if now.length >= length && now.allocated >= length {
        return Ok(());
    }
    // `F_PREALLOCATE` allocates all or nothing. It counts from the end of the file's room, which for an empty file is
    // its beginning. What it does about holes of other files is not documented.
    if now.length == 0 {
        match retry_on_intr(|| fs::fallocate(file, FallocateFlags::empty(), 0, length)) {
            Ok(()) if facts(file)?.allocated >= length => return Ok(()),
            // Not supported here, or reported as done without effect.
            Ok(()) | Err(Errno::NOTSUP | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::NODEV) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if exclusive { fill(file, length) } else { Err(io::ErrorKind::Unsupported.into()) }
}

/// Returns how many bytes a new file in `directory` could take now.
pub(crate) fn available(directory: &Path) -> io::Result<Room> {
    // statvfs(3) counts blocks in 32 bits here, too few for large volumes; statfs(2) has 64.
    let statistics = fs::statfs(directory)?;
    if statistics.f_files > 0 && statistics.f_ffree == 0 {
        return Ok(Room { bytes: 0, bound: Bound::Inodes });
    }
    Ok(Room { bytes: statistics.f_bavail.saturating_mul(statistics.f_bsize.into()), bound: Bound::FileSystem })
}

/// Returns how long ago this boot was, sleep included.
#[allow(clippy::unnecessary_wraps)] // not every process can tell it on Linux
pub(crate) fn since_boot() -> Option<Duration> {
    Some(clock(ClockId::Monotonic))
}

/// Reads the kernel's random number for this boot.
#[allow(unsafe_code)]
pub(super) fn find_boot_id() -> Option<[u8; 16]> {
    let mut value = [0u8; 64];
    let mut length = value.len();
    let (name, at) = (c"kern.bootsessionuuid".as_ptr(), value.as_mut_ptr().cast());
    // SAFETY: the name ends with NUL, `length` says how many bytes of `value` may be written, and nothing is set.
    let answer = unsafe { libc::sysctlbyname(name, at, &raw mut length, std::ptr::null_mut(), 0) };
    if answer == 0 { boot_id_from(value.get(..length)?) } else { None }
}
