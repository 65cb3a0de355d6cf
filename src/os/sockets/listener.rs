//! Unix: sockets that have a path, to which other processes connect.
//!
//! Many paths are longer than `sun_path` (a build directory, a deep TMPDIR). Linux reaches them through the open
//! directory. [`listen`] replaces a file at the path only under a lock on its directory, and only if it is a socket of
//! this user at which no process listens.

use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};

use super::socket::{Socket, left, when_ready};
use crate::backoff::Backoff;
use crate::os::{FileId, fork_generation, user_id};

/// The longest path that fits `sun_path` with its NUL.
const LONGEST: usize = size_of::<libc::sockaddr_un>() - offset_of!(libc::sockaddr_un, sun_path) - 1;

/// Whether an open directory has a short path of its own.
const THROUGH_PROC: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// Flags that open a directory for the lookup of names in it. With `O_PATH` this needs no right to list the directory.
#[cfg(any(target_os = "linux", target_os = "android"))]
const THROUGH: OFlags = OFlags::PATH;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const THROUGH: OFlags = OFlags::RDONLY;

/// Connections that may wait to be accepted. The kernel limits them to `net.core.somaxconn`, or its counterpart
/// elsewhere.
const BACKLOG: i32 = 4096;

/// How long another process may keep the directory locked. A listener needs the lock for a few system calls only.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connects to the process that listens at `path`, and waits while its queue of connections is full.
///
/// # Errors
///
/// `NotFound`; `ConnectionRefused` if no process listens there; `TimedOut`; `InvalidInput` if the path is too long
/// here.
pub(crate) fn connect(path: &Path, deadline: Option<Instant>) -> io::Result<Socket> {
    let place;
    let address = if fits(path) {
        SocketAddrUnix::new(path)?
    } else {
        place = SocketName::of(path)?;
        place.address.clone()
    };
    let socket = stream_socket()?;
    let mut backoff = Backoff::new(left(deadline).unwrap_or(Duration::MAX));
    loop {
        match rustix::net::connect(&socket, &address) {
            Ok(()) | Err(Errno::ISCONN) => break,
            Err(Errno::INTR) => {}
            // The kernel does not tell when the queue of a unix(7) socket has room again.
            Err(Errno::AGAIN) if backoff.pause() => {}
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(error) => return Err(error.into()),
        }
    }
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket.into())
}

/// Listens at `path`, with mode 0600. A socket of this user at which no process listens is replaced.
///
/// # Errors
///
/// `AlreadyExists` if a process listens there; `PermissionDenied` if the socket is another user's; `InvalidInput` if
/// something else stands there or the path is too long; `TimedOut` if another process keeps the directory locked.
pub(crate) fn listen(path: &Path) -> io::Result<Listener> {
    let place = SocketName::of(path)?;
    let lock = lock(&place.directory)?;
    let listener = place.make_way().and_then(|()| place.bind());
    // Closing is not enough: a child that another thread is just spawning has a copy of the descriptor.
    rustix::fs::flock(&lock, FlockOperation::Unlock)?;
    listener
}

/// A listening socket. Dropping it removes its name; existing connections stay open.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixListener,
    place: SocketName,
    /// Identity of the file with the name. The open socket keeps its number from being reused.
    id: FileId,
    /// Fork generation of the process that made it. A forked child must not remove the name.
    generation: u64,
}

impl Listener {
    /// Waits for a connection.
    ///
    /// A process that only checks whether another one listens connects too, and closes the connection at once.
    ///
    /// # Errors
    ///
    /// `TimedOut`; out of descriptors: then the connection still waits to be accepted.
    pub(crate) fn accept(&self, deadline: Option<Instant>) -> io::Result<Socket> {
        loop {
            match when_ready(self, PollFlags::IN, deadline, || self.socket.accept()) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                other => return other.map(|(stream, _)| stream.into()),
            }
        }
    }

    /// Whether the name still leads to this socket.
    pub(crate) fn has_name(&self) -> bool {
        self.place.look().is_ok_and(|found| identity(&found) == self.id)
    }

    /// Removes the name, so that no process connects any more, if it still leads to this socket and this process made
    /// it.
    pub(crate) fn remove_name(&self) {
        if fork_generation() == self.generation && self.has_name() {
            self.place.remove();
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    /// Removes the name while the socket still listens. [`listen`] in another process replaces it only after that.
    fn drop(&mut self) {
        self.remove_name();
    }
}

fn fits(path: &Path) -> bool {
    path.as_os_str().len() <= LONGEST
}

/// The name of a socket, which exists already or will.
#[derive(Debug)]
struct SocketName {
    /// The directory of the name. If the path is too long, the address leads through this descriptor.
    directory: OwnedFd,
    name: OsString,
    address: SocketAddrUnix,
}

impl SocketName {
    fn of(path: &Path) -> io::Result<Self> {
        let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "the path of a socket must end with a name");
        // "a/.." has no name. "a/" has none either, but Rust would return "a".
        let name = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/")).ok_or_else(no_name)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = open_directory(CWD, parent, THROUGH)?;
        let address = if fits(path) { SocketAddrUnix::new(path)? } else { short_address(&directory, name, path)? };
        Ok(Self { directory, name: name.to_owned(), address })
    }

    /// Returns the metadata of the file with the name.
    fn look(&self) -> Result<Stat, Errno> {
        rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn remove(&self) {
        let _ = rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty()); // may be gone already
    }

    /// Removes a socket at which no process listens. Fails if any other file has the name.
    fn make_way(&self) -> io::Result<()> {
        let found = match self.look() {
            Ok(found) => found,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        may_be_replaced(&found, user_id())?;
        let probe = stream_socket()?;
        match rustix::net::connect(&probe, &self.address) {
            // No process listens. None is between bind and listen either: both happen under the lock that this process
            // holds.
            Err(Errno::CONNREFUSED) => {}
            Err(Errno::NOENT) => return Ok(()),
            // A process listens and its queue is full, or it is a socket of another kind.
            Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => return Err(taken()),
            Err(error) => return Err(error.into()),
        }
        match self.look() {
            Ok(again) if identity(&again) == identity(&found) => {
                Ok(rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty())?)
            }
            // A process that does not take the lock has replaced the socket meanwhile. Binding reports it.
            _ => Ok(()),
        }
    }

    /// Gives a socket the name and listens. Leaves no name behind if that fails.
    fn bind(self) -> io::Result<Listener> {
        let socket = stream_socket()?;
        let mode = Mode::RUSR | Mode::WUSR;
        // On Linux this is the mode that the name will have from its first moment on.
        if THROUGH_PROC {
            rustix::fs::fchmod(&socket, mode)?;
        }
        rustix::net::bind(&socket, &self.address).map_err(|error| match error {
            Errno::ADDRINUSE => taken(),
            other => other.into(),
        })?;
        let listen = || {
            if !THROUGH_PROC {
                // No process can connect before the socket listens.
                rustix::fs::chmodat(&self.directory, &self.name, mode, AtFlags::empty())?;
            }
            rustix::net::listen(&socket, BACKLOG)?;
            self.look()
        };
        let found = listen().inspect_err(|_| self.remove())?;
        Ok(Listener { socket: socket.into(), id: identity(&found), place: self, generation: fork_generation() })
    }
}

fn taken() -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, "a process listens there, or another file has the name")
}

fn open_directory(at: impl AsFd, path: &Path, access: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(at, path, access | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Returns the address of a path that is too long. It leads through the directory's descriptor, which must stay open as
/// long as the address is used.
fn short_address(directory: &OwnedFd, name: &OsStr, path: &Path) -> io::Result<SocketAddrUnix> {
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

/// Makes a non-blocking socket that started programs do not inherit.
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

/// Locks the directory against other listeners until the returned descriptor is unlocked or closed.
fn lock(directory: &OwnedFd) -> io::Result<OwnedFd> {
    let readable = open_directory(directory, Path::new("."), OFlags::RDONLY)?;
    let mut backoff = Backoff::new(PATIENCE);
    loop {
        match rustix::fs::flock(&readable, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if backoff.pause() => {}
            Err(Errno::AGAIN) => {
                let reason = "another process keeps the socket's directory locked (flock)";
                return Err(io::Error::new(io::ErrorKind::TimedOut, reason));
            }
            other => return Ok(other.map(|()| readable)?),
        }
    }
}

/// Succeeds if the file at the path is a socket of this user.
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

#[allow(clippy::unnecessary_cast, clippy::cast_sign_loss)] // device numbers are signed and shorter on some systems
fn identity(found: &Stat) -> FileId {
    FileId { device: found.st_dev as u64, number: found.st_ino as u64 }
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
