//! Many processes at once: the same name made, used and removed by all, and locks under pressure.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray_shm::{ArrayOptions, Backend, CreationMode, Directory, Error, SharedArray, unlink};

use crate::support::Place;
use crate::support::child::{Child, Role, hear, say};
use crate::support::machine::descriptor_count;
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "multiprocess",
        tests![
            four_processes_make_use_and_remove_one_name_a_thousand_times_each,
            open_or_create_races_end_in_one_array,
            overlapping_readers_do_not_keep_a_writer_out,
            a_guard_dropped_while_processes_are_spawned_is_free_at_once,
            increments_under_write_guards_are_never_lost,
            the_test_of_locks_is_not_fooled_by_processes_being_spawned,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[
    ("churn", churn),
    ("open-or-create", open_or_create),
    ("read-again-and-again", read_again_and_again),
    ("increment", increment),
];

/// A child that creates, attaches to and unlinks one name in turn, as quickly as it can.
fn churn(arguments: &[String]) {
    const LENGTH: usize = 1500;
    let (name, seed) = (arguments[0].as_str(), arguments[1].parse::<u64>().unwrap());
    let before = descriptor_count();
    let check = |outcome: Result<(), Error>| match outcome {
        Ok(()) | Err(Error::NotFound { .. } | Error::AlreadyExists { .. } | Error::Unlinked { .. }) => {}
        Err(error) => panic!("{error}"),
    };
    let whole = |array: &SharedArray<u64, ndarray::Ix1>| {
        let guard = array.read()?;
        assert!(guard[0] != 0 && guard.iter().all(|value| *value == guard[0]), "a mix of two arrays, or half of one");
        Ok(())
    };
    for round in 1..=1000u64 {
        let tag = seed * 1_000_000 + round;
        check(match (round * 7 + seed) % 4 {
            0 => SharedArray::create_with(name, LENGTH, |mut view| view.fill(tag)).and_then(|array| whole(&array)),
            1 => SharedArray::open(name, LENGTH).and_then(|array| whole(&array)),
            2 => SharedArray::options()
                .mode(CreationMode::Replace)
                .create_with(name, LENGTH, |mut view| view.fill(tag))
                .and_then(|array| whole(&array)),
            _ => unlink(name).map(drop),
        });
    }
    assert_eq!(descriptor_count(), before);
    say("no surprises");
}

fn four_processes_make_use_and_remove_one_name_a_thousand_times_each(place: &Place) {
    let name = place.location("churn");
    let start = |seed: u32| Child::start(place, "churn", &[name.as_str(), &seed.to_string()]);
    let mut children: Vec<Child> = (1..=4).map(start).collect();
    for child in &mut children {
        child.expect("no surprises");
    }
    children.into_iter().for_each(Child::finish);
    place.backend.unlink(name.location(), None).unwrap();
    let left: Vec<String> = place.backend.list().unwrap().into_iter().map(|entry| entry.name).collect();
    assert!(left.iter().all(|file| !file.contains("churn") && !file.contains("draft")), "{left:?}");
}

/// A child that opens or creates an array of one element and takes a number.
fn open_or_create(arguments: &[String]) {
    let options = SharedArray::<u32, ndarray::Ix0>::options().mode(CreationMode::OpenOrCreate);
    let array = options.create_with(arguments[0].as_str(), (), |mut view| view.fill(100)).unwrap();
    let mut guard = array.write().unwrap();
    guard[()] += 1;
    say(guard[()]);
}

fn open_or_create_races_end_in_one_array(place: &Place) {
    for _ in 0..10 {
        let name = place.location("race");
        let mut children: Vec<Child> =
            (0..4).map(|_| Child::start(place, "open-or-create", &[name.as_str()])).collect();
        let mut numbers: Vec<String> = children.iter_mut().map(Child::line).collect();
        numbers.sort();
        assert_eq!(numbers, ["101", "102", "103", "104"]);
    }
}

/// A child that holds a read guard most of the time.
fn read_again_and_again(arguments: &[String]) {
    let array = SharedArray::<u8, _>::open(arguments[0].as_str(), 64).unwrap();
    say("reading");
    std::thread::spawn(|| {
        hear();
        std::process::exit(0);
    });
    loop {
        let guard = array.read().unwrap();
        std::thread::sleep(Duration::from_millis(7));
        drop(guard);
    }
}

fn overlapping_readers_do_not_keep_a_writer_out(place: &Place) {
    let name = place.location("readers");
    let array = ArrayOptions::<u8, _>::new().backend(place.backend.clone()).create(name.location(), 64).unwrap();
    let mut readers: Vec<Child> =
        (0..8).map(|_| Child::start(place, "read-again-and-again", &[name.as_str()])).collect();
    for reader in &mut readers {
        reader.expect("reading");
        std::thread::sleep(Duration::from_millis(1)); // out of step
    }
    let mut refused = 0;
    for _ in 0..20 {
        refused += usize::from(array.try_write().is_err());
        let start = Instant::now();
        drop(array.write().unwrap());
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        let start = Instant::now();
        drop(array.write_timeout(Duration::from_secs(30)).unwrap());
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(refused >= 10, "the readers hardly overlap: refused {refused} of 20 times");
}

fn a_guard_dropped_while_processes_are_spawned_is_free_at_once(place: &Place) {
    let name = place.location("spawn");
    let array = ArrayOptions::<u8, _>::new().backend(place.backend.clone()).create(name.location(), 4).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let spawner = scope.spawn(|| {
            let mut spawned = 0;
            while !stop.load(Ordering::Relaxed) {
                spawned += usize::from(std::process::Command::new("true").status().is_ok());
            }
            spawned
        });
        for round in 0..10_000 {
            drop(array.write().unwrap());
            let taken = array.try_write();
            assert!(taken.is_ok(), "round {round}: {:?}", taken.unwrap_err());
        }
        stop.store(true, Ordering::Relaxed);
        assert!(spawner.join().unwrap() > 0);
    });
}

/// A child that adds one to every element, many times.
fn increment(arguments: &[String]) {
    let array = SharedArray::<u32, _>::open(arguments[0].as_str(), (8, 8)).unwrap();
    for _ in 0..500 {
        array.write().unwrap().mapv_inplace(|value| value + 1);
    }
    say("added");
}

fn increments_under_write_guards_are_never_lost(place: &Place) {
    let name = place.location("increment");
    let array = ArrayOptions::<u32, _>::new().backend(place.backend.clone()).create(name.location(), (8, 8)).unwrap();
    let mut children: Vec<Child> = (0..3).map(|_| Child::start(place, "increment", &[name.as_str()])).collect();
    children.iter_mut().for_each(|child| child.expect("added"));
    assert!(array.read().unwrap().iter().all(|value| *value == 1500));
}

fn the_test_of_locks_is_not_fooled_by_processes_being_spawned(place: &Place) {
    let stop = AtomicBool::new(false);
    let expected = place.backend.lock_survives_close().unwrap();
    let wrong = std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let _spawned = std::process::Command::new("true").status();
                }
            });
        }
        let is_wrong = || Directory::new("fresh", place.directory()).lock_survives_close().unwrap() != expected;
        let wrong = (0..3000).filter(|_| is_wrong()).count();
        stop.store(true, Ordering::Relaxed);
        wrong
    });
    assert_eq!(wrong, 0);
}
