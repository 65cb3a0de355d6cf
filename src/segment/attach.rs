//! Attaching, for every kind of segment: from a name or a descriptor to mapped bytes with a lease.
//!
//! | step | what it guards against |
//! |---|---|
//! | open | |
//! | lease | reclaiming or a pool that decides whether the file is in use: it holds the lease exclusively, and the attachment waits |
//! | look, name | between open and lease the name was removed, or a pool recycled the memory under another name |
//! | end of the file | another kind, a copy, damage. Counted kinds shut plain attachments out while they read it |
//! | holes | memory that cannot be allocated later, so that an access raises SIGBUS |
//! | map | |
//! | count | a last handle that leaves at this moment: it removes the name only if the count stays 0 |
//! | hold, name | a long wait for the cells, in which the name may have gone |
//! | ticket | a failed attachment that uses a handle up |
//! | descriptor | closed last, if nothing depends on it |

use std::fs::File;
use std::time::{Duration, Instant};

use super::locks::Wait;
use super::mapping::{Sharing, fill_holes, map_as};
use super::open_file::{is_named, look, unlinked};
use super::{Home, Kept, KeptDescriptor, Mapped, Segment};
use crate::backend::lock_space::{COUNTED, LEASE};
use crate::backend::{Access, Backend, Location, Turn};
use crate::backoff::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, Facts, LockKind, LockRange};

/// How long an attachment waits for its lease while another process decides whether the segment is an orphan, where the
/// caller has set no limit.
pub(super) const LEASE_WAIT: Duration = Duration::from_secs(5);

/// How long a counted attachment waits for a plain attachment to see the footer and leave.
const PASSING_WAIT: Duration = Duration::from_secs(1);

/// How many times an attachment starts again because the name was replaced.
const TRIES: u32 = 1000;

/// How a segment is attached.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attach {
    pub(crate) access: Access,
    /// Leave holes as they are.
    pub(crate) sparse: bool,
    /// Keep the descriptor, so that guards work after the name has gone.
    pub(crate) keep_descriptor: bool,
    /// Map for reading, but let a write through a pointer change a copy that only this process has.
    pub(crate) copy_on_write: bool,
    /// How long to wait in total for other processes that read the end of the file or decide whether it is in use.
    pub(crate) patience: Duration,
    /// Lock all cells through the mapping itself, for as long as it lives. Waits without limit, or at most until
    /// `patience` is over.
    pub(crate) held: Option<(LockKind, CellWait)>,
}

/// How long an attachment waits for its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CellWait {
    Forever,
    /// As long as [`Attach::patience`] lasts: lease and cells share the caller's limit.
    Patience,
}

impl Attach {
    pub(crate) fn new(access: Access) -> Self {
        let patience = LEASE_WAIT;
        Self { access, sparse: false, keep_descriptor: false, copy_on_write: false, patience, held: None }
    }
}

/// What led to a file that is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FoundBy {
    /// Its name, which must still lead to it once it is leased: otherwise the file may hold another array.
    Name,
    /// A descriptor. It is the array that was meant, with or without a name.
    Descriptor,
}

/// One kind of segment: its lease, the check of its last bytes, and what is made of the mapping.
pub(super) trait Subject {
    /// The contents of the last bytes.
    type Record;
    /// What attaching returns.
    type Memory: AsMut<Segment>;

    /// The lease of all attachments of this kind.
    const LEASE: LockRange;
    /// The access for which the file must be opened, if that is fixed. The mapping may allow less.
    const OPEN_FOR: Option<Access> = None;

    /// Checks the end of the file.
    fn read(&self, file: &File, facts: &Facts, location: &Location) -> Result<Self::Record>;

    /// Adjusts `how` to the contents of the last bytes. Returns how many bytes are mapped, and how many of them are the
    /// payload.
    fn extent(&self, _record: &Self::Record, facts: &Facts, _how: &mut Attach) -> (u64, u64) {
        (facts.length, facts.length)
    }

    /// Makes an attachment of the mapping; where handles are counted, it counts one more.
    fn enter(&self, mapped: Segment, record: &Self::Record, how: &Attach) -> Result<Self::Memory>;

    /// Uses a ticket up, where there is one.
    fn finish_attaching(&self, _memory: &Self::Memory) -> Result<()> {
        Ok(())
    }
}

/// Attaches the segment of this name.
pub(super) fn by_name<S: Subject>(home: &Home, how: Attach, subject: &S) -> Result<(S::Memory, S::Record)> {
    let until = Deadline::after(how.patience);
    for _ in 0..TRIES {
        let file = home.backend.open(&home.location, S::OPEN_FOR.unwrap_or(how.access));
        let file = file.map_err(|error| home.or_elsewhere(error))?;
        os::step("attach: opened");
        if let Some(attached) = attach_until(until, file, FoundBy::Name, home, how, subject)? {
            return Ok(attached);
        }
    }
    Err(unlinked(home))
}

/// Attaches an open file. Nothing else may use its description. Returns `Ok(None)` if the file was opened by name and
/// the name leads elsewhere by now: the file may hold another array.
pub(super) fn attach<S: Subject>(
    file: File,
    found: FoundBy,
    home: &Home,
    how: Attach,
    subject: &S,
) -> Result<Option<(S::Memory, S::Record)>> {
    attach_until(Deadline::after(how.patience), file, found, home, how, subject)
}

/// As [`attach`]. All waits end at the deadline.
fn attach_until<S: Subject>(
    mut until: Deadline,
    file: File,
    found: FoundBy,
    home: &Home,
    mut how: Attach,
    subject: &S,
) -> Result<Option<(S::Memory, S::Record)>> {
    let location = &home.location;
    let named = found == FoundBy::Name;
    if !lease(&file, S::LEASE, until, named.then_some(home), location.as_str())? {
        return Ok(None);
    }
    os::step("attach: leased");
    let leased = map_leased(&file, found, home, &mut how, &mut until, subject);
    let Ok(Some((mapped, record, survives))) = leased else {
        // Closing is not enough: a process that another thread is just spawning has a copy of the descriptor until its
        // program runs. A last handle that leaves meanwhile would take the lease for that of an attached process, and
        // keep the name.
        let _ = os::unlock(&file, S::LEASE);
        return leased.map(|_| None);
    };
    let kept = KeptDescriptor::new(file, &home.backend);
    let kept = if how.keep_descriptor { Kept::ForGuards(kept) } else { Kept::ForLease(kept) };
    os::step("attach: mapped");
    let mut memory = subject.enter(Segment::new(mapped, home.clone(), kept), &record, &how)?;
    if let Some((kind, wait)) = how.held {
        let wait = match wait {
            CellWait::Forever => Wait::Forever,
            CellWait::Patience if until.limit().is_zero() => Wait::No,
            CellWait::Patience => Wait::For(until.left()),
        };
        let held = memory.as_mut().hold_all(kind, wait);
        let held =
            held.map_err(|error| error.with_limit(until.limit())).and_then(|now| Ok(!named || is_named(&now, home)?));
        if !matches!(held, Ok(true)) {
            memory.as_mut().release_all();
            return held.map(|_| None);
        }
    }
    os::step("attach: counted");
    subject.finish_attaching(&memory)?;
    if survives && !how.keep_descriptor {
        memory.as_mut().kept = Kept::Nothing;
    }
    Ok(Some((memory, record)))
}

/// Reads and maps a file that is leased. Also returns whether its locks outlive the descriptor. Moves the deadline by
/// the time that filling holes takes.
fn map_leased<S: Subject>(
    file: &File,
    found: FoundBy,
    home: &Home,
    how: &mut Attach,
    until: &mut Deadline,
    subject: &S,
) -> Result<Option<(Mapped, S::Record, bool)>> {
    let Home { backend, location } = home;
    let named = found == FoundBy::Name;
    let facts = look(file, location)?;
    if named && !is_named(&facts, home)? {
        return Ok(None);
    }
    let read = || subject.read(file, &facts, location);
    let record = if S::LEASE == COUNTED { without_plain(file, *until, location, read) } else { read() }?;
    let (mapped, payload) = subject.extent(&record, &facts, how);
    if !how.sparse && os::has_holes(file, &facts) != Some(false) {
        let begun = Instant::now();
        fill_holes(file, &facts, home, S::OPEN_FOR.unwrap_or(how.access))?;
        *until = until.later_by(begun.elapsed()); // own work, which is no wait
    }
    // Queried before anything is counted or used up, because the query can fail. What is known of the directory holds
    // for a file that came as a descriptor only if the file is on that file system.
    let survives = if named {
        backend.lock_survives_close()?
    } else {
        os::is_in_file_system_of(file, backend.path()) && backend.lock_survives_close().unwrap_or(false)
    };
    let sharing = if how.copy_on_write { Sharing::CopyOnWrite } else { Sharing::of(how.access) };
    let map = map_as(file, 0, mapped, sharing, location.as_str())?;
    let mapped = Mapped::new(map, payload, &facts, how.access, location.as_str())?;
    Ok(Some((mapped, record, survives)))
}

/// Takes a lease, waiting while another process holds it exclusively. Returns `Ok(false)` if the name leads elsewhere
/// by then.
pub(super) fn lease(file: &File, lease: LockRange, until: Deadline, home: Option<&Home>, name: &str) -> Result<bool> {
    let failed = |error| Error::os("lease", name, error);
    let mut backoff = Backoff::until(until);
    while !os::try_lock(file, LockKind::Shared, lease).map_err(failed)? {
        if let Some(home) = home {
            if !is_named(&look(file, name)?, home)? {
                return Ok(false);
            }
        }
        if !backoff.pause() {
            return Err(ErrorKind::TimedOut { waited: until.limit() }.at(name));
        }
    }
    Ok(true)
}

/// Takes a lease for a guard, which waits as long as the guard may, but not longer than an attachment does. Fails with
/// `Unlinked` if the name leads elsewhere by then.
pub(super) fn lease_named(turn: &mut Turn, range: LockRange, wait: Wait<'_>, home: &Home) -> Result<()> {
    let patience = wait.limit().map_or(LEASE_WAIT, |limit| limit.min(LEASE_WAIT));
    match lease(turn.file(), range, Deadline::after(patience), Some(home), home.location.as_str()) {
        Ok(true) => turn.note(range),
        Ok(false) => return Err(unlinked(home)),
        Err(Error { kind: ErrorKind::TimedOut { .. }, location, .. }) if patience.is_zero() => {
            return Err(ErrorKind::WouldBlock.at(location));
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Takes the lease of a file on which other processes hold it exclusively for moments at most.
pub(super) fn lease_own(file: &File, range: LockRange, name: &str) -> Result<()> {
    lease_own_until(file, range, Deadline::after(LEASE_WAIT), name)
}

/// As [`lease_own`], with a limit of the caller.
pub(super) fn lease_own_until(file: &File, range: LockRange, until: Deadline, name: &str) -> Result<()> {
    lease(file, range, until, None, name).map(drop)
}

/// Reads the end of a file while no plain attachment exists. In a plain array these bytes are elements, and can have
/// any values, those of a footer included.
///
/// Once no plain lease is held and the footer is ours, no plain attachment can begin. Querying the lease before and
/// after reading is not enough: one writer could leave before the first query and another attach after it.
fn without_plain<R>(file: &File, until: Deadline, location: &Location, read: impl Fn() -> Result<R>) -> Result<R> {
    let failed = |error| Error::os("ask for the lease", location, error);
    let (mut plain, mut counted) = (None, Backoff::until(until));
    while !os::try_lock(file, LockKind::Exclusive, LEASE).map_err(failed)? {
        read()?; // fails at once for a file of another kind
        // A read lock belongs to a plain attachment, which leaves at once when it sees the footer. A write lock belongs
        // to another counted attachment that reads the end, or to a pool.
        if os::is_locked(file, LockKind::Shared, LEASE).map_err(failed)? {
            plain = None;
            if !counted.pause() {
                return Err(ErrorKind::TimedOut { waited: until.limit() }.at(location));
            }
        } else if !plain.get_or_insert_with(|| Backoff::new(PASSING_WAIT.min(until.left()))).pause() {
            let is_over = until.left().is_zero(); // sooner than a plain attachment must have left
            let kind = if is_over { ErrorKind::TimedOut { waited: until.limit() } } else { ErrorKind::NotCounted };
            return Err(kind.at(location));
        }
    }
    let read = read();
    os::step("attach: end read");
    os::unlock(file, LEASE).map_err(failed)?;
    read
}
