//! GPUs and what they can do. All have the same abilities.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint};

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::sys::CUresult::CUDA_ERROR_INVALID_VALUE;

use crate::calls::{Answer, Out, exported};
use crate::machine::{machine, uuid};
use crate::{contexts, physical};

exported! {
    cuDeviceGetCount(count: Out<c_int>) Ready => count;
    cuDeviceGet(device: Out<c_int>, ordinal: c_int) Ready => get;
    cuDeviceGetName(name: Out<c_char>, size: c_int, device: c_int) Ready => name;
    cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: c_int) Ready => get_uuid;
    cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int) Ready => get_uuid;
    cuDeviceGetAttribute(value: Out<c_int>, attribute: c_uint, device: c_int) Ready => attribute;
    cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) Ready => total_memory;
    cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) Ready => memory_info;
    cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) Ready => can_access_peer;
}

fn count(count: Out<c_int>) -> Answer {
    count.give(c_int::try_from(machine()?.gpus.len()).unwrap_or(c_int::MAX))
}

fn get(device: Out<c_int>, ordinal: c_int) -> Answer {
    machine()?.gpu(ordinal)?;
    device.give(ordinal)
}

fn name(name: Out<c_char>, size: c_int, device: c_int) -> Answer {
    let text = format!("Fake GPU {}", machine()?.gpu(device)?);
    let room = usize::try_from(size).ok().and_then(|size| size.checked_sub(1)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let bytes = text.bytes().take(room).chain([0]);
    bytes.enumerate().try_for_each(|(index, byte)| name.give_at(index, c_char::from_ne_bytes([byte])))
}

fn get_uuid(out: Out<[u8; 16]>, device: c_int) -> Answer {
    out.give(uuid(machine()?.gpu(device)?))
}

fn attribute(value: Out<c_int>, attribute: c_uint, device: c_int) -> Answer {
    let gpu = c_int::try_from(machine()?.gpu(device)?).unwrap_or(c_int::MAX);
    if !(1..Attribute::CU_DEVICE_ATTRIBUTE_MAX as c_uint).contains(&attribute) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let known = [
        (Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024),
        (Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
        (Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED, 0),
        (Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 1 + gpu),
        (Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0),
        (Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0),
        (Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2),
        (Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9),
        (Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0),
        (Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1),
        // Bits as in `CUmemAllocationHandleType`: POSIX file descriptors.
        (Attribute::CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, 1),
        (Attribute::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1),
    ];
    let machine = machine()?;
    let known = known.into_iter().find(|(known, _)| *known as c_uint == attribute && machine.has(attribute));
    value.give(known.map_or(0, |(_, value)| value))
}

fn total_memory(bytes: Out<usize>, device: c_int) -> Answer {
    machine()?.gpu(device)?;
    bytes.give(usize::try_from(machine()?.memory).unwrap_or(usize::MAX))
}

fn memory_info(free: Out<usize>, total: Out<usize>) -> Answer {
    let current = contexts::current()?;
    let memory = machine()?.memory;
    free.give(usize::try_from(memory.saturating_sub(physical::in_use(Some(current.gpu)))).unwrap_or(usize::MAX))?;
    total.give(usize::try_from(memory).unwrap_or(usize::MAX))
}

fn can_access_peer(can: Out<c_int>, device: c_int, peer: c_int) -> Answer {
    let machine = machine()?;
    let (one, other) = (machine.gpu(device)?, machine.gpu(peer)?);
    can.give((one != other && machine.peers(one, other)).into())
}
