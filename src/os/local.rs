//! Linux: sockets with a name in a directory, who is at their other end, and waiting for that process's death.
//!
//! Nothing here blocks but [`wait`]. Every descriptor is closed on exec.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::Facts;
use super::posix::user_id;

/// Bytes of a socket's path, its end included: `sun_path` in `unix(7)`.
const LONGEST_PATH: usize = 108;

/// Connections that may wait to be accepted; the kernel allows no more than `net.core.somaxconn`.
const QUEUE: i32 = 4096;

/// Marks of an end of a connection, as poll(2) reports it.
const HUNG_UP: PollFlags = PollFlags::HUP.union(PollFlags::RDHUP).union(PollFlags::ERR);

/// A socket that others can connect to.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

/// A connection.
#[derive(Debug)]
pub(crate) struct Stream(OwnedFd);

/// A process, whatever becomes of its number: a pidfd.
#[derive(Debug)]
pub(crate) struct Process(OwnedFd);

/// What another thread can ring to end a [`wait`]; once rung it stays so.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

/// Who made the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The process's number; 0 if it has none in this process's namespace.
    pub(crate) process: u32,
    /// The effective user at that time.
    pub(crate) user: u32,
}

/// What [`wait`] can wait for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source<'a> {
    /// A connection to accept.
    Listener(&'a Listener),
    /// Bytes, or the end of them.
    Stream(&'a Stream),
    /// A death.
    Process(&'a Process),
    /// A ring.
    Bell(&'a Bell),
}

/// Begins to listen at `path`, where nothing may be; only this user can connect.
pub(crate) fn listen(path: &Path) -> io::Result<Listener> {
    let socket = socket()?;
    // Before the name exists: bind(2) gives it the socket's mode.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    let address = Address::new(path)?;
    rustix::net::bind(&socket, &address.socket)?;
    let listening = rustix::net::listen(&socket, QUEUE);
    listening.inspect_err(|_| {
        let _already_gone = std::fs::remove_file(path);
    })?;
    Ok(Listener(socket))
}

/// Connects to whoever listens at `path`.
///
/// # Errors
///
/// `NotFound` or `ConnectionRefused` if nobody does; `WouldBlock` if too many others are waiting to be accepted.
pub(crate) fn connect(path: &Path) -> io::Result<Stream> {
    let socket = socket()?;
    let address = Address::new(path)?;
    rustix::net::connect(&socket, &address.socket)?;
    Ok(Stream(socket))
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// A path as sockets take it. What is too long for them is reached through an open descriptor of its directory.
struct Address {
    socket: SocketAddrUnix,
    _directory: Option<OwnedFd>,
}

impl Address {
    fn new(path: &Path) -> io::Result<Self> {
        if path.as_os_str().len() < LONGEST_PATH {
            return Ok(Self { socket: SocketAddrUnix::new(path)?, _directory: None });
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(CWD, parent, flags, Mode::empty())?;
        let short = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
        if short.as_os_str().as_bytes().len() >= LONGEST_PATH {
            let reason = "the last part of a socket's path may have at most 80 bytes";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        Ok(Self { socket: SocketAddrUnix::new(&short)?, _directory: Some(directory) })
    }
}

impl Listener {
    /// Accepts a connection if one waits.
    pub(crate) fn accept(&self) -> io::Result<Option<Stream>> {
        match rustix::net::accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(Stream(socket))),
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Stream {
    /// Asks who made the other end: whoever connected, or whoever listens.
    pub(crate) fn peer(&self) -> io::Result<Peer> {
        // Not rustix's: a process of another namespace has number 0 here, which its type cannot be.
        let mut answer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        option(&self.0, libc::SO_PEERCRED, &mut answer)?;
        Ok(Peer { process: u32::try_from(answer.pid).unwrap_or(0), user: answer.uid })
    }

    /// Takes hold of the process that connected; `None` if it is gone, or cannot be told from another any more.
    ///
    /// # Errors
    ///
    /// The kernel has no pidfds, or the process has no number here.
    pub(crate) fn process(&self) -> io::Result<Option<Process>> {
        let mut descriptor: libc::c_int = -1;
        match option(&self.0, SO_PEERPIDFD, &mut descriptor) {
            // SAFETY: the kernel has just made this descriptor for us, and nobody else knows it.
            #[allow(unsafe_code)]
            Ok(()) if descriptor >= 0 => return Ok(Some(Process(unsafe { OwnedFd::from_raw_fd(descriptor) }))),
            // Kernels differ in what they say of a process that has been waited for.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EINVAL)) => return Ok(None),
            // Kernels before 6.5 do not know the option.
            _ => {}
        }
        self.process_by_number()
    }

    /// The same on kernels that give no pidfd of a peer.
    fn process_by_number(&self) -> io::Result<Option<Process>> {
        let number = i32::try_from(self.peer()?.process).ok().and_then(rustix::process::Pid::from_raw);
        let number = number.ok_or(io::ErrorKind::Unsupported)?;
        match rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty()) {
            // A number is used again only after its process's death, which closes the connection, unless a forked child
            // has it too.
            Ok(_) if self.is_hung_up()? => Ok(None),
            Ok(process) => Ok(Some(Process(process))),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn is_hung_up(&self) -> io::Result<bool> {
        let mut question = [PollFd::new(&self.0, HUNG_UP)];
        rustix::event::poll(&mut question, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        Ok(question[0].revents().intersects(HUNG_UP))
    }

    /// Leaves the connection as it is, without closing it: it is another process's, or its number means something else.
    pub(crate) fn abandon(self) {
        std::mem::forget(self);
    }

    /// Sends all of it at once, or fails: what is said here is short.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }

    /// Receives what is there; 0 bytes at the end of the connection, `WouldBlock` if nothing has come yet.
    pub(crate) fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::net::recv(&self.0, &mut *into, RecvFlags::DONTWAIT) {
                Ok((count, _)) => return Ok(count),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Number of the option that asks for a pidfd of the peer; the same everywhere but on SPARC.
const SO_PEERPIDFD: libc::c_int = if cfg!(any(target_arch = "sparc", target_arch = "sparc64")) { 0x56 } else { 77 };

/// Reads an option of a socket, a C structure of integers.
#[allow(unsafe_code)]
fn option<T: Copy>(socket: &OwnedFd, name: libc::c_int, answer: &mut T) -> io::Result<()> {
    let mut length = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    let at: *mut T = answer;
    // SAFETY: the descriptor is open; the kernel writes at most `length` bytes at `at`, which is a `T`, and both options
    // asked for here write integers, for which every byte is valid.
    let done = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, at.cast(), &raw mut length) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Rings; more than once is as good as once.
    pub(crate) fn ring(&self) {
        let _full = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl Source<'_> {
    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Listener(Listener(fd))
            | Self::Stream(Stream(fd))
            | Self::Process(Process(fd))
            | Self::Bell(Bell(fd)) => fd.as_fd(),
        }
    }
}

/// Waits until something happens at one of the sources, or the time is over, or a signal came; says for each whether it
/// did.
pub(crate) fn wait(sources: &[Source<'_>], limit: Option<Duration>) -> io::Result<Vec<bool>> {
    let limit = limit.map(|limit| Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let mut questions: Vec<PollFd<'_>> =
        sources.iter().map(|source| PollFd::from_borrowed_fd(source.descriptor(), PollFlags::IN)).collect();
    match rustix::event::poll(&mut questions, limit.as_ref()) {
        Ok(_) => Ok(questions.iter().map(|answer| !answer.revents().is_empty()).collect()),
        Err(Errno::INTR) => Ok(vec![false; sources.len()]),
        Err(error) => Err(error.into()),
    }
}

/// Whether this user owns it.
pub(crate) fn is_own(facts: &Facts) -> bool {
    is_this_user(facts.owner)
}

/// Whether it is this process's effective user.
pub(crate) fn is_this_user(user: u32) -> bool {
    user == user_id()
}

/// Makes a path of the bytes that the kernel knows it by.
#[allow(clippy::unnecessary_wraps)] // not every system's paths are bytes
pub(crate) fn path_from(bytes: Vec<u8>) -> Option<PathBuf> {
    Some(OsString::from_vec(bytes).into())
}

/// Whether the program at `path`, and the link if it is one, are of somebody whom the user of `model` trusts already:
/// this user, the system, or that program's owner.
pub(crate) fn is_trusted_like(path: &Path, model: &Path) -> bool {
    let owner = |path: &Path| std::fs::metadata(path).map(|facts| facts.uid());
    let (Ok(file), Ok(link), Ok(model)) = (owner(path), std::fs::symlink_metadata(path), owner(model)) else {
        return false;
    };
    [file, link.uid()].iter().all(|owner| [user_id(), 0, model].contains(owner))
}

/// Whether the process runs with rights that its caller has not (set-user-ID): it must not run what the caller names.
pub(crate) fn has_borrowed_rights() -> bool {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    getuid() != geteuid() || getgid() != getegid()
}

/// Puts a command that is about to be started into a process group of its own, out of the reach of Ctrl-C.
pub(crate) fn set_apart(command: &mut Command) {
    command.process_group(0);
}

/// Leaves session and terminal, if this process leads no process group.
pub(crate) fn leave_session() -> io::Result<()> {
    rustix::process::setsid()?;
    Ok(())
}

/// Keeps every descriptor but the standard three from the programs that this process starts from now on.
#[allow(unsafe_code)]
pub(crate) fn keep_descriptors() {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    // SAFETY: nothing is closed; descriptors get the flag that closes them in a program that is started. On kernels that
    // do not know the call (before 5.11) nothing happens.
    let _unknown =
        unsafe { libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_is_known_and_its_closing_seen() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        assert_eq!(connect(&path).expect_err("nobody listens").kind(), io::ErrorKind::NotFound);
        let listener = listen(&path).expect("listens");
        assert!(listener.accept().expect("nobody yet").is_none());
        let client = connect(&path).expect("connects");
        let stream = listener.accept().expect("accepts").expect("one waits");
        let own = Peer { process: std::process::id(), user: user_id() };
        assert_eq!((client.peer().expect("known"), stream.peer().expect("known")), (own, own));
        for process in [stream.process(), stream.process_by_number()] {
            let process = process.expect("pidfds").expect("this process lives");
            let ready = wait(&[Source::Process(&process), Source::Stream(&stream)], Some(Duration::ZERO));
            assert_eq!(ready.expect("waited"), [false, false]);
        }
        client.send(b"word").expect("room");
        let mut bytes = [0; 8];
        assert_eq!(stream.receive(&mut bytes).expect("received"), 4);
        assert_eq!(stream.receive(&mut bytes).expect_err("no more").kind(), io::ErrorKind::WouldBlock);
        drop(client);
        assert!(stream.process_by_number().expect("asked").is_none(), "whose number it is now nobody knows");
        assert_eq!(stream.receive(&mut bytes).expect("the end"), 0);
        drop(listener);
        assert_eq!(connect(&path).expect_err("a dead socket").kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_program_that_somebody_else_put_there_is_not_trusted() {
        let directory = tempfile::tempdir().expect("a directory");
        let (own, link) = (directory.path().join("own"), directory.path().join("link"));
        assert!(!is_trusted_like(&own, Path::new("/")), "there is none");
        std::fs::write(&own, b"").expect("written");
        std::os::unix::fs::symlink(&own, &link).expect("linked");
        assert!(is_trusted_like(&own, &own) && is_trusted_like(&link, &own));
        // Only root can give things away.
        if std::os::unix::fs::lchown(&link, Some(65534), None).is_ok() && user_id() == 0 {
            assert!(!is_trusted_like(&link, &own), "it may point to anything tomorrow");
            std::os::unix::fs::chown(&own, Some(65534), None).expect("given away");
            assert!(!is_trusted_like(&own, Path::new("/")));
            assert!(is_trusted_like(&own, &own), "whoever owns the running program is trusted");
        }
    }

    #[test]
    fn a_bell_that_was_rung_ends_every_wait() {
        let bell = Bell::new().expect("a bell");
        assert_eq!(wait(&[Source::Bell(&bell)], Some(Duration::from_millis(1))).expect("waited"), [false]);
        bell.ring();
        bell.ring();
        for _ in 0..2 {
            assert_eq!(wait(&[Source::Bell(&bell)], None).expect("waited"), [true]);
        }
    }
}
