//! Begins, takes over, replaces and removes streams. Only this file knows the order in which the two files appear and
//! disappear.
//!
//! The keeper has its name first. A process that has its WRITER lock, and then finds that it still has its name, is the
//! only one that may give the frames their name, and does so while it holds the lock on the keeper's NAME: meanwhile no
//! process can remove the keeper. A process that removes a stream by force removes the keeper first. So frames
//! without their keeper never get a writer again: another one may replace them, and [`remove`] removes them.
//!
//! A killed process leaves a keeper alone, which the next one uses, or frames with their keeper, which are taken over,
//! replaced or removed.

use std::time::Duration;

use super::cursors;
use super::files::{FramesFile, KeeperFile, keeper_id, read_geometry};
use super::geometry::StreamGeometry;
use super::memory::{StreamState, StreamWords};
use crate::array::Description;
use crate::backend::lock_space::{NAME, WRITER};
use crate::backend::{Access, Alone, Companion, DraftOptions, Publish, lock_name};
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::interrupt;
use crate::os::{self, LockKind};
use crate::segment::{Home, LockFile, has_name, pin};

/// How long a process waits for another one that begins or ends a stream of the same name.
const WAIT: Duration = Duration::from_secs(10);

/// How long the lock of a stream that does not tell of its writer can be that of a process that is about to be
/// refused.
const UNWATCHED_WAIT: Duration = Duration::from_millis(100);

/// What to do with a stream that has the name and no writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IfThere {
    /// Take it over, if its frames are alike.
    pub(super) resume: bool,
    /// Replace it.
    pub(super) replace: bool,
}

/// A stream that this process may write to.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) frames: FramesFile,
    pub(super) locks: LockFile,
    /// Its WRITER lock is held.
    pub(super) keeper: KeeperFile,
}

/// Begins a stream, or takes one over. The geometry has no keeper yet.
pub(super) fn begin(home: &Home, geometry: &StreamGeometry, options: DraftOptions, there: IfThere) -> Result<Begun> {
    let (mut backoff, mut unwatched) = (Backoff::new(WAIT), Backoff::new(UNWATCHED_WAIT));
    loop {
        let Some(mut keeper) = KeeperFile::open(home)? else {
            KeeperFile::create(home)?;
            continue;
        };
        os::step("stream: keeper opened");
        let locked = keeper.locks.turn().try_lock(LockKind::Exclusive, WRITER);
        if !locked.map_err(|error| Error::os("lock", &home.location, error))? {
            if keeper.is_current()? && has_name(&home.backend, &frames_home(home)?.location)? {
                if !there.resume && !there.replace {
                    return Err(ErrorKind::AlreadyExists.at(&home.location));
                }
                // A process that is about to be refused has the lock for a moment, too.
                if has_writer(home)?.unwrap_or_else(|| !unwatched.pause()) {
                    return Err(ErrorKind::HasWriter.at(&home.location));
                }
            }
            // Another process begins the stream, or has just ended it.
            if !backoff.pause() {
                return Err(ErrorKind::TimedOut { waited: WAIT }.at(&home.location));
            }
            continue;
        }
        if !keeper.is_current()? {
            continue; // it was removed between the two steps, and is not what excludes writers now
        }
        os::step("stream: keeper locked");
        match begin_locked(home, geometry, options, there, &mut keeper) {
            Ok(Some((frames, locks))) => return Ok(Begun { frames, locks, keeper }),
            Ok(None) => {}
            Err(error) => {
                // Nothing is left behind: a keeper alone is of use to no process.
                if has_name(&home.backend, &frames_home(home)?.location).is_ok_and(|named| !named) {
                    let _ = interrupt::uninterrupted(|| keeper.home.unlink(keeper.file)); // the first error is returned
                }
                return Err(error);
            }
        }
    }
}

/// As [`begin`], with the keeper locked. Returns `None` if the keeper was removed meanwhile.
fn begin_locked(
    home: &Home,
    geometry: &StreamGeometry,
    options: DraftOptions,
    there: IfThere,
    keeper: &mut KeeperFile,
) -> Result<Option<(FramesFile, LockFile)>> {
    let found = match FramesFile::open(home, Access::ReadWrite) {
        Err(Error { kind: ErrorKind::Trailer { .. }, .. }) if there.replace => FoundFrames::Damaged,
        Err(error) => return Err(error),
        Ok(None) => FoundFrames::Nothing,
        Ok(Some((frames, locks))) if frames.geometry.keeper == keeper.id => FoundFrames::Own(frames, locks),
        Ok(Some((frames, _))) => FoundFrames::WithoutKeeper(frames),
    };
    let (mode, old) = match found {
        FoundFrames::Own(frames, mut locks) if there.resume && is_alike(&frames.geometry, geometry) => {
            watch(&frames, &mut locks)?;
            return Ok(Some((frames, locks)));
        }
        FoundFrames::Own(frames, _) if there.resume && !there.replace => return Err(different(geometry, &frames)),
        FoundFrames::Own(..) if !there.replace => return Err(ErrorKind::AlreadyExists.at(&home.location)),
        FoundFrames::Own(old, _) | FoundFrames::WithoutKeeper(old) => (Publish::Replace, Some(old)),
        FoundFrames::Damaged => (Publish::Replace, None),
        FoundFrames::Nothing => (Publish::New, None),
    };
    let geometry = StreamGeometry { keeper: keeper.id, ..geometry.clone() };
    let (draft, frames, mut locks) = FramesFile::draft(home, geometry, options)?;
    watch(&frames, &mut locks)?;
    os::step("stream: about to name the frames");
    if lock_name(keeper.locks.turn(), LockKind::Exclusive, &keeper.home.location, WAIT)? != Alone::Yes {
        return Err(ErrorKind::TimedOut { waited: WAIT }.at(&home.location));
    }
    let publish = |keeper: &KeeperFile| {
        if !keeper.is_current()? {
            return Ok(false);
        }
        // Not earlier: until here nothing of the old stream is lost if this fails.
        if let Some(old) = &old {
            old.memory.set_state(StreamState::Replaced);
            old.memory.ring();
            os::step("stream: old one marked");
        }
        cursors::reset(keeper, frames.id, home)?;
        draft.publish(&frames_home(home)?.location, mode, false, None).map(|_| true).map_err(|(error, _)| error)
    };
    let published = publish(keeper);
    let unlocked = keeper.locks.turn().unlock(NAME);
    let is_named = published.map_err(|error| error.about(&home.location))?;
    unlocked.map_err(|error| Error::os("unlock the name", &home.location, error))?;
    os::step("stream: frames named");
    Ok(is_named.then_some((frames, locks)))
}

/// Returns whether the frames of a stream have a writer that lives. `None`: the kernel does not tell.
fn has_writer(home: &Home) -> Result<Option<bool>> {
    let Some((frames, locks)) = FramesFile::open(home, Access::Read)? else { return Ok(Some(false)) };
    let is_locked = locks.is_locked(LockKind::Shared, WRITER, home)?;
    Ok((is_locked || !frames.is_unwatched()).then_some(is_locked))
}

/// Returns the name of the frames of a stream.
fn frames_home(stream: &Home) -> Result<Home> {
    stream.companion(Companion::Frames)
}

/// Takes the lock that tells readers of this process's life, as long as that is possible: any process that may read the
/// file can be in its way.
fn watch(frames: &FramesFile, locks: &mut LockFile) -> Result<()> {
    let locked = locks.turn().try_lock(LockKind::Exclusive, WRITER);
    let is_watched = locked.map_err(|error| Error::os("lock", &frames.home.location, error))?;
    frames.memory.store(StreamGeometry::UNWATCHED, u64::from(!is_watched));
    Ok(())
}

/// What has the name of the frames.
enum FoundFrames {
    Nothing,
    /// Frames of this keeper, without a writer.
    Own(FramesFile, LockFile),
    /// Frames of a keeper that has gone. No process can become their writer.
    WithoutKeeper(FramesFile),
    /// Something that says nothing about itself.
    Damaged,
}

fn is_alike(found: &StreamGeometry, wanted: &StreamGeometry) -> bool {
    *found == StreamGeometry { keeper: found.keeper, ..wanted.clone() }
}

/// Returns the error for frames of another kind than those of the stream that is there.
fn different(wanted: &StreamGeometry, frames: &FramesFile) -> Error {
    let (found, location) = (&frames.geometry, &frames.home.location);
    let (theirs, ours) = (&found.description, &wanted.description);
    if theirs.dtype() != ours.dtype() {
        let (expected, found) = (ours.dtype().to_string(), theirs.dtype().to_string());
        return ErrorKind::DTypeMismatch { expected, found }.at(location);
    }
    if (theirs.shape(), theirs.order()) != (ours.shape(), ours.order()) {
        let text = |frame: &Description| format!("{:?} in order {}", frame.shape(), frame.order());
        return ErrorKind::ShapeMismatch { expected: text(ours), found: text(theirs) }.at(location);
    }
    let (setting, value) = if found.slots != wanted.slots {
        ("the number of slots", wanted.slots.to_string())
    } else if found.is_copied != wanted.is_copied {
        ("whether frames are copied", wanted.is_copied.to_string())
    } else if found.fields == wanted.fields {
        ("the notes", format!("{:?}", ours.notes().collect::<Vec<_>>()))
    } else {
        ("the values beside the elements", format!("{:?}", wanted.fields))
    };
    let mut error =
        Error::setting(setting, value, "that of the stream that is taken over (or ask for it to be replaced)");
    error.location = location.to_string();
    error
}

/// Removes the names of a stream, whether it has a writer or not. Returns `false` if there was none.
pub(super) fn remove(home: &Home) -> Result<bool> {
    let (frames, keeper) = (frames_home(home)?, home.companion(Companion::Keeper)?);
    let frames = pin(&frames.backend, &frames.location, Access::Read)?;
    let belongs_to =
        frames.and_then(|(file, facts)| read_geometry(&file, &facts, home).ok()).map(|found| found.0.keeper);
    let mut was_whole = false;
    if let Some((file, facts)) = pin(&keeper.backend, &keeper.location, Access::Read)? {
        let id = keeper_id(&file, &facts, home).ok();
        // Without their keeper, the frames may be replaced before this removes them.
        was_whole = keeper.unlink(facts.id)? && id.is_some() && id == belongs_to;
    }
    os::step("stream: keeper removed");
    Ok(remove_without_keeper(home)? || was_whole)
}

/// Removes frames without their keeper. Returns `false` if there are none.
pub(super) fn remove_without_keeper(home: &Home) -> Result<bool> {
    let (frames, keeper) = (home.companion(Companion::Frames)?, home.companion(Companion::Keeper)?);
    let Some((file, facts)) = pin(&frames.backend, &frames.location, Access::Read)? else { return Ok(false) };
    // Looked at after the frames were opened: a keeper of another number that has the name now is a later one, and the
    // keeper of these frames never gets its name back.
    if let Ok((geometry, _)) = read_geometry(&file, &facts, home) {
        let found = pin(&keeper.backend, &keeper.location, Access::Read)?;
        if let Some((file, facts)) = found {
            if keeper_id(&file, &facts, home).is_ok_and(|id| id == geometry.keeper) {
                return Ok(false);
            }
        }
    }
    frames.unlink(facts.id)
}

/// Removes the names of a stream that its writer ends, while the writer still has its lock.
pub(super) fn remove_own(begun: &Begun, limit: Duration) -> Result<()> {
    let frames = begun.frames.frames_home()?;
    frames.unlink_within(begun.frames.file, limit)?;
    os::step("stream: frames removed");
    begun.keeper.home.unlink_within(begun.keeper.file, limit).map(drop)
}
