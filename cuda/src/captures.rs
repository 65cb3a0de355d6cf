//! Graph captures by other code of this process, which some calls of the driver end.
//!
//! No call says whether any stream is captured. Those that may be must be known, and are asked one by one.

#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::{CUcontext, CUstream};

use crate::context::Current;
use crate::driver::{call, code};
use crate::error::Result;

/// The streams that may be captured, as numbers, by context.
static KNOWN: Mutex<BTreeMap<usize, BTreeSet<usize>>> = Mutex::new(BTreeMap::new());

/// Remembers streams that may be captured.
///
/// # Safety
///
/// The streams are of this context, and are never destroyed.
pub(crate) unsafe fn remember(context: CUcontext, streams: &[CUstream]) -> Result<()> {
    let _current = Current::of(context)?; // refuses forked children, which must not take the lock
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.entry(context.addr()).or_default().extend(streams.iter().map(|stream| stream.expose_provenance()));
    Ok(())
}

/// Returns whether one of the known streams, or any that the legacy default stream waits for, is captured.
pub(crate) fn is_known(context: CUcontext) -> Result<bool> {
    let current = Current::of(context)?;
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get(&context.addr()).cloned();
    let legacy = 1;
    for stream in known.unwrap_or_default().into_iter().chain([legacy]) {
        // SAFETY: the legacy stream is the driver's, and `remember` was promised that the others exist.
        if unsafe { of_stream(&current, std::ptr::with_exposed_provenance_mut(stream)) }? != Capture::Nothing {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What the driver says of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capture {
    Nothing,
    /// The stream is captured.
    OfIt,
    /// The stream is the legacy default stream, which would have to wait for one that is captured.
    OfAnother,
}

/// Returns what is captured of a stream.
///
/// # Safety
///
/// The stream exists.
pub(crate) unsafe fn of_stream(current: &Current, stream: CUstream) -> Result<Capture> {
    let mut state: c_int = 0;
    // SAFETY: `state` is valid for the write of a status; the caller promises the rest.
    match unsafe { call!(current.functions, cuStreamIsCapturing(stream, &raw mut state)) } {
        Ok(()) => Ok(if state == 0 { Capture::Nothing } else { Capture::OfIt }),
        Err(error) if error.driver_code() == Some(code::CAPTURE_IMPLICIT) => Ok(Capture::OfAnother),
        Err(error) => Err(error),
    }
}
