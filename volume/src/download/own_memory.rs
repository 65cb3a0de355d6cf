//! Downloads into memory that only this process can reach meanwhile: that of a counted array before it is shared, or
//! the caller's own.
//!
//! Threads paint it without a ledger and without locks. Unfinished work cannot be resumed.

use ndarray::{ArrayViewMut, Dimension, IxDyn, ShapeBuilder as _};
use ndarray_shm::array::Description;
use ndarray_shm::counted::SharingStrategy;
use ndarray_shm::render::RenderProgress;
use ndarray_shm::{CreateOptions, Element, Order, RefcountedArray, default_directory};

use super::{DownloadOptions, Spent, Workers, bytes_of, work_of};
use crate::bbox::Bbox;
use crate::download::canvas::{Canvas as _, OwnCanvas};
use crate::download::spent::{DownloadTally, Totals};
use crate::download::threads;
use crate::download::watch::{PaintOutcome, Watch};
use crate::error::{Error, Result};
use crate::notes;
use crate::progress::StopFlag;
use crate::retries::Retries;
use crate::volume::ChunkSource;

/// What a download into memory of this process did.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Painted {
    /// Chunks the region touches. All of them were painted.
    pub chunks: usize,
    /// Those of them that are not stored: their elements are the [background](DownloadOptions::missing).
    pub filled: usize,
    /// Bytes of the array.
    pub bytes: u64,
    /// Bytes fetched, as they are stored; 0 if the volume fetches and decodes in one step.
    pub fetched: u64,
    /// Where the time went.
    pub spent: Spent,
    /// Problems that did not stop the work.
    pub warnings: Vec<String>,
    /// Type, shape and order of the array, and notes on where it came from, which [`VolumeNotes`](crate::VolumeNotes)
    /// reads. Memory has no description of its own, so these notes are only here.
    pub description: Description,
}

/// Paints a region of a volume into a counted array, which can be sent to other processes and is freed by its last
/// user.
///
/// Threads paint it while no other process can reach it. Where arrays can be [shared by
/// descriptor](SharingStrategy::FileDescriptor) and [files can be
/// nameless](ndarray_shm::Directory::makes_nameless_files) (Linux, on most file systems), it has no name until it is
/// [published](RefcountedArray::publish): a process that is killed leaves nothing, during the download and after it.
/// Elsewhere it gets a random name when it is finished, as counted arrays have.
///
/// # Errors
///
/// - [`Bbox`](Error::Bbox), [`Array`](Error::Array): as those of [`download`](crate::download()).
/// - [`Array`](Error::Array) (`InvalidSetting`): the workers are processes, which need a name, or a pool is chosen.
/// - [`Chunk`](Error::Chunk), [`ChunkDenied`](Error::ChunkDenied), [`ChunkUnserved`](Error::ChunkUnserved),
///   [`Missing`](Error::Missing), [`Store`](Error::Store), [`Interrupted`](Error::Interrupted),
///   [`Painting`](Error::Painting): as those of [`download_to_shared_memory`](crate::download_to_shared_memory).
///   Nothing is left.
///
/// # Examples
///
/// ```
/// use ndarray::Ix2;
/// use ndarray_shm::DType;
/// use ndarray_shm_volume::demo::{self, DemoSpec};
/// use ndarray_shm_volume::{DownloadOptions, VolumeUrl, download_counted, open_volume};
///
/// let directory = std::env::temp_dir().join(format!("counted-example-{}", std::process::id()));
/// demo::write_volume(&directory, &DemoSpec::new(&[40, 40], &[16, 16], DType::U16))?;
///
/// let volume = open_volume(VolumeUrl::local(&directory))?;
/// let bbox = volume.meta().parse_bbox("10:30,:")?;
/// let (array, painted) = download_counted::<u16, Ix2>(&*volume, &bbox, &DownloadOptions::new())?;
/// assert_eq!((array.shape(), painted.chunks), (&[20, 40][..], 6));
/// if array.location().is_none() {
///     array.publish()?; // now it can be sent as text, too
/// }
/// assert!(array.location().is_some());
///
/// std::fs::remove_dir_all(&directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[allow(clippy::missing_panics_doc)] // an array that was created was painted
pub fn download_counted<T: Element, D: Dimension>(
    source: &dyn ChunkSource,
    bbox: &Bbox,
    options: &DownloadOptions<'_>,
) -> Result<(RefcountedArray<T, D>, Painted)> {
    let run = OwnDownload::new::<T>(source, bbox, options, options.order)?;
    if options.pool.is_some() {
        return Err(invalid("the pool of a counted download", "set", "unset: its memory is not a pool's"));
    }
    let shape = bbox.shape();
    let Some(dim) = D::from_dimension(&IxDyn(&shape)) else {
        let (expected, found) = (format!("{:?} axes", D::NDIM), format!("{shape:?}"));
        return Err(ndarray_shm::ErrorKind::ShapeMismatch { expected, found }.at(source.identity()).into());
    };
    let backend = options.backend.clone().map_or_else(default_directory, Ok)?;
    let nameless = SharingStrategy::FileDescriptor;
    let can_be_named = nameless.is_supported() && backend.makes_nameless_files();
    let strategy = if can_be_named { nameless } else { SharingStrategy::FileSystem };
    let mut painted = None;
    let array = CreateOptions::new().directory(backend).try_share_with::<T, D, _>(
        strategy,
        dim.set_f(options.order == Order::F),
        |view| {
            painted = Some(run.paint(view.into_dyn())?);
            Ok::<(), Error>(())
        },
    )?;
    let painted = painted.expect("the array was painted");
    Ok((array, painted))
}

/// Paints a region of a volume into memory of this process, such as a view of an array that is locked for writing.
///
/// The memory has the region's shape, and any strides; the [order](DownloadOptions::order) of the options has no
/// meaning. After an error it holds what was painted until then.
///
/// # Errors
///
/// Those of [`download_counted`]. [`Array`](Error::Array) (`DTypeMismatch`, `ShapeMismatch`): the volume's elements are
/// not `T`, or the memory has not the region's shape; nothing was painted.
///
/// # Examples
///
/// ```
/// use ndarray::Array2;
/// use ndarray_shm::DType;
/// use ndarray_shm_volume::demo::{self, DemoSpec};
/// use ndarray_shm_volume::{DownloadOptions, VolumeUrl, download_into, open_volume};
///
/// let directory = std::env::temp_dir().join(format!("into-example-{}", std::process::id()));
/// demo::write_volume(&directory, &DemoSpec::new(&[40, 40], &[16, 16], DType::U16))?;
///
/// let volume = open_volume(VolumeUrl::local(&directory))?;
/// let mut batch = Array2::<u16>::zeros((20, 40));
/// let bbox = volume.meta().parse_bbox("10:30,:")?;
/// download_into(&*volume, &bbox, batch.view_mut().into_dyn(), &DownloadOptions::new())?;
///
/// std::fs::remove_dir_all(&directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn download_into<T: Element>(
    source: &dyn ChunkSource,
    bbox: &Bbox,
    memory: ArrayViewMut<'_, T, IxDyn>,
    options: &DownloadOptions<'_>,
) -> Result<Painted> {
    // The memory's own order, as far as it has one.
    let order = if memory.t().is_standard_layout() && !memory.is_standard_layout() { Order::F } else { Order::C };
    let run = OwnDownload::new::<T>(source, bbox, options, order)?;
    let shape = bbox.shape();
    if memory.shape() != shape {
        let (expected, found) = (format!("{shape:?}"), format!("{:?}", memory.shape()));
        return Err(ndarray_shm::ErrorKind::ShapeMismatch { expected, found }.at("the memory").into());
    }
    run.paint(memory)
}

/// A download that was checked before there is any memory.
struct OwnDownload<'a> {
    source: &'a dyn ChunkSource,
    bbox: &'a Bbox,
    options: &'a DownloadOptions<'a>,
    /// The number of threads, 0 for one on each processor.
    threads: usize,
    missing: Option<Vec<u8>>,
    description: Description,
    left_out: Vec<&'static str>,
}

impl<'a> OwnDownload<'a> {
    fn new<T: Element>(
        source: &'a dyn ChunkSource,
        bbox: &'a Bbox,
        options: &'a DownloadOptions<'a>,
        order: Order,
    ) -> Result<Self> {
        let meta = source.meta();
        meta.check(&source.identity())?;
        bbox.check_within(&meta.domain())?;
        if T::DTYPE != meta.dtype {
            let (expected, found) = (T::DTYPE.to_string(), meta.dtype.to_string());
            return Err(ndarray_shm::ErrorKind::DTypeMismatch { expected, found }.at(source.identity()).into());
        }
        let Workers::Threads(threads) = options.workers else {
            return Err(invalid("the workers of a download into own memory", "processes", "threads"));
        };
        let plain = Description::new(meta.dtype, &bbox.shape(), order)?;
        let (description, left_out) = notes::written(source, bbox, plain);
        let missing = options.missing.element(meta)?;
        Ok(Self { source, bbox, options, threads, missing, description, left_out })
    }

    fn paint<T: Element>(self, memory: ArrayViewMut<'_, T, IxDyn>) -> Result<Painted> {
        let canvas = OwnCanvas::new(self.source.meta(), [(self.bbox, memory)]);
        let (tally, abort, retries) = (DownloadTally::default(), StopFlag::new(), Retries::of_thread());
        let missing = self.missing.as_deref();
        let work = work_of(self.source, self.bbox, self.options, missing, &tally, &abort, &retries);
        let bytes = bytes_of::<T>(self.bbox);
        let mut watch = Watch::new(self.options.progress, canvas.progress(), bytes);
        watch.tell(canvas.progress(), Totals::default());
        let outcome = threads::paint(&canvas, &work, self.threads, &mut watch);
        watch.tell(canvas.progress(), tally.totals());
        self.options.progress.retrying(None);
        let RenderProgress { done, total } = canvas.progress();
        match outcome {
            PaintOutcome::Complete => {}
            PaintOutcome::Stopped => return Err(Error::Interrupted { done, total }),
            PaintOutcome::Failed(error) => return Err(error),
            PaintOutcome::Lost { report } => return Err(Error::Painting { report, done, total }),
        }
        let filled = watch.check_end(total, &self.left_out);
        Ok(Painted {
            chunks: total,
            filled,
            bytes,
            fetched: watch.totals.fetched,
            spent: watch.totals.spent,
            warnings: watch.warnings,
            description: self.description,
        })
    }
}

fn invalid(setting: &'static str, value: &str, expected: &'static str) -> Error {
    ndarray_shm::Error::setting(setting, value, expected).into()
}
