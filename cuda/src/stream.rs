//! Streams and events: the order in which a GPU does its work, also between processes.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::fmt;

use cudarc::driver::sys::{CUcontext, CUevent, CUipcEventHandle, CUstream};
use cudarc::driver::sys::{CUevent_flags, CUstream_flags};

use crate::device::Current;
use crate::driver::{call, code, functions_in_drop};
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

    /// Uses a stream of another library, such as torch's current stream. Dropping the value leaves the stream as it is.
    ///
    /// # Safety
    ///
    /// `raw` is a `CUstream` of this GPU's primary context, which is not destroyed while this value lives. Null, the legacy default stream, is
    /// allowed, and so are the driver's special values 1 and 2.
    pub unsafe fn borrowed(device: crate::Device, raw: *mut c_void) -> Self {
        Self { context: device.context(), raw: raw.cast(), owned: false }
    }

    /// Returns the driver's handle.
    pub fn as_raw(&self) -> *mut c_void {
        self.raw.cast()
    }

    pub(crate) fn raw(&self) -> CUstream {
        self.raw
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

    /// Waits until no work that was enqueued so far can touch memory of the host any more, whatever the driver answers.
    ///
    /// # Errors
    ///
    /// As [`synchronize`](Self::synchronize).
    pub(crate) fn settle(&self) -> Result<()> {
        self.synchronize().inspect_err(|_| {
            // After an error that a context survives, this waits for its work. After any other, the context does no work any more.
            if let Ok(current) = Current::of(self.context) {
                // SAFETY: a context is current.
                let _ = unsafe { call!(current.functions, cuCtxSynchronize()) };
            }
        })
    }

    /// Lets the work that is enqueued from now on wait for what the event has recorded.
    ///
    /// # Errors
    ///
    /// Failures of the driver.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let current = Current::of(self.context)?;
        // SAFETY: both exist as long as their values do.
        unsafe { call!(current.functions, cuStreamWaitEvent(self.raw, event.raw, 0)) }
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

/// A point in the work of a stream, for which other streams, threads and processes can wait.
pub struct Event {
    context: CUcontext,
    raw: CUevent,
}

// SAFETY: the driver's functions on an event may be called from any thread.
unsafe impl Send for Event {}
// SAFETY: and by several at once.
unsafe impl Sync for Event {}

/// Bytes by which another process opens an event: the driver's, as they are.
pub(crate) type EventHandle = [u8; 64];

impl Event {
    /// Creates an event that other processes can open, and records the work that the stream has now.
    pub(crate) fn recorded(stream: &Stream) -> Result<Self> {
        let current = Current::of(stream.context)?;
        let mut raw = std::ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 | CUevent_flags::CU_EVENT_INTERPROCESS as u32;
        // SAFETY: `raw` is valid for the write of a handle; a context is current.
        unsafe { call!(current.functions, cuEventCreate(&raw mut raw, flags)) }?;
        let event = Self { context: stream.context, raw };
        event.record(stream)?;
        Ok(event)
    }

    /// Records the work that the stream has now, instead of what was recorded before.
    pub(crate) fn record(&self, stream: &Stream) -> Result<()> {
        let current = Current::of(self.context)?;
        // SAFETY: both exist as long as their values do.
        unsafe { call!(current.functions, cuEventRecord(self.raw, stream.raw)) }
    }

    /// Returns whether the recorded work is done.
    ///
    /// # Errors
    ///
    /// Failures of the driver, those of the recorded work included.
    pub fn is_complete(&self) -> Result<bool> {
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
    pub fn synchronize(&self) -> Result<()> {
        let current = Current::of(self.context)?;
        // SAFETY: the event exists as long as this value does.
        unsafe { call!(current.functions, cuEventSynchronize(self.raw)) }
    }

    /// Returns what another process opens the event by, while this value lives.
    pub(crate) fn handle(&self) -> Result<EventHandle> {
        let current = Current::of(self.context)?;
        let mut handle = CUipcEventHandle { reserved: [0; 64] };
        // SAFETY: `handle` is valid for the write of 64 bytes; the event exists and is one for other processes.
        unsafe { call!(current.functions, cuIpcGetEventHandle(&raw mut handle, self.raw)) }?;
        Ok(handle.reserved.map(c_char::cast_unsigned))
    }

    /// Opens an event of another process.
    ///
    /// # Errors
    ///
    /// [`SenderGone`](Error::SenderGone): that process has ended, or has dropped the event.
    pub(crate) fn open(device: crate::Device, handle: EventHandle) -> Result<Self> {
        let current = device.enter()?;
        let mut raw = std::ptr::null_mut();
        let handle = CUipcEventHandle { reserved: handle.map(u8::cast_signed) };
        // SAFETY: `raw` is valid for the write of a handle; the driver checks the bytes.
        match unsafe { call!(current.functions, cuIpcOpenEventHandle(&raw mut raw, handle)) } {
            Ok(()) => Ok(Self { context: device.context(), raw }),
            Err(error) if matches!(error.driver_code(), Some(code::INVALID_VALUE | code::INVALID_HANDLE)) => {
                Err(Error::SenderGone)
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(functions) = functions_in_drop() {
            let _current = Current::of(self.context); // as for streams
            // SAFETY: this value made or opened the event, and is the last that uses it. The driver keeps it until its work is done.
            let _ = unsafe { call!(functions, cuEventDestroy_v2(self.raw)) };
        }
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("raw", &self.raw).finish_non_exhaustive()
    }
}

/// The events that must be complete before memory is read: those of streams that still write to it.
#[derive(Debug, Default)]
pub(crate) struct Pending(Vec<Event>);

impl Pending {
    /// Adds what the stream has enqueued so far.
    pub(crate) fn add(&mut self, stream: &Stream) -> Result<()> {
        let event = Event::recorded(stream)?;
        self.forget_complete()?;
        self.0.push(event);
        Ok(())
    }

    pub(crate) fn push(&mut self, event: Event) {
        self.0.push(event);
    }

    /// Drops the events of work that is done. Returns whether none is left.
    pub(crate) fn forget_complete(&mut self) -> Result<bool> {
        let mut failed = Ok(());
        self.0.retain(|event| match event.is_complete() {
            Ok(complete) => !complete,
            Err(error) => {
                failed = Err(error);
                true
            }
        });
        failed.map(|()| self.0.is_empty())
    }

    /// Lets a stream wait for all of it.
    pub(crate) fn wait_on(&self, stream: &Stream) -> Result<()> {
        self.0.iter().try_for_each(|event| stream.wait(event))
    }

    /// Waits for all of it.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.0.iter().try_for_each(Event::synchronize)
    }

    pub(crate) fn events(&self) -> &[Event] {
        &self.0
    }
}
