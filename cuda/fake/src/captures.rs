//! Graph captures: whether a thread of the program captures a stream, as `FAKE_CUDA_CAPTURE=1` says, and which calls of
//! other threads end that.
//!
//! The captured stream is not one of this library, and does not block. The calls are those of driver 580 on an H100.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;

use cudarc::driver::sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;

use crate::calls::{Answer, Out, exported};
use crate::machine::machine;
use crate::{streams, watch};

exported! {
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
const NEVER: &[&str] = &["cuCtxSynchronize"];

thread_local! {
    static MODE: Cell<c_int> = const { Cell::new(GLOBAL) };
}

/// Refuses a call that ends the capture, which is a violation.
pub(crate) fn allow(call: &str) -> Answer {
    let is_relaxed = MODE.try_with(Cell::get).is_ok_and(|mode| mode == RELAXED);
    let ends = NEVER.contains(&call) || !is_relaxed && UNSAFE.contains(&call);
    if !ends || !machine()?.captures {
        return Ok(());
    }
    watch::violation(format!("{call} ended a graph capture"));
    Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
}

fn is_capturing(stream: usize, status: Out<c_int>) -> Answer {
    streams::find(stream)?;
    status.give(0)
}

fn exchange_mode(mode: Out<c_int>) -> Answer {
    let new = mode.read()?;
    mode.give(MODE.try_with(|mode| mode.replace(new)).unwrap_or(new))
}
