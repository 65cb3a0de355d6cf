//! The I/O threads, and blocking waits for a request. Concurrent calls make concurrent requests.
//!
//! One runtime serves the whole process. It starts with the first remote store and only moves bytes; the callers' threads compute.
//! The runtime does not work in a forked child, which has only the thread that forked. There, a store that was opened before the
//! fork fails with an error, and a store that is opened anew gets new threads and connections.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use super::reach::Answered;
use crate::store::wanted;

/// Number of I/O threads; a few gigabits per second need less than one.
const THREADS: usize = 2;

/// Maximum number of concurrent requests of this process, whatever its callers do: less than the usual limit for file descriptors.
const REQUESTS: usize = 256;

/// The I/O threads of one process, and the limit for its requests.
#[derive(Debug)]
pub(super) struct IoThreads {
    process: u32,
    runtime: Runtime,
    requests: Semaphore,
    /// The servers that have answered one of them.
    answered: Answered,
}

/// Never dropped: dropping a runtime waits for its threads, which do not exist in a forked child that inherits this value.
static CURRENT: Mutex<Option<&'static IoThreads>> = Mutex::new(None);

/// Time that a request may still take after a stop: an answer that has nearly arrived need not be requested again.
const GRACE: Duration = Duration::from_millis(500);

/// Interval at which a waiting thread checks its flags.
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
    /// Returns the I/O threads of this process; starts them on the first call.
    pub(super) fn current() -> io::Result<&'static Self> {
        let process = std::process::id();
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(threads) = current.filter(|threads| threads.process == process) {
            return Ok(threads);
        }
        let runtime =
            Builder::new_multi_thread().worker_threads(THREADS).thread_name("ndshm-io").enable_all().build()?;
        let threads: &'static Self = Box::leak(Box::new(Self {
            process,
            runtime,
            requests: Semaphore::new(REQUESTS),
            answered: Answered::default(),
        }));
        *current = Some(threads);
        Ok(threads)
    }

    /// Returns the servers that have answered a request of this process.
    pub(super) fn answered(&self) -> &Answered {
        &self.answered
    }

    /// Waits for a request. The calling thread polls it and sleeps in between. The caller may be a thread of another asynchronous
    /// runtime, which is then blocked too.
    pub(super) fn wait<F: Future>(&self, request: F) -> Result<F::Output, NoAnswer> {
        if self.process != std::process::id() {
            return Err(NoAnswer::Forked);
        }
        let _context = self.runtime.enter();
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        // A caller inside another tokio runtime has a cooperative budget there, which is not refilled while it waits here.
        let mut bounded = pin!(tokio::task::unconstrained(async {
            let _permit = self.requests.acquire().await;
            request.await
        }));
        let mut stopped: Option<Instant> = None;
        loop {
            if let Poll::Ready(answer) = bounded.as_mut().poll(&mut context) {
                return Ok(answer);
            }
            // A wake-up between the poll and the park is not lost: `unpark` before `park` makes the park return at once.
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
    use crate::retries::Retries;

    #[test]
    fn stopped_job_does_not_wait_for_an_answer() {
        let (stop, never) = (StopFlag::new(), StopFlag::new());
        let io = IoThreads::current().expect("threads");
        thread::scope(|scope| {
            let waiting = scope
                .spawn(|| wanted::in_job([&never, &stop], &Retries::new(), || io.wait(std::future::pending::<()>())));
            thread::sleep(2 * LOOK);
            assert!(!waiting.is_finished());
            stop.stop();
            assert!(matches!(waiting.join().expect("no panic"), Err(NoAnswer::Unwanted)));
        });
        assert_eq!(stop.run(|| io.wait(async { 7 }).expect("it is there at once")), 7);
        assert_eq!(wanted::heeds(), (false, false), "only while it works");
    }

    #[test]
    fn forked_child_gets_an_error_instead_of_waiting() {
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        // Another process id: so these threads look inherited from a parent.
        let parent = IoThreads {
            process: std::process::id() + 1,
            runtime,
            requests: Semaphore::new(1),
            answered: Answered::default(),
        };
        assert!(matches!(parent.wait(std::future::pending::<()>()), Err(NoAnswer::Forked)));
        let own = IoThreads::current().expect("threads");
        assert_eq!(own.wait(async { 7 }).expect("an answer"), 7);
        assert!(std::ptr::eq(own, IoThreads::current().expect("the same")));
    }
}
