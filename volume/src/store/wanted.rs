//! Whether the answer that a thread waits for is still wanted: a job that was stopped must not wait for minutes until a silent
//! server has been given up.
//!
//! A thread says once which flags it heeds, and what it calls need not hand them down to where requests wait.

use std::cell::RefCell;

use crate::progress::StopFlag;

thread_local! {
    static HEEDED: RefCell<Vec<StopFlag>> = const { RefCell::new(Vec::new()) };
}

/// Does some work in which waiting for a server ends with an error soon after one of the flags was raised.
pub(crate) fn while_wanted<R>(flags: [&StopFlag; 2], work: impl FnOnce() -> R) -> R {
    let _before = Before(HEEDED.replace(flags.map(StopFlag::clone).to_vec()));
    work()
}

/// Returns whether this thread heeds any flags, and whether one of them was raised.
#[cfg(feature = "remote")]
pub(super) fn heeds() -> (bool, bool) {
    HEEDED.with_borrow(|flags| (!flags.is_empty(), flags.iter().any(StopFlag::is_stopped)))
}

/// The flags that were heeded before, also when the work panics.
struct Before(Vec<StopFlag>);

impl Drop for Before {
    fn drop(&mut self) {
        HEEDED.set(std::mem::take(&mut self.0));
    }
}
