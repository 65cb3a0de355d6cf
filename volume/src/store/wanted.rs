//! Cancels waits for a server: a stopped job must not wait for minutes until a silent server times out.
//!
//! A thread sets its flags once; its callees need not pass them down to the place where requests wait.

use std::cell::RefCell;

use crate::progress::StopFlag;
use crate::retries::Retries;

thread_local! {
    static HEEDED: RefCell<Vec<StopFlag>> = const { RefCell::new(Vec::new()) };
}

/// Runs `work`. While it runs, waits for a server end with an error soon after one of the flags is raised.
fn while_wanted<R>(flags: [&StopFlag; 2], work: impl FnOnce() -> R) -> R {
    let _before = Before(HEEDED.replace(flags.map(StopFlag::clone).to_vec()));
    work()
}

/// Runs `work` of a job. While it runs, waits for a server end with an error soon after one of the flags is raised, and
/// requests that are retried are listed.
pub(crate) fn in_job<R>(flags: [&StopFlag; 2], retries: &Retries, work: impl FnOnce() -> R) -> R {
    while_wanted(flags, || retries.run(work))
}

impl StopFlag {
    /// Runs `work` on this thread. While it runs, waits for a server end with an error within a second after this flag
    /// was raised, or the callback of [`interruptible`](ndarray_shm::backend::interruptible) ended the call.
    ///
    /// Downloads and uploads need no such care: they stop by the flag of their options. It is for what has no options,
    /// such as opening a volume, which would otherwise wait until a silent server times out.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use ndarray_shm_volume::{StopFlag, open_volume};
    ///
    /// let stop = StopFlag::new();
    /// // Another thread may raise the flag meanwhile.
    /// let volume = stop.run(|| open_volume("precomputed://https://host/em"))?;
    /// # Ok::<(), ndarray_shm_volume::Error>(())
    /// ```
    pub fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        while_wanted([self, self], work)
    }
}

/// Returns whether this thread is to stop waiting: one of its flags is raised, or the callback of
/// [`interruptible`](ndarray_shm::backend::interruptible) has ended the call.
#[cfg(feature = "remote")]
pub(super) fn is_unwanted() -> bool {
    HEEDED.with_borrow(|flags| flags.iter().any(StopFlag::is_stopped)) || !ndarray_shm::backend::goes_on()
}

/// Restores the previous flags when dropped, also when the work panics.
struct Before(Vec<StopFlag>);

impl Drop for Before {
    fn drop(&mut self) {
        HEEDED.set(std::mem::take(&mut self.0));
    }
}
