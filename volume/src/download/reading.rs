//! Reads: a region becomes elements in the memory of this process, with little around the work itself.
//!
//! The workers, the canvas and the errors are those of a download into memory. A read makes no threads, notes, reports
//! or progress: reading one small chunk takes little longer than fetching and decoding it.

use std::fmt;

use ndarray::{Array, ArrayViewMut, Dimension, IxDyn, ShapeBuilder as _};
use ndarray_shm::render::RenderProgress;
use ndarray_shm::{Element, Order};

use crate::bbox::Bbox;
use crate::download::budget::REQUESTS;
use crate::download::canvas::{Canvas as _, OwnCanvas};
use crate::download::paint::PaintWork;
use crate::download::spent::DownloadTally;
use crate::download::threads;
use crate::download::watch::PaintOutcome;
use crate::error::{Error, Result};
use crate::missing::Missing;
use crate::progress::StopFlag;
use crate::retries::Retries;
use crate::volume::ChunkSource;

/// The options of [`read`], [`read_into`] and [`read_many`].
#[derive(Clone)]
pub struct ReadOptions {
    order: Option<Order>,
    missing: Missing,
    threads: usize,
    requests: usize,
    stop: StopFlag,
}

impl ReadOptions {
    /// Returns the defaults: the volume's own order, missing chunks as the volume says, all processors, 16 requests at
    /// a time, never stopped.
    pub fn new() -> Self {
        Self { order: None, missing: Missing::default(), threads: 0, requests: REQUESTS, stop: StopFlag::new() }
    }

    /// Chooses the order of a new array in memory. By default it is that of the volume's
    /// [chunks](ChunkSource::order), which is the fastest. The shape is the region's in both orders.
    pub fn order(mut self, order: Order) -> Self {
        self.order = Some(order);
        self
    }

    /// Chooses what happens with chunks that are not stored.
    pub fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }

    /// Chooses how many threads decode: the caller's, and helpers that all reads of this process share. 0 is one for
    /// each processor. Has no effect on a remote volume.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Chooses how many requests a remote volume gets at a time: one from the caller's thread, and one from each
    /// helper. 0 is the default, 16. The reads of this process share 64 helpers.
    pub fn requests(mut self, requests: usize) -> Self {
        self.requests = if requests == 0 { REQUESTS } else { requests };
        self
    }

    /// Stops the read between two chunks when this flag is raised.
    pub fn stop(mut self, stop: &StopFlag) -> Self {
        self.stop = stop.clone();
        self
    }
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ReadOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadOptions")
            .field("order", &self.order)
            .field("missing", &self.missing)
            .field("threads", &self.threads)
            .field("requests", &self.requests)
            .field("stop", &self.stop)
            .finish()
    }
}

/// Reads a region of a volume into a new array of this process.
///
/// A region in one chunk is read by the calling thread alone. With more chunks the threads of this process that help to
/// read take part; they start with the first such read, and end when they have been idle for a second. A chunk with a
/// contiguous place in the array is decoded straight into it. Nothing is cached.
///
/// A forked child can read what its parent has opened.
///
/// The callback of [`interruptible`](ndarray_shm::backend::interruptible) ends a read as the
/// [flag](ReadOptions::stop) does.
///
/// # Errors
///
/// - [`Bbox`](Error::Bbox): the region is empty or not in the volume.
/// - [`Array`](Error::Array): the volume's elements are not `T` (`DTypeMismatch`), `D` has another number of axes
///   (`ShapeMismatch`), there is no such amount of memory (`TooLarge`).
/// - [`FillValue`](Error::FillValue): the value for missing chunks is no element of the volume.
/// - [`Chunk`](Error::Chunk), [`ChunkDenied`](Error::ChunkDenied), [`ChunkUnserved`](Error::ChunkUnserved),
///   [`Missing`](Error::Missing), [`Store`](Error::Store), [`Interrupted`](Error::Interrupted),
///   [`Painting`](Error::Painting): as those of [`download_to_shared_memory`](crate::download_to_shared_memory).
///
/// # Examples
///
/// ```
/// use ndarray::Ix3;
/// use ndarray_shm::DType;
/// use ndarray_shm_volume::demo::{self, DemoSpec};
/// use ndarray_shm_volume::{ReadOptions, open_volume, read};
///
/// let directory = std::env::temp_dir().join(format!("read-example-{}", std::process::id()));
/// demo::write_volume(&directory, &DemoSpec::new(&[40, 40, 40], &[16, 16, 16], DType::U16))?;
///
/// let volume = open_volume(&directory)?;
/// let bbox = volume.meta().parse_bbox("10:14,:,5:")?;
/// let elements = read::<u16, Ix3>(&*volume, &bbox, &ReadOptions::new())?;
/// assert_eq!(elements.shape(), [4, 40, 35]);
///
/// std::fs::remove_dir_all(&directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read<T: Element, D: Dimension>(
    source: &dyn ChunkSource,
    bbox: &Bbox,
    options: &ReadOptions,
) -> Result<Array<T, D>> {
    check::<T>(source, bbox)?;
    let mut array = new_array(source, bbox, options)?;
    paint(source, &[bbox], vec![array.view_mut().into_dyn()], options)?;
    Ok(array)
}

/// Reads a region of a volume into memory of the region's shape, with any strides.
///
/// The memory is that of the caller's array, or of an array in shared memory that is locked for writing. After an error
/// it holds what was read until then.
///
/// # Errors
///
/// Those of [`read`]. [`Array`](Error::Array) (`ShapeMismatch`): the memory has not the region's shape; nothing was
/// read.
///
/// # Examples
///
/// ```
/// use ndarray::Array3;
/// use ndarray_shm::DType;
/// use ndarray_shm_volume::demo::{self, DemoSpec};
/// use ndarray_shm_volume::{ReadOptions, open_volume, read_into};
///
/// let directory = std::env::temp_dir().join(format!("read-into-example-{}", std::process::id()));
/// demo::write_volume(&directory, &DemoSpec::new(&[40, 40], &[16, 16], DType::U16))?;
///
/// let volume = open_volume(&directory)?;
/// let mut batch = Array3::<u16>::zeros((2, 20, 40));
/// for (number, mut slot) in batch.outer_iter_mut().enumerate() {
///     let bbox = volume.meta().parse_bbox(&format!("{}:{},:", 10 * number, 10 * number + 20))?;
///     read_into(&*volume, &bbox, slot.view_mut().into_dyn(), &ReadOptions::new())?;
/// }
///
/// std::fs::remove_dir_all(&directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read_into<T: Element>(
    source: &dyn ChunkSource,
    bbox: &Bbox,
    memory: ArrayViewMut<'_, T, IxDyn>,
    options: &ReadOptions,
) -> Result<()> {
    check::<T>(source, bbox)?;
    let shape = bbox.shape();
    if memory.shape() != shape {
        let (expected, found) = (format!("{shape:?}"), format!("{:?}", memory.shape()));
        return Err(ndarray_shm::ErrorKind::ShapeMismatch { expected, found }.at("the memory").into());
    }
    paint(source, &[bbox], vec![memory], options)
}

/// Reads several regions of a volume, each into a new array, all with the same threads at once.
///
/// # Errors
///
/// Those of [`read`]; the first error ends the reads of all regions.
///
/// # Examples
///
/// ```
/// use ndarray::Ix2;
/// use ndarray_shm::DType;
/// use ndarray_shm_volume::demo::{self, DemoSpec};
/// use ndarray_shm_volume::{ReadOptions, open_volume, read_many};
///
/// let directory = std::env::temp_dir().join(format!("read-many-example-{}", std::process::id()));
/// demo::write_volume(&directory, &DemoSpec::new(&[40, 40], &[16, 16], DType::U16))?;
///
/// let volume = open_volume(&directory)?;
/// let regions = ["0:8,0:8", "10:20,5:9"].map(|text| volume.meta().parse_bbox(text));
/// let regions = regions.into_iter().collect::<Result<Vec<_>, _>>()?;
/// let arrays = read_many::<u16, Ix2>(&*volume, &regions, &ReadOptions::new())?;
/// assert_eq!((arrays[0].dim(), arrays[1].dim()), ((8, 8), (10, 4)));
///
/// std::fs::remove_dir_all(&directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read_many<T: Element, D: Dimension>(
    source: &dyn ChunkSource,
    regions: &[Bbox],
    options: &ReadOptions,
) -> Result<Vec<Array<T, D>>> {
    regions.iter().try_for_each(|bbox| check::<T>(source, bbox))?;
    let arrays: Result<Vec<Array<T, D>>> = regions.iter().map(|bbox| new_array(source, bbox, options)).collect();
    let mut arrays = arrays?;
    let regions: Vec<&Bbox> = regions.iter().collect();
    paint(source, &regions, arrays.iter_mut().map(|array| array.view_mut().into_dyn()).collect(), options)?;
    Ok(arrays)
}

/// Checks what can be checked before there is memory.
fn check<T: Element>(source: &dyn ChunkSource, bbox: &Bbox) -> Result<()> {
    let meta = source.meta();
    if !meta.is_tiled() {
        meta.check(&source.identity())?;
    }
    bbox.check_within(&meta.domain())?;
    if T::DTYPE != meta.dtype {
        let (expected, found) = (T::DTYPE.to_string(), meta.dtype.to_string());
        return Err(ndarray_shm::ErrorKind::DTypeMismatch { expected, found }.at(source.identity()).into());
    }
    Ok(())
}

/// Makes an array of zeros. The system gives large ones their pages when they are first written.
fn new_array<T: Element, D: Dimension>(
    source: &dyn ChunkSource,
    bbox: &Bbox,
    options: &ReadOptions,
) -> Result<Array<T, D>> {
    let shape = bbox.shape();
    let Some(dim) = D::from_dimension(&IxDyn(&shape)) else {
        let (expected, found) = (format!("{:?} axes", D::NDIM), format!("{shape:?}"));
        return Err(ndarray_shm::ErrorKind::ShapeMismatch { expected, found }.at(source.identity()).into());
    };
    let too_large = || ndarray_shm::ErrorKind::TooLarge { shape: shape.clone(), item: size_of::<T>() }.at("new memory");
    let length = shape.iter().try_fold(1_usize, |length, axis| length.checked_mul(*axis)).ok_or_else(too_large)?;
    let elements = bytemuck::allocation::try_zeroed_slice_box::<T>(length).map_err(|()| too_large())?;
    let order = options.order.unwrap_or_else(|| source.order());
    Array::from_shape_vec(dim.set_f(order == Order::F), elements.into_vec()).map_err(|_| too_large().into())
}

fn paint<T: Element>(
    source: &dyn ChunkSource,
    regions: &[&Bbox],
    memory: Vec<ArrayViewMut<'_, T, IxDyn>>,
    options: &ReadOptions,
) -> Result<()> {
    let meta = source.meta();
    let missing = options.missing.element(meta)?;
    let Some(first) = regions.first() else { return Ok(()) };
    let canvas = OwnCanvas::new(meta, regions.iter().copied().zip(memory));
    let (tally, abort, retries) = (DownloadTally::default(), StopFlag::new(), Retries::of_thread());
    let work = PaintWork {
        source,
        bbox: first,
        missing: missing.as_deref(),
        requests: options.requests,
        in_flight: u64::MAX,
        stop: &options.stop,
        abort: &abort,
        tally: &tally,
        retries: &retries,
        heard: &|| {},
    };
    let outcome = threads::paint_here(&canvas, &work, options.threads);
    let RenderProgress { done, total } = canvas.progress();
    match outcome {
        PaintOutcome::Complete => Ok(()),
        PaintOutcome::Stopped => Err(Error::Interrupted { done, total }),
        PaintOutcome::Failed(error) => Err(error),
        PaintOutcome::Lost { report } => Err(Error::Painting { report, done, total }),
    }
}
