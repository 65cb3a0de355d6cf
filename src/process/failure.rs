//! How a child ended, and the error that says so.

use std::borrow::Cow;
use std::fmt;
use std::process::ExitStatus;

use crate::os;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ending {
    /// By itself, with this exit code.
    Exited(i32),
    /// By the signal of this number.
    Signal(i32),
    /// Before it began: it could not be started, and the others were to [go on](super::SpawnOptions::keep_going).
    NotStarted,
    /// Nobody knows: its exit status was taken by something else in this process, or SIGCHLD is ignored.
    Unknown,
}

impl Ending {
    pub(super) fn of(status: ExitStatus) -> Self {
        match (status.code(), os::ending_signal(status)) {
            (Some(code), _) => Self::Exited(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Unknown,
        }
    }

    /// Returns the exit code of a process that ended by itself.
    pub fn code(self) -> Option<i32> {
        if let Self::Exited(code) = self { Some(code) } else { None }
    }

    /// Returns the name of the signal that ended the process, such as `SIGKILL`; `signal 40` where it has none.
    pub fn signal_name(self) -> Option<Cow<'static, str>> {
        if let Self::Signal(signal) = self { Some(os::signal_name(signal)) } else { None }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // What Windows calls a status is told in hexadecimal.
            Self::Exited(code) if *code < 0 => write!(f, "ended with exit code {code:#x}"),
            Self::Exited(code) => write!(f, "ended with exit code {code}"),
            Self::Signal(signal) => write!(f, "was killed by {}", os::signal_name(*signal)),
            Self::NotStarted => write!(f, "could not be started"),
            Self::Unknown => write!(
                f,
                "ended nobody knows how (its exit status was taken by something else in this process, or SIGCHLD is ignored)"
            ),
        }
    }
}

/// The failure of a child of [`spawn`](super::spawn()): which one it was, how it ended, and why, if it could say so.
///
/// `Display` says all of it: "process 2 (pid 4711) was killed by SIGKILL", "process 0 (pid 4711) failed: " and the message, or
/// "process 1 could not be started: " and why.
#[derive(Debug, Clone, PartialEq, Eq)]
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

    /// Returns which of the children it was, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the number that the process had; another may have it by now. 0 for one that could not be started.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns how it ended.
    pub fn ending(&self) -> Ending {
        self.ending
    }

    /// Returns the exit status as the standard library has it; `None` if there was none, or nobody knows it.
    pub fn status(&self) -> Option<ExitStatus> {
        self.status
    }

    /// Returns what an entry said: its error with all causes, or its panic with the place in the source. For a process that
    /// could not be started, the program and the reason.
    ///
    /// `None` for other programs, and for a child that was killed or chose its exit code itself.
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

impl std::error::Error for ChildError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_end_is_said_in_words() {
        let said = |ending, message: Option<&str>| {
            ChildError { index: 2, pid: 4711, ending, status: None, message: message.map(Into::into) }.to_string()
        };
        assert_eq!(said(Ending::Exited(3), None), "process 2 (pid 4711) ended with exit code 3");
        assert_eq!(said(Ending::Exited(-1_073_740_791), None), "process 2 (pid 4711) ended with exit code 0xc0000409");
        assert_eq!(said(Ending::Exited(1), Some("no room")), "process 2 (pid 4711) failed: no room");
        assert_eq!(said(Ending::Signal(1000), None), "process 2 (pid 4711) was killed by signal 1000");
        assert!(said(Ending::Unknown, None).contains("nobody knows how"));
        let error = ChildError::not_started(0, "`em`: gone".to_owned());
        assert_eq!(error.to_string(), "process 0 could not be started: `em`: gone");
    }
}
