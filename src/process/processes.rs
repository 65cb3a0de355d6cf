//! The handle of children that run.

use std::process::{ChildStderr, ChildStdin, ChildStdout};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::failure::ChildError;
use super::supervisor::{Pipes, Supervised, Supervision};
use crate::os::{self, Bell, Stop};

/// How long a dropped handle waits for children that were killed. They are gone in a moment, unless the kernel itself waits for
/// a disk; then they are waited for in the background.
const BURIAL: Duration = Duration::from_secs(2);

/// Processes that were started together, and end together if one of them fails, unless they are to
/// [keep going](super::SpawnOptions::keep_going).
///
/// It can be used by several threads at once. Dropped, it kills what still runs; [`join`](Self::join) first if that is not meant.
#[derive(Debug)]
pub struct Processes {
    pids: Vec<u32>,
    pipes: Vec<Pipes>,
    shared: Arc<Supervision>,
    bell: Bell,
    thread: Option<JoinHandle<()>>,
    /// Of the process that started them.
    generation: u64,
}

impl Processes {
    pub(super) fn of(started: Supervised) -> Self {
        let Supervised { pids, pipes, shared, bell, thread } = started;
        Self { pids, pipes, shared, bell, thread: Some(thread), generation: os::fork_generation() }
    }

    /// Returns the numbers of the processes, by index. One that has ended may have lost its number to another; one that could
    /// not be started has 0, which to kill(2) is the caller's own group.
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// Waits until all processes have ended.
    ///
    /// If one fails, the others are ended as [`terminate`](Self::terminate) does it, unless they are to
    /// [keep going](super::SpawnOptions::keep_going), and waited for, before this returns. Called again, it returns the same.
    ///
    /// # Errors
    ///
    /// The first failure. How a process ended after that, or after `terminate`, is no failure.
    pub fn join(&self) -> Result<(), ChildError> {
        self.shared.wait(None).unwrap_or(Ok(()))
    }

    /// Waits until all processes have ended, but not longer than `limit`: `Ok(false)` if some still run.
    ///
    /// With [`Duration::ZERO`] it only looks. `Ok(true)` and errors mean that none is left.
    ///
    /// # Errors
    ///
    /// Those of [`join`](Self::join).
    pub fn join_timeout(&self, limit: Duration) -> Result<bool, ChildError> {
        self.shared.wait(Some(limit)).map_or(Ok(false), |ended| ended.map(|()| true))
    }

    /// Waits for the next process to end and returns its index and how it ended, in the order of the ends; `None` when every
    /// end has been told, or nobody ended within `limit`.
    ///
    /// `None` for a limit waits as long as it takes, [`Duration::ZERO`] only looks. Each end is told once, to one caller,
    /// also that of a process that was told to end, and when [`join`](Self::join) has returned already.
    pub fn next_end(&self, limit: Option<Duration>) -> Option<(usize, Result<(), ChildError>)> {
        self.shared.next_end(limit)
    }

    /// Asks all processes to end (SIGTERM), and kills (SIGKILL) what still runs after the
    /// [grace period](super::SpawnOptions::grace). It waits for neither; [`join`](Self::join) does.
    pub fn terminate(&self) {
        self.order(Stop::Ask);
    }

    /// Takes the pipe to a process's standard input, if [`configure`](super::SpawnOptions::configure) made it one.
    pub fn take_stdin(&mut self, index: usize) -> Option<ChildStdin> {
        self.pipes.get_mut(index)?.stdin.take()
    }

    /// Takes the pipe from a process's standard output, if it was made one.
    pub fn take_stdout(&mut self, index: usize) -> Option<ChildStdout> {
        self.pipes.get_mut(index)?.stdout.take()
    }

    /// Takes the pipe from a process's standard error, if it was made one.
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
                // The thread has nothing more to do.
                let _ended = self.thread.take().map(JoinHandle::join);
            }
        } // else the children are those of another process, which this one was copied from.
    }
}
