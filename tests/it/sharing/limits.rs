//! Few descriptors and many arrays: arrays by name need none, readers and frozen arrays can close theirs, and a
//! receiver without free descriptors loses no message.

use std::fs::File;

use libtest_mimic::Trial;
use ndarray::{Ix1, Ix2};
use ndarray_shm::counted::{Channel, ChannelListener, Foreign, Shareable, SharingStrategy};
use ndarray_shm::{DType, Error, ErrorKind, FrozenArray, Order, RefcountedArray};

use super::meeting::{LONG, Meeting, all, attach, leaving_nothing, options, share};
use crate::support::Place;
use crate::support::child::{Child, Role, hear, say};
use crate::support::machine::open_files;
use crate::tests;

/// The processes' limit on descriptors.
const LIMIT: u64 = 64;
/// How many arrays they share.
const MANY: usize = 1000;
/// How many arrays are in each message.
const EACH: usize = 100;

pub fn trials(place: &Place) -> Vec<Trial> {
    let mut trials = place.trials("sharing", "limits", tests![receiver_without_descriptors_gets_the_message_later]);
    let many = place.trials(
        "sharing",
        "limits",
        tests![
            thousand_arrays_by_name_are_open_in_both_with_64_descriptors,
            thousand_readers_by_descriptor_with_64_descriptors,
        ],
    );
    // Where a lock needs an open descriptor, every array keeps one.
    let survives = place.backend.lock_survives_close().expect("a directory");
    trials.extend(many.into_iter().map(|trial| trial.with_ignored_flag(!survives)));
    trials.extend(place.trials("sharing", "limits", tests![thousand_frozen_arrays_with_64_descriptors]));
    trials.retain(|trial| cfg!(target_os = "linux") || trial.name().ends_with("in_both_with_64_descriptors"));
    trials
}

pub const ROLES: &[(&str, Role)] = &[("give-many", give_many), ("take-many", take_many), ("take-late", take_late)];

/// Limits this process to `LIMIT` descriptors.
#[allow(unsafe_code)]
fn limit_descriptors() {
    let limit = libc::rlimit { rlim_cur: LIMIT as libc::rlim_t, rlim_max: LIMIT as libc::rlim_t };
    // SAFETY: the limit is a valid one, and is only read.
    let status = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
}

/// How arrays are sent, and what the receiver makes of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    ByName,
    Reader,
    Frozen,
}

impl Kind {
    fn of(word: &str) -> Self {
        match word {
            "by-name" => Self::ByName,
            "reader" => Self::Reader,
            "frozen" => Self::Frozen,
            other => panic!("{other}"),
        }
    }
}

/// A child that creates many arrays and sends them. It holds arrays with names until all have arrived.
fn give_many(arguments: &[String]) {
    limit_descriptors();
    leaving_nothing(arguments, |backend, channel| {
        let number = |index: usize| index as u64;
        match Kind::of(&arguments[1]) {
            Kind::ByName => {
                let make = |index| {
                    let fill = |mut view: ndarray::ArrayViewMut1<'_, u64>| view.fill(number(index));
                    options(backend).share_with(SharingStrategy::FileSystem, 4, fill).unwrap()
                };
                let arrays: Vec<RefcountedArray<u64, Ix1>> = (0..MANY).map(make).collect();
                for (index, arrays) in arrays.chunks(EACH).enumerate() {
                    let arrays: Vec<&dyn Shareable> = arrays.iter().map(|array| array as _).collect();
                    channel.send(&(index * EACH), &arrays).unwrap();
                }
                assert!(open_files() <= 16, "{} descriptors", open_files());
                channel.receive::<()>().unwrap();
                assert!(arrays.iter().all(|array| array.refcount() == 2), "both processes hold every array");
                channel.send(&(), &[]).unwrap();
            }
            Kind::Reader => {
                for index in 0..MANY {
                    let fill = |mut view: ndarray::ArrayViewMut1<'_, u64>| view.fill(number(index));
                    let array = options(backend).share_with(SharingStrategy::FileDescriptor, 4, fill).unwrap();
                    channel.send(&index, &[&array]).unwrap();
                }
            }
            Kind::Frozen => {
                for index in 0..MANY {
                    let array = FrozenArray::<u64, _>::create_with(4, |mut view| view.fill(number(index))).unwrap();
                    channel.send(&index, &[&array]).unwrap();
                }
            }
        }
        say("sent");
        hear();
    });
}

/// A child that receives many arrays and holds them all at once.
fn take_many(arguments: &[String]) {
    limit_descriptors();
    leaving_nothing(arguments, |_, channel| {
        let listener = ChannelListener::bind(&arguments[1]).unwrap();
        say("listening");
        let giver = listener.accept_timeout(LONG).unwrap();
        match Kind::of(&arguments[2]) {
            Kind::ByName => {
                let mut arrays = Vec::new();
                while arrays.len() < MANY {
                    let received = giver.receive::<usize>().unwrap();
                    assert_eq!((received.message, received.arrays.len()), (arrays.len(), EACH));
                    arrays.extend(received.arrays.into_iter().map(|array| array.attach::<u64, Ix1>().unwrap()));
                }
                giver.send(&(), &[]).unwrap();
                giver.receive::<()>().unwrap();
                let right = |(index, array): (usize, &RefcountedArray<u64, Ix1>)| {
                    array.read().unwrap().iter().all(|value| *value == index as u64)
                };
                assert!(arrays.iter().enumerate().all(right));
                assert!(open_files() <= 16, "{} descriptors", open_files());
            }
            Kind::Reader => {
                let mut arrays = Vec::new();
                for index in 0..MANY {
                    let received = giver.receive::<usize>().unwrap();
                    assert_eq!((received.message, received.arrays.len()), (index, 1));
                    let [array] = <[_; 1]>::try_from(received.arrays).unwrap();
                    arrays.push(array.reader::<u64, Ix1>().unwrap());
                }
                let right = |(index, array): (usize, &ndarray_shm::ArrayReader<u64, Ix1>)| {
                    array.view().iter().all(|value| *value == index as u64)
                };
                assert!(arrays.iter().enumerate().all(right));
                assert!(open_files() <= 16, "{} descriptors", open_files());
            }
            Kind::Frozen => {
                let mut arrays = Vec::new();
                for index in 0..MANY {
                    let received = giver.receive::<usize>().unwrap();
                    assert_eq!((received.message, received.arrays.len()), (index, 1));
                    let [array] = <[_; 1]>::try_from(received.arrays).unwrap();
                    arrays.push(array.frozen::<u64, Ix1>().unwrap().without_fd());
                }
                assert!(arrays.iter().enumerate().all(|(index, array)| array.iter().all(|v| *v == index as u64)));
                assert!(open_files() <= 16, "{} descriptors", open_files());
            }
        }
        channel.send(&"all at once", &[]).unwrap();
    });
}

/// Lets two processes with few descriptors share many arrays.
fn many(place: &Place, kind: &str) {
    let meeting = Meeting::new(place);
    let socket = meeting.path("taker").display().to_string();
    let (mut taker, channel) = meeting.child("take-many", &[&socket, kind]);
    taker.expect("listening");
    let mut giver = Child::start(&meeting.place, "give-many", &[&socket, kind]);
    giver.expect("sent");
    assert_eq!(channel.receive::<String>().unwrap().message, "all at once");
    taker.finish();
    giver.tell("go");
    giver.finish();
    meeting.is_clean();
}

fn thousand_arrays_by_name_are_open_in_both_with_64_descriptors(place: &Place) {
    many(place, "by-name");
}

fn thousand_readers_by_descriptor_with_64_descriptors(place: &Place) {
    many(place, "reader");
}

fn thousand_frozen_arrays_with_64_descriptors(place: &Place) {
    many(place, "frozen");
}

/// How many arrays, the last a foreign descriptor, are in the message that needs more descriptors than are free.
const SOME: usize = 40;

/// A child that has no free descriptor when a message arrives, then too few, then enough.
fn take_late(arguments: &[String]) {
    limit_descriptors();
    leaving_nothing(arguments, |backend, channel| {
        let mut others = Vec::new();
        while let Ok(file) = File::open("/dev/null") {
            others.push(file);
        }
        let refused = |channel: &Channel| match channel.receive::<String>() {
            Err(Error { kind: ErrorKind::TooManyOpenFiles { limit, .. }, .. }) => assert_eq!(limit, LIMIT),
            other => panic!("{other:?}"),
        };
        refused(&channel);
        others.truncate(others.len() - SOME / 2); // frees half of the descriptors that the message needs
        for _ in 0..3 {
            refused(&channel);
            assert!(File::open("/dev/null").is_ok(), "a refused message keeps no descriptor");
        }
        others.clear();
        let mut received = channel.receive::<String>().unwrap();
        assert_eq!((received.message.as_str(), received.arrays.len()), ("the first", SOME));
        // Taking a foreign descriptor needs no free one.
        while let Ok(file) = File::open("/dev/null") {
            others.push(file);
        }
        let foreign = received.arrays.pop().unwrap().foreign("null").unwrap();
        match channel.send("on", &[&foreign]) {
            Err(Error { kind: ErrorKind::TooManyOpenFiles { limit, .. }, .. }) => assert_eq!(limit, LIMIT),
            other => panic!("{other:?}"),
        }
        others.clear();
        channel.send("on", &[&foreign]).unwrap();
        drop(foreign);
        // Attaching opens one more descriptor briefly. The attached arrays have closed theirs by then.
        let arrays: Vec<RefcountedArray<f64, Ix2>> = received.arrays.into_iter().map(attach::<f64>).collect();
        assert!(arrays.iter().enumerate().all(|(number, array)| all(array, number as f64)));
        drop(arrays);
        let received = channel.receive::<String>().unwrap();
        assert_eq!((received.message.as_str(), received.arrays.len()), ("the second", 1));
        drop(received);
        // The limit does not keep this process from cleaning up.
        drop(share(backend, SharingStrategy::FileSystem, 1_u8));
    });
}

fn receiver_without_descriptors_gets_the_message_later(place: &Place) {
    let meeting = Meeting::new(place);
    let (child, channel) = meeting.child("take-late", &[]);
    let make = |number| meeting.share(SharingStrategy::FileDescriptor, f64::from(number));
    let arrays: Vec<_> = (1..SOME as u32).map(|number| make(number - 1)).collect();
    let null = File::open("/dev/null").unwrap();
    let foreign = Foreign::new("null", DType::U8, &[0], Order::C, "empty", null).unwrap();
    let all: Vec<&dyn Shareable> = arrays.iter().map(|array| array as _).chain([&foreign as _]).collect();
    channel.send("the first", &all).unwrap();
    channel.send("the second", &[&arrays[0]]).unwrap();
    let [foreign] = <[_; 1]>::try_from(channel.receive_timeout::<String>(LONG).unwrap().arrays).unwrap();
    assert_eq!(foreign.foreign("null").unwrap().note(), "empty");
    child.finish();
    assert!(arrays.iter().all(|array| array.refcount() == 1));
    drop(arrays);
    meeting.is_clean();
}
