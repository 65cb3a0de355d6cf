//! `ndshm download`: paints a region of a volume into an array, shows how far it is, and says how to open the result.

use std::io::Write;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ndarray_shm::{Backend, Directory, Location, Order, default_backend, set_emulate_shm};
use ndarray_shm_volume::{
    Bbox, ChunkSource, DownloadOptions, Downloaded, Error, ProcessWorkers, StopFlag, VolumeUrl, Workers,
    download_to_shared_memory, open_volume,
};
use serde::Serialize;

use crate::cli::DownloadArgs;
use crate::exit::{Exit, Failure};
use crate::list::display;
use crate::progress::Display;
use crate::{interrupt, python, report, units, worker};

/// Runs `ndshm download`.
pub(crate) fn run(args: &DownloadArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let stop = interrupt::flag()?;
    let backend = backend(args.emulate)?;
    let source = open_volume(&args.source)?;
    let bbox = match &args.bbox {
        Some(text) => Bbox::parse(text, &source.meta().domain()).map_err(|error| {
            Failure::from(error).advice(format!(
                "the volume is {}: give --bbox one START:STOP within it for each of its axes, or leave \
                 --bbox away for all of it",
                source.meta().domain()
            ))
        })?,
        None => source.meta().domain(),
    };
    let display = Display::new(args.location.as_str(), args.quiet);
    let job = Job {
        url: &args.source,
        source: &*source,
        bbox: &bbox,
        location: &args.location,
        backend: &backend,
        order: args.order,
        workers: usize::from(args.workers.unwrap_or(0)),
        processes: args.processes,
        replace: args.replace,
        keep_partial: args.keep_partial,
    };
    let result = job.run(&display, &stop)?;
    if args.json {
        report::json(out, &result)?;
    } else {
        result.write(out)?;
    }
    Ok(Exit::Done)
}

/// Returns the backend to paint into, and makes everything else in this process use it too.
pub(crate) fn backend(emulate: bool) -> Result<Arc<dyn Backend>, Failure> {
    if emulate {
        set_emulate_shm(Some(true));
        return Ok(Directory::emulated()?);
    }
    Ok(default_backend()?)
}

/// One download, with everything decided.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    /// What a worker process opens; the same volume as `source`.
    pub(crate) url: &'a VolumeUrl,
    pub(crate) source: &'a dyn ChunkSource,
    pub(crate) bbox: &'a Bbox,
    pub(crate) location: &'a Location,
    pub(crate) backend: &'a Arc<dyn Backend>,
    pub(crate) order: Order,
    /// 0: one for each processor.
    pub(crate) workers: usize,
    pub(crate) processes: bool,
    pub(crate) replace: bool,
    pub(crate) keep_partial: bool,
}

impl Job<'_> {
    /// Downloads, and tells what came of it.
    pub(crate) fn run(&self, display: &Display, stop: &StopFlag) -> Result<Report, Failure> {
        let program = std::env::current_exe().map_err(|error| {
            Failure::new(Exit::Failed, format!("cannot find this program to start workers: {error}"))
        })?;
        let count = match self.workers {
            0 => thread::available_parallelism().map_or(1, usize::from),
            count => count,
        };
        let workers = if self.processes {
            let (source, location) = (self.url.clone(), self.location.clone());
            let backend = Arc::clone(self.backend);
            Workers::Processes(ProcessWorkers::new(count, move || {
                worker::command(&program, &source, &*backend, &location)
            }))
        } else {
            Workers::Threads(count)
        };
        let options = DownloadOptions::new()
            .order(self.order)
            .workers(workers)
            .replace(self.replace)
            .backend(Arc::clone(self.backend))
            .progress(display)
            .stop(stop)
            .keep_partial(self.keep_partial);
        let start = Instant::now();
        let result = download_to_shared_memory(self.source, self.bbox, self.location, &options);
        display.clear();
        let downloaded = result.map_err(|error| self.explain(error))?;
        Ok(Report::new(&downloaded, self.backend, start.elapsed()))
    }

    /// Says what is left after a failure and what to do.
    fn explain(&self, error: Error) -> Failure {
        let location = self.location;
        let advice = match &error {
            Error::Interrupted { .. } if self.keep_partial => Some(format!(
                "what is painted was kept: the same command continues, `ndshm unlink --partial {location}` removes it"
            )),
            Error::Interrupted { .. } => {
                Some("nothing was left behind; `download --keep-partial` keeps what is painted".to_owned())
            }
            Error::Worker { .. } => Some(format!(
                "what is painted was kept: the same command continues, `ndshm unlink --partial {location}` removes it"
            )),
            Error::Array(ndarray_shm::Error::AlreadyExists { .. }) => Some(format!(
                "--replace replaces it, `ndshm unlink {location}` removes it, or choose another --location"
            )),
            Error::Array(ndarray_shm::Error::PermissionDenied { .. }) => {
                Some("choose another --location, or ask the owner to make way".to_owned())
            }
            Error::Array(ndarray_shm::Error::Mismatch { .. }) => Some(format!(
                "another download of this name was begun: wait for it, or remove what it left with \
                 `ndshm unlink --partial {location}`"
            )),
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
pub(crate) struct Report {
    location: String,
    backend: String,
    path: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) order: String,
    /// Bytes of the array.
    pub(crate) bytes: u64,
    chunks: usize,
    /// Chunks painted by this run.
    painted: usize,
    /// Chunks that earlier runs had painted.
    resumed: usize,
    pub(crate) seconds: f64,
    /// Bytes of the array that this run painted, by its time.
    bytes_per_second: u64,
    /// What went wrong without stopping the work, such as the loss of a worker process.
    warnings: Vec<String>,
    /// Lines that open the array.
    python: Vec<String>,
}

impl Report {
    fn new(downloaded: &Downloaded, backend: &Arc<dyn Backend>, time: Duration) -> Self {
        let path = display(&backend.directory().join(downloaded.location.as_str()));
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
            bytes: downloaded.bytes,
            chunks: downloaded.chunks,
            painted: downloaded.painted,
            resumed: downloaded.resumed,
            seconds: time.as_secs_f64(),
            warnings: downloaded.warnings.clone(),
            bytes_per_second: units::rate(u64::try_from(bytes_here).unwrap_or(u64::MAX), time),
        }
    }

    /// Writes it for people.
    pub(crate) fn write(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let chunks = units::count(self.chunks, "chunk");
        writeln!(out, "painted {} of {chunks}; {} were already done", self.painted, self.resumed)?;
        report::facts(
            out,
            &[
                ("array", format!("{} ({}: {})", self.location, self.backend, units::printable(&self.path))),
                ("dtype", self.dtype.clone()),
                ("shape", format!("{}, {} order", units::shape(&self.shape), self.order)),
                ("size", units::size(self.bytes)),
                ("time", format!("{:.2} s, {}/s", self.seconds, units::size(self.bytes_per_second))),
            ],
        )?;
        writeln!(out)?;
        self.write_python(out)
    }

    /// Writes the Python lines that open the array.
    pub(crate) fn write_python(&self, out: &mut dyn Write) -> Result<(), Failure> {
        writeln!(out, "open it from Python:")?;
        for line in &self.python {
            writeln!(out, "    {line}")?;
        }
        Ok(())
    }
}
