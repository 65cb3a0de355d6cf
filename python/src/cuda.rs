//! The class that `ndshm.cuda.Array` derives from, and the functions that make such arrays.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ndarray_shm::counted::Foreign;
use ndarray_shm_cuda::{Device, ExportedArray, KIND, Result, Stream, find_driver};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::arguments::{lengths_of, order_of};
use crate::device_memory::{self, DeviceMemory};
use crate::dlpack;
use crate::errors::{cuda_exception, exception};
use crate::guard::View;
use crate::memory::{ElementType, Shape};
use crate::part::Window;

/// An array on a GPU that was created or attached, on its way to the constructor of `ndshm.cuda.Array`.
#[pyclass(frozen, module = "ndshm._core")]
pub(crate) struct DeviceAttachment(Mutex<Option<(Arc<dyn DeviceMemory>, ElementType)>>);

impl DeviceAttachment {
    fn new(memory: Arc<dyn DeviceMemory>, element: ElementType) -> Self {
        Self(Mutex::new(Some((memory, element))))
    }
}

/// An array in the memory of a GPU. `ndshm.cuda.Array` derives from it.
#[pyclass(frozen, subclass, weakref, module = "ndshm._core")]
pub(crate) struct RawDeviceArray {
    /// `None` after `close`.
    attached: Mutex<Option<Attached>>,
    /// Keeps the memory as long as this object lives once Python code has seen its address.
    exported: OnceLock<ExportedArray>,
    shape: Shape,
    device: Device,
}

struct Attached {
    memory: Arc<dyn DeviceMemory>,
    /// A descriptor of the memory for processes that are being started: multiprocessing uses its number after pickling.
    descriptor: Option<OwnedFd>,
}

impl RawDeviceArray {
    fn attached(&self) -> MutexGuard<'_, Option<Attached>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn memory(&self) -> PyResult<Arc<dyn DeviceMemory>> {
        let closed = || PyValueError::new_err("the array is closed: receive it again, or make another one");
        self.attached().as_ref().map(|attached| Arc::clone(&attached.memory)).ok_or_else(closed)
    }

    /// Runs a method of the memory without the interpreter's lock.
    fn run<R: Send>(&self, py: Python<'_>, run: impl FnOnce(&dyn DeviceMemory) -> Result<R> + Send) -> PyResult<R> {
        let memory = self.memory()?;
        py.detach(|| {
            let answer = run(&*memory);
            drop(memory); // if the array was closed meanwhile, this calls the driver
            answer
        })
        .map_err(|error| cuda_exception(py, &error))
    }

    /// Returns a stream of another library.
    fn stream(&self, number: usize) -> Stream {
        let raw = std::ptr::with_exposed_provenance_mut::<c_void>(number);
        // SAFETY: Python code gives the number of a stream of the GPU that exists, as it gives it to every library. 0,
        // 1 and 2 are the driver's own.
        unsafe { self.device.borrow_stream(raw) }
    }

    fn export(&self) -> PyResult<&ExportedArray> {
        let exported = self.memory()?.export(); // each time: a graph may be captured now, and was not before
        Ok(self.exported.get_or_init(|| exported))
    }
}

#[pymethods]
impl RawDeviceArray {
    #[new]
    fn new(attachment: &DeviceAttachment) -> PyResult<Self> {
        let content = attachment.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (memory, element) =
            content.ok_or_else(|| PyValueError::new_err("this attachment belongs to another array"))?;
        let shape = Shape { element, lengths: memory.lengths().to_vec(), order: memory.order() };
        let device = memory.device();
        let attached = Mutex::new(Some(Attached { memory, descriptor: None }));
        Ok(Self { attached, exported: OnceLock::new(), shape, device })
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape.lengths)
    }

    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.shape.strides())
    }

    /// The name of the element type, as in numpy's `dtype.str`.
    #[getter(_dtype_code)]
    fn dtype_code(&self) -> &'static str {
        self.shape.element.as_str()
    }

    #[getter]
    fn order(&self) -> &'static str {
        self.shape.order_name()
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

    /// The number of the GPU in this process.
    #[getter]
    fn device(&self) -> usize {
        self.device.ordinal()
    }

    /// The identity of the GPU, the same in every process.
    #[getter]
    fn uuid(&self) -> String {
        self.device.uuid().to_string()
    }

    /// Whether another process or library has the array, or had it.
    #[getter]
    fn is_shared(&self) -> PyResult<bool> {
        Ok(self.memory()?.is_shared())
    }

    #[getter]
    fn closed(&self) -> bool {
        self.attached().is_none()
    }

    /// The address of the first element on the GPU. It stays valid as long as this object lives, also after `close`.
    #[getter]
    fn ptr(&self) -> PyResult<u64> {
        Ok(self.export()?.device_pointer())
    }

    /// Lets the memory go. It ends when the GPU has done what was said to use it, and this does not wait for that.
    /// Exported memory stays as long as its exports and, if its address was asked for, this object.
    fn close(&self, py: Python<'_>) {
        let attached = self.attached().take();
        py.detach(|| drop(attached));
    }

    /// Copies the elements to the host.
    fn download(&self, py: Python<'_>) -> PyResult<View> {
        let elements = self.run(py, |memory| memory.download(&self.shape))?;
        Ok(View::new(elements, true))
    }

    /// Replaces the elements by the bytes of `source`, which are in the array's order; None is no bytes. An array that
    /// is shared needs `even_if_shared`.
    ///
    /// Nothing may write to the bytes until this returns.
    fn upload(&self, py: Python<'_>, source: Option<PyBuffer<u8>>, even_if_shared: bool) -> PyResult<()> {
        let source = Source::new(source, &self.shape)?;
        let bytes = source.bytes();
        self.run(py, |memory| memory.write(bytes, even_if_shared))
    }

    /// Returns a part of the array, a range along its outermost axis.
    fn range(&self, py: Python<'_>, start: usize, stop: usize) -> PyResult<DeviceAttachment> {
        let part = self.run(py, |memory| memory.part(start..stop))?;
        Ok(DeviceAttachment::new(part, self.shape.element))
    }

    fn wait_on(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        self.run(py, |memory| memory.wait_on(&self.stream(stream)))
    }

    fn written_on(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        self.run(py, |memory| memory.written_on(&self.stream(stream)))
    }

    fn used_on(&self, py: Python<'_>, stream: usize) -> PyResult<()> {
        self.run(py, |memory| memory.used_on(&self.stream(stream)))
    }

    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, |memory| memory.synchronize())
    }

    /// Returns a stream: its next work comes after everything that is known to write to the array, or None if all that
    /// is done.
    fn ready_stream(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        self.run(py, |memory| Ok(memory.ready_stream()?.map(|stream| stream.as_raw().expose_provenance())))
    }

    /// Opens a descriptor of the memory. Returns its number, and what the receiver must know beside type, shape and
    /// order.
    ///
    /// With `keep` the descriptor is this object's, and stays open until it is closed or gone; otherwise the caller
    /// closes it.
    fn descriptor(&self, py: Python<'_>, keep: bool) -> PyResult<(RawFd, String)> {
        let parcel = self.run(py, |memory| memory.parcel())?;
        let (note, descriptor) = (parcel.note().to_owned(), OwnedFd::from(parcel.into_descriptor()));
        if !keep {
            return Ok((descriptor.into_raw_fd(), note));
        }
        let mut attached = self.attached();
        match attached.as_mut() {
            Some(attached) => Ok((attached.descriptor.get_or_insert(descriptor).as_raw_fd(), note)),
            None => Err(PyValueError::new_err("the array was closed while it was pickled")),
        }
    }

    /// Returns the elements as a DLPack capsule, without a copy. The consumer's stream waits for what is known to write
    /// to them.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let device = self.__dlpack_device__();
        if dl_device.is_some_and(|wanted| wanted != device) {
            let text =
                format!("the array is on GPU {}: copy it to the other device, or to the host with numpy()", device.1);
            return Err(PyBufferError::new_err(text));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err("the export shares the memory: copy it afterwards"));
        }
        let memory = self.memory().map_err(|closed| PyBufferError::new_err(closed.to_string()))?;
        // As the array API says: None is the legacy default stream, -1 asks for no order, and 0 has two meanings.
        match stream.unwrap_or(1) {
            -1 => {}
            0 => {
                return Err(PyBufferError::new_err(
                    "stream=0 is ambiguous: give 1, the legacy default stream, or 2, that of the thread",
                ));
            }
            number => {
                let number = usize::try_from(number).map_err(|_| {
                    PyBufferError::new_err(format!("stream={number}: give -1, 1, 2 or the address of a stream"))
                })?;
                self.wait_on(py, number)?;
            }
        }
        let exported = memory.export();
        let export = dlpack::Export {
            address: std::ptr::with_exposed_provenance_mut(usize::try_from(exported.device_pointer())?),
            device,
            element: self.shape.element,
            window: &Window::whole(&self.shape),
            readonly: false,
            owner: Box::new(exported),
        };
        dlpack::capsule(py, export, max_version.is_some_and(|(major, _)| major >= 1))
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::CUDA, i32::try_from(self.device.ordinal()).unwrap_or(i32::MAX)) // the driver counts with an int
    }
}

/// Elements of the host, which nothing may write to while this lives.
struct Source(Option<PyBuffer<u8>>);

impl Source {
    /// Fails if the buffer has another number of bytes than the shape, or gaps.
    fn new(buffer: Option<PyBuffer<u8>>, shape: &Shape) -> PyResult<Self> {
        let length = buffer.as_ref().map_or(0, |buffer| buffer.len_bytes());
        let fits = length == shape.bytes() && buffer.as_ref().is_none_or(|buffer| buffer.is_c_contiguous());
        if fits { Ok(Self(buffer)) } else { Err(PyBufferError::new_err("the elements are not the bytes of the array")) }
    }

    fn bytes(&self) -> &[u8] {
        match &self.0 {
            Some(buffer) if buffer.len_bytes() > 0 => {
                // SAFETY: the buffer is contiguous, and stays as long as this value. Python code promises that nothing
                // writes to it meanwhile.
                unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast(), buffer.len_bytes()) }
            }
            _ => &[],
        }
    }
}

fn described(py: Python<'_>, lengths: Vec<usize>, dtype: &str, order: &str) -> PyResult<Shape> {
    let element = ElementType::parse(dtype).map_err(|error| exception(py, &error))?;
    Ok(Shape { element, lengths: lengths_of(py, lengths)?, order: order_of(order)? })
}

/// Makes an array without the interpreter's lock.
fn made(
    py: Python<'_>,
    element: ElementType,
    make: impl FnOnce() -> Result<Arc<dyn DeviceMemory>> + Send,
) -> PyResult<DeviceAttachment> {
    let memory = py.detach(make).map_err(|error| cuda_exception(py, &error))?;
    Ok(DeviceAttachment::new(memory, element))
}

/// Looks for the driver, without using it.
#[pyfunction]
pub(crate) fn cuda_find_driver(py: Python<'_>) -> PyResult<()> {
    py.detach(find_driver).map_err(|error| cuda_exception(py, &error))
}

/// Returns how many GPUs this process sees.
#[pyfunction]
pub(crate) fn cuda_device_count(py: Python<'_>) -> PyResult<usize> {
    py.detach(Device::count).map_err(|error| cuda_exception(py, &error))
}

/// Says which streams of a GPU other libraries may capture into graphs.
#[pyfunction]
pub(crate) fn cuda_may_be_captured(py: Python<'_>, device: usize, streams: Vec<usize>) -> PyResult<()> {
    let said = py.detach(|| {
        let streams: Vec<_> = streams.into_iter().map(std::ptr::with_exposed_provenance_mut::<c_void>).collect();
        // SAFETY: Python code gives streams of the GPU that are never destroyed.
        unsafe { Device::new(device)?.may_be_captured(&streams) }
    });
    said.map_err(|error| cuda_exception(py, &error))
}

/// Creates an array of zeros.
#[pyfunction]
pub(crate) fn cuda_zeros(
    py: Python<'_>,
    lengths: Vec<usize>,
    dtype: &str,
    order: &str,
    device: usize,
) -> PyResult<DeviceAttachment> {
    let shape = described(py, lengths, dtype, order)?;
    made(py, shape.element, || device_memory::zeros(Device::new(device)?, &shape))
}

/// Creates an array from the bytes of `source`, which are in this order; None is no bytes. Nothing may write to them
/// until this returns.
#[pyfunction]
pub(crate) fn cuda_upload(
    py: Python<'_>,
    source: Option<PyBuffer<u8>>,
    lengths: Vec<usize>,
    dtype: &str,
    order: &str,
    device: usize,
) -> PyResult<DeviceAttachment> {
    let shape = described(py, lengths, dtype, order)?;
    let source = Source::new(source, &shape)?;
    let bytes = source.bytes();
    made(py, shape.element, || device_memory::upload(Device::new(device)?, &shape, bytes))
}

/// Attaches an array that another process has sent. The descriptor is closed in any case.
#[pyfunction]
pub(crate) fn cuda_attach(
    py: Python<'_>,
    descriptor: RawFd,
    note: &str,
    lengths: Vec<usize>,
    dtype: &str,
    order: &str,
) -> PyResult<DeviceAttachment> {
    if descriptor < 0 {
        return Err(PyValueError::new_err(format!("{descriptor} is no descriptor")));
    }
    // SAFETY: Python code gives the descriptor away, which it has from multiprocessing.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let shape = described(py, lengths, dtype, order)?;
    made(py, shape.element, || {
        let parcel = Foreign::new(KIND, shape.element.dtype, &shape.lengths, shape.order, note, descriptor)?;
        device_memory::attach(&shape, &parcel)
    })
}
