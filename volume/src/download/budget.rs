//! What may be asked of a remote volume at a time: requests, and bytes that are fetched, or about to be, and not yet decoded.
//!
//! The length of a stored chunk is unknown before it is fetched. So a fetch reserves what the largest one so far took, and corrects
//! that when it knows.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::progress::StopFlag;

/// Fetches at a time, unless something else is said: what a browser allows for one server, twice.
pub(crate) const REQUESTS: usize = 16;

/// Default maximum number of bytes in flight.
pub(crate) const IN_FLIGHT: u64 = 32 << 20;

/// How long the flags may go unnoticed.
const LOOK: Duration = Duration::from_millis(20);

/// The bytes that all fetches of one process may have.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    state: Mutex<BudgetState>,
    freed: Condvar,
}

#[derive(Debug)]
struct BudgetState {
    used: u64,
    /// What a fetch is expected to bring.
    expected: u64,
    /// Whether one has brought anything: before, `expected` is a guess.
    is_known: bool,
}

impl Budget {
    /// Allows `limit` bytes at a time, and one fetch whatever it brings; `guess` is what the first ones reserve.
    pub(crate) fn new(limit: u64, guess: u64) -> Self {
        let state = BudgetState { used: 0, expected: guess, is_known: false };
        Self { limit, state: Mutex::new(state), freed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, BudgetState> {
        // Numbers only: they are right at every moment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is room for one more fetch; `None` if a flag was raised meanwhile.
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

/// Bytes that one fetch may have, until this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Reserved<'_> {
    /// Says how many it really were.
    pub(crate) fn correct(&mut self, bytes: u64) {
        let mut state = self.budget.state();
        state.used = state.used.saturating_sub(self.bytes).saturating_add(bytes);
        // Missing chunks say nothing about the others.
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
        let mut large = budget.reserve([&never, &stop]).expect("the only one");
        large.correct(60);
        assert_eq!(budget.state().used, 60);
        // It is known by now that they take 60: the next one must wait.
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
        assert_eq!(budget.state().used, 0, "all is given back");
        let mut missing = budget.reserve([&never, &never]).expect("room");
        missing.correct(0);
        assert_eq!(budget.state().expected, 60);
    }
}
