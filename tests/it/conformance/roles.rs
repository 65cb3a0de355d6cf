//! Whole jobs as users have them, with kills in the middle: batches for consumers, and waiting for room.

use std::collections::BTreeSet;
use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::{Array, Ix1};
use ndarray_shm::ErrorKind;

use crate::support::child::{Child, Role, hear, say};
use crate::support::{Place, arena_of_child, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "roles",
        tests![
            batches_survive_killed_consumer_and_producer,
            waiting_for_room_ends_with_drop_or_death,
            waiting_for_room_times_out_or_reports_no_space,
        ],
    )
}

pub const ROLES: &[(&str, Role)] =
    &[("produce-batches", produce), ("consume-batches", consume), ("room-taker", take_room)];

/// Elements of a batch, more than one page of them.
const BATCH: usize = 1500;
const CONSUMERS: usize = 3;

/// A child that sends batches until it is killed, and says the number of each after it has sent it.
fn produce(arguments: &[String]) {
    let arena = arena_of_child(arguments);
    let sender = arena.queue(0).unwrap().sender().unwrap();
    for number in 0_u64.. {
        // The arena has room for fewer batches than the queue: this waits until the consumers release some.
        let mut draft = arena.draft_wait::<u64, _>(BATCH, Duration::MAX).unwrap();
        draft.view_mut().fill(number);
        sender.send(draft.share().unwrap()).unwrap();
        say(number);
    }
}

/// A child that says which batches it has received, until the queue ends. It holds the last one while it waits for the
/// next. The child that is to be killed receives one batch and keeps it.
fn consume(arguments: &[String]) {
    let queue = arena_of_child(arguments).queue(0).unwrap();
    say("open");
    let mut held = None;
    loop {
        match queue.recv::<u64, Ix1>() {
            Ok(batch) => {
                let number = batch.view()[0];
                assert!(batch.shape() == [BATCH] && batch.view().iter().all(|element| *element == number));
                held = Some(batch);
                say(number);
                if arguments[1] == "hold" {
                    hear();
                }
            }
            Err(error) => {
                assert!(matches!(error.error().kind, ErrorKind::Closed { .. }), "{error}");
                break;
            }
        }
    }
    drop(held);
    say("end");
}

fn batches_survive_killed_consumer_and_producer(place: &Place) {
    let name = place.location("batches");
    let arena = place.arena_options().queue_capacity(64).create(name.location(), 1 << 19).unwrap();
    let kind = |index| if index == 0 { "hold" } else { "go" };
    let mut consumers: Vec<Child> =
        (0..CONSUMERS).map(|index| Child::start(place, "consume-batches", &[name.as_str(), kind(index)])).collect();
    consumers.iter_mut().for_each(|consumer| consumer.expect("open"));
    let mut producer = Child::start(place, "produce-batches", &[name.as_str()]);
    // The first consumer is killed while it holds a batch. The other consumers go on.
    let held_by_victim: u64 = consumers[0].line().parse().unwrap();
    let mut victim = consumers.remove(0);
    victim.kill();
    let mut received: Vec<u64> = consumers.iter_mut().map(|consumer| consumer.line().parse().unwrap()).collect();
    let mut sent: Vec<u64> = Vec::new();
    while sent.last().is_none_or(|last| *last < held_by_victim + 300) {
        sent.push(producer.line().parse().unwrap());
    }
    producer.kill();
    sent.extend(producer.rest().iter().map(|line| line.parse::<u64>().unwrap()));
    // The living consumers end by themselves when the queue is empty.
    for mut consumer in consumers {
        let numbers = std::iter::from_fn(|| Some(consumer.line()).filter(|line| line != "end"));
        received.extend(numbers.map(|line| line.parse::<u64>().unwrap()));
        consumer.finish();
    }
    let distinct: BTreeSet<u64> = received.iter().copied().collect();
    assert_eq!(distinct.len(), received.len(), "received twice");
    let lost: Vec<u64> = sent.iter().copied().filter(|number| !distinct.contains(number)).collect();
    assert_eq!(lost, [held_by_victim], "nothing is lost but what the killed consumer had");
    // The last batch may have been sent without having been reported.
    assert!(distinct.last().unwrap() - sent.last().unwrap() <= 1);
    arena.reclaim().unwrap();
    let stats = arena.stats().unwrap();
    assert_eq!((stats.arrays, stats.orphaned_messages, stats.members.len()), (0, 0, 1), "{stats:?}");
    arena.close().unwrap();
    assert!(place.files_of(&name).is_empty(), "its name goes with the last process");
}

/// A child that holds an array, and drops it or is killed.
fn take_room(arguments: &[String]) {
    let arena = arena_of_child(arguments);
    let array = arena.from_array(&Array::from_elem(50_000, 1u8)).unwrap();
    say("taken");
    hear();
    drop(array);
    say("dropped");
    hear();
}

fn waiting_for_room_ends_with_drop_or_death(place: &Place) {
    let name = place.location("room");
    let arena = place.arena_options().create(name.location(), 1 << 16).unwrap();
    for end in ["drop", "kill"] {
        let mut child = Child::start(place, "room-taker", &[name.as_str()]);
        child.expect("taken");
        // An array of another size, so that the span has to be divided anew.
        assert!(matches!(arena.draft::<u16, _>(20_000).unwrap_err().kind, ErrorKind::NoSpace { .. }));
        let waiter = {
            let arena = arena.clone();
            std::thread::spawn(move || arena.draft_wait::<u16, _>(20_000, Duration::MAX).map(drop))
        };
        std::thread::sleep(Duration::from_millis(30));
        assert!(!waiter.is_finished());
        if end == "drop" {
            child.tell("drop");
            child.expect("dropped");
        } else {
            child.kill();
        }
        eventually("there is room", || waiter.is_finished());
        waiter.join().unwrap().unwrap();
    }
}

fn waiting_for_room_times_out_or_reports_no_space(place: &Place) {
    let name = place.location("no-room");
    let arena = place.arena_options().create(name.location(), 1 << 16).unwrap();
    let limit = Duration::from_millis(20);
    let held = arena.draft_wait::<u8, _>(50_000, Duration::ZERO).unwrap();
    assert!(matches!(arena.draft_wait::<u8, _>(50_000, limit).unwrap_err().kind, ErrorKind::TimedOut { .. }));
    assert!(matches!(arena.draft_wait::<u8, _>(50_000, Duration::ZERO).unwrap_err().kind, ErrorKind::TimedOut { .. }));
    assert!(
        matches!(arena.draft_wait::<u8, _>(1 << 16, Duration::MAX).unwrap_err().kind, ErrorKind::NoSpace { .. }),
        "it never fits"
    );
    drop(held);
    drop(arena.draft_wait::<u8, _>(50_000, limit).unwrap());
}
