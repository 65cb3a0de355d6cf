//! Counters: an arena's entries without data, for memory that lies elsewhere and belongs to its producer.
//!
//! A loan to one receiver is one entry. The producer's bit keeps the entry from being used for another loan until the
//! producer has seen that this one is over. FLIGHT stands for the receiver until it receives the handle, then its own
//! bit does. So every loan ends exactly once: when its receiver releases it or dies, or the producer revokes it.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::arena::handle::CounterHandle;
use crate::arena::header::{ArenaHeader, TURN_WAIT};
use crate::arena::members::ReclaimedBlocks;
use crate::arena::tables::entries::{BlockEntry, Released};
use crate::arena::tables::geometry::{ENTRIES_OF_SPAN, Geometry};
use crate::arena::tables::span::around;
use crate::backend::{Directory, DraftOptions, IntoLocation, Location};
use crate::backoff::Deadline;
use crate::error::{ErrorKind, Result};
use crate::os;
use crate::segment::Home;
use crate::segment::footer::Kind;

/// Thousands of reference counters in one file, for up to 46 processes.
///
/// Memory that only its producer can free (GPU memory, a pinned buffer, a private mapping) is [lent](super::Limbo):
/// each loan is a handle that one receiver takes over, holds, and releases. A count stays right when a process dies:
/// the file has bits for what each process holds or has lent, and the next process that reclaims clears the bits of
/// dead processes. The last process that leaves removes the file's name.
///
/// Cloning is cheap, and clones are the same member.
#[derive(Clone)]
pub struct Counters {
    inner: Arc<CountersState>,
}

struct CountersState {
    header: ArenaHeader,
    /// The entry at which the next search for a free one begins.
    cursor: AtomicU32,
    /// Entries that this process has freed: hints for the next loans.
    free: Mutex<Vec<u32>>,
    /// Handles that this process has received and not released. A process that receives its own loan has two holds on
    /// the entry, so the entry alone does not tell whether it may release one as a receiver.
    received: Mutex<HashSet<CounterHandle>>,
}

impl Counters {
    /// Creates a file of `counters` counters, rounded up to a multiple of 256, under a name that must be free.
    ///
    /// # Errors
    ///
    /// As [`Arena::create`](crate::Arena::create).
    pub fn create(location: impl IntoLocation, counters: u32) -> Result<Self> {
        Self::make(Home::new(None, location)?, counters)
    }

    /// Opens existing counters.
    ///
    /// # Errors
    ///
    /// As [`Arena::open`](crate::Arena::open).
    pub fn open(location: impl IntoLocation) -> Result<Self> {
        Ok(Self::of(ArenaHeader::open(Home::new(None, location)?, Kind::Counters, false)?))
    }

    /// Creates a file of counters in a given directory.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn create_in(backend: &Directory, location: impl IntoLocation, counters: u32) -> Result<Self> {
        Self::make(Home::new(Some(backend), location)?, counters)
    }

    /// Opens existing counters in a given directory.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_in(backend: &Directory, location: impl IntoLocation) -> Result<Self> {
        Ok(Self::of(ArenaHeader::open(Home::new(Some(backend), location)?, Kind::Counters, false)?))
    }

    fn make(home: Home, counters: u32) -> Result<Self> {
        let spans = counters.div_ceil(ENTRIES_OF_SPAN).clamp(1, u32::MAX / ENTRIES_OF_SPAN);
        let creator = os::process_number();
        let geometry = Geometry { spans, queues: 0, cells: 0, sparse: false, counters: true, creator };
        Ok(Self::of(ArenaHeader::create(home, Kind::Counters, geometry, DraftOptions::default(), false)?))
    }

    fn of(header: ArenaHeader) -> Self {
        let (cursor, free, received) = (AtomicU32::new(0), Mutex::default(), Mutex::default());
        Self { inner: Arc::new(CountersState { header, cursor, free, received }) }
    }

    fn free(&self) -> MutexGuard<'_, Vec<u32>> {
        self.inner.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn received(&self) -> MutexGuard<'_, HashSet<CounterHandle>> {
        self.inner.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn header(&self) -> &ArenaHeader {
        &self.inner.header
    }

    /// Returns the file's name.
    pub fn location(&self) -> &Location {
        &self.header().home.location
    }

    /// Returns the random number of the file, which all its handles carry. Another file that gets the same name later
    /// has another number.
    pub fn number(&self) -> u64 {
        self.header().tag()
    }

    /// Returns the maximum number of loans at one time.
    pub fn capacity(&self) -> u32 {
        self.header().geometry.entries()
    }

    /// Receives a loan by its handle. This succeeds once for each handle.
    ///
    /// # Errors
    ///
    /// [`HandleSpent`](ErrorKind::HandleSpent): the handle was received already or revoked, or its producer has left or
    /// died. [`InvalidSetting`](ErrorKind::InvalidSetting): the handle is of other counters.
    /// [`Unsupported`](ErrorKind::Unsupported): this is a forked child.
    pub fn receive(&self, handle: &CounterHandle) -> Result<ReceivedLoan> {
        self.check(handle)?;
        if !self.header().entries().receive(handle.entry, handle.serial) {
            return Err(self.header().spent());
        }
        self.received().insert(*handle);
        Ok(ReceivedLoan { counters: self.clone(), handle: *handle, released: false })
    }

    /// Releases a loan of which this process [kept only the handle](ReceivedLoan::into_handle).
    ///
    /// # Errors
    ///
    /// [`HandleSpent`](ErrorKind::HandleSpent): this process has not received the handle, or has released it. No count
    /// changes.
    pub fn release(&self, handle: &CounterHandle) -> Result<()> {
        self.check(handle)?;
        if !self.received().remove(handle) {
            return Err(self.header().spent());
        }
        self.header().release(handle.entry)
    }

    /// Returns how many receivers hold a loan or have its handle in flight: 0 or 1. Reclaims what dead processes held
    /// first.
    ///
    /// # Errors
    ///
    /// [`HandleSpent`](ErrorKind::HandleSpent): the loan is over, and its producer has noticed it. Also the errors of
    /// [`reclaim`](Self::reclaim).
    pub fn count(&self, handle: &CounterHandle) -> Result<u32> {
        self.check(handle)?;
        self.reclaim()?;
        let entry = self.header().entry_table().get(handle.entry as usize).filter(|entry| !entry.is_free());
        match entry {
            Some(entry) if self.header().entries().is_shared_as(handle.entry, handle.serial) => Ok(entry.borrowers()),
            _ => Err(self.header().spent()),
        }
    }

    /// Reclaims what dead processes held or lent.
    ///
    /// # Errors
    ///
    /// As [`Arena::reclaim`](crate::Arena::reclaim).
    pub fn reclaim(&self) -> Result<ReclaimedBlocks> {
        self.header().reclaim_dead(Deadline::after(TURN_WAIT))
    }

    /// Takes a counter for one loan.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TooManyHandles`]: no counter is free, not even after reclaiming what dead processes held.
    pub(super) fn lend(&self) -> Result<CounterHandle> {
        self.header().check_process()?;
        let mut taken = self.take();
        if taken.is_none() {
            self.reclaim()?;
            taken = self.take();
        }
        let entry = taken.ok_or_else(|| {
            ErrorKind::TooManyHandles { limit: self.capacity().into(), doing: "in flight" }.at(self.header().name())
        })?;
        Ok(CounterHandle { owner: self.header().tag(), entry, serial: self.header().entries().share(entry) })
    }

    fn take(&self) -> Option<u32> {
        let entries = self.header().entries();
        let known = || self.free().pop();
        while let Some(entry) = known() {
            if entries.allocate_in_flight(entry) {
                return Some(entry);
            }
        }
        let found = around(self.capacity(), self.inner.cursor.load(Ordering::Relaxed)).find(|entry| {
            self.header().touch(entry / ENTRIES_OF_SPAN + 1);
            entries.allocate_in_flight(*entry)
        })?;
        self.inner.cursor.store(found + 1, Ordering::Relaxed);
        Some(found)
    }

    /// Ends a loan of this process if it is over: its receiver has released it, or has died and was reclaimed. Returns
    /// `true` then.
    pub(super) fn end_if_over(&self, handle: &CounterHandle) -> bool {
        let entries = self.header().entries();
        let is_over = entries.is_held_by_us_alone(handle.entry);
        if is_over && self.header().is_own_process() && entries.release(handle.entry) == Released::Freed {
            self.free().push(handle.entry);
        }
        is_over
    }

    /// Revokes a loan that was not received yet. Returns `false` if it was.
    pub(super) fn revoke(&self, handle: &CounterHandle) -> bool {
        self.header().entry_table().get(handle.entry as usize).is_some_and(BlockEntry::revoke)
    }

    fn check(&self, handle: &CounterHandle) -> Result<()> {
        let expected =
            "a handle of these counters: this is one of other counters, or of earlier ones with the same name";
        self.header().check_handle(handle.owner, handle, expected)
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters").field("location", self.location()).finish_non_exhaustive()
    }
}

/// A received loan. The producer keeps the memory until this value is dropped or its process dies.
///
/// [`Limbo`](super::Limbo) has an example of lending and receiving.
#[derive(Debug)]
pub struct ReceivedLoan {
    counters: Counters,
    handle: CounterHandle,
    released: bool,
}

impl ReceivedLoan {
    /// Returns the handle that it was received by.
    pub fn handle(&self) -> CounterHandle {
        self.handle
    }

    /// Returns whether the producer still has its part in the loan: `false` once it has died or left the counters.
    /// Reclaims what dead processes held first.
    ///
    /// For memory that does not outlive its producer. The answer can be outdated when it arrives.
    ///
    /// # Errors
    ///
    /// As [`Counters::reclaim`].
    pub fn producer_lives(&self) -> Result<bool> {
        self.counters.reclaim()?;
        Ok(!self.counters.header().entries().is_held_by_us_alone(self.handle.entry))
    }

    /// Releases the loan, and reports errors. Dropping releases it too, and ignores them.
    ///
    /// # Errors
    ///
    /// As [`Counters::release`].
    pub fn release(mut self) -> Result<()> {
        self.released = true;
        self.counters.release(&self.handle)
    }

    /// Keeps the loan without this value, for callers that can store only bytes. [`Counters::release`] releases it.
    pub fn into_handle(mut self) -> CounterHandle {
        self.released = true;
        self.handle
    }
}

impl Drop for ReceivedLoan {
    fn drop(&mut self) {
        if !self.released {
            let _ = self.counters.release(&self.handle); // fails only in a forked child, which holds no loan
        }
    }
}
