//! Unix: who is at the other end of a socket, as the kernel wrote it down when the two were connected.
//!
//! rustix has the call for Linux, but its type says that a process number is never 0, and of a process in a foreign pid
//! namespace it is.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::Peer;

cfg_if::cfg_if! {
    if #[cfg(any(target_os = "linux", target_os = "android"))] {
        /// Asks for `SO_PEERCRED`. See <https://man7.org/linux/man-pages/man7/unix.7.html>.
        #[allow(unsafe_code)]
        pub(super) fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
            let mut answer = libc::ucred { pid: 0, uid: 0, gid: 0 };
            let size = std::mem::size_of::<libc::ucred>();
            let mut length = libc::socklen_t::try_from(size).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
            // SAFETY: the descriptor is open for the whole call; the kernel writes at most `length` bytes into `answer`,
            // which is that long, and any bytes are a valid `ucred`.
            let status = unsafe {
                libc::getsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_SOCKET,
                    libc::SO_PEERCRED,
                    (&raw mut answer).cast(),
                    &raw mut length,
                )
            };
            if status == -1 {
                return Err(io::Error::last_os_error());
            }
            let process = u32::try_from(answer.pid).ok().filter(|number| *number != 0);
            Ok(Peer { user: answer.uid, process })
        }
    } else if #[cfg(any(
        target_vendor = "apple",
        target_os = "dragonfly",
        target_os = "freebsd",
        target_os = "netbsd",
        target_os = "openbsd",
    ))] {
        /// Asks getpeereid(3), which knows users and no processes.
        #[allow(unsafe_code)]
        pub(super) fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
            let (mut user, mut group) = (0, 0);
            // SAFETY: the descriptor is open for the whole call, and both numbers can be written to.
            let status = unsafe { libc::getpeereid(socket.as_raw_fd(), &raw mut user, &raw mut group) };
            if status == -1 {
                return Err(io::Error::last_os_error());
            }
            Ok(Peer { user, process: None })
        }
    } else {
        /// There is no way to ask that is known here.
        pub(super) fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
            let _unused = socket.as_raw_fd();
            let reason = "this system does not tell who is at the other end of a socket";
            Err(io::Error::new(io::ErrorKind::Unsupported, reason))
        }
    }
}
