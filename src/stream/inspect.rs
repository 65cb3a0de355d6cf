//! What a stream is and which processes use it, without taking part in it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::cursors::{self, Backpressure};
use super::files::{FramesFile, KeeperFile};
use super::geometry::StreamGeometry;
use super::memory::{StreamState, StreamWords};
use super::meta::MetaField;
use super::slots::holders;
use super::writer::Stamp;
use crate::array::Description;
use crate::backend::lock_space::{WRITER, slot as slot_lock};
use crate::backend::{Access, Directory, Location};
use crate::error::{Error, ErrorKind, Result};
use crate::os::LockKind;
use crate::segment::{Home, LockFile};

/// What a stream is, and which processes use it: see [`inspect`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct StreamInspection {
    /// Element type, shape and order of the frames, and the notes of the stream. Escape their texts before printing:
    /// any process that may write the stream can have written them.
    pub description: Description,
    /// Number of slots.
    pub slots: usize,
    /// Whether readers copy frames instead of holding them.
    pub copied: bool,
    /// The values that each frame has beside its elements.
    pub meta: Vec<MetaField>,
    /// Number of the newest frame; 0 before the first.
    pub head: u64,
    /// How many frames are there now.
    pub frames: usize,
    /// Number of writers so far.
    pub epoch: u64,
    /// Whether the stream has a writer that lives. `None`: the kernel does not tell.
    pub has_writer: Option<bool>,
    /// Whether the last writer has ended the stream.
    pub has_ended: bool,
    /// Frames per second, of those that are there; `None` if they are fewer than two.
    pub rate: Option<f64>,
    /// How many slots readers hold, or the writer is writing.
    pub held: usize,
    /// Process numbers of those readers, each in its own pid namespace, as far as they are known.
    pub holders: Vec<u32>,
    /// Its cursors; `None` if this user may not look at them.
    pub cursors: Option<Vec<CursorInspection>>,
}

/// A cursor of a stream: see [`inspect`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CursorInspection {
    /// Its name.
    pub name: String,
    /// The last number that it has acknowledged.
    pub acknowledged: u64,
    /// What the writer does for it.
    pub policy: Backpressure,
    /// Whether a process reads with it.
    pub has_reader: bool,
}

/// Returns what a stream is and which processes use it. No process is disturbed.
///
/// # Examples
///
/// ```
/// use ndarray_shm::{StreamWriter, default_directory, stream};
///
/// let mut writer = StreamWriter::<u16, _>::create("inspect-example", (4, 6), 8)?;
/// writer.frame()?.commit()?;
/// let found = stream::inspect(&default_directory()?, &"inspect-example".parse()?)?;
/// assert_eq!((found.description.shape(), found.head, found.has_writer), (&[4, 6][..], 1, Some(true)));
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
///
/// # Errors
///
/// [`NotFound`](ErrorKind::NotFound), [`Trailer`](ErrorKind::Trailer),
/// [`PermissionDenied`](ErrorKind::PermissionDenied).
pub fn inspect(backend: &Directory, location: &Location) -> Result<StreamInspection> {
    let home = Home { backend: backend.clone(), location: location.clone() };
    let Some((frames, locks)) = FramesFile::open(&home, Access::Read)? else {
        return Err(ErrorKind::NotFound.at(location));
    };
    let geometry = frames.geometry.clone();
    let (mut held, mut processes) = (0, BTreeSet::new());
    let mut times = Vec::new();
    for slot in 0..geometry.slots {
        if locks.is_locked(LockKind::Exclusive, slot_lock(slot), &home)? {
            held += 1;
            processes.extend(holders(&locks, slot, &home)?);
        }
        let number = frames.number(slot);
        if number > 0 {
            times.push((number, Stamp::of(&frames, slot).since_boot));
        }
    }
    let has_writer = if locks.is_locked(LockKind::Shared, WRITER, &home)? {
        Some(true)
    } else {
        (!frames.is_unwatched()).then_some(false)
    };
    let cursors = match KeeperFile::open(&home) {
        Ok(Some(keeper)) if keeper.id == geometry.keeper => Some(inspect_cursors(&keeper, &home)?),
        Ok(_) => Some(Vec::new()),
        Err(Error { kind: ErrorKind::PermissionDenied { .. }, .. }) => None,
        Err(error) => return Err(error),
    };
    Ok(StreamInspection {
        head: frames.head(),
        frames: times.len(),
        epoch: frames.memory.load(StreamGeometry::EPOCH),
        has_writer,
        has_ended: frames.memory.state() == StreamState::Ended,
        rate: rate(&times),
        held,
        holders: processes.into_iter().collect(),
        cursors,
        description: geometry.description,
        slots: geometry.slots,
        copied: geometry.is_copied,
        meta: geometry.fields,
    })
}

/// Returns the cursors that a keeper has, sorted by name.
fn inspect_cursors(keeper: &KeeperFile, home: &Home) -> Result<Vec<CursorInspection>> {
    let cursors = cursors::entries(&keeper.memory).map(|entry| {
        let has_reader = cursors::is_read(keeper, entry.index, home)?;
        let cursors::Entry { name, acknowledged, policy, .. } = entry;
        Ok(CursorInspection { name, acknowledged, policy, has_reader })
    });
    let mut cursors = cursors.collect::<Result<Vec<_>>>()?;
    cursors.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(cursors)
}

/// Returns the frames per second of frames with these numbers and times.
#[allow(clippy::cast_precision_loss)] // a rate
fn rate(times: &[(u64, Duration)]) -> Option<f64> {
    let (first, last) = (times.iter().min()?, times.iter().max()?);
    let time = last.1.checked_sub(first.1).filter(|time| !time.is_zero())?;
    Some((last.0 - first.0) as f64 / time.as_secs_f64())
}

impl FramesFile {
    /// Returns whether its writer could not take the lock that tells of its life.
    pub(super) fn is_unwatched(&self) -> bool {
        self.memory.load(StreamGeometry::UNWATCHED) != 0
    }
}

/// Opens the keeper of a stream for locks, if this user may write to it.
pub(super) fn keeper_of(home: &Home) -> Result<KeeperFile> {
    let Some((frames, _)): Option<(FramesFile, LockFile)> = FramesFile::open(home, Access::Read)? else {
        return Err(ErrorKind::NotFound.at(&home.location));
    };
    let keeper = KeeperFile::open(home)?.filter(|keeper| keeper.id == frames.geometry.keeper);
    keeper.ok_or_else(|| ErrorKind::NotFound.at(&home.location))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_needs_two_frames_at_different_times() {
        let at = Duration::from_millis;
        assert_eq!(rate(&[]), None);
        assert_eq!(rate(&[(7, at(5))]), None);
        assert_eq!(rate(&[(7, at(5)), (8, at(5))]), None);
        assert_eq!(rate(&[(8, at(1100)), (7, at(1000)), (9, at(1200))]), Some(10.0));
    }
}
