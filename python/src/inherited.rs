//! Frames that a forked child inherits. Their locks are those of the parent, so the child takes its own, and the parent
//! gives none up before that. So arrays of frames never change, on either side of a fork.

use std::cell::RefCell;
use std::ffi::CString;
use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;

use crate::frame::Inheritable;

/// How long a parent waits for its child: one that is stopped, for example, has not answered then.
const PATIENCE: Duration = Duration::from_secs(1);

/// The frames that Python has. Locked for moments, by threads that hold the interpreter's lock and keep it meanwhile.
/// So no thread has it when a process forks.
static FRAMES: Mutex<Vec<Weak<dyn Inheritable>>> = Mutex::new(Vec::new());

fn frames() -> MutexGuard<'static, Vec<Weak<dyn Inheritable>>> {
    FRAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Remembers a frame for the children that are forked while it lives.
pub(crate) fn note(frame: Weak<dyn Inheritable>) {
    let mut frames = frames();
    if frames.len() == frames.capacity() {
        frames.retain(|frame| frame.strong_count() > 0);
        let living = frames.len();
        frames.reserve(living.max(16)); // so that the dead ones are looked for rarely
    }
    frames.push(frame);
}

/// What a thread that forks keeps meanwhile.
struct Fork {
    frames: Vec<Arc<dyn Inheritable>>,
    /// The child's end, and the parent's.
    ends: Option<(UnixStream, UnixStream)>,
}

thread_local! {
    static FORK: RefCell<Option<Fork>> = const { RefCell::new(None) };
}

/// Before a fork: keeps the frames that live.
#[pyfunction]
pub(crate) fn keep_frames() {
    let living: Vec<_> = frames().iter().filter_map(Weak::upgrade).collect();
    // Without descriptors for the ends, the parent does not wait.
    FORK.set((!living.is_empty()).then(|| Fork { frames: living, ends: UnixStream::pair().ok() }));
}

/// In the parent: waits until the child holds them too, or has ended.
#[pyfunction]
pub(crate) fn free_frames() {
    let Some(Fork { frames, ends: Some((childs, mut own)) }) = FORK.take() else { return };
    drop(childs);
    let _ = own.set_read_timeout(Some(PATIENCE));
    // Ctrl-C is handled after the fork.
    while own.read(&mut [0]).is_err_and(|error| error.kind() == IoErrorKind::Interrupted) {}
    drop(frames);
}

/// In the child: holds them.
#[pyfunction]
pub(crate) fn hold_frames(py: Python<'_>) -> PyResult<()> {
    let Some(Fork { frames, ends }) = FORK.take() else { return Ok(()) };
    let failed: Vec<_> = frames.iter().filter_map(|frame| frame.hold().err()).collect();
    if let Some((mut childs, _)) = ends {
        let _ = childs.write_all(&[0]); // a parent that was killed does not read it
    }
    let Some(error) = failed.first() else { return Ok(()) };
    let text = format!("arrays of a stream's frames may change in this forked child, which cannot hold them: {error}");
    let text = CString::new(text)?;
    PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1)
}
