//! Linux: nameless files that get their name when they are ready, memory that can be sealed, room that is really allocated.

mod bell;
mod children;
pub(crate) mod daemon;
mod futex;
mod huge;
mod mapping;
mod room;

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{self, AtFlags, CWD, FallocateFlags, MemfdFlags, Mode, OFlags, RenameFlags, SealFlags, SeekFrom};
use rustix::io::Errno;
use rustix::time::ClockId;

pub(crate) use self::bell::Bell;
pub(crate) use self::children::{Watched, create_report, own_program, prepare_child, wait_for_end};
pub(crate) use self::futex::{wait_on, wake};
pub(crate) use self::huge::HugeWindows;
pub(crate) use self::mapping::Mapping;
pub(crate) use self::room::{available, available_memory, holes_take_memory};
use super::fill::fill;
pub(crate) use super::posix::*;
use super::{Fact, is_user};

/// fallocate(2) is called for this many bytes at a time, so that a signal interrupts little and nothing is done twice.
const RESERVE_STEP: u64 = 1 << 28;

/// Creates an empty file without a name in `directory`, which [`link_nameless`] can name once.
///
/// # Errors
///
/// `Unsupported` where the file system has no `O_TMPFILE` or /proc is not mounted; use [`create_hidden`] then.
pub(crate) fn create_nameless(directory: &Path, mode: u32) -> io::Result<File> {
    static PROC: Fact = Fact::new();
    if PROC.get_or(|| Path::new("/proc/self/fd").is_dir().into()) == 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    match fs::open(directory, flags, Mode::from_raw_mode(0o600)) {
        Ok(descriptor) => {
            let file = File::from(descriptor);
            set_mode(&file, mode)?;
            Ok(file)
        }
        // Kernels before O_TMPFILE see an attempt to write a directory. File systems without it return EOPNOTSUPP.
        Err(Errno::ISDIR | Errno::OPNOTSUPP | Errno::INVAL) => Err(io::ErrorKind::Unsupported.into()),
        Err(error) => Err(error.into()),
    }
}

/// Gives a nameless file its name, which must be free.
pub(crate) fn link_nameless(file: &File, to: &Path) -> io::Result<()> {
    Ok(fs::linkat(CWD, descriptor_path(file), CWD, to, AtFlags::SYMLINK_FOLLOW)?)
}

/// Renames without replacing anything.
pub(crate) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // File systems without the flag: a hard link refuses a taken name too, but link and unlink are two steps.
        Err(Errno::INVAL | Errno::NOSYS) => {
            fs::linkat(CWD, from, CWD, to, AtFlags::empty())?;
            Ok(fs::unlink(from)?)
        }
        other => Ok(other?),
    }
}

/// Opens the same file again: a new description, with locks and offset of its own.
///
/// # Errors
///
/// `Unsupported` where /proc is not mounted.
pub(crate) fn reopen(file: &File, write: bool) -> io::Result<File> {
    let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
    match fs::open(descriptor_path(file), access | OFlags::CLOEXEC, Mode::empty()) {
        Ok(again) => Ok(again.into()),
        Err(Errno::NOENT) => {
            let reason = "an open file can be opened again only where /proc is mounted";
            Err(io::Error::new(io::ErrorKind::Unsupported, reason))
        }
        Err(error) => Err(error.into()),
    }
}

fn descriptor_path(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into()
}

/// Whether an open file is in the file system of a directory. Device numbers do not suffice: an overlay can have the number of
/// the file system below it.
pub(crate) fn is_in_file_system_of(file: &File, directory: &Path) -> bool {
    let (Ok(own), Ok(other)) = (fs::fstat(file), fs::stat(directory)) else { return false };
    let (Ok(kind), Ok(other_kind)) = (fs::fstatfs(file), fs::statfs(directory)) else { return false };
    own.st_dev == other.st_dev && kind.f_type == other_kind.f_type
}

/// Allocates the first `length` bytes. Bytes already written stay. A shorter file gets this length.
///
/// Where the file system cannot allocate ahead, a file without holes is accepted, and a file that no other process can see
/// (`exclusive`) is written from end to end.
pub(crate) fn reserve(file: &File, length: u64, exclusive: bool) -> io::Result<()> {
    let mut at = 0;
    while at < length {
        let step = RESERVE_STEP.min(length - at);
        match fs::fallocate(file, FallocateFlags::empty(), at, step) {
            Ok(()) => at += step,
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) if exclusive => return fill(file, length),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                return match fs::seek(file, SeekFrom::Hole(0)) {
                    Ok(hole) if hole >= length => Ok(()),
                    _ => Err(io::ErrorKind::Unsupported.into()),
                };
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Creates memory that has no name and can be sealed: `memfd_create(2)`.
pub(crate) fn create_sealable() -> io::Result<File> {
    const NAME: &CStr = c"ndarray-shm";
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match fs::memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(Errno::INVAL) => Ok(fs::memfd_create(NAME, flags)?.into()),
        other => Ok(other?.into()),
    }
}

/// Forbids every change of the bytes and of the length, to every process and for ever.
///
/// # Errors
///
/// `ResourceBusy` while any writable mapping exists.
pub(crate) fn seal(file: &File) -> io::Result<()> {
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    Ok(fs::fcntl_add_seals(file, seals)?)
}

/// Whether neither bytes nor length can change any more. False for files that cannot be sealed.
pub(crate) fn is_sealed(file: &File) -> bool {
    let needed = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
    fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(needed))
}

/// Whether a file of that owner is certainly this user's. In a user namespace all users without a number there are shown with the
/// overflow id, so that id proves nothing.
pub(crate) fn is_surely_user(owner: u32) -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let is_overflow = || owner == read("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(65534);
    // Each line is a range: first number inside, first number outside, how many.
    let lengths = |map: String| -> u64 { map.split_whitespace().skip(2).step_by(3).flat_map(str::parse::<u64>).sum() };
    is_user(owner) && (!is_overflow() || lengths(read("/proc/self/uid_map")) == u64::from(u32::MAX))
}

/// Returns how long ago this boot was, sleep included.
pub(crate) fn since_boot() -> Duration {
    clock(ClockId::Boottime)
}

/// Returns the processor time of this thread so far. Waiting does not count, not even for a processor.
pub(crate) fn thread_time() -> Duration {
    clock(ClockId::ThreadCPUTime)
}

/// Reads the kernel's random number for this boot.
pub(super) fn find_boot_id() -> Option<[u8; 16]> {
    boot_id_from(&std::fs::read("/proc/sys/kernel/random/boot_id").ok()?)
}
