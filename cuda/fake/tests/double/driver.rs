//! The calls of the driver that the tests make, with results in place of addresses for them.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::mpsc::{Receiver, Sender, channel};

use cudarc::driver::sys;
pub use cudarc::driver::sys::CUresult;
use cudarc::driver::sys::{
    CUcontext, CUdeviceptr, CUevent, CUmemGenericAllocationHandle, CUresult::CUDA_SUCCESS, CUstream,
};

/// Bytes in a unit of device memory.
pub const MIB2: usize = 2 << 20;

/// What a call answers.
pub type Answer<T = ()> = Result<T, CUresult>;

/// Calls a function of the driver.
macro_rules! cu {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the double checks handles and addresses of devices; other pointers are of live variables.
        let answer = unsafe { cudarc::driver::sys::$name($($argument),*) };
        $crate::driver::checked(answer)
    }};
}
pub(crate) use cu;

/// A function's answer as a result.
pub fn checked(answer: CUresult) -> Answer {
    if answer == CUDA_SUCCESS { Ok(()) } else { Err(answer) }
}

/// Calls a function that writes its result to an address, and returns the result.
pub fn result<T>(call: impl FnOnce(*mut T) -> Answer) -> Answer<T> {
    let mut result = MaybeUninit::uninit();
    call(result.as_mut_ptr())?;
    // SAFETY: the call succeeded, so it has written its result.
    Ok(unsafe { result.assume_init() })
}

/// Initialises the library and makes the context of the first device current.
pub fn start() -> CUcontext {
    cu!(cuInit(0)).unwrap();
    let context = result(|out| cu!(cuDevicePrimaryCtxRetain(out, 0))).unwrap();
    cu!(cuCtxSetCurrent(context)).unwrap();
    context
}

/// Finds a function of the double that a driver does not have.
fn function<F: Copy>(name: &CStr) -> F {
    // SAFETY: the double has nothing that runs when it is loaded.
    let library = unsafe { sys::culib() };
    // SAFETY: callers name functions with their types.
    *unsafe { library.get::<F>(name.to_bytes_with_nul()) }.expect("the library is the double")
}

fn text(text: &str) -> CString {
    CString::new(text).expect("names contain no zero")
}

/// Number of live objects of a kind.
pub fn live(kind: &str) -> u64 {
    let function = function::<unsafe extern "C" fn(*const c_char) -> u64>(c"fakeCudaLive");
    // SAFETY: the text ends with a zero.
    unsafe { function(text(kind).as_ptr()) }
}

/// Number of calls of a function.
pub fn calls(name: &str) -> u64 {
    let function = function::<unsafe extern "C" fn(*const c_char) -> u64>(c"fakeCudaCalls");
    // SAFETY: the text ends with a zero.
    unsafe { function(text(name).as_ptr()) }
}

/// Lets a call fail.
pub fn fail(name: &str, n: u64, code: CUresult) {
    let function = function::<unsafe extern "C" fn(*const c_char, u64, c_int)>(c"fakeCudaFail");
    // SAFETY: the text ends with a zero.
    unsafe { function(text(name).as_ptr(), n, code as c_int) };
}

/// Number of violations.
pub fn violations() -> u64 {
    // SAFETY: the function has no arguments.
    unsafe { function::<unsafe extern "C" fn() -> u64>(c"fakeCudaViolations")() }
}

/// What the latest violation was.
pub fn last_violation() -> String {
    // SAFETY: the function has no arguments.
    let text = unsafe { function::<unsafe extern "C" fn() -> *const c_char>(c"fakeCudaLastViolation")() };
    // SAFETY: the text ends with a zero and stays.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Checks that the latest violation, the `count`-th, names something.
pub fn expect_violation(count: u64, part: &str) {
    assert_eq!(violations(), count, "{}", last_violation());
    assert!(last_violation().contains(part), "{}", last_violation());
}

/// Bytes of GPUs that any process uses.
pub fn memory_in_use() -> u64 {
    // SAFETY: the function has no arguments.
    unsafe { function::<unsafe extern "C" fn() -> u64>(c"fakeCudaMemoryInUse")() }
}

/// How memory of a device is allocated, so that it can be exported.
pub fn properties(device: c_int) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: DESCRIPTOR,
        location: location(device),
        win32HandleMetaData: ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Memory and pools are exported as file descriptors.
pub const DESCRIPTOR: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
pub const NO_HANDLES: sys::CUmemAllocationHandleType = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;

pub fn location(device: c_int) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

pub fn create(size: usize) -> Answer<CUmemGenericAllocationHandle> {
    result(|out| cu!(cuMemCreate(out, size, ptr::from_ref(&properties(0)), 0)))
}

/// Exports memory as a descriptor that children inherit.
pub fn export(handle: CUmemGenericAllocationHandle) -> Answer<c_int> {
    let descriptor: c_int =
        result(|out: *mut c_int| cu!(cuMemExportToShareableHandle(out.cast(), handle, DESCRIPTOR, 0)))?;
    // SAFETY: the command takes a number.
    let set = unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) };
    assert_eq!(set, 0);
    Ok(descriptor)
}

pub fn import(descriptor: c_int) -> Answer<CUmemGenericAllocationHandle> {
    let descriptor = ptr::without_provenance_mut::<c_void>(usize::try_from(descriptor).unwrap());
    result(|out| cu!(cuMemImportFromShareableHandle(out, descriptor, DESCRIPTOR)))
}

/// Reserves addresses and maps memory there, without access.
pub fn map_only(handle: CUmemGenericAllocationHandle, size: usize) -> Answer<CUdeviceptr> {
    let pointer = result(|out| cu!(cuMemAddressReserve(out, size, 0, 0, 0)))?;
    cu!(cuMemMap(pointer, size, 0, handle, 0))?;
    Ok(pointer)
}

/// Gives a device access to mapped memory.
pub fn allow(pointer: CUdeviceptr, size: usize, device: c_int) -> Answer {
    let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access = sys::CUmemAccessDesc { location: location(device), flags };
    cu!(cuMemSetAccess(pointer, size, &raw const access, 1))
}

/// Maps memory for the first device.
pub fn map(handle: CUmemGenericAllocationHandle, size: usize) -> Answer<CUdeviceptr> {
    let pointer = map_only(handle, size)?;
    allow(pointer, size, 0)?;
    Ok(pointer)
}

/// Unmaps memory and frees its addresses.
pub fn unmap(pointer: CUdeviceptr, size: usize) -> Answer {
    cu!(cuMemUnmap(pointer, size))?;
    cu!(cuMemAddressFree(pointer, size))
}

pub fn allocate(size: usize) -> Answer<CUdeviceptr> {
    result(|out| cu!(cuMemAlloc_v2(out, size)))
}

pub fn write(target: CUdeviceptr, bytes: &[u8]) -> Answer {
    cu!(cuMemcpyHtoD_v2(target, bytes.as_ptr().cast(), bytes.len()))
}

pub fn read(source: CUdeviceptr, size: usize) -> Answer<Vec<u8>> {
    let mut bytes = vec![0_u8; size];
    cu!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), source, size))?;
    Ok(bytes)
}

pub fn stream(flags: u32) -> CUstream {
    result(|out| cu!(cuStreamCreate(out, flags))).unwrap()
}

pub fn event(flags: u32) -> Answer<CUevent> {
    result(|out| cu!(cuEventCreate(out, flags)))
}

/// Holds a stream until it is dropped or sent to.
pub fn hold(stream: CUstream) -> Sender<()> {
    unsafe extern "C" fn wait(receiver: *mut c_void) {
        // SAFETY: the pointer is of the box below, for this call alone.
        let receiver = unsafe { Box::from_raw(receiver.cast::<Receiver<()>>()) };
        let _ = receiver.recv(); // both a message and the end of the sender release the stream
    }
    let (sender, receiver) = channel();
    let receiver = Box::into_raw(Box::new(receiver));
    cu!(cuLaunchHostFunc(stream, Some(wait), receiver.cast())).unwrap();
    sender
}
