//! Joint segments: bookkeeping that many processes change at once, under a public name. They are leased as counted
//! arrays are, so that no process maps the same bytes as plain elements. The last process to leave removes the name
//! (reclaim.rs).

use std::fs::File;

use super::attach::{Attach, Subject, by_name};
use super::draft::DraftSegment;
use super::footer::Kind;
use super::mapping::map;
use super::trailer::{PAGE, Trailer};
use super::{Home, Segment};
use crate::backend::lock_space::{COUNTED, LEASE};
use crate::backend::{Access, Location, Publish, Turn};
use crate::backoff::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, Facts, LockKind, LockRange, Mapping};

impl DraftSegment {
    /// Publishes a draft that has a trailer, and stays attached to it.
    pub(crate) fn publish_joint(self, home: &Home) -> Result<Segment> {
        self.lease_as(COUNTED, LEASE, home.location.as_str())?;
        self.publish_whole(home, Publish::New, true).map_err(|(error, _draft)| error)
    }
}

/// A joint segment to attach, if `read` accepts its trailer.
struct Joint<F> {
    kind: Kind,
    read: F,
}

impl<R, F: Fn(&Trailer) -> Result<R>> Subject for Joint<F> {
    type Record = (u64, R);
    type Memory = Segment;
    const LEASE: LockRange = COUNTED;
    const OPEN_FOR: Option<Access> = Some(Access::ReadWrite);

    fn read(&self, file: &File, facts: &Facts, location: &Location) -> Result<Self::Record> {
        let trailer = Trailer::read_any(file, facts, location.as_str())?.of_kind(self.kind, location.as_str())?;
        trailer.refuse_copy(location.as_str())?;
        Ok((trailer.payload, (self.read)(&trailer)?))
    }

    fn extent(&self, (payload, _): &Self::Record, facts: &Facts, _how: &mut Attach) -> (u64, u64) {
        (facts.length, *payload)
    }

    fn enter(&self, mapped: Segment, _: &Self::Record, _how: &Attach) -> Result<Segment> {
        Ok(mapped)
    }
}

// A joint segment keeps its descriptor for locks.
impl Segment {
    /// Opens, leases and maps the joint segment of this name, if `read` accepts its trailer. Fills its holes, unless
    /// `sparse` leaves them.
    pub(crate) fn attach_joint<R>(
        home: &Home,
        kind: Kind,
        sparse: bool,
        read: impl Fn(&Trailer) -> Result<R>,
    ) -> Result<(Self, R)> {
        let how = Attach { keep_descriptor: true, sparse, ..Attach::new(Access::ReadWrite) };
        let (segment, (_, found)) = by_name(home, how, &Joint { kind, read })?;
        Ok((segment, found))
    }

    /// Releases the lease before the segment is dropped. Closing is not enough: a process that another thread is just
    /// spawning has a copy of the descriptor for a moment.
    pub(crate) fn end_lease(&self) {
        // If this fails, the lease ends with the last copy of the descriptor.
        let _ = self.kept.file().map(|file| os::unlock(file, COUNTED));
    }

    /// Returns whether the range is locked by any description other than the kept one, in this process or another.
    pub(crate) fn is_range_locked(&self, range: LockRange) -> Result<bool> {
        let Some(file) = self.kept.file() else { return Ok(false) };
        os::is_locked(file, LockKind::Exclusive, range)
            .map_err(|error| Error::os("ask for a lock", self.location(), error))
    }

    /// Opens a description for a lock that ends with this process.
    pub(crate) fn mark(&self) -> Result<Mark> {
        let file = self.open_again(Access::ReadWrite)?;
        let generation = os::fork_generation();
        if !self.home().backend.lock_survives_close()? {
            return Ok(Mark { file: Some(file), mapping: None, generation });
        }
        let name = self.location().as_str();
        let mapping = map(&file, 0, PAGE as u64, Access::Read, name)?;
        mapping.keep_from_children().map_err(|error| Error::os("keep a mapping from children", name, error))?;
        Ok(Mark { file: Some(file), mapping: Some(mapping), generation })
    }

    /// Takes a lock that every process holds for moments only. Waits for it until the deadline.
    pub(crate) fn turn(&self, range: LockRange, until: Deadline) -> Result<Turn> {
        let mut turn = Turn::open(|| self.open_again(Access::ReadWrite))?;
        let mut backoff = Backoff::until(until);
        while !turn.try_lock(LockKind::Exclusive, range).map_err(|error| Error::os("lock", self.location(), error))? {
            if !backoff.pause() {
                return Err(ErrorKind::TimedOut { waited: until.limit() }.at(self.location()));
            }
        }
        Ok(turn)
    }
}

/// Takes a write lock if no other description has a lock on the range.
fn try_lock(file: &File, range: LockRange, home: &Home) -> Result<bool> {
    os::try_lock(file, LockKind::Exclusive, range).map_err(|error| Error::os("lock", &home.location, error))
}

/// An open file description for one lock that must end with this very process.
///
/// Forked children share a description through their copies of its descriptor. Therefore only a mapping that is kept
/// from children holds it: the descriptor is closed, and [`confirm`](Self::confirm) reports children forked while it
/// was open. Where locks do not outlive the descriptor, the descriptor is kept, and the lock ends when this process and
/// all children forked meanwhile have ended.
#[derive(Debug)]
pub(crate) struct Mark {
    file: Option<File>,
    mapping: Option<Mapping>,
    generation: u64,
}

impl Mark {
    /// Takes the lock if it is free.
    pub(crate) fn try_take(&self, range: LockRange, home: &Home) -> Result<bool> {
        self.file.as_ref().map_or(Ok(false), |file| try_lock(file, range, home))
    }

    /// Releases the lock.
    pub(crate) fn unlock(&self, range: LockRange) {
        // If this fails, the lock ends with the description.
        let _ = self.file.as_ref().map(|file| os::unlock(file, range));
    }

    /// Closes the descriptor, so that only the mapping holds the lock. Without a mapping, keeps the descriptor.
    ///
    /// Returns false if a child was forked since [`os::forks`] returned `forks`. The child may share the description,
    /// and the lock would outlive this process.
    pub(crate) fn confirm(&mut self, range: LockRange, forks: u64) -> bool {
        if self.mapping.is_none() {
            return true;
        }
        // While the descriptor is open, the lock can still be released for such a child too.
        if os::forks() != Some(forks) {
            self.unlock(range);
            return false;
        }
        self.file = None;
        // A child forked between the two queries has a copy of the descriptor, and keeps the lock until it ends.
        os::forks() == Some(forks)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // A forked child has no such mapping, and may have something else at its address.
        if self.generation != os::fork_generation() {
            std::mem::forget(self.mapping.take());
        }
    }
}
