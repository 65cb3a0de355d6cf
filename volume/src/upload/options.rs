//! How an upload is done: what the caller may choose, and what is chosen otherwise.

use std::fmt;

use ndarray_shm::{Directory, Order};

use crate::bbox::Bbox;
use crate::progress::{Progress, StopFlag};

/// What happens where a region cuts through stored objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Alignment {
    /// That is an error.
    #[default]
    Require,
    /// Such objects are read, changed and written back, each under a lock that all uploads heed which see the same `/dev/shm`, also those
    /// that store the object whole; without real shared memory, those of one user with one emulated directory. Others, such as other
    /// machines and containers with a `/dev/shm` of their own, must not write to the same objects meanwhile.
    /// What is not stored counts as the fill value, or 0. Pictures that lose detail lose some more in what is kept.
    ReadModifyWrite,
}

/// How an upload is done.
pub struct UploadOptions<'a> {
    pub(crate) order: Option<Order>,
    pub(crate) reinterpret: bool,
    pub(crate) cutout: Option<Bbox>,
    pub(crate) alignment: Alignment,
    pub(crate) skip_background: bool,
    pub(crate) workers: usize,
    pub(crate) requests: usize,
    pub(crate) backend: Option<Directory>,
    pub(crate) progress: &'a dyn Progress,
    pub(crate) stop: StopFlag,
}

impl<'a> UploadOptions<'a> {
    /// Begins with the defaults: an array in the order that it says, or C, all of it, aligned, every chunk stored, a thread for each processor.
    pub fn new() -> Self {
        Self {
            order: None,
            reinterpret: false,
            cutout: None,
            alignment: Alignment::Require,
            skip_background: false,
            workers: 0,
            requests: 0,
            backend: None,
            progress: &(),
            stop: StopFlag::new(),
        }
    }

    /// Says in which order the array is in memory; if not said, it is what the array
    /// [says itself](ndarray_shm::array::Description), or C.
    pub fn order(mut self, order: Order) -> Self {
        self.order = Some(order);
        self
    }

    /// Takes the array's bytes for what region and order say, whatever the array says about itself.
    pub fn reinterpret(mut self, reinterpret: bool) -> Self {
        self.reinterpret = reinterpret;
        self
    }

    /// Writes only this part of the array's region, in the volume's coordinates.
    ///
    /// The array's region may then reach beyond the volume; its [intersection](Bbox::intersection) with the volume's
    /// [domain](crate::VolumeMeta::domain) is the cutout that crops it.
    pub fn cutout(mut self, cutout: Bbox) -> Self {
        self.cutout = Some(cutout);
        self
    }

    /// Chooses what happens where the region cuts through stored objects.
    pub fn alignment(mut self, alignment: Alignment) -> Self {
        self.alignment = alignment;
        self
    }

    /// Does not store objects that hold nothing but the volume's fill value (0 where it has none), bit by bit, and removes what was
    /// stored there.
    ///
    /// A Zarr volume says the fill value to all who read it, so nothing is lost. A Precomputed one does not: its readers must be
    /// told to fill what is missing (`fill_missing` of `CloudVolume`), and cannot tell background from what was lost. Therefore this
    /// is off unless it is asked for.
    pub fn skip_background(mut self, skip: bool) -> Self {
        self.skip_background = skip;
        self
    }

    /// Chooses how many threads encode; 0 is one for each processor.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Chooses how many objects a remote store gets at a time; 0 is the default, 16. Local ones get as many as there are workers.
    ///
    /// At most 64 MiB of encoded objects wait for it, or one that is larger.
    pub fn requests(mut self, requests: usize) -> Self {
        self.requests = requests;
        self
    }

    /// Looks for the array in this backend instead of the [default](ndarray_shm::default_backend).
    pub fn backend(mut self, backend: Directory) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Tells how far it is.
    pub fn progress(mut self, progress: &'a dyn Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Lets this flag stop the work between two objects.
    pub fn stop(mut self, stop: &StopFlag) -> Self {
        self.stop = stop.clone();
        self
    }
}

impl Default for UploadOptions<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for UploadOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UploadOptions")
            .field("order", &self.order)
            .field("cutout", &self.cutout)
            .field("alignment", &self.alignment)
            .field("skip_background", &self.skip_background)
            .field("workers", &self.workers)
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}
