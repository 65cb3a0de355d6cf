//! Events. An event of one process is the position of the work that it was recorded behind.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY,
};

use crate::calls::{Answer, Out, exported, locked, new_handle};
use crate::remote::{RemoteFile, Ticket};
use crate::shared_event::SharedEvent;
use crate::streams::{Action, Dependency, Position};
use crate::{contexts, streams, watch};

exported! {
    cuEventCreate(event: Out<usize>, flags: c_uint) Ready => create;
    cuEventDestroy_v2(event: usize) Ready => destroy;
    cuEventRecord(event: usize, stream: usize) Ready => record;
    cuCtxRecordEvent(context: usize, event: usize) Ready => record_context;
    cuEventQuery(event: usize) Ready => query;
    cuEventSynchronize(event: usize) Ready => synchronize;
    cuIpcGetEventHandle(handle: Out<Ticket>, event: usize) Ready => get_handle;
    cuIpcOpenEventHandle(event: Out<usize>, handle: Ticket) Ready => open_handle;
}

const DISABLE_TIMING: c_uint = 2;
const INTERPROCESS: c_uint = 4;

/// What an event has recorded.
#[derive(Clone)]
enum State {
    /// For this process: the work after which it was recorded, in one stream or in all of a context.
    Local(Arc<Mutex<Vec<Position>>>),
    Shared(Arc<SharedEvent>),
}

#[derive(Clone)]
struct Event {
    context: usize,
    state: State,
}

static EVENTS: Mutex<BTreeMap<usize, Event>> = Mutex::new(BTreeMap::new());

/// Number of events of the program.
pub(crate) fn live() -> usize {
    locked(&EVENTS).len()
}

/// Destroys the events of a context.
pub(crate) fn end_context(context: usize) {
    locked(&EVENTS).retain(|_, event| {
        let stays = event.context != context;
        if let State::Shared(event) = &event.state
            && !stays
        {
            event.destroy();
        }
        stays
    });
}

/// Finds an event. Destroyed and unknown ones are violations.
fn find(event: usize) -> Answer<Event> {
    let known = locked(&EVENTS).get(&event).cloned();
    known.ok_or_else(|| {
        if event != 0 {
            watch::violation(format!("use of the unknown or destroyed event {event:#x}"));
        }
        CUDA_ERROR_INVALID_HANDLE
    })
}

/// The latest recording of an event, for work that has to wait for it. Empty if there is none.
pub(crate) fn latest(event: usize) -> Answer<Vec<Dependency>> {
    Ok(match find(event)?.state {
        State::Local(latest) => locked(&latest).iter().copied().map(Dependency::Work).collect(),
        State::Shared(event) => match event.latest() {
            0 => Vec::new(),
            record => vec![Dependency::Record(event, record)],
        },
    })
}

fn add(out: Out<usize>, state: State) -> Answer {
    let context = contexts::current()?.context;
    let handle = new_handle();
    locked(&EVENTS).insert(handle, Event { context, state });
    out.give(handle)
}

fn create(out: Out<usize>, flags: c_uint) -> Answer {
    contexts::current()?;
    let interprocess = flags & INTERPROCESS != 0;
    if flags > 7 || out.is_null() || interprocess && flags & DISABLE_TIMING == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let state =
        if interprocess { State::Shared(Arc::new(SharedEvent::create()?)) } else { State::Local(Arc::default()) };
    add(out, state)
}

fn destroy(event: usize) -> Answer {
    if let State::Shared(event) = find(event)?.state {
        event.destroy();
    }
    locked(&EVENTS).remove(&event);
    Ok(())
}

fn record(event: usize, stream: usize) -> Answer {
    let event = find(event)?;
    let stream = streams::find(stream)?;
    if streams::context_of(stream)? != event.context {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    match event.state {
        State::Local(latest) => {
            // Under the lock, so that recordings of several threads keep the order of their work.
            let mut latest = locked(&latest);
            *latest = vec![streams::submit(stream, Action::Nothing.into())?];
        }
        State::Shared(event) => {
            let record = event.record()?;
            let submitted = streams::submit(stream, Action::Record(event.clone(), record).into());
            submitted.inspect_err(|_| event.complete(record))?;
        }
    }
    Ok(())
}

fn record_context(context: usize, event: usize) -> Answer {
    let event = find(event)?;
    contexts::gpu_of(context)?;
    match event.state {
        State::Local(latest) if event.context == context => {
            *locked(&latest) = streams::latest_of(context);
            Ok(())
        }
        _ => Err(CUDA_ERROR_INVALID_HANDLE),
    }
}

fn query(event: usize) -> Answer {
    let done = latest(event)?.into_iter().all(|dependency| match dependency {
        Dependency::Work(position) => streams::done(position),
        Dependency::Record(event, record) => event.is_done(record),
    });
    if done { Ok(()) } else { Err(CUDA_ERROR_NOT_READY) }
}

fn synchronize(event: usize) -> Answer {
    for dependency in latest(event)? {
        match dependency {
            Dependency::Work(position) => streams::wait(position),
            Dependency::Record(event, record) => streams::wait_for_record(&event, record),
        }
    }
    Ok(())
}

fn get_handle(out: Out<Ticket>, event: usize) -> Answer {
    let State::Shared(event) = find(event)?.state else { return Err(CUDA_ERROR_INVALID_HANDLE) };
    let [file, inode] = event.remote()?.words();
    out.give(Ticket::new([file, inode, 0, 0, 0, 0, 0, 0]))
}

fn open_handle(out: Out<usize>, handle: Ticket) -> Answer {
    contexts::current()?;
    let [file, inode, ..] = handle.words();
    let file = RemoteFile::from_words([file, inode]);
    if file.pid == std::process::id() {
        return Err(CUDA_ERROR_INVALID_CONTEXT);
    }
    if out.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    add(out, State::Shared(Arc::new(SharedEvent::open(file)?)))
}
