//! The class that Python's `Array` derives from, and the functions that work on names.

#![allow(clippy::needless_pass_by_value)] // Python gives names as objects, from which values are extracted

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ndarray_shm::array::{ArrayLock, Description};
use ndarray_shm::{
    Access, CreationMode, DType, Directory, Error, ErrorKind, Location, Order, Result, default_directory, render,
};
use ndarray_shm_volume::VolumeNotes;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::addresses;
use crate::arguments::{Name, lengths_of, order_of};
use crate::attachment::{Attachment, Content, Part};
use crate::copying::Source;
use crate::dlpack;
use crate::errors::{exception, named};
use crate::export::{self, Elements, Writer, Writers};
use crate::forks::forks;
use crate::loan::Loan;
use crate::memory::{self, Counted, Creation, ElementType, Memory, Opening, Shape};
use crate::part::Window;
use crate::signals::{Failed, check_signals, interruptibly, is_main_thread};

/// An attached array. `ndshm.Array` derives from it.
#[pyclass(frozen, subclass, weakref, module = "ndshm._core")]
pub(crate) struct RawArray {
    /// `None` after `close`.
    attached: Mutex<Option<Attached>>,
    /// Every memory of which this object has exported a buffer. It stays mapped as long as the object lives, because
    /// libraries release the buffer at once, keep the object, and use the address: `numpy.ndarray(buffer=array)`,
    /// `torch.frombuffer(array)`.
    exported: Mutex<Vec<Arc<dyn Memory>>>,
    /// What can write without a lock, by addresses that this object gave away.
    writers: Writers,
    /// This object itself, if it counts as one of them.
    _writer: Option<Writer>,
    /// The layout of the whole array.
    shape: Shape,
    /// The elements that this object shows, if it is a part of the array.
    part: Option<Window>,
    /// The name and directory when the array was attached.
    name: String,
    directory: PathBuf,
    is_counted: bool,
    /// The description that the array had when it was attached.
    description: Option<Description>,
}

/// The memory of an array, and in which process it was attached.
struct Attached {
    memory: Arc<dyn Memory>,
    /// The value of `FORKS` then.
    forks: u32,
    /// Whether the mapping is a private one of a frozen array.
    private: bool,
}

impl Attached {
    /// Returns whether the memory must be attached anew before it is used, and whether through a private mapping.
    ///
    /// A forked child is not counted, so it attaches to a counted array for itself. (A plain array's lease belongs to
    /// its mappings, the inherited one too.) A frozen array is used through a private copy-on-write mapping, because
    /// libraries ignore that a buffer is read-only.
    fn outdated(&self) -> Option<Outdated> {
        let frozen = self.memory.counted()?.is_frozen();
        if frozen && !self.private {
            Some(Outdated::Frozen)
        } else if self.forks != forks() {
            Some(Outdated::Inherited)
        } else {
            None
        }
    }
}

/// Why memory must be attached anew.
#[derive(Clone, Copy)]
enum Outdated {
    /// The array was frozen, and the mapping is not private.
    Frozen,
    /// The process was forked since it was attached.
    Inherited,
}

impl RawArray {
    fn attached(&self) -> MutexGuard<'_, Option<Attached>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn memory(&self, py: Python<'_>) -> PyResult<Arc<dyn Memory>> {
        loop {
            let (memory, outdated, private) = {
                let attached = self.attached();
                let Some(attached) = attached.as_ref() else { return Err(self.closed_error()) };
                (Arc::clone(&attached.memory), attached.outdated(), attached.private)
            };
            let (Some(outdated), Some(counted)) = (outdated, memory.counted()) else { return Ok(memory) };
            // Attaching may wait for another process. Neither the interpreter nor the lock on this array is held
            // meanwhile.
            let forks = forks();
            let private_now = private || matches!(outdated, Outdated::Frozen);
            let fresh = py.detach(|| if private_now { counted.private() } else { counted.again() });
            let fresh = match (fresh, outdated) {
                (Ok(fresh), _) => fresh,
                // The name is gone. The child can still read what it inherited.
                (Err(error), Outdated::Inherited) if error.kind == ErrorKind::Unlinked || error.is_not_found() => {
                    Arc::clone(&memory)
                }
                (Err(error), _) => return Err(exception(py, &error)),
            };
            let mut attached = self.attached();
            if let Some(attached) = attached.as_mut().filter(|attached| Arc::ptr_eq(&attached.memory, &memory)) {
                *attached = Attached { memory: fresh, forks, private: private_now };
            }
            // Another look: it may have been closed, or frozen, in the meantime.
        }
    }

    pub(crate) fn writers(&self) -> Writers {
        self.writers.clone()
    }

    /// Returns the layout of the whole array.
    pub(crate) fn layout(&self) -> &Shape {
        &self.shape
    }

    /// Returns where the array came from, as its description says.
    pub(crate) fn volume_notes(&self) -> VolumeNotes {
        let description = self.description.as_ref();
        description.map(|found| VolumeNotes::read(found, &self.shape.lengths)).unwrap_or_default()
    }

    /// Returns which elements this object shows.
    pub(crate) fn window(&self) -> Window {
        self.part.clone().unwrap_or_else(|| Window::whole(&self.shape))
    }

    fn elements(&self, memory: &Arc<dyn Memory>) -> Elements {
        Elements::of(memory, self.shape.element, &self.window())
    }

    fn closed_error(&self) -> PyErr {
        if self.is_counted {
            return PyValueError::new_err("the array is closed: receive, share or download it again");
        }
        let name = &self.name;
        if name.is_empty() {
            return PyValueError::new_err("the array is closed, and it had no name: download it again");
        }
        PyValueError::new_err(format!("`{name}` is closed: open it again with ndshm.open({name:?})"))
    }

    /// Locks the array. Waits for at most `limit`, or without limit.
    pub(crate) fn take_lock(
        &self,
        py: Python<'_>,
        write: bool,
        limit: Option<Duration>,
    ) -> PyResult<(ArrayLock, Elements)> {
        let memory = self.memory(py)?;
        let access = if write { Access::ReadWrite } else { Access::Read };
        // Most locks are free: try once, without checking for signals.
        let free = py.detach(|| memory.lock(access, Some(Duration::ZERO), &mut || false));
        let mut interrupted = None;
        let taken = match free {
            Err(Error { kind: ErrorKind::WouldBlock, .. }) if limit != Some(Duration::ZERO) => {
                // Python handles signals in the main thread only. Other threads must not attach to the interpreter
                // while they wait, because it may be ending.
                let is_main = is_main_thread(py)?;
                let check = || if is_main { check_signals() } else { Ok(()) };
                py.detach(|| {
                    memory.lock(access, limit, &mut || check().map_err(|error| interrupted = Some(error)).is_ok())
                })
            }
            other => other,
        };
        match (taken, interrupted) {
            (_, Some(error)) => Err(error),
            (Ok(held), None) => Ok((held, self.elements(&memory))),
            (Err(error), None) => Err(exception(py, &error)),
        }
    }

    /// Returns the name. Empty while a counted array has none.
    pub(crate) fn name(&self) -> String {
        self.attached().as_ref().map_or(&*self.name, |attached| attached.memory.name()).to_owned()
    }

    /// Runs a method of a counted array without the interpreter's lock.
    pub(crate) fn counted<R: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&dyn Counted) -> Result<R> + Send,
    ) -> PyResult<R> {
        let memory = self.memory(py)?;
        let answer = py.detach(|| run(counted_of(&*memory)?));
        answer.map_err(|error| exception(py, &error))
    }
}

/// Returns the methods of a counted array.
fn counted_of(memory: &dyn Memory) -> Result<&dyn Counted> {
    let what = "only counted arrays can do this: those of ndshm.share, and of downloads without a name";
    let plain = || ErrorKind::Unsupported { what: what.into() }.at(memory.name());
    memory.counted().ok_or_else(plain)
}

#[pymethods]
impl RawArray {
    #[new]
    fn new(attachment: &Attachment) -> PyResult<Self> {
        let content = attachment.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Content { memory, shape, part, description, forks, writers, is_writer } =
            content.ok_or_else(|| PyValueError::new_err("this attachment belongs to another array"))?;
        let (name, directory) = (memory.name().to_owned(), memory.directory().path().to_owned());
        let is_counted = memory.counted().is_some();
        let private = part.as_ref().is_some_and(|part| part.private);
        let attached = Mutex::new(Some(Attached { memory, forks, private }));
        let (part, writer) = (part.map(|part| part.window), is_writer.then(|| writers.enter()));
        Ok(Self {
            attached,
            exported: Mutex::default(),
            writers,
            _writer: writer,
            shape,
            part,
            name,
            directory,
            is_counted,
            description,
        })
    }

    /// The notes of the description that the array had when it was attached, as texts by their keys.
    #[getter]
    fn notes(&self) -> BTreeMap<&str, &str> {
        self.description.iter().flat_map(Description::notes).collect()
    }

    /// The notes that a copy of the array has too: none, if the array was attached with another shape or type than its
    /// description has.
    #[getter(_notes_to_keep)]
    fn notes_to_keep(&self) -> BTreeMap<&str, &str> {
        let is_as_described = |found: &&Description| {
            found.shape() == self.shape.lengths && ElementType::described(found) == self.shape.element
        };
        self.description.iter().filter(is_as_described).flat_map(Description::notes).collect()
    }

    /// A word for each axis, its name or its number. Empty if no axis has a name.
    #[getter]
    fn axes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        let notes = self.volume_notes();
        pyo3::types::PyTuple::new(py, notes.axis_words(notes.axes.len()))
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        pyo3::types::PyTuple::new(py, self.window().lengths)
    }

    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        pyo3::types::PyTuple::new(py, self.window().strides)
    }

    /// The name of the element type, as in numpy's `dtype.str`.
    #[getter(_dtype_code)]
    fn dtype_code(&self) -> &'static str {
        self.shape.element.as_str()
    }

    /// "C" or "F". `None` if the elements of a part do not follow one another.
    #[getter]
    fn order(&self) -> Option<&'static str> {
        let Some(part) = &self.part else { return Some(self.shape.order_name()) };
        let item = self.shape.element.dtype.size();
        let mut orders = [self.shape.order, Order::C, Order::F].into_iter();
        orders.find(|order| part.is_contiguous(item, *order)).map(memory::name_of_order)
    }

    /// Whether this is a part of an array.
    #[getter(_is_part)]
    fn is_part(&self) -> bool {
        self.part.is_some()
    }

    /// Lengths and order of the whole array.
    #[getter(_whole)]
    fn whole(&self) -> (Vec<usize>, &'static str) {
        (self.shape.lengths.clone(), self.shape.order_name())
    }

    /// The bytes between the first elements of the array and of this part of it.
    #[getter(_offset)]
    fn offset(&self) -> isize {
        self.part.as_ref().map_or(0, |part| part.offset)
    }

    /// Returns a part of this array, or of this part. The offset, from the first element here, and the strides are in
    /// bytes.
    #[pyo3(name = "_part_at")]
    fn part_at(&self, py: Python<'_>, offset: isize, lengths: Vec<usize>, strides: Vec<isize>) -> PyResult<Attachment> {
        let memory = self.memory(py)?;
        let lengths = lengths_of(py, lengths)?;
        let window = self.offset().checked_add(offset).map(|offset| Window { offset, lengths, strides });
        let Some(window) = window.filter(|window| window.is_inside(&self.shape)) else {
            return Err(named(py, "InvalidArgument", "the part is not inside of the array"));
        };
        let private = self.attached().as_ref().is_some_and(|attached| attached.private);
        let (part, writers) = (Some(Part { window, private }), self.writers());
        let (shape, forks, is_writer) = (self.shape.clone(), forks(), false);
        let content = Content { memory, shape, part, description: None, forks, writers, is_writer };
        Ok(Attachment(Mutex::new(Some(content))))
    }

    /// Returns the bytes of the whole array, in the order in which they are in memory.
    #[pyo3(name = "_as_bytes")]
    fn as_bytes(&self, py: Python<'_>) -> PyResult<Attachment> {
        let memory = self.memory(py)?;
        addresses::note(&memory, &self.shape); // with its own type, before the bytes are exported
        let element = ElementType { dtype: DType::U8, is_bool: false };
        let shape = Shape { element, lengths: vec![self.shape.bytes()], order: Order::C };
        // A library that keeps this object, and no buffer of it, may write at any time.
        let (writers, is_writer) = (self.writers(), !memory.is_readonly());
        let content = Content { memory, shape, part: None, description: None, forks: forks(), writers, is_writer };
        Ok(Attachment(Mutex::new(Some(content))))
    }

    /// Counts this attachment of a counted array out, and leaves its memory mapped: at the end of the process.
    #[pyo3(name = "_count_out")]
    fn count_out(&self, py: Python<'_>) -> PyResult<()> {
        let Some(memory) = self.attached().as_ref().map(|attached| Arc::clone(&attached.memory)) else { return Ok(()) };
        py.detach(|| memory.counted().map_or(Ok(()), Counted::count_out)).map_err(|error| exception(py, &error))
    }

    /// Returns the whole array, attached through the same mapping.
    #[pyo3(name = "_whole_again")]
    fn whole_again(&self, py: Python<'_>) -> PyResult<Attachment> {
        Ok(Attachment::of(self.memory(py)?, self.shape.clone(), self.description.clone(), forks(), self.writers()))
    }

    /// Uses up a handle of this counted array, without attaching once more. Returns whether it was still good.
    #[pyo3(name = "_redeem")]
    fn redeem(&self, py: Python<'_>, handle: &str) -> PyResult<bool> {
        let memory = self.memory(py)?;
        let redeemed = counted_of(&*memory).and_then(|counted| Ok(counted.redeem(&handle.parse()?)));
        redeemed.map_err(|error| exception(py, &error))
    }

    /// The name. Empty while a counted array has none.
    #[getter(name)]
    fn name_for_python(&self) -> String {
        self.name()
    }

    #[getter]
    fn directory(&self) -> PathBuf {
        self.directory.clone()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.size() * self.itemsize()
    }

    #[getter]
    fn size(&self) -> usize {
        self.window().len()
    }

    #[getter]
    fn itemsize(&self) -> usize {
        self.shape.element.dtype.size()
    }

    /// Whether the elements can only be read. A frozen array is, from the moment at which it was frozen.
    #[getter]
    fn readonly(&self) -> bool {
        self.attached().as_ref().is_some_and(|attached| {
            attached.memory.is_readonly() || attached.memory.counted().is_some_and(Counted::is_frozen)
        })
    }

    #[getter]
    fn closed(&self) -> bool {
        self.attached().is_none()
    }

    /// Whether the array is counted.
    #[getter]
    fn is_counted(&self) -> bool {
        self.is_counted
    }

    /// The random number of a counted array, in hexadecimal digits.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<String> {
        self.counted(py, |counted| Ok(format!("{:032x}", counted.id())))
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (_kind, _error, _trace))]
    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: Option<&Bound<'_, PyAny>>,
        _error: Option<&Bound<'_, PyAny>>,
        _trace: Option<&Bound<'_, PyAny>>,
    ) {
        self.close(py);
    }

    /// Detaches. Memory that was exported stays attached until the exports end; that of a buffer also until this object
    /// is gone.
    fn close(&self, py: Python<'_>) {
        let attached = self.attached().take();
        py.detach(|| drop(attached));
    }

    /// The number of attached handles of a counted array, in all processes.
    #[getter]
    fn refcount(&self, py: Python<'_>) -> PyResult<u32> {
        self.counted(py, |counted| Ok(counted.refcount()))
    }

    /// The number of handles of a counted array that are in flight.
    #[getter]
    fn in_flight(&self, py: Python<'_>) -> PyResult<usize> {
        self.counted(py, |counted| Ok(counted.in_flight()))
    }

    /// Waits for all guards of a counted array, and forbids writing to it for ever. An array without a name gets its
    /// name.
    ///
    /// Refused while views that can write are alive: a write through one after the freeze would end the process.
    fn freeze(&self, py: Python<'_>) -> PyResult<()> {
        let writers = self.writers.count();
        if writers > 0 && !self.readonly() {
            let text = format!(
                "{writers} view(s) of this array that can write are alive, and a frozen array never changes: delete them first \
                 (`del x`), or write under `with array.write() as x`"
            );
            return Err(named(py, "InUse", &text));
        }
        let memory = self.memory(py)?;
        interruptibly(py, || Ok(counted_of(&*memory)?.freeze()?))?;
        self.memory(py).map(drop)
    }

    /// Device and number of the file, as in `os.stat_result`. No other file has them while the array is attached.
    #[getter(_file_id)]
    fn file_id(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let id = self.memory(py)?.file_id();
        Ok((id.device, id.number))
    }

    /// Opens a descriptor that keeps the array attached, and returns its number, which the caller closes. The second
    /// value is for a counted array, which must be looked at when the descriptor and its duplicates are closed.
    #[pyo3(name = "_leased_descriptor")]
    fn leased_descriptor(&self, py: Python<'_>) -> PyResult<(i32, Option<Loan>)> {
        let memory = self.memory(py)?;
        let opened = py.detach(|| memory.leased_descriptor()).and_then(number_of);
        let number = opened.map_err(|error| exception(py, &error))?;
        Ok((number, memory.counted().map(|counted| Loan(counted.loan()))))
    }

    /// Removes the name, and returns whether it still led to this array.
    fn unlink(&self, py: Python<'_>) -> PyResult<bool> {
        let memory = self.memory(py)?;
        interruptibly(py, || Ok(memory.unlink()?))
    }

    /// Returns the elements as a DLPack capsule, without a lock and without a copy.
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
        let memory = self.memory(py).map_err(|closed| PyBufferError::new_err(closed.to_string()))?;
        let (writer, window) = ((!memory.is_readonly()).then(|| self.writers.enter()), self.window());
        addresses::note(&memory, &self.shape);
        let export = dlpack::Export {
            address: memory.pointer().wrapping_offset(window.offset).cast(),
            device: dlpack::CPU,
            element: self.shape.element,
            window: &window,
            readonly: memory.is_readonly(),
            owner: Box::new((writer, memory)),
        };
        dlpack::capsule(py, export, max_version.is_some_and(|(major, _)| major >= 1))
    }

    #[allow(clippy::unused_self)] // the protocol wants a method
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    #[allow(unsafe_code)]
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let memory = this.memory(slf.py()).map_err(|closed| PyBufferError::new_err(closed.to_string()))?;
        let elements = this.elements(&memory);
        let writer = (!memory.is_readonly()).then(|| this.writers.enter());
        // SAFETY: the interpreter calls this with a buffer to fill, and `__releasebuffer__` releases it.
        unsafe { export::fill(view, flags, slf.as_any(), &elements, memory.is_readonly(), writer) }?;
        addresses::note(&memory, &this.shape);
        let mut exported = this.exported.lock().unwrap_or_else(PoisonError::into_inner);
        if !exported.iter().any(|before| Arc::ptr_eq(before, &memory)) {
            exported.push(memory);
        }
        Ok(())
    }

    #[allow(unsafe_code)]
    #[allow(clippy::unused_self)] // the interpreter's signature
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: the interpreter releases each buffer that `__getbuffer__` filled once.
        unsafe { export::release(view) };
    }
}

#[cfg(unix)]
#[allow(clippy::unnecessary_wraps)] // see below
fn number_of(file: File) -> Result<i32> {
    Ok(std::os::fd::IntoRawFd::into_raw_fd(file))
}

/// Files have no numbers here. Never called, because the library opens no such descriptor here.
#[cfg(not(unix))]
fn number_of(_: File) -> Result<i32> {
    Err(ErrorKind::Unsupported { what: "descriptors".into() }.at(""))
}

/// An array that was created, until Python code has it.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct Made(Mutex<Option<Arc<dyn Memory>>>);

#[pymethods]
impl Made {
    #[new]
    fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Removes the name of an array that was created and did not replace another one, if it still leads to that array.
    /// For an exception that came in between.
    fn undo(&self, py: Python<'_>) {
        let made = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The exception that is being handled matters more than another one.
        py.detach(|| made.map(|memory| memory.unlink()));
    }
}

/// Creates an array of copied elements, or of zeros that begins with the bytes of `beginning`, which are in the same
/// order. `made` gets it, unless it replaces another one.
#[pyfunction]
#[pyo3(signature = (
    name, lengths, dtype, order, *, made=None, source=None, beginning=None, directory=None, replace=false, sparse=false, permissions=0o600,
    keep_fd=false, notes=BTreeMap::new()
))]
#[allow(clippy::too_many_arguments, clippy::needless_pass_by_value)] // Python gives them by name, as objects of its own
pub(crate) fn create(
    py: Python<'_>,
    name: Name,
    lengths: Vec<usize>,
    dtype: &str,
    order: &str,
    made: Option<&Made>,
    source: Option<Source>,
    beginning: Option<PyBuffer<u8>>,
    directory: Option<PathBuf>,
    replace: bool,
    sparse: bool,
    permissions: u32,
    keep_fd: bool,
    notes: BTreeMap<String, String>,
) -> PyResult<Attachment> {
    let element = ElementType::parse(dtype).map_err(|error| exception(py, &error))?;
    let shape = Shape { element, lengths: lengths_of(py, lengths)?, order: order_of(order)? };
    let how = Creation {
        directory: directory.map(directory_at),
        mode: if replace { CreationMode::Replace } else { CreationMode::CreateNew },
        sparse,
        permissions,
        keep_fd,
        notes,
    };
    let description = shape.noted(&how.notes).map_err(|error| exception(py, &error))?;
    let memory = interruptibly(py, || {
        memory::create(&name, &shape, &how, |bytes| match (&source, &beginning) {
            (Some(source), _) => source.copy_to(bytes, &shape).map_err(Failed::from),
            (None, Some(beginning)) => {
                let length = beginning.item_count().min(bytes.len());
                Python::attach(|py| beginning.copy_to_slice(py, &mut bytes[..length])).map_err(Failed::from)
            }
            (None, None) => Ok(()),
        })
    })?;
    if let Some(made) = made.filter(|_| !replace) {
        *made.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&memory));
    }
    Ok(Attachment::described(memory, shape, description))
}

pub(crate) fn directory_at(path: PathBuf) -> Directory {
    Directory::new(path.display().to_string(), path)
}

/// Returns a name without its leading slash, if it is a valid name of an array.
#[pyfunction]
pub(crate) fn checked_name(py: Python<'_>, name: Name) -> PyResult<String> {
    Location::new(&name).map(String::from).map_err(|error| exception(py, &error))
}

/// Returns whether arrays are created in emulated shared memory by default, and the path of its directory.
#[pyfunction]
pub(crate) fn emulation(py: Python<'_>) -> PyResult<(bool, PathBuf)> {
    let find = || Ok((default_directory()?.name() == "emulated", Directory::emulated_path()?));
    py.detach(find).map_err(|error: Error| exception(py, &error))
}

/// Opens an array. Arguments that are None are taken from its description.
#[pyfunction]
#[pyo3(signature = (name, *, lengths=None, dtype=None, order=None, directory=None, readonly=false, keep_fd=false, reinterpret=false))]
#[allow(clippy::too_many_arguments)] // Python gives them by name
pub(crate) fn open(
    py: Python<'_>,
    name: Name,
    lengths: Option<Vec<usize>>,
    dtype: Option<&str>,
    order: Option<&str>,
    directory: Option<PathBuf>,
    readonly: bool,
    keep_fd: bool,
    reinterpret: bool,
) -> PyResult<Attachment> {
    let element = dtype.map(ElementType::parse).transpose().map_err(|error| exception(py, &error))?;
    let lengths = lengths.map(|lengths| lengths_of(py, lengths)).transpose()?;
    let order = order.map(order_of).transpose()?;
    let directory = directory.map(directory_at);
    let how = Opening { readonly, keep_fd, reinterpret };
    let (memory, mut shape, description) = py
        .detach(|| memory::open(directory, &name, element, lengths, order, &how))
        .map_err(|error| exception(py, &error))?;
    shape.lengths = lengths_of(py, shape.lengths)?;
    Ok(Attachment::described(memory, shape, description))
}

/// Opens the bytes of an array, whatever its element type is.
#[pyfunction]
pub(crate) fn open_bytes(py: Python<'_>, name: Name) -> PyResult<Attachment> {
    let opened = py.detach(|| memory::open_bytes(&name));
    opened.map(|(memory, shape)| Attachment::new(memory, shape)).map_err(|error| exception(py, &error))
}

/// Removes a name, or with `partial` an unfinished renderbuffer, and returns whether it existed.
#[pyfunction]
#[pyo3(signature = (name, *, partial=false))]
pub(crate) fn unlink(py: Python<'_>, name: Name, partial: bool) -> PyResult<bool> {
    interruptibly(py, || {
        if partial {
            return Ok(render::discard(&default_directory()?, &Location::new(&name)?)?);
        }
        Ok(ndarray_shm::unlink(&*name)?)
    })
}

/// Returns whether any process is attached to the array of this name.
#[pyfunction]
pub(crate) fn attached(py: Python<'_>, name: Name) -> PyResult<bool> {
    py.detach(|| ndarray_shm::attached(&*name)).map_err(|error| exception(py, &error))
}
