//! `ndshm._core`: the arrays of `ndarray-shm` for the Python package in `python/ndshm`.
//!
//! Memory of a type known at run time (`memory`), counted arrays (`shared`), the class that Python's `Array` derives from (`array`),
//! renderbuffers (`render`), views that live as long as a lock (`guard`), the buffer protocol for both (`export`), DLPack (`dlpack`), work in
//! threads of its own (`job`), volumes (`volume`), downloads and uploads (`transfer`), calls that are made later (`soon`), and exceptions
//! (`errors`). On Linux also arrays in the memory of a GPU (`device_memory`), and the class of those (`cuda`). What can be written in Python
//! is written there.

mod array;
#[cfg(target_os = "linux")]
mod cuda;
#[cfg(target_os = "linux")]
mod device_memory;
mod dlpack;
mod errors;
mod export;
mod guard;
mod job;
mod memory;
mod render;
mod shared;
mod soon;
mod transfer;
mod volume;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::array::{
        Attachment, RawArray, attached, create, emulation, forked, listing, open, open_bytes, reclaim, unlink,
    };
    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use super::cuda::{
        DeviceAttachment, RawDeviceArray, cuda_attach, cuda_device_count, cuda_find_driver, cuda_upload, cuda_zeros,
    };
    #[pymodule_export]
    use super::guard::{Lock, View};
    #[pymodule_export]
    use super::job::Job;
    #[pymodule_export]
    use super::render::{RawBuffer, RawClaim, join_render, render};
    #[pymodule_export]
    use super::shared::{Loan, expire, open_counted, receive, revoke, set_manager, share, strategies};
    #[pymodule_export]
    use super::soon::Soon;
    #[pymodule_export]
    use super::transfer::{download, upload};
    #[pymodule_export]
    use super::volume::{RawVolume, missing_markers, new_volume, shard_from_environment, write_marker};
}
