//! Limits for a remote volume: concurrent requests, and bytes that are fetched, or being fetched, and not yet decoded.
//!
//! The length of a stored chunk is unknown before it is fetched. So a fetch reserves the size of the largest one so
//! far, and corrects the reservation when it knows the length.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::progress::StopFlag;

/// Default number of concurrent fetches: twice what a browser allows for one server.
pub(crate) const REQUESTS: usize = 16;

/// Default maximum number of bytes in flight.
pub(crate) const IN_FLIGHT: u64 = 32 << 20;

/// Longest time until a waiting fetch notices a raised flag.
const LOOK: Duration = Duration::from_millis(20);

/// The bytes that all fetches of one process may hold.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    state: Mutex<BudgetState>,
    freed: Condvar,
}

#[derive(Debug)]
struct BudgetState {
    used: u64,
    /// Bytes that the next fetch reserves.
    expected: u64,
    /// Whether a fetch has returned bytes; until then `expected` is a guess.
    is_known: bool,
}

impl Budget {
    /// Allows `limit` bytes at a time, and always one fetch, whatever its size. The first fetches reserve `guess`
    /// bytes.
    pub(crate) fn new(limit: u64, guess: u64) -> Self {
        let state = BudgetState { used: 0, expected: guess, is_known: false };
        Self { limit, state: Mutex::new(state), freed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, BudgetState> {
        // A poisoned lock is harmless: the state is three numbers, valid after every statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the budget has space for one more fetch. Returns `None` if a flag is raised.
    pub(crate) fn reserve(&self, flags: [&StopFlag; 2]) -> Option<Reserved<'_>> {
        let mut state = self.state();
        loop {
            if flags.iter().any(|flag| flag.is_stopped()) {
                return None;
            }
            let bytes = state.expected;
            if state.used == 0 || state.used.saturating_add(bytes) <= self.limit {
                state.used = state.used.saturating_add(bytes);
                return Some(Reserved { budget: self, bytes });
            }
            state = self.freed.wait_timeout(state, LOOK).map_or_else(|e| e.into_inner().0, |(state, _)| state);
        }
    }
}

/// Bytes reserved for one fetch until this value is dropped.
#[derive(Debug)]
pub(crate) struct Reserved<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Reserved<'_> {
    /// Replaces the reservation by the number of bytes fetched.
    pub(crate) fn correct(&mut self, bytes: u64) {
        let mut state = self.budget.state();
        state.used = state.used.saturating_sub(self.bytes).saturating_add(bytes);
        // A missing chunk has no bytes; it says nothing about the size of other chunks.
        if bytes > 0 {
            state.expected = if state.is_known { state.expected.max(bytes) } else { bytes };
            state.is_known = true;
        }
        self.bytes = bytes;
        drop(state);
        self.budget.freed.notify_all();
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        let mut state = self.budget.state();
        state.used = state.used.saturating_sub(self.bytes);
        drop(state);
        self.budget.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_fetch_never_waits() {
        let (stop, never) = (StopFlag::new(), StopFlag::new());
        let budget = Budget::new(100, 1000);
        let mut large = budget.reserve([&never, &stop]).expect("the only fetch is always let in");
        large.correct(60);
        assert_eq!(budget.state().used, 60);
        // The budget now expects 60 bytes for each fetch: the next one must wait.
        stop.stop();
        assert!(budget.reserve([&never, &stop]).is_none());
        let waiting = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| budget.reserve([&never, &never]).map(|reserved| reserved.bytes));
            std::thread::sleep(Duration::from_millis(30));
            assert!(!waiter.is_finished());
            drop(large);
            waiter.join().expect("no panic")
        });
        assert_eq!(waiting, Some(60));
        assert_eq!(budget.state().used, 0, "every byte is returned");
        let mut missing = budget.reserve([&never, &never]).expect("room");
        missing.correct(0);
        assert_eq!(budget.state().expected, 60);
    }
}
