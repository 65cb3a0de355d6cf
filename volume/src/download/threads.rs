//! Workers that are threads of this process: the default, since no lock of an interpreter holds them back.
//!
//! A source that is near is fetched by who decodes it: handing bytes from one thread to another costs more than reading them
//! from the page cache. From a remote one, many threads that wait fetch for few that compute; the bytes go through a bounded
//! queue, with the claim on their chunk.
//!
//! The first error ends the work: nobody begins another chunk, but what a colleague has at hand, and what was fetched already, is
//! still painted, so that it need not be fetched again.

use std::any::Any;
use std::ops::Range;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use ndarray::IxDyn;
use ndarray_shm::{Element, RenderBuffer, render::ChunkClaim};

use crate::download::budget::{Budget, Reserved};
use crate::download::paint::{self, Ended, Painter, Work, in_volume, worker_count};
use crate::download::spent::{Phase, Stopwatch};
use crate::download::walk::Step;
use crate::download::watch::{Outcome, Watch};
use crate::error::{Error, Result};
use crate::progress::StopFlag;
use crate::store::wanted::while_wanted;
use crate::volume::Fetched;

/// How long nothing may be heard of the painters before progress is looked at.
const PATIENCE: Duration = Duration::from_millis(50);

/// Paints with `count` threads, 0 for one on each processor, and tells `watch` how far it is.
pub(crate) fn paint<T: Element>(
    buffer: &RenderBuffer<T, IxDyn>,
    work: &Work<'_>,
    count: usize,
    watch: &mut Watch<'_>,
) -> Outcome {
    let ends = run(buffer, work, count, &mut |event| match event {
        Event::Time => watch.tell_now_and_then(buffer, work.tally.totals()),
        Event::Warning(message) => watch.warn(message),
    });
    outcome(buffer, ends)
}

/// What the thread that waits for the others may want to know.
pub(crate) enum Event {
    /// A moment has passed.
    Time,
    /// Something went wrong that does not stop the work.
    Warning(String),
}

/// Paints with `count` threads, and says how each of them ended.
pub(crate) fn run<T: Element>(
    buffer: &RenderBuffer<T, IxDyn>,
    work: &Work<'_>,
    count: usize,
    tell: &mut dyn FnMut(Event),
) -> Vec<Result<Ended>> {
    let left = buffer.progress();
    let left = (left.total - left.done).max(1);
    let count = worker_count(count).min(left);
    if !work.source.is_remote() {
        return thread::scope(|scope| {
            let mut crew = Crew::new(scope, work.abort);
            for number in 0..count {
                crew.start("paint", number, tell, move || paint::paint(buffer, work));
            }
            crew.wait(tell)
        });
    }
    let requests = work.requests.clamp(1, left);
    let meta = work.source.meta();
    let chunk = meta.chunk_shape.iter().fold(meta.dtype.size() as u64, |bytes, length| bytes.saturating_mul(*length));
    let budget = &Budget::new(work.in_flight, chunk);
    thread::scope(|scope| {
        // Dropped by the last decoder, so that no fetcher waits for a queue that nobody empties.
        let (sender, receiver) = mpsc::sync_channel(count);
        let receiver = std::sync::Arc::new(Mutex::new(receiver));
        let mut crew = Crew::new(scope, work.abort);
        for number in 0..count {
            let receiver = std::sync::Arc::clone(&receiver);
            crew.start("decode", number, tell, move || decode(&receiver, work));
        }
        drop(receiver);
        for number in 0..requests {
            let sender = sender.clone();
            crew.start("fetch", number, tell, move || {
                while_wanted(work.flags(), || fetch(buffer, work, budget, &sender))
            });
        }
        drop(sender);
        crew.wait(tell)
    })
}

/// A chunk on its way from who fetched it to who decodes it.
struct Parcel<'a, T: Element> {
    claim: ChunkClaim<'a, T, IxDyn>,
    region: Vec<Range<i64>>,
    fetched: Fetched,
    reserved: Reserved<'a>,
}

/// Fetches until nothing is left, or a flag is raised.
fn fetch<'a, T: Element>(
    buffer: &'a RenderBuffer<T, IxDyn>,
    work: &Work<'_>,
    budget: &'a Budget,
    queue: &SyncSender<Parcel<'a, T>>,
) -> Result<Ended> {
    let mut watch = Stopwatch::start(work.tally);
    loop {
        // Room first: a claim that waits for it would keep the chunk from others.
        let Some(mut reserved) = budget.reserve(work.flags()) else { return Ok(Ended::Stopped) };
        watch.was(Phase::Waiting);
        let claim = match work.walk.next(buffer, work.flags())? {
            Step::Chunk(claim) => claim,
            Step::Complete => return Ok(Ended::Complete),
            Step::Stopped => return Ok(Ended::Stopped),
        };
        watch.was(Phase::Claiming);
        let region = in_volume(claim.region(), work.bbox);
        let fetched = match work.source.fetch(&region) {
            // Who is stopped while a server is silent has nothing to say about the server.
            Err(Error::Store { .. }) if work.flags().iter().any(|flag| flag.is_stopped()) => return Ok(Ended::Stopped),
            answer => answer?,
        };
        work.tally.fetched(fetched.len());
        reserved.correct(fetched.len() as u64);
        watch.was(Phase::Fetching);
        if queue.send(Parcel { claim, region, fetched, reserved }).is_err() {
            return Ok(Ended::Stopped);
        }
        watch.was(Phase::Waiting);
    }
}

/// Decodes and paints what was fetched, to the end also after an error: it need not be fetched again.
fn decode<T: Element>(queue: &Mutex<Receiver<Parcel<'_, T>>>, work: &Work<'_>) -> Result<Ended> {
    let mut painter = Painter::new(work);
    let mut watch = Stopwatch::start(work.tally);
    let mut first = None;
    loop {
        // Whoever panics does not hold this lock.
        let parcel = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        watch.was(Phase::Waiting);
        let Ok(Parcel { claim, region, fetched, reserved }) = parcel else { break };
        if let Err(error) = painter.paint(claim, &region, fetched, &mut watch) {
            work.abort.stop();
            first.get_or_insert(error);
        }
        drop(reserved);
    }
    first.map_or(Ok(Ended::Complete), Err)
}

/// Threads that work on the same, and are told when one of them fails.
struct Crew<'scope, 'env, 'work> {
    scope: &'scope thread::Scope<'scope, 'env>,
    abort: &'work StopFlag,
    members: Vec<ScopedJoinHandle<'scope, Result<Ended>>>,
    refused: Option<Error>,
    /// Disconnected when the last member ends.
    sender: Option<mpsc::Sender<()>>,
    silence: Receiver<()>,
}

impl<'scope, 'work: 'scope> Crew<'scope, '_, 'work> {
    fn new<'env>(scope: &'scope thread::Scope<'scope, 'env>, abort: &'work StopFlag) -> Crew<'scope, 'env, 'work> {
        let (sender, silence) = mpsc::channel();
        Crew { scope, abort, members: Vec::new(), refused: None, sender: Some(sender), silence }
    }

    /// Starts one of its kind; that it cannot be started is a warning while there are others.
    fn start(
        &mut self,
        kind: &str,
        number: usize,
        tell: &mut dyn FnMut(Event),
        job: impl FnOnce() -> Result<Ended> + Send + 'scope,
    ) {
        let (abort, sender) = (self.abort, self.sender.clone());
        let name = format!("{kind}-{number}");
        let member = thread::Builder::new().name(name.clone()).spawn_scoped(self.scope, move || {
            let _silence = sender;
            let alarm = Alarm(abort);
            let end = job();
            if end.is_ok() {
                std::mem::forget(alarm);
            }
            end
        });
        match member {
            Ok(member) => self.members.push(member),
            Err(error) if number == 0 => {
                self.abort.stop();
                self.refused = Some(Error::io("starting a thread for", name, error));
            }
            Err(error) => tell(Event::Warning(format!("worker thread {name} could not be started: {error}"))),
        }
    }

    /// Waits for all, and says how each of them ended.
    fn wait(mut self, tell: &mut dyn FnMut(Event)) -> Vec<Result<Ended>> {
        self.sender = None;
        // Nothing is ever sent: this is a clock that stops when the last one ends.
        while let Err(RecvTimeoutError::Timeout) = self.silence.recv_timeout(PATIENCE) {
            tell(Event::Time);
        }
        let ends = self.members.into_iter().map(|member| member.join().unwrap_or_else(|panic| Err(panicked(&*panic))));
        self.refused.map(Err).into_iter().chain(ends).collect()
    }
}

/// Stops the colleagues of a worker that fails or panics.
struct Alarm<'a>(&'a StopFlag);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn outcome<T: Element>(buffer: &RenderBuffer<T, IxDyn>, ends: Vec<Result<Ended>>) -> Outcome {
    let progress = buffer.progress();
    if progress.is_complete() {
        return Outcome::Complete;
    }
    match ends.into_iter().find_map(Result::err) {
        Some(Error::Painting { report, .. }) => {
            Outcome::Failed(Error::Painting { report, done: progress.done, total: progress.total })
        }
        Some(error) => Outcome::Failed(error),
        None => Outcome::Stopped,
    }
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    let message = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without a message".to_owned());
    Error::Painting { report: format!("a worker thread panicked: {message}"), done: 0, total: 0 }
}
