//! Virtual memory management: handles of physical memory, reserved addresses, and mappings.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd, RawFd};
use std::sync::{Arc, Mutex};

use cudarc::driver::sys;
use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_ALREADY_MAPPED, CUDA_ERROR_INVALID_DEVICE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED,
};

use crate::addresses::{Access, Addresses};
use crate::calls::{Answer, In, Out, Plain, exported, locked, new_handle};
use crate::machine::machine;
use crate::physical::{GRANULARITY, Physical};
use crate::regions::{self, Kind, Region};
use crate::{streams, watch};

exported! {
    cuMemGetAllocationGranularity(granularity: Out<usize>, prop: In<AllocationProp>, option: c_uint) Ready => granularity;
    cuMemCreate(handle: Out<u64>, size: usize, prop: In<AllocationProp>, flags: u64) Ready => create;
    cuMemRelease(handle: u64) Ready => release;
    cuMemExportToShareableHandle(descriptor: Out<c_int>, handle: u64, kind: c_uint, flags: u64) Ready => export;
    cuMemImportFromShareableHandle(handle: Out<u64>, descriptor: usize, kind: c_uint) Ready => import;
    cuMemGetAllocationPropertiesFromHandle(prop: Out<AllocationProp>, handle: u64) Ready => properties;
    cuMemRetainAllocationHandle(handle: Out<u64>, address: usize) Ready => retain;
    cuMemAddressReserve(pointer: Out<usize>, size: usize, alignment: usize, wish: usize, flags: u64) Ready => reserve;
    cuMemAddressFree(pointer: usize, size: usize) Ready => free_addresses;
    cuMemMap(pointer: usize, size: usize, offset: usize, handle: u64, flags: u64) Ready => map;
    cuMemUnmap(pointer: usize, size: usize) Ready => unmap;
    cuMemSetAccess(pointer: usize, size: usize, list: In<AccessDescription>, count: usize) Ready => set_access;
    cuMemGetAccess(flags: Out<u64>, location: In<Location>, pointer: usize) Ready => get_access;
}

/// `CUmemLocation` in integers, because C code may put any number into its enumerations.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    pub(crate) kind: c_uint,
    pub(crate) id: c_int,
}

/// `CUmemAllocationProp` in integers.
#[repr(C)]
#[derive(Clone, Copy)]
struct AllocationProp {
    kind: c_uint,
    handle_kinds: c_uint,
    location: Location,
    win32: usize,
    flags: [u8; 8],
}

/// `CUmemAccessDesc` in integers.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AccessDescription {
    pub(crate) location: Location,
    pub(crate) flags: c_uint,
}

impl Plain for Location {}
impl Plain for AllocationProp {}
impl Plain for AccessDescription {}

const _: () = assert!(size_of::<AllocationProp>() == size_of::<sys::CUmemAllocationProp>());
const _: () = assert!(size_of::<AccessDescription>() == size_of::<sys::CUmemAccessDesc>());

impl Location {
    /// The GPU. Only devices have memory here.
    pub(crate) fn gpu(self) -> Answer<u32> {
        if self.kind == sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_uint {
            machine()?.gpu(self.id)
        } else {
            Err(CUDA_ERROR_INVALID_DEVICE)
        }
    }

    pub(crate) fn of(gpu: u32) -> Answer<Self> {
        Ok(Self { kind: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_uint, id: machine()?.ordinal(gpu)? })
    }
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub(crate) const PINNED: c_uint = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as c_uint;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub(crate) const POSIX_DESCRIPTOR: c_uint = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;

/// Memory that the program has a handle of, and how often it has to release it.
struct Handle {
    physical: Arc<Physical>,
    count: u64,
}

static HANDLES: Mutex<BTreeMap<u64, Handle>> = Mutex::new(BTreeMap::new());
static RESERVATIONS: Mutex<BTreeMap<usize, Addresses>> = Mutex::new(BTreeMap::new());

/// Number of handles of physical memory.
pub(crate) fn live_handles() -> usize {
    locked(&HANDLES).len()
}

/// Number of reservations.
pub(crate) fn live_reservations() -> usize {
    locked(&RESERVATIONS).len()
}

/// Kinds of handles that memory can be exported as: none, or a file descriptor.
pub(crate) fn exportable(handle_kinds: c_uint) -> Answer<bool> {
    match handle_kinds {
        0 => Ok(false),
        POSIX_DESCRIPTOR => Ok(true),
        _ => Err(CUDA_ERROR_NOT_SUPPORTED),
    }
}

impl AllocationProp {
    fn checked(&self) -> Answer<(u32, bool)> {
        if self.kind != PINNED {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok((self.location.gpu()?, exportable(self.handle_kinds)?))
    }
}

/// Checks that numbers are multiples of the granularity, the size among them not 0.
fn aligned(size: usize, addresses: &[usize]) -> Answer {
    let valid =
        size != 0 && size.is_multiple_of(GRANULARITY) && addresses.iter().all(|n| n.is_multiple_of(GRANULARITY));
    if valid { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

fn no_flags(flags: u64) -> Answer {
    if flags == 0 { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

fn granularity(out: Out<usize>, prop: In<AllocationProp>, option: c_uint) -> Answer {
    prop.get()?.checked()?;
    if option > 1 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    out.give(GRANULARITY)
}

fn new(physical: Arc<Physical>) -> u64 {
    let handle = new_handle() as u64;
    locked(&HANDLES).insert(handle, Handle { physical, count: 1 });
    handle
}

fn create(out: Out<u64>, size: usize, prop: In<AllocationProp>, flags: u64) -> Answer {
    let (gpu, exportable) = prop.get()?.checked()?;
    no_flags(flags)?;
    aligned(size, &[])?;
    if out.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    out.give(new(Physical::create(machine()?, gpu, size, exportable)?))
}

/// The memory of a handle. Other numbers are violations.
fn physical(handle: u64, call: &str) -> Answer<Arc<Physical>> {
    let known = locked(&HANDLES).get(&handle).map(|handle| handle.physical.clone());
    known.ok_or_else(|| {
        watch::violation(format!("{call} of the unknown or released handle {handle:#x}"));
        CUDA_ERROR_INVALID_VALUE
    })
}

fn release(handle: u64) -> Answer {
    physical(handle, "cuMemRelease")?;
    let mut handles = locked(&HANDLES);
    if let Some(known) = handles.get_mut(&handle) {
        known.count -= 1;
        if known.count == 0 {
            handles.remove(&handle);
        }
    }
    Ok(())
}

fn export(out: Out<c_int>, handle: u64, kind: c_uint, flags: u64) -> Answer {
    let physical = physical(handle, "cuMemExportToShareableHandle")?;
    no_flags(flags)?;
    if kind != POSIX_DESCRIPTOR || !physical.exportable || out.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    out.give(physical.duplicate()?.into_raw_fd())
}

/// Duplicates a descriptor that a C caller passed in a pointer, as the driver's functions take it.
pub(crate) fn duplicate(descriptor: usize) -> Answer<std::os::fd::OwnedFd> {
    let descriptor = RawFd::try_from(descriptor).or(Err(CUDA_ERROR_INVALID_VALUE))?;
    // SAFETY: the number is not -1. The caller keeps the descriptor open during the call; a number that is not open
    // gives an error.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    borrowed.try_clone_to_owned().or(Err(CUDA_ERROR_INVALID_VALUE))
}

fn import(out: Out<u64>, descriptor: usize, kind: c_uint) -> Answer {
    if kind != POSIX_DESCRIPTOR || out.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    out.give(new(Physical::import(machine()?, duplicate(descriptor)?)?))
}

fn properties(out: Out<AllocationProp>, handle: u64) -> Answer {
    let physical = physical(handle, "cuMemGetAllocationPropertiesFromHandle")?;
    let handle_kinds = if physical.exportable { POSIX_DESCRIPTOR } else { 0 };
    out.give(AllocationProp {
        kind: PINNED,
        handle_kinds,
        location: Location::of(physical.gpu)?,
        win32: 0,
        flags: [0; 8],
    })
}

fn retain(out: Out<u64>, address: usize) -> Answer {
    let region = regions::around(address).filter(|region| region.kind == Kind::Mapping);
    let physical = region.ok_or(CUDA_ERROR_INVALID_VALUE)?.physical;
    if out.is_null() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut handles = locked(&HANDLES);
    let known = handles.iter_mut().find(|(_, handle)| Arc::ptr_eq(&handle.physical, &physical));
    if let Some((&handle, known)) = known {
        known.count += 1;
        return out.give(handle);
    }
    drop(handles);
    out.give(new(physical))
}

fn reserve(out: Out<usize>, size: usize, alignment: usize, _wish: usize, flags: u64) -> Answer {
    aligned(size, &[])?;
    no_flags(flags)?;
    if out.is_null() || alignment != 0 && !alignment.is_power_of_two() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let addresses = Addresses::reserve(size, alignment)?;
    let base = addresses.base();
    locked(&RESERVATIONS).insert(base, addresses);
    out.give(base)
}

fn free_addresses(pointer: usize, size: usize) -> Answer {
    let mut reservations = locked(&RESERVATIONS);
    let known = reservations.get(&pointer).map(Addresses::size);
    let problem = match known {
        None => "an unknown or freed reservation",
        Some(known) if known != size => "another size than was reserved",
        Some(_) if !regions::within(&(pointer..pointer + size)).is_empty() => "a reservation that is still mapped",
        Some(_) => {
            reservations.remove(&pointer);
            return Ok(());
        }
    };
    drop(reservations);
    watch::violation(format!("cuMemAddressFree of {problem}, {pointer:#x} + {size:#x}"));
    Err(CUDA_ERROR_INVALID_VALUE)
}

/// Works with the reservation that a range lies in.
fn in_reservation(start: usize, size: usize, work: impl FnOnce(&Addresses) -> Answer) -> Answer {
    let reservations = locked(&RESERVATIONS);
    let before = reservations.range(..=start).next_back().map(|(_, addresses)| addresses);
    work(before.filter(|addresses| addresses.contains(start, size)).ok_or(CUDA_ERROR_INVALID_VALUE)?)
}

fn map(pointer: usize, size: usize, offset: usize, handle: u64, flags: u64) -> Answer {
    aligned(size, &[pointer, offset])?;
    no_flags(flags)?;
    let physical = physical(handle, "cuMemMap")?;
    // The driver documents that the offset has to be 0 at present.
    if offset != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    // Memory is mapped as a whole (measured with driver 580).
    if size != physical.size {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    in_reservation(pointer, size, |addresses| {
        if !regions::within(&(pointer..pointer + size)).is_empty() {
            return Err(CUDA_ERROR_ALREADY_MAPPED);
        }
        addresses.map(pointer, size, &physical, 0, Access::NONE)?;
        regions::add_mapping(pointer, size, physical);
        Ok(())
    })
}

/// The mappings that a range consists of, completely and without gaps.
fn whole_mappings(pointer: usize, size: usize) -> Answer<Vec<Region>> {
    aligned(size, &[pointer])?;
    let end = pointer.checked_add(size).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let regions = regions::within(&(pointer..end));
    let mut next = pointer;
    for region in &regions {
        if region.kind != Kind::Mapping || region.base != next {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        next = region.range().end;
    }
    if next == end { Ok(regions) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

fn unmap(pointer: usize, size: usize) -> Answer {
    let mappings = whole_mappings(pointer, size).inspect_err(|_| {
        watch::violation(format!("cuMemUnmap of what is not mapped so, {pointer:#x} + {size:#x}"));
    })?;
    streams::must_be_unused(&(pointer..pointer + size), "cuMemUnmap");
    in_reservation(pointer, size, |addresses| {
        for mapping in mappings {
            regions::remove(mapping.base);
        }
        addresses.unmap(pointer, size)
    })
}

fn set_access(pointer: usize, size: usize, list: In<AccessDescription>, count: usize) -> Answer {
    let mappings = whole_mappings(pointer, size)?;
    // All are checked before one has an effect.
    let changes = (0..count).map(|index| {
        let description = list.get_at(index)?;
        let (gpu, access) = (description.location.gpu()?, Access::from_flags(description.flags)?);
        let reachable = mappings.iter().all(|mapping| machine().is_ok_and(|m| m.peers(gpu, mapping.physical.gpu)));
        if reachable { Ok((gpu, access)) } else { Err(CUDA_ERROR_INVALID_DEVICE) }
    });
    let changes = changes.collect::<Answer<Vec<_>>>()?;
    if changes.is_empty() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    in_reservation(pointer, size, |addresses| {
        for mapping in &mappings {
            let Some(list) = &mapping.access else { continue };
            let mut list = locked(list);
            list.extend(changes.iter().copied());
            let most = list.values().fold(0, |most, access| most | access.0);
            addresses.protect(mapping.base, mapping.size, Access(most))?;
        }
        Ok(())
    })
}

fn get_access(flags: Out<u64>, location: In<Location>, pointer: usize) -> Answer {
    let gpu = location.get()?.gpu()?;
    let region = regions::around(pointer).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    flags.give(region.access_of(gpu).0.into())
}

const _: () = assert!(size_of::<usize>() == size_of::<*mut c_void>());
