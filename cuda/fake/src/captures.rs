//! Graph captures in global mode: which calls end one, as driver 580 does on an H100. A call that ends a capture of
//! another thread is a violation.
//!
//! With `FAKE_CUDA_CAPTURE=1` a thread of the program captures a stream all the time that does not block and that this
//! library knows nothing of. No call tells of that capture.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Mutex;

use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_ILLEGAL_STATE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
};

use crate::calls::{Answer, Out, exported, locked, new_handle};
use crate::machine::machine;
use crate::{streams, watch};

exported! {
    cuStreamBeginCapture_v2(stream: usize, mode: c_int) Ready => begin;
    cuStreamEndCapture(stream: usize, graph: Out<usize>) Ready => end;
    cuStreamIsCapturing(stream: usize, status: Out<c_int>) Ready => is_capturing;
    cuThreadExchangeStreamCaptureMode(mode: Out<c_int>) Ready => exchange_mode;
}

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`, the mode of a new thread.
const GLOBAL: c_int = 0;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

/// Calls that end a capture unless the thread is in relaxed mode.
const UNSAFE: &[&str] = &[
    "cuEventQuery",
    "cuEventSynchronize",
    "cuMemAlloc_v2",
    "cuMemHostRegister_v2",
    "cuStreamQuery",
    "cuStreamSynchronize",
];
/// Calls that end a capture in every mode.
const NEVER: &[&str] = &["cuCtxRecordEvent", "cuCtxSynchronize"];

/// The captured streams, and whether the capture is lost.
static CAPTURED: Mutex<BTreeMap<usize, bool>> = Mutex::new(BTreeMap::new());

thread_local! {
    static MODE: Cell<c_int> = const { Cell::new(GLOBAL) };
}

/// Whether a stream is captured.
pub(crate) fn has(stream: usize) -> bool {
    locked(&CAPTURED).contains_key(&stream)
}

/// Whether a blocking stream is captured, for which the default stream would have to wait.
fn has_blocking() -> bool {
    let captured: Vec<usize> = locked(&CAPTURED).keys().copied().collect();
    captured.into_iter().any(streams::is_blocking)
}

fn lose(what: &str) {
    watch::violation(format!("{what} ended a graph capture"));
    locked(&CAPTURED).values_mut().for_each(|is_lost| *is_lost = true);
}

/// Refuses a call that ends captures.
pub(crate) fn allow(call: &str) -> Answer {
    let is_relaxed = MODE.try_with(Cell::get).is_ok_and(|mode| mode == RELAXED);
    let ends = NEVER.contains(&call) || !is_relaxed && UNSAFE.contains(&call);
    let captures = machine()?.captures || !locked(&CAPTURED).is_empty();
    if !ends || !captures {
        return Ok(());
    }
    lose(call);
    Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
}

/// Refuses work of the default stream while a stream is captured that it would have to wait for, and ends the capture.
/// The stream is one that `streams::find` has found.
pub(crate) fn allow_work_of(stream: usize) -> Answer {
    if !streams::is_null(stream) || !has_blocking() {
        return Ok(());
    }
    lose("work of the default stream");
    Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
}

fn begin(stream: usize, mode: c_int) -> Answer {
    let found = streams::find(stream)?;
    if mode != GLOBAL {
        return Err(CUDA_ERROR_INVALID_VALUE); // the only one of this library
    }
    if streams::is_default(stream) {
        return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    match locked(&CAPTURED).insert(found, false) {
        None => Ok(()),
        Some(_) => Err(CUDA_ERROR_ILLEGAL_STATE),
    }
}

fn end(stream: usize, graph: Out<usize>) -> Answer {
    match locked(&CAPTURED).remove(&streams::find(stream)?) {
        None => Err(CUDA_ERROR_ILLEGAL_STATE),
        Some(true) => Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        Some(false) => graph.give(new_handle()),
    }
}

fn is_capturing(stream: usize, status: Out<c_int>) -> Answer {
    let found = streams::find(stream)?;
    if streams::is_default(stream) {
        return if has_blocking() { Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) } else { status.give(0) };
    }
    status.give(match locked(&CAPTURED).get(&found) {
        None => 0,
        Some(false) => 1,
        Some(true) => 2,
    })
}

fn exchange_mode(mode: Out<c_int>) -> Answer {
    let new = mode.read()?;
    mode.give(MODE.try_with(|mode| mode.replace(new)).unwrap_or(new))
}
