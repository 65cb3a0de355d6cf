//! The thread that starts the children of one call, sees them end, and ends them.
//!
//! On Linux a child dies with the thread that started it, so that thread is this one: it lives until the last of them is
//! gone, whatever becomes of the caller's. Only it waits for the children, so no signal goes to a number that has
//! meanwhile become a stranger's.

use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::failure::{ChildError, Ending};
use super::options::failed;
use super::report::Report;
use crate::Result;
use crate::os::{Bell, EndWatch, Stop};

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
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    order: Order,
    /// The first one that failed before any order was given.
    failure: Option<ChildError>,
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
        // A time that the clock cannot tell never comes.
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut state = self.state();
        while !state.all_ended {
            state = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => self.ended.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return None,
                Some(left) => self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        Some(state.failure.clone().map_or(Ok(()), Err))
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

/// Starts the children, all of them or none.
pub(super) fn start(commands: Vec<Command>, report: Option<Report>, grace: Duration) -> Result<Started> {
    let shared = Arc::new(Shared::default());
    let (sender, receiver) = mpsc::sync_channel(1);
    let end = End(Arc::clone(&shared));
    let body = move || {
        // Last, after descriptors are closed.
        let end = end;
        let started = EndWatch::new().map_err(|error| failed("watching processes", "eventfd", error));
        let started = started.and_then(|watch| Supervisor::start(commands, watch, report, grace));
        let (supervisor, answer) = match started {
            Ok((supervisor, pipes)) => {
                let pids = supervisor.running.iter().map(|running| running.child.id()).collect();
                let bell = supervisor.watch.bell();
                (Some(supervisor), Ok((pids, pipes, bell)))
            }
            Err(error) => (None, Err(error)),
        };
        // The receiver is there until it has heard.
        let _heard = sender.send(answer);
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

struct Running {
    index: usize,
    child: Child,
}

struct Supervisor {
    running: Vec<Running>,
    watch: EndWatch,
    report: Option<Report>,
    grace: Duration,
}

impl Supervisor {
    fn start(
        commands: Vec<Command>,
        watch: EndWatch,
        report: Option<Report>,
        grace: Duration,
    ) -> Result<(Self, Vec<Pipes>)> {
        let mut supervisor = Self { running: Vec::with_capacity(commands.len()), watch, report, grace };
        let mut pipes = Vec::with_capacity(commands.len());
        for (index, mut command) in commands.into_iter().enumerate() {
            // If it fails, those that run are killed by `Drop`.
            let started = command.spawn();
            let mut child = started.map_err(|error| {
                failed("starting it as a process", Path::new(command.get_program()).display(), error)
            })?;
            pipes.push(Pipes { stdin: child.stdin.take(), stdout: child.stdout.take(), stderr: child.stderr.take() });
            supervisor.watch.add(&child);
            supervisor.running.push(Running { index, child });
        }
        Ok((supervisor, pipes))
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
                kill_at = if order == Order::Terminate { Instant::now().checked_add(self.grace) } else { None };
                self.stop_all(if order == Order::Terminate { Stop::Ask } else { Stop::Kill });
            }
            self.watch.wait(kill_at.map(|at| at.saturating_duration_since(Instant::now())));
        }
    }

    /// Waits for those that have ended. The first that failed is kept, and is an order to end the others.
    fn see_who_ended(&mut self, shared: &Shared) {
        let Self { running, watch, report, .. } = self;
        running.retain_mut(|Running { index, child }| {
            let status = match child.try_wait() {
                Ok(None) => return true,
                Ok(Some(status)) => Some(status),
                // It is no longer ours to wait for.
                Err(_) => None,
            };
            watch.remove(child);
            let mut state = shared.state();
            if state.order == Order::Run && !status.is_some_and(|status| status.success()) {
                let message = status.and_then(|status| report.as_ref()?.last_words(*index, status));
                let ending = status.map_or(Ending::Unknown, Ending::of);
                state.failure = Some(ChildError { index: *index, pid: child.id(), ending, message });
                state.order = Order::Terminate;
            }
            false
        });
    }

    fn stop_all(&mut self, how: Stop) {
        for Running { child, .. } in &mut self.running {
            self.watch.stop(child, how);
        }
    }
}

impl Drop for Supervisor {
    /// Leaves no process behind when not all could be started.
    fn drop(&mut self) {
        self.stop_all(Stop::Kill);
        for Running { child, .. } in &mut self.running {
            let _status = child.wait();
        }
    }
}
