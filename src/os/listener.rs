//! Unix: sockets that have a path, where others connect.
//!
//! A path is longer than `sun_path` on many machines (a build directory, a deep TMPDIR); Linux reaches it all the same
//! through the open directory. What stands at the path is only ever replaced under a lock on its directory, and only if it
//! is a socket of this user at which nobody listens.

use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use super::socket::{Socket, when_ready};
use super::{FileId, fork_generation, user_id};
use crate::backoff::Backoff;

/// The longest path that fits `sun_path` with its NUL.
const LONGEST: usize = size_of::<libc::sockaddr_un>() - offset_of!(libc::sockaddr_un, sun_path) - 1;

/// Whether an open directory has a short path of its own.
const THROUGH_PROC: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// How long somebody else may keep the directory locked. Nobody needs it for longer than a few system calls.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connects to whoever listens at `path`, and waits while too many others do.
///
/// # Errors
///
/// `NotFound`; `ConnectionRefused` if nobody listens there; `TimedOut`; `InvalidInput` if the path is too long here.
pub(crate) fn connect(path: &Path, deadline: Option<Instant>) -> io::Result<Socket> {
    let directory;
    let address = if fits(path) {
        SocketAddrUnix::new(path)?
    } else {
        let (parent, name) = split(path)?;
        directory = open_directory(parent)?;
        address_in(&directory, name, path)?
    };
    let socket = stream_socket()?;
    let mut backoff = match deadline {
        Some(deadline) => Backoff::new(deadline.saturating_duration_since(Instant::now())),
        None => Backoff::endless(),
    };
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::ISCONN) => break,
            Err(Errno::INTR) => {}
            // unix(7) has no way to tell when there is room among those who wait.
            Err(Errno::AGAIN) if backoff.pause() => {}
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket.into())
}

/// Listens at `path`, with mode 0600. A socket of this user that somebody left there is replaced.
///
/// # Errors
///
/// `AlreadyExists` if somebody listens there; `PermissionDenied` if the socket is another user's; `InvalidInput` if
/// something else stands there or the path is too long; `TimedOut` if somebody keeps the directory locked.
pub(crate) fn listen(path: &Path) -> io::Result<Listener> {
    let (parent, name) = split(path)?;
    let directory = open_directory(parent)?;
    let address = if fits(path) { SocketAddrUnix::new(path)? } else { address_in(&directory, name, path)? };
    let socket = stream_socket()?;
    // On Linux this is the mode that the name will have from its first moment on.
    if THROUGH_PROC {
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    }
    lock(&directory)?;
    let bound = make_way(&directory, name, &address).and_then(|()| bind(&socket, &directory, name, &address));
    // By hand: a child that another thread is just spawning has a copy of the description.
    let unlocked = rustix::fs::flock(&directory, FlockOperation::Unlock);
    let id = bound?;
    let listener = Listener { socket, directory, name: name.to_owned(), id, generation: fork_generation() };
    unlocked?;
    Ok(listener)
}

/// A socket that others connect to. Dropping it takes its name away, if that is still its own and this is the process that
/// made it; who had connected stays connected.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    directory: OwnedFd,
    name: OsString,
    /// Of the name; the open socket keeps the number from being used again.
    id: FileId,
    generation: u64,
}

impl Listener {
    /// Waits for somebody to connect.
    ///
    /// Who only wants to know whether somebody listens connects too, and is gone at once.
    ///
    /// # Errors
    ///
    /// `TimedOut`; out of descriptors, with the other one still waiting to be accepted.
    pub(crate) fn accept(&self, deadline: Option<Instant>) -> io::Result<Socket> {
        loop {
            match when_ready(self.socket.as_fd(), PollFlags::IN, deadline, || accept(&self.socket)) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error),
                Ok(descriptor) => return Ok(descriptor.into()),
            }
        }
    }
}

impl Drop for Listener {
    /// Takes the name away while somebody still listens, so that nobody has replaced it yet.
    fn drop(&mut self) {
        let own = || stat(&self.directory, &self.name).is_ok_and(|found| identity(&found) == self.id);
        if fork_generation() == self.generation && own() {
            let _gone_already = rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
    }
}

fn fits(path: &Path) -> bool {
    path.as_os_str().len() <= LONGEST
}

fn split(path: &Path) -> io::Result<(&Path, &OsStr)> {
    let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "the path of a socket must end with a name");
    // "a/.." has none, and of "a/" Rust would see one.
    let name = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/")).ok_or_else(no_name)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((parent, name))
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// The address of a path that is too long, by way of its directory, which must stay open as long as the address is used.
fn address_in(directory: &OwnedFd, name: &OsStr, path: &Path) -> io::Result<SocketAddrUnix> {
    let too_long = |what: &str, length: usize, most: usize| {
        let reason = format!("the {what} has {length} bytes, but a socket's may have at most {most} here: shorten it");
        io::Error::new(io::ErrorKind::InvalidInput, reason)
    };
    if !THROUGH_PROC || !Path::new("/proc/self/fd").is_dir() {
        return Err(too_long("path", path.as_os_str().len(), LONGEST));
    }
    let mut short = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    let most = LONGEST - short.as_os_str().len() - 1;
    if name.len() > most {
        return Err(too_long("last part of the path", name.len(), most));
    }
    short.push(name);
    Ok(SocketAddrUnix::new(short)?)
}

/// A new socket whose calls do not wait, and that no program that is run inherits.
fn stream_socket() -> io::Result<OwnedFd> {
    cfg_if::cfg_if! {
        if #[cfg(target_vendor = "apple")] {
            let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
            rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        } else {
            use rustix::net::SocketFlags;
            let socket =
                rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        }
    }
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

fn accept(socket: &OwnedFd) -> Result<OwnedFd, Errno> {
    cfg_if::cfg_if! {
        if #[cfg(target_vendor = "apple")] {
            let accepted = rustix::net::accept(socket)?;
            rustix::io::fcntl_setfd(&accepted, rustix::io::FdFlags::CLOEXEC)?;
            Ok(accepted)
        } else {
            rustix::net::accept_with(socket, rustix::net::SocketFlags::CLOEXEC)
        }
    }
}

/// Keeps other listeners out of the directory until it is unlocked or closed.
fn lock(directory: &OwnedFd) -> io::Result<()> {
    let mut backoff = Backoff::new(PATIENCE);
    loop {
        match rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if backoff.pause() => {}
            Err(Errno::AGAIN) => {
                let reason = "somebody keeps the socket's directory locked (flock)";
                return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
            }
            other => return Ok(other?),
        }
    }
}

/// Removes a socket at which nobody listens, or says what else stands in the way.
fn make_way(directory: &OwnedFd, name: &OsStr, address: &SocketAddrUnix) -> io::Result<()> {
    let found = match stat(directory, name) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    may_be_replaced(&found, user_id())?;
    let probe = stream_socket()?;
    match rustix::net::connect(&probe, address) {
        // Whoever binds does so under the lock, and listens before he gives it up: nobody is just about to.
        Err(Errno::CONNREFUSED) => {}
        Err(Errno::NOENT) => return Ok(()),
        // Somebody listens, and too many wait already; or it is a socket of another kind.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => return Err(io::ErrorKind::AlreadyExists.into()),
        Err(error) => return Err(error.into()),
    }
    match stat(directory, name) {
        Ok(again) if identity(&again) == identity(&found) => {
            Ok(rustix::fs::unlinkat(directory, name, AtFlags::empty())?)
        }
        // Somebody who does not lock was faster; binding will tell.
        _ => Ok(()),
    }
}

/// Whether what stands at the path is a socket of this user.
fn may_be_replaced(found: &Stat, user: u32) -> io::Result<()> {
    let what = match FileType::from_raw_mode(found.st_mode) {
        FileType::Socket => None,
        FileType::Directory => Some("a directory"),
        FileType::Symlink => Some("a symbolic link"),
        FileType::RegularFile => Some("a file"),
        _ => Some("a device or pipe"),
    };
    if let Some(what) = what {
        let reason = format!("{what} stands where the socket should be: remove it, or choose another path");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    if found.st_uid != user {
        let reason = format!("the socket there belongs to another user (uid {}): choose another path", found.st_uid);
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    }
    Ok(())
}

/// Gives the socket its name and listens; leaves no name behind if it cannot.
fn bind(socket: &OwnedFd, directory: &OwnedFd, name: &OsStr, address: &SocketAddrUnix) -> io::Result<FileId> {
    rustix::net::bind(socket, address).map_err(|error| match error {
        Errno::ADDRINUSE => io::Error::from(io::ErrorKind::AlreadyExists),
        other => other.into(),
    })?;
    let listen = || {
        if !THROUGH_PROC {
            // Nobody can connect before it listens.
            rustix::fs::chmodat(directory, name, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
        }
        rustix::net::listen(socket, BACKLOG)?;
        stat(directory, name)
    };
    match listen() {
        Ok(found) => Ok(identity(&found)),
        Err(error) => {
            let _nothing_left = rustix::fs::unlinkat(directory, name, AtFlags::empty());
            Err(error.into())
        }
    }
}

fn stat(directory: &OwnedFd, name: &OsStr) -> Result<Stat, Errno> {
    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
}

#[allow(clippy::unnecessary_cast, clippy::cast_sign_loss)] // device numbers are signed and shorter on some systems
fn identity(found: &Stat) -> FileId {
    FileId { device: found.st_dev as u64, number: found.st_ino as u64 }
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
