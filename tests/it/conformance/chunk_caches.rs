//! Caches of chunks: each chunk is made once, what is read does not change, and a killed process delays none.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray_shm::cache::{self, Bypass, CacheOptions, ChunkCache, Lookup};
use ndarray_shm::counted::{Reclaim, RemovedKind};
use ndarray_shm::{ErrorKind, backend};

use crate::support::child::{Child, Role, hear, say};
use crate::support::{Name, Place, backend_of_child, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "chunk_caches",
        tests![
            chunk_is_made_once_by_all_processes,
            chunks_of_all_lengths_share_a_cache,
            chunk_that_is_read_is_not_overwritten,
            full_cache_drops_what_was_not_used_for_the_longest_time,
            killed_filler_is_followed_by_one_waiter,
            waiter_goes_on_without_a_filler_that_is_stopped,
            outdated_chunk_is_made_again,
            chunk_without_bytes_takes_no_slot,
            chunk_that_is_not_published_never_was,
            threads_make_each_chunk_once,
            wait_for_a_chunk_can_be_interrupted,
            names_and_sizes_are_checked,
            trimmed_cache_gives_its_memory_back,
            users_of_an_unlinked_cache_go_on,
            unused_cache_is_removed_after_its_time,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[
    ("cache-make", make_all),
    ("cache-claim", claim_and_wait),
    ("cache-look", look_and_report),
    ("cache-hold", make_and_hold),
];

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(60);
const CHUNK: usize = 40_000; // two slots

fn options(place: &Place) -> CacheOptions {
    CacheOptions::new().directory(place.backend.clone())
}

fn cache_of(place: &Place, label: &str, bytes: u64) -> (Name, ChunkCache) {
    let name = place.location(label);
    let cache = options(place).create(name.location(), bytes).unwrap();
    (name, cache)
}

fn cache_of_child(arguments: &[String]) -> ChunkCache {
    CacheOptions::new().directory(backend_of_child()).open(&arguments[0]).unwrap()
}

fn unlink(place: &Place, name: &Name) {
    assert!(cache::unlink(&place.backend, name.location()).unwrap());
}

/// A key with other bits in both halves for each number.
pub fn key(number: u64) -> u128 {
    let low = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    u128::from(low ^ low >> 29) << 64 | u128::from(low.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ low >> 31)
}

fn byte(number: u64, index: usize) -> u8 {
    (number as usize).wrapping_mul(31).wrapping_add(index).wrapping_mul(7).to_le_bytes()[0]
}

pub fn fill(number: u64, bytes: &mut [u8]) {
    bytes.iter_mut().enumerate().for_each(|(index, value)| *value = byte(number, index));
}

pub fn check(number: u64, bytes: &[u8]) {
    assert!(bytes.iter().enumerate().all(|(index, value)| *value == byte(number, index)), "chunk {number} is torn");
}

/// What became of a chunk that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Got {
    Found,
    Made,
    Unkept,
    Bypassed(Bypass),
}

/// Gets a chunk as a volume would, and checks its bytes.
pub fn get(cache: &ChunkCache, number: u64, length: usize, since: u64, patience: Duration) -> Got {
    match cache.look(key(number), length, since, patience).unwrap() {
        Lookup::Found(chunk) => {
            check(number, chunk.bytes().unwrap());
            Got::Found
        }
        Lookup::Claimed(mut claim) => {
            let checked = cache.now();
            let Some(mut chunk) = claim.room().unwrap() else { return Got::Unkept };
            fill(number, chunk.bytes_mut().unwrap());
            chunk.publish(1, checked).unwrap();
            Got::Made
        }
        Lookup::Bypass(why) => Got::Bypassed(why),
        other => panic!("{other:?}"),
    }
}

fn soon(cache: &ChunkCache, number: u64) -> Got {
    get(cache, number, CHUNK, 0, SOON)
}

/// A child that gets so many chunks in an order of its own, and reports how many of them it has made.
fn make_all(arguments: &[String]) {
    let cache = cache_of_child(arguments);
    let [count, seed] = [1, 2].map(|at: usize| arguments[at].parse::<u64>().unwrap());
    say("open");
    hear();
    let made = (0..count).filter(|number| soon(&cache, (number * seed) % count) == Got::Made).count();
    say(made);
}

/// A child that claims a chunk, and keeps it until it is told to make it.
fn claim_and_wait(arguments: &[String]) {
    let cache = cache_of_child(arguments);
    let Lookup::Claimed(mut claim) = cache.look(key(1), CHUNK, 0, SOON).unwrap() else { panic!("no claim") };
    let checked = cache.now();
    let mut chunk = claim.room().unwrap().unwrap();
    fill(77, chunk.bytes_mut().unwrap()); // as if it was half done
    say("claimed");
    hear();
    fill(1, chunk.bytes_mut().unwrap());
    chunk.publish(1, checked).unwrap();
    drop(claim);
    say("made");
}

/// A child that gets one chunk and reports how.
fn look_and_report(arguments: &[String]) {
    let cache = cache_of_child(arguments);
    let patience = Duration::from_millis(arguments[1].parse().unwrap());
    say("open");
    say(format!("{:?}", get(&cache, 1, CHUNK, 0, patience)));
}

fn chunk_is_made_once_by_all_processes(place: &Place) {
    let (name, cache) = cache_of(place, "once", 32 * MIB);
    let count = 101; // a prime, so that each seed reaches all
    let start = |seed: &u64| Child::start(place, "cache-make", &[name.as_str(), &count.to_string(), &seed.to_string()]);
    let mut children: Vec<Child> = [1_u64, 7, 40].iter().map(start).collect();
    children.iter_mut().for_each(|child| child.expect("open"));
    children.iter_mut().for_each(|child| child.tell("go"));
    let made: u64 = children.iter_mut().map(|child| child.line().parse::<u64>().unwrap()).sum();
    children.into_iter().for_each(Child::finish);
    assert_eq!(made, count);
    for number in 0..count {
        assert_eq!(soon(&cache, number), Got::Found, "they stay when their makers have ended");
    }
    let found = cache.inspect().unwrap();
    assert_eq!((found.fills, found.hits, found.evictions), (count, 3 * count, 0));
    assert_eq!(found.filled, count * 2 * (32 << 10));
    unlink(place, &name);
}

fn chunks_of_all_lengths_share_a_cache(place: &Place) {
    let (name, cache) = cache_of(place, "lengths", 8 * MIB);
    let lengths = [1, 1000, 32 << 10, (32 << 10) + 1, 100_000, 1 << 20, 2 << 20];
    for turn in 0..3 {
        for number in 0..60 {
            let length = lengths[(number as usize * 5 + turn) % lengths.len()];
            let got = get(&cache, number, length, 0, SOON);
            assert!(matches!(got, Got::Found | Got::Made), "{got:?}");
            assert_eq!(get(&cache, number, length, 0, SOON), Got::Found, "chunk {number} of {length} bytes");
        }
    }
    // Whatever overlapped is whole, or not there.
    for number in 0..60 {
        for length in lengths {
            if let Lookup::Found(chunk) = cache.look(key(number), length, 0, SOON).unwrap() {
                check(number, chunk.bytes().unwrap());
            }
        }
    }
    assert_eq!(get(&cache, 1, (2 << 20) + 1, 0, SOON), Got::Bypassed(Bypass::TooLong), "a quarter of the cache");
    assert!(cache.inspect().unwrap().evictions > 0);
    unlink(place, &name);
}

fn chunk_that_is_read_is_not_overwritten(place: &Place) {
    let (name, cache) = cache_of(place, "read", MIB / 2);
    let mut held = Vec::new();
    for number in 0..8 {
        assert_eq!(soon(&cache, number), Got::Made);
        let Lookup::Found(chunk) = cache.look(key(number), CHUNK, 0, SOON).unwrap() else { panic!("it was made") };
        held.push(chunk);
    }
    // All 16 slots are read: nothing is kept, in this process or another, whatever its length.
    let other = options(place).open(name.location()).unwrap();
    for number in 8..20 {
        assert_eq!(soon(&cache, number), Got::Unkept);
        assert_eq!(get(&other, number, 100, 0, SOON), Got::Unkept);
    }
    for (number, chunk) in held.iter().enumerate() {
        check(number as u64, chunk.bytes().unwrap());
    }
    assert_eq!(cache.inspect().unwrap().held, 24);
    drop(held.remove(3));
    assert_eq!(soon(&cache, 8), Got::Made);
    assert_eq!(soon(&other, 8), Got::Found);
    drop(held);
    assert_eq!(get(&other, 30, 100, 0, SOON), Got::Made);
    unlink(place, &name);
}

fn full_cache_drops_what_was_not_used_for_the_longest_time(place: &Place) {
    let (name, cache) = cache_of(place, "lru", MIB / 2); // one set: 8 chunks
    for number in 0..8 {
        assert_eq!(soon(&cache, number), Got::Made);
    }
    for number in [0, 2, 3, 4, 5, 6, 7] {
        assert_eq!(soon(&cache, number), Got::Found);
    }
    assert_eq!(soon(&cache, 8), Got::Made);
    for number in [0, 2, 3, 4, 5, 6, 7, 8] {
        assert_eq!(soon(&cache, number), Got::Found, "chunk {number}");
    }
    assert_eq!(soon(&cache, 1), Got::Made, "it had made way");
    unlink(place, &name);
}

fn killed_filler_is_followed_by_one_waiter(place: &Place) {
    let (name, cache) = cache_of(place, "killed", MIB);
    let mut filler = Child::start(place, "cache-claim", &[name.as_str()]);
    filler.expect("claimed");
    let mut waiters: Vec<Child> =
        (0..2).map(|_| Child::start(place, "cache-look", &[name.as_str(), "60000"])).collect();
    waiters.iter_mut().for_each(|waiter| waiter.expect("open"));
    eventually("both wait", || cache.inspect().unwrap().waits == 2);
    filler.kill();
    let mut got: Vec<String> = waiters.iter_mut().map(Child::line).collect();
    got.sort();
    assert_eq!(got, ["Found", "Made"]);
    waiters.into_iter().for_each(Child::finish);
    assert_eq!(soon(&cache, 1), Got::Found);
    unlink(place, &name);
}

fn waiter_goes_on_without_a_filler_that_is_stopped(place: &Place) {
    let (name, cache) = cache_of(place, "stopped", MIB);
    let mut filler = Child::start(place, "cache-claim", &[name.as_str()]);
    filler.expect("claimed");
    let begin = Instant::now();
    assert_eq!(get(&cache, 1, CHUNK, 0, Duration::from_millis(50)), Got::Bypassed(Bypass::Late));
    assert!(begin.elapsed() >= Duration::from_millis(50));
    assert_eq!(soon(&cache, 2), Got::Made, "other chunks are not affected");
    assert_eq!(cache.inspect().unwrap().late, 1);
    filler.tell("go");
    filler.expect("made");
    filler.finish();
    assert_eq!(soon(&cache, 1), Got::Found);
    unlink(place, &name);
}

fn outdated_chunk_is_made_again(place: &Place) {
    let (name, cache) = cache_of(place, "outdated", MIB);
    assert_eq!(soon(&cache, 1), Got::Made);
    // It was checked before: a volume that is opened now asks once.
    let opened = cache.now();
    let Lookup::Claimed(claim) = cache.look(key(1), CHUNK, opened, SOON).unwrap() else { panic!("a claim") };
    let old = claim.old().expect("it is there");
    assert_eq!((old.version(), old.checked() < opened), (1, true));
    check(1, old.bytes().unwrap());
    old.confirm(cache.now());
    drop(claim);
    assert_eq!(get(&cache, 1, CHUNK, opened, SOON), Got::Found);
    // The next one finds another version in the store, while a reader has the old one.
    let opened = cache.now();
    let Lookup::Found(reader) = cache.look(key(1), CHUNK, 0, SOON).unwrap() else { panic!("it is there") };
    let Lookup::Claimed(mut claim) = cache.look(key(1), CHUNK, opened, SOON).unwrap() else { panic!("a claim") };
    claim.forget();
    assert!(claim.old().is_none());
    let mut chunk = claim.room().unwrap().unwrap();
    fill(2, chunk.bytes_mut().unwrap());
    chunk.publish(2, cache.now()).unwrap();
    drop(claim);
    check(1, reader.bytes().unwrap());
    let Lookup::Found(chunk) = cache.look(key(1), CHUNK, opened, SOON).unwrap() else { panic!("it is there") };
    assert_eq!(chunk.version(), 2);
    check(2, chunk.bytes().unwrap());
    assert_eq!(cache.inspect().unwrap().stale, 1);
    unlink(place, &name);
}

fn chunk_without_bytes_takes_no_slot(place: &Place) {
    let (name, cache) = cache_of(place, "empty", MIB);
    for number in 0..8 {
        assert_eq!(get(&cache, number, 0, 0, SOON), Got::Made);
        assert_eq!(get(&cache, number, 0, 0, SOON), Got::Found);
    }
    let found = cache.inspect().unwrap();
    assert_eq!((found.fills, found.filled, found.hits), (0, 0, 8));
    unlink(place, &name);
}

fn chunk_that_is_not_published_never_was(place: &Place) {
    let (name, cache) = cache_of(place, "unpublished", MIB);
    let Lookup::Claimed(mut claim) = cache.look(key(1), CHUNK, 0, SOON).unwrap() else { panic!("a claim") };
    let mut chunk = claim.room().unwrap().unwrap();
    chunk.bytes_mut().unwrap().fill(255);
    drop(chunk);
    claim.unversioned();
    drop(claim);
    assert_eq!(soon(&cache, 1), Got::Made);
    let panicked = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let Ok(Lookup::Claimed(mut claim)) = cache.look(key(2), CHUNK, 0, SOON) else { panic!("a claim") };
        let _chunk = claim.room().unwrap();
        std::panic::resume_unwind(Box::new("while it was made"));
    }));
    assert!(panicked.is_err());
    assert_eq!(get(&cache, 2, CHUNK, 0, Duration::ZERO), Got::Made, "nothing stays locked");
    assert_eq!(cache.inspect().unwrap().unversioned, 1);
    unlink(place, &name);
}

fn threads_make_each_chunk_once(place: &Place) {
    let (name, cache) = cache_of(place, "threads", 16 * MIB);
    let made = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (cache, made) = (cache.clone(), &made);
            scope.spawn(move || {
                for turn in 0..200_u64 {
                    let number = (turn * (2 * thread + 1)) % 50;
                    match get(&cache, number, CHUNK, 0, SOON) {
                        Got::Found => {}
                        Got::Made => _ = made.fetch_add(1, Ordering::Relaxed),
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
    });
    assert_eq!(made.into_inner(), 50);
    unlink(place, &name);
}

fn wait_for_a_chunk_can_be_interrupted(place: &Place) {
    let (name, cache) = cache_of(place, "interrupt", MIB);
    let claim = cache.look(key(1), CHUNK, 0, SOON).unwrap();
    let begin = Instant::now();
    let looked = backend::interruptible(|| false, || cache.look(key(1), CHUNK, 0, SOON).map(drop));
    assert_eq!(looked.unwrap_err().kind, ErrorKind::Interrupted);
    assert!(begin.elapsed() < SOON / 2);
    drop(claim);
    unlink(place, &name);
}

fn names_and_sizes_are_checked(place: &Place) {
    let (name, cache) = cache_of(place, "names", MIB);
    let kind = |result: ndarray_shm::Result<ChunkCache>| result.map(drop).unwrap_err().kind;
    assert_eq!(kind(options(place).create(name.location(), MIB)), ErrorKind::AlreadyExists);
    assert_eq!(
        kind(options(place).open_or_create(name.location(), 2 * MIB)),
        ErrorKind::CacheSize { asked: 2 * MIB, found: MIB }
    );
    let same = options(place).open_or_create(name.location(), MIB - 1).unwrap();
    assert_eq!((same.id(), same.bytes()), (cache.id(), MIB), "a size is rounded up");
    let other = place.location("names-other");
    assert_eq!(kind(options(place).open(other.location())), ErrorKind::NotFound);
    for size in [0, MIB / 2 - 1, u64::MAX] {
        assert!(matches!(kind(options(place).create(other.location(), size)), ErrorKind::InvalidSetting { .. }));
    }
    assert!(!cache::unlink(&place.backend, other.location()).unwrap());
    // A cache and an array may have the same name, and neither is the other.
    assert!(place.open_options().open::<u8, _>(name.location(), 4).is_err());
    unlink(place, &name);
    let made = options(place).open_or_create(other.location(), MIB).unwrap();
    assert_ne!(made.id(), cache.id());
    unlink(place, &other);
}

fn trimmed_cache_gives_its_memory_back(place: &Place) {
    let (name, cache) = cache_of(place, "trim", 4 * MIB);
    let empty = cache.inspect().unwrap().allocated;
    for number in 0..32 {
        assert_eq!(soon(&cache, number), Got::Made);
    }
    let full = cache.inspect().unwrap().allocated;
    let Lookup::Found(held) = cache.look(key(0), CHUNK, 0, SOON).unwrap() else { panic!("it was made") };
    for number in 24..32 {
        assert_eq!(soon(&cache, number), Got::Found);
    }
    match cache.trim(MIB) {
        Ok(left) => {
            assert!(left < full && left.saturating_sub(empty) <= MIB, "{empty}, {full}, {left}");
            assert_eq!(cache.inspect().unwrap().allocated, left);
            for number in 24..32 {
                assert_eq!(soon(&cache, number), Got::Found, "chunk {number} was used last");
            }
            assert_eq!(soon(&cache, 2), Got::Made, "it was used first");
            cache.trim(0).unwrap();
            check(0, held.bytes().unwrap());
            assert_eq!(soon(&cache, 0), Got::Found, "it is read");
        }
        Err(error) => assert!(matches!(error.kind, ErrorKind::Unsupported { .. }), "{error}"),
    }
    drop(held);
    unlink(place, &name);
}

fn users_of_an_unlinked_cache_go_on(place: &Place) {
    let (name, cache) = cache_of(place, "unlinked", MIB);
    let other = options(place).open(name.location()).unwrap();
    unlink(place, &name);
    assert_eq!(soon(&cache, 1), Got::Made);
    assert_eq!(soon(&other, 1), Got::Found);
    assert!(!cache::unlink(&place.backend, name.location()).unwrap());
}

fn unused_cache_is_removed_after_its_time(place: &Place) {
    let place = &place.private();
    let (name, cache) = cache_of(place, "unused", MIB);
    let hour = Duration::from_secs(3600);
    let kept = |options: Reclaim| {
        let found = options.run(&place.backend).unwrap();
        assert_eq!((found.removed.len(), found.failed.len()), (0, 0), "{found:?}");
        (found.kept, found.next)
    };
    assert_eq!(soon(&cache, 1), Got::Made);
    assert_eq!(kept(Reclaim::new().caches(true)), (0, None), "it is open");
    drop(cache);
    // A child that is being started may have the lease for a moment.
    eventually("no process has it open", || kept(Reclaim::new()).0 == 1);
    assert!(kept(Reclaim::new()).1.is_some_and(|left| left <= hour && left > hour / 2));
    let inspected = options(place).keep(Duration::MAX).open(name.location()).unwrap().inspect().unwrap();
    assert!(inspected.keep == Duration::MAX && inspected.unused < hour / 2, "{inspected:?}");
    eventually("no process has it open", || kept(Reclaim::new()) == (1, None));
    let opened = options(place).keep(Duration::from_millis(1500)).open_or_create(name.location(), MIB).unwrap();
    assert_eq!((soon(&opened, 1), opened.inspect().unwrap().keep), (Got::Found, Duration::from_secs(2)));
    drop(opened);
    eventually("its time is over", || {
        let would = Reclaim::new().dry_run(true).run(&place.backend).unwrap();
        would.removed.iter().any(|removed| removed.kind == RemovedKind::Cache)
    });
    let found = place.reclaim();
    let [removed] = &found.removed[..] else { panic!("{found:?}") };
    assert!((removed.kind, found.kept) == (RemovedKind::Cache, 0) && removed.bytes > 0, "{removed:?}");
    assert!(!cache::unlink(&place.backend, name.location()).unwrap());
    // A user that was killed does not keep it.
    let mut user = Child::start(place, "cache-hold", &[name.as_str()]);
    user.expect("open");
    assert_eq!(kept(Reclaim::new().caches(true)), (0, None), "the child has it open");
    user.kill();
    eventually("it is removed on request", || {
        Reclaim::new().caches(true).run(&place.backend).unwrap().removed.len() == 1
    });
    assert!(!cache::unlink(&place.backend, name.location()).unwrap());
}

/// A child that makes a cache and has it open.
fn make_and_hold(arguments: &[String]) {
    let _cache = CacheOptions::new().directory(backend_of_child()).create(&arguments[0], MIB).unwrap();
    say("open");
    hear();
}
