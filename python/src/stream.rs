//! Streams: their writer, frames that are being written, and what can be done to a stream by its name.

use std::cell::UnsafeCell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ndarray::{IxDyn, ShapeBuilder};
use ndarray_shm::array::{Description, with_element};
use ndarray_shm::stream::{self, Backpressure, MetaField, NewFrame, StreamOptions, StreamWriter};
use ndarray_shm::{Directory, Element, Error, ErrorKind, Location, Order, Pages, Result, default_directory};
use ndarray_shm_volume::VolumeNotes;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arguments::{Name, lengths_of, order_of, seconds};
use crate::array::directory_at;
use crate::errors::{exception, named};
use crate::export::{Elements, Kept, Writers};
use crate::guard::{BlockView, Numpy};
use crate::memory::{ElementType, Shape, name_of_order};
use crate::signals::interruptibly;

/// The bytes of the values that a frame has beside its elements.
pub(crate) type Meta = [u8; 240];

/// The writer of a stream with elements of any type.
trait Writes: Send + Sync {
    fn begin(self: Arc<Self>, limit: Duration) -> Result<Box<dyn Written>, WriteRefused>;
    fn end(self: Arc<Self>) -> Result<(), WriteRefused>;
}

/// Why a writer did nothing.
enum WriteRefused {
    /// A frame is being written, or a thread waits for a slot.
    Busy,
    Failed(Error),
}

impl From<Error> for WriteRefused {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A writer that one frame or one call at a time uses. What Python exports of a frame keeps it, and with it the
/// mapping.
struct WriterCell<T: Element> {
    writer: UnsafeCell<StreamWriter<T, IxDyn>>,
    is_taken: AtomicBool,
}

impl<T: Element> Kept for WriterCell<T> {}

#[allow(unsafe_code)]
// SAFETY: `WriterUse::take` gives the writer to one `WriterUse` at a time. That may be on any thread, because the
// writer is `Send`.
unsafe impl<T: Element> Sync for WriterCell<T> where StreamWriter<T, IxDyn>: Send {}

/// The exclusive use of a writer.
struct WriterUse<T: Element>(Arc<WriterCell<T>>);

impl<T: Element> WriterUse<T> {
    fn take(cell: &Arc<WriterCell<T>>) -> Result<Self, WriteRefused> {
        let taken = cell.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.map(|_| Self(Arc::clone(cell))).map_err(|_| WriteRefused::Busy)
    }

    #[allow(unsafe_code)]
    fn writer(&mut self) -> &mut StreamWriter<T, IxDyn> {
        // SAFETY: the cell lives as long as `self`. Meanwhile `is_taken` is set, so no other use of the cell exists,
        // and this one is borrowed exclusively.
        unsafe { &mut *self.0.writer.get() }
    }
}

impl<T: Element> Drop for WriterUse<T> {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Release);
    }
}

impl<T: Element> Writes for WriterCell<T> {
    fn begin(self: Arc<Self>, limit: Duration) -> Result<Box<dyn Written>, WriteRefused> {
        Ok(Box::new(OwnedFrame::begin(WriterUse::take(&self)?, limit)?))
    }

    fn end(self: Arc<Self>) -> Result<(), WriteRefused> {
        Ok(WriterUse::take(&self)?.writer().end()?)
    }
}

/// A frame that is being written, with elements of any type.
trait Written: Send {
    fn number(&self) -> u64;
    fn elements(&mut self, shape: &Shape) -> Elements;
    fn meta(&self) -> Meta;
    fn set_meta(&mut self, bytes: &Meta);
    /// Lets readers see the frame, and returns its number.
    fn commit(self: Box<Self>) -> Result<u64>;
}

/// A frame that is being written, together with the writer that it borrows.
struct OwnedFrame<T: Element> {
    /// The first field, so dropped first: it borrows from `used`.
    frame: NewFrame<'static, T, IxDyn>,
    used: WriterUse<T>,
}

impl<T: Element> OwnedFrame<T> {
    #[allow(unsafe_code)]
    fn begin(mut used: WriterUse<T>, limit: Duration) -> Result<Self> {
        let writer = used.writer();
        let frame = if limit.is_zero() { writer.frame()? } else { writer.frame_wait(limit)? };
        // SAFETY: the frame borrows the writer in the cell, which does not move, and which the field `used` keeps alive
        // and to itself. The frame leaves this value only in `commit`, which ends it before it drops `used`. Otherwise
        // fields are dropped in the order of their declaration, so the frame first.
        let frame = unsafe { std::mem::transmute::<NewFrame<'_, T, IxDyn>, NewFrame<'static, T, IxDyn>>(frame) };
        Ok(Self { frame, used })
    }
}

impl<T: Element> Written for OwnedFrame<T> {
    fn number(&self) -> u64 {
        self.frame.number()
    }

    fn elements(&mut self, shape: &Shape) -> Elements {
        let kept: Arc<dyn Kept> = Arc::clone(&self.used.0) as Arc<dyn Kept>;
        let address = self.frame.view_mut().as_mut_ptr();
        Elements::new(address.cast(), shape.element, shape.lengths.clone(), shape.strides(), kept)
    }

    fn meta(&self) -> Meta {
        self.frame.meta_bytes()
    }

    fn set_meta(&mut self, bytes: &Meta) {
        self.frame.set_meta_bytes(bytes);
    }

    fn commit(self: Box<Self>) -> Result<u64> {
        let Self { frame, used } = *self;
        let number = frame.commit();
        drop(used);
        number
    }
}

/// Returns the exception for an error about a stream, which says what to do with streams.
pub(crate) fn stream_exception(py: Python<'_>, error: &Error) -> PyErr {
    let (class, text) = match &error.kind {
        ErrorKind::NotFound => {
            ("NotFound", "no stream has this name (create it first, or check the spelling and EMULATE_SHM)")
        }
        ErrorKind::AlreadyExists => (
            "AlreadyExists",
            "a stream has this name already (without a writer that lives, resume=True takes it over and replace=True replaces it; \
             ndshm.Stream.unlink removes its name)",
        ),
        ErrorKind::Unlinked => {
            ("Unlinked", "the stream was replaced, or its name removed (open it again by name; writers begin anew)")
        }
        _ => return exception(py, error),
    };
    named(py, class, &format!("`{}`: {text}", error.location))
}

/// Runs `work` as [`interruptibly`] does.
pub(crate) fn on_stream<R: Send>(py: Python<'_>, work: impl FnOnce() -> Result<R> + Send) -> PyResult<R> {
    interruptibly(py, || Ok(work()))?.map_err(|error| stream_exception(py, &error))
}

/// Name, type, number of values and the offset in bytes of each field.
pub(crate) type FieldRows = Vec<(String, &'static str, usize, usize)>;

pub(crate) fn fields_of(fields: &[MetaField]) -> FieldRows {
    fields.iter().map(|field| (field.name.clone(), field.dtype.as_str(), field.count, field.offset)).collect()
}

/// The writer of a stream, behind `ndshm.StreamWriter`.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct RawWriter {
    /// `None` when the stream was ended: another process may take it over then. Locked for moments, by threads that
    /// hold the interpreter's lock and keep it meanwhile.
    writer: Mutex<Option<Arc<dyn Writes>>>,
    shape: Shape,
    name: String,
    slots: usize,
    epoch: u64,
    fields: FieldRows,
    description: Description,
    head: AtomicU64,
    /// The process that writes.
    pid: u32,
}

impl RawWriter {
    fn writer(&self) -> MutexGuard<'_, Option<Arc<dyn Writes>>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self, py: Python<'_>, refused: &WriteRefused) -> PyErr {
        match refused {
            WriteRefused::Busy => PyRuntimeError::new_err(format!(
                "a frame of `{}` is being written: leave its `with` block first, and write from one thread at a time",
                self.name
            )),
            WriteRefused::Failed(error) => stream_exception(py, error),
        }
    }

    /// Fails in a forked child. There a frame that the parent was writing would seem to be written here.
    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        if self.pid == std::process::id() {
            return Ok(());
        }
        let what = "the writer of a stream in a child that was forked from its process (create another stream here)";
        Err(exception(py, &ErrorKind::Unsupported { what: what.into() }.at(self.name.as_str())))
    }
}

#[pymethods]
impl RawWriter {
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape.lengths)
    }

    #[getter(_dtype_code)]
    fn dtype_code(&self) -> &'static str {
        self.shape.element.as_str()
    }

    #[getter]
    fn order(&self) -> &'static str {
        self.shape.order_name()
    }

    #[getter]
    fn slots(&self) -> usize {
        self.slots
    }

    #[getter]
    fn notes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        notes_of(py, &self.description)
    }

    #[getter]
    fn axes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        axes_of(py, &self.description)
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.epoch
    }

    #[getter]
    fn head(&self) -> u64 {
        self.head.load(Ordering::Relaxed)
    }

    #[getter]
    fn fields(&self) -> FieldRows {
        self.fields.clone()
    }

    /// Ends the stream.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process(py)?;
        let writer = self.writer().clone();
        let Some(writer) = writer else { return Ok(()) };
        py.detach(|| writer.end()).map_err(|refused| self.refused(py, &refused))?;
        let ended = self.writer().take();
        drop(ended);
        Ok(())
    }

    /// Ends the stream, if this process writes it and writes no frame at this moment: when Python's object is gone or
    /// the process ends, where errors have no reader.
    fn end_quietly(&self, py: Python<'_>) {
        if self.pid == std::process::id() {
            let _ = self.end(py);
        }
    }
}

impl Drop for RawWriter {
    fn drop(&mut self) {
        let writer = self.writer().take();
        // Views that outlived their frame keep the writer from being dropped, and the stream ends all the same.
        if let Some(writer) = writer.filter(|writer| self.pid == std::process::id() && Arc::strong_count(writer) > 1) {
            drop(writer.end()); // `end` reports errors
        }
    }
}

/// A frame to be written, for `with`. `ndshm.NewFrame` derives from it.
#[pyclass(frozen, subclass, module = "ndshm._core")]
pub(crate) struct RawNewFrame {
    writer: Py<RawWriter>,
    timeout: Duration,
    state: Mutex<NewFrameState>,
}

enum NewFrameState {
    Idle,
    /// A thread waits for a slot.
    Entering,
    InUse(BlockView, Box<dyn Written>),
    Ended,
}

impl RawNewFrame {
    /// The lock on the state is held for a moment only, during which the interpreter stays locked.
    fn state(&self) -> MutexGuard<'_, NewFrameState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `act` with the frame, inside of its block.
    fn with<R>(&self, py: Python<'_>, act: impl FnOnce(&BlockView, &mut dyn Written) -> R) -> PyResult<R> {
        self.writer.get().check_process(py)?;
        match &mut *self.state() {
            NewFrameState::InUse(view, frame) => Ok(act(view, &mut **frame)),
            NewFrameState::Ended => Err(PyValueError::new_err("the frame has ended: take another one with frame()")),
            _ => {
                Err(PyValueError::new_err("a new frame exists only inside of its block: `with out.frame() as frame:`"))
            }
        }
    }
}

#[pymethods]
impl RawNewFrame {
    #[new]
    fn new(writer: Py<RawWriter>, timeout: Option<f64>) -> PyResult<Self> {
        let timeout = timeout.map_or(Ok(Duration::MAX), seconds)?;
        Ok(Self { writer, timeout, state: Mutex::new(NewFrameState::Idle) })
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        let (py, this) = (slf.py(), slf.get());
        let writer = this.writer.get();
        writer.check_process(py)?;
        let numpy = Numpy::find(py, writer.shape.element)?;
        match &mut *this.state() {
            state @ NewFrameState::Idle => *state = NewFrameState::Entering,
            _ => return Err(PyRuntimeError::new_err("this frame was used: take another one with frame()")),
        }
        let (cell, limit) = (writer.writer().clone(), this.timeout);
        let begun = if let Some(cell) = cell {
            interruptibly(py, || Ok(cell.begin(limit)))
        } else {
            let reason = "this writer has ended the stream (create it again)";
            Ok(Err(WriteRefused::Failed(ErrorKind::Closed { reason }.at(writer.name.as_str()))))
        };
        let taken = begun.and_then(|begun| begun.map_err(|refused| writer.refused(py, &refused)));
        let viewed = taken.and_then(|mut frame| {
            let elements = frame.elements(&writer.shape);
            Ok((BlockView::new(py, Writers::default(), elements, true, numpy.as_ref())?, frame))
        });
        let (state, entered) = match viewed {
            Ok((view, frame)) => (NewFrameState::InUse(view, frame), Ok(())),
            Err(error) => (NewFrameState::Idle, Err(error)),
        };
        *this.state() = state;
        entered.map(|()| slf)
    }

    #[pyo3(signature = (_kind, error, _trace))]
    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: Option<&Bound<'_, PyAny>>,
        error: Option<&Bound<'_, PyAny>>,
        _trace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let taken = std::mem::replace(&mut *self.state(), NewFrameState::Ended);
        let (view, frame) = match taken {
            NewFrameState::InUse(view, frame) => (view, frame),
            other => {
                *self.state() = other;
                return Ok(());
            }
        };
        let writer = self.writer.get();
        let ended = view.end(py, error.is_none());
        let is_own = writer.check_process(py);
        if error.is_some() || ended.is_err() || is_own.is_err() {
            drop(frame); // it never was
        } else {
            let number = frame.commit().map_err(|error| stream_exception(py, &error))?;
            writer.head.store(number, Ordering::Relaxed);
        }
        is_own?;
        ended?.report(py, &writer.name, error)
    }

    /// The elements.
    #[getter]
    fn x(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.with(py, |view, _| view.value(py))
    }

    /// The number that the frame will have.
    #[getter]
    fn number(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |_, frame| frame.number())
    }

    #[getter(_fields)]
    fn fields(&self) -> FieldRows {
        self.writer.get().fields.clone()
    }

    /// The bytes of the values beside the elements.
    #[getter(_meta_bytes)]
    fn meta_bytes(&self, py: Python<'_>) -> PyResult<Meta> {
        self.with(py, |_, frame| frame.meta())
    }

    /// Sets bytes of the values beside the elements.
    #[pyo3(name = "_set_meta_bytes")]
    fn set_meta_bytes(&self, py: Python<'_>, at: usize, given: &[u8]) -> PyResult<()> {
        self.with(py, |_, frame| {
            let mut bytes = frame.meta();
            let range = bytes.get_mut(at..).and_then(|bytes| bytes.get_mut(..given.len()));
            let Some(range) = range else { return Err(PyValueError::new_err("the values do not fit")) };
            range.copy_from_slice(given);
            frame.set_meta(&bytes);
            Ok(())
        })?
    }
}

/// Creates a stream, or takes one over.
#[pyfunction]
#[pyo3(signature = (
    name, lengths, dtype, order, slots, meta, notes, *, resume=false, replace=false, keep=false, copied=false, sparse=false, permissions=0o600
))]
#[allow(clippy::too_many_arguments, clippy::needless_pass_by_value, clippy::fn_params_excessive_bools)] // Python gives them by name
pub(crate) fn create_stream(
    py: Python<'_>,
    name: Name,
    lengths: Vec<usize>,
    dtype: &str,
    order: &str,
    slots: usize,
    meta: Vec<(String, String, usize)>,
    notes: Vec<(String, String)>,
    resume: bool,
    replace: bool,
    keep: bool,
    copied: bool,
    sparse: bool,
    permissions: u32,
) -> PyResult<RawWriter> {
    let parse = |dtype: &str| ElementType::parse(dtype).map_err(|error| exception(py, &error));
    let shape = Shape { element: parse(dtype)?, lengths: lengths_of(py, lengths)?, order: order_of(order)? };
    let pages = if sparse { Pages::Sparse } else { Pages::Auto };
    let mut options = StreamOptions::new()
        .resume(resume)
        .replace(replace)
        .keep(keep)
        .copied(copied)
        .pages(pages)
        .permissions(permissions);
    for (name, dtype, count) in meta {
        options = options.meta(name, parse(&dtype)?.dtype, count);
    }
    for (key, text) in notes {
        options = options.note(&key, &text);
    }
    let made = on_stream(py, || {
        let lengths = IxDyn(&shape.lengths).set_f(shape.order == Order::F);
        with_element!(shape.element.dtype, T => {
            let writer = options.create::<T, IxDyn>(&*name, lengths, slots)?;
            let facts = (
                writer.location().to_string(),
                writer.epoch(),
                writer.head(),
                fields_of(writer.meta_fields()),
                writer.description().clone(),
            );
            let cell = WriterCell { writer: UnsafeCell::new(writer), is_taken: AtomicBool::new(false) };
            Ok((Arc::new(cell) as Arc<dyn Writes>, facts))
        }, else => unreachable!("all features of elements are enabled"))
    })?;
    let (writer, (name, epoch, head, fields, description)) = made;
    let (head, pid) = (AtomicU64::new(head), std::process::id());
    let writer = Mutex::new(Some(writer));
    Ok(RawWriter { writer, shape, name, slots, epoch, fields, description, head, pid })
}

/// Returns the directory of this path, by default the default directory, and the location of a name.
pub(crate) fn place(directory: Option<PathBuf>, name: &str) -> Result<(Directory, Location)> {
    let directory = directory.map_or_else(default_directory, |path| Ok(directory_at(path)))?;
    Ok((directory, Location::new(name)?))
}

/// Returns the notes of a stream, by their keys.
pub(crate) fn notes_of<'py>(py: Python<'py>, description: &Description) -> PyResult<Bound<'py, PyDict>> {
    let notes = PyDict::new(py);
    description.notes().try_for_each(|(key, text)| notes.set_item(key, text))?;
    Ok(notes)
}

/// Returns a word for each axis of a frame, its name or its number; nothing if no axis has a name.
pub(crate) fn axes_of<'py>(py: Python<'py>, description: &Description) -> PyResult<Bound<'py, PyTuple>> {
    let notes = VolumeNotes::read(description, description.shape());
    PyTuple::new(py, notes.axis_words(notes.axes.len()))
}

/// Removes the name of a stream, or one of its cursors, and returns whether it existed.
#[pyfunction]
#[pyo3(signature = (name, cursor=None))]
#[allow(clippy::needless_pass_by_value)] // Python gives it as an object, from which the value is extracted
pub(crate) fn unlink_stream(py: Python<'_>, name: Name, cursor: Option<String>) -> PyResult<bool> {
    on_stream(py, || {
        let (directory, location) = place(None, &name)?;
        match &cursor {
            None => stream::unlink(&directory, &location),
            Some(cursor) => stream::unlink_cursor(&directory, &location, cursor),
        }
    })
}

/// Returns what a stream is, and which processes use it.
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // as above
pub(crate) fn inspect_stream(py: Python<'_>, name: Name) -> PyResult<Bound<'_, PyDict>> {
    let found = on_stream(py, || {
        let (directory, location) = place(None, &name)?;
        stream::inspect(&directory, &location)
    })?;
    let cursors = found.cursors.map(|cursors| {
        let rows = cursors
            .into_iter()
            .map(|cursor| (cursor.name, cursor.acknowledged, name_of_policy(cursor.policy), cursor.has_reader));
        rows.collect::<Vec<_>>()
    });
    let facts = PyDict::new(py);
    facts.set_item("dtype", found.description.dtype().as_str())?;
    facts.set_item("shape", PyTuple::new(py, found.description.shape())?)?;
    facts.set_item("order", name_of_order(found.description.order()))?;
    facts.set_item("notes", notes_of(py, &found.description)?)?;
    facts.set_item("slots", found.slots)?;
    facts.set_item("copied", found.copied)?;
    facts.set_item("meta", fields_of(&found.meta))?;
    facts.set_item("head", found.head)?;
    facts.set_item("frames", found.frames)?;
    facts.set_item("epoch", found.epoch)?;
    facts.set_item("has_writer", found.has_writer)?;
    facts.set_item("has_ended", found.has_ended)?;
    facts.set_item("rate", found.rate)?;
    facts.set_item("held", found.held)?;
    facts.set_item("holders", PyTuple::new(py, found.holders)?)?;
    facts.set_item("cursors", cursors)?;
    Ok(facts)
}

const POLICIES: [(&str, Backpressure); 3] = [
    ("overwrite", Backpressure::Overwrite),
    ("wait_while_alive", Backpressure::WaitWhileAlive),
    ("wait", Backpressure::Wait),
];

/// Returns what a writer does for a cursor, by Python's name of it.
pub(crate) fn policy_of(given: &str) -> PyResult<Backpressure> {
    let found = POLICIES.into_iter().find(|(name, _)| *name == given);
    found.map(|(_, policy)| policy).ok_or_else(|| {
        PyValueError::new_err(format!("backpressure={given:?}: give \"wait_while_alive\", \"wait\" or \"overwrite\""))
    })
}

fn name_of_policy(policy: Backpressure) -> &'static str {
    POLICIES.into_iter().find(|(_, found)| *found == policy).map_or("unknown", |(name, _)| name)
}
