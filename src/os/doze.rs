//! Sleeping on a word of shared memory where nobody can be woken through it: short sleeps that grow.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::backoff::Backoff;

/// Sleeps while the word is `expected`, for `limit` at most: looks at it again after 20 µs, later every 2 ms.
pub(crate) fn wait_on(word: &AtomicU32, expected: u32, limit: Duration) {
    let mut backoff = Backoff::new(limit);
    while word.load(Ordering::Acquire) == expected && backoff.pause() {}
}

/// Wakes nobody: who sleeps looks at the word by itself.
pub(crate) fn wake(_word: &AtomicU32, _how_many: u32) -> usize {
    0
}
