//! Which requests are being retried, and why: for the progress of a job.
//!
//! A job has one [`Retries`]. Its threads set it once; a request notes there that it failed and will be repeated, and
//! removes the note when it ends. Nothing here decides whether a request is repeated.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The environment variable for the retry time in seconds, and its default: two minutes, enough for a restart of a
/// server.
pub(crate) const RETRY_SECONDS: (&str, Duration) = ("NDSHM_RETRY_SECONDS", Duration::from_mins(2));

/// Whether the first request to a server is retried as long as every other.
static WAITS_FOR_SERVERS: AtomicBool = AtomicBool::new(false);

/// Makes this process retry the first request to a server as long as every other request.
///
/// Without it, and without the environment variable `NDSHM_RETRY_SECONDS`, an unknown host and a refused connection are
/// an error after a few seconds if the server has not answered this process before: the address is probably wrong. Call
/// it in a process that starts together with many others, and has no user to correct an address. Worker processes need
/// no call: their parent sets the variable.
pub fn wait_for_servers() {
    WAITS_FOR_SERVERS.store(true, Ordering::Relaxed);
}

/// Whether [`wait_for_servers`] was called.
#[cfg(feature = "remote")]
pub(crate) fn waits_for_servers() -> bool {
    WAITS_FOR_SERVERS.load(Ordering::Relaxed)
}

/// A request that failed and is being retried.
///
/// `Display` says in one line what is retried, for how long, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retry {
    /// The path or URL of the object, without passwords and queries.
    pub object: String,
    /// Why the last attempt failed.
    pub reason: String,
    /// Time since the first attempt failed.
    pub elapsed: Duration,
}

impl fmt::Display for Retry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "retrying `{}` for {} s: {}", self.object, self.elapsed.as_secs(), self.reason)
    }
}

/// The requests of a job that are being retried. Clones are the same.
///
/// Downloads and uploads report them to [`Progress::retrying`](crate::Progress::retrying). This is for what has no
/// progress, such as opening a volume.
///
/// # Examples
///
/// ```no_run
/// use ndarray_shm_volume::{Retries, open_volume};
///
/// let retries = Retries::new();
/// // Another thread may call `retries.current()` meanwhile.
/// let volume = retries.run(|| open_volume("precomputed://https://host/em"))?;
/// # Ok::<(), ndarray_shm_volume::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Retries(Arc<Mutex<Noted>>);

/// The notes by number of request.
#[derive(Default)]
struct Noted {
    #[cfg(feature = "remote")]
    next: u64,
    requests: BTreeMap<u64, NotedRetry>,
}

struct NotedRetry {
    object: String,
    reason: String,
    since: Instant,
}

thread_local! {
    static OF_THREAD: RefCell<Option<Retries>> = const { RefCell::new(None) };
    #[cfg(feature = "remote")]
    static REQUEST: RefCell<Option<WaitingRequest>> = const { RefCell::new(None) };
}

impl Retries {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `work` on this thread. While it runs, its requests are listed here when they are retried, also those of a
    /// download or upload that it makes.
    pub fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        /// Restores the previous list when dropped, also when the work panics.
        struct BeforeRetries(Option<Retries>);

        impl Drop for BeforeRetries {
            fn drop(&mut self) {
                OF_THREAD.set(self.0.take());
            }
        }

        let _before = BeforeRetries(OF_THREAD.replace(Some(self.clone())));
        work()
    }

    /// Returns the request that has been retried for the longest time, or `None` if none is being retried.
    pub fn current(&self) -> Option<Retry> {
        let noted = self.noted();
        let NotedRetry { object, reason, since } = noted.requests.values().min_by_key(|retry| retry.since)?;
        Some(Retry { object: object.clone(), reason: reason.clone(), elapsed: since.elapsed() })
    }

    /// Returns the list of this thread, or a new one.
    pub(crate) fn of_thread() -> Self {
        OF_THREAD.with_borrow(Option::clone).unwrap_or_default()
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Retries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Retries").field(&self.current()).finish()
    }
}

/// The request for which this thread waits.
#[cfg(feature = "remote")]
struct WaitingRequest {
    retries: Retries,
    number: u64,
    object: String,
    /// When it failed for the first time.
    since: Option<Instant>,
}

#[cfg(feature = "remote")]
impl Drop for WaitingRequest {
    fn drop(&mut self) {
        self.retries.noted().requests.remove(&self.number);
    }
}

/// Runs a request for an object on this thread; [`failed`] and [`answered`] are then about it.
#[cfg(feature = "remote")]
pub(crate) fn during<R>(object: String, request: impl FnOnce() -> R) -> R {
    /// Restores the previous request when dropped.
    struct BeforeRequest(Option<WaitingRequest>);

    impl Drop for BeforeRequest {
        fn drop(&mut self) {
            drop(REQUEST.replace(self.0.take()));
        }
    }

    let retries = Retries::of_thread();
    let number = {
        let mut noted = retries.noted();
        noted.next += 1;
        noted.next
    };
    let _before = BeforeRequest(REQUEST.replace(Some(WaitingRequest { retries, number, object, since: None })));
    request()
}

/// Notes that an attempt of this thread's request failed, and that there will be another.
#[cfg(feature = "remote")]
pub(crate) fn failed(reason: impl fmt::Display) {
    REQUEST.with_borrow_mut(|request| {
        if let Some(WaitingRequest { retries, number, object, since }) = request {
            let since = *since.get_or_insert_with(Instant::now);
            let retry = NotedRetry { object: object.clone(), reason: reason.to_string(), since };
            retries.noted().requests.insert(*number, retry);
        }
    });
}

/// Notes that this thread's request is being answered.
#[cfg(feature = "remote")]
pub(crate) fn answered() {
    REQUEST.with_borrow(|request| {
        if let Some(WaitingRequest { retries, number, .. }) = request {
            retries.noted().requests.remove(number);
        }
    });
}

#[cfg(all(test, feature = "remote"))]
mod tests {
    use super::*;

    #[test]
    fn retry_is_listed_until_it_is_answered_or_ends() {
        let retries = Retries::new();
        let current = || retries.current().map(|retry| (retry.object, retry.reason));
        retries.run(|| {
            during("a".to_owned(), || {
                assert_eq!(current(), None, "it has not failed");
                failed("refused");
                assert_eq!(current(), Some(("a".to_owned(), "refused".to_owned())));
                answered();
                assert_eq!(current(), None);
                failed("broken");
                during("b".to_owned(), || failed("later"));
                assert_eq!(current(), Some(("a".to_owned(), "broken".to_owned())), "the longest");
            });
        });
        assert_eq!(current(), None, "it has ended");
        during("c".to_owned(), || failed("in no list"));
        failed("no request");
        assert_eq!(current(), None);
    }

    #[test]
    fn retry_is_one_line() {
        let retry = Retry { object: "x".to_owned(), reason: "y".to_owned(), elapsed: Duration::from_millis(2900) };
        assert_eq!(retry.to_string(), "retrying `x` for 2 s: y");
    }
}
