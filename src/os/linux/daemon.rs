//! Linux: functions for a background process that serves other processes. It waits for several sockets and for the
//! death of the processes at their other ends, trusts no other user, and depends on no process that may end before it
//! does.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::os::posix::children::number;
use crate::os::sockets::credentials;
use crate::os::{Bell, Listener, Socket, user_id};

/// The flags by which poll(2) reports the end of a connection.
const HUNG_UP: PollFlags = PollFlags::HUP.union(PollFlags::RDHUP).union(PollFlags::ERR);

/// Succeeds where this module works. Elsewhere it returns the reason.
#[allow(clippy::unnecessary_wraps)] // elsewhere it fails
pub(crate) fn supported() -> io::Result<()> {
    Ok(())
}

/// A pidfd. It stays the same process even when the number is reused.
#[derive(Debug)]
pub(crate) struct Process(pub(super) OwnedFd);

impl Process {
    /// Opens a child that has not been waited for. Returns `None` where there are no pidfds, as in some sandboxes.
    pub(super) fn of_child(child: &Child) -> Option<Self> {
        pidfd_open(number(child.id())?, PidfdFlags::empty()).ok().map(Self)
    }

    /// Opens the process that connected. Returns `None` if it is gone, or cannot be told from another process any more.
    ///
    /// # Errors
    ///
    /// The kernel has no pidfds, or the process has no number here.
    pub(crate) fn of_peer(socket: &Socket) -> io::Result<Option<Self>> {
        match credentials::pidfd(socket.as_fd()) {
            Ok(process) => Ok(Some(Self(process))),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ESRCH | libc::EINVAL)) => Ok(None),
            Err(_) => Self::by_number(socket),
        }
    }

    /// Does the same on kernels that return no pidfd of a peer.
    fn by_number(socket: &Socket) -> io::Result<Option<Self>> {
        let process = socket.peer()?.process.and_then(number);
        match pidfd_open(process.ok_or(io::ErrorKind::Unsupported)?, PidfdFlags::empty()) {
            // The pidfd may be of a later process with the same number. But a number is reused only after the death of
            // its process, which closes the connection, unless a forked child has it too. So the connection is checked
            // after the pidfd was opened.
            Ok(_) if is_hung_up(socket)? => Ok(None),
            Ok(process) => Ok(Some(Self(process))),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

fn is_hung_up(socket: &Socket) -> io::Result<bool> {
    let mut question = [PollFd::new(socket, HUNG_UP)];
    poll(&mut question, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(question[0].revents().intersects(HUNG_UP))
}

/// What [`wait`] can wait for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Source<'a> {
    /// A connection to accept.
    Listener(&'a Listener),
    /// Bytes, or the end of them.
    Socket(&'a Socket),
    /// A death.
    Process(&'a Process),
    /// A ring, which lasts until the bell is silenced.
    Bell(&'a Bell),
}

impl AsFd for Source<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Listener(listener) => listener.as_fd(),
            Self::Socket(socket) => socket.as_fd(),
            Self::Process(Process(pidfd)) => pidfd.as_fd(),
            Self::Bell(bell) => bell.as_fd(),
        }
    }
}

/// Waits until something happens at one of the sources, or the time is over, or a signal arrives. Returns for each
/// source whether something happened.
pub(crate) fn wait(sources: &[Source<'_>], limit: Option<Duration>) -> io::Result<Vec<bool>> {
    // A limit that does not fit the type is none.
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    let mut questions: Vec<PollFd<'_>> = sources.iter().map(|source| PollFd::new(source, PollFlags::IN)).collect();
    match poll(&mut questions, limit.as_ref()) {
        Ok(_) => Ok(questions.iter().map(|answer| !answer.revents().is_empty()).collect()),
        Err(Errno::INTR) => Ok(vec![false; sources.len()]),
        Err(error) => Err(error.into()),
    }
}

/// Whether the program at `path`, and the link if it is one, belong to a user that the user of `model` trusts already:
/// this user, the system, or that program's owner.
pub(crate) fn is_trusted_like(path: &Path, model: &Path) -> bool {
    let owner = |path: &Path| std::fs::metadata(path).map(|facts| facts.uid());
    let (Ok(file), Ok(link), Ok(model)) = (owner(path), std::fs::symlink_metadata(path), owner(model)) else {
        return false;
    };
    [file, link.uid()].iter().all(|owner| [user_id(), 0, model].contains(owner))
}

/// Whether the process has rights that its caller lacks (set-user-ID). Then it must not run a program that the caller
/// names.
pub(crate) fn has_borrowed_rights() -> bool {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    getuid() != geteuid() || getgid() != getegid()
}

/// Puts a command that is about to be started into a process group of its own, out of the reach of Ctrl-C.
pub(crate) fn set_apart(command: &mut Command) {
    command.process_group(0);
}

/// Leaves session and terminal. Fails if this process leads a process group.
pub(crate) fn leave_session() -> io::Result<()> {
    rustix::process::setsid()?;
    Ok(())
}

/// Marks every descriptor but the standard three so that programs started from now on do not inherit it.
#[allow(unsafe_code)]
pub(crate) fn keep_descriptors() {
    const CLOSE_RANGE_CLOEXEC: libc::c_uint = 4;
    // SAFETY: nothing is closed; descriptors get the flag that closes them in a program that is started. On kernels
    // that do not know the call (before 5.11) nothing happens.
    let _ = unsafe { libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, libc::c_uint::MAX, CLOSE_RANGE_CLOEXEC) };
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::os::sockets::testing::no_children;
    use crate::os::{Peer, connect, listen};

    #[test]
    fn peer_is_watched_and_its_closing_is_seen() {
        let _guard = no_children();
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = listen(&path).expect("listens");
        let now = || Some(Instant::now());
        let ready = |sources: &[Source<'_>]| wait(sources, Some(Duration::ZERO)).expect("waited");
        assert_eq!(ready(&[Source::Listener(&listener)]), [false]);
        let client = connect(&path, now()).expect("connects");
        assert_eq!(ready(&[Source::Listener(&listener)]), [true]);
        let socket = listener.accept(now()).expect("one waits");
        let own = Peer { process: Some(std::process::id()), user: user_id() };
        assert_eq!((client.peer().expect("known"), socket.peer().expect("known")), (own, own));
        for process in [Process::of_peer(&socket), Process::by_number(&socket)] {
            let process = process.expect("pidfds").expect("this process lives");
            assert_eq!(ready(&[Source::Process(&process), Source::Socket(&socket)]), [false, false]);
        }
        drop(client);
        assert_eq!(ready(&[Source::Socket(&socket)]), [true]);
        assert!(Process::by_number(&socket).expect("asked").is_none(), "the number may be another process's now");
    }

    #[test]
    fn program_of_another_user_is_not_trusted() {
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
            assert!(is_trusted_like(&own, &own), "the owner of the running program is trusted");
        }
    }

    #[test]
    fn rung_bell_ends_every_wait() {
        let bell = Bell::new().expect("a bell");
        assert_eq!(wait(&[Source::Bell(&bell)], Some(Duration::from_millis(1))).expect("waited"), [false]);
        bell.ring();
        bell.ring();
        for _ in 0..2 {
            assert_eq!(wait(&[Source::Bell(&bell)], None).expect("waited"), [true]);
        }
    }
}
