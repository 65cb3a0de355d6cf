//! What all Unix systems share: locks on open file descriptions, facts about files, private directories, forks.

pub(super) mod children;
pub(super) mod groups;
mod inherited;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{self, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::time::ClockId;

pub(crate) use self::children::{ending_signal, inherited_report, is_abort, signal_name};
pub(crate) use self::inherited::{keep_from_children, no_longer_keep_from_children};
use super::{Facts, FileId, LockKind, LockRange, PrivateDirectoryError};

/// The extended attribute with an array's description. Unprivileged processes may write only those of `user.`.
const ATTRIBUTE: &str = "user.ndshm";

/// Opens the regular file at `path`, for writing too if `write`.
///
/// `O_NONBLOCK` keeps a FIFO or device at the name from blocking. A regular file that another process has a lease on is
/// opened when that process has given it up: see fcntl(2), `F_SETLEASE`.
pub(crate) fn open(path: &Path, write: bool) -> io::Result<File> {
    /// How long, in milliseconds. A process that looks whether a file is used has the lease for microseconds.
    const TRIES: u32 = 1000;
    let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
    let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut tries = 0;
    loop {
        match fs::open(path, flags, Mode::empty()) {
            Err(rustix::io::Errno::AGAIN) if tries < TRIES => std::thread::sleep(Duration::from_millis(1)),
            opened => return Ok(opened?.into()),
        }
        tries += 1;
    }
}

/// Creates an empty file at `path`, which must be free; the mode is exact, whatever the umask.
pub(crate) fn create_hidden(path: &Path, mode: u32) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file: File = fs::open(path, flags, Mode::from_raw_mode(0o600))?.into();
    set_mode(&file, mode).inspect_err(|_| {
        let _ = std::fs::remove_file(path); // may be gone already
    })?;
    Ok(file)
}

/// Reads bytes without moving the file's offset.
pub(crate) fn read_exact_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

/// Writes bytes without moving the file's offset.
pub(crate) fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

/// Sets permission bits exactly.
pub(crate) fn set_mode(file: &File, mode: u32) -> io::Result<()> {
    #[allow(clippy::unnecessary_cast, clippy::cast_possible_truncation)] // mode_t has 16 bits on Apple systems
    Ok(fs::fchmod(file, Mode::from_raw_mode(mode as _))?)
}

/// Writes the attribute of an open file. Needs the right to write to the file, whatever it was opened for.
///
/// # Errors
///
/// `Unsupported` on file systems without such attributes: tmpfs before Linux 6.6, overlayfs above one of these, ..
pub(crate) fn set_attribute(file: &File, value: &[u8]) -> io::Result<()> {
    Ok(fs::fsetxattr(file, ATTRIBUTE, value, XattrFlags::empty())?)
}

/// Reads the attribute of an open file and returns its length, or `None` if there is none.
///
/// # Errors
///
/// The attribute is longer than `buffer`, or this user may not read the file.
pub(crate) fn attribute(file: &File, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match fs::fgetxattr(file, ATTRIBUTE, buffer) {
        Ok(length) => Ok(Some(length)),
        Err(error) if is_without_attribute(error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Removes the attribute of an open file, if it has one.
pub(crate) fn remove_attribute(file: &File) -> io::Result<()> {
    match fs::fremovexattr(file, ATTRIBUTE) {
        Err(error) if !is_without_attribute(error) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Whether the error says that a file has no attribute, or can have none.
fn is_without_attribute(error: Errno) -> bool {
    #[cfg(target_vendor = "apple")]
    const NONE: Errno = Errno::NOATTR;
    #[cfg(not(target_vendor = "apple"))]
    const NONE: Errno = Errno::NODATA;
    [NONE, Errno::NOTSUP, Errno::OPNOTSUPP, Errno::NOSYS].contains(&error)
}

/// Gives a file to a group, with mode 0660, whatever the umask. Until the group is set, no group may open the file.
pub(crate) fn share_with_group(file: &File, group: u32) -> io::Result<()> {
    set_mode(file, 0o600)?;
    std::os::unix::fs::fchown(file, None, Some(group))?;
    set_mode(file, 0o660)
}

/// Removes a name. Processes that have the file open or mapped keep it.
pub(crate) use std::fs::remove_file as unlink;

/// Renames `from` to `to`, and replaces the file that has this name, in one step.
pub(crate) use std::fs::rename as rename_over;

/// Finishes an `unlink` that had to wait for the last mapping. Does nothing, because no `unlink` has to wait here.
pub(crate) fn finish_unlink(_file: &File, _directory: &Path) {}

/// Reads identity, links, length, owner, group and mode.
pub(crate) fn facts(file: &File) -> io::Result<Facts> {
    Ok(facts_of(&file.metadata()?))
}

/// Reads the facts of the file at `path` itself, without following a link.
pub(crate) fn facts_at(path: &Path) -> io::Result<Facts> {
    Ok(facts_of(&std::fs::symlink_metadata(path)?))
}

fn facts_of(metadata: &std::fs::Metadata) -> Facts {
    let kind = metadata.file_type();
    Facts {
        id: FileId { device: metadata.dev(), number: metadata.ino() },
        links: metadata.nlink(),
        length: metadata.len(),
        allocated: metadata.blocks() * 512,
        block: metadata.blksize(),
        owner: metadata.uid(),
        group: metadata.gid(),
        mode: metadata.mode() & 0o7777,
        modified: metadata.modified().unwrap_or(std::time::UNIX_EPOCH),
        other: if kind.is_file() {
            None
        } else if kind.is_dir() {
            Some("a directory")
        } else if kind.is_symlink() {
            Some("a symbolic link")
        } else {
            Some("a device, pipe or socket")
        },
    }
}

/// Whether a group is this user's own. On Apple systems all users have the same group ("staff").
fn is_own_group(group: u32) -> bool {
    !cfg!(target_vendor = "apple") && group == rustix::process::getegid().as_raw()
}

/// Makes `path` a directory that only this user can write into, or returns why the existing file is not one.
pub(crate) fn private_directory(path: &Path) -> Result<(), PrivateDirectoryError> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
        _ => {}
    }
    let metadata = std::fs::symlink_metadata(path)?;
    let mode = metadata.mode();
    let reason = if metadata.file_type().is_symlink() {
        "it is a symbolic link, which its creator could point elsewhere; set NDSHM_EMULATED_DIR to a directory of yours"
    } else if !metadata.is_dir() {
        "it is not a directory; remove it, or set NDSHM_EMULATED_DIR to a directory of yours"
    } else if metadata.uid() != user_id() {
        "it belongs to another user; set NDSHM_EMULATED_DIR to a directory of yours"
    } else if mode & 0o002 != 0 || (mode & 0o020 != 0 && !is_own_group(metadata.gid())) {
        "other users can write into it, and so replace what is there; take that right away (chmod go-w), or set \
         NDSHM_EMULATED_DIR to a directory of yours"
    } else {
        return Ok(());
    };
    Err(PrivateDirectoryError::Unsafe { reason, owner: metadata.uid(), mode: mode & 0o7777 })
}

/// Whether this process may make and remove names in `directory`.
pub(crate) fn is_writable_directory(directory: &Path) -> bool {
    directory.is_dir() && fs::access(directory, fs::Access::WRITE_OK | fs::Access::EXEC_OK).is_ok()
}

/// Takes the lock, or returns `Ok(false)` if another lock conflicts.
pub(crate) fn try_lock(file: &File, kind: LockKind, range: LockRange) -> io::Result<bool> {
    match fcntl_lock(file, libc::F_OFD_SETLK, lock_type(kind), range) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Takes the lock. Waits for it without limit.
pub(crate) fn lock(file: &File, kind: LockKind, range: LockRange) -> io::Result<()> {
    loop {
        match fcntl_lock(file, libc::F_OFD_SETLKW, lock_type(kind), range) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map(drop),
        }
    }
}

/// Takes a lock of the whole file by flock(2), or returns `Ok(false)` if there is one. It needs no right to write, and
/// does not conflict with range locks.
pub(crate) fn try_lock_whole(file: &File) -> io::Result<bool> {
    match fs::flock(file, fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Releases the lock of the whole file.
pub(crate) fn unlock_whole(file: &File) -> io::Result<()> {
    Ok(fs::flock(file, fs::FlockOperation::NonBlockingUnlock)?)
}

/// Releases all locks of this description in the range.
pub(crate) fn unlock(file: &File, range: LockRange) -> io::Result<()> {
    fcntl_lock(file, libc::F_OFD_SETLK, UNLOCK, range).map(drop)
}

/// Queries whether another description's lock would refuse `kind` on the range. Takes no lock and disturbs no process.
pub(crate) fn is_locked(file: &File, kind: LockKind, range: LockRange) -> io::Result<bool> {
    let answer = fcntl_lock(file, libc::F_OFD_GETLK, lock_type(kind), range)?;
    Ok(libc::c_int::from(answer.l_type) != UNLOCK)
}

/// Returns where a lock of another description begins that would refuse `kind` on the range, if there is one.
pub(crate) fn locked_at(file: &File, kind: LockKind, range: LockRange) -> io::Result<Option<u64>> {
    let answer = fcntl_lock(file, libc::F_OFD_GETLK, lock_type(kind), range)?;
    let is_locked = libc::c_int::from(answer.l_type) != UNLOCK;
    Ok(u64::try_from(answer.l_start).ok().filter(|_| is_locked))
}

#[allow(clippy::unnecessary_cast)] // c_int on some systems, c_short on others
const UNLOCK: libc::c_int = libc::F_UNLCK as libc::c_int;

#[allow(clippy::unnecessary_cast, clippy::cast_lossless)] // as above
fn lock_type(kind: LockKind) -> libc::c_int {
    match kind {
        LockKind::Shared => libc::F_RDLCK as libc::c_int,
        LockKind::Exclusive => libc::F_WRLCK as libc::c_int,
    }
}

cfg_if::cfg_if! {
    if #[cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "32"))] {
        // With 32-bit file offsets the C library's fcntl would take the short structure, in which these ranges do not
        // fit.
        use libc::flock64 as Flock;

        #[allow(unsafe_code)]
        unsafe fn fcntl(descriptor: libc::c_int, command: libc::c_int, lock: *mut Flock) -> libc::c_long {
            // SAFETY: the caller keeps the contract of fcntl. fcntl64 takes the same arguments, with the long
            // structure.
            unsafe { libc::syscall(libc::SYS_fcntl64, descriptor, command, lock) }
        }
    } else {
        use libc::{fcntl, flock as Flock};
    }
}

/// Calls fcntl(2) with one lock and returns the structure as the kernel left it.
///
/// See <https://man7.org/linux/man-pages/man2/fcntl.2.html>, "Open file description locks".
#[allow(unsafe_code)]
fn fcntl_lock(file: &File, command: libc::c_int, kind: libc::c_int, range: LockRange) -> io::Result<Flock> {
    let out_of_range = |_| io::Error::from(io::ErrorKind::InvalidInput);
    // The constants fit, whatever their type.
    #[allow(clippy::cast_possible_truncation, clippy::unnecessary_cast)]
    let mut lock = Flock {
        l_type: kind as _,
        l_whence: libc::SEEK_SET as _,
        l_start: range.start.try_into().map_err(out_of_range)?,
        l_len: range.length.try_into().map_err(out_of_range)?,
        l_pid: 0, // must be 0, or the kernel returns EINVAL
    };
    // SAFETY: the descriptor is open for the whole call; these commands read and write one `struct flock`.
    let answer = unsafe { fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(lock) }
}

/// Grows in every forked child.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Number of forks that this process has begun. A fork is counted before the kernel copies anything.
static BEGUN: AtomicU64 = AtomicU64::new(0);
/// Number of begun forks that are complete or have failed.
static ENDED: AtomicU64 = AtomicU64::new(0);

extern "C" fn begin_fork() {
    BEGUN.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn end_fork() {
    ENDED.fetch_add(1, Ordering::SeqCst);
}

/// In the child only the forking thread exists, so no fork of another thread is under way.
extern "C" fn begin_child() {
    inherited::give_up();
    GENERATION.fetch_add(1, Ordering::Relaxed);
    ENDED.store(BEGUN.load(Ordering::SeqCst), Ordering::SeqCst);
}

/// Returns a number that a forked child does not share with its parent.
///
/// Process numbers are no substitute: they are reused, and getpid(2) is a system call.
#[allow(unsafe_code)]
pub(crate) fn fork_generation() -> u64 {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    // Not a `Once`: a child forked while another thread is in it would wait for ever. Two threads may register the
    // handlers twice, which does no harm.
    if !REGISTERED.load(Ordering::Acquire) {
        // SAFETY: the functions only change atomics and make system calls, which is async-signal-safe, and live as long
        // as the program.
        // Fails if out of memory.
        let _ = unsafe { libc::pthread_atfork(Some(begin_fork), Some(end_fork), Some(begin_child)) };
        REGISTERED.store(true, Ordering::Release);
    }
    GENERATION.load(Ordering::Relaxed)
}

/// Returns how many forks this process has begun, or `None` while one is under way.
///
/// If two calls return the same number, no child was forked between them that has a copy of a descriptor open between
/// them. Spawned children do not count, because they keep no descriptor.
pub(crate) fn forks() -> Option<u64> {
    fork_generation(); // registers the handlers
    // `ENDED` is loaded first. Otherwise, with fork A under way at the load of `BEGUN`, A could end and B begin before
    // the load of `ENDED`: the numbers would be equal although B is under way.
    let ended = ENDED.load(Ordering::SeqCst);
    let begun = BEGUN.load(Ordering::SeqCst);
    (begun == ended).then_some(begun)
}

/// Reads a clock that never shows a negative time.
pub(super) fn clock(id: ClockId) -> Duration {
    let time = rustix::time::clock_gettime(id);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns the processor time of this thread so far. Waiting does not count, not even for a processor.
pub(crate) fn thread_time() -> Duration {
    clock(ClockId::ThreadCPUTime)
}

/// Parses the identity of a boot: hexadecimal digits. Other characters between them are ignored.
pub(super) fn boot_id_from(text: &[u8]) -> Option<[u8; 16]> {
    let digits: String = text.iter().copied().map(char::from).filter(char::is_ascii_hexdigit).collect();
    Some(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes())
}

/// Returns the effective user's number.
pub(crate) fn user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Makes a path from the bytes that the kernel uses.
#[allow(clippy::unnecessary_wraps)] // not every system's paths are bytes
pub(crate) fn path_from(bytes: Vec<u8>) -> Option<PathBuf> {
    Some(OsString::from_vec(bytes).into())
}

/// Returns how many descriptors this process may have.
pub(crate) fn descriptor_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the length of the largest file that this process may make. For a longer one the kernel sends SIGXFSZ.
pub(crate) fn largest_file() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current.unwrap_or(u64::MAX)
}

/// Whether the error says that process or system have no descriptor left.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Returns why a file cannot have this name, which has no separators and no NUL. Here every such name is allowed.
pub(crate) fn forbidden_name(_name: &str) -> Option<&'static str> {
    None
}

/// Returns the part of a name that tells this user's directory in a temporary directory from other users'.
pub(crate) fn user_tag() -> String {
    user_id().to_string()
}

/// Whether the error says that there is a link or another kind of file instead of a regular one.
pub(crate) fn is_not_a_file(error: &io::Error) -> bool {
    use libc::{EISDIR, ELOOP, EMLINK, ENODEV, ENXIO, EOPNOTSUPP};
    // Opening a socket is "not supported" on Apple systems; on Linux there is no such device.
    matches!(error.raw_os_error(), Some(ELOOP | EMLINK | EISDIR | ENXIO | ENODEV | EOPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_takes_no_processor_time() {
        let before = thread_time();
        std::thread::sleep(Duration::from_secs(2));
        let spent = thread_time().saturating_sub(before);
        assert!(spent < Duration::from_secs(1), "{spent:?}");
    }
}
