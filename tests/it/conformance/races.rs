//! Many processes at once: all create, use and unlink the same name, or compete for the same locks.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray_shm::{CreateOptions, CreationMode, Error, ErrorKind, SharedArray, unlink};

use crate::support::child::{Child, Role, hear, say};
use crate::support::machine::open_files;
use crate::support::{Place, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "races",
        tests![
            four_processes_create_and_unlink_one_name,
            open_or_create_races_end_in_one_array,
            overlapping_readers_do_not_keep_a_writer_out,
            increments_under_write_guards_are_never_lost,
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
    // The first call of a process opens files that stay open; they are no leak.
    let first = format!("{name}-{seed}");
    drop(SharedArray::<u8, _>::create(first.as_str(), 1).unwrap());
    assert!(unlink(first.as_str()).unwrap());
    let before = open_files();
    let check = |outcome: Result<(), Error>| match outcome {
        Ok(()) | Err(Error { kind: ErrorKind::NotFound | ErrorKind::AlreadyExists | ErrorKind::Unlinked, .. }) => {}
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
            2 => CreateOptions::new()
                .mode(CreationMode::Replace)
                .create_with(name, LENGTH, |mut view| view.fill(tag))
                .and_then(|array| whole(&array)),
            _ => unlink(name).map(drop),
        });
    }
    assert_eq!(open_files(), before);
    say("no surprises");
}

fn four_processes_create_and_unlink_one_name(place: &Place) {
    let place = &place.fresh(); // so that everything that is left is this test's
    let name = place.location("churn");
    let start = |seed: u32| Child::start(place, "churn", &[name.as_str(), &seed.to_string()]);
    let mut children: Vec<Child> = (1..=4).map(start).collect();
    for child in &mut children {
        child.expect("no surprises");
    }
    children.into_iter().for_each(Child::finish);
    place.backend.unlink(name.location()).unwrap();
    let left: Vec<String> =
        place.left().into_iter().filter(|file| place.name != "shm" || file.contains("churn")).collect();
    assert_eq!(left, [] as [&str; 0]);
}

/// A child that opens or creates an array of one element and takes a number.
fn open_or_create(arguments: &[String]) {
    let options = CreateOptions::new().mode(CreationMode::OpenOrCreate);
    let array = options.create_with::<u32, ndarray::Ix0>(arguments[0].as_str(), (), |mut view| view.fill(100)).unwrap();
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
    let array = place.options().create::<u8, _>(name.location(), 64).unwrap();
    let mut readers: Vec<Child> =
        (0..8).map(|_| Child::start(place, "read-again-and-again", &[name.as_str()])).collect();
    for reader in &mut readers {
        reader.expect("reading");
        std::thread::sleep(Duration::from_millis(1)); // out of step
    }
    for round in 0..20 {
        eventually("a child reads", || array.try_write().is_err());
        // A writer that only looked for a moment without readers would hardly ever get in.
        let start = Instant::now();
        if round % 2 == 0 {
            drop(array.write().unwrap());
        } else {
            drop(array.write_timeout(Duration::from_secs(30)).unwrap());
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    }
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
    let array = place.options().create::<u32, _>(name.location(), (8, 8)).unwrap();
    let mut children: Vec<Child> = (0..3).map(|_| Child::start(place, "increment", &[name.as_str()])).collect();
    children.iter_mut().for_each(|child| child.expect("added"));
    assert!(array.read().unwrap().iter().all(|value| *value == 1500));
}
