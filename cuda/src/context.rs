//! Contexts: what the driver keeps of a GPU for this process. Most calls are for the context that is current in their
//! thread.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUcontext;

use crate::driver::{Functions, call, functions, is_by_capture};
use crate::error::Result;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`: the thread's calls end no graph capture of another thread, except those that wait
/// for a whole context.
const RELAXED: c_int = 2;

/// A context that is current in this thread, which is in relaxed capture mode. Dropping it restores what was before.
pub(crate) struct Current {
    pub(crate) functions: &'static Functions,
    /// The thread's capture mode before.
    mode: c_int,
    /// The current context belongs to the thread.
    of_thread: PhantomData<*mut ()>,
}

impl Current {
    pub(crate) fn of(context: CUcontext) -> Result<Self> {
        let functions = functions()?;
        // SAFETY: the context is a primary one, which is never released.
        unsafe { call!(functions, cuCtxPushCurrent_v2(context)) }?;
        let mut mode = RELAXED;
        // SAFETY: `mode` is valid for reads and writes.
        let exchanged = unsafe { call!(functions, cuThreadExchangeStreamCaptureMode(&raw mut mode)) };
        let current = Self { functions, mode, of_thread: PhantomData };
        exchanged.map(|()| current)
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        // SAFETY: `mode` is valid for reads and writes. A failure leaves the thread relaxed, which harms no capture.
        let _ = unsafe { call!(self.functions, cuThreadExchangeStreamCaptureMode(&raw mut self.mode)) };
        let mut context = std::ptr::null_mut();
        // SAFETY: the stack of contexts is not empty: `of` has pushed one. A failure leaves the context current, which
        // harms no later call.
        let _ = unsafe { call!(self.functions, cuCtxPopCurrent_v2(&raw mut context)) };
    }
}

/// How long the end of work is waited for while a graph capture forbids the wait.
const LONGEST_CAPTURE: Duration = Duration::from_secs(10);

/// Whether work may still run of which the driver has not said that it ended.
static MAY_RUN: AtomicBool = AtomicBool::new(false);

/// Returns whether the driver could not say, at any time, that work had ended. From then on this process unmaps, frees
/// and uses again nothing that work of a GPU may touch, and leaks it instead. It happens after errors that a context
/// does not survive.
pub(crate) fn may_still_run() -> bool {
    MAY_RUN.load(Ordering::Relaxed)
}

/// Makes sure that work has ended for which the caller has waited, with this answer. If waiting failed, waits for all
/// work of the context; if that fails too, [`may_still_run`] returns true from then on. Returns the caller's answer.
pub(crate) fn ended(context: CUcontext, answer: Result<()>) -> Result<()> {
    answer.inspect_err(|_| {
        let begin = Instant::now();
        while !all_has_ended(context) && !may_still_run() {
            // A capture that was lost forbids waiting until its thread notices.
            if begin.elapsed() > LONGEST_CAPTURE {
                MAY_RUN.store(true, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    })
}

/// Waits for all work of the context, also of other libraries. Returns whether it has ended.
///
/// A graph capture of any thread of the context is lost by this. If that is why the driver refuses, the answer is no
/// for this time only; after other errors [`may_still_run`] returns true from then on.
pub(crate) fn all_has_ended(context: CUcontext) -> bool {
    let all = Current::of(context).and_then(|current| {
        // SAFETY: a context is current.
        unsafe { call!(current.functions, cuCtxSynchronize()) }
    });
    let Err(error) = all else { return true };
    if !is_by_capture(&error) {
        MAY_RUN.store(true, Ordering::Relaxed);
    }
    false
}
