//! The names of results.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_uint};
use std::ptr;

use cudarc::driver::sys::CUresult;
use cudarc::driver::sys::CUresult::CUDA_ERROR_INVALID_VALUE;

use crate::calls::{Answer, Out, exported};

exported! {
    cuGetErrorName(error: c_uint, text: Out<*const c_char>) Always => name;
    cuGetErrorString(error: c_uint, text: Out<*const c_char>) Always => description;
}

fn name(error: c_uint, text: Out<*const c_char>) -> Answer {
    give(text, find(error).map(|(name, _)| name))
}

fn description(error: c_uint, text: Out<*const c_char>) -> Answer {
    give(text, find(error).map(|(_, description)| description))
}

fn give(text: Out<*const c_char>, found: Option<&'static CStr>) -> Answer {
    text.give(found.map_or(ptr::null(), CStr::as_ptr))?;
    found.map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
}

macro_rules! results {
    ($($name:ident $description:literal,)*) => {
        /// The name and the description of a result.
        fn find(error: c_uint) -> Option<(&'static CStr, &'static CStr)> {
            const NAMES: &[(c_uint, &CStr, &CStr)] = &[$((
                CUresult::$name as c_uint,
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name contains a zero"),
                },
                $description,
            )),*];
            NAMES.iter().find(|(code, ..)| *code == error).map(|(_, name, description)| (*name, *description))
        }
    };
}

results! {
    CUDA_SUCCESS c"no error",
    CUDA_ERROR_INVALID_VALUE c"invalid argument",
    CUDA_ERROR_OUT_OF_MEMORY c"out of memory",
    CUDA_ERROR_NOT_INITIALIZED c"initialization error",
    CUDA_ERROR_DEINITIALIZED c"driver shutting down",
    CUDA_ERROR_STUB_LIBRARY c"driver is a stub library",
    CUDA_ERROR_DEVICE_UNAVAILABLE c"device is busy or unavailable",
    CUDA_ERROR_NO_DEVICE c"no device is visible",
    CUDA_ERROR_INVALID_DEVICE c"invalid device",
    CUDA_ERROR_INVALID_CONTEXT c"invalid context",
    CUDA_ERROR_MAP_FAILED c"mapping failed",
    CUDA_ERROR_UNMAP_FAILED c"unmapping failed",
    CUDA_ERROR_ALREADY_MAPPED c"already mapped",
    CUDA_ERROR_NOT_MAPPED c"not mapped",
    CUDA_ERROR_ECC_UNCORRECTABLE c"uncorrectable memory error",
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED c"peer access is not supported",
    CUDA_ERROR_OPERATING_SYSTEM c"the operating system refused",
    CUDA_ERROR_INVALID_HANDLE c"invalid handle",
    CUDA_ERROR_ILLEGAL_STATE c"illegal state",
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED c"operation not permitted when stream is capturing",
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED c"operation failed due to a previous error during capture",
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT c"operation would make the legacy stream depend on a capturing blocking stream",
    CUDA_ERROR_NOT_FOUND c"not found",
    CUDA_ERROR_NOT_READY c"not ready",
    CUDA_ERROR_ILLEGAL_ADDRESS c"access to an illegal address",
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES c"too many resources requested",
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED c"peer access is enabled already",
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED c"peer access is not enabled",
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE c"the primary context is active",
    CUDA_ERROR_CONTEXT_IS_DESTROYED c"the context is destroyed",
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED c"host memory is registered already",
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED c"host memory is not registered",
    CUDA_ERROR_LAUNCH_FAILED c"launch failed",
    CUDA_ERROR_NOT_PERMITTED c"not permitted",
    CUDA_ERROR_NOT_SUPPORTED c"not supported",
    CUDA_ERROR_SYSTEM_NOT_READY c"system not ready",
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH c"driver and library do not match",
    CUDA_ERROR_TIMEOUT c"timeout",
    CUDA_ERROR_EXTERNAL_DEVICE c"error on an external device",
    CUDA_ERROR_UNKNOWN c"unknown error",
}
