//! `ndshm._core`: the arrays of `ndarray-shm` for the Python package in `python/ndshm`.
//!
//! Memory of a type known at run time (`memory`), counted arrays (`shared`), the class that Python's `Array` derives
//! from (`array`), renderbuffers (`render`), views that live as long as a lock (`guard`), the buffer protocol for both
//! (`export`), DLPack (`dlpack`), work in threads of its own (`job`), volumes (`volume`), downloads and uploads
//! (`transfer`), calls that are made later (`soon`), and exceptions (`errors`), calls that Ctrl-C can end (`signals`),
//! handles that still protect their arrays (`in_flight`), memory that is used again (`recycle`), which array has an
//! address (`addresses`), copies of numpy arrays (`copying`), writers of streams (`stream`), their readers (`frame`),
//! descriptors that tell of frames (`bell`), and forks while readers hold frames (`inherited`). On Linux also arrays
//! in the memory of a GPU (`device_memory`), and the class of those (`cuda`). What can be written in Python is written
//! there.

mod addresses;
mod arguments;
mod array;
mod attachment;
#[cfg(unix)]
mod bell;
mod cache;
mod copying;
#[cfg(target_os = "linux")]
mod cuda;
#[cfg(target_os = "linux")]
mod device_memory;
mod dlpack;
mod errors;
mod export;
mod forks;
mod frame;
mod guard;
mod in_flight;
#[cfg(unix)]
mod inherited;
mod job;
mod listing;
mod loan;
mod memory;
mod notes;
mod part;
mod recycle;
mod render;
mod shared;
mod signals;
mod soon;
mod stream;
mod transfer;
mod volume;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    use pyo3::prelude::*;

    use super::guard::Words;

    #[pymodule_init]
    #[allow(clippy::unnecessary_wraps)] // as PyO3 calls it
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        Words::get(module.py());
        Ok(())
    }

    #[pymodule_export]
    use super::addresses::array_at;
    #[pymodule_export]
    use super::array::{Made, RawArray, attached, checked_name, create, emulation, open, open_bytes, unlink};
    #[pymodule_export]
    use super::attachment::Attachment;
    #[pymodule_export]
    use super::cache::{RawCache, RawKeyClaim};
    #[cfg(target_os = "linux")]
    #[pymodule_export]
    use super::cuda::{
        DeviceAttachment, RawDeviceArray, cuda_attach, cuda_device_count, cuda_find_driver, cuda_may_be_captured,
        cuda_upload, cuda_zeros,
    };
    #[pymodule_export]
    use super::errors::one_exception_of_each_kind;
    #[pymodule_export]
    use super::forks::forked;
    #[pymodule_export]
    use super::frame::{FreshFrame, RawFrame, RawReader, open_stream};
    #[pymodule_export]
    use super::guard::{AlreadyDone, RawGuard, View, set_strict};
    #[pymodule_export]
    use super::in_flight::InFlight;
    #[cfg(unix)]
    #[pymodule_export]
    use super::inherited::{free_frames, hold_frames, keep_frames};
    #[pymodule_export]
    use super::job::{Job, JobWatch, end_read_threads, free_jobs, free_jobs_of_child, hold_jobs};
    #[pymodule_export]
    use super::listing::{listing, partial_listing, reclaim};
    #[pymodule_export]
    use super::loan::Loan;
    #[pymodule_export]
    use super::render::{FreshClaim, RawBuffer, RawClaim, join_render, render};
    #[pymodule_export]
    use super::shared::{expire, open_counted, prolong, receive, redeem, revoke, set_manager, share, strategies};
    #[pymodule_export]
    use super::signals::{acquire_for_fork, interrupt_again, note_interrupt};
    #[pymodule_export]
    use super::soon::Soon;
    #[pymodule_export]
    use super::stream::{RawNewFrame, RawWriter, create_stream, inspect_stream, unlink_stream};
    #[pymodule_export]
    use super::transfer::{download, read, upload};
    #[pymodule_export]
    use super::volume::{
        RawVolume, available_memory, missing_markers, new_volume, shard_from_environment, write_marker,
    };
}
