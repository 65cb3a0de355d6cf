//! A mapped file without a name: only this process can reach it, until it is published or shared.

use super::attach::lease_own;
use super::mapping::map;
use super::{Home, Kept, KeptDescriptor, Mapped, Segment, room};
use crate::backend::{Access, Backend, Directory, DraftFile, DraftOptions, Location, Pages, Publish, check_length};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, LockRange};

/// A mapped file without a name.
#[derive(Debug)]
pub(crate) struct DraftSegment {
    pub(super) mapped: Mapped,
    pub(super) file: DraftFile,
    pub(super) backend: Directory,
    options: DraftOptions,
    pub(super) reach: Reachability,
    after_use: AfterUse,
}

/// What becomes of the memory of a published draft once its name is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterUse {
    Freed,
    /// A pool takes it back. The segment keeps its descriptor for that.
    Recycled,
}

/// Which processes can reach the memory of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reachability {
    /// Only this process: the file never had a public name.
    Own,
    /// Those that attached, or opened the file, when it had a public name.
    Earlier,
    /// Only this process: the draft's exclusive locks keep the earlier ones out.
    Locked,
}

impl DraftSegment {
    /// Makes a file of exactly `length` bytes.
    pub(crate) fn new(backend: Directory, length: u64, options: DraftOptions) -> Result<Self> {
        Self::with_room(backend, length, length, options)
    }

    /// Makes a file of `bytes` bytes, of which the first `length` are the segment's.
    pub(super) fn with_room(backend: Directory, length: u64, bytes: u64, options: DraftOptions) -> Result<Self> {
        let file = room::with_room(&backend, || backend.draft(bytes, options))?;
        let name = backend.path().display().to_string();
        let mapped = Mapped::of_draft(file.file(), length, &name)?;
        Ok(Self { mapped, file, backend, options, reach: Reachability::Own, after_use: AfterUse::Freed })
    }

    /// Makes a file of `payload` zeros that ends with a trailer.
    pub(crate) fn with_trailer(home: &Home, payload: u64, trailer: &[u8], options: DraftOptions) -> Result<Self> {
        let length = payload.saturating_add(trailer.len() as u64);
        let draft = Self::new(home.backend.clone(), length, options).map_err(|error| error.about(&home.location))?;
        let written = os::write_all_at(draft.file().file(), trailer, payload);
        written.map_err(|error| Error::os("write the end of", &home.location, error))?;
        Ok(draft)
    }

    /// Maps the file through a description of its own, without a lease. `name` is for messages.
    pub(crate) fn map_again(&self, name: &Location) -> Result<Mapped> {
        let failed = |error| Error::os("open again by descriptor", name, error);
        let again = os::reopen(self.file.file(), true).map_err(failed)?;
        let facts = os::facts(&again).map_err(failed)?;
        let home = Home { backend: self.backend.clone(), location: name.clone() };
        // The draft has its memory already, or is to have none.
        Mapped::unreserved(&again, &facts, &home, Access::ReadWrite)
    }

    /// Makes a draft of memory that was published before. It has no public name, but processes may still be attached.
    pub(super) fn of_used(mapped: Mapped, file: DraftFile, backend: Directory, options: DraftOptions) -> Self {
        Self { mapped, file, backend, options, reach: Reachability::Earlier, after_use: AfterUse::Recycled }
    }

    pub(crate) fn set_after_use(&mut self, after_use: AfterUse) {
        self.after_use = after_use;
    }

    pub(crate) fn file(&self) -> &DraftFile {
        &self.file
    }

    pub(crate) fn mapped(&self) -> &Mapped {
        &self.mapped
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.backend
    }

    /// Allocates the whole draft, if it was made sparse.
    pub(crate) fn reserve(&self, pages: Pages) -> Result<()> {
        room::with_room(&self.backend, || self.backend.reserve_draft(&self.file, pages))
    }

    /// Makes the file exactly `room` bytes long. The length of the payload stays.
    pub(super) fn grow(&mut self, room: u64) -> Result<()> {
        if self.mapped.file_length >= room {
            // Memory that was used before may be longer, and the trailer is looked for at the end of the file.
            return self.shrink(room);
        }
        let name = self.backend.path().display().to_string();
        check_length(self.backend.path(), room)?;
        self.file.file().set_len(room).map_err(|error| Error::os("make room for a trailer", &name, error))?;
        // A page or two are missing, too few for a huge page.
        let reserved = if self.options.pages.are_reserved() { self.reserve(Pages::Base) } else { Ok(()) };
        let mapped = reserved.and_then(|()| map(self.file.file(), 0, room, Access::ReadWrite, &name));
        self.mapped.map = mapped.inspect_err(|_| {
            // The old mapping is still there, and ends before the new bytes. If this fails, `shrink` finds the file too
            // long.
            let _ = self.file.file().set_len(self.mapped.file_length);
        })?;
        self.mapped.file_length = room;
        Ok(())
    }

    /// Shortens the file to `length` bytes.
    fn shrink(&mut self, length: u64) -> Result<()> {
        let file = self.file.file();
        let name = self.backend.path().display().to_string();
        let failed = |error| Error::os("take room back", &name, error);
        if os::facts(file).map_err(failed)?.length == length {
            return Ok(());
        }
        // The mapping first: some systems do not shorten a file that is mapped beyond its new end.
        self.mapped.map = map(file, 0, length, Access::ReadWrite, &name)?;
        self.mapped.file_length = length;
        file.set_len(length).map_err(failed)
    }

    /// Takes the lease of one kind of array and releases that of another. No other process can attach to the draft
    /// meanwhile.
    pub(super) fn lease_as(&self, new: LockRange, old: LockRange, name: &str) -> Result<()> {
        lease_own(self.file.file(), new, name)?;
        os::unlock(self.file.file(), old).map_err(|error| Error::os("lease", name, error))
    }

    /// Publishes the draft as a plain array of this name, with a description. On failure the draft is returned as it
    /// was.
    #[allow(clippy::result_large_err)] // moved once, on the way to an error that boxes it
    pub(crate) fn publish(
        mut self,
        at: &Location,
        mode: Publish,
        keep: bool,
        description: Option<&[u8]>,
    ) -> Result<Segment, (Error, Self)> {
        // In a plain array all bytes are elements: no room may stay behind them.
        let own = self.refuse_forked_child(at.as_str());
        match own.and_then(|()| self.shrink(self.mapped.length as u64)) {
            Ok(()) => {
                if description.is_some() {
                    let _ = self.set_description(description); // optional: not every file system supports it
                }
                let home = Home { backend: self.backend.clone(), location: at.clone() };
                self.publish_whole(&home, mode, keep)
            }
            Err(error) => Err((error, self)),
        }
    }

    /// Writes or removes the description.
    pub(super) fn set_description(&self, text: Option<&[u8]>) -> Result<()> {
        let (file, mode) = (self.file.file(), self.options.permissions);
        if mode & 0o200 != 0 {
            return self.backend.set_attribute(file, text);
        }
        // A file that its owner may not write to accepts no description either. Its mode can change for a moment,
        // because no other process can open it yet.
        let changed =
            |mode| os::set_mode(file, mode).map_err(|error| Error::os("describe", self.backend.name(), error));
        changed(mode | 0o200)?;
        let described = self.backend.set_attribute(file, text);
        changed(mode).and(described)
    }

    /// Fails in a forked child, because its parent writes to the same memory.
    pub(super) fn refuse_forked_child(&self, name: &str) -> Result<()> {
        if self.file.is_own_process() {
            return Ok(());
        }
        let what = "the draft belongs to the process that this one was forked from (make another one here)".into();
        Err(ErrorKind::Unsupported { what }.at(name))
    }

    /// Publishes the draft together with the bytes behind its payload.
    #[allow(clippy::result_large_err)] // as above
    pub(super) fn publish_whole(mut self, home: &Home, mode: Publish, keep: bool) -> Result<Segment, (Error, Self)> {
        let kept = self.descriptor_to_keep(keep, home.location.as_str());
        let published = kept.and_then(|kept| {
            self.backend.publish(&mut self.file, &home.location, mode)?;
            Ok(kept)
        });
        os::step("publish: named");
        match published.and_then(|kept| self.admit(home).map(|()| kept)) {
            Ok(kept) => Ok(Segment::new(self.mapped, home.clone(), kept)),
            Err(error) => Err((error, self)),
        }
    }

    /// Makes a segment that has no name and can be reached only by its descriptor.
    #[allow(clippy::result_large_err)] // as above
    pub(crate) fn share_nameless(self, home: &Home) -> Result<Segment, (Error, Self)> {
        match self.descriptor_to_keep(true, home.location.as_str()) {
            Ok(kept) => Ok(Segment::new(self.mapped, home.clone(), kept)),
            Err(error) => Err((error, self)),
        }
    }

    /// Returns the draft's descriptor, to be kept by the segment, if guards are to use it, if its memory can be
    /// recycled, or if the lease ends with the descriptor.
    fn descriptor_to_keep(&self, for_guards: bool, name: &str) -> Result<Kept> {
        if !for_guards && self.after_use == AfterUse::Freed && self.backend.lock_survives_close()? {
            return Ok(Kept::Nothing);
        }
        let file = self.file.file().try_clone().map_err(|error| Error::os("keep the descriptor", name, error))?;
        let kept = KeptDescriptor::new(file, &self.backend);
        Ok(if for_guards { Kept::ForGuards(kept) } else { Kept::ForLease(kept) })
    }
}
