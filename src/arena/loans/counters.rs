//! Counters: the slots of an arena without its data, for memory that lies elsewhere and belongs to its producer.
//!
//! One loan to one receiver is one slot. Its producer's bit keeps it from being used for another loan until the producer has
//! seen that it is over; FLIGHT stands for the receiver until he comes, then his bit does. So every loan ends exactly once: by its
//! receiver's release, or with his death.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::arena::handle::CounterHandle;
use crate::arena::header::{ArenaHeader, TURN_WAIT};
use crate::arena::members::ReclaimedBlocks;
use crate::arena::tables::geometry::{Geometry, SLOTS_OF_SPAN};
use crate::arena::tables::slots::{Released, Slot};
use crate::arena::tables::span::around;
use crate::backend::{Directory, DraftOptions, IntoLocation, Location};
use crate::error::{Error, Result};
use crate::os;
use crate::segment::Home;
use crate::segment::footer::Kind;

/// Thousands of reference counters in one file, for up to 46 processes.
///
/// Memory that only its producer can free (a GPU's, a pinned buffer, a mapping of his) is [lent](super::Limbo): each loan is a
/// handle that one receiver takes over, holds, and gives back. Nobody's death leaves a count wrong: what a process held or lent is
/// its bits in the file, and those of a dead process are cleared by whoever looks next. The file's name goes with the last process
/// that has it open.
///
/// Cloning is cheap and stays the same member.
#[derive(Clone)]
pub struct Counters {
    inner: Arc<CountersState>,
}

struct CountersState {
    header: ArenaHeader,
    /// The slot from which a free one is looked for.
    cursor: AtomicU32,
    /// Slots that this process has seen to be free.
    free: Mutex<Vec<u32>>,
    /// What this process has received and not given back: of its own loans it has two holds.
    received: Mutex<HashSet<CounterHandle>>,
}

impl Counters {
    /// Makes a file of so many counters, rounded up to a multiple of 256, under a name that must be free.
    ///
    /// # Errors
    ///
    /// As [`Arena::create`](crate::Arena::create).
    pub fn create(location: impl IntoLocation, counters: u32) -> Result<Self> {
        Self::make(Home::new(None, location)?, counters)
    }

    /// Opens counters that somebody made.
    ///
    /// # Errors
    ///
    /// As [`Arena::open`](crate::Arena::open).
    pub fn open(location: impl IntoLocation) -> Result<Self> {
        Ok(Self::of(ArenaHeader::open(Home::new(None, location)?, Kind::Counters)?))
    }

    /// Makes a file of counters in a given backend.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    pub fn create_in(backend: &Directory, location: impl IntoLocation, counters: u32) -> Result<Self> {
        Self::make(Home::new(Some(backend), location)?, counters)
    }

    /// Opens counters in a given backend.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_in(backend: &Directory, location: impl IntoLocation) -> Result<Self> {
        Ok(Self::of(ArenaHeader::open(Home::new(Some(backend), location)?, Kind::Counters)?))
    }

    fn make(home: Home, counters: u32) -> Result<Self> {
        let spans = counters.div_ceil(SLOTS_OF_SPAN).clamp(1, u32::MAX / SLOTS_OF_SPAN);
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

    /// Returns how many loans can be out at once.
    pub fn capacity(&self) -> u32 {
        self.header().geometry.slots()
    }

    /// Takes over what a handle lends, once: whoever comes second gets an error.
    ///
    /// # Errors
    ///
    /// [`HandleSpent`](Error::HandleSpent): it was received already, or its producer has gone.
    /// [`InvalidSetting`](Error::InvalidSetting): it is of other counters. [`Unsupported`](Error::Unsupported): this is a forked
    /// child.
    pub fn receive(&self, handle: &CounterHandle) -> Result<ReceivedLoan> {
        self.check(handle)?;
        if !self.header().slots().receive(handle.slot, handle.serial) {
            return Err(self.header().spent());
        }
        self.received().insert(*handle);
        Ok(ReceivedLoan { counters: self.clone(), handle: *handle, released: false })
    }

    /// Gives back what was received and then [kept by its handle](ReceivedLoan::into_handle).
    ///
    /// # Errors
    ///
    /// [`HandleSpent`](Error::HandleSpent): this process does not hold it, or no more. Nothing changes then: no count falls
    /// below what it is.
    pub fn release(&self, handle: &CounterHandle) -> Result<()> {
        self.check(handle)?;
        if !self.received().remove(handle) {
            return Err(self.header().spent());
        }
        self.header().release(handle.slot)
    }

    /// How many other processes wait for a loan or hold it: 0 or 1. What dead processes held is subtracted first.
    ///
    /// # Errors
    ///
    /// [`HandleSpent`](Error::HandleSpent): the loan is over, and its producer has seen it. As [`reclaim`](Self::reclaim).
    pub fn count(&self, handle: &CounterHandle) -> Result<u32> {
        self.check(handle)?;
        self.reclaim()?;
        let slot = self.header().slot_table().get(handle.slot as usize).filter(|slot| !slot.is_free());
        match slot {
            Some(slot) if self.header().slots().is_shared_as(handle.slot, handle.serial) => Ok(slot.borrowers()),
            _ => Err(self.header().spent()),
        }
    }

    /// Subtracts what dead processes held or lent.
    ///
    /// # Errors
    ///
    /// As [`Arena::reclaim`](crate::Arena::reclaim).
    pub fn reclaim(&self) -> Result<ReclaimedBlocks> {
        self.header().reclaim_dead(TURN_WAIT)
    }

    /// Takes a counter for one loan.
    ///
    /// # Errors
    ///
    /// [`Error::TooManyHandles`]: all are taken, even when what the dead had is not counted.
    pub(super) fn lend(&self) -> Result<CounterHandle> {
        self.header().check_process()?;
        let mut taken = self.take();
        if taken.is_none() {
            self.reclaim()?;
            taken = self.take();
        }
        let slot = taken.ok_or_else(|| Error::TooManyHandles {
            location: self.header().name().to_owned(),
            limit: self.capacity().into(),
            doing: "on their way",
        })?;
        Ok(CounterHandle { owner: self.header().tag(), slot, serial: self.header().slots().share(slot) })
    }

    fn take(&self) -> Option<u32> {
        let slots = self.header().slots();
        let known = || self.free().pop();
        while let Some(slot) = known() {
            if slots.allocate_in_flight(slot) {
                return Some(slot);
            }
        }
        let found = around(self.capacity(), self.inner.cursor.load(Ordering::Relaxed)).find(|slot| {
            self.header().touch(slot / SLOTS_OF_SPAN + 1);
            slots.allocate_in_flight(*slot)
        })?;
        self.inner.cursor.store(found + 1, Ordering::Relaxed);
        Some(found)
    }

    /// Ends a loan that this process made, if its receiver has given it back, or has died and was settled; else `false`.
    pub(super) fn end_if_over(&self, handle: &CounterHandle) -> bool {
        let slots = self.header().slots();
        let is_over = slots.is_held_by_us_alone(handle.slot);
        if is_over && self.header().is_own_process() && slots.release(handle.slot) == Released::Freed {
            self.free().push(handle.slot);
        }
        is_over
    }

    /// Takes back a loan that nobody has received; `false` if somebody has.
    pub(super) fn revoke(&self, handle: &CounterHandle) -> bool {
        self.header().slot_table().get(handle.slot as usize).is_some_and(Slot::revoke)
    }

    fn check(&self, handle: &CounterHandle) -> Result<()> {
        let expected = "one of these counters: this is of others, or of those that had the name before";
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

    /// Gives it back, and says if something is wrong: dropping does the same in silence.
    ///
    /// # Errors
    ///
    /// As [`Counters::release`].
    pub fn release(mut self) -> Result<()> {
        self.released = true;
        self.counters.release(&self.handle)
    }

    /// Goes on holding it without this value, for callers that can keep bytes only: [`Counters::release`] gives it back.
    pub fn into_handle(mut self) -> CounterHandle {
        self.released = true;
        self.handle
    }
}

impl Drop for ReceivedLoan {
    fn drop(&mut self) {
        if !self.released {
            let _a_forked_child_holds_nothing = self.counters.release(&self.handle);
        }
    }
}
