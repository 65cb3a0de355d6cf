//! One download with everything decided, as `download` and `demo` run it, and what came of it.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use ndarray_shm::render::SharedWith;
use ndarray_shm::{Directory, Location, Order};
use ndarray_shm_volume::{
    Bbox, ChunkSource, DownloadOptions, Downloaded, Error, Missing, ProcessWorkers, Spent, StopFlag, StoreFailure,
    VolumeUrl, Workers, download_to_shared_memory,
};
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::progress::Display;
use crate::{python, report, units, worker};

/// What the directory of a file is called as a backend.
const FILES: &str = "file";

/// One download, with everything decided.
#[derive(Debug)]
pub(crate) struct DownloadRequest<'a> {
    /// What a worker process opens; the same volume as `source`.
    pub(crate) url: &'a VolumeUrl,
    pub(crate) mip: usize,
    pub(crate) source: &'a dyn ChunkSource,
    pub(crate) bbox: &'a Bbox,
    pub(crate) location: &'a Location,
    pub(crate) backend: &'a Directory,
    pub(crate) order: Order,
    /// 0: one for each processor.
    pub(crate) workers: usize,
    /// 0: the library's choice.
    pub(crate) requests: usize,
    pub(crate) missing: Missing,
    pub(crate) processes: bool,
    pub(crate) replace: bool,
    pub(crate) keep_partial: bool,
    pub(crate) share: &'a SharedWith,
}

impl DownloadRequest<'_> {
    /// Downloads, and tells what came of it.
    pub(crate) fn run(&self, display: &Display, stop: &StopFlag) -> Result<DownloadReport, Failure> {
        let program = std::env::current_exe().map_err(|error| {
            Failure::new(Exit::Failed, format!("cannot find this program to start workers: {error}"))
        })?;
        let count = match self.workers {
            0 => thread::available_parallelism().map_or(1, usize::from),
            count => count,
        };
        let workers = if self.processes {
            let (source, mip, location) = (self.url.clone(), self.mip, self.location.clone());
            let backend = self.backend.clone();
            Workers::Processes(ProcessWorkers::new(count, move || {
                worker::command(&program, &source, mip, &backend, &location)
            }))
        } else {
            Workers::Threads(count)
        };
        let options = DownloadOptions::new()
            .order(self.order)
            .workers(workers)
            .requests(self.requests)
            .missing(self.missing.clone())
            .replace(self.replace)
            .backend(self.backend.clone())
            .progress(display)
            .stop(stop)
            .keep_partial(self.keep_partial)
            .shared_with(self.share.clone());
        let start = Instant::now();
        let result = download_to_shared_memory(self.source, self.bbox, self.location, &options);
        display.clear();
        let downloaded = result.map_err(|error| self.explain(error))?;
        Ok(DownloadReport::new(&downloaded, self.bbox, self.backend, start.elapsed()))
    }

    /// Says what became of what was painted when the download ended for good.
    fn kept(&self) -> &'static str {
        if self.keep_partial {
            "what is painted was kept only because of --keep-partial"
        } else {
            "nothing was left behind"
        }
    }

    /// Says what is left after a failure and what to do.
    fn explain(&self, error: Error) -> Failure {
        let location = self.location;
        let is_file = self.backend.name() == FILES;
        let discard = if is_file {
            let path = self.backend.path().join(format!(".ndshm-*-{location}"));
            format!("removing {} removes it", path.display())
        } else {
            format!("`ndshm unlink --partial {location}` removes it")
        };
        let advice = match &error {
            Error::Interrupted { .. } if self.keep_partial => {
                Some(format!("what is painted was kept: the same command continues, {discard}"))
            }
            Error::Interrupted { .. } => {
                Some("nothing was left behind; `download --keep-partial` keeps what is painted".to_owned())
            }
            Error::Worker { .. } => Some(format!("what is painted was kept: the same command continues, {discard}")),
            Error::Store { .. } => match error.store_failure() {
                Some(StoreFailure::NoAnswer) => Some(format!(
                    "what is painted was kept: the same command continues, {discard}. A larger NDSHM_RETRY_SECONDS waits longer for a \
                     server"
                )),
                Some(StoreFailure::CredentialsRefused) => Some(format!(
                    "what is painted was kept: the same command continues once the environment has credentials that may read the volume, \
                     {discard}"
                )),
                _ => None,
            },
            Error::ChunkUnserved { .. } => Some(format!(
                "this would fail again, so {}; a server for sharded volumes must answer HTTP range requests and send objects as they are \
                 stored",
                self.kept()
            )),
            Error::Missing { .. } => Some(
                "--missing fill makes background of such chunks, which is right if the volume leaves background out"
                    .to_owned(),
            ),
            Error::Array(ndarray_shm::Error::AlreadyExists { .. }) if is_file => {
                Some("--replace replaces it; or choose another --file".to_owned())
            }
            Error::Array(ndarray_shm::Error::AlreadyExists { .. }) => {
                Some(format!("--replace replaces it, `ndshm unlink {location}` removes it, or choose another name"))
            }
            Error::Array(ndarray_shm::Error::PermissionDenied { .. }) => {
                Some("choose another place, or ask the owner to make way".to_owned())
            }
            Error::Array(ndarray_shm::Error::ForeignOwner { owner, .. }) => Some(format!(
                "--share users:{owner} joins files of that user, if you trust it; --share group:GID is for all of a group; or choose \
                 another place"
            )),
            Error::Array(ndarray_shm::Error::TimedOut { .. }) => {
                Some(format!("another download begins this array and does not get on: wait for it; {discard}"))
            }
            Error::Array(ndarray_shm::Error::Mismatch { .. }) => {
                Some(format!("another download of this name was begun: wait for it; {discard}"))
            }
            _ => None,
        };
        let failure = Failure::from(error);
        match advice {
            Some(advice) => failure.advice(advice),
            None => failure,
        }
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
    pub(crate) order: String,
    /// The region of the volume.
    bbox: String,
    /// Which part of a larger region it is; `null` if it is all of it.
    pub(crate) shard: Option<String>,
    /// Bytes of the array.
    pub(crate) bytes: u64,
    pub(crate) chunks: usize,
    /// Chunks painted by this run.
    painted: usize,
    /// Chunks among them that are not stored.
    filled: usize,
    /// Chunks that earlier runs had painted.
    resumed: usize,
    pub(crate) seconds: f64,
    /// Bytes of the array that this run painted, by its time.
    bytes_per_second: u64,
    /// Bytes that this run fetched, as they are stored; 0 where the volume is fetched while it is decoded.
    fetched: u64,
    /// Where the time went, in seconds, summed over all workers.
    spent: SpentReport,
    /// What went wrong without stopping the work, such as the loss of a worker process.
    warnings: Vec<String>,
    /// Lines that open the array.
    python: Vec<String>,
}

/// Where the time of a download went, in seconds.
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
        // Chunks differ at the edges; their mean is near enough for a rate.
        let bytes_here = u128::from(downloaded.bytes) * u128::from(painted) / u128::from(chunks.max(1));
        Self {
            location: downloaded.location.to_string(),
            backend: backend.name().to_owned(),
            python: python::lines(&path, downloaded.dtype, &downloaded.shape, downloaded.order),
            path,
            dtype: downloaded.dtype.to_string(),
            shape: downloaded.shape.clone(),
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
            ("shape", units::shape_in_order(&self.shape, &self.order)),
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
            facts.push(("filled", format!("{} that this run found missing", units::count(self.filled, "chunk"))));
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
