//! Joint segments: bookkeeping that many processes change at once, under a public name. Leased as counted arrays are, so
//! that nobody has the same bytes as plain elements; who leaves as the last removes the name ([`collect`](super::collect)).

use std::fs::File;
use std::ops::Deref;
use std::time::Duration;

use super::attach::{Attach, Subject, by_name};
use super::counts::State;
use super::draft::DraftSegment;
use super::footer::Kind;
use super::mapping::map;
use super::trailer::{PAGE, RECORD, Trailer};
use super::{Home, Segment};
use crate::backend::lock_space::{COUNTED, LEASE};
use crate::backend::{Access, Location, Publish};
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::os::{self, Facts, LockKind, LockRange, Mapping};

impl DraftSegment {
    /// Writes the last page: the record, and whether the name outlives everybody who has it.
    pub(crate) fn write_record(
        &mut self,
        kind: Kind,
        id: u128,
        keep: bool,
        record: &[u8; RECORD],
        name: &str,
    ) -> Result<()> {
        self.write_page(kind, id, State::unattended(keep), record, name)
    }

    /// Gives a draft with a record its name, and stays attached to it.
    pub(crate) fn publish_joint(self, home: &Home) -> Result<JointSegment> {
        self.lease_as(COUNTED, LEASE, home.location.as_str())?;
        self.publish_whole(&home.location, Publish::New, true).map(JointSegment).map_err(|(error, _draft)| error)
    }
}

/// A segment of bookkeeping that many processes change at once. It keeps its descriptor, for locks.
#[derive(Debug)]
pub(crate) struct JointSegment(Segment);

/// A joint segment to be attached, if `read` makes sense of its record; the answer says whether holes stay.
struct Joint<F> {
    kind: Kind,
    read: F,
}

impl<R, F: Fn(&Trailer) -> Result<(R, bool)>> Subject for Joint<F> {
    type Record = (u64, bool, R);
    type Memory = (JointSegment, R);
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

    fn enter(
        &self,
        mapped: Segment,
        record: Self::Record,
        _home: &Home,
        _how: &Attach,
    ) -> Result<Option<Self::Memory>> {
        Ok(Some((JointSegment(mapped), record.2)))
    }
}

impl<R> AsMut<Segment> for (JointSegment, R) {
    fn as_mut(&mut self) -> &mut Segment {
        &mut self.0.0
    }
}

impl Deref for JointSegment {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        &self.0
    }
}

impl JointSegment {
    /// Opens, leases and maps what has the name, if `read` makes sense of its record; the answer says whether holes stay.
    pub(crate) fn attach<R>(
        home: &Home,
        kind: Kind,
        read: impl Fn(&Trailer) -> Result<(R, bool)>,
    ) -> Result<(Self, R)> {
        by_name(home, Attach { keep_descriptor: true, ..Attach::new(Access::ReadWrite) }, &Joint { kind, read })
    }

    /// Gives the lease up, before everything else goes: a process that another thread is just spawning has a copy of the
    /// descriptor for a moment, and closing ours would not be enough.
    pub(crate) fn end_lease(&self) {
        let _goes_with_the_description = self.0.descriptor.as_ref().map(|kept| os::unlock(&kept.file, COUNTED));
    }

    /// Opens a description of the mapped file of its own, for locks that nothing else may convert.
    pub(crate) fn describe_again(&self, home: &Home) -> Result<File> {
        self.0.open_again(home, Access::ReadWrite)
    }

    /// Whether anybody has locked the range, this process included unless by the very description that is kept.
    pub(crate) fn is_range_locked(&self, range: LockRange, home: &Home) -> Result<bool> {
        let Some(kept) = &self.0.descriptor else { return Ok(false) };
        os::is_locked(&kept.file, LockKind::Exclusive, range)
            .map_err(|error| Error::os("ask for a lock", &home.location, error))
    }
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
    /// Takes a lock if nobody has it.
    pub(crate) fn try_take(&self, range: LockRange, home: &Home) -> Result<bool> {
        let Some(file) = &self.file else { return Ok(false) };
        os::try_lock(file, LockKind::Exclusive, range).map_err(|error| Error::os("lock", &home.location, error))
    }

    /// Gives back a lock that is not to be kept.
    pub(crate) fn give_back(&self, range: LockRange) {
        let _goes_with_the_description = self.file.as_ref().map(|file| os::unlock(file, range));
    }

    /// Leaves the lock to the mapping, where there is one. `false`: a child was forked since [`os::forks`] was that number, and
    /// may have the description too, so that the lock would not end with this process.
    pub(crate) fn settle(&mut self, range: LockRange, forks: u64) -> bool {
        if self.mapping.is_none() {
            return true;
        }
        // As long as the descriptor is open the lock can be taken from such a child as well.
        if os::forks() != Some(forks) {
            self.give_back(range);
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

/// A lock that is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    file: File,
    range: LockRange,
    generation: u64,
}

impl Turn {
    /// Takes a second lock on the same description, if nobody has it.
    pub(crate) fn try_also(&self, range: LockRange, home: &Home) -> Result<bool> {
        os::try_lock(&self.file, LockKind::Exclusive, range).map_err(|error| Error::os("lock", &home.location, error))
    }

    /// Gives the second lock back.
    pub(crate) fn give_back(&self, range: LockRange) {
        let _goes_with_the_description = os::unlock(&self.file, range);
    }
}

impl Drop for Turn {
    /// Unlocks before closing: a process that is just being spawned may share the description. A forked child only closes.
    fn drop(&mut self) {
        if self.generation == os::fork_generation() {
            let _goes_with_the_description = os::unlock(&self.file, self.range);
        }
    }
}

impl JointSegment {
    /// Makes a description for a lock that goes with this process.
    pub(crate) fn mark(&self, home: &Home) -> Result<Mark> {
        let file = self.describe_again(home)?;
        let generation = os::fork_generation();
        if !home.backend.lock_survives_close()? {
            return Ok(Mark { file: Some(file), mapping: None, generation });
        }
        let name = home.location.as_str();
        let mapping = map(&file, 0, PAGE as u64, Access::Read, name)?;
        mapping.keep_from_children().map_err(|error| Error::os("keep a mapping from children", name, error))?;
        Ok(Mark { file: Some(file), mapping: Some(mapping), generation })
    }

    /// Waits for a lock that everybody holds for moments only.
    pub(crate) fn turn(&self, range: LockRange, limit: Duration, home: &Home) -> Result<Turn> {
        let file = self.describe_again(home)?;
        let mut backoff = Backoff::new(limit);
        while !os::try_lock(&file, LockKind::Exclusive, range)
            .map_err(|error| Error::os("lock", &home.location, error))?
        {
            if !backoff.pause() {
                return Err(Error::TimedOut { location: home.location.to_string(), waited: limit });
            }
        }
        Ok(Turn { file, range, generation: os::fork_generation() })
    }
}
