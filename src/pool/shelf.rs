//! The memory that a pool keeps: idle, or draining while other processes are still attached to it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::{PoolAmount, PoolStats};
use crate::segment::DraftSegment;

/// The limits of what a pool keeps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) bytes: u64,
    pub(super) segments: usize,
    pub(super) age: Duration,
}

#[derive(Debug)]
struct ShelvedMemory {
    memory: DraftSegment,
    since: Instant,
}

/// Memory in the order in which it returned, and the counts.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    kept: VecDeque<ShelvedMemory>,
    /// `idle` and `draining` stay zero here; the method `stats` computes them.
    pub(super) stats: PoolStats,
}

impl Shelf {
    pub(super) fn put(&mut self, memory: DraftSegment) {
        self.kept.push_back(ShelvedMemory { memory, since: Instant::now() });
    }

    /// Takes idle memory of a suitable size, the smallest first. Of equal sizes it takes the memory that returned last,
    /// because more of that is still in the caches.
    pub(super) fn take(&mut self, bytes: u64) -> Option<DraftSegment> {
        let idle = self.kept.iter().enumerate().rev().filter(|(_, kept)| kept.memory.is_alone());
        let fitting = idle.filter(|(_, kept)| serves(kept.memory.room(), bytes));
        let (at, _) = fitting.min_by_key(|(_, kept)| kept.memory.room())?;
        self.kept.remove(at).map(|kept| kept.memory)
    }

    /// Takes out the idle memory that returned first, for the caller to drop.
    pub(super) fn give_up_oldest(&mut self) -> Option<DraftSegment> {
        let at = self.kept.iter().position(|kept| kept.memory.is_alone())?;
        self.stats.dropped += 1;
        self.kept.remove(at).map(|kept| kept.memory)
    }

    /// Makes drained memory idle, and takes out the memory beyond the limits, for the caller to drop.
    pub(super) fn tidy(&mut self, limits: Limits) -> Vec<DraftSegment> {
        let mut out = Vec::new();
        let mut left: u64 = self.kept.iter().map(|kept| kept.memory.room()).sum();
        for mut kept in std::mem::take(&mut self.kept) {
            let over = left > limits.bytes || kept.since.elapsed() > limits.age;
            // If asking for the locks fails, the memory may never be known to be free, so it is dropped too.
            if over || kept.memory.isolate().is_err() {
                left -= kept.memory.room();
                out.push(kept.memory);
            } else {
                self.kept.push_back(kept);
            }
        }
        let surplus = self.kept.len().saturating_sub(limits.segments);
        out.extend(self.kept.drain(..surplus).map(|kept| kept.memory));
        self.stats.dropped += out.len() as u64;
        out
    }

    /// Returns the counts, with `idle` and `draining` as they are now.
    pub(super) fn stats(&self) -> PoolStats {
        let (mut idle, mut draining) = (PoolAmount::default(), PoolAmount::default());
        for kept in &self.kept {
            let amount = if kept.memory.is_alone() { &mut idle } else { &mut draining };
            amount.add(kept.memory.room());
        }
        PoolStats { idle, draining, ..self.stats }
    }
}

/// Returns whether room of this size serves a request: it is large enough, and at most a quarter larger.
fn serves(room: u64, bytes: u64) -> bool {
    bytes <= room && room - bytes <= bytes / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_serves_up_to_a_quarter_more() {
        assert!(serves(100, 100) && serves(100, 80) && serves(125, 100));
        assert!(!serves(99, 100) && !serves(126, 100) && !serves(1, 0));
        assert!(serves(0, 0) && serves(u64::MAX, u64::MAX) && serves(1, 1) && !serves(2, 1));
    }
}
