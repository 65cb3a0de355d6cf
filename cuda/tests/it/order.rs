//! The order of work between streams and processes: with the double, every operation of a stream takes 20 ms; a GPU
//! gets much to do first.

use std::time::Duration;

use cudarc::driver::sys;
use libtest_mimic::Trial;
use ndarray::{Array1, Ix1};
use ndarray_shm::counted::Channel;
use ndarray_shm_cuda::{Device, DeviceArray, KIND, Stream};

use crate::named;
use crate::support::{Actor, LIMIT, Role, is_real, make_current, trials as tests};

pub const ROLES: &[(&str, Role)] = named![slow_sender];

pub fn trials() -> Vec<Trial> {
    tests("order", named![array_is_sent_once_it_is_written, sender_that_is_killed_while_its_gpu_writes_sends_nothing])
}

pub const LENGTH: usize = 1 << 20;
pub const SLOW: &[(&str, &str)] = &[("FAKE_CUDA_DELAY_US", "20000")];

/// Enqueues a write of all bytes of an array, as a kernel would.
pub fn enqueue_write(array: &DeviceArray<u8, Ix1>, stream: &Stream, value: u8) {
    // SAFETY: the array outlives the work: `written_on` lets its end wait.
    let answer = unsafe { sys::cuMemsetD8Async(array.device_pointer(), value, array.len(), stream.as_raw().cast()) };
    assert_eq!(answer, sys::CUresult::CUDA_SUCCESS);
    array.written_on(stream).expect("an event");
}

/// Enqueues work that takes a GPU some 100 ms. The array that it uses must outlive it.
fn keep_busy(gpu: Device, stream: &Stream) -> DeviceArray<u8, Ix1> {
    let array = DeviceArray::<u8, _>::zeroed(gpu, 2 << 30).expect("an array");
    for value in 0..100 {
        enqueue_write(&array, stream, value);
    }
    array
}

/// Enqueues writes of an array, says so, and sends the array.
fn slow_sender(channel: Channel) {
    let gpu = Device::new(0).expect("a GPU");
    make_current();
    let stream = gpu.new_stream().expect("a stream");
    let array = DeviceArray::<u8, _>::zeroed(gpu, LENGTH).expect("an array");
    let _much = is_real().then(|| keep_busy(gpu, &stream));
    for value in 1..=7 {
        enqueue_write(&array, &stream, value);
    }
    channel.send("writing", &[]).expect("the test");
    channel.send("written", &[&array.parcel().expect("a parcel")]).expect("the test");
    let _ = channel.receive::<String>(); // holds the array until the end
}

fn array_is_sent_once_it_is_written() {
    let mut sender = Actor::start_with("slow_sender", SLOW);
    assert_eq!(sender.hear::<String>(), "writing");
    let mut received = sender.channel.receive_timeout::<String>(LIMIT).expect("an array");
    sender.kill(); // the array needs it no more
    let parcel = received.arrays.remove(0).foreign(KIND).expect("a parcel");
    let array = DeviceArray::<u8, Ix1>::attach(&parcel).expect("an array");
    assert_eq!(array.to_host().expect("a copy"), Array1::from_elem(LENGTH, 7));
}

fn sender_that_is_killed_while_its_gpu_writes_sends_nothing() {
    for round in 0..20 {
        let mut sender = Actor::start_with("slow_sender", SLOW);
        assert_eq!(sender.hear::<String>(), "writing");
        std::thread::sleep(Duration::from_millis(round * 10));
        sender.kill();
        // It may have been quick enough, but then the array is whole.
        let Ok(mut received) = sender.channel.receive_timeout::<String>(LIMIT) else { continue };
        let parcel = received.arrays.remove(0).foreign(KIND).expect("a parcel");
        let array = DeviceArray::<u8, Ix1>::attach(&parcel).expect("an array");
        assert_eq!(array.to_host().expect("a copy"), Array1::from_elem(LENGTH, 7), "round {round}");
    }
}
