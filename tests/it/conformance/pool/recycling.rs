//! Memory is used again: by the next array, by other threads, and a thousand times without a leak.

use libtest_mimic::Trial;
use ndarray::{Ix1, ShapeBuilder};
use ndarray_shm::Order;
use ndarray_shm::pool::PoolOptions;

use super::{LENGTH, counts, expected, one, pool};
use crate::support::child::{Child, say};
use crate::support::machine::{mappings, open_files};
use crate::support::{Place, backend_of_child, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "pool",
        tests![
            the_same_memory_comes_back,
            take_zeroed_clears_recycled_memory,
            a_file_is_exactly_as_long_as_its_array,
            threads_share_a_pool,
            a_thousand_rounds_leave_nothing,
        ],
    )
}

fn the_same_memory_comes_back(place: &Place) {
    let name = place.location("again");
    let pool = pool(place);
    let mut draft = pool.take::<u32, _>(LENGTH).unwrap();
    assert!(!draft.is_recycled() && draft.view().iter().all(|value| *value == 0));
    draft.view_mut().fill(7);
    assert_eq!(counts(&pool), (0, 0, 1));
    drop(draft);
    assert_eq!(counts(&pool), (one(), 0, 0));
    for round in 0..4 {
        let mut draft = pool.take::<u32, _>((50, 100).f()).unwrap();
        assert_eq!((draft.shape(), draft.order()), (&[50, 100][..], Order::F));
        assert_eq!(draft.is_recycled(), Place::RECYCLES);
        assert!(draft.view().iter().all(|value| *value == expected(7 + round)), "round {round}");
        draft.view_mut().fill(8 + round);
        let array = draft.publish(name.location()).unwrap();
        assert!(array.read().unwrap().iter().all(|value| *value == 8 + round));
        array.write().unwrap()[[0, 0]] = 8 + round;
        assert_eq!(counts(&pool), (0, 0, 1));
    }
    let stats = pool.stats();
    let (hits, misses) = if Place::RECYCLES { (4, 1) } else { (0, 5) };
    assert_eq!((stats.hits, stats.misses, stats.lent.bytes), (hits, misses, 0));
    pool.trim();
    assert_eq!(counts(&pool), (0, 0, 0));
    let nothing = pool.take::<u8, _>(0).unwrap().publish(name.location()).unwrap();
    assert!(nothing.read().unwrap().is_empty());
}

fn take_zeroed_clears_recycled_memory(place: &Place) {
    let pool = pool(place);
    pool.take::<u32, _>(LENGTH).unwrap().view_mut().fill(7);
    let draft = pool.take_zeroed::<f32, _>(LENGTH).unwrap();
    assert_eq!(draft.is_recycled(), Place::RECYCLES);
    assert!(draft.view().iter().all(|value| value.to_bits() == 0));
}

fn a_file_is_exactly_as_long_as_its_array(place: &Place) {
    let name = place.location("length");
    let pool = pool(place);
    let mut hits = 0;
    for length in [10_000, 10_000, 9_000, 8_200, 8_193, 8_192, 4_000, 8_192, 10_000, 4_000] {
        let mut draft = pool.take::<u8, _>(length).unwrap();
        hits += usize::from(draft.is_recycled());
        draft.view_mut().fill(5);
        let array = draft.publish(name.location()).unwrap();
        assert_eq!(std::fs::metadata(place.path(&name)).unwrap().len(), length as u64);
        assert_eq!(std::fs::read(place.path(&name)).unwrap(), vec![5; length]);
        assert_eq!(array.read().unwrap().len(), length);
        let mut same = place.open_options().open_writer::<u8, Ix1>(name.location(), length).unwrap();
        same.view_mut()[length - 1] = 5;
        drop((same, array));
        // A process that another test is spawning may briefly hold a copy of the writer's open file description.
        eventually("the lease is free", || counts(&pool).1 == 0);
    }
    // Misses: the first; 4000, for which the memory is too long; and the last 10000, since that memory was cut to 8192.
    assert_eq!(hits, if Place::RECYCLES { 7 } else { 0 });
    // A draft that is not published keeps the full length of its memory.
    let pool = place.pool_options().create().unwrap();
    for (length, is_recycled) in [(10_000, false), (8_000, true), (10_000, true), (7_999, false)] {
        assert_eq!(pool.take::<u8, _>(length).unwrap().is_recycled(), is_recycled && Place::RECYCLES, "{length}");
    }
}

fn threads_share_a_pool(place: &Place) {
    let place = &place.private();
    let pool = pool(place);
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (pool, name) = (pool.clone(), place.location("thread"));
            scope.spawn(move || {
                for round in 0..200 {
                    let value = thread << 16 | round;
                    let mut draft = pool.take::<u32, _>(LENGTH).unwrap();
                    draft.view_mut().fill(value);
                    if round % 3 == 0 {
                        std::thread::yield_now();
                    }
                    assert!(draft.view().iter().all(|seen| *seen == value), "two threads have the same memory");
                    if round % 4 == 0 {
                        continue;
                    }
                    let array = draft.publish(name.location()).unwrap();
                    assert!(array.read().unwrap().iter().all(|seen| *seen == value));
                }
            });
        }
    });
    let stats = pool.stats();
    assert_eq!((stats.hits + stats.misses, stats.lent.arrays, stats.draining.arrays), (800, 0, 0));
    assert!(!Place::RECYCLES || stats.misses <= 4, "{stats:?}");
    drop(pool);
    assert_eq!(place.everything(), [] as [&str; 0]);
}

/// A child that takes, publishes and drops many times, and afterwards has no more files open or mapped than before.
pub fn rounds(arguments: &[String]) {
    let backend = backend_of_child();
    let directory = backend.path().display().to_string();
    let make = || PoolOptions::new().directory(backend.clone()).create().unwrap();
    // The first call of a process opens files that stay open; they are no leak.
    drop(make().take::<u8, _>(10).unwrap().publish(arguments[0].as_str()).unwrap());
    let before = (open_files(), mappings(&directory).len());
    let pool = make();
    for round in 0..1000 {
        let mut draft = pool.take::<u32, _>(1000 - round % 100).unwrap();
        draft.view_mut().fill(round as u32);
        let array = draft.publish(arguments[0].as_str()).unwrap();
        assert_eq!(array.read().unwrap()[round % 900], round as u32);
    }
    assert!(open_files() <= before.0 + 12 && mappings(&directory).len() <= before.1 + 12, "little is kept");
    drop(pool);
    assert_eq!((open_files(), mappings(&directory).len()), before);
    say("done");
}

fn a_thousand_rounds_leave_nothing(place: &Place) {
    let place = &place.private();
    let name = place.location("rounds");
    let mut child = Child::start(place, "pool-rounds", &[name.as_str()]);
    child.expect("done");
    child.finish();
    assert_eq!(place.everything(), [] as [&str; 0]);
}
