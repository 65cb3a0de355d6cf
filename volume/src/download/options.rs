//! The options of a download and their defaults.

use std::fmt;

use ndarray_shm::render::SharedWith;
use ndarray_shm::{Directory, Order, Pool};

use crate::download::budget::{IN_FLIGHT, REQUESTS};
use crate::download::processes::ProcessWorkers;
use crate::missing::Missing;
use crate::progress::{Progress, StopFlag};

/// The workers that decode and paint.
#[derive(Debug)]
pub enum Workers {
    /// This many threads of this process; 0 is one for each processor.
    Threads(usize),
    /// Worker processes: slower to start, but the death of one costs only the chunk that it was painting.
    Processes(ProcessWorkers),
}

/// The options of a download.
pub struct DownloadOptions<'a> {
    pub(crate) order: Order,
    pub(crate) workers: Workers,
    pub(crate) missing: Missing,
    pub(crate) requests: usize,
    pub(crate) in_flight: u64,
    pub(crate) replace: bool,
    pub(crate) backend: Option<Directory>,
    pub(crate) progress: &'a dyn Progress,
    pub(crate) stop: StopFlag,
    pub(crate) keep_partial: bool,
    pub(crate) pool: Option<Pool>,
    pub(crate) shared_with: SharedWith,
}

impl<'a> DownloadOptions<'a> {
    /// Returns the defaults: C order, a thread for each processor, missing chunks as the volume says, 16 requests and
    /// 32 MiB at a time, the default directory, nothing replaced, no progress reported, never stopped, no partial work
    /// kept, files of this user only.
    pub fn new() -> Self {
        Self {
            order: Order::C,
            workers: Workers::Threads(0),
            missing: Missing::AsStored,
            requests: REQUESTS,
            in_flight: IN_FLIGHT,
            replace: false,
            backend: None,
            progress: &(),
            stop: StopFlag::new(),
            keep_partial: false,
            pool: None,
            shared_with: SharedWith::OnlyMe,
        }
    }

    /// Chooses the order of the array in memory. The shape is the region's in both orders.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Chooses the workers that paint.
    pub fn workers(mut self, workers: Workers) -> Self {
        self.workers = workers;
        self
    }

    /// Chooses what happens with chunks that are not stored.
    ///
    /// Only calls with the same choice resume or join unfinished work.
    pub fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }

    /// Chooses how many requests a remote volume gets at a time; worker processes divide them. 0 is the default, 16.
    ///
    /// Has no effect on a local volume, which is read by the threads that decode it.
    pub fn requests(mut self, requests: usize) -> Self {
        self.requests = if requests == 0 { REQUESTS } else { requests };
        self
    }

    /// Chooses how many bytes of a remote volume may be fetched and not yet decoded; worker processes divide them. 0 is
    /// the default, 32 MiB. One chunk can be fetched whatever the limit.
    pub fn in_flight(mut self, bytes: u64) -> Self {
        self.in_flight = if bytes == 0 { IN_FLIGHT } else { bytes };
        self
    }

    /// Allows the finished array to take the name of an existing array, which keeps the name until then. An unfinished
    /// download of another region, volume or order under this name is replaced at once, if no process is attached to
    /// it: a killed process leaves one.
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// Paints into this directory instead of the [default](ndarray_shm::default_directory).
    pub fn directory(mut self, backend: Directory) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Paints into memory of this pool, in its directory, so that repeated downloads do not pay for new memory each
    /// time.
    ///
    /// The array then lives as long as the last clone of the returned [`Downloaded`](crate::Downloaded): dropping it
    /// removes the name, and the memory returns to the pool as soon as no process is attached any more. If the name is
    /// unlinked or replaced by other means, the memory is not returned.
    pub fn pool(mut self, pool: &Pool) -> Self {
        self.backend = Some(pool.directory().clone());
        self.pool = Some(pool.clone());
        self
    }

    /// Chooses the users that may join the download, and so could damage it: see [`SharedWith`]. Worker processes get
    /// the same choice.
    pub fn shared_with(mut self, users: SharedWith) -> Self {
        self.shared_with = users;
        self
    }

    /// Reports progress to `progress`.
    pub fn progress(mut self, progress: &'a dyn Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Stops the work between two chunks when this flag is raised.
    pub fn stop(mut self, stop: &StopFlag) -> Self {
        self.stop = stop.clone();
        self
    }

    /// Keeps the painted chunks when the work is stopped or fails, so that the same call resumes it. By default they
    /// are discarded, except when worker processes were lost, a server did not answer, or it refused credentials that
    /// may have expired: those failures say nothing against the painted chunks.
    pub fn keep_partial(mut self, keep: bool) -> Self {
        self.keep_partial = keep;
        self
    }
}

impl Default for DownloadOptions<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for DownloadOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DownloadOptions")
            .field("order", &self.order)
            .field("workers", &self.workers)
            .field("missing", &self.missing)
            .field("requests", &self.requests)
            .field("in_flight", &self.in_flight)
            .field("replace", &self.replace)
            .field("backend", &self.backend)
            .field("stop", &self.stop)
            .field("keep_partial", &self.keep_partial)
            .field("pool", &self.pool)
            .field("shared_with", &self.shared_with)
            .finish_non_exhaustive()
    }
}
