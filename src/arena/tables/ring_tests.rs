//! The ring without an arena: single steps, and many threads at once. `ring_model.rs` runs it under loom.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::*;

/// The words of a queue, and for each block a word with a bit for each member that keeps it.
struct Memory<W> {
    head: W,
    tail: W,
    cells: Vec<W>,
    #[allow(dead_code)] // only the model counts holders, and it is not on every platform
    blocks: Vec<W>,
    #[allow(dead_code)] // as above
    senders: W,
}

impl<W: Word> Memory<W> {
    fn new(word: impl Fn(u64) -> W, cells: usize, blocks: usize) -> Self {
        let zeros = |count| (0..count).map(|_| word(0)).collect();
        Self { head: word(0), tail: word(0), cells: zeros(cells), blocks: zeros(blocks), senders: word(0) }
    }

    fn ring(&self) -> Ring<'_, W> {
        Ring::new(&self.head, &self.tail, &self.cells).expect("a power of two")
    }
}

fn plain(cells: usize) -> Memory<AtomicU64> {
    Memory::new(AtomicU64::new, cells, 0)
}

fn message(sender: u32, entry: u32) -> Message {
    Message { sender, entry }
}

/// Takes a message without counting the holds on its block.
fn pop<W: Word>(ring: &Ring<'_, W>) -> Result<Message, RingRefusal> {
    ring.pop(|_| true, |_| ())
}

#[test]
fn messages_arrive_in_order_over_many_laps() {
    for (capacity, count) in [(1, 1), (2, 2), (4, 4)] {
        let memory = plain(capacity);
        let ring = memory.ring();
        assert_eq!((ring.len(), pop(&ring)), (0, Err(RingRefusal::Empty)));
        for round in 0..10 {
            let entries = || (0..count).map(|entry| message(round, entry + round));
            for (index, message) in entries().enumerate() {
                assert_eq!(ring.len(), index);
                assert_eq!(ring.push(message), Ok(u64::from(round) * capacity as u64 + index as u64));
            }
            assert_eq!((ring.len(), ring.push(message(0, 0))), (capacity, Err(RingRefusal::Full)));
            for message in entries() {
                assert_eq!(pop(&ring), Ok(message));
            }
            assert_eq!((ring.len(), pop(&ring)), (0, Err(RingRefusal::Empty)));
        }
    }
}

#[test]
fn number_of_cells_is_a_power_of_two() {
    let memory = plain(3);
    for cells in [&memory.cells[..0], &memory.cells[..3]] {
        assert!(Ring::new(&memory.head, &memory.tail, cells).is_none());
    }
}

#[test]
fn queue_works_on_when_laps_overflow() {
    let memory = plain(2);
    let last = LAPS << 1;
    memory.head.store(last, Ordering::Relaxed);
    memory.tail.store(last, Ordering::Relaxed);
    memory.cells.iter().for_each(|cell| cell.store(LAPS << LAP_SHIFT, Ordering::Relaxed));
    for entry in 0..10 {
        memory.ring().push(message(1, entry)).expect("room");
        memory.ring().push(message(2, entry)).expect("room");
        assert_eq!(memory.ring().push(message(3, entry)), Err(RingRefusal::Full));
        assert_eq!(pop(&memory.ring()), Ok(message(1, entry)));
        assert_eq!(pop(&memory.ring()), Ok(message(2, entry)));
        assert_eq!(pop(&memory.ring()), Err(RingRefusal::Empty));
    }
}

#[test]
fn received_message_stays_consumed() {
    let memory = plain(2);
    let ring = memory.ring();
    let first = ring.push(message(1, 1)).expect("room");
    let second = ring.push(message(1, 2)).expect("room");
    assert!(!ring.is_consumed(first) && !ring.is_consumed(second));
    pop(&ring).expect("a message");
    assert!(ring.is_consumed(first) && !ring.is_consumed(second));
    ring.push(message(1, 3)).expect("room");
    assert!(ring.is_consumed(first) && !ring.is_consumed(second));
    pop(&ring).expect("a message");
    assert!(ring.is_consumed(first) && ring.is_consumed(second));
}

#[test]
fn closed_queue_delivers_its_messages_and_refuses_new_ones() {
    for (capacity, sent) in [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (4, 3)] {
        let memory = plain(capacity);
        let ring = memory.ring();
        for entry in 0..sent {
            ring.push(message(1, entry)).expect("room");
        }
        assert_eq!((ring.is_closed(), ring.close()), (Ok(false), Ok(true)));
        assert_eq!((ring.is_closed(), ring.close()), (Ok(true), Ok(false)));
        assert_eq!((ring.push(message(1, 9)), ring.len()), (Err(RingRefusal::Closed), sent as usize));
        ring.orphan_messages(1, |_| true);
        for entry in 0..sent {
            assert_eq!(pop(&ring), Ok(message(ORPHAN_SENDER, entry)));
            assert_eq!(ring.push(message(1, 9)), Err(RingRefusal::Closed));
        }
        assert_eq!((pop(&ring), ring.is_closed(), ring.len()), (Err(RingRefusal::Closed), Ok(true), 0));
    }
}

#[test]
fn orphaned_messages_keep_their_places() {
    let memory = plain(8);
    let ring = memory.ring();
    let sent = [message(1, 10), message(2, 20), message(1, 11), message(ORPHAN_SENDER, 30), message(0, 0)];
    for message in sent {
        ring.push(message).expect("room");
    }
    let mut kept = Vec::new();
    ring.orphan_messages(1, |entry| {
        kept.push(entry);
        true
    });
    ring.orphan_messages(1, |_| panic!("there is nothing left"));
    assert_eq!(kept, [10, 11]);
    let found: Vec<_> =
        memory.ring().messages().filter(|message| message.sender == ORPHAN_SENDER).map(|found| found.entry).collect();
    assert_eq!(found, [10, 11, 30]);
    let taken: Vec<_> = sent.iter().map(|_| pop(&ring).expect("a message")).collect();
    let after = sent.map(|sent| if sent.sender == 1 { Message { sender: ORPHAN_SENDER, ..sent } } else { sent });
    assert_eq!(taken, after);
    assert_eq!(ring.messages().count(), 0);
}

#[test]
fn message_stays_when_its_block_cannot_be_held() {
    let memory = plain(1);
    let ring = memory.ring();
    ring.push(message(1, 7)).expect("room");
    let refused = ring.pop(|_| false, |_| panic!("it was not held"));
    assert_eq!(refused, Err(RingRefusal::Damaged), "its sender did not keep the block");
    assert_eq!(pop(&ring), Ok(message(1, 7)));
}

/// With any bytes, every operation ends, and returns a message or an error.
#[test]
fn foreign_bytes_cause_no_endless_loop() {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // Mostly few bits, so that positions and laps nearly fit each other.
        if random & 0x30 == 0 { random } else { random & 7 << (random >> 8 & 63) }
    };
    let mut damaged = 0;
    for _ in 0..20_000 {
        let memory = plain(4);
        for word in memory.cells.iter().chain([&memory.head, &memory.tail]) {
            word.store(next(), Ordering::Relaxed);
        }
        let ring = memory.ring();
        damaged += u32::from(ring.push(message(1, 1)) == Err(RingRefusal::Damaged));
        damaged += u32::from(pop(&ring) == Err(RingRefusal::Damaged));
        damaged += u32::from(ring.close().is_err());
        assert!(ring.len() <= 4);
        ring.orphan_messages(1, |_| true);
        assert!(!ring.messages().any(|message| message.sender == 1));
    }
    assert!(damaged > 1000, "{damaged}");
}

/// Every message arrives exactly once, and those of one sender in order.
#[test]
fn many_threads_lose_double_or_reorder_no_message() {
    const SENDERS: u32 = 4;
    const EACH: u32 = 20_000;
    for capacity in [1, 2, 64] {
        let memory = plain(capacity);
        let ring = &memory.ring();
        let received: Vec<Vec<Message>> = thread::scope(|scope| {
            let senders: Vec<_> = (0..SENDERS)
                .map(|sender| {
                    scope.spawn(move || {
                        for entry in 0..EACH {
                            while ring.push(message(sender, entry)).is_err() {
                                thread::yield_now();
                            }
                        }
                    })
                })
                .collect();
            let receive = || {
                let mut received = Vec::new();
                loop {
                    match pop(ring) {
                        Ok(message) => received.push(message),
                        Err(RingRefusal::Closed) => return received,
                        Err(RingRefusal::Empty) => thread::yield_now(),
                        Err(other) => panic!("{other:?}"),
                    }
                }
            };
            let receivers: Vec<_> = (0..3).map(|_| scope.spawn(receive)).collect();
            senders.into_iter().for_each(|sender| sender.join().expect("it sends all"));
            assert_eq!(ring.close(), Ok(true));
            receivers.into_iter().map(|receiver| receiver.join().expect("it ends")).collect()
        });
        let mut times = vec![0; (SENDERS * EACH) as usize];
        for received in &received {
            for sender in 0..SENDERS {
                let of_one = received.iter().filter(|message| message.sender == sender).map(|message| message.entry);
                assert!(of_one.clone().zip(of_one.skip(1)).all(|(one, next)| one < next), "overtaken");
            }
            received.iter().for_each(|message| times[(message.sender * EACH + message.entry) as usize] += 1);
        }
        assert!(times.iter().all(|times| *times == 1));
    }
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
#[path = "ring_model.rs"]
mod model;
