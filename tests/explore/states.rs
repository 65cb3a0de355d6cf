//! Starting states: what each process has, and how it came by it.

use std::time::Duration;

use ndarray_shm::arena::ArenaOptions;
use ndarray_shm::cache::{ChunkCache, Lookup};
use ndarray_shm::counted::{Channel, Handle, SharingStrategy};
use ndarray_shm::ndarray::Ix1;
use ndarray_shm::pool::{PoolOptions, PooledArray};
use ndarray_shm::render::RenderOptions;
use ndarray_shm::stream::{Backpressure, Frame, StreamCursor};
use ndarray_shm::{
    Arena, ArrayReader, CreateOptions, Draft, NextClaim, OpenOptions, Pool, RefcountedArray, RenderBuffer, SharedArray,
    StreamReader, StreamWriter,
};

use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};

use crate::operations::caches;
use crate::operations::streams::{CURSOR, SLOTS, commit, options};
use crate::operations::{Kind, LENGTH, NAME, Subject};
use crate::world::World;

/// What a process has. Dropped in this order.
#[derive(Debug, Default)]
pub struct Has {
    pub reader: Option<ArrayReader<u8, Ix1>>,
    pub plain: Option<SharedArray<u8, Ix1>>,
    pub clone: Option<RefcountedArray<u8, Ix1>>,
    pub counted: Option<RefcountedArray<u8, Ix1>>,
    pub handle: Option<Handle>,
    pub ends: Option<(Channel, Channel)>,
    pub draft: Option<Draft<u8, Ix1>>,
    pub pooled: Option<PooledArray<u8, Ix1>>,
    pub buffer: Option<RenderBuffer<u8, Ix1>>,
    pub pool: Option<Pool>,
    pub arena: Option<Arena>,
    pub frame: Option<Frame<u8, Ix1>>,
    pub cursor: Option<StreamCursor<u8, Ix1>>,
    pub stream: Option<StreamReader<u8, Ix1>>,
    pub writer: Option<StreamWriter<u8, Ix1>>,
    pub cache: Option<ChunkCache>,
    /// What it creates or opens by name.
    pub new_reader: Option<ArrayReader<u8, Ix1>>,
    pub new_plain: Option<SharedArray<u8, Ix1>>,
    pub new_counted: Option<RefcountedArray<u8, Ix1>>,
    pub new_arena: Option<Arena>,
    pub new_cursor: Option<StreamCursor<u8, Ix1>>,
    pub new_stream: Option<StreamReader<u8, Ix1>>,
    pub new_writer: Option<StreamWriter<u8, Ix1>>,
    pub new_cache: Option<ChunkCache>,
}

/// How the second process comes by what it has.
#[derive(Debug)]
pub enum Other {
    /// It is forked from the first one.
    Inherits,
    /// It prepares itself, after the first one.
    Prepares(&'static [Kind], fn(&World) -> Has),
}

/// A starting state.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // each is a column of the table below
pub struct State {
    pub name: &'static str,
    pub first: &'static [Kind],
    pub prepare: fn(&World) -> Has,
    pub other: Other,
    /// Whether pairs of two operations by name are tried from here.
    pub is_plainest: bool,
    /// Whether both processes have the same.
    pub is_twin: bool,
    /// Whether the name leads to what a dead process left.
    pub has_orphan: bool,
    pub subject: Subject,
}

impl State {
    pub fn second(&self) -> &'static [Kind] {
        match self.other {
            Other::Inherits => self.first,
            Other::Prepares(kinds, _) => kinds,
        }
    }

    pub fn is_symmetric(&self) -> bool {
        self.is_twin
    }
}

fn create(world: &World) -> CreateOptions {
    CreateOptions::new().directory(world.directory.clone())
}

fn open(world: &World) -> OpenOptions {
    OpenOptions::new().directory(world.directory.clone())
}

fn nothing(_: &World) -> Has {
    Has::default()
}

fn plain(world: &World) -> Has {
    Has { plain: Some(create(world).create(NAME, LENGTH).expect("it is new")), ..Has::default() }
}

fn left_behind(world: &World) -> Has {
    drop(plain(world));
    Has::default()
}

fn opened(world: &World) -> Has {
    Has { plain: Some(open(world).open(NAME, LENGTH).expect("it exists")), ..Has::default() }
}

fn read(world: &World) -> Has {
    drop(plain(world));
    Has { reader: Some(open(world).open_reader(NAME, LENGTH).expect("it exists")), ..Has::default() }
}

fn counted(world: &World) -> Has {
    let array = create(world).keep_fd(true).create_counted::<u8, Ix1>(NAME, LENGTH).expect("it is new");
    Has { counted: Some(array), ..Has::default() }
}

fn opened_counted(world: &World) -> Has {
    Has { counted: Some(open(world).open_counted(NAME).expect("it exists")), ..Has::default() }
}

fn issued(world: &World) -> Has {
    let has = counted(world);
    let handle = has.counted.as_ref().expect("an array").handle().expect("a handle");
    std::fs::write(&world.mail, handle.to_string()).expect("a letter");
    has
}

fn received(world: &World) -> Has {
    let text = std::fs::read_to_string(&world.mail).expect("a letter");
    Has { handle: Some(text.parse().expect("a handle")), ..Has::default() }
}

fn connected(world: &World) -> Has {
    Has { ends: Some(Channel::pair().expect("a channel")), ..counted(world) }
}

/// The array has no name.
fn connected_nameless(world: &World) -> Has {
    let array = create(world).share_with(SharingStrategy::FileDescriptor, LENGTH, |_| {}).expect("memory");
    Has { ends: Some(Channel::pair().expect("a channel")), counted: Some(array), ..Has::default() }
}

fn frozen(world: &World) -> Has {
    let has = counted(world);
    has.counted.as_ref().expect("an array").freeze().expect("no process reads");
    has
}

fn pool(world: &World) -> Pool {
    PoolOptions::new().directory(world.directory.clone()).create().expect("a pool")
}

fn pooled(world: &World) -> Has {
    let pool = pool(world);
    let array = pool.take_zeroed::<u8, _>(LENGTH).expect("memory").publish(NAME).expect("a free name");
    Has { pooled: Some(array), pool: Some(pool), ..Has::default() }
}

/// As [`pooled`], with memory that had another name before.
fn recycled(world: &World) -> Has {
    let pool = pool(world);
    drop(pool.take_zeroed::<u8, _>(LENGTH).expect("memory").publish("old").expect("a free name"));
    let draft = pool.take::<u8, _>(LENGTH).expect("memory");
    assert!(draft.is_recycled(), "the pool has memory");
    Has { pooled: Some(draft.publish(NAME).expect("a free name")), pool: Some(pool), ..Has::default() }
}

/// A pool with memory that is free.
fn idle(world: &World) -> Has {
    let pool = pool(world);
    drop(pool.take_zeroed::<u8, _>(LENGTH).expect("memory").publish(NAME).expect("a free name"));
    Has { pool: Some(pool), ..Has::default() }
}

fn draft(world: &World) -> Has {
    let draft = pool(world).take_zeroed::<u8, _>(LENGTH).expect("memory").into_draft();
    Has { draft: Some(draft), ..Has::default() }
}

fn begun(world: &World) -> Has {
    let options = RenderOptions::new().directory(world.directory.clone());
    Has { buffer: Some(options.create(NAME, LENGTH, LENGTH / 2, "").expect("a free name")), ..Has::default() }
}

fn joined(world: &World) -> Has {
    let options = RenderOptions::new().directory(world.directory.clone());
    Has { buffer: Some(options.open(NAME).expect("it was begun")), ..Has::default() }
}

fn complete(world: &World) -> Has {
    let has = begun(world);
    let buffer = has.buffer.as_ref().expect("a buffer");
    while let Ok(NextClaim::Chunk(mut chunk)) = buffer.claim_next() {
        chunk.view_mut().fill(b'c');
        chunk.commit().expect("it is painted");
    }
    has
}

/// A counted array of a process that has died.
fn orphan(world: &World) -> Has {
    in_dead_child(|| std::mem::forget(counted(world)));
    Has::default()
}

/// The same, which is being painted.
fn abandoned(world: &World) -> Has {
    in_dead_child(|| std::mem::forget(begun(world)));
    Has::default()
}

fn begun_in_pool(world: &World) -> Has {
    let pool = pool(world);
    let options = RenderOptions::new().directory(world.directory.clone()).pool(&pool);
    let buffer = options.create(NAME, LENGTH, LENGTH / 2, "").expect("a free name");
    Has { buffer: Some(buffer), pool: Some(pool), ..Has::default() }
}

fn arena(world: &World) -> Has {
    let options = ArenaOptions::new().directory(world.directory.clone()).queues(1).queue_capacity(2);
    Has { arena: Some(options.create(NAME, 1 << 14).expect("a free name")), ..Has::default() }
}

fn joined_arena(world: &World) -> Has {
    let options = ArenaOptions::new().directory(world.directory.clone());
    Has { arena: Some(options.open(NAME).expect("it exists")), ..Has::default() }
}

fn dead_arena(world: &World) -> Has {
    in_dead_child(|| std::mem::forget(arena(world)));
    Has::default()
}

/// A stream of this process, with a frame.
fn stream(world: &World) -> Has {
    stream_of(world, SLOTS)
}

fn stream_of(world: &World, slots: usize) -> Has {
    let mut writer = options(world).create::<u8, _>(NAME, LENGTH, slots).expect("a free name");
    let mut frame = writer.frame().expect("a free slot");
    frame.view_mut().fill(b's');
    commit(frame).expect("it is this process's");
    Has { writer: Some(writer), ..Has::default() }
}

/// The same, with frames that readers copy.
fn copied_stream(world: &World) -> Has {
    let mut writer = options(world).copied(true).create::<u8, _>(NAME, LENGTH, SLOTS).expect("a free name");
    let mut frame = writer.frame().expect("a free slot");
    frame.view_mut().fill(b's');
    commit(frame).expect("it is this process's");
    Has { writer: Some(writer), ..Has::default() }
}

/// A stream of a process that has died.
fn dead_stream(world: &World) -> Has {
    in_dead_child(|| std::mem::forget(stream(world)));
    Has::default()
}

/// A process that died while it had a cursor.
fn dead_cursor(world: &World) -> Has {
    let has = stream(world);
    in_dead_child(|| std::mem::forget(with_cursor(world)));
    has
}

fn kept_stream(world: &World) -> Has {
    let mut writer = options(world).keep(true).create::<u8, _>(NAME, LENGTH, SLOTS).expect("a free name");
    let mut frame = writer.frame().expect("a free slot");
    frame.view_mut().fill(b'k');
    commit(frame).expect("it is this process's");
    Has::default()
}

fn with_reader(world: &World) -> Has {
    Has { stream: Some(options(world).open(NAME).expect("it exists")), ..Has::default() }
}

fn with_frame(world: &World) -> Has {
    let mut has = with_reader(world);
    has.frame = has.stream.as_mut().and_then(|reader| reader.latest().expect("a stream"));
    has
}

fn with_cursor(world: &World) -> Has {
    let cursor = options(world).open_cursor(NAME, CURSOR, Backpressure::Wait).expect("it exists");
    Has { cursor: Some(cursor), ..Has::default() }
}

/// A stream that this process writes, and reads too, with a slot more than both processes can hold: the number of calls
/// that list two holders of one slot differs from run to run.
fn stream_and_frame(world: &World) -> Has {
    let Has { writer, .. } = stream_of(world, SLOTS + 1);
    Has { writer, ..with_frame(world) }
}

/// A cache with four chunks, which fill it. The first one was used first.
fn full_cache(world: &World) -> Has {
    let cache = caches::options(world).create(NAME, caches::BYTES).expect("a free name");
    for key in 1..5 {
        let Ok(Lookup::Claimed(claim)) = cache.look(key, caches::CHUNK, 0, Duration::ZERO) else { panic!("a claim") };
        caches::make(claim, &cache, b'c');
    }
    Has { cache: Some(cache), ..Has::default() }
}

/// A cache with a chunk.
fn some_cache(world: &World) -> Has {
    let cache = caches::options(world).create(NAME, caches::BYTES).expect("a free name");
    let Ok(Lookup::Claimed(claim)) = cache.look(1, caches::CHUNK, 0, Duration::ZERO) else { panic!("a claim") };
    caches::make(claim, &cache, b'c');
    Has { cache: Some(cache), ..Has::default() }
}

/// A cache that no process has open.
fn unused_cache(world: &World) -> Has {
    drop(some_cache(world));
    Has::default()
}

fn opened_cache(world: &World) -> Has {
    Has { cache: Some(caches::options(world).open(NAME).expect("it exists")), ..Has::default() }
}

/// A cache that a process left which was killed while it filled a chunk.
fn dead_filler(world: &World) -> Has {
    let has = some_cache(world);
    in_dead_child(|| {
        let cache = opened_cache(world).cache.expect("a cache");
        if let Ok(Lookup::Claimed(mut claim)) = cache.look(9, caches::CHUNK, 0, Duration::ZERO) {
            std::mem::forget(claim.room());
            std::mem::forget(claim);
        }
        std::mem::forget(cache);
    });
    has
}

/// Has a forked child do something, and end as if it was killed.
#[allow(unsafe_code)]
fn in_dead_child(act: impl FnOnce()) {
    // SAFETY: this process has one thread.
    match unsafe { fork() }.expect("a process more") {
        ForkResult::Child => {
            let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(end.is_err())) }
        }
        ForkResult::Parent { child } => {
            let _ = waitpid(child, None); // what it leaves is checked by the pair
        }
    }
}

const fn state(name: &'static str, first: &'static [Kind], prepare: fn(&World) -> Has, other: Other) -> State {
    State {
        name,
        first,
        prepare,
        other,
        is_plainest: false,
        is_twin: false,
        has_orphan: false,
        subject: Subject::Arrays,
    }
}

const fn twins(mut state: State) -> State {
    state.is_twin = true;
    state
}

const fn orphaned(mut state: State) -> State {
    state.has_orphan = true;
    plainest(twins(state))
}

const fn of_streams(mut state: State) -> State {
    state.subject = Subject::Streams;
    state
}

const fn of_caches(mut state: State) -> State {
    state.subject = Subject::Caches;
    state
}

const fn plainest(mut state: State) -> State {
    state.is_plainest = true;
    state
}

const NOTHING: Other = Other::Prepares(&[], nothing);

static STATES: &[State] = &[
    plainest(twins(state("free name", &[], nothing, NOTHING))),
    plainest(twins(state("unused array", &[], left_behind, NOTHING))),
    plainest(state("plain", &[Kind::Plain], plain, NOTHING)),
    twins(state("two plain", &[Kind::Plain], plain, Other::Prepares(&[Kind::Plain], opened))),
    state("plain, inherited", &[Kind::Plain], plain, Other::Inherits),
    state("reader", &[Kind::Reader], read, Other::Prepares(&[Kind::Plain], opened)),
    plainest(state("counted", &[Kind::Counted], counted, NOTHING)),
    state("two counted", &[Kind::Counted], counted, Other::Prepares(&[Kind::Counted], opened_counted)),
    state("counted, inherited", &[Kind::Counted], counted, Other::Inherits),
    state("counted, sent", &[Kind::Counted], issued, Other::Prepares(&[Kind::Handle], received)),
    state("channel", &[Kind::Channel, Kind::Counted], connected, Other::Inherits),
    state("channel, nameless", &[Kind::Channel, Kind::Counted], connected_nameless, Other::Inherits),
    state("frozen", &[Kind::Counted], frozen, Other::Prepares(&[Kind::Counted], opened_counted)),
    state("pooled", &[Kind::Pooled, Kind::Pool], pooled, Other::Prepares(&[Kind::Plain], opened)),
    state("pooled, by name", &[Kind::Pooled, Kind::Pool], pooled, NOTHING),
    state("pooled, inherited", &[Kind::Pooled, Kind::Pool], pooled, Other::Inherits),
    state("recycled", &[Kind::Pooled, Kind::Pool], recycled, Other::Prepares(&[Kind::Plain], opened)),
    state("recycled, inherited", &[Kind::Pooled, Kind::Pool], recycled, Other::Inherits),
    state("idle pool", &[Kind::Pool], idle, NOTHING),
    state("draft", &[Kind::Draft], draft, NOTHING),
    state("draft, inherited", &[Kind::Draft], draft, Other::Inherits),
    plainest(state("begun", &[Kind::Buffer], begun, NOTHING)),
    state("two painters", &[Kind::Buffer], begun, Other::Prepares(&[Kind::Buffer], joined)),
    state("begun, inherited", &[Kind::Buffer], begun, Other::Inherits),
    plainest(state("complete", &[Kind::Buffer], complete, NOTHING)),
    orphaned(state("orphan", &[], orphan, NOTHING)),
    plainest(twins(state("abandoned buffer", &[], abandoned, NOTHING))),
    orphaned(state("dead arena", &[], dead_arena, NOTHING)),
    state("begun in a pool", &[Kind::Buffer, Kind::PooledBuffer], begun_in_pool, NOTHING),
    state("begun in a pool, two", &[Kind::PooledBuffer], begun_in_pool, Other::Prepares(&[Kind::Buffer], joined)),
    state("begun in a pool, inherited", &[Kind::PooledBuffer], begun_in_pool, Other::Inherits),
    plainest(state("arena", &[Kind::Arena], arena, NOTHING)),
    state("two members", &[Kind::Arena], arena, Other::Prepares(&[Kind::Arena], joined_arena)),
    state("arena, inherited", &[Kind::Arena], arena, Other::Inherits),
    of_streams(plainest(twins(state("no stream", &[], nothing, NOTHING)))),
    of_streams(plainest(state("stream", &[Kind::Writer], stream, NOTHING))),
    of_streams(plainest(twins(state("dead stream", &[], dead_stream, NOTHING)))),
    of_streams(plainest(twins(state("kept stream", &[], kept_stream, NOTHING)))),
    of_streams(state("stream and cursor left", &[Kind::Writer], dead_cursor, NOTHING)),
    of_streams(state("stream and reader", &[Kind::Writer], stream, Other::Prepares(&[Kind::Stream], with_reader))),
    of_streams(state(
        "stream and frame",
        &[Kind::Writer],
        stream,
        Other::Prepares(&[Kind::Stream, Kind::Frame], with_frame),
    )),
    of_streams(state("stream and cursor", &[Kind::Writer], stream, Other::Prepares(&[Kind::Cursor], with_cursor))),
    of_streams(state(
        "copied stream and reader",
        &[Kind::Writer],
        copied_stream,
        Other::Prepares(&[Kind::Stream], with_reader),
    )),
    of_streams(state(
        "copied stream and cursor",
        &[Kind::Writer],
        copied_stream,
        Other::Prepares(&[Kind::Cursor], with_cursor),
    )),
    of_streams(state(
        "stream, inherited",
        &[Kind::Writer, Kind::Stream, Kind::Frame],
        stream_and_frame,
        Other::Inherits,
    )),
    state("two finishers", &[Kind::Buffer], complete, Other::Prepares(&[Kind::Buffer], joined)),
    of_caches(plainest(twins(state("no cache", &[], nothing, NOTHING)))),
    of_caches(plainest(twins(state("unused cache", &[], unused_cache, NOTHING)))),
    of_caches(plainest(state("cache", &[Kind::Cache], some_cache, Other::Prepares(&[Kind::Cache], opened_cache)))),
    of_caches(state("full cache", &[Kind::Cache], full_cache, Other::Prepares(&[Kind::Cache], opened_cache))),
    of_caches(state(
        "cache of a killed filler",
        &[Kind::Cache],
        dead_filler,
        Other::Prepares(&[Kind::Cache], opened_cache),
    )),
    of_caches(state("full cache, inherited", &[Kind::Cache], full_cache, Other::Inherits)),
];

/// Returns all states.
pub fn all() -> &'static [State] {
    STATES
}
