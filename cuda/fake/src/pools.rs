//! Memory pools. Each allocation is memory of its own; a pool is what its allocations have in common: GPU and access.
//!
//! A pool goes to another process as a descriptor, and its allocations as 64 bytes, which reach the memory while the
//! exporting process has it.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys;
use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_OUT_OF_MEMORY,
};
use rustix::fs::MemfdFlags;

use crate::addresses::Access;
use crate::calls::{Answer, In, Out, Plain, exported, locked, new_handle};
use crate::legacy;
use crate::machine::{machine, tag};
use crate::memory::{self, AccessDescription, Location, PINNED, POSIX_DESCRIPTOR};
use crate::regions::{self, AccessList, Kind};
use crate::remote::{RemoteFile, Ticket};
use crate::streams::{self, Action};
use crate::{contexts, physical, watch};

exported! {
    cuDeviceGetDefaultMemPool(out: Out<usize>, device: c_int) Ready => default_pool;
    cuDeviceGetMemPool(out: Out<usize>, device: c_int) Ready => default_pool;
    cuMemPoolCreate(out: Out<usize>, props: In<PoolProps>) Ready => create;
    cuMemPoolDestroy(pool: usize) Ready => destroy;
    cuMemPoolSetAccess(pool: usize, list: In<AccessDescription>, count: usize) Ready => set_access;
    cuMemAllocFromPoolAsync(out: Out<usize>, size: usize, pool: usize, stream: usize) Ready => allocate_from;
    cuMemAllocAsync(out: Out<usize>, size: usize, stream: usize) Ready => allocate;
    cuMemFreeAsync(pointer: usize, stream: usize) Ready => free;
    cuMemPoolExportToShareableHandle(out: Out<c_int>, pool: usize, kind: c_uint, flags: u64) Ready => export;
    cuMemPoolImportFromShareableHandle(out: Out<usize>, descriptor: usize, kind: c_uint, flags: u64) Ready => import;
    cuMemPoolExportPointer(out: Out<Ticket>, pointer: usize) Ready => export_pointer;
    cuMemPoolImportPointer(out: Out<usize>, pool: usize, data: In<Ticket>) Ready => import_pointer;
}

/// `CUmemPoolProps` in integers.
#[repr(C)]
#[derive(Clone, Copy)]
struct PoolProps {
    kind: c_uint,
    handle_kinds: c_uint,
    location: Location,
    win32: usize,
    max_size: usize,
    usage: u16,
    reserved: [u8; 54],
}

impl Plain for PoolProps {}

const _: () = assert!(size_of::<PoolProps>() == size_of::<sys::CUmemPoolProps>());

#[derive(Clone)]
struct Pool {
    gpu: u32,
    access: AccessList,
    role: Role,
}

/// What can be done with a pool.
#[derive(Clone)]
enum Role {
    /// A GPU's own pool, which is neither destroyed nor exported.
    Default,
    Private,
    /// With the descriptor that stands for it in other processes.
    Exportable(Arc<OwnedFd>),
    /// Of another process; only that process allocates.
    Imported(Arc<OwnedFd>),
}

static POOLS: Mutex<BTreeMap<usize, Pool>> = Mutex::new(BTreeMap::new());

/// Number of pools that the program has created or imported and not destroyed.
pub(crate) fn live() -> usize {
    locked(&POOLS).values().filter(|pool| !matches!(pool.role, Role::Default)).count()
}

impl Pool {
    fn new(gpu: u32, role: Role) -> Self {
        Self { gpu, access: Arc::new(Mutex::new(BTreeMap::from([(gpu, Access::READ_WRITE)]))), role }
    }
}

/// Finds a pool. Destroyed and unknown ones are violations.
fn find(pool: usize) -> Answer<Pool> {
    let known = locked(&POOLS).get(&pool).cloned();
    known.ok_or_else(|| {
        watch::violation(format!("use of the unknown or destroyed pool {pool:#x}"));
        CUDA_ERROR_INVALID_VALUE
    })
}

/// The start of the names of descriptors that stand for pools.
fn prefix() -> String {
    format!("fake-cuda-pool:{}:", tag())
}

/// The default pool of a GPU.
fn default_of(gpu: u32) -> usize {
    let mut pools = locked(&POOLS);
    let known = pools.iter().find(|(_, pool)| pool.gpu == gpu && matches!(pool.role, Role::Default));
    let handle = known.map_or_else(new_handle, |(&handle, _)| handle);
    pools.entry(handle).or_insert_with(|| Pool::new(gpu, Role::Default));
    handle
}

fn default_pool(out: Out<usize>, device: c_int) -> Answer {
    out.give(default_of(machine()?.gpu(device)?))
}

fn create(out: Out<usize>, props: In<PoolProps>) -> Answer {
    let props = props.get()?;
    let gpu = props.location.gpu()?;
    if props.kind != PINNED || out.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let role = if memory::exportable(props.handle_kinds)? {
        let file = rustix::fs::memfd_create(format!("{}{gpu}", prefix()), MemfdFlags::CLOEXEC);
        Role::Exportable(Arc::new(file.or(Err(CUDA_ERROR_OUT_OF_MEMORY))?))
    } else {
        Role::Private
    };
    let handle = new_handle();
    locked(&POOLS).insert(handle, Pool::new(gpu, role));
    out.give(handle)
}

fn destroy(pool: usize) -> Answer {
    if matches!(find(pool)?.role, Role::Default) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    locked(&POOLS).remove(&pool);
    Ok(())
}

fn set_access(pool: usize, list: In<AccessDescription>, count: usize) -> Answer {
    let pool = find(pool)?;
    // All are checked before one has an effect.
    let changes = (0..count).map(|index| {
        let description = list.get_at(index)?;
        let (gpu, access) = (description.location.gpu()?, Access::from_flags(description.flags)?);
        if gpu == pool.gpu && access != Access::READ_WRITE {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if machine()?.peers(gpu, pool.gpu) { Ok((gpu, access)) } else { Err(CUDA_ERROR_INVALID_DEVICE) }
    });
    let changes = changes.collect::<Answer<Vec<_>>>()?;
    locked(&pool.access).extend(changes);
    Ok(())
}

fn allocate_from(out: Out<usize>, size: usize, pool: usize, stream: usize) -> Answer {
    contexts::current()?;
    streams::find(stream)?;
    let known = find(pool)?;
    if matches!(known.role, Role::Imported(_)) || out.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // At once: the addresses are only of use to work that is submitted after this call.
    let memory = legacy::new_memory(known.gpu, size)?;
    out.give(regions::place(Kind::Pooled(pool), memory, size, Some(known.access))?)
}

fn allocate(out: Out<usize>, size: usize, stream: usize) -> Answer {
    let gpu = contexts::gpu_of(streams::context_of(streams::find(stream)?)?)?;
    allocate_from(out, size, default_of(gpu), stream)
}

fn free(pointer: usize, stream: usize) -> Answer {
    contexts::current()?;
    let stream = streams::find(stream)?;
    legacy::can_free_in_order(pointer)?;
    streams::submit(stream, Action::Free(pointer).into()).map(|_| ())
}

fn export(out: Out<c_int>, pool: usize, kind: c_uint, flags: u64) -> Answer {
    let Role::Exportable(file) = find(pool)?.role else { return Err(CUDA_ERROR_INVALID_VALUE) };
    if kind != POSIX_DESCRIPTOR || flags != 0 || out.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    out.give(file.try_clone().or(Err(CUDA_ERROR_OPERATING_SYSTEM))?.into_raw_fd())
}

fn import(out: Out<usize>, descriptor: usize, kind: c_uint, flags: u64) -> Answer {
    if kind != POSIX_DESCRIPTOR || flags != 0 || out.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let file = memory::duplicate(descriptor)?;
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).or(Err(CUDA_ERROR_INVALID_VALUE))?;
    let link = link.to_string_lossy();
    let rest = link.strip_prefix("/memfd:").and_then(|name| name.strip_prefix(&prefix()));
    let gpu = rest.and_then(|rest| rest.strip_suffix(" (deleted)").unwrap_or(rest).parse().ok());
    let gpu = gpu.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    machine()?.ordinal(gpu)?;
    let handle = new_handle();
    locked(&POOLS).insert(handle, Pool::new(gpu, Role::Imported(Arc::new(file))));
    out.give(handle)
}

/// The number that a pool has in all processes.
fn identity(file: &OwnedFd) -> Answer<u64> {
    Ok(rustix::fs::fstat(file.as_fd()).or(Err(CUDA_ERROR_OPERATING_SYSTEM))?.st_ino)
}

fn export_pointer(out: Out<Ticket>, pointer: usize) -> Answer {
    let region = regions::at(pointer).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let Kind::Pooled(pool) = region.kind else { return Err(CUDA_ERROR_INVALID_VALUE) };
    let Role::Exportable(pool) = find(pool)?.role else { return Err(CUDA_ERROR_INVALID_VALUE) };
    let [file, inode] = RemoteFile::of(region.physical.file()).or(Err(CUDA_ERROR_OPERATING_SYSTEM))?.words();
    out.give(Ticket::new([file, inode, region.size as u64, identity(&pool)?, 0, 0, 0, 0]))
}

fn import_pointer(out: Out<usize>, pool: usize, data: In<Ticket>) -> Answer {
    let known = find(pool)?;
    let [file, inode, size, identity_of_pool, ..] = data.get()?.words();
    let Role::Imported(stands_for) = &known.role else { return Err(CUDA_ERROR_INVALID_VALUE) };
    if identity(stands_for)? != identity_of_pool || out.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let memory = physical::open_remote(machine()?, RemoteFile::from_words([file, inode]))?;
    let size = usize::try_from(size).unwrap_or(0).min(memory.size);
    out.give(regions::place(Kind::Imported(pool), memory, size, Some(known.access))?)
}
