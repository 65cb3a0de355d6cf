//! How far a download is, and how it is told to stop.

use std::fmt;
use std::io::{self, Read as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Progress is told at most this often, the first and last time excepted.
pub(crate) const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

/// How far a download is, or an upload; its chunks are the objects it stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DownloadProgress {
    /// Chunks that are painted, by whomever.
    pub done: usize,
    /// Chunks there are.
    pub total: usize,
    /// Chunks that were painted since this call began, by its workers and by other processes that joined the same work.
    pub painted_here: usize,
    /// Bytes of the array that are painted. Chunks at the edges are smaller than others; this goes by their mean.
    pub bytes: u64,
    /// Bytes of the array.
    pub bytes_total: u64,
    /// Bytes that this call's workers fetched, or in an upload stored, as they are stored. 0 where the volume is fetched while it is decoded.
    pub fetched: u64,
    /// Time since painting began.
    pub elapsed: Duration,
}

impl DownloadProgress {
    /// Returns the bytes of the array that are painted per second, without what an earlier call had painted; `None` as long as
    /// nothing says so.
    pub fn rate(&self) -> Option<f64> {
        let seconds = self.elapsed.as_secs_f64();
        let here = self.share(self.painted_here);
        (here > 0 && seconds > 0.0).then(|| as_f64(here) / seconds)
    }

    /// Returns how long it will take to the end, if it goes on like this.
    pub fn time_left(&self) -> Option<Duration> {
        let seconds = as_f64(self.bytes_total.saturating_sub(self.bytes)) / self.rate()?;
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// Returns how many bytes so many of the chunks have.
    pub(crate) fn share(&self, chunks: usize) -> u64 {
        let bytes = u128::from(self.bytes_total) * chunks as u128 / (self.total as u128).max(1);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

#[allow(clippy::cast_precision_loss)] // for people
fn as_f64(bytes: u64) -> f64 {
    bytes as f64
}

/// Hears how far a download is, on the thread that called it.
pub trait Progress: Sync {
    /// Is called at the beginning, a few times a second while chunks are painted, and at the end.
    fn update(&self, progress: DownloadProgress);

    /// Is called when something went wrong that does not stop the work, such as the loss of one of several workers.
    fn warning(&self, _message: &str) {}
}

/// Hears nothing.
impl Progress for () {
    fn update(&self, _progress: DownloadProgress) {}
}

/// A flag by which a download is stopped from outside, between two chunks. Clones are the same flag.
#[derive(Clone, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Makes a flag that is not raised.
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises the flag, for good.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the flag was raised.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Raises the flag when the standard input ends.
    ///
    /// A worker process does this: its standard input is a pipe whose other end its parent holds, so it ends when the
    /// parent stops the work and also when the parent dies, however it dies. The thread that waits for it ends with the
    /// process.
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

/// Raises a flag when it is dropped: a thread that fails, or panics, stops the others that work on the same.
#[derive(Debug)]
pub(crate) struct StopOnDrop<'a>(&'a StopFlag);

impl<'a> StopOnDrop<'a> {
    pub(crate) fn new(flag: &'a StopFlag) -> Self {
        Self(flag)
    }

    /// Leaves the flag as it is.
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
    fn what_was_painted_before_says_nothing_about_how_fast_it_is() {
        let begin = DownloadProgress { done: 50, total: 100, bytes: 500, bytes_total: 1000, ..Default::default() };
        assert_eq!((begin.rate(), begin.time_left()), (None, None));
        let later =
            DownloadProgress { done: 60, painted_here: 10, bytes: 600, elapsed: Duration::from_secs(2), ..begin };
        assert_eq!((later.rate(), later.time_left()), (Some(50.0), Some(Duration::from_secs(8))));
        assert_eq!(DownloadProgress::default().time_left(), None);
    }
}
