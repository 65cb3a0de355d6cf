//! Objects that are encoded and wait for being stored: a queue bounded by bytes, those included that are just being stored.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a thread waits before it asks again whether to go on.
const PATIENCE: Duration = Duration::from_millis(50);

/// What is to become of one object.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) region: Vec<Range<i64>>,
    /// Nothing: the object is background and taken away.
    pub(crate) bytes: Option<Vec<u8>>,
}

impl Packed {
    fn len(&self) -> usize {
        self.bytes.as_ref().map_or(0, Vec::len)
    }
}

/// The queue. Encoders give, storing threads take.
#[derive(Debug)]
pub(crate) struct PackedQueue {
    limit: usize,
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug)]
struct QueueState {
    waiting: VecDeque<Packed>,
    /// Bytes that wait or are being stored.
    bytes: usize,
    /// Encoders that may still give something.
    givers: usize,
}

impl PackedQueue {
    pub(crate) fn new(limit: usize, givers: usize) -> Self {
        let state = QueueState { waiting: VecDeque::new(), bytes: 0, givers };
        Self { limit, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Puts an object in, waiting until there is room. An object larger than the limit is let in alone. `false`: gave up.
    pub(crate) fn give(&self, packed: Packed, give_up: &dyn Fn() -> bool) -> bool {
        let mut state = self.state();
        while state.bytes > 0 && state.bytes.saturating_add(packed.len()) > self.limit {
            if give_up() {
                return false;
            }
            state = self.wait(state);
        }
        state.bytes = state.bytes.saturating_add(packed.len());
        state.waiting.push_back(packed);
        self.changed.notify_all();
        true
    }

    /// Takes an object out and hands it to `store`; its bytes count until that returns. `None`: all is done, or gave up.
    pub(crate) fn take<R>(&self, give_up: &dyn Fn() -> bool, store: impl FnOnce(Packed) -> R) -> Option<R> {
        let mut state = self.state();
        let packed = loop {
            if give_up() {
                return None;
            }
            if let Some(packed) = state.waiting.pop_front() {
                break packed;
            }
            if state.givers == 0 {
                return None;
            }
            state = self.wait(state);
        };
        drop(state);
        let _stored = StoringBytes { queue: self, bytes: packed.len() };
        Some(store(packed))
    }

    /// Says that an encoder gives nothing more.
    pub(crate) fn leave(&self) {
        let mut state = self.state();
        state.givers = state.givers.saturating_sub(1);
        self.changed.notify_all();
    }

    fn wait<'a>(&self, state: MutexGuard<'a, QueueState>) -> MutexGuard<'a, QueueState> {
        self.changed.wait_timeout(state, PATIENCE).map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state)
    }

    /// No code that could panic runs under the lock.
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives the room back, also when storing panics.
struct StoringBytes<'a> {
    queue: &'a PackedQueue,
    bytes: usize,
}

impl Drop for StoringBytes<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        state.bytes = state.bytes.saturating_sub(self.bytes);
        self.queue.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    fn packed(length: usize) -> Packed {
        Packed { region: Vec::new(), bytes: Some(vec![0; length]) }
    }

    #[test]
    fn queued_bytes_stay_within_the_limit_and_arrive() {
        let queue = PackedQueue::new(100, 2);
        let (now, most, all) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        assert!(queue.give(packed(30), &|| false));
                    }
                    queue.leave();
                });
            }
            for _ in 0..8 {
                scope.spawn(|| {
                    let store = |packed: Packed| {
                        let inside = now.fetch_add(packed.len(), Ordering::SeqCst) + packed.len();
                        most.fetch_max(inside, Ordering::SeqCst);
                        thread::yield_now();
                        all.fetch_add(packed.len(), Ordering::SeqCst);
                        now.fetch_sub(packed.len(), Ordering::SeqCst);
                    };
                    while queue.take(&|| false, store).is_some() {}
                });
            }
        });
        assert_eq!(all.into_inner(), 2 * 200 * 30);
        assert!(most.into_inner() <= 100);
    }

    #[test]
    fn oversized_object_goes_alone_and_waits_can_stop() {
        let queue = PackedQueue::new(10, 1);
        assert!(queue.give(packed(50), &|| false));
        assert!(!queue.give(packed(1), &|| true), "there is no room");
        assert_eq!(queue.take(&|| false, |packed| packed.len()), Some(50));
        assert!(queue.give(packed(1), &|| true), "there is room");
        assert_eq!(queue.take(&|| true, |packed| packed.len()), None, "it gave up");
        queue.leave();
        assert_eq!(queue.take(&|| false, |packed| packed.len()), Some(1));
        assert_eq!(queue.take(&|| false, |packed| packed.len()), None, "nothing comes any more");
    }
}
