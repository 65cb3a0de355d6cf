//! The class that Python's `Array` derives from, and the functions that work on names.

use std::ffi::c_int;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ndarray_shm::backend::EntryKind;
use ndarray_shm::counted::{HandleOptions, Reclaim};
use ndarray_shm::{Access, CreationMode, Directory, Error, Order, Result, default_backend};
use ndarray_shm_volume::remove_nameless_download;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::dlpack;
use crate::errors::{exception, named};
use crate::export::{self, Elements};
use crate::guard::Lock;
use crate::memory::{self, Creation, ElementType, Memory, Opening, Shape};
use crate::shared::{Counted, Loan};

/// The maximum number of axes: numpy's.
const MOST_AXES: usize = 64;

/// An array that was created or opened, on its way to the constructor of `Array`.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct Attachment {
    content: Mutex<Option<(Arc<dyn Memory>, Shape)>>,
}

impl Attachment {
    pub(crate) fn new(memory: Arc<dyn Memory>, shape: Shape) -> Self {
        Self { content: Mutex::new(Some((memory, shape))) }
    }
}

/// An attached array. `ndshm.Array` derives from it.
#[pyclass(frozen, subclass, weakref, module = "ndshm._core")]
pub(crate) struct RawArray {
    /// `None` after `close`.
    attached: Mutex<Option<Attached>>,
    /// Every memory of which this object has exported a buffer. It stays mapped as long as the object lives, because libraries release
    /// the buffer at once, keep the object, and use the address: `numpy.ndarray(buffer=array)`, `torch.frombuffer(array)`.
    exported: Mutex<Vec<Arc<dyn Memory>>>,
    shape: Shape,
    /// The name and directory when the array was attached.
    name: String,
    directory: PathBuf,
    is_counted: bool,
}

/// The memory of an array, and in which process it was attached.
struct Attached {
    memory: Arc<dyn Memory>,
    /// The value of `FORKS` then.
    forks: u32,
    /// Whether the mapping is a private one of a frozen array.
    private: bool,
}

/// How often this process and its ancestors were forked children. It tells a process from its parent without a system call.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Tells that this process is a forked child.
#[pyfunction]
pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Returns how often this process and its ancestors were forked children.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

impl Attached {
    fn new(memory: Arc<dyn Memory>) -> Self {
        Self { memory, forks: forks(), private: false }
    }

    /// Returns whether the memory must be attached anew before it is used, and whether through a private mapping.
    ///
    /// A forked child is not counted, so it attaches to a counted array for itself. (A plain array's lease belongs to its mappings, the
    /// inherited one too.) A frozen array is used through a private copy-on-write mapping, because libraries ignore that a buffer is
    /// read-only.
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
            // Attaching may wait for another process. Neither the interpreter nor the lock on this array is held meanwhile.
            let forks = forks();
            let private_now = private || matches!(outdated, Outdated::Frozen);
            let fresh = py.detach(|| if private_now { counted.private() } else { counted.again() });
            let fresh = match (fresh, outdated) {
                (Ok(fresh), _) => fresh,
                // The name is gone. The child can still read what it inherited.
                (Err(Error::Unlinked { .. } | Error::NotFound { .. }), Outdated::Inherited) => Arc::clone(&memory),
                (Err(error), _) => return Err(exception(py, &error)),
            };
            let mut attached = self.attached();
            if let Some(attached) = attached.as_mut().filter(|attached| Arc::ptr_eq(&attached.memory, &memory)) {
                *attached = Attached { memory: fresh, forks, private: private_now };
            }
            // Another look: it may have been closed, or frozen, in the meantime.
        }
    }

    pub(crate) fn layout(&self) -> &Shape {
        &self.shape
    }

    fn closed_error(&self) -> PyErr {
        if self.is_counted {
            return PyValueError::new_err("the array is closed: receive or share it again");
        }
        let name = &self.name;
        if name.is_empty() {
            return PyValueError::new_err("the array is closed, and it had no name: download it again");
        }
        PyValueError::new_err(format!("`{name}` is closed: open it again with ndshm.open({name:?})"))
    }

    /// Runs a method of a counted array without the interpreter's lock.
    fn counted<R: Send>(&self, py: Python<'_>, run: impl FnOnce(&dyn Counted) -> Result<R> + Send) -> PyResult<R> {
        let memory = self.memory(py)?;
        let answer = py.detach(|| {
            let what = "only arrays from ndshm.share are counted and can do this";
            let plain = || Error::Unsupported { location: memory.name().to_owned(), what: what.into() };
            run(memory.counted().ok_or_else(plain)?)
        });
        answer.map_err(|error| exception(py, &error))
    }
}

#[pymethods]
impl RawArray {
    #[new]
    fn new(attachment: &Attachment) -> PyResult<Self> {
        let content = attachment.content.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (memory, shape) =
            content.ok_or_else(|| PyValueError::new_err("this attachment belongs to another array"))?;
        let (name, directory) = (memory.name().to_owned(), memory.directory().path().to_owned());
        let is_counted = memory.counted().is_some();
        let attached = Mutex::new(Some(Attached::new(memory)));
        Ok(Self { attached, exported: Mutex::default(), shape, name, directory, is_counted })
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        pyo3::types::PyTuple::new(py, &self.shape.lengths)
    }

    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        pyo3::types::PyTuple::new(py, self.shape.strides())
    }

    /// The name of the element type, as in numpy's `dtype.str`.
    #[getter]
    fn dtype_name(&self) -> &'static str {
        self.shape.element.as_str()
    }

    #[getter]
    fn order(&self) -> &'static str {
        self.shape.order_name()
    }

    /// The name. Empty while a counted array has none.
    #[getter]
    fn name(&self) -> String {
        self.attached().as_ref().map_or(&*self.name, |attached| attached.memory.name()).to_owned()
    }

    #[getter]
    fn directory(&self) -> PathBuf {
        self.directory.clone()
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.shape.bytes()
    }

    #[getter]
    fn size(&self) -> usize {
        self.shape.len()
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

    /// Detaches. Memory that was exported stays attached until the exports end; that of a buffer also until this object is gone.
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

    /// Waits for all guards of a counted array, and forbids writing to it for ever. An array without a name gets its name.
    fn freeze(&self, py: Python<'_>) -> PyResult<()> {
        self.counted(py, |counted| counted.freeze())?;
        self.memory(py).map(drop)
    }

    /// Issues a handle of a counted array, which keeps the array for `grace` seconds.
    fn issue(&self, py: Python<'_>, reusable: bool, grace: f64) -> PyResult<String> {
        let options = HandleOptions::new().grace(seconds(grace)?);
        let options = if reusable { options.reusable() } else { options };
        self.counted(py, |counted| Ok(counted.issue(options)?.to_string()))
    }

    /// Lets one process more use a handle, which keeps the array for `grace` seconds from now. Returns false if the handle cannot be
    /// renewed and another one must be issued.
    fn renew(&self, py: Python<'_>, handle: &str, grace: f64) -> PyResult<bool> {
        let grace = seconds(grace)?;
        self.counted(py, |counted| Ok(counted.renew(&handle.parse()?, grace)))
    }

    /// Device and number of the file, as in `os.stat_result`. No other file has them while the array is attached.
    #[getter]
    fn file_id(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        let id = self.memory(py)?.file_id();
        Ok((id.device, id.number))
    }

    /// Opens a descriptor that keeps the array attached, and returns its number, which the caller closes. The second value is for a
    /// counted array with a name, which must be looked at when the descriptor and its duplicates are closed.
    fn leased_descriptor(&self, py: Python<'_>) -> PyResult<(i32, Option<Loan>)> {
        let memory = self.memory(py)?;
        let opened = py.detach(|| memory.leased_descriptor()).and_then(number_of);
        let number = opened.map_err(|error| exception(py, &error))?;
        Ok((number, memory.counted().and_then(Counted::loan)))
    }

    /// Removes the name, and returns whether it still led to this array.
    fn unlink(&self, py: Python<'_>) -> PyResult<bool> {
        let memory = self.memory(py)?;
        py.detach(|| memory.unlink()).map_err(|error| exception(py, &error))
    }

    /// Locks the array. Waits for at most `timeout` seconds, or without limit.
    fn lock(&self, py: Python<'_>, write: bool, timeout: Option<f64>) -> PyResult<Lock> {
        let memory = self.memory(py)?;
        let limit = timeout.map(seconds).transpose()?;
        let access = if write { Access::ReadWrite } else { Access::Read };
        // Most locks are free: try once, without checking for signals.
        let free = py.detach(|| memory.lock(access, Some(Duration::ZERO), &mut || false));
        let mut interrupted = None;
        let taken = match free {
            Err(Error::WouldBlock { .. }) if limit != Some(Duration::ZERO) => {
                // Python handles signals in the main thread only. Other threads must not attach to the interpreter while they wait,
                // because it may be ending.
                let is_main = is_main_thread(py)?;
                #[allow(clippy::redundant_closure_for_method_calls)] // the method itself is not general enough
                let check = || if is_main { Python::attach(|py| py.check_signals()) } else { Ok(()) };
                py.detach(|| {
                    memory.lock(access, limit, &mut || check().map_err(|error| interrupted = Some(error)).is_ok())
                })
            }
            other => other,
        };
        match (taken, interrupted) {
            (_, Some(error)) => Err(error),
            (Ok(held), None) => Ok(Lock::new(held, Elements::of(&memory, &self.shape), write)),
            (Err(error), None) => Err(exception(py, &error)),
        }
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
        if stream.is_some() {
            return Err(PyBufferError::new_err("the array is on the CPU, which has no streams: give stream=None"));
        }
        if dl_device.is_some_and(|device| device != dlpack::CPU) {
            return Err(PyBufferError::new_err("the array is on the CPU: copy it to the other device"));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err("the export shares the memory: copy it afterwards"));
        }
        let memory = self.memory(py).map_err(|closed| PyBufferError::new_err(closed.to_string()))?;
        let export = dlpack::Export {
            address: memory.pointer().cast(),
            device: dlpack::CPU,
            shape: &self.shape,
            readonly: memory.is_readonly(),
            owner: Box::new(memory),
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
        let elements = Elements::of(&memory, &this.shape);
        // SAFETY: the interpreter calls this with a buffer to fill, and `__releasebuffer__` releases it.
        unsafe { export::fill(view, flags, slf.as_any(), &elements, memory.is_readonly()) }?;
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
    Err(Error::Unsupported { location: String::new(), what: "descriptors".into() })
}

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    main.eq(threading.call_method0("get_ident")?)
}

pub(crate) fn seconds(timeout: f64) -> PyResult<Duration> {
    // In practice a year is without limit. A longer time can be too long for the clock.
    let timeout = if timeout > 3.2e7 { 3.2e7 } else { timeout };
    Duration::try_from_secs_f64(timeout).map_err(|_| {
        PyValueError::new_err(format!("timeout={timeout}: give seconds, 0 or more, or None to wait without limit"))
    })
}

pub(crate) fn order_of(order: &str) -> PyResult<Order> {
    match order {
        "C" => Ok(Order::C),
        "F" => Ok(Order::F),
        other => Err(PyValueError::new_err(format!("order={other:?}: give \"C\" or \"F\""))),
    }
}

pub(crate) fn lengths_of(py: Python<'_>, lengths: Vec<usize>) -> PyResult<Vec<usize>> {
    if lengths.len() > MOST_AXES {
        let text = format!("{} axes are too many: an array has at most {MOST_AXES}", lengths.len());
        return Err(named(py, "InvalidArgument", &text));
    }
    Ok(lengths)
}

/// Creates an array of zeros that begins with the bytes of `source`, a contiguous buffer in the same order.
#[pyfunction]
#[pyo3(signature = (
    name, lengths, dtype, order, *, source=None, directory=None, replace=false, sparse=false, permissions=0o600, keep_fd=false
))]
#[allow(clippy::too_many_arguments)] // Python gives them by name
pub(crate) fn create(
    py: Python<'_>,
    name: &str,
    lengths: Vec<usize>,
    dtype: &str,
    order: &str,
    source: Option<PyBuffer<u8>>,
    directory: Option<PathBuf>,
    replace: bool,
    sparse: bool,
    permissions: u32,
    keep_fd: bool,
) -> PyResult<Attachment> {
    let element = ElementType::parse(dtype).map_err(|error| exception(py, &error))?;
    let shape = Shape { element, lengths: lengths_of(py, lengths)?, order: order_of(order)? };
    let mode = if replace { CreationMode::Replace } else { CreationMode::CreateNew };
    let how = Creation { directory: directory.map(directory_at), mode, sparse, permissions, keep_fd };
    let created = match source {
        // The interpreter stays locked during the copy, so that Python code cannot change the source meanwhile.
        Some(source) => memory::create(name, &shape, &how, |bytes| {
            let length = source.item_count().min(bytes.len());
            source.copy_to_slice(py, &mut bytes[..length]).map_err(Failed::Python)
        }),
        None => py.detach(|| memory::create(name, &shape, &how, |_| Ok(()))),
    };
    match created {
        Ok(memory) => Ok(Attachment::new(memory, shape)),
        Err(Failed::Library(error)) => Err(exception(py, &error)),
        Err(Failed::Python(error)) => Err(error),
    }
}

fn directory_at(path: PathBuf) -> Directory {
    Directory::new(path.display().to_string(), path)
}

/// Returns whether arrays are created in emulated shared memory by default, and the path of its directory.
#[pyfunction]
pub(crate) fn emulation(py: Python<'_>) -> PyResult<(bool, PathBuf)> {
    let find = || Ok((default_backend()?.name() == "emulated", Directory::emulated_path()?));
    py.detach(find).map_err(|error: Error| exception(py, &error))
}

/// Why an array was not created.
enum Failed {
    Library(Error),
    Python(PyErr),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

/// Opens an array. Arguments that are None are taken from its description.
#[pyfunction]
#[pyo3(signature = (name, *, lengths=None, dtype=None, order=None, directory=None, readonly=false, keep_fd=false, reinterpret=false))]
#[allow(clippy::too_many_arguments)] // Python gives them by name
pub(crate) fn open(
    py: Python<'_>,
    name: &str,
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
    let (memory, mut shape) = py
        .detach(|| memory::open(directory, name, element, lengths, order, &how))
        .map_err(|error| exception(py, &error))?;
    shape.lengths = lengths_of(py, shape.lengths)?;
    Ok(Attachment::new(memory, shape))
}

/// Opens the bytes of an array, whatever its element type is.
#[pyfunction]
pub(crate) fn open_bytes(py: Python<'_>, name: &str) -> PyResult<Attachment> {
    let opened = py.detach(|| memory::open_bytes(name));
    opened.map(|(memory, shape)| Attachment::new(memory, shape)).map_err(|error| exception(py, &error))
}

/// Removes a name, and returns whether it existed.
#[pyfunction]
pub(crate) fn unlink(py: Python<'_>, name: &str) -> PyResult<bool> {
    py.detach(|| ndarray_shm::unlink(name)).map_err(|error| exception(py, &error))
}

/// Returns whether any process is attached to the array of this name.
#[pyfunction]
pub(crate) fn attached(py: Python<'_>, name: &str) -> PyResult<bool> {
    py.detach(|| ndarray_shm::attached(name)).map_err(|error| exception(py, &error))
}

/// Returns name, bytes, dtype, shape and order of the plain arrays in the default directory. Without a description, the last
/// three are None.
#[pyfunction]
#[allow(clippy::type_complexity)] // a row of Python's `ls`
pub(crate) fn listing(
    py: Python<'_>,
) -> PyResult<Vec<(String, u64, Option<&'static str>, Option<Vec<usize>>, Option<&'static str>)>> {
    let rows = || {
        let directory = default_backend()?;
        let mut rows = Vec::new();
        for entry in directory.list()? {
            let Some(location) = entry.location() else { continue };
            let row = match directory.description(&location) {
                Ok(Some(found)) => (
                    entry.name,
                    entry.len,
                    Some(ElementType::described(&found).as_str()),
                    Some(found.shape().to_vec()),
                    Some(memory::name_of_order(found.order())),
                ),
                Ok(None) | Err(Error::PermissionDenied { .. }) => (entry.name, entry.len, None, None, None),
                // A reserved file, or one that was removed after the listing.
                Err(_) => continue,
            };
            rows.push(row);
        }
        rows.sort();
        Ok(rows)
    };
    py.detach(rows).map_err(|error| exception(py, &error))
}

/// Removes the names of orphans in the default directory, and returns them.
#[pyfunction]
pub(crate) fn reclaim(py: Python<'_>, dry_run: bool, in_flight: bool) -> PyResult<Vec<String>> {
    let run = || {
        let directory = default_backend()?;
        let found = Reclaim::new().dry_run(dry_run).in_flight(in_flight).run(&directory)?;
        let mut names: Vec<String> = found.removed.into_iter().map(|removed| removed.name).collect();
        for entry in directory.list()?.into_iter().filter(|entry| entry.kind == EntryKind::Partial) {
            let Some(location) = entry.location() else { continue };
            // An error means that it is gone, or another user's.
            if remove_nameless_download(&directory, &location, dry_run).unwrap_or(false) {
                names.push(entry.name);
            }
        }
        Ok(names)
    };
    py.detach(run).map_err(|error: Error| exception(py, &error))
}
