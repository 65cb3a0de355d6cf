//! The threads that help a thread to read: one pool for the whole process.
//!
//! A thread that reads works too, and needs no helper to finish. So a process that cannot start threads reads with one,
//! and so does one with helpers that are all busy: a read never waits for the helpers of another read.
//!
//! The pool starts with the first read of several chunks and ends when it has been idle for some time. A forked child
//! has no threads of its parent: it forgets the parent's pool, and starts its own. [`end_read_threads`] ends an idle
//! pool before a fork, because some runtimes warn of a fork beside threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::download::paint::worker_count;

/// How long a pool without work waits for more, before its threads end.
const IDLE: Duration = Duration::from_secs(1);

/// Number of helpers that wait for servers, for all reads of this process.
const REQUESTS: usize = 64;

/// Interval at which a thread that waits for its helpers calls its `tick`.
const PATIENCE: Duration = Duration::from_millis(50);

/// Number of times that a thread tries to lock the pool. After that it works alone: a forked child may have inherited
/// the lock from a thread that it does not have.
const TRIES: usize = 200;

/// What helpers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HelperUse {
    /// They compute: at most one for each processor, beside the thread that reads.
    Computing,
    /// They wait for servers most of the time.
    Requests,
}

/// The helpers of one process.
struct HelperPool {
    process: u32,
    pool: ThreadPool,
    /// Helpers without work.
    computing: AtomicUsize,
    requests: AtomicUsize,
    has_requests: bool,
    /// Whether a read has used it since the last look.
    is_used: AtomicBool,
    threads: Vec<JoinHandle<()>>,
}

static CURRENT: Mutex<Option<Arc<HelperPool>>> = Mutex::new(None);

/// Helpers that have no other work until this value is dropped.
struct ReservedHelpers<'a> {
    idle: &'a AtomicUsize,
    count: usize,
}

impl Drop for ReservedHelpers<'_> {
    fn drop(&mut self) {
        self.idle.fetch_add(self.count, Ordering::Relaxed);
    }
}

/// Runs `own` on this thread, and meanwhile `help` on at most `count` others. Returns when all have ended. While `own`
/// has ended and a helper has not, calls `tick` now and then.
pub(crate) fn with_helpers<R>(
    purpose: HelperUse,
    count: usize,
    help: &(dyn Fn() + Sync),
    own: impl FnOnce() -> R,
    tick: &dyn Fn(),
) -> R {
    let Some(pool) = (count > 0).then(|| HelperPool::current(purpose)).flatten() else { return own() };
    let reserved = pool.reserve(purpose, count);
    if reserved.count == 0 {
        return own();
    }
    let (sender, silence) = mpsc::channel::<()>();
    pool.pool.in_place_scope(|scope| {
        for _ in 0..reserved.count {
            let sender = sender.clone();
            scope.spawn(move |_| {
                let _sender = sender; // its drop disconnects `silence`, also on a panic
                help();
            });
        }
        drop(sender);
        let done = own();
        // Nothing is ever sent: this receives timeouts until the last helper drops its sender.
        while let Err(RecvTimeoutError::Timeout) = silence.recv_timeout(PATIENCE) {
            tick();
        }
        done
    })
}

/// Ends the threads of this process that help to [read](crate::read), if no read needs them.
///
/// They end on their own when they have been idle for a second. This call is for a program that forks: a runtime such
/// as Python warns of a fork beside other threads. The next read starts them again, also in the child.
pub fn end_read_threads() {
    let Some(pool) = lock().and_then(|mut current| current.take()) else { return };
    if pool.process != std::process::id() {
        std::mem::forget(pool);
        return;
    }
    // Otherwise the last read drops it.
    if let Some(pool) = Arc::into_inner(pool) {
        pool.end();
    }
}

/// Locks the pool, unless a thread keeps it locked for long.
fn lock() -> Option<MutexGuard<'static, Option<Arc<HelperPool>>>> {
    for _ in 0..TRIES {
        match CURRENT.try_lock() {
            Ok(current) => return Some(current),
            // No thread panics while it holds the lock.
            Err(std::sync::TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => thread::yield_now(),
        }
    }
    None
}

impl HelperPool {
    /// Returns the pool of this process, with helpers for this purpose; starts it if there is none. Returns `None` if
    /// threads cannot be started.
    fn current(purpose: HelperUse) -> Option<Arc<Self>> {
        let process = std::process::id();
        let needs_requests = purpose == HelperUse::Requests;
        let usable = |pool: &Arc<Self>| pool.process == process && (pool.has_requests || !needs_requests);
        if let Some(pool) = lock()?.as_ref().filter(|pool| usable(pool)) {
            return Some(Arc::clone(pool));
        }
        // Without the lock, which is held for moments only.
        let started = Arc::new(Self::start(process, needs_requests)?);
        let mut current = lock()?;
        if let Some(pool) = current.as_ref().filter(|pool| usable(pool)) {
            return Some(Arc::clone(pool)); // another thread was faster; `started` ends
        }
        let before = current.replace(Arc::clone(&started));
        drop(current);
        if let Some(pool) = before.filter(|pool| pool.process != process) {
            // Its threads are those of the parent: ending them would wait for ever.
            std::mem::forget(pool);
        }
        Some(started)
    }

    /// Starts the threads.
    fn start(process: u32, has_requests: bool) -> Option<Self> {
        let computing = worker_count(0).saturating_sub(1);
        let requests = if has_requests { REQUESTS } else { 0 };
        let mut threads = Vec::new();
        let mut start = |name: String, work: Box<dyn FnOnce() + Send>| {
            threads.push(thread::Builder::new().name(name).spawn(work)?);
            Ok(())
        };
        // A pool of no threads would have as many as rayon thinks best.
        let builder = ThreadPoolBuilder::new().num_threads((computing + requests).max(1));
        let pool = builder
            .spawn_handler(|thread| start(format!("ndshm-read-{}", thread.index()), Box::new(|| thread.run())))
            .build()
            .ok()?;
        // Without this thread the pool would never end.
        start("ndshm-read-idle".to_owned(), Box::new(end_when_idle)).ok()?;
        Some(Self {
            process,
            pool,
            computing: AtomicUsize::new(computing),
            requests: AtomicUsize::new(requests),
            has_requests,
            is_used: AtomicBool::new(true),
            threads,
        })
    }

    /// Ends the threads, and waits for that.
    fn end(self) {
        drop(self.pool); // its threads end
        for thread in self.threads {
            thread.thread().unpark();
            // No helper panics: each catches the panics of its work.
            let _ = thread.join();
        }
    }

    /// Reserves idle helpers: at most `count`, perhaps none.
    fn reserve(&self, purpose: HelperUse, count: usize) -> ReservedHelpers<'_> {
        self.is_used.store(true, Ordering::Relaxed);
        let idle = match purpose {
            HelperUse::Computing => &self.computing,
            HelperUse::Requests => &self.requests,
        };
        let taken = idle.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |idle| Some(idle - idle.min(count)));
        // Never an error: the function above always returns a value.
        let count = taken.unwrap_or_default().min(count);
        ReservedHelpers { idle, count }
    }
}

/// Ends the pool when no read has used it for some time. This thread ends with the pool.
fn end_when_idle() {
    let own = thread::current().id();
    loop {
        thread::park_timeout(IDLE);
        let Some(mut current) = lock() else { continue };
        match current.as_ref() {
            Some(pool) if pool.threads.iter().any(|thread| thread.thread().id() == own) => {
                let is_used = pool.is_used.swap(false, Ordering::Relaxed) || Arc::strong_count(pool) > 1;
                if is_used {
                    continue;
                }
            }
            _ => return, // it was ended, or replaced by a larger one
        }
        let pool = current.take();
        drop(current);
        drop(pool); // its threads end
        return;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn helpers_work_beside_the_caller_and_each_has_one_job() {
        let (barrier, ended) = (Barrier::new(2), AtomicUsize::new(0));
        let help = || {
            barrier.wait();
            ended.fetch_add(1, Ordering::Relaxed);
        };
        let own = || {
            barrier.wait(); // a helper runs at the same time
            7
        };
        assert_eq!(with_helpers(HelperUse::Requests, 1, &help, own, &|| ()), 7);
        assert_eq!(ended.load(Ordering::Relaxed), 1, "it has ended before the call does");
        let alone = || panic!("no helper was asked for");
        with_helpers(HelperUse::Computing, 0, &alone, || (), &|| ());
    }

    #[test]
    fn caller_ticks_while_it_waits_for_a_helper() {
        let (ticked, barrier) = (AtomicBool::new(false), Barrier::new(2));
        let help = || {
            barrier.wait();
        };
        let tick = || {
            if !ticked.swap(true, Ordering::Relaxed) {
                barrier.wait();
            }
        };
        with_helpers(HelperUse::Requests, 1, &help, || (), &tick);
        assert!(ticked.load(Ordering::Relaxed));
    }

    #[test]
    fn pool_of_a_parent_is_forgotten() {
        // Another process id: so this pool looks inherited from a parent. A child lacks its threads.
        let inherited = Arc::new(HelperPool::start(std::process::id() + 1, true).expect("threads"));
        *lock().expect("it is free") = Some(Arc::clone(&inherited));
        assert_eq!(with_helpers(HelperUse::Requests, 1, &|| (), || 7, &|| ()), 7);
        let current = lock().expect("it is free").as_ref().map(|pool| pool.process);
        assert!(current.is_none_or(|process| process == std::process::id()), "{current:?}");
        assert_eq!(inherited.requests.load(Ordering::Relaxed), REQUESTS, "it was not used");
        *lock().expect("it is free") = Some(Arc::clone(&inherited));
        end_read_threads();
        assert_eq!(Arc::strong_count(&inherited), 3, "two were forgotten, and nothing waits for its threads");
        std::mem::forget(inherited);
    }

    #[test]
    fn threads_of_an_ended_pool_end() {
        let pool = HelperPool::start(std::process::id(), false).expect("threads");
        assert!(pool.threads.len() >= 2, "a helper, and the thread that ends it");
        pool.end(); // returns when they have ended
        end_read_threads();
        end_read_threads();
        assert_eq!(with_helpers(HelperUse::Computing, 1, &|| (), || 7, &|| ()), 7, "it starts again");
    }

    #[test]
    fn read_with_busy_helpers_works_alone() {
        let pool = HelperPool::start(std::process::id(), true).expect("threads");
        for purpose in [HelperUse::Computing, HelperUse::Requests] {
            let all = pool.reserve(purpose, usize::MAX);
            assert_eq!(pool.reserve(purpose, 3).count, 0);
            let count = all.count;
            assert_eq!(count, if purpose == HelperUse::Requests { REQUESTS } else { worker_count(0) - 1 });
            drop(all);
            assert_eq!(pool.reserve(purpose, usize::MAX).count, count);
        }
        let small = HelperPool::start(std::process::id(), false).expect("threads");
        assert_eq!(small.reserve(HelperUse::Requests, 3).count, 0, "it has none");
    }
}
