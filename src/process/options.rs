//! Options for starting children.

use std::fmt;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::processes::Processes;
use super::report::Report;
use super::supervisor::Policy;
use super::{entry, supervisor};
use crate::backend::chosen_variable;
use crate::error::{Error, Result};
use crate::os;

type Configure<'a> = Box<dyn FnMut(usize, &mut Command) + 'a>;

/// Options for starting children: grace period, environment, directory and streams, and whether one failure ends all.
///
/// Children use the directory that [`set_emulate_shm`](crate::set_emulate_shm) chose in this process, unless their
/// command sets or removes the environment variable for it.
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
    policy: Policy,
    configure: Configure<'a>,
}

impl<'a> SpawnOptions<'a> {
    /// Begins with the defaults: a grace period of 30 seconds, the first failure ends all, everything else is
    /// inherited.
    pub fn new() -> Self {
        let policy = Policy { grace: Duration::from_secs(30), keep_going: false };
        Self { policy, configure: Box::new(|_, _| {}) }
    }

    /// Sets the grace period: how long a child may take to end after SIGTERM before it gets SIGKILL.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.policy.grace = grace;
        self
    }

    /// Sets whether the other children go on when one fails. Use it if any child can do the work of another.
    ///
    /// A child that cannot be started is then a failure like any other, [`NotStarted`](super::Ending::NotStarted), and
    /// `spawn` succeeds. [`join`](Processes::join) returns the first failure when all children have ended.
    /// [`next_end`](Processes::next_end) returns each end as it happens.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::process::Command;
    ///
    /// use ndarray_shm::process::{Ending, SpawnOptions};
    ///
    /// let program = |index| Command::new(if index == 0 { "/no/such/program" } else { "whoami" });
    /// let processes = SpawnOptions::new().keep_going(true).spawn_commands(2, program)?;
    /// let mut ends = Vec::new();
    /// while let Some((index, how)) = processes.next_end(None) {
    ///     ends.push((index, how.map_err(|error| error.ending())));
    /// }
    /// assert_eq!(ends, [(0, Err(Ending::NotStarted)), (1, Ok(()))]);
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    pub fn keep_going(mut self, keep_going: bool) -> Self {
        self.policy.keep_going = keep_going;
        self
    }

    /// Sets a function that adjusts the command of each child, by its index, before the child is started.
    ///
    /// Arguments that it adds to an entry's command follow the common ones. If it makes a stream a pipe, take the pipe
    /// from [`Processes`] afterwards.
    pub fn configure(self, configure: impl FnMut(usize, &mut Command) + 'a) -> Self {
        Self { configure: Box::new(configure), ..self }
    }

    /// Runs an entry of this program in `count` processes.
    ///
    /// # Errors
    ///
    /// - [`InvalidSetting`](crate::ErrorKind::InvalidSetting): [`init`](super::init) was not called with this entry.
    /// - [`TooManyOpenFiles`](crate::ErrorKind::TooManyOpenFiles): each child takes a descriptor on Linux.
    /// - [`Os`](crate::ErrorKind::Os): a process could not be started. Those that were started have been killed. With
    ///   [`keep_going`](Self::keep_going) it is a failure of that process instead.
    pub fn spawn(self, count: usize, entry: &str, arguments: &[&str]) -> Result<Processes> {
        let failed = |error| Error::os_elsewhere("creating the file for messages of children", entry, error);
        let report = Report::create().map_err(failed)?;
        let commands = (0..count).map(|index| entry::command(entry, index, count, arguments, &report));
        let commands = commands.collect::<Result<_>>()?;
        self.start(commands, Some(report))
    }

    /// Runs a program in each of `count` processes. `command` returns the program for each index.
    ///
    /// Any end other than exit code 0 is a failure. Such a program leaves no message.
    ///
    /// # Errors
    ///
    /// [`TooManyOpenFiles`](crate::ErrorKind::TooManyOpenFiles) and [`Os`](crate::ErrorKind::Os), as for
    /// [`spawn`](Self::spawn).
    pub fn spawn_commands(self, count: usize, command: impl FnMut(usize) -> Command) -> Result<Processes> {
        let commands = (0..count).map(command).collect();
        self.start(commands, None)
    }

    fn start(mut self, mut commands: Vec<Command>, report: Option<Report>) -> Result<Processes> {
        for (index, command) in commands.iter_mut().enumerate() {
            // The choice of `set_emulate_shm` is in this process's memory only, so children get it through their
            // environment.
            if let Some((name, value)) = chosen_variable().filter(|(name, _)| !sets(command, name)) {
                command.env(name, value);
            }
            (self.configure)(index, command);
            os::prepare_child(command, report.as_ref().map(|report| Arc::clone(&report.file)));
        }
        supervisor::start(commands, report, self.policy).map(Processes::of)
    }
}

/// Returns whether a command sets or removes an environment variable.
fn sets(command: &Command, name: &str) -> bool {
    command.get_envs().any(|(known, _)| known == name)
}

impl Default for SpawnOptions<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SpawnOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpawnOptions").field("policy", &self.policy).finish_non_exhaustive()
    }
}
