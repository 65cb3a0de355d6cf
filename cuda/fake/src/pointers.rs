//! What an address is: device memory or page-locked host memory, of which device, with which base.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};

use cudarc::driver::sys::CUresult::CUDA_ERROR_INVALID_VALUE;
use cudarc::driver::sys::{CUmemorytype, CUpointer_attribute as Attribute};

use crate::calls::{Answer, In, Out, exported};
use crate::machine::machine;
use crate::memory::POSIX_DESCRIPTOR;
use crate::regions::{self, Kind};
use crate::{contexts, host};

exported! {
    cuMemGetAddressRange_v2(base: Out<usize>, size: Out<usize>, pointer: usize) Ready => address_range;
    cuPointerGetAttribute(data: Out<u8>, attribute: c_uint, pointer: usize) Ready => attribute;
    cuPointerGetAttributes(count: c_uint, attributes: In<c_uint>, data: In<usize>, pointer: usize) Ready => attributes;
}

fn address_range(base: Out<usize>, size: Out<usize>, pointer: usize) -> Answer {
    contexts::current()?;
    let region = regions::around(pointer).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    // Both results are optional.
    if !base.is_null() {
        base.give(region.base)?;
    }
    if size.is_null() { Ok(()) } else { size.give(region.size) }
}

/// An attribute's value, in the type that the driver documents.
enum Value {
    /// One byte, so that it fits where the caller keeps a larger number that was 0.
    Flag(bool),
    Int(c_int),
    Unsigned(c_uint),
    Word(u64),
    Address(usize),
}

impl Value {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Flag(value) => vec![u8::from(*value)],
            Self::Int(value) => value.to_ne_bytes().to_vec(),
            Self::Unsigned(value) => value.to_ne_bytes().to_vec(),
            Self::Word(value) => value.to_ne_bytes().to_vec(),
            Self::Address(value) => value.to_ne_bytes().to_vec(),
        }
    }

    fn give(&self, data: Out<u8>) -> Answer {
        self.bytes().into_iter().enumerate().try_for_each(|(index, byte)| data.give_at(index, byte))
    }
}

/// Finds an attribute of what is at an address. Addresses of pageable memory have none.
fn find(attribute: c_uint, pointer: usize) -> Answer<Value> {
    if let Some(region) = regions::around(pointer) {
        let (base, size) = (region.base, region.size);
        let context = match region.kind {
            Kind::Allocation(context) | Kind::Opened(context) => context,
            Kind::Mapping | Kind::Pooled(_) | Kind::Imported(_) => 0,
        };
        let pool = match region.kind {
            Kind::Pooled(pool) | Kind::Imported(pool) => pool,
            _ => 0,
        };
        let handle_kinds = if region.physical.exportable { u64::from(POSIX_DESCRIPTOR) } else { 0 };
        return Ok(match attribute {
            CONTEXT => Value::Address(context),
            MEMORY_TYPE => Value::Unsigned(CUmemorytype::CU_MEMORYTYPE_DEVICE as c_uint),
            DEVICE_POINTER => Value::Address(pointer),
            BUFFER_ID => Value::Word(region.id),
            IS_MANAGED => Value::Flag(false),
            DEVICE_ORDINAL => Value::Int(machine()?.ordinal(region.physical.gpu)?),
            IS_LEGACY_IPC_CAPABLE => Value::Flag(matches!(region.kind, Kind::Allocation(_))),
            RANGE_START | MAPPING_BASE => Value::Address(base),
            RANGE_SIZE | MAPPING_SIZE => Value::Address(size),
            MAPPED => Value::Flag(true),
            ALLOWED_HANDLE_TYPES => Value::Word(handle_kinds),
            ACCESS_FLAGS => Value::Unsigned(region.access_of(contexts::current()?.gpu).0),
            MEMPOOL => Value::Address(pool),
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        });
    }
    let (range, context) = host::around(pointer).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    Ok(match attribute {
        CONTEXT => Value::Address(context),
        MEMORY_TYPE => Value::Unsigned(CUmemorytype::CU_MEMORYTYPE_HOST as c_uint),
        DEVICE_POINTER | HOST_POINTER => Value::Address(pointer),
        BUFFER_ID => Value::Word(range.start as u64),
        IS_MANAGED | IS_LEGACY_IPC_CAPABLE => Value::Flag(false),
        DEVICE_ORDINAL => Value::Int(machine()?.ordinal(contexts::gpu_of(context)?)?),
        RANGE_START => Value::Address(range.start),
        RANGE_SIZE => Value::Address(range.len()),
        MAPPED => Value::Flag(true),
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    })
}

/// What an attribute is where there is no such memory.
fn nothing(attribute: c_uint) -> Value {
    match attribute {
        DEVICE_ORDINAL => Value::Int(-2),
        MEMORY_TYPE | ACCESS_FLAGS => Value::Unsigned(0),
        BUFFER_ID | ALLOWED_HANDLE_TYPES => Value::Word(0),
        IS_MANAGED | IS_LEGACY_IPC_CAPABLE | MAPPED => Value::Flag(false),
        _ => Value::Address(0),
    }
}

fn attribute(data: Out<u8>, attribute: c_uint, pointer: usize) -> Answer {
    contexts::current()?;
    find(attribute, pointer)?.give(data)
}

fn attributes(count: c_uint, attributes: In<c_uint>, data: In<usize>, pointer: usize) -> Answer {
    contexts::current()?;
    for index in 0..usize::try_from(count).or(Err(CUDA_ERROR_INVALID_VALUE))? {
        let attribute = attributes.get_at(index)?;
        find(attribute, pointer).unwrap_or_else(|_| nothing(attribute)).give(data.target_at(index)?)?;
    }
    Ok(())
}

const CONTEXT: c_uint = Attribute::CU_POINTER_ATTRIBUTE_CONTEXT as c_uint;
const MEMORY_TYPE: c_uint = Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as c_uint;
const DEVICE_POINTER: c_uint = Attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER as c_uint;
const HOST_POINTER: c_uint = Attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER as c_uint;
const BUFFER_ID: c_uint = Attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID as c_uint;
const IS_MANAGED: c_uint = Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED as c_uint;
const DEVICE_ORDINAL: c_uint = Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as c_uint;
const IS_LEGACY_IPC_CAPABLE: c_uint = Attribute::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE as c_uint;
const RANGE_START: c_uint = Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR as c_uint;
const RANGE_SIZE: c_uint = Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE as c_uint;
const MAPPED: c_uint = Attribute::CU_POINTER_ATTRIBUTE_MAPPED as c_uint;
const ALLOWED_HANDLE_TYPES: c_uint = Attribute::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES as c_uint;
const ACCESS_FLAGS: c_uint = Attribute::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS as c_uint;
const MEMPOOL: c_uint = Attribute::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE as c_uint;
const MAPPING_SIZE: c_uint = Attribute::CU_POINTER_ATTRIBUTE_MAPPING_SIZE as c_uint;
const MAPPING_BASE: c_uint = Attribute::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR as c_uint;
