//! The order of work between streams and processes: with the double, every operation of a stream takes 20 ms; a GPU
//! gets much to do first.

use cudarc::driver::sys;
use libtest_mimic::Trial;
use ndarray::{Array1, Ix1};
use ndarray_shm::counted::Channel;
use ndarray_shm_cuda::{Device, DeviceArray, Error, KIND, Stream};

use crate::named;
use crate::support::{Actor, LIMIT, Role, is_real, make_current, trials as tests};

pub const ROLES: &[(&str, Role)] = named![slow_sender, slow_reader];

pub fn trials() -> Vec<Trial> {
    let mut trials =
        tests("order", named![receiver_reads_after_the_sender_has_written, synchronized_array_outlives_its_sender]);
    if !is_real() {
        // A driver opens the event of a killed process, which is never complete.
        trials.extend(tests("order", named![array_of_a_sender_that_was_killed_while_it_wrote_is_refused]));
    }
    trials
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

/// Sends an array while its GPU still writes it, with or without waiting for that.
fn slow_sender(channel: Channel) {
    let gpu = Device::new(0).expect("a GPU");
    make_current();
    let stream = gpu.new_stream().expect("a stream");
    let array = DeviceArray::<u8, _>::zeroed(gpu, LENGTH).expect("an array");
    let waits: bool = channel.receive_timeout(LIMIT).expect("a task").message;
    let _much = is_real().then(|| keep_busy(gpu, &stream));
    for value in 1..=7 {
        enqueue_write(&array, &stream, value);
    }
    if waits {
        array.synchronize().expect("the work ends");
    }
    channel.send(&(), &[&array.parcel().expect("a parcel")]).expect("the test");
    let _ = channel.receive::<String>(); // holds the array until the end
}

fn slow_reader(channel: Channel) {
    let received = channel.receive_timeout::<()>(LIMIT).expect("an array").arrays.remove(0);
    let array = DeviceArray::<u8, Ix1>::attach(&received.foreign(KIND).expect("a parcel")).expect("an array");
    let right = array.to_host().expect("a copy") == Array1::from_elem(LENGTH, 7);
    channel.send(&right, &[]).expect("the test");
}

fn receiver_reads_after_the_sender_has_written() {
    let (sender, reader) = (Actor::start_with("slow_sender", SLOW), Actor::start("slow_reader"));
    sender.tell(&false);
    let mut received = sender.channel.receive_timeout::<()>(LIMIT).expect("an array");
    let parcel = received.arrays.remove(0).foreign(KIND).expect("a parcel");
    assert!(!parcel.note().contains("\"events\":[]"), "nothing was left to wait for: {}", parcel.note());
    reader.channel.send(&(), &[&parcel]).expect("a reader");
    assert!(reader.hear::<bool>(), "the reader did not wait");
}

fn array_of_a_sender_that_was_killed_while_it_wrote_is_refused() {
    let mut sender = Actor::start_with("slow_sender", SLOW);
    sender.tell(&false);
    let mut received = sender.channel.receive_timeout::<()>(LIMIT).expect("an array");
    sender.kill();
    let parcel = received.arrays.remove(0).foreign(KIND).expect("a parcel");
    let refused = DeviceArray::<u8, Ix1>::attach(&parcel).expect_err("the array was not finished");
    assert!(matches!(refused, Error::SenderGone), "{refused}");
}

fn synchronized_array_outlives_its_sender() {
    let mut sender = Actor::start_with("slow_sender", SLOW);
    sender.tell(&true);
    let mut received = sender.channel.receive_timeout::<()>(LIMIT).expect("an array");
    sender.kill();
    let parcel = received.arrays.remove(0).foreign(KIND).expect("a parcel");
    let array = DeviceArray::<u8, Ix1>::attach(&parcel).expect("an array");
    assert_eq!(array.to_host().expect("a copy"), Array1::from_elem(LENGTH, 7));
}
