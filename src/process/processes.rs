//! The handle of running children.

use std::process::{ChildStderr, ChildStdin, ChildStdout};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::failure::ChildError;
use super::supervisor::{Pipes, Supervised, Supervision};
use crate::os::{self, Bell, Stop};

/// How long a dropped handle waits for the children that it killed. They usually end in a moment. If the kernel makes one wait for a
/// disk, the supervisor thread waits for it in the background.
const BURIAL: Duration = Duration::from_secs(2);

/// Processes that were started together. If one fails, the others are ended, unless they were started with
/// [`keep_going`](super::SpawnOptions::keep_going).
///
/// Several threads can use it at once. Dropping it kills the processes that still run; call [`join`](Self::join) first to wait for
/// them.
#[derive(Debug)]
pub struct Processes {
    pids: Vec<u32>,
    pipes: Vec<Pipes>,
    shared: Arc<Supervision>,
    bell: Bell,
    thread: Option<JoinHandle<()>>,
    /// Fork generation of the process that started them.
    generation: u64,
}

impl Processes {
    pub(super) fn of(started: Supervised) -> Self {
        let Supervised { pids, pipes, shared, bell, thread } = started;
        Self { pids, pipes, shared, bell, thread: Some(thread), generation: os::fork_generation() }
    }

    /// Returns the process ids, by index.
    ///
    /// The id of a process that has ended may belong to another process by now. A process that could not be started has id 0. Do not pass
    /// that to kill(2), to which it means the caller's own process group.
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// Waits until all processes have ended.
    ///
    /// If one fails, the others are ended as by [`terminate`](Self::terminate), unless they were started with
    /// [`keep_going`](super::SpawnOptions::keep_going). Further calls return the same result.
    ///
    /// # Errors
    ///
    /// The first failure. Ends after that, or after `terminate`, are not failures.
    pub fn join(&self) -> Result<(), ChildError> {
        self.shared.wait(None).unwrap_or(Ok(()))
    }

    /// Waits until all processes have ended, for at most `limit`. Returns `Ok(false)` if some still run.
    ///
    /// [`Duration::ZERO`] does not wait. `Ok(true)` and errors mean that all processes have ended.
    ///
    /// # Errors
    ///
    /// Those of [`join`](Self::join).
    pub fn join_timeout(&self, limit: Duration) -> Result<bool, ChildError> {
        self.shared.wait(Some(limit)).map_or(Ok(false), |ended| ended.map(|()| true))
    }

    /// Waits for the next process to end, and returns its index and how it ended.
    ///
    /// Returns `None` if every end was returned before, or if no process ended within `limit`. Without a limit it waits as long as it
    /// takes; [`Duration::ZERO`] does not wait. Ends are returned in their order, each once and to one caller, those of terminated
    /// processes included. It can be called after [`join`](Self::join), too.
    pub fn next_end(&self, limit: Option<Duration>) -> Option<(usize, Result<(), ChildError>)> {
        self.shared.next_end(limit)
    }

    /// Sends SIGTERM to all processes, and SIGKILL to those that still run after the [grace period](super::SpawnOptions::grace).
    ///
    /// Returns at once; [`join`](Self::join) waits.
    pub fn terminate(&self) {
        self.order(Stop::Ask);
    }

    /// Takes the pipe to a process's standard input, if [`configure`](super::SpawnOptions::configure) made one.
    pub fn take_stdin(&mut self, index: usize) -> Option<ChildStdin> {
        self.pipes.get_mut(index)?.stdin.take()
    }

    /// Takes the pipe from a process's standard output, if `configure` made one.
    pub fn take_stdout(&mut self, index: usize) -> Option<ChildStdout> {
        self.pipes.get_mut(index)?.stdout.take()
    }

    /// Takes the pipe from a process's standard error, if `configure` made one.
    pub fn take_stderr(&mut self, index: usize) -> Option<ChildStderr> {
        self.pipes.get_mut(index)?.stderr.take()
    }

    fn order(&self, how: Stop) {
        self.shared.order(how);
        self.bell.ring();
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        if self.generation == os::fork_generation() {
            self.order(Stop::Kill);
            if self.shared.wait(Some(BURIAL)).is_some() {
                // The thread is about to end, so joining it takes no time.
                let _ = self.thread.take().map(JoinHandle::join);
            }
        } // else this is a forked child, and the processes are its parent's.
    }
}
