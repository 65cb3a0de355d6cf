//! Memory pools: those of this process that were lent from, and those of other processes that were imported.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::sys::{CUdeviceptr, CUmemPoolPtrExportData, CUmemoryPool};

use crate::device::Device;
use crate::driver::{call, functions, functions_in_drop};
use crate::error::{Error, Result};
use crate::memory::{DESCRIPTOR, access};

/// 64 bytes of the driver by which another process finds memory.
pub(super) type Bytes64 = [u8; 64];

/// A pool of this process that can be sent, with its descriptor: each pool is exported once while memory of it is lent.
#[derive(Debug)]
pub(super) struct SharedPool {
    /// The driver's handle, as a number: this value never uses the pool.
    address: usize,
    /// Tells pools of this process apart.
    pub(super) number: u64,
    pub(super) descriptor: OwnedFd,
}

/// The pools that memory is lent of.
///
/// Lent memory keeps its pool's entry here, and drops that before the memory. A pool with memory still has its handle,
/// so an entry does not stand for a later pool. If a driver gave the handle away, receivers would get the wrong pool,
/// which refuses the memory's 64 bytes.
static SHARED: Mutex<Vec<Weak<SharedPool>>> = Mutex::new(Vec::new());

impl SharedPool {
    /// Returns the pool with its descriptor. Fails with the driver's "invalid value" if the pool cannot be shared.
    pub(super) fn of(pool: CUmemoryPool) -> Result<Arc<Self>> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let address = pool.addr();
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|pool| pool.strong_count() > 0);
        if let Some(known) = shared.iter().filter_map(Weak::upgrade).find(|known| known.address == address) {
            return Ok(known);
        }
        let mut number: c_int = -1;
        let to = (&raw mut number).cast::<c_void>();
        // SAFETY: for this type of handle the driver writes an int; it has just named this pool as the one of lent
        // memory.
        unsafe { call!(functions()?, cuMemPoolExportToShareableHandle(to, pool, DESCRIPTOR, 0)) }?;
        // SAFETY: the driver has opened this descriptor for the caller.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        let pool = Arc::new(Self { address, number: NUMBER.fetch_add(1, Ordering::Relaxed), descriptor });
        shared.push(Arc::downgrade(&pool));
        Ok(pool)
    }

    /// Returns the bytes by which a process that has imported the pool finds an allocation of it. The driver gives them
    /// only after the pool was exported.
    #[allow(clippy::unused_self)] // that the pool was exported is what `self` proves
    pub(super) fn export_pointer(&self, base: CUdeviceptr) -> Result<Bytes64> {
        let mut data = CUmemPoolPtrExportData { reserved: [0; 64] };
        // SAFETY: `data` is valid for the write of 64 bytes; the driver looks the address up.
        unsafe { call!(functions()?, cuMemPoolExportPointer(&raw mut data, base)) }?;
        Ok(data.reserved)
    }
}

/// A pool of another process. Memory that was imported from it keeps what it needs when the pool is dropped.
#[derive(Debug)]
pub(super) struct ImportedPool {
    raw: CUmemoryPool,
}

// SAFETY: the driver's functions on a pool may be called from any thread.
unsafe impl Send for ImportedPool {}
// SAFETY: and by several at once.
unsafe impl Sync for ImportedPool {}

impl ImportedPool {
    pub(super) fn import(device: Device, descriptor: BorrowedFd<'_>) -> Result<Self> {
        let current = device.enter()?;
        let mut raw = std::ptr::null_mut();
        // The driver wants the number of the descriptor in place of a pointer.
        let number = std::ptr::without_provenance_mut::<c_void>(descriptor.as_raw_fd().cast_unsigned() as usize);
        // SAFETY: `raw` is valid for the write of a handle; the driver checks the descriptor.
        unsafe { call!(current.functions, cuMemPoolImportFromShareableHandle(&raw mut raw, number, DESCRIPTOR, 0)) }?;
        let pool = Self { raw };
        let access = access(device);
        // SAFETY: the pool exists; `access` is valid for the read of one description.
        unsafe { call!(current.functions, cuMemPoolSetAccess(raw, &raw const access, 1)) }?;
        Ok(pool)
    }

    /// Maps an allocation of the pool, and returns its first address.
    pub(super) fn import_pointer(&self, data: Bytes64) -> Result<CUdeviceptr> {
        let (mut data, mut base) = (CUmemPoolPtrExportData { reserved: data }, 0);
        // SAFETY: `base` is valid for the write of an address and `data` for reads; the driver checks the bytes.
        unsafe { call!(functions()?, cuMemPoolImportPointer(&raw mut base, self.raw, &raw mut data)) }?;
        if base == 0 { Err(Error::malformed("its pool has no such memory")) } else { Ok(base) }
    }
}

impl Drop for ImportedPool {
    fn drop(&mut self) {
        if let Some(functions) = functions_in_drop() {
            // SAFETY: this value has imported the pool, and is the last that uses it.
            let _ = unsafe { call!(functions, cuMemPoolDestroy(self.raw)) };
        }
    }
}
