//! Statics without a lock that a forked child could inherit locked. In the child the thread that holds such a lock does
//! not exist, and a wait for it would never end.
//!
//! Values with locks of their own (arenas, limbos, pools, channels, children) know which process made them, and in a
//! forked child they take no lock, or only try to. Thread-local values need no lock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use super::fork_generation;
use crate::backoff::Backoff;

/// How long a thread waits for other threads that look something up here.
pub(crate) const MOMENT: Duration = Duration::from_millis(1);

/// How often a thread tries before it sleeps: for about as long as two system calls take.
const SPINS: u32 = 100;

/// A value of each process, forked children included, with one lock for each of eight generations of forks. A
/// descendant has no value if its lock was held when an ancestor eight generations before it forked.
#[derive(Debug)]
pub(crate) struct PerProcess<T>([Mutex<Generation<T>>; 8]);

#[derive(Debug)]
pub(crate) struct Generation<T> {
    generation: u64,
    pub(crate) value: Option<T>,
}

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self([const { Mutex::new(Generation { generation: 0, value: None }) }; 8])
    }

    /// Locks this process's value. Returns `None` if the lock is not free within `patience`.
    pub(crate) fn lock(&self, patience: Duration) -> Option<MutexGuard<'_, Generation<T>>> {
        self.lock_of(fork_generation(), patience)
    }

    #[allow(clippy::cast_possible_truncation)] // the remainder is small
    fn lock_of(&self, generation: u64, patience: Duration) -> Option<MutexGuard<'_, Generation<T>>> {
        let own = &self.0[(generation % self.0.len() as u64) as usize];
        let (mut spins, mut backoff) = (0..SPINS, Backoff::new(patience));
        loop {
            let mut slot = match own.try_lock() {
                Ok(slot) => slot,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if spins.next().is_some() => {
                    std::hint::spin_loop();
                    continue;
                }
                Err(TryLockError::WouldBlock) if backoff.pause() => continue,
                Err(TryLockError::WouldBlock) => return None,
            };
            if slot.generation != generation {
                // The value of an ancestor. Never dropped: a descriptor in it may be another file's by now.
                std::mem::forget(slot.value.take());
                slot.generation = generation;
            }
            return Some(slot);
        }
    }
}

impl<T: Clone> PerProcess<T> {
    /// Returns the value that this process has found, or finds it. What cannot always be found is looked for again
    /// until it is found once. Threads that do so at the same time may find it more than once.
    pub(crate) fn get_or_try(&self, find: impl FnOnce() -> Option<T>) -> Option<T> {
        let known = self.lock(MOMENT).and_then(|slot| slot.value.clone());
        known.or_else(|| find().map(|found| self.keep(found)))
    }

    /// Keeps a value, unless another thread was first, and returns the one that is kept.
    fn keep(&self, found: T) -> T {
        let Some(mut slot) = self.lock(MOMENT) else { return found };
        slot.value.get_or_insert(found).clone()
    }
}

impl<T: Clone + Default> PerProcess<T> {
    /// Returns the value of this process, or of the nearest ancestor that has one. Returns `None` if a thread is
    /// changing a value, or was when an ancestor forked.
    pub(crate) fn inherited(&self) -> Option<T> {
        if let Some(own) = self.lock(MOMENT)?.value.clone() {
            return Some(own);
        }
        let slots: Option<Vec<_>> = self.0.iter().map(|slot| slot.try_lock().ok()).collect();
        let nearest = slots?.into_iter().filter(|slot| slot.value.is_some()).max_by_key(|slot| slot.generation);
        Some(nearest.and_then(|slot| slot.value.clone()).unwrap_or_default())
    }
}

/// A number that is the same however often it is found. It guards no other data, so Relaxed suffices.
#[derive(Debug)]
pub(crate) struct Fact(AtomicUsize);

impl Fact {
    pub(crate) const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    pub(crate) fn get(&self) -> Option<usize> {
        self.0.load(Ordering::Relaxed).checked_sub(1)
    }

    pub(crate) fn set(&self, found: usize) -> usize {
        self.0.store(found.wrapping_add(1), Ordering::Relaxed); // the largest number is found again every time
        found
    }

    pub(crate) fn get_or(&self, find: impl FnOnce() -> usize) -> usize {
        self.get().unwrap_or_else(|| self.set(find()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_has_its_own_lock_and_value() {
        let number = PerProcess::<Vec<u8>>::new();
        let mut parents = number.lock_of(0, Duration::ZERO).unwrap();
        parents.value = Some(vec![1]);
        assert!(number.lock_of(0, Duration::ZERO).is_none(), "one thread at a time");
        let mut childs = number.lock_of(1, Duration::ZERO).expect("another lock");
        assert_eq!(childs.value.replace(vec![2]), None);
        drop(childs);
        assert!(number.lock_of(8, Duration::ZERO).is_none(), "the parent's lock once more");
        drop(parents);
        assert_eq!(number.inherited(), Some(vec![1]), "of this process, which is of generation 0");
        assert_eq!(number.lock_of(8, Duration::ZERO).unwrap().value, None, "nothing of an ancestor's is used");
    }

    #[test]
    fn what_was_not_found_is_looked_for_again() {
        let number = PerProcess::<u8>::new();
        let found = [None, Some(1), Some(2)].map(|answer| number.get_or_try(|| answer));
        assert_eq!(found, [None, Some(1), Some(1)]);
    }

    #[test]
    fn fact_is_found_out_once() {
        let fact = Fact::new();
        assert_eq!((fact.get(), fact.get_or(|| 0), fact.get_or(|| 1), fact.get()), (None, 0, 0, Some(0)));
    }
}
