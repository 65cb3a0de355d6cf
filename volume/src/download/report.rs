//! What worker processes tell of themselves, and are told: a line on a pipe after each chunk, and one variable.
//!
//! Only numbers for people depend on it. The buffer's ledger says which chunks are finished, whichever workers live.

use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ndarray_shm::render::SharedWith;

use crate::download::budget::{IN_FLIGHT, REQUESTS};
use crate::download::spent::{DownloadTally, Totals};

/// What a worker may ask of a remote volume, as two numbers: requests and bytes at a time; then the users it paints with. Where it is
/// set, the standard output is
/// a pipe for lines.
const VARIABLE: &str = "NDARRAY_SHM_VOLUME_WORKER";

/// Lines are read at most this often, so that a process of many tiny chunks does not wake its parent for each.
const PAUSE: Duration = Duration::from_millis(5);

/// Longest line, in bytes.
const LINE_BYTES: u64 = 300;

/// Tells the parent what this process does, if it has one that listens.
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
            // The painter does not care whether the receiver still listens.
            let _heard = io::stdout().lock().write_all(tally.totals().to_line().as_bytes());
        }
    }
}

/// Divides what may be asked of a volume among worker processes, and tells one of them its part.
pub(crate) fn brief(command: &mut Command, requests: usize, in_flight: u64, shared_with: &SharedWith, workers: usize) {
    let part = (requests.div_ceil(workers.max(1)), in_flight / workers.max(1) as u64);
    command.env(VARIABLE, format!("{} {} {shared_with}", part.0, part.1));
}

/// Hears what a worker process tells.
#[derive(Debug)]
pub(crate) struct TotalsReader {
    latest: Arc<Mutex<Totals>>,
    /// Disconnected when the worker can tell no more.
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
            let _heard = listener.spawn(move || {
                let _silence = sender;
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

    /// Returns what the worker has done, as far as it told.
    pub(crate) fn totals(&self) -> Totals {
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the worker can tell no more.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        self.silence.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected)
    }
}
