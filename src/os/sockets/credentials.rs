//! Unix: the process at the other end of a socket, as the kernel recorded it when the two were connected.
//!
//! rustix has the call for Linux, but its type says that a process number is never 0, and of a process in a foreign pid
//! namespace it is.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::os::Peer;

cfg_if::cfg_if! {
    if #[cfg(any(target_os = "linux", target_os = "android"))] {
        use std::os::fd::{FromRawFd, OwnedFd};

        /// Number of the option that returns a pidfd of the peer; the same everywhere but on SPARC.
        const SO_PEERPIDFD: libc::c_int = if cfg!(any(target_arch = "sparc", target_arch = "sparc64")) { 0x56 } else { 77 };

        /// Returns the peer by `SO_PEERCRED`. See <https://man7.org/linux/man-pages/man7/unix.7.html>.
        pub(crate) fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
            let mut answer = libc::ucred { pid: 0, uid: 0, gid: 0 };
            option(socket, libc::SO_PEERCRED, &mut answer)?;
            Ok(Peer { user: answer.uid, process: u32::try_from(answer.pid).ok().filter(|number| *number != 0) })
        }

        /// Returns a pidfd of the peer.
        ///
        /// # Errors
        ///
        /// `ENOPROTOOPT` before Linux 6.5; `ESRCH` or `EINVAL`, as kernels differ, if the process has been waited for.
        pub(crate) fn pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
            let mut descriptor: libc::c_int = -1;
            option(socket, SO_PEERPIDFD, &mut descriptor)?;
            if descriptor < 0 {
                return Err(io::ErrorKind::Unsupported.into());
            }
            // SAFETY: the kernel has just made this descriptor for this call, and no other value owns it.
            #[allow(unsafe_code)]
            Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
        }

        /// Reads an option of a socket, a C structure of integers.
        #[allow(unsafe_code)]
        fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int, answer: &mut T) -> io::Result<()> {
            let mut length = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
            let (socket, at): (_, *mut T) = (socket.as_raw_fd(), answer);
            // SAFETY: the descriptor is open for the whole call; the kernel writes at most `length` bytes at `at`,
            // which is a `T`, and both options that are read here write integers, for which every byte is valid.
            let done = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, name, at.cast(), &raw mut length) };
            if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        }
    } else {
        /// Returns the peer by getpeereid(3), which returns its user and not its process.
        #[allow(unsafe_code)]
        pub(crate) fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
            let (mut user, mut group) = (0, 0);
            // SAFETY: the descriptor is open for the whole call, and both numbers can be written to.
            let status = unsafe { libc::getpeereid(socket.as_raw_fd(), &raw mut user, &raw mut group) };
            if status == -1 {
                return Err(io::Error::last_os_error());
            }
            Ok(Peer { user, process: None })
        }
    }
}
