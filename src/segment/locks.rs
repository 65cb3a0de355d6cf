//! Locks on cells. Each hold has an open file description of its own, so the kernel excludes threads, handles and
//! processes alike.
//!
//! A second request on one description would convert or merge locks instead of conflicting. The only state in the
//! process is a list per thread of the locks that the thread holds. It serves to refuse a wait that could never end.

use std::cell::RefCell;
use std::fs::File;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::backend::Turn;
use crate::backend::lock_space::{ALL_CELLS, GATE};
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::interrupt;
use crate::os::{self, FileId, LockKind, LockRange};

/// How long a request may wait.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wait<'a> {
    /// Not at all.
    No,
    /// At most this long.
    For(Duration),
    /// At most this long, and only while the callback returns true.
    While(Duration, KeepWaiting<'a>),
    /// Until it is granted.
    Forever,
}

impl Wait<'_> {
    /// Returns how long this waits at most, or `None` if it has no limit.
    pub(super) fn limit(self) -> Option<Duration> {
        match self {
            Self::No => Some(Duration::ZERO),
            Self::For(limit) | Self::While(limit, _) => Some(limit),
            Self::Forever => None,
        }
    }
}

/// Called about ten times a second by a request that waits. Returns false to end the wait.
#[derive(Clone, Copy)]
pub(crate) struct KeepWaiting<'a>(pub(crate) &'a dyn Fn() -> bool);

impl std::fmt::Debug for KeepWaiting<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("KeepWaiting").finish_non_exhaustive()
    }
}

/// The time between two calls of `KeepWaiting`.
const ASK: Duration = Duration::from_millis(100);

/// How long a thread respects a gate that stays closed. A stopped writer (SIGSTOP) never opens its gate. Longer than
/// most reads, so that a running writer gets its turn before any reader that came later.
const GATE_WAIT: Duration = Duration::from_secs(10);

/// How many closed gates a thread remembers.
const GATES: usize = 32;

/// A gate that this thread found closed.
#[derive(Debug)]
struct Closed {
    id: FileId,
    /// The first query that found it closed.
    since: Instant,
    /// The last query that found it closed.
    seen: Instant,
}

/// A lock that this thread took.
#[derive(Debug)]
struct HeldLock {
    id: FileId,
    kind: LockKind,
    range: LockRange,
    /// Fork generation. A forked child ignores what its parent put into the list.
    generation: u64,
    /// Upgradable until the lock is dropped.
    alive: Weak<()>,
}

// Only this file uses them, and nothing in it forks, so a forked child inherits neither of them borrowed.
thread_local! {
    static TAKEN: RefCell<Vec<HeldLock>> = const { RefCell::new(Vec::new()) };
    static CLOSED: RefCell<Vec<Closed>> = const { RefCell::new(Vec::new()) };
}

/// How a request relates to the locks that its own thread holds on the same file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// The thread holds none.
    Nothing,
    /// The thread holds some, and none conflicts.
    Compatible,
    /// The thread holds a conflicting lock.
    Conflicting,
}

fn own(id: FileId, kind: LockKind, range: LockRange) -> Standing {
    let generation = os::fork_generation();
    let look = |taken: &RefCell<Vec<HeldLock>>| {
        let mut taken = taken.borrow_mut();
        taken.retain(|record| record.alive.strong_count() > 0 && record.generation == generation);
        taken.iter().filter(|record| record.id == id).fold(Standing::Nothing, |so_far, record| {
            let exclusive = kind == LockKind::Exclusive || record.kind == LockKind::Exclusive;
            if so_far == Standing::Conflicting || (exclusive && record.range.overlaps(range)) {
                Standing::Conflicting
            } else {
                Standing::Compatible
            }
        })
    };
    // In a thread that is ending, the list may be destroyed already. Its request then waits like that of any other
    // thread.
    TAKEN.try_with(look).unwrap_or(Standing::Nothing)
}

/// Returns whether this thread has a lock that conflicts with such a request.
pub(crate) fn is_own_conflict(id: FileId, kind: LockKind, range: LockRange) -> bool {
    own(id, kind, range) == Standing::Conflicting
}

/// Marks a lock as held while this value lives, for later requests of the same thread.
#[derive(Debug)]
pub(crate) struct Token(#[allow(dead_code)] Arc<()>);

fn record(id: FileId, kind: LockKind, range: LockRange) -> Token {
    let alive = Arc::new(());
    let generation = os::fork_generation();
    let record = HeldLock { id, kind, range, generation, alive: Arc::downgrade(&alive) };
    // Fails only where the ending thread's list is destroyed.
    let _ = TAKEN.try_with(|taken| taken.borrow_mut().push(record));
    Token(alive)
}

/// Locks cells of `file`, which has the identity `id`. No other hold may use its description.
///
/// # Errors
///
/// [`ErrorKind::WouldBlock`] or [`ErrorKind::TimedOut`] if the lock was not granted; [`ErrorKind::WouldDeadlock`] if
/// the wait has no limit and this thread itself holds a conflicting lock; [`ErrorKind::Interrupted`] within
/// [`interruptible`](interrupt::interruptible).
pub(crate) fn take(
    file: &File,
    id: FileId,
    kind: LockKind,
    range: LockRange,
    wait: Wait<'_>,
    name: &str,
) -> Result<Token> {
    let own = own(id, kind, range);
    if own == Standing::Conflicting && matches!(wait, Wait::Forever) {
        return Err(ErrorKind::WouldDeadlock.at(name));
    }
    let gate = if own != Standing::Nothing {
        // The gate is ignored. A writer at the gate may wait for the cells that this thread holds, and this thread
        // would then wait for the writer: neither would ever continue.
        Gate::Ignore
    } else if kind == LockKind::Exclusive && range == ALL_CELLS {
        Gate::Hold
    } else {
        Gate::Respect
    };
    let request = LockRequest { file, id, kind, range, gate };
    let taken = match wait {
        // The kernel's request without a limit cannot be interrupted.
        Wait::Forever if interrupt::can_end() => request.within(Duration::MAX, &interrupt::goes_on),
        Wait::Forever => request.until_granted().map(|()| true),
        Wait::No => request.at_once(),
        Wait::For(limit) => request.within(limit, &interrupt::goes_on),
        Wait::While(limit, keep_waiting) => request.within(limit, keep_waiting.0),
    };
    match (taken, wait) {
        (Ok(true), _) => Ok(record(id, kind, range)),
        (Ok(false), Wait::Forever | Wait::For(_)) if interrupt::has_ended() => Err(ErrorKind::Interrupted.at(name)),
        (Ok(false), Wait::For(waited) | Wait::While(waited, _)) => Err(ErrorKind::TimedOut { waited }.at(name)),
        (Ok(false), _) => Err(ErrorKind::WouldBlock.at(name)),
        (Err(error), _) => Err(Error::os("lock", name, error)),
    }
}

/// How a request treats the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    /// Take no notice of it.
    Ignore,
    /// Query whether a writer holds it, and wait until none does. Readers never hold it themselves: a succession of
    /// readers would keep a writer from closing it.
    Respect,
    /// Close it until the cells are granted, so that no new reader enters before this writer.
    Hold,
}

#[derive(Debug, Clone, Copy)]
struct LockRequest<'a> {
    file: &'a File,
    id: FileId,
    kind: LockKind,
    range: LockRange,
    gate: Gate,
}

impl<'a> LockRequest<'a> {
    /// Waits at the gate for a limited time, then for the cells without limit.
    fn until_granted(self) -> std::io::Result<()> {
        let mut backoff = Backoff::new(Duration::MAX);
        let mut closed = None;
        while !self.passes_gate(&mut closed)? {
            backoff.pause();
        }
        os::step("guard: past the gate");
        os::lock(self.file, self.kind, self.range)
    }

    /// Tries once. A writer that does not wait needs no gate, and closing it would refuse other requests for nothing.
    fn at_once(self) -> std::io::Result<bool> {
        Ok((self.gate == Gate::Hold || self.passes_gate(&mut None)?) && os::try_lock(self.file, self.kind, self.range)?)
    }

    /// Tries again and again, because the kernel has no lock request with a timeout. A waiting writer keeps the gate
    /// meanwhile.
    fn within(self, limit: Duration, keep_waiting: &dyn Fn() -> bool) -> std::io::Result<bool> {
        let mut backoff = Backoff::new(limit);
        let mut closed = None;
        let mut asked = Instant::now();
        let mut goes_on = || {
            if asked.elapsed() < ASK {
                return true;
            }
            asked = Instant::now();
            keep_waiting()
        };
        loop {
            let taken = self.passes_gate(&mut closed)? && os::try_lock(self.file, self.kind, self.range)?;
            if taken || !goes_on() || !backoff.pause() {
                return Ok(taken);
            }
        }
    }

    /// Returns whether the request may go on to the cells: the gate is open, or this request has closed it (`closed`),
    /// or another request has kept it closed for too long. Only the cells exclude: a request that passes a closed gate
    /// takes its turn too early, no more.
    fn passes_gate(self, closed: &mut Option<ClosedGate<'a>>) -> std::io::Result<bool> {
        let is_closed = match self.gate {
            Gate::Ignore => return Ok(true),
            Gate::Respect => os::is_locked(self.file, LockKind::Shared, GATE)?,
            Gate::Hold => {
                // Never requested twice: Windows refuses a lock that the same handle already holds.
                if closed.is_none() && os::try_lock(self.file, LockKind::Exclusive, GATE)? {
                    *closed = Some(ClosedGate(self.file));
                }
                closed.is_none()
            }
        };
        // In a thread that is ending, the list may be destroyed already. Without it the wait would have no limit, so
        // the request passes.
        Ok(CLOSED.try_with(|gates| outlasts(&mut gates.borrow_mut(), self.id, is_closed)).unwrap_or(true))
    }
}

/// A gate that a waiting writer has closed. Dropping this opens it, also after an error or a panic of [`KeepWaiting`].
///
/// Closing the file would not suffice: a process that another thread is just spawning may share the description for a
/// moment, and would keep the gate closed.
#[derive(Debug)]
struct ClosedGate<'a>(&'a File);

impl Drop for ClosedGate<'_> {
    fn drop(&mut self) {
        // If this fails, the gate opens with the guard, and is respected for a limited time only.
        let _ = os::unlock(self.0, GATE);
    }
}

/// Notes whether the gate of a file was found closed. Returns whether the request may pass it.
///
/// A closed gate is remembered from one request of the thread to the next. A stopped writer therefore delays each
/// thread once, and requests that do not wait are refused for a limited time only.
fn outlasts(gates: &mut Vec<Closed>, id: FileId, is_closed: bool) -> bool {
    gates.retain(|gate| gate.seen.elapsed() < GATE_WAIT && (is_closed || gate.id != id));
    if !is_closed {
        return true;
    }
    let now = Instant::now();
    if let Some(gate) = gates.iter_mut().find(|gate| gate.id == id) {
        gate.seen = now;
        return now.duration_since(gate.since) >= GATE_WAIT;
    }
    gates.truncate(GATES - 1);
    gates.insert(0, Closed { id, since: now, seen: now });
    false
}

/// Cells that are locked until this is dropped, and in a forked child the lease that keeps the memory meanwhile.
#[derive(Debug)]
pub(crate) struct Hold {
    turn: Turn,
    token: Token,
}

impl Hold {
    /// Lets another thread have the lock: requests of this thread wait for it, instead of failing because no other
    /// thread would release it.
    pub(crate) fn leave_thread(&mut self) {
        self.token = Token(Arc::new(())); // the list of this thread no longer finds the lock alive
    }

    /// Returns whether this process took the lock. A forked child has a copy of its parent's value, and no lock.
    pub(crate) fn is_own_process(&self) -> bool {
        self.turn.is_own_process()
    }

    /// Locks cells of the file of `turn`. No other hold may use its description.
    ///
    /// The range is released as a whole. Cells that are to be released one by one need a hold each.
    pub(crate) fn take(
        mut turn: Turn,
        id: FileId,
        kind: LockKind,
        range: LockRange,
        wait: Wait<'_>,
        name: &str,
    ) -> Result<Self> {
        let token = take(turn.file(), id, kind, range, wait, name)?;
        if !turn.is_own_process() {
            // The wait asked its caller whether to go on, and the caller forked: the description is the parent's.
            let what = "waiting for a lock in a child that was forked meanwhile (ask for it again here)".into();
            return Err(ErrorKind::Unsupported { what }.at(name));
        }
        turn.note(range);
        Ok(Self { turn, token })
    }

    pub(crate) fn file(&self) -> &File {
        self.turn.file()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every system refuses this range: it ends beyond the largest offset.
    const BEYOND: LockRange = LockRange { start: u64::MAX, length: 2 };

    #[test]
    fn writer_that_fails_opens_the_gate() {
        let named = tempfile::NamedTempFile::new().expect("a file");
        let (file, other) = (named.as_file(), named.reopen().expect("another description"));
        let id = os::facts(file).expect("facts").id;
        let request = LockRequest { file, id, kind: LockKind::Exclusive, range: BEYOND, gate: Gate::Hold };
        let is_closed = || os::is_locked(&other, LockKind::Shared, GATE).expect("an answer");
        assert!(request.until_granted().is_err());
        assert!(!is_closed(), "after an error, while the file is still open");
        assert!(request.within(Duration::from_secs(60), &|| true).is_err());
        assert!(!is_closed());
        let cells = LockRequest { range: ALL_CELLS, ..request };
        assert!(os::try_lock(&other, LockKind::Shared, ALL_CELLS).expect("an answer"), "so that the writer waits");
        let panicked = std::panic::catch_unwind(|| cells.within(Duration::MAX, &|| panic!("while waiting")));
        assert!(panicked.is_err() && !is_closed());
    }
}
