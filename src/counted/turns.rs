//! A mutex with a deadline for taking its lock.
//!
//! `std::sync::Mutex` has no such lock. A channel needs it: while one thread receives without a time limit, another
//! thread that receives with a limit must return in time.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A value that one thread at a time may use. Waiting threads get their turns in no particular order.
#[derive(Debug, Default)]
pub(crate) struct Turns<T> {
    /// Whether a thread has its turn. This mutex is only locked to read or change the flag.
    taken: Mutex<bool>,
    free: Condvar,
    /// Locked only by the thread that set `taken`, so locking it blocks at most for the moment in which the last turn
    /// ends.
    thing: Mutex<T>,
}

impl<T> Turns<T> {
    pub(crate) fn new(thing: T) -> Self {
        Self { taken: Mutex::new(false), free: Condvar::new(), thing: Mutex::new(thing) }
    }

    /// Waits for a turn. Returns `None` if the deadline passes first.
    pub(crate) fn take(&self, deadline: Option<Instant>) -> Option<Turned<'_, T>> {
        let taken = whole(self.taken.lock());
        let mut taken = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
            None => whole(self.free.wait_while(taken, |taken| *taken)),
            Some(left) => whole(self.free.wait_timeout_while(taken, left, |taken| *taken)).0,
        };
        if *taken {
            return None;
        }
        *taken = true;
        drop(taken);
        Some(Turned { turns: self, thing: whole(self.thing.lock()) })
    }

    /// Returns the value, or `None` if a thread has its turn.
    ///
    /// In a forked child that thread exists only in the parent, and the child's copy of the value may be half changed.
    pub(crate) fn into_inner(self) -> Option<T> {
        (!whole(self.taken.into_inner())).then(|| whole(self.thing.into_inner()))
    }
}

/// Ignores poisoning: the flag is changed in one step, and users of the value keep it consistent even if they panic.
fn whole<T>(result: Result<T, PoisonError<T>>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// One thread's turn. Dropping it ends the turn.
#[derive(Debug)]
pub(crate) struct Turned<'a, T> {
    turns: &'a Turns<T>,
    pub(crate) thing: MutexGuard<'a, T>,
}

impl<T> Drop for Turned<'_, T> {
    fn drop(&mut self) {
        // `thing` is unlocked only after this, when the fields are dropped. A thread that is woken in between waits for
        // that moment.
        *whole(self.turns.taken.lock()) = false;
        self.turns.free.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn waiting_for_a_turn_ends_at_the_deadline() {
        let turns = Turns::<u32>::default();
        let turn = turns.take(None).unwrap();
        let begin = Instant::now();
        assert!(turns.take(Some(begin + Duration::from_millis(20))).is_none());
        assert!(begin.elapsed() >= Duration::from_millis(20));
        drop(turn);
        assert!(
            turns.take(Some(Instant::now())).is_some(),
            "a free value is available at once, even when the deadline has passed"
        );
        assert_eq!(turns.into_inner(), Some(0));
    }

    #[test]
    fn only_one_thread_at_a_time_has_its_turn() {
        let turns = Turns::<u32>::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let mut turn = turns.take(None).unwrap();
                        *turn.thing += 1;
                    }
                });
            }
        });
        assert_eq!(turns.into_inner(), Some(4000));
    }
}
