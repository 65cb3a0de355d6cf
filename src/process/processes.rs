//! The handle of running children.

use std::process::{ChildStderr, ChildStdin, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::failure::ChildError;
use super::supervisor::{Pipes, Supervised, Supervision};
use crate::os::{self, Bell, Stop};

/// How long a dropped handle waits for the children that it killed. They usually end in a moment. If the kernel makes
/// one wait for a disk, the supervisor thread waits for it in the background.
const BURIAL: Duration = Duration::from_secs(2);

/// Processes that were started together. If one fails, the others are ended, unless they were started with
/// [`keep_going`](super::SpawnOptions::keep_going).
///
/// Several threads can use it at once. Dropping it kills the processes that still run; call [`join`](Self::join) first
/// to wait for them.
///
/// The processes belong to the process that started them. In a forked child, waiting fails with
/// [`Ending::Unsupported`](super::Ending::Unsupported), and `terminate` and dropping do nothing.
#[derive(Debug)]
pub struct Processes {
    pids: Vec<u32>,
    pipes: Vec<Pipes>,
    shared: Arc<Supervision>,
    bell: Bell,
    thread: Option<JoinHandle<()>>,
    /// Fork generation of the process that started them.
    generation: u64,
    /// How many processes `next_end` has refused to wait for, in a forked child.
    refused: AtomicUsize,
}

impl Processes {
    pub(super) fn of(started: Supervised) -> Self {
        let Supervised { pids, pipes, shared, bell, thread } = started;
        let generation = os::fork_generation();
        Self { pids, pipes, shared, bell, thread: Some(thread), generation, refused: AtomicUsize::new(0) }
    }

    /// Returns whether this process started the processes. In a forked child there is no supervisor thread: no end is
    /// ever recorded there, and a lock that the thread held at the fork stays locked for ever.
    fn are_own(&self) -> bool {
        self.generation == os::fork_generation()
    }

    /// Refuses forked children.
    fn check_process(&self) -> Result<(), ChildError> {
        let first = || self.pids.first().copied().unwrap_or(0);
        if self.are_own() { Ok(()) } else { Err(ChildError::inherited(0, first())) }
    }

    /// Returns the process ids, by index.
    ///
    /// The id of a process that has ended may belong to another process by now. A process that could not be started has
    /// id 0. Do not pass that to kill(2), to which it means the caller's own process group.
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
    ///
    /// In a forked child: [`Ending::Unsupported`](super::Ending::Unsupported), at once.
    pub fn join(&self) -> Result<(), ChildError> {
        self.check_process()?;
        self.shared.wait(None).unwrap_or(Ok(()))
    }

    /// Waits until all processes have ended, for at most `limit`. Returns `Ok(false)` if some still run.
    ///
    /// [`Duration::ZERO`] does not wait. `Ok(true)` and errors mean that all processes have ended, except in a forked
    /// child.
    ///
    /// # Errors
    ///
    /// Those of [`join`](Self::join).
    pub fn join_timeout(&self, limit: Duration) -> Result<bool, ChildError> {
        self.check_process()?;
        self.shared.wait(Some(limit)).map_or(Ok(false), |ended| ended.map(|()| true))
    }

    /// Waits for the next process to end, and returns its index and how it ended.
    ///
    /// Returns `None` if every end was returned before, or if no process ended within `limit`. Without a limit it waits
    /// as long as it takes; [`Duration::ZERO`] does not wait. Ends are returned in their order, each once and to one
    /// caller, those of terminated processes included. It can be called after [`join`](Self::join), too.
    ///
    /// In a forked child it does not wait. It returns [`Ending::Unsupported`](super::Ending::Unsupported) once for each
    /// process, and then `None`.
    pub fn next_end(&self, limit: Option<Duration>) -> Option<(usize, Result<(), ChildError>)> {
        if !self.are_own() {
            // Relaxed suffices: the addition alone gives each index to one caller.
            let index = self.refused.fetch_add(1, Ordering::Relaxed);
            return self.pids.get(index).map(|pid| (index, Err(ChildError::inherited(index, *pid))));
        }
        self.shared.next_end(limit)
    }

    /// Sends SIGTERM to all processes, and SIGKILL to those that still run after the [grace
    /// period](super::SpawnOptions::grace).
    ///
    /// Returns at once; [`join`](Self::join) waits. Does nothing in a forked child: the processes belong to its parent.
    pub fn terminate(&self) {
        if self.are_own() {
            self.order(Stop::Ask);
        }
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
        if !self.are_own() {
            // The processes belong to the parent. The thread does not exist here, and another thread may have its
            // number by now: dropping the handle would detach that one.
            std::mem::forget(self.thread.take());
            return;
        }
        self.order(Stop::Kill);
        if self.shared.wait(Some(BURIAL)).is_some() {
            // The thread is about to end, so joining it takes no time.
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }
}
