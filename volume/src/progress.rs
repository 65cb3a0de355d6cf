//! Progress of downloads and uploads, and the flag that stops them.

use std::fmt;
use std::io::{self, Read as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::retries::Retry;

/// Shortest time between two progress updates, except the first and the last.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

/// Progress of a download or an upload. In an upload, a chunk is an object that it stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DownloadProgress {
    /// Chunks that are painted, by this call or by others.
    pub done: usize,
    /// Number of chunks.
    pub total: usize,
    /// Chunks that were painted since this call began, by its workers and by other processes that joined the same work.
    pub painted_here: usize,
    /// Bytes of the array that are painted. An estimate from the mean size of a chunk; chunks at the edges are smaller.
    pub bytes: u64,
    /// Size of the array in bytes.
    pub bytes_total: u64,
    /// Encoded bytes that this call's workers fetched, or in an upload stored. 0 if the volume fetches while it
    /// decodes.
    pub fetched: u64,
    /// Time since painting began.
    pub elapsed: Duration,
}

impl DownloadProgress {
    /// Returns the bytes of the array painted per second since this call began; `None` until a chunk is painted.
    pub fn rate(&self) -> Option<f64> {
        let seconds = self.elapsed.as_secs_f64();
        let here = self.share(self.painted_here);
        (here > 0 && seconds > 0.0).then(|| as_f64(here) / seconds)
    }

    /// Returns the expected time to completion at the current [`rate`](Self::rate).
    pub fn time_left(&self) -> Option<Duration> {
        let seconds = as_f64(self.bytes_total.saturating_sub(self.bytes)) / self.rate()?;
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// Returns the size in bytes of this many chunks of mean size.
    pub(crate) fn share(&self, chunks: usize) -> u64 {
        let bytes = u128::from(self.bytes_total) * chunks as u128 / (self.total as u128).max(1);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

#[allow(clippy::cast_precision_loss)] // the results are estimates
fn as_f64(bytes: u64) -> f64 {
    bytes as f64
}

/// Receives the progress of a download or upload, on the calling thread.
pub trait Progress: Sync {
    /// Called at the beginning, a few times a second while chunks are painted, and at the end.
    fn update(&self, progress: DownloadProgress);

    /// Called after each update with the request that has been retried for the longest time, and with `None` if none is
    /// being retried.
    fn retrying(&self, _retry: Option<&Retry>) {}

    /// Called after a failure that does not stop the work, such as the loss of one of several workers.
    fn warning(&self, _message: &str) {}
}

/// Ignores all progress.
impl Progress for () {
    fn update(&self, _progress: DownloadProgress) {}
}

/// A flag that stops a download or upload between two chunks. Clones are the same flag.
#[derive(Clone, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Creates a flag that is not raised.
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises the flag. It cannot be lowered.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether the flag was raised.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Raises the flag when the standard input ends.
    ///
    /// For worker processes: the standard input of a worker is a pipe from its parent. The pipe ends when the parent
    /// stops the work or dies. The thread that this starts runs until the process exits.
    pub fn stop_when_stdin_ends(&self) {
        let flag = self.clone();
        thread::spawn(move || {
            let mut ignored = [0; 64];
            let mut stdin = io::stdin().lock();
            loop {
                match stdin.read(&mut ignored) {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            flag.stop();
        });
    }
}

/// Raises a flag when it is dropped, so that a thread that fails or panics stops the others.
#[derive(Debug)]
pub(crate) struct StopOnDrop<'a>(&'a StopFlag);

impl<'a> StopOnDrop<'a> {
    pub(crate) fn new(flag: &'a StopFlag) -> Self {
        Self(flag)
    }

    /// Drops this without raising the flag.
    pub(crate) fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl fmt::Debug for StopFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StopFlag({})", if self.is_stopped() { "raised" } else { "not raised" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_chunks_do_not_count_in_the_rate() {
        let begin = DownloadProgress { done: 50, total: 100, bytes: 500, bytes_total: 1000, ..Default::default() };
        assert_eq!((begin.rate(), begin.time_left()), (None, None));
        let later =
            DownloadProgress { done: 60, painted_here: 10, bytes: 600, elapsed: Duration::from_secs(2), ..begin };
        assert_eq!((later.rate(), later.time_left()), (Some(50.0), Some(Duration::from_secs(8))));
        assert_eq!(DownloadProgress::default().time_left(), None);
    }
}
