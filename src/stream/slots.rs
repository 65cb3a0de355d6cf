//! The locks of slots. The kernel counts the readers of a slot: no table, and a killed reader's frame is free at once.
//!
//! A slot's lock is a range of bytes. A reader read-locks the byte of its process number in it, the writer write-locks
//! the range. An open file description lock carries no process number, so that byte is what names a reader; in another
//! pid namespace it is that of another process.
//!
//! The kernel counts descriptions, not frames: two frames of one slot on one description are one lock. So a reader
//! counts its frames of each slot, and takes and releases the lock under the mutex of that count.

use std::time::Duration;

use super::files::FramesFile;
use super::protocol::Locked;
use crate::backend::Access;
use crate::backend::lock_space::{slot, slot_reader};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, LockKind, LockRange, PerProcess};
use crate::segment::{Home, LockFile};

/// The opened frames of a reader, and the locks of the frames that it holds. Frames keep it alive.
#[derive(Debug)]
pub(super) struct ReadSlots {
    pub(super) frames: FramesFile,
    /// Of each process: a forked child opens a description of its own, because unlocking on its parent's would end the
    /// parent's locks.
    locks: PerProcess<SlotLocks>,
}

#[derive(Debug)]
struct SlotLocks {
    file: LockFile,
    /// How many frames of each slot this process holds.
    held: Vec<u32>,
}

impl ReadSlots {
    pub(super) fn new(frames: FramesFile, file: LockFile) -> Self {
        let held = vec![0; frames.geometry.slots];
        let locks = PerProcess::new();
        if let Some(mut own) = locks.lock(Duration::MAX) {
            own.value = Some(SlotLocks { file, held });
        }
        Self { frames, locks }
    }

    /// Calls `act` with this process's locks, which it opens in a forked child.
    fn with<R>(&self, act: impl FnOnce(&mut SlotLocks) -> Result<R>) -> Result<R> {
        let home = &self.frames.home;
        let missing = || {
            let what = "locks of frames in this forked child, because a thread of its parent was using them (open the \
                        stream again here)";
            ErrorKind::Unsupported { what: what.into() }.at(&home.location)
        };
        let mut own = self.locks.lock(Duration::MAX).ok_or_else(missing)?;
        if own.value.is_none() {
            let opened = LockFile::open(&self.frames.frames_home()?, Access::Read, self.frames.file);
            let file = opened.map_err(|error| error.about(&home.location))?;
            let file = file.ok_or_else(|| ErrorKind::Unlinked.at(&home.location))?;
            own.value = Some(SlotLocks { file, held: vec![0; self.frames.geometry.slots] });
        }
        own.value.as_mut().map_or_else(|| Err(missing()), act)
    }

    /// Locks the slot of a frame for reading. Of a stream with copied frames it locks nothing.
    pub(super) fn lock(&self, number: u64) -> Result<Locked> {
        match self.frames.table().slot_of(number) {
            Some(slot) if self.frames.geometry.is_copied => Ok(Locked::Slot(slot)),
            Some(slot) => self.lock_slot(slot, number),
            None => Ok(Locked::Gone),
        }
    }

    /// Locks a slot for reading, if it has this frame.
    pub(super) fn lock_slot(&self, slot: usize, number: u64) -> Result<Locked> {
        os::step("stream: slot found");
        let home = &self.frames.home;
        let byte = slot_reader(slot, os::process_number());
        self.with(|own| {
            let is_held = own.held[slot] > 0;
            let lock = || Ok(is_held || own.file.try_lock(LockKind::Shared, byte, home)?);
            let unlock = || if is_held { Ok(()) } else { own.file.unlock(byte, home) };
            let locked = self.frames.table().hold(slot, number, lock, unlock)?;
            own.held[slot] += u32::from(matches!(locked, Locked::Slot(_)));
            Ok(locked)
        })
    }

    /// Gives up a frame of this process.
    pub(super) fn release(&self, slot: usize) {
        if self.frames.geometry.is_copied {
            return;
        }
        // If it fails, the lock ends with the reader.
        let _ = self.with(|own| {
            own.held[slot] = own.held[slot].saturating_sub(1);
            if own.held[slot] == 0 {
                own.file.unlock(slot_reader(slot, os::process_number()), &self.frames.home)?;
            }
            Ok(())
        });
    }

    /// Returns how many slots this process holds.
    pub(super) fn held(&self) -> Result<usize> {
        if self.frames.geometry.is_copied {
            return Ok(0);
        }
        self.with(|own| Ok(own.held.iter().filter(|held| **held > 0).count()))
    }

    /// Returns whether a writer has its lock on the frames.
    pub(super) fn is_locked(&self, kind: LockKind, range: LockRange) -> Result<bool> {
        self.with(|own| own.file.is_locked(kind, range, &self.frames.home))
    }
}

/// The most processes that are named.
const MOST_NAMED: usize = 16;

/// Returns the numbers of processes that hold a slot, sorted, as far as the system says them.
pub(super) fn holders(file: &LockFile, index: usize, home: &Home) -> Result<Vec<u32>> {
    let all = slot(index);
    let (mut ranges, mut found) = (vec![all], Vec::new());
    while let Some(range) = ranges.pop().filter(|_| found.len() < MOST_NAMED) {
        let asked = os::locked_at(file.file(), LockKind::Exclusive, range);
        let at = asked.map_err(|error| Error::os("query a lock of", &home.location, error))?;
        let Some(at) = at.filter(|at| (range.start..range.start + range.length).contains(at)) else { continue };
        // The first byte is that of no process: the writer has the whole slot.
        found.extend(u32::try_from(at - all.start).ok().filter(|process| *process > 0));
        // The kernel returns one of the locks in the range: look on both sides of it.
        let (left, right) = (at - range.start, range.start + range.length - at - 1);
        ranges.extend(
            [(range.start, left), (at + 1, right)]
                .into_iter()
                .filter(|(_, length)| *length > 0)
                .map(|(start, length)| LockRange { start, length }),
        );
    }
    found.sort_unstable();
    Ok(found)
}
