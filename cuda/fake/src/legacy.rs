//! `cuMemAlloc` and its handles for other processes, which reach the memory while the process lives that has made it.
#![allow(unsafe_code)]

use std::ffi::c_uint;

use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_ALREADY_MAPPED, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY,
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
};

use crate::calls::{Answer, Out, exported};
use crate::machine::machine;
use crate::physical::{self, GRANULARITY, Physical};
use crate::regions::{self, Kind, Region};
use crate::remote::{RemoteFile, Ticket};
use crate::{contexts, streams, watch};

exported! {
    cuMemAlloc_v2(out: Out<usize>, size: usize) Ready => allocate;
    cuMemFree_v2(pointer: usize) Ready => free;
    cuIpcGetMemHandle(handle: Out<Ticket>, pointer: usize) Ready => get_handle;
    cuIpcOpenMemHandle_v2(out: Out<usize>, handle: Ticket, flags: c_uint) Ready => open_handle;
    cuIpcCloseMemHandle(pointer: usize) Ready => close_handle;
}

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which is necessary.
const LAZY_PEER_ACCESS: c_uint = 1;

/// Ends the memory of a context.
pub(crate) fn end_context(context: usize) {
    for region in regions::of(|kind| [Kind::Allocation(context), Kind::Opened(context)].contains(&kind)) {
        regions::remove(region.base);
    }
}

/// Memory for a size that need not be a multiple of the granularity.
pub(crate) fn new_memory(gpu: u32, size: usize) -> Answer<std::sync::Arc<Physical>> {
    if size == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let size = size.checked_next_multiple_of(GRANULARITY).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
    Physical::create(machine()?, gpu, size, false)
}

fn allocate(out: Out<usize>, size: usize) -> Answer {
    let current = contexts::current()?;
    if out.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    out.give(regions::place(Kind::Allocation(current.context), new_memory(current.gpu, size)?, size, None)?)
}

/// The memory that begins at an address, if a call may free it. Everything else is a violation.
fn freeable(pointer: usize, call: &str, kind: impl Fn(Kind) -> bool) -> Answer<Region> {
    regions::at(pointer).filter(|region| kind(region.kind)).ok_or_else(|| {
        watch::violation(format!("{call} of memory that it cannot free, or of freed memory, {pointer:#x}"));
        CUDA_ERROR_INVALID_VALUE
    })
}

/// Whether `cuMemFree` and `cuMemFreeAsync` take memory of this kind.
fn of_calls(kind: Kind) -> bool {
    matches!(kind, Kind::Allocation(_) | Kind::Pooled(_) | Kind::Imported(_))
}

fn free(pointer: usize) -> Answer {
    contexts::current()?;
    if pointer == 0 {
        return Ok(());
    }
    let region = freeable(pointer, "cuMemFree", of_calls)?;
    streams::must_be_unused(&region.range(), "cuMemFree");
    regions::remove(pointer);
    Ok(())
}

/// Checks that `cuMemFreeAsync` may free what begins at an address.
pub(crate) fn can_free_in_order(pointer: usize) -> Answer {
    freeable(pointer, "cuMemFreeAsync", of_calls).map(|_| ())
}

/// Frees memory when its turn has come in a stream.
pub(crate) fn free_in_order(pointer: usize) -> Answer {
    let region = freeable(pointer, "cuMemFreeAsync", of_calls)?;
    streams::must_be_unused(&region.range(), "cuMemFreeAsync");
    regions::remove(pointer);
    Ok(())
}

fn get_handle(out: Out<Ticket>, pointer: usize) -> Answer {
    contexts::current()?;
    let region = regions::around(pointer).filter(|region| matches!(region.kind, Kind::Allocation(_)));
    let region = region.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let [file, inode] = RemoteFile::of(region.physical.file()).or(Err(CUDA_ERROR_INVALID_VALUE))?.words();
    out.give(Ticket::new([file, inode, region.size as u64, 0, 0, 0, 0, 0]))
}

fn open_handle(out: Out<usize>, handle: Ticket, flags: c_uint) -> Answer {
    let current = contexts::current()?;
    let machine = machine()?;
    let [file, inode, size, ..] = handle.words();
    let file = RemoteFile::from_words([file, inode]);
    if flags != LAZY_PEER_ACCESS || out.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if file.pid == std::process::id() {
        return Err(CUDA_ERROR_INVALID_CONTEXT);
    }
    let physical = physical::open_remote(machine, file)?;
    let opened = regions::of(|kind| matches!(kind, Kind::Opened(_)));
    if opened.iter().any(|region| region.physical.inode == physical.inode) {
        return Err(CUDA_ERROR_ALREADY_MAPPED);
    }
    if !machine.peers(current.gpu, physical.gpu) {
        return Err(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    }
    let size = usize::try_from(size).unwrap_or(0).min(physical.size);
    out.give(regions::place(Kind::Opened(current.context), physical, size, None)?)
}

fn close_handle(pointer: usize) -> Answer {
    contexts::current()?;
    let region = freeable(pointer, "cuIpcCloseMemHandle", |kind| matches!(kind, Kind::Opened(_)))?;
    streams::must_be_unused(&region.range(), "cuIpcCloseMemHandle");
    regions::remove(pointer);
    Ok(())
}
