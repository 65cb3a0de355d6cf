//! Random numbers that tell one file from another; nothing secret depends on them.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Returns a number that no other file will have.
///
/// The standard library's hash keys are random, but a forked child has its parent's: process number, time and a counter
/// tell the two apart.
pub(crate) fn number() -> u128 {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let process = std::process::id();
    let half = || {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u32(process);
        hasher.write_u64(COUNTER.fetch_add(1, Ordering::Relaxed));
        hasher.write_u128(time.as_nanos());
        u128::from(hasher.finish())
    };
    half() << 64 | half()
}
