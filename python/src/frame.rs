//! Streams: their readers, and the frames that they hold. A frame is held as long as anything lives that Python has
//! exported of it.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use ndarray::IxDyn;
use ndarray_shm::array::{Description, with_element};
use ndarray_shm::stream::{self, Backpressure, Frame, StreamCursor, StreamOptions, StreamReader};
use ndarray_shm::{Element, Error, ErrorKind, Result};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::arguments::{Name, seconds};
#[cfg(unix)]
use crate::bell::StreamBell;
use crate::dlpack;
use crate::errors::named;
use crate::export::{self, Elements, Kept};
use crate::guard::{self, Numpy};
use crate::memory::{ElementType, Shape};
use crate::stream::{FieldRows, Meta, axes_of, fields_of, notes_of, on_stream, place, policy_of, stream_exception};

/// How many times a stream is opened again because another one has got its name.
const TRIES: usize = 100;

/// The frame that is asked for.
#[derive(Clone, Copy)]
pub(crate) enum Wanted {
    Next,
    Latest,
}

impl Wanted {
    fn of(latest: bool) -> Self {
        if latest { Self::Latest } else { Self::Next }
    }
}

/// The position of a reader or cursor with elements of any type.
trait Position: Send {
    /// Takes a frame, if it is there.
    fn take(&mut self, which: Wanted, shape: &Shape) -> Result<Option<HeldFrame>>;
    /// Goes on behind this frame.
    fn since(&mut self, number: u64) -> Result<()>;
    fn acknowledge(&mut self, number: u64) -> Result<()>;
    /// Returns the last number that was acknowledged; `None` of a reader without a cursor.
    fn acknowledged(&self) -> Option<u64>;
    fn lost(&self) -> u64;
    fn reader(&self) -> &dyn Reads;
}

/// A reader with elements of any type, for what changes no position that Python sees.
pub(crate) trait Reads: Send {
    /// Returns another reader at the same position.
    fn again(&self) -> Box<dyn Reads>;
    /// Waits until there is a frame with a number greater than `number`, and returns the newest number.
    #[cfg(unix)]
    fn head_wait(&self, number: u64, limit: Duration) -> Result<u64>;
    #[cfg(unix)]
    fn last(&self) -> u64;
    #[cfg(unix)]
    fn epoch(&self) -> u64;
    /// Waits until there is a frame, and returns what holds it.
    fn wait(&mut self, which: Wanted, limit: Duration) -> Result<Arc<dyn Kept>>;
    fn get(&self, number: u64, shape: &Shape) -> Result<Option<HeldFrame>>;
    fn head(&self) -> u64;
    fn held(&self) -> Result<usize>;
    fn has_writer(&self) -> Result<Option<bool>>;
}

impl<T: Element> Kept for Frame<T, IxDyn> {}

/// A frame with elements of any type, for forked children that inherit it.
pub(crate) trait Inheritable: Send + Sync {
    /// Makes sure that this process holds it.
    fn hold(&self) -> Result<()>;
}

impl<T: Element> Inheritable for Frame<T, IxDyn> {
    fn hold(&self) -> Result<()> {
        Self::hold(self)
    }
}

impl<T: Element> Position for StreamReader<T, IxDyn> {
    fn take(&mut self, which: Wanted, shape: &Shape) -> Result<Option<HeldFrame>> {
        let found = match which {
            Wanted::Next => self.next()?,
            Wanted::Latest => self.latest()?,
        };
        Ok(found.map(|frame| HeldFrame::new(frame, shape)))
    }

    fn since(&mut self, number: u64) -> Result<()> {
        Self::since(self, number)
    }

    fn acknowledge(&mut self, _number: u64) -> Result<()> {
        let what = "acknowledging frames without a cursor (open the stream with cursor=)";
        Err(ErrorKind::Unsupported { what: what.into() }.at(self.location()))
    }

    fn acknowledged(&self) -> Option<u64> {
        None
    }

    fn lost(&self) -> u64 {
        Self::lost(self)
    }

    fn reader(&self) -> &dyn Reads {
        self
    }
}

impl<T: Element> Position for StreamCursor<T, IxDyn> {
    fn take(&mut self, which: Wanted, shape: &Shape) -> Result<Option<HeldFrame>> {
        if matches!(which, Wanted::Latest) {
            let what = "the latest frame of a cursor, which misses none (open the stream without cursor=)";
            return Err(ErrorKind::Unsupported { what: what.into() }.at(self.reader().location()));
        }
        Ok(self.next()?.map(|frame| HeldFrame::new(frame, shape)))
    }

    fn since(&mut self, _number: u64) -> Result<()> {
        let what = "another position of a cursor, which misses no frame (open the stream without cursor=)";
        Err(ErrorKind::Unsupported { what: what.into() }.at(self.reader().location()))
    }

    fn acknowledge(&mut self, number: u64) -> Result<()> {
        Self::acknowledge(self, number)
    }

    fn acknowledged(&self) -> Option<u64> {
        Some(Self::acknowledged(self))
    }

    fn lost(&self) -> u64 {
        self.reader().lost()
    }

    fn reader(&self) -> &dyn Reads {
        Self::reader(self)
    }
}

impl<T: Element> Reads for StreamReader<T, IxDyn> {
    fn again(&self) -> Box<dyn Reads> {
        Box::new(self.clone())
    }

    #[cfg(unix)]
    fn head_wait(&self, number: u64, limit: Duration) -> Result<u64> {
        Self::head_wait(self, number, limit)
    }

    #[cfg(unix)]
    fn last(&self) -> u64 {
        Self::last(self)
    }

    #[cfg(unix)]
    fn epoch(&self) -> u64 {
        Self::epoch(self)
    }

    fn wait(&mut self, which: Wanted, limit: Duration) -> Result<Arc<dyn Kept>> {
        let frame = match which {
            Wanted::Next => self.next_wait(limit),
            Wanted::Latest => self.latest_wait(limit),
        };
        Ok(Arc::new(frame?))
    }

    fn get(&self, number: u64, shape: &Shape) -> Result<Option<HeldFrame>> {
        Ok(self.get(number)?.map(|frame| HeldFrame::new(frame, shape)))
    }

    fn head(&self) -> u64 {
        Self::head(self)
    }

    fn held(&self) -> Result<usize> {
        Self::held(self)
    }

    fn has_writer(&self) -> Result<Option<bool>> {
        Self::has_writer(self)
    }
}

/// A frame that is held, and what its entry says.
pub(crate) struct HeldFrame {
    elements: Elements,
    frame: Weak<dyn Inheritable>,
    number: u64,
    epoch: u64,
    time: Option<Duration>,
    wall_time: SystemTime,
    meta: Meta,
}

impl HeldFrame {
    fn new<T: Element>(frame: Frame<T, IxDyn>, shape: &Shape) -> Self {
        let (number, epoch, meta) = (frame.number(), frame.epoch(), frame.meta_bytes());
        let (time, wall_time) = (frame.time(), frame.wall_time());
        // The mapping is for reading: what writes through this address ends the process.
        let address = frame.view().as_ptr().cast_mut().cast();
        let kept = Arc::new(frame);
        let frame: Weak<dyn Inheritable> = Arc::downgrade(&kept) as _;
        #[cfg(unix)]
        crate::inherited::note(Weak::clone(&frame));
        let elements = Elements::new(address, shape.element, shape.lengths.clone(), shape.strides(), kept);
        Self { elements, frame, number, epoch, time, wall_time, meta }
    }
}

/// A reader of a stream, behind `ndshm.StreamReader`.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct RawReader {
    /// `None` after `close`. Locked for moments, by threads that hold the interpreter's lock and keep it meanwhile. So
    /// no thread has it when a process forks.
    position: Mutex<Option<Box<dyn Position>>>,
    /// From the first use of its descriptor on. Locked as `position` is, and after it.
    #[cfg(unix)]
    bell: Mutex<Option<StreamBell>>,
    shape: Shape,
    name: String,
    directory: PathBuf,
    slots: usize,
    fields: Arc<FieldRows>,
    description: Description,
}

impl RawReader {
    fn position(&self) -> MutexGuard<'_, Option<Box<dyn Position>>> {
        self.position.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bell. That of a process from which this one was forked is given up.
    #[cfg(unix)]
    fn bell(&self) -> MutexGuard<'_, Option<StreamBell>> {
        let mut bell = self.bell.lock().unwrap_or_else(PoisonError::into_inner);
        if bell.as_ref().is_some_and(|bell| !bell.is_own()) {
            *bell = None;
        }
        bell
    }

    /// Calls `act` with the position, while no other thread changes it.
    fn with<R>(&self, py: Python<'_>, act: impl FnOnce(&mut dyn Position) -> Result<R>) -> PyResult<R> {
        let done = match self.position().as_mut() {
            Some(position) => act(&mut **position),
            None => {
                return Err(PyValueError::new_err(format!("the reader of `{}` is closed: open it again", self.name)));
            }
        };
        done.map_err(|error| stream_exception(py, &error))
    }

    /// Returns a frame for Python, and how many slots this reader holds.
    fn fresh(&self, py: Python<'_>, taken: HeldFrame) -> PyResult<(FreshFrame, usize)> {
        let held = self.with(py, |position| position.reader().held())?;
        let HeldFrame { elements, frame: held_frame, number, epoch, time, wall_time, meta } = taken;
        let frame = RawFrame {
            elements: Mutex::new(Some(elements)),
            exported: Mutex::new(None),
            element: self.shape.element,
            name: self.name.clone(),
            number,
            epoch,
            time: time.map(|time| time.as_secs_f64()),
            wall_time: wall_time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64()),
            meta,
            fields: Arc::clone(&self.fields),
            frame: held_frame,
        };
        Ok((FreshFrame(Mutex::new(Some(frame))), held))
    }

    /// Takes a frame, if it is there. If there is none and the writer was killed, fails with `asks`, or if the bell
    /// rang for that.
    fn take_now(&self, py: Python<'_>, which: Wanted, asks: bool) -> PyResult<Option<HeldFrame>> {
        self.with(py, |position| {
            let (taken, is_told) = self.look(position, which)?;
            let is_dead = |position: &dyn Position| position.reader().has_writer().map(|alive| alive == Some(false));
            if taken.is_some() || !(asks || is_told) || !is_dead(&*position)? {
                return Ok(taken);
            }
            // A last frame, or a successor, may have come before the query.
            let (taken, _) = self.look(position, which)?;
            if taken.is_none() && is_dead(&*position)? {
                return Err(ErrorKind::NoWriter.at(self.name.as_str()));
            }
            Ok(taken)
        })
    }

    /// Looks for a frame once. Also returns whether there is none and the bell rang for the death of the writer.
    fn look(&self, position: &mut dyn Position, which: Wanted) -> Result<(Option<HeldFrame>, bool)> {
        #[cfg(unix)]
        let head = position.reader().head();
        let taken = position.take(which, &self.shape)?;
        #[cfg(unix)]
        if let Some(bell) = &*self.bell() {
            let is_told = bell.looked(position.reader(), head, taken.is_some());
            return Ok((taken, is_told));
        }
        Ok((taken, false))
    }
}

#[pymethods]
impl RawReader {
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn directory(&self) -> PathBuf {
        self.directory.clone()
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
    fn head(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |position| Ok(position.reader().head()))
    }

    #[getter]
    fn lost(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |position| Ok(position.lost()))
    }

    #[getter]
    fn held(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |position| position.reader().held())
    }

    #[getter]
    fn has_writer(&self, py: Python<'_>) -> PyResult<Option<bool>> {
        self.with(py, |position| position.reader().has_writer())
    }

    #[getter]
    fn acknowledged(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.with(py, |position| Ok(position.acknowledged()))
    }

    #[getter]
    fn closed(&self) -> bool {
        self.position().is_none()
    }

    /// Gives the position up, and its cursor. Frames that are held stay.
    fn close(&self) {
        let position = self.position().take();
        drop(position);
        #[cfg(unix)]
        self.bell().take();
    }

    /// Returns a descriptor that is readable while there is something to take. With `tells_again`, a death of the
    /// writer that was told before makes it readable once more.
    fn fileno(&self, py: Python<'_>, tells_again: bool) -> PyResult<i32> {
        #[cfg(unix)]
        {
            let descriptor = self.with(py, |position| {
                let mut bell = self.bell();
                if bell.is_none() {
                    match StreamBell::new(position.reader().again()) {
                        Ok(new) => *bell = Some(new),
                        Err(error) => return Ok(Err(error)),
                    }
                }
                Ok(Ok(bell.as_ref().map_or(-1, |bell| bell.descriptor(tells_again))))
            })?;
            Ok(descriptor?)
        }
        #[cfg(not(unix))]
        {
            let _ = tells_again;
            let what = "a descriptor to wait for frames, on this system (`async for` and `next` wait without it)";
            let error = ErrorKind::Unsupported { what: what.into() }.at(self.name.as_str());
            Err(stream_exception(py, &error))
        }
    }

    fn since(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        self.with(py, |position| {
            position.since(number)?;
            #[cfg(unix)]
            if let Some(bell) = &*self.bell() {
                bell.moved(position.reader());
            }
            Ok(())
        })
    }

    fn acknowledge(&self, py: Python<'_>, number: u64) -> PyResult<()> {
        self.with(py, |position| position.acknowledge(number))
    }

    /// Returns a frame and how many slots this reader holds, after waiting for it. Returns None if the timeout is 0 and
    /// there is none.
    fn take(&self, py: Python<'_>, latest: bool, timeout: Option<f64>) -> PyResult<Option<(FreshFrame, usize)>> {
        let which = Wanted::of(latest);
        let until =
            timeout.map(|timeout| seconds(timeout).map(|limit| (std::time::Instant::now(), limit))).transpose()?;
        loop {
            if let Some(taken) = self.take_now(py, which, false)? {
                return self.fresh(py, taken).map(Some);
            }
            let left = until.map_or(Duration::MAX, |(begin, limit)| limit.saturating_sub(begin.elapsed()));
            if let Some((_, limit)) = until.filter(|_| left.is_zero()) {
                if limit.is_zero() {
                    return Ok(None);
                }
                let late = ErrorKind::TimedOut { waited: limit }.at(self.name.as_str());
                return Err(stream_exception(py, &late));
            }
            // Another reader waits, so that other threads can use this one meanwhile. It holds the frame until this one
            // has it too, unless another thread was first.
            let mut waiting = self.with(py, |position| Ok(position.reader().again()))?;
            let hint = on_stream(py, || match waiting.wait(which, left) {
                Err(Error { kind: ErrorKind::TimedOut { .. }, .. }) => Ok(None), // told above, with the whole time
                other => other.map(Some),
            })?;
            let taken = self.take_now(py, which, false);
            drop(hint);
            if let Some(taken) = taken? {
                return self.fresh(py, taken).map(Some);
            }
        }
    }

    /// As `take`, without waiting. With `asks`, fails if there is no frame and the writer was killed.
    fn poll(&self, py: Python<'_>, latest: bool, asks: bool) -> PyResult<Option<(FreshFrame, usize)>> {
        let taken = self.take_now(py, Wanted::of(latest), asks)?;
        taken.map(|taken| self.fresh(py, taken)).transpose()
    }

    /// Returns the frame of this number and how many slots this reader holds, or None if it is not there.
    fn get(&self, py: Python<'_>, number: u64) -> PyResult<Option<(FreshFrame, usize)>> {
        let taken = self.with(py, |position| position.reader().get(number, &self.shape))?;
        taken.map(|taken| self.fresh(py, taken)).transpose()
    }
}

/// A frame, on its way to the constructor of `Frame`.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct FreshFrame(Mutex<Option<RawFrame>>);

/// A frame that is held. `ndshm.Frame` derives from it.
#[pyclass(frozen, subclass, weakref, module = "ndshm._core")]
pub(crate) struct RawFrame {
    /// `None` after `release`.
    elements: Mutex<Option<Elements>>,
    /// Set if a buffer of this object itself was exported. The slot is held as long as the object lives then, because
    /// libraries release the buffer at once, keep the object, and use the address.
    exported: Mutex<Option<Elements>>,
    element: ElementType,
    name: String,
    number: u64,
    epoch: u64,
    time: Option<f64>,
    wall_time: f64,
    meta: Meta,
    fields: Arc<FieldRows>,
    /// What holds the slot, as long as elements live.
    frame: Weak<dyn Inheritable>,
}

impl RawFrame {
    fn elements(&self, py: Python<'_>) -> PyResult<Elements> {
        let elements = self.elements.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let elements = elements.ok_or_else(|| PyValueError::new_err("the frame was released"))?;
        let held = self.frame.upgrade().map_or(Ok(()), |frame| frame.hold());
        held.map_err(|error| match error.kind {
            ErrorKind::Unlinked => {
                let text =
                    format!("frame {} of `{}` is not there any more: the parent gave it up", self.number, self.name);
                named(py, "Unlinked", &text)
            }
            _ => stream_exception(py, &error),
        })?;
        Ok(elements)
    }
}

#[pymethods]
impl RawFrame {
    #[new]
    fn new(fresh: &FreshFrame) -> PyResult<Self> {
        let frame = fresh.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        frame.ok_or_else(|| PyValueError::new_err("this frame belongs to another object"))
    }

    #[getter]
    fn number(&self) -> u64 {
        self.number
    }

    #[getter]
    fn epoch(&self) -> u64 {
        self.epoch
    }

    #[getter]
    fn time(&self) -> Option<f64> {
        self.time
    }

    #[getter]
    fn wall_time(&self) -> f64 {
        self.wall_time
    }

    #[getter(_stream)]
    fn stream(&self) -> &str {
        &self.name
    }

    #[getter(_fields)]
    fn fields(&self) -> FieldRows {
        self.fields.to_vec()
    }

    #[getter(_meta_bytes)]
    fn meta_bytes(&self) -> Meta {
        self.meta
    }

    /// Whether `release` was called.
    #[getter]
    fn released(&self) -> bool {
        self.elements.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// A new read-only view of the elements, which holds the slot too.
    #[getter]
    fn x(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let elements = self.elements(py)?;
        guard::read_only(py, elements, Numpy::find(py, self.element)?.as_ref())
    }

    /// Gives the frame up. Views of it that are alive still hold the slot.
    fn release(&self) {
        let elements = self.elements.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(elements);
    }

    /// Returns the elements as a DLPack capsule, which holds the slot.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        dlpack::refuse_other_than_cpu(stream, dl_device, copy)?;
        let elements = self.elements(py).map_err(|error| PyBufferError::new_err(error.to_string()))?;
        let export = dlpack::Export {
            address: elements.address().cast(),
            device: dlpack::CPU,
            element: self.element,
            window: &elements.window().clone(),
            readonly: true,
            owner: Box::new(elements),
        };
        dlpack::capsule(py, export, max_version.is_some_and(|(major, _)| major >= 1))
    }

    #[allow(clippy::unused_self)] // the protocol wants a method
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let elements = this.elements(slf.py()).map_err(|error| PyBufferError::new_err(error.to_string()))?;
        // SAFETY: the interpreter calls this with a buffer to fill, and `__releasebuffer__` releases it.
        unsafe { export::fill(view, flags, slf.as_any(), &elements, true, None) }?;
        *this.exported.lock().unwrap_or_else(PoisonError::into_inner) = Some(elements);
        Ok(())
    }

    #[allow(clippy::unused_self)] // the interpreter's signature
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: the interpreter releases each buffer that `__getbuffer__` filled once.
        unsafe { export::release(view) };
    }
}

/// Opens a stream for reading, or the cursor of this name.
#[pyfunction]
#[pyo3(signature = (name, *, directory=None, cursor=None, backpressure="wait_while_alive"))]
#[allow(clippy::needless_pass_by_value)] // Python gives it as an object, from which the value is extracted
pub(crate) fn open_stream(
    py: Python<'_>,
    name: Name,
    directory: Option<PathBuf>,
    cursor: Option<String>,
    backpressure: &str,
) -> PyResult<RawReader> {
    let policy = policy_of(backpressure)?;
    on_stream(py, || {
        let mut tries = 0;
        loop {
            tries += 1;
            match open(directory.clone(), &name, cursor.as_deref(), policy) {
                // Another stream has got the name since its element type was read.
                Err(Error { kind: ErrorKind::DTypeMismatch { .. }, .. }) if tries < TRIES => {}
                other => return other,
            }
        }
    })
}

fn open(directory: Option<PathBuf>, name: &str, cursor: Option<&str>, policy: Backpressure) -> Result<RawReader> {
    let (directory, location) = place(directory, name)?;
    let dtype = stream::inspect(&directory, &location)?.description.dtype();
    let options = StreamOptions::new().directory(directory.clone());
    with_element!(dtype, T => match cursor {
        None => {
            let reader = options.open::<T, IxDyn>(name)?;
            Ok(of(&reader.clone(), Box::new(reader), &directory))
        }
        Some(cursor) => {
            let cursor = options.open_cursor::<T, IxDyn>(name, cursor, policy)?;
            Ok(of(&cursor.reader().clone(), Box::new(cursor), &directory))
        }
    }, else => unreachable!("all features of elements are enabled"))
}

fn of<T: Element>(
    reader: &StreamReader<T, IxDyn>,
    position: Box<dyn Position>,
    directory: &ndarray_shm::Directory,
) -> RawReader {
    let layout = reader.layout();
    let element = ElementType { dtype: T::DTYPE, is_bool: false };
    RawReader {
        shape: Shape { element, lengths: layout.shape().to_vec(), order: layout.order() },
        name: reader.location().to_string(),
        directory: directory.path().to_owned(),
        slots: reader.slots(),
        fields: Arc::new(fields_of(reader.meta_fields())),
        description: reader.description().clone(),
        position: Mutex::new(Some(position)),
        #[cfg(unix)]
        bell: Mutex::new(None),
    }
}
