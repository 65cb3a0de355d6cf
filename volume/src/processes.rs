//! Workers that are processes: starting them, noticing how they end, dismissing them.
//!
//! A worker joins by the array's public name and paints on its own; nothing is sent to it. Its standard input is a pipe
//! whose other end is held here: it ends when the worker is dismissed, and also when this process dies, however it dies.

use std::collections::VecDeque;
use std::fmt;
use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ndarray::IxDyn;
use ndarray_shm::{Element, NextClaim, RenderBuffer};

use crate::error::Error;
use crate::paint::{Work, in_volume, worker_count};
use crate::source::Scratch;
use crate::watch::{Outcome, Watch};

/// How often the workers are looked at.
const LOOK: Duration = Duration::from_millis(20);

/// How long a dismissed worker may take to end before it is killed. Killing is safe: its chunk stays unfinished.
const DISMISSAL: Duration = Duration::from_secs(5);

/// How long the last words of a worker that ended may take to arrive; a process it left behind may hold the pipe open.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Lines kept of what a worker says.
const LINES: usize = 8;

/// Longest line kept of what a worker says, in bytes.
const LINE_BYTES: u64 = 1000;

/// Worker processes, and how one is started.
pub struct ProcessWorkers {
    count: usize,
    command: Box<dyn Fn() -> Command + Send + Sync>,
}

impl ProcessWorkers {
    /// Uses `count` processes, 0 for one for each processor, each started by what `command` returns.
    ///
    /// The program must open the same volume and call [`paint_as_worker`](crate::paint_as_worker) with the same backend and
    /// location. Its standard input becomes a pipe that ends when it should stop
    /// ([`StopFlag::stop_when_stdin_ends`](crate::StopFlag::stop_when_stdin_ends)); its standard output is closed; the last
    /// lines of its standard error end up in the error or warning about it. On Unix it gets a process group of its own, on
    /// Windows a console of its own without a window, so that Ctrl-C reaches only the parent, which then dismisses it.
    pub fn new(count: usize, command: impl Fn() -> Command + Send + Sync + 'static) -> Self {
        Self { count, command: Box::new(command) }
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
    work: &Work<'_>,
    workers: &ProcessWorkers,
    watch: &mut Watch<'_>,
) -> Outcome {
    let left = buffer.progress();
    let count = worker_count(workers.count).min(left.total - left.done).max(1);
    let mut crew = Crew { present: Vec::with_capacity(count) };
    let mut losses = Vec::new();
    for number in 1..=count {
        match Worker::start(number, (workers.command)()) {
            Ok(worker) => crew.present.push(worker),
            Err(error) => losses.push(lose(watch, format!("worker {number} could not be started: {error}"))),
        }
    }
    let mut gave_up = false;
    loop {
        let ended = crew.ended();
        let complete = buffer.progress().is_complete();
        // One that ended well when all was done is no loss.
        for (number, status, said) in ended.into_iter().filter(|(_, status, _)| !(complete && status.success())) {
            gave_up |= !died(status);
            losses.push(lose(watch, ended_early(number, status, &said)));
        }
        if complete {
            // The kernel gives a dying worker's chunk to others a moment before it says that the worker is dead.
            let dead = crew.dismiss().into_iter().filter(|(_, status, _)| died(*status));
            dead.for_each(|(number, status, said)| watch.warn(ended_early(number, status, &said)));
            return Outcome::Complete;
        }
        if work.stop.is_stopped() {
            return Outcome::Stopped;
        }
        if crew.present.is_empty() {
            break;
        }
        // Answers early when the last chunk is done; that it is not done yet is no error.
        let _not_yet = buffer.wait(LOOK);
        watch.tell_now_and_then(buffer);
    }
    if gave_up && let Some(error) = broken_chunk(buffer, work) {
        return Outcome::Failed(error);
    }
    Outcome::Lost { report: losses.join("; ") }
}

/// Whether a worker ended without deciding to, which says nothing about the work: by a signal, or on Windows by a fault.
///
/// Whoever terminates a process of Windows chooses its exit code, so such a worker may seem to have given up.
fn died(status: ExitStatus) -> bool {
    status.code().is_none_or(|code| code < 0)
}

fn ended_early(number: usize, status: ExitStatus, said: &str) -> String {
    format!("worker {number} ended before the work was done ({status}){said}")
}

fn lose(watch: &mut Watch<'_>, message: String) -> String {
    watch.warn(message.clone());
    message
}

/// Finds out whether the workers gave up because of the volume: a chunk that cannot be decoded there cannot be decoded
/// here, and then the error is the same as with threads.
fn broken_chunk<T: Element>(buffer: &RenderBuffer<T, IxDyn>, work: &Work<'_>) -> Option<Error> {
    let Ok(NextClaim::Chunk(claim)) = buffer.claim_next() else { return None };
    let region = in_volume(claim.region(), work.bbox);
    work.source.decode(&region, &mut Scratch::new()).err()
}

/// The workers that have not ended. Dropped, it dismisses them and waits until they are gone.
#[derive(Debug)]
struct Crew {
    present: Vec<Worker>,
}

impl Crew {
    /// Takes out those that have ended: number, how, and what they said last.
    fn ended(&mut self) -> Vec<(usize, ExitStatus, String)> {
        let mut ended = Vec::new();
        self.present.retain_mut(|worker| match worker.child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                ended.push((worker.number, status, worker.voice.last_words()));
                false
            }
            // A child that cannot be waited for was waited for by someone else in this process: how it ended is unknown.
            Err(_) => {
                ended.push((
                    worker.number,
                    ExitStatus::default(),
                    " and its exit status was taken by others".to_owned(),
                ));
                false
            }
        });
        ended
    }

    /// Tells all that are present to end, waits until they have, and returns those that ended by themselves.
    fn dismiss(&mut self) -> Vec<(usize, ExitStatus, String)> {
        for worker in &mut self.present {
            worker.leash = None;
        }
        let begin = Instant::now();
        let mut ended = self.ended();
        while !self.present.is_empty() {
            if begin.elapsed() < DISMISSAL {
                thread::sleep(Duration::from_millis(2));
                ended.extend(self.ended());
                continue;
            }
            for mut worker in self.present.drain(..) {
                // Fails only if it has ended by now.
                let _ended = worker.child.kill();
                let _status = worker.child.wait();
            }
        }
        ended
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.dismiss();
    }
}

/// One worker process.
#[derive(Debug)]
struct Worker {
    number: usize,
    child: Child,
    /// Letting go of it tells the worker to end.
    leash: Option<ChildStdin>,
    voice: Voice,
}

impl Worker {
    fn start(number: usize, mut command: Command) -> std::io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        keep_from_ctrl_c(&mut command);
        let mut child = command.spawn()?;
        let leash = child.stdin.take();
        let voice = Voice::listen(child.stderr.take());
        Ok(Self { number, child, leash, voice })
    }
}

/// Lets what is typed on the parent's terminal pass a worker by.
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
    let _nothing_to_do = command;
}

/// The last lines that a worker said.
#[derive(Debug)]
struct Voice {
    lines: Arc<Mutex<VecDeque<String>>>,
    /// Disconnected when the worker can say no more.
    silence: mpsc::Receiver<()>,
}

impl Voice {
    fn listen(stderr: Option<impl Read + Send + 'static>) -> Self {
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let (sender, silence) = mpsc::channel::<()>();
        if let Some(stderr) = stderr {
            let lines = Arc::clone(&lines);
            // Ends with the pipe. It is never joined: a process that the worker left behind may hold the pipe open.
            let listener = thread::Builder::new().name("worker-stderr".to_owned());
            let _heard = listener.spawn(move || {
                let _silence = sender;
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

    /// Returns what it said last, to be added to a sentence.
    fn last_words(&self) -> String {
        // Nothing is ever sent: this waits for the pipe to end, for a moment.
        let _silence = self.silence.recv_timeout(LAST_WORDS);
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.is_empty() {
            return String::new();
        }
        let words: Vec<&str> = lines.iter().map(String::as_str).collect();
        format!(", saying: {}", words.join(" / "))
    }
}
