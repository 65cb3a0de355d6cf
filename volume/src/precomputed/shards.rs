//! Reads chunks from shards: two levels of indexes, each read once and cached, and one request for a chunk.
//!
//! Indexes are untrusted input: an entry that overflows, runs backwards or is longer than any chunk is an error that
//! names the shard.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::sharding::{Address, Sharding};
use crate::error::{Error, Result};
use crate::gzip;
use crate::store::indexed::{IndexTrust, IndexedRead, VersionedBytes, read_through_index};
use crate::store::{ObjectPart, ObjectVersion, Store, StoredVersion};

/// Maximum memory for cached indexes.
const CACHE_BYTES: usize = 64 << 20;

/// Maximum length of a minishard's unpacked index.
const LONGEST_INDEX: usize = 64 << 20;

/// Bytes of an entry of a shard's index: begin and end of a minishard's index.
const SHARD_ENTRY: u64 = 16;

/// Entries of a shard's index that are read together.
const PAGE: u64 = 4096;

/// Bytes of an entry of a minishard's index: number, offset and length of a chunk, as differences.
const CHUNK_ENTRY: usize = 24;

/// The shards of one scale.
#[derive(Debug)]
pub(super) struct ShardReader {
    store: Arc<dyn Store>,
    prefix: String,
    pub(super) sharding: Sharding,
    cache: Mutex<Cache>,
}

/// Cached indexes: of minishards, and pages of shards' own indexes, by their first minishard.
#[derive(Debug, Default)]
struct Cache {
    indexes: HashMap<Key, Cached>,
    bytes: usize,
    clock: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Page { shard: u64, first: u64 },
    Minishard { shard: u64, number: u64 },
}

#[derive(Debug)]
struct Cached {
    slot: IndexSlot,
    /// 0 while it is being read.
    bytes: usize,
    /// Value of the cache's clock at the last use.
    used: u64,
}

/// A slot of the cache; `None` until it is read. One thread reads an index with the lock held; threads that want the
/// same index wait for that lock, while other indexes stay available.
type IndexSlot = Arc<Mutex<Option<IndexEntries>>>;

/// An index; `None` if the shard is not stored.
type IndexEntries = Option<Arc<VersionedEntries>>;

/// Entries of an index, sorted by number, and the version of the shard that all of its bytes are from.
#[derive(Debug)]
struct VersionedEntries {
    entries: Vec<IndexEntry>,
    version: StoredVersion,
}

impl VersionedEntries {
    fn find(&self, id: u64) -> Option<IndexEntry> {
        let found = self.entries.binary_search_by_key(&id, |entry| entry.id);
        found.ok().map(|at| self.entries[at])
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct IndexEntry {
    id: u64,
    start: u64,
    end: u64,
}

impl ShardReader {
    pub(super) fn new(store: Arc<dyn Store>, prefix: &str, sharding: Sharding) -> Self {
        Self { store, prefix: prefix.to_owned(), sharding, cache: Mutex::default() }
    }

    /// Returns the key of the shard that contains a chunk.
    pub(super) fn key(&self, numbers: [u64; 3]) -> String {
        self.key_of(self.sharding.address(numbers).shard)
    }

    fn key_of(&self, shard: u64) -> String {
        format!("{}{}", self.prefix, self.sharding.file(shard))
    }

    /// Reads the bytes of a chunk, `None` if it is not stored, with the version of the shard that they are from. More
    /// than `most` bytes are an error. Errors are those of stores, and name the shard.
    pub(super) fn read(&self, numbers: [u64; 3], most: usize, trust: IndexTrust) -> Result<VersionedBytes> {
        let address = self.sharding.address(numbers);
        let (read, current) = (|| self.read_once(address, most), || self.store.version(&self.key_of(address.shard)));
        read_through_index(trust, read, current, || self.forget(address))
    }

    /// Asks the store for the version of the shard that contains a chunk.
    pub(super) fn version(&self, numbers: [u64; 3]) -> Result<ObjectVersion> {
        self.store.version(&self.key(numbers)).map(ObjectVersion::from)
    }

    /// Reads a chunk with the indexes that are cached, if there are any.
    fn read_once(&self, address: Address, most: usize) -> IndexedRead {
        let is_cached = Cell::new(true);
        let index = match self.minishard(address, &is_cached) {
            Ok(index) => index,
            // The index of the shard may be cached, and that of the minishard not be where it says.
            Err(error) if is_cached.get() => {
                let page = self.page(address, &is_cached).ok().flatten().map(|page| page.version.clone());
                return IndexedRead { bytes: Err(error), index: page, is_cached: true, part: None };
            }
            Err(error) => return IndexedRead::failed(error),
        };
        let (mut part, is_cached) = (None, is_cached.get());
        let mut read = || -> Result<Option<Vec<u8>>> {
            let Some(IndexEntry { start, end, .. }) = index.as_ref().and_then(|index| index.find(address.id)) else {
                return Ok(None);
            };
            if end - start > most as u64 {
                let what = format!(
                    "its index says that chunk {} has {} bytes: none has more than {most}",
                    address.id,
                    end - start
                );
                return Err(self.damaged(address.shard, what));
            }
            let found = self.behind_index(address.shard, start..end)?;
            part = Some(found.version);
            Ok(Some(found.bytes))
        };
        let bytes = read();
        IndexedRead { bytes, index: index.map(|index| index.version.clone()), is_cached, part }
    }

    /// Removes the cached indexes that lead to a chunk: its shard was replaced.
    fn forget(&self, Address { shard, minishard: number, .. }: Address) {
        let mut cache = lock(&self.cache);
        for key in [Key::Page { shard, first: first_of_page(number) }, Key::Minishard { shard, number }] {
            cache.bytes -= cache.indexes.remove(&key).map_or(0, |cached| cached.bytes);
        }
    }

    /// Reads a range that an index of the shard refers to. A missing shard is an error: its index was there.
    fn behind_index(&self, shard: u64, range: Range<u64>) -> Result<ObjectPart> {
        let found = self.store.get_range(&self.key_of(shard), range)?;
        found.ok_or_else(|| self.damaged(shard, "it is gone, though its index was here".to_owned()))
    }

    /// Returns the index of a minishard. `is_cached` becomes false if the index of the shard is read anew.
    fn minishard(&self, address: Address, is_cached: &Cell<bool>) -> Result<IndexEntries> {
        self.cached(Key::Minishard { shard: address.shard, number: address.minishard }, || {
            let Some(page) = self.page(address, is_cached)? else { return Ok(None) };
            let Some(IndexEntry { start, end, .. }) = page.find(address.minishard) else {
                return Ok(Some(Arc::new(VersionedEntries { entries: Vec::new(), version: page.version.clone() })));
            };
            let damaged =
                |what: String| self.damaged(address.shard, format!("minishard {}: {what}", address.minishard));
            if end - start > LONGEST_INDEX as u64 {
                return Err(damaged(format!("an index of {} bytes is longer than any", end - start)));
            }
            let ObjectPart { mut bytes, version, .. } = self.behind_index(address.shard, start..end)?;
            if self.sharding.packed_indexes {
                let mut unpacked = Vec::new();
                gzip::unpack(&bytes, LONGEST_INDEX, &mut unpacked).map_err(|cause| damaged(cause.to_string()))?;
                bytes = unpacked;
            }
            let entries = chunk_entries(&bytes, self.index_length()).map_err(|what| damaged(what.to_owned()))?;
            Ok(Some(Arc::new(VersionedEntries { entries, version: page.version.and(&version) })))
        })
    }

    /// Returns the page of a shard's index that contains a minishard, without the empty entries. `is_cached` becomes
    /// false if it is read.
    fn page(&self, address: Address, is_cached: &Cell<bool>) -> Result<IndexEntries> {
        let first = first_of_page(address.minishard);
        self.cached(Key::Page { shard: address.shard, first }, || {
            is_cached.set(false);
            let behind = first.saturating_add(PAGE).min(self.index_length() / SHARD_ENTRY);
            let range = first * SHARD_ENTRY..behind * SHARD_ENTRY;
            let found = self.store.get_range(&self.key_of(address.shard), range)?;
            let Some(ObjectPart { bytes, version, .. }) = found else { return Ok(None) };
            let entries = page_entries(&bytes, first, self.index_length()).map_err(|number| {
                self.damaged(address.shard, format!("minishard {number} ends before it begins, or nowhere"))
            })?;
            Ok(Some(Arc::new(VersionedEntries { entries, version })))
        })
    }

    /// Returns the length of a shard's index in bytes. Offsets in the shard count from the end of its index.
    fn index_length(&self) -> u64 {
        SHARD_ENTRY << self.sharding.minishard_bits
    }

    fn cached(&self, key: Key, read: impl FnOnce() -> Result<IndexEntries>) -> Result<IndexEntries> {
        let slot = lock(&self.cache).slot(key);
        let mut content = lock(&slot);
        if let Some(index) = &*content {
            return Ok(index.clone());
        }
        // An error leaves the slot empty: the next thread reads again.
        let index = read()?;
        *content = Some(index.clone());
        drop(content);
        lock(&self.cache).account(key, index.as_ref().map_or(0, |index| index.entries.len() * size_of::<IndexEntry>()));
        Ok(index)
    }

    fn damaged(&self, shard: u64, what: String) -> Error {
        Error::damaged_object(self.store.locate(&self.key_of(shard)), what)
    }
}

impl Cache {
    fn slot(&mut self, key: Key) -> IndexSlot {
        self.clock += 1;
        let cached =
            self.indexes.entry(key).or_insert_with(|| Cached { slot: IndexSlot::default(), bytes: 0, used: 0 });
        cached.used = self.clock;
        Arc::clone(&cached.slot)
    }

    /// Adds the size of an index, and evicts the least recently used ones if there are too many.
    fn account(&mut self, key: Key, bytes: usize) {
        // An empty index takes memory too.
        let bytes = bytes + size_of::<(Key, Cached)>() + size_of::<IndexEntry>();
        if let Some(cached) = self.indexes.get_mut(&key) {
            self.bytes = self.bytes - cached.bytes + bytes;
            cached.bytes = bytes;
        }
        if self.bytes <= CACHE_BYTES {
            return;
        }
        let mut by_age: Vec<(u64, Key)> = self.indexes.iter().map(|(key, cached)| (cached.used, *key)).collect();
        by_age.sort_unstable_by_key(|(used, _)| *used);
        // Evicts down to half of the limit, so that this sort is rare.
        for (_, key) in by_age {
            if self.bytes <= CACHE_BYTES / 2 {
                break;
            }
            self.bytes -= self.indexes.remove(&key).map_or(0, |cached| cached.bytes);
        }
    }
}

/// Returns the first minishard of the page that contains one.
fn first_of_page(minishard: u64) -> u64 {
    minishard / PAGE * PAGE
}

/// Locks a mutex. Poisoning is ignored: every change under these locks is one step, so a panic leaves no partial
/// change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

/// Parses a page of a shard's index. The error is the number of the invalid minishard.
fn page_entries(bytes: &[u8], first: u64, base: u64) -> Result<Vec<IndexEntry>, u64> {
    let mut entries = Vec::new();
    for (id, entry) in (first..).zip(bytes.chunks_exact(16)) {
        let (start, end) = (number(&entry[..8]), number(&entry[8..]));
        if start == end {
            continue;
        }
        let range = start.checked_add(base).zip(end.checked_add(base)).filter(|(start, end)| start < end);
        let (start, end) = range.ok_or(id)?;
        entries.push(IndexEntry { id, start, end });
    }
    Ok(entries)
}

/// Parses the index of a minishard: all numbers, then all offsets, then all lengths; numbers and offsets are stored as
/// differences.
fn chunk_entries(bytes: &[u8], base: u64) -> Result<Vec<IndexEntry>, &'static str> {
    if !bytes.len().is_multiple_of(CHUNK_ENTRY) {
        return Err("its index is cut off, or no index");
    }
    let count = bytes.len() / CHUNK_ENTRY;
    let column = |at: usize| bytes[at * count * 8..(at + 1) * count * 8].chunks_exact(8).map(number);
    let (mut id, mut end) = (0u64, base);
    let mut entries: Vec<IndexEntry> = Vec::with_capacity(count);
    for ((step, gap), length) in column(0).zip(column(1)).zip(column(2)) {
        if step == 0 && !entries.is_empty() {
            return Err("its index has one chunk twice");
        }
        id = id.checked_add(step).ok_or("the numbers of chunks in its index do not increase")?;
        let start = end.checked_add(gap).ok_or("its index refers to what is beyond any file")?;
        end = start.checked_add(length).ok_or("its index refers to what is beyond any file")?;
        entries.push(IndexEntry { id, start, end });
    }
    Ok(entries)
}

/// Returns the numbers along x, y and z of the chunk that contains a region.
pub(super) fn numbers(region: &[Range<i64>], origin: &[i64], chunk: &[u64]) -> [u64; 3] {
    [0, 1, 2].map(|axis| region[axis].start.max(origin[axis]).abs_diff(origin[axis]) / chunk[axis])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(columns: [&[u64]; 3]) -> Vec<u8> {
        columns.iter().flat_map(|column| column.iter().flat_map(|value| value.to_le_bytes())).collect()
    }

    #[test]
    fn index_is_read_from_differences() {
        let entries = chunk_entries(&index([&[3, 2], &[10, 0], &[5, 7]]), 100).expect("an index");
        assert_eq!(entries, [IndexEntry { id: 3, start: 110, end: 115 }, IndexEntry { id: 5, start: 115, end: 122 }]);
        assert_eq!(chunk_entries(&[], 100), Ok(Vec::new()));
    }

    #[test]
    fn invalid_index_is_an_error() {
        let huge = u64::MAX - 50;
        for columns in [
            [&[3, 0][..], &[0, 0], &[1, 1]],
            [&[3, u64::MAX], &[0, 0], &[1, 1]],
            [&[3, 1], &[huge, 0], &[1, 1]],
            [&[3, 1], &[0, 0], &[huge, huge]],
        ] {
            assert!(chunk_entries(&index(columns), 100).is_err(), "{columns:?}");
        }
        assert!(chunk_entries(&[0; 25], 100).is_err());
        assert_eq!(page_entries(&index([&[9], &[3], &[]]), 7, 16), Err(7));
        assert_eq!(page_entries(&index([&[0, 0, 3], &[u64::MAX], &[]]), 7, 16), Err(8));
        assert_eq!(
            page_entries(&index([&[0, 0, 3], &[9], &[]]), 7, 16),
            Ok(vec![IndexEntry { id: 8, start: 19, end: 25 }])
        );
    }

    #[test]
    fn concurrent_readers_fetch_an_index_once() {
        use std::sync::atomic::{AtomicUsize, Ordering};

        let sharding = serde_json::json!({
            "@type": "neuroglancer_uint64_sharded_v1", "preshift_bits": 0, "hash": "identity", "minishard_bits": 0,
            "shard_bits": 0,
        });
        let sharding = Sharding::read(&sharding, &[1, 1, 1]).expect("a sharding");
        let store = crate::store::open(&crate::store::url::VolumeUrl::local("nowhere")).expect("a store");
        let shards = ShardReader::new(store, "", sharding);
        let (key, reads) = (Key::Minishard { shard: 0, number: 0 }, AtomicUsize::new(0));
        let read = |answer: Result<IndexEntries>| {
            shards.cached(key, || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                reads.fetch_add(1, Ordering::Relaxed);
                answer
            })
        };
        assert!(read(Err(Error::bbox("", "a failure"))).is_err(), "a failure is told");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let empty = VersionedEntries { entries: Vec::new(), version: StoredVersion::Unknown };
                    let index = read(Ok(Some(Arc::new(empty)))).expect("an index");
                    assert_eq!(index.expect("the shard is there").entries, []);
                });
            }
        });
        assert_eq!(reads.load(Ordering::Relaxed), 2, "but not kept; what was read is");
        let (bytes, _) = shards.read([0, 0, 0], 100, IndexTrust::Cached).expect("the index is known");
        assert!(bytes.is_none());
    }

    #[test]
    fn cache_evicts_the_oldest_indexes_first() {
        let mut cache = Cache::default();
        for shard in 0..100 {
            let key = Key::Minishard { shard, number: 0 };
            let _ = cache.slot(key);
            cache.account(key, 1 << 20);
            assert!(cache.bytes <= CACHE_BYTES);
        }
        assert!(cache.indexes.contains_key(&Key::Minishard { shard: 99, number: 0 }));
        assert!(!cache.indexes.contains_key(&Key::Minishard { shard: 0, number: 0 }));
    }
}
