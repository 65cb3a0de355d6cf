//! Queues of an arena: order, delivery exactly once, closing, waiting, and full queues, between real processes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray::{Array, Ix1, Ix2, arr1};
use ndarray_shm::arena::{ArenaArray, Queue};
use ndarray_shm::{Arena, DType, Error, ErrorKind};

use crate::support::arena_of_child;
use crate::support::child::{Child, Role, hear, say};
use crate::support::random::Random;
use crate::support::{Name, Place, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "queues",
        tests![
            arrays_arrive_in_order_and_are_the_same_memory,
            every_message_arrives_once_in_its_senders_order,
            waiters_wake_for_message_room_and_close,
            closed_queue_delivers_but_refuses_new_messages,
            reference_is_sent_in_a_function_with_any_error,
            waiting_ends_at_the_timeout,
            a_full_queue_gives_the_array_back,
            type_mismatch_returns_the_message,
            message_can_be_forwarded_without_its_type,
            message_outlives_its_sender,
            killed_receiver_frees_only_received_arrays,
            sender_releases_received_arrays,
            foreign_arrays_and_missing_queues_are_refused,
            damaged_queue_yields_errors_or_shared_arrays_only,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[
    ("queue-sums", sums),
    ("queue-produce", produce),
    ("queue-consume", consume),
    ("queue-wait", wait),
    ("queue-send-and-end", send_and_end),
    ("queue-receive-and-hold", receive_and_hold),
];

const CAPACITY: u64 = 4 << 20;
const SOON: Duration = Duration::from_secs(60);

fn made(place: &Place, label: &str) -> (Name, Arena, Queue) {
    let name = place.location(label);
    let arena = place.arena_options().create(name.location(), CAPACITY).expect("room");
    let queue = arena.queue(0).expect("the first of eight");
    (name, arena, queue)
}

fn numbered(arena: &Arena, number: u64) -> ArenaArray<u64, Ix1> {
    arena.from_array(&arr1(&[number])).expect("room")
}

/// Asserts what holds after every test: no block is held, and all of the memory can be allocated again.
pub fn nothing_is_left(arena: &Arena) {
    arena.reclaim().expect("it can be reclaimed");
    let stats = arena.stats().expect("it can be counted");
    assert_eq!((stats.arrays, stats.orphaned_messages), (0, 0), "{stats:?}");
    let most = usize::try_from(arena.capacity()).expect("small") - 64;
    let all = arena.draft::<u8, _>(most).expect("everything is free");
    assert_eq!(all.shape(), [most]);
}

/// A child that answers every array with its sum and its handle.
fn sums(arguments: &[String]) {
    let queue = arena_of_child(arguments).queue(0).unwrap();
    say("ready");
    loop {
        match queue.recv::<f32, Ix2>() {
            Ok(array) => say(format!("{} {} {:?}", array.handle(), array.view().sum(), array.shape())),
            Err(error) => {
                assert!(matches!(error.error().kind, ErrorKind::Closed { .. }), "{error}");
                break;
            }
        }
    }
}

fn arrays_arrive_in_order_and_are_the_same_memory(place: &Place) {
    let (name, arena, queue) = made(place, "queue-order");
    let mut child = Child::start(place, "queue-sums", &[name.as_str()]);
    child.expect("ready");
    for rows in [0_usize, 1, 7, 300] {
        let array = arena.from_array(&Array::from_elem((rows, 100), 0.5_f32)).unwrap();
        queue.send(&array).unwrap();
        let line = format!("{} {} [{rows}, 100]", array.handle(), rows * 50);
        child.expect(&line);
        let handle = array.handle();
        queue.send(array).unwrap();
        child.expect(&line);
        eventually("the receiver has dropped it too", || {
            arena.reclaim().unwrap();
            arena.get::<f32, Ix2>(&handle).is_err_and(|error| error.kind == ErrorKind::HandleSpent)
        });
    }
    assert!(queue.close().unwrap());
    child.finish();
    nothing_is_left(&arena);
}

const PRODUCERS: u64 = 3;
const EACH: u64 = 2000;

/// A child that sends numbers, of which the first is the argument.
fn produce(arguments: &[String]) {
    let arena = arena_of_child(arguments);
    let queue = arena.queue(0).unwrap();
    let first: u64 = arguments[1].parse().unwrap();
    say("ready");
    hear();
    for number in first..first + EACH {
        queue.send(numbered(&arena, number)).unwrap();
    }
}

/// A child that says all numbers that it receives.
fn consume(arguments: &[String]) {
    let queue = arena_of_child(arguments).queue(0).unwrap();
    say("ready");
    let mut received = Vec::new();
    while let Ok(array) = queue.recv::<u64, Ix1>() {
        received.push(array.view()[0].to_string());
    }
    assert!(queue.is_closed());
    say(received.join(" "));
}

fn every_message_arrives_once_in_its_senders_order(place: &Place) {
    for cells in [1, 64] {
        let name = place.location("queue-many");
        let arena = place.arena_options().queue_capacity(cells).create(name.location(), CAPACITY).unwrap();
        let queue = arena.queue(0).unwrap();
        assert_eq!(queue.capacity(), cells as usize);
        let mut consumers: Vec<Child> =
            (0..2).map(|_| Child::start(place, "queue-consume", &[name.as_str()])).collect();
        let first = |producer: u64| (producer * EACH).to_string();
        let mut producers: Vec<Child> = (0..PRODUCERS)
            .map(|producer| Child::start(place, "queue-produce", &[name.as_str(), &first(producer)]))
            .collect();
        for child in consumers.iter_mut().chain(&mut producers) {
            child.expect("ready");
        }
        producers.iter_mut().for_each(|child| child.tell("go"));
        producers.into_iter().for_each(Child::finish);
        assert!(queue.close().unwrap());
        let mut times = BTreeMap::<u64, u32>::new();
        for mut consumer in consumers {
            let numbers: Vec<u64> = consumer.line().split_whitespace().map(|word| word.parse().unwrap()).collect();
            for producer in 0..PRODUCERS {
                let of_one = numbers.iter().filter(|number| *number / EACH == producer);
                assert!(of_one.clone().zip(of_one.skip(1)).all(|(one, next)| one < next), "a message was overtaken");
            }
            numbers.into_iter().for_each(|number| *times.entry(number).or_default() += 1);
            consumer.finish();
        }
        assert_eq!(times.len() as u64, PRODUCERS * EACH);
        assert!(times.values().all(|times| *times == 1));
        nothing_is_left(&arena);
    }
}

/// A child that receives or sends on request, waiting as long as it takes, and says what came of it.
fn wait(arguments: &[String]) {
    let arena = arena_of_child(arguments);
    let queue = arena.queue(0).unwrap();
    say("ready");
    loop {
        match hear().as_str() {
            "receive" => match queue.recv::<u64, Ix1>() {
                Ok(array) => {
                    let number = array.view()[0];
                    drop(array); // before the answer, so that the parent can rely on it
                    say(number);
                }
                Err(error) => say(format!("closed {}", matches!(error.error().kind, ErrorKind::Closed { .. }))),
            },
            "send" => match queue.send(numbered(&arena, 7)) {
                Ok(()) => say("sent"),
                Err(error) => {
                    let (error, array) = error.into_parts();
                    say(format!("closed {} {}", matches!(error.kind, ErrorKind::Closed { .. }), array.view()[0]));
                }
            },
            _ => break,
        }
    }
}

/// Waits until another process probably sleeps. Nothing depends on it.
fn let_it_sleep() {
    std::thread::sleep(Duration::from_millis(30));
}

fn waiters_wake_for_message_room_and_close(place: &Place) {
    let name = place.location("queue-woken");
    let arena = place.arena_options().queue_capacity(1).create(name.location(), CAPACITY).unwrap();
    let queue = arena.queue(0).unwrap();
    let mut children: Vec<Child> = (0..2).map(|_| Child::start(place, "queue-wait", &[name.as_str()])).collect();
    children.iter_mut().for_each(|child| child.expect("ready"));
    for _ in 0..3 {
        children.iter_mut().for_each(|child| child.tell("receive"));
        let_it_sleep();
        queue.send(numbered(&arena, 3)).unwrap();
        queue.send(numbered(&arena, 3)).unwrap();
        children.iter_mut().for_each(|child| child.expect("3"));
        queue.send(numbered(&arena, 5)).unwrap();
        children.iter_mut().for_each(|child| child.tell("send"));
        let_it_sleep();
        let received: Vec<u64> = (0..3).map(|_| queue.recv::<u64, Ix1>().unwrap().view()[0]).collect();
        assert_eq!(received, [5, 7, 7]);
        children.iter_mut().for_each(|child| child.expect("sent"));
    }
    queue.send(numbered(&arena, 5)).unwrap();
    children[0].tell("send");
    let_it_sleep();
    assert!(queue.close().unwrap());
    children[0].expect("closed true 7");
    assert_eq!(queue.recv::<u64, Ix1>().unwrap().view()[0], 5);
    let other = arena.queue(1).unwrap();
    assert!(!other.is_closed() && queue.is_closed());
    for mut child in children {
        child.tell("receive");
        child.expect("closed true");
        child.tell("end");
        child.finish();
    }
    nothing_is_left(&arena);
}

fn closed_queue_delivers_but_refuses_new_messages(place: &Place) {
    let (_name, arena, queue) = made(place, "queue-end");
    for number in 0..3 {
        queue.send(numbered(&arena, number)).unwrap();
    }
    assert_eq!((queue.close().unwrap(), queue.close().unwrap(), queue.len()), (true, false, 3));
    let (error, array) = queue.send(numbered(&arena, 9)).unwrap_err().into_parts();
    assert!(matches!(error.kind, ErrorKind::Closed { .. }), "{error}");
    assert_eq!(array.view()[0], 9);
    assert!(matches!(queue.try_send(&array).unwrap_err().error().kind, ErrorKind::Closed { .. }));
    drop(array);
    for number in 0..3 {
        assert_eq!(queue.recv::<u64, Ix1>().unwrap().view()[0], number);
    }
    assert!(matches!(queue.try_recv::<u64, Ix1>().unwrap_err().error().kind, ErrorKind::Closed { .. }));
    assert!(matches!(queue.recv_any().unwrap_err().kind, ErrorKind::Closed { .. }));
    nothing_is_left(&arena);
}

fn reference_is_sent_in_a_function_with_any_error(place: &Place) {
    fn send(queue: &Queue, array: &ArenaArray<u64, Ix1>) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        queue.send(array)?;
        queue.try_send(array)?;
        queue.send_timeout(array, Duration::from_secs(60))?;
        Ok(())
    }

    let (_name, arena, queue) = made(place, "queue-reference");
    let array = numbered(&arena, 5);
    send(&queue, &array).unwrap();
    queue.close().unwrap();
    let error = send(&queue, &array).unwrap_err();
    assert_eq!(error.to_string(), queue.send(array).unwrap_err().to_string());
    for _ in 0..3 {
        assert_eq!(queue.recv::<u64, Ix1>().unwrap().view()[0], 5);
    }
    nothing_is_left(&arena);
}

fn waiting_ends_at_the_timeout(place: &Place) {
    let name = place.location("queue-times");
    let arena = place.arena_options().queue_capacity(1).create(name.location(), CAPACITY).unwrap();
    let queue = arena.queue(7).unwrap();
    let limit = Duration::from_millis(20);
    let begin = Instant::now();
    assert!(matches!(queue.recv_timeout::<u64, Ix1>(limit).unwrap_err().error().kind, ErrorKind::TimedOut { .. }));
    assert!(matches!(queue.recv_any_timeout(limit).unwrap_err().kind, ErrorKind::TimedOut { .. }));
    assert!(matches!(queue.recv_any_timeout(Duration::ZERO).unwrap_err().kind, ErrorKind::TimedOut { .. }));
    queue.send(numbered(&arena, 1)).unwrap();
    let (error, array) = queue.send_timeout(numbered(&arena, 2), limit).unwrap_err().into_parts();
    assert!(matches!(error.kind, ErrorKind::TimedOut { .. }), "{error}");
    assert!((limit * 3..SOON).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    assert_eq!(queue.recv_timeout::<u64, Ix1>(Duration::MAX).unwrap().view()[0], 1);
    queue.send_timeout(array, Duration::MAX).unwrap();
    assert_eq!(queue.recv_timeout::<u64, Ix1>(Duration::ZERO).unwrap().view()[0], 2);
    nothing_is_left(&arena);
}

fn a_full_queue_gives_the_array_back(place: &Place) {
    let name = place.location("queue-full");
    let arena = place.arena_options().queue_capacity(3).create(name.location(), CAPACITY).unwrap();
    let queue = arena.queue(0).unwrap();
    assert_eq!((queue.capacity(), queue.len(), queue.is_empty()), (4, 0, true));
    for number in 0..4 {
        queue.try_send(numbered(&arena, number)).unwrap();
    }
    let (error, array) = queue.try_send(numbered(&arena, 4)).unwrap_err().into_parts();
    assert!(matches!(error.kind, ErrorKind::QueueFull { queue: 0, capacity: 4, .. }), "{error}");
    assert_eq!((array.view()[0], queue.len()), (4, 4));
    assert_eq!(queue.recv::<u64, Ix1>().unwrap().view()[0], 0);
    queue.try_send(array).unwrap();
    while let Some(array) = queue.try_recv::<u64, Ix1>().unwrap() {
        drop(array);
    }
    assert!(queue.is_empty());
    nothing_is_left(&arena);
}

fn type_mismatch_returns_the_message(place: &Place) {
    let (_name, arena, queue) = made(place, "queue-types");
    let sent = arena.from_array(&Array::from_elem((2, 3), 1.5_f32)).unwrap();
    for _ in 0..2 {
        queue.send(&sent).unwrap();
    }
    let (error, message) = queue.recv::<u64, Ix2>().unwrap_err().into_parts();
    assert!(matches!(error.kind, ErrorKind::DTypeMismatch { .. }), "{error}");
    let message = message.expect("it was received");
    assert_eq!((message.dtype(), message.shape()), (DType::F32, &[2, 3][..]));
    let (error, message) = message.into_array::<f32, Ix1>().unwrap_err().into_parts();
    assert!(matches!(error.kind, ErrorKind::ShapeMismatch { .. }), "{error}");
    let array = message.into_array::<f32, Ix2>().unwrap();
    assert_eq!((array.handle(), array.view().sum()), (sent.handle(), 9.0));
    // A receiver may drop a message of another type and go on.
    assert!(queue.try_recv::<f64, Ix2>().is_err());
    assert!(queue.try_recv::<f64, Ix2>().unwrap().is_none());
    drop((array, sent));
    nothing_is_left(&arena);
}

fn message_can_be_forwarded_without_its_type(place: &Place) {
    let (name, arena, queue) = made(place, "queue-onward");
    let mut child = Child::start(place, "queue-sums", &[name.as_str()]);
    child.expect("ready");
    let second = arena.queue(1).unwrap();
    second.send(arena.from_array(&Array::from_elem((4, 4), 2_f32)).unwrap()).unwrap();
    let message = second.recv_any().unwrap();
    queue.send(&message).unwrap();
    let handle = message.into_array::<f32, Ix2>().unwrap().handle();
    child.expect(&format!("{handle} 32 [4, 4]"));
    queue.close().unwrap();
    child.finish();
    nothing_is_left(&arena);
}

/// A child that sends three numbers and ends as it is told.
fn send_and_end(arguments: &[String]) {
    let arena = arena_of_child(arguments);
    let queue = arena.queue(0).unwrap();
    let arrays: Vec<_> = (0..3).map(|number| numbered(&arena, number)).collect();
    for array in &arrays {
        queue.send(array).unwrap();
    }
    say("sent");
    if hear() == "close" {
        drop((arrays, queue));
        arena.close().unwrap();
        say("closed");
        hear();
    }
}

fn message_outlives_its_sender(place: &Place) {
    let (name, arena, queue) = made(place, "queue-outlive");
    for end in ["close", "return", "kill"] {
        let mut child = Child::start(place, "queue-send-and-end", &[name.as_str()]);
        child.expect("sent");
        assert_eq!(queue.recv::<u64, Ix1>().unwrap().view()[0], 0);
        if end == "kill" {
            child.kill();
        } else {
            child.tell(end);
            if end == "close" {
                child.expect("closed");
            }
            child.end();
        }
        assert_eq!(arena.reclaim().unwrap().members, usize::from(end == "kill"), "{end}");
        assert_eq!(arena.stats().unwrap().orphaned_messages, 2, "{end}");
        for number in 1..3 {
            let array = queue.recv::<u64, Ix1>().unwrap();
            assert_eq!(array.view()[0], number);
            // Only the receiver holds it, although no member has reclaimed the orphaned messages since.
            array.try_into_draft().unwrap();
        }
        nothing_is_left(&arena);
    }
}

/// A child that receives one array and holds it.
fn receive_and_hold(arguments: &[String]) {
    let queue = arena_of_child(arguments).queue(0).unwrap();
    let array = queue.recv::<u64, Ix1>().unwrap();
    say(array.view()[0]);
    hear();
    drop(array);
}

fn killed_receiver_frees_only_received_arrays(place: &Place) {
    let (name, arena, queue) = made(place, "queue-killed-receiver");
    queue.send(numbered(&arena, 1)).unwrap();
    queue.send(numbered(&arena, 2)).unwrap();
    let mut child = Child::start(place, "queue-receive-and-hold", &[name.as_str()]);
    child.expect("1");
    arena.reclaim().unwrap();
    assert_eq!(arena.stats().unwrap().arrays, 2);
    child.kill();
    let collected = arena.reclaim().unwrap();
    assert_eq!((collected.members, collected.blocks), (1, 1));
    assert_eq!(arena.stats().unwrap().arrays, 1);
    assert_eq!(queue.recv::<u64, Ix1>().unwrap().view()[0], 2);
    nothing_is_left(&arena);
}

fn sender_releases_received_arrays(place: &Place) {
    let (name, arena, queue) = made(place, "queue-limbo");
    let mut child = Child::start(place, "queue-wait", &[name.as_str()]);
    child.expect("ready");
    let held = || arena.stats().unwrap().arrays;
    let receive = |child: &mut Child| {
        child.tell("receive");
        child.expect("1");
    };
    // The sender frees it when it reclaims, when it drops an array, when it sends, and when it allocates.
    queue.send(numbered(&arena, 1)).unwrap();
    receive(&mut child);
    arena.reclaim().unwrap();
    assert_eq!(held(), 0);
    let other = numbered(&arena, 2);
    queue.send(numbered(&arena, 1)).unwrap();
    receive(&mut child);
    drop(other);
    assert_eq!(held(), 0);
    queue.send(numbered(&arena, 1)).unwrap();
    receive(&mut child);
    queue.send(numbered(&arena, 1)).unwrap();
    assert_eq!(held(), 1);
    receive(&mut child);
    let other = numbered(&arena, 2);
    assert_eq!(held(), 1);
    drop(other);
    child.tell("end");
    child.finish();
    nothing_is_left(&arena);
}

fn foreign_arrays_and_missing_queues_are_refused(place: &Place) {
    let (_name, arena, queue) = made(place, "queue-own");
    let (_other_name, other, _) = made(place, "queue-other");
    assert!(matches!(arena.queue(8), Err(Error { kind: ErrorKind::InvalidSetting { .. }, .. })));
    let (error, array) = queue.send(numbered(&other, 1)).unwrap_err().into_parts();
    assert!(matches!(error.kind, ErrorKind::InvalidSetting { .. }), "{error}");
    drop(array);
    let name = place.location("queue-none");
    let none = place.arena_options().queues(0).create(name.location(), CAPACITY).unwrap();
    assert!(none.queue(0).is_err());
    for arena in [arena, other, none] {
        nothing_is_left(&arena);
    }
}

/// Offset of the queues in the file, and cells of the first one: docs/layout/arena.md.
const QUEUES: u64 = 8192;
const CELLS: u32 = 8;

fn damaged_queue_yields_errors_or_shared_arrays_only(place: &Place) {
    let mut random = Random::new(1);
    let mut next = || random.number();
    let name = place.location("queue-damaged");
    let arena = place.arena_options().queues(1).queue_capacity(CELLS).create(name.location(), CAPACITY).unwrap();
    let queue = arena.queue(0).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(place.path(&name)).unwrap();
    // Besides the shared array there are a draft, which only its creator may see, and free blocks, which no process may
    // see.
    let shared = numbered(&arena, 7);
    let draft = arena.draft::<u64, _>(1).unwrap();
    let (mut damaged, mut received) = (0, 0);
    for _ in 0..3000 {
        let mut words = [0_u64; 32 + CELLS as usize];
        for word in [0, 8] {
            words[word] = next() & 15 << (next() % 60);
        }
        words[16] = next();
        words[17] = next() & u64::MAX << (next() % 64);
        for cell in &mut words[32..] {
            // Often a lap that fits, and one of the first entries.
            let (lap, sender, entry) =
                (next() % 3, next() % 64, if next() % 2 == 0 { next() % 4 } else { next() >> 32 });
            *cell = lap << 39 | (next() % 8 / 7) << 38 | sender << 32 | entry;
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        write_at(&file, &bytes, QUEUES);
        assert!(queue.len() <= CELLS as usize);
        let refused = queue.try_send(&shared).map_err(|error| error.into_parts().0);
        damaged += u32::from(matches!(refused, Err(Error { kind: ErrorKind::Trailer { .. }, .. })));
        for _ in 0..=CELLS {
            match queue.try_recv::<u64, Ix1>() {
                Ok(Some(array)) => {
                    assert_eq!((array.view()[0], array.handle()), (7, shared.handle()));
                    received += 1;
                }
                Ok(None) => break,
                Err(error) if matches!(error.error().kind, ErrorKind::Closed { .. }) => break,
                Err(error) => assert!(matches!(error.error().kind, ErrorKind::Trailer { .. }), "{error}"),
            }
        }
        let _ = queue.recv_any_timeout(Duration::ZERO);
        let _ = queue.close();
        assert!(matches!(
            queue.try_send(&shared).unwrap_err().error().kind,
            ErrorKind::Trailer { .. } | ErrorKind::Closed { .. }
        ));
    }
    assert!(damaged > 100 && received > 100, "{damaged} {received}");
    write_at(&file, &[0; 256 + 8 * CELLS as usize], QUEUES);
    drop((shared, draft));
    // The queue is overwritten, so this process cannot tell whether its last message was received and may keep its
    // block.
    arena.reclaim().unwrap();
    assert!(arena.stats().unwrap().arrays <= 1);
}

fn write_at(mut file: &std::fs::File, bytes: &[u8], at: u64) {
    use std::io::{Seek, SeekFrom, Write};
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(bytes).unwrap();
}
