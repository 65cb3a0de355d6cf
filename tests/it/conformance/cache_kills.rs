//! Processes that fill and read one cache are stopped and killed at random moments, again and again: no wrong byte, no
//! place or key that stays locked, and each chunk is made once as long as none is killed.
//!
//! `NDSHM_TEST_KILLS` is the number of processes that are killed; `scripts/soak` kills a thousand.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray_shm::cache::{self, CacheOptions, ChunkCache};

use super::chunk_caches::{Got, get};
use crate::support::child::{Child, Role, hear, say};
use crate::support::random::random;
use crate::support::{Place, backend_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials("conformance", "cache_kills", tests![killed_processes_spoil_no_chunk])
}

pub const ROLES: &[(&str, Role)] = &[("cache-storm", storm)];

/// Bytes of the cache: so few that chunks make way for others all the time.
const BYTES: u64 = 4 << 20;
/// Numbers of chunks.
const CHUNKS: u64 = 60;
/// Lengths of chunks: each number has one, so that runs of several lengths overlap.
const LENGTHS: [usize; 5] = [0, 1000, 40_000, 120_000, 500_000];
/// How long a process waits for another one that fills a chunk.
const PATIENCE: Duration = Duration::from_secs(60);

fn kills() -> usize {
    std::env::var("NDSHM_TEST_KILLS").map_or(25, |text| text.parse().expect("a number"))
}

fn length(number: u64) -> usize {
    LENGTHS[number as usize % LENGTHS.len()]
}

fn get_any(cache: &ChunkCache, since: u64) -> Got {
    let number = random() % CHUNKS;
    get(cache, number, length(number), since, PATIENCE)
}

/// A child that gets chunks, and checks their bytes, until it is killed or told to end.
fn storm(arguments: &[String]) {
    let cache = CacheOptions::new().directory(backend_of_child()).open(&arguments[0]).unwrap();
    say("open");
    let ends = std::thread::spawn(hear);
    let mut count = 0_u64;
    while !ends.is_finished() {
        // Now and then as a volume that was opened just now: the old chunk is looked at, and made again.
        let since = if random() % 16 == 0 { cache.now() } else { 0 };
        let got = get_any(&cache, since);
        assert!(!matches!(got, Got::Bypassed(_)), "{got:?}");
        count += 1;
    }
    say(count);
}

fn killed_processes_spoil_no_chunk(place: &Place) {
    let name = place.location("kills");
    let cache = CacheOptions::new().directory(place.backend.clone()).create(name.location(), BYTES).unwrap();
    let start = || {
        let mut child = Child::start(place, "cache-storm", &[name.as_str()]);
        child.expect("open");
        child
    };
    let mut children: Vec<Child> = (0..4).map(|_| start()).collect();
    for turn in 0..kills() {
        std::thread::sleep(Duration::from_micros(random() % 30_000));
        let index = random() as usize % children.len();
        if random() % 4 == 0 {
            children[index].stop(); // in the middle of anything; then killed without going on
        }
        if turn % 5 == 0 {
            get_any(&cache, 0);
        }
        children[index].kill_alive();
        children[index] = start();
    }
    let mut checked = 0;
    for mut child in children {
        child.tell("end");
        checked += child.line().parse::<u64>().unwrap();
        child.finish();
    }
    // Nothing is locked, and nothing is lost but what was being made.
    let begin = Instant::now();
    for turn in 0..2 {
        for number in 0..CHUNKS {
            let got = get(&cache, number, length(number), 0, Duration::ZERO);
            assert!(matches!(got, Got::Found | Got::Made), "{turn}: chunk {number}: {got:?}");
        }
    }
    assert!(begin.elapsed() < PATIENCE);
    let found = cache.inspect().unwrap();
    println!("{checked} chunks checked by the last four; {found:?}");
    assert_eq!((found.late, found.too_long, found.no_space), (0, 0, 0));
    assert!(cache::unlink(&place.backend, name.location()).unwrap());
}
