//! Locks on an open file description of their own, which are released before the description is closed.
//!
//! Closing alone does not release a lock: a process that another thread is just spawning has a copy of the descriptor
//! until its program runs, and with it the lock.

use std::fs::File;
use std::io;

use crate::os::{self, LockKind, LockRange};

/// How often a descriptor for a lock is opened again because the process was just forking.
const TRIES: u32 = 100;

/// An open file description and the locks that it has. Dropping this releases them. They end with their process: forked
/// children give up their copies of the descriptor.
#[derive(Debug)]
pub(crate) struct Turn {
    file: File,
    /// The locked ranges. No purpose needs more than two at once.
    ranges: [Option<LockRange>; 2],
    /// Whether the lock of the whole file is taken as well.
    whole: bool,
    generation: u64,
}

impl Turn {
    /// Owns a description on which nothing is locked.
    pub(crate) fn new(file: File) -> Self {
        os::keep_from_children(&file);
        Self { file, ranges: [None; 2], whole: false, generation: os::fork_generation() }
    }

    /// Opens a description, again if a child was forked before its descriptor was listed. Such a child would keep the
    /// locks.
    pub(crate) fn open<E>(open: impl Fn() -> Result<File, E>) -> Result<Self, E> {
        let mut tries = 0;
        loop {
            let forks = os::forks();
            let turn = Self::new(open()?);
            tries += 1;
            if (forks.is_some() && os::forks() == forks) || tries == TRIES {
                return Ok(turn);
            }
        }
    }

    /// Returns the description. Locks that are taken on it directly are released only if they are [noted](Self::note).
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns whether this process took the locks. A forked child has a copy of its parent's value, and no lock.
    pub(crate) fn is_own_process(&self) -> bool {
        self.generation == os::fork_generation()
    }

    /// Fails in a forked child, in which the descriptor leads to something else: a callback may fork while its caller
    /// waits for a lock.
    fn refuse_forked_child(&self) -> io::Result<()> {
        if self.is_own_process() {
            return Ok(());
        }
        let what = "in a child that was forked while the lock was waited for (ask for it again here)";
        Err(io::Error::new(io::ErrorKind::Unsupported, what))
    }

    /// Locks a range, or returns `Ok(false)` if another description has a lock that conflicts.
    pub(crate) fn try_lock(&mut self, kind: LockKind, range: LockRange) -> io::Result<bool> {
        self.refuse_forked_child()?;
        let locked = os::try_lock(&self.file, kind, range)?;
        if locked {
            self.note(range);
        }
        Ok(locked)
    }

    /// Takes the lock of the whole file, or returns `Ok(false)` if another description has it.
    pub(crate) fn try_lock_whole(&mut self) -> io::Result<bool> {
        self.refuse_forked_child()?;
        self.whole = self.whole || os::try_lock_whole(&self.file)?;
        Ok(self.whole)
    }

    /// Owns the lock that was just taken on the description.
    pub(crate) fn note(&mut self, range: LockRange) {
        if !self.ranges.contains(&Some(range)) {
            let free = self.ranges.iter_mut().find(|locked| locked.is_none());
            *free.expect("no description has three locks") = Some(range);
        }
    }

    /// Releases one of the locks.
    pub(crate) fn unlock(&mut self, range: LockRange) -> io::Result<()> {
        os::unlock(&self.file, range)?;
        self.ranges.iter_mut().filter(|locked| **locked == Some(range)).for_each(|locked| *locked = None);
        Ok(())
    }
}

impl Drop for Turn {
    /// A forked child only closes, because its parent still holds the locks.
    fn drop(&mut self) {
        if !self.is_own_process() {
            return os::no_longer_keep_from_children(&self.file);
        }
        // If unlocking fails, closing unlocks.
        for range in self.ranges.into_iter().flatten() {
            let _ = os::unlock(&self.file, range);
        }
        if self.whole {
            let _ = os::unlock_whole(&self.file);
        }
        os::no_longer_keep_from_children(&self.file);
    }
}
