//! Unix: connected stream sockets between processes of one machine, which carry bytes and open files.
//!
//! Each call says that it must not wait (`MSG_DONTWAIT`). That is not set on the open file description, which other
//! processes may share: a Python program at one end finds its socket unchanged. Waiting is poll(2), until a deadline.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, SocketType,
};

use super::credentials;
use crate::backoff::Backoff;
use crate::os::Peer;

/// Whether open files can be received without ever losing one: where peeking at a message (`MSG_PEEK`) returns copies
/// of its files and leaves the message in the socket.
pub(crate) const SOCKETS_CARRY_FILES: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// Linux's `SCM_MAX_FD`: as many files can be in one message.
const MOST_FILES: usize = 253;

/// Room for the control data of the largest message, and for other control data that options of the socket may add.
const CONTROL_SPACE: usize = rustix::cmsg_space!(ScmRights(MOST_FILES)) + 256;

/// How many times a message is peeked at if not all of its descriptors arrive although there is room for them.
const LOOKS: usize = 3;

/// A connected stream socket between two processes of this machine (`AF_UNIX`).
///
/// Made from a `UnixStream` or any descriptor of such a socket, an inherited one for instance, and turned back into a
/// descriptor. Bytes that were read from the stream before, or that other processes read, are missing here.
#[derive(Debug)]
pub struct Socket {
    descriptor: OwnedFd,
}

impl From<OwnedFd> for Socket {
    /// Takes the descriptor over. If it is no socket, its first use fails.
    fn from(descriptor: OwnedFd) -> Self {
        // These systems have no flag for a single call that prevents SIGPIPE when the receiver is gone.
        // A failure shows when the socket is used.
        #[cfg(target_vendor = "apple")]
        let _ = rustix::net::sockopt::set_socket_nosigpipe(&descriptor, true);
        // Only Linux keeps MSG_DONTWAIT. Other systems keep it for one direction or not at all.
        if !cfg!(any(target_os = "linux", target_os = "android")) {
            let _ = rustix::io::ioctl_fionbio(&descriptor, true);
        }
        Self { descriptor }
    }
}

impl From<UnixStream> for Socket {
    fn from(stream: UnixStream) -> Self {
        OwnedFd::from(stream).into()
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        socket.descriptor
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Makes two connected sockets. Started programs inherit neither of them.
pub(crate) fn pair() -> io::Result<(Socket, Socket)> {
    let (one, other) = UnixStream::pair()?;
    Ok((one.into(), other.into()))
}

impl Socket {
    /// Fails unless the socket is a stream. Other sockets send separate messages, and reading a part of one loses the
    /// rest.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a socket of another kind, and the system's own error for a descriptor that is no socket.
    pub(crate) fn require_stream(&self) -> io::Result<()> {
        if rustix::net::sockopt::socket_type(&self.descriptor)? == SocketType::STREAM {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "this socket is not a stream (SOCK_STREAM)"))
    }

    /// Returns the process at the other end.
    pub(crate) fn peer(&self) -> io::Result<Peer> {
        credentials::peer(self.as_fd())
    }

    /// Sends some of the bytes, at least one, and all the files with them. Returns how many bytes were sent.
    ///
    /// Waits for room in the socket, and for the receivers of this user's earlier messages if too many files are in
    /// flight.
    ///
    /// # Errors
    ///
    /// `TimedOut`; `BrokenPipe` or `ConnectionReset` if the other end is closed. Nothing was sent then.
    pub(crate) fn send(&self, parts: &[IoSlice<'_>], files: &[&File], deadline: Option<Instant>) -> io::Result<usize> {
        let files: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
        let flags = SendFlags::DONTWAIT;
        #[cfg(not(target_vendor = "apple"))]
        let flags = flags | SendFlags::NOSIGNAL;
        let send = || {
            let mut space = [MaybeUninit::uninit(); CONTROL_SPACE];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&files)) {
                return Err(Errno::INVAL);
            }
            rustix::net::sendmsg(&self.descriptor, parts, &mut control, flags)
        };
        let mut crowded = Backoff::new(left(deadline).unwrap_or(Duration::MAX));
        loop {
            match when_ready(self, PollFlags::OUT, deadline, send) {
                // unix(7): more files in flight than the user may have open. The kernel does not announce their
                // arrival.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::TOOMANYREFS) => {
                    if !crowded.pause() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                other => return other,
            }
        }
    }

    /// Receives some bytes, at least one. Returns 0 if the other end is closed and everything was read. Files that come
    /// with the bytes are closed.
    ///
    /// # Errors
    ///
    /// `TimedOut`, and `ConnectionReset` if the other end was closed with unread bytes. Nothing was received then.
    pub(crate) fn receive(&self, buffer: &mut [u8], deadline: Option<Instant>) -> io::Result<usize> {
        when_ready(self, PollFlags::IN, deadline, || {
            rustix::net::recv(&self.descriptor, &mut *buffer, RecvFlags::DONTWAIT).map(|(_, received)| received)
        })
    }

    /// Receives the one byte `count % 256` and the `count` files that were sent with it: all of them, or nothing.
    ///
    /// # Errors
    ///
    /// Every error leaves the message in the socket. Out of descriptors (`EMFILE`); `TimedOut`; `UnexpectedEof` or
    /// `ConnectionReset` if the other end is closed; `InvalidData` if another number of files is there;
    /// `PermissionDenied` if the system lets no file through; `Unsupported` where a message cannot be left in the
    /// socket.
    pub(crate) fn receive_files(&self, count: usize, deadline: Option<Instant>) -> io::Result<Vec<File>> {
        if !SOCKETS_CARRY_FILES {
            let reason = "only Linux can receive descriptors without losing some when none are free";
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        }
        for _ in 0..LOOKS {
            // Peeking makes copies of the files. Those in the message stay there.
            let (byte, files, complete) = self.peek_files(deadline)?;
            let Some(byte) = byte else { return Err(io::ErrorKind::UnexpectedEof.into()) };
            if !complete {
                drop(files);
                self.room_for(count)?;
                continue; // descriptors became free meanwhile
            }
            if files.len() != count || usize::from(byte) != count % 256 {
                let found = files.len();
                let reason = format!("{count} descriptors should follow, but {found} came, with the byte {byte}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
            }
            // Taking the byte without asking for files makes the kernel drop those of the message.
            let taken = self.receive(&mut [0], deadline)?;
            debug_assert_eq!(taken, 1);
            return Ok(files);
        }
        let reason = "the system lets none of these descriptors through (a security module?)";
        Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
    }

    /// Peeks at the next byte and the files that came with it. Also returns whether these are all files of the message.
    /// Returns no byte if the other end is closed.
    fn peek_files(&self, deadline: Option<Instant>) -> io::Result<(Option<u8>, Vec<File>, bool)> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        when_ready::<_, Errno>(self, PollFlags::IN, deadline, || {
            let mut byte = [0];
            let mut space = [MaybeUninit::uninit(); CONTROL_SPACE];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let answer =
                rustix::net::recvmsg(&self.descriptor, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
            let mut files = Vec::new();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    files.extend(descriptors.map(File::from));
                }
            }
            let byte = (answer.bytes > 0).then_some(byte[0]);
            Ok((byte, files, !answer.flags.contains(ReturnFlags::CTRUNC)))
        })
    }

    /// Succeeds if this process can open `count` more descriptors, which it does for a moment.
    ///
    /// # Errors
    ///
    /// Out of descriptors.
    pub(crate) fn room_for(&self, count: usize) -> io::Result<()> {
        let tried: Result<Vec<OwnedFd>, Errno> =
            (0..count).map(|_| rustix::io::fcntl_dupfd_cloexec(&self.descriptor, 0)).collect();
        Ok(tried.map(drop)?)
    }

    /// Ends this direction. The other end reads the bytes that were sent, and then the end of the stream.
    pub(crate) fn end_sending(&self) {
        // Fails if the connection is closed already.
        let _ = rustix::net::shutdown(&self.descriptor, Shutdown::Write);
    }
}

/// Returns how much time is left until a deadline, or `None` if there is no deadline.
pub(super) fn left(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
}

/// Repeats a call that does not wait until it returns something else than `WouldBlock`. Waits for the descriptor in
/// between.
pub(super) fn when_ready<T, E: Into<io::Error>>(
    descriptor: &impl AsFd,
    what: PollFlags,
    deadline: Option<Instant>,
    mut call: impl FnMut() -> Result<T, E>,
) -> io::Result<T> {
    loop {
        match call().map_err(Into::into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait(descriptor, what, deadline)?,
            other => return other,
        }
    }
}

/// Waits until the descriptor is ready, or broken, which the next call reports.
fn wait(descriptor: &impl AsFd, what: PollFlags, deadline: Option<Instant>) -> io::Result<()> {
    loop {
        let left = left(deadline);
        if left.is_some_and(|left| left.is_zero()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // A limit that does not fit the type is none.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(descriptor, what)], left.as_ref()) {
            Ok(0) | Err(Errno::INTR) => {} // the clock decides
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
#[path = "socket_tests.rs"]
mod tests;
