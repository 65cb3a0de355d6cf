//! Injected failures, refused and invalid calls, and violations.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;

use cudarc::driver::sys;
use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_ALREADY_MAPPED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
    CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_INITIALIZED,
    CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_OUT_OF_MEMORY,
    CUDA_ERROR_UNKNOWN,
};

use crate::Role;
use crate::driver::{
    Answer, MIB2, allocate, calls, create, cu, event, expect_violation, export, fail, hold, live, map, map_only, read,
    result, start, stream, unmap, violations, write,
};

pub const ROLES: &[Role] = &[
    Role { name: "planned_call_fails_once", run: planned, environment: Some(&[("FAKE_CUDA_FAIL", "cuMemCreate:2:2")]) },
    Role {
        name: "refused_call_is_not_supported",
        run: refused,
        environment: Some(&[("FAKE_CUDA_REFUSE", "cuMemExportToShareableHandle")]),
    },
    Role {
        name: "unknown_name_in_a_plan_is_a_violation",
        run: unknown,
        environment: Some(&[("FAKE_CUDA_FAIL", "x:1:1")]),
    },
    Role { name: "calls_need_init_and_a_context", run: order, environment: Some(&[]) },
    Role { name: "misuse_is_counted", run: misuse, environment: Some(&[]) },
    Role { name: "invalid_maps_are_refused", run: maps, environment: Some(&[]) },
    Role { name: "full_device_is_out_of_memory", run: full, environment: Some(&[("FAKE_CUDA_MEMORY", "4194304")]) },
    Role { name: "host_memory_is_registered_once", run: registered, environment: Some(&[]) },
];

fn planned() {
    start();
    let first = create(MIB2).unwrap();
    assert_eq!(create(MIB2), Err(CUDA_ERROR_OUT_OF_MEMORY));
    assert_eq!(live("physical"), 1, "the failed call has no effect");
    create(MIB2).unwrap();
    fail("cuMemRelease", 2, CUDA_ERROR_UNKNOWN);
    cu!(cuMemRelease(first)).unwrap();
    let second = create(MIB2).unwrap();
    assert_eq!(cu!(cuMemRelease(second)), Err(CUDA_ERROR_UNKNOWN));
    cu!(cuMemRelease(second)).unwrap();
    fail("cuMemCreate", 1, CUDA_ERROR_UNKNOWN);
    fail("cuMemCreate", 0, CUDA_ERROR_UNKNOWN);
    create(MIB2).unwrap();
    assert_eq!((calls("cuMemCreate"), calls("cuMemRelease"), calls("cuMemFoo")), (5, 3, u64::MAX));
    assert_eq!(violations(), 0);
}

fn refused() {
    start();
    let memory = create(MIB2).unwrap();
    assert_eq!(export(memory), Err(CUDA_ERROR_NOT_SUPPORTED));
    assert_eq!(export(memory), Err(CUDA_ERROR_NOT_SUPPORTED));
}

fn unknown() {
    start();
    expect_violation(1, "x:1:1");
}

fn order() {
    assert_eq!(create(MIB2), Err(CUDA_ERROR_NOT_INITIALIZED));
    cu!(cuInit(0)).unwrap();
    assert_eq!(allocate(1), Err(CUDA_ERROR_INVALID_CONTEXT));
    assert_eq!(write(0x1000, b"x"), Err(CUDA_ERROR_INVALID_CONTEXT));
    let context = start();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| allocate(1));
        assert_eq!(other.join().unwrap(), Err(CUDA_ERROR_INVALID_CONTEXT), "the other thread has no context");
    });
    cu!(cuCtxPushCurrent_v2(context)).unwrap();
    assert_eq!(result(|out| cu!(cuCtxPopCurrent_v2(out))), Ok(context));
    assert_eq!(result(|out| cu!(cuCtxGetCurrent(out))), Ok(context));
    cu!(cuCtxSetCurrent(ptr::null_mut())).unwrap();
    assert_eq!(result(|out| cu!(cuCtxPopCurrent_v2(out))), Err(CUDA_ERROR_INVALID_CONTEXT));
}

/// Calls the driver in a function of a stream, and notes the answer.
unsafe extern "C" fn call_driver(result: *mut c_void) {
    let answer = cu!(cuCtxSynchronize());
    // SAFETY: the test's variable lives until the context is synchronised.
    unsafe { result.cast::<Answer>().write(answer) };
}

fn misuse() {
    start();
    let memory = create(MIB2).unwrap();
    let pointer = map(memory, MIB2).unwrap();
    cu!(cuMemRelease(memory)).unwrap();
    assert_eq!(cu!(cuMemRelease(memory)), Err(CUDA_ERROR_INVALID_VALUE));
    expect_violation(1, "cuMemRelease");
    assert_eq!(cu!(cuMemAddressFree(pointer, MIB2)), Err(CUDA_ERROR_INVALID_VALUE));
    expect_violation(2, "still mapped");
    let stream = stream(1);
    let held = hold(stream);
    cu!(cuMemsetD8Async(pointer, 1, 100, stream)).unwrap();
    unmap(pointer, MIB2).unwrap();
    expect_violation(3, "cuMemUnmap of memory that unfinished work");
    drop(held);
    cu!(cuStreamSynchronize(stream)).unwrap();
    cu!(cuStreamDestroy_v2(stream)).unwrap();
    assert_eq!(cu!(cuStreamSynchronize(stream)), Err(CUDA_ERROR_INVALID_HANDLE));
    expect_violation(4, "destroyed stream");
    let event = event(0).unwrap();
    cu!(cuEventDestroy_v2(event)).unwrap();
    assert_eq!(cu!(cuEventDestroy_v2(event)), Err(CUDA_ERROR_INVALID_HANDLE));
    expect_violation(5, "destroyed event");
    let pointer = allocate(1).unwrap();
    cu!(cuMemFree_v2(pointer)).unwrap();
    assert_eq!(cu!(cuMemFree_v2(pointer)), Err(CUDA_ERROR_INVALID_VALUE));
    expect_violation(6, "cuMemFree");
    cu!(cuDevicePrimaryCtxRelease_v2(0)).unwrap();
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(0)), Err(CUDA_ERROR_INVALID_CONTEXT));
    expect_violation(7, "primary context");
    start();
    let mut result: Answer = Ok(());
    cu!(cuLaunchHostFunc(ptr::null_mut(), Some(call_driver), (&raw mut result).cast())).unwrap();
    cu!(cuCtxSynchronize()).unwrap();
    assert_eq!(result, Err(CUDA_ERROR_NOT_PERMITTED));
    expect_violation(8, "host function");
}

fn maps() {
    start();
    let memory = create(MIB2).unwrap();
    let small = MIB2 / 2;
    assert_eq!(create(small), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(map_only(memory, 2 * MIB2), Err(CUDA_ERROR_NOT_SUPPORTED), "beyond the memory");
    let pointer = result(|out| cu!(cuMemAddressReserve(out, 2 * MIB2, 0, 0, 0))).unwrap();
    assert_eq!(cu!(cuMemMap(pointer + small as u64, MIB2, 0, memory, 0)), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(cu!(cuMemMap(pointer, MIB2, MIB2, memory, 0)), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(cu!(cuMemMap(pointer + 2 * MIB2 as u64, MIB2, 0, memory, 0)), Err(CUDA_ERROR_INVALID_VALUE));
    cu!(cuMemMap(pointer, MIB2, 0, memory, 0)).unwrap();
    assert_eq!(cu!(cuMemMap(pointer, MIB2, 0, memory, 0)), Err(CUDA_ERROR_ALREADY_MAPPED));
    let again =
        result(|out| cu!(cuMemRetainAllocationHandle(out, ptr::without_provenance_mut(pointer.try_into().unwrap()))));
    assert_eq!(again, Ok(memory));
    cu!(cuMemRelease(memory)).unwrap();
    cu!(cuMemRelease(memory)).unwrap();
    assert_eq!(violations(), 0);
}

fn full() {
    start();
    let first = create(MIB2).unwrap();
    create(MIB2).unwrap();
    assert_eq!(create(MIB2), Err(CUDA_ERROR_OUT_OF_MEMORY));
    assert_eq!(allocate(1), Err(CUDA_ERROR_OUT_OF_MEMORY));
    cu!(cuMemRelease(first)).unwrap();
    let mut total = 0;
    assert_eq!(result(|out| cu!(cuMemGetInfo_v2(out, &raw mut total))), Ok(MIB2));
    assert_eq!(total, 2 * MIB2);
    allocate(1).unwrap();
}

/// The kernel's number of file systems in memory.
const TMPFS: i64 = 0x0102_1994;

/// Maps pages of a file.
fn pages(file: &File, access: i32) -> *mut c_void {
    file.set_len(8192).unwrap();
    // SAFETY: a new mapping, at addresses that the kernel selects.
    let pages = unsafe { libc::mmap(ptr::null_mut(), 8192, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_ne!(pages, libc::MAP_FAILED);
    pages
}

fn registered() {
    start();
    // SAFETY: the name ends with a zero.
    let memfd = unsafe { libc::memfd_create(c"test".as_ptr(), 0) };
    // SAFETY: the descriptor is new.
    let memfd = unsafe { File::from_raw_fd(memfd) };
    let memory = pages(&memfd, libc::PROT_READ | libc::PROT_WRITE);
    cu!(cuMemHostRegister_v2(memory, 8192, 0)).unwrap();
    let part = memory.wrapping_byte_add(4096);
    assert_eq!(cu!(cuMemHostRegister_v2(part, 100, 0)), Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED));
    assert_eq!(cu!(cuMemHostUnregister(part)), Err(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED));
    let pointer = result(|out| cu!(cuMemHostGetDevicePointer_v2(out, part, 0))).unwrap();
    // The device reaches it.
    cu!(cuMemsetD8_v2(pointer, 7, 3)).unwrap();
    assert_eq!(read(pointer, 4).unwrap(), [7, 7, 7, 0]);
    cu!(cuMemHostUnregister(memory)).unwrap();
    assert_eq!(cu!(cuMemsetD8_v2(pointer, 7, 3)), Err(CUDA_ERROR_INVALID_VALUE));

    let read_only = pages(&memfd, libc::PROT_READ);
    assert_eq!(cu!(cuMemHostRegister_v2(read_only, 8192, 0)), Err(CUDA_ERROR_INVALID_VALUE));
    cu!(cuMemHostRegister_v2(read_only, 8192, sys::CU_MEMHOSTREGISTER_READ_ONLY)).unwrap();
    assert_eq!((live("registered"), violations()), (1, 0));
    // SAFETY: Rust has no references into the mapping.
    assert_eq!(unsafe { libc::munmap(read_only, 8192) }, 0);
    expect_violation(1, "unmapped or replaced");
    assert_eq!(cu!(cuMemHostRegister_v2(read_only, 8192, 8)), Err(CUDA_ERROR_INVALID_VALUE), "not mapped");
    cu!(cuMemHostUnregister(read_only)).unwrap();

    assert_eq!(violations(), 1, "a range is counted once");

    // A file without a name, beside the program.
    let folder = crate::build_folder();
    let path = folder.join(format!("fake-cuda-test-{}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let on_disk = pages(&file, libc::PROT_READ | libc::PROT_WRITE);
    let build_in_memory = rustix::fs::fstatfs(&file).unwrap().f_type == TMPFS;
    let expected = if build_in_memory { Ok(()) } else { Err(CUDA_ERROR_OPERATING_SYSTEM) };
    assert_eq!(cu!(cuMemHostRegister_v2(on_disk, 8192, 0)), expected);
    // SAFETY: Rust has no references into the mapping.
    assert_eq!(unsafe { libc::munmap(on_disk, 8192) }, 0);
    // SAFETY: Rust has no references into the mapping.
    assert_eq!(unsafe { libc::munmap(memory, 8192) }, 0);
}
