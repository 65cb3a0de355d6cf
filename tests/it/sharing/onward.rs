//! Forwarded arrays: through a process that ends, to new workers, and from one strategy to the other without a copy.

use libtest_mimic::Trial;
use ndarray::Ix2;
use ndarray_shm::counted::{Channel, ChannelListener, SharingStrategy};
use ndarray_shm::{Error, ErrorKind, FrozenArray, RefcountedArray};

use super::meeting::{LONG, Meeting, all, assert_same_memory, attach, leaving_nothing, share, strategies};
use crate::support::Place;
use crate::support::child::{Child, Role, hear, say};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    let mut trials = place.trials(
        "sharing",
        "onward",
        tests![
            array_is_forwarded_after_its_creator_ends,
            array_is_forwarded_after_its_creator_is_killed,
            new_workers_get_an_array_of_earlier_workers,
            a_named_array_goes_by_descriptor_without_a_copy,
            array_by_descriptor_outlives_its_earlier_holders,
            frozen_array_is_forwarded_while_it_has_a_descriptor,
            strategy_set_at_run_time_affects_new_arrays_only,
        ],
    );
    // A file that had a name, as a hidden draft has, cannot be linked again after its removal.
    if !place.has_hidden_drafts() {
        trials.extend(place.trials(
            "sharing",
            "onward",
            tests![a_nameless_array_goes_by_name_without_a_copy, last_holder_can_name_a_nameless_array,],
        ));
    }
    trials
}

pub const ROLES: &[(&str, Role)] =
    &[("make-and-send", make_and_send), ("pass-on", pass_on), ("set-strategy", set_strategy)];

/// A child that creates an array, sends it, drops it, and ends when it is told to.
fn make_and_send(arguments: &[String]) {
    leaving_nothing(arguments, |backend, channel| {
        let array = share(backend, arguments[1].parse().unwrap(), 3_f32);
        channel.send("made", &[&array]).unwrap();
        drop(array);
        say("sent");
        hear();
    });
}

/// A child that receives an array over a connection of its own, holds it until it is told to go on, and forwards it to
/// the test.
fn pass_on(arguments: &[String]) {
    leaving_nothing(arguments, |_, channel| {
        let listener = ChannelListener::bind(&arguments[1]).unwrap();
        say("listening");
        let from = listener.accept_timeout(LONG).unwrap();
        let received = from.receive::<String>().unwrap();
        let array = attach::<f32>(received.arrays.into_iter().next().unwrap());
        say("received");
        hear();
        array.write().unwrap().fill(4.0);
        channel.send(&received.message, &[&array]).unwrap();
        drop(array);
        say("sent");
        hear();
    });
}

/// A creates an array and sends it to B. After A's end, B sends it to the test, and ends too.
fn through_two(place: &Place, mut end_of_a: impl FnMut(Child)) {
    for strategy in strategies() {
        let meeting = Meeting::new(place);
        let socket = meeting.path("b");
        let (mut b, from_b) = meeting.child("pass-on", &[&socket.display().to_string()]);
        b.expect("listening");
        let mut a = Child::start(&meeting.place, "make-and-send", &[&socket.display().to_string(), strategy.as_str()]);
        a.expect("sent");
        b.expect("received");
        end_of_a(a);
        b.tell("go on");
        b.expect("sent");
        b.tell("go");
        b.finish();
        let received = from_b.receive::<String>().unwrap();
        assert_eq!(received.message, "made");
        let array = attach::<f32>(received.arrays.into_iter().next().unwrap());
        assert!(all(&array, 4.0));
        array.write().unwrap().fill(5.0);
        let (here, there) = Channel::pair().unwrap();
        here.send(&(), &[&array]).unwrap();
        let again = attach::<f32>(there.receive::<()>().unwrap().arrays.into_iter().next().unwrap());
        assert!(all(&again, 5.0));
        drop((array, again));
        meeting.is_clean();
    }
}

fn array_is_forwarded_after_its_creator_ends(place: &Place) {
    through_two(place, |mut a| {
        a.tell("go");
        a.finish();
    });
}

fn array_is_forwarded_after_its_creator_is_killed(place: &Place) {
    through_two(place, |mut a| a.kill());
}

fn new_workers_get_an_array_of_earlier_workers(place: &Place) {
    for strategy in strategies() {
        let meeting = Meeting::new(place);
        let array = meeting.share(strategy, 0_f32);
        for pool in 1..=3_u8 {
            let workers = [meeting.child("fill-pool", &[]), meeting.child("fill-pool", &[])];
            for (number, (_, channel)) in workers.iter().enumerate() {
                let value = f32::from(pool) * 10.0 + number as f32;
                channel.send(&value, &[&array]).unwrap();
                assert_eq!(channel.receive::<f32>().unwrap().message, 25.0 * value);
                assert!(all(&array, value));
            }
            // The workers of every second pool are killed, the others end normally.
            for (mut child, channel) in workers {
                if pool % 2 == 0 {
                    child.kill();
                } else {
                    drop(channel);
                    child.finish();
                }
            }
        }
        assert!(all(&array, 31.0));
        drop(array);
        meeting.is_clean();
    }
}

/// Sends an array by a strategy, and attaches to the received one.
fn sent_by(strategy: SharingStrategy, array: &RefcountedArray<f32, Ix2>) -> RefcountedArray<f32, Ix2> {
    let (here, there) = Channel::pair().unwrap();
    here.send(&(), &[&array.by(strategy)]).unwrap();
    let [received] = <[_; 1]>::try_from(there.receive::<()>().unwrap().arrays).unwrap();
    assert_eq!(received.strategy(), strategy);
    attach(received)
}

fn a_nameless_array_goes_by_name_without_a_copy(place: &Place) {
    let meeting = Meeting::new(place);
    let array = meeting.share(SharingStrategy::FileDescriptor, 1_f32);
    assert_eq!((meeting.names(), array.location()), (0, None));
    let other = sent_by(SharingStrategy::FileSystem, &array);
    assert_same_memory(&array, &other);
    assert_eq!((meeting.names(), array.strategy()), (1, SharingStrategy::FileSystem), "it has a name from now on");
    assert_same_memory(&array, &sent_by(SharingStrategy::FileSystem, &other));
    drop(array);
    assert_eq!(meeting.names(), 1);
    drop(other);
    meeting.is_clean();
}

fn a_named_array_goes_by_descriptor_without_a_copy(place: &Place) {
    if !SharingStrategy::FileDescriptor.is_supported() {
        return;
    }
    let meeting = Meeting::new(place);
    let array = meeting.share(SharingStrategy::FileSystem, 1_f32);
    let other = sent_by(SharingStrategy::FileDescriptor, &array);
    assert_same_memory(&array, &other);
    assert_eq!((array.refcount(), array.in_flight(), meeting.names()), (2, 0, 1));
    drop(array);
    assert_eq!(meeting.names(), 1, "the other one is counted");
    assert_same_memory(&other, &sent_by(SharingStrategy::FileSystem, &other));
    drop(other);
    meeting.is_clean();
}

fn array_by_descriptor_outlives_its_earlier_holders(place: &Place) {
    for strategy in strategies().filter(|_| SharingStrategy::FileDescriptor.is_supported()) {
        let meeting = Meeting::new(place);
        let array = meeting.share(strategy, 1_f32);
        let (here, there) = Channel::pair().unwrap();
        here.send(&(), &[&array.by(SharingStrategy::FileDescriptor)]).unwrap();
        drop(array);
        assert_eq!(meeting.names(), 0, "the name goes with the last handle");
        let [received] = <[_; 1]>::try_from(there.receive::<()>().unwrap().arrays).unwrap();
        let array = attach::<f32>(received);
        assert!(all(&array, 1.0));
        assert_eq!((array.strategy(), array.location()), (SharingStrategy::FileDescriptor, None));
        here.send(&(), &[&array]).unwrap();
        let [received] = <[_; 1]>::try_from(there.receive::<()>().unwrap().arrays).unwrap();
        assert_same_memory(&array, &attach(received));
        assert_same_memory(&array, &array.try_clone().unwrap());
        drop(array);
        meeting.is_clean();
    }
}

fn last_holder_can_name_a_nameless_array(place: &Place) {
    let meeting = Meeting::new(place);
    let array = meeting.share(SharingStrategy::FileDescriptor, 1_f32);
    let (here, there) = Channel::pair().unwrap();
    here.send(&(), &[&array]).unwrap();
    drop(array); // only the message in the socket holds it now
    let [received] = <[_; 1]>::try_from(there.receive::<()>().unwrap().arrays).unwrap();
    let array = attach::<f32>(received);
    assert_eq!(array.refcount(), 1);
    let other = sent_by(SharingStrategy::FileSystem, &array);
    assert_same_memory(&array, &other);
    assert_eq!(meeting.names(), 1);
    drop((array, other));
    meeting.is_clean();
}

fn frozen_array_is_forwarded_while_it_has_a_descriptor(place: &Place) {
    let meeting = Meeting::new(place);
    let (here, there) = Channel::pair().unwrap();
    let mut frozen = match FrozenArray::<f32, _>::create_with((2, 3), |mut view| view.fill(1.5)) {
        Err(Error { kind: ErrorKind::Unsupported { .. }, .. }) if !cfg!(target_os = "linux") => return,
        made => made.unwrap(),
    };
    for _ in 0..3 {
        here.send(&(), &[&frozen]).unwrap();
        let [received] = <[_; 1]>::try_from(there.receive::<()>().unwrap().arrays).unwrap();
        assert!(received.is_sealed());
        let error = received.attach::<f32, Ix2>().unwrap_err();
        assert!(matches!(error.error().kind, ErrorKind::Unsupported { .. }), "{error}");
        let error = error.into_inner().frozen::<f64, Ix2>().unwrap_err();
        assert!(matches!(error.error().kind, ErrorKind::DTypeMismatch { .. }), "{error}");
        frozen = error.into_inner().frozen().unwrap();
        assert_eq!((frozen.sum(), frozen.shape()), (9.0, &[2, 3][..]));
    }
    let error = here.send(&(), &[&frozen.without_fd()]).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{error}");
    meeting.is_clean();
}

/// A child that changes its strategy back and forth.
fn set_strategy(arguments: &[String]) {
    leaving_nothing(arguments, |_, channel| {
        let ordinary = ndarray::Array2::<f32>::ones((5, 5));
        let mut arrays = Vec::new();
        for round in 0..4 {
            let strategy = strategies().nth(round % strategies().count()).unwrap();
            strategy.set_current().unwrap();
            assert_eq!(SharingStrategy::current().unwrap(), strategy);
            arrays.push((strategy, ndarray_shm::counted::to_shared(&ordinary).unwrap()));
            assert!(
                arrays.iter().all(|(then, array)| array.strategy() == *then),
                "existing arrays keep their strategy"
            );
        }
        let all: Vec<_> = arrays.iter().map(|(_, array)| array as _).collect();
        let words: Vec<&str> = arrays.iter().map(|(strategy, _)| strategy.as_str()).collect();
        channel.send(&words, &all).unwrap();
        channel.receive::<()>().unwrap();
    });
}

fn strategy_set_at_run_time_affects_new_arrays_only(place: &Place) {
    let meeting = Meeting::new(place);
    let (child, channel) = meeting.child("set-strategy", &[]);
    let received = channel.receive::<Vec<String>>().unwrap();
    assert_eq!(received.message.len(), 4);
    for (word, array) in received.message.into_iter().zip(received.arrays) {
        assert_eq!(array.strategy().as_str(), word);
        assert!(all(&attach::<f32>(array), 1.0));
    }
    channel.send(&(), &[]).unwrap();
    child.finish();
    meeting.is_clean();
}
