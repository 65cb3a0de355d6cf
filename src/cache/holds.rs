//! The locks of a cache: which slots this process reads or fills, and which keys it fills.
//!
//! A lock is one byte for each slot, and one for each key, far behind those of slots. The kernel counts descriptions,
//! not threads: locks of one description merge and convert instead of excluding each other. So a process has one
//! description for a cache, and keeps a table of what its threads hold: the first reader of a run locks, the last
//! unlocks, and no two threads fill the same slots or the same key.
//!
//! A forked child opens a description of its own, because unlocking on its parent's would end the parent's locks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::geometry::SlotRun;
use crate::backend::Access;
use crate::backend::lock_space::{LEASE, cache_key, cache_slots};
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::interrupt;
use crate::os::{self, FileId, LockKind, PerProcess};
use crate::segment::{Home, LockFile, pin};

/// How long a thread waits for the others of its process, and opening for a process that finds out whether the cache
/// can be removed. They hold the lock for a few system calls, unless it was inherited from a thread that this process
/// does not have, or the process is stopped.
const PATIENCE: Duration = Duration::from_secs(10);

/// How the threads of this process hold a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunHold {
    /// So many read.
    Reading(u64),
    /// One fills.
    Filling,
}

/// What this process holds, on its description.
#[derive(Debug)]
struct OwnHolds {
    file: LockFile,
    /// By the first slot: how many slots, and how they are held. No two overlap.
    runs: BTreeMap<u64, (u64, RunHold)>,
    keys: BTreeSet<u64>,
}

/// The locks that this process has on a cache.
#[derive(Debug)]
pub(super) struct CacheLocks {
    home: Home,
    file: FileId,
    own: PerProcess<OwnHolds>,
}

impl OwnHolds {
    fn new(file: LockFile) -> Self {
        Self { file, runs: BTreeMap::new(), keys: BTreeSet::new() }
    }

    /// Returns whether this process holds slots of a run other than by this very run.
    fn overlaps(&self, run: SlotRun) -> bool {
        let before = self.runs.range(..run.first).next_back();
        before.is_some_and(|(first, (count, _))| first + count > run.first)
            || self
                .runs
                .range(run.first..run.end())
                .any(|(first, (count, _))| (*first, *count) != (run.first, run.count))
    }
}

impl CacheLocks {
    /// Opens the description of this process. Returns `None` if the name does not lead to the file `id` any more.
    pub(super) fn open(home: &Home, id: FileId) -> Result<Option<Self>> {
        Ok(leased(home, id)?.map(|file| Self::of(home.clone(), id, file)))
    }

    /// Takes the description of this process, of a file that has no name yet.
    pub(super) fn new(home: &Home, id: FileId, mut file: LockFile) -> Result<Self> {
        let is_leased = lease(&mut file, home)?;
        is_leased.then(|| Self::of(home.clone(), id, file)).ok_or_else(|| ErrorKind::Unlinked.at(&home.location))
    }

    fn of(home: Home, id: FileId, file: LockFile) -> Self {
        let own = PerProcess::new();
        if let Some(mut slot) = own.lock(Duration::MAX) {
            slot.value = Some(OwnHolds::new(file));
        }
        Self { home, file: id, own }
    }

    /// Calls `act` with what this process holds. A forked child opens the file first.
    fn with<R>(&self, act: impl FnOnce(&mut OwnHolds) -> Result<R>) -> Result<R> {
        let missing = || {
            let what = "a cache in this forked child, because a thread of its parent was using it (open it again here)";
            ErrorKind::Unsupported { what: what.into() }.at(&self.home.location)
        };
        let mut own = self.own.lock(PATIENCE).ok_or_else(missing)?;
        if own.value.is_none() {
            let file = leased(&self.home, self.file)?.ok_or_else(|| ErrorKind::Unlinked.at(&self.home.location))?;
            own.value = Some(OwnHolds::new(file));
        }
        own.value.as_mut().map_or_else(|| Err(missing()), act)
    }

    /// Locks a run for reading, unless a process fills slots of it.
    pub(super) fn read(&self, run: SlotRun) -> Result<bool> {
        self.with(|own| {
            if let Some((count, held)) = own.runs.get_mut(&run.first) {
                return Ok(match held {
                    RunHold::Reading(readers) if *count == run.count => {
                        *readers += 1;
                        true
                    }
                    _ => false,
                });
            }
            let locked = !own.overlaps(run)
                && own.file.try_lock(LockKind::Shared, cache_slots(run.first, run.count), &self.home)?;
            if locked {
                own.runs.insert(run.first, (run.count, RunHold::Reading(1)));
            }
            Ok(locked)
        })
    }

    /// Locks a run for writing, unless a process reads or fills slots of it.
    pub(super) fn fill(&self, run: SlotRun) -> Result<bool> {
        self.with(|own| {
            let is_free = !own.runs.contains_key(&run.first) && !own.overlaps(run);
            let range = cache_slots(run.first, run.count);
            let locked = is_free && own.file.try_lock(LockKind::Exclusive, range, &self.home)?;
            if locked {
                own.runs.insert(run.first, (run.count, RunHold::Filling));
            }
            Ok(locked)
        })
    }

    /// Gives up a run that a thread of this process has locked.
    pub(super) fn release(&self, run: SlotRun) {
        // If unlocking fails, the lock ends with the cache.
        let _ = self.with(|own| {
            if let Some((_, RunHold::Reading(readers))) = own.runs.get_mut(&run.first) {
                *readers -= 1;
                if *readers > 0 {
                    return Ok(());
                }
            }
            own.runs.remove(&run.first);
            own.file.unlock(cache_slots(run.first, run.count), &self.home)
        });
    }

    /// Locks a key, unless a process has it.
    pub(super) fn lock_key(&self, key: u128) -> Result<bool> {
        let range = cache_key(key);
        self.with(|own| {
            let locked =
                !own.keys.contains(&range.start) && own.file.try_lock(LockKind::Exclusive, range, &self.home)?;
            if locked {
                own.keys.insert(range.start);
            }
            Ok(locked)
        })
    }

    /// Gives up a key that a thread of this process has locked.
    pub(super) fn unlock_key(&self, key: u128) {
        let range = cache_key(key);
        // As above.
        let _ = self.with(|own| {
            own.keys.remove(&range.start);
            own.file.unlock(range, &self.home)
        });
    }

    /// Calls `act` with the description of this process.
    pub(super) fn with_file<R>(&self, act: impl FnOnce(&LockFile) -> Result<R>) -> Result<R> {
        self.with(|own| act(&own.file))
    }
}

/// Opens a description for locks that shows other processes that this one uses the cache. Returns `None` if the name
/// does not lead to the file `id` any more.
fn leased(home: &Home, id: FileId) -> Result<Option<LockFile>> {
    let mut backoff = Backoff::new(PATIENCE);
    loop {
        let Some(mut file) = LockFile::open(home, Access::ReadWrite, id)? else { return Ok(None) };
        os::step("cache: opened");
        if lease(&mut file, home)? {
            // Until it had the lease, the file could be removed.
            let named = pin(&home.backend, &home.location, Access::Read)?;
            return Ok(named.is_some_and(|(_, facts)| facts.id == id).then_some(file));
        }
        if !interrupt::goes_on() {
            return Err(ErrorKind::Interrupted.at(&home.location));
        }
        if !backoff.pause() {
            return Err(ErrorKind::TimedOut { waited: PATIENCE }.at(&home.location));
        }
    }
}

/// Shows other processes that this one uses the cache. A write lock on the lease is that of a process that removes the
/// file, unless it was used meanwhile.
fn lease(file: &mut LockFile, home: &Home) -> Result<bool> {
    file.turn().try_lock(LockKind::Shared, LEASE).map_err(|error| Error::os("lock", &home.location, error))
}
