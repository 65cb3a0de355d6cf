//! The reverse job: an array in shared memory becomes a region of a volume.
//!
//! Every error that can be known in advance is returned before the first object is stored. The array is attached for
//! reading only, and its lock excludes writers until the end; nothing here can change or unlink it.

mod gather;
mod locks;
mod options;
mod queue;
mod threads;
mod units;

use std::path::Path;
use std::time::Duration;

use ndarray::{ArrayViewD, IxDyn, ShapeBuilder as _};
use ndarray_shm::{ArrayReader, Directory, Element, Location, OpenOptions, Order, default_directory, with_element};

pub use self::locks::{is_upload_lock, remove_upload_lock};
pub use self::options::{Alignment, UploadOptions};
pub use self::threads::Uploaded;
use crate::bbox::Bbox;
use crate::error::{Error, Result};
use crate::upload::threads::UploadRun;
use crate::upload::units::Units;
use crate::volume::ChunkSink;

/// Interval at which the wait for a writer of the array checks the flag.
const PATIENCE: Duration = Duration::from_millis(50);

/// Writes an array in shared memory into a region of a volume.
///
/// The array has the shape of `bbox`, the volume's element type, and the chosen [order](UploadOptions::order). It is
/// only read, and never unlinked, however this ends. If a process writes to it under the array's locks, this waits, and
/// then excludes writers until it is done.
///
/// [`open_writable_volume`](crate::open_writable_volume) opens an existing volume for writing
/// ([`open_volume`](crate::open_volume) opens it for reading only); [`create_volume`](crate::create_volume) creates a
/// new one.
///
/// Writes all of `bbox`, or only the [cutout](UploadOptions::cutout). A repeated call stores the same objects again.
///
/// # Errors
///
/// Before anything is stored:
/// - [`Array`](Error::Array): there is no such array, or its size differs.
/// - [`Bbox`](Error::Bbox): the region to write is not in the volume, or the cutout is not in the array's region.
/// - [`Alignment`](Error::Alignment): the region to write cuts through stored objects, and
///   [`ReadModifyWrite`](Alignment::ReadModifyWrite) is not chosen.
///
/// When some objects may already be stored (a repeated call does no harm):
/// - [`Chunk`](Error::Chunk), [`Store`](Error::Store): an object could not be encoded, stored, or, for changing a part
///   of it, read.
/// - [`Interrupted`](Error::Interrupted): the flag was raised.
/// - [`Writing`](Error::Writing): a thread panicked.
///
/// A volume that was opened for reading only is a compile-time error. The message says how to open it for writing:
///
/// ```compile_fail,E0277
/// # use ndarray_shm_volume::{UploadOptions, open_volume, upload_from_shared_memory};
/// let volume = open_volume("volume.zarr")?;
/// upload_from_shared_memory(&*volume, &volume.meta().domain(), &"name".parse()?, &UploadOptions::new())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Examples
///
/// Changes a part of a volume in shared memory and stores it again:
///
/// ```
/// use ndarray::Ix2;
/// use ndarray_shm::{DType, Location};
/// use ndarray_shm_volume::demo::{self, DemoSpec};
/// use ndarray_shm_volume::{DownloadOptions, UploadOptions};
/// use ndarray_shm_volume::{download_to_shared_memory, open_writable_volume, upload_from_shared_memory};
///
/// # let directory = std::env::temp_dir().join(format!("change-example-{}", std::process::id()));
/// # demo::write_volume(&directory, &DemoSpec::new(&[64, 64], &[16, 16], DType::U16))?;
/// let volume = open_writable_volume(&directory)?;
/// let bbox = volume.meta().parse_bbox("0:32,16:48")?;
/// let location: Location = format!("change-example-{}", std::process::id()).parse()?;
///
/// let array = download_to_shared_memory(&*volume, &bbox, &location, &DownloadOptions::new())?.open::<u16, Ix2>()?;
/// array.write()?.fill(7);
/// let done = upload_from_shared_memory(&*volume, &bbox, &location, &UploadOptions::new())?;
/// assert_eq!(done.stored, 4); // chunks
/// array.unlink()?;
/// # std::fs::remove_dir_all(&directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn upload_from_shared_memory(
    sink: &(impl ChunkSink + ?Sized),
    bbox: &Bbox,
    location: &Location,
    options: &UploadOptions<'_>,
) -> Result<Uploaded> {
    let sink: &dyn ChunkSink = &sink;
    let units = Units::of(sink, bbox, options)?;
    let backend = match &options.backend {
        Some(backend) => backend.clone(),
        None => default_directory()?,
    };
    with_element!(sink.meta().dtype, T => {
        let array = open::<T>(&backend, location, bbox, &units, options)?;
        write(sink, &array.view(), bbox, &units, options)
    }, else => Err(unsupported(sink)))
}

/// Writes a file that holds only the elements of an array into a region of a volume.
///
/// Opens the file for reading only; otherwise like [`upload_from_shared_memory`]. If a program truncates the file
/// meanwhile, without this project's locks, the kernel kills this process, as with every mapped file.
///
/// # Errors
///
/// Those of [`upload_from_shared_memory`].
pub fn upload_from_file(
    sink: &(impl ChunkSink + ?Sized),
    bbox: &Bbox,
    path: &Path,
    options: &UploadOptions<'_>,
) -> Result<Uploaded> {
    let sink: &dyn ChunkSink = &sink;
    let units = Units::of(sink, bbox, options)?;
    let absolute = dunce::canonicalize(path).map_err(|error| Error::io("opening", path, error))?;
    let (Some(directory), Some(name)) = (absolute.parent(), absolute.file_name().and_then(|name| name.to_str())) else {
        let what = std::io::Error::new(std::io::ErrorKind::InvalidFilename, "its name is not UTF-8, or it has none");
        return Err(Error::io("opening", path, what));
    };
    let location: Location = name.parse()?;
    // Any directory can be a backend; a file of exactly these bytes is an array in it.
    let backend: Directory = Directory::new("files", directory);
    with_element!(sink.meta().dtype, T => {
        let array = open::<T>(&backend, &location, bbox, &units, options)?;
        write(sink, &array.view(), bbox, &units, options)
    }, else => Err(unsupported(sink)))
}

/// Writes an array of this process, with any strides, into a region of a volume.
///
/// # Errors
///
/// [`Array`](Error::Array): the array's shape is not that of `bbox`, or its element type is not the volume's. Otherwise
/// those of [`upload_from_shared_memory`].
///
/// # Examples
///
/// Creates a volume from an array:
///
/// ```
/// use ndarray_shm::DType;
/// use ndarray_shm_volume::{NewVolume, UploadOptions, VolumeFormat, VolumeUrl, create_volume, upload_from_array};
///
/// let array = ndarray::ArrayD::<u8>::zeros(vec![100, 100, 40]);
/// let directory = std::env::temp_dir().join(format!("upload-example-{}", std::process::id()));
/// let new = NewVolume::new(VolumeFormat::Zarr, &[100, 100, 40], &[64, 64, 32], DType::U8);
/// let volume = create_volume(VolumeUrl::local(&directory), &new)?;
/// let done = upload_from_array(&*volume, &volume.meta().domain(), &array.view(), &UploadOptions::new())?;
/// assert_eq!((done.stored, done.bytes), (8, 100 * 100 * 40));
///
/// std::fs::remove_dir_all(&directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn upload_from_array<T: Element>(
    sink: &(impl ChunkSink + ?Sized),
    bbox: &Bbox,
    array: &ArrayViewD<'_, T>,
    options: &UploadOptions<'_>,
) -> Result<Uploaded> {
    let sink: &dyn ChunkSink = &sink;
    let units = Units::of(sink, bbox, options)?;
    let location = "the array in memory";
    if T::DTYPE != sink.meta().dtype {
        let (expected, found) = (sink.meta().dtype.to_string(), T::DTYPE.to_string());
        return Err(ndarray_shm::ErrorKind::DTypeMismatch { expected, found }.at(location).into());
    }
    if array.shape() != bbox.shape() {
        let (expected, found) = (format!("{:?}", bbox.shape()), format!("{:?}", array.shape()));
        return Err(ndarray_shm::ErrorKind::ShapeMismatch { expected, found }.at(location).into());
    }
    write(sink, array, bbox, &units, options)
}

/// Attaches for reading. Waits while a process writes, until the flag is raised.
fn open<T: Element>(
    backend: &Directory,
    location: &Location,
    bbox: &Bbox,
    units: &Units,
    options: &UploadOptions<'_>,
) -> Result<ArrayReader<T, IxDyn>> {
    let order = match options.order {
        Some(order) => order,
        // If the description cannot be read, opening fails below with a better error.
        None => backend.description(location).ok().flatten().map_or(Order::C, |said| said.order()),
    };
    loop {
        if options.stop.is_stopped() {
            return Err(Error::Interrupted { done: 0, total: units.total() });
        }
        let readers = OpenOptions::new().directory(backend.clone()).timeout(PATIENCE);
        let readers = readers.reinterpret(options.reinterpret);
        match readers.open_reader(location.clone(), IxDyn(&bbox.shape()).set_f(order == Order::F)) {
            Err(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::TimedOut { .. }, .. }) => {}
            other => return Ok(other?),
        }
    }
}

fn write<T: Element>(
    sink: &dyn ChunkSink,
    array: &ArrayViewD<'_, T>,
    bbox: &Bbox,
    units: &Units,
    options: &UploadOptions<'_>,
) -> Result<Uploaded> {
    UploadRun::new(sink, array.view(), bbox, units, options).run()
}

fn unsupported(sink: &dyn ChunkSink) -> Error {
    Error::UnsupportedDType { volume: sink.identity(), dtype: sink.meta().dtype.to_string() }
}
