//! Messages with arrays: many arrays in one message, in order; failed attachments return the array; dropped arrays are
//! released.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray::{Ix1, Ix2, Ix3};
use ndarray_shm::counted::{Channel, Handle, Shareable, SharingStrategy};
use ndarray_shm::{ErrorKind, RefcountedArray};
use serde::de::IgnoredAny;

use super::meeting::{LONG, Meeting, all, attach, leaving_nothing, share, strategies};
use crate::support::Place;
use crate::support::child::Role;
use crate::tests;

/// Long enough to show that a process is waiting.
const A_WHILE: Duration = Duration::from_millis(50);

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "sharing",
        "messages",
        tests![
            two_hundred_arrays_arrive_in_order_in_one_message,
            failed_attach_gives_the_received_array_back,
            dropped_received_array_is_released_at_once,
            message_of_another_type_stays_until_received_or_skipped,
            failed_send_leaves_nothing_in_flight,
            many_threads_use_both_directions_at_once,
            timeouts_lose_no_complete_message,
            earlier_messages_arrive_before_the_close_is_noticed,
            handle_in_a_message_works_once,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[("send-mixed", send_mixed), ("answer", answer)];

const MANY: usize = 200;

/// A child that sends many arrays in one message, alternating the strategies.
fn send_mixed(arguments: &[String]) {
    leaving_nothing(arguments, |backend, channel| {
        let strategy = |number: usize| strategies().nth(number % strategies().count()).unwrap();
        let arrays: Vec<_> = (0..MANY).map(|number| share(backend, strategy(number), number as f64)).collect();
        let all: Vec<&dyn Shareable> = arrays.iter().map(|array| array as _).collect();
        channel.send(&MANY, &all).unwrap();
        drop(arrays);
        channel.receive::<()>().unwrap();
    });
}

fn two_hundred_arrays_arrive_in_order_in_one_message(place: &Place) {
    let meeting = Meeting::new(place);
    let (child, channel) = meeting.child("send-mixed", &[]);
    let received = channel.receive::<usize>().unwrap();
    assert_eq!((received.message, received.arrays.len()), (MANY, MANY));
    let mut named = 0;
    let arrays: Vec<_> = received.arrays.into_iter().map(attach::<f64>).collect();
    for (number, array) in arrays.iter().enumerate() {
        assert!(all(array, number as f64), "array {number}");
        named += usize::from(array.location().is_some());
    }
    assert_eq!(named, MANY / strategies().count());
    channel.send(&(), &[]).unwrap();
    child.finish();
    assert_eq!(meeting.names(), named, "the sender has ended, and this process holds the arrays");
    drop(arrays);
    meeting.is_clean();
}

fn failed_attach_gives_the_received_array_back(place: &Place) {
    for strategy in strategies() {
        let meeting = Meeting::new(place);
        let (here, there) = Channel::pair().unwrap();
        here.send(&(), &[&meeting.share(strategy, 7_i32)]).unwrap();
        let [received] = <[_; 1]>::try_from(there.receive::<()>().unwrap().arrays).unwrap();
        let error = received.attach::<u32, Ix2>().unwrap_err();
        assert!(matches!(error.error().kind, ErrorKind::DTypeMismatch { .. }), "{error}");
        let error = error.into_inner().attach::<i32, Ix1>().unwrap_err();
        assert!(matches!(error.error().kind, ErrorKind::ShapeMismatch { .. }), "{error}");
        let error = error.into_inner().reader::<i32, Ix3>().unwrap_err();
        assert!(matches!(error.error().kind, ErrorKind::ShapeMismatch { .. }), "{error}");
        let error = error.into_inner().frozen::<i32, Ix2>().unwrap_err();
        assert!(matches!(error.error().kind, ErrorKind::Unsupported { .. }), "{error}");
        let reader = error.into_inner().reader::<i32, Ix2>().unwrap();
        assert_eq!(reader.view().sum(), 175);
        drop(reader);
        meeting.is_clean();
    }
}

fn dropped_received_array_is_released_at_once(place: &Place) {
    for strategy in strategies() {
        let meeting = Meeting::new(place);
        let (here, there) = Channel::pair().unwrap();
        let array = meeting.share(strategy, 1_f32);
        here.send(&(), &[&array, &array]).unwrap();
        let named = usize::from(strategy == SharingStrategy::FileSystem);
        assert_eq!(array.in_flight(), 2 * named);
        let [one, other] = <[_; 2]>::try_from(there.receive::<()>().unwrap().arrays).unwrap();
        drop(one);
        assert_eq!((array.in_flight(), array.refcount()), (named, 1));
        drop(array);
        assert_eq!(meeting.names(), named, "a message in flight keeps the name");
        drop(other);
        meeting.is_clean();
    }
}

fn message_of_another_type_stays_until_received_or_skipped(place: &Place) {
    for strategy in strategies() {
        let meeting = Meeting::new(place);
        let (here, there) = Channel::pair().unwrap();
        here.send("a word", &[&meeting.share(strategy, 1_f32)]).unwrap();
        here.send("another", &[&meeting.share(strategy, 2_f32)]).unwrap();
        here.send("the last", &[&meeting.share(strategy, 3_f32)]).unwrap();
        for _ in 0..3 {
            let error = there.receive::<u32>().unwrap_err();
            assert!(matches!(error.kind, ErrorKind::Message { .. }), "{error}");
        }
        let received = there.receive::<String>().unwrap();
        assert_eq!(received.message, "a word");
        assert!(all(&attach::<f32>(received.arrays.into_iter().next().unwrap()), 1.0));
        let skipped = there.receive::<IgnoredAny>().unwrap();
        assert_eq!(skipped.arrays.len(), 1);
        drop(skipped);
        let received = there.receive::<String>().unwrap();
        assert_eq!(received.message, "the last");
        drop(received);
        meeting.is_clean();
    }
}

fn failed_send_leaves_nothing_in_flight(place: &Place) {
    let meeting = Meeting::new(place);
    let (here, there) = Channel::pair().unwrap();
    let arrays: Vec<_> = strategies().map(|strategy| meeting.share(strategy, 1_f32)).collect();
    let all: Vec<&dyn Shareable> = arrays.iter().map(|array| array as _).collect();
    // Long numbers, because few of them make 65 MiB of JSON faster.
    let error = here.send(&vec![u128::MAX; (65 << 20) / 40], &all).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Protocol { .. }), "{error}");
    let not_json = std::collections::BTreeMap::from([((1, 2), 3)]);
    let error = here.send(&not_json, &[&all[..], &all[..]].concat()).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Protocol { .. }) && error.to_string().contains("JSON"), "{error}");
    assert!(arrays.iter().all(|array| array.in_flight() == 0));
    here.send("good", &all).unwrap();
    assert_eq!(there.receive::<String>().unwrap().message, "good", "no part of a refused message was sent");
    drop(there);
    // A child that another test is spawning may have a copy of that end until its program runs. This waits for its
    // close.
    assert!(matches!(here.receive::<()>().unwrap_err().kind, ErrorKind::Closed { .. }));
    let error = here.send("too late", &all).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Closed { .. }), "{error}");
    assert!(arrays.iter().all(|array| (array.in_flight(), array.refcount()) == (0, 1)));
    drop(arrays);
    meeting.is_clean();
}

/// A child that adds one to each received array and sends it back, in two threads, until the channel closes.
fn answer(arguments: &[String]) {
    leaving_nothing(arguments, |_, channel| {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while let Ok(received) = channel.receive::<usize>() {
                        let [array] = <[_; 1]>::try_from(received.arrays).unwrap();
                        let array = attach::<f64>(array);
                        *array.write().unwrap() += 1.0;
                        channel.send(&received.message, &[&array]).unwrap();
                    }
                });
            }
        });
    });
}

fn many_threads_use_both_directions_at_once(place: &Place) {
    const THREADS: usize = 4;
    const EACH: usize = 50;
    let meeting = Meeting::new(place);
    let (child, channel) = meeting.child("answer", &[]);
    let seen: Vec<AtomicBool> = (0..THREADS * EACH).map(|_| AtomicBool::new(false)).collect();
    std::thread::scope(|scope| {
        let (channel, meeting, seen) = (&channel, &meeting, &seen);
        for thread in 0..THREADS {
            scope.spawn(move || {
                for number in (thread..THREADS * EACH).step_by(THREADS) {
                    let strategy = strategies().nth(number % strategies().count()).unwrap();
                    channel.send(&number, &[&meeting.share(strategy, number as f64)]).unwrap();
                }
            });
            scope.spawn(move || {
                for _ in 0..EACH {
                    let received = channel.receive_timeout::<usize>(LONG).unwrap();
                    let array = attach::<f64>(received.arrays.into_iter().next().unwrap());
                    assert!(all(&array, received.message as f64 + 1.0), "another message's array");
                    assert!(!seen[received.message].swap(true, Ordering::Relaxed), "twice");
                }
            });
        }
    });
    assert!(seen.iter().all(|seen| seen.load(Ordering::Relaxed)));
    drop(channel);
    child.finish();
    meeting.is_clean();
}

fn timeouts_lose_no_complete_message(place: &Place) {
    let meeting = Meeting::new(place);
    let (here, there) = Channel::pair().unwrap();
    let begin = Instant::now();
    assert!(matches!(there.receive_timeout::<()>(A_WHILE).unwrap_err().kind, ErrorKind::TimedOut { .. }));
    assert!(begin.elapsed() >= A_WHILE);
    assert!(matches!(there.receive_timeout::<()>(Duration::ZERO).unwrap_err().kind, ErrorKind::TimedOut { .. }));
    let array = meeting.share(SharingStrategy::FileSystem, 1_f32);
    // No process receives, so that the socket fills up. The last message is sent only in part.
    let long = "x".repeat(1 << 16);
    let mut sent = 0;
    while here.send_timeout(&long, &[&array], A_WHILE).is_ok() {
        sent += 1;
        assert!(sent < 120, "more than any socket buffers");
    }
    assert_eq!(array.in_flight(), sent, "an array that was not sent is not in flight");
    for _ in 0..sent {
        let received = there.receive_timeout::<String>(LONG).unwrap();
        assert_eq!((received.message.len(), received.arrays.len()), (1 << 16, 1));
    }
    assert_eq!(array.in_flight(), 0);
    // The partial message ends that direction. The other direction still works.
    assert!(matches!(there.receive::<String>().unwrap_err().kind, ErrorKind::Closed { .. }));
    assert!(matches!(here.send("more", &[]).unwrap_err().kind, ErrorKind::Protocol { .. }));
    there.send("still", &[&array]).unwrap();
    assert_eq!(here.receive::<String>().unwrap().message, "still");
    drop(array);
    meeting.is_clean();
}

fn earlier_messages_arrive_before_the_close_is_noticed(place: &Place) {
    for strategy in strategies() {
        let meeting = Meeting::new(place);
        let (here, there) = Channel::pair().unwrap();
        here.send("before", &[&meeting.share(strategy, 1_f32)]).unwrap();
        drop(here);
        let received = there.receive::<String>().unwrap();
        assert!(all(&attach::<f32>(received.arrays.into_iter().next().unwrap()), 1.0));
        assert!(matches!(there.receive::<String>().unwrap_err().kind, ErrorKind::Closed { .. }));
        assert!(matches!(there.send("after", &[]).unwrap_err().kind, ErrorKind::Closed { .. }));
        let (here, there) = Channel::pair().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| there.receive::<()>().unwrap_err());
            std::thread::sleep(A_WHILE);
            drop(here);
            assert!(matches!(waiting.join().unwrap().kind, ErrorKind::Closed { .. }));
        });
        meeting.is_clean();
    }
}

fn handle_in_a_message_works_once(place: &Place) {
    let meeting = Meeting::new(place);
    let (here, there) = Channel::pair().unwrap();
    let array = meeting.share(SharingStrategy::FileSystem, 2_f32);
    here.send(&vec![array.handle().unwrap(); 2], &[]).unwrap();
    drop(array);
    let [one, same]: [Handle; 2] = there.receive::<Vec<Handle>>().unwrap().message.try_into().unwrap();
    let array: RefcountedArray<f32, Ix2> = one.attach().unwrap();
    assert!(all(&array, 2.0));
    assert!(same.attach::<f32, Ix2>().unwrap_err().kind == ErrorKind::HandleSpent);
    drop(array);
    assert!(same.attach::<f32, Ix2>().unwrap_err().is_not_found());
    meeting.is_clean();
}
