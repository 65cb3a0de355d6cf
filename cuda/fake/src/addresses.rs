//! Ranges of addresses of this process that the double has reserved.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use cudarc::driver::sys::CUresult::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::calls::Answer;
use crate::physical::{GRANULARITY, Physical};

/// An owned range of addresses, in which nothing is accessible until memory is mapped.
pub(crate) struct Addresses {
    base: usize,
    size: usize,
}

impl Addresses {
    /// Reserves a range. The base is a multiple of `alignment`, a power of two or 0, and of the granularity; so has the
    /// size to be of the granularity.
    pub(crate) fn reserve(size: usize, alignment: usize) -> Answer<Self> {
        let alignment = alignment.max(GRANULARITY);
        let room = size.checked_add(alignment).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, at addresses that the kernel selects.
        let found = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), room, ProtFlags::empty(), flags) }
            .or(Err(CUDA_ERROR_OUT_OF_MEMORY))?
            .expose_provenance();
        let base = found.next_multiple_of(alignment);
        // Dropping these gives back what lies before and behind.
        drop(Self { base: found, size: base - found });
        drop(Self { base: base + size, size: found + room - (base + size) });
        Ok(Self { base, size })
    }

    pub(crate) fn base(&self) -> usize {
        self.base
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Whether a range lies within this one.
    pub(crate) fn contains(&self, start: usize, size: usize) -> bool {
        let end = start.checked_add(size);
        start >= self.base && end.is_some_and(|end| end <= self.base + self.size)
    }

    /// Puts memory into a part of the range.
    pub(crate) fn map(&self, start: usize, size: usize, memory: &Physical, offset: usize, access: Access) -> Answer {
        if !self.contains(start, size) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let (flags, file) = (MapFlags::SHARED | MapFlags::FIXED, memory.file());
        // SAFETY: the replaced range lies in this reservation, and only this library gives its addresses a meaning.
        let mapped = unsafe { rustix::mm::mmap(address(start), size, access.flags(), flags, file, offset as u64) };
        mapped.map(|_| ()).or(Err(CUDA_ERROR_MAP_FAILED))
    }

    /// Takes memory out of a part of the range.
    pub(crate) fn unmap(&self, start: usize, size: usize) -> Answer {
        if !self.contains(start, size) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: the replaced range lies in this reservation, and the caller of the C function gave up its memory.
        let cleared = unsafe { rustix::mm::mmap_anonymous(address(start), size, ProtFlags::empty(), flags) };
        cleared.map(|_| ()).or(Err(CUDA_ERROR_MAP_FAILED))
    }

    /// Changes the access to a part of the range in which memory is mapped.
    pub(crate) fn protect(&self, start: usize, size: usize, access: Access) -> Answer {
        if !self.contains(start, size) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let flags = MprotectFlags::from_bits_truncate(access.flags().bits());
        // SAFETY: the range lies in this reservation; Rust has no references into it.
        unsafe { rustix::mm::mprotect(address(start), size, flags) }.or(Err(CUDA_ERROR_MAP_FAILED))
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        if self.size > 0 {
            // SAFETY: the range is owned, and the tables have forgotten it.
            // Fails only without memory; the range then stays.
            let _ = unsafe { rustix::mm::munmap(address(self.base), self.size) };
        }
    }
}

/// What may be done with mapped memory, with the bits of `CUmemAccess_flags`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access(pub(crate) u32);

impl Access {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const READ: Self = Self(1);
    pub(crate) const READ_WRITE: Self = Self(3);

    /// Access by flags of a call.
    pub(crate) fn from_flags(flags: u32) -> Answer<Self> {
        let access = Self(flags);
        let valid = [Self::NONE, Self::READ, Self::READ_WRITE].contains(&access);
        if valid { Ok(access) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    /// Whether this access includes another one.
    pub(crate) fn includes(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn flags(self) -> ProtFlags {
        let mut flags = ProtFlags::empty();
        flags.set(ProtFlags::READ, self.includes(Self::READ));
        flags.set(ProtFlags::WRITE, self.includes(Self::READ_WRITE));
        flags
    }
}

fn address(address: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address)
}
