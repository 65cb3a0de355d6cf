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
    /// All work of the context may be such work. No event of it is recorded yet.
    Unrecorded,
    /// As before, and recording would end a graph capture.
    Captured,
    /// All that the context had to do when this event was recorded.
    Until(DeviceEvent),
}

/// Memory, and the work that must be done before it ends. Dropping this value leaves the memory as it is.
struct EndingMemory {
    context: CUcontext,
    said: Unfinished,
    unsaid: Unsaid,
    /// Dropping it ends the memory.
    memory: Option<Box<dyn Any + Send>>,
}

// SAFETY: a context may be used by any thread; the other fields are `Send`.
unsafe impl Send for EndingMemory {}

impl Drop for EndingMemory {
    fn drop(&mut self) {
        std::mem::forget(self.memory.take());
    }
}

/// What the threads of the process know of endings.
struct Endings {
    /// Those that the thread has not taken yet.
    new: Vec<EndingMemory>,
    /// Contexts, as numbers, of those that the thread has, without those that a capture holds up.
    taken: Vec<usize>,
    /// How many are over.
    over: u64,
    has_thread: bool,
    /// Whether the thread may be calling the driver.
    calls: bool,
    /// Whether the process exits.
    exits: bool,
}

static STATE: Mutex<Endings> =
    Mutex::new(Endings { new: Vec::new(), taken: Vec::new(), over: 0, has_thread: false, calls: false, exits: false });
/// There is work for the thread.
static WORK: Condvar = Condvar::new();
/// Endings are over, or the thread has looked at new ones.
static PROGRESS: Condvar = Condvar::new();

/// How long the thread waits before it looks again, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(5));
/// How long the thread lives without work.
const IDLE: Duration = Duration::from_secs(1);
/// How long an exit waits for a call of the thread.
const LAST_CALL: Duration = Duration::from_secs(1);
/// How long a thread that has synchronized waits for memory that is about to end.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// How often an allocation is tried again while memory is about to end: other processes free memory too.
const RETRY: Duration = Duration::from_millis(100);

impl Endings {
    /// Returns whether memory of a context is about to end.
    fn has(&self, context: CUcontext) -> bool {
        let is_new = |ending: &EndingMemory| ending.context == context && !matches!(ending.unsaid, Unsaid::Captured);
        self.new.iter().any(is_new) || self.taken.contains(&context.addr())
    }
}

/// Drops memory as soon as this work is done: at once if it is. With `unsaid`, all other work of the context must be
/// done too.
pub(crate) fn end(context: CUcontext, said: Unfinished, unsaid: bool, memory: Box<dyn Any + Send>) {
    if functions_in_drop().is_none() {
        // A forked child cannot call the driver, and must not take the lock. Its drop leaves the parent's memory alone.
        drop(memory);
        return;
    }
    let unsaid = if unsaid { Unsaid::Unrecorded } else { Unsaid::Nothing };
    let mut ending = EndingMemory { context, said, unsaid, memory: Some(memory) };
    if lock().exits {
        std::mem::forget(ending);
        return;
    }
    let is_over = ending.is_over(false);
    if is_over {
        drop(ending.memory.take());
    }
    let mut state = lock();
    if is_over {
        state.over += 1;
        PROGRESS.notify_all();
    } else if state.exits {
        std::mem::forget(ending);
    } else {
        state.new.push(ending);
        start(&mut state);
        WORK.notify_one();
    }
}

/// Returns how many endings are over, for [`wait_for_memory`].
pub(crate) fn over() -> u64 {
    lock().over
}

/// Waits a moment if memory of a context is about to end, and returns whether an allocation is worth another try: it
/// was, or more endings are over than that, and the time has not come.
pub(crate) fn wait_for_memory(context: CUcontext, over: u64, deadline: Instant) -> bool {
    let mut state = lock();
    if state.over == over {
        let left = deadline.saturating_duration_since(Instant::now());
        if !state.has(context) || left.is_zero() || state.exits {
            return false;
        }
        start(&mut state);
        WORK.notify_one(); // the thread looks at once
        let until = Instant::now() + left.min(RETRY);
        while state.over == over && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            state = wait(&PROGRESS, state, left);
        }
    }
    true
}

/// Waits until no memory of a context is about to end, for [`LONGEST_WAIT`] at most.
pub(crate) fn wait_for_all(context: CUcontext) {
    let deadline = Instant::now() + LONGEST_WAIT;
    let mut state = lock();
    while state.has(context) && !state.exits && Instant::now() < deadline {
        start(&mut state);
        WORK.notify_one();
        state = wait(&PROGRESS, state, PAUSES.1);
    }
}

fn lock() -> MutexGuard<'static, Endings> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait(event: &Condvar, state: MutexGuard<'static, Endings>, time: Duration) -> MutexGuard<'static, Endings> {
    event.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
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
                state = wait(&WORK, state, IDLE);
            }
        }
        if state.exits || state.new.is_empty() && endings.is_empty() {
            state.has_thread = false;
            std::mem::forget(endings); // their events too
            return;
        }
        if !state.new.is_empty() {
            pause = first;
            let new = std::mem::take(&mut state.new);
            state.taken.extend(new.iter().map(|ending| ending.context.addr()));
            endings.extend(new);
        }
        state.calls = true;
        drop(state);
        let over = end_what_is_over(&mut endings);
        state = lock();
        state.calls = false;
        state.over += over;
        let waited_for = endings.iter().filter(|ending| !matches!(ending.unsaid, Unsaid::Captured));
        state.taken = waited_for.map(|ending| ending.context.addr()).collect();
        PROGRESS.notify_all();
        if over > 0 {
            pause = first;
        } else if !endings.is_empty() && state.new.is_empty() && !state.exits {
            state = wait(&WORK, state, pause);
            pause = most.min(2 * pause);
        }
    }
}

/// Drops the memory of which the work is done, and returns how much that was. Waits for work only if nothing can be
/// dropped without.
fn end_what_is_over(endings: &mut Vec<EndingMemory>) -> u64 {
    let before = endings.len();
    for may_wait in [false, true] {
        let mut captured = Vec::new();
        endings.retain_mut(|ending| {
            if ending.is_held_up(may_wait, &captured) {
                return true;
            }
            let is_over = ending.is_over(may_wait);
            if matches!(ending.unsaid, Unsaid::Captured) {
                captured.push(ending.context);
            }
            if is_over {
                drop(ending.memory.take());
            }
            !is_over
        });
        if endings.len() < before {
            break;
        }
    }
    (before - endings.len()) as u64
}

/// Keeps the thread from calling the driver while the process exits.
extern "C" fn stop() {
    if functions_in_drop().is_none() {
        return; // a forked child, which must not take the lock
    }
    let begin = Instant::now();
    loop {
        // A thread that was stopped with the lock does not hold up the exit.
        let calls = match STATE.try_lock() {
            Err(TryLockError::WouldBlock) => true,
            Ok(mut state) => state.stop(),
            Err(TryLockError::Poisoned(state)) => state.into_inner().stop(),
        };
        WORK.notify_all();
        if !calls || begin.elapsed() > LAST_CALL {
            return;
        }
        thread::sleep(PAUSES.0);
    }
}

impl Endings {
    /// Notes that the process exits. Returns whether the thread may still be calling the driver.
    fn stop(&mut self) -> bool {
        self.exits = true;
        self.calls
    }
}

impl EndingMemory {
    /// Returns whether a capture is known to forbid the event of the unsaid work, among those of these contexts.
    fn is_held_up(&self, may_wait: bool, captured: &[CUcontext]) -> bool {
        match self.unsaid {
            Unsaid::Captured => may_wait || captured.contains(&self.context),
            Unsaid::Unrecorded => captured.contains(&self.context),
            Unsaid::Nothing | Unsaid::Until(_) => false,
        }
    }

    /// Returns whether the memory may be dropped: the work is done, or the driver will never say so. In the latter case
    /// dropping unmaps nothing: see [`may_still_run`].
    ///
    /// With `may_wait`, this waits for work of which events do not tell.
    fn is_over(&mut self, may_wait: bool) -> bool {
        match self.is_done(may_wait) {
            Ok(is_done) => is_done,
            Err(error) if is_by_capture(&error) => {
                self.unsaid = Unsaid::Captured; // by a stream that is not known
                false
            }
            Err(_) if may_wait => {
                self.said.settle();
                matches!(self.unsaid, Unsaid::Nothing) || all_has_ended(self.context) || may_still_run()
            }
            Err(_) => false,
        }
    }

    fn is_done(&mut self, may_wait: bool) -> Result<bool> {
        if matches!(self.unsaid, Unsaid::Unrecorded | Unsaid::Captured) {
            self.unsaid = after_everything(self.context, may_wait)?;
        }
        Ok(self.said.is_complete()?
            && match &self.unsaid {
                Unsaid::Nothing => true,
                Unsaid::Unrecorded | Unsaid::Captured => false,
                Unsaid::Until(event) => event.is_complete()?,
            })
    }
}

/// Records an event after all work of the context, unless a graph is known to be captured: the record would end that
/// capture.
fn after_everything(context: CUcontext, may_wait: bool) -> Result<Unsaid> {
    if captures::is_known(context)? {
        return Ok(Unsaid::Captured);
    }
    match DeviceEvent::of_context(context)? {
        Some(event) => Ok(Unsaid::Until(event)),
        None if may_wait && all_has_ended(context) => Ok(Unsaid::Nothing),
        None => Ok(Unsaid::Unrecorded),
    }
}
