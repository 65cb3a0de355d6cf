//! Holding cells: one open file description for each hold, so that the kernel excludes threads, handles and processes
//! alike.
//!
//! A second request on one description would convert or merge locks instead of conflicting, so every hold owns the
//! description it was taken on. The only bookkeeping in the process is a list per thread of what that thread took, to
//! refuse a wait that could never end.

use std::cell::RefCell;
use std::fs::File;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::backend::lock_space::{ALL_CELLS, GATE};
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::os::{self, FileId, LockKind, LockRange};

/// How long a request may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all.
    No,
    /// This long.
    For(Duration),
    /// Until it is granted.
    Forever,
}

/// What this thread took and nobody dropped yet.
#[derive(Debug)]
struct Record {
    id: FileId,
    kind: LockKind,
    range: LockRange,
    generation: u64,
    alive: Weak<()>,
}

thread_local! {
    static TAKEN: RefCell<Vec<Record>> = const { RefCell::new(Vec::new()) };
}

/// How a request stands to what its own thread holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Own {
    Nothing,
    Compatible,
    Conflicting,
}

fn own(id: FileId, kind: LockKind, range: LockRange) -> Own {
    let generation = os::fork_generation();
    let look = |taken: &RefCell<Vec<Record>>| {
        let mut taken = taken.borrow_mut();
        taken.retain(|record| record.alive.strong_count() > 0 && record.generation == generation);
        taken.iter().filter(|record| record.id == id).fold(Own::Nothing, |so_far, record| {
            let exclusive = kind == LockKind::Exclusive || record.kind == LockKind::Exclusive;
            if so_far == Own::Conflicting || (exclusive && record.range.overlaps(range)) {
                Own::Conflicting
            } else {
                Own::Compatible
            }
        })
    };
    // A thread that is ending may have lost its list already: then it is on its own, and waits like any other.
    TAKEN.try_with(look).unwrap_or(Own::Nothing)
}

/// Says that something is held, for as long as it lives: how other requests of the same thread know.
#[derive(Debug)]
pub(crate) struct Token(#[allow(dead_code)] Arc<()>);

fn record(id: FileId, kind: LockKind, range: LockRange) -> Token {
    let alive = Arc::new(());
    let generation = os::fork_generation();
    let record = Record { id, kind, range, generation, alive: Arc::downgrade(&alive) };
    let _ending = TAKEN.try_with(|taken| taken.borrow_mut().push(record));
    Token(alive)
}

/// Takes a lock on cells of `file`, which is the file `id`, on its own description.
///
/// # Errors
///
/// [`Error::WouldBlock`], [`Error::TimedOut`] or, if the thread's own holds stand in the way of a wait without end,
/// [`Error::WouldDeadlock`].
pub(crate) fn take(file: &File, id: FileId, kind: LockKind, range: LockRange, wait: Wait, name: &str) -> Result<Token> {
    let own = own(id, kind, range);
    if own == Own::Conflicting && wait == Wait::Forever {
        return Err(Error::WouldDeadlock { location: name.to_owned() });
    }
    let gate = if own != Own::Nothing {
        // Somebody may wait at the gate for what this thread holds already: to queue behind him would never end.
        Gate::Open
    } else if kind == LockKind::Exclusive && range == ALL_CELLS {
        Gate::Close
    } else {
        Gate::Pass
    };
    let request = Request { file, kind, range, gate };
    let taken = match wait {
        Wait::Forever => request.until_granted().map(|()| true),
        Wait::No => request.at_once(),
        Wait::For(limit) => request.within(limit),
    };
    match (taken, wait) {
        (Ok(true), _) => Ok(record(id, kind, range)),
        (Ok(false), Wait::For(waited)) => Err(Error::TimedOut { location: name.to_owned(), waited }),
        (Ok(false), _) => Err(Error::WouldBlock { location: name.to_owned() }),
        (Err(error), _) => Err(Error::os("lock", name, error)),
    }
}

/// How a request treats the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gate {
    /// Ignore it.
    Open,
    /// Ask whether a writer stands in it, and wait until none does; never hold it, or readers in turn would keep writers
    /// from it.
    Pass,
    /// Stand in it until the cells are free, so that nobody new gets in.
    Close,
}

#[derive(Debug, Clone, Copy)]
struct Request<'a> {
    file: &'a File,
    kind: LockKind,
    range: LockRange,
    gate: Gate,
}

impl Request<'_> {
    fn until_granted(self) -> std::io::Result<()> {
        match self.gate {
            Gate::Open => os::lock(self.file, self.kind, self.range),
            Gate::Pass => {
                if os::is_locked(self.file, LockKind::Shared, GATE)? {
                    os::lock(self.file, LockKind::Shared, GATE)?;
                    os::unlock(self.file, GATE)?;
                }
                os::lock(self.file, self.kind, self.range)
            }
            Gate::Close => {
                os::lock(self.file, LockKind::Exclusive, GATE)?;
                os::lock(self.file, self.kind, self.range)?;
                os::unlock(self.file, GATE)
            }
        }
    }

    /// Tries once. A writer that does not wait needs no gate, and closing it would turn others away for nothing.
    fn at_once(self) -> std::io::Result<bool> {
        if self.gate == Gate::Pass && os::is_locked(self.file, LockKind::Shared, GATE)? {
            return Ok(false);
        }
        os::try_lock(self.file, self.kind, self.range)
    }

    /// The kernel has no lock with a time limit: try again and again. A waiting writer keeps the gate meanwhile.
    fn within(self, limit: Duration) -> std::io::Result<bool> {
        let mut backoff = Backoff::new(limit);
        let mut gate_closed = false;
        loop {
            let taken = if self.gate == Gate::Close {
                gate_closed = gate_closed || os::try_lock(self.file, LockKind::Exclusive, GATE)?;
                gate_closed && os::try_lock(self.file, self.kind, self.range)?
            } else {
                self.at_once()?
            };
            if taken || !backoff.pause() {
                if gate_closed {
                    os::unlock(self.file, GATE)?;
                }
                return Ok(taken);
            }
        }
    }
}

/// Cells that are locked until this is dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    file: File,
    range: LockRange,
    generation: u64,
    _token: Token,
}

impl Hold {
    /// Takes the lock on a description that nothing else uses.
    pub(crate) fn take(
        file: File,
        id: FileId,
        kind: LockKind,
        range: LockRange,
        wait: Wait,
        name: &str,
    ) -> Result<Self> {
        let token = take(&file, id, kind, range, wait, name)?;
        Ok(Self { file, range, generation: os::fork_generation(), _token: token })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for Hold {
    /// Unlocks before closing: a process that another thread is just spawning may share the description for a moment. A
    /// forked child only closes, because its parent still holds the lock.
    fn drop(&mut self) {
        if os::fork_generation() == self.generation {
            let _unlocked_by_close_then = os::unlock(&self.file, self.range);
        }
    }
}
