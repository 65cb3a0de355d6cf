//! Blocks of a chunk: sent by the hundred thousand, released by receivers or their deaths, in the order of streams.
//!
//! With `NDSHM_CUDA_LONG=1` a million blocks are sent.

use std::collections::VecDeque;
use std::fs;

use cudarc::driver::sys;
use libtest_mimic::Trial;
use ndarray::{Array1, Ix1, array};
use ndarray_shm::counted::{Channel, Foreign};
use ndarray_shm::{Location, unlink};
use ndarray_shm_cuda::{
    BlockTicket, CHUNK_KIND, Chunk, Device, DeviceBlock, Error, ReceivedBlock, ReceivedChunk, Result, Stream,
};
use serde_json::Value;

use crate::failures::fail_every_call;
use crate::named;
use crate::support::{Actor, LIMIT, Role, descriptors, is_real, make_current, trials as tests, until};

pub const ROLES: &[(&str, Role)] = named![
    send_blocks,
    sum_blocks,
    hold_blocks,
    slow_producer,
    producer,
    slow_consumer,
    fail_every_call_of_chunks,
    forked_chunk
];

pub fn trials() -> Vec<Trial> {
    let mut all = tests(
        "chunk",
        named![
            a_hundred_thousand_blocks_leave_nothing,
            lost_tickets_of_a_killed_consumer_can_be_revoked,
            killed_consumer_gives_its_blocks_back,
            blocks_outlive_their_killed_producer,
            receiver_reads_after_the_producer_has_written,
            block_that_is_still_read_is_not_used_again,
            full_chunk_says_what_is_free,
            ticket_is_received_once,
            revoked_ticket_is_refused,
            forged_tickets_reach_nothing_outside_the_chunk,
            block_is_written_only_while_no_receiver_has_it,
            forked_child_is_refused_the_chunk,
        ],
    );
    if !is_real() {
        all.extend(tests("chunk", named![each_call_of_chunks_fails_once_without_a_leak]));
    }
    all
}

const MIB: usize = 1 << 20;

fn gpu() -> Device {
    Device::new(0).expect("a GPU")
}

/// A chunk with a name of its own, which is removed at the end, also if the test fails.
struct Named {
    chunk: Chunk,
    location: Location,
}

impl Named {
    fn new(test: &str, bytes: usize) -> Self {
        let location = Location::new(&format!("cuda-{test}-{}", std::process::id())).expect("a name");
        let chunk = Chunk::create(gpu(), bytes, location.clone()).expect("a chunk");
        Self { chunk, location }
    }

    fn send_to(&self, receiver: &Actor) {
        receiver.channel.send("chunk", &[&self.chunk.parcel().expect("a parcel")]).expect("a receiver");
    }
}

impl std::ops::Deref for Named {
    type Target = Chunk;

    fn deref(&self) -> &Chunk {
        &self.chunk
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = unlink(self.location.clone());
    }
}

/// Receives the chunk that the test sends first.
fn chunk_of(channel: &Channel) -> ReceivedChunk {
    let mut received = channel.receive_timeout::<String>(LIMIT).expect("a chunk");
    ReceivedChunk::attach(&received.arrays.remove(0).foreign(CHUNK_KIND).expect("a parcel")).expect("a chunk")
}

/// Kibibytes of memory of this process that are not of a file: pages of a program that was just built would count as
/// written.
fn private_memory() -> u64 {
    let text = fs::read_to_string("/proc/self/smaps_rollup").expect("/proc");
    let line = text.lines().find(|line| line.starts_with("Anonymous:")).expect("a line");
    line.split_whitespace().nth(1).expect("a number").parse().expect("a number")
}

/// Adds up the elements of all blocks until the empty list, and answers with the sum, and its memory and descriptors
/// after a tenth of the blocks and at the end.
fn sum_blocks(channel: Channel) {
    let chunk = chunk_of(&channel);
    let (mut sum, mut seen, mut first) = (0u64, 0, None);
    loop {
        let tickets: Vec<BlockTicket> = channel.receive_timeout(LIMIT).expect("tickets").message;
        if tickets.is_empty() {
            break;
        }
        for ticket in &tickets {
            let block: ReceivedBlock<u64, Ix1> = chunk.receive(ticket).expect("a block");
            sum += block.to_host().expect("a copy").sum();
            seen += 1;
        }
        if seen == 10_000 {
            first = Some((private_memory(), descriptors()));
        }
        channel.send(&seen, &[]).expect("the test");
    }
    let first = first.expect("more than 10,000 blocks");
    channel.send(&(sum, first, (private_memory(), descriptors())), &[]).expect("the test");
}

type Measured = (u64, usize);

/// `test_cuda_send_many` of torch, with many times as many blocks as the chunk has room for at one time.
fn a_hundred_thousand_blocks_leave_nothing() {
    // In a process of its own, where no other test takes memory.
    Actor::start("send_blocks").join();
}

fn send_blocks(_: Channel) {
    let blocks: u64 = if std::env::var_os("NDSHM_CUDA_LONG").is_some() { 1_000_000 } else { 100_000 };
    let chunk = Named::new("many", 2 * MIB);
    let child = Actor::start("sum_blocks");
    chunk.send_to(&child);
    let (mut first, mut ready) = (None, VecDeque::new());
    for batch in 0..blocks / 100 {
        if batch == 100 {
            first = Some((private_memory(), descriptors()));
        }
        // Blocks are dropped while the child may not have seen their tickets yet.
        let tickets: Vec<BlockTicket> = (0..100)
            .map(|at| {
                let number = batch * 100 + at;
                let block = chunk.from_host(&array![number, 1]).expect("a block");
                block.send().expect("a ticket")
            })
            .collect();
        child.tell(&tickets);
        ready.push_back(());
        if ready.len() > 8 {
            child.hear::<u64>();
            ready.pop_front();
        }
    }
    for () in ready {
        child.hear::<u64>();
    }
    child.tell(&Vec::<BlockTicket>::new());
    let (sum, early, late): (u64, Measured, Measured) = child.hear();
    assert_eq!(sum, blocks * (blocks - 1) / 2 + blocks);
    until("the blocks", || chunk.reclaim().is_ok() && chunk.waiting() == 0);
    assert_eq!(chunk.free_bytes(), chunk.bytes());
    let (first, last) = (first.expect("many batches"), (private_memory(), descriptors()));
    for ((before, files), (after, files_after)) in [(early, late), (first, last)] {
        assert!(after < before + 1024, "{before} KiB after 10,000 blocks, {after} after {blocks}");
        assert_eq!(files, files_after);
    }
    println!("{blocks} blocks: {} -> {} KiB here, {} -> {} KiB at the receiver", first.0, last.0, early.0, late.0);
}

/// Holds all blocks that it gets, and answers with the first element of each; "check" repeats that.
fn hold_blocks(channel: Channel) {
    let chunk = chunk_of(&channel);
    let mut held: Vec<ReceivedBlock<u64, Ix1>> = Vec::new();
    while let Ok(received) = channel.receive::<Vec<BlockTicket>>() {
        for ticket in &received.message {
            match chunk.receive(ticket) {
                Ok(block) => held.push(block),
                Err(error) => {
                    channel.send(&error.to_string(), &[]).expect("the test");
                    return;
                }
            }
        }
        let first = held.iter().map(|block| block.to_host().expect("a copy")[0]).collect::<Vec<u64>>();
        channel.send(&first, &[]).expect("the test");
    }
}

fn killed_consumer_gives_its_blocks_back() {
    let chunk = Named::new("killed", 2 * MIB);
    let (mut first, second) = (Actor::start("hold_blocks"), Actor::start("hold_blocks"));
    chunk.send_to(&first);
    chunk.send_to(&second);
    let blocks: Vec<DeviceBlock<u64, Ix1>> =
        (0..4u64).map(|number| chunk.from_host(&Array1::from_elem(MIB / 16, number)).expect("a block")).collect();
    for child in [&first, &second] {
        child.tell(&blocks.iter().map(|block| block.send().expect("a ticket")).collect::<Vec<_>>());
        assert_eq!(child.hear::<Vec<u64>>(), [0, 1, 2, 3]);
    }
    assert_eq!(blocks[0].count().expect("a count"), 2);
    drop(blocks);
    assert_eq!((chunk.waiting(), chunk.free_bytes()), (4, 0));
    first.kill();
    assert_eq!(chunk.reclaim().expect("no error"), 0, "the second still holds all blocks");
    assert!(matches!(chunk.zeroed::<u8, _>(1), Err(Error::ChunkFull { free: 0, .. })));
    drop(second); // is killed
    let next = chunk.from_host(&array![7u64]).expect("room comes back when it is needed");
    assert_eq!(next.to_host().expect("a copy"), array![7]);
    assert_eq!(chunk.waiting(), 0);
}

/// Makes a chunk with the name that the test says, and sends it with four blocks.
fn producer(channel: Channel) {
    let location: String = channel.receive_timeout(LIMIT).expect("a name").message;
    let chunk = Chunk::create(gpu(), MIB, location.as_str()).expect("a chunk");
    let blocks: Vec<DeviceBlock<u64, Ix1>> =
        (0..4u64).map(|number| chunk.from_host(&Array1::from_elem(100, number)).expect("a block")).collect();
    let tickets: Vec<BlockTicket> = blocks.iter().map(|block| block.send().expect("a ticket")).collect();
    channel.send(&tickets, &[&chunk.parcel().expect("a parcel")]).expect("the test");
    let _ = channel.receive::<String>();
}

fn blocks_outlive_their_killed_producer() {
    let location = format!("cuda-outlive-{}", std::process::id());
    let (mut maker, holder) = (Actor::start("producer"), Actor::start("hold_blocks"));
    maker.tell(&location);
    let mut received = maker.channel.receive_timeout::<Vec<BlockTicket>>(LIMIT).expect("blocks");
    let (mut tickets, parcel) = (received.message, received.arrays.remove(0).foreign(CHUNK_KIND).expect("a parcel"));
    holder.channel.send("chunk", &[&parcel]).expect("a holder");
    let last = tickets.split_off(3);
    holder.tell(&tickets);
    assert_eq!(holder.hear::<Vec<u64>>(), [0, 1, 2]);
    maker.kill();
    holder.tell(&Vec::<BlockTicket>::new());
    assert_eq!(holder.hear::<Vec<u64>>(), [0, 1, 2], "the blocks are there");
    holder.tell(&last);
    // Whether the ticket still works depends on whether the death was noticed; if it does, the block is right.
    match holder.channel.receive_timeout::<Value>(LIMIT).expect("an answer").message {
        Value::Array(firsts) => assert_eq!(firsts.len(), 4),
        Value::String(error) => assert!(error.contains("handle"), "{error}"),
        other => panic!("{other}"),
    }
    drop((parcel, holder));
    // Its members were killed: the name stays, and the next that opens it finds nothing alive.
    assert!(unlink(location.as_str()).is_ok());
}

/// Writes blocks in a slow stream, makes their tickets at once, and drops them.
fn slow_producer(channel: Channel) {
    let location: String = channel.receive_timeout(LIMIT).expect("a name").message;
    let chunk = Chunk::create(gpu(), MIB, location.as_str()).expect("a chunk");
    make_current();
    let stream = gpu().new_stream().expect("a stream");
    let tickets: Vec<BlockTicket> = (1..=10u8)
        .map(|value| {
            let block = chunk.zeroed::<u8, _>(1000).expect("a block");
            enqueue_write(&block, &stream, value);
            block.send().expect("a ticket")
        })
        .collect();
    channel.send(&tickets, &[&chunk.parcel().expect("a parcel")]).expect("the test");
    let _ = channel.receive::<String>();
}

fn receiver_reads_after_the_producer_has_written() {
    let location = format!("cuda-written-{}", std::process::id());
    let maker = Actor::start_with("slow_producer", &[("FAKE_CUDA_DELAY_US", "10000")]);
    maker.tell(&location);
    let mut received = maker.channel.receive_timeout::<Vec<BlockTicket>>(LIMIT).expect("blocks");
    let parcel = received.arrays.remove(0).foreign(CHUNK_KIND).expect("a parcel");
    let chunk = ReceivedChunk::attach(&parcel).expect("a chunk");
    for (ticket, value) in received.message.iter().zip(1u8..) {
        let block = chunk.receive::<u8, Ix1>(ticket).expect("a block");
        assert_eq!(block.to_host().expect("a copy"), Array1::from_elem(1000, value));
    }
    maker.tell("end");
    maker.join();
    drop((chunk, parcel));
    // The last member removes it, unless a reader of /proc still keeps the other's lock.
    let _ = unlink(location.as_str());
}

/// Copies a block to memory of its own in a slow stream, drops the block at once, and answers with what it has copied.
fn slow_consumer(channel: Channel) {
    make_current();
    let chunk = chunk_of(&channel);
    let stream = gpu().new_stream().expect("a stream");
    let target = ndarray_shm_cuda::DeviceArray::<u8, _>::zeroed(gpu(), 1000).expect("an array");
    while let Ok(received) = channel.receive::<BlockTicket>() {
        let block = chunk.receive::<u8, Ix1>(&received.message).expect("a block");
        let (to, from) = (target.device_pointer(), block.device_pointer());
        // SAFETY: the target outlives the work, and the block's room is not used again before it: `used_on` says so.
        let answer = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, 1000, stream.as_raw().cast()) };
        assert_eq!(answer, sys::CUresult::CUDA_SUCCESS);
        block.used_on(&stream).expect("an event");
        target.written_on(&stream).expect("an event");
        drop(block);
        channel.send("dropped", &[]).expect("the test");
        channel.send(&target.to_host().expect("a copy").to_vec(), &[]).expect("the test");
    }
}

fn block_that_is_still_read_is_not_used_again() {
    let chunk = Named::new("read", 2 * MIB);
    let child = Actor::start_with("slow_consumer", &[("FAKE_CUDA_DELAY_US", "50000")]);
    chunk.send_to(&child);
    let whole = chunk.bytes() - 1024;
    for value in 1..=5u8 {
        let block = chunk.from_host(&Array1::from_elem(whole, value)).expect("a block");
        let ticket = chunk_ticket(&block);
        drop(block);
        child.tell(&ticket);
        assert_eq!(child.hear::<String>(), "dropped");
        // Takes the same room, once it is free.
        let mut next = None;
        until("room", || {
            next = chunk.from_host(&Array1::from_elem(whole, 99u8)).ok();
            next.is_some()
        });
        assert_eq!(child.hear::<Vec<u8>>(), vec![value; 1000]);
    }
}

/// A ticket for the first thousand elements: as if the block had been that long.
fn chunk_ticket(block: &DeviceBlock<u8, Ix1>) -> BlockTicket {
    let ticket = serde_json::to_value(block.send().expect("a ticket")).expect("JSON");
    changed(&ticket, "shape", serde_json::json!([1000]))
}

fn changed(ticket: &Value, field: &str, value: Value) -> BlockTicket {
    let mut ticket = ticket.clone();
    ticket[field] = value;
    serde_json::from_value(ticket).expect("a ticket")
}

fn full_chunk_says_what_is_free() {
    let chunk = Named::new("full", 2 * MIB);
    let bytes = chunk.bytes();
    let first = chunk.zeroed::<u8, _>(bytes / 2).expect("a block");
    let second = chunk.zeroed::<u8, _>(bytes / 4).expect("a block");
    drop(first);
    let refused = chunk.zeroed::<u8, _>(bytes * 3 / 4).expect_err("it is too long");
    assert!(
        matches!(refused, Error::ChunkFull { free, longest, waiting: 0, .. } if free == bytes * 3 / 4 && longest == bytes / 2),
        "{refused}"
    );
    assert_eq!(
        chunk.zeroed::<f32, _>((0, 3)).expect("no elements need no room").to_host().expect("a copy").dim(),
        (0, 3)
    );
    drop(second);
    chunk.zeroed::<u8, _>(bytes).expect("all of it");
}

/// The chunk, as another process would receive it.
fn attached(chunk: &Chunk) -> (ReceivedChunk, Foreign) {
    let parcel = chunk.parcel().expect("a parcel");
    (ReceivedChunk::attach(&parcel).expect("a chunk"), parcel)
}

fn ticket_is_received_once() {
    let chunk = Named::new("once", MIB);
    let (receiver, _parcel) = attached(&chunk);
    let block = chunk.from_host(&array![1u16, 2, 3]).expect("a block");
    let ticket = block.send().expect("a ticket");
    assert!(matches!(receiver.receive::<u32, Ix1>(&ticket), Err(Error::DType { .. })));
    let held = receiver.receive::<u16, Ix1>(&ticket).expect("the type was wrong, and the ticket is still good");
    assert!(matches!(
        receiver.receive::<u16, Ix1>(&ticket),
        Err(Error::Host(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::HandleSpent, .. }))
    ));
    assert_eq!(held.to_host().expect("a copy"), array![1, 2, 3]);
    assert_eq!(block.count().expect("a count"), 1);
    drop(held);
    assert_eq!(block.count().expect("a count"), 0, "it goes down to zero, and no further");
}

fn revoked_ticket_is_refused() {
    let chunk = Named::new("revoked", MIB);
    let (receiver, _parcel) = attached(&chunk);
    let block = chunk.from_host(&array![1u16]).expect("a block");
    let ticket = block.send().expect("a ticket");
    assert!(chunk.revoke(&ticket).expect("no error"));
    assert!(matches!(
        receiver.receive::<u16, Ix1>(&ticket),
        Err(Error::Host(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::HandleSpent, .. }))
    ));
    drop(block);
    assert_eq!((chunk.waiting(), chunk.free_bytes()), (0, chunk.bytes()));
}

fn forged_tickets_reach_nothing_outside_the_chunk() {
    let chunk = Named::new("forged", MIB);
    let (receiver, parcel) = attached(&chunk);
    let block = chunk.from_host(&array![1u64, 2, 3]).expect("a block");
    let ticket = serde_json::to_value(block.send().expect("a ticket")).expect("JSON");
    let bytes = chunk.bytes();
    for (field, value) in [
        ("offset", serde_json::json!(bytes)),
        ("offset", serde_json::json!(bytes - 16)),
        ("offset", serde_json::json!(usize::MAX)),
        ("offset", serde_json::json!(4)),
        ("shape", serde_json::json!([bytes])),
        ("shape", serde_json::json!([usize::MAX])),
    ] {
        let forged = changed(&ticket, field, value.clone());
        let refused = receiver.receive::<u64, Ix1>(&forged).expect_err("it leads out of the chunk");
        assert!(matches!(refused, Error::Malformed { .. } | Error::TooLarge { .. }), "{field} {value}: {refused}");
    }
    // Chunks, too, are compared with their memory.
    let forged = |shape: &[usize]| {
        let file = parcel.descriptor().try_clone().expect("a descriptor");
        Foreign::new(CHUNK_KIND, parcel.dtype(), shape, parcel.order(), parcel.note(), file).expect("a parcel")
    };
    for shape in [&[bytes * 2][..], &[bytes - 1], &[0], &[bytes, 1]] {
        assert!(ReceivedChunk::attach(&forged(shape)).is_err(), "{shape:?}");
    }
}

fn block_is_written_only_while_no_receiver_has_it() {
    let chunk = Named::new("write", MIB);
    let (receiver, _parcel) = attached(&chunk);
    let mut block = chunk.from_host(&array![1u8, 2]).expect("a block");
    block.write(&array![3, 4]).expect("it was not sent");
    let ticket = block.send().expect("a ticket");
    assert!(matches!(block.write(&array![5, 6]), Err(Error::Shared)));
    let held = receiver.receive::<u8, Ix1>(&ticket).expect("a block");
    assert!(matches!(block.write(&array![5, 6]), Err(Error::Shared)));
    assert_eq!(held.to_host().expect("a copy"), array![3, 4]);
    drop(held);
    block.write(&array![5, 6]).expect("no receiver has it any more");
    assert_eq!(block.to_host().expect("a copy"), array![5, 6]);
    assert!(matches!(block.write(&array![5, 6, 7]), Err(Error::Shape { .. })));
}

fn lost_tickets_of_a_killed_consumer_can_be_revoked() {
    let chunk = Named::new("lost", MIB);
    let mut child = Actor::start("hold_blocks");
    chunk.send_to(&child);
    let send = |number: u64| {
        let block = chunk.from_host(&array![number]).expect("a block");
        block.send().expect("a ticket")
    };
    let (read, lost) = ([send(1), send(2)], [send(3), send(4)]);
    child.tell(&read.to_vec());
    assert_eq!(child.hear::<Vec<u64>>(), [1, 2]);
    child.kill();
    assert_eq!(chunk.reclaim().expect("no error"), 2);
    assert_eq!(chunk.waiting(), 2, "the lost tickets could still be received");
    for ticket in &read {
        assert!(!chunk.revoke(ticket).expect("no error"));
    }
    for ticket in &lost {
        assert!(chunk.revoke(ticket).expect("no error"));
    }
    assert_eq!((chunk.waiting(), chunk.free_bytes()), (0, chunk.bytes()));
}

/// Fills a block with a value in a stream, as a kernel would.
fn enqueue_write(block: &DeviceBlock<u8, Ix1>, stream: &Stream, value: u8) {
    // SAFETY: the block's room is not used again before the work is done: `written_on` says so.
    let answer = unsafe { sys::cuMemsetD8Async(block.device_pointer(), value, block.len(), stream.as_raw().cast()) };
    assert_eq!(answer, sys::CUresult::CUDA_SUCCESS);
    block.written_on(stream).expect("an event");
}

fn forked_chunk(channel: Channel) {
    let chunk = Named::new("forked", MIB);
    let (receiver, _parcel) = attached(&chunk);
    let block = chunk.from_host(&array![1u8, 2]).expect("a block");
    let ticket = block.send().expect("a ticket");
    // SAFETY: the child uses no lock that another thread may hold: it calls this crate, which refuses at once, and
    // ends.
    match unsafe { libc::fork() } {
        0 => {
            let refused = [
                chunk.zeroed::<u8, _>(1).map(drop),
                chunk.parcel().map(drop),
                block.send().map(drop),
                block.count().map(drop),
                chunk.reclaim().map(drop),
                receiver.receive::<u8, Ix1>(&ticket).map(drop),
            ];
            let all = refused.iter().all(|answer| matches!(answer, Err(Error::ForkedChild)));
            drop(block);
            // SAFETY: it has no requirements.
            unsafe { libc::_exit(i32::from(!all)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is valid for writes.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child was not refused everything");
        }
    }
    let held = receiver.receive::<u8, Ix1>(&ticket).expect("the parent's block");
    channel.send(&held.to_host().expect("a copy").to_vec(), &[]).expect("the test");
}

fn forked_child_is_refused_the_chunk() {
    let child = Actor::start("forked_chunk");
    assert_eq!(child.hear::<Vec<u8>>(), [1, 2]);
    child.join();
}

fn chunks() -> Result<()> {
    let location = format!("cuda-failures-{}", std::process::id());
    let chunk = Chunk::create(gpu(), MIB, location.as_str())?;
    let stream = gpu().new_stream()?;
    let receiver = ReceivedChunk::attach(&chunk.parcel()?)?;
    let mut block = chunk.from_host(&array![1u32, 2, 3])?;
    block.write(&array![4, 5, 6])?;
    block.written_on(&stream)?;
    let ticket = block.send()?;
    drop(block);
    let held = receiver.receive::<u32, Ix1>(&ticket)?;
    held.used_on(&stream)?;
    assert_eq!(held.to_host()?, array![4, 5, 6]);
    drop(held);
    stream.synchronize()?;
    chunk.reclaim()?;
    chunk.zeroed::<u8, _>(100)?.to_host().map(drop)
}

fn fail_every_call_of_chunks(_: Channel) {
    make_current();
    let seen = fail_every_call(chunks);
    println!("{seen} failures of the driver were reported");
    assert!(seen > 50, "only {seen} failures were reported");
}

fn each_call_of_chunks_fails_once_without_a_leak() {
    Actor::start("fail_every_call_of_chunks").join();
}
