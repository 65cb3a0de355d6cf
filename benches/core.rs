//! The cost of the core's operations, each compared with its yardstick: the bare system calls or the bare copy.
//!
//! Compare times within one group only. Quote medians, or ratios on a shared machine. Off Linux the groups have no
//! system calls to compare with.

#![allow(clippy::cast_precision_loss)] // the elements are small numbers

#[path = "yardstick/undescribed.rs"]
mod undescribed;
#[path = "yardstick/mod.rs"]
mod yardstick;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ndarray::{Array3, Ix1};
use ndarray_shm::render::Claim;
use ndarray_shm::{
    CreateOptions, Directory, Draft, OpenOptions, RefcountedArray, RenderBuffer, SharedArray, default_directory, unlink,
};
#[cfg(target_os = "linux")]
use yardstick::calls;

const BYTES: usize = 4096;

/// Creating and removing an array of one page, compared with the bare calls without and with the lock for the lease.
fn create(c: &mut Criterion) {
    let mut group = c.benchmark_group("create and unlink 4 KiB");
    #[cfg(target_os = "linux")]
    for (name, lease) in [("system calls without the lease", false), ("system calls", true)] {
        group.bench_function(name, |b| {
            b.iter(|| {
                let map = calls::create("bench-raw", BYTES, lease, |_| {}).unwrap();
                calls::unlink("bench-raw").unwrap();
                map
            });
        });
    }
    group.bench_function("SharedArray::create, unlink", |b| {
        b.iter(|| {
            let array = SharedArray::<u8, _>::create("bench-create", BYTES).unwrap();
            unlink("bench-create").unwrap();
            array
        });
    });
    group.bench_function("Draft::new", |b| b.iter(|| Draft::<u8, _>::new(BYTES).unwrap()));
    group.finish();
}

/// Attaching by name, compared with open, map and close.
fn attach(c: &mut Criterion) {
    let mut group = c.benchmark_group("attach 4 KiB");
    let _array = SharedArray::<u8, _>::create("bench-attach", BYTES).unwrap();
    #[cfg(target_os = "linux")]
    group.bench_function("system calls", |b| b.iter(|| calls::attach("bench-attach").unwrap()));
    group
        .bench_function("SharedArray::open", |b| b.iter(|| SharedArray::<u8, _>::open("bench-attach", BYTES).unwrap()));
    let _counted = RefcountedArray::<u8, _>::create("bench-attach-counted", BYTES).unwrap();
    group.bench_function("RefcountedArray::open", |b| {
        b.iter(|| RefcountedArray::<u8, Ix1>::open("bench-attach-counted").unwrap());
    });
    unlink("bench-attach").unwrap();
    group.finish();
}

/// Creating and attaching an array with and without a description. The array is a plane of a volume, with two axes.
fn describe(c: &mut Criterion) {
    let mut group = c.benchmark_group("descriptions, 64 x 64");
    let described = default_directory().unwrap();
    let without = undescribed::directory(described.clone());
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
        let text = b"ndshm 1\ndtype |u1\nshape 64 64\norder C\nbytes 4096\n";
        let file = tempfile::tempfile_in(described.path()).unwrap();
        group.bench_function("system call: fsetxattr", |b| {
            b.iter(|| fsetxattr(&file, "user.ndshm", text, XattrFlags::empty()).unwrap());
        });
        let mut buffer = [0; 3500];
        group.bench_function("system call: fgetxattr", |b| {
            b.iter(|| fgetxattr(&file, "user.ndshm", &mut buffer[..]).unwrap());
        });
    }
    for (name, directory) in [("without", &without), ("described", &described)] {
        let options = CreateOptions::new().directory(directory.clone());
        group.bench_function(format!("{name}: create, unlink"), |b| {
            b.iter(|| {
                let array = options.create::<u8, _>("bench-describe", (64, 64)).unwrap();
                directory.unlink("bench-describe").unwrap();
                array
            });
        });
        let _array = options.create::<u8, _>("bench-describe", (64, 64)).unwrap();
        let options = OpenOptions::new().directory(directory.clone());
        group.bench_function(format!("{name}: open"), |b| {
            b.iter(|| options.open::<u8, _>("bench-describe", (64, 64)).unwrap());
        });
        directory.unlink("bench-describe").unwrap();
    }
    group.finish();
}

/// Taking and dropping guards and claims, compared with open and close.
fn guard(c: &mut Criterion) {
    let mut group = c.benchmark_group("take and drop");
    let array = SharedArray::<u8, _>::create("bench-guard", BYTES).unwrap();
    #[cfg(target_os = "linux")]
    group.bench_function("system calls: open, close", |b| b.iter(|| calls::open("bench-guard").unwrap()));
    group.bench_function("read guard", |b| b.iter(|| drop(array.read().unwrap())));
    group.bench_function("write guard", |b| b.iter(|| drop(array.write().unwrap())));
    let buffer = RenderBuffer::<u8, Ix1>::create("bench-claim", 1 << 20, 1 << 10, "bench").unwrap();
    group.bench_function("claim of one chunk", |b| {
        b.iter(|| match buffer.claim(700).unwrap() {
            Claim::Chunk(chunk) => drop(chunk),
            other => panic!("{other:?}"),
        });
    });
    unlink("bench-guard").unwrap();
    buffer.discard().unwrap();
    group.finish();
}

/// Copying into an array, compared with a copy between warm private buffers.
fn copy_in(c: &mut Criterion) {
    let mut group = c.benchmark_group("copy in");
    group.sample_size(10);
    let side = 256;
    let source = Array3::<f32>::from_shape_fn((side, side, side), |(i, j, k)| (i + j + k) as f32);
    group.throughput(Throughput::Bytes((source.len() * size_of::<f32>()) as u64));
    let mut private = source.clone();
    group.bench_function(BenchmarkId::new("memcpy, warm private memory", "64 MiB"), |b| {
        b.iter(|| private.assign(&source));
    });
    let shared = SharedArray::<f32, _>::from_array("bench-copy", &source).unwrap();
    group.bench_function(BenchmarkId::new("write guard, warm shared memory", "64 MiB"), |b| {
        b.iter(|| shared.write().unwrap().assign(&source));
    });
    unlink("bench-copy").unwrap();
    group.bench_function(BenchmarkId::new("memcpy, fresh private memory", "64 MiB"), |b| {
        b.iter_batched(|| (), |()| source.clone(), BatchSize::PerIteration);
    });
    group.bench_function(BenchmarkId::new("SharedArray::from_array, unlink", "64 MiB"), |b| {
        b.iter(|| {
            let array = SharedArray::<f32, _>::from_array("bench-copy", &source).unwrap();
            unlink("bench-copy").unwrap();
            array
        });
    });
    group.finish();
}

/// Querying the available room, as creating a large array does.
fn room(c: &mut Criterion) {
    let Ok(shm) = Directory::shm() else { return };
    c.bench_function("available room of /dev/shm and control groups", |b| b.iter(|| shm.available().unwrap()));
}

criterion_group!(benches, create, attach, describe, guard, copy_in, room);
criterion_main!(benches);
