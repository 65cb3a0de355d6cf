//! A producer sends blocks of a chunk without end, and a consumer holds some of them, until one or both are killed at a
//! random moment.
//!
//! The number of rounds is that of `NDSHM_CUDA_KILLS` (60); `NDSHM_CUDA_SEED` repeats a run.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::{Array1, Ix1};
use ndarray_shm::counted::{Channel, Socket};
use ndarray_shm::unlink;
use ndarray_shm_cuda::{BlockTicket, CHUNK_KIND, Chunk, Device, Error, ReceivedBlock, ReceivedChunk};

use crate::kills::{Random, number, packed, seed};
use crate::named;
use crate::support::{Actor, LIMIT, Role, double, is_real, trials as tests, until};

pub const ROLES: &[(&str, Role)] = named![chunk_director, endless_producer, endless_consumer];

pub fn trials() -> Vec<Trial> {
    tests("chunk_kills", named![killed_ends_of_a_chunk_leave_no_block_and_no_memory])
}

const MIB: usize = 1 << 20;

/// Elements of a block.
const LENGTH: usize = 5000;

/// How many blocks the consumer holds at most. The chunk has room for some more.
const HELD: usize = 30;

fn killed_ends_of_a_chunk_leave_no_block_and_no_memory() {
    // In a process with a tag of its own, which sees the memory of its own children only.
    let tag = format!("chunk-kills-{}", std::process::id());
    let director = Actor::start_with("chunk_director", &[("FAKE_CUDA_TAG", &tag)]);
    let summary: String = director.channel.receive_timeout(Duration::from_secs(450)).expect("a summary").message;
    println!("{summary}");
    director.join();
}

fn chunk_director(channel: Channel) {
    let (seed, rounds) = (seed(), number("NDSHM_CUDA_KILLS", 60));
    println!("chunk_kills: NDSHM_CUDA_SEED={seed}");
    let mut random = Random(seed);
    let (mut sent, mut read, mut lost) = (0, 0, 0);
    for round in 0..rounds {
        let name = format!("cuda-chunk-kills-{}-{round}", std::process::id());
        let (here, there) = UnixStream::pair().expect("sockets");
        let (mut producer, mut consumer) = (Actor::start("endless_producer"), Actor::start("endless_consumer"));
        producer.channel.send(&(round, &name), &[&packed(here)]).expect("a producer");
        consumer.channel.send(&round, &[&packed(there)]).expect("a consumer");
        assert_eq!(consumer.hear::<String>(), "attached");
        thread::sleep(Duration::from_micros(random.below(20_000)));
        let victims = 1 + random.below(3);
        if victims & 1 != 0 {
            producer.kill();
        }
        thread::sleep(Duration::from_micros(random.below(3000)));
        if victims & 2 != 0 {
            consumer.kill();
        }
        if victims & 1 == 0 {
            let (blocks, revoked): (u64, u64) = producer.hear();
            sent += blocks;
            lost += revoked;
            producer.join();
        }
        if victims & 2 == 0 {
            read += consumer.hear::<u64>();
            consumer.join();
        }
        assert!(is_real() || double::memory_in_use() == 0, "round {round}: memory is left");
        // Only if both were killed, the name waits for `ndshm gc`. A killed process of a real GPU takes 50 ms to end,
        // and has its locks until then: a survivor that leaves meanwhile is not the last.
        let is_left = unlink(name.as_str()).expect("no error");
        assert!(!is_left || victims == 3 || is_real(), "round {round}: the last member has left the name");
    }
    assert!(rounds < 20 || sent > 0 && read > 0 && lost > 0, "the moments are not spread: {sent}, {read}, {lost}");
    let summary = format!(
        "{rounds} rounds: survivors sent {sent} blocks and read {read}; {lost} tickets were lost and revoked; no wrong \
         element, no memory left"
    );
    channel.send(&summary, &[]).expect("the test");
}

fn peer<M: serde::de::DeserializeOwned>(channel: &Channel) -> (M, Channel) {
    let mut received = channel.receive_timeout::<M>(LIMIT).expect("a task");
    let socket = received.arrays.remove(0).foreign("test-socket").expect("a socket").into_descriptor();
    (received.message, Channel::from_socket(Socket::from(OwnedFd::from(socket))).expect("a channel"))
}

fn elements(round: u64, number: u64) -> Array1<u64> {
    Array1::from_shape_fn(LENGTH, |at| at as u64 ^ round << 40 ^ number << 20)
}

/// Sends blocks until the consumer is gone; then takes all of them back.
fn endless_producer(channel: Channel) {
    let ((round, name), consumer) = peer::<(u64, String)>(&channel);
    let chunk = Chunk::create(Device::new(0).expect("a GPU"), 2 * MIB, name.as_str()).expect("a chunk");
    let mut is_heard = consumer.send("chunk", &[&chunk.parcel().expect("a parcel")]).is_ok();
    let (mut number, mut recent) = (0, VecDeque::new());
    while is_heard {
        let block = match chunk.from_host(&elements(round, number)) {
            Ok(block) => block,
            Err(Error::ChunkFull { .. }) => {
                // Unless the consumer is gone, it makes room.
                is_heard = consumer.send(&None::<(u64, BlockTicket)>, &[]).is_ok();
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let ticket = block.send().expect("a ticket");
        is_heard = consumer.send(&Some((number, &ticket)), &[]).is_ok();
        number += 1;
        // The chunk has no room for more.
        recent.push_back(ticket);
        if recent.len() > 2 * MIB / (LENGTH * 8) {
            recent.pop_front();
        }
    }
    let revoked = recent.iter().filter(|ticket| chunk.revoke(ticket).expect("no error")).count();
    until("the blocks of the dead consumer", || {
        chunk.reclaim().expect("no error");
        chunk.free_bytes() == chunk.bytes()
    });
    assert_eq!(chunk.waiting(), 0);
    drop(chunk);
    channel.send(&(number, revoked), &[]).expect("the director");
    assert_clean();
}

/// Holds blocks until the producer is gone, and checks all of them when it gets and when it drops them.
fn endless_consumer(channel: Channel) {
    let (round, producer) = peer::<u64>(&channel);
    let mut received = producer.receive::<String>().expect("a chunk");
    let parcel = received.arrays.remove(0).foreign(CHUNK_KIND).expect("a parcel");
    let chunk = ReceivedChunk::attach(&parcel).expect("a chunk");
    drop((received, parcel));
    channel.send("attached", &[]).expect("the director");
    let (mut held, mut read) = (VecDeque::new(), 0);
    let check = |(number, block): &(u64, ReceivedBlock<u64, Ix1>)| {
        assert_eq!(block.to_host().expect("a copy"), elements(round, *number), "block {number} of round {round}");
    };
    while let Ok(message) = producer.receive::<Option<(u64, BlockTicket)>>() {
        let Some((number, ticket)) = message.message else { continue };
        match chunk.receive(&ticket) {
            Ok(block) => held.push_back((number, block)),
            Err(Error::Host(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::HandleSpent, .. })) => break, // the producer is gone
            Err(error) => panic!("{error}"),
        }
        check(held.back().expect("one"));
        read += 1;
        if held.len() > HELD {
            check(&held.pop_front().expect("one"));
        }
    }
    held.iter().for_each(check);
    drop((held, chunk));
    channel.send(&read, &[]).expect("the director");
    assert_clean();
}

/// Fails if something of the chunk lives on in this process.
fn assert_clean() {
    if !is_real() {
        double::assert_no_violation();
        for kind in ["physical", "reservation", "mapping"] {
            assert_eq!(double::live(kind), 0, "{kind}");
        }
    }
}
