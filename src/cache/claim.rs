//! `KeyClaim` and `NewChunk`: the exclusive right to make a chunk, and the chunk that is being made.

use std::fmt;

use super::chunk_cache::{CachedChunk, ChunkCache};
use super::table::{Counter, FoundChunk};
use crate::error::Result;
use crate::os;

/// How often the places of a chunk are looked at again because another process was faster.
const ROUNDS: usize = 8;

/// The exclusive right to fill the chunk of a key, or to check whether it is up to date.
///
/// Other processes wait for it meanwhile. If this one is killed, one of them gets it. [The room](super) has an example.
#[must_use = "other processes wait for what this one does with it"]
pub struct KeyClaim {
    cache: ChunkCache,
    key: u128,
    length: usize,
    old: Option<CachedChunk>,
    generation: u64,
}

impl KeyClaim {
    /// Takes the lock of the key, which is held.
    pub(super) fn new(cache: &ChunkCache, key: u128, length: usize) -> Self {
        Self { cache: cache.clone(), key, length, old: None, generation: os::fork_generation() }
    }

    pub(super) fn with_old(self, old: Option<CachedChunk>) -> Self {
        let mut claim = self;
        claim.old = old;
        claim
    }

    /// Returns the chunk that is there, but was checked too long ago. If the store has the same
    /// [version](CachedChunk::version), it is up to date: [confirm](CachedChunk::confirm) that.
    pub fn old(&self) -> Option<&CachedChunk> {
        self.old.as_ref()
    }

    /// Forgets the old chunk, because the store has another version of it, or none.
    pub fn forget(&mut self) {
        if let Some(old) = self.old.take() {
            let records = self.cache.open_cache().records();
            records.outdate(old.found());
            records.count(Counter::Stale);
        }
    }

    /// Returns memory for the chunk, or `None` if there is none now: processes read all the places that it could have,
    /// or the machine is full. Then make it elsewhere. [Forgets](Self::forget) the old chunk.
    ///
    /// # Errors
    ///
    /// Those of locking and of reserving memory.
    pub fn room(&mut self) -> Result<Option<NewChunk<'_>>> {
        self.forget();
        self.refuse_forked_child()?;
        let open = self.cache.open_cache();
        let (records, mut why, mut rounds) = (open.records(), Counter::Held, 0..ROUNDS);
        let mut places = records.places_for(self.key, self.length as u64).into_iter();
        while let Some((run, used)) = places.next() {
            os::step("cache: place chosen");
            if !open.locks.fill(run)? {
                continue;
            }
            os::step("cache: slots locked");
            if records.used_in(run) != used && rounds.next().is_some() {
                // Since they were looked at, another process has filled it, or has read what is in it.
                open.locks.release(run);
                places = records.places_for(self.key, self.length as u64).into_iter();
                continue;
            }
            let reserved = open.reserve(run);
            if !matches!(reserved, Ok(true)) {
                open.locks.release(run);
                reserved?;
                why = Counter::NoSpace; // a place that was filled before has its memory
                continue;
            }
            if used > 0 {
                records.count(Counter::Evictions);
            }
            let filled = records.begin(run);
            os::step("cache: filling");
            let (key, length) = (self.key, self.length);
            return Ok(Some(NewChunk { cache: &self.cache, key, length, filled, generation: self.generation }));
        }
        records.count(why);
        Ok(None)
    }

    /// Counts that the chunk was not kept because its version is not known.
    pub fn unversioned(&self) {
        self.cache.open_cache().records().count(Counter::Unversioned);
    }

    fn refuse_forked_child(&self) -> Result<()> {
        self.cache.refuse_forked_child(self.generation, "a key that the parent of this process has claimed")
    }
}

impl Drop for KeyClaim {
    fn drop(&mut self) {
        if self.generation == os::fork_generation() {
            let open = self.cache.open_cache();
            open.locks.unlock_key(self.key);
            open.records().ring();
        }
    }
}

impl fmt::Debug for KeyClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyClaim").field("length", &self.length).field("old", &self.old).finish_non_exhaustive()
    }
}

/// Memory for a chunk that no process finds until it is published. If this is dropped, nothing was there. [The
/// room](super) has an example.
#[must_use = "a chunk that is not published was made for nothing"]
pub struct NewChunk<'c> {
    cache: &'c ChunkCache,
    key: u128,
    length: usize,
    filled: FoundChunk,
    generation: u64,
}

impl NewChunk<'_> {
    /// Returns the bytes. Those of an earlier chunk may be in them.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) in a forked child.
    #[allow(unsafe_code)]
    pub fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        self.refuse_forked_child()?;
        let open = self.cache.open_cache();
        // SAFETY: this process has the slots locked for writing until this is dropped, and has given them their memory.
        // No other thread of it holds them, and the slice borrows this value mutably.
        Ok(unsafe { open.memory().bytes_mut(&open.geometry().slots_of(self.filled.run), self.length) })
    }

    /// Lets all processes find the chunk.
    ///
    /// `version` stands for the version of the stored object from which the bytes are, and `checked` for a
    /// [time](ChunkCache::now) before it was read.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) in a forked child.
    pub fn publish(self, version: u128, checked: u64) -> Result<()> {
        self.refuse_forked_child()?;
        let records = self.cache.open_cache().records();
        os::step("cache: filled");
        records.publish(&self.filled, self.key, self.length as u64, version, checked);
        if self.length > 0 {
            records.count(Counter::Fills);
        }
        os::step("cache: published");
        Ok(())
    }

    fn refuse_forked_child(&self) -> Result<()> {
        self.cache.refuse_forked_child(self.generation, "a chunk that the parent of this process is making")
    }
}

impl Drop for NewChunk<'_> {
    fn drop(&mut self) {
        if self.generation == os::fork_generation() {
            self.cache.open_cache().locks.release(self.filled.run);
        }
    }
}

impl fmt::Debug for NewChunk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewChunk").field("length", &self.length).finish_non_exhaustive()
    }
}
