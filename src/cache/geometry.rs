//! The bytes of a cache's file: where each word, each record and each slot is, and what the trailer says about them.
//!
//! ```text
//! header           4096   words: see `CacheGeometry`
//! records            64   for each slot, then for each record without a slot: see table.rs
//! zero                    up to a multiple of 64 KiB
//! slots                   the bytes of chunks
//! slot bytes          8   bytes of one slot                                       (the trailer, written once)
//! slots               8   their number
//! bare records        8   number of records without a slot
//! sparse              8   1 if a slot gets its memory when it is first filled, 0 if it has it from the beginning
//! footer             64   see segment/footer.rs
//! ```
//!
//! All numbers are little-endian. The trailer is copied once and checked before it is used.
//!
//! A chunk fills a *run*: a power of two of slots, at a multiple of its length. The runs of one length are the places
//! of a set-associative table: the key of a chunk leads to two sets of [`WAYS`] runs each.

use std::ops::Range;

use crate::counted::fields::Fields;
use crate::error::{Error, Result};
use crate::segment::footer::{FOOTER, Footer, Kind};

/// Bytes of the header.
const HEADER: u64 = 4096;
/// Bytes of a record.
const RECORD: u64 = 64;
/// What the first slot is aligned to: a page on every machine.
const ALIGNMENT: u64 = 64 << 10;
/// Bytes of a slot.
const SLOT: u64 = 32 << 10;
/// The longest chunk that is cached.
pub(super) const LONGEST: u64 = 64 << 20;
/// Runs in a set.
pub(super) const WAYS: u64 = 16;
/// The smallest cache: one set of the shortest runs.
pub(super) const SMALLEST: u64 = WAYS * SLOT;
/// The largest cache. Its locks fit below those of keys.
const LARGEST: u64 = SLOT << 40;
/// Slots for each record without a slot.
const SLOTS_PER_BARE: u64 = 4;
/// Fewest runs of one length. A cache with fewer would hold hardly more than what is being read.
const FEWEST_RUNS: u64 = 4;
/// Length of the trailer.
pub(super) const TRAILER: usize = 32 + FOOTER;

/// The number of slots, and what follows from it. Offsets are in bytes from the beginning of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CacheGeometry {
    slot: u64,
    pub(super) slots: u64,
    bare: u64,
    pub(super) is_sparse: bool,
}

/// The slots of a chunk. Of a chunk without bytes, a record without a slot: its number is behind those of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlotRun {
    pub(super) first: u64,
    pub(super) count: u64,
}

impl SlotRun {
    pub(super) fn range(self) -> Range<u64> {
        self.first..self.first + self.count
    }

    pub(super) fn end(self) -> u64 {
        self.first + self.count
    }
}

impl CacheGeometry {
    /// Counts openings, fills and checks: the time of the cache.
    pub(super) const CLOCK: u64 = 0;
    /// Half a word: rings when a chunk was filled, or its filler has given up.
    pub(super) const BELL: u64 = 64;
    /// Where the counters of statistics begin, each 64 bytes behind the one before.
    pub(super) const COUNTERS: u64 = 128;

    /// Returns the geometry of a cache with this much memory, rounded up to whole sets.
    pub(super) fn new(bytes: u64, is_sparse: bool) -> Result<Self> {
        if !(SMALLEST..=LARGEST).contains(&bytes) {
            return Err(Error::setting("the size of a cache", bytes, "512 KiB to 32 PiB"));
        }
        let slots = bytes.div_ceil(SMALLEST) * WAYS;
        Ok(Self { slot: SLOT, slots, bare: bare(slots), is_sparse })
    }

    /// Returns the bytes of all slots.
    pub(super) fn bytes(&self) -> u64 {
        self.slot * self.slots
    }

    fn records(&self) -> u64 {
        self.slots + self.bare
    }

    /// Returns how many bytes of the file are words.
    pub(super) fn words(&self) -> u64 {
        HEADER + RECORD * self.records()
    }

    fn first_slot(&self) -> u64 {
        self.words().next_multiple_of(ALIGNMENT)
    }

    /// Returns the number of bytes before the trailer.
    pub(super) fn payload(&self) -> u64 {
        self.first_slot() + self.bytes()
    }

    /// Returns where a record is.
    pub(super) fn record(&self, index: u64) -> u64 {
        assert!(index < self.records(), "record {index} of {}", self.records());
        HEADER + RECORD * index
    }

    /// Returns where the bytes of a run are.
    pub(super) fn slots_of(&self, run: SlotRun) -> Range<u64> {
        if run.first >= self.slots {
            return 0..0; // a record without a slot
        }
        assert!(run.end() <= self.slots, "slots {:?} of {}", run.range(), self.slots);
        self.first_slot() + run.first * self.slot..self.first_slot() + run.end() * self.slot
    }

    /// Returns how many slots a chunk of this length takes, or `None` if it is too long for this cache.
    pub(super) fn run_for(&self, length: u64) -> Option<u64> {
        let count = length.div_ceil(self.slot).next_power_of_two();
        (length <= LONGEST && (count == 1 || self.slots / count >= FEWEST_RUNS)).then_some(count)
    }

    /// Returns the runs in which a chunk of this key and length may be: two sets, or twice the same one.
    pub(super) fn sets(&self, key: u128, length: u64) -> Option<[impl Iterator<Item = SlotRun> + use<>; 2]> {
        let (base, records, count) =
            if length == 0 { (self.slots, self.bare, 1) } else { (0, self.slots, self.run_for(length)?) };
        let runs = records / count;
        let ways = WAYS.min(runs);
        #[allow(clippy::cast_possible_truncation)] // each half of the key
        let halves = [key as u64, (key >> 64) as u64];
        Some(halves.map(|half| {
            let set = half % (runs / ways);
            (set * ways..(set + 1) * ways).map(move |run| SlotRun { first: base + run * count, count })
        }))
    }

    /// Returns the trailer with its footer.
    pub(super) fn to_trailer(self, id: u128) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(TRAILER);
        for field in [self.slot, self.slots, self.bare, u64::from(self.is_sparse)] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        Footer::append_to(Kind::Cache, self.payload(), id, &mut bytes);
        bytes
    }

    /// Reads a trailer without its footer, of a file with this payload.
    ///
    /// # Errors
    ///
    /// What is wrong, in words.
    pub(super) fn parse(trailer: &[u8], payload: u64) -> std::result::Result<Self, String> {
        let mut fields = Fields(trailer);
        let mut field = || fields.number();
        let (slot, slots, bare_records, sparse) = (field()?, field()?, field()?, field()?);
        let found = Self { slot, slots, bare: bare_records, is_sparse: sparse == 1 };
        let is_valid = slot == SLOT
            && slots > 0
            && slots % WAYS == 0
            && slots <= LARGEST / SLOT
            && bare_records == bare(slots)
            && sparse <= 1
            && found.payload() == payload;
        if is_valid { Ok(found) } else { Err(format!("{slots} slots of {slot} bytes do not make {payload} bytes")) }
    }
}

fn bare(slots: u64) -> u64 {
    (slots / SLOTS_PER_BARE).next_multiple_of(WAYS)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn trailer_is_read_back_and_checked() {
        for (bytes, slots) in [(SMALLEST, 16), (SMALLEST + 1, 32), (1 << 34, 1 << 19)] {
            let geometry = CacheGeometry::new(bytes, true).expect("a size");
            assert_eq!((geometry.slots, geometry.bytes() >= bytes), (slots, true));
            let trailer = geometry.to_trailer(7);
            let fields = &trailer[..TRAILER - FOOTER];
            assert_eq!(CacheGeometry::parse(fields, geometry.payload()), Ok(geometry));
            assert!(CacheGeometry::parse(fields, geometry.payload() + 1).is_err());
            for at in (0..fields.len()).step_by(8) {
                let mut wrong = fields.to_vec();
                wrong[at] ^= 2;
                assert!(CacheGeometry::parse(&wrong, geometry.payload()).is_err(), "field at {at}");
            }
        }
        assert!(CacheGeometry::new(SMALLEST - 1, true).is_err() && CacheGeometry::new(LARGEST + 1, true).is_err());
    }

    #[test]
    fn runs_are_aligned_and_in_the_file() {
        let geometry = CacheGeometry::new(200 << 20, true).expect("a size");
        for length in [0, 1, SLOT, SLOT + 1, 3 * SLOT, 2 << 20, 20 << 20] {
            for key in [0, 1, u128::MAX, 0x1234_5678_9abc_def0_0fed_cba9_8765_4321] {
                let [one, other] = geometry.sets(key, length).expect("it fits");
                let runs: BTreeSet<SlotRun> = one.chain(other).collect();
                assert!((4..=32).contains(&runs.len()), "{} runs", runs.len());
                for run in runs {
                    let bytes = geometry.slots_of(run);
                    assert_eq!((length == 0, run.first % run.count), (bytes.is_empty(), 0));
                    assert!(length == 0 || (bytes.end - bytes.start >= length && bytes.end <= geometry.payload()));
                    assert!(length <= SLOT || bytes.end - bytes.start < 2 * length, "at most half is wasted");
                    assert!(geometry.record(run.end() - 1) + RECORD <= geometry.words());
                }
            }
        }
        assert!(geometry.sets(0, 65 << 20).is_none(), "too long for any cache");
        let small = CacheGeometry::new(4 << 20, true).expect("a size");
        assert!(small.sets(0, 1 << 20).is_some() && small.sets(0, (1 << 20) + 1).is_none(), "four runs or more");
    }
}
