//! Streams: queues of work. Each one that has work to wait for has a thread, until its queue is empty.
//!
//! Work is numbered by its stream. It may have to wait for work of other streams, which was submitted before, so that
//! no circle arises: for an event, and, as in the driver, for the context's NULL stream or, in the NULL stream, for the
//! context's blocking streams. The NULL stream has the number of its context.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::CUresult;
use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_NOT_READY,
    CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_UNKNOWN,
};

use crate::calls::{Answer, Out, exported, locked, new_handle, panic_text};
use crate::copies::Copy;
use crate::machine::machine;
use crate::{captures, contexts, events, legacy, watch};

exported! {
    cuStreamCreate(stream: Out<usize>, flags: c_uint) Ready => create;
    cuStreamCreateWithPriority(stream: Out<usize>, flags: c_uint, priority: c_int) Ready => create_with_priority;
    cuStreamDestroy_v2(stream: usize) Ready => destroy;
    cuStreamSynchronize(stream: usize) Ready => synchronize;
    cuStreamQuery(stream: usize) Ready => query;
    cuStreamWaitEvent(stream: usize, event: usize, flags: c_uint) Ready => wait_event;
    cuStreamGetCtx(stream: usize, context: Out<usize>) Ready => get_context;
    cuLaunchHostFunc(stream: usize, function: Option<HostFunction>, data: *mut c_void) Ready => launch;
}

/// A function of the program that a stream calls.
type HostFunction = unsafe extern "C" fn(*mut c_void);

/// What work does when its turn has come.
pub(crate) enum Action {
    /// Only its place in the order matters.
    Nothing,
    Copy(Copy),
    Host(HostFunction, usize),
    /// `cuMemFreeAsync` of the memory at this address.
    Free(usize),
}

/// The place of work: the stream, and how much work that stream has done after it.
#[derive(Clone, Copy)]
pub(crate) struct Position {
    stream: usize,
    number: u64,
}

/// Work to submit.
pub(crate) struct Work {
    pub(crate) action: Action,
    /// What it waits for.
    pub(crate) after: Vec<Position>,
    /// Addresses that the work reads or writes.
    pub(crate) touches: Vec<Range<usize>>,
    /// Where a synchronous call takes the result from; without it, an error stays in the stream.
    pub(crate) result: Option<Arc<Mutex<Answer>>>,
}

impl From<Action> for Work {
    fn from(action: Action) -> Self {
        Self { action, after: Vec::new(), touches: Vec::new(), result: None }
    }
}

/// A stream's queue.
struct Stream {
    context: usize,
    /// Whether it is ordered with the NULL stream.
    blocking: bool,
    queue: VecDeque<Work>,
    /// What the work touches that is being done.
    running: Option<Vec<Range<usize>>>,
    submitted: u64,
    done: u64,
    has_thread: bool,
    /// Destroyed: no new work, but what was submitted is done.
    ended: bool,
    error: Option<CUresult>,
}

type Streams = BTreeMap<usize, Stream>;

static STREAMS: Mutex<Streams> = Mutex::new(BTreeMap::new());

/// Work is done, or a stream has ended.
static PROGRESS: Condvar = Condvar::new();

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is in a function that a stream called, where calls of the driver are forbidden.
pub(crate) fn in_host_function() -> bool {
    IN_HOST_FUNCTION.try_with(Cell::get).unwrap_or(false)
}

impl Stream {
    fn new(context: usize, blocking: bool) -> Self {
        Self {
            context,
            blocking,
            queue: VecDeque::new(),
            running: None,
            submitted: 0,
            done: 0,
            has_thread: false,
            ended: false,
            error: None,
        }
    }

    fn idle(&self) -> bool {
        self.done == self.submitted
    }
}

/// Whether what work waits for has happened.
fn ready(streams: &Streams, after: &[Position]) -> bool {
    after.iter().all(|position| is_done(streams, *position))
}

fn is_done(streams: &Streams, position: Position) -> bool {
    // A stream is forgotten when it has ended and is idle.
    streams.get(&position.stream).is_none_or(|stream| stream.done >= position.number)
}

/// The stream of a handle, as the number under which work is submitted. Destroyed and unknown streams are violations.
pub(crate) fn find(stream: usize) -> Answer<usize> {
    // NULL, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD.
    if is_default(stream) {
        let context = contexts::current()?.context;
        locked(&STREAMS).entry(context).or_insert_with(|| Stream::new(context, false));
        return Ok(context);
    }
    let known = locked(&STREAMS).get(&stream).is_some_and(|known| !known.ended && known.context != stream);
    if known {
        return Ok(stream);
    }
    watch::violation(format!("use of the unknown or destroyed stream {stream:#x}"));
    Err(CUDA_ERROR_INVALID_HANDLE)
}

/// Whether this is NULL, `CU_STREAM_LEGACY` or `CU_STREAM_PER_THREAD`.
pub(crate) fn is_default(stream: usize) -> bool {
    stream <= 2
}

/// Whether a stream that [`find`] has found is the NULL stream of a context.
pub(crate) fn is_null(stream: usize) -> bool {
    locked(&STREAMS).get(&stream).is_some_and(|known| known.context == stream)
}

/// Whether a stream that [`find`] has found is ordered with the NULL stream.
pub(crate) fn is_blocking(stream: usize) -> bool {
    locked(&STREAMS).get(&stream).is_some_and(|stream| stream.blocking)
}

/// The context of a stream that [`find`] has found.
pub(crate) fn context_of(stream: usize) -> Answer<usize> {
    locked(&STREAMS).get(&stream).map(|stream| stream.context).ok_or(CUDA_ERROR_INVALID_HANDLE)
}

/// Submits work to a stream that [`find`] has found. That of a captured stream becomes part of a graph, which is never
/// launched here.
pub(crate) fn submit(id: usize, mut work: Work) -> Answer<Position> {
    captures::allow_work_of(id)?;
    if captures::has(id) {
        return Ok(Position { stream: id, number: 0 });
    }
    let mut streams = locked(&STREAMS);
    let stream = streams.get(&id).filter(|stream| !stream.ended).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    let (context, blocking) = (stream.context, stream.blocking);
    let ordered = streams.iter().filter(|&(&other, stream)| {
        let with_null = if id == context { stream.blocking } else { blocking && other == context };
        with_null && other != id && stream.context == context && !stream.idle()
    });
    let ordered = ordered.map(|(&stream, other)| Position { stream, number: other.submitted });
    work.after.extend(ordered.collect::<Vec<_>>());

    let at_once = machine()?.delay.is_zero()
        && !matches!(work.action, Action::Host(..))
        && streams.get(&id).is_some_and(Stream::idle)
        && ready(&streams, &work.after);
    let stream = streams.get_mut(&id).ok_or(CUDA_ERROR_INVALID_HANDLE)?;
    stream.submitted += 1;
    let position = Position { stream: id, number: stream.submitted };
    if at_once {
        stream.running = Some(std::mem::take(&mut work.touches));
        drop(streams);
        let failed = perform(work);
        finish(&mut locked(&STREAMS), id, failed);
        return Ok(position);
    }
    if !stream.has_thread {
        let name = format!("fake-cuda {id:x}");
        if std::thread::Builder::new().name(name).spawn(move || do_queue(id)).is_err() {
            stream.submitted -= 1;
            return Err(CUDA_ERROR_OPERATING_SYSTEM);
        }
        stream.has_thread = true;
    }
    stream.queue.push_back(work);
    PROGRESS.notify_all();
    Ok(position)
}

/// Submits work, waits for it, and returns its result.
pub(crate) fn submit_and_wait(id: usize, mut work: Work) -> Answer {
    let result = Arc::new(Mutex::new(Ok(())));
    work.result = Some(result.clone());
    wait(submit(id, work)?);
    *locked(&result)
}

/// Does a stream's work until there is no more.
fn do_queue(id: usize) {
    let mut streams = locked(&STREAMS);
    loop {
        let Some(stream) = streams.get_mut(&id) else { return };
        if stream.running.is_none() && stream.queue.is_empty() {
            stream.has_thread = false;
            forget_ended(&mut streams);
            return;
        }
        let stream = &streams[&id];
        let first = stream.queue.front().filter(|_| stream.running.is_none());
        if first.is_some_and(|work| ready(&streams, &work.after)) {
            let Some(mut work) = streams.get_mut(&id).and_then(|stream| {
                let mut work = stream.queue.pop_front()?;
                stream.running = Some(std::mem::take(&mut work.touches));
                Some(work)
            }) else {
                continue;
            };
            drop(streams);
            work.after.clear();
            std::thread::sleep(machine().map_or(Duration::ZERO, |machine| machine.delay));
            let failed = perform(work);
            streams = locked(&STREAMS);
            finish(&mut streams, id, failed);
        } else {
            streams = wait_for_progress(streams);
        }
    }
}

fn wait_for_progress(streams: MutexGuard<'_, Streams>) -> MutexGuard<'_, Streams> {
    PROGRESS.wait(streams).unwrap_or_else(PoisonError::into_inner)
}

/// Does work, and returns the error that stays in its stream.
fn perform(work: Work) -> Option<CUresult> {
    let done = catch_unwind(AssertUnwindSafe(|| match work.action {
        Action::Nothing => Ok(()),
        Action::Copy(copy) => copy.perform(),
        Action::Host(function, data) => {
            IN_HOST_FUNCTION.set(true);
            // SAFETY: the caller of `cuLaunchHostFunc` promises that the function may be called with this argument in
            // this thread.
            unsafe { function(std::ptr::with_exposed_provenance_mut(data)) };
            IN_HOST_FUNCTION.set(false);
            Ok(())
        }
        Action::Free(address) => legacy::free_in_order(address),
    }));
    let done = done.unwrap_or_else(|panic| {
        watch::violation(format!("work of a stream panicked: {}", panic_text(&*panic)));
        Err(CUDA_ERROR_UNKNOWN)
    });
    match work.result {
        Some(result) => {
            *locked(&result) = done;
            None
        }
        None => done.err(),
    }
}

fn finish(streams: &mut Streams, id: usize, failed: Option<CUresult>) {
    if let Some(stream) = streams.get_mut(&id) {
        stream.running = None;
        stream.done += 1;
        stream.error = stream.error.or(failed);
    }
    forget_ended(streams);
}

/// Forgets streams that have ended, and wakes what waits for progress.
fn forget_ended(streams: &mut Streams) {
    streams.retain(|_, stream| !stream.ended || !stream.idle() || stream.has_thread);
    PROGRESS.notify_all();
}

/// The latest work of each stream of a context.
pub(crate) fn latest_of(context: usize) -> Vec<Position> {
    let streams = locked(&STREAMS);
    let of_context = streams.iter().filter(|(_, stream)| stream.context == context);
    of_context.map(|(&id, stream)| Position { stream: id, number: stream.submitted }).collect()
}

/// Whether work is done.
pub(crate) fn done(position: Position) -> bool {
    is_done(&locked(&STREAMS), position)
}

/// Waits until work is done.
pub(crate) fn wait(position: Position) {
    let mut streams = locked(&STREAMS);
    while !is_done(&streams, position) {
        streams = wait_for_progress(streams);
    }
}

/// Counts a violation if unfinished work touches these addresses.
pub(crate) fn must_be_unused(range: &Range<usize>, call: &str) {
    let overlaps = |touched: &Range<usize>| touched.start < range.end && range.start < touched.end;
    let used = locked(&STREAMS).values().any(|stream| {
        let waiting = stream.queue.iter().flat_map(|work| &work.touches);
        waiting.chain(stream.running.iter().flatten()).any(overlaps)
    });
    if used {
        watch::violation(format!("{call} of memory that unfinished work of a stream uses, {range:#x?}"));
    }
}

/// Number of streams that the program has created and not destroyed.
pub(crate) fn live() -> usize {
    locked(&STREAMS).iter().filter(|&(&id, stream)| id != stream.context && !stream.ended).count()
}

/// Waits for the work of a context.
pub(crate) fn synchronize_context(context: usize) -> Answer {
    settle(|_, stream| stream.context == context)
}

/// Waits for the work that these streams have now, and answers the error of one of them.
fn settle(selected: impl Fn(usize, &Stream) -> bool) -> Answer {
    let mut streams = locked(&STREAMS);
    let positions: Vec<Position> = streams
        .iter()
        .filter(|&(&id, stream)| selected(id, stream))
        .map(|(&id, stream)| Position { stream: id, number: stream.submitted })
        .collect();
    while !positions.iter().all(|position| is_done(&streams, *position)) {
        streams = wait_for_progress(streams);
    }
    let failed = streams.iter().filter(|&(&id, stream)| selected(id, stream)).find_map(|(_, stream)| stream.error);
    failed.map_or(Ok(()), Err)
}

/// Whether a stream is the given one or, if that is a NULL stream, a blocking stream of its context.
fn belongs(id: usize, stream: &Stream, to: usize) -> bool {
    id == to || stream.blocking && stream.context == to
}

/// Ends the streams of a context, after their work.
pub(crate) fn end_context(context: usize) {
    let _ = synchronize_context(context); // errors end with the context
    let mut streams = locked(&STREAMS);
    streams.values_mut().filter(|stream| stream.context == context).for_each(|stream| stream.ended = true);
    forget_ended(&mut streams);
}

fn create(out: Out<usize>, flags: c_uint) -> Answer {
    let context = contexts::current()?.context;
    if flags > 1 || out.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let id = new_handle();
    locked(&STREAMS).insert(id, Stream::new(context, flags == 0));
    out.give(id)
}

fn create_with_priority(out: Out<usize>, flags: c_uint, _priority: c_int) -> Answer {
    create(out, flags)
}

fn destroy(stream: usize) -> Answer {
    if stream <= 2 {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    let id = find(stream)?;
    let mut streams = locked(&STREAMS);
    if let Some(stream) = streams.get_mut(&id) {
        stream.ended = true;
    }
    forget_ended(&mut streams);
    Ok(())
}

fn synchronize(stream: usize) -> Answer {
    let found = find(stream)?;
    settle(|id, stream| belongs(id, stream, found))
}

fn query(stream: usize) -> Answer {
    let found = find(stream)?;
    let streams = locked(&STREAMS);
    let of_call = || streams.iter().filter(|&(&id, stream)| belongs(id, stream, found)).map(|(_, stream)| stream);
    if let Some(error) = of_call().find_map(|stream| stream.error) {
        return Err(error);
    }
    if of_call().all(Stream::idle) { Ok(()) } else { Err(CUDA_ERROR_NOT_READY) }
}

fn wait_event(stream: usize, event: usize, flags: c_uint) -> Answer {
    let id = find(stream)?;
    let after = events::latest(event)?;
    if flags > 1 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if !after.is_empty() {
        submit(id, Work { after, ..Action::Nothing.into() })?;
    }
    Ok(())
}

fn get_context(stream: usize, out: Out<usize>) -> Answer {
    out.give(context_of(find(stream)?)?)
}

fn launch(stream: usize, function: Option<HostFunction>, data: *mut c_void) -> Answer {
    let id = find(stream)?;
    let function = function.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    submit(id, Action::Host(function, data.expose_provenance()).into()).or(Err(CUDA_ERROR_LAUNCH_FAILED))?;
    Ok(())
}
