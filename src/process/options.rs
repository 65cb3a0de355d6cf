//! How children are started.

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

/// How to start children: with what time to end, environment, directory and streams, and whether one failure ends all.
///
/// Children begin with the backend that [`set_emulate_shm`](crate::set_emulate_shm) chose in this process, unless their command
/// says otherwise.
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
    /// Begins with the defaults: 30 seconds of grace, the first failure ends all, everything else inherited.
    pub fn new() -> Self {
        let policy = Policy { grace: Duration::from_secs(30), keep_going: false };
        Self { policy, configure: Box::new(|_, _| {}) }
    }

    /// Sets how long a child may take to end after SIGTERM before it gets SIGKILL.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.policy.grace = grace;
        self
    }

    /// Sets whether the others go on when one fails, as they should where they can do its work too.
    ///
    /// One that cannot be started is then a failure like any other, [`NotStarted`](super::Ending::NotStarted), and no error of
    /// `spawn`. [`join`](Processes::join) reports the first failure when all have ended;
    /// [`next_end`](Processes::next_end) tells of each as it happens.
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
    /// - [`Os`](Error::Os): a process could not be started. Those that were have been killed. Not with
    ///   [`keep_going`](Self::keep_going), which makes it a failure of that process.
    pub fn spawn(self, count: usize, entry: &str, arguments: &[&str]) -> Result<Processes> {
        let failed = |error| Error::os_elsewhere("making room for last words", entry, error);
        let report = Report::create().map_err(failed)?;
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
            // What the program chose for itself, not for the processes around it.
            if let Some((name, value)) = chosen_variable().filter(|(name, _)| !sets(command, name)) {
                command.env(name, value);
            }
            (self.configure)(index, command);
            os::prepare_child(command, report.as_ref().map(|report| Arc::clone(&report.file)));
        }
        supervisor::start(commands, report, self.policy).map(Processes::of)
    }
}

/// Whether a command sets or removes an environment variable.
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
