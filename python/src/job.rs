//! Work that takes long, in a thread of its own: Python looks at it, waits for it, and stops it.
//!
//! The thread never calls Python, so it runs whatever the interpreter does. The thread that waits has released the interpreter and comes
//! back often, so that Ctrl-C is noticed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ndarray_shm_volume::{DownloadProgress, Error, Progress, Result, StopFlag};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::array::{forks, seconds};
use crate::errors::{named, volume_exception};

/// Work in a thread.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct Job {
    state: Arc<JobState>,
    /// How often this process had been forked when the work began: a forked child does not have the thread.
    forks: u32,
}

/// What the thread and Python share.
pub(crate) struct JobState {
    pub(crate) stop: StopFlag,
    seen: Mutex<Seen>,
    outcome: Mutex<Outcome>,
    ended: Condvar,
}

/// What the thread has told so far.
#[derive(Default)]
struct Seen {
    progress: DownloadProgress,
    warnings: Vec<String>,
}

/// Converts a result for Python.
type Converted = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

enum Outcome {
    Running,
    Ended(Converted),
    Taken,
}

impl Progress for JobState {
    fn update(&self, progress: DownloadProgress) {
        self.seen().progress = progress;
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

    fn end(&self, outcome: Converted) {
        *self.outcome() = Outcome::Ended(outcome);
        self.ended.notify_all();
    }
}

impl Job {
    /// Starts the work. Python gets what `convert` makes of its result.
    pub(crate) fn start<T: Send + 'static>(
        work: impl FnOnce(&JobState) -> Result<T> + Send + 'static,
        convert: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Self> {
        let state = Arc::new(JobState {
            stop: StopFlag::new(),
            seen: Mutex::default(),
            outcome: Mutex::new(Outcome::Running),
            ended: Condvar::new(),
        });
        let of_thread = Arc::clone(&state);
        let run = move || {
            let state = of_thread;
            // Opening a volume has no options, so the flag reaches its requests by the thread.
            let result = catch_unwind(AssertUnwindSafe(|| state.stop.run(|| work(&state))));
            let is_stopped = state.stop.is_stopped();
            state.end(match result {
                Ok(Ok(value)) => Box::new(move |py| convert(py, value)),
                Ok(Err(error)) => Box::new(move |py| Err(failure(py, &error, is_stopped))),
                Err(_) => {
                    Box::new(|_| Err(PyRuntimeError::new_err("the work panicked: standard error has the message")))
                }
            });
        };
        std::thread::Builder::new().name("ndshm-job".to_owned()).spawn(run)?;
        Ok(Self { state, forks: forks() })
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
        py.detach(|| {
            let is_running = |outcome: &mut Outcome| matches!(outcome, Outcome::Running);
            let waited = self.state.ended.wait_timeout_while(self.state.outcome(), limit, is_running);
            let (_outcome, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
            Ok(!timed_out.timed_out())
        })
    }

    /// Asks the work to stop. It ends soon, with an error or, if it was just finished, with its result.
    fn stop(&self) {
        self.state.stop.stop();
    }

    /// Returns the number of finished chunks and of all chunks, the finished bytes and all bytes of the array, the bytes that were
    /// fetched or stored, and the seconds since the first chunk was begun.
    #[getter]
    fn progress(&self) -> (usize, usize, u64, u64, u64, f64) {
        let DownloadProgress { done, total, bytes, bytes_total, fetched, elapsed, .. } = self.state.seen().progress;
        (done, total, bytes, bytes_total, fetched, elapsed.as_secs_f64())
    }

    /// Returns the warnings since the last call.
    fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.state.seen().warnings)
    }

    /// Returns the result, once. The work must have ended.
    fn take(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.check_process()?;
        let mut outcome = self.state.outcome();
        if matches!(*outcome, Outcome::Running) {
            return Err(PyRuntimeError::new_err("the work has not ended"));
        }
        let ended = std::mem::replace(&mut *outcome, Outcome::Taken);
        drop(outcome);
        match ended {
            Outcome::Ended(convert) => convert(py),
            _ => Err(PyRuntimeError::new_err("the result has been taken")),
        }
    }
}
