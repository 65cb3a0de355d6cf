//! Counters and limbo: memory that its producer dropped is freed when no process uses it any more, and not before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libtest_mimic::Trial;
use ndarray_shm::arena::loans::{CounterHandle, Counters, Limbo, Memory, ReceivedLoan};
use ndarray_shm::{Error, ErrorKind};

use crate::support::child::{Child, Role, hear, say};
use crate::support::random::Random;
use crate::support::{Name, Place, backend_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "counters",
        tests![
            dropped_memory_waits_for_its_receiver,
            killed_receiver_is_not_counted,
            loan_of_killed_producer_cannot_be_received,
            loan_is_received_and_released_once,
            unreceived_loan_can_be_revoked,
            lost_loan_of_dropped_memory_can_be_revoked,
            loans_that_are_over_leave_counters_for_other_memory,
            unused_memory_is_freed_or_returned,
            counters_are_used_again,
            dropped_limbo_spares_received_memory,
            dropping_memory_may_drop_nested_loans,
            memory_is_freed_after_receivers_are_killed,
        ],
    )
}

pub const ROLES: &[(&str, Role)] =
    &[("counters-receiver", receiver), ("counters-producer", producer), ("counters-churn", churn)];

/// Memory with bytes that count as alive until it is dropped.
#[derive(Debug)]
struct Noted {
    bytes: u64,
    alive: Arc<AtomicU64>,
}

impl Noted {
    fn new(bytes: u64, alive: &Arc<AtomicU64>) -> Self {
        alive.fetch_add(bytes, Ordering::Relaxed);
        Self { bytes, alive: Arc::clone(alive) }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.alive.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Memory for Noted {
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

struct Scene {
    name: Name,
    counters: Counters,
    limbo: Limbo<Noted>,
    alive: Arc<AtomicU64>,
}

impl Scene {
    fn new(place: &Place, count: u32) -> Self {
        let name = place.location("counters");
        let counters = Counters::create_in(&place.backend, name.as_str(), count).unwrap();
        Self { limbo: Limbo::new(&counters), counters, alive: Arc::default(), name }
    }

    fn memory(&self, bytes: u64) -> Noted {
        Noted::new(bytes, &self.alive)
    }

    fn alive(&self) -> u64 {
        self.alive.load(Ordering::Relaxed)
    }

    fn receiver(&self, place: &Place) -> Child {
        let mut child = Child::start(place, "counters-receiver", &[self.name.as_str()]);
        child.expect("open");
        child
    }
}

fn open_in_child(arguments: &[String]) -> Counters {
    Counters::open_in(&backend_of_child(), arguments[0].as_str()).unwrap()
}

/// A child that receives loans on request, and holds them until it is told to release them.
fn receiver(arguments: &[String]) {
    let counters = open_in_child(arguments);
    let mut held: Vec<ReceivedLoan> = Vec::new();
    say("open");
    loop {
        let line = hear();
        if let Some(handle) = line.strip_prefix("receive ") {
            match counters.receive(&handle.parse().unwrap()) {
                Ok(one) => {
                    held.push(one);
                    say("held");
                }
                Err(error) => say(if error.kind == ErrorKind::HandleSpent { "spent" } else { "failed" }),
            }
        } else if line == "release" {
            held.drain(..).for_each(|held| held.release().unwrap());
            say("released");
        } else {
            break;
        }
    }
}

fn dropped_memory_waits_for_its_receiver(place: &Place) {
    let scene = Scene::new(place, 100);
    let mut child = scene.receiver(place);
    let lent = scene.limbo.lend(scene.memory(10)).unwrap();
    assert_eq!((lent.bytes, lent.count().unwrap()), (10, 0));
    let handles = [lent.send().unwrap(), lent.send().unwrap()];
    child.tell(format!("receive {}", handles[0]));
    child.expect("held");
    assert_eq!(lent.count().unwrap(), 2);
    assert_eq!(handles.map(|handle| scene.counters.count(&handle).unwrap()), [1, 1]);
    drop(lent);
    assert_eq!((scene.limbo.len(), scene.limbo.bytes(), scene.alive()), (1, 10, 10));
    child.tell(format!("receive {}", handles[1]));
    child.expect("held");
    assert_eq!(scene.limbo.reclaim().unwrap(), 0);
    child.tell("release");
    child.expect("released");
    // The next lend or drop frees it.
    drop(scene.limbo.lend(scene.memory(1)).unwrap());
    assert_eq!((scene.limbo.len(), scene.alive()), (0, 0));
    assert_eq!(scene.counters.count(&handles[0]).unwrap_err().kind, ErrorKind::HandleSpent);
    child.tell("end");
    child.finish();
}

fn killed_receiver_is_not_counted(place: &Place) {
    let scene = Scene::new(place, 100);
    let (mut dies, mut lives) = (scene.receiver(place), scene.receiver(place));
    let lent = scene.limbo.lend(scene.memory(10)).unwrap();
    for child in [&mut dies, &mut lives] {
        child.tell(format!("receive {}", lent.send().unwrap()));
        child.expect("held");
    }
    assert_eq!(lent.count().unwrap(), 2);
    dies.kill();
    assert_eq!(lent.count().unwrap(), 1);
    drop(lent);
    assert_eq!(scene.limbo.reclaim().unwrap(), 0);
    lives.kill();
    assert_eq!((scene.limbo.reclaim().unwrap(), scene.alive()), (1, 0));
}

/// A child that lends something and waits.
fn producer(arguments: &[String]) {
    let limbo = Limbo::new(&open_in_child(arguments));
    let lent = limbo.lend(Noted::new(1, &Arc::default())).unwrap();
    say(lent.send().unwrap());
    say(lent.send().unwrap());
    hear();
}

fn loan_of_killed_producer_cannot_be_received(place: &Place) {
    let scene = Scene::new(place, 1);
    let mut child = Child::start(place, "counters-producer", &[scene.name.as_str()]);
    let handles = [child.line(), child.line()].map(|line| line.parse::<CounterHandle>().unwrap());
    let held = scene.counters.receive(&handles[0]).unwrap();
    assert!(held.producer_lives().unwrap());
    child.kill();
    let collected = scene.counters.reclaim().unwrap();
    assert_eq!((collected.members, collected.blocks), (1, 1));
    assert!(!held.producer_lives().unwrap());
    assert_eq!(scene.counters.receive(&handles[1]).unwrap_err().kind, ErrorKind::HandleSpent);
    held.release().unwrap();
}

fn loan_is_received_and_released_once(place: &Place) {
    let scene = Scene::new(place, 100);
    let lent = scene.limbo.lend(scene.memory(10)).unwrap();
    let handle = CounterHandle::from_bytes(lent.send().unwrap().to_bytes()).unwrap();
    let mut child = scene.receiver(place);
    assert_eq!(scene.counters.release(&handle).unwrap_err().kind, ErrorKind::HandleSpent, "it was not received");
    assert_eq!(lent.count().unwrap(), 1);
    let other = Counters::open_in(&place.backend, scene.name.as_str()).unwrap();
    let kept = other.receive(&handle).unwrap().into_handle();
    child.tell(format!("receive {handle}"));
    child.expect("spent");
    assert_eq!(other.receive(&handle).unwrap_err().kind, ErrorKind::HandleSpent);
    assert_eq!(scene.counters.release(&handle).unwrap_err().kind, ErrorKind::HandleSpent, "another receiver has it");
    other.release(&kept).unwrap();
    for _ in 0..3 {
        assert_eq!(other.release(&kept).unwrap_err().kind, ErrorKind::HandleSpent);
        assert_eq!(lent.count().unwrap(), 0);
    }
    // The counter is used again, and the old handle cannot release the new loan.
    let again = (0..1000).map(|_| lent.send().unwrap()).find(|again| again.entry_is_of(&handle));
    let again = other.receive(&again.expect("counters are used again")).unwrap();
    assert_eq!(other.release(&kept).unwrap_err().kind, ErrorKind::HandleSpent);
    again.release().unwrap();
    child.tell("end");
    child.finish();
}

/// Compares the counters of two handles, by the handles' bytes.
trait EntryOf {
    fn entry_is_of(self, other: &CounterHandle) -> bool;
}

impl EntryOf for CounterHandle {
    fn entry_is_of(self, other: &CounterHandle) -> bool {
        self.to_bytes()[8..12] == other.to_bytes()[8..12]
    }
}

fn unreceived_loan_can_be_revoked(place: &Place) {
    let scene = Scene::new(place, 100);
    let lent = scene.limbo.lend(scene.memory(10)).unwrap();
    let [first, second] = [lent.send().unwrap(), lent.send().unwrap()];
    let held = scene.counters.receive(&first).unwrap();
    assert!(!lent.revoke(&first).unwrap());
    assert!(lent.revoke(&second).unwrap() && !lent.revoke(&second).unwrap());
    assert_eq!(scene.counters.receive(&second).unwrap_err().kind, ErrorKind::HandleSpent);
    let foreign = scene.limbo.lend(scene.memory(1)).unwrap();
    assert!(!foreign.revoke(&first).unwrap());
    drop(held);
    drop(lent);
    assert_eq!(scene.alive(), 1);
}

fn lost_loan_of_dropped_memory_can_be_revoked(place: &Place) {
    let scene = Scene::new(place, 100);
    let mut child = scene.receiver(place);
    let lent = scene.limbo.lend(scene.memory(10)).unwrap();
    let [received, lost] = [lent.send().unwrap(), lent.send().unwrap()];
    child.tell(format!("receive {received}"));
    child.expect("held");
    let used = scene.limbo.lend(scene.memory(1)).unwrap();
    let undelivered = used.send().unwrap();
    drop(lent);
    assert!(!scene.limbo.revoke(&received).unwrap(), "a receiver has it");
    child.kill();
    assert_eq!(scene.limbo.reclaim().unwrap(), 0, "no process has the lost handle, which could still be received");
    assert!(scene.limbo.revoke(&lost).unwrap());
    assert_eq!((scene.limbo.len(), scene.alive()), (0, 1));
    assert!(!scene.limbo.revoke(&lost).unwrap() && !scene.limbo.revoke(&received).unwrap());
    assert!(scene.limbo.revoke(&undelivered).unwrap(), "memory in use counts too");
    assert_eq!(scene.counters.receive(&undelivered).unwrap_err().kind, ErrorKind::HandleSpent);
    assert_eq!(used.count().unwrap(), 0);
    let other = Scene::new(place, 100);
    assert!(!other.limbo.revoke(&used.send().unwrap()).unwrap());
}

fn loans_that_are_over_leave_counters_for_other_memory(place: &Place) {
    let scene = Scene::new(place, 1);
    let lent: Vec<_> = (0..20).map(|_| scene.limbo.lend(scene.memory(1)).unwrap()).collect();
    // More loans than counters, of which none is received when the next memory is sent.
    for lent in &lent {
        let handles: Vec<_> = (0..50).map(|_| lent.send().unwrap()).collect();
        handles.iter().for_each(|handle| drop(scene.counters.receive(handle).unwrap()));
    }
    assert!(lent.iter().all(|lent| lent.count().unwrap() == 0));
}

fn unused_memory_is_freed_or_returned(place: &Place) {
    let scene = Scene::new(place, 100);
    drop(scene.limbo.lend(scene.memory(10)).unwrap());
    assert_eq!((scene.alive(), scene.limbo.is_empty()), (0, true));
    let lent = scene.limbo.lend(scene.memory(10)).unwrap();
    let held = scene.counters.receive(&lent.send().unwrap()).unwrap();
    let lent = lent.into_memory().unwrap_err();
    assert!(matches!(lent.error().kind, ErrorKind::WouldBlock));
    drop(held);
    assert_eq!((lent.into_inner().into_memory().unwrap().bytes, scene.limbo.len()), (10, 0));
}

fn counters_are_used_again(place: &Place) {
    let scene = Scene::new(place, 1);
    assert_eq!(scene.counters.capacity(), 256);
    for _ in 0..3 {
        let lent: Vec<_> = (0..256).map(|_| scene.limbo.lend(scene.memory(1)).unwrap()).collect();
        let handles: Vec<_> = lent.iter().map(|lent| lent.send().unwrap()).collect();
        match lent[0].send() {
            Err(Error { kind: ErrorKind::TooManyHandles { limit: 256, .. }, .. }) => {}
            other => panic!("{other:?}"),
        }
        drop(lent);
        assert_eq!((scene.limbo.len(), scene.alive()), (256, 256));
        handles.iter().for_each(|handle| drop(scene.counters.receive(handle).unwrap()));
        assert_eq!((scene.limbo.reclaim().unwrap(), scene.alive()), (256, 0));
    }
}

fn dropped_limbo_spares_received_memory(place: &Place) {
    let scene = Scene::new(place, 100);
    let receiver = Counters::open_in(&place.backend, scene.name.as_str()).unwrap();
    let lent = scene.limbo.lend(scene.memory(10)).unwrap();
    let held = receiver.receive(&lent.send().unwrap()).unwrap();
    let lost = lent.send().unwrap();
    drop(lent);
    drop(scene.limbo.lend(scene.memory(5)).unwrap());
    let Scene { counters, limbo, alive, name } = scene;
    drop((limbo, counters));
    assert_eq!(alive.load(Ordering::Relaxed), 10, "a receiver still uses it");
    assert_eq!(receiver.receive(&lost).unwrap_err().kind, ErrorKind::HandleSpent);
    held.release().unwrap();
    drop(receiver);
    assert!(!place.has(&name));
}

/// Memory that owns other lent memory.
struct Nested(Vec<ndarray_shm::arena::loans::LentMemory<Nested>>);

impl Memory for Nested {
    fn bytes(&self) -> u64 {
        self.0.len() as u64
    }
}

fn dropping_memory_may_drop_nested_loans(place: &Place) {
    let name = place.location("nested");
    let counters = Counters::create_in(&place.backend, name.as_str(), 100).unwrap();
    let limbo = Limbo::new(&counters);
    let inner = limbo.lend(Nested(Vec::new())).unwrap();
    let inner_held = counters.receive(&inner.send().unwrap()).unwrap();
    let outer = limbo.lend(Nested(vec![inner])).unwrap();
    let outer_held = counters.receive(&outer.send().unwrap()).unwrap();
    drop(outer);
    drop(outer_held);
    assert_eq!((limbo.reclaim().unwrap(), limbo.len()), (1, 1));
    drop(inner_held);
    assert_eq!((limbo.reclaim().unwrap(), limbo.len()), (1, 0));
}

/// A child that receives every loan it is told of, and releases some of them.
fn churn(arguments: &[String]) {
    let counters = open_in_child(arguments);
    let mut held: Vec<ReceivedLoan> = Vec::new();
    say("open");
    loop {
        held.push(counters.receive(&hear().parse().unwrap()).unwrap());
        if held.len() > 5 {
            held.swap_remove(held.len() * 7 % 5).release().unwrap();
        }
    }
}

fn memory_is_freed_after_receivers_are_killed(place: &Place) {
    let scene = Scene::new(place, 2000);
    let kept = scene.limbo.lend(scene.memory(1_000_000)).unwrap();
    let mut random = Random::new(1);
    for _ in 0..20 {
        let mut child = Child::start(place, "counters-churn", &[scene.name.as_str()]);
        child.expect("open");
        let loans: Vec<_> = (0..50)
            .map(|_| {
                let lent = scene.limbo.lend(scene.memory(1)).unwrap();
                let handles = [lent.send().unwrap(), kept.send().unwrap()];
                handles.iter().for_each(|handle| child.tell(handle));
                (lent, handles)
            })
            .collect();
        std::thread::sleep(std::time::Duration::from_micros(random.below(0x800) as u64));
        child.kill_alive();
        // The producer revokes what the child was told of and had not received yet.
        for (lent, [handle, also]) in loans {
            lent.revoke(&handle).unwrap();
            kept.revoke(&also).unwrap();
        }
    }
    assert_eq!(kept.count().unwrap(), 0);
    scene.limbo.reclaim().unwrap();
    assert_eq!((scene.limbo.len(), scene.alive()), (0, 1_000_000));
    drop(kept);
    assert_eq!(scene.alive(), 0);
}
