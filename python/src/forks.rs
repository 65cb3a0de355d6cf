//! How often this process was forked.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;

/// How often this process and its ancestors were forked children. It tells a process from its parent without a system
/// call.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Tells that this process is a forked child.
#[pyfunction]
pub(crate) fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Returns how often this process and its ancestors were forked children.
pub(crate) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}
