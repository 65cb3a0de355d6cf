//! The driver: its functions, found when the program runs, and their errors.
//!
//! The functions return `u32`, not cudarc's enumeration: a newer driver may answer with a number that the enumeration
//! lacks, which would be undefined behaviour.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUipcMemHandle, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp, CUmemGenericAllocationHandle,
    CUmemPoolPtrExportData, CUmemoryPool, CUpointer_attribute, CUstream, CUuuid,
};

use crate::error::{Error, Result};

/// A function of the host that a stream calls. It must not call the driver.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

macro_rules! functions {
    (
        old { $($name:ident($($type:ty),*);)* }
        new { $($newer:ident($($newer_type:ty),*);)* }
    ) => {
        /// The functions of the driver that this crate calls. A new one is `None` where the driver lacks it.
        #[allow(non_snake_case)]
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) -> u32,)*
            $(pub(crate) $newer: Option<unsafe extern "C" fn($($newer_type),*) -> u32>,)*
        }

        impl Functions {
            /// Looks all functions up. An old one that is missing is found here, not in the middle of the work.
            fn load() -> Result<Self> {
                // SAFETY: loading the driver's library runs its initialisers, which have no requirements.
                if !unsafe { sys::is_culib_present() } {
                    return Err(Error::NoDriver);
                }
                // SAFETY: as above; it was just found, so that this does not panic.
                let library = unsafe { sys::culib() };
                Ok(Self {
                    $($name: {
                        // SAFETY: the function of this name has this signature in every driver since CUDA 11.4.
                        let function = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *function.map_err(|_| Error::DriverTooOld { function: stringify!($name) })?
                    },)*
                    $($newer: {
                        // SAFETY: the function of this name has this signature in every driver that has it.
                        let function = unsafe { library.get(concat!(stringify!($newer), "\0").as_bytes()) };
                        function.ok().map(|function| *function)
                    },)*
                })
            }
        }
    };
}

functions! {
    old {
        cuCtxPopCurrent_v2(*mut CUcontext);
        cuCtxPushCurrent_v2(CUcontext);
        cuCtxSynchronize();
        cuDeviceCanAccessPeer(*mut c_int, CUdevice, CUdevice);
        cuDeviceGet(*mut CUdevice, c_int);
        cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGetName(*mut c_char, c_int, CUdevice);
        cuDeviceGetUuid_v2(*mut CUuuid, CUdevice);
        cuDevicePrimaryCtxRelease_v2(CUdevice);
        cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        cuEventCreate(*mut CUevent, c_uint);
        cuEventDestroy_v2(CUevent);
        cuEventQuery(CUevent);
        cuEventRecord(CUevent, CUstream);
        cuEventSynchronize(CUevent);
        cuGetErrorName(u32, *mut *const c_char);
        cuGetErrorString(u32, *mut *const c_char);
        cuInit(c_uint);
        cuIpcCloseMemHandle(CUdeviceptr);
        cuIpcGetMemHandle(*mut CUipcMemHandle, CUdeviceptr);
        cuIpcOpenMemHandle_v2(*mut CUdeviceptr, CUipcMemHandle, c_uint);
        cuLaunchHostFunc(CUstream, HostFunction, *mut c_void);
        cuMemAddressFree(CUdeviceptr, usize);
        cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
        cuMemCreate(*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong);
        cuMemExportToShareableHandle(*mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, c_ulonglong);
        cuMemFree_v2(CUdeviceptr);
        cuMemGetAddressRange_v2(*mut CUdeviceptr, *mut usize, CUdeviceptr);
        cuMemGetAllocationGranularity(*mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags);
        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
        cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        cuMemHostUnregister(*mut c_void);
        cuMemImportFromShareableHandle(*mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType);
        cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
        cuMemPoolDestroy(CUmemoryPool);
        cuMemPoolExportPointer(*mut CUmemPoolPtrExportData, CUdeviceptr);
        cuMemPoolExportToShareableHandle(*mut c_void, CUmemoryPool, CUmemAllocationHandleType, c_ulonglong);
        cuMemPoolImportFromShareableHandle(*mut CUmemoryPool, *mut c_void, CUmemAllocationHandleType, c_ulonglong);
        cuMemPoolImportPointer(*mut CUdeviceptr, CUmemoryPool, *mut CUmemPoolPtrExportData);
        cuMemPoolSetAccess(CUmemoryPool, *const CUmemAccessDesc, usize);
        cuMemRelease(CUmemGenericAllocationHandle);
        cuMemRetainAllocationHandle(*mut CUmemGenericAllocationHandle, *mut c_void);
        cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
        cuMemUnmap(CUdeviceptr, usize);
        cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
        cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
        cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream);
        cuPointerGetAttribute(*mut c_void, CUpointer_attribute, CUdeviceptr);
        cuStreamCreate(*mut CUstream, c_uint);
        cuStreamDestroy_v2(CUstream);
        cuStreamIsCapturing(CUstream, *mut c_int);
        cuStreamSynchronize(CUstream);
        cuStreamWaitEvent(CUstream, CUevent, c_uint);
        cuThreadExchangeStreamCaptureMode(*mut c_int);
    }
    new {
        cuCtxRecordEvent(CUcontext, CUevent); // CUDA 12.5
    }
}

/// Numbers of errors that this crate treats specially.
pub(crate) mod code {
    pub(crate) const INVALID_VALUE: u32 = 1;
    pub(crate) const OUT_OF_MEMORY: u32 = 2;
    pub(crate) const NO_DEVICE: u32 = 100;
    pub(crate) const INVALID_CONTEXT: u32 = 201;
    pub(crate) const MAP_FAILED: u32 = 205;
    pub(crate) const ALREADY_MAPPED: u32 = 208;
    pub(crate) const OPERATING_SYSTEM: u32 = 304;
    pub(crate) const INVALID_HANDLE: u32 = 400;
    pub(crate) const NOT_FOUND: u32 = 500;
    pub(crate) const NOT_READY: u32 = 600;
    pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: u32 = 712;
    pub(crate) const HOST_MEMORY_NOT_REGISTERED: u32 = 713;
    pub(crate) const NOT_PERMITTED: u32 = 800;
    pub(crate) const NOT_SUPPORTED: u32 = 801;
    pub(crate) const CAPTURE_IMPLICIT: u32 = 906;
}

/// Returns whether a call failed because a graph is captured.
pub(crate) fn is_by_capture(error: &Error) -> bool {
    error.driver_code().is_some_and(|code| (900..=908).contains(&code))
}

/// Calls a function of the driver. A failure names the function.
///
/// The call is `unsafe`; the block around it says why it is allowed.
macro_rules! call {
    ($functions:expr, $name:ident($($argument:expr),* $(,)?)) => {
        $crate::driver::check(stringify!($name), ($functions.$name)($($argument),*))
    };
}
pub(crate) use call;

/// Looks for the driver, and does not initialise it: a process may still fork children that use it.
///
/// # Errors
///
/// [`NoDriver`](Error::NoDriver), [`DriverTooOld`](Error::DriverTooOld).
pub fn find_driver() -> Result<()> {
    Functions::load().map(drop)
}

/// The driver of this process, initialised.
struct Driver {
    functions: Functions,
    /// The process that initialised it: the driver does not work in its forked children.
    fork_generation: u64,
}

/// Returns the functions of the driver, initialised in this process.
///
/// # Errors
///
/// [`Error::NoDriver`], [`Error::DriverTooOld`], [`Error::ForkedChild`], and a failure of `cuInit`.
pub(crate) fn functions() -> Result<&'static Functions> {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    let driver = if let Some(driver) = DRIVER.get() {
        driver
    } else {
        // Threads that come here together each initialise the driver, which allows that. A failure is not remembered:
        // the library may be installed, or the GPU be back, at the next try.
        let functions = Functions::load()?;
        // SAFETY: cuInit has no requirements; its only valid flag is 0.
        let answer = unsafe { (functions.cuInit)(0) };
        if answer != 0 && answer != code::NO_DEVICE {
            return Err(failure(&functions, "cuInit", answer));
        }
        DRIVER.get_or_init(|| Driver { functions, fork_generation: ndarray_shm::process::fork_generation() })
    };
    if driver.fork_generation != ndarray_shm::process::fork_generation() {
        return Err(Error::ForkedChild);
    }
    Ok(&driver.functions)
}

/// Returns whether this process can call the driver, which a forked child cannot. For `Drop`, which must leave the
/// parent's objects alone.
pub(crate) fn functions_in_drop() -> Option<&'static Functions> {
    functions().ok()
}

/// Turns a function's answer into a result.
pub(crate) fn check(call: &'static str, answer: u32) -> Result<()> {
    if answer == 0 { Ok(()) } else { Err(failure(functions()?, call, answer)) }
}

fn failure(functions: &Functions, call: &'static str, code: u32) -> Error {
    let text = |function: unsafe extern "C" fn(u32, *mut *const c_char) -> u32| {
        let mut text = std::ptr::null();
        // SAFETY: `text` is valid for the write of a pointer; the function accepts any number.
        let answer = unsafe { function(code, &raw mut text) };
        if answer != 0 || text.is_null() {
            return "unknown to this driver".to_owned();
        }
        // SAFETY: the driver has stored a pointer to a constant C string.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    let (name, text) = (text(functions.cuGetErrorName), text(functions.cuGetErrorString));
    Error::Driver { call, code, name, text }
}
