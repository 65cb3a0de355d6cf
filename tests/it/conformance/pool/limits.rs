//! Limits of a pool's idle memory: bytes, number of arrays, age, and the room that new memory needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray_shm::pool::PoolOptions;
use ndarray_shm::{ErrorKind, Pool};

use super::{counts, one};
use crate::support::Place;
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "pool",
        tests![idle_memory_keeps_to_its_limits, allocation_evicts_idle_memory_when_room_is_short],
    )
}

fn idle_memory_keeps_to_its_limits(place: &Place) {
    let private = &place.private();
    let make = |pool: &Pool, count: usize| {
        let drafts: Vec<_> = (0..count).map(|_| pool.take::<u8, _>(1000).unwrap()).collect();
        drop(drafts);
    };
    let pool = private.pool_options().capacity(2500).create().unwrap();
    make(&pool, 5);
    let stats = pool.stats();
    assert_eq!((stats.idle.arrays, stats.idle.bytes), (2 * one(), 2000 * one() as u64));
    assert_eq!((stats.misses, stats.dropped), (5, 5 - 2 * one() as u64));
    drop(pool);
    let pool = private.pool_options().max_arrays(3).create().unwrap();
    make(&pool, 5);
    assert_eq!(counts(&pool), (3 * one(), 0, 0));
    drop(pool);
    let pool = private.pool_options().max_age(Duration::ZERO).create().unwrap();
    make(&pool, 5);
    assert_eq!(counts(&pool), (0, 0, 0));
    let age = Duration::from_millis(200);
    let pool = private.pool_options().max_age(age).create().unwrap();
    make(&pool, 5);
    std::thread::sleep(age + Duration::from_millis(50));
    let draft = pool.take::<u8, _>(1000).unwrap();
    assert!(!draft.is_recycled());
    let begin = Instant::now();
    drop(draft);
    let counts = counts(&pool);
    assert!(counts == (one(), 0, 0) || begin.elapsed() > age, "the array that just came back is young: {counts:?}");
    drop(pool);
    assert_eq!(private.everything(), [] as [&str; 0]);
}

fn allocation_evicts_idle_memory_when_room_is_short(place: &Place) {
    let refusals = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&refusals);
    let backend = place.meddling(move |operation, _| {
        let left = counted.load(Ordering::Relaxed);
        if operation != "draft" || left == 0 {
            return Ok(());
        }
        counted.store(left - 1, Ordering::Relaxed);
        Err(ErrorKind::NoSpace { needed: 1, available: 0, in_flight: 0, advice: "make room".into() }.at("here"))
    });
    let pool = PoolOptions::new().directory(backend).create().unwrap();
    let drafts: Vec<_> = (0..4).map(|_| pool.take::<u8, _>(1000).unwrap()).collect();
    drop(drafts);
    if Place::RECYCLES {
        refusals.store(3, Ordering::Relaxed);
        drop(pool.take::<u8, _>(5000).unwrap());
        assert_eq!(counts(&pool), (2, 0, 0), "three of four were removed, and the new one was added");
    }
    refusals.store(100, Ordering::Relaxed);
    assert!(matches!(pool.take::<u8, _>(50_000).unwrap_err().kind, ErrorKind::NoSpace { .. }));
    assert_eq!(counts(&pool), (0, 0, 0));
}
