//! Downloads from volumes, and uploads to them.

use std::path::PathBuf;
use std::sync::Arc;

use ndarray::{ArrayView, ArrayViewD, ArrayViewMut, ArrayViewMutD, IxDyn, ShapeBuilder};
use ndarray_shm::array::{ArrayLock, Description, with_element};
use ndarray_shm::backend::goes_on;
use ndarray_shm::{Access, ErrorKind, Location, Order, default_directory};
use ndarray_shm_volume::{
    Alignment, Bbox, ChunkSink, ChunkSource, DownloadOptions, Downloaded, Encoding, Error, FillValue, Missing, Painted,
    ProcessWorkers, ReadOptions, Result, UploadOptions, Uploaded, VolumeMeta, VolumeNotes, Workers, download_counted,
    download_into, download_to_file, download_to_shared_memory, download_with_report, file_location, read_into,
    upload_from_array,
};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::arguments::{Name, order_of};
use crate::array::RawArray;
use crate::attachment::Attachment;
use crate::errors::exception;
use crate::job::{Job, JobState};
use crate::memory::{BOOL_OF_VOLUME, ElementType, Memory, Nameless, Shape};
use crate::part::Window;
use crate::signals::interruptibly;
use crate::volume::{RawVolume, Target, ends, region};

/// Where a download puts the elements in a new array.
enum Destination {
    /// An array of the default directory.
    Name(Location),
    File(PathBuf),
    /// An array that is counted, unless processes paint it: those need a name, and the file that once had one can never
    /// get another.
    Nameless,
}

/// What a download did: chunks, those painted here, those not stored, those painted by earlier calls, bytes of the
/// array, bytes fetched, warnings.
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
    missing: String,
    /// All other settings.
    options: DownloadOptions<'static>,
}

impl DownloadRequest {
    /// Downloads into a new array.
    fn run(mut self, state: &JobState) -> Result<(Attachment, Report)> {
        let source = self.target.source()?;
        let meta = source.meta();
        let bbox = region(meta, self.region.as_deref())?;
        let options = self.take_options(meta, state)?;
        let shape = Shape { element: element_of(&*source), lengths: bbox.shape(), order: self.order };
        let (memory, description, report) = self.paint(&*source, &bbox, &options, meta)?;
        Ok((Attachment::described(memory, shape, Some(description)), report))
    }

    /// Downloads into elements that exist.
    fn run_into(mut self, mut elements: Elements, state: &JobState) -> Result<Report> {
        let source = self.target.source()?;
        let meta = source.meta();
        let bbox = region(meta, self.region.as_deref())?;
        let options = self.take_options(meta, state)?;
        elements.check(&*source, &bbox)?;
        elements.lock(Access::ReadWrite, &mut || !state.stop.is_stopped())?;
        let axes = bbox.ranges().len();
        let painted = with_element!(meta.dtype, T => {
            #[allow(unsafe_code)]
            // SAFETY: `T` is the type of the elements, and `elements` keeps them alive. No element is there twice, as
            // was checked. Nothing else reads or writes them: an array is locked for writing, as far as all programs
            // take the locks, and the buffer's caller promises it.
            let view: ArrayViewMutD<'_, T> = unsafe { elements.view_mut(axes) };
            download_into(&*source, &bbox, view, &options)
        }, else => unreachable!("all features of elements are enabled"))?;
        Ok(report_of_painted(painted).1)
    }

    fn take_options<'a>(&mut self, meta: &VolumeMeta, state: &'a JobState) -> Result<DownloadOptions<'a>> {
        let options: DownloadOptions<'a> = std::mem::take(&mut self.options);
        let (workers, missing) = (self.workers()?, missing_of(&self.missing, meta)?);
        Ok(options.order(self.order).workers(workers).missing(missing).progress(state).stop(&state.stop))
    }

    fn paint(
        &self,
        source: &dyn ChunkSource,
        bbox: &Bbox,
        options: &DownloadOptions<'_>,
        meta: &VolumeMeta,
    ) -> Result<(Arc<dyn Memory>, Description, Report)> {
        with_element!(meta.dtype, T => {
            let (memory, (description, report)): (Arc<dyn Memory>, _) = match &self.destination {
                Destination::Name(location) => {
                    let done = download_to_shared_memory(source, bbox, location, options)?;
                    (Arc::new(done.open::<T, IxDyn>()?), report_of_downloaded(done))
                }
                Destination::File(path) => {
                    let done = download_to_file(source, bbox, path, options)?;
                    (Arc::new(done.open::<T, IxDyn>()?), report_of_downloaded(done))
                }
                Destination::Nameless if self.program.is_some() => {
                    let (array, done) = download_with_report::<T, IxDyn>(source, bbox, options)?;
                    (Arc::new(Nameless(array)), report_of_downloaded(done))
                }
                Destination::Nameless => {
                    let (array, painted) = download_counted::<T, IxDyn>(source, bbox, options)?;
                    (Arc::new(array), report_of_painted(painted))
                }
            };
            Ok((memory, description, report))
        }, else => unreachable!("all features of elements are enabled"))
    }

    fn workers(&self) -> Result<Workers> {
        let Some(program) = self.program.clone() else { return Ok(Workers::Threads(self.workers)) };
        let backend = match &self.destination {
            Destination::File(path) => file_location(path)?.0,
            _ => default_directory()?,
        };
        let Target { url, mip, .. } = &*self.target;
        Ok(Workers::Processes(ProcessWorkers::of_program(self.workers, program, url, *mip, &backend)))
    }
}

/// Returns what Python's word or number for missing chunks means.
fn missing_of(text: &str, meta: &VolumeMeta) -> Result<Missing> {
    Ok(match text {
        "stored" => Missing::AsStored,
        "error" => Missing::Error,
        "fill" => Missing::Fill,
        value => Missing::FillWith(FillValue::parse(value, meta.dtype)?),
    })
}

/// Reads a region, given by its ends, into an array of this library or, with a dtype, another object with a buffer.
/// Ctrl-C ends it in the main thread.
#[pyfunction]
pub(crate) fn read(
    py: Python<'_>,
    source: &RawVolume,
    region: Vec<(i64, i64)>,
    out: &Bound<'_, PyAny>,
    out_dtype: Option<&str>,
    missing: &str,
) -> PyResult<()> {
    let mut elements = elements_of(py, out, out_dtype, Access::ReadWrite)?;
    let target = source.target();
    let into = &mut elements; // freed with the interpreter's lock
    interruptibly(py, move || {
        let source = target.source()?;
        let bbox = Bbox::new(region.into_iter().map(|(start, end)| start..end).collect())?;
        let options = ReadOptions::new().missing(missing_of(missing, source.meta())?);
        into.check(&*source, &bbox)?;
        into.lock(Access::ReadWrite, &mut goes_on)?;
        with_element!(source.meta().dtype, T => {
            #[allow(unsafe_code)]
            // SAFETY: as in `run_into`.
            let view: ArrayViewMutD<'_, T> = unsafe { into.view_mut(bbox.ranges().len()) };
            Ok(read_into(&*source, &bbox, view, &options)?)
        }, else => unreachable!("all features of elements are enabled"))
    })
}

/// Returns the element type of a volume.
pub(crate) fn element_of(source: &dyn ChunkSource) -> ElementType {
    let is_bool = source.notes().iter().any(|(key, text)| (*key, text.as_str()) == BOOL_OF_VOLUME);
    ElementType { dtype: source.meta().dtype, is_bool }
}

fn report_of_downloaded(done: Downloaded) -> (Description, Report) {
    let description = done.description().clone();
    (description, (done.chunks, done.painted, done.filled, done.resumed, done.bytes, done.fetched, done.warnings))
}

fn report_of_painted(done: Painted) -> (Description, Report) {
    (done.description, (done.chunks, done.chunks, done.filled, 0, done.bytes, done.fetched, done.warnings))
}

/// Starts a download. Without a name and a path, the array has no name. The result is the attachment and what was done.
/// With `out`, an array of this library or, with a dtype, another object with a buffer, that memory is painted, and the
/// result is what was done.
#[pyfunction]
#[pyo3(signature = (
    source, region, *, name, path, out, out_dtype, order, workers, program, requests, missing, replace, keep_partial
))]
#[allow(clippy::too_many_arguments)] // Python gives them by name
pub(crate) fn download(
    py: Python<'_>,
    source: &RawVolume,
    region: Option<String>,
    name: Option<Name>,
    path: Option<PathBuf>,
    out: Option<&Bound<'_, PyAny>>,
    out_dtype: Option<&str>,
    order: &str,
    workers: usize,
    program: Option<PathBuf>,
    requests: usize,
    missing: String,
    replace: bool,
    keep_partial: bool,
) -> PyResult<Job> {
    let elements = out.map(|out| elements_of(py, out, out_dtype, Access::ReadWrite)).transpose()?;
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
        missing,
        options: DownloadOptions::new().requests(requests).replace(replace).keep_partial(keep_partial),
    };
    if let Some(elements) = elements {
        let run = move |state: &_| request.run_into(elements, state);
        return Job::start(run, |py, done: Report| Ok(done.into_pyobject(py)?.into_any().unbind()));
    }
    Job::start(move |state| request.run(state), |py, done| Ok(done.into_pyobject(py)?.into_any().unbind()))
}

/// The elements of an upload, or those that a download paints.
enum Elements {
    /// Elements of an array of this library, and its lock if it was free.
    Array(Arc<dyn Memory>, ElementType, Window, Option<ArrayLock>),
    /// The elements of another object. Python's caller promises that nothing writes to them meanwhile, nor reads those
    /// that are painted.
    Buffer(PyUntypedBuffer, ElementType),
}

/// An upload, as the caller described it.
struct UploadRequest {
    target: Arc<Target>,
    region: Option<String>,
    /// Where the elements are from.
    notes: VolumeNotes,
    cutout: Option<String>,
    partial: bool,
    skip_background: bool,
    workers: usize,
    requests: usize,
    encoding: Option<String>,
}

impl UploadRequest {
    fn run(&self, mut elements: Elements, state: &JobState) -> Result<Uploaded> {
        let sink = self.target.sink(self.encoding.as_deref().and_then(Encoding::named))?;
        self.notes.check_axes(&*sink)?;
        let meta = sink.meta();
        // With a cutout, the region of the array may reach beyond the volume.
        let bbox = match (&self.region, &self.cutout) {
            (Some(text), Some(_)) => text.parse()?,
            (Some(text), None) => region(meta, Some(text))?,
            (None, _) => self.home(&elements, &*sink)?,
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
        elements.lock(Access::Read, &mut || !state.stop.is_stopped())?;
        let dtype = elements.dtype();
        with_element!(dtype.dtype, T => {
            #[allow(unsafe_code)]
            // SAFETY: `T` is the type of the elements, and `elements` keeps them alive. They do not change: an array is
            // locked for reading, as far as all programs take the locks, and the buffer's caller promises it.
            let view: ArrayViewD<'_, T> = unsafe { elements.view(bbox.shape().len()) };
            upload_from_array(&*sink, &bbox, &view, &options)
        }, else => unreachable!("all features of elements are enabled"))
    }
}

impl UploadRequest {
    /// Returns the region of elements for which the caller gives none: where they are from, if that is this volume and
    /// scale, else all of the volume.
    fn home(&self, elements: &Elements, sink: &dyn ChunkSink) -> Result<Bbox> {
        let domain = sink.meta().domain();
        let axes = domain.shape().len();
        let lengths = elements.lengths(axes);
        if let Some(found) = self.notes.region_in(sink)?.filter(|found| found.shape() == lengths) {
            return Ok(found);
        }
        if lengths == domain.shape() {
            return Ok(domain);
        }
        let (Some(found), Some(source)) = (&self.notes.bbox, &self.notes.source) else { return Ok(domain) };
        let expected = format!(
            "{:?}: it is from {found} of {source:?}; if it belongs to the same region here, give bbox=\"{found}\"",
            domain.shape()
        );
        let found = format!("{lengths:?}");
        Err(ErrorKind::ShapeMismatch { expected, found }.at("the array in memory").into())
    }
}

impl Elements {
    /// Returns the lengths of the axes, for a region of so many axes. Arrays of one channel may lack the axis of
    /// channels. A buffer always has an axis: that of one element stands for no axis.
    fn lengths(&self, axes: usize) -> Vec<usize> {
        let mut lengths = match self {
            Self::Array(_, _, window, _) => window.lengths.clone(),
            Self::Buffer(buffer, _) => buffer.shape().to_vec(),
        };
        if lengths.len() + 1 == axes {
            lengths.push(1);
        } else if axes == 0 && lengths == [1] {
            lengths.clear();
        }
        lengths
    }

    fn dtype(&self) -> ElementType {
        match self {
            Self::Array(_, element, ..) | Self::Buffer(_, element) => *element,
        }
    }

    /// Checks that these elements can be those of a region.
    fn check(&self, source: &dyn ChunkSource, bbox: &Bbox) -> Result<()> {
        let (wanted, found, axes) = (element_of(source), self.dtype(), bbox.ranges().len());
        let location = "the array in memory";
        if wanted != found {
            let (expected, found) = (wanted.as_str().to_owned(), found.as_str().to_owned());
            return Err(ErrorKind::DTypeMismatch { expected, found }.at(location).into());
        }
        let lengths = self.lengths(axes);
        if lengths != bbox.shape() {
            let (expected, found) = (format!("{:?}", bbox.shape()), format!("{lengths:?}"));
            return Err(ErrorKind::ShapeMismatch { expected, found }.at(location).into());
        }
        Ok(())
    }

    /// Waits for the lock of an array.
    fn lock(&mut self, access: Access, goes_on: &mut dyn FnMut() -> bool) -> Result<()> {
        let Self::Array(memory, _, _, lock @ None) = self else { return Ok(()) };
        match memory.lock(access, None, goes_on) {
            Ok(taken) => *lock = Some(taken),
            Err(_) if !goes_on() => return Err(Error::Interrupted { done: 0, total: 0 }),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Returns a view of the elements. It has one more axis, of length 1, if the region has: volumes of one channel
    /// have such an axis, and arrays may lack it.
    ///
    /// # Safety
    ///
    /// - `T` has the type of the elements.
    /// - Nothing writes to the elements while the view is alive.
    #[allow(unsafe_code)]
    unsafe fn view<T>(&self, axes: usize) -> ArrayViewD<'_, T> {
        let (pointer, lengths, strides) = self.layout(axes, size_of::<T>());
        // SAFETY: `elements_of_buffer` has checked strides and alignment of a buffer, and an array has those of its
        // layout. The caller promises the rest.
        unsafe { ArrayView::from_shape_ptr(IxDyn(&lengths).strides(IxDyn(&strides)), pointer.cast_const().cast()) }
    }

    /// Returns a view of the elements for painting, as [`view`](Self::view) does.
    ///
    /// # Safety
    ///
    /// - `T` has the type of the elements.
    /// - They were chosen for writing, and an array is locked for it.
    /// - Nothing else reads or writes the elements while the view is alive.
    #[allow(unsafe_code)]
    unsafe fn view_mut<T>(&mut self, axes: usize) -> ArrayViewMutD<'_, T> {
        let (pointer, lengths, strides) = self.layout(axes, size_of::<T>());
        // SAFETY: as above. That no element is there twice, and the memory can be written, was checked when the
        // elements were chosen. The caller promises the rest.
        unsafe { ArrayViewMut::from_shape_ptr(IxDyn(&lengths).strides(IxDyn(&strides)), pointer.cast()) }
    }

    /// Returns the address of the first element, and lengths and strides, in elements of `item` bytes, along each of
    /// `axes` axes.
    fn layout(&self, axes: usize, item: usize) -> (*mut u8, Vec<usize>, Vec<usize>) {
        let (pointer, strides): (*mut u8, Vec<isize>) = match self {
            Self::Array(memory, _, window, _) => {
                (memory.pointer().wrapping_offset(window.offset), window.strides.clone())
            }
            Self::Buffer(buffer, _) => (buffer.buf_ptr().cast(), buffer.strides().to_vec()),
        };
        let lengths = self.lengths(axes);
        let mut strides: Vec<usize> = strides.iter().map(|stride| stride.unsigned_abs() / item).collect();
        strides.resize(lengths.len(), 1);
        (pointer, lengths, strides)
    }
}

/// Returns the elements of an array of this library, or, with a dtype, of another object.
fn elements_of(py: Python<'_>, x: &Bound<'_, PyAny>, dtype: Option<&str>, access: Access) -> PyResult<Elements> {
    match dtype {
        Some(dtype) => elements_of_buffer(py, x, dtype, access),
        None => elements_of_array(py, x.cast::<RawArray>()?.get(), access),
    }
}

/// Returns the elements of an array of this library, locked if it is free.
fn elements_of_array(py: Python<'_>, array: &RawArray, access: Access) -> PyResult<Elements> {
    let (memory, window) = (array.memory(py)?, array.window());
    if window.lengths.iter().zip(&window.strides).any(|(length, stride)| *length > 1 && *stride <= 0) {
        return Err(PyBufferError::new_err("the strides of the part are not positive: copy it, part[...]"));
    }
    // Tried here, because only this thread can find out that it has the array locked for writing itself. That is found
    // out when the wait begins.
    let lock = match py.detach(|| memory.lock(access, None, &mut || false)) {
        Ok(lock) => Some(lock.leave_thread()),
        Err(error) if matches!(error.kind, ErrorKind::WouldBlock | ErrorKind::TimedOut { .. }) => None,
        Err(error) => return Err(exception(py, &error)),
    };
    Ok(Elements::Array(memory, array.layout().element, window, lock))
}

/// Returns the elements of another object, of this type.
fn elements_of_buffer(py: Python<'_>, x: &Bound<'_, PyAny>, dtype: &str, access: Access) -> PyResult<Elements> {
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
    if access == Access::ReadWrite {
        let window = Window { offset: 0, lengths: buffer.shape().to_vec(), strides: buffer.strides().to_vec() };
        if buffer.readonly() || !window.is_regular(item) {
            let text = "the elements cannot be written: they are read-only, or some of them share memory";
            return Err(PyBufferError::new_err(text));
        }
    }
    Ok(Elements::Buffer(buffer, element))
}

/// Starts to upload an array of this library, or, with a dtype, the elements of a buffer. The result is the region, the
/// objects stored and left out, the bytes of the array and of the objects, and warnings.
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
    let elements = elements_of(py, x, dtype, Access::Read)?;
    let notes = x.cast::<RawArray>().map_or_else(|_| VolumeNotes::default(), |array| array.get().volume_notes());
    let target = target.target();
    let written = Arc::clone(&target);
    let request =
        UploadRequest { target, region, notes, cutout, partial, skip_background, workers, requests, encoding };
    Job::start(
        move |state| {
            let done = request.run(elements, state);
            written.forget(); // also after an error: some objects are replaced
            done
        },
        |py, done: Uploaded| {
            let report = (ends(&done.bbox), done.stored, done.background, done.bytes, done.stored_bytes, done.warnings);
            Ok(report.into_pyobject(py)?.into_any().unbind())
        },
    )
}
