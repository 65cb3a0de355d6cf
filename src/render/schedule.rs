//! The order in which the threads of one process try the chunks of a renderbuffer: each chunk once, then only those
//! that were busy or released unpainted.
//!
//! The threads share the schedule, so no two of them try the same chunk at the same time. Waiting costs time in
//! proportion to the chunks that are claimed elsewhere, not to all chunks.
//!
//! It consists of atomics: a forked child could inherit a lock that another thread of its parent holds. The child
//! begins anew, because the chunks that its parent has are not its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use crate::os;

/// Set in the generation while a thread of a forked child makes the schedule new.
const RENEWING: u64 = 1 << 63;

/// Which chunks the threads of this process have not tried, and which they must try again.
///
/// All accesses are sequentially consistent. A chunk is counted as given out before it is taken, and as returned after
/// it is to be tried again, so that [`is_exhausted`](Self::is_exhausted) misses one only in a rare race.
#[derive(Debug)]
pub(super) struct Schedule {
    total: usize,
    /// The fork generation that everything below belongs to.
    generation: AtomicU64,
    /// The first chunk that was not given out.
    next: AtomicUsize,
    /// One bit for each chunk that was found busy, or was released unpainted. It may be finished by now.
    again: Box<[AtomicU64]>,
    /// Number of [`ScheduledChunk`]s. Each chunk below `next` is one of them, is in `again`, or is finished.
    given: AtomicUsize,
    /// Whether there is a [`Lookout`].
    has_lookout: AtomicBool,
}

impl Schedule {
    pub(super) fn new(total: usize) -> Arc<Self> {
        Arc::new(Self {
            total,
            generation: AtomicU64::new(os::fork_generation()),
            next: AtomicUsize::new(0),
            again: (0..total.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            given: AtomicUsize::new(0),
            has_lookout: AtomicBool::new(false),
        })
    }

    /// Returns the first chunk that this process has not tried and that is not finished.
    pub(super) fn first(self: &Arc<Self>, is_done: impl Fn(usize) -> bool) -> Option<ScheduledChunk> {
        let given = self.give();
        loop {
            let from = self.next.load(Ordering::SeqCst);
            let found = (from..self.total).find(|index| !is_done(*index));
            let next = found.map_or(self.total, |index| index + 1);
            if self.next.compare_exchange(from, next, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                return found.map(|index| given.chunk(index));
            }
        }
    }

    /// Returns the first chunk to try again, from the number `from` on.
    pub(super) fn again(self: &Arc<Self>, from: usize) -> Option<ScheduledChunk> {
        let given = self.give();
        for (word, bits) in self.again.iter().enumerate().skip(from / 64) {
            let mut left = bits.load(Ordering::SeqCst);
            if word == from / 64 {
                left &= u64::MAX << (from % 64);
            }
            while left != 0 {
                let bit = left & left.wrapping_neg();
                if bits.fetch_and(!bit, Ordering::SeqCst) & bit != 0 {
                    return Some(given.chunk(word * 64 + bit.trailing_zeros() as usize));
                }
                left &= !bit; // another thread has taken it
            }
        }
        None
    }

    /// Returns whether no chunk is left to try, nor given out. Then all are finished, unless another thread took and
    /// returned one during the call: the ledger decides.
    pub(super) fn is_exhausted(&self) -> bool {
        let is_none_given = || self.given.load(Ordering::SeqCst) == 0;
        let is_none_left = || self.again.iter().all(|bits| bits.load(Ordering::SeqCst) == 0);
        is_none_given() && self.next.load(Ordering::SeqCst) == self.total && is_none_left() && is_none_given()
    }

    /// Begins anew. A chunk may be given out a second time then, and is found busy.
    pub(super) fn restart(&self) {
        self.next.store(0, Ordering::SeqCst);
    }

    /// Makes the calling thread the lookout, unless another thread is.
    pub(super) fn look_out(&self) -> Option<Lookout<'_>> {
        let generation = self.enter();
        let is_free = !self.has_lookout.swap(true, Ordering::SeqCst);
        is_free.then_some(Lookout { schedule: self, generation })
    }

    /// Counts a chunk as given out, which the caller looks for.
    fn give(self: &Arc<Self>) -> Given {
        let generation = self.enter();
        self.given.fetch_add(1, Ordering::SeqCst);
        Given { schedule: Arc::clone(self), generation }
    }

    /// Makes the schedule new in a forked child. Returns the process's generation.
    fn enter(&self) -> u64 {
        let own = os::fork_generation();
        loop {
            let found = self.generation.load(Ordering::SeqCst);
            if found == own {
                return own;
            }
            // Another thread of this process. One of an ancestor has the generation of that ancestor.
            if found == own | RENEWING {
                thread::yield_now();
                continue;
            }
            let renewing = own | RENEWING;
            if self.generation.compare_exchange(found, renewing, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                self.next.store(0, Ordering::SeqCst);
                self.again.iter().for_each(|bits| bits.store(0, Ordering::SeqCst));
                self.given.store(0, Ordering::SeqCst);
                self.has_lookout.store(false, Ordering::SeqCst);
                self.generation.store(own, Ordering::SeqCst);
                return own;
            }
        }
    }
}

/// One chunk in the number of those that are given out. A forked child that drops what it inherited changes nothing.
#[derive(Debug)]
struct Given {
    schedule: Arc<Schedule>,
    generation: u64,
}

impl Given {
    fn chunk(self, index: usize) -> ScheduledChunk {
        ScheduledChunk { index, is_finished: false, given: self }
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        if self.generation == os::fork_generation() {
            self.schedule.given.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A chunk that only the owner of this value tries or paints, among the threads that share the schedule. Unless it is
/// [finished](Self::finish), it is to be tried again.
#[derive(Debug)]
pub(super) struct ScheduledChunk {
    index: usize,
    is_finished: bool,
    /// Dropped after this value has returned the chunk.
    given: Given,
}

impl ScheduledChunk {
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Forgets the chunk, which is finished.
    pub(super) fn finish(mut self) {
        self.is_finished = true;
    }
}

impl Drop for ScheduledChunk {
    fn drop(&mut self) {
        if !self.is_finished && self.given.generation == os::fork_generation() {
            self.given.schedule.again[self.index / 64].fetch_or(1 << (self.index % 64), Ordering::SeqCst);
        }
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
        if self.generation == os::fork_generation() {
            self.schedule.has_lookout.store(false, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
