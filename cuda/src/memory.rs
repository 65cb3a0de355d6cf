//! Whole allocations: physical memory of a GPU, a range of addresses, and the mapping of one at the other. Each is an
//! owned value.
//!
//! The kernel's driver keeps physical memory as long as a handle, a descriptor or a mapping of it exists, in any
//! process. A killed process therefore releases what it had, and what it sent stays.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{
    CUdevice_attribute, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationProp_st__bindgen_ty_1, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
};

use crate::context::may_still_run;
use crate::device::Device;
use crate::driver::{call, code, functions, functions_in_drop};
use crate::error::{Error, Result};
use crate::reaper;

pub(crate) const DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// How long an allocation waits for memory that work still uses and that ends after it.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// A handle of physical memory.
#[derive(Debug)]
pub(crate) struct Physical {
    raw: CUmemGenericAllocationHandle,
    /// The descriptor by which it was received. A driver exports only what it has created.
    received: Option<OwnedFd>,
}

impl Physical {
    /// Takes physical memory that can be sent as a descriptor. `bytes` is a multiple of the [granularity](granularity).
    /// If there is too little, waits a while for memory of this process that is about to end.
    fn create(device: Device, bytes: usize) -> Result<Self> {
        let _current = device.enter()?; // refuses forked children, which have no such memory
        let deadline = Instant::now() + LONGEST_WAIT;
        loop {
            let over = reaper::over();
            let answer = Self::try_create(device, bytes);
            let is_too_much = || device.memory().is_ok_and(|memory| bytes as u64 > memory.total);
            let is_full = matches!(answer, Err(Error::NoSpace { .. })) && !is_too_much();
            if !is_full || !reaper::wait_for_memory(device.context(), over, deadline) {
                return answer;
            }
        }
    }

    fn try_create(device: Device, bytes: usize) -> Result<Self> {
        let current = device.enter()?;
        let (properties, mut raw) = (properties(device), 0);
        // SAFETY: `raw` is valid for the write of a handle, `properties` for reads.
        match unsafe { call!(current.functions, cuMemCreate(&raw mut raw, bytes, &raw const properties, 0)) } {
            Ok(()) => Ok(Self { raw, received: None }),
            Err(error) if error.driver_code() == Some(code::OUT_OF_MEMORY) => {
                Err(Error::NoSpace { device: device.uuid(), bytes: bytes as u64 })
            }
            Err(error) => Err(error),
        }
    }

    /// Takes another handle of the physical memory that is mapped at an address. Returns `None` if the address is not
    /// one of such a mapping.
    pub(crate) fn retain(address: CUdeviceptr) -> Result<Option<Self>> {
        let mut raw = 0;
        let pointer = std::ptr::without_provenance_mut::<c_void>(usize::try_from(address).unwrap_or(0));
        // SAFETY: `raw` is valid for the write of a handle; the driver looks the address up, and does not read there.
        match unsafe { call!(functions()?, cuMemRetainAllocationHandle(&raw mut raw, pointer)) } {
            Ok(()) => Ok(Some(Self { raw, received: None })),
            Err(error) if matches!(error.driver_code(), Some(code::INVALID_VALUE | code::NOT_SUPPORTED)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes a handle of memory that was received as a descriptor, and keeps a duplicate of that.
    fn import(descriptor: BorrowedFd<'_>) -> Result<Self> {
        let mut raw = 0;
        let received = duplicate(descriptor)?;
        // The driver wants the number of the descriptor in place of a pointer.
        let number = std::ptr::without_provenance_mut::<c_void>(descriptor.as_raw_fd().cast_unsigned() as usize);
        // SAFETY: `raw` is valid for the write of a handle; the driver checks the descriptor.
        unsafe { call!(functions()?, cuMemImportFromShareableHandle(&raw mut raw, number, DESCRIPTOR)) }?;
        Ok(Self { raw, received: Some(received) })
    }

    /// Returns a descriptor of the memory. It keeps the memory until it is closed.
    pub(crate) fn export(&self) -> Result<OwnedFd> {
        if let Some(received) = &self.received {
            return duplicate(received.as_fd());
        }
        let mut number: c_int = -1;
        let to = (&raw mut number).cast();
        // SAFETY: for this type of handle the driver writes an int.
        unsafe { call!(functions()?, cuMemExportToShareableHandle(to, self.raw, DESCRIPTOR, 0)) }?;
        // SAFETY: the driver has opened this descriptor for the caller.
        let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
        Ok(descriptor)
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        if let Some(functions) = functions_in_drop() {
            // SAFETY: this value has the handle, and is the last that uses it. Mappings keep the memory.
            let _ = unsafe { call!(functions, cuMemRelease(self.raw)) };
        }
    }
}

/// A range of addresses of GPUs, the same for all GPUs of the process.
#[derive(Debug)]
struct Reservation {
    start: CUdeviceptr,
    bytes: usize,
}

impl Reservation {
    fn new(bytes: usize) -> Result<Self> {
        let mut start = 0;
        // SAFETY: `start` is valid for the write of an address; alignment 0 and address 0 leave both to the driver.
        unsafe { call!(functions()?, cuMemAddressReserve(&raw mut start, bytes, 0, 0, 0)) }?;
        Ok(Self { start, bytes })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(functions) = functions_in_drop() {
            // SAFETY: the range was reserved by this value, and nothing is mapped in it: `DeviceMapping` drops its
            // mapping first.
            let _ = unsafe { call!(functions, cuMemAddressFree(self.start, self.bytes)) };
        }
    }
}

/// Physical memory at addresses at which its GPU can reach it.
#[derive(Debug)]
pub(crate) struct DeviceMapping {
    device: Device,
    /// Dropped by this type's `Drop`, which first ends the mapping in it.
    reservation: ManuallyDrop<Reservation>,
    physical: Physical,
    /// Whether it stays mapped until the process ends.
    kept: AtomicBool,
}

impl DeviceMapping {
    /// Takes at least this many bytes of a GPU's memory. What they contain is not defined.
    pub(crate) fn create(device: Device, bytes: usize) -> Result<Self> {
        require(device)?;
        let granularity = granularity(device)?;
        let whole = bytes.max(1).checked_next_multiple_of(granularity);
        let whole = whole.ok_or(Error::NoSpace { device: device.uuid(), bytes: bytes as u64 })?;
        Self::of(device, Physical::create(device, whole)?, whole)
    }

    /// Maps received memory of a GPU. `bytes` is what the sender says of its length; the driver refuses more than there
    /// is.
    pub(crate) fn import(device: Device, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        require(device)?;
        if bytes == 0 || !bytes.is_multiple_of(granularity(device)?) {
            return Err(Error::malformed("its length is not one of GPU memory"));
        }
        let _current = device.enter()?;
        Self::of(device, Physical::import(descriptor)?, bytes)
    }

    fn of(device: Device, physical: Physical, bytes: usize) -> Result<Self> {
        let _current = device.enter()?;
        let reservation = Reservation::new(bytes)?;
        // SAFETY: the range is reserved and unused, and the handle is one of physical memory.
        unsafe { call!(functions()?, cuMemMap(reservation.start, bytes, 0, physical.raw, 0)) }?;
        let mapping =
            Self { device, reservation: ManuallyDrop::new(reservation), physical, kept: AtomicBool::new(false) };
        mapping.allow(device)?;
        Ok(mapping)
    }

    /// Lets a GPU read and write the memory.
    pub(crate) fn allow(&self, device: Device) -> Result<()> {
        if !device.can_access(self.device)? {
            return Err(Error::NoPeerAccess { from: device.uuid(), to: self.device.uuid() });
        }
        let access = access(device);
        let Reservation { start, bytes } = *self.reservation;
        // SAFETY: the range is mapped; `access` is valid for the read of one description.
        unsafe { call!(functions()?, cuMemSetAccess(start, bytes, &raw const access, 1)) }
    }

    /// Returns a descriptor of the memory.
    pub(crate) fn export(&self) -> Result<OwnedFd> {
        let _current = self.device.enter()?;
        self.physical.export()
    }

    /// Keeps the memory mapped until the process ends.
    pub(crate) fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }

    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// Returns the first address.
    pub(crate) fn start(&self) -> CUdeviceptr {
        self.reservation.start
    }

    /// Returns the length, which is a multiple of the granularity.
    pub(crate) fn bytes(&self) -> usize {
        self.reservation.bytes
    }
}

impl Drop for DeviceMapping {
    fn drop(&mut self) {
        if *self.kept.get_mut() || may_still_run() {
            return;
        }
        if let Some(functions) = functions_in_drop() {
            let Reservation { start, bytes } = *self.reservation;
            // SAFETY: the range is mapped, and no work uses it: the owner of the mapping has waited for that.
            let unmapped = unsafe { call!(functions, cuMemUnmap(start, bytes)) };
            // Addresses that are still mapped must not be freed.
            if unmapped.is_ok() {
                // SAFETY: nothing uses the reservation after this.
                unsafe { ManuallyDrop::drop(&mut self.reservation) };
            }
        }
    }
}

fn duplicate(descriptor: BorrowedFd<'_>) -> Result<OwnedFd> {
    let copy = descriptor.try_clone_to_owned();
    copy.map_err(|error| Error::Os { op: "keep a descriptor of received memory", error })
}

/// Returns the unit of physical memory: 2 MiB on today's GPUs.
fn granularity(device: Device) -> Result<usize> {
    let (properties, mut bytes) = (properties(device), 0);
    let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let current = device.enter()?;
    // SAFETY: `bytes` is valid for the write of a size, `properties` for reads.
    unsafe { call!(current.functions, cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, minimum)) }?;
    Ok(bytes)
}

/// Fails on a GPU, driver or system that cannot send GPU memory as a descriptor.
fn require(device: Device) -> Result<()> {
    let virtual_memory = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    let descriptors = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
    if device.attribute(virtual_memory)? != 0 && device.attribute(descriptors)? != 0 {
        return Ok(());
    }
    let reason = format!("GPU {} with this driver cannot pass its memory on as a descriptor", device.uuid());
    Err(Error::Unsupported { what: "GPU memory that processes share", reason })
}

fn location(device: Device) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device.raw() }
}

/// Describes that a GPU may read and write memory.
pub(crate) fn access(device: Device) -> CUmemAccessDesc {
    CUmemAccessDesc { location: location(device), flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE }
}

fn properties(device: Device) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: DESCRIPTOR,
        location: location(device),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}
