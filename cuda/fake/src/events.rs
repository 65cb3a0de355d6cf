//! Events: positions of the work that they were recorded behind. There are none that processes share.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::{Arc, Mutex};

use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_READY, CUDA_ERROR_NOT_SUPPORTED,
};

use crate::calls::{Answer, Out, exported, locked, new_handle};
use crate::streams::{Action, Position};
use crate::{contexts, streams, watch};

exported! {
    cuEventCreate(event: Out<usize>, flags: c_uint) Ready => create;
    cuEventDestroy_v2(event: usize) Ready => destroy;
    cuEventRecord(event: usize, stream: usize) Ready => record;
    cuCtxRecordEvent(context: usize, event: usize) Ready => record_context;
    cuEventQuery(event: usize) Ready => query;
    cuEventSynchronize(event: usize) Ready => synchronize;
}

const DISABLE_TIMING: c_uint = 2;
const INTERPROCESS: c_uint = 4;

#[derive(Clone)]
struct Event {
    context: usize,
    /// The work after which it was recorded, in one stream or in all of a context.
    latest: Arc<Mutex<Vec<Position>>>,
}

static EVENTS: Mutex<BTreeMap<usize, Event>> = Mutex::new(BTreeMap::new());

/// Number of events of the program.
pub(crate) fn live() -> usize {
    locked(&EVENTS).len()
}

/// Destroys the events of a context.
pub(crate) fn end_context(context: usize) {
    locked(&EVENTS).retain(|_, event| event.context != context);
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

/// The work after which an event was recorded last. Empty if it was not.
pub(crate) fn latest(event: usize) -> Answer<Vec<Position>> {
    Ok(locked(&find(event)?.latest).clone())
}

fn create(out: Out<usize>, flags: c_uint) -> Answer {
    let context = contexts::current()?.context;
    if flags > 7 || out.is_null() || flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if flags & INTERPROCESS != 0 {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let handle = new_handle();
    locked(&EVENTS).insert(handle, Event { context, latest: Arc::default() });
    out.give(handle)
}

fn destroy(event: usize) -> Answer {
    find(event)?;
    locked(&EVENTS).remove(&event);
    Ok(())
}

fn record(event: usize, stream: usize) -> Answer {
    let event = find(event)?;
    let stream = streams::find(stream)?;
    if streams::context_of(stream)? != event.context {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    // Under the lock, so that recordings of several threads keep the order of their work.
    let mut latest = locked(&event.latest);
    *latest = vec![streams::submit(stream, Action::Nothing.into())?];
    Ok(())
}

fn record_context(context: usize, event: usize) -> Answer {
    let event = find(event)?;
    contexts::gpu_of(context)?;
    if event.context != context {
        return Err(CUDA_ERROR_INVALID_HANDLE);
    }
    *locked(&event.latest) = streams::latest_of(context);
    Ok(())
}

fn query(event: usize) -> Answer {
    if latest(event)?.into_iter().all(streams::done) { Ok(()) } else { Err(CUDA_ERROR_NOT_READY) }
}

fn synchronize(event: usize) -> Answer {
    latest(event)?.into_iter().for_each(streams::wait);
    Ok(())
}
