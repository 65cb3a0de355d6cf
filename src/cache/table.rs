//! The records of a cache: which chunk is in which slots, and which slots are used next. Only words; no locks.
//!
//! Each slot has a record of eight words:
//!
//! | word | of the first slot of a run | of the others |
//! |---|---|---|
//! | 0, 1 | the key | |
//! | 2, 3 | the version of the stored object | |
//! | 4 | the time of the cache at which that was the version | |
//! | 5 | the time at which it was last used | |
//! | 6 | its length in bytes | distance from the first slot |
//! | 7 | its stamp: the number of this filling, and the state | the same number |
//!
//! A process that fills a run may overlap a longer one. Then it marks the first record of that as out of date, before
//! anything else: the later records lead there, and the stamp is exchanged only if it is still that of this filling.
//! So a process needs no lock beyond its own run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::geometry::{CacheGeometry, SlotRun};
use crate::os;
use crate::segment::{SharedWords, stay};

const KEY: u64 = 0;
const VERSION: u64 = 16;
const CHECKED: u64 = 32;
const USED: u64 = 40;
const SHAPE: u64 = 48;
const STAMP: u64 = 56;

/// Bits of a stamp that are the state.
const STATE_BITS: u32 = 3;

/// What is in the slots of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordState {
    /// Nothing.
    Empty = 0,
    /// A chunk that is being filled, or of which the filler was killed.
    Filling = 1,
    /// A chunk.
    Full = 2,
    /// A later slot of a run.
    Part = 3,
    /// A chunk that is out of date.
    Stale = 4,
}

/// The number of a filling, and the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordStamp(u64);

impl RecordStamp {
    fn new(number: u64, state: RecordState) -> Self {
        Self(number << STATE_BITS | state as u64)
    }

    fn number(self) -> u64 {
        self.0 >> STATE_BITS
    }

    fn is(self, state: RecordState) -> bool {
        self.0 & ((1 << STATE_BITS) - 1) == state as u64
    }
}

/// What is counted, for statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counter {
    /// Chunks that were found.
    Hits = 0,
    /// Chunks that were filled.
    Fills = 1,
    /// Waits for another process that fills the same chunk.
    Waits = 2,
    /// Chunks that made way for others.
    Evictions = 3,
    /// Chunks that turned out to be out of date.
    Stale = 4,
    /// Not cached: the chunk is too long.
    TooLong = 5,
    /// Not cached: readers hold all slots in which it could be.
    Held = 6,
    /// Not cached: there is no memory.
    NoSpace = 7,
    /// Not cached: another process fills the chunk, and takes long.
    Late = 8,
    /// Not cached: the store does not tell which version of the object it has sent.
    Unversioned = 9,
}

/// The number of counters.
pub(super) const COUNTERS: usize = 10;

/// The header and the records of a mapped cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Records<'a> {
    words: &'a SharedWords,
    geometry: &'a CacheGeometry,
}

/// A chunk that a record says is there. Its slots may be used for another one until they are locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FoundChunk {
    pub(super) run: SlotRun,
    pub(super) stamp: RecordStamp,
}

impl<'a> Records<'a> {
    pub(super) fn new(words: &'a SharedWords, geometry: &'a CacheGeometry) -> Self {
        Self { words, geometry }
    }

    fn word(&self, index: u64, field: u64) -> &'a AtomicU64 {
        self.words.word(self.geometry.record(index) + field)
    }

    fn load(&self, index: u64, field: u64) -> u64 {
        os::point(false);
        self.word(index, field).load(Ordering::Acquire)
    }

    fn store(&self, index: u64, field: u64, value: u64) {
        os::point(true);
        self.word(index, field).store(value, Ordering::Release);
    }

    fn long(&self, index: u64, field: u64) -> u128 {
        u128::from(self.load(index, field)) | u128::from(self.load(index, field + 8)) << 64
    }

    #[allow(clippy::cast_possible_truncation)] // each half
    fn store_long(&self, index: u64, field: u64, value: u128) {
        self.store(index, field, value as u64);
        self.store(index, field + 8, (value >> 64) as u64);
    }

    fn stamp(&self, index: u64) -> RecordStamp {
        RecordStamp(self.load(index, STAMP))
    }

    /// Returns the present time of the cache.
    pub(super) fn now(&self) -> u64 {
        os::point(false);
        self.words.word(CacheGeometry::CLOCK).load(Ordering::SeqCst)
    }

    /// Advances the time of the cache and returns it. No two calls return the same.
    pub(super) fn tick(&self) -> u64 {
        os::point(true);
        self.words.word(CacheGeometry::CLOCK).fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Returns how long the cache stays after its last use, and for how long it was not used. These words guard no
    /// other data, so Relaxed suffices.
    pub(super) fn stay(&self) -> (Duration, Duration) {
        let word = |at| self.words.word(at).load(Ordering::Relaxed);
        (stay::keep_of_word(word(stay::KEEP)), stay::unused_for(word(stay::SEEN)))
    }

    /// Notes when the cache was last used.
    pub(super) fn see(&self, wall_clock: u64) {
        self.words.word(stay::SEEN).store(wall_clock, Ordering::Relaxed);
    }

    /// Chooses how long the cache stays after its last use.
    pub(super) fn set_keep(&self, keep: Duration) {
        self.words.word(stay::KEEP).store(stay::keep_to_word(keep), Ordering::Relaxed);
    }

    fn counter(&self, counter: u64) -> &'a AtomicU64 {
        self.words.word(CacheGeometry::COUNTERS + 64 * counter)
    }

    /// Counts one more. Guards no other data, so Relaxed suffices.
    pub(super) fn count(&self, counter: Counter) {
        self.counter(counter as u64).fetch_add(1, Ordering::Relaxed);
    }

    /// Returns all counters.
    pub(super) fn counters(&self) -> [u64; COUNTERS] {
        std::array::from_fn(|counter| self.counter(counter as u64).load(Ordering::Relaxed))
    }

    /// Rings, so that processes that wait for a chunk look for it.
    pub(super) fn ring(&self) {
        let bell = self.words.half_word(CacheGeometry::BELL);
        os::point(true);
        bell.fetch_add(1, Ordering::Release);
        os::wake(bell, u32::MAX);
    }

    /// Returns the bell as it is now, for [`wait`](Self::wait). The caller looks for what it waits for afterwards.
    pub(super) fn bell(&self) -> u32 {
        os::point(false);
        self.words.half_word(CacheGeometry::BELL).load(Ordering::Acquire)
    }

    /// Sleeps until the bell has rung since, or for `limit`. May return early.
    pub(super) fn wait(&self, bell: u32, limit: std::time::Duration) {
        os::wait_on(self.words.half_word(CacheGeometry::BELL), bell, limit);
    }

    /// Looks for a chunk.
    pub(super) fn find(&self, key: u128, length: u64) -> Option<FoundChunk> {
        self.geometry.sets(key, length)?.into_iter().flatten().find_map(|run| self.chunk_in(run, key, length))
    }

    /// Returns the chunk of this key if it is in these slots.
    fn chunk_in(&self, run: SlotRun, key: u128, length: u64) -> Option<FoundChunk> {
        let stamp = self.stamp(run.first);
        let is_there =
            stamp.is(RecordState::Full) && self.long(run.first, KEY) == key && self.load(run.first, SHAPE) == length;
        is_there.then_some(FoundChunk { run, stamp })
    }

    /// Returns whether a chunk is still where it was found. For good if the slots are locked.
    pub(super) fn is_there(&self, found: &FoundChunk, key: u128, length: u64) -> bool {
        self.chunk_in(found.run, key, length) == Some(*found)
    }

    /// Returns the version of the object that a chunk is from.
    pub(super) fn version(&self, found: &FoundChunk) -> u128 {
        self.long(found.run.first, VERSION)
    }

    /// Returns when that was known to be the version of the stored object.
    pub(super) fn checked(&self, found: &FoundChunk) -> u64 {
        self.load(found.run.first, CHECKED)
    }

    /// Notes that the version was that of the stored object at this time. The slots are locked.
    pub(super) fn confirm(&self, found: &FoundChunk, checked: u64) {
        os::point(true);
        self.word(found.run.first, CHECKED).fetch_max(checked, Ordering::AcqRel);
    }

    /// Notes that a chunk was used. The slots are locked.
    pub(super) fn touch(&self, found: &FoundChunk) {
        let now = self.now();
        if self.load(found.run.first, USED) < now {
            self.store(found.run.first, USED, now);
        }
    }

    /// Marks a chunk as out of date, unless its slots were used for another one meanwhile.
    pub(super) fn outdate(&self, found: &FoundChunk) {
        let stale = RecordStamp::new(found.stamp.number(), RecordState::Stale);
        os::point(true);
        let stamp = self.word(found.run.first, STAMP);
        // If it fails, another process did the same, or has filled the slots.
        let _ = stamp.compare_exchange(found.stamp.0, stale.0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Returns the first slot of the chunk to which a slot belongs, with its stamp; `None` if no process can find it.
    fn first_of(&self, slot: u64) -> Option<(u64, RecordStamp)> {
        let stamp = self.stamp(slot);
        let first = if stamp.is(RecordState::Part) { slot.checked_sub(self.load(slot, SHAPE))? } else { slot };
        let head = self.stamp(first);
        (head.is(RecordState::Full) && head.number() == stamp.number()).then_some((first, head))
    }

    /// Returns when a slot was last used; 0 if nothing is in it that can be found.
    pub(super) fn used(&self, slot: u64) -> u64 {
        self.first_of(slot).map_or(0, |(first, _)| self.load(first, USED).max(1))
    }

    /// Returns when any slot of a run was last used.
    pub(super) fn used_in(&self, run: SlotRun) -> u64 {
        run.range().map(|slot| self.used(slot)).max().unwrap_or_default()
    }

    /// Returns the runs that a chunk can fill, those first that are missed least: empty ones, in the emptier of the two
    /// sets, then those that were not used for the longest time. With each, when it was last used: 0 if it is empty.
    pub(super) fn places_for(&self, key: u128, length: u64) -> Vec<(SlotRun, u64)> {
        let Some(sets) = self.geometry.sets(key, length) else { return Vec::new() };
        let mut runs = Vec::new();
        for set in sets {
            let begin = runs.len();
            runs.extend(set.map(|run| (self.used_in(run), 0, run)));
            let taken = runs[begin..].iter().filter(|(used, ..)| *used > 0).count();
            runs[begin..].iter_mut().for_each(|run| run.1 = taken);
        }
        runs.sort_unstable();
        runs.dedup();
        runs.into_iter().map(|(used, _, run)| (run, used)).collect()
    }

    /// Takes a run for a new chunk, which no process finds yet. The slots are locked for writing.
    pub(super) fn begin(&self, run: SlotRun) -> FoundChunk {
        self.clear(run);
        let number = self.tick();
        for slot in run.first + 1..run.end() {
            self.store(slot, SHAPE, slot - run.first);
            self.store(slot, STAMP, RecordStamp::new(number, RecordState::Part).0);
        }
        let stamp = RecordStamp::new(number, RecordState::Filling);
        self.store(run.first, STAMP, stamp.0);
        FoundChunk { run, stamp }
    }

    /// Lets processes find a chunk that was filled. The slots are locked for writing.
    pub(super) fn publish(&self, filled: &FoundChunk, key: u128, length: u64, version: u128, checked: u64) {
        let first = filled.run.first;
        self.store_long(first, KEY, key);
        self.store_long(first, VERSION, version);
        self.store(first, CHECKED, checked);
        self.store(first, USED, filled.stamp.number());
        self.store(first, SHAPE, length);
        self.store(first, STAMP, RecordStamp::new(filled.stamp.number(), RecordState::Full).0);
    }

    /// Lets no process find anything that is in a run or reaches into it. The slots are locked for writing.
    pub(super) fn clear(&self, run: SlotRun) {
        if let Some((first, stamp)) = self.first_of(run.first).filter(|(first, _)| *first < run.first) {
            self.outdate(&FoundChunk { run: SlotRun { first, count: 1 }, stamp });
        }
        run.range().for_each(|slot| self.store(slot, STAMP, RecordStamp::new(0, RecordState::Empty).0));
    }

    /// Returns whether all slots of a run have their memory, for a process that has them locked for writing: each was
    /// filled once, and none was freed since.
    pub(super) fn have_memory(&self, run: SlotRun) -> bool {
        run.range().all(|slot| self.stamp(slot).0 != 0)
    }

    /// Returns how many slots hold something that can be found.
    pub(super) fn filled(&self) -> u64 {
        (0..self.geometry.slots).filter(|slot| self.used(*slot) > 0).count() as u64
    }
}
