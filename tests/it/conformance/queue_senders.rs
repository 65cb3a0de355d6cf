//! Registered senders of a queue: receivers end when all of them have left or were killed, and not before.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::{Ix1, arr1};
use ndarray_shm::arena::{Queue, Sender};
use ndarray_shm::{Arena, ErrorKind};

use super::queues::nothing_is_left;
use crate::support::child::{Child, Role, hear, say};
use crate::support::{Name, Place, arena_of_child, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "queue_senders",
        tests![
            killed_sender_ends_a_waiting_receiver_after_its_messages,
            queue_ends_with_the_last_of_several_senders,
            queue_without_registered_senders_never_ends,
            keep_waiting_receives_from_a_restarted_sender,
            later_registration_reopens_the_queue,
            process_in_a_dead_senders_seat_is_no_sender,
            nonblocking_receive_notices_a_death,
            stopped_sender_is_alive,
            closed_queue_refuses_registered_senders,
            senders_of_other_queues_do_not_count,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[("sender", sender), ("sender-receive", receive)];

const CAPACITY: u64 = 1 << 20;
/// Several times as long as a receiver sleeps.
const A_WHILE: Duration = Duration::from_millis(400);
const SOON: Duration = Duration::from_secs(60);

fn made(place: &Place, label: &str) -> (Name, Arena, Queue) {
    let name = place.location(label);
    let arena = place.arena_options().create(name.location(), CAPACITY).unwrap();
    let queue = arena.queue(0).unwrap();
    (name, arena, queue)
}

fn send(arena: &Arena, sender: &Sender, number: u64) {
    sender.send(arena.from_array(&arr1(&[number])).unwrap()).unwrap();
}

/// A child that registers senders, sends, and drops senders on request.
fn sender(arguments: &[String]) {
    let arena = arena_of_child(arguments);
    let queue = arena.queue(0).unwrap();
    let mut senders = Vec::new();
    say("open");
    loop {
        let line = hear();
        let (word, number) = line.split_once(' ').unwrap_or((&line, "0"));
        match word {
            "register" => senders.push(queue.sender().unwrap()),
            "clone" => senders.push(senders[0].clone()),
            "send" => send(&arena, &senders[0], number.parse().unwrap()),
            "plain" => queue.send(arena.from_array(&arr1(&[7u64])).unwrap()).unwrap(),
            "drop" => drop(senders.remove(0)),
            // Registered here and dropped in another thread, while other senders are registered.
            "thread" => {
                let sender = queue.sender().unwrap();
                std::thread::spawn(move || drop(sender)).join().unwrap();
            }
            _ => break,
        }
        say("done");
    }
}

/// A child that says what it receives, until the queue ends.
fn receive(arguments: &[String]) {
    let queue = arena_of_child(arguments).queue(0).unwrap();
    say("open");
    loop {
        match queue.recv::<u64, Ix1>() {
            Ok(array) => say(array.view()[0]),
            Err(error) => {
                assert!(matches!(error.error().kind, ErrorKind::Closed { .. }), "{error}");
                say(error);
                break;
            }
        }
    }
}

fn child(place: &Place, role: &str, name: &Name) -> Child {
    let mut child = Child::start(place, role, &[name.as_str()]);
    child.expect("open");
    child
}

fn tell(child: &mut Child, words: &[&str]) {
    for word in words {
        assert_eq!(child.ask(word), "done", "{word}");
    }
}

fn ended(name: &Name) -> String {
    let why = "the queue is empty, and all of its registered senders have left or died (keep_waiting waits for others)";
    format!("`{}`: {why}", name.as_str())
}

fn waits(queue: &Queue) -> bool {
    matches!(queue.recv_any_timeout(A_WHILE).unwrap_err().kind, ErrorKind::TimedOut { .. })
}

fn ends(queue: &Queue) -> bool {
    matches!(queue.recv_any_timeout(SOON).unwrap_err().kind, ErrorKind::Closed { .. })
}

fn killed_sender_ends_a_waiting_receiver_after_its_messages(place: &Place) {
    let (name, arena, queue) = made(place, "sender-killed");
    let mut sender = child(place, "sender", &name);
    tell(&mut sender, &["register", "clone", "send 0", "send 1"]);
    let mut receiver = child(place, "sender-receive", &name);
    receiver.expect("0");
    receiver.expect("1");
    assert_eq!(receiver.line_within(A_WHILE), None, "its sender lives");
    tell(&mut sender, &["send 2"]);
    sender.kill();
    receiver.expect("2");
    receiver.expect(&ended(&name));
    receiver.finish();
    assert!(!queue.is_closed(), "another sender may register");
    // Messages that the killed sender had sent before arrive too.
    let mut sender = child(place, "sender", &name);
    tell(&mut sender, &["register", "send 3", "send 4"]);
    sender.kill();
    for number in [3, 4] {
        assert_eq!(queue.recv::<u64, Ix1>().unwrap().view()[0], number);
    }
    assert!(ends(&queue));
    nothing_is_left(&arena);
}

fn queue_ends_with_the_last_of_several_senders(place: &Place) {
    let (name, arena, queue) = made(place, "sender-last");
    let own = queue.sender().unwrap();
    let mut children: Vec<Child> = (0..2).map(|_| child(place, "sender", &name)).collect();
    tell(&mut children[0], &["register", "register", "clone", "thread"]);
    tell(&mut children[1], &["register"]);
    drop(own);
    tell(&mut children[0], &["drop", "drop"]);
    children[1].kill();
    assert!(waits(&queue), "one of four is left");
    tell(&mut children[0], &["send 5", "drop"]);
    assert_eq!(queue.recv::<u64, Ix1>().unwrap().view()[0], 5);
    assert!(ends(&queue) && matches!(queue.try_recv_any().unwrap_err().kind, ErrorKind::Closed { .. }));
    children.remove(0).kill();
    nothing_is_left(&arena);
}

fn queue_without_registered_senders_never_ends(place: &Place) {
    let (name, arena, queue) = made(place, "sender-none");
    let mut sender = child(place, "sender", &name);
    tell(&mut sender, &["plain"]);
    sender.kill();
    assert_eq!(queue.recv::<u64, Ix1>().unwrap().view()[0], 7);
    assert!(waits(&queue) && queue.try_recv_any().unwrap().is_none());
    nothing_is_left(&arena);
}

fn keep_waiting_receives_from_a_restarted_sender(place: &Place) {
    let (name, arena, queue) = made(place, "sender-restarted");
    let patient = arena.queue(0).unwrap().keep_waiting(true).clone();
    for number in ["6", "8"] {
        let mut sender = child(place, "sender", &name);
        tell(&mut sender, &["register", &format!("send {number}")]);
        sender.kill();
        assert_eq!(patient.recv::<u64, Ix1>().unwrap().view()[0].to_string(), number);
        assert!(waits(&patient) && patient.try_recv_any().unwrap().is_none());
    }
    assert!(ends(&queue) && ends(&patient.keep_waiting(false)));
    nothing_is_left(&arena);
}

fn later_registration_reopens_the_queue(place: &Place) {
    let (_name, arena, queue) = made(place, "sender-later");
    for number in 0..3 {
        let sender = queue.sender().unwrap();
        assert!(matches!(queue.recv_any_timeout(Duration::ZERO).unwrap_err().kind, ErrorKind::TimedOut { .. }));
        send(&arena, &sender, number);
        drop(sender);
        assert_eq!(queue.recv::<u64, Ix1>().unwrap().view()[0], number);
        assert!(matches!(queue.recv_any().unwrap_err().kind, ErrorKind::Closed { .. }));
    }
    nothing_is_left(&arena);
}

fn process_in_a_dead_senders_seat_is_no_sender(place: &Place) {
    let (name, arena, queue) = made(place, "sender-seat");
    let mut sender = child(place, "sender", &name);
    tell(&mut sender, &["register"]);
    let open = || Arena::open_in(&place.backend, name.as_str()).unwrap();
    let mut others: Vec<Arena> = (2..46).map(|_| open()).collect();
    sender.kill();
    others.push(open()); // in the only free seat
    assert_eq!(arena.stats().unwrap().members.len(), 46);
    assert!(ends(&queue));
    let late = others.last().unwrap().queue(0).unwrap().sender().unwrap();
    assert!(waits(&queue));
    drop(late);
    assert!(ends(&queue));
    drop(others);
    nothing_is_left(&arena);
}

fn nonblocking_receive_notices_a_death(place: &Place) {
    let (name, arena, queue) = made(place, "sender-looks");
    for look in [0, 1] {
        let mut sender = child(place, "sender", &name);
        tell(&mut sender, &["register"]);
        let is_over = || match look {
            0 => queue.try_recv_any().is_err_and(|error| matches!(error.kind, ErrorKind::Closed { .. })),
            _ => matches!(queue.recv_any_timeout(Duration::ZERO).unwrap_err().kind, ErrorKind::Closed { .. }),
        };
        for _ in 0..100 {
            assert!(!is_over());
        }
        sender.kill();
        eventually("the death is noticed", is_over);
    }
    nothing_is_left(&arena);
}

fn stopped_sender_is_alive(place: &Place) {
    let (name, arena, queue) = made(place, "sender-stopped");
    let mut sender = child(place, "sender", &name);
    tell(&mut sender, &["register"]);
    sender.stop();
    assert!(waits(&queue));
    sender.kill();
    assert!(ends(&queue));
    nothing_is_left(&arena);
}

fn closed_queue_refuses_registered_senders(place: &Place) {
    let (_name, arena, queue) = made(place, "sender-closed");
    let sender = queue.sender().unwrap();
    send(&arena, &sender, 1);
    assert!(sender.queue().close().unwrap());
    let (error, array) = sender.send(arena.from_array(&arr1(&[2u64])).unwrap()).unwrap_err().into_parts();
    assert!(
        matches!(error.kind, ErrorKind::Closed { .. })
            && matches!(sender.try_send(&array).unwrap_err().error().kind, ErrorKind::Closed { .. })
    );
    assert!(matches!(sender.send_timeout(array, SOON).unwrap_err().error().kind, ErrorKind::Closed { .. }));
    assert_eq!(queue.recv::<u64, Ix1>().unwrap().view()[0], 1);
    let error = queue.recv_any().unwrap_err();
    assert!(
        matches!(error.kind, ErrorKind::Closed { .. }) && error.to_string().ends_with("the queue was closed"),
        "{error}"
    );
    drop(sender);
    nothing_is_left(&arena);
}

fn senders_of_other_queues_do_not_count(place: &Place) {
    let (_name, arena, queue) = made(place, "sender-other");
    drop(arena.queue(1).unwrap().sender().unwrap());
    assert!(waits(&queue) && ends(&arena.queue(1).unwrap()));
    let sender = queue.sender().unwrap();
    assert!(ends(&arena.queue(1).unwrap()) && waits(&queue));
    drop(sender);
    nothing_is_left(&arena);
}
