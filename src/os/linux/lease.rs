//! The proof that no process has a file open or mapped: a write lease of the kernel, `F_SETLEASE` in fcntl(2).
//!
//! The kernel grants a write lease only while the file has no other open file description. A mapping keeps its
//! description, and so does a descriptor in a socket's queue; those of other pid namespaces and read-only ones count
//! too. Descriptors of `O_PATH` do not count: they give no access to bytes. While the lease is held, other processes
//! block in open(2), or fail there with `EAGAIN` if they asked for that.
//!
//! Every step is relative to an open directory and follows no link.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{self, AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::room::is_on_tmpfs;
use crate::os::{Facts, FileId};

/// `F_SETSIG` of linux/fcntl.h, which libc lacks on most platforms.
const F_SETSIG: libc::c_int = 10;

// The constants are short integers on some platforms.
#[allow(clippy::unnecessary_cast, clippy::cast_lossless)]
const WRITE: libc::c_int = libc::F_WRLCK as libc::c_int;
#[allow(clippy::unnecessary_cast, clippy::cast_lossless)]
const NONE: libc::c_int = libc::F_UNLCK as libc::c_int;

/// The kernel's answer to the request for a lease.
#[derive(Debug)]
pub(crate) enum LeaseAnswer {
    /// No other open file description exists, and none can be made until the lease is released.
    Granted(Leased),
    /// A process has the file open or mapped.
    InUse,
    /// The lease needs the owner of the file, or `CAP_LEASE` in the first user namespace.
    NotPermitted,
    /// The file system is not one on which the lease is known to be a proof.
    Unsupported,
}

/// A file under a write lease. Dropping this releases the lease.
#[derive(Debug)]
pub(crate) struct Leased(File);

/// Opens a directory, so that no part of its path can be replaced between two steps.
pub(crate) fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(fs::openat(CWD, path, flags, Mode::empty())?.into())
}

/// Opens a directory in a directory. A symbolic link is an error.
pub(crate) fn open_directory_in(directory: &File, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(fs::openat(directory, name, flags, Mode::empty())?.into())
}

/// Returns the names in a directory, sorted.
pub(crate) fn names_in(directory: &File) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the facts of a name itself, without following a link, and when the file or its properties last changed.
pub(crate) fn facts_in(directory: &File, name: &OsStr) -> io::Result<(Facts, SystemTime)> {
    let stat = fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((facts_of(&stat), changed(&stat)))
}

/// Opens a regular file for reading. Never blocks, and opens no link.
///
/// # Errors
///
/// `WouldBlock` while another process has a lease on the file. Opening it asks that process to release the lease.
pub(crate) fn open_in(directory: &File, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(fs::openat(directory, name, flags, Mode::empty())?.into())
}

/// Whether the file system of an open file keeps extended attributes, as tmpfs does since Linux 6.6.
pub(crate) fn has_attributes(file: &File) -> bool {
    let mut none: [u8; 0] = [];
    !matches!(fs::fgetxattr(file, "user.ndshm", &mut none), Err(Errno::NOTSUP | Errno::NOSYS))
}

/// Removes an empty directory.
pub(crate) fn remove_directory_in(directory: &File, name: &OsStr) -> io::Result<()> {
    Ok(fs::unlinkat(directory, name, AtFlags::REMOVEDIR)?)
}

/// Requests a write lease on a file that is open for reading, and nowhere else in this process.
pub(crate) fn lease(file: File) -> io::Result<LeaseAnswer> {
    // No other is trusted: a layered file system opens another inode for a file, a network's does not know all
    // machines.
    if !is_on_tmpfs(&file) {
        return Ok(LeaseAnswer::Unsupported);
    }
    // Before the lease: an open of another process signals the holder, and the default signal, SIGIO, ends a process
    // that does not handle it. SIGURG is ignored by default.
    let asked = control(&file, F_SETSIG, libc::SIGURG).and_then(|_| control(&file, libc::F_SETLEASE, WRITE));
    match asked {
        Ok(_) => Ok(LeaseAnswer::Granted(Leased(file))),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::AGAIN) => Ok(LeaseAnswer::InUse),
            Some(Errno::ACCESS | Errno::PERM) => Ok(LeaseAnswer::NotPermitted),
            // Kernels and sandboxes without leases.
            Some(Errno::INVAL | Errno::NOSYS) => Ok(LeaseAnswer::Unsupported),
            _ => Err(error),
        },
    }
}

impl Leased {
    /// Removes the name, if it still leads to this file, the file has no other name and has not changed since `newest`,
    /// and no process has tried to open it since the lease was granted. Returns whether it was removed.
    ///
    /// The lease does not keep another process from replacing the name, and unlink(2) takes a name. So the file first
    /// gets the name `hidden`, which only this process uses; a file that was not meant gets its own name back.
    pub(crate) fn unlink(
        &self,
        directory: &File,
        name: &OsStr,
        hidden: &OsStr,
        newest: SystemTime,
    ) -> io::Result<bool> {
        let own = id_of(&fs::fstat(&self.0)?);
        let (found, changed) = facts_in(directory, name)?;
        if found.id != own || found.other.is_some() || found.links != 1 || changed > newest {
            return Ok(false);
        }
        crate::os::step("foreign: compared");
        fs::renameat_with(directory, name, directory, hidden, RenameFlags::NOREPLACE)?;
        let is_own = facts_in(directory, hidden).is_ok_and(|(found, _)| found.id == own && found.links == 1);
        // A process that waits in open(2) has asked for the lease to be released. It gets the file with its name.
        let is_free = control(&self.0, libc::F_GETLEASE, 0).is_ok_and(|lease| lease == WRITE);
        if !(is_own && is_free) {
            // If a third file has the name by now, this one keeps the hidden name, and no process loses bytes.
            fs::renameat_with(directory, hidden, directory, name, RenameFlags::NOREPLACE)?;
            return Ok(false);
        }
        crate::os::step("foreign: checked");
        fs::unlinkat(directory, hidden, AtFlags::empty())?;
        Ok(true)
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        // Closing is not enough: a child between fork and exec has the description too.
        let _ = control(&self.0, libc::F_SETLEASE, NONE);
    }
}

/// Calls fcntl(2) with a command that takes a number.
#[allow(unsafe_code)]
fn control(file: &File, command: libc::c_int, value: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: the descriptor is open, and the commands of this file take a number and touch no memory of this process.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), command, value) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

#[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, clippy::cast_lossless)] // other types on other architectures
fn id_of(stat: &Stat) -> FileId {
    FileId { device: stat.st_dev as u64, number: stat.st_ino as u64 }
}

#[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, clippy::cast_lossless)] // as above
fn facts_of(stat: &Stat) -> Facts {
    Facts {
        id: id_of(stat),
        links: stat.st_nlink as u64,
        length: stat.st_size as u64,
        allocated: stat.st_blocks as u64 * 512,
        block: stat.st_blksize as u64,
        owner: stat.st_uid,
        group: stat.st_gid,
        mode: stat.st_mode & 0o7777,
        modified: time(stat.st_mtime as i64, stat.st_mtime_nsec as u64),
        other: match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => None,
            FileType::Directory => Some("a directory"),
            FileType::Symlink => Some("a symbolic link"),
            _ => Some("a device, pipe or socket"),
        },
    }
}

/// Returns the later of the two times: programs can set that of the last modification, but not that of the last change.
#[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, clippy::cast_lossless)] // as above
fn changed(stat: &Stat) -> SystemTime {
    let modified = time(stat.st_mtime as i64, stat.st_mtime_nsec as u64);
    modified.max(time(stat.st_ctime as i64, stat.st_ctime_nsec as u64))
}

fn time(seconds: i64, nanoseconds: u64) -> SystemTime {
    let seconds = u64::try_from(seconds).unwrap_or(0); // before 1970: very old
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds) + Duration::from_nanos(nanoseconds)).unwrap_or(UNIX_EPOCH)
}
