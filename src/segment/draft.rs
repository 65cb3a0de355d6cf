//! A mapped file without a name: only this process can reach it, until it is published or shared.

use super::attach::lease_own;
use super::mapping::map;
use super::{Home, KeptDescriptor, Segment};
use crate::backend::{Access, Backend, Directory, DraftFile, DraftOptions, Location, Pages, Publish, check_length};
use crate::error::{Error, Result};
use crate::os::{self, LockRange};

/// A mapped file without a name.
#[derive(Debug)]
pub(crate) struct DraftSegment {
    pub(super) segment: Segment,
    pub(super) file: DraftFile,
    pub(super) backend: Directory,
    options: DraftOptions,
    /// It was published before, and its locks exclude processes that still have the file open.
    pub(super) alone: bool,
    /// Its memory is to be recycled after its name was removed.
    recyclable: bool,
}

impl DraftSegment {
    /// Makes a file of exactly `length` bytes.
    pub(crate) fn new(backend: Directory, length: u64, options: DraftOptions) -> Result<Self> {
        Self::with_room(backend, length, length, options)
    }

    /// Makes a file of `room` bytes, of which the first `length` are the segment's.
    pub(super) fn with_room(backend: Directory, length: u64, room: u64, options: DraftOptions) -> Result<Self> {
        let file = backend.draft(room, options)?;
        let name = backend.path().display().to_string();
        let segment = Segment::of_draft(file.file(), length, &name)?;
        Ok(Self { segment, file, backend, options, alone: false, recyclable: false })
    }

    /// Makes a draft of memory that was published before. It has no public name, but processes may still be attached.
    pub(super) fn of_used(segment: Segment, file: DraftFile, backend: Directory, options: DraftOptions) -> Self {
        Self { segment, file, backend, options, alone: false, recyclable: true }
    }

    /// Says whether the descriptor stays with the published segment, so that its memory can be used again.
    pub(crate) fn set_recyclable(&mut self, recyclable: bool) {
        self.recyclable = recyclable;
    }

    pub(crate) fn file(&self) -> &DraftFile {
        &self.file
    }

    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    pub(crate) fn backend(&self) -> &Directory {
        &self.backend
    }

    /// Takes room for the whole draft, if it was made sparse.
    pub(crate) fn reserve(&self, pages: Pages) -> Result<()> {
        self.backend.reserve_draft(&self.file, pages)
    }

    /// Gives the file this length, so that there is exactly so much room behind the segment's bytes.
    pub(super) fn grow(&mut self, room: u64) -> Result<()> {
        if self.segment.file_length >= room {
            // Memory that was used before may be longer, and the trailer is looked for at the end of the file.
            return self.shrink(room);
        }
        let name = self.backend.path().display().to_string();
        check_length(self.backend.path(), room)?;
        self.file.file().set_len(room).map_err(|error| Error::os("make room for a trailer", &name, error))?;
        // A page or two are missing: none of them is worth a huge one.
        let reserved = if self.options.pages.are_reserved() { self.reserve(Pages::Base) } else { Ok(()) };
        let mapped = reserved.and_then(|()| map(self.file.file(), 0, room, Access::ReadWrite, &name));
        self.segment.map = mapped.inspect_err(|_| {
            // What was not mapped yet can be given back.
            let _published_draft_checks = self.file.file().set_len(self.segment.file_length);
        })?;
        self.segment.file_length = room;
        Ok(())
    }

    /// Takes room behind this length away again.
    fn shrink(&mut self, length: u64) -> Result<()> {
        let file = self.file.file();
        let name = self.backend.path().display().to_string();
        let failed = |error| Error::os("take room back", &name, error);
        if os::facts(file).map_err(failed)?.length == length {
            return Ok(());
        }
        // First the mapping: some systems shorten no file that is mapped beyond its new end.
        self.segment.map = map(file, 0, length, Access::ReadWrite, &name)?;
        self.segment.file_length = length;
        file.set_len(length).map_err(failed)
    }

    /// Leases the file as one kind of array instead of another. No other process can hold it.
    pub(super) fn lease_as(&self, new: LockRange, old: LockRange, name: &str) -> Result<()> {
        lease_own(self.file.file(), new, name)?;
        os::unlock(self.file.file(), old).map_err(|error| Error::os("lease", name, error))
    }

    /// Gives the draft its name; on failure it is given back as it was. `description` is the text beside its bytes.
    #[allow(clippy::result_large_err)] // moved once, on the way to an error that boxes it
    pub(crate) fn publish(
        mut self,
        at: &Location,
        mode: Publish,
        keep: bool,
        description: Option<&[u8]>,
    ) -> Result<Segment, (Error, Self)> {
        // What is published as a plain array is its elements, without room behind them.
        let own = self.refuse_forked_child(at.as_str());
        match own.and_then(|()| self.shrink(self.segment.length as u64)) {
            Ok(()) => {
                if description.is_some() {
                    let _ = self.set_description(description); // not every file system has room for it, and the array is as good without
                }
                self.publish_whole(at, mode, keep)
            }
            Err(error) => Err((error, self)),
        }
    }

    /// Writes or removes what stands beside the bytes.
    pub(super) fn set_description(&self, text: Option<&[u8]>) -> Result<()> {
        let (file, mode) = (self.file.file(), self.options.permissions);
        if mode & 0o200 != 0 {
            return self.backend.set_attribute(file, text);
        }
        // The owner of a file that nothing may write to cannot describe it either. No other process can open it yet.
        let changed =
            |mode| os::set_mode(file, mode).map_err(|error| Error::os("describe", self.backend.name(), error));
        changed(mode | 0o200)?;
        let described = self.backend.set_attribute(file, text);
        changed(mode).and(described)
    }

    /// Refuses the copy of a draft that a forked child has: its parent writes to the same memory.
    pub(super) fn refuse_forked_child(&self, name: &str) -> Result<()> {
        if self.file.is_own_process() {
            return Ok(());
        }
        let what = "the draft belongs to the process that this one was forked from (make another one here)".into();
        Err(Error::Unsupported { location: name.to_owned(), what })
    }

    /// Gives the draft its name together with whatever stands behind its bytes.
    #[allow(clippy::result_large_err)] // as above
    pub(super) fn publish_whole(mut self, at: &Location, mode: Publish, keep: bool) -> Result<Segment, (Error, Self)> {
        let settled = self.prepare_lease(keep, at.as_str());
        let published = settled.and_then(|()| self.backend.publish(&mut self.file, at, mode));
        os::step("publish: named");
        match published.and_then(|()| self.admit(at)) {
            Ok(()) => Ok(self.segment),
            Err(error) => Err((error, self)),
        }
    }

    /// Leaves the file without a name: its descriptor is the only way to it.
    #[allow(clippy::result_large_err)] // as above
    pub(crate) fn share_nameless(mut self, home: &Home) -> Result<Segment, (Error, Self)> {
        match self.prepare_lease(true, home.location.as_str()) {
            Ok(()) => Ok(self.segment),
            Err(error) => Err((error, self)),
        }
    }

    /// Gives the segment the draft's descriptor, where guards are to use it, its memory is to come back, or the lease depends on it.
    fn prepare_lease(&mut self, for_guards: bool, name: &str) -> Result<()> {
        if for_guards || self.recyclable || !self.backend.lock_survives_close()? {
            let file = self.file.file().try_clone().map_err(|error| Error::os("keep the descriptor", name, error))?;
            self.segment.descriptor = Some(KeptDescriptor::new(file, &self.backend));
            self.segment.guards_by_descriptor = for_guards;
        }
        Ok(())
    }
}
