//! GPUs: found by number or UUID, each with its primary context and one stream for this crate's copies.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUuuid};

use crate::captures;
use crate::context::Current;
use crate::driver::{self, Functions, call, functions};
use crate::error::{Error, Result};
use crate::reaper;
use crate::stream::Stream;
use crate::uuid::Uuid;

/// A GPU.
///
/// The first use of a GPU retains its primary context, which is shared with the CUDA runtime and therefore with torch
/// and `CuPy`, until the process ends.
///
/// ```no_run
/// use ndarray_shm_cuda::Device;
///
/// let gpu = Device::new(0)?;
/// println!("{}: {} of {} bytes are free", gpu.name()?, gpu.memory()?.free, gpu.memory()?.total);
/// # Ok::<(), ndarray_shm_cuda::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Device(&'static UsedDevice);

struct UsedDevice {
    ordinal: usize,
    raw: CUdevice,
    uuid: Uuid,
    context: CUcontext,
    /// All copies and fills of this crate on the GPU, so that they take effect in the order of the calls.
    stream: Stream,
}

// SAFETY: a context may be used by any number of threads at once; the other fields are plain values.
unsafe impl Send for UsedDevice {}
// SAFETY: as above.
unsafe impl Sync for UsedDevice {}

/// Bytes of a GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that no process uses.
    pub free: u64,
    /// Bytes that the GPU has.
    pub total: u64,
}

/// The GPUs that were used, by number. They are never removed: see [`Device`].
static USED: Mutex<BTreeMap<usize, &'static UsedDevice>> = Mutex::new(BTreeMap::new());

impl Device {
    /// Returns how many GPUs this process sees: 0 where no driver is installed.
    ///
    /// # Errors
    ///
    /// [`ForkedChild`](Error::ForkedChild), and failures of the driver.
    pub fn count() -> Result<usize> {
        let functions = match functions() {
            Ok(functions) => functions,
            Err(Error::NoDriver) => return Ok(0),
            Err(error) => return Err(error),
        };
        let mut count = 0;
        // SAFETY: `count` is valid for the write of an int.
        match unsafe { call!(functions, cuDeviceGetCount(&raw mut count)) } {
            Ok(()) => Ok(usize::try_from(count).unwrap_or(0)),
            // The driver is there, and no GPU: cuInit answers the same, and the rest of the driver is then not
            // initialised.
            Err(error) if matches!(error.driver_code(), Some(3 | driver::code::NO_DEVICE)) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Returns the GPU with this number, from 0, among those that this process sees.
    ///
    /// # Errors
    ///
    /// [`NoDriver`](Error::NoDriver), [`DriverTooOld`](Error::DriverTooOld), [`NoDevice`](Error::NoDevice),
    /// [`ForkedChild`](Error::ForkedChild), and failures of the driver.
    pub fn new(ordinal: usize) -> Result<Self> {
        let functions = functions()?;
        // Held while the context is made, so that a GPU is retained once. A forked child never comes here.
        let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = used.get(&ordinal) {
            return Ok(Self(state));
        }
        let count = Self::count()?;
        if ordinal >= count {
            return Err(Error::NoDevice { ordinal, count });
        }
        let raw = raw_device(functions, ordinal)?;
        let uuid = uuid_of(functions, raw)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: `context` is valid for the write of a handle; `raw` is a device.
        unsafe { call!(functions, cuDevicePrimaryCtxRetain(&raw mut context, raw)) }?;
        let stream = Stream::create_in(context).inspect_err(|_| {
            // SAFETY: the context was retained above, and nothing uses it. The first error is the one to report.
            let _ = unsafe { call!(functions, cuDevicePrimaryCtxRelease_v2(raw)) };
        })?;
        let state: &'static UsedDevice = Box::leak(Box::new(UsedDevice { ordinal, raw, uuid, context, stream }));
        used.insert(ordinal, state);
        Ok(Self(state))
    }

    /// Returns the GPU with this UUID.
    ///
    /// # Errors
    ///
    /// [`DeviceNotVisible`](Error::DeviceNotVisible), and those of [`new`](Self::new).
    pub fn with_uuid(uuid: Uuid) -> Result<Self> {
        let functions = functions()?;
        for ordinal in 0..Self::count()? {
            if uuid_of(functions, raw_device(functions, ordinal)?)? == uuid {
                return Self::new(ordinal);
            }
        }
        Err(Error::DeviceNotVisible { device: uuid })
    }

    /// Returns the GPU that a message names.
    pub(crate) fn named(uuid: &str) -> Result<Self> {
        let uuid = Uuid::parse(uuid);
        Self::with_uuid(uuid.ok_or_else(|| Error::malformed("it names no UUID of a GPU"))?)
    }

    /// Returns the GPU's number in this process.
    pub fn ordinal(self) -> usize {
        self.0.ordinal
    }

    /// Returns the GPU's identity.
    pub fn uuid(self) -> Uuid {
        self.0.uuid
    }

    /// Returns the GPU's name.
    ///
    /// # Errors
    ///
    /// Failures of the driver.
    pub fn name(self) -> Result<String> {
        let mut name = [0; 256];
        // SAFETY: `name` has room for 256 bytes, the last of which the driver leaves for the zero at the end.
        unsafe { call!(functions()?, cuDeviceGetName(name.as_mut_ptr(), 256, self.0.raw)) }?;
        let bytes = name.map(c_char::cast_unsigned);
        let name = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    /// Returns how much memory the GPU has, and how much of it no process uses.
    ///
    /// # Errors
    ///
    /// Failures of the driver.
    pub fn memory(self) -> Result<MemoryInfo> {
        let current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are valid for the write of a size.
        unsafe { call!(current.functions, cuMemGetInfo_v2(&raw mut free, &raw mut total)) }?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    /// Returns whether this GPU can access memory of another one.
    ///
    /// # Errors
    ///
    /// Failures of the driver.
    pub fn can_access(self, other: Self) -> Result<bool> {
        if self == other {
            return Ok(true);
        }
        let mut answer = 0;
        // SAFETY: `answer` is valid for the write of an int; both are devices.
        unsafe { call!(functions()?, cuDeviceCanAccessPeer(&raw mut answer, self.0.raw, other.0.raw)) }?;
        Ok(answer != 0)
    }

    /// Makes a stream, on which work is done in order and beside that of other streams.
    ///
    /// # Errors
    ///
    /// Failures of the driver.
    pub fn new_stream(self) -> Result<Stream> {
        let _current = self.enter()?;
        Stream::create_in(self.0.context)
    }

    /// Uses a stream of another library, such as torch's current stream. Dropping the value leaves the stream as it is.
    ///
    /// # Safety
    ///
    /// `raw` is a `CUstream` of this GPU's primary context, which is not destroyed while the value lives. Null and 1,
    /// the legacy default stream, are allowed. 2, the stream of the calling thread, is allowed as long as the value is
    /// used in that thread only.
    pub unsafe fn borrow_stream(self, raw: *mut c_void) -> Stream {
        Stream::borrowed_in(self.0.context, raw.cast())
    }

    /// Says which streams other libraries may capture into graphs.
    ///
    /// Memory that another library may use ends after all work of this GPU, and waiting for that would end a capture.
    /// While one of these streams is captured, or one that the legacy default stream waits for, such memory stays. The
    /// driver has no list of streams.
    ///
    /// # Errors
    ///
    /// [`ForkedChild`](Error::ForkedChild), and failures of the driver.
    ///
    /// # Safety
    ///
    /// Each is a `CUstream` of this GPU's primary context, and is never destroyed, as the streams of torch.
    pub unsafe fn may_be_captured(self, streams: &[*mut c_void]) -> Result<()> {
        let streams: Vec<_> = streams.iter().map(|stream| stream.cast()).collect();
        // SAFETY: the caller promises it.
        unsafe { captures::remember(self.0.context, &streams) }
    }

    /// Waits until the GPU has done all work of this process. Then waits up to a second for the end of memory that was
    /// dropped before, unless a graph capture holds that up.
    ///
    /// # Errors
    ///
    /// Failures of the driver, those of earlier asynchronous work included.
    pub fn synchronize(self) -> Result<()> {
        let current = self.enter()?;
        // SAFETY: a context is current.
        unsafe { call!(current.functions, cuCtxSynchronize()) }?;
        reaper::wait_for_all(self.0.context);
        Ok(())
    }

    pub(crate) fn attribute(self, attribute: CUdevice_attribute) -> Result<c_int> {
        let mut answer = 0;
        // SAFETY: `answer` is valid for the write of an int.
        unsafe { call!(functions()?, cuDeviceGetAttribute(&raw mut answer, attribute, self.0.raw)) }?;
        Ok(answer)
    }

    /// Returns the number that the driver's structures want.
    pub(crate) fn raw(self) -> CUdevice {
        self.0.raw
    }

    /// Returns the stream of this crate's own copies.
    pub(crate) fn stream(self) -> &'static Stream {
        &self.0.stream
    }

    pub(crate) fn context(self) -> CUcontext {
        self.0.context
    }

    /// Makes the GPU's context the current one of this thread, until the returned value is dropped.
    pub(crate) fn enter(self) -> Result<Current> {
        Current::of(self.0.context)
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.0.uuid == other.0.uuid
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("ordinal", &self.0.ordinal).field("uuid", &self.0.uuid.to_string()).finish()
    }
}

fn raw_device(functions: &Functions, ordinal: usize) -> Result<CUdevice> {
    let mut raw = 0;
    let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
    // SAFETY: `raw` is valid for the write of a device.
    unsafe { call!(functions, cuDeviceGet(&raw mut raw, ordinal)) }?;
    Ok(raw)
}

fn uuid_of(functions: &Functions, raw: CUdevice) -> Result<Uuid> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: `uuid` is valid for the write of 16 bytes.
    unsafe { call!(functions, cuDeviceGetUuid_v2(&raw mut uuid, raw)) }?;
    Ok(Uuid(uuid.bytes.map(c_char::cast_unsigned)))
}
