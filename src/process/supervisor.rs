//! The thread that starts the children of one call, waits for their ends, and stops them.
//!
//! Linux sends the parent-death signal when the *thread* that started the child ends. So this thread starts the
//! children and lives until the last of them has ended, however long the caller's thread lives. Only this thread waits
//! for the children. So a child that it signals was not waited for yet, and no other process can have its process id.

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

/// The options that concern the group as a whole.
#[derive(Debug, Clone, Copy)]
pub(super) struct Policy {
    /// The time between SIGTERM and SIGKILL.
    pub(super) grace: Duration,
    /// Whether the other children go on when one fails.
    pub(super) keep_going: bool,
}

/// The index of a process, and how it ended.
type Ended = (usize, Result<(), ChildError>);

/// State shared by the supervisor thread and the handle.
#[derive(Debug, Default)]
pub(super) struct Supervision {
    state: Mutex<SupervisionState>,
    /// Notified at every end, and when all have ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct SupervisionState {
    /// How to stop the children that still run: by SIGKILL, or by SIGTERM and then SIGKILL after the grace period. An
    /// order can become stronger, and is never taken back.
    order: Option<Stop>,
    /// The first failure, if it came before any order.
    failure: Option<ChildError>,
    /// Ends that `next_end` has not returned yet.
    ends: VecDeque<Ended>,
    /// Whether all children have ended and were waited for.
    all_ended: bool,
}

impl Supervision {
    fn state(&self) -> MutexGuard<'_, SupervisionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an order, unless the same or a stronger one was given before.
    pub(super) fn order(&self, how: Stop) {
        let mut state = self.state();
        state.order = state.order.max(Some(how));
    }

    /// Waits until all have ended, and returns the result; `None` if some still run after `limit`.
    pub(super) fn wait(&self, limit: Option<Duration>) -> Option<Result<(), ChildError>> {
        self.wait_for(limit, |state| state.all_ended.then(|| state.failure.clone().map_or(Ok(()), Err)))
    }

    /// Waits for an end that was not returned yet; `None` if there will be no other, or after `limit`.
    pub(super) fn next_end(&self, limit: Option<Duration>) -> Option<Ended> {
        self.wait_for(limit, |state| match state.ends.pop_front() {
            None if !state.all_ended => None,
            end => Some(end),
        })?
    }

    /// Waits until `answer` returns a value; `None` after `limit`.
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

    /// Records an end. The first failure is kept and, unless the policy is to keep going, orders the others to end.
    ///
    /// A failure after an order is not kept: it may be the effect of the order's signal.
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

/// The started children, with the parts of their handle.
#[derive(Debug)]
pub(super) struct Supervised {
    pub(super) pids: Vec<u32>,
    pub(super) pipes: Vec<Pipes>,
    pub(super) shared: Arc<Supervision>,
    pub(super) bell: Bell,
    pub(super) thread: JoinHandle<()>,
}

/// Starts the children in a thread of their own. Unless they are to keep going, it starts all of them or none.
pub(super) fn start(commands: Vec<Command>, report: Option<Report>, policy: Policy) -> Result<Supervised> {
    let shared = Arc::new(Supervision::default());
    let (sender, receiver) = mpsc::sync_channel(1);
    let end = End(Arc::clone(&shared));
    let body = move || {
        // A local variable declared first is dropped last, so waiters are notified after all descriptors are closed.
        let end = end;
        match Supervisor::start(commands, report, policy, &end.0) {
            Ok((supervisor, started)) => {
                let _ = sender.send(Ok(started)); // cannot fail: the receiver waits for this answer
                supervisor.run(&end.0);
            }
            Err(error) => drop(sender.send(Err(error))),
        }
    };
    let thread = thread::Builder::new().name("ndshm-children".to_owned()).spawn(body);
    let thread = thread.map_err(|error| Error::os_elsewhere("starting a thread for processes", "children", error))?;
    let died = |_| Error::os_elsewhere("starting processes", "children", io::Error::other("their thread died"));
    match receiver.recv().map_err(died).and_then(|answer| answer) {
        Ok(Started { pids, pipes, bell }) => Ok(Supervised { pids, pipes, shared, bell, thread }),
        Err(error) => {
            let _ = thread.join(); // the error is returned in any case
            Err(error)
        }
    }
}

/// Notifies all waiters when the thread ends, also if it panics.
struct End(Arc<Supervision>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.state().all_ended = true;
        self.0.ended.notify_all();
    }
}

/// What the thread sends to its creator once the children are started.
struct Started {
    pids: Vec<u32>,
    pipes: Vec<Pipes>,
    bell: Bell,
}

struct Supervisor {
    /// The children that were not waited for yet, with their indices.
    running: Vec<(usize, Watched)>,
    bell: Bell,
    report: Option<Report>,
    policy: Policy,
}

impl Supervisor {
    /// Starts the children. If one cannot be started, `Drop` kills those that run, unless they are to keep going.
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
                        return Err(Error::os_elsewhere("starting the program", program, error));
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

    /// Waits until all children have ended, and carries out orders.
    fn run(mut self, shared: &Supervision) {
        // The strongest order that was carried out: each order is carried out once, and only a stronger one after it.
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
                // With a grace period too long for the clock, SIGKILL is never sent.
                kill_at = Instant::now().checked_add(self.policy.grace).filter(|_| how == Stop::Ask);
                self.stop_all(how);
            }
            let limit = kill_at.map(|at| at.saturating_duration_since(Instant::now()));
            // An order given since the look above is not lost: its giver rings the bell after it, and that ends the
            // wait.
            os::wait_for_end(self.running.iter().map(|(_, watched)| watched), &self.bell, limit);
        }
    }

    /// Waits for the children that have ended, and records their ends.
    fn see_who_ended(&mut self, shared: &Supervision) {
        let Self { running, report, policy, .. } = self;
        running.retain_mut(|(index, Watched { child, .. })| {
            let status = match child.try_wait() {
                Ok(None) => return true,
                Ok(Some(status)) => Some(status),
                // Another part of the program waited for it, or SIGCHLD is ignored: it has ended, its status is lost.
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
    /// Kills the children that run, if not all could be started.
    fn drop(&mut self) {
        self.stop_all(Stop::Kill);
        for (_, watched) in &mut self.running {
            let _ = watched.child.wait(); // the error of the start is returned
        }
    }
}
