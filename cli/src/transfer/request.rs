//! One download with all its settings, as `download` and `demo` run it, and its report.

use std::io::Write;
use std::time::{Duration, Instant};

use ndarray_shm::render::OtherWork;
use ndarray_shm::{Directory, ErrorKind, Location};
use ndarray_shm_volume::{
    Bbox, ChunkSource, DownloadOptions, Downloaded, Error, ProcessWorkers, Spent, StopFlag, StoreFailure, VolumeNotes,
    VolumeUrl, Workers, download_to_shared_memory,
};
use serde::Serialize;

use super::progress::Display;
use crate::arrays::typed::named_axes;
use crate::exit::{Exit, Failure};
use crate::show::{python, report, units};

/// Name of the backend for `--file`.
const FILES: &str = "file";

/// One download with all its settings.
#[derive(Debug)]
pub(crate) struct DownloadRequest<'a> {
    /// The volume that worker processes open; the same as `source`.
    pub(crate) url: &'a VolumeUrl,
    pub(crate) mip: usize,
    pub(crate) source: &'a dyn ChunkSource,
    pub(crate) bbox: &'a Bbox,
    pub(crate) location: &'a Location,
    pub(crate) backend: &'a Directory,
    /// Number of workers; 0 for one per processor.
    pub(crate) workers: usize,
    pub(crate) processes: bool,
    pub(crate) keep_partial: bool,
    /// All other settings.
    pub(crate) options: DownloadOptions<'a>,
}

impl DownloadRequest<'_> {
    /// Downloads, and returns the report.
    pub(crate) fn run(self, display: &Display, stop: &StopFlag) -> Result<DownloadReport, Failure> {
        let Self { url, mip, source, bbox, location, backend, workers, processes, keep_partial, options } = self;
        let workers = if processes {
            let program = std::env::current_exe().map_err(|error| {
                Failure::new(Exit::Failed, format!("cannot find this program's executable to start workers: {error}"))
            })?;
            Workers::Processes(ProcessWorkers::of_program(workers, program, url, mip, backend))
        } else {
            Workers::Threads(workers)
        };
        let options =
            options.workers(workers).directory(backend.clone()).keep_partial(keep_partial).progress(display).stop(stop);
        let start = Instant::now();
        let result = download_to_shared_memory(source, bbox, location, &options);
        display.clear();
        let downloaded = result.map_err(|error| explain(error, location, backend, keep_partial))?;
        Ok(DownloadReport::new(&downloaded, bbox, backend, start.elapsed()))
    }
}

/// Says what is left after a failure that a retry does not mend.
fn kept(keep_partial: bool) -> &'static str {
    if keep_partial { "the painted chunks were kept only because of --keep-partial" } else { "nothing was left behind" }
}

/// Adds advice to an error: what is left, and what to do.
fn explain(error: Error, location: &Location, backend: &Directory, keep_partial: bool) -> Failure {
    let is_file = backend.name() == FILES;
    let discard = if is_file {
        let path = backend.path().join(format!(".ndshm-*-{location}"));
        format!("to discard them, remove {}", path.display())
    } else {
        format!("`ndshm unlink --partial {location}` discards them")
    };
    let advice = match &error {
        Error::Interrupted { .. } if keep_partial => {
            Some(format!("the painted chunks were kept: the same command resumes, {discard}"))
        }
        Error::Interrupted { .. } => {
            Some("nothing was left behind; `download --keep-partial` keeps the painted chunks".to_owned())
        }
        Error::Worker { .. } => Some(format!("the painted chunks were kept: the same command resumes, {discard}")),
        Error::Store { .. } => match error.store_failure() {
            Some(StoreFailure::NoAnswer) => Some(format!(
                "the painted chunks were kept: the same command resumes, {discard}. A larger NDSHM_RETRY_SECONDS waits longer for a \
                 server"
            )),
            Some(StoreFailure::CredentialsRefused) => Some(format!(
                "the painted chunks were kept: the same command resumes once the environment has credentials that may read the \
                 volume, {discard}"
            )),
            _ => None,
        },
        Error::ChunkUnserved { .. } => Some(format!(
            "a retry would fail again, so {}; a server for sharded volumes must support HTTP range requests and send objects as they \
             are stored",
            kept(keep_partial)
        )),
        Error::Missing { .. } => Some(
            "give --missing fill to fill such chunks, if the volume does not store chunks of only background"
                .to_owned(),
        ),
        Error::Array(error) => match &error.kind {
            ErrorKind::AlreadyExists if is_file => {
                Some("give --replace to replace it, or choose another --file".to_owned())
            }
            ErrorKind::AlreadyExists => {
                Some(format!("give --replace, or remove it (`ndshm unlink {location}`), or choose another name"))
            }
            ErrorKind::PermissionDenied { .. } => Some("choose another name, or ask the owner to remove it".to_owned()),
            ErrorKind::ForeignOwner { owner, .. } => Some(format!(
                "give --share users:{owner} to join files of that user, if you trust it, or --share group:GID for a group; or choose \
                 another name"
            )),
            ErrorKind::TimedOut { .. } => {
                Some(format!("another download of this array makes no progress: wait for its chunks; {discard}"))
            }
            ErrorKind::Mismatch { state: OtherWork::Idle, .. } => {
                Some(format!("give --replace to replace it, or choose another name; {discard}"))
            }
            ErrorKind::Mismatch { .. } => {
                Some(format!("a different download of this name was begun: wait for its chunks; {discard}"))
            }
            _ => None,
        },
        _ => None,
    };
    let failure = match error {
        // The library's text names functions of the library.
        Error::Array(ndarray_shm::Error { kind: ErrorKind::Mismatch { what, expected, found, state }, .. }) => {
            let work = match state {
                OtherWork::Idle => "these are painted chunks of a download with",
                _ => "this is being painted with",
            };
            let who = match state {
                OtherWork::Idle => "no process is attached to them",
                _ => "a process is attached to it",
            };
            Failure::new(
                Exit::Failed,
                format!("`{location}`: {work} another {what}: found {found}, expected {expected}; {who}"),
            )
        }
        error => Failure::from(error),
    };
    match advice {
        Some(advice) => failure.advice(advice),
        None => failure,
    }
}

/// A finished download, as `download --json` prints it.
#[derive(Debug, Serialize)]
pub(crate) struct DownloadReport {
    location: String,
    backend: String,
    path: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    /// A word for each axis, its name or its number; empty if the volume names none.
    axes: Vec<String>,
    pub(crate) order: String,
    /// The region of the volume.
    bbox: String,
    /// Which part of a larger region it is; `null` for the whole region.
    pub(crate) shard: Option<String>,
    /// Bytes of the array.
    pub(crate) bytes: u64,
    pub(crate) chunks: usize,
    /// Chunks painted by this run.
    painted: usize,
    /// Chunks of this run that are not stored.
    filled: usize,
    /// Chunks painted by earlier runs.
    resumed: usize,
    pub(crate) seconds: f64,
    /// Bytes that this run painted, per second.
    bytes_per_second: u64,
    /// Stored bytes that this run fetched; 0 for volumes that are fetched while they are decoded.
    fetched: u64,
    /// Seconds spent, summed over all workers.
    spent: SpentReport,
    /// Problems that did not stop the download, such as the loss of a worker process.
    warnings: Vec<String>,
    /// Lines that open the array.
    python: Vec<String>,
}

/// Seconds spent by a download, for each kind of work.
#[derive(Debug, Serialize)]
struct SpentReport {
    making: f64,
    claiming: f64,
    fetching: f64,
    decoding: f64,
    copying: f64,
    waiting: f64,
}

impl From<Spent> for SpentReport {
    fn from(spent: Spent) -> Self {
        Self {
            making: spent.making.as_secs_f64(),
            claiming: spent.claiming.as_secs_f64(),
            fetching: spent.fetching.as_secs_f64(),
            decoding: spent.decoding.as_secs_f64(),
            copying: spent.copying.as_secs_f64(),
            waiting: spent.waiting.as_secs_f64(),
        }
    }
}

impl DownloadReport {
    fn new(downloaded: &Downloaded, bbox: &Bbox, backend: &Directory, time: Duration) -> Self {
        let path = backend.path().join(downloaded.location.as_str()).display().to_string();
        let (chunks, painted) = (downloaded.chunks as u64, downloaded.painted as u64);
        // Chunks at the edges are smaller. The mean size is accurate enough for a rate.
        let bytes_here = u128::from(downloaded.bytes) * u128::from(painted) / u128::from(chunks.max(1));
        Self {
            location: downloaded.location.to_string(),
            backend: backend.name().to_owned(),
            python: python::lines(&path, downloaded.dtype, &downloaded.shape, downloaded.order),
            path,
            dtype: downloaded.dtype.to_string(),
            shape: downloaded.shape.clone(),
            axes: named_axes(&VolumeNotes::read(downloaded.description(), &downloaded.shape)),
            order: downloaded.order.to_string(),
            bbox: bbox.to_string(),
            shard: None,
            bytes: downloaded.bytes,
            chunks: downloaded.chunks,
            painted: downloaded.painted,
            filled: downloaded.filled,
            resumed: downloaded.resumed,
            seconds: time.as_secs_f64(),
            fetched: downloaded.fetched,
            spent: downloaded.spent.into(),
            warnings: downloaded.warnings.clone(),
            bytes_per_second: units::rate(u64::try_from(bytes_here).unwrap_or(u64::MAX), time),
        }
    }

    /// Writes it for people.
    pub(crate) fn write(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let chunks = units::count(self.chunks, "chunk");
        writeln!(out, "painted {} of {chunks}; {} were already done", self.painted, self.resumed)?;
        let SpentReport { making, claiming, fetching, decoding, copying, waiting } = &self.spent;
        let mut facts = vec![
            ("array", format!("{} ({}: {})", self.location, self.backend, units::printable(&self.path))),
            ("region", self.bbox.clone()),
            ("dtype", self.dtype.clone()),
            ("shape", units::named_shape_in_order(&self.shape, &self.axes, &self.order)),
            ("size", units::size(self.bytes)),
            ("time", format!("{:.2} s, {}/s", self.seconds, units::size(self.bytes_per_second))),
            (
                "spent",
                format!(
                    "fetch {fetching:.2} s, decode {decoding:.2} s, copy {copying:.2} s, claim {claiming:.2} s, wait \
                     {waiting:.2} s (all workers), make the array {making:.2} s"
                ),
            ),
        ];
        if self.filled > 0 {
            facts.push(("filled", format!("{} not stored", units::count(self.filled, "chunk"))));
        }
        if let Some(shard) = &self.shard {
            facts.insert(1, ("part", shard.clone()));
        }
        if self.fetched > 0 {
            facts.push(("fetched", units::size(self.fetched)));
        }
        report::facts(out, &facts)?;
        report::python(out, &self.python)?;
        Ok(())
    }

    /// Writes the Python lines that open the array.
    pub(crate) fn write_python(&self, out: &mut dyn Write) -> Result<(), Failure> {
        report::python(out, &self.python)?;
        Ok(())
    }
}
