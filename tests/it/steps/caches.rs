//! Caches while a process is stopped, or killed, between two steps of filling or reading a chunk.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray_shm::cache::{self, Bypass, CacheOptions, ChunkCache, Lookup};
use ndarray_shm::counted::Reclaim;
use ndarray_shm::{ErrorKind, backend};

use crate::conformance::chunk_caches::{Got, check, fill, get, key};
use crate::support::child::{Child, Role, say};
use crate::support::{Name, Place, backend_of_child, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "steps",
        "caches",
        tests![
            reader_that_is_stopped_before_its_lock_gets_a_whole_chunk,
            filler_that_is_killed_at_any_step_leaves_no_chunk_or_a_whole_one,
            place_that_another_process_fills_meanwhile_is_left_to_it,
            filler_that_is_stopped_delays_only_those_that_want_its_chunk,
            overlapped_chunk_is_not_found_while_it_is_overwritten,
            cache_is_opened_whole_or_anew_while_another_process_removes_it,
        ],
    )
}

pub const ROLES: &[(&str, Role)] =
    &[("step-cache-get", get_one), ("step-cache-open", open_one), ("step-cache-gc", remove_unused)];

const SOON: Duration = Duration::from_secs(60);
/// The smallest cache: 16 slots, one set.
const BYTES: u64 = 512 << 10;
const SLOT: usize = 32 << 10;

/// A child that gets a chunk by number and length, and reports how.
fn get_one(arguments: &[String]) {
    let cache = CacheOptions::new().directory(backend_of_child()).open(&arguments[0]).unwrap();
    let [number, length] = [1, 2].map(|at: usize| arguments[at].parse::<u64>().unwrap());
    say(format!("{:?}", get(&cache, number, length as usize, 0, SOON)));
}

/// A child that opens or creates a cache, gets a chunk, and reports how.
fn open_one(arguments: &[String]) {
    let cache = CacheOptions::new().directory(backend_of_child()).open_or_create(&arguments[0], BYTES).unwrap();
    say(format!("{:?}", get(&cache, 0, SLOT, 0, SOON)));
}

/// A child that removes unused caches, and reports how many.
fn remove_unused(_: &[String]) {
    say(Reclaim::new().caches(true).run(&backend_of_child()).unwrap().removed.len());
}

fn made(place: &Place, label: &str) -> (Name, ChunkCache) {
    let name = place.location(label);
    let cache = CacheOptions::new().directory(place.backend.clone()).create(name.location(), BYTES).unwrap();
    (name, cache)
}

fn child_at(place: &Place, name: &Name, number: u64, length: usize, step: &str) -> Child {
    let arguments = [name.as_str(), &number.to_string(), &length.to_string()];
    Child::start_until(place, "step-cache-get", &arguments, step)
}

fn unlink(place: &Place, name: &Name) {
    assert!(cache::unlink(&place.backend, name.location()).unwrap());
}

fn reader_that_is_stopped_before_its_lock_gets_a_whole_chunk(place: &Place) {
    let (name, cache) = made(place, "before");
    assert_eq!(get(&cache, 0, SLOT, 0, SOON), Got::Made);
    let mut reader = child_at(place, &name, 0, SLOT, "cache: chunk found");
    // All 16 places are used for others, of the same length and of twice that.
    for number in 1..20 {
        assert_eq!(get(&cache, number, SLOT * (1 + number as usize % 2), 0, SOON), Got::Made);
    }
    reader.resume();
    reader.expect("Made"); // it has checked what it found
    reader.finish();
    unlink(place, &name);
}

fn filler_that_is_killed_at_any_step_leaves_no_chunk_or_a_whole_one(place: &Place) {
    let (name, cache) = made(place, "killed");
    let steps = [
        ("cache: key locked", Got::Made),
        ("cache: slots locked", Got::Made),
        ("cache: filling", Got::Made),
        ("cache: filled", Got::Made),
        ("cache: published", Got::Found),
    ];
    for turn in 0..3 {
        for (index, (step, expected)) in steps.into_iter().enumerate() {
            let number = (turn * steps.len() + index) as u64;
            let mut filler = child_at(place, &name, number, 2 * SLOT, step);
            filler.kill();
            assert_eq!(get(&cache, number, 2 * SLOT, 0, Duration::ZERO), expected, "{step}, {turn}");
            assert_eq!(get(&cache, number, 2 * SLOT, 0, Duration::ZERO), Got::Found, "{step}, {turn}");
        }
    }
    unlink(place, &name);
}

fn place_that_another_process_fills_meanwhile_is_left_to_it(place: &Place) {
    let (name, cache) = made(place, "place");
    let mut filler = child_at(place, &name, 0, SLOT, "cache: place chosen");
    for number in 1..4 {
        assert_eq!(get(&cache, number, SLOT, 0, SOON), Got::Made);
    }
    filler.resume();
    filler.expect("Made");
    filler.finish();
    for number in 0..4 {
        assert_eq!(get(&cache, number, SLOT, 0, SOON), Got::Found, "chunk {number}");
    }
    unlink(place, &name);
}

fn filler_that_is_stopped_delays_only_those_that_want_its_chunk(place: &Place) {
    let (name, cache) = made(place, "stopped");
    let mut filler = child_at(place, &name, 0, SLOT, "cache: filled");
    let moment = Duration::from_millis(20);
    assert_eq!(get(&cache, 0, SLOT, 0, moment), Got::Bypassed(Bypass::Late));
    for number in 1..40 {
        assert_eq!(get(&cache, number, SLOT, 0, moment), Got::Made, "15 places are left");
    }
    filler.resume();
    filler.expect("Made");
    filler.finish();
    assert_eq!(get(&cache, 0, SLOT, 0, moment), Got::Found);
    unlink(place, &name);
}

fn overlapped_chunk_is_not_found_while_it_is_overwritten(place: &Place) {
    let (name, cache) = made(place, "overlapped");
    // Four slots each: the cache is full.
    for number in 0..4 {
        assert_eq!(get(&cache, number, 4 * SLOT, 0, SOON), Got::Made);
    }
    // The one that was used first makes way for a small chunk. Its filler is stopped, and then killed.
    let mut filler = child_at(place, &name, 9, SLOT, "cache: filling");
    let found = |number| match cache.look(key(number), 4 * SLOT, 0, Duration::ZERO).unwrap() {
        Lookup::Found(chunk) => {
            check(number, chunk.bytes().unwrap());
            true
        }
        _ => false,
    };
    assert_eq!([0, 1, 2, 3].map(found), [false, true, true, true]);
    filler.kill();
    assert_eq!([0, 1, 2, 3].map(found), [false, true, true, true]);
    assert_eq!(get(&cache, 0, 4 * SLOT, 0, SOON), Got::Made, "in its old place, which is of no use to others");
    assert_eq!([0, 1, 2, 3].map(found), [true; 4]);
    // And while the large one is filled, the small one is not found.
    assert_eq!(get(&cache, 9, SLOT, 0, SOON), Got::Made);
    let mut bytes = vec![0; SLOT];
    fill(9, &mut bytes);
    let Lookup::Found(small) = cache.look(key(9), SLOT, 0, SOON).unwrap() else { panic!("it is there") };
    assert_eq!(small.bytes().unwrap(), bytes);
    unlink(place, &name);
}

fn cache_is_opened_whole_or_anew_while_another_process_removes_it(place: &Place) {
    let place = &place.private();
    let (name, cache) = made(place, "removed");
    let unused = |cache: ChunkCache| {
        drop(cache);
        eventually("no process has it open", || !cache::attached(&place.backend, name.location()).unwrap());
    };
    let open = || CacheOptions::new().directory(place.backend.clone()).open(name.location());
    assert_eq!(get(&cache, 0, SLOT, 0, SOON), Got::Made);
    unused(cache);
    // It is opened while it is being removed: the opener waits, and makes another one.
    let mut remover = Child::start_until(place, "step-cache-gc", &[], "gc: cache locked");
    let mut opener = Child::start(place, "step-cache-open", &[name.as_str()]);
    assert_eq!(opener.line_within(Duration::from_millis(300)), None, "it waits");
    let interrupted = backend::interruptible(|| false, || open().map(drop));
    assert_eq!(interrupted.unwrap_err().kind, ErrorKind::Interrupted);
    remover.resume();
    remover.expect("1");
    opener.expect("Made");
    opener.finish();
    remover.finish();
    // It is removed while it is being opened, before the opener has its lease.
    unused(open().unwrap());
    let mut opener = Child::start_until(place, "step-cache-open", &[name.as_str()], "cache: opened");
    let mut remover = Child::start(place, "step-cache-gc", &[]);
    remover.expect("1");
    remover.finish();
    opener.resume();
    opener.expect("Made");
    opener.finish();
    // Its remover is killed: it stays as it was.
    unused(open().unwrap());
    let mut remover = Child::start_until(place, "step-cache-gc", &[], "gc: cache locked");
    remover.kill();
    assert_eq!(get(&open().unwrap(), 0, SLOT, 0, SOON), Got::Found);
    unlink(place, &name);
}
