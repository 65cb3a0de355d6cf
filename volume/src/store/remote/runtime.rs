//! Blocking waits for requests. Concurrent calls make concurrent requests.
//!
//! One asynchronous runtime serves the whole process. It only moves bytes, in a thread that starts with the first call
//! and ends soon after the last one: an idle process has no such thread, so that Python does not warn of it at a fork.
//! The connections stay open meanwhile. The runtime does not work in a forked child, which gets a new runtime and new
//! connections: see `forked`.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;

use super::reach::Answered;
use crate::store::wanted;

/// Maximum number of concurrent requests of this process, whatever its callers do: less than the usual limit for file
/// descriptors.
const REQUESTS: usize = 256;

/// The runtime of one process, and the limit for its requests.
#[derive(Debug)]
pub(super) struct RequestRuntime {
    process: u32,
    runtime: Runtime,
    driver: Mutex<DriverThread>,
    requests: Semaphore,
    /// The servers that have answered one of them.
    answered: Answered,
}

/// The thread that moves the bytes, and the calls that need it.
#[derive(Debug, Default)]
struct DriverThread {
    is_running: bool,
    /// Calls that wait now.
    waits: usize,
    /// Whether a call has begun to wait since the thread looked last.
    is_used: bool,
}

/// Never dropped: a forked child that inherits this value shares its descriptors with the parent.
static CURRENT: Mutex<Option<&'static RequestRuntime>> = Mutex::new(None);

/// How long a thread without work waits for more, before it ends: longer than most pauses between the requests of a
/// job.
const IDLE: Duration = Duration::from_millis(10);

/// Time that a request may still take after a stop: an answer that has nearly arrived need not be requested again.
const GRACE: Duration = Duration::from_millis(500);

/// Interval at which a waiting thread checks its flags.
const LOOK: Duration = Duration::from_millis(50);

/// Why the wait for an answer ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    /// This is a child that was forked after its parent made the runtime, or while it made a request.
    #[error("this process was forked after the volume was opened: open it again here")]
    Forked,
    /// The job was stopped.
    #[error("the work was stopped before an answer came")]
    Unwanted,
    /// The thread that moves the bytes cannot be started.
    #[error("cannot start a thread for requests: {0}")]
    NoThread(io::Error),
}

impl RequestRuntime {
    /// Returns the runtime of this process; makes it on the first call.
    pub(super) fn current() -> io::Result<&'static Self> {
        let process = std::process::id();
        // Locked for moments only, and not while a runtime is built: a child that is forked meanwhile would wait for
        // the lock for ever.
        let current = || CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        let of_process = |current: Option<&'static Self>| current.filter(|runtime| runtime.process == process);
        if let Some(runtime) = of_process(*current()) {
            return Ok(runtime);
        }
        // Host names are resolved by threads of their own, because that blocks.
        let mut builder = Builder::new_current_thread();
        let runtime = builder.thread_name("ndshm-resolver").thread_keep_alive(IDLE).enable_all().build()?;
        let made = Self {
            process,
            runtime,
            driver: Mutex::default(),
            requests: Semaphore::new(REQUESTS),
            answered: Answered::default(),
        };
        let mut current = current();
        if let Some(other) = of_process(*current) {
            return Ok(other); // another thread was faster
        }
        let runtime: &'static Self = Box::leak(Box::new(made));
        *current = Some(runtime);
        Ok(runtime)
    }

    /// Whether it was made in this process, and not in a parent before a fork.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// Returns the servers that have answered a request of this process.
    pub(super) fn answered(&self) -> &Answered {
        &self.answered
    }

    /// Waits for a request. The calling thread polls it and sleeps in between. The caller may be a thread of another
    /// asynchronous runtime, which is then blocked too.
    pub(super) fn wait<F: Future>(&'static self, request: F) -> Result<F::Output, NoAnswer> {
        if !self.is_of_this_process() {
            return Err(NoAnswer::Forked);
        }
        let _wait = self.begin_wait().map_err(NoAnswer::NoThread)?;
        let _context = self.runtime.enter();
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        // A caller inside another tokio runtime has a cooperative budget there, which is not refilled while it waits
        // here.
        let mut bounded = pin!(tokio::task::unconstrained(async {
            let _permit = self.requests.acquire().await;
            request.await
        }));
        let mut stopped: Option<Instant> = None;
        loop {
            if let Poll::Ready(answer) = bounded.as_mut().poll(&mut context) {
                return Ok(answer);
            }
            // A wake-up between the poll and the park is not lost: `unpark` before `park` makes the park return at
            // once.
            if wanted::is_unwanted() && stopped.get_or_insert_with(Instant::now).elapsed() >= GRACE {
                return Err(NoAnswer::Unwanted);
            }
            thread::park_timeout(LOOK);
        }
    }

    fn driver(&self) -> MutexGuard<'_, DriverThread> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the driving thread if it is not running, and keeps it until the result is dropped.
    fn begin_wait(&'static self) -> io::Result<ActiveWait> {
        let mut driver = self.driver();
        if !driver.is_running {
            let thread = thread::Builder::new().name("ndshm-requests".to_owned());
            thread.spawn(|| self.runtime.block_on(self.until_idle()))?;
            driver.is_running = true;
        }
        driver.waits += 1;
        driver.is_used = true;
        Ok(ActiveWait(self))
    }

    /// Returns when there was no wait for some time.
    async fn until_idle(&self) {
        loop {
            tokio::time::sleep(IDLE).await;
            let mut driver = self.driver();
            if driver.waits == 0 && !std::mem::take(&mut driver.is_used) {
                // Under the lock: a wait that begins afterwards starts another thread.
                driver.is_running = false;
                return;
            }
        }
    }
}

/// A call that waits.
struct ActiveWait(&'static RequestRuntime);

impl Drop for ActiveWait {
    fn drop(&mut self) {
        self.0.driver().waits -= 1;
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
    use ndarray_shm::backend::interruptible;

    use super::*;
    use crate::progress::StopFlag;
    use crate::retries::Retries;

    #[test]
    fn stopped_job_does_not_wait_for_an_answer() {
        let (stop, never) = (StopFlag::new(), StopFlag::new());
        let io = RequestRuntime::current().expect("a runtime");
        thread::scope(|scope| {
            let waiting = scope
                .spawn(|| wanted::in_job([&never, &stop], &Retries::new(), || io.wait(std::future::pending::<()>())));
            thread::sleep(2 * LOOK);
            assert!(!waiting.is_finished());
            stop.stop();
            assert!(matches!(waiting.join().expect("no panic"), Err(NoAnswer::Unwanted)));
        });
        assert_eq!(stop.run(|| io.wait(async { 7 }).expect("it is there at once")), 7);
        assert!(!wanted::is_unwanted(), "only while it works");
        let begin = Instant::now();
        let ended = interruptible(|| false, || io.wait(std::future::pending::<()>()));
        assert!(matches!(ended, Err(NoAnswer::Unwanted)) && begin.elapsed() >= GRACE);
    }

    #[test]
    fn forked_child_gets_an_error_instead_of_waiting() {
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        // Another process id: so this runtime looks inherited from a parent.
        let parent = Box::leak(Box::new(RequestRuntime {
            process: std::process::id() + 1,
            runtime,
            driver: Mutex::default(),
            requests: Semaphore::new(1),
            answered: Answered::default(),
        }));
        assert!(matches!(parent.wait(std::future::pending::<()>()), Err(NoAnswer::Forked)));
        let own = RequestRuntime::current().expect("a runtime");
        assert_eq!(own.wait(async { 7 }).expect("an answer"), 7);
        assert!(std::ptr::eq(own, RequestRuntime::current().expect("the same")));
    }
}
