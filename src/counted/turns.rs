//! Taking turns: one thread at a time uses a thing, and the others wait no longer than they like.
//!
//! A mutex has no lock with a timeout, and a thread that receives for at most a second must not wait behind one that receives for
//! ever.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A thing that threads use in turn, in no particular order.
#[derive(Debug, Default)]
pub(crate) struct Turns<T> {
    taken: Mutex<bool>,
    free: Condvar,
    /// Locked only by the thread that has the turn, so never waited for.
    thing: Mutex<T>,
}

impl<T> Turns<T> {
    pub(crate) fn new(thing: T) -> Self {
        Self { taken: Mutex::new(false), free: Condvar::new(), thing: Mutex::new(thing) }
    }

    /// Waits for a turn; `None` when the time has run out.
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

    /// Returns the thing, unless a thread had the turn when this process was forked: then it may be in any state.
    pub(crate) fn into_inner(self) -> Option<T> {
        (!whole(self.taken.into_inner())).then(|| whole(self.thing.into_inner()))
    }
}

/// Nothing here is left half done by a panic: the thing's owner keeps it whole between its calls.
fn whole<T>(result: Result<T, PoisonError<T>>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turned<'a, T> {
    turns: &'a Turns<T>,
    pub(crate) thing: MutexGuard<'a, T>,
}

impl<T> Drop for Turned<'_, T> {
    fn drop(&mut self) {
        *whole(self.turns.taken.lock()) = false;
        self.turns.free.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn who_has_little_time_does_not_wait_for_who_has_much() {
        let turns = Turns::<u32>::default();
        let turn = turns.take(None).unwrap();
        let begin = Instant::now();
        assert!(turns.take(Some(begin + Duration::from_millis(20))).is_none());
        assert!(begin.elapsed() >= Duration::from_millis(20));
        drop(turn);
        assert!(
            turns.take(Some(Instant::now())).is_some(),
            "a free thing is had at once, however little time there is"
        );
        assert_eq!(turns.into_inner(), Some(0));
    }

    #[test]
    fn every_turn_is_one_threads_alone() {
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
