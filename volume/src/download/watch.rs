//! Progress and warnings for the caller, and the outcome of the painting.

use std::fmt;
use std::time::Instant;

use ndarray::IxDyn;
use ndarray_shm::render::RenderProgress;
use ndarray_shm::{Element, RenderBuffer};

use crate::download::spent::Totals;
use crate::error::Error;
use crate::progress::{DownloadProgress, PROGRESS_INTERVAL, Progress};

/// How the painting ended.
#[derive(Debug)]
pub(crate) enum PaintOutcome {
    /// Every chunk is painted.
    Complete,
    /// The caller's flag was raised.
    Stopped,
    /// An error that more painting would only repeat.
    Failed(Error),
    /// All workers are lost, and the work was not the reason.
    Lost {
        /// How each worker ended.
        report: String,
    },
}

/// Reports progress to the caller, and collects the numbers and warnings of the final report.
pub(crate) struct Watch<'a> {
    progress: &'a dyn Progress,
    /// Chunks that were painted when the work began.
    pub(crate) resumed: usize,
    total: usize,
    pub(crate) warnings: Vec<String>,
    /// The latest totals of the workers.
    pub(crate) totals: Totals,
    bytes_total: u64,
    began: Instant,
    last: Option<Instant>,
}

impl<'a> Watch<'a> {
    pub(crate) fn new<T: Element>(progress: &'a dyn Progress, buffer: &RenderBuffer<T, IxDyn>) -> Self {
        let bytes_total = buffer.shape().iter().fold(size_of::<T>() as u64, |bytes, n| bytes.saturating_mul(*n as u64));
        let RenderProgress { done, total } = buffer.progress();
        Self {
            progress,
            resumed: done,
            total,
            warnings: Vec::new(),
            totals: Totals::default(),
            bytes_total,
            began: Instant::now(),
            last: None,
        }
    }

    /// Reports the current progress.
    pub(crate) fn tell<T: Element>(&mut self, buffer: &RenderBuffer<T, IxDyn>, totals: Totals) -> RenderProgress {
        let now = buffer.progress();
        self.totals = totals;
        let mut progress = DownloadProgress {
            done: now.done,
            total: now.total,
            painted_here: now.done.saturating_sub(self.resumed),
            bytes: 0,
            bytes_total: self.bytes_total,
            fetched: totals.fetched,
            elapsed: self.began.elapsed(),
        };
        progress.bytes = progress.share(now.done);
        self.progress.update(progress);
        self.last = Some(Instant::now());
        now
    }

    /// Reports the current progress, unless the last report is younger than [`PROGRESS_INTERVAL`].
    pub(crate) fn tell_now_and_then<T: Element>(&mut self, buffer: &RenderBuffer<T, IxDyn>, totals: Totals) {
        if self.last.is_none_or(|last| last.elapsed() >= PROGRESS_INTERVAL) {
            self.tell(buffer, totals);
        }
    }

    /// Counts up to one unreported chunk for each killed worker, once all chunks are painted: a worker may be killed after it
    /// finished a chunk and before it reported it. If another call joined the same work, the chunk may be one of that call's.
    pub(crate) fn credit(&mut self, kills: u64) {
        let here = self.total.saturating_sub(self.resumed) as u64;
        self.totals.painted += kills.min(here.saturating_sub(self.totals.painted));
    }

    /// Reports a problem that does not stop the work.
    pub(crate) fn warn(&mut self, message: String) {
        self.progress.warning(&message);
        self.warnings.push(message);
    }
}

impl fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("resumed", &self.resumed)
            .field("warnings", &self.warnings)
            .finish_non_exhaustive()
    }
}
