//! Calls that Ctrl-C can end: the library asks between the steps of a long call, and the interpreter handles the
//! signals that have come.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ndarray_shm::Error;
use ndarray_shm::backend::interruptible;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;

use crate::errors::{exception, volume_exception};

/// Why a call has failed.
pub(crate) enum Failed {
    Library(Error),
    Volume(ndarray_shm_volume::Error),
    Python(PyErr),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

impl From<ndarray_shm_volume::Error> for Failed {
    fn from(error: ndarray_shm_volume::Error) -> Self {
        Self::Volume(error)
    }
}

impl From<PyErr> for Failed {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl Failed {
    fn into_exception(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Library(error) => exception(py, &error),
            Self::Volume(error) => volume_exception(py, &error),
            Self::Python(error) => error,
        }
    }
}

/// Runs `work` without the interpreter's lock. If this is the main thread, a signal ends it when its handler raises an
/// exception.
pub(crate) fn interruptibly<R: Send>(py: Python<'_>, work: impl FnOnce() -> Result<R, Failed> + Send) -> PyResult<R> {
    // Python handles signals in the main thread only. Other threads must not attach to the interpreter while they wait,
    // because it may be ending.
    if !is_main_thread(py)? {
        return py.detach(work).map_err(|failed| failed.into_exception(py));
    }
    let interrupted = Arc::new(Mutex::new(None));
    let noted = Arc::clone(&interrupted);
    let goes_on = move || match check_signals() {
        Ok(()) => true,
        Err(error) => {
            *noted.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            false
        }
    };
    let done = py.detach(|| interruptible(goes_on, work));
    let interrupted = interrupted.lock().unwrap_or_else(PoisonError::into_inner).take();
    match interrupted {
        Some(error) => Err(error),
        None => done.map_err(|failed| failed.into_exception(py)),
    }
}

/// Whether Ctrl-C came in a hook of a fork.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Acquires a lock of Python for a fork, also if signals end the wait. The exception of Ctrl-C comes after the fork.
#[pyfunction]
pub(crate) fn acquire_for_fork(py: Python<'_>, lock: &Bound<'_, PyAny>) -> PyResult<()> {
    let mut lost = Ok(());
    while let Err(error) = lock.call_method0("acquire") {
        if error.is_instance_of::<PyKeyboardInterrupt>(py) {
            note_interrupt();
        } else {
            lost = Err(error);
        }
    }
    lost // Python prints it
}

/// Tells that Ctrl-C came in a hook, which cannot raise it.
#[pyfunction]
pub(crate) fn note_interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Repeats the Ctrl-C that came in a hook.
#[pyfunction]
pub(crate) fn interrupt_again(py: Python<'_>) -> PyResult<()> {
    if INTERRUPTED.swap(false, Ordering::Relaxed) {
        py.import("_thread")?.call_method0("interrupt_main")?;
    }
    Ok(())
}

/// Handles the signals that have come. Called by a thread that has released the interpreter's lock.
pub(crate) fn check_signals() -> PyResult<()> {
    #[allow(clippy::redundant_closure_for_method_calls)] // the method itself is not general enough
    Python::attach(|py| py.check_signals())
}

/// Returns whether this is the thread that handles signals. None does any more when the interpreter ends, and modules
/// cannot be imported then.
pub(crate) fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let Ok(threading) = py.import("threading") else { return Ok(false) };
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    main.eq(threading.call_method0("get_ident")?)
}
