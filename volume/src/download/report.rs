//! Messages between a worker process and its parent: an environment variable with the worker's limits, and a line of totals on a
//! pipe after each chunk.
//!
//! Only reported numbers depend on the lines. The buffer's ledger says which chunks are finished, whichever workers live.

use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ndarray_shm::render::SharedWith;

use crate::download::budget::{IN_FLIGHT, REQUESTS};
use crate::download::spent::{DownloadTally, Totals};

/// Holds a worker's limits for a remote volume, requests and bytes at a time, then the users it paints with. If it is set, the
/// standard output is a pipe for lines of totals.
const VARIABLE: &str = "NDARRAY_SHM_VOLUME_WORKER";

/// Pause between two reads, so that a worker with many tiny chunks does not wake its parent for each.
const PAUSE: Duration = Duration::from_millis(5);

/// Longest line, in bytes.
const LINE_BYTES: u64 = 300;

/// Reports to the parent, if it set [`VARIABLE`].
#[derive(Debug)]
pub(crate) struct ParentLink {
    told: Option<(usize, u64, SharedWith)>,
}

impl ParentLink {
    pub(crate) fn of_this_process() -> Self {
        let told = std::env::var(VARIABLE).ok().and_then(|value| {
            let mut words = value.split(' ');
            Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
        });
        Self { told }
    }

    pub(crate) fn requests(&self) -> usize {
        self.told.as_ref().map_or(REQUESTS, |told| told.0)
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.told.as_ref().map_or(IN_FLIGHT, |told| told.1)
    }

    pub(crate) fn shared_with(&self) -> SharedWith {
        self.told.as_ref().map_or(SharedWith::OnlyMe, |told| told.2.clone())
    }

    pub(crate) fn tell(&self, tally: &DownloadTally) {
        if self.told.is_some() {
            // A parent that no longer reads does not stop the painting.
            let _ = io::stdout().lock().write_all(tally.totals().to_line().as_bytes());
        }
    }
}

/// Sets [`VARIABLE`] for one worker: its share of the limits among `workers` processes.
pub(crate) fn brief(command: &mut Command, requests: usize, in_flight: u64, shared_with: &SharedWith, workers: usize) {
    let part = (requests.div_ceil(workers.max(1)), in_flight / workers.max(1) as u64);
    command.env(VARIABLE, format!("{} {} {shared_with}", part.0, part.1));
}

/// Reads the totals that a worker process reports.
#[derive(Debug)]
pub(crate) struct TotalsReader {
    latest: Arc<Mutex<Totals>>,
    /// Disconnected at the end of the pipe.
    silence: mpsc::Receiver<()>,
}

impl TotalsReader {
    pub(crate) fn listen(stdout: Option<impl Read + Send + 'static>) -> Self {
        let latest = Arc::new(Mutex::new(Totals::default()));
        let (sender, silence) = mpsc::channel::<()>();
        if let Some(stdout) = stdout {
            let latest = Arc::clone(&latest);
            // Ends with the pipe. It is never joined: a process that the worker left behind may hold the pipe open.
            let listener = thread::Builder::new().name("worker-stdout".to_owned());
            let _ = listener.spawn(move || {
                let _sender = sender; // its drop at the end of the thread disconnects `silence`
                let mut stdout = BufReader::with_capacity(1 << 16, stdout);
                let mut line = Vec::new();
                while let Ok(1..) = stdout.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line) {
                    if let Some(totals) = std::str::from_utf8(&line).ok().and_then(Totals::of_line) {
                        let mut latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
                        if totals.painted >= latest.painted {
                            *latest = totals;
                        }
                    }
                    line.clear();
                    if stdout.buffer().is_empty() {
                        thread::sleep(PAUSE);
                    }
                }
            });
        }
        Self { latest, silence }
    }

    /// Returns the latest totals that the worker reported.
    pub(crate) fn totals(&self) -> Totals {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the end of the pipe, at most `limit`. Returns whether it ended.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        self.silence.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected)
    }
}
