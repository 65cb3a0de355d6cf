//! Caches of chunks as `ls` and `info` show them, in JSON and in words.

use std::time::Duration;

use ndarray_shm::cache::{CacheInspection, CacheOptions};
use ndarray_shm::{Directory, Location};
use serde::Serialize;

use crate::exit::Failure;
use crate::show::units;

/// A cache, as `ls --json` and `info --json` print it.
#[derive(Debug, Serialize)]
pub(crate) struct CacheReport {
    /// Bytes of chunks that fit.
    pub(crate) bytes: u64,
    /// Bytes that hold chunks.
    pub(crate) filled: u64,
    /// How long it stays after its last use; `null` if until it is unlinked.
    pub(crate) keep_seconds: Option<u64>,
    pub(crate) unused_seconds: u64,
    pub(crate) hits: u64,
    pub(crate) fills: u64,
    pub(crate) waits: u64,
    pub(crate) evictions: u64,
    pub(crate) stale: u64,
    /// What was not kept, and why.
    pub(crate) bypasses: BypassReport,
}

/// Chunks that were not kept.
#[derive(Debug, Serialize)]
pub(crate) struct BypassReport {
    pub(crate) too_long: u64,
    pub(crate) held: u64,
    pub(crate) no_space: u64,
    pub(crate) late: u64,
    pub(crate) unversioned: u64,
}

impl CacheReport {
    /// Opens a cache and looks at it.
    pub(crate) fn of(backend: &Directory, location: &Location) -> Result<Self, Failure> {
        let cache = CacheOptions::new().directory(backend.clone()).open(location)?;
        Ok(Self::new(&cache.inspect()?))
    }

    fn new(found: &CacheInspection) -> Self {
        let CacheInspection { too_long, held, no_space, late, unversioned, .. } = *found;
        Self {
            bytes: found.bytes,
            filled: found.filled,
            keep_seconds: (found.keep < Duration::MAX).then_some(found.keep.as_secs()),
            unused_seconds: found.unused.as_secs(),
            hits: found.hits,
            fills: found.fills,
            waits: found.waits,
            evictions: found.evictions,
            stale: found.stale,
            bypasses: BypassReport { too_long, held, no_space, late, unversioned },
        }
    }

    /// Returns how full it is, for a table: "cache, 12.3 GiB of 16 GiB".
    pub(crate) fn summary(&self) -> String {
        format!("cache, {} of {}", units::size(self.filled), units::size(self.bytes))
    }

    /// Returns all facts, for `info`.
    pub(crate) fn facts(&self) -> Vec<(String, String)> {
        let BypassReport { too_long, held, no_space, late, unversioned } = self.bypasses;
        let reasons = [
            ("too long", too_long),
            ("places held by readers", held),
            ("no memory", no_space),
            ("another process took too long", late),
            ("version of the stored object not certain", unversioned),
        ];
        let bypasses: Vec<String> = reasons
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(why, count)| format!("{count} ({why})"))
            .collect();
        let stays = match self.keep_seconds.map(Duration::from_secs) {
            None => "until it is unlinked".to_owned(),
            Some(keep) => format!("for {} after its last use", units::left(keep)),
        };
        let facts = [
            ("last used", format!("{} ago", units::age(Duration::from_secs(self.unused_seconds)))),
            ("stays", stays),
            ("chunks", format!("{} of {}", units::size(self.filled), units::size(self.bytes))),
            ("found", format!("{} (of these, checked and out of date: {})", self.hits, self.stale)),
            ("decoded", format!("{}, of which {} made others go", self.fills, self.evictions)),
            ("waits", self.waits.to_string()),
            ("not kept", if bypasses.is_empty() { "none".to_owned() } else { bypasses.join(", ") }),
        ];
        facts.into_iter().map(|(label, fact)| (label.to_owned(), fact)).collect()
    }
}
