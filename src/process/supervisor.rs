//! The thread that starts the children of one call, sees them end, and ends them.
//!
//! On Linux a child dies with the thread that started it, so that thread is this one: it lives until the last of them is
//! gone, whatever becomes of the caller's. Only it waits for the children, so no signal goes to a number that has
//! meanwhile become a stranger's.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::failure::ChildError;
use super::report::Report;
use crate::error::{Error, Result};
use crate::os::{self, Bell, Stop, Watched};

/// What the options say about the group as a whole.
#[derive(Debug, Clone, Copy)]
pub(super) struct Policy {
    /// How long SIGTERM may take.
    pub(super) grace: Duration,
    /// Whether the others go on when one fails.
    pub(super) keep_going: bool,
}

/// The index of a process, and how it ended.
type Ended = (usize, Result<(), ChildError>);

/// What the supervisor and the handle tell each other.
#[derive(Debug, Default)]
pub(super) struct Supervision {
    state: Mutex<SupervisionState>,
    /// Notified of every end, and when all have ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct SupervisionState {
    /// How those that still run are to be stopped: by SIGKILL, or by SIGTERM and SIGKILL after the grace period. An order is
    /// never taken back.
    order: Option<Stop>,
    /// The first one that failed before any order was given.
    failure: Option<ChildError>,
    /// Those that nobody has been told of.
    ends: VecDeque<Ended>,
    /// Whether all have ended and been waited for.
    all_ended: bool,
}

impl Supervision {
    fn state(&self) -> MutexGuard<'_, SupervisionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an order, unless there is one that says as much.
    pub(super) fn order(&self, how: Stop) {
        let mut state = self.state();
        state.order = state.order.max(Some(how));
    }

    /// Waits until all have ended, and says how; `None` if some still run when the time is over.
    pub(super) fn wait(&self, limit: Option<Duration>) -> Option<Result<(), ChildError>> {
        self.wait_for(limit, |state| state.all_ended.then(|| state.failure.clone().map_or(Ok(()), Err)))
    }

    /// Waits for an end that nobody has been told of; `None` if there will be no other, or the time is over.
    pub(super) fn next_end(&self, limit: Option<Duration>) -> Option<Ended> {
        self.wait_for(limit, |state| match state.ends.pop_front() {
            None if !state.all_ended => None,
            end => Some(end),
        })?
    }

    fn wait_for<T>(
        &self,
        limit: Option<Duration>,
        mut answer: impl FnMut(&mut SupervisionState) -> Option<T>,
    ) -> Option<T> {
        let mut found = None;
        let waits = |state: &mut SupervisionState| {
            found = answer(state);
            found.is_none()
        };
        drop(self.ended.wait_timeout_while(self.state(), limit.unwrap_or(Duration::MAX), waits));
        found
    }

    /// Makes an end known. The first failure is kept, and with the usual policy is an order to end the others.
    fn tell(&self, index: usize, how: Result<(), ChildError>, policy: Policy) {
        let mut state = self.state();
        if let Some(error) = how.as_ref().err().filter(|_| state.order.is_none() && state.failure.is_none()) {
            state.failure = Some(error.clone());
            state.order = (!policy.keep_going).then_some(Stop::Ask);
        }
        state.ends.push_back((index, how));
        self.ended.notify_all();
    }
}

/// The streams of a child that are pipes.
#[derive(Debug, Default)]
pub(super) struct Pipes {
    pub(super) stdin: Option<ChildStdin>,
    pub(super) stdout: Option<ChildStdout>,
    pub(super) stderr: Option<ChildStderr>,
}

/// Children that were started, and what their handle needs.
#[derive(Debug)]
pub(super) struct Supervised {
    pub(super) pids: Vec<u32>,
    pub(super) pipes: Vec<Pipes>,
    pub(super) shared: Arc<Supervision>,
    pub(super) bell: Bell,
    pub(super) thread: JoinHandle<()>,
}

/// Starts the children; unless they are to keep going, all of them or none.
pub(super) fn start(commands: Vec<Command>, report: Option<Report>, policy: Policy) -> Result<Supervised> {
    let shared = Arc::new(Supervision::default());
    let (sender, receiver) = mpsc::sync_channel(1);
    let end = End(Arc::clone(&shared));
    let body = move || {
        // Last, after descriptors are closed.
        let end = end;
        match Supervisor::start(commands, report, policy, &end.0) {
            Ok((supervisor, started)) => {
                let _ = sender.send(Ok(started)); // the receiver is there until it has heard
                supervisor.run(&end.0);
            }
            Err(error) => drop(sender.send(Err(error))),
        }
    };
    let thread = thread::Builder::new().name("children".to_owned()).spawn(body);
    let thread = thread.map_err(|error| Error::os_elsewhere("starting a thread for processes", "children", error))?;
    let died = |_| Error::os_elsewhere("starting processes", "children", io::Error::other("their thread died"));
    match receiver.recv().map_err(died).and_then(|answer| answer) {
        Ok(Started { pids, pipes, bell }) => Ok(Supervised { pids, pipes, shared, bell, thread }),
        Err(error) => {
            let _ended = thread.join();
            Err(error)
        }
    }
}

/// Tells those who wait that there is nothing more to wait for, whatever happens to the thread.
struct End(Arc<Supervision>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.state().all_ended = true;
        self.0.ended.notify_all();
    }
}

/// What the handle gets from the thread.
struct Started {
    pids: Vec<u32>,
    pipes: Vec<Pipes>,
    bell: Bell,
}

struct Supervisor {
    /// Those that have not been waited for, with their indices.
    running: Vec<(usize, Watched)>,
    bell: Bell,
    report: Option<Report>,
    policy: Policy,
}

impl Supervisor {
    /// Starts the children. If that fails, those that run are killed by `Drop`.
    fn start(
        commands: Vec<Command>,
        report: Option<Report>,
        policy: Policy,
        shared: &Supervision,
    ) -> Result<(Self, Started)> {
        let bell = Bell::new().map_err(|error| Error::os_elsewhere("watching processes", "eventfd", error))?;
        let mut started = Started { pids: Vec::new(), pipes: Vec::new(), bell: bell.clone() };
        let mut supervisor = Self { running: Vec::with_capacity(commands.len()), bell, report, policy };
        for (index, mut command) in commands.into_iter().enumerate() {
            let (pid, pipes) = match command.spawn() {
                Ok(mut child) => {
                    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
                    let pid = child.id();
                    supervisor.running.push((index, Watched::new(child)));
                    (pid, Pipes { stdin, stdout, stderr })
                }
                Err(error) => {
                    let program = Path::new(command.get_program()).display();
                    if !policy.keep_going {
                        return Err(Error::os_elsewhere("starting it as a process", program, error));
                    }
                    let why = format!("`{program}`: {error}");
                    shared.tell(index, Err(ChildError::not_started(index, why)), policy);
                    (0, Pipes::default())
                }
            };
            started.pids.push(pid);
            started.pipes.push(pipes);
        }
        Ok((supervisor, started))
    }

    /// Waits until all have ended, and does what the orders say.
    fn run(mut self, shared: &Supervision) {
        let mut obeyed = None;
        let mut kill_at: Option<Instant> = None;
        loop {
            self.see_who_ended(shared);
            if self.running.is_empty() {
                return;
            }
            let is_over = kill_at.is_some_and(|at| at <= Instant::now());
            let order = if is_over { Some(Stop::Kill) } else { shared.state().order };
            if let Some(how) = order.filter(|_| order > obeyed) {
                obeyed = order;
                // A grace period too long for the clock never ends.
                kill_at = Instant::now().checked_add(self.policy.grace).filter(|_| how == Stop::Ask);
                self.stop_all(how);
            }
            let limit = kill_at.map(|at| at.saturating_duration_since(Instant::now()));
            os::wait_for_end(self.running.iter().map(|(_, watched)| watched), &self.bell, limit);
        }
    }

    /// Waits for those that have ended, and tells how.
    fn see_who_ended(&mut self, shared: &Supervision) {
        let Self { running, report, policy, .. } = self;
        running.retain_mut(|(index, Watched { child, .. })| {
            let status = match child.try_wait() {
                Ok(None) => return true,
                Ok(Some(status)) => Some(status),
                // It is no longer ours to wait for.
                Err(_) => None,
            };
            let how = if status.is_some_and(|status| status.success()) {
                Ok(())
            } else {
                let message = status.and_then(|status| report.as_ref()?.last_words(*index, status));
                Err(ChildError::ended(*index, child.id(), status, message))
            };
            shared.tell(*index, how, *policy);
            false
        });
    }

    fn stop_all(&mut self, how: Stop) {
        self.running.iter_mut().for_each(|(_, watched)| watched.stop(how));
    }
}

impl Drop for Supervisor {
    /// Leaves no process behind when not all could be started.
    fn drop(&mut self) {
        self.stop_all(Stop::Kill);
        for (_, watched) in &mut self.running {
            let _status = watched.child.wait();
        }
    }
}
