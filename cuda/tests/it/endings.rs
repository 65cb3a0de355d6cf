//! The end of memory that work may still use: no caller waits for it, and nothing is unmapped too early.

use std::ffi::c_void;

use cudarc::driver::sys;
use libtest_mimic::Trial;
use ndarray::{Ix1, array};
use ndarray_shm::counted::Channel;
use ndarray_shm::unlink;
use ndarray_shm_cuda::{Chunk, Device, DeviceArray, Error, ExportedArray, ReceivedChunk, Stream};

use crate::named;
use crate::order::{LENGTH, SLOW, enqueue_write};
use crate::support::{Actor, LIMIT, Role, double, is_real, make_current, trials as tests, until};

pub const ROLES: &[(&str, Role)] = named![
    drop_under_unsaid_work,
    drop_under_said_work,
    fill_the_gpu_again_and_again,
    drop_beside_an_unknown_capture,
    drop_beside_a_known_capture,
    drop_a_chunk_beside_a_capture,
    export_while_captured,
    two_fill_the_gpu,
    drop_beside_a_blocking_capture,
    capture_an_array,
    drop_after_a_failure,
    drop_and_exit,
    drop_and_fork,
];

pub fn trials() -> Vec<Trial> {
    if is_real() {
        return Vec::new(); // the double counts what is mapped, and how the driver was misused
    }
    tests(
        "endings",
        named![
            memory_outlives_unsaid_work,
            memory_outlives_said_work,
            memory_outlives_unsaid_work_where_no_event_covers_it,
            allocations_wait_for_memory_that_ends,
            memory_stays_while_an_unknown_capture_forbids_waiting,
            memory_stays_while_a_known_stream_is_captured,
            chunk_stays_while_a_known_stream_is_captured,
            memory_that_is_exported_during_a_capture_stays,
            threads_that_wait_for_memory_leave_the_processor_alone,
            memory_stays_while_a_blocking_stream_is_captured,
            memory_of_a_graph_stays,
            failed_query_is_tried_another_way,
            exit_does_not_wait_for_memory,
            forked_child_leaves_the_endings_of_its_parent_alone,
        ],
    )
}

fn gpu() -> Device {
    Device::new(0).expect("a GPU")
}

fn stream() -> Stream {
    gpu().new_stream().expect("a stream")
}

/// Fills an array in a stream, and says nothing, as libraries that got it by DLPack.
pub fn fill_unsaid(array: &DeviceArray<u8, Ix1>, stream: *mut c_void, value: u8) -> ExportedArray {
    let exported = array.export();
    // SAFETY: the exported array keeps the memory until the work is done, as the tests show.
    let answer = unsafe { sys::cuMemsetD8Async(exported.device_pointer(), value, LENGTH, stream.cast()) };
    assert_eq!(answer, sys::CUresult::CUDA_SUCCESS);
    exported
}

fn zeros() -> DeviceArray<u8, Ix1> {
    DeviceArray::zeroed(gpu(), LENGTH).expect("an array")
}

/// Waits until nothing is mapped any more.
fn all_is_unmapped() {
    until("the end of the memory", || double::live("mapping") == 0);
    double::assert_no_violation();
}

fn drop_under_unsaid_work(_: Channel) {
    make_current();
    let stream = stream();
    let array = zeros();
    let exports = [1, 2, 3].map(|value| fill_unsaid(&array, stream.as_raw(), value));
    drop(array);
    drop(exports);
    assert_eq!(double::live("mapping"), 1, "the drop has not waited");
    all_is_unmapped();
}

fn memory_outlives_unsaid_work() {
    Actor::start_with("drop_under_unsaid_work", SLOW).join();
}

fn drop_under_said_work(_: Channel) {
    make_current();
    let (array, reading) = (zeros(), stream());
    enqueue_write(&array, &stream(), 7);
    array.wait_on(&reading).expect("an event");
    enqueue_write(&array, &reading, 8);
    array.used_on(&reading).expect("an event");
    drop(array);
    assert_eq!(double::live("mapping"), 1, "the drop has not waited");
    all_is_unmapped();
}

fn memory_outlives_said_work() {
    Actor::start_with("drop_under_said_work", SLOW).join();
}

/// As drivers before CUDA 12.5.
fn memory_outlives_unsaid_work_where_no_event_covers_it() {
    let refused = [SLOW, &[("FAKE_CUDA_REFUSE", "cuCtxRecordEvent")]].concat();
    Actor::start_with("drop_under_unsaid_work", &refused).join();
}

const UNIT: usize = 2 << 20;

fn fill_the_gpu_again_and_again(_: Channel) {
    make_current();
    let stream = stream();
    for _ in 0..1000 {
        let array = DeviceArray::<u8, Ix1>::zeroed(gpu(), 6 * UNIT).expect("an array");
        drop(fill_unsaid(&array, stream.as_raw(), 7));
    }
    all_is_unmapped();
}

/// Two threads wait for memory that work uses for a second.
fn two_fill_the_gpu(_: Channel) {
    make_current();
    let stream = stream();
    let array = DeviceArray::<u8, Ix1>::zeroed(gpu(), 6 * UNIT).expect("an array");
    // SAFETY: the function calls no driver.
    let answer = unsafe { sys::cuLaunchHostFunc(stream.as_raw().cast(), Some(sleep_a_second), std::ptr::null_mut()) };
    assert_eq!(answer, sys::CUresult::CUDA_SUCCESS);
    array.used_on(&stream).expect("an event");
    drop(array);
    let before = double::calls("cuEventQuery");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| DeviceArray::<u8, Ix1>::zeroed(gpu(), 5 * UNIT).expect("an array"));
        }
    });
    let queries = double::calls("cuEventQuery") - before;
    assert!(queries < 1000, "{queries} queries in a second");
    all_is_unmapped();
    let too_much = DeviceArray::<u8, Ix1>::zeroed(gpu(), 11 * UNIT).expect_err("more than there is");
    assert!(matches!(too_much, Error::NoSpace { .. }), "{too_much}");
}

unsafe extern "C" fn sleep_a_second(_: *mut c_void) {
    std::thread::sleep(std::time::Duration::from_secs(1));
}

fn threads_that_wait_for_memory_leave_the_processor_alone() {
    let (memory, tag) = ((10 * UNIT).to_string(), format!("shared-{}", std::process::id()));
    Actor::start_with("two_fill_the_gpu", &[("FAKE_CUDA_MEMORY", &memory), ("FAKE_CUDA_TAG", &tag)]).join();
}

fn allocations_wait_for_memory_that_ends() {
    let (memory, tag) = ((10 * UNIT).to_string(), format!("small-{}", std::process::id()));
    // A GPU of its own.
    let small = [("FAKE_CUDA_MEMORY", &*memory), ("FAKE_CUDA_TAG", &*tag), ("FAKE_CUDA_DELAY_US", "300")];
    Actor::start_with("fill_the_gpu_again_and_again", &small).join();
}

fn drop_beside_an_unknown_capture(_: Channel) {
    let array = DeviceArray::from_host(gpu(), &array![1u8, 2, 3]).expect("an array");
    drop(array.export());
    drop(array);
    assert_eq!(double::live("mapping"), 1, "work may use it");
    // That is so for this memory alone.
    drop(DeviceArray::from_host(gpu(), &array![1u8, 2, 3]).expect("an array"));
    assert_eq!(double::live("mapping"), 1);
}

fn memory_stays_while_an_unknown_capture_forbids_waiting() {
    Actor::start_with("drop_beside_an_unknown_capture", &[("FAKE_CUDA_CAPTURE", "1")]).join();
}

/// Captures a stream, as a thread of another library does.
fn capture(stream: *mut c_void, work: impl FnOnce()) {
    let global = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the stream exists.
    assert_eq!(unsafe { sys::cuStreamBeginCapture_v2(stream.cast(), global) }, sys::CUresult::CUDA_SUCCESS);
    work();
    let mut graph = std::ptr::null_mut();
    // SAFETY: `graph` is valid for the write of a handle.
    let answer = unsafe { sys::cuStreamEndCapture(stream.cast(), &raw mut graph) };
    assert_eq!(answer, sys::CUresult::CUDA_SUCCESS, "the capture is lost");
}

/// Work is not done when its call returns.
const PENDING: &[(&str, &str)] = &[("FAKE_CUDA_DELAY_US", "2000")];

/// Drops exported memory beside a capture, of which work is pending and work is done.
fn drop_beside(captured: *mut c_void) {
    let (other, pending, idle) = (stream(), zeros(), zeros());
    let exports = [fill_unsaid(&pending, other.as_raw(), 7), idle.export()];
    capture(captured, || {
        drop((pending, idle, exports));
        other.synchronize().expect("the work ends");
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(double::live("mapping"), 2, "waiting for all work would end the capture");
    });
    all_is_unmapped();
}

fn drop_a_chunk_beside_a_capture(_: Channel) {
    make_current();
    let captured = stream();
    // SAFETY: the stream lives as long as this process uses the GPU.
    unsafe { gpu().may_be_captured(&[captured.as_raw()]) }.expect("a stream");
    let location = format!("cuda-ending-{}", std::process::id());
    let chunk = Chunk::create(gpu(), LENGTH, location.as_str()).expect("a chunk");
    let received = ReceivedChunk::attach(&chunk.parcel().expect("a parcel")).expect("a chunk");
    let block = chunk.zeroed::<u8, _>(1000).expect("a block");
    capture(captured.as_raw(), || {
        drop((chunk, received));
        drop(block);
        assert_eq!(double::live("mapping"), 2, "waiting for all work would end the capture");
    });
    all_is_unmapped();
    let _ = unlink(location.as_str());
}

fn chunk_stays_while_a_known_stream_is_captured() {
    Actor::start("drop_a_chunk_beside_a_capture").join();
}

fn export_while_captured(_: Channel) {
    make_current();
    let (captured, array) = (stream(), zeros());
    // SAFETY: the stream lives as long as this process uses the GPU.
    unsafe { gpu().may_be_captured(&[captured.as_raw()]) }.expect("a stream");
    capture(captured.as_raw(), || drop(fill_unsaid(&array, captured.as_raw(), 8)));
    drop(array);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(double::live("mapping"), 1, "the graph may be launched");
    double::assert_no_violation();
}

fn memory_that_is_exported_during_a_capture_stays() {
    Actor::start("export_while_captured").join();
}

fn drop_beside_a_known_capture(_: Channel) {
    make_current();
    let captured = stream();
    // SAFETY: the stream lives as long as this process uses the GPU.
    unsafe { gpu().may_be_captured(&[captured.as_raw()]) }.expect("a stream");
    drop_beside(captured.as_raw());
}

fn memory_stays_while_a_known_stream_is_captured() {
    Actor::start_with("drop_beside_a_known_capture", PENDING).join();
}

fn drop_beside_a_blocking_capture(_: Channel) {
    make_current();
    let mut captured = std::ptr::null_mut();
    // SAFETY: `captured` is valid for the write of a handle.
    assert_eq!(unsafe { sys::cuStreamCreate(&raw mut captured, 0) }, sys::CUresult::CUDA_SUCCESS);
    drop_beside(captured.cast());
}

fn memory_stays_while_a_blocking_stream_is_captured() {
    Actor::start_with("drop_beside_a_blocking_capture", PENDING).join();
}

fn capture_an_array(_: Channel) {
    make_current();
    let (captured, writing, array) = (stream(), stream(), zeros());
    enqueue_write(&array, &writing, 7);
    capture(captured.as_raw(), || {
        array.wait_on(&captured).expect("this thread waits");
        drop(fill_unsaid(&array, captured.as_raw(), 8));
        assert_eq!(array.to_host().expect("a copy")[0], 7, "a graph does its work when it is launched");
    });
    drop(array);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(double::live("mapping"), 1, "the graph may be launched");
    double::assert_no_violation();
}

fn memory_of_a_graph_stays() {
    Actor::start_with("capture_an_array", &[("FAKE_CUDA_DELAY_US", "2000")]).join();
}

fn drop_after_a_failure(_: Channel) {
    make_current();
    let array = zeros();
    enqueue_write(&array, &stream(), 7);
    drop(array);
    all_is_unmapped();
    assert_ne!(double::calls("cuEventSynchronize"), 0, "another way to wait");
}

fn failed_query_is_tried_another_way() {
    let refused = [SLOW, &[("FAKE_CUDA_REFUSE", "cuEventQuery")]].concat();
    Actor::start_with("drop_after_a_failure", &refused).join();
}

/// A function of the host that takes longer than the test.
unsafe extern "C" fn sleep(_: *mut c_void) {
    std::thread::sleep(2 * LIMIT);
}

fn drop_and_exit(_: Channel) {
    make_current();
    let stream = stream();
    let arrays = [(); 3].map(|()| zeros());
    // SAFETY: the function calls no driver.
    let answer = unsafe { sys::cuLaunchHostFunc(stream.as_raw().cast(), Some(sleep), std::ptr::null_mut()) };
    assert_eq!(answer, sys::CUresult::CUDA_SUCCESS);
    for array in arrays {
        drop(fill_unsaid(&array, stream.as_raw(), 7));
    }
    assert_eq!(double::live("mapping"), 3);
}

fn exit_does_not_wait_for_memory() {
    for _ in 0..50 {
        let strict = [("FAKE_CUDA_STRICT_EXIT", "1")];
        let mut children = [(); 4].map(|()| Actor::start_with("drop_and_exit", &strict));
        assert!(children.iter_mut().all(|child| child.wait().success()));
    }
    until("the memory of ended processes", || double::memory_in_use() == 0);
}

fn drop_and_fork(_: Channel) {
    make_current();
    let stream = stream();
    for round in 0..200 {
        drop(fill_unsaid(&zeros(), stream.as_raw(), 7));
        let kept = zeros();
        let exported = fill_unsaid(&kept, stream.as_raw(), 8);
        // SAFETY: the child drops values and exits, for which it needs no lock that another thread may have had, as
        // this test shows.
        match unsafe { libc::fork() } {
            0 => {
                drop((kept, exported));
                // SAFETY: it has no requirements.
                unsafe { libc::exit(0) }
            }
            child => {
                let mut status = 0;
                // SAFETY: `status` is valid for writes.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0, "round {round}");
            }
        }
        stream.synchronize().expect("the work ends");
        assert_eq!(kept.to_host().expect("a copy")[0], 8, "round {round}");
    }
    all_is_unmapped();
}

fn forked_child_leaves_the_endings_of_its_parent_alone() {
    Actor::start_with("drop_and_fork", &[("FAKE_CUDA_DELAY_US", "500")]).join();
}
