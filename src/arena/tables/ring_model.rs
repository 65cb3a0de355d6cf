//! The queue under loom: every interleaving of two or three threads. Receivers hold and release blocks. In some tests
//! one thread is killed, after each possible step.

use std::cell::Cell as Plain;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::*;
use crate::arena::tables::senders::SenderWord;

/// Unit of the upper 16 bits of a block's word, which count how often the block was freed. The lower bits are the
/// members that keep it.
const LIFE: u64 = 1 << 48;

type Shared = Arc<Memory<AtomicU64>>;

/// A word of a thread that is killed when it has no steps left. Each load, store or exchange is a step.
struct Mortal<'a> {
    word: &'a AtomicU64,
    steps: &'a Plain<u32>,
}

impl Mortal<'_> {
    fn step(&self) {
        match self.steps.get().checked_sub(1) {
            Some(left) => self.steps.set(left),
            None => resume_unwind(Box::new("killed")),
        }
    }
}

impl Word for Mortal<'_> {
    fn load(&self) -> u64 {
        self.step();
        Word::load(self.word)
    }

    fn store(&self, value: u64) {
        self.step();
        Word::store(self.word, value);
    }

    fn exchange(&self, current: u64, new: u64) -> Result<(), u64> {
        self.step();
        Word::exchange(self.word, current, new)
    }
}

/// Runs `act`, and kills it after this many steps. Returns `None` if it was killed.
fn killed_after<R>(steps: u32, memory: &Memory<AtomicU64>, act: impl FnOnce(&Memory<Mortal<'_>>) -> R) -> Option<R> {
    let steps = Plain::new(steps);
    let mortal = |word| Mortal { word, steps: &steps };
    let memory = Memory {
        head: mortal(&memory.head),
        tail: mortal(&memory.tail),
        cells: memory.cells.iter().map(mortal).collect(),
        blocks: memory.blocks.iter().map(mortal).collect(),
        senders: mortal(&memory.senders),
    };
    catch_unwind(AssertUnwindSafe(|| act(&memory))).ok()
}

fn change<W: Word>(word: &W, step: impl Fn(u64) -> u64) {
    let mut current = word.load();
    while let Err(now) = word.exchange(current, step(current)) {
        current = now;
    }
}

impl<W: Word> Memory<W> {
    fn keep(&self, entry: u32, seat: u32) {
        change(&self.blocks[entry as usize], |word| word | 1 << seat);
    }

    /// Keeps a block that another member keeps. Returns `false` if no member keeps it.
    fn hold(&self, entry: u32, seat: u32) -> bool {
        let word = &self.blocks[entry as usize];
        let mut current = word.load();
        while current % LIFE != 0 {
            match word.exchange(current, current | 1 << seat) {
                Ok(()) => return true,
                Err(now) => current = now,
            }
        }
        false
    }

    /// Gives up a block. The last member to do so frees it, and its next life begins.
    fn release(&self, entry: u32, seat: u32) {
        change(&self.blocks[entry as usize], |word| {
            let left = word & !(1 << seat);
            if word != left && left % LIFE == 0 { left + LIFE } else { left }
        });
    }

    fn is_kept_by(&self, entry: u32, seat: u32) -> bool {
        self.blocks[entry as usize].load() & (LIFE | 1 << seat) == 1 << seat
    }

    /// Holds the block of the next message, then takes the message.
    fn receive(&self, seat: u32) -> Option<u32> {
        match self.ring().pop(|entry| self.hold(entry, seat), |entry| self.release(entry, seat)) {
            Ok(message) => Some(message.entry),
            Err(RingRefusal::Empty | RingRefusal::Closed) => None,
            Err(other) => panic!("{other:?}"),
        }
    }

    fn senders(&self) -> SenderWord<'_, W> {
        SenderWord::new(&self.senders)
    }

    /// Takes a message. The error says whether the queue is empty or has ended.
    fn receive_until_deserted(&self, seat: u32) -> Result<u32, RingRefusal> {
        let pop = || self.ring().pop(|entry| self.hold(entry, seat), |entry| self.release(entry, seat));
        self.senders().receive(pop).map(|message| message.entry)
    }

    /// Sends a new block of this member, which keeps the block until the message is received.
    fn send(&self, entry: u32, seat: u32) -> Option<u64> {
        self.keep(entry, seat);
        match self.ring().push(message(seat, entry)) {
            Ok(position) => Some(position),
            Err(RingRefusal::Full | RingRefusal::Closed) => {
                self.release(entry, seat);
                None
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}

fn memory(cells: usize, blocks: usize) -> Shared {
    Arc::new(Memory::new(AtomicU64::new, cells, blocks))
}

/// Runs a test in every order with at most this many preemptions.
fn model(switches: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(test);
}

fn spawn<R: 'static>(memory: &Shared, act: impl FnOnce(&Memory<AtomicU64>) -> R + 'static) -> thread::JoinHandle<R> {
    let memory = Arc::clone(memory);
    thread::spawn(move || act(&memory))
}

/// Takes all messages that are left.
fn drain(memory: &Memory<AtomicU64>, seat: u32) -> Vec<u32> {
    std::iter::from_fn(|| memory.receive(seat)).collect()
}

#[test]
fn receiver_gets_each_message_of_two_senders_once() {
    for cells in [1, 2] {
        model(3, move || {
            let memory = memory(cells, 2);
            let senders = [0, 1].map(|sender| spawn(&memory, move |memory| memory.send(sender, sender)));
            let early = memory.receive(2);
            let sent = senders.map(|sender| sender.join().expect("it ends"));
            let mut received: Vec<u32> = early.into_iter().chain(drain(&memory, 2)).collect();
            received.sort_unstable();
            let expected: Vec<u32> = (0..2).filter(|sender| sent[*sender as usize].is_some()).collect();
            assert_eq!(received, expected);
            assert!(!expected.is_empty() && (cells == 1 || expected.len() == 2), "{sent:?}");
            assert!(received.iter().all(|entry| memory.is_kept_by(*entry, 2)));
        });
    }
}

/// The sender releases a block as soon as its message is consumed. By then the receiver holds it.
#[test]
fn receiver_keeps_block_that_sender_releases() {
    for cells in [1, 2] {
        model(3, move || {
            let memory = memory(cells, 2);
            let receivers = [1, 2].map(|seat| {
                spawn(&memory, move |memory| {
                    let received = memory.receive(seat);
                    assert!(received.is_none_or(|entry| memory.is_kept_by(entry, seat)));
                    received
                })
            });
            let sent = [0, 1].map(|entry| {
                let position = memory.send(entry, 0);
                if position.is_some_and(|position| memory.ring().is_consumed(position)) {
                    memory.release(entry, 0);
                }
                position
            });
            let early = receivers.map(|receiver| receiver.join().expect("it ends"));
            let late = drain(&memory, 3);
            let mut received: Vec<u32> = early.into_iter().flatten().chain(late).collect();
            received.sort_unstable();
            let expected: Vec<u32> = (0..2).filter(|entry| sent[*entry as usize].is_some()).collect();
            assert_eq!(received, expected);
            assert!(sent[0] == Some(0) && (cells == 1 || sent[1] == Some(1)), "{sent:?}");
        });
    }
}

/// With one cell every message is in another lap. Sender and block are the same, so without laps the words would be
/// equal (ABA).
#[test]
fn laps_distinguish_messages_with_the_same_block() {
    model(3, || {
        let memory = memory(1, 1);
        let sender = spawn(&memory, |memory| [(), ()].map(|()| memory.ring().push(message(0, 0)).is_ok()));
        let other = spawn(&memory, |memory| pop(&memory.ring()).is_ok());
        let own = [(), ()].map(|()| pop(&memory.ring()).is_ok());
        let sent = sender.join().expect("it ends");
        let received = [own[0], own[1], other.join().expect("it ends"), pop(&memory.ring()).is_ok()];
        let count = |of: &[bool]| of.iter().filter(|is| **is).count();
        assert_eq!(count(&sent), count(&received), "{sent:?} {received:?}");
        assert_eq!((memory.ring().len(), pop(&memory.ring())), (0, Err(RingRefusal::Empty)));
    });
}

/// A sender is killed at any step, also between its exchange of the cell and that of the tail. The other sender
/// advances the tail.
#[test]
fn killed_sender_has_sent_or_not_and_blocks_no_process() {
    for cells in [1, 2] {
        for steps in 0..9 {
            model(2, move || {
                let memory = memory(cells, 2);
                let killed =
                    spawn(&memory, move |memory| killed_after(steps, memory, |memory| memory.send(0, 0)).is_none());
                let sent = memory.send(1, 1);
                let early = memory.receive(2);
                let killed = killed.join().expect("it ends");
                // Reclaims the dead sender: its message is orphaned before its bit is cleared.
                memory.ring().orphan_messages(0, |entry| memory.hold(entry, ORPHAN_SENDER));
                memory.release(0, 0);
                let received: Vec<u32> = early.into_iter().chain(drain(&memory, 2)).collect();
                let times = |entry| received.iter().filter(|received| **received == entry).count();
                assert_eq!(times(1), usize::from(sent.is_some()));
                assert!(times(0) <= 1 && (killed || cells == 1 || times(0) == 1), "{received:?}");
                assert!(received.iter().all(|entry| memory.is_kept_by(*entry, 2)));
                assert!(memory.send(1, 1).is_some(), "there is room again");
            });
        }
    }
}

/// A receiver is killed at any step, also between its exchange of the cell and that of the head. The other receiver
/// advances the head.
#[test]
fn killed_receiver_loses_only_what_it_took() {
    for steps in 0..9 {
        model(2, move || {
            let memory = memory(2, 2);
            let positions = [0, 1].map(|entry| memory.send(entry, 0));
            let killed =
                spawn(&memory, move |memory| killed_after(steps, memory, |memory| memory.receive(1)).is_none());
            let early = memory.receive(2);
            let was_killed = killed.join().expect("it ends");
            let received: Vec<u32> = early.into_iter().chain(drain(&memory, 2)).collect();
            assert!(received == [0, 1] || received == [0] || received == [1], "{received:?}");
            assert!(received.len() == 1 || was_killed);
            assert!(received.iter().all(|entry| memory.is_kept_by(*entry, 2)));
            for (entry, position) in [(0, positions[0]), (1, positions[1])] {
                assert!(memory.ring().is_consumed(position.expect("room")));
                memory.release(entry, 0);
                memory.release(entry, 1); // as reclaiming the dead receiver does
                memory.release(entry, 2);
                assert_eq!(Word::load(&memory.blocks[entry as usize]) % LIFE, 0, "no member keeps it");
            }
        });
    }
}

/// A receiver takes the first message while another process orphans it. That process is killed at any step, and the
/// next one repeats its work.
#[test]
fn block_is_kept_while_its_message_is_orphaned() {
    for steps in [u32::MAX, 0, 1, 2, 3, 4, 5, 6] {
        model(3, move || {
            let memory = memory(2, 2);
            memory.send(0, 0).expect("room");
            memory.send(1, 0).expect("room");
            let taker = spawn(&memory, |memory| {
                let received = memory.receive(1);
                assert!(received.is_none_or(|entry| memory.is_kept_by(entry, 1)));
                received
            });
            let heir = spawn(&memory, move |memory| {
                let orphan = |memory: &Memory<Mortal<'_>>| {
                    memory.ring().orphan_messages(0, |entry| memory.hold(entry, ORPHAN_SENDER));
                    (0..2).for_each(|entry| memory.release(entry, 0));
                };
                if killed_after(steps, memory, orphan).is_none() {
                    killed_after(u32::MAX, memory, orphan);
                }
            });
            let received = taker.join().expect("it ends");
            heir.join().expect("it ends");
            assert_eq!(received, Some(0));
            assert_eq!(drain(&memory, 2), [1]);
            assert_eq!(memory.ring().messages().count(), 0);
            for (entry, seat) in [(0, 1), (1, 2)] {
                memory.release(entry, ORPHAN_SENDER);
                assert_eq!(Word::load(&memory.blocks[entry as usize]), 1 << seat, "the receiver alone keeps it");
            }
        });
    }
}

/// Sender and closing process exchange the same cell, also when the queue is full and the closed cell still has a
/// message.
#[test]
fn message_sent_during_close_is_received_or_refused() {
    for cells in [1, 2] {
        for sent_before in 0..=1 {
            model(3, move || {
                let memory = memory(cells, 3);
                for entry in 0..sent_before {
                    memory.send(entry, 0).expect("room");
                }
                let sender = spawn(&memory, |memory| memory.send(2, 1).is_some());
                let closer = spawn(&memory, |memory| memory.ring().close());
                let early = memory.receive(2);
                assert_eq!(closer.join().expect("it ends"), Ok(true));
                let sent = sender.join().expect("it ends");
                assert_eq!(memory.send(1, 1), None, "it is closed");
                let received: Vec<u32> = early.into_iter().chain(drain(&memory, 2)).collect();
                let expected: Vec<u32> = (0..sent_before).chain(sent.then_some(2)).collect();
                assert_eq!(received, expected);
                assert_eq!(pop(&memory.ring()), Err(RingRefusal::Closed));
            });
        }
    }
}

/// The sender registers, sends and leaves, or is killed at any step.
#[test]
fn queue_ends_after_last_message_of_its_sender() {
    for steps in [u32::MAX, 0, 1, 2, 3, 4, 5, 6, 7, 8] {
        model(3, move || {
            let memory = memory(2, 1);
            memory.senders().register(0);
            let sender = spawn(&memory, move |memory| {
                killed_after(steps, memory, |memory| {
                    memory.send(0, 0);
                    memory.senders().leave(0);
                })
            });
            let receiver = spawn(&memory, |memory| memory.receive_until_deserted(2));
            sender.join().expect("it ends");
            if receiver.join().expect("it ends") == Err(RingRefusal::Deserted) {
                assert!(drain(&memory, 2).is_empty(), "it had ended");
            }
            memory.senders().forget(memory.senders().load());
            while let Ok(0) = memory.receive_until_deserted(2) {}
            assert_eq!(memory.receive_until_deserted(2), Err(RingRefusal::Deserted));
        });
    }
}

#[test]
fn late_registration_keeps_the_queue_going() {
    model(3, || {
        let memory = memory(2, 1);
        memory.senders().register(0);
        let first = spawn(&memory, |memory| {
            memory.send(0, 0).expect("room");
            memory.senders().leave(0);
        });
        let receiver = spawn(&memory, |memory| memory.receive_until_deserted(2));
        memory.senders().register(1);
        let taken = memory.receive(1);
        first.join().expect("it ends");
        let answer = receiver.join().expect("it ends");
        // At every moment there is a message or a registered sender.
        assert_ne!(answer, Err(RingRefusal::Deserted), "{taken:?}");
    });
}
