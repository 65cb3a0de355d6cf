//! Streams and events: the order in which a GPU does its work, also between processes.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{CUcontext, CUevent, CUstream};
use cudarc::driver::sys::{CUevent_flags, CUstream_flags};

use crate::captures::{self, Capture};
use crate::context::{Current, ended};
use crate::driver::{call, check, code, functions_in_drop};
use crate::error::{Error, Result};

/// A queue of work of one GPU. Work of one stream is done in order, and beside that of other streams.
///
/// Dropping a stream does not wait for its work.
pub struct Stream {
    context: CUcontext,
    raw: CUstream,
    /// Whether dropping this value destroys the stream.
    owned: bool,
}

// SAFETY: the driver's functions on a stream may be called from any thread.
unsafe impl Send for Stream {}
// SAFETY: and by several at once.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn create_in(context: CUcontext) -> Result<Self> {
        let current = Current::of(context)?;
        let mut raw = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: `raw` is valid for the write of a handle; a context is current.
        unsafe { call!(current.functions, cuStreamCreate(&raw mut raw, flags)) }?;
        Ok(Self { context, raw, owned: true })
    }

    pub(crate) fn borrowed_in(context: CUcontext, raw: CUstream) -> Self {
        Self { context, raw, owned: false }
    }

    /// Returns the legacy default stream of a context, `CU_STREAM_LEGACY`.
    pub(crate) fn legacy_of(context: CUcontext) -> Self {
        Self::borrowed_in(context, std::ptr::without_provenance_mut(1))
    }

    /// Fails if the stream is captured, or waits for one that is: then its work does not run now, but whenever the
    /// graph is launched.
    fn require_no_capture(&self) -> Result<()> {
        if self.capture()? == Capture::Nothing { Ok(()) } else { Err(Self::captured()) }
    }

    /// Returns the error of waiting for work that a graph does.
    pub(crate) fn captured() -> Error {
        Error::Unsupported {
            what: "waiting for work of a stream that is captured",
            reason: "a graph does its work when it is launched: say what it uses after the launch, and use arrays before or after the capture"
                .to_owned(),
        }
    }

    /// Returns what is captured of the stream.
    pub(crate) fn capture(&self) -> Result<Capture> {
        let current = Current::of(self.context)?;
        // SAFETY: the stream exists as long as this value does.
        unsafe { captures::of_stream(&current, self.raw) }
    }

    /// Returns the driver's handle.
    pub fn as_raw(&self) -> *mut c_void {
        self.raw.cast()
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.raw
    }

    pub(crate) fn is_in(&self, context: CUcontext) -> bool {
        self.context == context
    }

    /// Waits until the work that was enqueued so far is done.
    ///
    /// # Errors
    ///
    /// Failures of the driver, those of earlier work included.
    pub fn synchronize(&self) -> Result<()> {
        let current = Current::of(self.context)?;
        // SAFETY: the stream exists as long as this value does.
        unsafe { call!(current.functions, cuStreamSynchronize(self.raw)) }
    }

    /// Waits until the work that was enqueued so far is done, by another way if one fails. If all fail,
    /// [`may_still_run`](crate::context::may_still_run) returns true from then on.
    ///
    /// # Errors
    ///
    /// As [`synchronize`](Self::synchronize), also where another way succeeded.
    pub(crate) fn settle(&self) -> Result<()> {
        ended(self.context, self.synchronize())
    }

    /// Lets the work that is enqueued from now on wait for what the event has recorded.
    ///
    /// # Errors
    ///
    /// Failures of the driver.
    pub(crate) fn wait(&self, event: &DeviceEvent) -> Result<()> {
        let current = Current::of(self.context)?;
        // SAFETY: both exist as long as their values do.
        unsafe { call!(current.functions, cuStreamWaitEvent(self.raw, event.raw, 0)) }
    }
}

/// Values that streams drop when they come to it, by number. A driver that answers with an error may have enqueued the
/// function all the same, so that both `keep` and the function may drop the value: the first that finds it here.
static KEPT: Mutex<BTreeMap<usize, Arc<dyn Send + Sync>>> = Mutex::new(BTreeMap::new());

/// Removes a kept value. The lock is released before the value is dropped.
fn kept(number: usize) -> Option<Arc<dyn Send + Sync>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).remove(&number)
}

/// The function that a stream calls to drop a kept value.
unsafe extern "C" fn drop_kept(number: *mut c_void) {
    drop(kept(number.addr()));
}

impl Stream {
    /// Keeps a value until the work that the stream has now is done. Dropping the value must not call the driver. After
    /// an error of that work it is never dropped.
    pub(crate) fn keep(&self, value: Arc<dyn Send + Sync>) -> Result<()> {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        let current = Current::of(self.context)?; // refuses forked children, which must not take the lock
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).insert(number, value);
        let data = std::ptr::without_provenance_mut(number);
        // SAFETY: `drop_kept` uses its argument as a number only, and the value's drop calls no driver.
        let answer = unsafe { call!(current.functions, cuLaunchHostFunc(self.raw, drop_kept, data)) };
        answer.inspect_err(|_| drop(kept(number)))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let (true, Some(functions)) = (self.owned, functions_in_drop()) {
            // A stream knows its context. Where it cannot be made the current one, destroying is still worth a try.
            let _current = Current::of(self.context);
            // SAFETY: this value made the stream, and is the last that uses it. A failure is one of earlier work.
            let _ = unsafe { call!(functions, cuStreamDestroy_v2(self.raw)) };
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("raw", &self.raw).finish_non_exhaustive()
    }
}

/// A point in the work of a stream, for which other streams and threads of this process can wait.
pub(crate) struct DeviceEvent {
    context: CUcontext,
    raw: CUevent,
}

// SAFETY: the driver's functions on an event may be called from any thread.
unsafe impl Send for DeviceEvent {}
// SAFETY: and by several at once.
unsafe impl Sync for DeviceEvent {}

impl DeviceEvent {
    /// Returns an event that has recorded the work that the stream has now.
    pub(crate) fn recorded(stream: &Stream) -> Result<Self> {
        stream.require_no_capture()?;
        let event = Self::create(stream.context)?;
        let current = Current::of(stream.context)?;
        // SAFETY: both exist as long as their values do.
        unsafe { call!(current.functions, cuEventRecord(event.raw, stream.raw)) }?;
        Ok(event)
    }

    fn create(context: CUcontext) -> Result<Self> {
        let current = Current::of(context)?;
        let mut raw = std::ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: `raw` is valid for the write of a handle; a context is current.
        unsafe { call!(current.functions, cuEventCreate(&raw mut raw, flags)) }?;
        Ok(Self { context, raw })
    }

    /// Returns an event that has recorded all work that the context has now, or `None` where the driver has none such.
    /// The record ends every graph capture in the context.
    pub(crate) fn of_context(context: CUcontext) -> Result<Option<Self>> {
        let current = Current::of(context)?;
        let Some(record) = current.functions.cuCtxRecordEvent else { return Ok(None) };
        let event = Self::create(context)?;
        // SAFETY: the context is current, and the event is one of it.
        match check("cuCtxRecordEvent", unsafe { record(context, event.raw) }) {
            Ok(()) => Ok(Some(event)),
            Err(error) if error.driver_code() == Some(code::NOT_SUPPORTED) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether the recorded work is done.
    ///
    /// # Errors
    ///
    /// Failures of the driver, those of the recorded work included.
    pub(crate) fn is_complete(&self) -> Result<bool> {
        let current = Current::of(self.context)?;
        // SAFETY: the event exists as long as this value does.
        match unsafe { call!(current.functions, cuEventQuery(self.raw)) } {
            Ok(()) => Ok(true),
            Err(error) if error.driver_code() == Some(code::NOT_READY) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until the recorded work is done.
    ///
    /// # Errors
    ///
    /// As [`is_complete`](Self::is_complete).
    pub(crate) fn synchronize(&self) -> Result<()> {
        let current = Current::of(self.context)?;
        // SAFETY: the event exists as long as this value does.
        unsafe { call!(current.functions, cuEventSynchronize(self.raw)) }
    }

    /// Waits until the recorded work is done, by another way if one fails; see [`ended`].
    pub(crate) fn settle(&self) {
        let _ = ended(self.context, self.synchronize()); // a failure is one of that work
    }
}

impl Drop for DeviceEvent {
    fn drop(&mut self) {
        if let Some(functions) = functions_in_drop() {
            let _current = Current::of(self.context); // as for streams
            // SAFETY: this value made the event, and is the last that uses it. The driver keeps it until its
            // work is done.
            let _ = unsafe { call!(functions, cuEventDestroy_v2(self.raw)) };
        }
    }
}

impl fmt::Debug for DeviceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("raw", &self.raw).finish_non_exhaustive()
    }
}
