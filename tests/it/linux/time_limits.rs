//! A caller's time limit holds also for locks that other processes keep for moments: a stopped process keeps them for
//! long.
//!
//! A child that takes such a lock and keeps it stands for the stopped process.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::backend::EntryKind;
use ndarray_shm::{Arena, ErrorKind, OpenOptions, RenderBuffer, Result};

use crate::support::child::{Child, Role, hear, say};
use crate::support::{Place, arena_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "linux",
        "time_limits",
        tests![
            draft_wait_keeps_its_limit_beside_a_stopped_member,
            draft_wait_finds_memory_beside_a_stopped_member,
            reader_keeps_its_limit_while_its_lease_is_refused,
            reader_with_a_long_limit_outlasts_a_refused_lease,
            render_timeout_limits_the_wait_for_a_lease,
            #[cfg(feature = "channel")]
            send_timeout_limits_the_revocation_of_handles,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[("keep-lock", keep_lock), ("wait-for-block", wait_for_block)];

/// Lock bytes, as docs/layout.md names them.
const BASE: i64 = 1 << 62;
const LEASE: i64 = BASE;
const SPANS: i64 = BASE + 16;
const RECOVER: i64 = BASE + 17;

const LIMIT: Duration = Duration::from_millis(100);
/// Shorter than every limit that the library uses where the caller has set none.
const SOON: Duration = Duration::from_secs(4);

/// A child that write-locks one byte of a file, and keeps it.
#[allow(unsafe_code)]
fn keep_lock(arguments: &[String]) {
    let file = File::options().read(true).write(true).open(&arguments[0]).unwrap();
    // SAFETY: every field is an integer.
    let mut lock = unsafe { std::mem::zeroed::<libc::flock64>() };
    (lock.l_type, lock.l_start, lock.l_len) = (libc::F_WRLCK as _, arguments[1].parse().unwrap(), 1);
    // SAFETY: the descriptor is open, and the command reads one such structure.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }, 0);
    say("kept");
    hear();
}

fn keeper(place: &Place, path: &Path, byte: i64) -> Child {
    let mut keeper = Child::start(place, "keep-lock", &[path.to_str().unwrap(), &byte.to_string()]);
    keeper.expect("kept");
    keeper
}

/// Asserts that a wait ended at its limit, and not at one of the library's.
fn ends_in_time<R>(wait: impl FnOnce() -> Result<R>) {
    let begin = Instant::now();
    let error = wait().map(drop).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::TimedOut { waited: LIMIT, .. }), "{error:?}");
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
}

/// Creates an arena of four spans, and arrays that fill it.
fn full_arena(place: &Place, name: &str) -> (Arena, Vec<ndarray_shm::arena::ArenaDraft<u8, Ix1>>) {
    let arena = place.arena_options().create(name, 1 << 18).unwrap();
    let drafts = (0..4).map(|_| arena.draft(50_000).unwrap()).collect();
    (arena, drafts)
}

/// A child that waits without limit for a block, and keeps it.
fn wait_for_block(arguments: &[String]) {
    let arena = arena_of_child(arguments);
    say("waiting");
    let block = arena.draft_wait::<u8, _>(50_000, Duration::MAX).unwrap();
    say("got");
    hear();
    drop(block);
}

fn draft_wait_keeps_its_limit_beside_a_stopped_member(place: &Place) {
    for byte in [RECOVER, SPANS] {
        let name = place.location("limited");
        let (arena, drafts) = full_arena(place, name.as_str());
        let stopped = keeper(place, &place.path(&name), byte);
        ends_in_time(|| arena.draft_wait::<u8, _>(50_000, LIMIT));
        ends_in_time(|| arena.draft_wait::<u8, _>(200_000, LIMIT)); // a run of spans
        drop((stopped, drafts));
    }
}

fn draft_wait_finds_memory_beside_a_stopped_member(place: &Place) {
    for byte in [RECOVER, SPANS] {
        let name = place.location("freed");
        let (arena, mut drafts) = full_arena(place, name.as_str());
        let stopped = keeper(place, &place.path(&name), byte);
        let mut waiter = Child::start(place, "wait-for-block", &[name.as_str()]);
        waiter.expect("waiting");
        assert_eq!(waiter.line_within(Duration::from_millis(500)), None, "no block is free");
        drafts.pop();
        waiter.expect("got");
        drop(stopped);
        waiter.tell("drop it");
        waiter.finish();
        drop((drafts, arena));
    }
}

fn reader_keeps_its_limit_while_its_lease_is_refused(place: &Place) {
    let name = place.location("leased");
    drop(place.options().create::<u8, Ix1>(name.location(), 10).unwrap());
    let _stopped = keeper(place, &place.path(&name), LEASE);
    let options = OpenOptions::new().directory(place.backend.clone());
    ends_in_time(|| options.timeout(LIMIT).open_reader::<u8, Ix1>(name.location(), 10));
}

fn reader_with_a_long_limit_outlasts_a_refused_lease(place: &Place) {
    let name = place.location("leased-long");
    drop(place.options().create::<u8, Ix1>(name.location(), 10).unwrap());
    let stopped = keeper(place, &place.path(&name), LEASE);
    let options = OpenOptions::new().directory(place.backend.clone()).timeout(Duration::MAX);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| options.open_reader::<u8, Ix1>(name.location(), 10).map(drop));
        std::thread::sleep(Duration::from_secs(6)); // longer than a wait without a limit of the caller
        drop(stopped);
        reader.join().unwrap().unwrap();
    });
}

fn render_timeout_limits_the_wait_for_a_lease(place: &Place) {
    let place = &place.private();
    let name = place.location("painted");
    let begin = || place.render_options().timeout(LIMIT).create::<u8, Ix1>(name.location(), 100, 10, "limits");
    drop(begin().unwrap());
    let partial = place.backend.list().unwrap().into_iter().find(|entry| entry.kind == EntryKind::Partial).unwrap();
    let stopped = keeper(place, &place.directory().join(partial.name), LEASE);
    ends_in_time(|| place.render_options().timeout(LIMIT).open::<u8, Ix1>(name.location()));
    ends_in_time(begin);
    drop(stopped);
    let buffer: RenderBuffer<u8, Ix1> = place.render_options().open(name.location()).unwrap();
    buffer.discard().unwrap();
}

/// The message is larger than what the kernel takes, and no process receives it.
#[cfg(feature = "channel")]
fn send_timeout_limits_the_revocation_of_handles(place: &Place) {
    let name = place.location("sent");
    let array = place.options().create_counted::<u8, Ix1>(name.location(), 10).unwrap();
    let _stopped = keeper(place, &place.path(&name), LEASE);
    let (here, _there) = ndarray_shm::counted::Channel::pair().unwrap();
    ends_in_time(|| {
        let by_name = array.by(ndarray_shm::counted::SharingStrategy::FileSystem);
        here.send_timeout(&"long".repeat(1 << 20), &[&by_name], LIMIT)
    });
}
