//! The limbo: memory that its producer has dropped while receivers still use it.
//!
//! The design follows how torch shares CUDA tensors between processes
//! (`torch/multiprocessing/cuda_multiprocessing.md`). The producer keeps sent memory until its reference count, in a
//! file of counters, falls to zero. It checks the counts of memory in the limbo whenever it lends or drops memory, and
//! when it reclaims.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::counters::Counters;
use crate::arena::handle::CounterHandle;
use crate::arena::header::DROP_WAIT;
use crate::backoff::Deadline;
use crate::error::{Error, ErrorKind, IntoError, Result};

/// Number of buffers in the limbo above which a warning is logged.
const LIMIT: usize = 1000;
/// Number of buffers in the limbo that are checked when memory is lent or dropped.
const LOOKS: usize = 64;
/// Number of lists of loans below which those of freed buffers are not looked for.
const LISTS: usize = 1024;

/// A buffer that belongs to its producer. Dropping the value frees the memory, for receivers too.
///
/// It may be memory of the CPU or of a device. Only its size is needed, for [`Limbo::bytes`] and warnings.
pub trait Memory: Send {
    /// Returns the size in bytes.
    fn bytes(&self) -> u64;
}

impl<T: Memory + ?Sized> Memory for Box<T> {
    fn bytes(&self) -> u64 {
        (**self).bytes()
    }
}

/// Lends memory to other processes, and keeps dropped memory until they have released it.
///
/// When the limbo and all [`LentMemory`] are dropped, memory that receivers still hold is leaked, not freed: `Drop` of
/// the [`Memory`] is not called. Handles that were not received are void then.
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
/// let handle = lent.send()?; // sent together with the place of the memory, which this crate does not know
/// drop(lent);
/// assert_eq!(limbo.len(), 1); // the memory waits for its receiver
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
    /// The loans of all memory, in use or in the limbo. Locked for moments only, and never together with the lists in
    /// it.
    lists: Mutex<Lists>,
    limit: AtomicUsize,
    warned: AtomicBool,
}

struct Waiting<M> {
    memory: M,
    /// Size of the memory, computed once: `Memory::bytes` is foreign code, which must not run while `waiting` is
    /// locked.
    bytes: u64,
    loans: Arc<Loans>,
}

/// The loans of one buffer that may not be over yet. Locked after `waiting`, where both are.
#[derive(Default)]
struct Loans(Mutex<Vec<CounterHandle>>);

impl Loans {
    fn lock(&self) -> MutexGuard<'_, Vec<CounterHandle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the loans that are over, and returns how many are left.
    fn count(&self, counters: &Counters) -> usize {
        let mut loans = self.lock();
        loans.retain(|loan| !counters.end_if_over(loan));
        loans.len()
    }

    /// Revokes a loan of this buffer. Returns `None` if it is none, or is over, and otherwise whether it was in flight.
    fn revoke(&self, handle: &CounterHandle, counters: &Counters) -> Option<bool> {
        // While the loan is in the list, which is locked, its entry is not used for another one.
        self.lock().contains(handle).then(|| counters.revoke(handle))
    }
}

/// Every buffer's list, and some of buffers that were freed: these are removed when the number has doubled.
#[derive(Default)]
struct Lists {
    lists: Vec<Weak<Loans>>,
    most: usize,
}

impl Lists {
    fn add(&mut self, loans: &Arc<Loans>) {
        if self.lists.len() >= self.most {
            self.lists.retain(|list| list.strong_count() > 0);
            self.most = LISTS.max(self.lists.len() * 2);
        }
        self.lists.push(Arc::downgrade(loans));
    }
}

impl<M: Memory> Limbo<M> {
    /// Creates a limbo that counts its loans in these counters.
    pub fn new(counters: &Counters) -> Self {
        let (limit, warned) = (AtomicUsize::new(LIMIT), AtomicBool::new(false));
        let (counters, waiting, lists) = (counters.clone(), Mutex::default(), Mutex::default());
        Self { inner: Arc::new(LimboState { counters, waiting, lists, limit, warned }) }
    }

    /// Sets how many buffers the limbo may keep before it logs a warning, once. The default is 1000.
    pub fn warn_above(self, limit: usize) -> Self {
        self.inner.limit.store(limit, Ordering::Relaxed);
        self
    }

    /// Takes a buffer that can then be sent to receivers.
    ///
    /// Also checks some of the buffers in the limbo. If there are more than the [limit](Self::warn_above), checks all
    /// of them, and reclaims what dead receivers held.
    ///
    /// # Errors
    ///
    /// The error gives the memory back. [`Unsupported`](ErrorKind::Unsupported): this is a forked child, which is not a
    /// member of the counters. Otherwise those of [`reclaim`](Self::reclaim).
    pub fn lend(&self, memory: M) -> Result<LentMemory<M>, IntoError<M>> {
        let is_too_much = self.len() > self.inner.limit.load(Ordering::Relaxed);
        let looks = if is_too_much { self.reclaim() } else { self.inner.free_released(LOOKS) };
        if let Err(error) = looks {
            return Err(IntoError::new(error, memory));
        }
        let loans = Arc::default();
        self.inner.lists().add(&loans);
        Ok(LentMemory { memory: Some(memory), loans, inner: Arc::clone(&self.inner) })
    }

    /// Revokes a handle that was not delivered, also of memory that was dropped. Returns `Ok(false)` if it was
    /// received, is over, or is not one of this limbo.
    ///
    /// A handle that is lost, such as one in a message to a process that was killed before it read it, keeps its memory
    /// until then.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported): this is a forked child.
    pub fn revoke(&self, handle: &CounterHandle) -> Result<bool> {
        let lists = self.inner.all_loans()?;
        let Some(revoked) = lists.iter().find_map(|loans| loans.revoke(handle, &self.inner.counters)) else {
            return Ok(false);
        };
        if revoked {
            self.inner.free_released(usize::MAX)?;
        }
        Ok(revoked)
    }

    /// Frees the buffers in the limbo that no living receiver holds, and returns their number.
    ///
    /// # Errors
    ///
    /// As [`Counters::reclaim`].
    pub fn reclaim(&self) -> Result<usize> {
        self.inner.counters.reclaim()?;
        self.inner.free_released(usize::MAX)
    }

    /// Returns how many buffers are in the limbo; 0 in a forked child.
    pub fn len(&self) -> usize {
        self.inner.waiting().map_or(0, |waiting| waiting.len())
    }

    /// Returns whether the limbo is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many bytes are in the limbo; 0 in a forked child.
    pub fn bytes(&self) -> u64 {
        self.inner.waiting().map_or(0, |waiting| waiting.iter().map(|one| one.bytes).sum())
    }
}

impl<M: Memory> LimboState<M> {
    /// Locks the buffers in the limbo. Fails in a forked child: a lock that a thread of the parent held at the fork
    /// stays locked there for ever.
    fn waiting(&self) -> Result<MutexGuard<'_, VecDeque<Waiting<M>>>> {
        self.counters.header().check_process()?;
        Ok(self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the loans of each buffer. Fails in a forked child, as [`waiting`](Self::waiting).
    fn all_loans(&self) -> Result<Vec<Arc<Loans>>> {
        self.counters.header().check_process()?;
        Ok(self.lists().lists.iter().filter_map(Weak::upgrade).collect())
    }

    /// Takes a counter. If none is free, ends the loans of all buffers that are over: each keeps a counter until its
    /// producer has noticed.
    fn take_counter(&self) -> Result<CounterHandle> {
        match self.counters.lend() {
            Err(Error { kind: ErrorKind::TooManyHandles { .. }, .. }) => {
                for loans in self.all_loans()? {
                    loans.count(&self.counters);
                }
                self.counters.lend()
            }
            taken => taken,
        }
    }

    /// Checks at most `looks` buffers in the limbo, and frees those that are not lent any more. Returns their number.
    fn free_released(&self, looks: usize) -> Result<usize> {
        let mut free = Vec::new();
        let mut waiting = self.waiting()?;
        for _ in 0..looks.min(waiting.len()) {
            let Some(one) = waiting.pop_front() else { break };
            if one.loans.count(&self.counters) > 0 {
                waiting.push_back(one);
            } else {
                free.push(one.memory);
            }
        }
        // `free` is dropped after the lock is released: the buffers' `Drop` is foreign code, which may lend or drop
        // memory itself.
        drop(waiting);
        Ok(free.len())
    }

    /// Keeps memory in the limbo until its loans are over.
    fn keep(&self, memory: M, loans: Arc<Loans>) {
        let bytes = memory.bytes();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push_back(Waiting { memory, bytes, loans });
        let (count, limit) = (waiting.len(), self.limit.load(Ordering::Relaxed));
        if count > limit && !self.warned.swap(true, Ordering::Relaxed) {
            let bytes: u64 = waiting.iter().map(|waiting| waiting.bytes).sum();
            drop(waiting);
            log::warn!(
                "the limbo keeps {count} buffers ({bytes} bytes) that other processes have not released; memory is freed only \
                 when its receivers release it"
            );
        }
    }
}

impl<M: Memory> Drop for LimboState<M> {
    fn drop(&mut self) {
        let _ = self.free_released(usize::MAX); // in a forked child nothing is freed
        if self.waiting().is_ok_and(|waiting| !waiting.is_empty()) {
            // Fails while another process reclaims.
            let _ = self.counters.header().reclaim_dead(Deadline::after(DROP_WAIT));
            let _ = self.free_released(usize::MAX);
        }
        // Without locking: in a forked child, a thread of the parent may have held the lock at the fork, and it is
        // never released.
        let left = std::mem::take(self.waiting.get_mut().unwrap_or_else(PoisonError::into_inner));
        if left.is_empty() {
            return;
        }
        // Receivers still use this memory, so it must not be freed; and after this drop nothing can free it later.
        if self.counters.header().is_own_process() {
            log::warn!("{} buffers are leaked, because other processes still hold them", left.len());
        }
        left.into_iter().for_each(|waiting| std::mem::forget(waiting.memory));
    }
}

impl<M: Memory> fmt::Debug for Limbo<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limbo").field("counters", &self.inner.counters).field("len", &self.len()).finish()
    }
}

/// Lent memory. [`send`](Self::send) returns handles to it. If it is dropped while receivers hold it, the limbo keeps
/// it.
///
/// [`Limbo`] has an example.
pub struct LentMemory<M: Memory> {
    memory: Option<M>,
    loans: Arc<Loans>,
    inner: Arc<LimboState<M>>,
}

impl<M: Memory> LentMemory<M> {
    /// Returns a handle for one receiver, which receives it once and releases it once.
    ///
    /// # Errors
    ///
    /// [`TooManyHandles`](ErrorKind::TooManyHandles): the file has no free counter.
    /// [`Unsupported`](ErrorKind::Unsupported): this is a forked child.
    pub fn send(&self) -> Result<CounterHandle> {
        let counters = &self.inner.counters;
        counters.header().check_process()?;
        let handle = self.inner.take_counter()?;
        let mut loans = self.loans.lock();
        // Removes loans that are over, so that the list does not grow for ever.
        if loans.len() >= LOOKS {
            loans.retain(|loan| !counters.end_if_over(loan));
        }
        loans.push(handle);
        Ok(handle)
    }

    /// Revokes a handle that was not delivered. Returns `Ok(false)` if it was received.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported): this is a forked child.
    pub fn revoke(&self, handle: &CounterHandle) -> Result<bool> {
        let counters = &self.inner.counters;
        counters.header().check_process()?;
        let revoked = self.loans.revoke(handle, counters);
        self.loans.count(counters);
        Ok(revoked == Some(true))
    }

    /// Returns how many handles are held or in flight, after reclaiming what dead receivers held.
    ///
    /// # Errors
    ///
    /// As [`Counters::reclaim`].
    pub fn count(&self) -> Result<usize> {
        self.inner.counters.reclaim()?;
        Ok(self.loans.count(&self.inner.counters))
    }

    /// Returns the memory, if no receiver holds it and no handle is in flight.
    ///
    /// # Errors
    ///
    /// The error gives this value back. [`WouldBlock`](ErrorKind::WouldBlock): a receiver holds it, or a handle is in
    /// flight. As [`count`](Self::count).
    pub fn into_memory(mut self) -> Result<M, IntoError<Self>> {
        let memory = self.count().and_then(|count| {
            let memory = if count == 0 { self.memory.take() } else { None };
            memory.ok_or_else(|| ErrorKind::WouldBlock.at(self.inner.counters.location()))
        });
        memory.map_err(|error| IntoError::new(error, self))
    }
}

impl<M: Memory> Deref for LentMemory<M> {
    type Target = M;

    #[allow(clippy::missing_panics_doc)] // never panics
    fn deref(&self) -> &M {
        self.memory.as_ref().expect("the memory is taken only when this value is consumed")
    }
}

impl<M: Memory> Drop for LentMemory<M> {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        // A forked child does not know what its parent has lent, and must not free it. Nor may it take a lock that a
        // thread of its parent may have held at the fork.
        if !self.inner.counters.header().is_own_process() {
            std::mem::forget(memory);
            return;
        }
        if self.loans.count(&self.inner.counters) > 0 {
            self.inner.keep(memory, Arc::clone(&self.loans));
        } else {
            drop(memory);
        }
        let _ = self.inner.free_released(LOOKS); // fails only in a forked child, which this is not
    }
}

impl<M: Memory> fmt::Debug for LentMemory<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loans = self.loans.0.try_lock().map(|loans| loans.len()); // in a forked child it may be locked for ever
        f.debug_struct("LentMemory").field("loans", &loans.ok()).finish_non_exhaustive()
    }
}
