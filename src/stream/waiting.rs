//! Waiting for a frame, or for what says that none will come: the end of the stream, its replacement, the death of its
//! writer.

use std::time::{Duration, Instant};

use super::memory::StreamState;
use super::slots::ReadSlots;
use crate::backend::lock_space::WRITER;
use crate::backoff::Deadline;
use crate::error::{ErrorKind, Result};
use crate::interrupt;
use crate::os::LockKind;

/// How long a reader sleeps before it asks whether the writer lives. A death wakes no process.
const SLICE: Duration = Duration::from_millis(100);

impl ReadSlots {
    /// Returns whether the stream has a writer that lives. `None`: the kernel does not tell.
    pub(super) fn has_writer(&self) -> Result<Option<bool>> {
        if self.is_locked(LockKind::Shared, WRITER)? {
            return Ok(Some(true));
        }
        Ok((!self.frames.is_unwatched()).then_some(false))
    }

    /// Fails if no frame will come.
    pub(super) fn refuse_ended(&self) -> Result<()> {
        match self.frames.memory.state() {
            StreamState::Open => Ok(()),
            StreamState::Ended => {
                let reason = "the stream has ended: its writer will add no frame";
                Err(ErrorKind::Closed { reason }.at(&self.frames.home.location))
            }
            StreamState::Replaced => Err(ErrorKind::Unlinked.at(&self.frames.home.location)),
        }
    }

    /// Waits until `look` finds something, at most for `limit`.
    pub(super) fn wait<R>(&self, limit: Duration, mut look: impl FnMut() -> Result<Option<R>>) -> Result<R> {
        let (memory, location) = (&self.frames.memory, &self.frames.home.location);
        let until = Deadline::after(limit);
        let mut slept = Duration::ZERO;
        loop {
            // Before the search: a frame that is committed after it rings the bell.
            let bell = memory.bell();
            if let Some(found) = look()? {
                return Ok(found);
            }
            // The writer stores its last frame before the end: look once more.
            if let Err(ended) = self.refuse_ended() {
                return look()?.ok_or(ended);
            }
            if slept >= SLICE {
                if self.has_writer()? == Some(false) {
                    // A last frame, or a successor, may have come before the query.
                    if let Some(found) = look()? {
                        return Ok(found);
                    }
                    if self.has_writer()? == Some(false) {
                        self.refuse_ended()?;
                        return Err(ErrorKind::NoWriter.at(location));
                    }
                }
                slept = Duration::ZERO;
            }
            if !interrupt::goes_on() {
                return Err(ErrorKind::Interrupted.at(location));
            }
            let slice = until.left().min(SLICE);
            if slice.is_zero() {
                return Err(ErrorKind::TimedOut { waited: until.limit() }.at(location));
            }
            let begun = Instant::now();
            memory.wait(bell, slice);
            slept += begun.elapsed();
        }
    }
}
