//! A mapped file without a name: only this process can reach it, until it is published or shared.

use std::sync::Arc;

use super::mapping::map;
use super::{Home, Segment, lease};
use crate::backend::{Access, Backend, DraftFile, DraftOptions, Location, Pages, Publish};
use crate::error::{Error, Result};
use crate::os::{self, Bound, LockRange};

/// A mapped file without a name.
#[derive(Debug)]
pub(crate) struct DraftSegment {
    segment: Segment,
    file: DraftFile,
    backend: Arc<dyn Backend>,
    options: DraftOptions,
}

impl DraftSegment {
    /// Makes a file of exactly `length` bytes.
    pub(crate) fn new(backend: Arc<dyn Backend>, length: u64, options: DraftOptions) -> Result<Self> {
        Self::with_room(backend, length, length, options)
    }

    /// Makes a file of `room` bytes, of which the first `length` are the segment's.
    pub(super) fn with_room(backend: Arc<dyn Backend>, length: u64, room: u64, options: DraftOptions) -> Result<Self> {
        let file = backend.draft(room, options)?;
        let name = backend.directory().display().to_string();
        let mut segment = Segment::of_draft(file.file(), room, &name)?;
        segment.shorten(length, &name)?;
        Ok(Self { segment, file, backend, options })
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    pub(super) fn segment_mut(&mut self) -> &mut Segment {
        &mut self.segment
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Takes room for the whole draft, if it was made sparse.
    pub(crate) fn reserve(&self, pages: Pages) -> Result<()> {
        self.backend.reserve_draft(&self.file, pages)
    }

    /// Makes the file longer, so that there is room behind the segment's bytes.
    pub(super) fn grow(&mut self, room: u64) -> Result<()> {
        if self.segment.file_length >= room {
            return Ok(());
        }
        let name = self.backend.directory().display().to_string();
        let largest = os::largest_file();
        if room > largest {
            let advice = Bound::FileSize.advice();
            return Err(Error::NoSpace { location: name, needed: room, available: largest, advice });
        }
        self.file.file().set_len(room).map_err(|error| Error::os("make room for a trailer", &name, error))?;
        // A page or two are missing: none of them is worth a huge one.
        let reserved = if self.options.pages.are_reserved() { self.reserve(Pages::Base) } else { Ok(()) };
        let mapped = reserved.and_then(|()| map(self.file.file(), 0, room, Access::ReadWrite, &name));
        match mapped {
            Ok(map) => self.segment.map = map,
            Err(error) => {
                // What was not mapped yet can be given back.
                let _published_draft_checks = self.file.file().set_len(self.segment.file_length);
                return Err(error);
            }
        }
        self.segment.file_length = room;
        Ok(())
    }

    /// Takes the room behind the segment's bytes away again: what is published as a plain array is its elements.
    fn trim(&mut self) -> Result<()> {
        let (file, length) = (self.file.file(), self.segment.length as u64);
        let name = self.backend.directory().display().to_string();
        let failed = |error| Error::os("take the room of a trailer back", &name, error);
        if os::facts(file).map_err(failed)?.length == length {
            return Ok(());
        }
        // First the mapping: some systems shorten no file that is mapped beyond its new end.
        self.segment.map = map(file, 0, length, Access::ReadWrite, &name)?;
        self.segment.file_length = length;
        file.set_len(length).map_err(failed)
    }

    /// Leases the file as one kind of array instead of another. Nobody else can have it.
    pub(super) fn lease_as(&self, new: LockRange, old: LockRange, name: &str) -> Result<()> {
        lease(self.file.file(), new, name)?;
        os::unlock(self.file.file(), old).map_err(|error| Error::os("lease", name, error))
    }

    /// Gives the draft its name; on failure it is given back as it was.
    #[allow(clippy::result_large_err)] // moved once, on the way to an error that boxes it
    pub(crate) fn publish(mut self, at: &Location, mode: Publish, keep: bool) -> Result<Segment, (Error, Self)> {
        let trimmed = if self.segment.membership.is_none() { self.trim() } else { Ok(()) };
        let settled = trimmed.and_then(|()| self.segment.settle(&self.file, &*self.backend, keep, at.as_str()));
        match settled.and_then(|()| self.backend.publish(&mut self.file, at, mode)) {
            Ok(()) => Ok(self.segment),
            Err(error) => Err((error, self)),
        }
    }

    /// Leaves the file without a name: its descriptor is the only way to it.
    #[allow(clippy::result_large_err)] // as above
    pub(crate) fn share_nameless(mut self, home: &Home) -> Result<Segment, (Error, Self)> {
        match self.segment.settle(&self.file, &*self.backend, true, home.location.as_str()) {
            Ok(()) => Ok(self.segment),
            Err(error) => Err((error, self)),
        }
    }
}
