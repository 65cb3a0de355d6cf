//! Renderbuffers: arrays that many processes paint at once, chunk by chunk.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ndarray::{IxDyn, ShapeBuilder};
use ndarray_shm::array::with_element;
use ndarray_shm::render::{ChunkClaim, NextClaim, RenderOptions, RenderProgress};
use ndarray_shm::{Element, Error, Order, RenderBuffer, Result};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::array::{Attachment, lengths_of, order_of, seconds};
use crate::errors::{exception, named};
use crate::export::{Elements, Kept};
use crate::guard::View;
use crate::memory::{BOOL_NOTE, ElementType, Memory, Shape, signed};

/// A renderbuffer with elements of any type.
trait Painted: Send + Sync {
    fn next(self: Arc<Self>) -> Result<Next, Refused>;
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
    Failed(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A renderbuffer and its state. Views of chunks keep a reference to the slot, so the elements stay mapped in every state.
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

/// A claim of a chunk with elements of any type.
trait Claimed: Send {
    fn number(&self) -> usize;
    fn region(&self) -> Vec<(usize, usize)>;
    fn elements(&mut self, element: ElementType) -> Elements;
    fn commit(self: Box<Self>) -> Result<()>;
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
        // SAFETY: the claim borrows from the buffer behind the `Arc`, which does not move and which the field `buffer` keeps
        // alive. The claim leaves this value only in `commit`, which ends it before it drops `buffer`. Otherwise fields are
        // dropped in the order of their declaration, so the claim first.
        let claim = unsafe { std::mem::transmute::<ChunkClaim<'_, T, IxDyn>, ChunkClaim<'static, T, IxDyn>>(claim) };
        Self { claim, buffer, slot }
    }
}

impl<T: Element> Claimed for OwnedClaim<T> {
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
}

impl RawBuffer {
    fn refused(&self, py: Python<'_>, refused: &Refused) -> PyErr {
        match refused {
            Refused::Ended => {
                PyValueError::new_err(format!("the renderbuffer `{}` was finished or discarded here", self.name))
            }
            Refused::Claimed => {
                named(py, "InUse", &format!("a claim of `{}` has not ended: commit or release it first", self.name))
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

    #[getter]
    fn dtype_name(&self) -> &'static str {
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

    /// Claims any chunk without waiting. Returns None if all are finished or claimed.
    fn claim(&self, py: Python<'_>) -> PyResult<Option<RawClaim>> {
        let buffer = Arc::clone(&self.buffer);
        match py.detach(|| buffer.next()).map_err(|refused| self.refused(py, &refused))? {
            Next::Chunk(claim) => Ok(Some(RawClaim {
                number: claim.number(),
                region: claim.region(),
                claim: Mutex::new(Some(claim)),
                element: self.shape.element,
            })),
            Next::Busy | Next::AllDone => Ok(None),
        }
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

/// A claim of one chunk.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct RawClaim {
    claim: Mutex<Option<Box<dyn Claimed>>>,
    #[pyo3(get)]
    number: usize,
    /// Start and end along each axis.
    #[pyo3(get)]
    region: Vec<(usize, usize)>,
    element: ElementType,
}

#[pymethods]
impl RawClaim {
    /// Returns an exporter of the chunk's elements.
    fn view(&self) -> PyResult<View> {
        let mut claim = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
        let claim = claim.as_mut().ok_or_else(|| PyValueError::new_err("the claim has ended"))?;
        Ok(View::new(claim.elements(self.element), true))
    }

    /// Marks the chunk as finished and releases it.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        let claim = self.claim.lock().unwrap_or_else(PoisonError::into_inner).take();
        let claim = claim.ok_or_else(|| PyValueError::new_err("the claim has ended"))?;
        py.detach(|| claim.commit()).map_err(|error| exception(py, &error))
    }

    /// Releases the chunk unpainted. Does nothing if the claim has ended.
    fn release(&self, py: Python<'_>) {
        let claim = self.claim.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(claim));
    }
}

/// Begins a renderbuffer, joins one that another process began, or resumes an interrupted one.
#[pyfunction]
#[pyo3(signature = (name, lengths, chunk, dtype, order, fingerprint, *, replace=false, timeout=None))]
#[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)] // Python gives them by name, as objects of its own
pub(crate) fn render(
    py: Python<'_>,
    name: &str,
    lengths: Vec<usize>,
    chunk: Vec<usize>,
    dtype: &str,
    order: &str,
    fingerprint: &str,
    replace: bool,
    timeout: Option<f64>,
) -> PyResult<RawBuffer> {
    let element = ElementType::parse(dtype).map_err(|error| exception(py, &error))?;
    let shape = Shape { element, lengths: lengths_of(py, lengths)?, order: order_of(order)? };
    if chunk.len() != shape.lengths.len() {
        let text = format!("the chunks have {} axes, but the array has {}", chunk.len(), shape.lengths.len());
        return Err(named(py, "InvalidArgument", &text));
    }
    let mut options = RenderOptions::new().replace(replace);
    if let Some(timeout) = timeout {
        options = options.timeout(seconds(timeout)?);
    }
    if element.is_bool {
        options = options.note(BOOL_NOTE.0, BOOL_NOTE.1);
    }
    let created = py.detach(|| -> Result<Arc<dyn Painted>> {
        let lengths = IxDyn(&shape.lengths).set_f(shape.order == Order::F);
        with_element!(element.dtype, T => {
            Ok(Slot::new(options.create::<T, IxDyn>(name, lengths, IxDyn(&chunk), fingerprint)?))
        }, else => unreachable!("all features of elements are enabled"))
    });
    let buffer = created.map_err(|error| exception(py, &error))?;
    Ok(RawBuffer { buffer, shape, name: name.to_owned() })
}

/// Joins a renderbuffer that another process began. Shape and order are those of the buffer.
#[pyfunction]
pub(crate) fn join_render(py: Python<'_>, name: &str, dtype: &str) -> PyResult<RawBuffer> {
    let element = ElementType::parse(dtype).map_err(|error| exception(py, &error))?;
    let joined = py.detach(|| -> Result<(Arc<dyn Painted>, Vec<usize>, Order)> {
        with_element!(element.dtype, T => {
            let buffer = RenderBuffer::<T, IxDyn>::open(name)?;
            let (lengths, order) = (buffer.shape().to_vec(), buffer.order());
            Ok((Slot::new(buffer), lengths, order))
        }, else => unreachable!("all features of elements are enabled"))
    });
    let (buffer, lengths, order) = joined.map_err(|error| exception(py, &error))?;
    Ok(RawBuffer { buffer, shape: Shape { element, lengths, order }, name: name.to_owned() })
}
