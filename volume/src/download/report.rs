//! Messages between a worker process and its parent: an environment variable with the worker's limits, a line of totals
//! on a pipe after each chunk, and a line about a request that is being retried.
//!
//! Only reported numbers depend on the lines. The buffer's ledger says which chunks are finished, whichever workers
//! live.

use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ndarray_shm::render::SharedWith;

use crate::download::budget::{IN_FLIGHT, REQUESTS};
use crate::download::spent::{DownloadTally, Totals};
use crate::retries::{RETRY_SECONDS, Retry};

/// Holds a worker's limits for a remote volume, requests and bytes at a time, then the users it paints with. If it is
/// set, the standard output is a pipe for lines of totals.
const VARIABLE: &str = "NDARRAY_SHM_VOLUME_WORKER";

/// Pause between two reads, so that a worker with many tiny chunks does not wake its parent for each.
const PAUSE: Duration = Duration::from_millis(5);

/// Longest line, in bytes: a URL and an answer of the server.
const LINE_BYTES: u64 = 8000;

/// Prefix of the lines in which a worker process reports a retry: its object and its reason, each escaped so that it is
/// one word.
const RETRY_LINE: &str = "ndarray-shm-volume retries:";

/// Returns the line about a retry, or about its end.
fn retry_line(retry: Option<&(String, String)>) -> String {
    match retry {
        Some((object, reason)) => format!("{RETRY_LINE} {} {}\n", escape(object), escape(reason)),
        None => format!("{RETRY_LINE}\n"),
    }
}

/// Parses such a line: its words, none at the end of a retry. Returns `None` for any other output of a worker.
fn of_retry_line(line: &str) -> Option<Vec<String>> {
    Some(line.strip_prefix(RETRY_LINE)?.split_ascii_whitespace().map(unescape).collect())
}

/// Writes a text as one word, with `%20` for a space.
fn escape(text: &str) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && *byte != b'%';
    text.bytes()
        .map(|byte| if is_plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn unescape(word: &str) -> String {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((plain, escaped)) = rest.split_once('%') {
        bytes.extend_from_slice(plain.as_bytes());
        let code = escaped.get(..2).and_then(|code| u8::from_str_radix(code, 16).ok());
        bytes.extend(code);
        rest = if code.is_some() { &escaped[2..] } else { escaped };
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

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

    /// Reports what is being retried, unless that is what was reported last.
    pub(crate) fn tell_retry(&self, retry: Option<Retry>, last: &mut Option<(String, String)>) {
        let now = retry.map(|retry| (retry.object, retry.reason));
        if self.told.is_some() && now != *last {
            let _ = io::stdout().lock().write_all(retry_line(now.as_ref()).as_bytes()); // as above
            *last = now;
        }
    }
}

/// Sets [`VARIABLE`] for one worker: its share of the limits among `workers` processes. Also sets the retry time, so
/// that a worker waits for a server from its first request on: its parent has reached that server.
pub(crate) fn brief(command: &mut Command, requests: usize, in_flight: u64, shared_with: &SharedWith, workers: usize) {
    let part = (requests.div_ceil(workers.max(1)), in_flight / workers.max(1) as u64);
    command.env(VARIABLE, format!("{} {} {shared_with}", part.0, part.1));
    let (variable, usual) = RETRY_SECONDS;
    let is_chosen = std::env::var_os(variable).is_some_and(|value| !value.is_empty());
    if !is_chosen && command.get_envs().all(|(name, _)| name != variable) {
        command.env(variable, usual.as_secs().to_string());
    }
}

/// What a worker process has reported.
#[derive(Debug, Default)]
struct Latest {
    totals: Totals,
    /// What it retries, and since when.
    retry: Option<((String, String), Instant)>,
}

/// Reads the totals and retries that a worker process reports.
#[derive(Debug)]
pub(crate) struct TotalsReader {
    latest: Arc<Mutex<Latest>>,
    /// Disconnected at the end of the pipe.
    silence: mpsc::Receiver<()>,
}

impl TotalsReader {
    pub(crate) fn listen(stdout: Option<impl Read + Send + 'static>) -> Self {
        let latest = Arc::new(Mutex::new(Latest::default()));
        let (sender, silence) = mpsc::channel::<()>();
        if let Some(stdout) = stdout {
            let latest = Arc::clone(&latest);
            // Ends with the pipe. It is never joined: a process that the worker left behind may hold the pipe open.
            let listener = thread::Builder::new().name("ndshm-stdout".to_owned());
            let _ = listener.spawn(move || {
                let _sender = sender; // its drop at the end of the thread disconnects `silence`
                let mut stdout = BufReader::with_capacity(1 << 16, stdout);
                let mut line = Vec::new();
                while let Ok(1..) = stdout.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line) {
                    let text = std::str::from_utf8(&line).unwrap_or_default();
                    let mut latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(totals) = Totals::of_line(text) {
                        if totals.painted >= latest.totals.painted {
                            latest.totals = totals;
                        }
                    } else if let Some(words) = of_retry_line(text) {
                        let retry = <[String; 2]>::try_from(words).ok().map(|[object, reason]| (object, reason));
                        // Another reason for the same object is the same retry.
                        let since =
                            latest.retry.take().filter(|(last, _)| retry.as_ref().is_some_and(|now| now.0 == last.0));
                        latest.retry = retry.map(|retry| (retry, since.map_or_else(Instant::now, |(_, since)| since)));
                    }
                    drop(latest);
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
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).totals
    }

    /// Returns what the worker is retrying.
    pub(crate) fn retry(&self) -> Option<Retry> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let ((object, reason), since) = latest.retry.as_ref()?;
        Some(Retry { object: object.clone(), reason: reason.clone(), elapsed: since.elapsed() })
    }

    /// Waits for the end of the pipe, at most `limit`. Returns whether it ended.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        self.silence.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_waits_for_servers_unless_its_command_says_how_long() {
        let (variable, _) = RETRY_SECONDS;
        let chosen = std::env::var_os(variable).is_some_and(|value| !value.is_empty());
        let value = |command: &Command| {
            let found = command.get_envs().find(|(name, _)| *name == variable)?;
            found.1.map(|value| value.to_string_lossy().into_owned())
        };
        let mut command = Command::new("worker");
        brief(&mut command, 16, 1 << 20, &SharedWith::OnlyMe, 2);
        assert_eq!(value(&command).as_deref(), (!chosen).then_some("120"));
        let mut command = Command::new("worker");
        brief(command.env(variable, "7"), 16, 1 << 20, &SharedWith::OnlyMe, 2);
        assert_eq!(value(&command).as_deref(), Some("7"));
    }

    #[test]
    fn retries_survive_the_line_format() {
        let retry = ("http://h/a b%20c\n/ü".to_owned(), "host `h` refuses connections".to_owned());
        let line = retry_line(Some(&retry));
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(of_retry_line(&line), Some(vec![retry.0, retry.1]));
        assert_eq!(of_retry_line(&retry_line(None)), Some(Vec::new()));
        for other in ["", "tests::a_test: test", &Totals::default().to_line()] {
            assert_eq!(of_retry_line(other), None, "{other}");
        }
        assert_eq!(unescape("%zz%4"), "zz4", "damaged");
    }
}
