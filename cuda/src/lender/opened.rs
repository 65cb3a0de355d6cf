//! Memory of other processes that this process has opened by 64 bytes of the driver: each allocation once, however many
//! arrays use it.
//!
//! A process can open an allocation of `cudaMalloc` once. An allocation of a pool can be imported twice, but some
//! drivers then end both with the first that is freed. So one table of the process counts the users, and the last one
//! closes.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cudarc::driver::sys::{CUdeviceptr, CUipcMem_flags, CUipcMemHandle};

use super::pools::{Bytes64, ImportedPool};
use super::way::{explained, range_around};
use crate::context::may_still_run;
use crate::device::Device;
use crate::driver::{call, functions_in_drop};
use crate::error::{Error, Result};
use crate::uuid::Uuid;

/// Which pool of which process.
type PoolKey = (u64, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct OpenedKey {
    device: Uuid,
    is_pooled: bool,
    bytes: Bytes64,
}

#[derive(Debug)]
struct OpenedBlock {
    opening: Opening,
    /// The end of what the driver has mapped.
    end: CUdeviceptr,
    users: usize,
}

#[derive(Debug)]
struct OpenedTable {
    blocks: BTreeMap<OpenedKey, OpenedBlock>,
    /// Pools that blocks use.
    pools: BTreeMap<PoolKey, Weak<ImportedPool>>,
}

/// Locked while memory is opened or closed, so that it is never opened while it is being closed.
static TABLE: Mutex<OpenedTable> = Mutex::new(OpenedTable { blocks: BTreeMap::new(), pools: BTreeMap::new() });

/// Locks the table. The caller has checked that this is no forked child, in which it could be locked for ever.
fn table() -> MutexGuard<'static, OpenedTable> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One use of opened memory.
#[derive(Debug)]
pub(super) struct Opened {
    key: OpenedKey,
    /// The first address.
    pub(super) start: CUdeviceptr,
    /// The length from there.
    pub(super) bytes: usize,
}

impl Opened {
    /// Opens an allocation of a pool of another process.
    pub(super) fn pooled(device: Device, pool: PoolKey, descriptor: BorrowedFd<'_>, bytes: Bytes64) -> Result<Self> {
        let _current = device.enter()?;
        Self::open(OpenedKey { device: device.uuid(), is_pooled: true, bytes }, |pools| {
            let known = pools.get(&pool).and_then(Weak::upgrade);
            let imported = if let Some(known) = known {
                known
            } else {
                let imported = ImportedPool::import(device, descriptor);
                let imported = imported.map_err(|error| explained(error, OPENING, "the driver refuses the pool"))?;
                let imported = Arc::new(imported);
                pools.insert(pool, Arc::downgrade(&imported));
                imported
            };
            let base = imported
                .import_pointer(bytes)
                .map_err(|error| explained(error, OPENING, "the driver refuses memory of the pool"))?;
            Ok(Opening { device, base, pool: Some(imported) })
        })
    }

    /// Opens an allocation of `cudaMalloc` of another process.
    pub(super) fn legacy(device: Device, bytes: Bytes64) -> Result<Self> {
        let current = device.enter()?;
        Self::open(OpenedKey { device: device.uuid(), is_pooled: false, bytes }, |_| {
            let mut base = 0;
            let handle = CUipcMemHandle { reserved: bytes.map(u8::cast_signed) };
            let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint;
            // SAFETY: `base` is valid for the write of an address; the driver checks the bytes.
            unsafe { call!(current.functions, cuIpcOpenMemHandle_v2(&raw mut base, handle, flags)) }.map_err(|error| {
                let reason = "the driver refuses memory of cudaMalloc (it needs processes of one IPC namespace, such as \
                              containers with --ipc=host, and no other library that has opened it in this process)";
                explained(error, OPENING, reason)
            })?;
            Ok(Opening { device, base, pool: None })
        })
    }

    fn open(
        key: OpenedKey,
        open: impl FnOnce(&mut BTreeMap<PoolKey, Weak<ImportedPool>>) -> Result<Opening>,
    ) -> Result<Self> {
        let mut table = table();
        let OpenedTable { blocks, pools } = &mut *table;
        pools.retain(|_, pool| pool.strong_count() > 0);
        if let Some(block) = blocks.get_mut(&key) {
            block.users += 1;
            return Ok(block.used_by(key));
        }
        let opening = open(pools)?;
        let (base, length) = range_around(opening.base)?;
        let end = base.saturating_add(length as u64);
        let block = OpenedBlock { opening, end, users: 1 };
        let opened = block.used_by(key);
        blocks.insert(key, block);
        Ok(opened)
    }
}

impl OpenedBlock {
    fn used_by(&self, key: OpenedKey) -> Opened {
        let start = self.opening.base;
        Opened { key, start, bytes: usize::try_from(self.end.saturating_sub(start)).unwrap_or(0) }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if functions_in_drop().is_none() {
            return;
        }
        let mut table = table();
        if let Some(block) = table.blocks.get_mut(&self.key) {
            block.users -= 1;
            if block.users == 0 {
                table.blocks.remove(&self.key);
            }
        }
    }
}

/// Opened memory: dropping it closes it.
#[derive(Debug)]
struct Opening {
    device: Device,
    base: CUdeviceptr,
    /// The pool that it is of; without one, it is memory of `cudaMalloc`.
    pool: Option<Arc<ImportedPool>>,
}

impl Drop for Opening {
    fn drop(&mut self) {
        if may_still_run() || functions_in_drop().is_none() {
            return;
        }
        let Ok(current) = self.device.enter() else { return };
        // A failure is one of earlier work, or the memory went with its lender.
        let _ = if self.pool.is_some() {
            // SAFETY: this value has imported the memory; no work uses it, because each user has waited for its own.
            unsafe { call!(current.functions, cuMemFree_v2(self.base)) }
        } else {
            // SAFETY: this value has opened the memory; no work uses it, because each user has waited for its own.
            unsafe { call!(current.functions, cuIpcCloseMemHandle(self.base)) }
        };
    }
}

pub(super) const OPENING: &str = "borrowing this memory";

/// Reads the driver's bytes in a message.
pub(super) fn bytes64(bytes: &[u8]) -> Result<Bytes64> {
    bytes.try_into().map_err(|_| Error::malformed("it has other than 64 bytes of the driver"))
}
