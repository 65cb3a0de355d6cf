//! How children are started.

use std::fmt;
use std::process::Command;
use std::time::Duration;

use super::processes::Processes;
use super::report::Report;
use super::{entry, supervisor};
use crate::error::Error;
use crate::{Result, os};

type Configure<'a> = Box<dyn FnMut(usize, &mut Command) + 'a>;

/// How to start children: with what time to end, environment, directory and streams.
///
/// # Examples
///
/// ```
/// use std::process::{Command, Stdio};
/// use std::time::Duration;
///
/// use ndarray_shm::process::SpawnOptions;
///
/// let processes = SpawnOptions::new()
///     .grace(Duration::from_secs(1))
///     .configure(|index, command| {
///         command.env("RANK", index.to_string()).stdout(Stdio::null());
///     })
///     .spawn_commands(2, |_| Command::new("whoami"))?;
/// processes.join()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SpawnOptions<'a> {
    grace: Duration,
    configure: Configure<'a>,
}

impl<'a> SpawnOptions<'a> {
    /// Begins with the defaults: 30 seconds of grace, everything else inherited.
    pub fn new() -> Self {
        Self { grace: Duration::from_secs(30), configure: Box::new(|_, _| {}) }
    }

    /// Sets how long a child may take to end after SIGTERM before it gets SIGKILL.
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// Lets the caller adjust the command of each child, by its index, before it is started.
    ///
    /// Arguments added to an entry's command follow those that all get. A stream that is made a pipe is taken from
    /// [`Processes`] afterwards.
    pub fn configure(self, configure: impl FnMut(usize, &mut Command) + 'a) -> Self {
        Self { configure: Box::new(configure), ..self }
    }

    /// Runs an entry of this program in `count` processes.
    ///
    /// # Errors
    ///
    /// - [`InvalidSetting`](Error::InvalidSetting): [`init`](super::init) was not called with this entry
    /// - [`TooManyOpenFiles`](Error::TooManyOpenFiles): each child takes a descriptor on Linux
    /// - [`Os`](Error::Os): a process could not be started. Those that were have been killed.
    pub fn spawn(self, count: usize, entry: &str, arguments: &[&str]) -> Result<Processes> {
        let report = Report::create().map_err(|error| failed("making room for last words", entry, error))?;
        let commands = (0..count).map(|index| entry::command(entry, index, count, arguments, &report));
        let commands = commands.collect::<Result<_>>()?;
        self.start(commands, Some(report))
    }

    /// Runs a program in each of `count` processes; `command` says which, by the index.
    ///
    /// Any end but that with exit code 0 is a failure. A program that is no entry leaves no message.
    ///
    /// # Errors
    ///
    /// [`TooManyOpenFiles`](Error::TooManyOpenFiles) and [`Os`](Error::Os), as for [`spawn`](Self::spawn).
    pub fn spawn_commands(self, count: usize, command: impl FnMut(usize) -> Command) -> Result<Processes> {
        let commands = (0..count).map(command).collect();
        self.start(commands, None)
    }

    fn start(mut self, mut commands: Vec<Command>, report: Option<Report>) -> Result<Processes> {
        for (index, command) in commands.iter_mut().enumerate() {
            (self.configure)(index, command);
            os::prepare_child(command, report.as_ref().map(Report::file));
        }
        supervisor::start(commands, report, self.grace).map(Processes::new)
    }
}

impl Default for SpawnOptions<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SpawnOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpawnOptions").field("grace", &self.grace).finish_non_exhaustive()
    }
}

/// An answer of the system about a process, where "not found" means no array.
pub(super) fn failed(op: &'static str, what: impl fmt::Display, source: std::io::Error) -> Error {
    if os::is_out_of_descriptors(&source) {
        return Error::os(op, what, source);
    }
    Error::Os { op, location: what.to_string(), source }
}
