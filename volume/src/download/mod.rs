//! The main job: a region of a volume becomes an array in shared memory.
//!
//! Creates or resumes the renderbuffer, runs the workers that paint it, and decides what happens to it at the end: it
//! gets its name, is discarded, or is kept for another run.

mod budget;
mod canvas;
mod fingerprint;
mod helpers;
mod options;
mod other_places;
mod own_memory;
mod paint;
mod processes;
mod reading;
mod report;
mod spent;
mod threads;
mod watch;

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use ndarray::{Dimension, IxDyn, ShapeBuilder as _};
use ndarray_shm::array::Description;
use ndarray_shm::render::{self, RenderOptions};
use ndarray_shm::{
    DType, Directory, Element, Location, OpenOptions, Order, RenderBuffer, SharedArray, default_directory, with_element,
};

pub use self::helpers::end_read_threads;
pub use self::options::{DownloadOptions, Workers};
pub use self::other_places::{
    download, download_to_file, download_with_report, file_location, is_nameless_download, remove_nameless_download,
};
pub use self::own_memory::{Painted, download_counted, download_into};
pub use self::processes::ProcessWorkers;
pub use self::reading::{ReadOptions, read, read_into, read_many};
pub use self::spent::Spent;
use crate::bbox::{Bbox, to_usize};
use crate::error::{Error, Result, StoreFailure};
use crate::notes;

use crate::download::canvas::PaintEnd;
use crate::download::fingerprint::Wanted;
use crate::download::paint::PaintWork;
use crate::download::report::ParentLink;
use crate::download::spent::{DownloadTally, Totals};
use crate::download::watch::{PaintOutcome, Watch};
use crate::progress::StopFlag;
use crate::retries::Retries;
use crate::volume::{ChunkSource, VolumeMeta};

/// A finished download.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Downloaded {
    /// The array's name.
    pub location: Location,
    /// Type of its elements: the volume's.
    pub dtype: DType,
    /// Elements along each axis: the region's.
    pub shape: Vec<usize>,
    /// Order in memory.
    pub order: Order,
    /// Chunks the region touches.
    pub chunks: usize,
    /// Chunks that this call's workers painted. If another call joined the same work and a worker process was killed,
    /// this may count one chunk that the other call painted.
    pub painted: usize,
    /// Those of the [painted](Self::painted) chunks that are not stored: their elements are the
    /// [background](DownloadOptions::missing). Does not count chunks that were painted before this call, nor a chunk
    /// filled by a worker process that was killed before it reported it.
    pub filled: usize,
    /// Chunks that were painted before this call. Chunks neither `painted` nor `resumed` were painted by other
    /// processes that joined the same work.
    pub resumed: usize,
    /// Bytes of the array.
    pub bytes: u64,
    /// Bytes fetched, as they are stored; 0 if the volume fetches and decodes in one step.
    pub fetched: u64,
    /// Where the time went.
    pub spent: Spent,
    /// Problems that did not stop the work, such as the loss of a worker.
    pub warnings: Vec<String>,
    description: Description,
    backend: Directory,
    /// The array, if it returns to a pool when the last clone of this value is dropped.
    _pooled: Option<Arc<dyn Any + Send + Sync>>,
}

impl Downloaded {
    /// Returns the array's description: type, shape, order, and notes on where it came from, which
    /// [`VolumeNotes`](crate::VolumeNotes) reads. If the file system supports descriptions, the array's file has it
    /// too.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Opens the array.
    ///
    /// # Errors
    ///
    /// [`Array`](Error::Array): `T` or the number of axes of `D` differs from the array's, or the array was unlinked
    /// since.
    pub fn open<T: Element, D: Dimension>(&self) -> Result<SharedArray<T, D>> {
        let location = self.location.to_string();
        if T::DTYPE != self.dtype {
            let (expected, found) = (T::DTYPE.to_string(), self.dtype.to_string());
            return Err(ndarray_shm::ErrorKind::DTypeMismatch { expected, found }.at(location).into());
        }
        let Some(dim) = D::from_dimension(&IxDyn(&self.shape)) else {
            let (expected, found) = (format!("{:?} axes", D::NDIM), format!("{:?}", self.shape));
            return Err(ndarray_shm::ErrorKind::ShapeMismatch { expected, found }.at(location).into());
        };
        let options = OpenOptions::new().directory(self.backend.clone());
        Ok(options.open::<T, D>(&self.location, dim.set_f(self.order == Order::F))?)
    }
}

/// Paints a region of a volume into an array in shared memory.
///
/// The array has the region's shape and the volume's element type. All workers paint it at once under a reserved name;
/// it gets the name `location` when every chunk is painted. If an earlier call for the same region of the same volume
/// left it unfinished, only the missing chunks are painted. If such a call is running in another process, both paint
/// together.
///
/// # Errors
///
/// - [`Bbox`](Error::Bbox): the region is empty or not in the volume.
/// - [`Array`](Error::Array): the name is taken (`AlreadyExists`), another volume, region or order is being painted
///   under it, or was and is unfinished and not to be [replaced](DownloadOptions::replace) (`Mismatch`), another user
///   began it and was not [chosen](DownloadOptions::shared_with) (`ForeignOwner`), there is no space (`NoSpace`), ..
/// - [`Chunk`](Error::Chunk), [`ChunkDenied`](Error::ChunkDenied): a chunk cannot be read or decoded. Painted chunks
///   are discarded, unless [`keep_partial`](DownloadOptions::keep_partial).
/// - [`Interrupted`](Error::Interrupted): the flag was raised; the same holds.
/// - [`ChunkUnserved`](Error::ChunkUnserved): the server cannot send a chunk in a usable form; the same holds.
/// - [`Missing`](Error::Missing): a chunk is not stored, and its elements are not defined; the same holds.
/// - [`Store`](Error::Store): the server did not answer for long, or refused credentials that may have expired. Painted
///   chunks are kept.
/// - [`Worker`](Error::Worker): all worker processes were lost. Painted chunks are kept.
/// - [`Painting`](Error::Painting): workers panicked, or were lost before anything was painted. Nothing is left.
///
/// # Examples
///
/// ```
/// use ndarray::Ix3;
/// use ndarray_shm::{unlink, DType};
/// use ndarray_shm_volume::demo::{self, DemoSpec};
/// use ndarray_shm_volume::{Bbox, DownloadOptions, VolumeUrl, download_to_shared_memory, open_volume};
///
/// let directory = std::env::temp_dir().join(format!("download-example-{}", std::process::id()));
/// demo::write_volume(&directory, &DemoSpec::new(&[40, 40, 40], &[16, 16, 16], DType::U16))?;
///
/// let volume = open_volume(VolumeUrl::local(&directory))?;
/// let bbox = Bbox::parse("10:30,:,5:", &volume.meta().domain())?;
/// let location = format!("download-example-{}", std::process::id()).parse()?;
/// let done = download_to_shared_memory(&*volume, &bbox, &location, &DownloadOptions::new())?;
/// assert_eq!(done.shape, [20, 40, 35]);
/// println!("{}", done.open::<u16, Ix3>()?.read()?[[0, 0, 0]]);
///
/// unlink(&location)?;
/// std::fs::remove_dir_all(&directory)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn download_to_shared_memory(
    source: &dyn ChunkSource,
    bbox: &Bbox,
    location: &Location,
    options: &DownloadOptions<'_>,
) -> Result<Downloaded> {
    let backend = match &options.backend {
        Some(backend) => backend.clone(),
        None => default_directory()?,
    };
    download_as(source, bbox, location, options, &backend, options.keep_partial)
}

/// Downloads to `backend`, which may differ from the directory in `options`.
fn download_as(
    source: &dyn ChunkSource,
    bbox: &Bbox,
    location: &Location,
    options: &DownloadOptions<'_>,
    backend: &Directory,
    keep_partial: bool,
) -> Result<Downloaded> {
    let meta = source.meta();
    meta.check(&source.identity())?;
    bbox.check_within(&meta.domain())?;
    let plain = Description::new(meta.dtype, &bbox.shape(), options.order)?;
    let (description, left_out) = notes::written(source, bbox, plain);
    let job = DownloadRun { source, bbox, location, options, backend, keep_partial, description, left_out };
    with_element!(meta.dtype, T => job.run::<T>(), else => Err(unsupported(source)))
}

/// Joins a download as one of its worker processes and paints until every chunk is done. Returns how many chunks it
/// painted.
///
/// The buffer says which region of the volume to paint. A worker should
/// [stop when its standard input ends](StopFlag::stop_when_stdin_ends): its parent closes that pipe to dismiss it.
///
/// # Errors
///
/// - [`Array`](Error::Array): nothing is being painted under the name (`NotFound`), or another volume is (`Mismatch`).
/// - [`Chunk`](Error::Chunk), [`ChunkDenied`](Error::ChunkDenied), [`ChunkUnserved`](Error::ChunkUnserved),
///   [`Missing`](Error::Missing): a chunk cannot be read or decoded; it stays unfinished.
/// - [`Interrupted`](Error::Interrupted): the flag was raised before every chunk was done.
pub fn paint_as_worker(
    source: &dyn ChunkSource,
    backend: Directory,
    location: &Location,
    stop: &StopFlag,
) -> Result<usize> {
    source.meta().check(&source.identity())?;
    let line = render::ledger(&backend, location)?.fingerprint;
    let wanted = fingerprint::wanted(&line, source, location)?;
    with_element!(
        source.meta().dtype,
        T => join::<T>(source, backend, location, &wanted, &line, stop),
        else => Err(unsupported(source))
    )
}

fn join<T: Element>(
    source: &dyn ChunkSource,
    backend: Directory,
    location: &Location,
    wanted: &Wanted,
    line: &str,
    stop: &StopFlag,
) -> Result<usize> {
    let parent = ParentLink::of_this_process();
    let options = RenderOptions::new().directory(backend).shared_with(parent.shared_with());
    let buffer = options.open::<T, IxDyn>(location)?;
    if buffer.fingerprint() != line {
        // Between reading the fingerprint and opening the buffer, that download ended and another began under the same
        // name.
        let (location, expected, found) = (location.to_string(), line.to_owned(), buffer.fingerprint().to_owned());
        let state = ndarray_shm::render::OtherWork::Attached; // this process is
        return Err(ndarray_shm::ErrorKind::Mismatch { what: "fingerprint", expected, found, state }
            .at(location)
            .into());
    }
    let tally = DownloadTally::default();
    let retries = Retries::of_thread();
    let work = PaintWork {
        source,
        bbox: &wanted.bbox,
        missing: wanted.missing.as_deref(),
        requests: parent.requests(),
        in_flight: parent.in_flight(),
        stop,
        abort: &StopFlag::new(),
        tally: &tally,
        retries: &retries,
        heard: &|| parent.tell(&tally),
    };
    // One decoder for each process: the number of processes sets the parallelism.
    let ends = if source.is_remote() {
        let mut told = None;
        threads::run(&buffer, &work, 1, &mut |_| parent.tell_retry(retries.current(), &mut told))
    } else {
        vec![paint::paint(&buffer, &work)]
    };
    parent.tell(&tally);
    let mut ended = PaintEnd::Complete;
    for end in ends {
        if end? == PaintEnd::Stopped {
            ended = PaintEnd::Stopped;
        }
    }
    match ended {
        PaintEnd::Complete => Ok(usize::try_from(tally.totals().painted).unwrap_or(usize::MAX)),
        PaintEnd::Stopped => {
            let progress = buffer.progress();
            Err(Error::Interrupted { done: progress.done, total: progress.total })
        }
    }
}

/// Returns the job of the workers of this process.
fn work_of<'a>(
    source: &'a dyn ChunkSource,
    bbox: &'a Bbox,
    options: &'a DownloadOptions<'_>,
    missing: Option<&'a [u8]>,
    tally: &'a DownloadTally,
    abort: &'a StopFlag,
    retries: &'a Retries,
) -> PaintWork<'a> {
    PaintWork {
        source,
        bbox,
        missing,
        requests: options.requests,
        in_flight: options.in_flight,
        stop: &options.stop,
        abort,
        tally,
        retries,
        heard: &|| {},
    }
}

/// Returns the shape of a chunk, and how many elements the first one lacks along each axis. An array has the volume's
/// chunk boundaries, so that no chunk is decoded twice.
fn chunks_of(meta: &VolumeMeta, bbox: &Bbox) -> (Vec<usize>, Vec<usize>) {
    let lengths = &meta.chunk_shape;
    let starts = bbox.ranges().iter().zip(&meta.origin).map(|(range, origin)| range.start.abs_diff(*origin));
    let offset = starts.zip(lengths).map(|(start, length)| to_usize(start % length)).collect();
    (lengths.iter().map(|length| to_usize(*length)).collect(), offset)
}

/// Returns the bytes of the array of a region.
fn bytes_of<T>(bbox: &Bbox) -> u64 {
    bbox.shape().iter().fold(size_of::<T>() as u64, |bytes, length| bytes.saturating_mul(*length as u64))
}

fn unsupported(source: &dyn ChunkSource) -> Error {
    Error::UnsupportedDType { volume: source.identity(), dtype: source.meta().dtype.to_string() }
}

/// One download.
#[derive(Debug)]
struct DownloadRun<'a> {
    source: &'a dyn ChunkSource,
    bbox: &'a Bbox,
    location: &'a Location,
    options: &'a DownloadOptions<'a>,
    backend: &'a Directory,
    keep_partial: bool,
    /// The array's description.
    description: Description,
    /// Keys of the notes that the description lacks because they are malformed or do not fit.
    left_out: Vec<&'static str>,
}

impl DownloadRun<'_> {
    fn run<T: Element>(&self) -> Result<Downloaded> {
        let missing = self.options.missing.element(self.source.meta())?;
        let start = Instant::now();
        let buffer = self.begin::<T>(missing.as_deref())?;
        let making = start.elapsed();
        let (tally, abort, retries) = (DownloadTally::default(), StopFlag::new(), Retries::of_thread());
        let missing = missing.as_deref();
        let work = work_of(self.source, self.bbox, self.options, missing, &tally, &abort, &retries);
        let begun = buffer.progress();
        let mut watch = Watch::new(self.options.progress, begun, bytes_of::<T>(self.bbox));
        watch.tell(begun, Totals::default());
        let outcome = match &self.options.workers {
            _ if begun.is_complete() => PaintOutcome::Complete,
            Workers::Threads(count) => threads::paint(&buffer, &work, *count, &mut watch),
            Workers::Processes(workers) => {
                processes::paint(&buffer, &work, workers, &self.options.shared_with, &mut watch)
            }
        };
        let totals = match self.options.workers {
            Workers::Threads(_) => tally.totals(),
            Workers::Processes(_) => watch.totals,
        };
        watch.tell(buffer.progress(), totals);
        self.options.progress.retrying(None);
        watch.totals.spent.making = making;
        self.end(buffer, outcome, watch)
    }

    /// Creates the buffer, joins processes that paint the same region, or resumes an unfinished buffer.
    fn begin<T: Element>(&self, missing: Option<&[u8]>) -> Result<RenderBuffer<T, IxDyn>> {
        let (chunk, offset) = chunks_of(self.source.meta(), self.bbox);
        let shape = IxDyn(&self.bbox.shape()).set_f(self.options.order == Order::F);
        let line = fingerprint::write(self.source, self.bbox, self.options.order, missing);
        let options = RenderOptions::new().replace(self.options.replace).shared_with(self.options.shared_with.clone());
        let options = match &self.options.pool {
            Some(pool) => options.pool(pool), // refused if its backend is another
            None => options,
        };
        let options = self.description.notes().fold(options, |options, (key, text)| options.note(key, text));
        let options = options.directory(self.backend.clone());
        Ok(options.chunk_offset(&offset).create(self.location, shape, IxDyn(&chunk), &line)?)
    }

    fn end<T: Element>(
        &self,
        buffer: RenderBuffer<T, IxDyn>,
        outcome: PaintOutcome,
        mut watch: Watch<'_>,
    ) -> Result<Downloaded> {
        let progress = buffer.progress();
        let (done, total) = (progress.done, progress.total);
        match outcome {
            PaintOutcome::Complete => {
                let (shape, order) = (buffer.shape().to_vec(), buffer.order());
                let array = match buffer.finish() {
                    Ok(array) => array,
                    Err(refused) => {
                        let (error, buffer) = refused.into_parts();
                        self.leave(buffer);
                        return Err(error.into());
                    }
                };
                let pooled = match &self.options.pool {
                    Some(pool) => Some(pool.adopt(array).map_err(ndarray_shm::Error::from)?),
                    None => None,
                };
                let filled = watch.check_end(total, &self.left_out);
                Ok(Downloaded {
                    location: self.location.clone(),
                    dtype: T::DTYPE,
                    order,
                    chunks: total,
                    painted: usize::try_from(watch.totals.painted).unwrap_or(usize::MAX),
                    filled,
                    resumed: watch.resumed,
                    bytes: bytes_of::<T>(self.bbox),
                    shape,
                    fetched: watch.totals.fetched,
                    spent: watch.totals.spent,
                    warnings: watch.warnings,
                    description: self.description.clone(),
                    backend: self.backend.clone(),
                    _pooled: pooled.map(|array| Arc::new(array) as Arc<dyn Any + Send + Sync>),
                })
            }
            PaintOutcome::Stopped => {
                self.leave(buffer);
                Err(Error::Interrupted { done, total })
            }
            // A store failure may pass: keep the painted chunks, so that they need not be fetched again.
            PaintOutcome::Failed(error) if done > 0 && error.store_failure().is_some_and(StoreFailure::may_pass) => {
                Err(error)
            }
            PaintOutcome::Failed(error) => {
                self.leave(buffer);
                Err(error)
            }
            PaintOutcome::Lost { report } if done == 0 => {
                self.leave(buffer);
                Err(Error::Painting { report, done, total })
            }
            PaintOutcome::Lost { report } => Err(Error::Worker { report, done, total }),
        }
    }

    /// Discards unfinished work, unless [`keep_partial`](DownloadOptions::keep_partial) is set.
    fn leave<T: Element>(&self, buffer: RenderBuffer<T, IxDyn>) {
        if !self.keep_partial {
            let _ = buffer.discard(); // the caller reports why the download ended; a failure here would hide that
        }
    }
}
