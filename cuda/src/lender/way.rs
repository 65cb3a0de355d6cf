//! How lent memory goes to other processes: the driver is asked what it is, and the best way is chosen.

#![allow(unsafe_code)]

use std::ffi::c_char;
use std::fmt;
use std::fs::File;
use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUipcMemHandle, CUmemoryPool, CUpointer_attribute};
use serde::{Deserialize, Serialize};

use super::pools::{Bytes64, SharedPool};
use crate::device::Device;
use crate::driver::{call, code, functions};
use crate::error::{Error, Result};
use crate::memory::{DESCRIPTOR, Physical};

/// A way by which other processes get at memory, with what it takes.
#[derive(Debug)]
pub(super) enum LendingWay {
    /// There are no elements.
    Nothing,
    /// One piece of physical memory that is mapped, of this length.
    Physical { memory: Physical, bytes: usize },
    /// An allocation of a pool.
    Pooled { pool: Arc<SharedPool>, pointer: Bytes64 },
    /// An allocation of `cudaMalloc`.
    Legacy { handle: Bytes64 },
}

/// What a message says about the way.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WayNote {
    Nothing,
    /// The descriptor is one of physical memory of this length, all of which is mapped.
    Physical {
        bytes: usize,
    },
    /// The descriptor is one of the pool with this number in the lender's process; the driver's 64 bytes lead to the
    /// allocation.
    Pooled {
        pool: u64,
        pointer: Vec<u8>,
    },
    /// The driver's 64 bytes lead to the allocation.
    Legacy {
        handle: Vec<u8>,
    },
}

impl LendingWay {
    /// Chooses the way for memory at an address. Returns with it where the address is in what the way leads to.
    pub(super) fn of(device: Device, pointer: CUdeviceptr, bytes: usize) -> Result<(Self, usize)> {
        if bytes == 0 {
            return Ok((Self::Nothing, 0));
        }
        let _current = device.enter()?;
        require_on(device, pointer)?;
        let (base, length) = range_around(pointer)?;
        let offset = usize::try_from(pointer - base).unwrap_or(usize::MAX);
        if offset.checked_add(bytes).is_none_or(|end| end > length) {
            let reason = format!(
                "the {bytes} bytes at {pointer:#x} reach beyond the piece of memory that the first is in (a torch expandable \
                 segment has several: lend a copy, or turn expandable_segments off)"
            );
            return Err(refusal(reason));
        }
        if let Some(memory) = Physical::retain(pointer)? {
            let kinds = attribute(CUpointer_attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, pointer)?;
            if kinds & u64::from(DESCRIPTOR.0) == 0 {
                return Err(refusal("its library has not created it for descriptors (lend a copy)"));
            }
            return Ok((Self::Physical { memory, bytes: length }, offset));
        }
        let pool = attribute(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pointer)?;
        let way = if pool != 0 { Self::pooled(pool, base) } else { Self::legacy(base) };
        Ok((way?, offset))
    }

    fn pooled(pool: u64, base: CUdeviceptr) -> Result<Self> {
        let pool: CUmemoryPool = std::ptr::with_exposed_provenance_mut(usize::try_from(pool).unwrap_or(0));
        let no_descriptors = "its pool was not created for descriptors, as a GPU's default pool (create one with POSIX descriptors, or \
                              lend a copy)";
        let pool = SharedPool::of(pool).map_err(|error| explained(error, LENDING, no_descriptors))?;
        let pointer = pool.export_pointer(base).map_err(|error| explained(error, LENDING, no_descriptors))?;
        Ok(Self::Pooled { pool, pointer })
    }

    fn legacy(base: CUdeviceptr) -> Result<Self> {
        if attribute(CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, base)? == 0 {
            return Err(refusal("the driver passes memory of its kind to no other process (lend a copy)"));
        }
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: `handle` is valid for the write of 64 bytes; the driver looks the address up.
        unsafe { call!(functions()?, cuIpcGetMemHandle(&raw mut handle, base)) }.map_err(|error| {
            explained(error, LENDING, "memory that was received must be lent by the process that made it")
        })?;
        Ok(Self::Legacy { handle: handle.reserved.map(c_char::cast_unsigned) })
    }

    /// Returns what a message says, and the descriptor that it carries.
    pub(super) fn describe(&self, device: Device) -> Result<(WayNote, File)> {
        Ok(match self {
            // A message of a channel carries a descriptor with everything that is no array of the host. One form is
            // less to learn than two.
            Self::Nothing => (WayNote::Nothing, no_descriptor()?),
            Self::Legacy { handle } => (WayNote::Legacy { handle: handle.to_vec() }, no_descriptor()?),
            Self::Physical { memory, bytes } => {
                let _current = device.enter()?;
                let exported = memory
                    .export()
                    .map_err(|error| explained(error, LENDING, "the driver gives no descriptor of it"))?;
                (WayNote::Physical { bytes: *bytes }, exported.into())
            }
            Self::Pooled { pool, pointer } => {
                let descriptor = pool.descriptor.try_clone();
                let descriptor = descriptor.map_err(|error| Error::Os { op: "duplicate a descriptor", error })?;
                (WayNote::Pooled { pool: pool.number, pointer: pointer.to_vec() }, descriptor.into())
            }
        })
    }
}

fn no_descriptor() -> Result<File> {
    File::open("/dev/null").map_err(|error| Error::Os { op: "open /dev/null", error })
}

/// Fails if the memory is not on the GPU.
fn require_on(device: Device, pointer: CUdeviceptr) -> Result<()> {
    let ordinal = attribute(CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer)
        .map_err(|error| explained(error, LENDING, format_args!("no GPU has memory at {pointer:#x}")))?;
    if u64::try_from(device.raw()) == Ok(ordinal) {
        return Ok(());
    }
    Err(refusal(format_args!(
        "the memory at {pointer:#x} is on GPU {ordinal} of this process, and the lender on {device:?}"
    )))
}

/// Returns start and length of the allocation, or of the piece of mapped memory, that an address is in.
pub(super) fn range_around(pointer: CUdeviceptr) -> Result<(CUdeviceptr, usize)> {
    let (mut base, mut length) = (0, 0);
    // SAFETY: both are valid for the writes of an address and a size.
    unsafe { call!(functions()?, cuMemGetAddressRange_v2(&raw mut base, &raw mut length, pointer)) }
        .map_err(|error| explained(error, LENDING, format_args!("no GPU has memory at {pointer:#x}")))?;
    Ok((base, length))
}

/// Asks for an attribute of memory. Attributes of fewer than 8 bytes leave the rest 0.
fn attribute(attribute: CUpointer_attribute, pointer: CUdeviceptr) -> Result<u64> {
    let mut value = 0u64;
    // SAFETY: the attributes that are asked for have at most 8 bytes, for which `value` is valid.
    unsafe { call!(functions()?, cuPointerGetAttribute((&raw mut value).cast(), attribute, pointer)) }?;
    Ok(value)
}

pub(super) const LENDING: &str = "lending this memory";

fn refusal(reason: impl fmt::Display) -> Error {
    Error::Unsupported { what: LENDING, reason: reason.to_string() }
}

/// Says why something is impossible, if that is what the driver's answer means. Other failures stay as they are.
pub(super) fn explained(error: Error, what: &'static str, reason: impl fmt::Display) -> Error {
    match error.driver_code() {
        Some(
            code::INVALID_VALUE
            | code::INVALID_CONTEXT
            | code::MAP_FAILED
            | code::ALREADY_MAPPED
            | code::INVALID_HANDLE
            | code::NOT_FOUND
            | code::NOT_PERMITTED
            | code::NOT_SUPPORTED,
        ) => Error::Unsupported { what, reason: format!("{reason}; {error}") },
        _ => error,
    }
}
