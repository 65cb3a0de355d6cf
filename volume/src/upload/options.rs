//! The options of an upload and their defaults.

use std::fmt;

use ndarray_shm::{Directory, Order};

use crate::bbox::Bbox;
use crate::progress::{Progress, StopFlag};

/// What happens where a region cuts through stored objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Alignment {
    /// An error.
    #[default]
    Require,
    /// Such objects are read, changed and written back, each under an advisory lock. All uploads that see the same
    /// `/dev/shm` take that lock, also those that store the whole object; without real shared memory, the uploads of
    /// one user with one emulated directory. Uploads elsewhere, on other machines or in containers with a `/dev/shm` of
    /// their own, must not write to the same objects meanwhile.
    ///
    /// Elements that are not stored count as the fill value, or 0. Lossy encodings lose more detail in the elements
    /// that are kept.
    ReadModifyWrite,
}

/// The options of an upload.
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
    /// Returns the defaults: an array in the order of its description, or C, all of it, aligned, every chunk stored, a
    /// thread for each processor.
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

    /// Sets the order of the array in memory. Default: the order in the array's
    /// [description](ndarray_shm::array::Description), or C.
    pub fn order(mut self, order: Order) -> Self {
        self.order = Some(order);
        self
    }

    /// Interprets the array's bytes as the region and order say, whatever the array's description says.
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

    /// Does not store objects that hold only the volume's fill value (0 if it has none), compared bit by bit, and
    /// removes objects stored there before.
    ///
    /// A Zarr volume records its fill value, so no information is lost. A Precomputed volume does not: its readers must
    /// be told to fill missing chunks (`fill_missing` of `CloudVolume`), and cannot tell background from lost chunks.
    /// Therefore this is off by default.
    pub fn skip_background(mut self, skip: bool) -> Self {
        self.skip_background = skip;
        self
    }

    /// Chooses how many threads encode; 0 is one for each processor.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Chooses how many objects a remote store gets at a time; 0 is the default, 16. A local store gets one from each
    /// worker.
    ///
    /// At most 64 MiB of encoded objects wait to be stored, or one larger object.
    pub fn requests(mut self, requests: usize) -> Self {
        self.requests = requests;
        self
    }

    /// Looks for the array in this directory instead of the [default](ndarray_shm::default_directory).
    pub fn directory(mut self, backend: Directory) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Reports progress to `progress`.
    pub fn progress(mut self, progress: &'a dyn Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Stops the work between two objects when this flag is raised.
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
