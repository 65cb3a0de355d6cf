//! A test double of the CUDA driver's library, `libcuda.so`.
//!
//! Programs find it through `LD_LIBRARY_PATH`. GPU memory is a memfd: an exported descriptor is a duplicate of it, and
//! a mapping is a mapping of it. The kernel therefore keeps GPU memory as long as a handle, a descriptor or a mapping
//! exists, as the driver documents. Streams are queues; each one that has work to wait for has a thread. Handles are
//! numbers in tables, so that a stale one is counted as a violation and answered with an error.
//!
//! # Rooms
//! - [`calls`]: what every function of the driver goes through: counting, injected failures, checks for `cuInit` and
//!   fork.
//! - [`machine`], [`devices`], [`errors`]: the environment variables, the GPUs, the names of results.
//! - [`contexts`]: primary contexts and the current one of each thread.
//! - [`physical`], [`addresses`], [`regions`]: memory of a GPU, address ranges, and which memory lies at which address.
//! - [`memory`], [`legacy`], [`pools`], [`host`]: the calls about virtual memory, `cuMemAlloc`, pools, and page-locked
//!   host memory.
//! - [`pointers`]: what an address is.
//! - [`captures`]: calls that a graph capture forbids.
//! - [`streams`], [`events`], [`copies`]: work in order.
//! - [`remote`], [`maps`]: descriptors of other processes, and the mappings of this one.
//! - [`watch`]: functions for tests, named `fakeCuda...`.
//!
//! # Environment
//! `FAKE_CUDA_DEVICES`, `FAKE_CUDA_TAG`, `FAKE_CUDA_MEMORY`, `FAKE_CUDA_DELAY_US`, `FAKE_CUDA_PEER`, `FAKE_CUDA_LACKS`,
//! `FAKE_CUDA_CAPTURE` and `CUDA_VISIBLE_DEVICES` are described at [`machine::Machine`]; `FAKE_CUDA_REFUSE` and
//! `FAKE_CUDA_FAIL` at [`calls`]; with `FAKE_CUDA_STRICT_EXIT=1`, a call during the process's exit aborts it.
//!
//! # Differences from a driver
//! - Device memory can be read and written by the CPU where a GPU has access to it, so that a test can play a kernel.
//! - Streams `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD` are the NULL stream.
//! - Without a delay, work that waits for nothing is done before its call returns.
#![cfg(target_os = "linux")]

mod addresses;
mod calls;
mod captures;
mod contexts;
mod copies;
mod devices;
mod errors;
mod events;
mod host;
mod legacy;
mod machine;
mod maps;
mod memory;
mod physical;
mod pointers;
mod pools;
mod regions;
mod remote;
mod streams;
mod watch;

use calls::Call;

/// Every function of the driver that this library has.
fn all_calls() -> impl Iterator<Item = &'static Call> {
    [
        captures::CALLS,
        contexts::CALLS,
        copies::CALLS,
        devices::CALLS,
        errors::CALLS,
        events::CALLS,
        host::CALLS,
        legacy::CALLS,
        machine::CALLS,
        memory::CALLS,
        pointers::CALLS,
        pools::CALLS,
        streams::CALLS,
    ]
    .into_iter()
    .flatten()
}
