//! Memory under work that has not ended: errors of the driver while the crate waits, senders that are killed in the
//! middle, and names that lead to something else by now. With the double only: every operation of a stream takes 20 ms,
//! or longer.

use std::hint::black_box;
use std::time::{Duration, Instant};

use cudarc::driver::sys;
use libtest_mimic::Trial;
use ndarray::Array1;
use ndarray_shm::counted::Channel;
use ndarray_shm::{Draft, unlink};
use ndarray_shm_cuda::{Chunk, Device, DeviceArray, Error, Lender, PageLocked, ReceivedChunk, Stream};

use crate::named;
use crate::support::{Actor, Role, double, is_real, make_current, trials as tests, until};

pub const ROLES: &[(&str, Role)] = named![
    kernel_after_downloads,
    waits_fail,
    fill_fails_once,
    owner_under_work,
    query_fails_once,
    block_under_work,
    end_stays_unknown,
    much_unfinished_work,
];

pub fn trials() -> Vec<Trial> {
    if is_real() {
        return Vec::new();
    }
    tests(
        "faults",
        named![
            kernel_waits_for_downloads,
            memory_stays_if_no_wait_tells_the_end_of_its_work,
            zeroing_is_waited_for_if_waiting_fails_once,
            lent_memory_is_not_freed_under_work,
            work_is_not_lost_if_a_query_fails,
            room_of_a_block_is_not_used_again_under_work,
            memory_of_a_copy_with_unknown_end_is_not_used_again,
            unfinished_work_is_bounded,
            chunk_is_not_taken_for_one_with_the_same_name,
        ],
    )
}

const LENGTH: usize = 1 << 20;
const SLOW: &[(&str, &str)] = &[("FAKE_CUDA_DELAY_US", "20000")];

fn gpu() -> Device {
    Device::new(0).expect("a GPU")
}

fn stream() -> Stream {
    gpu().new_stream().expect("a stream")
}

/// Enqueues a write of bytes on the GPU, as a kernel would.
fn fill(address: u64, value: u8, length: usize, stream: &Stream) {
    // SAFETY: each test keeps the memory until the work has ended, or checks that the crate does.
    let answer = unsafe { sys::cuMemsetD8Async(address, value, length, stream.as_raw().cast()) };
    assert_eq!(answer, sys::CUresult::CUDA_SUCCESS);
}

fn kernel_after_downloads(_: Channel) {
    make_current();
    let array = DeviceArray::from_host(gpu(), &Array1::from_elem(LENGTH, 1u8)).expect("an array");
    let (first, second) = (stream(), stream());
    let draft = || PageLocked::new(gpu(), Draft::<u8, _>::new(LENGTH).expect("a draft")).expect("locked pages");
    let downloads = [array.download(draft(), &first), array.download(draft(), &first)];
    array.wait_on(&second).expect("order");
    fill(array.device_pointer(), 2, LENGTH, &second);
    array.written_on(&second).expect("an event");
    for download in downloads {
        assert_eq!(download.expect("a transfer").wait().expect("the end").view()[LENGTH - 1], 1);
    }
}

fn kernel_waits_for_downloads() {
    Actor::start_with("kernel_after_downloads", SLOW).join();
}

fn waits_fail(_: Channel) {
    make_current();
    let (stream, array) = (stream(), DeviceArray::<u8, _>::zeroed(gpu(), LENGTH).expect("an array"));
    fill(array.device_pointer(), 1, LENGTH, &stream);
    array.written_on(&stream).expect("an event");
    drop(array);
    until("another way to wait", || double::calls("cuCtxSynchronize") > 0);
    stream.synchronize().expect("the work ends");
    std::thread::sleep(std::time::Duration::from_millis(50));
    double::assert_no_violation();
    assert_eq!(double::live("mapping"), 1, "no call has said that the work ended");
}

fn memory_stays_if_no_wait_tells_the_end_of_its_work() {
    let refused = [("FAKE_CUDA_REFUSE", "cuEventQuery,cuEventSynchronize,cuCtxSynchronize")];
    Actor::start_with("waits_fail", &[SLOW, &refused].concat()).join();
}

fn fill_fails_once(_: Channel) {
    make_current();
    double::fail("cuStreamSynchronize", 1, 999);
    assert!(DeviceArray::<u8, _>::zeroed(gpu(), LENGTH).is_err());
    double::assert_no_violation();
    assert_eq!(double::live("mapping"), 0);
}

fn zeroing_is_waited_for_if_waiting_fails_once() {
    Actor::start_with("fill_fails_once", SLOW).join();
}

fn owner_under_work(_: Channel) {
    make_current();
    let (stream, owner) = (stream(), DeviceArray::<u8, _>::zeroed(gpu(), LENGTH).expect("an array"));
    let location = format!("cuda-owner-{}", std::process::id());
    let lender = Lender::create(gpu(), location.as_str()).expect("a lender");
    let pointer = owner.device_pointer();
    // SAFETY: the owner keeps the elements, and only named work writes to them.
    let lent = unsafe { lender.lend::<u8, _>(pointer, LENGTH, owner) }.expect("lent memory");
    fill(pointer, 3, LENGTH, &stream);
    lent.written_on(&stream).expect("an event");
    drop(lent);
    double::assert_no_violation();
    let _ = unlink(location.as_str());
}

fn lent_memory_is_not_freed_under_work() {
    Actor::start_with("owner_under_work", SLOW).join();
}

fn query_fails_once(_: Channel) {
    make_current();
    let (first, second) = (stream(), stream());
    let array = DeviceArray::<u8, _>::zeroed(gpu(), LENGTH).expect("an array");
    fill(array.device_pointer(), 1, LENGTH, &first);
    array.written_on(&first).expect("an event");
    for _ in 0..5 {
        fill(array.device_pointer(), 9, LENGTH, &second);
    }
    double::fail("cuEventQuery", 1, 999);
    array.written_on(&second).expect("the event of other work does not matter");
    double::fail("cuEventQuery", 0, 0);
    drop(array);
    double::assert_no_violation();
}

fn work_is_not_lost_if_a_query_fails() {
    Actor::start_with("query_fails_once", SLOW).join();
}

fn block_under_work(_: Channel) {
    make_current();
    let location = format!("cuda-room-{}", std::process::id());
    let chunk = Chunk::create(gpu(), LENGTH, location.as_str()).expect("a chunk");
    let (stream, length) = (stream(), chunk.bytes());
    let block = chunk.zeroed::<u8, _>(length).expect("a block");
    for _ in 0..10 {
        fill(block.device_pointer(), 9, length, &stream);
    }
    block.written_on(&stream).expect("an event");
    double::fail("cuEventSynchronize", 1, 999);
    drop(block);
    let next = chunk.from_host(&Array1::from_elem(length, 1u8)).expect("a block");
    gpu().synchronize().expect("the end of all work");
    assert_eq!(next.to_host().expect("a copy")[length - 1], 1);
}

fn room_of_a_block_is_not_used_again_under_work() {
    Actor::start_with("block_under_work", SLOW).join();
}

fn end_stays_unknown(_: Channel) {
    make_current();
    let mut buffer = PageLocked::new(gpu(), Draft::<u8, _>::new(LENGTH).expect("a draft")).expect("locked pages");
    buffer.view_mut().fill(1);
    let transfer = DeviceArray::upload(buffer, &stream()).expect("a transfer");
    assert!(transfer.array().to_host().is_err(), "the driver refuses to wait");
    // The allocator gives the memory of the failed copy to the next that asks for as much, if that memory was freed.
    let mut next = vec![5u8; LENGTH];
    black_box(&mut next);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(900) {
        assert!(black_box(&next).iter().all(|byte| *byte == 5), "the copy has overwritten other memory");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::process::exit(0); // at the end of the process, the driver would be asked to wait again
}

fn memory_of_a_copy_with_unknown_end_is_not_used_again() {
    // One heap, which gives freed memory out again.
    let heap = [("MALLOC_MMAP_THRESHOLD_", "100000000"), ("MALLOC_TRIM_THRESHOLD_", "100000000")];
    let driver = [("FAKE_CUDA_DELAY_US", "150000"), ("FAKE_CUDA_REFUSE", "cuStreamSynchronize,cuCtxSynchronize")];
    Actor::start_with("end_stays_unknown", &[heap, driver].concat()).join();
}

fn much_unfinished_work(channel: Channel) {
    make_current();
    let location = format!("cuda-much-{}", std::process::id());
    let chunk = Chunk::create(gpu(), LENGTH, location.as_str()).expect("a chunk");
    let (stream, block) = (stream(), chunk.zeroed::<u8, _>(1000).expect("a block"));
    for value in 0..200u8 {
        fill(block.device_pointer(), value, 1000, &stream);
        block.written_on(&stream).expect("an event");
    }
    channel.send(&double::live("event"), &[]).expect("the test");
}

fn unfinished_work_is_bounded() {
    let child = Actor::start_with("much_unfinished_work", &[("FAKE_CUDA_DELAY_US", "3000")]);
    let events: u64 = child.hear();
    assert!(events < 100, "{events} events");
    child.join();
}

fn chunk_is_not_taken_for_one_with_the_same_name() {
    let location = format!("cuda-same-{}", std::process::id());
    let first = Chunk::create(gpu(), LENGTH, location.as_str()).expect("a chunk");
    let parcel = first.parcel().expect("a parcel");
    drop(first);
    let _ = unlink(location.as_str());
    let second = Chunk::create(gpu(), LENGTH, location.as_str()).expect("a chunk");
    let refused = ReceivedChunk::attach(&parcel).expect_err("it is another chunk");
    assert!(matches!(refused, Error::Malformed { .. }), "{refused}");
    ReceivedChunk::attach(&second.parcel().expect("a parcel")).expect("the chunk");
}
