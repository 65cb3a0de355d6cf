//! Page-locked host memory: registered ranges of the program, and `cuMemHostAlloc`.
//!
//! GPUs reach both kinds under the addresses that the CPU uses.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::ops::Range;
use std::ptr;
use std::sync::Mutex;

use cudarc::driver::sys::CUdevice_attribute;
use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, CUDA_ERROR_INVALID_VALUE,
    CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_OUT_OF_MEMORY,
};
use rustix::mm::{MapFlags, ProtFlags};

use crate::calls::{Answer, Out, exported, locked};
use crate::machine::machine;
use crate::maps::{self, Backing};
use crate::{contexts, regions, streams, watch};

exported! {
    cuMemHostRegister_v2(pointer: usize, size: usize, flags: c_uint) Ready => register;
    cuMemHostUnregister(pointer: usize) Ready => unregister;
    cuMemHostGetDevicePointer_v2(out: Out<usize>, pointer: usize, flags: c_uint) Ready => device_pointer;
    cuMemHostAlloc(out: Out<usize>, size: usize, flags: c_uint) Ready => allocate;
    cuMemFreeHost(pointer: usize) Ready => free;
}

const IO_MEMORY: c_uint = 4;
const READ_ONLY: c_uint = 8;

/// Page-locked memory.
struct Locked {
    size: usize,
    context: usize,
    kind: Kind,
}

enum Kind {
    Registered {
        backing: Vec<Backing>,
        /// Whether a change of the mappings has been counted.
        reported: bool,
    },
    Allocated {
        _memory: Allocated,
    },
}

/// Memory of `cuMemHostAlloc`.
struct Allocated(Range<usize>);

impl Drop for Allocated {
    fn drop(&mut self) {
        let start = ptr::with_exposed_provenance_mut(self.0.start);
        // SAFETY: the mapping belongs to this value, and the caller of `cuMemFreeHost` has given it up.
        let _ = unsafe { rustix::mm::munmap(start, self.0.len()) }; // fails only without memory; the mapping then stays
    }
}

static LOCKED: Mutex<BTreeMap<usize, Locked>> = Mutex::new(BTreeMap::new());

/// Number of registered, or of allocated ranges.
pub(crate) fn live(registered: bool) -> usize {
    locked(&LOCKED).values().filter(|memory| matches!(memory.kind, Kind::Registered { .. }) == registered).count()
}

/// The range of page-locked memory around an address, and its context.
pub(crate) fn around(address: usize) -> Option<(Range<usize>, usize)> {
    let table = locked(&LOCKED);
    let (&start, memory) = table.range(..=address).next_back()?;
    let range = start..start + memory.size;
    range.contains(&address).then_some((range, memory.context))
}

/// Whether a range is page-locked.
pub(crate) fn is_locked(address: usize, size: usize) -> bool {
    around(address).is_some_and(|(range, _)| address.checked_add(size).is_some_and(|end| end <= range.end))
}

/// Ends what a context has registered or allocated.
pub(crate) fn end_context(context: usize) {
    locked(&LOCKED).retain(|_, memory| memory.context != context);
}

/// Counts registered ranges that are unmapped, or where another file is now.
pub(crate) fn check_registered() {
    for (&start, memory) in locked(&LOCKED).iter_mut() {
        if let Kind::Registered { backing, reported } = &mut memory.kind {
            let range = start..start + memory.size;
            let now = maps::covering(&range).map(|areas| maps::backing(&areas));
            if !*reported && now.as_ref() != Some(backing) {
                *reported = true;
                watch::violation(format!("registered memory was unmapped or replaced, {range:#x?}"));
            }
        }
    }
}

fn register(pointer: usize, size: usize, flags: c_uint) -> Answer {
    let context = contexts::current()?.context;
    check_registered();
    let end = pointer.checked_add(size).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if pointer == 0 || size == 0 || flags > 15 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let read_only = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED as c_uint;
    if flags & IO_MEMORY != 0 || flags & READ_ONLY != 0 && !machine()?.has(read_only) {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    let range = pointer..end;
    let areas = maps::covering(&range).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let writable = areas.iter().all(|area| area.write);
    if !areas.iter().all(|area| area.read) || !writable && flags & READ_ONLY == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if !regions::within(&range).is_empty() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut table = locked(&LOCKED);
    let before = table.range(..end).next_back();
    if before.is_some_and(|(&start, memory)| start + memory.size > pointer) {
        return Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    if !areas.iter().all(maps::can_stay) {
        return Err(CUDA_ERROR_OPERATING_SYSTEM);
    }
    let kind = Kind::Registered { backing: maps::backing(&areas), reported: false };
    table.insert(pointer, Locked { size, context, kind });
    Ok(())
}

fn unregister(pointer: usize) -> Answer {
    contexts::current()?;
    check_registered();
    let size = match locked(&LOCKED).get(&pointer) {
        Some(Locked { size, kind: Kind::Registered { .. }, .. }) => *size,
        _ => return Err(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
    };
    streams::must_be_unused(&(pointer..pointer + size), "cuMemHostUnregister");
    locked(&LOCKED).remove(&pointer);
    Ok(())
}

fn device_pointer(out: Out<usize>, pointer: usize, flags: c_uint) -> Answer {
    contexts::current()?;
    if flags != 0 || around(pointer).is_none() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    out.give(pointer)
}

fn allocate(out: Out<usize>, size: usize, flags: c_uint) -> Answer {
    let context = contexts::current()?.context;
    if size == 0 || flags > 7 || out.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, at addresses that the kernel selects.
    let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), size, access, MapFlags::PRIVATE) }
        .or(Err(CUDA_ERROR_OUT_OF_MEMORY))?
        .expose_provenance();
    let kind = Kind::Allocated { _memory: Allocated(start..start + size) };
    locked(&LOCKED).insert(start, Locked { size, context, kind });
    out.give(start)
}

fn free(pointer: usize) -> Answer {
    contexts::current()?;
    let known = match locked(&LOCKED).get(&pointer) {
        Some(Locked { size, kind: Kind::Allocated { .. }, .. }) => Some(*size),
        _ => None,
    };
    let size = known.ok_or_else(|| {
        watch::violation(format!("cuMemFreeHost of memory that is not of cuMemHostAlloc, {pointer:#x}"));
        CUDA_ERROR_INVALID_VALUE
    })?;
    streams::must_be_unused(&(pointer..pointer + size), "cuMemFreeHost");
    locked(&LOCKED).remove(&pointer);
    Ok(())
}
