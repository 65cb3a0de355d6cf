//! The threads on which requests wait, and how a caller waits for one: calls from many threads are many requests.
//!
//! One runtime serves the whole process; it starts with the first remote store and only moves bytes. What is computed from
//! them is computed by the callers. It cannot live on in a forked child, whose only thread is the one that forked: a store that was
//! opened before says so there, and one that is opened anew gets threads and connections of its own.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use crate::store::wanted;

/// How many threads move bytes; a few gigabits per second take less than one.
const THREADS: usize = 2;

/// How many requests this process has under way at a time, whatever its callers do: fewer than the descriptors that a process
/// usually may have.
const REQUESTS: usize = 256;

/// The threads of one process, and the right to use them.
#[derive(Debug)]
pub(super) struct IoThreads {
    process: u32,
    runtime: Runtime,
    requests: Semaphore,
}

/// Kept until the process ends: ending a runtime waits for its threads, and those that a forked child inherits are not there.
static CURRENT: Mutex<Option<&'static IoThreads>> = Mutex::new(None);

/// How long a request may still take when its answer is not wanted any more: what has nearly come need not be asked for again.
const GRACE: Duration = Duration::from_secs(1);

/// How often is looked whether it is.
const LOOK: Duration = Duration::from_millis(50);

/// Why the wait for an answer ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    /// This is a child that was forked after its parent opened the store.
    #[error("this process was forked after the volume was opened: open it again here")]
    Forked,
    /// The job was stopped.
    #[error("the work was stopped before an answer came")]
    Unwanted,
}

impl IoThreads {
    /// Returns those of this process; starts them if there are none yet.
    pub(super) fn current() -> io::Result<&'static Self> {
        let process = std::process::id();
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(threads) = current.filter(|threads| threads.process == process) {
            return Ok(threads);
        }
        let runtime =
            Builder::new_multi_thread().worker_threads(THREADS).thread_name("ndshm-io").enable_all().build()?;
        let threads: &'static Self = Box::leak(Box::new(Self { process, runtime, requests: Semaphore::new(REQUESTS) }));
        *current = Some(threads);
        Ok(threads)
    }

    /// Waits for a request. The calling thread runs it and sleeps between its steps; it may itself be a thread of some other
    /// asynchronous runtime, which then waits too.
    pub(super) fn wait<F: Future>(&self, request: F) -> Result<F::Output, NoAnswer> {
        if self.process != std::process::id() {
            return Err(NoAnswer::Forked);
        }
        let _context = self.runtime.enter();
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        // A caller inside another runtime has a budget of steps there, which is not refilled while it waits here.
        let mut bounded = pin!(tokio::task::unconstrained(async {
            let _permit = self.requests.acquire().await;
            request.await
        }));
        let mut stopped: Option<Instant> = None;
        loop {
            if let Poll::Ready(answer) = bounded.as_mut().poll(&mut context) {
                return Ok(answer);
            }
            match wanted::heeds() {
                (false, _) => thread::park(),
                (true, false) => thread::park_timeout(LOOK),
                (true, true) if stopped.get_or_insert_with(Instant::now).elapsed() < GRACE => {
                    thread::park_timeout(LOOK);
                }
                (true, true) => return Err(NoAnswer::Unwanted),
            }
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::StopFlag;

    #[test]
    fn stop_ends_the_wait_for_an_answer() {
        let (stop, never) = (StopFlag::new(), StopFlag::new());
        let io = IoThreads::current().expect("threads");
        thread::scope(|scope| {
            let waiting =
                scope.spawn(|| wanted::while_wanted([&never, &stop], || io.wait(std::future::pending::<()>())));
            thread::sleep(2 * LOOK);
            assert!(!waiting.is_finished());
            stop.stop();
            assert!(matches!(waiting.join().expect("no panic"), Err(NoAnswer::Unwanted)));
        });
        assert_eq!(wanted::while_wanted([&stop, &stop], || io.wait(async { 7 }).expect("it is there at once")), 7);
        assert_eq!(wanted::heeds(), (false, false), "only while it works");
    }

    #[test]
    fn a_forked_child_gets_an_error_without_waiting() {
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        // As it looks to a child: it is the parent's.
        let parent = IoThreads { process: std::process::id() + 1, runtime, requests: Semaphore::new(1) };
        assert!(matches!(parent.wait(std::future::pending::<()>()), Err(NoAnswer::Forked)));
        let own = IoThreads::current().expect("threads");
        assert_eq!(own.wait(async { 7 }).expect("an answer"), 7);
        assert!(std::ptr::eq(own, IoThreads::current().expect("the same")));
    }
}
