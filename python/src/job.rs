//! Work that takes long, in a thread of its own: Python looks at it, waits for it, and stops it.
//!
//! The thread never calls Python, so it runs whatever the interpreter does. The thread that waits has released the
//! interpreter and comes back often, so that Ctrl-C is noticed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ndarray_shm_volume::{DownloadProgress, Error, Progress, Result, Retries, Retry, StopFlag};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::arguments::seconds;
use crate::errors::{named, volume_exception};
use crate::forks::forks;

/// Work in a thread.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct Job {
    state: Arc<JobState>,
    /// How often this process had been forked when the work began: a forked child does not have the thread.
    forks: u32,
    /// The result, once it was asked for. It is kept, because a signal can come before the caller has it. An error is
    /// made anew each time: its traceback leads to everything that the callers have, and Python does not see what is
    /// kept here.
    taken: Mutex<Option<Py<PyAny>>>,
}

/// What the thread and Python share.
pub(crate) struct JobState {
    pub(crate) stop: StopFlag,
    /// What the thread's requests retry, also before there is any progress.
    retries: Retries,
    seen: Mutex<Seen>,
    outcome: Mutex<Outcome>,
    ended: Condvar,
}

/// What the thread has told so far.
#[derive(Default)]
struct Seen {
    progress: DownloadProgress,
    /// What the work reports as being retried: also requests of worker processes.
    retry: Option<Retry>,
    warnings: Vec<String>,
}

/// How many forks are about to happen. Work that is asked for meanwhile begins afterwards: a child must not find a lock
/// of a thread that begins or ends, which it does not have.
static FORKING: AtomicU32 = AtomicU32::new(0);

/// How long a start waits before it looks again, and in all: a hook of another package may start work in the thread
/// that forks.
const HOLD: Duration = Duration::from_micros(200);
const LONGEST_HOLD: Duration = Duration::from_secs(2);

/// Holds new work back until `free_jobs`.
#[pyfunction]
pub(crate) fn hold_jobs() {
    FORKING.fetch_add(1, Ordering::Relaxed);
}

/// Ends the threads that help to read, if they are idle.
#[pyfunction]
pub(crate) fn end_read_threads() {
    ndarray_shm_volume::end_read_threads();
}

/// Lets new work begin, after a fork, in the parent.
#[pyfunction]
pub(crate) fn free_jobs() {
    // Not below 0: a package that is imported while another thread forks gets the end of that fork, and not its
    // beginning.
    let _ = FORKING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |forks| forks.checked_sub(1));
}

/// Lets new work begin in a forked child, which has no other thread that forks.
#[pyfunction]
pub(crate) fn free_jobs_of_child() {
    FORKING.store(0, Ordering::Relaxed);
}

/// Whether the volumes' tables are made.
static PREPARED: AtomicBool = AtomicBool::new(false);

/// Converts a result for Python.
type Converted = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

enum Outcome {
    Running,
    /// It runs, and no object of Python is left that could ask for the result.
    Unwanted,
    Ended(Converted),
    Failed(Failure),
    Taken,
}

/// Makes the exception of work that has failed.
type Failure = Box<dyn Fn(Python<'_>) -> PyErr + Send>;

impl Progress for JobState {
    fn update(&self, progress: DownloadProgress) {
        self.seen().progress = progress;
    }

    fn retrying(&self, retry: Option<&Retry>) {
        self.seen().retry = retry.cloned();
    }

    fn warning(&self, message: &str) {
        self.seen().warnings.push(message.to_owned());
    }
}

impl JobState {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, ended: Outcome) {
        let mut outcome = self.outcome();
        let (next, unwanted) = match *outcome {
            Outcome::Unwanted => (Outcome::Taken, Some(ended)),
            _ => (ended, None),
        };
        *outcome = next;
        drop(outcome);
        self.ended.notify_all();
        drop(unwanted); // frees the memory of its array
    }

    /// Waits for at most `limit`, and returns whether the work has ended.
    fn wait(&self, limit: Duration) -> bool {
        let is_running = |outcome: &mut Outcome| matches!(outcome, Outcome::Running | Outcome::Unwanted);
        let waited = self.ended.wait_timeout_while(self.outcome(), limit, is_running);
        let (_outcome, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
        !timed_out.timed_out()
    }
}

impl Drop for Job {
    /// The work goes on. Its result is dropped, now or when it ends.
    fn drop(&mut self) {
        if self.forks != forks() {
            return; // the thread of the parent may hold the lock
        }
        let unwanted = {
            let mut outcome = self.state.outcome();
            let next = if matches!(*outcome, Outcome::Running) { Outcome::Unwanted } else { Outcome::Taken };
            std::mem::replace(&mut *outcome, next)
        };
        drop(unwanted);
    }
}

impl Job {
    /// Starts the work. Python gets what `convert` makes of its result.
    pub(crate) fn start<T: Send + 'static>(
        work: impl FnOnce(&JobState) -> Result<T> + Send + 'static,
        convert: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Self> {
        let end = Instant::now() + LONGEST_HOLD;
        while FORKING.load(Ordering::Relaxed) > 0 && Instant::now() < end {
            Python::attach(|py| py.detach(|| std::thread::sleep(HOLD)));
        }
        // Under the interpreter's lock, which a fork needs too: see `prepare`.
        if !PREPARED.swap(true, Ordering::Relaxed) {
            ndarray_shm_volume::prepare();
        }
        let state = Arc::new(JobState {
            stop: StopFlag::new(),
            retries: Retries::new(),
            seen: Mutex::default(),
            outcome: Mutex::new(Outcome::Running),
            ended: Condvar::new(),
        });
        let of_thread = Arc::clone(&state);
        let run = move || {
            let state = of_thread;
            // Opening a volume has no options, so the flag reaches its requests by the thread.
            let result = catch_unwind(AssertUnwindSafe(|| state.retries.run(|| state.stop.run(|| work(&state)))));
            let is_stopped = state.stop.is_stopped();
            state.end(match result {
                Ok(Ok(value)) => Outcome::Ended(Box::new(move |py| convert(py, value))),
                Ok(Err(error)) => Outcome::Failed(Box::new(move |py| failure(py, &error, is_stopped))),
                Err(_) => Outcome::Failed(Box::new(|_| {
                    PyRuntimeError::new_err("the work panicked: standard error has the message")
                })),
            });
        };
        std::thread::Builder::new().name("ndshm-job".to_owned()).spawn(run)?;
        Ok(Self { state, forks: forks(), taken: Mutex::default() })
    }

    fn check_process(&self) -> PyResult<()> {
        if self.forks == forks() {
            return Ok(());
        }
        Err(PyRuntimeError::new_err(
            "this work runs in the parent of this process: begin it after the fork, in the child",
        ))
    }
}

/// Returns the exception for an error. After a stop, each error of the store or the work is only its consequence.
fn failure(py: Python<'_>, error: &Error, is_stopped: bool) -> PyErr {
    match error {
        Error::Interrupted { .. } | Error::Store { .. } if is_stopped => {
            named(py, "Cancelled", "the work was cancelled")
        }
        _ => volume_exception(py, error),
    }
}

#[pymethods]
impl Job {
    /// Waits for at most `timeout` seconds, and returns whether the work has ended.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        self.check_process()?;
        let limit = seconds(timeout)?;
        Ok(py.detach(|| self.state.wait(limit)))
    }

    /// Returns what can wait for the work and stop it, but does not keep its result.
    fn watch(&self) -> JobWatch {
        JobWatch(Arc::clone(&self.state))
    }

    /// Asks the work to stop. It ends soon, with an error or, if it was just finished, with its result.
    fn stop(&self) {
        self.state.stop.stop();
    }

    /// Returns the number of finished chunks and of all chunks, the finished bytes and all bytes of the array, the
    /// bytes that were fetched or stored, and the seconds since the first chunk was begun.
    #[getter]
    fn progress(&self) -> (usize, usize, u64, u64, u64, f64) {
        let DownloadProgress { done, total, bytes, bytes_total, fetched, elapsed, .. } = self.state.seen().progress;
        (done, total, bytes, bytes_total, fetched, elapsed.as_secs_f64())
    }

    /// Returns what is being retried and why, in one line, or None.
    #[getter]
    fn retrying(&self) -> Option<String> {
        let retry = self.state.retries.current().or_else(|| self.state.seen().retry.clone());
        retry.map(|retry| retry.to_string())
    }

    /// Returns the warnings since the last call.
    fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.state.seen().warnings)
    }

    /// Returns the result. The work must have ended.
    fn take(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.check_process()?;
        let taken = || self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = &*taken() {
            return Ok(value.clone_ref(py));
        }
        let mut outcome = self.state.outcome();
        match &*outcome {
            Outcome::Running => return Err(PyRuntimeError::new_err("the work has not ended")),
            Outcome::Failed(failure) => return Err(failure(py)),
            _ => {}
        }
        let ended = std::mem::replace(&mut *outcome, Outcome::Taken);
        drop(outcome);
        let Outcome::Ended(convert) = ended else {
            return Err(PyRuntimeError::new_err("the result has been taken"));
        };
        let value = convert(py)?;
        *taken() = Some(value.clone_ref(py));
        Ok(value)
    }
}

/// Work in a thread, without its result.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct JobWatch(Arc<JobState>);

#[pymethods]
impl JobWatch {
    /// Waits for at most `timeout` seconds, and returns whether the work has ended.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let limit = seconds(timeout)?;
        Ok(py.detach(|| self.0.wait(limit)))
    }

    /// Asks the work to stop.
    fn stop(&self) {
        self.0.stop.stop();
    }
}
