//! Joint segments: bookkeeping that many processes change at once, under a public name. They are leased as counted arrays are, so
//! that no process maps the same bytes as plain elements. The last process to leave removes the name (reclaim.rs).

use std::fs::File;
use std::time::Duration;

use super::attach::{Attach, Subject, by_name};
use super::draft::DraftSegment;
use super::footer::Kind;
use super::locks::Turn;
use super::mapping::map;
use super::trailer::{PAGE, Trailer};
use super::{Home, Segment};
use crate::backend::lock_space::{COUNTED, LEASE};
use crate::backend::{Access, Location, Publish};
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::os::{self, Facts, LockKind, LockRange, Mapping};

impl DraftSegment {
    /// Gives a draft with a record its name, and stays attached to it.
    pub(crate) fn publish_joint(self, home: &Home) -> Result<Segment> {
        self.lease_as(COUNTED, LEASE, home.location.as_str())?;
        self.publish_whole(&home.location, Publish::New, true).map_err(|(error, _draft)| error)
    }
}

/// A joint segment to be attached, if `read` makes sense of its record; the answer says whether holes stay.
struct Joint<F> {
    kind: Kind,
    read: F,
}

impl<R, F: Fn(&Trailer) -> Result<(R, bool)>> Subject for Joint<F> {
    type Record = (u64, bool, R);
    type Memory = Segment;
    const LEASE: LockRange = COUNTED;
    const OPEN_FOR: Option<Access> = Some(Access::ReadWrite);

    fn read(&self, file: &File, facts: &Facts, location: &Location) -> Result<Self::Record> {
        let trailer = Trailer::read_any(file, facts, location.as_str())?.of_kind(self.kind, location.as_str())?;
        trailer.refuse_copy(location.as_str())?;
        let (found, sparse) = (self.read)(&trailer)?;
        Ok((trailer.payload, sparse, found))
    }

    fn extent(&self, (payload, sparse, _): &Self::Record, facts: &Facts, how: &mut Attach) -> (u64, u64) {
        how.sparse = *sparse;
        (facts.length, *payload)
    }

    fn enter(&self, mapped: Segment, _: &Self::Record, _home: &Home, _how: &Attach) -> Result<Segment> {
        Ok(mapped)
    }
}

/// What a joint segment does with its descriptor, which it keeps for locks.
impl Segment {
    /// Opens, leases and maps what has the name, if `read` makes sense of its record; the answer says whether holes stay.
    pub(crate) fn attach_joint<R>(
        home: &Home,
        kind: Kind,
        read: impl Fn(&Trailer) -> Result<(R, bool)>,
    ) -> Result<(Self, R)> {
        let how = Attach { keep_descriptor: true, ..Attach::new(Access::ReadWrite) };
        let (segment, (_, _, found)) = by_name(home, how, &Joint { kind, read })?;
        Ok((segment, found))
    }

    /// Gives the lease up, before everything else goes: a process that another thread is just spawning has a copy of the
    /// descriptor for a moment, and closing ours would not be enough.
    pub(crate) fn end_lease(&self) {
        let _goes_with_the_description = self.descriptor.as_ref().map(|kept| os::unlock(&kept.file, COUNTED));
    }

    /// Whether the range is locked by any description other than the kept one, in this process or another.
    pub(crate) fn is_range_locked(&self, range: LockRange, home: &Home) -> Result<bool> {
        let Some(kept) = &self.descriptor else { return Ok(false) };
        os::is_locked(&kept.file, LockKind::Exclusive, range)
            .map_err(|error| Error::os("ask for a lock", &home.location, error))
    }

    /// Makes a description for a lock that goes with this process.
    pub(crate) fn mark(&self, home: &Home) -> Result<Mark> {
        let file = self.open_again(home, Access::ReadWrite)?;
        let generation = os::fork_generation();
        if !home.backend.lock_survives_close()? {
            return Ok(Mark { file: Some(file), mapping: None, generation });
        }
        let name = home.location.as_str();
        let mapping = map(&file, 0, PAGE as u64, Access::Read, name)?;
        mapping.keep_from_children().map_err(|error| Error::os("keep a mapping from children", name, error))?;
        Ok(Mark { file: Some(file), mapping: Some(mapping), generation })
    }

    /// Waits for a lock that is held for moments only.
    pub(crate) fn turn(&self, range: LockRange, limit: Duration, home: &Home) -> Result<Turn> {
        let file = self.open_again(home, Access::ReadWrite)?;
        let mut backoff = Backoff::new(limit);
        while !try_lock(&file, range, home)? {
            if !backoff.pause() {
                return Err(Error::TimedOut { location: home.location.to_string(), waited: limit });
            }
        }
        Ok(Turn::of(file, range))
    }
}

/// Takes a write lock if nothing else has it.
fn try_lock(file: &File, range: LockRange, home: &Home) -> Result<bool> {
    os::try_lock(file, LockKind::Exclusive, range).map_err(|error| Error::os("lock", &home.location, error))
}

/// A description for one lock that shall go with this very process: only a mapping keeps it that no forked child gets, and no
/// child was forked before there was nothing else. Where locks do not outlive descriptors the descriptor is kept, and the lock
/// goes when this process and all children have ended that it forked meanwhile.
#[derive(Debug)]
pub(crate) struct Mark {
    file: Option<File>,
    mapping: Option<Mapping>,
    generation: u64,
}

impl Mark {
    /// Takes a lock if it is free.
    pub(crate) fn try_take(&self, range: LockRange, home: &Home) -> Result<bool> {
        self.file.as_ref().map_or(Ok(false), |file| try_lock(file, range, home))
    }

    /// Gives back a lock that is not to be kept.
    pub(crate) fn unlock(&self, range: LockRange) {
        let _goes_with_the_description = self.file.as_ref().map(|file| os::unlock(file, range));
    }

    /// Leaves the lock to the mapping, where there is one. `false`: a child was forked since [`os::forks`] was that number, and
    /// may have the description too, so that the lock would not end with this process.
    pub(crate) fn confirm(&mut self, range: LockRange, forks: u64) -> bool {
        if self.mapping.is_none() {
            return true;
        }
        // As long as the descriptor is open the lock can be taken from such a child as well.
        if os::forks() != Some(forks) {
            self.unlock(range);
            return false;
        }
        self.file = None;
        // A child forked between the two looks keeps the lock until it ends.
        os::forks() == Some(forks)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // A forked child never had the mapping, and may have something else at its address.
        if self.generation != os::fork_generation() {
            std::mem::forget(self.mapping.take());
        }
    }
}

impl Turn {
    /// Takes a second lock on the same description, if it is free.
    pub(crate) fn try_also(&self, range: LockRange, home: &Home) -> Result<bool> {
        try_lock(&self.file, range, home)
    }

    /// Gives the second lock back.
    pub(crate) fn unlock(&self, range: LockRange) {
        let _goes_with_the_description = os::unlock(&self.file, range);
    }
}
