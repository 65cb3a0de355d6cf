//! Time that a pool saves and costs. Large arrays: filling memory that was used before, compared with new memory and
//! with a copy between warm private buffers. Small arrays: the pool's locks and renames.
//!
//! The cases take turns in one run. The medians are printed with their ratios; on a shared machine only the ratios are
//! meaningful. `cargo bench --bench pool [MIB] [ROUNDS]`

#![allow(clippy::cast_precision_loss)] // only for ratios of times and sizes

use std::hint::black_box;
use std::time::{Duration, Instant};

use ndarray_shm::pool::PoolOptions;
use ndarray_shm::{Directory, Draft, Pool, SharedArray, unlink};

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let bytes = numbers.first().unwrap_or(&1024) << 20;
    let rounds = *numbers.get(1).unwrap_or(&9);
    let pool = PoolOptions::new().capacity(2 * bytes as u64).create().unwrap();
    fill(&pool, bytes, rounds);
    small(&pool, rounds);
}

fn timed(act: impl FnOnce()) -> Duration {
    let start = Instant::now();
    act();
    start.elapsed()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Runs the cases in turn and prints the medians. The first case is the yardstick.
fn compare(title: &str, bytes: usize, rounds: usize, ways: &mut [(&str, &mut dyn FnMut() -> Duration)]) {
    let mut times = vec![Vec::new(); ways.len()];
    for _ in 0..rounds {
        for ((_, way), times) in ways.iter_mut().zip(&mut times) {
            times.push(way());
        }
    }
    println!("{title}, median of {rounds}:");
    let yardstick = median(&mut times[0]).as_secs_f64();
    for ((name, _), times) in ways.iter().zip(&mut times) {
        let time = median(times).as_secs_f64();
        let rate = if bytes > 0 { format!("{:6.2} GB/s", bytes as f64 / time / 1e9) } else { String::new() };
        println!("  {name:45} {:10.1} us {rate}  {:6.2} %", time * 1e6, 100.0 * yardstick / time);
    }
}

fn fill(pool: &Pool, bytes: usize, rounds: usize) {
    let source = vec![3u8; bytes];
    let mut private = vec![1u8; bytes];
    private.copy_from_slice(&source);
    drop(pool.take::<u8, _>(bytes).unwrap());
    pool.take::<u8, _>(bytes).unwrap().view_mut().fill(1);
    compare(
        &format!("fill {} MiB", bytes >> 20),
        bytes,
        rounds,
        &mut [
            ("copy into warm private memory", &mut || {
                timed(|| black_box(&mut private).copy_from_slice(black_box(&source)))
            }),
            ("copy into memory of the pool, not published", &mut || {
                timed(|| {
                    let mut draft = pool.take::<u8, _>(bytes).unwrap();
                    draft.view_mut().as_slice_mut().unwrap().copy_from_slice(black_box(&source));
                })
            }),
            ("copy into memory of the pool, published", &mut || {
                timed(|| {
                    let mut draft = pool.take::<u8, _>(bytes).unwrap();
                    draft.view_mut().as_slice_mut().unwrap().copy_from_slice(black_box(&source));
                    drop(draft.publish("bench-pool").unwrap());
                })
            }),
            ("copy into new memory, published, unlinked", &mut || {
                timed(|| {
                    let mut draft = Draft::<u8, _>::new(bytes).unwrap();
                    draft.view_mut().as_slice_mut().unwrap().copy_from_slice(black_box(&source));
                    drop(draft.publish("bench-pool").unwrap());
                    unlink("bench-pool").unwrap();
                })
            }),
        ],
    );
}

fn small(pool: &Pool, rounds: usize) {
    const TIMES: u32 = 1000;
    let each = |act: &mut dyn FnMut()| timed(|| (0..TIMES).for_each(|_| act())) / TIMES;
    let array = SharedArray::<u8, _>::create("bench-pool-attach", 4096).unwrap();
    let directory = Directory::shm().unwrap();
    compare(
        "4 KiB",
        0,
        rounds,
        &mut [
            ("new: make, publish, unlink, drop", &mut || {
                each(&mut || {
                    drop(Draft::<u8, _>::new(4096).unwrap().publish("bench-pool").unwrap());
                    unlink("bench-pool").unwrap();
                })
            }),
            ("pool: take, publish, drop", &mut || {
                each(&mut || drop(pool.take::<u8, _>(4096).unwrap().publish("bench-pool").unwrap()))
            }),
            ("pool: take, drop", &mut || each(&mut || drop(pool.take::<u8, _>(4096).unwrap()))),
            ("attach", &mut || each(&mut || drop(SharedArray::<u8, _>::open("bench-pool-attach", 4096).unwrap()))),
            ("of which: does the name still lead there?", &mut || {
                use ndarray_shm::backend::{Backend as _, FileId};
                let (at, id) = (array.location(), FileId { device: 0, number: 0 });
                each(&mut || assert!(!directory.leads_to(at, id).unwrap()))
            }),
        ],
    );
    unlink("bench-pool-attach").unwrap();
}
