//! Guards: a lock, and the view of a `with` block, which begin and end in one step.
//!
//! Python handles signals between the steps of Python code, and not within a call of this module. So the lock is either
//! taken and known to the block, or not taken, and Ctrl-C finds no state between.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ndarray_shm::DType;
use ndarray_shm::array::ArrayLock;
use pyo3::exceptions::{PyBufferError, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::pyclass::{PyTraverseError, PyVisit};
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyMemoryView, PyString};

use crate::arguments::seconds;
use crate::array::RawArray;
use crate::errors::named;
use crate::export::{self, Elements, Writer, Writers};
use crate::memory::ElementType;

/// Whether a view that outlives its block is an error.
static STRICT: AtomicBool = AtomicBool::new(false);

/// Chooses whether a view that outlives its block is an error.
#[pyfunction]
pub(crate) fn set_strict(enabled: bool) {
    STRICT.store(enabled, Ordering::Relaxed);
}

/// Exports the elements under a lock, and counts the exports.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct View {
    elements: Elements,
    writable: bool,
    open: AtomicBool,
    /// The number of buffers that are not released yet.
    exports: AtomicUsize,
    writers: Writers,
    /// Set if exports outlive the lock. They keep this object, and can write.
    outlived: Mutex<Option<Writer>>,
}

impl View {
    pub(crate) fn new(elements: Elements, writable: bool) -> Self {
        Self::counted_by(Writers::default(), elements, writable)
    }

    fn counted_by(writers: Writers, elements: Elements, writable: bool) -> Self {
        let exports = AtomicUsize::new(0);
        Self { elements, writable, open: AtomicBool::new(true), exports, writers, outlived: Mutex::default() }
    }

    /// Refuses further exports. Existing exports stay valid.
    fn end(&self) {
        self.open.store(false, Ordering::Release);
    }

    /// Notes that exports are still alive after the lock, as writers of the array.
    fn outlive(&self) {
        if self.writable {
            *self.outlived.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.writers.enter());
        }
    }
}

#[pymethods]
impl View {
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        if !this.open.load(Ordering::Acquire) {
            return Err(PyBufferError::new_err("the guard has ended: take another one"));
        }
        // SAFETY: the interpreter calls this with a buffer to fill, and `__releasebuffer__` releases it.
        unsafe { export::fill(view, flags, slf.as_any(), &this.elements, !this.writable, None) }?;
        this.exports.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        self.exports.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the interpreter releases each buffer that `__getbuffer__` filled once.
        unsafe { export::release(view) };
    }
}

/// Returns a numpy array of elements that cannot be written to or, without numpy, a memoryview. It keeps their owner.
pub(crate) fn read_only(py: Python<'_>, elements: Elements, numpy: Option<&Numpy<'_>>) -> PyResult<Py<PyAny>> {
    let exporter = Bound::new(py, View::new(elements, false))?;
    let raw = PyMemoryView::from(&exporter)?;
    let Some(Numpy { asarray, dtype }) = numpy else { return Ok(raw.into_any().unbind()) };
    let array = asarray.call1((raw,))?;
    let array = match dtype {
        Some(dtype) => array.call_method1(Words::get(py).view.bind(py), (dtype,))?,
        None => array,
    };
    Ok(array.unbind())
}

/// The view of a `with` block.
pub(crate) struct BlockView {
    exporter: Py<View>,
    /// The numpy array of which the block gets a view; `None` without numpy. No Python code has it, so its references
    /// are views.
    base: Option<Py<PyAny>>,
    /// What the block gets: a numpy array or, without numpy, a memoryview.
    value: Py<PyAny>,
    /// The process in which it was made.
    pid: u32,
}

/// A view that has ended. Other views of the same memory may be alive.
pub(crate) struct EndedView {
    view: BlockView,
    /// Whether the block ended without an exception.
    completed: bool,
}

impl BlockView {
    /// Exports the elements. `writers` counts them when the block has ended. Calls no Python code.
    pub(crate) fn new(
        py: Python<'_>,
        writers: Writers,
        elements: Elements,
        writable: bool,
        numpy: Option<&Numpy<'_>>,
    ) -> PyResult<Self> {
        let exporter = Bound::new(py, View::counted_by(writers, elements, writable))?;
        let raw = PyMemoryView::from(&exporter)?;
        let (base, value) = match numpy {
            None => (None, raw.into_any()),
            Some(Numpy { asarray, dtype }) => {
                // In numpy a view of a view refers to the first array, here `base`.
                let base = asarray.call1((raw,))?;
                let view = Words::get(py).view.bind(py);
                let value = match dtype {
                    Some(dtype) => base.call_method1(view, (dtype,)),
                    None => base.call_method0(view),
                }?;
                (Some(base.unbind()), value)
            }
        };
        Ok(Self { exporter: exporter.unbind(), base, value: value.unbind(), pid: std::process::id() })
    }

    pub(crate) fn value(&self, py: Python<'_>) -> Py<PyAny> {
        self.value.clone_ref(py)
    }

    /// Makes the view read-only. Calls no Python code.
    pub(crate) fn end(self, py: Python<'_>, completed: bool) -> PyResult<EndedView> {
        self.exporter.get().end();
        match &self.base {
            // Of a base that is read-only, numpy makes no view writable again.
            Some(base) => {
                let Words { flags, writeable, .. } = Words::get(py);
                for array in [&self.value, base] {
                    array.bind(py).getattr(flags.bind(py))?.setattr(writeable.bind(py), false)?;
                }
            }
            // Refused if another buffer was made of it, which is counted below.
            None => drop(self.value.bind(py).call_method0(Words::get(py).release.bind(py))),
        }
        Ok(EndedView { view: self, completed })
    }
}

impl EndedView {
    /// Returns whether the view was made before this process was forked.
    pub(crate) fn is_inherited(&self) -> bool {
        self.view.pid != std::process::id()
    }

    /// Warns of views that are alive after the block, or fails if `strict` was chosen and the block did not fail.
    ///
    /// The warning names the line of the Python code that called the module.
    pub(crate) fn report(self, py: Python<'_>, name: &str, error: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let completed = self.completed;
        let alive = self.count_others(py, error)?;
        if alive == 0 {
            return Ok(());
        }
        let text = format!(
            "{alive} view(s) of `{name}` are alive after the guard has ended, and no lock protects them: copy what is needed later, with \
             .copy()"
        );
        if completed && STRICT.load(Ordering::Relaxed) {
            return Err(named(py, "ViewOutlivesGuard", &text));
        }
        let class = py.import("ndshm._errors")?.getattr("ViewOutlivesGuard")?;
        py.import("warnings")?.call_method1("warn", (text, class, 1)).map(drop)
    }

    /// Returns how many views are alive beside the one that the block got.
    fn count_others(self, py: Python<'_>, error: Option<&Bound<'_, PyAny>>) -> PyResult<usize> {
        let BlockView { exporter, base, value, .. } = self.view;
        let exports = || exporter.get().exports.load(Ordering::Relaxed);
        let Some(base) = base else {
            // The memoryview was released, unless a buffer of it exists. Parts of it and copies share its buffer.
            drop(value);
            let alive = exports();
            if alive > 0 {
                exporter.get().outlive();
            }
            return Ok(alive);
        };
        // `base` is one reference to itself, and `value` has one. Each view of the class `numpy.ndarray` has one, too.
        let plain = references(&base).saturating_sub(2);
        // Views of other classes, memoryviews and tensors refer to `value`. So do `value` here, and the variable of the
        // block.
        let mut others = references(&value).saturating_sub(2);
        if let Some(error) = error.filter(|_| others > 0) {
            others = others.saturating_sub(count_variables(py, &value, error)?);
        }
        // Of another buffer than that of `base`, there are views that do not refer to `base`.
        let alive = plain + others + exports().saturating_sub(1);
        if alive > 0 {
            exporter.get().outlive();
        }
        Ok(alive)
    }
}

/// Returns the number of references to an object. The caller's is one of them.
fn references(object: &Py<PyAny>) -> usize {
    // SAFETY: the object is alive, and callers are attached to the interpreter.
    let count = unsafe { ffi::Py_REFCNT(object.as_ptr()) };
    // Newer interpreters have flags in the upper half of the field.
    usize::try_from(count & 0xffff_ffff).unwrap_or(usize::MAX)
}

/// Returns how often the functions that an exception has left have the object in a variable. The traceback keeps these
/// variables.
///
/// The function of the block itself has not been left.
fn count_variables(py: Python<'_>, object: &Py<PyAny>, error: &Bound<'_, PyAny>) -> PyResult<usize> {
    let referents = py.import("gc")?.getattr("get_referents")?;
    let (mut count, mut frames, mut errors) = (0, Vec::new(), vec![error.clone()]);
    let mut next = 0;
    while let Some(error) = errors.get(next).cloned() {
        next += 1;
        let mut trace = error.getattr("__traceback__")?;
        while !trace.is_none() {
            let frame = trace.getattr("tb_frame")?;
            if !frames.iter().any(|seen: &Bound<'_, PyAny>| seen.is(&frame)) {
                for referent in referents.call1((&frame,))?.try_iter()? {
                    count += usize::from(referent?.is(object));
                }
                frames.push(frame);
            }
            trace = trace.getattr("tb_next")?;
        }
        for cause in [error.getattr("__cause__")?, error.getattr("__context__")?] {
            if !cause.is_none() && !errors.iter().any(|seen| seen.is(&cause)) {
                errors.push(cause);
            }
        }
    }
    Ok(count)
}

/// Names of attributes.
pub(crate) struct Words {
    view: Py<PyString>,
    flags: Py<PyString>,
    writeable: Py<PyString>,
    release: Py<PyString>,
}

impl Words {
    /// Is called when the module is imported: a first call in a thread releases the interpreter in the middle, and a
    /// child that is forked then would wait for its end for ever.
    pub(crate) fn get(py: Python<'_>) -> &Self {
        static WORDS: PyOnceLock<Words> = PyOnceLock::new();
        WORDS.get_or_init(py, || {
            let word = |text| PyString::intern(py, text).unbind();
            Words { view: word("view"), flags: word("flags"), writeable: word("writeable"), release: word("release") }
        })
    }
}

/// The function `numpy.asarray`, once a guard needed it.
static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// What numpy makes of exported elements. It is looked up before a lock is taken, because that may run Python code.
pub(crate) struct Numpy<'py> {
    asarray: Bound<'py, PyAny>,
    /// The type of the elements, if they are exported as their bits.
    dtype: Option<Bound<'py, PyAny>>,
}

impl<'py> Numpy<'py> {
    /// Returns `None` if numpy is not installed.
    pub(crate) fn find(py: Python<'py>, element: ElementType) -> PyResult<Option<Self>> {
        let asarray = if let Some(found) = ASARRAY.get(py) {
            found.bind(py).clone()
        } else {
            let numpy = py.import("ndshm._guard")?.call_method0("optional_numpy")?;
            if numpy.is_none() {
                return Ok(None);
            }
            let found = numpy.getattr("asarray")?;
            // Not by `get_or_init`, which releases the interpreter: a child that is forked meanwhile would wait for its
            // end for ever.
            let _ = ASARRAY.set(py, found.clone().unbind()); // another thread may have set the same
            found
        };
        let as_bits = element.dtype == DType::Bf16;
        let dtype = || py.import("ndshm._dtypes")?.call_method1("numpy_dtype", (element.as_str(),));
        Ok(Some(Self { asarray, dtype: as_bits.then(dtype).transpose()? }))
    }
}

/// A lock on an array, for `with`. `ndshm.Guard` derives from it.
#[pyclass(frozen, subclass, module = "ndshm._core")]
pub(crate) struct RawGuard {
    array: Py<RawArray>,
    write: bool,
    timeout: Option<Duration>,
    state: Mutex<GuardState>,
}

enum GuardState {
    Free,
    /// A thread waits for the lock.
    Waiting,
    Held(BlockView, ArrayLock),
}

impl RawGuard {
    /// The lock on the state is held for a moment only, during which the interpreter stays locked.
    fn state(&self) -> MutexGuard<'_, GuardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<Py<PyAny>> {
        let array = self.array.get();
        let numpy = Numpy::find(py, array.layout().element)?;
        match &mut *self.state() {
            state @ GuardState::Free => *state = GuardState::Waiting,
            _ => {
                return Err(PyRuntimeError::new_err("this guard is in use: take another one with read() or write()"));
            }
        }
        let taken = array.take_lock(py, self.write, timeout).and_then(|(lock, elements)| {
            let view = BlockView::new(py, array.writers(), elements, self.write, numpy.as_ref())?;
            Ok((view.value(py), GuardState::Held(view, lock)))
        });
        let (value, state) = match taken {
            Ok((value, held)) => (Ok(value), held),
            Err(error) => (Err(error), GuardState::Free),
        };
        *self.state() = state;
        value
    }

    fn end(&self, py: Python<'_>, error: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let (view, lock) = match &mut *self.state() {
            state @ GuardState::Held(..) => match std::mem::replace(state, GuardState::Free) {
                GuardState::Held(view, lock) => (view, lock),
                _ => return Ok(()),
            },
            _ => return Ok(()),
        };
        let ended = view.end(py, error.is_none());
        py.detach(|| drop(lock));
        let ended = ended?;
        let name = self.array.get().name();
        if ended.is_inherited() {
            let text = format!(
                "the guard of `{name}` belongs to the parent of this process: take a guard after fork, in the child"
            );
            return Err(named(py, "NdshmError", &text));
        }
        ended.report(py, &name, error)
    }
}

#[pymethods]
impl RawGuard {
    #[new]
    fn new(array: Py<RawArray>, write: bool, timeout: Option<f64>) -> PyResult<Self> {
        let timeout = timeout.map(seconds).transpose()?;
        Ok(Self { array, write, timeout, state: Mutex::new(GuardState::Free) })
    }

    /// An array may have an attribute that leads to its guard.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.array)
    }

    #[getter]
    fn timeout(&self) -> Option<f64> {
        self.timeout.map(|limit| limit.as_secs_f64())
    }

    #[getter]
    fn name(&self) -> String {
        self.array.get().name()
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.begin(py, self.timeout)
    }

    /// Takes the lock without waiting.
    fn enter_now(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.begin(py, Some(Duration::ZERO))
    }

    #[pyo3(signature = (_kind, error, _trace))]
    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: Option<&Bound<'_, PyAny>>,
        error: Option<&Bound<'_, PyAny>>,
        _trace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.end(py, error)
    }

    /// Releases the lock at once. There is nothing to wait for.
    #[pyo3(signature = (_kind, error, _trace))]
    fn __aexit__(
        &self,
        py: Python<'_>,
        _kind: Option<&Bound<'_, PyAny>>,
        error: Option<&Bound<'_, PyAny>>,
        _trace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<AlreadyDone> {
        self.end(py, error).map(|()| AlreadyDone)
    }
}

/// What `await` does not wait for.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct AlreadyDone;

#[pymethods]
impl AlreadyDone {
    fn __await__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[allow(clippy::unused_self)] // the protocol wants a method
    fn __next__(&self) -> Option<bool> {
        None
    }
}
