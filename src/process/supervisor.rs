//! The thread that starts the children of one call, sees them end, and ends them.
//!
//! On Linux a child dies with the thread that started it, so that thread is this one: it lives until the last of them is
//! gone, whatever becomes of the caller's. Only it waits for the children, so no signal goes to a number that has
//! meanwhile become a stranger's.

use std::collections::VecDeque;
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::failure::ChildError;
use super::options::failed;
use super::report::Report;
use crate::error::Result;
use crate::os::{Bell, EndWatch, Stop};

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

/// What is to become of those that still run; an order is never taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Order {
    #[default]
    Run,
    /// SIGTERM, and SIGKILL after the grace period.
    Terminate,
    Kill,
}

/// What the supervisor and the handle tell each other.
#[derive(Debug, Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Notified of every end, and when all have ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    order: Order,
    /// The first one that failed before any order was given.
    failure: Option<ChildError>,
    /// Those that nobody has been told of.
    ends: VecDeque<Ended>,
    /// Whether all have ended and been waited for.
    all_ended: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an order, unless there is one that says as much.
    pub(super) fn order(&self, order: Order) {
        let mut state = self.state();
        state.order = state.order.max(order);
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

    fn wait_for<T>(&self, limit: Option<Duration>, mut answer: impl FnMut(&mut State) -> Option<T>) -> Option<T> {
        // A time that the clock cannot tell never comes.
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut state = self.state();
        loop {
            if let Some(answer) = answer(&mut state) {
                return Some(answer);
            }
            state = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => self.ended.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return None,
                Some(left) => self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    /// Makes an end known. The first failure is kept, and with the usual policy is an order to end the others.
    fn tell(&self, index: usize, how: Result<(), ChildError>, policy: Policy) {
        let mut state = self.state();
        match &how {
            Err(error) if state.order == Order::Run && state.failure.is_none() => {
                state.failure = Some(error.clone());
                if !policy.keep_going {
                    state.order = Order::Terminate;
                }
            }
            _ => {}
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

/// What the handle gets.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) pids: Vec<u32>,
    pub(super) pipes: Vec<Pipes>,
    pub(super) shared: Arc<Shared>,
    pub(super) bell: Bell,
    thread: Option<JoinHandle<()>>,
}

impl Started {
    /// Waits for the thread, which has nothing more to do.
    pub(super) fn end(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

/// Starts the children; unless they are to keep going, all of them or none.
pub(super) fn start(commands: Vec<Command>, report: Option<Report>, policy: Policy) -> Result<Started> {
    let shared = Arc::new(Shared::default());
    let (sender, receiver) = mpsc::sync_channel(1);
    let end = End(Arc::clone(&shared));
    let body = move || {
        // Last, after descriptors are closed.
        let end = end;
        let started = EndWatch::new().map_err(|error| failed("watching processes", "eventfd", error));
        let started = started.and_then(|watch| {
            let mut supervisor = Supervisor { running: Vec::with_capacity(commands.len()), watch, report, policy };
            // If it fails, those that run are killed by `Drop`.
            let (pids, pipes) = supervisor.start(commands, &end.0)?;
            Ok(((pids, pipes, supervisor.watch.bell()), supervisor))
        });
        let (answer, supervisor) = match started {
            Ok((answer, supervisor)) => (Ok(answer), Some(supervisor)),
            Err(error) => (Err(error), None),
        };
        let _ = sender.send(answer); // the receiver is there until it has heard
        if let Some(supervisor) = supervisor {
            supervisor.run(&end.0);
        }
    };
    let thread = thread::Builder::new().name("children".to_owned()).spawn(body);
    let thread = thread.map_err(|error| failed("starting a thread for processes", "children", error))?;
    let died = |_| failed("starting processes", "children", std::io::Error::other("their thread died"));
    match receiver.recv().map_err(died).and_then(|answer| answer) {
        Ok((pids, pipes, bell)) => Ok(Started { pids, pipes, shared, bell, thread: Some(thread) }),
        Err(error) => {
            let _ended = thread.join();
            Err(error)
        }
    }
}

/// Tells those who wait that there is nothing more to wait for, whatever happens to the thread.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.state().all_ended = true;
        self.0.ended.notify_all();
    }
}

struct Supervisor {
    /// Those that have not been waited for, with their indices.
    running: Vec<(usize, Child)>,
    watch: EndWatch,
    report: Option<Report>,
    policy: Policy,
}

impl Supervisor {
    /// Starts the children and returns their numbers and pipes.
    fn start(&mut self, commands: Vec<Command>, shared: &Shared) -> Result<(Vec<u32>, Vec<Pipes>)> {
        let (mut pids, mut all_pipes) = (Vec::new(), Vec::new());
        for (index, mut command) in commands.into_iter().enumerate() {
            let (pid, pipes) = match command.spawn() {
                Ok(mut child) => {
                    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
                    let pid = child.id();
                    self.watch.add(&child);
                    self.running.push((index, child));
                    (pid, Pipes { stdin, stdout, stderr })
                }
                Err(error) => {
                    let program = Path::new(command.get_program()).display();
                    if !self.policy.keep_going {
                        return Err(failed("starting it as a process", program, error));
                    }
                    let why = format!("`{program}`: {error}");
                    shared.tell(index, Err(ChildError::not_started(index, why)), self.policy);
                    (0, Pipes::default())
                }
            };
            pids.push(pid);
            all_pipes.push(pipes);
        }
        Ok((pids, all_pipes))
    }

    /// Waits until all have ended, and does what the orders say.
    fn run(mut self, shared: &Shared) {
        let mut obeyed = Order::Run;
        let mut kill_at = None;
        loop {
            self.see_who_ended(shared);
            if self.running.is_empty() {
                return;
            }
            let mut order = shared.state().order;
            if kill_at.is_some_and(|at| at <= Instant::now()) {
                order = Order::Kill;
            }
            if order > obeyed {
                obeyed = order;
                // A grace period too long for the clock never ends.
                kill_at = if order == Order::Terminate { Instant::now().checked_add(self.policy.grace) } else { None };
                self.stop_all(if order == Order::Terminate { Stop::Ask } else { Stop::Kill });
            }
            self.watch.wait(kill_at.map(|at| at.saturating_duration_since(Instant::now())));
        }
    }

    /// Waits for those that have ended, and tells how.
    fn see_who_ended(&mut self, shared: &Shared) {
        let Self { running, watch, report, policy } = self;
        running.retain_mut(|(index, child)| {
            let status = match child.try_wait() {
                Ok(None) => return true,
                Ok(Some(status)) => Some(status),
                // It is no longer ours to wait for.
                Err(_) => None,
            };
            watch.remove(child);
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
        for (_, child) in &mut self.running {
            self.watch.stop(child, how);
        }
    }
}

impl Drop for Supervisor {
    /// Leaves no process behind when not all could be started.
    fn drop(&mut self) {
        self.stop_all(Stop::Kill);
        for (_, child) in &mut self.running {
            let _status = child.wait();
        }
    }
}
