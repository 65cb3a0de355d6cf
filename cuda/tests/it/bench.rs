//! Benchmarks, with their yardsticks in the same run. They run instead of the tests if `NDSHM_CUDA_BENCH` is set.
//!
//! With the double the figures say nothing about GPUs; they show that the benchmark works.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ndarray::{Array1, Ix1};
use ndarray_shm::Draft;
use ndarray_shm::counted::Channel;
use ndarray_shm_cuda::{Device, DeviceArray, KIND, PageLocked};

use crate::named;
use crate::support::{Actor, Role, is_real, until};

pub const ROLES: &[(&str, Role)] = named![attach_and_answer, hold_memory];

const TURNS: usize = 21;

pub fn is_wanted() -> bool {
    std::env::var_os("NDSHM_CUDA_BENCH").is_some()
}

pub fn run() {
    let gpu = Device::new(0).expect("a GPU");
    let which =
        if is_real() { gpu.name().expect("a name") } else { "the double: figures say nothing about GPUs".into() };
    println!("on {which}, medians of {TURNS}");
    hand_over(gpu, 1 << 20);
    hand_over(gpu, if is_real() { 1 << 30 } else { 64 << 20 });
    bandwidth(gpu, if is_real() { 1 << 30 } else { 64 << 20 });
    counter_after_kills(gpu);
}

fn median(mut turn: impl FnMut() -> Duration) -> Duration {
    let mut times: Vec<Duration> = (0..TURNS).map(|_| turn()).collect();
    times.sort();
    times[TURNS / 2]
}

/// Attaches each array that it receives, and answers once its first element could be read.
fn attach_and_answer(channel: Channel) {
    while let Ok(mut received) = channel.receive::<u8>() {
        let parcel = received.arrays.remove(0).foreign(KIND).expect("a parcel");
        let array = DeviceArray::<u8, Ix1>::attach(&parcel).expect("an array");
        channel.send(&array.part(0..1).and_then(|one| one.to_host()).expect("a copy")[0], &[]).expect("a listener");
    }
}

/// From `parcel` to the answer of a process that has read one element; beside it the same without an array.
fn hand_over(gpu: Device, bytes: usize) {
    let child = Actor::start("attach_and_answer");
    let array = DeviceArray::<u8, _>::zeroed(gpu, bytes).expect("an array");
    let hand = || {
        let begin = Instant::now();
        child.channel.send(&0u8, &[&array.parcel().expect("a parcel")]).expect("a listener");
        child.hear::<u8>();
        begin.elapsed()
    };
    let time = median(hand);
    let copy = median(|| {
        let begin = Instant::now();
        black_box(array.to_host().expect("a copy"));
        begin.elapsed()
    });
    println!("hand-over of {:>5} MiB: {time:>10.1?}; a copy to the host instead: {copy:.1?}", bytes >> 20);
}

fn bandwidth(gpu: Device, bytes: usize) {
    let host = Array1::<u8>::from_elem(bytes, 7);
    let speed = |time: Duration| bytes as f64 / time.as_secs_f64() / 1e9;
    let mut array = DeviceArray::<u8, _>::zeroed(gpu, bytes).expect("an array");
    let pageable = median(|| {
        let begin = Instant::now();
        array.write(&host).expect("a copy");
        begin.elapsed()
    });
    println!("host to device, pageable:    {:6.2} GB/s", speed(pageable));
    let begin = Instant::now();
    let mut draft = match PageLocked::new(gpu, Draft::<u8, _>::new(bytes).expect("a draft")) {
        Ok(draft) => draft,
        Err(refused) => return println!("REFUSED page-locked memory: {refused}"),
    };
    let locking = begin.elapsed();
    draft.view_mut().assign(&host);
    let locked = median(|| {
        let begin = Instant::now();
        array.write(&draft.view()).expect("a copy");
        begin.elapsed()
    });
    println!("host to device, page-locked: {:6.2} GB/s; locking took {locking:.1?}", speed(locked));
}

/// Takes memory, sends it on, and waits to be killed.
fn hold_memory(channel: Channel) {
    let gpu = Device::new(0).expect("a GPU");
    let array = DeviceArray::<u8, _>::zeroed(gpu, 1 << 28).expect("an array");
    channel.send(&0u8, &[&array.parcel().expect("a parcel")]).expect("the benchmark");
    let _ = channel.receive::<u8>();
}

/// What the GPU's memory counter says when the producer and then the consumer of 256 MiB were killed.
fn counter_after_kills(gpu: Device) {
    let free = || gpu.memory().expect("a counter").free;
    let before = free();
    let (mut producer, mut consumer) = (Actor::start("hold_memory"), Actor::start("attach_and_answer"));
    let mut received = producer.channel.receive::<u8>().expect("an array");
    let parcel = received.arrays.remove(0).foreign(KIND).expect("a parcel");
    consumer.channel.send(&0u8, &[&parcel]).expect("a consumer");
    consumer.hear::<u8>();
    drop(parcel);
    let in_use = |free: u64| (i128::from(before) - i128::from(free)) >> 20;
    println!("memory in use, MiB, contexts included: both live {}", in_use(free()));
    producer.kill();
    println!("  the producer was killed: {}", in_use(free()));
    consumer.kill();
    until("the memory of killed processes", || in_use(free()) < 16);
    println!("  and the consumer: {}", in_use(free()));
}
