//! Renderbuffers: arrays that many processes paint at once, chunk by chunk.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use ndarray::{IxDyn, ShapeBuilder};
use ndarray_shm::array::with_element;
use ndarray_shm::render::{ChunkClaim, ChunkGuard, Claim, NextClaim, RenderOptions, RenderProgress};
use ndarray_shm::{Element, Error, ErrorKind, Order, RenderBuffer, Result};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PySlice, PyTuple};

use crate::arguments::{Name, lengths_of, order_of, seconds};
use crate::attachment::Attachment;
use crate::errors::{exception, named};
use crate::export::{Elements, Kept, Writers};
use crate::guard::{BlockView, Numpy};
use crate::memory::{BOOL_NOTE, ElementType, Memory, Shape, signed};
use crate::signals::interruptibly;

/// A renderbuffer with elements of any type.
trait Painted: Send + Sync {
    fn next(self: Arc<Self>) -> Result<Next, Refused>;
    fn claim(self: Arc<Self>, index: usize) -> Result<Next, Refused>;
    fn chunk(self: Arc<Self>, index: usize) -> Result<Option<Box<dyn Claimed>>, Refused>;
    fn progress(&self) -> Result<RenderProgress, Refused>;
    fn finish(&self) -> Result<Arc<dyn Memory>, Refused>;
    fn discard(&self) -> Result<(), Refused>;
}

enum Next {
    Chunk(Box<dyn Claimed>),
    Busy,
    AllDone,
}

/// Why an operation on a renderbuffer failed. The buffer stays as it is.
enum Refused {
    /// It was finished or discarded.
    Ended,
    /// A claim has not ended.
    Claimed,
    /// There is no chunk with this number.
    NoChunk {
        index: usize,
        total: usize,
    },
    Failed(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A renderbuffer and its state. Views of chunks keep a reference to the slot, so the elements stay mapped in every
/// state.
struct Slot<T: Element>(Mutex<State<T>>);

enum State<T: Element> {
    Painting(Arc<RenderBuffer<T, IxDyn>>),
    /// The same mapping, as an array.
    Finished(#[allow(dead_code)] Arc<dyn Memory>),
    /// The files are removed. Views of the mapping may be alive.
    Discarded(#[allow(dead_code)] Arc<RenderBuffer<T, IxDyn>>),
    /// Only while `finish` runs, which holds the mutex.
    Moving,
}

impl<T: Element> Kept for Slot<T> {}

impl<T: Element> Slot<T> {
    fn new(buffer: RenderBuffer<T, IxDyn>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::Painting(Arc::new(buffer)))))
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn painting(&self) -> Result<Arc<RenderBuffer<T, IxDyn>>, Refused> {
        match &*self.state() {
            State::Painting(buffer) => Ok(Arc::clone(buffer)),
            _ => Err(Refused::Ended),
        }
    }

    /// As `painting`, if there is a chunk with this number.
    fn painting_with(&self, index: usize) -> Result<Arc<RenderBuffer<T, IxDyn>>, Refused> {
        let buffer = self.painting()?;
        let total = buffer.grid().len();
        if index < total { Ok(buffer) } else { Err(Refused::NoChunk { index, total }) }
    }
}

impl<T: Element> Painted for Slot<T> {
    fn next(self: Arc<Self>) -> Result<Next, Refused> {
        let buffer = self.painting()?;
        Ok(match buffer.claim_next()? {
            NextClaim::Chunk(claim) => Next::Chunk(Box::new(OwnedClaim::new(claim, &buffer, self))),
            NextClaim::Busy => Next::Busy,
            NextClaim::AllDone => Next::AllDone,
        })
    }

    fn claim(self: Arc<Self>, index: usize) -> Result<Next, Refused> {
        let buffer = self.painting_with(index)?;
        Ok(match buffer.claim(index)? {
            Claim::Chunk(claim) => Next::Chunk(Box::new(OwnedClaim::new(claim, &buffer, self))),
            Claim::Busy => Next::Busy,
            Claim::Done => Next::AllDone,
        })
    }

    fn chunk(self: Arc<Self>, index: usize) -> Result<Option<Box<dyn Claimed>>, Refused> {
        let buffer = self.painting_with(index)?;
        let guard = buffer.chunk(index)?;
        Ok(guard.map(|guard| Box::new(OwnedChunk::new(index, guard, &buffer, self)) as Box<dyn Claimed>))
    }

    fn progress(&self) -> Result<RenderProgress, Refused> {
        // `painting` would clone the `Arc`, and the second reference would make a concurrent `finish` fail.
        match &*self.state() {
            State::Painting(buffer) => Ok(buffer.progress()),
            _ => Err(Refused::Ended),
        }
    }

    fn finish(&self) -> Result<Arc<dyn Memory>, Refused> {
        let mut state = self.state();
        let buffer = match std::mem::replace(&mut *state, State::Moving) {
            State::Painting(buffer) => buffer,
            other => {
                *state = other;
                return Err(Refused::Ended);
            }
        };
        let buffer = match Arc::try_unwrap(buffer) {
            Ok(buffer) => buffer,
            Err(shared) => {
                *state = State::Painting(shared);
                return Err(Refused::Claimed);
            }
        };
        match buffer.finish() {
            Ok(array) => {
                let memory: Arc<dyn Memory> = Arc::new(array);
                *state = State::Finished(Arc::clone(&memory));
                Ok(memory)
            }
            Err(error) => {
                let (error, buffer) = error.into_parts();
                *state = State::Painting(Arc::new(buffer));
                Err(error.into())
            }
        }
    }

    fn discard(&self) -> Result<(), Refused> {
        let buffer = self.painting()?;
        buffer.unlink()?;
        *self.state() = State::Discarded(buffer);
        Ok(())
    }
}

/// A claim of a chunk with elements of any type, or a read guard of a finished chunk.
trait Claimed: Send {
    /// Whether the elements may be written to.
    fn is_writable(&self) -> bool;
    fn number(&self) -> usize;
    fn region(&self) -> Vec<(usize, usize)>;
    fn elements(&mut self, element: ElementType) -> Elements;
    /// Ends a claim and marks its chunk as finished. Ends a guard.
    fn commit(self: Box<Self>) -> Result<()>;
}

/// A read guard of a finished chunk together with the buffer that it borrows.
struct OwnedChunk<T: Element> {
    /// The first field, so dropped first: it borrows from `buffer`.
    guard: ChunkGuard<'static, T, IxDyn>,
    #[allow(dead_code)] // keeps what `guard` borrows
    buffer: Arc<RenderBuffer<T, IxDyn>>,
    slot: Arc<Slot<T>>,
    index: usize,
}

impl<T: Element> OwnedChunk<T> {
    #[allow(unsafe_code)]
    fn new(
        index: usize,
        guard: ChunkGuard<'_, T, IxDyn>,
        buffer: &Arc<RenderBuffer<T, IxDyn>>,
        slot: Arc<Slot<T>>,
    ) -> Self {
        let buffer = Arc::clone(buffer);
        // SAFETY: the guard borrows from the buffer behind the `Arc`, which does not move and which the field `buffer`
        // keeps alive. The guard never leaves this value. Fields are dropped in the order of their declaration, so the
        // guard first.
        let guard = unsafe { std::mem::transmute::<ChunkGuard<'_, T, IxDyn>, ChunkGuard<'static, T, IxDyn>>(guard) };
        Self { guard, buffer, slot, index }
    }
}

impl<T: Element> Claimed for OwnedChunk<T> {
    fn is_writable(&self) -> bool {
        false
    }

    fn number(&self) -> usize {
        self.index
    }

    fn region(&self) -> Vec<(usize, usize)> {
        self.guard.region().iter().map(|range| (range.start, range.end)).collect()
    }

    fn elements(&mut self, element: ElementType) -> Elements {
        let kept: Arc<dyn Kept> = Arc::clone(&self.slot) as Arc<dyn Kept>;
        let strides = self.guard.strides().iter().map(|stride| stride * signed(size_of::<T>())).collect();
        // The view of the block is read-only.
        Elements::new(self.guard.as_ptr().cast_mut().cast(), element, self.guard.shape().to_vec(), strides, kept)
    }

    fn commit(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// A claim together with the buffer that it borrows.
struct OwnedClaim<T: Element> {
    /// The first field, so dropped first: it borrows from `buffer`.
    claim: ChunkClaim<'static, T, IxDyn>,
    buffer: Arc<RenderBuffer<T, IxDyn>>,
    slot: Arc<Slot<T>>,
}

impl<T: Element> OwnedClaim<T> {
    #[allow(unsafe_code)]
    fn new(claim: ChunkClaim<'_, T, IxDyn>, buffer: &Arc<RenderBuffer<T, IxDyn>>, slot: Arc<Slot<T>>) -> Self {
        let buffer = Arc::clone(buffer);
        // SAFETY: the claim borrows from the buffer behind the `Arc`, which does not move and which the field `buffer`
        // keeps alive. The claim leaves this value only in `commit`, which ends it before it drops `buffer`. Otherwise
        // fields are dropped in the order of their declaration, so the claim first.
        let claim = unsafe { std::mem::transmute::<ChunkClaim<'_, T, IxDyn>, ChunkClaim<'static, T, IxDyn>>(claim) };
        Self { claim, buffer, slot }
    }
}

impl<T: Element> Claimed for OwnedClaim<T> {
    fn is_writable(&self) -> bool {
        true
    }

    fn number(&self) -> usize {
        self.claim.index()
    }

    fn region(&self) -> Vec<(usize, usize)> {
        self.claim.region().iter().map(|range| (range.start, range.end)).collect()
    }

    fn elements(&mut self, element: ElementType) -> Elements {
        let kept: Arc<dyn Kept> = Arc::clone(&self.slot) as Arc<dyn Kept>;
        let mut view = self.claim.view_mut();
        let strides = view.strides().iter().map(|stride| stride * signed(size_of::<T>())).collect();
        Elements::new(view.as_mut_ptr().cast(), element, view.shape().to_vec(), strides, kept)
    }

    fn commit(self: Box<Self>) -> Result<()> {
        let Self { claim, buffer, slot: _ } = *self;
        let committed = claim.commit();
        drop(buffer);
        committed
    }
}

/// A renderbuffer, behind `ndshm.RenderBuffer`.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct RawBuffer {
    buffer: Arc<dyn Painted>,
    shape: Shape,
    name: String,
    entered: Entered,
}

/// The chunks for which a `with` block of a claim runs: of which process and thread, and their numbers.
#[derive(Clone, Default)]
struct Entered(Arc<Mutex<Vec<(u32, ThreadId, usize)>>>);

impl Entered {
    fn list(&self) -> MutexGuard<'_, Vec<(u32, ThreadId, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, number: usize) {
        self.list().push((std::process::id(), thread::current().id(), number));
    }

    fn remove(&self, number: usize) {
        self.list().retain(|(pid, _, entered)| *pid != std::process::id() || *entered != number);
    }

    /// Returns the numbers of the chunks that this thread itself paints.
    fn of_thread(&self) -> Vec<usize> {
        let (pid, thread) = (std::process::id(), thread::current().id());
        self.list().iter().filter(|(of, by, _)| (*of, *by) == (pid, thread)).map(|(.., number)| *number).collect()
    }
}

impl RawBuffer {
    fn fresh(&self, claim: Box<dyn Claimed>) -> FreshClaim {
        FreshClaim(Mutex::new(Some(RawClaim {
            name: self.name.clone(),
            number: claim.number(),
            region: claim.region(),
            state: Mutex::new(ClaimState::Idle(claim)),
            element: self.shape.element,
            pid: std::process::id(),
            entered: self.entered.clone(),
        })))
    }

    fn refused(&self, py: Python<'_>, refused: &Refused) -> PyErr {
        match refused {
            Refused::Ended => {
                PyValueError::new_err(format!("the renderbuffer `{}` was finished or discarded here", self.name))
            }
            Refused::Claimed => {
                named(py, "InUse", &format!("a claim of `{}` has not ended: commit or release it first", self.name))
            }
            Refused::NoChunk { index, total } => {
                let text = format!("index={index}: `{}` has {total} chunks, with the numbers from 0", self.name);
                named(py, "InvalidArgument", &text)
            }
            Refused::Failed(error) => exception(py, error),
        }
    }
}

#[pymethods]
impl RawBuffer {
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

    /// The number of finished chunks, and of all chunks.
    #[getter]
    fn progress(&self, py: Python<'_>) -> PyResult<(usize, usize)> {
        let progress = self.buffer.progress();
        progress.map(|RenderProgress { done, total }| (done, total)).map_err(|refused| self.refused(py, &refused))
    }

    /// Claims any chunk, or the one with this number, without waiting. Returns None if all are, or it is, finished or
    /// claimed. The second value is whether all are, or it is, finished.
    ///
    /// Fails if only blocks of this thread itself could end what the caller would wait for.
    #[pyo3(signature = (index=None))]
    fn claim(&self, py: Python<'_>, index: Option<usize>) -> PyResult<(Option<FreshClaim>, bool)> {
        let buffer = Arc::clone(&self.buffer);
        let claim = || match index {
            Some(index) => buffer.claim(index),
            None => buffer.next(),
        };
        Ok(match py.detach(claim).map_err(|refused| self.refused(py, &refused))? {
            Next::Chunk(claim) => (Some(self.fresh(claim)), false),
            Next::Busy => {
                let own = self.entered.of_thread();
                let (done, total) = self.progress(py)?;
                let left = total - done;
                if index.map_or(left > 0 && own.len() == left, |index| own.contains(&index)) {
                    let text = format!(
                        "this thread itself paints what is left of `{}`: leave that `with` block first",
                        self.name
                    );
                    return Err(named(py, "WouldDeadlock", &text));
                }
                (None, false)
            }
            Next::AllDone => (None, true),
        })
    }

    /// Takes a read guard of the chunk with this number. Returns None if it is not finished.
    fn chunk(&self, py: Python<'_>, index: usize) -> PyResult<Option<FreshClaim>> {
        let buffer = Arc::clone(&self.buffer);
        let mut guard = Ok(None);
        interruptibly(py, || {
            guard = buffer.chunk(index);
            match guard {
                // Only `interruptible` gives this error, and then the signal's exception is raised.
                Err(Refused::Failed(Error { kind: ErrorKind::Interrupted, ref location, .. })) => {
                    Err(ErrorKind::Interrupted.at(location).into())
                }
                _ => Ok(()),
            }
        })?;
        Ok(guard.map_err(|refused| self.refused(py, &refused))?.map(|guard| self.fresh(guard)))
    }

    /// Gives the complete array its name.
    fn finish(&self, py: Python<'_>) -> PyResult<Attachment> {
        let finished = py.detach(|| self.buffer.finish());
        let memory = finished.map_err(|refused| self.refused(py, &refused))?;
        Ok(Attachment::new(memory, self.shape.clone()))
    }

    /// Removes the unfinished buffer.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.buffer.discard()).map_err(|refused| self.refused(py, &refused))
    }
}

/// A claim or read guard, on its way to the constructor of `Claim` or `FinishedChunk`.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct FreshClaim(Mutex<Option<RawClaim>>);

/// A claim or read guard of one chunk, for `with`. `ndshm.Claim` and `ndshm.FinishedChunk` derive from it.
#[pyclass(frozen, subclass, module = "ndshm._core")]
pub(crate) struct RawClaim {
    name: String,
    number: usize,
    /// Start and end along each axis.
    region: Vec<(usize, usize)>,
    state: Mutex<ClaimState>,
    element: ElementType,
    /// The process that claimed.
    pid: u32,
    entered: Entered,
}

enum ClaimState {
    Idle(Box<dyn Claimed>),
    /// A block is about to begin.
    Entering,
    InUse(BlockView, Box<dyn Claimed>),
    Ended,
}

impl RawClaim {
    /// The lock on the state is held for a moment only, during which the interpreter stays locked.
    fn state(&self) -> MutexGuard<'_, ClaimState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        if self.pid == std::process::id() {
            return Ok(());
        }
        let name = &self.name;
        let text =
            format!("the claim of `{name}` belongs to the parent of this process: claim after fork, in the child");
        Err(named(py, "NdshmError", &text))
    }
}

#[pymethods]
impl RawClaim {
    #[new]
    fn new(claim: &FreshClaim) -> PyResult<Self> {
        let claim = claim.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        claim.ok_or_else(|| PyValueError::new_err("this claim belongs to another object"))
    }

    /// The chunk's number.
    #[getter]
    fn number(&self) -> usize {
        self.number
    }

    /// The elements of the array that the chunk covers, as one slice for each axis.
    #[getter]
    fn region<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let slices = self.region.iter().map(|(start, end)| PySlice::new(py, signed(*start), signed(*end), 1));
        PyTuple::new(py, slices.collect::<Vec<_>>())
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.check_process(py)?;
        let numpy = Numpy::find(py, self.element)?;
        let taken = std::mem::replace(&mut *self.state(), ClaimState::Entering);
        let mut claim = match taken {
            ClaimState::Idle(claim) => claim,
            other => {
                let has_ended = matches!(other, ClaimState::Ended);
                *self.state() = other;
                return Err(if has_ended {
                    PyValueError::new_err("the claim has ended")
                } else {
                    PyRuntimeError::new_err("this claim is in use")
                });
            }
        };
        // Without the lock on the state: making objects can run the garbage collector, and with it other code that uses
        // the claim.
        let is_writable = claim.is_writable();
        match BlockView::new(py, Writers::default(), claim.elements(self.element), is_writable, numpy.as_ref()) {
            Ok(view) => {
                let value = view.value(py);
                *self.state() = ClaimState::InUse(view, claim);
                if is_writable {
                    self.entered.add(self.number);
                }
                Ok(value)
            }
            Err(error) => {
                *self.state() = ClaimState::Idle(claim);
                Err(error)
            }
        }
    }

    #[pyo3(signature = (_kind, error, _trace))]
    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: Option<&Bound<'_, PyAny>>,
        error: Option<&Bound<'_, PyAny>>,
        _trace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let taken = std::mem::replace(&mut *self.state(), ClaimState::Ended);
        let (view, claim) = match taken {
            ClaimState::InUse(view, claim) => (view, claim),
            other => {
                *self.state() = other;
                return Ok(());
            }
        };
        let is_claim = claim.is_writable();
        let ended = view.end(py, error.is_none());
        let is_own = self.check_process(py);
        let commits = error.is_none() && ended.is_ok() && is_own.is_ok();
        let done = py.detach(|| {
            if commits {
                return claim.commit();
            }
            drop(claim); // releases the chunk
            Ok(())
        });
        if is_claim {
            self.entered.remove(self.number);
        }
        is_own?;
        done.map_err(|error| exception(py, &error))?;
        ended?.report(py, &self.name, error)
    }

    /// Releases the chunk unpainted. Call it only for a claim that is not used in a ``with`` block.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let mut state = self.state();
        if matches!(*state, ClaimState::InUse(..) | ClaimState::Entering) {
            return Err(PyRuntimeError::new_err("leave the `with` block first: an exception in it releases the chunk"));
        }
        let ended = std::mem::replace(&mut *state, ClaimState::Ended);
        drop(state);
        py.detach(|| drop(ended));
        Ok(())
    }
}

/// Begins a renderbuffer, joins one that another process began, or resumes an interrupted one.
#[pyfunction]
#[pyo3(signature = (name, lengths, chunk, dtype, order, fingerprint, *, replace=false, exist_ok=false, timeout=None))]
#[allow(clippy::too_many_arguments, clippy::needless_pass_by_value, clippy::fn_params_excessive_bools)] // Python gives them by name
pub(crate) fn render(
    py: Python<'_>,
    name: Name,
    lengths: Vec<usize>,
    chunk: Vec<usize>,
    dtype: &str,
    order: &str,
    fingerprint: &str,
    replace: bool,
    exist_ok: bool,
    timeout: Option<f64>,
) -> PyResult<RawBuffer> {
    let element = ElementType::parse(dtype).map_err(|error| exception(py, &error))?;
    let shape = Shape { element, lengths: lengths_of(py, lengths)?, order: order_of(order)? };
    if chunk.len() != shape.lengths.len() {
        let text = format!("the chunks have {} axes, but the array has {}", chunk.len(), shape.lengths.len());
        return Err(named(py, "InvalidArgument", &text));
    }
    let mut options = RenderOptions::new().replace(replace).accept_finished(exist_ok);
    if let Some(timeout) = timeout {
        options = options.timeout(seconds(timeout)?);
    }
    if element.is_bool {
        options = options.note(BOOL_NOTE.0, BOOL_NOTE.1);
    }
    let buffer: Arc<dyn Painted> = interruptibly(py, || {
        let lengths = IxDyn(&shape.lengths).set_f(shape.order == Order::F);
        with_element!(element.dtype, T => {
            Ok(Slot::new(options.create::<T, IxDyn>(&*name, lengths, IxDyn(&chunk), fingerprint)?) as Arc<dyn Painted>)
        }, else => unreachable!("all features of elements are enabled"))
    })?;
    Ok(RawBuffer { buffer, shape, name: name.into(), entered: Entered::default() })
}

/// Joins a renderbuffer that another process began. Shape and order are those of the buffer.
#[pyfunction]
pub(crate) fn join_render(py: Python<'_>, name: Name, dtype: &str) -> PyResult<RawBuffer> {
    let element = ElementType::parse(dtype).map_err(|error| exception(py, &error))?;
    let joined = py.detach(|| -> Result<(Arc<dyn Painted>, Vec<usize>, Order)> {
        with_element!(element.dtype, T => {
            let buffer = RenderBuffer::<T, IxDyn>::open(&*name)?;
            let (lengths, order) = (buffer.shape().to_vec(), buffer.order());
            Ok((Slot::new(buffer), lengths, order))
        }, else => unreachable!("all features of elements are enabled"))
    });
    let (buffer, lengths, order) = joined.map_err(|error| exception(py, &error))?;
    Ok(RawBuffer { buffer, shape: Shape { element, lengths, order }, name: name.into(), entered: Entered::default() })
}
