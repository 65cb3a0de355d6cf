//! Progress and warnings for the caller, and the outcome of the painting.

use std::fmt;
use std::time::Instant;

use ndarray_shm::render::RenderProgress;

use crate::download::spent::Totals;
use crate::error::Error;
use crate::progress::{DownloadProgress, PROGRESS_INTERVAL, Progress};
use crate::retries::Retry;

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
    /// `now` is how far the work is when it begins, and `bytes_total` the length of the array.
    pub(crate) fn new(progress: &'a dyn Progress, now: RenderProgress, bytes_total: u64) -> Self {
        let RenderProgress { done, total } = now;
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
    pub(crate) fn tell(&mut self, now: RenderProgress, totals: Totals) {
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
    }

    /// Reports the current progress and what is being retried, unless the last report is younger than
    /// [`PROGRESS_INTERVAL`].
    pub(crate) fn tell_now_and_then(
        &mut self,
        now: RenderProgress,
        totals: Totals,
        retry: impl FnOnce() -> Option<Retry>,
    ) {
        if self.last.is_none_or(|last| last.elapsed() >= PROGRESS_INTERVAL) {
            self.tell(now, totals);
            self.progress.retrying(retry().as_ref());
        }
    }

    /// Counts up to one unreported chunk for each killed worker, once all chunks are painted: a worker may be killed
    /// after it finished a chunk and before it reported it. If another call joined the same work, the chunk may be one
    /// of that call's.
    pub(crate) fn credit(&mut self, kills: u64) {
        let here = self.total.saturating_sub(self.resumed) as u64;
        self.totals.painted += kills.min(here.saturating_sub(self.totals.painted));
    }

    /// Warns, at the end, of an array that is only background, and of notes that its description lacks. Returns the
    /// number of chunks that are not stored.
    pub(crate) fn check_end(&mut self, chunks: usize, left_out: &[&str]) -> usize {
        let filled = usize::try_from(self.totals.filled).unwrap_or(usize::MAX);
        if filled == chunks {
            self.warn(nothing_stored(chunks));
        }
        if !left_out.is_empty() {
            self.warn(notes_left_out(left_out));
        }
        filled
    }

    /// Reports a problem that does not stop the work.
    pub(crate) fn warn(&mut self, message: String) {
        self.progress.warning(&message);
        self.warnings.push(message);
    }
}

/// The warning for a region that is only background: correct in a sparse volume, otherwise probably a mistake.
fn nothing_stored(chunks: usize) -> String {
    let those =
        if chunks == 1 { "the only chunk of this region is not" } else { "none of the chunks of this region is" };
    format!(
        "{those} stored: every element is the fill value. If the region should not be empty: check the scale, region and path of \
         the volume, and that its chunks have the names that its format gives them"
    )
}

/// The warning for notes that the description lacks.
fn notes_left_out(keys: &[&str]) -> String {
    format!(
        "the array's description lacks {} of the volume: a description has at most 3,500 bytes of text without control characters, \
         and notes that come later in it are left out first",
        keys.join(", ")
    )
}

impl fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("resumed", &self.resumed)
            .field("warnings", &self.warnings)
            .finish_non_exhaustive()
    }
}
