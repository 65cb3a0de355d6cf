//! Sleeping and waking under loom, in every order: no waiter sleeps through its event.

use std::time::Duration;

use loom::model::Builder;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::{Bed, Event, SLEEPER};

/// A word on which threads sleep as on a futex: comparing and going to sleep is one step. There is no time limit, so a
/// thread that misses its event sleeps for ever, which loom reports as a deadlock.
struct Word {
    value: AtomicU32,
    /// How many threads sleep, and how many were woken and have not returned yet.
    sleepers: Mutex<(u32, u32)>,
    morning: Condvar,
}

impl Bed for Word {
    fn load(&self) -> u32 {
        self.value.load(Ordering::Acquire)
    }

    fn exchange(&self, current: u32, new: u32) -> Result<(), u32> {
        self.value.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).map(drop)
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }

    fn sleep(&self, expected: u32, _limit: Duration) {
        let mut sleepers = self.sleepers.lock().expect("no thread panicked");
        if self.value.load(Ordering::SeqCst) != expected {
            return;
        }
        sleepers.0 += 1;
        while sleepers.1 == 0 {
            sleepers = self.morning.wait(sleepers).expect("no thread panicked");
        }
        sleepers.1 -= 1;
    }

    fn wake(&self, how_many: u32) -> usize {
        let mut sleepers = self.sleepers.lock().expect("no thread panicked");
        let woken = how_many.min(sleepers.0);
        sleepers.0 -= woken;
        sleepers.1 += woken;
        if woken > 0 {
            self.morning.notify_all();
        }
        woken as usize
    }
}

/// A number of messages, and the event that a message was added.
struct Box {
    messages: AtomicU64,
    event: Word,
}

impl Box {
    fn new() -> Arc<Self> {
        let event = Word { value: AtomicU32::new(0), sleepers: Mutex::new((0, 0)), morning: Condvar::new() };
        Arc::new(Self { messages: AtomicU64::new(0), event })
    }

    fn put(&self) {
        self.messages.fetch_add(1, Ordering::AcqRel);
        Event::new(&self.event).notify();
    }

    fn try_take(&self) -> bool {
        let mut there = self.messages.load(Ordering::Acquire);
        while there > 0 {
            match self.messages.compare_exchange(there, there - 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => there = now,
            }
        }
        false
    }

    fn take(&self) {
        let event = Event::new(&self.event);
        while !self.try_take() {
            let seen = event.prepare();
            if self.try_take() {
                return;
            }
            event.sleep(seen, Duration::MAX);
        }
    }
}

/// Runs a test in every order with at most two preemptions, or with as many as `LOOM_MAX_PREEMPTIONS` says. Two
/// preemptions are enough for the tests to fail without either fence, and without the turns.
fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(2));
    builder.check(test);
}

fn spawn(shared: &Arc<Box>, act: fn(&Box)) -> thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    thread::spawn(move || act(&shared))
}

#[test]
fn waiter_takes_every_message() {
    model(|| {
        let shared = Box::new();
        let sender = spawn(&shared, |shared| {
            shared.put();
            shared.put();
        });
        shared.take();
        shared.take();
        sender.join().expect("it ends");
    });
}

#[test]
fn two_waiters_take_one_message_each() {
    model(|| {
        let shared = Box::new();
        let receivers = [(), ()].map(|()| spawn(&shared, Box::take));
        shared.put();
        shared.put();
        for receiver in receivers {
            receiver.join().expect("it ends");
        }
    });
}

#[test]
fn waiter_takes_messages_of_two_senders() {
    model(|| {
        let shared = Box::new();
        let senders = [(), ()].map(|()| spawn(&shared, Box::put));
        shared.take();
        shared.take();
        for sender in senders {
            sender.join().expect("it ends");
        }
    });
}

#[test]
fn flag_of_killed_sleeper_is_cleared_by_next_notify() {
    loom::model(|| {
        let shared = Box::new();
        let event = Event::new(&shared.event);
        event.notify();
        assert_eq!(shared.event.load(), 0);
        let _ = event.prepare(); // as if the waiter were killed here
        assert_ne!(shared.event.load() & SLEEPER, 0);
        event.notify();
        assert_eq!(shared.event.load() & SLEEPER, 0);
        let word = shared.event.load();
        event.notify_all();
        assert_eq!(shared.event.load(), word);
    });
}
