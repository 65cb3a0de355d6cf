//! The order in which the threads of one process try the chunks of a renderbuffer: each chunk once, then only those
//! that were busy or released unpainted.
//!
//! The threads share the schedule, so no two of them try the same chunk at the same time. Waiting costs time in
//! proportion to the chunks that are claimed elsewhere, not to all chunks. The schedule knows when every chunk is
//! finished, without a search of the ledger.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::os::{self, MOMENT, PerProcess};

/// How long a thread waits before it gives up returning a chunk. Other threads hold the lock for less than a
/// microsecond, unless a debugger stops them.
const PATIENCE: Duration = Duration::from_secs(60);

/// Which chunks the threads of this process have not tried, and which they must try again. A forked child begins anew.
#[derive(Debug)]
pub(super) struct Schedule {
    total: usize,
    /// Locked for moments, and never during a system call.
    state: PerProcess<ScheduleState>,
}

#[derive(Debug, Default)]
struct ScheduleState {
    /// The first chunk that was not given out.
    next: usize,
    /// Chunks that were found busy, or were released unpainted. Each may be finished by now.
    again: BTreeSet<usize>,
    /// Number of [`ScheduledChunk`]s. Each chunk below `next` is one of them, is in `again`, or is finished.
    given: usize,
    /// Whether there is a [`Lookout`].
    has_lookout: bool,
}

impl Schedule {
    pub(super) fn new(total: usize) -> Self {
        Self { total, state: PerProcess::new() }
    }

    /// Returns the first chunk that this process has not tried.
    ///
    /// This and the following methods return nothing, or `false`, if the state is not free within a moment.
    pub(super) fn first(&self) -> Option<ScheduledChunk<'_>> {
        let index = self.change(MOMENT, |state| {
            let index = (state.next < self.total).then_some(state.next)?;
            state.next += 1;
            state.given += 1;
            Some(index)
        });
        Some(ScheduledChunk::new(self, index??))
    }

    /// Returns the first chunk to try again, from the number `from` on.
    pub(super) fn again(&self, from: usize) -> Option<ScheduledChunk<'_>> {
        let index = self.change(MOMENT, |state| {
            let index = *state.again.range(from..).next()?;
            state.again.remove(&index);
            state.given += 1;
            Some(index)
        });
        Some(ScheduledChunk::new(self, index??))
    }

    /// Returns whether every chunk is finished: each was given out, and none is to be tried again or is still painted.
    pub(super) fn is_all_done(&self) -> bool {
        let is_done =
            |state: &mut ScheduleState| state.next == self.total && state.again.is_empty() && state.given == 0;
        self.change(MOMENT, is_done).unwrap_or(false)
    }

    /// Makes the calling thread the lookout, unless another thread is.
    pub(super) fn look_out(&self) -> Option<Lookout<'_>> {
        let is_free = self.change(MOMENT, |state| !std::mem::replace(&mut state.has_lookout, true))?;
        is_free.then(|| Lookout { schedule: self, generation: os::fork_generation() })
    }

    /// Changes the state of this process. Returns `None` if it is not free within `patience`.
    fn change<R>(&self, patience: Duration, change: impl FnOnce(&mut ScheduleState) -> R) -> Option<R> {
        self.state.lock(patience).map(|mut slot| change(slot.value.get_or_insert_default()))
    }

    /// As `change`, for a value that was made in `generation`. A forked child that drops what it inherited changes
    /// nothing.
    ///
    /// If the state is not free for that long, the change is lost, and the chunk stays given out: then
    /// [`is_all_done`](Self::is_all_done) is never true in this process, which is safe, and other processes paint the
    /// chunk.
    fn put_back(&self, generation: u64, change: impl FnOnce(&mut ScheduleState)) {
        if generation == os::fork_generation() {
            let _ = self.change(PATIENCE, change);
        }
    }
}

/// A chunk that only the owner of this value tries or paints, among the threads that share the schedule. Unless it is
/// [finished](Self::finish), it is to be tried again.
#[derive(Debug)]
pub(super) struct ScheduledChunk<'a> {
    schedule: &'a Schedule,
    index: usize,
    is_finished: bool,
    generation: u64,
}

impl<'a> ScheduledChunk<'a> {
    fn new(schedule: &'a Schedule, index: usize) -> Self {
        Self { schedule, index, is_finished: false, generation: os::fork_generation() }
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Forgets the chunk, which is finished.
    pub(super) fn finish(mut self) {
        self.is_finished = true;
    }
}

impl Drop for ScheduledChunk<'_> {
    fn drop(&mut self) {
        let Self { index, is_finished, .. } = *self;
        self.schedule.put_back(self.generation, |state| {
            state.given -= 1;
            if !is_finished {
                state.again.insert(index);
            }
        });
    }
}

/// The one waiting thread that tries the chunks again. The other waiting threads would only repeat its system calls.
#[derive(Debug)]
pub(super) struct Lookout<'a> {
    schedule: &'a Schedule,
    generation: u64,
}

impl Drop for Lookout<'_> {
    fn drop(&mut self) {
        self.schedule.put_back(self.generation, |state| state.has_lookout = false);
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
