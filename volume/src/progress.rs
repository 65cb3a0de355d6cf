//! How far a download is, and how it is told to stop.

use std::fmt;
use std::io::{self, Read as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// How far a download is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DownloadProgress {
    /// Chunks that are painted, by whomever.
    pub done: usize,
    /// Chunks there are.
    pub total: usize,
    /// Chunks that were painted since this call began.
    pub painted_here: usize,
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

impl fmt::Debug for StopFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StopFlag({})", if self.is_stopped() { "raised" } else { "not raised" })
    }
}
