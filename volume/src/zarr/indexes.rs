//! Indexes of shards that were read, kept while there is room, so that each is fetched once however many threads ask for it.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::bbox::to_usize;
use crate::error::Result;
use crate::zarr::shard_index::ShardIndex;

/// Memory for indexes.
const ROOM: u64 = 64 << 20;

/// What was found under the key of a shard; nothing at all until a thread has looked.
type ShardIndexSlot = Arc<Mutex<Option<Option<Arc<ShardIndex>>>>>;

/// Indexes by the number of their shard along each axis.
pub(super) struct Indexes {
    /// How many there may be.
    capacity: usize,
    held: Mutex<CachedIndexes>,
}

#[derive(Default)]
struct CachedIndexes {
    slots: HashMap<Vec<u64>, ShardIndexSlot>,
    /// In the order in which they came.
    order: VecDeque<Vec<u64>>,
}

impl Indexes {
    /// Keeps indexes of so many bytes each.
    pub(super) fn new(index_bytes: u64) -> Self {
        // A small index takes some memory besides its bytes.
        let capacity = to_usize(ROOM / index_bytes.max(256)).max(1);
        Self { capacity, held: Mutex::default() }
    }

    /// Returns the index of a shard, `None` if there is no such shard; fetches it unless it is here.
    pub(super) fn get(
        &self,
        shard: &[u64],
        fetch: impl FnOnce() -> Result<Option<ShardIndex>>,
    ) -> Result<Option<Arc<ShardIndex>>> {
        let slot = self.slot(shard);
        // Held while fetching: others that want the same index wait for it, those that want another one do not.
        let mut found = lock(&slot);
        if let Some(found) = &*found {
            return Ok(found.clone());
        }
        let fetched = fetch()?.map(Arc::new);
        *found = Some(fetched.clone());
        Ok(fetched)
    }

    /// Forgets the index of a shard, which is going to be another one.
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

/// The data under these locks is whole at any moment, also when a thread panics.
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
    fn an_index_is_fetched_once_until_evicted() {
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
    fn oldest_index_is_evicted_and_errors_are_not_cached() {
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
