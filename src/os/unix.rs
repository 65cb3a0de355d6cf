//! Every Unix but Linux: no nameless files, no sealed memory, and a lock ends with its descriptor, mapped or not.
//!
//! Written for macOS; on FreeBSD and its relatives everything but the locks is real, and since those are missing (see
//! `posix.rs`) nothing can be shared there. Type-checked for both; run on neither.

mod children;

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{self, FallocateFlags};
#[cfg(target_vendor = "apple")]
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

pub(crate) use self::children::{Bell, Watched, create_report, prepare_child, wait_for_end};
use super::fill::fill;
pub(crate) use super::posix::{is_user as is_surely_user, *};
use super::{Bound, PerProcess, Room};

/// Whether [`Facts::links`] tells of every file that is open whether its name has gone.
pub(crate) const LINKS_TELL: bool = true;

/// Renames without replacing anything.
pub(crate) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    // renamex_np(2): "RENAME_EXCL".
    #[cfg(target_vendor = "apple")]
    match fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::NOTSUP | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {}
        other => return Ok(other?),
    }
    // A second link refuses a name that is taken, just as well but not in one step: a crash in between leaves both
    // names.
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
    let expected = facts(file)?.id;
    let again = match path_of(file) {
        Some(path) => open(&path, write),
        None => return Err(nameless()),
    };
    match again {
        Ok(again) if facts(&again)?.id == expected => Ok(again),
        Ok(_) => Err(nameless()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(nameless()),
        Err(error) => Err(error),
    }
}

cfg_if::cfg_if! {
    if #[cfg(target_vendor = "apple")] {
        /// Asks the kernel for the name of an open file, which it follows through renames (`F_GETPATH`).
        fn path_of(file: &File) -> Option<std::path::PathBuf> {
            use std::os::unix::ffi::OsStringExt;
            let path = fs::getpath(file).ok()?;
            Some(std::ffi::OsString::from_vec(path.into_bytes()).into())
        }
    } else {
        /// There is no way to ask.
        fn path_of(_file: &File) -> Option<std::path::PathBuf> {
            None
        }
    }
}

/// Takes room for the first `length` bytes; bytes already written stay.
///
/// An empty file gets room beyond its end, and its length afterwards from the caller. Where the file system cannot fill
/// holes by itself, a file that nobody else can see (`exclusive`) is written from end to end.
pub(crate) fn reserve(file: &File, length: u64, exclusive: bool) -> io::Result<()> {
    if length == 0 {
        return Ok(());
    }
    let now = facts(file)?;
    if now.length >= length && now.allocated >= length {
        return Ok(());
    }
    // On Apple systems `F_PREALLOCATE` counts from the end of the room a file has: for an empty file that is its
    // beginning; what it would do about the holes of another nobody says.
    if now.length == 0 || !cfg!(target_vendor = "apple") {
        match preallocate(file, length) {
            Ok(()) if facts(file)?.allocated >= length => return Ok(()),
            // It is not done here, or was only said to be.
            #[allow(unreachable_patterns)] // two of them are one number on some systems
            Ok(()) | Err(Errno::NOTSUP | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::NODEV) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if exclusive { fill(file, length) } else { Err(io::ErrorKind::Unsupported.into()) }
}

cfg_if::cfg_if! {
    if #[cfg(any(target_vendor = "apple", target_os = "freebsd"))] {
        /// `F_PREALLOCATE` of all or nothing and ftruncate(2), or `posix_fallocate(2)`.
        fn preallocate(file: &File, length: u64) -> Result<(), Errno> {
            loop {
                match fs::fallocate(file, FallocateFlags::empty(), 0, length) {
                    Err(Errno::INTR) => {}
                    other => return other,
                }
            }
        }
    } else {
        /// Not every other system has `posix_fallocate(2)`, and those that do may only pretend.
        fn preallocate(_file: &File, _length: u64) -> Result<(), Errno> {
            let _unused = FallocateFlags::empty();
            Err(Errno::NOSYS)
        }
    }
}

/// Returns how many bytes a new file in `directory` could take now.
pub(crate) fn available(directory: &Path) -> io::Result<Room> {
    let statistics = fs::statvfs(directory)?;
    if statistics.f_files > 0 && statistics.f_favail == 0 {
        return Ok(Room { bytes: 0, bound: Bound::Inodes });
    }
    Ok(Room { bytes: free_bytes(directory, &statistics)?, bound: Bound::FileSystem })
}

cfg_if::cfg_if! {
    if #[cfg(target_vendor = "apple")] {
        /// statvfs(3) counts blocks in 32 bits there, too few for large volumes; statfs(2) has 64.
        fn free_bytes(directory: &Path, _statistics: &fs::StatVfs) -> io::Result<u64> {
            let statistics = fs::statfs(directory)?;
            Ok(statistics.f_bavail.saturating_mul(statistics.f_bsize.into()))
        }
    } else {
        #[allow(clippy::unnecessary_wraps)] // as its counterpart
        fn free_bytes(_directory: &Path, statistics: &fs::StatVfs) -> io::Result<u64> {
            Ok(statistics.f_bavail.saturating_mul(statistics.f_frsize))
        }
    }
}

/// Returns how long ago this boot was; the monotonic clock of Apple systems counts sleep too, that of others may not.
pub(crate) fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    #[allow(clippy::unnecessary_cast)] // time_t has 32 bits on some
    Duration::new((time.tv_sec as i64).unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the identity of this boot, where it is told: what was in memory before another one is gone.
pub(crate) fn known_boot_id() -> Option<[u8; 16]> {
    static BOOT: PerProcess<Option<[u8; 16]>> = PerProcess::new();
    BOOT.get_or(kernel_boot_id)
}

cfg_if::cfg_if! {
    if #[cfg(any(target_vendor = "apple", target_os = "freebsd"))] {
        /// Reads the kernel's random number for this boot, as bytes or as text.
        #[allow(unsafe_code)]
        fn kernel_boot_id() -> Option<[u8; 16]> {
            const APPLE: bool = cfg!(target_vendor = "apple");
            const NAME: &std::ffi::CStr = if APPLE { c"kern.bootsessionuuid" } else { c"kern.boot_id" };
            let mut value = [0u8; 64];
            let mut length = value.len();
            // SAFETY: the name ends with NUL, `length` says how many bytes of `value` may be written, and nothing is
            // set.
            let answer = unsafe {
                libc::sysctlbyname(NAME.as_ptr(), value.as_mut_ptr().cast(), &raw mut length, std::ptr::null_mut(), 0)
            };
            if answer != 0 {
                return None;
            }
            let value = value.get(..length)?;
            if let Ok(bytes) = value.try_into() {
                return Some(bytes);
            }
            let digits: String = value.iter().copied().map(char::from).filter(char::is_ascii_hexdigit).collect();
            Some(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes())
        }
    } else {
        fn kernel_boot_id() -> Option<[u8; 16]> {
            None
        }
    }
}
