//! How a download is done: what the caller may choose, and what is chosen otherwise.

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
    /// Processes of their own: slower to start, but the death of one costs only the chunk it had.
    Processes(ProcessWorkers),
}

/// How a download is done.
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
    /// Begins with the defaults: C order, a thread for each processor, missing chunks as the volume says, 16 requests and 32 MiB at
    /// a time, the default backend, nothing replaced, no progress told, never stopped, no partial work kept, this user's files only.
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

    /// Chooses the order of the array in memory; the shape is the region's in both.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Chooses the workers that paint.
    pub fn workers(mut self, workers: Workers) -> Self {
        self.workers = workers;
        self
    }

    /// Chooses what is done about chunks that are not stored.
    ///
    /// It is part of what is painted: unfinished work is resumed, and joined, only by calls with the same choice.
    pub fn missing(mut self, missing: Missing) -> Self {
        self.missing = missing;
        self
    }

    /// Chooses how many requests a remote volume gets at a time; worker processes divide them. 0 is the default, 16.
    ///
    /// A local volume is read by the threads that decode it.
    pub fn requests(mut self, requests: usize) -> Self {
        self.requests = if requests == 0 { REQUESTS } else { requests };
        self
    }

    /// Chooses how many bytes of a remote volume may be fetched and not yet decoded; worker processes divide them. 0 is the
    /// default, 32 MiB. Whatever it is, one chunk can always be fetched.
    pub fn in_flight(mut self, bytes: u64) -> Self {
        self.in_flight = if bytes == 0 { IN_FLIGHT } else { bytes };
        self
    }

    /// Lets the finished array take the name of one that exists; that one stays until then.
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// Paints into this backend instead of the [default](ndarray_shm::default_backend).
    pub fn backend(mut self, backend: Directory) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Paints into memory of this pool, in its backend: one download after the other does not pay for new memory each time.
    ///
    /// The array then goes with the last clone of what the download returns: its name is taken away, and its memory comes back to
    /// the pool as soon as no process is attached any more. If the name is unlinked or replaced by other means, the memory is not
    /// returned.
    pub fn pool(mut self, pool: &Pool) -> Self {
        self.backend = Some(pool.backend().clone());
        self.pool = Some(pool.clone());
        self
    }

    /// Chooses the users that download together, and so may harm one another: see [`SharedWith`]. Worker processes are told.
    pub fn shared_with(mut self, users: SharedWith) -> Self {
        self.shared_with = users;
        self
    }

    /// Tells how far it is.
    pub fn progress(mut self, progress: &'a dyn Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Lets this flag stop the work between two chunks.
    pub fn stop(mut self, stop: &StopFlag) -> Self {
        self.stop = stop.clone();
        self
    }

    /// Keeps what is painted when the work is stopped or fails, so that the same call resumes it. Otherwise it is thrown
    /// away, except when worker processes were lost, a server did not answer, or it refused credentials that may have expired: that is no
    /// reason to begin anew.
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
