//! Workers that are processes: starting them, watching how they end, dismissing them.
//!
//! A worker joins by the array's public name and paints on its own; nothing is sent to it. This process holds the other
//! end of the worker's standard input, a pipe. The pipe closes when the worker is dismissed and when this process dies
//! in any way. On Linux the kernel also kills the worker when this process dies, as it does all children of
//! [`ndarray_shm::process`].

use std::collections::VecDeque;
use std::fmt;
use std::io::{BufRead as _, BufReader, Read};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use ndarray::IxDyn;
use ndarray_shm::process::{ChildError, Ending, Processes, SpawnOptions};
use ndarray_shm::render::SharedWith;
use ndarray_shm::{Directory, Element, Location, NextClaim, RenderBuffer};

use crate::download::canvas::in_volume;
use crate::download::paint::{self, PaintWork, worker_count};
use crate::download::report::{self, TotalsReader};
use crate::download::spent::Totals;
use crate::download::watch::{PaintOutcome, Watch};
use crate::error::Error;
use crate::retries::Retry;
use crate::scratch::Scratch;
use crate::store::url::VolumeUrl;
use crate::store::wanted::in_job;

/// Longest time until the last chunk or the caller's stop flag is noticed. The end of a worker is noticed at once.
const LOOK: Duration = Duration::from_millis(20);

/// Time that a dismissed worker has to end before it is killed. Killing is safe: its chunk stays unfinished.
const DISMISSAL: Duration = Duration::from_secs(5);

/// Longest wait for the end of an ended worker's pipe; a process that the worker left behind may hold the pipe open.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Lines kept of a worker's standard error.
const LINES: usize = 8;

/// Longest line kept of a worker's standard error, in bytes.
const LINE_BYTES: u64 = 1000;

/// Worker processes, and the command that starts one.
pub struct ProcessWorkers {
    count: usize,
    command: Box<dyn Fn(&Location) -> Command + Send + Sync>,
}

impl ProcessWorkers {
    /// Uses `count` processes, or one for each processor if `count` is 0. Each runs the command that `command` returns.
    ///
    /// The program must open the same volume and call [`paint_as_worker`](crate::paint_as_worker) with the same
    /// directory and location. Its standard streams are pipes:
    /// - Standard input closes when the worker should stop
    ///   ([`StopFlag::stop_when_stdin_ends`](crate::StopFlag::stop_when_stdin_ends)).
    /// - On standard output `paint_as_worker` reports what it did; other output is ignored.
    /// - The last lines of standard error become part of the error or warning about the worker.
    ///
    /// An environment variable limits its concurrent requests. On Unix the worker gets a process group of its own, on
    /// Windows a console of its own without a window, so that Ctrl-C reaches only the parent, which then dismisses it.
    /// On Linux the worker is killed when the parent dies.
    pub fn new(count: usize, command: impl Fn() -> Command + Send + Sync + 'static) -> Self {
        Self::with_location(count, move |_| command())
    }

    /// Like [`new`](Self::new), for a command that depends on the array's location, which [`download`](crate::download)
    /// generates.
    pub fn with_location(count: usize, command: impl Fn(&Location) -> Command + Send + Sync + 'static) -> Self {
        Self { count, command: Box::new(command) }
    }

    /// Uses `count` processes of the program `ndshm`, which open scale `mip` of the volume at `url` and paint in
    /// `directory`.
    pub fn of_program(
        count: usize,
        program: impl Into<PathBuf>,
        url: &VolumeUrl,
        mip: usize,
        directory: &Directory,
    ) -> Self {
        let (program, url, mip) = (program.into(), url.to_argument(), mip.to_string());
        let directory = directory.clone();
        Self::with_location(count, move |location| {
            let mut command = Command::new(&program);
            command.args(["worker", "--mip", &mip, "--location", location.as_str()]);
            command.args(["--backend", directory.name(), "--directory"]).arg(directory.path()).args(["--", &url]);
            command
        })
    }
}

impl fmt::Debug for ProcessWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessWorkers").field("count", &self.count).finish_non_exhaustive()
    }
}

/// Paints with worker processes. The loss of some of them is a warning; the others paint their chunks.
pub(crate) fn paint<T: Element>(
    buffer: &RenderBuffer<T, IxDyn>,
    work: &PaintWork<'_>,
    workers: &ProcessWorkers,
    shared_with: &SharedWith,
    watch: &mut Watch<'_>,
) -> PaintOutcome {
    let left = buffer.progress();
    let count = worker_count(workers.count).min(left.total - left.done).max(1);
    let mut crew = match ProcessCrew::start(count, workers, work, shared_with, buffer.location()) {
        Ok(crew) => crew,
        Err(error) => return PaintOutcome::Lost { report: format!("no worker could be started: {error}") },
    };
    let (mut losses, mut kills, mut gave_up) = (Vec::new(), 0, false);
    loop {
        let end = crew.next_end(LOOK);
        let complete = buffer.progress().is_complete();
        // A worker that ended well after the last chunk is no loss.
        if let Some(end) = end.filter(|end| !(complete && end.is_good())) {
            kills += u64::from(end.may_be_a_kill());
            gave_up |= !end.is_death();
            let message = crew.describe_exit(&end);
            watch.warn(message.clone());
            losses.push(message);
        }
        if complete {
            watch.totals = crew.dismiss();
            // The kernel releases a dying worker's claim a moment before it reports the death. So another worker may
            // have painted that chunk, and the buffer be complete, before the death is seen here.
            while let Some(end) = crew.next_end(Duration::ZERO) {
                if end.is_death() {
                    kills += 1;
                    watch.warn(crew.describe_exit(&end));
                }
            }
            watch.credit(kills);
            return PaintOutcome::Complete;
        }
        if work.stop.is_stopped() {
            watch.totals = crew.dismiss();
            return PaintOutcome::Stopped;
        }
        if crew.present == 0 {
            break;
        }
        watch.tell_now_and_then(buffer.progress(), crew.totals(), || crew.retry());
    }
    if gave_up && let Some(error) = broken_chunk(buffer, work) {
        return PaintOutcome::Failed(error);
    }
    PaintOutcome::Lost { report: losses.join("; ") }
}

/// Finds out whether the workers gave up because of the volume. A chunk that a worker cannot decode cannot be decoded
/// here either, and then the error is the same as with threads. So is that of a chunk that is not stored, unless it is
/// to be filled.
fn broken_chunk<T: Element>(buffer: &RenderBuffer<T, IxDyn>, work: &PaintWork<'_>) -> Option<Error> {
    let Ok(NextClaim::Chunk(claim)) = buffer.claim_next() else { return None };
    let region = in_volume(claim.region(), work.bbox);
    let mut scratch = Scratch::new();
    match in_job([work.stop, work.stop], work.retries, || work.source.read(&region, &mut scratch)) {
        Err(error) => Some(error),
        Ok(()) if scratch.is_missing() && work.missing.is_none() => Some(paint::missing(&region)),
        Ok(()) => None,
    }
}

/// The workers. Dropping this kills those that have not been dismissed, which is safe, and waits until they are gone.
#[derive(Debug)]
struct ProcessCrew {
    processes: Processes,
    /// Closing these pipes dismisses the workers.
    stdin_pipes: Vec<ChildStdin>,
    totals_readers: Vec<TotalsReader>,
    stderr_tails: Vec<StderrTail>,
    /// Number of workers that have not been seen to end.
    present: usize,
}

impl ProcessCrew {
    fn start(
        count: usize,
        workers: &ProcessWorkers,
        work: &PaintWork<'_>,
        shared_with: &SharedWith,
        location: &Location,
    ) -> ndarray_shm::Result<Self> {
        let (requests, in_flight, shared_with) = (work.requests, work.in_flight, shared_with.clone());
        let options = SpawnOptions::new().keep_going(true).configure(move |_, command| {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            report::brief(command, requests, in_flight, &shared_with, count);
            keep_from_ctrl_c(command);
        });
        let mut processes = options.spawn_commands(count, |_| (workers.command)(location))?;
        let stdin_pipes = (0..count).filter_map(|index| processes.take_stdin(index)).collect();
        let totals_readers = (0..count).map(|index| TotalsReader::listen(processes.take_stdout(index))).collect();
        let stderr_tails = (0..count).map(|index| StderrTail::listen(processes.take_stderr(index))).collect();
        Ok(Self { processes, stdin_pipes, totals_readers, stderr_tails, present: count })
    }

    fn next_end(&mut self, limit: Duration) -> Option<ProcessExit> {
        let (index, how) = self.processes.next_end(Some(limit))?;
        self.present -= 1;
        Some(ProcessExit { index, how })
    }

    /// Describes how a worker ended, with the last lines of its standard error.
    fn describe_exit(&self, ProcessExit { index, how }: &ProcessExit) -> String {
        let number = index + 1;
        let how = match how {
            Err(error) if error.ending() == Ending::NotStarted => {
                return format!("worker {number} could not be started: {}", error.message().unwrap_or_default());
            }
            Err(error) => error.status().map_or_else(|| error.ending().to_string(), |status| status.to_string()),
            Ok(()) => ExitStatus::default().to_string(),
        };
        format!("worker {number} ended before the work was done ({how}){}", self.stderr_tails[*index].last_words())
    }

    /// Returns the sum of the totals that the workers have reported.
    fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.totals_readers.iter().for_each(|reader| totals.add(&reader.totals()));
        totals
    }

    /// Returns the request that a worker has been retrying for the longest time.
    fn retry(&self) -> Option<Retry> {
        self.totals_readers.iter().filter_map(TotalsReader::retry).max_by_key(|retry| retry.elapsed)
    }

    /// Dismisses the workers, waits up to [`DISMISSAL`], and returns their totals.
    fn dismiss(&mut self) -> Totals {
        self.stdin_pipes.clear();
        let _ = self.processes.join_timeout(DISMISSAL);
        // All workers have ended: this waits only for a pipe that a process left behind by a worker holds open.
        let _ = self.totals_readers.iter().all(|reader| reader.wait(LAST_WORDS));
        self.totals()
    }
}

/// The end of a worker.
struct ProcessExit {
    index: usize,
    how: Result<(), ChildError>,
}

impl ProcessExit {
    fn ending(&self) -> Ending {
        self.how.as_ref().map_or_else(ChildError::ending, |()| Ending::Exited(0))
    }

    /// Whether the worker ended well, or its exit status is unknown.
    fn is_good(&self) -> bool {
        matches!(self.ending(), Ending::Exited(0) | Ending::Unknown)
    }

    /// Whether the worker died rather than gave up: by a signal, on Windows by a fault, or because it could not be
    /// started. Such an end says nothing about the work.
    ///
    /// On Windows a program that terminates a process chooses its exit code, so a terminated worker may seem to have
    /// given up.
    fn is_death(&self) -> bool {
        matches!(self.ending(), Ending::Signal(_) | Ending::NotStarted | Ending::Exited(..0))
    }

    /// Whether a worker that ended before the work was done may have been killed. On Windows its exit code does not
    /// tell.
    fn may_be_a_kill(&self) -> bool {
        self.is_death() || cfg!(windows)
    }
}

/// Keeps Ctrl-C on the parent's terminal from reaching a worker.
fn keep_from_ctrl_c(command: &mut Command) {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    #[cfg(windows)]
    {
        /// As in `winbase.h`. A process group of its own would keep Ctrl-C away, but not Ctrl-Break.
        const CREATE_NO_WINDOW: u32 = 0x0800_0000;
        std::os::windows::process::CommandExt::creation_flags(command, CREATE_NO_WINDOW);
    }
    #[cfg(not(any(unix, windows)))]
    let _ = command;
}

/// The last lines of a worker's standard error.
#[derive(Debug)]
struct StderrTail {
    lines: Arc<Mutex<VecDeque<String>>>,
    /// Disconnected at the end of the pipe.
    silence: mpsc::Receiver<()>,
}

impl StderrTail {
    fn listen(stderr: Option<impl Read + Send + 'static>) -> Self {
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let (sender, silence) = mpsc::channel::<()>();
        if let Some(stderr) = stderr {
            let lines = Arc::clone(&lines);
            // Ends with the pipe. It is never joined: a process that the worker left behind may hold the pipe open.
            let listener = thread::Builder::new().name("ndshm-stderr".to_owned());
            let _ = listener.spawn(move || {
                let _sender = sender; // its drop at the end of the thread disconnects `silence`
                let mut stderr = BufReader::new(stderr);
                let mut line = Vec::new();
                while let Ok(1..) = stderr.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line) {
                    let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                    line.clear();
                    if text.is_empty() {
                        continue;
                    }
                    let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                    lines.push_back(text);
                    if lines.len() > LINES {
                        lines.pop_front();
                    }
                }
            });
        }
        Self { lines, silence }
    }

    /// Returns the last lines as the end of a sentence.
    fn last_words(&self) -> String {
        // Nothing is ever sent: this waits a moment for the end of the pipe.
        let _ = self.silence.recv_timeout(LAST_WORDS);
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.is_empty() {
            return String::new();
        }
        let words: Vec<&str> = lines.iter().map(String::as_str).collect();
        format!(", saying: {}", words.join(" / "))
    }
}
