//! The end of memory that a GPU may still use. No caller waits for it: a thread looks at the events of the work, and
//! drops the memory when they are complete.
//!
//! The thread ends when it has had nothing to do for a while. When the process exits, it stops to call the driver, and
//! the kernel frees what is left. A forked child has no such thread, and frees nothing of its parent.

#![allow(unsafe_code)]

use std::any::Any;
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUcontext;

use crate::captures;
use crate::context::{all_has_ended, may_still_run};
use crate::driver::{functions_in_drop, is_by_capture};
use crate::error::Result;
use crate::pending::Unfinished;
use crate::stream::DeviceEvent;

/// Work that uses memory and was not named: that of libraries which have its address.
#[derive(Debug)]
enum Unsaid {
    /// There is none.
    Nothing,
    /// All work of the context may be such work. No event could be recorded so far.
    Anything,
    /// All that the context had to do when this event was recorded.
    Until(DeviceEvent),
}

/// Memory, and the work that must be done before it ends.
struct EndingMemory {
    context: CUcontext,
    said: Unfinished,
    unsaid: Unsaid,
    /// Dropping it ends the memory.
    _memory: Box<dyn Any + Send>,
}

// SAFETY: a context may be used by any thread; the other fields are `Send`.
unsafe impl Send for EndingMemory {}

/// What the threads of the process know of endings.
struct Endings {
    /// Those that the thread has not taken yet.
    new: Vec<EndingMemory>,
    /// How many the thread has.
    taken: usize,
    /// How many are over.
    over: u64,
    has_thread: bool,
    /// Whether the thread may be calling the driver.
    calls: bool,
    /// Whether the process exits.
    exits: bool,
}

static STATE: Mutex<Endings> =
    Mutex::new(Endings { new: Vec::new(), taken: 0, over: 0, has_thread: false, calls: false, exits: false });
/// [`STATE`] has changed, or a thread waits for memory.
static CHANGED: Condvar = Condvar::new();

/// How long the thread waits before it looks again, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(5));
/// How long the thread lives without work.
const IDLE: Duration = Duration::from_secs(1);
/// How long an exit waits for a call of the thread.
const LAST_CALL: Duration = Duration::from_secs(1);

/// Drops memory as soon as this work is done: at once if it is. With `unsaid`, all other work of the context must be
/// done too.
pub(crate) fn end(context: CUcontext, said: Unfinished, unsaid: bool, memory: Box<dyn Any + Send>) {
    let unsaid = if unsaid { Unsaid::Anything } else { Unsaid::Nothing };
    let mut ending = EndingMemory { context, said, unsaid, _memory: memory };
    // A forked child cannot call the driver, and must not take the lock. Its drop leaves the parent's memory alone.
    if functions_in_drop().is_none() || ending.is_over(false) {
        return;
    }
    let mut state = lock();
    if state.exits {
        std::mem::forget(ending);
        return;
    }
    state.new.push(ending);
    start(&mut state);
    CHANGED.notify_all();
}

/// Returns how many endings are over, for [`wait_beyond`].
pub(crate) fn over() -> u64 {
    lock().over
}

/// Waits until more endings are over than that. Returns false if there are none to wait for, or when the time has come.
pub(crate) fn wait_beyond(over: u64, deadline: Instant) -> bool {
    let mut state = lock();
    while state.over == over {
        let left = deadline.saturating_duration_since(Instant::now());
        if state.new.is_empty() && state.taken == 0 || left.is_zero() || state.exits {
            return false;
        }
        start(&mut state);
        CHANGED.notify_all(); // the thread looks at once
        state = wait(state, left.min(PAUSES.1));
    }
    true
}

fn lock() -> MutexGuard<'static, Endings> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait(state: MutexGuard<'static, Endings>, time: Duration) -> MutexGuard<'static, Endings> {
    CHANGED.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
}

/// Starts the thread. If the system refuses one, the next call tries again.
fn start(state: &mut Endings) {
    static STOP_AT_EXIT: Once = Once::new();
    if state.has_thread {
        return;
    }
    // After the driver has registered its own functions, so that this one is called before them.
    STOP_AT_EXIT.call_once(|| {
        // SAFETY: the function has no requirements. Without memory for the registration, the thread calls a driver that
        // has ended, and gets an error.
        let _ = unsafe { libc::atexit(stop) };
    });
    state.has_thread = thread::Builder::new().name("ndshm-gpu-memory".into()).spawn(reap).is_ok();
}

/// What the thread does.
fn reap() {
    let (first, most) = PAUSES;
    let (mut endings, mut pause) = (Vec::new(), first);
    let mut state = lock();
    loop {
        if state.new.is_empty() && endings.is_empty() {
            let begin = Instant::now();
            while state.new.is_empty() && !state.exits && begin.elapsed() < IDLE {
                state = wait(state, IDLE);
            }
        }
        if state.exits || state.new.is_empty() && endings.is_empty() {
            std::mem::forget(endings);
            state.has_thread = false;
            return;
        }
        if !state.new.is_empty() {
            pause = first;
            endings.append(&mut state.new);
        }
        (state.taken, state.calls) = (endings.len(), true);
        drop(state);
        endings.retain_mut(|ending: &mut EndingMemory| !ending.is_over(true));
        state = lock();
        state.calls = false;
        if endings.len() < state.taken {
            state.over += (state.taken - endings.len()) as u64;
            pause = first;
        }
        state.taken = endings.len();
        CHANGED.notify_all();
        if !endings.is_empty() && state.new.is_empty() && !state.exits {
            state = wait(state, pause);
            pause = most.min(2 * pause);
        }
    }
}

/// Keeps the thread from calling the driver while the process exits.
extern "C" fn stop() {
    if functions_in_drop().is_none() {
        return; // a forked child, which must not take the lock
    }
    let begin = Instant::now();
    loop {
        // A thread that was stopped with the lock does not hold up the exit.
        match STATE.try_lock() {
            Err(TryLockError::WouldBlock) => {}
            Ok(mut state) => state.exits = true,
            Err(TryLockError::Poisoned(mut state)) => state.get_mut().exits = true,
        }
        let calls = STATE.try_lock().map_or(true, |state| state.calls);
        CHANGED.notify_all();
        if !calls || begin.elapsed() > LAST_CALL {
            return;
        }
        thread::sleep(PAUSES.0);
    }
}

impl EndingMemory {
    /// Returns whether the memory may be dropped: the work is done, or the driver will never say so. In the latter case
    /// dropping unmaps nothing: see [`may_still_run`].
    ///
    /// With `may_wait`, this waits for all work of the context where events do not tell.
    fn is_over(&mut self, may_wait: bool) -> bool {
        match self.is_done(may_wait) {
            Ok(is_done) => is_done,
            Err(error) if is_by_capture(&error) => false,
            Err(_) => may_wait && (all_has_ended(self.context) || may_still_run()),
        }
    }

    fn is_done(&mut self, may_wait: bool) -> Result<bool> {
        if matches!(self.unsaid, Unsaid::Anything) {
            self.unsaid = after_everything(self.context, may_wait)?;
        }
        Ok(self.said.is_complete()?
            && match &self.unsaid {
                Unsaid::Nothing => true,
                Unsaid::Anything => false,
                Unsaid::Until(event) => event.is_complete()?,
            })
    }
}

/// Records an event after all work of the context, unless a graph is known to be captured: the record would end that
/// capture.
fn after_everything(context: CUcontext, may_wait: bool) -> Result<Unsaid> {
    if captures::is_known(context)? {
        return Ok(Unsaid::Anything);
    }
    match DeviceEvent::of_context(context)? {
        Some(event) => Ok(Unsaid::Until(event)),
        None if may_wait && all_has_ended(context) => Ok(Unsaid::Nothing),
        None => Ok(Unsaid::Anything),
    }
}
