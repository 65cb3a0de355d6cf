//! Workers that are threads of this process: the default, since no interpreter lock serializes them.
//!
//! The threads that decode a local source also read it: passing bytes from thread to thread costs more than reading
//! them from the page cache. From a remote source, many waiting threads fetch for few computing threads; the bytes go
//! through a bounded queue, together with their chunk.
//!
//! A read paints with the thread that calls it, and with helpers that the process has anyway: see `helpers`.
//!
//! The first error ends the work: no thread begins another chunk. Chunks in progress and chunks already fetched are
//! still painted, so that they need not be fetched again.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use ndarray_shm::Element;
use ndarray_shm::backend::{goes_on, interruptible};
use ndarray_shm::render::RenderProgress;

use crate::download::budget::{Budget, Reserved};
use crate::download::canvas::{Canvas, CanvasChunk, NextChunk, OwnCanvas, PaintEnd};
use crate::download::helpers::{self, HelperUse};
use crate::download::paint::{self, PaintWork, Painter, worker_count};
use crate::download::spent::{Phase, Stopwatch};
use crate::download::watch::{PaintOutcome, Watch};
use crate::error::{Error, Result, panic_message};
use crate::progress::{StopFlag, StopOnDrop};
use crate::store::wanted::in_job;
use crate::volume::Fetched;

/// Interval at which the waiting thread updates progress.
const PATIENCE: Duration = Duration::from_millis(50);

/// Paints with `count` threads, 0 for one on each processor, and reports progress to `watch`.
pub(crate) fn paint<T: Element>(
    canvas: &impl Canvas<T>,
    work: &PaintWork<'_>,
    count: usize,
    watch: &mut Watch<'_>,
) -> PaintOutcome {
    let ends = run(canvas, work, count, &mut |event| match event {
        CrewEvent::Time => watch.tell_now_and_then(canvas.progress(), work.tally.totals(), || work.retries.current()),
        CrewEvent::Warning(message) => watch.warn(message),
    });
    outcome(canvas.progress(), ends)
}

/// Paints with this thread, and with at most `count - 1` helpers of this process; 0 is one thread for each processor.
/// From a remote source there are as many as there may be requests. Ends early if the callback of
/// [`interruptible`](ndarray_shm::backend::interruptible) says so.
pub(crate) fn paint_here<T: Element>(canvas: &OwnCanvas<'_, T>, work: &PaintWork<'_>, count: usize) -> PaintOutcome {
    let is_remote = work.source.is_remote();
    let (purpose, most) = match count {
        _ if is_remote => (HelperUse::Requests, work.requests),
        0 => (HelperUse::Computing, usize::MAX), // as many as there are; counting the processors takes long
        count => (HelperUse::Computing, count),
    };
    let helpers = most.min(canvas.progress().total).saturating_sub(1);
    let ask = || {
        if !goes_on() {
            work.abort.stop();
        }
    };
    let paint = |work: &PaintWork<'_>| {
        let alarm = StopOnDrop::new(work.abort);
        let paint = || {
            if is_remote {
                in_job(work.flags(), work.retries, || paint::paint(canvas, work))
            } else {
                paint::paint(canvas, work)
            }
        };
        let end = catch_unwind(AssertUnwindSafe(paint)).unwrap_or_else(|panic| Err(panicked(&*panic)));
        if end.is_ok() {
            alarm.disarm();
        }
        end
    };
    let ends = Mutex::new(Vec::new());
    let help = || {
        let end = hearing(work, || paint(work));
        ends.lock().unwrap_or_else(PoisonError::into_inner).push(end);
    };
    let own = helpers::with_helpers(purpose, helpers, &help, || paint(&PaintWork { heard: &ask, ..*work }), &ask);
    let mut ends = ends.into_inner().unwrap_or_else(PoisonError::into_inner);
    ends.push(own);
    outcome(canvas.progress(), ends)
}

/// Lets a flag end the calls of this thread that wait for another process: those that look for a cached chunk.
fn hearing<R>(work: &PaintWork<'_>, job: impl FnOnce() -> R) -> R {
    let flags = work.flags().map(StopFlag::clone);
    interruptible(move || !flags.iter().any(StopFlag::is_stopped), job)
}

/// An event for the thread that waits for the workers.
pub(crate) enum CrewEvent {
    /// A [`PATIENCE`] has passed.
    Time,
    /// A problem that does not stop the work.
    Warning(String),
}

/// Paints with `count` threads. Returns how each of them ended.
pub(crate) fn run<T: Element, C: Canvas<T>>(
    canvas: &C,
    work: &PaintWork<'_>,
    count: usize,
    tell: &mut dyn FnMut(CrewEvent),
) -> Vec<Result<PaintEnd>> {
    let left = canvas.progress();
    let left = (left.total - left.done).max(1);
    let count = worker_count(count).min(left);
    if !work.source.is_remote() {
        return thread::scope(|scope| {
            let mut crew = ThreadCrew::new(scope, work.abort);
            for number in 0..count {
                crew.start("paint", number, tell, move || hearing(work, || paint::paint(canvas, work)));
            }
            crew.wait(tell)
        });
    }
    let requests = work.requests.clamp(1, left);
    let meta = work.source.meta();
    let chunk = meta.chunk_shape.iter().fold(meta.dtype.size() as u64, |bytes, length| bytes.saturating_mul(*length));
    let budget = &Budget::new(work.in_flight, chunk);
    thread::scope(|scope| {
        // Only the decoders own the receiver. The last one to end drops it, so that no fetcher waits on a queue without
        // readers.
        let (sender, receiver) = mpsc::sync_channel(count);
        let receiver = std::sync::Arc::new(Mutex::new(receiver));
        let mut crew = ThreadCrew::new(scope, work.abort);
        for number in 0..count {
            let receiver = std::sync::Arc::clone(&receiver);
            crew.start("decode", number, tell, move || decode(&receiver, work));
        }
        drop(receiver);
        for number in 0..requests {
            let sender = sender.clone();
            crew.start("fetch", number, tell, move || {
                hearing(work, || in_job(work.flags(), work.retries, || fetch(canvas, work, budget, &sender)))
            });
        }
        drop(sender);
        crew.wait(tell)
    })
}

/// A chunk on its way from a fetching thread to a decoding thread.
struct FetchedChunk<'a, Chunk> {
    chunk: Chunk,
    region: Vec<Range<i64>>,
    fetched: Fetched,
    reserved: Reserved<'a>,
}

/// Fetches until nothing is left, or a flag is raised.
fn fetch<'a, T: Element, C: Canvas<T>>(
    canvas: &'a C,
    work: &PaintWork<'_>,
    budget: &'a Budget,
    queue: &SyncSender<FetchedChunk<'a, C::Chunk<'a>>>,
) -> Result<PaintEnd> {
    let mut watch = Stopwatch::start(work.tally);
    loop {
        // Reserve bytes before taking a chunk: during that wait no other process could paint it.
        let Some(mut reserved) = budget.reserve(work.flags()) else { return Ok(PaintEnd::Stopped) };
        watch.was(Phase::Waiting);
        let chunk = match canvas.next(work.flags())? {
            NextChunk::Chunk(chunk) => chunk,
            NextChunk::End(end) => return Ok(end),
        };
        watch.was(Phase::Claiming);
        let region = chunk.region(work.bbox);
        let fetched = match work.source.fetch(&region) {
            // A download that is stopped while a server is silent does not report the server.
            Err(Error::Store { .. }) if work.flags().iter().any(|flag| flag.is_stopped()) => {
                return Ok(PaintEnd::Stopped);
            }
            // Raised before the chunk is released, as in `Painter::paint`.
            answer => answer.inspect_err(|_| work.abort.stop())?,
        };
        work.tally.fetched(fetched.len());
        reserved.correct(fetched.len() as u64);
        watch.was(Phase::Fetching);
        if queue.send(FetchedChunk { chunk, region, fetched, reserved }).is_err() {
            return Ok(PaintEnd::Stopped);
        }
        watch.was(Phase::Waiting);
    }
}

/// Decodes and paints the queued chunks, also after an error, so that they need not be fetched again.
fn decode<T: Element>(
    queue: &Mutex<Receiver<FetchedChunk<'_, impl CanvasChunk<T>>>>,
    work: &PaintWork<'_>,
) -> Result<PaintEnd> {
    let mut painter = Painter::new(work);
    let mut watch = Stopwatch::start(work.tally);
    let mut first = None;
    loop {
        // No thread panics while it holds this lock.
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        watch.was(Phase::Waiting);
        let Ok(FetchedChunk { chunk, region, fetched, reserved }) = next else { break };
        if let Err(error) = painter.paint(chunk, &region, fetched, &mut watch) {
            first.get_or_insert(error);
        }
        drop(reserved);
    }
    first.map_or(Ok(PaintEnd::Complete), Err)
}

/// Threads that work together: if one fails, `abort` stops the others.
struct ThreadCrew<'scope, 'env, 'work> {
    scope: &'scope thread::Scope<'scope, 'env>,
    abort: &'work StopFlag,
    members: Vec<ScopedJoinHandle<'scope, Result<PaintEnd>>>,
    refused: Option<Error>,
    /// Disconnected when the last member ends.
    sender: Option<mpsc::Sender<()>>,
    silence: Receiver<()>,
}

impl<'scope, 'work: 'scope> ThreadCrew<'scope, '_, 'work> {
    fn new<'env>(
        scope: &'scope thread::Scope<'scope, 'env>,
        abort: &'work StopFlag,
    ) -> ThreadCrew<'scope, 'env, 'work> {
        let (sender, silence) = mpsc::channel();
        ThreadCrew { scope, abort, members: Vec::new(), refused: None, sender: Some(sender), silence }
    }

    /// Starts thread `number` of a kind. A failure to start is an error for number 0, otherwise a warning.
    fn start(
        &mut self,
        kind: &str,
        number: usize,
        tell: &mut dyn FnMut(CrewEvent),
        job: impl FnOnce() -> Result<PaintEnd> + Send + 'scope,
    ) {
        let (abort, sender) = (self.abort, self.sender.clone());
        let name = format!("ndshm-{kind}-{number}");
        let member = thread::Builder::new().name(name.clone()).spawn_scoped(self.scope, move || {
            let _sender = sender; // its drop disconnects `silence`, also on a panic
            let alarm = StopOnDrop::new(abort);
            let end = job();
            if end.is_ok() {
                alarm.disarm();
            }
            end
        });
        match member {
            Ok(member) => self.members.push(member),
            Err(error) if number == 0 => {
                self.abort.stop();
                self.refused = Some(Error::io("starting a thread for", name, error));
            }
            Err(error) => tell(CrewEvent::Warning(format!("worker thread {name} could not be started: {error}"))),
        }
    }

    /// Waits for all threads. Returns how each of them ended.
    fn wait(mut self, tell: &mut dyn FnMut(CrewEvent)) -> Vec<Result<PaintEnd>> {
        self.sender = None;
        // Nothing is ever sent: this receives timeouts until the last thread drops its sender.
        while let Err(RecvTimeoutError::Timeout) = self.silence.recv_timeout(PATIENCE) {
            tell(CrewEvent::Time);
        }
        let ends = self.members.into_iter().map(|member| member.join().unwrap_or_else(|panic| Err(panicked(&*panic))));
        self.refused.map(Err).into_iter().chain(ends).collect()
    }
}

fn outcome(progress: RenderProgress, ends: Vec<Result<PaintEnd>>) -> PaintOutcome {
    if progress.is_complete() {
        return PaintOutcome::Complete;
    }
    // Work that gave up a request because it was stopped has no error of its own.
    let mut errors = ends.into_iter().filter_map(Result::err);
    match errors.find(|error| !matches!(error, Error::Interrupted { .. })) {
        Some(Error::Painting { report, .. }) => {
            PaintOutcome::Failed(Error::Painting { report, done: progress.done, total: progress.total })
        }
        Some(error) => PaintOutcome::Failed(error),
        None => PaintOutcome::Stopped,
    }
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    Error::Painting { report: format!("a worker thread panicked: {}", panic_message(panic)), done: 0, total: 0 }
}
