//! A cache of shard indexes: each is fetched once, however many threads need it, while there is room.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::bbox::to_usize;
use crate::error::Result;
use crate::store::StoredVersion;
use crate::zarr::shard_index::ShardIndex;

/// Maximum memory for indexes.
const ROOM: u64 = 64 << 20;

/// A slot of the cache: `None` until it is fetched, `Some(None)` if there is no such shard.
type ShardIndexSlot = Arc<Mutex<Option<Option<Arc<CachedIndex>>>>>;

/// An index, and the version of the shard that it was read from.
#[derive(Debug)]
pub(super) struct CachedIndex {
    pub(super) index: ShardIndex,
    pub(super) version: StoredVersion,
}

/// Indexes by the number of their shard along each axis.
pub(super) struct Indexes {
    /// Maximum number of indexes.
    capacity: usize,
    held: Mutex<CachedIndexes>,
}

#[derive(Default)]
struct CachedIndexes {
    slots: HashMap<Vec<u64>, ShardIndexSlot>,
    /// The keys in the order of insertion.
    order: VecDeque<Vec<u64>>,
}

impl Indexes {
    /// Creates a cache for indexes of `index_bytes` bytes each.
    pub(super) fn new(index_bytes: u64) -> Self {
        // A small index needs some memory besides its bytes.
        let capacity = to_usize(ROOM / index_bytes.max(256)).max(1);
        Self { capacity, held: Mutex::default() }
    }

    /// Returns the index of a shard, `None` if there is no such shard. Fetches it if it is not cached.
    pub(super) fn get(
        &self,
        shard: &[u64],
        fetch: impl FnOnce() -> Result<Option<CachedIndex>>,
    ) -> Result<Option<Arc<CachedIndex>>> {
        let slot = self.slot(shard);
        // The slot stays locked while fetching: threads that need the same index wait for it, all others do not.
        let mut found = lock(&slot);
        if let Some(found) = &*found {
            return Ok(found.clone());
        }
        let fetched = fetch()?.map(Arc::new);
        *found = Some(fetched.clone());
        Ok(fetched)
    }

    /// Removes the index of a shard that was replaced.
    pub(super) fn forget(&self, shard: &[u64]) {
        let mut held = lock(&self.held);
        if held.slots.remove(shard).is_some() {
            held.order.retain(|other| other != shard);
        }
    }

    fn slot(&self, shard: &[u64]) -> ShardIndexSlot {
        let mut held = lock(&self.held);
        if let Some(slot) = held.slots.get(shard) {
            return Arc::clone(slot);
        }
        while held.order.len() >= self.capacity {
            let Some(oldest) = held.order.pop_front() else { break };
            held.slots.remove(&oldest);
        }
        let slot = ShardIndexSlot::default();
        held.order.push_back(shard.to_vec());
        held.slots.insert(shard.to_vec(), Arc::clone(&slot));
        slot
    }
}

impl fmt::Debug for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Indexes({} of {})", lock(&self.held).order.len(), self.capacity)
    }
}

/// Locks a mutex. Poisoning is ignored: the data is consistent also if a thread panics under the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;
    use crate::error::Error;

    #[test]
    fn index_is_fetched_once_and_again_after_forget() {
        let (indexes, fetched) = (Indexes::new(64), AtomicUsize::new(0));
        let get = |shard: u64| {
            indexes.get(&[shard, 7], || {
                fetched.fetch_add(1, Ordering::Relaxed);
                thread::yield_now();
                Ok(None)
            })
        };
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..100).for_each(|shard| assert!(get(shard).expect("found").is_none())));
            }
        });
        assert_eq!(fetched.load(Ordering::Relaxed), 100);
        indexes.forget(&[3, 7]);
        indexes.forget(&[3, 8]);
        get(3).expect("found");
        assert_eq!(fetched.load(Ordering::Relaxed), 101);
    }

    #[test]
    fn oldest_index_is_evicted_and_errors_are_not_kept() {
        let indexes = Indexes::new(ROOM / 4);
        let failed = || indexes.get(&[1], || Err(Error::bbox("x", "y")));
        assert!(failed().is_err() && failed().is_err());
        for shard in 0..100 {
            indexes.get(&[shard], || Ok(None)).expect("found");
        }
        assert_eq!(format!("{indexes:?}"), "Indexes(4 of 4)");
        indexes.get(&[99], || panic!("it is still here")).expect("found");
    }
}
