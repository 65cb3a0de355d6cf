//! Children on Unix: what happens between fork(2) and exec(2), how they end, and the file for their reports.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use rustix::io::FdFlags;
use rustix::process::{Pid, Signal};

use super::facts;
use crate::os::Stop;

/// The first descriptor after the standard ones, which are replaced in a child.
const FIRST_FREE: i32 = 3;

/// Returns a descriptor of the file that no child's standard streams replace, and the argument by which a child finds
/// it.
pub(in crate::os) fn for_children(file: &File) -> io::Result<(File, OsString)> {
    let file = File::from(rustix::io::fcntl_dupfd_cloexec(file, FIRST_FREE)?);
    let name = file.as_raw_fd().to_string().into();
    Ok((file, name))
}

/// In a child: returns the file that [`for_children`] described, and keeps it from the child's own children.
///
/// The argument comes from the command line, which any program may have written. So the descriptor is never closed, and
/// only a file without a name is accepted.
#[allow(unsafe_code)]
pub(crate) fn inherited_report(name: &OsStr) -> io::Result<ManuallyDrop<File>> {
    let number = name.to_str().and_then(|name| name.parse().ok()).filter(|number| *number >= FIRST_FREE);
    let number: i32 = number.ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: fcntl(2) with F_GETFD refuses a number that is not open, and changes nothing. The borrowed descriptor is
    // used for nothing else.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(descriptor)?;
    // SAFETY: the descriptor is open, as the call before has shown, and the parent opened it for this process alone. It
    // is not closed here, whatever value owns it.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(number) });
    let facts = facts(&file)?;
    if facts.links > 0 || facts.other.is_some() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    rustix::io::fcntl_setfd(&*file, FdFlags::CLOEXEC)?;
    Ok(file)
}

/// Lets a child inherit the report's descriptor, and run `also` before it executes its program.
///
/// `also` runs in the forked child of a process that may have other threads. It may make system calls, but neither
/// allocate nor lock: see signal-safety(7).
#[allow(unsafe_code)]
pub(in crate::os) fn before_exec(
    command: &mut Command,
    report: Option<Arc<File>>,
    also: impl Fn() -> io::Result<()> + Send + Sync + 'static,
) {
    let hook = move || {
        also()?;
        if let Some(report) = &report {
            rustix::io::fcntl_setfd(report, FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: the hook only makes system calls, which touch neither memory nor locks of the process it was copied from.
    // An error that it returns is a number, so nothing is allocated for it. It owns the file, so the descriptor is open
    // in the child.
    unsafe { command.pre_exec(hook) };
}

impl Stop {
    pub(in crate::os) fn signal(self) -> Signal {
        match self {
            Self::Ask => Signal::TERM,
            Self::Kill => Signal::KILL,
        }
    }
}

pub(in crate::os) fn number(id: u32) -> Option<Pid> {
    i32::try_from(id).ok().and_then(Pid::from_raw)
}

/// Sends the signal to the group that a child leads, if it leads one.
pub(in crate::os) fn signal_group(pid: Pid, signal: Signal) {
    if rustix::process::getpgid(Some(pid)) == Ok(pid) {
        let _ = rustix::process::kill_process_group(pid, signal); // the group may be empty by now
    }
}

/// Returns the signal that ended a process, if one did.
pub(crate) fn ending_signal(status: ExitStatus) -> Option<i32> {
    status.signal()
}

/// Whether the process ended itself as abort(3) does.
pub(crate) fn is_abort(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGABRT)
}

/// Signals with their names.
macro_rules! signals {
    ($($name:ident),*) => { &[$((libc::$name, stringify!($name))),*] };
}

/// Signals that every Unix has.
const SIGNALS: &[(i32, &str)] = signals![
    SIGHUP, SIGINT, SIGQUIT, SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGUSR1, SIGSEGV, SIGUSR2, SIGPIPE,
    SIGALRM, SIGTERM, SIGXCPU, SIGXFSZ, SIGVTALRM, SIGPROF, SIGIO, SIGSYS
];

/// Signals that not every Unix has.
#[cfg(any(target_os = "linux", target_os = "android"))]
const OTHERS: &[(i32, &str)] = signals![SIGPWR];
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const OTHERS: &[(i32, &str)] = signals![];

/// Returns a signal's name, or its number if it has no name.
pub(crate) fn signal_name(signal: i32) -> Cow<'static, str> {
    match SIGNALS.iter().chain(OTHERS).find(|(known, _)| *known == signal) {
        Some((_, name)) => (*name).into(),
        None => format!("signal {signal}").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(name: &str) -> io::Result<ManuallyDrop<File>> {
        inherited_report(OsStr::new(name))
    }

    #[test]
    fn only_a_nameless_file_is_accepted_as_report() {
        let (report, name) = for_children(&tempfile::tempfile().unwrap()).unwrap();
        inherited_report(&name).unwrap();
        let named = tempfile::NamedTempFile::new().unwrap();
        for number in [named.as_raw_fd(), 0, -1, i32::MAX] {
            assert!(open(&number.to_string()).is_err(), "{number}");
        }
        assert!(open("").is_err() && open("report").is_err());
        assert!(report.metadata().is_ok() && named.as_file().metadata().is_ok(), "nothing was closed");
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(signal_name(9), "SIGKILL");
        assert_eq!(signal_name(15), "SIGTERM");
        assert_eq!(signal_name(1000), "signal 1000");
    }
}
