//! Streams and events: the order in which a GPU does its work, also between processes.

#![allow(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_char, c_void};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use cudarc::driver::sys::{CUcontext, CUevent, CUipcEventHandle, CUstream};
use cudarc::driver::sys::{CUevent_flags, CUstream_flags};

use serde::{Deserialize, Serialize};

use crate::captures;
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
        if !self.is_captured()? {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: "waiting for work of a stream that is captured",
            reason: "a graph does its work when it is launched: say what it uses after the launch, and use arrays before or after the capture"
                .to_owned(),
        })
    }

    /// Returns whether the stream is captured, or waits for one that is.
    pub(crate) fn is_captured(&self) -> Result<bool> {
        let current = Current::of(self.context)?;
        // SAFETY: the stream exists as long as this value does.
        unsafe { captures::is_captured(&current, self.raw) }
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

/// A point in the work of a stream, for which other streams, threads and processes can wait.
pub(crate) struct DeviceEvent {
    context: CUcontext,
    raw: CUevent,
    origin: Origin,
}

// SAFETY: the driver's functions on an event may be called from any thread.
unsafe impl Send for DeviceEvent {}
// SAFETY: and by several at once.
unsafe impl Sync for DeviceEvent {}

/// A random number of this process: its own events and memory cannot be opened as those of another one. Nothing secret
/// depends on it.
pub(crate) static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());

/// What a message says of an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EventNote {
    /// The process that has made the event, as [`PROCESS`] in it.
    process: u64,
    /// The bytes by which the driver opens it.
    handle: Vec<u8>,
}

impl EventNote {
    fn bytes(&self) -> Result<[u8; 64]> {
        let bytes = <[u8; 64]>::try_from(&*self.handle);
        bytes.map_err(|_| Error::malformed("an event has other than 64 bytes"))
    }

    /// Fails if one of the notes is none of an event.
    pub(crate) fn check(notes: &[Self]) -> Result<()> {
        notes.iter().try_for_each(|note| note.bytes().map(drop))
    }
}

/// Where an event comes from.
enum Origin {
    /// Made here, for other processes too.
    Own,
    /// Made here, where the driver has no events for other processes.
    Local,
    /// Opened here.
    Opened(EventNote),
}

/// Events of this process that record its work. They are never destroyed: a message that names one may be received long
/// after the work was done and the memory dropped. One that is complete and that nothing else has is used again; code
/// that still waits for it then waits for later work, which is too long and never too short.
static RECORDED: Mutex<VecDeque<Arc<DeviceEvent>>> = Mutex::new(VecDeque::new());

/// How many events may exist before one is waited for. The driver allows some ten thousand.
const MOST_EVENTS: usize = 1024;
/// How many events are looked at before another one is made.
const LOOKS: usize = 8;

impl DeviceEvent {
    /// Returns an event that has recorded the work that the stream has now.
    pub(crate) fn recorded(stream: &Stream) -> Result<Arc<Self>> {
        let context = stream.context;
        stream.require_no_capture()?;
        let _current = Current::of(context)?; // refuses forked children, which must not take the lock
        let mut events = RECORDED.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = |event: &Arc<Self>| event.context == context && Arc::strong_count(event) == 1;
        let mut found = None;
        for _ in 0..LOOKS.min(events.len()) {
            events.rotate_left(1);
            // A failure is one of the work of that event.
            found = events.back().filter(|last| is_free(last) && last.is_complete().unwrap_or(false)).cloned();
            if found.is_some() {
                break;
            }
        }
        let is_full = found.is_none() && events.len() >= MOST_EVENTS;
        let oldest = if is_full { events.iter().find(|event| is_free(event)).cloned() } else { None };
        drop(events);
        // Nothing else takes an event that is in use here.
        let event = match (found, oldest) {
            (Some(event), _) => event,
            (None, Some(oldest)) => {
                oldest.synchronize()?;
                oldest
            }
            (None, None) => {
                let event = Arc::new(Self::new(context)?);
                RECORDED.lock().unwrap_or_else(PoisonError::into_inner).push_back(Arc::clone(&event));
                event
            }
        };
        event.record(stream)?;
        Ok(event)
    }

    fn new(context: CUcontext) -> Result<Self> {
        match Self::create(context, CUevent_flags::CU_EVENT_INTERPROCESS, Origin::Own) {
            Err(error) if error.driver_code() == Some(code::NOT_SUPPORTED) => {
                Self::create(context, CUevent_flags::CU_EVENT_DEFAULT, Origin::Local)
            }
            answer => answer,
        }
    }

    fn create(context: CUcontext, flags: CUevent_flags, origin: Origin) -> Result<Self> {
        let current = Current::of(context)?;
        let mut raw = std::ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32 | flags as u32;
        // SAFETY: `raw` is valid for the write of a handle; a context is current.
        unsafe { call!(current.functions, cuEventCreate(&raw mut raw, flags)) }?;
        Ok(Self { context, raw, origin })
    }

    /// Returns an event that has recorded all work that the context has now, or `None` where the driver has none such.
    /// The record ends every graph capture in the context.
    pub(crate) fn of_context(context: CUcontext) -> Result<Option<Self>> {
        let current = Current::of(context)?;
        let Some(record) = current.functions.cuCtxRecordEvent else { return Ok(None) };
        let event = Self::create(context, CUevent_flags::CU_EVENT_DEFAULT, Origin::Local)?;
        // SAFETY: the context is current, and the event is one of it.
        match check("cuCtxRecordEvent", unsafe { record(context, event.raw) }) {
            Ok(()) => Ok(Some(event)),
            Err(error) if error.driver_code() == Some(code::NOT_SUPPORTED) => Ok(None),
            Err(error) => Err(error),
        }
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

    /// Returns whether another process has made it.
    pub(crate) fn is_opened(&self) -> bool {
        matches!(self.origin, Origin::Opened(_))
    }

    /// Returns what another process opens the event by, while the process lives that has made it. Where there is no
    /// such thing, waits for the recorded work instead.
    pub(crate) fn note(&self) -> Result<Option<EventNote>> {
        match &self.origin {
            Origin::Own => Ok(Some(EventNote { process: *PROCESS, handle: self.handle()?.to_vec() })),
            Origin::Local => self.synchronize().map(|()| None),
            Origin::Opened(note) => Ok(Some(note.clone())),
        }
    }

    fn handle(&self) -> Result<[u8; 64]> {
        let current = Current::of(self.context)?;
        let mut handle = CUipcEventHandle { reserved: [0; 64] };
        // SAFETY: `handle` is valid for the write of 64 bytes; the event exists and is one for other processes.
        unsafe { call!(current.functions, cuIpcGetEventHandle(&raw mut handle, self.raw)) }?;
        Ok(handle.reserved.map(c_char::cast_unsigned))
    }

    /// Opens the event of a message: one of another process, or one of this process.
    ///
    /// # Errors
    ///
    /// - [`SenderGone`](Error::SenderGone): the process that has made it has ended.
    /// - [`Unsupported`](Error::Unsupported): the driver opens no events of that process here.
    /// - [`Malformed`](Error::Malformed), and failures of the driver.
    pub(crate) fn open(context: CUcontext, note: EventNote) -> Result<Arc<Self>> {
        let current = Current::of(context)?;
        let handle = note.bytes()?;
        // The driver does not open events in the process that has made them.
        let own = if note.process == *PROCESS { Self::own(handle) } else { None };
        if let Some(own) = own {
            return Ok(own);
        }
        let mut raw = std::ptr::null_mut();
        let bytes = CUipcEventHandle { reserved: handle.map(u8::cast_signed) };
        // SAFETY: `raw` is valid for the write of a handle; the driver checks the bytes.
        match unsafe { call!(current.functions, cuIpcOpenEventHandle(&raw mut raw, bytes)) } {
            Ok(()) => Ok(Arc::new(Self { context, raw, origin: Origin::Opened(note) })),
            Err(error) => Err(match error.driver_code() {
                Some(code::INVALID_VALUE | code::INVALID_HANDLE) => Error::SenderGone,
                Some(
                    code::INVALID_CONTEXT
                    | code::MAP_FAILED
                    | code::OPERATING_SYSTEM
                    | code::NOT_PERMITTED
                    | code::NOT_SUPPORTED,
                ) => {
                    let advice = "the processes must share /dev/shm and the IPC namespace (containers: --ipc=host), or the sender must \
                                  synchronize before it sends";
                    Error::Unsupported {
                        what: "waiting for the GPU of the sender",
                        reason: format!("{advice}; {error}"),
                    }
                }
                _ => error,
            }),
        }
    }

    /// Returns the event of this process that has this handle.
    fn own(handle: [u8; 64]) -> Option<Arc<Self>> {
        let events: Vec<_> = RECORDED.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect();
        events
            .into_iter()
            .find(|event| matches!(event.origin, Origin::Own) && event.handle().is_ok_and(|own| own == handle))
    }
}

impl Drop for DeviceEvent {
    fn drop(&mut self) {
        if let Some(functions) = functions_in_drop() {
            let _current = Current::of(self.context); // as for streams
            // SAFETY: this value made or opened the event, and is the last that uses it. The driver keeps it until its
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
