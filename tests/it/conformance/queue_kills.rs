//! Processes that allocate, share, send, receive and release arrays are killed at random moments, again and again:
//! nothing that was sent is lost or received twice, no element changes, and in the end no block is held.
//!
//! Every message has a number. The sender reports it before (`begin`) and after (`sent`) sending the message. The
//! receiver reports that it is about to receive (`wait`) and which number it received (`got`). A killed sender may or
//! may not have sent what it began. A receiver that was killed while it waited may have taken one message that it never
//! reported. It then held that message's block, which the test looks up; a receiver that held no block took no message.
//! Every other message must arrive.
//!
//! `NDSHM_TEST_KILLS` is the number of processes killed in each part; `scripts/soak` kills a thousand.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::arena::{ArenaArray, Queue};
use ndarray_shm::{Arena, ErrorKind};

use super::queues::nothing_is_left;
use crate::support::Place;
use crate::support::arena_of_child;
use crate::support::child::{Child, Role, hear};
use crate::support::random::random;
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "queue_kills",
        tests![
            killed_senders_lose_no_sent_message,
            killed_receiver_loses_at_most_one_message,
            killed_senders_and_receivers_leave_nothing_behind,
            receivers_end_after_all_registered_senders_died,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[("soak-send", soak_send), ("soak-receive", soak_receive)];

/// Processes of a kind at one time.
const CREW: usize = 2;
/// Messages that a sender reports together, before it sends the first and after the last.
const BATCH: u64 = 8;
/// How long a child waits for other processes before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// Numbers that are reserved for one sender.
const OWN: u64 = 1 << 32;
/// More than all messages in flight can take.
const CAPACITY: u64 = 16 << 20;

fn kills() -> usize {
    std::env::var("NDSHM_TEST_KILLS").map_or(12, |text| text.parse().expect("a number"))
}

/// Reports a line to the parent in one write(2), so that a kill never cuts it.
fn report(line: &str) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).expect("the parent listens");
    std::io::stdout().flush().expect("the parent listens");
}

fn element(number: u64, index: usize) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index as u64
}

fn filled(arena: &Arena, number: u64) -> ArenaArray<u64, Ix1> {
    let length = 1 + (random() % 40) as usize * if random() % 8 == 0 { 400 } else { 1 };
    let mut draft = arena.draft::<u64, _>(length).expect("room for all");
    for (index, value) in draft.view_mut().iter_mut().enumerate() {
        *value = element(number, index);
    }
    draft.view_mut()[0] = number;
    draft.share().expect("it is this process's")
}

/// A child that sends numbers from the second argument on until it is told to end. With a third argument it is
/// registered.
fn soak_send(arguments: &[String]) {
    let arena = arena_of_child(arguments);
    let queue = arena.queue(0).expect("the first");
    let _registered = arguments.get(2).map(|_| queue.sender().expect("it is a member"));
    let ends = std::thread::spawn(hear);
    let mut number: u64 = arguments[1].parse().expect("a number");
    let mut kept = std::collections::VecDeque::new();
    while !ends.is_finished() {
        report(&format!("begin {number}"));
        for number in number..number + BATCH {
            let array = filled(&arena, number);
            if number % 3 == 0 {
                kept.push_back(array.clone());
                kept.truncate(4);
            }
            queue.send_timeout(array, PATIENCE).expect("there will be room");
        }
        number += BATCH;
        report(&format!("sent {number}"));
    }
}

/// A child that receives until the queue has ended.
fn soak_receive(arguments: &[String]) {
    let arena = arena_of_child(arguments);
    let queue = arena.queue(0).expect("the first");
    loop {
        report("wait");
        let array = match queue.recv_timeout::<u64, Ix1>(PATIENCE) {
            Ok(array) => array,
            Err(error) if matches!(error.error().kind, ErrorKind::Closed { .. }) => break,
            Err(error) => panic!("{error}"),
        };
        let number = array.view()[0];
        report(&format!("got {number}"));
        let right = array.view().iter().enumerate().skip(1).all(|(index, value)| *value == element(number, index));
        assert!(right, "the elements of {number} changed");
        drop(array);
    }
    report("end");
}

/// What the children have reported.
#[derive(Debug, Default)]
struct Book {
    /// What was certainly sent, and what may have been.
    sent: BTreeSet<u64>,
    perhaps: BTreeSet<u64>,
    got: BTreeMap<u64, u32>,
    /// How many messages may have been taken by receivers that were killed before they reported it.
    unheard: usize,
}

impl Book {
    /// Enters a child's reports. Returns the first word of the last one.
    fn enter(&mut self, lines: &[String]) -> String {
        for line in lines {
            let (word, number) = line.split_once(' ').unwrap_or((line, "0"));
            let number: u64 = number.parse().expect("a number");
            match word {
                "begin" => self.perhaps.extend(number..number + BATCH),
                "sent" => self.sent.extend(number - BATCH..number),
                "got" => *self.got.entry(number).or_default() += 1,
                _ => assert!(["wait", "end"].contains(&word), "{line}"),
            }
        }
        lines.last().map_or("", |line| line.split(' ').next().unwrap_or_default()).to_owned()
    }

    fn check(&self) {
        let twice: Vec<_> = self.got.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "received more than once: {twice:?}");
        let foreign: Vec<_> = self.got.keys().filter(|number| !self.perhaps.contains(number)).collect();
        assert!(foreign.is_empty(), "never sent: {foreign:?}");
        let lost: Vec<_> = self.sent.iter().filter(|number| !self.got.contains_key(number)).collect();
        assert!(lost.len() <= self.unheard, "lost beyond the {} that killed receivers took: {lost:?}", self.unheard);
    }
}

struct Soak<'a> {
    place: &'a Place,
    name: String,
    arena: Arena,
    senders: Vec<Child>,
    receivers: Vec<Child>,
    started: u64,
    /// Whether senders register. Then the queue ends when the last of them are killed.
    registered: bool,
    book: Book,
}

impl Soak<'_> {
    fn start(&mut self, receives: bool) -> Child {
        let role = if receives { "soak-receive" } else { "soak-send" };
        self.started += 1;
        let (first, registered) = ((self.started * OWN).to_string(), ["registered"]);
        let registered = if self.registered { &registered[..] } else { &[] };
        Child::start(self.place, role, &[&[self.name.as_str(), &first], registered].concat())
    }

    /// Kills a sender or a receiver in the middle of its work, and starts another.
    fn kill_one(&mut self, receives: bool) {
        let crew = if receives { &mut self.receivers } else { &mut self.senders };
        let mut child = crew.swap_remove(random() as usize % CREW);
        child.kill();
        let last = self.book.enter(&child.rest());
        if receives {
            let stats = self.arena.stats().expect("it can be counted");
            let dead = stats.members.iter().find(|member| member.process == child.id());
            // A waiting member may have reclaimed the dead one already. Then it is unknown whether it held a message.
            let held = dead.map_or(1, |member| member.arrays);
            assert!(held <= 1, "it holds one at a time: {stats:?}");
            if last == "wait" {
                self.book.unheard += held;
            }
        }
        self.arena.reclaim().expect("it can be reclaimed");
        let next = self.start(receives);
        if receives { self.receivers.push(next) } else { self.senders.push(next) }
    }
}

/// Kills this many processes, each time a random one of these kinds.
fn soak(place: &Place, label: &str, kills: usize, kinds: &[bool], registered: bool) {
    let name = place.location(label);
    let arena = place.arena_options().queue_capacity(64).create(name.location(), CAPACITY).expect("room");
    let queue: Queue = arena.queue(0).expect("the first");
    let (senders, receivers) = (Vec::new(), Vec::new());
    let (name, book) = (name.as_str().to_owned(), Book::default());
    let mut soak = Soak { place, name, arena, senders, receivers, started: 0, registered, book };
    // Keeps the queue from ending too early: all senders may be killed before the first replacement has registered.
    let own = registered.then(|| queue.sender().expect("it is a member"));
    for _ in 0..CREW {
        let (sender, receiver) = (soak.start(false), soak.start(true));
        soak.senders.push(sender);
        soak.receivers.push(receiver);
    }
    for _ in 0..kills {
        std::thread::sleep(Duration::from_micros(random() % 20_000));
        soak.kill_one(kinds[random() as usize % kinds.len()]);
    }
    // The last children get time to do something too.
    std::thread::sleep(Duration::from_millis(20));
    for mut sender in std::mem::take(&mut soak.senders) {
        if registered {
            sender.kill();
        } else {
            sender.tell("end");
            let status = sender.end();
            assert!(status.success(), "{status}");
        }
        soak.book.enter(&sender.rest());
    }
    drop(own);
    if !registered {
        assert!(queue.close().expect("it is whole"));
    }
    for mut receiver in std::mem::take(&mut soak.receivers) {
        let status = receiver.end();
        assert!(status.success(), "{status}");
        assert_eq!(soak.book.enter(&receiver.rest()), "end");
    }
    let (got, unheard) = (soak.book.got.len(), soak.book.unheard);
    println!("{label}: {kills} killed, {got} messages received, {unheard} perhaps taken by killed receivers");
    soak.book.check();
    assert!(soak.book.got.len() > kills, "they had time to do something: {}", soak.book.got.len());
    nothing_is_left(&soak.arena);
}

fn killed_senders_lose_no_sent_message(place: &Place) {
    soak(place, "soak-senders", kills(), &[false], false);
}

fn killed_receiver_loses_at_most_one_message(place: &Place) {
    soak(place, "soak-receivers", kills(), &[true], false);
}

fn killed_senders_and_receivers_leave_nothing_behind(place: &Place) {
    soak(place, "soak-both", kills(), &[false, true], false);
}

fn receivers_end_after_all_registered_senders_died(place: &Place) {
    soak(place, "soak-registered", kills(), &[false], true);
}
