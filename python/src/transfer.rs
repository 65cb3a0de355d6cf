//! Downloads from volumes, and uploads to them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ndarray::{ArrayView, ArrayViewD, IxDyn, ShapeBuilder};
use ndarray_shm::array::{ArrayLock, with_element};
use ndarray_shm::{Access, Directory, Location, Order, default_backend};
use ndarray_shm_volume::{
    Alignment, Bbox, ChunkSource, DownloadOptions, Downloaded, Error, FillValue, Missing, ProcessWorkers, Result,
    UploadOptions, Uploaded, VolumeMeta, Workers, download_to_file, download_to_shared_memory, download_with_report,
    file_location, upload_from_array,
};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::array::{Attachment, RawArray, order_of};
use crate::errors::exception;
use crate::job::{Job, JobState};
use crate::memory::{BOOL_OF_VOLUME, ElementType, Memory, Nameless, Shape};
use crate::volume::{RawVolume, Target, encoding_named, ends, region};

/// Where a download puts the elements.
enum Destination {
    /// An array of the default directory.
    Name(Location),
    File(PathBuf),
    Nameless,
}

/// What a download did: chunks, those painted here, those not stored, those painted by earlier calls, bytes of the array, bytes fetched,
/// warnings.
type Report = (usize, usize, usize, usize, u64, u64, Vec<String>);

/// A download, as the caller described it.
struct DownloadRequest {
    target: Arc<Target>,
    region: Option<String>,
    destination: Destination,
    order: Order,
    workers: usize,
    /// The program `ndshm`, if its processes are the workers.
    program: Option<PathBuf>,
    requests: usize,
    missing: String,
    replace: bool,
    keep_partial: bool,
}

impl DownloadRequest {
    fn run(&self, state: &JobState) -> Result<(Attachment, Report)> {
        let source = self.target.source()?;
        let meta = source.meta();
        let bbox = region(meta, self.region.as_deref())?;
        let options = DownloadOptions::new()
            .order(self.order)
            .workers(self.workers()?)
            .requests(self.requests)
            .missing(self.missing(meta)?)
            .replace(self.replace)
            .keep_partial(self.keep_partial)
            .progress(state)
            .stop(&state.stop);
        let is_bool = source.notes().iter().any(|(key, text)| (*key, text.as_str()) == BOOL_OF_VOLUME);
        let element = ElementType { dtype: meta.dtype, is_bool };
        let shape = Shape { element, lengths: bbox.shape(), order: self.order };
        let (memory, report) = self.paint(&*source, &bbox, &options, meta)?;
        Ok((Attachment::new(memory, shape), report))
    }

    fn paint(
        &self,
        source: &dyn ChunkSource,
        bbox: &Bbox,
        options: &DownloadOptions<'_>,
        meta: &VolumeMeta,
    ) -> Result<(Arc<dyn Memory>, Report)> {
        let (memory, done): (Arc<dyn Memory>, Downloaded) = with_element!(meta.dtype, T => match &self.destination {
            Destination::Name(location) => {
                let done = download_to_shared_memory(source, bbox, location, options)?;
                (Arc::new(done.open::<T, IxDyn>()?) as Arc<dyn Memory>, done)
            }
            Destination::File(path) => {
                let done = download_to_file(source, bbox, path, options)?;
                (Arc::new(done.open::<T, IxDyn>()?) as Arc<dyn Memory>, done)
            }
            Destination::Nameless => {
                let (array, done) = download_with_report::<T, IxDyn>(source, bbox, options)?;
                (Arc::new(Nameless(array)) as Arc<dyn Memory>, done)
            }
        }, else => unreachable!("all features of elements are enabled"));
        Ok((memory, (done.chunks, done.painted, done.filled, done.resumed, done.bytes, done.fetched, done.warnings)))
    }

    fn workers(&self) -> Result<Workers> {
        let Some(program) = self.program.clone() else { return Ok(Workers::Threads(self.workers)) };
        let backend = match &self.destination {
            Destination::File(path) => file_location(path)?.0,
            _ => default_backend()?,
        };
        let target = Arc::clone(&self.target);
        let command = move |location: &Location| worker(&program, &target, &backend, location);
        Ok(Workers::Processes(ProcessWorkers::with_location(self.workers, command)))
    }

    fn missing(&self, meta: &VolumeMeta) -> Result<Missing> {
        Ok(match self.missing.as_str() {
            "stored" => Missing::AsStored,
            "error" => Missing::Error,
            "fill" => Missing::Fill,
            value => Missing::FillWith(FillValue::parse(value, meta.dtype)?),
        })
    }
}

/// Returns the command that starts the program of this package as a worker.
fn worker(program: &Path, target: &Target, backend: &Directory, location: &Location) -> Command {
    let mut command = Command::new(program);
    command.args(["worker", "--mip", &target.mip.to_string(), "--location", location.as_str()]);
    command.args(["--backend", backend.name(), "--directory"]).arg(backend.path());
    command.args(["--", &target.url.to_argument()]);
    command
}

/// Starts a download. Without a name and a path, the array has no name. The result is the attachment and what was done.
#[pyfunction]
#[pyo3(signature = (source, region, *, name, path, order, workers, program, requests, missing, replace, keep_partial))]
#[allow(clippy::too_many_arguments)] // Python gives them by name
pub(crate) fn download(
    py: Python<'_>,
    source: &RawVolume,
    region: Option<String>,
    name: Option<&str>,
    path: Option<PathBuf>,
    order: &str,
    workers: usize,
    program: Option<PathBuf>,
    requests: usize,
    missing: String,
    replace: bool,
    keep_partial: bool,
) -> PyResult<Job> {
    let destination = match (name, path) {
        (Some(name), _) => Destination::Name(name.parse().map_err(|error| exception(py, &error))?),
        (None, Some(path)) => Destination::File(path),
        (None, None) => Destination::Nameless,
    };
    let request = DownloadRequest {
        target: source.target(),
        region,
        destination,
        order: order_of(order)?,
        workers,
        program,
        requests,
        missing,
        replace,
        keep_partial,
    };
    Job::start(move |state| request.run(state), |py, done| Ok(done.into_pyobject(py)?.into_any().unbind()))
}

/// The elements of an upload.
enum Elements {
    /// An array of this library, and its lock if it was free.
    Array(Arc<dyn Memory>, Shape, Option<ArrayLock>),
    /// The elements of another object. The caller of Python's `upload` promises that nothing writes to them meanwhile.
    Buffer(PyUntypedBuffer, ElementType),
}

/// An upload, as the caller described it.
struct UploadRequest {
    target: Arc<Target>,
    region: Option<String>,
    cutout: Option<String>,
    partial: bool,
    skip_background: bool,
    workers: usize,
    requests: usize,
    encoding: Option<String>,
}

impl UploadRequest {
    fn run(&self, mut elements: Elements, state: &JobState) -> Result<Uploaded> {
        let sink = self.target.sink(self.encoding.as_deref().and_then(encoding_named))?;
        let meta = sink.meta();
        // With a cutout, the region of the array may reach beyond the volume.
        let bbox = match (&self.region, &self.cutout) {
            (Some(text), Some(_)) => text.parse()?,
            (text, _) => region(meta, text.as_deref())?,
        };
        let alignment = if self.partial { Alignment::ReadModifyWrite } else { Alignment::Require };
        let mut options = UploadOptions::new()
            .alignment(alignment)
            .skip_background(self.skip_background)
            .workers(self.workers)
            .requests(self.requests)
            .progress(state)
            .stop(&state.stop);
        if let Some(text) = &self.cutout {
            options = options.cutout(region(meta, Some(text))?);
        }
        elements.lock(state)?;
        let dtype = elements.dtype();
        with_element!(dtype.dtype, T => {
            #[allow(unsafe_code)]
            // SAFETY: `T` is the type of the elements, and `elements` keeps them alive. They do not change: an array is locked for
            // reading, as far as all programs take the locks, and the buffer's caller promises it.
            let view: ArrayViewD<'_, T> = unsafe { elements.view(bbox.shape().len()) };
            upload_from_array(&*sink, &bbox, &view, &options)
        }, else => unreachable!("all features of elements are enabled"))
    }
}

impl Elements {
    fn dtype(&self) -> ElementType {
        match self {
            Self::Array(_, shape, _) => shape.element,
            Self::Buffer(_, element) => *element,
        }
    }

    /// Waits for the lock of an array.
    fn lock(&mut self, state: &JobState) -> Result<()> {
        let Self::Array(memory, _, lock @ None) = self else { return Ok(()) };
        match memory.lock(Access::Read, None, &mut || !state.stop.is_stopped()) {
            Ok(taken) => *lock = Some(taken),
            Err(_) if state.stop.is_stopped() => return Err(Error::Interrupted { done: 0, total: 0 }),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Returns a view of the elements. It has one more axis, of length 1, if the region has: volumes of one channel have such an axis,
    /// and arrays may lack it.
    ///
    /// # Safety
    ///
    /// - `T` has the type of the elements.
    /// - Nothing writes to the elements while the view is alive.
    #[allow(unsafe_code)]
    unsafe fn view<T>(&self, axes: usize) -> ArrayViewD<'_, T> {
        let (pointer, mut lengths, strides): (*const u8, Vec<usize>, Vec<isize>) = match self {
            Self::Array(memory, shape, _) => (memory.pointer(), shape.lengths.clone(), shape.strides()),
            Self::Buffer(buffer, _) => (buffer.buf_ptr().cast(), buffer.shape().to_vec(), buffer.strides().to_vec()),
        };
        let mut strides: Vec<usize> = strides.iter().map(|stride| stride.unsigned_abs() / size_of::<T>()).collect();
        if lengths.len() + 1 == axes {
            lengths.push(1);
            strides.push(1);
        }
        // SAFETY: `elements_of_buffer` has checked strides and alignment of a buffer, and an array has those of its layout. The caller
        // promises the rest.
        unsafe { ArrayView::from_shape_ptr(IxDyn(&lengths).strides(IxDyn(&strides)), pointer.cast()) }
    }
}

/// Returns an array of this library as the source of an upload, locked if it is free.
fn elements_of_array(py: Python<'_>, array: &RawArray) -> PyResult<Elements> {
    let (memory, shape) = (array.memory(py)?, array.layout().clone());
    // Tried here, because only this thread can find out that it has the array locked for writing itself. That is found out when the
    // wait begins.
    let lock = match py.detach(|| memory.lock(Access::Read, None, &mut || false)) {
        Ok(lock) => Some(lock),
        Err(ndarray_shm::Error::WouldBlock { .. } | ndarray_shm::Error::TimedOut { .. }) => None,
        Err(error) => return Err(exception(py, &error)),
    };
    Ok(Elements::Array(memory, shape, lock))
}

/// Returns the elements of another object, of this type, as the source of an upload.
fn elements_of_buffer(py: Python<'_>, x: &Bound<'_, PyAny>, dtype: &str) -> PyResult<Elements> {
    let element = ElementType::parse(dtype).map_err(|error| exception(py, &error))?;
    let (buffer, item) = (PyUntypedBuffer::get(x)?, element.dtype.size());
    let are_steps = buffer
        .strides()
        .iter()
        .zip(buffer.shape())
        .all(|(stride, length)| *length <= 1 || *stride > 0 && stride.unsigned_abs().is_multiple_of(item));
    if buffer.item_size() != item || !are_steps || !buffer.buf_ptr().cast::<u8>().addr().is_multiple_of(item) {
        let text = "the elements are not aligned, or their strides are not positive: copy the array";
        return Err(PyBufferError::new_err(text));
    }
    Ok(Elements::Buffer(buffer, element))
}

/// Starts to upload an array of this library, or, with a dtype, the elements of a buffer. The result is the region, the objects stored and
/// left out, the bytes of the array and of the objects, and warnings.
#[pyfunction]
#[pyo3(signature = (target, x, dtype, region, *, cutout, partial, skip_background, workers, requests, encoding))]
#[allow(clippy::too_many_arguments)] // Python gives them by name
pub(crate) fn upload(
    py: Python<'_>,
    target: &RawVolume,
    x: &Bound<'_, PyAny>,
    dtype: Option<&str>,
    region: Option<String>,
    cutout: Option<String>,
    partial: bool,
    skip_background: bool,
    workers: usize,
    requests: usize,
    encoding: Option<String>,
) -> PyResult<Job> {
    let elements = match dtype {
        Some(dtype) => elements_of_buffer(py, x, dtype)?,
        None => elements_of_array(py, x.cast::<RawArray>()?.get())?,
    };
    let target = target.target();
    let request = UploadRequest { target, region, cutout, partial, skip_background, workers, requests, encoding };
    Job::start(
        move |state| request.run(elements, state),
        |py, done: Uploaded| {
            let report = (ends(&done.bbox), done.stored, done.background, done.bytes, done.stored_bytes, done.warnings);
            Ok(report.into_pyobject(py)?.into_any().unbind())
        },
    )
}
