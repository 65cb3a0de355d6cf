//! Segments that count their handles: creating, attaching, leaving, and reclaiming after all users have died.
//!
//! - Attaching: attach.rs. The flag *dead* in the count means that the last handle was killed before it could remove
//!   the name. The attachment removes the name, and finds nothing.
//! - Leaving: subtract one. The last handle removes the name while it is still attached. If other handles are counted,
//!   the lease is released and queried: the other processes may have been killed (reclaim.rs).

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::attach::{Attach, FoundBy, Subject, attach, by_name};
use super::counts::{CountRefusal, Counts, Left, State, Ticket};
use super::draft::DraftSegment;
use super::footer::Kind;
use super::locks::{Hold, Wait};
use super::mapping::{map, too_large};
use super::open_file::unlinked;
use super::trailer::{self, PAGE, RECORD, Trailer};
use super::{Aftermath, Home, Mapped, Segment, Verdict};
use crate::backend::lock_space::{ALL_CELLS, COUNTED, LEASE};
use crate::backend::{Access, Backend, Directory, DraftFile, DraftOptions, Location, Publish};
use crate::error::{Error, ErrorKind, Result};
use crate::interrupt;
use crate::manager_client;
use crate::os::{self, Facts, LockKind, LockRange, Mapping};

/// How long the last handle waits for another process that changes the name, when it is dropped, and when it is closed.
pub(crate) const DROP_WAIT: Duration = Duration::from_millis(100);
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// One handle to a segment that counts its handles in its file.
#[derive(Debug)]
pub(crate) struct CountedSegment {
    /// The trailer, if it has a mapping of its own. Otherwise it is in the segment's mapping, behind the payload.
    page: Option<Mapping>,
    segment: Segment,
    /// Whether this handle is in the count and must be subtracted.
    counted: AtomicBool,
    /// Runs when everything above has been dropped.
    aftermath: Option<Aftermath>,
}

impl Drop for CountedSegment {
    fn drop(&mut self) {
        let _ = interrupt::uninterrupted(|| self.leave(DROP_WAIT)); // `close` reports errors
    }
}

impl AsMut<Segment> for CountedSegment {
    fn as_mut(&mut self) -> &mut Segment {
        &mut self.segment
    }
}

/// How an array is found, and which one is accepted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CountedBy {
    /// By name.
    Name,
    /// By name, if the array has this random number.
    Array(u128),
    /// With a handle in flight, to the array with this random number.
    Ticket(Ticket, u128),
}

impl DraftSegment {
    /// Makes a draft that has room for the trailer already.
    pub(crate) fn new_counted(backend: Directory, payload: u64, options: DraftOptions) -> Result<Self> {
        let name = || backend.path().display().to_string();
        let room = trailer::file_length(payload).ok_or_else(|| too_large(&name()))?;
        Self::with_room(backend, payload, room, options)
    }

    /// Writes the trailer, making room for it if there is none.
    pub(crate) fn count(&mut self, id: u128, named: bool, record: &[u8; RECORD], name: &str) -> Result<()> {
        self.write_page(Kind::Counted, id, State::new(named), record, name)
    }

    /// Writes a trailer of any kind.
    #[allow(unsafe_code)]
    pub(crate) fn write_page(
        &mut self,
        kind: Kind,
        id: u128,
        state: State,
        record: &[u8; RECORD],
        name: &str,
    ) -> Result<()> {
        self.refuse_forked_child(name)?; // before the file grows, in which the parent's memory is
        let payload = self.mapped.length as u64;
        let page = trailer::new_page(kind, payload, id, self.mapped.id, state, name, record);
        let page = page.map_err(|reason| ErrorKind::Trailer { reason }.at(name))?;
        self.grow(trailer::file_length(payload).ok_or_else(|| too_large(name))?)?;
        let at = page_at(&self.mapped);
        // SAFETY: the mapping is as long as the file, and the file's trailer begins at `at`.
        let to = unsafe { self.mapped.pointer().add(at) };
        // SAFETY: as above; no other process can reach a draft, and the bytes are beyond those that views show.
        unsafe { std::ptr::copy_nonoverlapping(page.as_ptr(), to, PAGE) };
        Ok(())
    }

    /// Publishes a draft with a trailer, or shares it without a name. On failure the draft is returned.
    #[allow(clippy::result_large_err)] // moved once, on the way to an error that boxes it
    pub(crate) fn share(
        mut self,
        home: &Home,
        mode: Option<Publish>,
        keep: bool,
    ) -> Result<CountedSegment, (Error, Self)> {
        let (name, was_alone) = (home.location.as_str(), self.is_alone());
        // Not earlier: until here the draft's locks exclude processes that still have the recycled file open.
        let opened = self.open_to_others(name).and_then(|()| self.lease_as(COUNTED, LEASE, name));
        if let Err(error) = opened {
            return Err((error, self));
        }
        let shared = match mode {
            Some(mode) => self.publish_whole(home, mode, keep),
            None => self.share_nameless(home),
        };
        match shared {
            Ok(segment) => Ok(CountedSegment::of(segment, None, true)),
            Err((error, mut draft)) => {
                let _ = draft.lease_as(LEASE, COUNTED, name); // no other process can hold a conflicting lease
                if was_alone {
                    let _ = draft.isolate(); // no other process has it
                }
                Err((error, draft))
            }
        }
    }
}

/// A counted segment to attach, if `read` accepts its trailer.
struct Counted<F> {
    entry: CountedBy,
    found: FoundBy,
    read: F,
}

impl<R, F: Fn(&Trailer) -> Result<R>> Subject for Counted<F> {
    type Record = (Trailer, R);
    type Memory = CountedSegment;
    const LEASE: LockRange = COUNTED;
    /// Readers are counted too, so they need write access.
    const OPEN_FOR: Option<Access> = Some(Access::ReadWrite);

    fn read(&self, file: &File, facts: &Facts, location: &Location) -> Result<Self::Record> {
        let name = location.as_str();
        let trailer = match (Trailer::read(file, facts, name), self.entry) {
            (Ok(trailer), CountedBy::Ticket(_, id) | CountedBy::Array(id)) if id != trailer.id => {
                return Err(spent(name));
            }
            (Err(Error { kind: ErrorKind::NotCounted, .. }), CountedBy::Ticket(..) | CountedBy::Array(_)) => {
                return Err(spent(name));
            }
            (read, _) => read?,
        };
        // Checked for a descriptor too: under another name the array could not be opened.
        trailer.refuse_copy(name)?;
        let found = (self.read)(&trailer)?;
        Ok((trailer, found))
    }

    fn extent(&self, (trailer, _): &Self::Record, facts: &Facts, how: &mut Attach) -> (u64, u64) {
        if trailer.state.is_frozen() {
            how.access = Access::Read;
        }
        let mapped = if how.access == Access::Read { trailer.payload } else { facts.length };
        (mapped, trailer.payload)
    }

    fn enter(&self, segment: Segment, (trailer, _): &Self::Record, how: &Attach) -> Result<CountedSegment> {
        let page = match (how.access, segment.kept.file()) {
            (Access::Read, Some(file)) => {
                let name = segment.location().as_str();
                let page = map(file, trailer.length - PAGE as u64, PAGE as u64, Access::ReadWrite, name);
                Some(page.inspect_err(|_| segment.end_lease())?)
            }
            _ => None,
        };
        let mut memory = CountedSegment::of(segment, page, false);
        match memory.counts().acquire() {
            Ok(()) => *memory.counted.get_mut() = true,
            Err(CountRefusal::Dead) if self.found == FoundBy::Name => {
                if trailer.is_original() {
                    let _ = memory.home().unlink_within(trailer.file, DROP_WAIT); // other processes try it too
                }
                return Err(ErrorKind::NotFound.at(memory.segment.location()));
            }
            // The last handle left while the descriptor was in flight: the bytes can be attached, the name is gone for
            // ever.
            Err(CountRefusal::Dead) => {}
            Err(CountRefusal::Full) => return Err(too_many(memory.segment.location().as_str())),
        }
        if !trailer.is_original() {
            memory.counts().keep(); // a copy, perhaps, which must not be removed
        }
        Ok(memory)
    }

    fn finish_attaching(&self, memory: &CountedSegment) -> Result<()> {
        match self.entry {
            CountedBy::Ticket(ticket, _) if !memory.counts().redeem(ticket) => {
                Err(spent(memory.segment.location().as_str()))
            }
            _ => Ok(()),
        }
    }
}

/// Returns where the trailer begins in a segment that maps the whole file.
#[allow(clippy::cast_possible_truncation)] // it is mapped
fn page_at(mapped: &Mapped) -> usize {
    mapped.file_length as usize - PAGE
}

impl CountedSegment {
    fn of(segment: Segment, page: Option<Mapping>, counted: bool) -> Self {
        Self { page, segment, counted: AtomicBool::new(counted), aftermath: None }
    }

    /// Opens, leases, maps and counts the array of this name, if `read` accepts its trailer.
    pub(crate) fn attach<R>(
        home: &Home,
        how: Attach,
        entry: CountedBy,
        read: impl Fn(&Trailer) -> Result<R>,
    ) -> Result<(Self, R)> {
        let (memory, (_, found)) = by_name(home, how, &Counted { entry, found: FoundBy::Name, read })?;
        Ok((memory, found))
    }

    /// Attaches the array of a descriptor, named or not, through an open file description of its own.
    pub(crate) fn attach_descriptor<R>(
        file: &File,
        home: &Home,
        how: Attach,
        read: impl Fn(&Trailer) -> Result<R>,
    ) -> Result<(Self, R)> {
        let failed = |error| Error::os("open again by descriptor", &home.location, error);
        let own = os::reopen(file, true).map_err(failed)?;
        let found = FoundBy::Descriptor;
        let attached = attach(own, found, home, how, &Counted { entry: CountedBy::Name, found, read })?;
        let (memory, (_, found)) = attached.ok_or_else(|| unlinked(home))?; // `None` only for names
        Ok((memory, found))
    }

    /// Returns the mapped bytes. Guards are taken with [`hold`](Self::hold).
    pub(crate) fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Returns where its name is, or would be.
    pub(crate) fn home(&self) -> &Home {
        self.segment.home()
    }

    /// Returns the counts in shared memory.
    #[allow(unsafe_code)]
    #[allow(clippy::cast_ptr_alignment)] // it begins on a page
    pub(crate) fn counts(&self) -> &Counts {
        let page = match &self.page {
            Some(page) => page.as_mut_ptr(),
            // SAFETY: without a page of its own, the mapping is as long as the file, and the file's trailer begins
            // there.
            None => unsafe { self.segment.pointer().add(page_at(&self.segment)) },
        };
        // SAFETY: the page is mapped for writing as long as `self` lives. It begins at a multiple of its size, which
        // the alignment of `Counts` divides. Every bit pattern is a valid `Counts`. All processes that are attached
        // change these bytes as atomics only, and reclaim.rs writes some of them while it excludes all attachments: a
        // file with this footer cannot be attached as a plain array, nor as a counted one while it is attached as a
        // plain one.
        unsafe { &*page.cast::<Counts>() }
    }

    /// Returns whether writing is forbidden for ever.
    pub(crate) fn is_frozen(&self) -> bool {
        self.counts().state().is_frozen()
    }

    /// Locks cells, on an open file description of their own.
    pub(crate) fn hold(&self, kind: LockKind, range: LockRange, wait: Wait<'_>) -> Result<Hold> {
        let hold = self.segment.hold_counted(kind, range, wait);
        // Checked under the lock, which freezing takes too.
        match hold {
            Ok(_) | Err(Error { kind: ErrorKind::PermissionDenied { .. }, .. })
                if kind == LockKind::Exclusive && self.is_frozen() =>
            {
                Err(self.read_only())
            }
            other => other,
        }
    }

    /// Returns the error for writing, which says why it is refused.
    pub(crate) fn read_only(&self) -> Error {
        match self.segment.read_only() {
            Error { kind: ErrorKind::PermissionDenied { owner, mode, .. }, location, .. } if self.is_frozen() => {
                let reason = "it is frozen: no process can write to it any more (copy it to change it)";
                ErrorKind::PermissionDenied { owner, mode, reason }.at(location)
            }
            other => other,
        }
    }

    /// Waits until no process reads or writes, and forbids writing for ever. This mapping becomes read-only.
    pub(crate) fn freeze(&self) -> Result<()> {
        if self.is_frozen() {
            return Ok(());
        }
        let _hold = self.segment.hold_counted(LockKind::Exclusive, ALL_CELLS, Wait::Forever)?;
        self.forbid_writing()?;
        self.counts().freeze();
        Ok(())
    }

    /// Makes the payload of this mapping read-only, so that an address that code outside of this crate kept cannot
    /// change it.
    ///
    /// The caller holds all cells: no guard exists, and no later one is for writing.
    fn forbid_writing(&self) -> Result<()> {
        if self.segment.access != Access::ReadWrite {
            return Ok(()); // read-only already, or a private copy
        }
        // The trailer behind the payload stays writable. So does a system's page that has both, where pages are larger
        // than the trailer.
        let protected = self.segment.mapped.map.forbid_writing(page_at(&self.segment));
        protected.map_err(|error| Error::os("protect the elements of", self.segment.location(), error))
    }

    /// Gives a nameless segment the name of its home. A name can be given once.
    pub(crate) fn publish(&self) -> Result<()> {
        let (home, counts, id) = (self.home(), self.counts(), self.segment.id);
        if counts.state().is_named() && home.leads_to(id)? {
            return Ok(());
        }
        let Some(file) = self.segment.kept.file().filter(|_| self.is_counted() && !counts.state().is_dead()) else {
            return Err(unlinked(home));
        };
        let file = file.try_clone().map_err(|error| Error::os("publish", &home.location, error))?;
        // The flag is set first: a name without it would never be removed.
        let had_name = !counts.name();
        let published = home.backend.publish(&mut DraftFile::nameless(file), &home.location, Publish::New);
        match published {
            Ok(()) => counts.name(), // again: a process that failed meanwhile may have cleared the flag
            Err(_) if home.leads_to(id)? => return Ok(()), // another process was quicker
            Err(_) if had_name => false,
            // The flag is cleared, unless another process publishes at this moment: one of the two sees what the other
            // did.
            Err(_) => counts.unname() && home.leads_to(id)? && counts.name(),
        };
        published.map_err(|error| match error.kind {
            // A file that has lost its name can never get one again, and another array may have it. Some platforms can
            // name no nameless file.
            ErrorKind::NotFound | ErrorKind::AlreadyExists | ErrorKind::Unsupported { .. } if had_name => {
                unlinked(home)
            }
            ErrorKind::NotFound => ErrorKind::Unsupported {
                what: "it can have no name any more: files that are nameless on this file system never can, nor can \
                       memory that a pool had used before; share it by file_system"
                    .into(),
            }
            .at(&home.location),
            _ => error,
        })
    }

    /// Opens a descriptor to send. It has a description of its own, so that no lock of ours can be changed through it.
    pub(crate) fn descriptor_to_send(&self) -> Result<File> {
        self.segment.open_again(Access::ReadWrite)
    }

    /// Opens a descriptor with the lease of an attachment, and counts one handle for it, so that the last handle of
    /// this crate does not remove the name.
    ///
    /// Nothing runs when the last duplicate of the descriptor is closed, so that handle is never subtracted, like one
    /// of a killed process: afterwards the lease decides.
    pub(crate) fn leased_descriptor(&self) -> Result<File> {
        let access = if self.is_frozen() { Access::Read } else { self.segment.access };
        let file = self.segment.leased_descriptor(access, COUNTED)?;
        match self.counts().acquire() {
            // Dead: the bytes were attached by descriptor, and the name is gone already.
            Ok(()) | Err(CountRefusal::Dead) => Ok(file),
            Err(CountRefusal::Full) => {
                let _ = os::unlock(&file, COUNTED); // closing is not enough: see attach.rs
                Err(too_many(self.segment.location().as_str()))
            }
        }
    }

    /// Returns whether this handle is in the count: it has neither left nor been [counted out](Self::count_out).
    pub(super) fn is_counted(&self) -> bool {
        self.counted.load(Ordering::Acquire)
    }

    /// Calls `act` while this process is in the count, so that the last handle, if it leaves now, sees what `act` did.
    /// A forked child and a handle that was counted out are counted meanwhile. Returns `None`, without calling `act`,
    /// if the last handle has left.
    pub(crate) fn while_counted<R>(&self, act: impl FnOnce(&Counts) -> R) -> Result<Option<R>> {
        let counts = self.counts();
        if self.segment.is_own_process() && self.is_counted() {
            return Ok((!counts.state().is_dead()).then(|| act(counts)));
        }
        match counts.acquire() {
            Ok(()) => {}
            Err(CountRefusal::Dead) => return Ok(None),
            Err(CountRefusal::Full) => return Err(too_many(self.segment.location().as_str())),
        }
        let result = act(counts);
        if counts.release(os::since_boot()) == Left::Nothing {
            self.home().unlink_within(self.segment.id(), DROP_WAIT)?;
        }
        Ok(Some(result))
    }

    /// Subtracts this handle from the count and, if it was the last, removes the name, as [`leave`](Self::leave) does.
    /// Memory and lease stay.
    ///
    /// Handles of killed processes that are still counted keep the name: while this process has the lease, nothing
    /// tells that they are dead.
    pub(crate) fn count_out(&self) -> Result<()> {
        if !self.segment.is_own_process() || !self.counted.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        match self.counts().release(os::since_boot()) {
            Left::Nothing => {
                self.home().unlink_within(self.segment.id, DROP_WAIT)?;
            }
            Left::InFlight => {
                manager_client::remind(&self.home().backend, self.counts().in_flight(os::since_boot()).1);
            }
            _ => {}
        }
        Ok(())
    }

    /// Subtracts this handle from the count and, if it was the last, removes the name.
    ///
    /// What remains is done when the segment is dropped, or by [`CountedSegment::close`].
    fn leave(&mut self, limit: Duration) -> Result<()> {
        // A forked child did not count itself in.
        if !self.segment.is_own_process() {
            return Ok(());
        }
        if !std::mem::take(self.counted.get_mut()) {
            self.end_own_lease(); // it was refused, or has left already
            return Ok(());
        }
        let (id, now) = (self.segment.id, os::since_boot());
        let left = self.counts().release(now);
        os::step("leave: counted out");
        // Read after the release: another handle that is leaving too may just have published the array.
        let named = self.counts().state().is_named();
        let remains = |found| Aftermath::new(self.home().clone(), id, found);
        let (aftermath, done) = match left {
            Left::Nothing if named => match self.home().unlink_within(id, limit) {
                Ok(_) => return Ok(()),
                // Out of descriptors, for example: tried again when ours is closed.
                Err(error) => (remains(None), Err(error)),
            },
            Left::Others if named => {
                self.end_own_lease();
                (remains(None), Ok(()))
            }
            Left::InFlight => (remains(Some(Verdict::InFlight(self.counts().in_flight(now).1))), Ok(())),
            _ => return Ok(()),
        };
        self.aftermath = Some(aftermath);
        done
    }

    /// Releases the lease before the segment is dropped. A child that was forked since it was mapped shares the lease,
    /// and keeps it with its copy of the mapping or the descriptor.
    fn end_own_lease(&self) {
        if self.segment.is_unforked() {
            self.segment.end_lease();
        }
    }

    /// Leaves and unmaps, and reports errors.
    pub(crate) fn close(mut self) -> Result<()> {
        let left = self.leave(CLOSE_WAIT);
        let aftermath = self.aftermath.take();
        drop(self); // and with it the lease
        match aftermath.map(Aftermath::reclaim).transpose()? {
            Some(Verdict::Orphan(_) | Verdict::Gone) => Ok(()),
            _ => left,
        }
    }
}

fn too_many(name: &str) -> Error {
    ErrorKind::TooManyHandles { limit: u32::MAX.into(), doing: "attached" }.at(name)
}

fn spent(name: &str) -> Error {
    ErrorKind::HandleSpent.at(name)
}
