//! How a child ended, and the error that reports a failure.

use std::borrow::Cow;
use std::fmt;
use std::process::ExitStatus;

use crate::os;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ending {
    /// The process exited with this code.
    Exited(i32),
    /// The process was killed by the signal of this number.
    Signal(i32),
    /// The process could not be started. Only with [`keep_going`](super::SpawnOptions::keep_going).
    NotStarted,
    /// The exit status is unknown: another part of this program waited for the process, or SIGCHLD is ignored.
    Unknown,
    /// Not an end: a forked child cannot wait for the processes of its parent.
    Unsupported,
}

impl Ending {
    pub(super) fn of(status: ExitStatus) -> Self {
        match (status.code(), os::ending_signal(status)) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Unknown,
        }
    }

    /// Returns the exit code, if the process exited.
    pub fn code(self) -> Option<i32> {
        if let Self::Exited(code) = self { Some(code) } else { None }
    }

    /// Returns the name of the signal that killed the process, such as `SIGKILL`, or `signal 40` for one without a
    /// name.
    pub fn signal_name(self) -> Option<Cow<'static, str>> {
        if let Self::Signal(signal) = self { Some(os::signal_name(signal)) } else { None }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Windows status codes such as 0xc0000409 are negative here and usually written in hexadecimal.
            Self::Exited(code) if *code < 0 => write!(f, "ended with exit code {code:#x}"),
            Self::Exited(code) => write!(f, "ended with exit code {code}"),
            Self::Signal(signal) => write!(f, "was killed by {}", os::signal_name(*signal)),
            Self::NotStarted => write!(f, "could not be started"),
            Self::Unknown => write!(
                f,
                "ended with an unknown status (another part of this program waited for it, or SIGCHLD is ignored)"
            ),
            Self::Unsupported => write!(
                f,
                "cannot be waited for, because this process was forked from the one that started it: wait there, or start \
                 processes here"
            ),
        }
    }
}

/// The failure of a child of [`spawn`](super::spawn()): its index, how it ended, and its message, if it left one.
///
/// `Display` writes all of it: "process 2 (pid 4711) was killed by SIGKILL", "process 0 (pid 4711) failed: MESSAGE", or
/// "process 1 could not be started: REASON".
///
/// In a process that was forked from the one that called `spawn` it says that the child cannot be waited for there:
/// [`Ending::Unsupported`].
/// `Debug`, which a `main` that returns an error prints, is the type's name and the same text.
#[derive(Clone, PartialEq, Eq)]
pub struct ChildError {
    pub(super) index: usize,
    pub(super) pid: u32,
    pub(super) ending: Ending,
    pub(super) status: Option<ExitStatus>,
    pub(super) message: Option<String>,
}

impl ChildError {
    pub(super) fn ended(index: usize, pid: u32, status: Option<ExitStatus>, message: Option<String>) -> Self {
        Self { index, pid, ending: status.map_or(Ending::Unknown, Ending::of), status, message }
    }

    pub(super) fn not_started(index: usize, why: String) -> Self {
        Self { index, pid: 0, ending: Ending::NotStarted, status: None, message: Some(why) }
    }

    /// Returns the error for a forked child, which has inherited the handle of its parent's processes.
    pub(super) fn inherited(index: usize, pid: u32) -> Self {
        Self { index, pid, ending: Ending::Unsupported, status: None, message: None }
    }

    /// Returns the index of the child, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the process id that the child had; the system may have given it to another process since. It is 0 if the
    /// child could not be started.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns how the child ended.
    pub fn ending(&self) -> Ending {
        self.ending
    }

    /// Returns the exit status, or `None` if the child could not be started, its status is unknown, or this process
    /// cannot wait for it.
    pub fn status(&self) -> Option<ExitStatus> {
        self.status
    }

    /// Returns the message: an entry's error with all its causes, or its panic with the place in the source. For a
    /// child that could not be started, it is the program and the reason.
    ///
    /// Returns `None` for programs that are not entries, and for a child that was killed or called `exit` itself.
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }
}

impl fmt::Display for ChildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, pid, ending, message, .. } = self;
        match message {
            Some(why) if *ending == Ending::NotStarted => write!(f, "process {index} {ending}: {why}"),
            Some(message) => write!(f, "process {index} (pid {pid}) failed: {message}"),
            None => write!(f, "process {index} (pid {pid}) {ending}"),
        }
    }
}

impl fmt::Debug for ChildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChildError: {self}")
    }
}

impl std::error::Error for ChildError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_describes_every_ending() {
        let said = |ending, message: Option<&str>| {
            ChildError { index: 2, pid: 4711, ending, status: None, message: message.map(Into::into) }.to_string()
        };
        assert_eq!(said(Ending::Exited(3), None), "process 2 (pid 4711) ended with exit code 3");
        assert_eq!(said(Ending::Exited(-1_073_740_791), None), "process 2 (pid 4711) ended with exit code 0xc0000409");
        assert_eq!(said(Ending::Exited(1), Some("no room")), "process 2 (pid 4711) failed: no room");
        assert_eq!(said(Ending::Signal(1000), None), "process 2 (pid 4711) was killed by signal 1000");
        assert!(said(Ending::Unknown, None).contains("an unknown status"));
        let inherited = ChildError::inherited(2, 4711).to_string();
        assert!(inherited.starts_with("process 2 (pid 4711) cannot be waited for"), "{inherited}");
        let error = ChildError::not_started(0, "`em`: gone".to_owned());
        assert_eq!(error.to_string(), "process 0 could not be started: `em`: gone");
        for text in [format!("{error:?}"), format!("{error:#?}")] {
            assert_eq!(text, "ChildError: process 0 could not be started: `em`: gone");
        }
    }
}
