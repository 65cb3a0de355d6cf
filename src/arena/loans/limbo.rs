//! Where memory waits that its producer has dropped while others still use it.
//!
//! The design is that of torch's CUDA tensors between processes (`torch/multiprocessing/cuda_multiprocessing.md`): the producer keeps
//! what it has sent until its reference count, in a file of counters, says that it is used no more; the limbo is looked
//! through whenever something is lent or dropped, and when somebody asks.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::counters::Counters;
use crate::arena::handle::CounterHandle;
use crate::arena::header::DROP_WAIT;
use crate::error::{Error, IntoError, Result};

/// How many may wait before somebody is warned.
const LIMIT: usize = 1000;
/// How many that wait are looked at when something is lent or dropped.
const LOOKS: usize = 64;

/// Memory that belongs to its producer: dropping it frees it, for everyone.
///
/// It may be a CPU's or a device's; all that is asked of it is its size, for [`Limbo::bytes`] and warnings.
pub trait Memory: Send {
    /// Returns how many bytes it is.
    fn bytes(&self) -> u64;
}

impl<T: Memory + ?Sized> Memory for Box<T> {
    fn bytes(&self) -> u64 {
        (**self).bytes()
    }
}

/// Lends memory to other processes, and keeps what was dropped meanwhile until they have given it back.
///
/// When the limbo and everything it has lent is dropped, or the process ends, what others still hold is left as it is: never
/// freed under their hands, and never by this process. Handles that nobody has received are void then.
///
/// ```
/// use ndarray_shm::arena::loans::{Counters, Limbo, Memory};
///
/// struct Buffer(Vec<u8>);
/// impl Memory for Buffer {
///     fn bytes(&self) -> u64 {
///         self.0.len() as u64
///     }
/// }
///
/// let limbo = Limbo::new(&Counters::create("limbo-example", 1000)?);
/// let lent = limbo.lend(Buffer(vec![7; 100]))?;
/// let handle = lent.send()?; // together with whatever tells the receiver where the memory is
/// drop(lent);
/// assert_eq!(limbo.len(), 1); // it waits
///
/// // in another process
/// let held = Counters::open("limbo-example")?.receive(&handle)?;
/// held.release()?;
///
/// assert_eq!(limbo.reclaim()?, 1);
/// assert_eq!(limbo.len(), 0);
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
pub struct Limbo<M: Memory> {
    inner: Arc<LimboState<M>>,
}

struct LimboState<M: Memory> {
    counters: Counters,
    waiting: Mutex<VecDeque<Waiting<M>>>,
    limit: AtomicUsize,
    warned: AtomicBool,
}

struct Waiting<M> {
    memory: M,
    /// Of the memory: asked once, since whose code answers is not known here.
    bytes: u64,
    loans: Vec<CounterHandle>,
}

impl<M: Memory> Limbo<M> {
    /// Makes a limbo whose loans are counted here.
    pub fn new(counters: &Counters) -> Self {
        let (limit, warned) = (AtomicUsize::new(LIMIT), AtomicBool::new(false));
        Self { inner: Arc::new(LimboState { counters: counters.clone(), waiting: Mutex::default(), limit, warned }) }
    }

    /// Sets how many memories may wait before a warning is logged, once; 1000 otherwise.
    pub fn warn_above(self, limit: usize) -> Self {
        self.inner.limit.store(limit, Ordering::Relaxed);
        self
    }

    /// Takes memory that others are to be told of.
    ///
    /// Looks through some of what waits; through all of it, and for receivers that have died, if that is more than the limit.
    ///
    /// # Errors
    ///
    /// The error gives the memory back. [`Unsupported`](Error::Unsupported): this is a forked child, which is no member of the
    /// counters. Otherwise those of [`reclaim`](Self::reclaim).
    pub fn lend(&self, memory: M) -> Result<LentMemory<M>, IntoError<M>> {
        let is_too_much = self.len() > self.inner.limit.load(Ordering::Relaxed);
        let looks = if is_too_much { self.reclaim() } else { self.inner.free_released(LOOKS) };
        match looks {
            Ok(_) => Ok(LentMemory { memory: Some(memory), loans: Mutex::default(), inner: Arc::clone(&self.inner) }),
            Err(error) => Err(IntoError::new(error, memory)),
        }
    }

    /// Frees everything that waits and is held no more, what receivers held that have died included; returns how many
    /// memories that was.
    ///
    /// # Errors
    ///
    /// As [`Counters::reclaim`].
    pub fn reclaim(&self) -> Result<usize> {
        self.inner.counters.reclaim()?;
        self.inner.free_released(usize::MAX)
    }

    /// Returns how many memories wait: in a forked child none.
    pub fn len(&self) -> usize {
        self.inner.waiting().map_or(0, |waiting| waiting.len())
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many bytes wait: in a forked child none.
    pub fn bytes(&self) -> u64 {
        self.inner.waiting().map_or(0, |waiting| waiting.iter().map(|one| one.bytes).sum())
    }
}

impl<M: Memory> LimboState<M> {
    /// Refuses forked children, in which locks of their parent's threads stay locked.
    fn waiting(&self) -> Result<MutexGuard<'_, VecDeque<Waiting<M>>>> {
        self.counters.header().check_process()?;
        Ok(self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the loans that are over, and returns whether others are not.
    fn is_lent(&self, loans: &mut Vec<CounterHandle>) -> bool {
        loans.retain(|loan| !self.counters.end_if_over(loan));
        !loans.is_empty()
    }

    /// Looks at so many that wait, and frees those that are held no more.
    fn free_released(&self, looks: usize) -> Result<usize> {
        let mut free = Vec::new();
        let mut waiting = self.waiting()?;
        for _ in 0..looks.min(waiting.len()) {
            let Some(mut one) = waiting.pop_front() else { break };
            if self.is_lent(&mut one.loans) {
                waiting.push_back(one);
            } else {
                free.push(one.memory);
            }
        }
        // The memory is dropped without the lock: its code is not known here, and may lend or drop more meanwhile.
        drop(waiting);
        Ok(free.len())
    }

    /// Keeps memory until it is held no more.
    fn keep(&self, memory: M, loans: Vec<CounterHandle>) {
        let bytes = memory.bytes();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push_back(Waiting { memory, bytes, loans });
        let (count, limit) = (waiting.len(), self.limit.load(Ordering::Relaxed));
        if count > limit && !self.warned.swap(true, Ordering::Relaxed) {
            let bytes: u64 = waiting.iter().map(|waiting| waiting.bytes).sum();
            drop(waiting);
            log::warn!(
                "{count} memories ({bytes} bytes) that were lent to other processes wait to be given back; receivers that keep \
                 everything they get keep it all in memory"
            );
        }
    }
}

impl<M: Memory> Drop for LimboState<M> {
    fn drop(&mut self) {
        let _ = self.free_released(usize::MAX); // in a forked child nothing is freed
        if self.waiting().is_ok_and(|waiting| !waiting.is_empty()) {
            let _others_are_at_it = self.counters.header().reclaim_dead(DROP_WAIT);
            let _ = self.free_released(usize::MAX);
        }
        // Not locked: in a forked child the lock may be one that nobody gives back.
        let left = std::mem::take(self.waiting.get_mut().unwrap_or_else(PoisonError::into_inner));
        if left.is_empty() {
            return;
        }
        // Others are looking at it: it must not be freed, and nobody is left who could free it later.
        if self.counters.header().is_own_process() {
            log::warn!("{} memories are left as they are, because other processes still hold them", left.len());
        }
        left.into_iter().for_each(|waiting| std::mem::forget(waiting.memory));
    }
}

impl<M: Memory> fmt::Debug for Limbo<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limbo").field("counters", &self.inner.counters).field("len", &self.len()).finish()
    }
}

/// Lent memory, of which other processes can be told by [`send`](Self::send). Dropped while they use it, it waits in the limbo.
///
/// [`Limbo`] has an example.
pub struct LentMemory<M: Memory> {
    memory: Option<M>,
    loans: Mutex<Vec<CounterHandle>>,
    inner: Arc<LimboState<M>>,
}

impl<M: Memory> LentMemory<M> {
    fn loans(&self) -> MutexGuard<'_, Vec<CounterHandle>> {
        self.loans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends it once more: one handle, one receiver, one release.
    ///
    /// # Errors
    ///
    /// [`TooManyHandles`](Error::TooManyHandles): the file has no counter left. [`Unsupported`](Error::Unsupported): this is a
    /// forked child.
    pub fn send(&self) -> Result<CounterHandle> {
        self.inner.counters.header().check_process()?;
        let mut loans = self.loans();
        // What was given back makes room.
        if loans.len() >= LOOKS {
            self.inner.is_lent(&mut loans);
        }
        let handle = self.inner.counters.lend()?;
        loans.push(handle);
        Ok(handle)
    }

    /// Takes back a handle that was not delivered; `Ok(false)`: somebody has received it.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported): this is a forked child.
    pub fn revoke(&self, handle: &CounterHandle) -> Result<bool> {
        self.inner.counters.header().check_process()?;
        let mut loans = self.loans();
        let revoked = loans.contains(handle) && self.inner.counters.revoke(handle);
        self.inner.is_lent(&mut loans);
        Ok(revoked)
    }

    /// Returns how many handles are held or on their way. What dead receivers held is subtracted first.
    ///
    /// # Errors
    ///
    /// As [`Counters::reclaim`].
    pub fn count(&self) -> Result<usize> {
        self.inner.counters.reclaim()?;
        let mut loans = self.loans();
        self.inner.is_lent(&mut loans);
        Ok(loans.len())
    }

    /// Gives the memory back, if nobody has it and no handle is on its way.
    ///
    /// # Errors
    ///
    /// The error gives it back as it is. [`WouldBlock`](Error::WouldBlock): others hold it. As [`count`](Self::count).
    pub fn into_memory(mut self) -> Result<M, IntoError<Self>> {
        let memory = self.count().and_then(|count| {
            let memory = if count == 0 { self.memory.take() } else { None };
            memory.ok_or_else(|| Error::WouldBlock { location: self.inner.counters.location().to_string() })
        });
        memory.map_err(|error| IntoError::new(error, self))
    }
}

impl<M: Memory> Deref for LentMemory<M> {
    type Target = M;

    #[allow(clippy::missing_panics_doc)] // it is there until this is consumed
    fn deref(&self) -> &M {
        self.memory.as_ref().expect("it is taken when this is consumed only")
    }
}

impl<M: Memory> Drop for LentMemory<M> {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        // A forked child cannot know, and must not free what its parent has lent; nor may it wait for locks that a thread of
        // its parent had.
        if !self.inner.counters.header().is_own_process() {
            std::mem::forget(memory);
            return;
        }
        let mut loans = std::mem::take(&mut *self.loans());
        if self.inner.is_lent(&mut loans) {
            self.inner.keep(memory, loans);
        } else {
            drop(memory);
        }
        let _ = self.inner.free_released(LOOKS); // this is no forked child
    }
}

impl<M: Memory> fmt::Debug for LentMemory<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loans = self.loans.try_lock().map(|loans| loans.len()); // in a forked child another's lock
        f.debug_struct("LentMemory").field("loans", &loans.ok()).finish_non_exhaustive()
    }
}
