//! Where a process has found free blocks. These are only hints: the shared tables decide whether a block is free.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::arena::tables::sizes::{CLASSES, Size};
use crate::arena::tables::span::Area;

/// Number of sets of hints. Threads that allocate at the same time use different sets.
const SETS: usize = 8;

/// Areas of one size that this process has used.
#[derive(Debug, Default)]
pub(super) struct AreaHints {
    /// The area that was used last is the first.
    pub(super) areas: VecDeque<Area>,
    /// The block of the first area that is tried next.
    pub(super) next: u32,
    /// The span at which the last search of all areas ended.
    pub(super) searched: u32,
}

/// A set of hints, which one thread at a time uses.
#[derive(Debug, Default)]
pub(super) struct HintSet {
    small: [AreaHints; CLASSES],
    runs: BTreeMap<u32, AreaHints>,
    /// The span at which the next search for free spans begins.
    pub(super) cursor: u32,
}

impl HintSet {
    pub(super) fn of(&mut self, size: Size) -> &mut AreaHints {
        match size {
            Size::Small(class) => &mut self.small[usize::from(class)],
            Size::Run(spans) => self.runs.entry(spans).or_default(),
        }
    }
}

/// All hints of a process.
#[derive(Debug, Default)]
pub(super) struct BlockHints([Mutex<HintSet>; SETS]);

impl BlockHints {
    /// Locks a set that no other thread uses. If there is none, waits for the first one.
    pub(super) fn lock(&self) -> MutexGuard<'_, HintSet> {
        for set in &self.0 {
            match set.try_lock() {
                Ok(set) => return set,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        self.0[0].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AreaHints {
    pub(super) fn remember(&mut self, area: Area, block: u32) {
        self.next = block + 1;
        if self.areas.front() != Some(&area) {
            self.areas.push_front(area);
        }
    }
}
