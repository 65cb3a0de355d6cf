//! Segments that count who uses them: how one is made, attached, left, and collected when all who used it are dead.
//!
//! - Attaching: open, lease, look, map, count. Who meets the mark of the dead finishes that death and finds nothing.
//! - Leaving: count; who was the last removes the name while he is still attached. If others are left, he lets go of the
//!   lease and asks whether anybody has one: the others may have been killed (collect.rs).

use std::fs::File;
use std::time::Duration;

use super::counts::{Counts, Left, Refused, State, Ticket};
use super::draft::DraftSegment;
use super::footer::Kind;
use super::locks::{self, Wait};
use super::mapping::{fill_holes, map, map_length};
use super::trailer::{self, PAGE, RECORD, Trailer};
use super::{Attach, Farewell, Found, Home, Kept, Segment, TRIES, collect, is_named, lease_counted};
use crate::backend::lock_space::{ALL_CELLS, COUNTED, LEASE};
use crate::backend::{Access, Backend, DraftFile, DraftOptions, Publish};
use crate::error::{Error, Result};
use crate::os::{self, FileId, LockKind, Mapping};

/// How long the last one out waits for others who are at the name, if he is merely dropped, and if he is closed.
pub(super) const DROP_WAIT: Duration = Duration::from_millis(100);
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// What a counted segment owes to the others when it goes.
#[derive(Debug)]
pub(super) struct Membership {
    home: Home,
    /// The page with the counts, where it is not behind the payload in the same mapping.
    page: Option<Mapping>,
    /// Whether a handle was counted, and is still to be subtracted.
    counted: bool,
    generation: u64,
    farewell: Option<Farewell>,
}

/// What remains to be done when the last byte is unmapped.
#[derive(Debug)]
pub(super) struct Aftermath(Option<Remains>);

#[derive(Debug)]
struct Remains {
    home: Home,
    id: FileId,
    /// What is known already; else it is to be found out whether those who are still counted are alive.
    found: Option<Found>,
    farewell: Option<Farewell>,
}

impl Remains {
    fn settle(self) -> Result<Found> {
        let found = self.found.map_or_else(|| collect(&self.home, Some(self.id), true), Ok)?;
        if let (Found::InFlight(left), Some(farewell)) = (found, self.farewell) {
            farewell(&self.home, left);
        }
        Ok(found)
    }
}

impl Aftermath {
    fn run(mut self) -> Result<Found> {
        self.0.take().map_or(Ok(Found::Gone), Remains::settle)
    }
}

impl Drop for Aftermath {
    fn drop(&mut self) {
        let _others_find_it_too = self.0.take().map(Remains::settle);
    }
}

/// How a handle comes to be counted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Entry {
    /// By name.
    Name,
    /// With a handle that was on its way, to the array with this random number.
    Ticket(Ticket, u128),
}

impl DraftSegment {
    /// Makes a draft that has room for the trailer already.
    pub(crate) fn new_counted(
        backend: std::sync::Arc<dyn Backend>,
        payload: u64,
        options: DraftOptions,
    ) -> Result<Self> {
        let name = || backend.directory().display().to_string();
        let room = trailer::file_length(payload).ok_or_else(|| too_large(&name()))?;
        Self::with_room(backend, payload, room, options)
    }

    /// Writes the trailer, making room for it if there is none.
    pub(crate) fn count(&mut self, id: u128, named: bool, record: &[u8; RECORD], name: &str) -> Result<()> {
        self.write_page(Kind::Counted, id, State::new(named), record, name)
    }

    /// Writes a trailer of any kind.
    #[allow(unsafe_code)]
    pub(super) fn write_page(
        &mut self,
        kind: Kind,
        id: u128,
        state: State,
        record: &[u8; RECORD],
        name: &str,
    ) -> Result<()> {
        let payload = self.segment().length as u64;
        let page = trailer::new_page(kind, payload, id, state, name, record);
        let page = page.map_err(|reason| Error::Trailer { location: name.to_owned(), reason })?;
        self.grow(trailer::file_length(payload).ok_or_else(|| too_large(name))?)?;
        let at = self.segment().page_offset(name)?;
        // SAFETY: the mapping is as long as the file, whose last page begins at `at`.
        let to = unsafe { self.segment().pointer().add(at) };
        // SAFETY: as above; nobody else can reach a draft, and the bytes are beyond those that views show.
        unsafe { std::ptr::copy_nonoverlapping(page.as_ptr(), to, PAGE) };
        Ok(())
    }

    /// Gives a draft with a trailer its name, or leaves it without one; on failure it is given back.
    #[allow(clippy::result_large_err)] // moved once, on the way to an error that boxes it
    pub(crate) fn share(
        mut self,
        home: &Home,
        mode: Option<Publish>,
        keep: bool,
        farewell: Option<Farewell>,
    ) -> Result<Segment, (Error, Self)> {
        let (name, was_alone) = (home.location.as_str(), self.is_alone());
        let own = self.refuse_forked_child(name);
        // Not before: as a plain draft it was kept from those who might still know the file.
        let opened = own.and_then(|()| self.open_to_others(name)).and_then(|()| self.lease_as(COUNTED, LEASE, name));
        if let Err(error) = opened {
            return Err((error, self));
        }
        self.segment_mut().join(home, None, true, farewell);
        let segment = match mode {
            Some(mode) => self.publish(&home.location, mode, keep),
            None => self.share_nameless(home),
        };
        // What nobody could reach owes nothing to anybody.
        segment.map_err(|(error, mut draft)| {
            draft.segment_mut().membership = None;
            let _nobody_can_have_another = draft.lease_as(LEASE, COUNTED, home.location.as_str());
            if was_alone {
                let _nobody_else_has_it = draft.isolate();
            }
            (error, draft)
        })
    }
}

impl Segment {
    /// Opens, leases, maps and counts what has the name, if `read` makes sense of its trailer.
    pub(crate) fn attach_counted<R>(
        home: &Home,
        how: Attach,
        entry: Entry,
        read: impl Fn(&Trailer) -> Result<R>,
    ) -> Result<(Self, R)> {
        for _ in 0..TRIES {
            // Even readers count themselves, which is writing.
            let file = home.backend.open(&home.location, Access::ReadWrite)?;
            if let Some(attached) = Self::attach_counted_file(file, home, how, entry, &read)? {
                return Ok(attached);
            }
        }
        Err(Error::Unlinked { location: home.location.to_string() })
    }

    /// Attaches what a descriptor leads to, whether it has a name or not, on a description of its own.
    pub(crate) fn attach_descriptor<R>(
        file: &File,
        home: &Home,
        how: Attach,
        read: impl FnOnce(&Trailer) -> Result<R>,
    ) -> Result<(Self, R)> {
        let location = &home.location;
        let own = os::reopen(file, true).map_err(|error| Error::os("open again by descriptor", location, error))?;
        let name = location.as_str();
        lease_counted(&own, name)?;
        let trailer = Trailer::read(&own, name)?;
        // Its sender does not choose the name it would get: under another one nobody could open it.
        trailer.refuse_copy(name)?;
        let found = read(&trailer)?;
        let facts = os::facts(&own).map_err(|error| Error::os("look at", name, error))?;
        if !how.sparse && facts.allocated < facts.length {
            fill_holes(&own, &facts, home, Access::ReadWrite)?;
        }
        // What is known of the directory that its sender names is true of the file only if it is on that file system.
        let directory = home.backend.directory();
        let survives = os::is_in_file_system_of(&own, directory) && home.backend.lock_survives_close().unwrap_or(false);
        let mut segment = Self::map_counted(own, home, how, &trailer)?;
        match segment.counts().map(Counts::acquire) {
            Some(Ok(())) => segment.set_counted(),
            // Its last handle went while the descriptor was on its way: the bytes are here, the name is gone for ever.
            Some(Err(Refused::Dead)) => segment.disown(),
            _ => return Err(full(name)),
        }
        segment.hold_cells(home, how)?;
        segment.settle_descriptor(how.keep_descriptor || !survives);
        Ok((segment, found))
    }

    fn attach_counted_file<R>(
        file: File,
        home: &Home,
        how: Attach,
        entry: Entry,
        read: impl Fn(&Trailer) -> Result<R>,
    ) -> Result<Option<(Self, R)>> {
        let Home { backend, location } = home;
        let name = location.as_str();
        lease_counted(&file, name)?;
        let facts = os::facts(&file).map_err(|error| Error::os("look at", name, error))?;
        if !is_named(&facts, home)? {
            return Ok(None);
        }
        let trailer = match (Trailer::read_known(&file, &facts, name), entry) {
            (Ok(trailer), Entry::Ticket(_, id)) if id != trailer.id => return Err(spent(name)), // another array by now
            (Err(Error::NotCounted { .. }), Entry::Ticket(..)) => return Err(spent(name)), // even one of another kind
            (read, _) => read?,
        };
        trailer.refuse_copy(name)?;
        let found = read(&trailer)?;
        if !how.sparse && facts.allocated < facts.length {
            fill_holes(&file, &facts, home, Access::ReadWrite)?;
        }
        // Asked before a ticket is used: the answer may be an error.
        let keep = how.keep_descriptor || !backend.lock_survives_close()?;
        let mut segment = Self::map_counted(file, home, how, &trailer)?;
        match segment.counts().map(Counts::acquire) {
            Some(Ok(())) => segment.set_counted(),
            Some(Err(Refused::Dead)) => {
                segment.disown();
                let _others_are_at_it = backend.unlink_within(location, Some(trailer.file), DROP_WAIT);
                return Err(Error::NotFound { location: name.to_owned() });
            }
            _ => return Err(full(name)),
        }
        // Counted while it waits: whoever leaves meanwhile is not the last.
        segment.hold_cells(home, how)?;
        if how.held.is_some() && !home.leads_to(trailer.file)? {
            return Ok(None); // the wait may have been long
        }
        if let Entry::Ticket(ticket, _) = entry {
            if !segment.counts().is_some_and(|counts| counts.redeem(ticket)) {
                return Err(spent(name)); // and `segment` leaves again
            }
        }
        segment.settle_descriptor(keep);
        Ok(Some((segment, found)))
    }

    /// Maps payload and page of a leased file, and keeps its descriptor for now; not counted yet.
    fn map_counted(file: File, home: &Home, how: Attach, trailer: &Trailer) -> Result<Self> {
        let name = home.location.as_str();
        let Trailer { payload, length, .. } = *trailer;
        let access = if trailer.state.is_frozen() { Access::Read } else { how.access };
        let (map, page) = match access {
            Access::ReadWrite => (map(&file, 0, length, access, name)?, None),
            Access::Read => {
                let page = map(&file, length - PAGE as u64, PAGE as u64, Access::ReadWrite, name)?;
                (map(&file, 0, payload, access, name)?, Some(page))
            }
        };
        let mut segment = Self {
            map,
            length: map_length(payload, name)?,
            file_length: length,
            id: trailer.file,
            access,
            descriptor: Some(Kept::new(file, &*home.backend)),
            guards_by_descriptor: how.keep_descriptor,
            held: None,
            membership: None,
            aftermath: None,
        };
        segment.join(home, page, false, how.farewell);
        Ok(segment)
    }

    /// Locks the cells through the mapping's own description, if that was asked for.
    fn hold_cells(&mut self, home: &Home, how: Attach) -> Result<()> {
        let (Some((kind, wait)), Some(kept)) = (how.held, &self.descriptor) else { return Ok(()) };
        let token = locks::take(&kept.file, self.id, kind, ALL_CELLS, wait, home.location.as_str())?;
        if kind == LockKind::Exclusive && self.is_frozen() {
            return Err(frozen(home, &kept.file));
        }
        self.held = Some(token);
        Ok(())
    }

    /// Closes the descriptor, if nothing depends on it.
    fn settle_descriptor(&mut self, keep: bool) {
        if !keep {
            self.descriptor = None;
        }
    }

    fn join(&mut self, home: &Home, page: Option<Mapping>, counted: bool, farewell: Option<Farewell>) {
        let (home, generation) = (home.clone(), os::fork_generation());
        self.membership = Some(Membership { home, page, counted, generation, farewell });
    }

    fn set_counted(&mut self) {
        if let Some(membership) = &mut self.membership {
            membership.counted = true;
        }
    }

    /// Stays attached without being counted.
    fn disown(&mut self) {
        if let Some(membership) = &mut self.membership {
            membership.counted = false;
        }
    }

    /// Where the last page begins, if the file is as long as one with a last page.
    fn page_offset(&self, name: &str) -> Result<usize> {
        let begin = self.file_length.checked_sub(PAGE as u64).filter(|begin| begin % PAGE as u64 == 0);
        map_length(begin.ok_or_else(|| too_large(name))?, name)
    }

    /// The counts in shared memory; `None` for a plain segment.
    #[allow(unsafe_code)]
    #[allow(clippy::cast_ptr_alignment)] // it begins on a page
    pub(crate) fn counts(&self) -> Option<&Counts> {
        let membership = self.membership.as_ref()?;
        let page = if let Some(page) = &membership.page {
            page.as_mut_ptr()
        } else {
            let at = self.page_offset("").ok()?;
            // SAFETY: without a page of its own, the mapping is as long as the file, whose last page begins there.
            unsafe { self.map.as_mut_ptr().add(at) }
        };
        // SAFETY: the page is mapped for writing as long as `self` lives and begins at a multiple of its size, which
        // `Counts` divides; every bit pattern is one of its values; everyone changes these bytes as atomics only, because a
        // file with this footer cannot be attached as a plain array, and one that was attached as such not as this.
        Some(unsafe { &*page.cast::<Counts>() })
    }

    /// Where the name of a counted segment is, or would be.
    pub(crate) fn home(&self) -> Option<&Home> {
        self.membership.as_ref().map(|membership| &membership.home)
    }

    /// Whether this handle is one of those that are counted.
    pub(crate) fn is_counted(&self) -> bool {
        self.membership.as_ref().is_some_and(|membership| membership.counted)
    }

    /// Whether nobody may write any more.
    pub(crate) fn is_frozen(&self) -> bool {
        self.counts().is_some_and(|counts| counts.state().is_frozen())
    }

    /// Waits until nobody reads or writes, and forbids writing for ever.
    pub(crate) fn freeze(&self, home: &Home) -> Result<()> {
        if self.is_frozen() {
            return Ok(());
        }
        let _everyone_else_out = self.hold(home, LockKind::Exclusive, ALL_CELLS, Wait::Forever)?;
        if let Some(counts) = self.counts() {
            counts.freeze();
        }
        Ok(())
    }

    /// Gives a nameless segment the name that its home has for it; once.
    pub(crate) fn publish(&self) -> Result<()> {
        let (Some(home), Some(counts), Some(kept)) = (self.home(), self.counts(), &self.descriptor) else {
            return Ok(());
        };
        if counts.state().is_named() && home.leads_to(self.id)? {
            return Ok(());
        }
        if !self.is_counted() || counts.state().is_dead() {
            return Err(Error::Unlinked { location: home.location.to_string() });
        }
        let file = kept.file.try_clone().map_err(|error| Error::os("publish", &home.location, error))?;
        // Noted first: a name that nobody knows of would never be removed.
        let had_name = !counts.name();
        let published = home.backend.publish(&mut DraftFile::nameless(file), &home.location, Publish::New);
        match published {
            Ok(()) => counts.name(), // again: somebody who failed meanwhile may have taken the note back
            Err(_) if home.leads_to(self.id)? => return Ok(()), // another process was quicker
            Err(_) if had_name => false,
            // Taken back, unless another process succeeds in this moment: one of the two sees what the other did.
            Err(_) => counts.unname() && home.leads_to(self.id)? && counts.name(),
        };
        published.map_err(|error| match error {
            // A file that once had a name, and has it no more, can never have one again.
            Error::NotFound { location } if had_name => Error::Unlinked { location },
            Error::NotFound { location } => Error::Unsupported {
                location,
                what: "it can have no name any more: files that are nameless on this file system never can, nor can \
                       memory that a pool had used before; share it by file_system"
                    .into(),
            },
            other => other,
        })
    }

    /// Opens a descriptor to be sent: a description of its own, so that no lock of ours can be changed through it.
    pub(crate) fn descriptor_to_send(&self, home: &Home) -> Result<File> {
        self.open_again(home, Access::ReadWrite)
    }

    /// Counts this handle out and, if it was the last, removes the name.
    ///
    /// What remains is done when the segment is dropped, or by [`Segment::close`].
    pub(super) fn leave(&mut self, limit: Duration) -> Result<()> {
        let Some(membership) = &self.membership else { return Ok(()) };
        // A forked child did not count itself in.
        if !membership.counted || membership.generation != os::fork_generation() {
            return Ok(());
        }
        let (home, farewell) = (membership.home.clone(), membership.farewell);
        let Some(counts) = self.counts() else { return Ok(()) };
        let left = counts.release(os::since_boot());
        // Asked afterwards: somebody else who is leaving too may just have given it its name.
        let named = counts.state().is_named();
        let flight = if left == Left::InFlight { counts.in_flight(os::since_boot()).1 } else { Duration::ZERO };
        self.disown();
        match left {
            Left::Nothing if named => {
                let unlinked = home.backend.unlink_within(&home.location, Some(self.id), limit);
                // For want of a descriptor, for example: tried again when ours is closed.
                unlinked.map(drop).inspect_err(|_| {
                    self.aftermath = Some(Aftermath(Some(Remains { home, id: self.id, found: None, farewell })));
                })
            }
            Left::Others if named => {
                // Not by closing alone: a process that another thread is just spawning has a copy for a moment.
                if let Some(kept) = &self.descriptor {
                    let _closing_does_it_too = os::unlock(&kept.file, COUNTED);
                }
                self.aftermath = Some(Aftermath(Some(Remains { home, id: self.id, found: None, farewell })));
                Ok(())
            }
            Left::InFlight => {
                let found = Some(Found::InFlight(flight));
                self.aftermath = Some(Aftermath(Some(Remains { home, id: self.id, found, farewell })));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Leaves, unmaps, and says what went wrong.
    pub(crate) fn close(mut self) -> Result<()> {
        let left = self.leave(CLOSE_WAIT);
        let aftermath = self.aftermath.take();
        drop(self); // and with it the lease
        match aftermath.map(Aftermath::run).transpose()? {
            Some(Found::Orphan | Found::Gone) => Ok(()),
            _ => left,
        }
    }
}

fn full(name: &str) -> Error {
    Error::TooManyHandles { location: name.to_owned(), limit: u32::MAX.into(), doing: "attached" }
}

fn spent(name: &str) -> Error {
    Error::HandleSpent { location: name.to_owned() }
}

fn too_large(name: &str) -> Error {
    Error::TooLarge { location: name.to_owned(), shape: Vec::new(), item: 1 }
}

/// Why nobody can write to it any more.
pub(super) const FROZEN: &str = "it is frozen: nobody can write to it any more (copy it to change it)";

/// Says that nobody can write to it any more.
pub(super) fn frozen(home: &Home, file: &File) -> Error {
    let (owner, mode) = os::facts(file).map_or((0, 0), |facts| (facts.owner, facts.mode));
    Error::PermissionDenied { location: home.location.to_string(), owner, mode, reason: FROZEN }
}
