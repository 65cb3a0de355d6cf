//! All kinds of arrays under the same few names, used by processes that are stopped at any step, killed and forked. If
//! this process is root, some of them belong to another user.
//!
//! Every array has the same number of elements, and every block of [`BLOCK`] elements is written at once, with one
//! value. So what a process reads under a guard, chunk or handle has one value in each block, and what it holds
//! exclusively stays as it wrote it. Errors are allowed, since names come and go. Wrong elements and panics are not.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray::{ArrayView, Dimension, Ix1, Ix2};
use ndarray_shm::arena::ArenaOptions;
use ndarray_shm::counted::{Channel, SharingStrategy};
use ndarray_shm::pool::PoolOptions;
use ndarray_shm::render::{RenderOptions, SharedWith};
use ndarray_shm::{
    Arena, CreateOptions, CreationMode, Directory, Error, ErrorKind, NextClaim, OpenOptions, Pool, RefcountedArray,
    RenderBuffer, SharedArray,
};

use crate::support::child::{Child, ROLE, Role, copy_program, hear, program, say};
use crate::support::random::Random;
use crate::support::{Place, forks, with_drafts_as_told};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials("steps", "stress", tests![no_process_reads_elements_of_another_array])
}

pub const ROLES: &[(&str, Role)] = &[("stress-worker", work)];

/// The variable with the duration in seconds, which `scripts/soak` sets higher.
const SECONDS: &str = "NDSHM_TEST_STRESS_SECONDS";
/// A worker's last line. Before it, the worker prints each act that has succeeded, once.
const END: &str = "end";
const WORKERS: usize = 5;
const NAMES: usize = 4;
/// The prefix of the names under which plain arrays sometimes contain the bytes of a frozen array.
const FORGED: &str = "stress-forged";
const SHAPE: (usize, usize) = (64, 16);
/// The other user's number.
const STRANGER: u32 = 41_003;
/// The rows of a block. The rows of every chunk are a multiple of it.
const ROWS: usize = 8;
const BLOCK: usize = ROWS * SHAPE.1;

/// Ends the process if a block has more than one value.
fn check<D: Dimension>(view: &ArrayView<'_, u64, D>, what: &str) {
    let elements: Vec<u64> = view.iter().copied().collect();
    for block in elements.chunks(BLOCK) {
        let torn = block.iter().find(|element| **element != block[0]);
        assert!(torn.is_none(), "{what}: {} and {torn:?} in one block", block[0]);
    }
}

/// A worker's state.
struct Worker {
    backend: Directory,
    /// The permission bits of everything that the worker creates.
    permissions: u32,
    pool: Pool,
    random: Random,
    arena: Option<Arena>,
    /// These arrays and the buffer are kept for a while, and forked children inherit them.
    plain: Option<SharedArray<u64, Ix2>>,
    counted: Option<RefcountedArray<u64, Ix2>>,
    buffer: Option<RenderBuffer<u64, Ix2>>,
    forked: Vec<i32>,
    done: [bool; ACTS.len()],
}

type Act = fn(&mut Worker) -> ndarray_shm::Result<()>;

const ACTS: [(&str, Act); 15] = [
    ("create", Worker::create),
    ("read", Worker::read),
    ("write", Worker::write),
    ("unlink", Worker::unlink),
    ("counted", Worker::count),
    ("frozen", Worker::freeze),
    ("forge", Worker::forge),
    ("forged", Worker::look_at_forged),
    ("channel", Worker::send),
    ("arena", Worker::allocate),
    ("pool", Worker::recycle),
    ("buffer", Worker::begin),
    ("paint", Worker::paint),
    ("finish", Worker::finish),
    ("fork", Worker::fork),
];

impl Worker {
    fn name(&mut self) -> String {
        format!("stress-{}", self.random.below(NAMES))
    }

    fn create(&mut self) -> ndarray_shm::Result<()> {
        let (name, value) = (self.name(), self.random.number());
        let mode = [CreationMode::CreateNew, CreationMode::OpenOrCreate, CreationMode::Replace][self.random.below(3)];
        let options = CreateOptions::new().directory(self.backend.clone()).permissions(self.permissions);
        let options = options.mode(mode).keep_fd(self.random.below(2) == 0);
        self.plain = Some(options.create_with(name, SHAPE, |mut view| view.fill(value))?);
        Ok(())
    }

    fn read(&mut self) -> ndarray_shm::Result<()> {
        let name = self.name();
        let array: SharedArray<u64, Ix2> = OpenOptions::new().directory(self.backend.clone()).open(name, SHAPE)?;
        check(&array.read_timeout(Duration::from_millis(50))?.view(), "a read guard");
        self.plain = Some(array);
        Ok(())
    }

    fn write(&mut self) -> ndarray_shm::Result<()> {
        let (name, value) = (self.name(), self.random.number());
        let array: SharedArray<u64, Ix2> = OpenOptions::new().directory(self.backend.clone()).open(name, SHAPE)?;
        let mut guard = array.write_timeout(Duration::from_millis(50))?;
        check(&guard.view(), "a write guard");
        guard.fill(value);
        std::thread::yield_now();
        assert!(guard.iter().all(|element| *element == value), "a write guard was not exclusive");
        Ok(())
    }

    fn unlink(&mut self) -> ndarray_shm::Result<()> {
        let name: ndarray_shm::Location = self.name().parse()?;
        self.backend.unlink(&name).map(drop)
    }

    fn count(&mut self) -> ndarray_shm::Result<()> {
        let (name, value) = (self.name(), self.random.number());
        let options = CreateOptions::new().directory(self.backend.clone()).permissions(self.permissions);
        let options = options.mode(CreationMode::OpenOrCreate);
        let array: RefcountedArray<u64, Ix2> = options.create_counted_with(name, SHAPE, |mut view| view.fill(value))?;
        if self.random.below(2) == 0 {
            array.write_timeout(Duration::from_millis(50))?.fill(value);
        }
        check(&array.read_timeout(Duration::from_millis(50))?.view(), "a counted array");
        self.counted = Some(array);
        Ok(())
    }

    fn freeze(&mut self) -> ndarray_shm::Result<()> {
        let name = self.name();
        let array: RefcountedArray<u64, Ix2> = OpenOptions::new().directory(self.backend.clone()).open_counted(name)?;
        if self.random.below(4) == 0 {
            array.freeze()?;
        }
        Self::watch(&array)
    }

    /// Gives the elements of a plain array the bytes of a frozen one, for a moment.
    fn forge(&mut self) -> ndarray_shm::Result<()> {
        let (name, value) = (format!("{FORGED}-{}", self.name()), self.random.number());
        let options = CreateOptions::new().directory(self.backend.clone()).mode(CreationMode::Replace);
        let frozen: RefcountedArray<u64, Ix2> =
            options.create_counted_with(name.as_str(), SHAPE, |mut view| view.fill(value))?;
        frozen.freeze()?;
        let Ok(bytes) = std::fs::read(self.backend.path().join(&name)) else { return Ok(()) };
        drop(frozen);
        let bytes = bytes.chunks_exact(8).map(|bytes| u64::from_ne_bytes(bytes.try_into().expect("8 bytes")));
        let options = CreateOptions::new().directory(self.backend.clone()).permissions(self.permissions);
        let plain: SharedArray<u64, Ix1> = options.mode(CreationMode::OpenOrCreate).create(name, bytes.len())?;
        let mut guard = plain.write_timeout(Duration::from_millis(50))?;
        guard.iter_mut().zip(bytes).for_each(|(element, byte)| *element = byte);
        for _ in 0..20 {
            std::thread::sleep(Duration::from_micros(100));
            guard[0] = guard[0].wrapping_add(1);
        }
        guard.fill(0);
        Ok(())
    }

    fn look_at_forged(&mut self) -> ndarray_shm::Result<()> {
        let name = format!("{FORGED}-{}", self.name());
        match OpenOptions::new().directory(self.backend.clone()).open_counted(name.as_str()) {
            Ok(array) => {
                Self::watch(&array)?;
                // Either the creator of a real frozen array was killed, or the elements pass for one. While the name
                // exists, no process can forge another array under it.
                self.backend.unlink(name).map(drop)
            }
            Err(Error { kind: ErrorKind::NotCounted, .. }) => Ok(()), // the right answer for a plain array
            Err(error) => Err(error),
        }
    }

    /// Reads a frozen array twice, and asserts that it has not changed.
    fn watch(array: &RefcountedArray<u64, Ix2>) -> ndarray_shm::Result<()> {
        let view = array.view()?;
        let before = view.to_owned();
        check(&before.view(), "a frozen array");
        std::thread::sleep(Duration::from_micros(500));
        assert!(before == view, "a frozen array has changed");
        Ok(())
    }

    fn send(&mut self) -> ndarray_shm::Result<()> {
        let value = self.random.number();
        let strategy = [SharingStrategy::FileDescriptor, SharingStrategy::FileSystem][self.random.below(2)];
        let options = CreateOptions::new().directory(self.backend.clone());
        let array: RefcountedArray<u64, Ix2> = options.share_with(strategy, SHAPE, |mut view| view.fill(value))?;
        let (here, there) = Channel::pair()?;
        here.send(&value, &[&array])?;
        drop(array);
        let received = there.receive_timeout::<u64>(Duration::from_secs(1))?;
        for parcel in received.arrays {
            let array: RefcountedArray<u64, Ix2> = parcel.directory(self.backend.clone()).attach()?;
            assert!(array.read()?.iter().all(|element| *element == received.message), "another array was received");
            self.counted = Some(array);
        }
        Ok(())
    }

    fn allocate(&mut self) -> ndarray_shm::Result<()> {
        let value = self.random.number();
        let options = ArenaOptions::new().directory(self.backend.clone()).permissions(self.permissions);
        if self.arena.is_none() {
            self.arena = Some(
                Arena::open_in(&self.backend, "stress-arena").or_else(|_| options.create("stress-arena", 1 << 20))?,
            );
        }
        let Some(arena) = self.arena.take() else { return Ok(()) };
        let mut draft = arena.draft::<u64, _>(SHAPE)?;
        draft.view_mut().fill(value);
        let array = draft.share()?;
        std::thread::yield_now();
        assert!(array.view().iter().all(|element| *element == value), "an arena's block was not exclusive");
        if self.random.below(4) > 0 {
            self.arena = Some(arena);
        }
        Ok(())
    }

    fn recycle(&mut self) -> ndarray_shm::Result<()> {
        let (name, value) = (self.name(), self.random.number());
        let mut draft = self.pool.take::<u64, _>(SHAPE)?;
        check(&draft.view(), "recycled memory");
        draft.view_mut().fill(value);
        std::thread::yield_now();
        assert!(draft.view().iter().all(|element| *element == value), "a draft was not exclusive");
        let array = draft.publish(name)?;
        check(&array.read_timeout(Duration::from_millis(50))?.view(), "a pool's array");
        if self.random.below(2) == 0 {
            self.plain = Some(array.into_array());
        }
        Ok(())
    }

    fn begin(&mut self) -> ndarray_shm::Result<()> {
        let name = self.name();
        let rows = ROWS << self.random.below(3);
        let options = self.render_options();
        let options = if self.random.below(2) == 0 { options.pool(&self.pool) } else { options };
        self.buffer = Some(options.create(name, SHAPE, (rows, SHAPE.1), "stress")?);
        Ok(())
    }

    fn paint(&mut self) -> ndarray_shm::Result<()> {
        let value = self.random.number();
        let Some(buffer) = &self.buffer else { return Ok(()) };
        if let NextClaim::Chunk(mut chunk) = buffer.claim_next()? {
            chunk.view_mut().fill(value);
            std::thread::yield_now();
            assert!(chunk.view_mut().iter().all(|element| *element == value), "a claim was not exclusive");
            chunk.commit()?;
        }
        if let Some(chunk) = buffer.chunk(0)? {
            let first = chunk.view().to_owned();
            check(&first.view(), "a finished chunk");
        }
        Ok(())
    }

    fn finish(&mut self) -> ndarray_shm::Result<()> {
        let Some(buffer) = self.buffer.take() else { return Ok(()) };
        match self.random.below(8) {
            0 => return buffer.discard(),
            _ if !buffer.progress().is_complete() => self.buffer = Some(buffer),
            _ => {
                let array = buffer.finish().map_err(|refused| refused.into_parts().0)?;
                check(&array.read_timeout(Duration::from_millis(50))?.view(), "a finished buffer");
                if self.random.below(2) == 0 {
                    self.pool.put(array).map_err(|refused| refused.into_parts().0)?;
                }
            }
        }
        Ok(())
    }

    /// Forks a child that uses the inherited values for a while, as this process goes on.
    fn fork(&mut self) -> ndarray_shm::Result<()> {
        if self.forked.len() == 2 {
            forks::wait(self.forked.remove(0));
        }
        let rounds = self.random.below(40);
        let child = forks::fork(|| {
            stay();
            for _ in 0..rounds {
                if let Some(guard) = self.plain.as_ref().and_then(|array| array.try_read().ok()) {
                    check(&guard.view(), "an inherited array");
                }
                if let Some(mut guard) = self.plain.as_ref().and_then(|array| array.try_write().ok()) {
                    guard.fill(rounds as u64);
                    std::thread::yield_now();
                    assert!(
                        guard.iter().all(|element| *element == rounds as u64),
                        "a forked child's guard was not exclusive"
                    );
                }
                if let Some(guard) = self.counted.as_ref().and_then(|array| array.try_read().ok()) {
                    check(&guard.view(), "an inherited counted array");
                }
                if let Some(Ok(Some(chunk))) = self.buffer.as_ref().map(|buffer| buffer.chunk(0)) {
                    check(&chunk.view(), "a chunk of an inherited buffer");
                }
                std::thread::sleep(Duration::from_micros(200));
            }
            true
        });
        self.forked.push(child);
        self.freeze_recycled()?;
        self.turn_over()
    }

    /// Uses the memory of the array that children may have inherited for a frozen one.
    fn freeze_recycled(&mut self) -> ndarray_shm::Result<()> {
        let Some(array) = self.plain.take() else { return Ok(()) };
        let value = self.random.number();
        self.pool.put(array).map_err(|refused| refused.into_parts().0)?;
        let mut draft = self.pool.take::<u64, _>(SHAPE)?;
        draft.view_mut().fill(value);
        let frozen = draft.into_draft().share(SharingStrategy::FileSystem).map_err(|refused| refused.into_parts().0)?;
        frozen.freeze()?;
        Self::watch(&frozen)?;
        Self::watch(&frozen)
    }

    /// Finishes the buffer that children may have inherited, and uses its memory for another buffer of the same name
    /// with other chunks.
    fn turn_over(&mut self) -> ndarray_shm::Result<()> {
        let Some(buffer) = self.buffer.take() else { return Ok(()) };
        let value = self.random.number();
        while let NextClaim::Chunk(mut chunk) = buffer.claim_next()? {
            chunk.view_mut().fill(value);
            chunk.commit()?;
        }
        let name = buffer.location().clone();
        let array = buffer.finish().map_err(|refused| refused.into_parts().0)?;
        self.pool.put(array).map_err(|refused| refused.into_parts().0)?;
        let rows = ROWS << self.random.below(3);
        let options = self.render_options().pool(&self.pool);
        let buffer = options.create(&name, SHAPE, (rows, SHAPE.1), "stress")?;
        if let NextClaim::Chunk(mut chunk) = buffer.claim_next()? {
            for mut row in chunk.view_mut().rows_mut() {
                row.fill(value);
                std::thread::sleep(Duration::from_micros(100));
            }
            chunk.commit()?;
        }
        self.buffer = Some(buffer);
        Ok(())
    }

    fn render_options(&self) -> RenderOptions {
        let options = RenderOptions::new().directory(self.backend.clone()).permissions(self.permissions);
        options.shared_with(SharedWith::Users(vec![0, STRANGER]))
    }
}

/// Keeps a forked child from stopping itself at a step: its parent waits for it.
#[allow(unsafe_code)]
fn stay() {
    // SAFETY: the child of a process with one thread has one thread.
    unsafe { std::env::remove_var("NDSHM_STEP") };
}

/// A worker: does random acts until its time is over.
fn work(arguments: &[String]) {
    let seed: u64 = arguments[0].parse().unwrap();
    let backend = with_drafts_as_told(Directory::new("given", &arguments[3]));
    let permissions = u32::from_str_radix(&arguments[2], 8).unwrap();
    let pool = PoolOptions::new().directory(backend.clone()).permissions(permissions).create().unwrap();
    let mut worker = Worker {
        backend,
        permissions,
        pool,
        random: Random::new(seed),
        arena: None,
        plain: None,
        counted: None,
        buffer: None,
        forked: Vec::new(),
        done: [false; ACTS.len()],
    };
    let end = Instant::now() + Duration::from_millis(arguments[1].parse().unwrap());
    while Instant::now() < end {
        let act = worker.random.below(ACTS.len());
        if ACTS[act].1(&mut worker).is_ok() && !std::mem::replace(&mut worker.done[act], true) {
            say(ACTS[act].0);
        }
        if worker.random.below(8) == 0 {
            (worker.plain, worker.counted) = (None, None);
        }
    }
    for child in std::mem::take(&mut worker.forked) {
        forks::wait(child);
    }
    say(END);
    hear();
}

/// Starts a worker. If there is a program for the other user, every second worker on average runs as that user.
fn start(place: &Place, random: &mut Random, lifetime: Duration, of_others: Option<&Path>) -> Child {
    let mut command = Command::new(program());
    if let Some(program) = of_others.filter(|_| random.below(2) == 0) {
        command = Command::new("setpriv");
        command
            .args([format!("--reuid={STRANGER}"), format!("--regid={STRANGER}"), "--clear-groups".into()])
            .arg(program);
    }
    // The worker stops itself at every 20th to 219th step.
    command.env("NDSHM_STEP", format!("every {}", 20 + random.below(200)));
    command.env(ROLE, "stress-worker").envs(place.environment());
    let permissions = if of_others.is_some() { "666" } else { "600" };
    command.args([random.number().to_string(), lifetime.as_millis().to_string(), permissions.to_owned()]);
    command.arg(place.directory());
    Child::spawn(command)
}

fn no_process_reads_elements_of_another_array(place: &Place) {
    let place = &place.private();
    let programs = tempfile::tempdir().unwrap();
    let of_others = rustix::process::geteuid().is_root().then(|| {
        std::fs::set_permissions(programs.path(), Permissions::from_mode(0o755)).unwrap();
        std::fs::set_permissions(place.directory(), Permissions::from_mode(0o777)).unwrap();
        let program = programs.path().join("it");
        copy_program(&program);
        program
    });
    let of_others = of_others.as_deref();
    println!("{} users", 1 + u32::from(of_others.is_some()));
    let seconds = std::env::var(SECONDS).map_or(5, |seconds| seconds.parse().expect("a number of seconds"));
    let seed = std::process::id().into();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let end = Instant::now() + Duration::from_secs(seconds);
    let left = || end.saturating_duration_since(Instant::now());
    let mut workers: Vec<Child> = (0..WORKERS).map(|_| start(place, &mut random, left(), of_others)).collect();
    let (mut kills, mut stops) = (0, 0);
    let mut done = BTreeSet::new();
    while !left().is_zero() {
        std::thread::sleep(Duration::from_millis(1 + random.below(10) as u64));
        for worker in &mut workers {
            if worker.is_stopped() {
                stops += 1;
                match random.below(6) {
                    0 => {
                        worker.kill();
                        done.extend(worker.rest());
                        *worker = start(place, &mut random, left(), of_others);
                        kills += 1;
                    }
                    1 => {} // stays stopped
                    _ => worker.resume(),
                }
            }
        }
    }
    for worker in &mut workers {
        while !done.remove(END) {
            if worker.is_stopped() {
                worker.resume();
            }
            done.extend(worker.line_within(Duration::from_millis(20)));
        }
        worker.kill_alive();
    }
    println!("{kills} kills, {stops} stops");
    let idle: Vec<&str> = ACTS.iter().map(|act| act.0).filter(|act| !done.contains(*act)).collect();
    assert!(idle.is_empty(), "never done: {idle:?}");
}
