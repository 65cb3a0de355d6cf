//! A queue of encoded objects that wait to be stored. Its bound is in bytes, and includes the objects being stored.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Interval at which a waiting thread asks `give_up` again.
const PATIENCE: Duration = Duration::from_millis(50);

/// An encoded object to store, or to remove.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) region: Vec<Range<i64>>,
    /// `None`: the object is background and is removed.
    pub(crate) bytes: Option<Vec<u8>>,
}

impl Packed {
    fn len(&self) -> usize {
        self.bytes.as_ref().map_or(0, Vec::len)
    }
}

/// The queue. Encoding threads give, storing threads take.
#[derive(Debug)]
pub(crate) struct PackedQueue {
    limit: usize,
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug)]
struct QueueState {
    waiting: VecDeque<Packed>,
    /// Bytes of the objects that wait or are being stored.
    bytes: usize,
    /// Encoding threads that have not left.
    givers: usize,
}

impl PackedQueue {
    pub(crate) fn new(limit: usize, givers: usize) -> Self {
        let state = QueueState { waiting: VecDeque::new(), bytes: 0, givers };
        Self { limit, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Adds an object, waiting until there is room. An object larger than the limit is added when the queue is empty.
    /// Returns `false` if `give_up` returned true.
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

    /// Takes an object and passes it to `store`; its bytes count until `store` returns. Returns `None` if the queue is
    /// empty and all encoders have left, or if `give_up` returned true.
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

    /// Notes that an encoder gives nothing more.
    pub(crate) fn leave(&self) {
        let mut state = self.state();
        state.givers = state.givers.saturating_sub(1);
        self.changed.notify_all();
    }

    fn wait<'a>(&self, state: MutexGuard<'a, QueueState>) -> MutexGuard<'a, QueueState> {
        self.changed.wait_timeout(state, PATIENCE).map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state)
    }

    /// Locks the state. Poisoning is ignored: no code that could panic runs under the lock.
    fn state(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the room of an object when it is stored, also when storing panics.
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
    fn queue_keeps_its_limit_and_loses_nothing() {
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
    fn oversized_object_goes_alone_and_giving_up_ends_waits() {
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
