//! Creates, finds and removes payload and ledger. Only this file knows the order in which they appear and disappear.
//!
//! The ledger's name appears first, and linking it gives exactly one process, the creator, the right to the buffer.
//! Only the creator names the payload. It holds a write lock on BEGINNING of the ledger from before the ledger has its
//! name until the payload has its own. So a ledger without a payload is young while BEGINNING is locked, and stale when
//! it is free. When a buffer is discarded, the ledger's name disappears first. So a payload without a ledger belongs to
//! no buffer. When a buffer is finished, the payload moves to its public name first, and the ledger that remains is
//! stale until it is removed.
//!
//! Files are removed by identity, through an open descriptor that keeps the inode number from being used again. So a
//! buffer that another process began meanwhile under the same names is not touched. A creator that finds a file under
//! the payload's name removes it while it holds NAME of its ledger. Meanwhile no process can remove the ledger's name,
//! and therefore none can begin another buffer.
//!
//! A buffer with other work is replaced if no process is attached to it. The replacer holds BEGINNING and the lease of
//! the old ledger alone while it decides that and removes the ledger's name. A second replacer waits for BEGINNING,
//! then finds the name gone and searches again. A painter that joins meanwhile has leased the payload and waits for the
//! ledger: the replacer sees that, and leaves the buffer to it. Once the name has gone, the payload has no ledger, as
//! after a discard, and is removed in the same way.

use std::cell::Cell;
use std::fs::File;
use std::time::{Duration, Instant};

use super::SharedWith;
use super::ledger::{Boot, LedgerFile, LedgerRecord, LedgerSegment, LockedOut, RenderSpec};
use crate::array::Description;
use crate::backend::lock_space::{ALL_CELLS, BEGINNING, LEASE, NAME};
use crate::backend::{
    Access, Alone, Backend, Companion, Directory, DraftOptions, Location, Pages, Publish, Turn, lock_name,
};
use crate::backoff::{Backoff, Deadline};
use crate::error::{Error, ErrorKind, OtherWork, Result};
use crate::os::{self, FileId, LockKind};
use crate::pool::Pool;
use crate::segment::{Attach, DraftSegment, Expect, Home, Segment, has_name, is_leased, pin};

/// How long discarding waits in total: for a pool that is taking the payload's memory at that moment, and for other
/// processes that change the same names.
const DISCARD_WAIT: Duration = Duration::from_secs(10);

/// How long a lease on the payload can be that of a process that only looks whether the payload has a ledger.
const LOOKING_WAIT: Duration = Duration::from_secs(1);

/// How long a lease can be that of a child that has not begun its own program yet. Until then it has copies of the
/// descriptors of its parent, which may have left the buffer meanwhile.
const SPAWNING_WAIT: Duration = Duration::from_millis(100);

/// The key of the note in which a finished array keeps the digest of its work.
pub(super) const WORK_NOTE: &str = "work";

/// The attached payload and ledger of one buffer, or an array that was finished before.
#[derive(Debug)]
pub(super) struct Pair {
    /// It has its reserved name. Of an array that was finished before: its public name.
    pub(super) payload: Segment,
    pub(super) chunks: ChunkStates,
}

/// Which chunks are finished.
#[derive(Debug)]
pub(super) enum ChunkStates {
    /// Those that the ledger says.
    Ledger(Box<LedgerSegment>),
    /// All: the array was finished when it was found.
    AllDone { work: RenderSpec, total: usize },
}

impl ChunkStates {
    pub(super) fn work(&self) -> &RenderSpec {
        match self {
            Self::Ledger(ledger) => &ledger.record.work,
            Self::AllDone { work, .. } => work,
        }
    }

    /// Returns whether a chunk is finished: see [`LedgerSegment::is_done`].
    pub(super) fn is_done(&self, index: usize) -> bool {
        match self {
            Self::Ledger(ledger) => ledger.is_done(index),
            Self::AllDone { total, .. } => {
                assert!(index < *total, "chunk {index} of {total}");
                true
            }
        }
    }

    /// Marks a chunk as finished: see [`LedgerSegment::set_done`].
    pub(super) fn set_done(&self, index: usize) {
        match self {
            Self::Ledger(ledger) => ledger.set_done(index),
            Self::AllDone { .. } => {}
        }
    }

    /// Returns the number of finished chunks.
    pub(super) fn done(&self) -> usize {
        match self {
            Self::Ledger(ledger) => ledger.done(),
            Self::AllDone { total, .. } => *total,
        }
    }
}

/// How to join a buffer, and how to begin one if there is none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Making<'a> {
    pub(super) draft: DraftOptions,
    /// Whether the finished array may replace an existing one, and this buffer an abandoned one with other work.
    pub(super) replace: bool,
    /// Whether a finished array of the same work is as good as the buffer.
    pub(super) accept_finished: bool,
    /// Where the payload's memory comes from.
    pub(super) pool: Option<&'a Pool>,
    pub(super) shared_with: &'a SharedWith,
    /// The description of the finished array.
    pub(super) description: Option<&'a Description>,
    /// Until when to wait for other processes: a creator that has not named the payload yet, or those that change the
    /// same names.
    pub(super) until: Deadline,
}

/// Result of looking for a buffer under its reserved names.
enum FoundPair {
    Pair(Box<Pair>),
    /// There is a buffer with other work than was asked for.
    OtherWork(Box<OtherPair>),
    /// There is no buffer.
    Nothing,
    /// There is no buffer, but a stale ledger has its name, and this user may not remove it. This error says so.
    Blocked(Error),
    /// A creator has named the ledger and not the payload yet, or the names changed during the search. The caller
    /// retries.
    Beginning,
}

/// Result of looking for a finished array under the public name.
enum FoundArray {
    /// It has the work that was asked for.
    Same(Box<Pair>),
    /// It has other work, or does not say what its work was. This error says so.
    Other(Error),
    /// The name is free.
    Nothing,
}

/// A buffer with other work, opened and not leased.
struct OtherPair {
    ledger: LedgerFile,
    payload: File,
}

impl OtherPair {
    /// Returns the error for work that is not the buffer's. `None`: the buffer changes at this moment, or has changed.
    fn refuse(&self, work: &RenderSpec, home: &Home, how: &Making<'_>) -> Result<Option<Error>> {
        let partial = home.location.companion(Companion::Partial)?;
        let mut spawning = Backoff::new(SPAWNING_WAIT.min(how.until.left()));
        let is_attached = loop {
            let is_attached = self.ledger.is_in_use()? || is_leased(&self.payload, &partial)?;
            if !is_attached || !spawning.pause() {
                break is_attached;
            }
        };
        if self.ledger.is_young()? || !self.ledger.is_current()? {
            return Ok(None);
        }
        let state = if is_attached { OtherWork::Attached } else { OtherWork::Idle };
        Ok(work.require(&self.ledger.record.work, &home.location, state).err())
    }

    /// Removes the ledger, if no process is attached to the buffer. The next creator removes the payload.
    ///
    /// # Errors
    ///
    /// `Mismatch` if a process is attached, be it stopped or a forked child.
    fn replace(&self, work: &RenderSpec, home: &Home, how: &Making<'_>) -> Result<FoundPair> {
        let attached = || {
            if self.ledger.is_current()? {
                work.require(&self.ledger.record.work, &home.location, OtherWork::Attached)?;
            }
            Ok(FoundPair::Beginning)
        };
        let mut spawning = None;
        let _alone = loop {
            match self.ledger.lock_out()? {
                LockedOut::Alone(alone) => break alone,
                LockedOut::Attached => {
                    os::step("render: other painters attached");
                    let begin = || Backoff::new(SPAWNING_WAIT.min(how.until.left()));
                    if !spawning.get_or_insert_with(begin).pause() {
                        return attached();
                    }
                }
                LockedOut::Changing => return Ok(FoundPair::Beginning),
            }
        };
        os::step("render: other painters locked out");
        // A painter leases the payload first and then the ledger, for which it waits now. It was here before: it gets
        // the buffer.
        let mut looking = Backoff::new(LOOKING_WAIT.min(how.until.left()));
        while self.is_payload_in_use(home)? {
            if !looking.pause() {
                return attached();
            }
        }
        match self.ledger.unlink_within(how.until.left()) {
            Ok(true) => {
                os::step("render: other ledger removed");
                Ok(FoundPair::Nothing)
            }
            Ok(false) => Ok(FoundPair::Beginning),
            Err(error) => Err(error),
        }
    }

    /// Returns whether a process has leased the payload, or locked a chunk of it.
    fn is_payload_in_use(&self, home: &Home) -> Result<bool> {
        let claimed = os::is_locked(&self.payload, LockKind::Exclusive, ALL_CELLS);
        let claimed = claimed.map_err(|error| Error::os("query the claims of", &home.location, error))?;
        Ok(claimed || is_leased(&self.payload, &home.location.companion(Companion::Partial)?)?)
    }
}

impl Pair {
    /// Attaches to an existing buffer.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is none, or it is finished; `TimedOut` if its payload does not appear in time.
    pub(super) fn open(home: &Home, how: &Making<'_>) -> Result<Self> {
        let (mut backoff, member) = (Backoff::until(how.until), Cell::new(None));
        loop {
            match Self::find(home, None, how, &member)? {
                FoundPair::Pair(pair) => return Ok(*pair),
                FoundPair::Nothing | FoundPair::Blocked(_) | FoundPair::OtherWork(_) => {
                    return Err(ErrorKind::NotFound.at(&home.location));
                }
                FoundPair::Beginning => wait(&mut backoff, home, how)?,
            }
        }
    }

    /// Attaches to the buffer with this work, or begins one.
    ///
    /// # Errors
    ///
    /// `Mismatch` if the buffer of this name has another work, unless `replace` and no process is attached to it;
    /// `AlreadyExists` if an array has the name, unless `replace`, or `accept_finished` and it has this work.
    pub(super) fn open_or_create(home: &Home, work: &RenderSpec, bytes: u64, how: &Making<'_>) -> Result<Self> {
        let (mut backoff, member) = (Backoff::until(how.until), Cell::new(None));
        loop {
            let mut found = Self::find(home, Some(work), how, &member)?;
            // After the search: a buffer that another process finishes meanwhile gets its public name before its ledger
            // is removed, so it is found either there or here.
            let array =
                if how.accept_finished { Some(Self::find_finished(home, work, bytes, how, &member)?) } else { None };
            if let Some(FoundArray::Same(pair)) = array {
                return Ok(*pair);
            }
            if let (FoundPair::OtherWork(other), false) = (&found, how.replace) {
                match other.refuse(work, home, how)? {
                    Some(error) => return Err(error),
                    None => found = FoundPair::Beginning,
                }
            }
            match array {
                _ if how.replace => refuse_irreplaceable(home)?,
                None => home.refuse_taken()?,
                Some(FoundArray::Other(error)) => return Err(error),
                Some(_) => {} // the name was free; if it is taken by now, `create` or the next search finds the array
            }
            if let FoundPair::OtherWork(other) = &found {
                found = other.replace(work, home, how).map_err(|error| error.about(&home.location))?;
            }
            match found {
                FoundPair::Pair(pair) => return Ok(*pair),
                FoundPair::Nothing => match Self::create(home, work, bytes, how, &member) {
                    Ok(Some(pair)) => return Ok(pair),
                    Ok(None) => {}
                    // Another process has finished a buffer since the search. The next search says whether it had this
                    // work.
                    Err(Error { kind: ErrorKind::AlreadyExists, .. }) if how.accept_finished => continue,
                    Err(error) => return Err(error),
                },
                FoundPair::Blocked(error) => return Err(error),
                FoundPair::Beginning | FoundPair::OtherWork(_) => {}
            }
            wait(&mut backoff, home, how)?;
        }
    }

    /// Begins a buffer. Returns `None` if another process began one first, or discarded this one.
    fn create(
        home: &Home,
        work: &RenderSpec,
        bytes: u64,
        how: &Making<'_>,
        member: &Cell<Option<u32>>,
    ) -> Result<Option<Self>> {
        let Making { draft, replace, pool, shared_with, .. } = *how;
        let backend = &home.backend;
        let partial = home.companion(Companion::Partial)?;
        let ledger_home = home.companion(Companion::Ledger)?;
        os::step("render: about to begin");
        // A payload that a killed process left may occupy the memory that is needed now.
        remove_without_ledger(backend, &home.location, how.until)?;
        // Memory is reserved only after the ledger has its name. Otherwise many processes that begin at the same time
        // could exhaust it, although only one of them succeeds.
        let unreserved = DraftOptions { pages: Pages::Sparse, ..draft };
        let (payload, is_recycled) = match pool {
            Some(pool) => pool.lend(bytes, unreserved)?,
            None => (DraftSegment::new(backend.clone(), bytes, unreserved)?, false),
        };
        let (payload_id, boot, chunks) = (payload.mapped().id(), Boot::current(), work.chunks()?);
        let record = LedgerRecord { work: work.clone(), payload: payload_id, boot, chunks };
        let ledger = LedgerSegment::draft(&ledger_home, &record, DraftOptions { pages: Pages::Base, ..draft })?;
        for file in [&payload, &ledger] {
            shared_with.open_to(file, home, draft.permissions)?;
        }
        let mut own = Beginning::lock(&ledger, home)?;
        let ledger = match ledger.publish(&ledger_home.location, Publish::New, false, None) {
            Ok(segment) => LedgerSegment { segment, record },
            Err((Error { kind: ErrorKind::AlreadyExists, .. }, _)) => {
                // Another process was first. A new draft has no memory yet; recycled memory goes back to the pool.
                if let (Some(pool), true) = (pool, is_recycled) {
                    pool.keep(payload);
                }
                return Ok(None);
            }
            Err((error, _)) => return Err(error),
        };
        os::step("render: ledger published");
        // From here on no other process can begin this buffer, but one can discard it.
        let begin = || {
            // `find` saw no ledger, but another process may have finished a buffer in the meantime. It named the array
            // before it removed the ledger, so the array has its name now.
            if !replace {
                home.refuse_taken()?;
            } else if how.accept_finished
                && matches!(Self::find_finished(home, work, bytes, how, member)?, FoundArray::Same(_))
            {
                return Err(ErrorKind::AlreadyExists.at(&home.location));
            }
            let reserving = Instant::now();
            match pool {
                _ if !draft.pages.are_reserved() => {}
                Some(pool) => pool.making_room(|| payload.reserve(draft.pages))?,
                None => payload.reserve(draft.pages)?,
            }
            let until = how.until.later_by(reserving.elapsed());
            own.while_named(&ledger, until.left(), || publish(payload, &partial, &Making { until, ..*how }))
        };
        match begin() {
            Ok(payload) => Ok(payload.map(|payload| Self { payload, chunks: ChunkStates::Ledger(Box::new(ledger)) })),
            Err(error) => {
                // The first error is returned; a ledger that stays is stale.
                let _ = ledger.unlink_within(how.until.left());
                Err(error)
            }
        }
    }

    /// Looks for a finished array under the public name, and attaches to it if the note of its work is that of this
    /// work.
    fn find_finished(
        home: &Home,
        work: &RenderSpec,
        bytes: u64,
        how: &Making<'_>,
        member: &Cell<Option<u32>>,
    ) -> Result<FoundArray> {
        let taken = || ErrorKind::AlreadyExists.at(&home.location);
        let digest = work.digest();
        let check = |length, text: Option<&[u8]>| {
            // A description of another number of bytes, or of another array, was left by a program that does not know
            // descriptions.
            let described = text.and_then(Description::parse).filter(|found| found.bytes() == length);
            let found = described.as_ref().and_then(|found| found.note(WORK_NOTE)).ok_or_else(taken)?;
            if found != digest {
                let (what, expected, found) = ("work", digest.clone(), found.to_owned());
                let state = OtherWork::Finished;
                return Err(ErrorKind::Mismatch { what, expected, found, state }.at(&home.location));
            }
            let agrees = described.is_some_and(|found| found.agrees_with(work.dtype, &work.shape, work.order));
            if agrees && length == bytes { Ok(()) } else { Err(taken()) }
        };
        let mut backoff = Backoff::until(how.until);
        loop {
            let pinned = match pin(&home.backend, &home.location, Access::ReadWrite) {
                Err(Error { kind: ErrorKind::PermissionDenied { .. }, .. }) => return Ok(FoundArray::Other(taken())),
                other => other?,
            };
            let Some((_pinned, facts)) = pinned else { return Ok(FoundArray::Nothing) };
            how.shared_with.admit(&facts, home, how.draft.permissions, member)?;
            let sparse = !how.draft.pages.are_reserved();
            let attach = Attach { sparse, patience: how.until.left(), ..Attach::new(Access::ReadWrite) };
            match Segment::attach_described(home, attach, check) {
                // While the file is pinned, no other file has its number: this is the file with the owner that was
                // checked.
                Ok((payload, ())) if payload.id() == facts.id => {
                    let chunks = ChunkStates::AllDone { work: work.clone(), total: work.chunks()? };
                    return Ok(FoundArray::Same(Box::new(Self { payload, chunks })));
                }
                Err(error @ Error { kind: ErrorKind::AlreadyExists | ErrorKind::Mismatch { .. }, .. }) => {
                    return Ok(FoundArray::Other(error));
                }
                // A counted array or an arena.
                Err(Error { kind: ErrorKind::Reserved { .. }, .. }) => return Ok(FoundArray::Other(taken())),
                Err(error) if !error.is_not_found() => return Err(error),
                // Replaced or removed meanwhile.
                _ => wait(&mut backoff, home, how)?,
            }
        }
    }

    /// Looks for ledger and payload, and attaches to both, if the buffer has this work. Removes a ledger that is stale.
    /// `member`: see [`SharedWith::admit`].
    fn find(home: &Home, work: Option<&RenderSpec>, how: &Making<'_>, member: &Cell<Option<u32>>) -> Result<FoundPair> {
        let admit = |facts: &os::Facts| how.shared_with.admit(facts, home, how.draft.permissions, member);
        let Some(ledger) = LedgerFile::open(home, admit)? else { return Ok(FoundPair::Nothing) };
        // BEGINNING is queried before the payload is looked for. In the other order, a creator could name the payload
        // and release BEGINNING between the two steps: the payload would seem to be missing, and a live ledger would be
        // removed as stale.
        let is_young = ledger.is_young()?;
        let record = ledger.record.clone();
        let stale = |ledger: &LedgerFile| match ledger.unlink_within(how.until.left()) {
            Ok(_) => Ok(FoundPair::Nothing),
            Err(Error { kind: ErrorKind::PermissionDenied { owner, mode, .. }, .. }) => {
                let reason = "a painter that has died left the ledger of its buffer, and in a directory with the sticky bit only its \
                              owner or root can remove it: have one of them discard the buffer, or choose another name, or a \
                              directory of the group without that bit";
                Ok(FoundPair::Blocked(ErrorKind::PermissionDenied { owner, mode, reason }.at(&home.location)))
            }
            Err(error) => Err(error),
        };
        // After a crash of the machine, chunks that the ledger calls finished may never have reached the disk. No
        // process of this boot leases such a ledger.
        let is_of_this_boot = ledger.is_of_this_boot();
        if is_of_this_boot == Some(false) {
            // If it is leased, the process is on another machine and uses a network file system.
            if ledger.is_in_use()? {
                let (expected, found) = ("this machine, now".into(), "a process of another machine or boot".into());
                let kind = ErrorKind::Mismatch { what: "machine", expected, found, state: OtherWork::Attached };
                return Err(kind.at(&home.location));
            }
            return stale(&ledger);
        }
        let partial = home.companion(Companion::Partial)?;
        let payload = match pin(&home.backend, &partial.location, Access::ReadWrite)? {
            Some((file, facts)) if facts.id == record.payload => {
                admit(&facts)?;
                if work.is_some_and(|work| *work != record.work) {
                    return Ok(FoundPair::OtherWork(Box::new(OtherPair { ledger, payload: file })));
                }
                if is_of_this_boot.is_none() && !ledger.is_in_use()? {
                    return Err(of_unknown_boot(home));
                }
                file
            }
            // The payload is missing, and no creator is about to name it. Either the buffer was finished or discarded
            // and a process died before it removed the ledger, or the creator died.
            _ if !is_young => return stale(&ledger),
            _ => return Ok(FoundPair::Beginning),
        };
        let bytes = record.work.bytes().unwrap_or(u64::MAX); // never: opening the ledger has checked it
        // A creator that chose `Pages::Sparse` left holes. A joiner that did not choose that fills them.
        let sparse = !how.draft.pages.are_reserved();
        let attach = Attach { sparse, patience: how.until.left(), ..Attach::new(Access::ReadWrite) };
        match Segment::attach_file(payload, &partial, Expect::Payload(bytes), attach) {
            Ok(Some(payload)) => {
                let Some(ledger) = ledger.attach(how.until.left())? else { return Ok(FoundPair::Beginning) };
                // Checked again after both leases were taken: the buffer may have been finished or discarded meanwhile.
                if partial.leads_to(record.payload)? && ledger.is_current()? {
                    let chunks = ChunkStates::Ledger(Box::new(ledger));
                    return Ok(FoundPair::Pair(Box::new(Self { payload, chunks })));
                }
                Ok(FoundPair::Beginning)
            }
            // The creator died before the payload had its name, and another file has the inode number of the payload
            // now.
            Err(Error { kind: ErrorKind::SizeMismatch { .. }, .. }) if !is_young => stale(&ledger),
            Ok(None) | Err(Error { kind: ErrorKind::SizeMismatch { .. }, .. }) => Ok(FoundPair::Beginning),
            // The error names the shape; the buffer itself is valid for a process with more address space.
            Err(Error { kind: ErrorKind::TooLarge { .. }, .. }) => Err(record.work.too_large(&home.location)),
            Err(error) => Err(error),
        }
    }
}

/// Returns the error for an idle buffer that may be from before a crash of the machine. It is kept, because it may as
/// well be good.
fn of_unknown_boot(home: &Home) -> Error {
    let what = "this process cannot tell whether the unfinished buffer is from before the machine was started, and its finished \
                chunks may never have reached the disk: let all painters read /proc/sys/kernel/random/boot_id (for systemd, \
                ProcSubset=all), or discard the buffer";
    ErrorKind::Unsupported { what: what.into() }.at(&home.location)
}

/// Pauses before the next attempt. Fails with `TimedOut` when the caller's time limit has passed.
fn wait(backoff: &mut Backoff, home: &Home, how: &Making<'_>) -> Result<()> {
    let waited = how.until.limit();
    if backoff.pause() { Ok(()) } else { Err(ErrorKind::TimedOut { waited }.at(&home.location)) }
}

/// A write lock on BEGINNING of a ledger, until this is dropped.
struct Beginning(Turn);

impl Beginning {
    /// Takes the lock on the draft's own open file description. The mapping also keeps this description, so unlocking
    /// later needs a descriptor of it: this is a duplicate.
    fn lock(ledger: &DraftSegment, home: &Home) -> Result<Self> {
        let failed = |error| Error::os("begin", &home.location, error);
        let mut turn = Turn::new(ledger.file().file().try_clone().map_err(failed)?);
        turn.try_lock(LockKind::Exclusive, BEGINNING).map_err(failed)?; // granted: the file is a draft
        Ok(Self(turn))
    }

    /// Calls `act` under the lock on NAME of the ledger, so that no process can remove the ledger's name meanwhile.
    /// Returns `None` without calling `act` if the name was removed already.
    fn while_named<R>(
        &mut self,
        ledger: &LedgerSegment,
        limit: Duration,
        act: impl FnOnce() -> Result<R>,
    ) -> Result<Option<R>> {
        let location = ledger.segment.location();
        if lock_name(&mut self.0, LockKind::Exclusive, location, limit)? != Alone::Yes {
            return Err(ErrorKind::TimedOut { waited: limit }.at(location));
        }
        let done = ledger.is_current().and_then(|is_current| is_current.then(act).transpose());
        let unlocked = self.0.unlock(NAME).map_err(|error| Error::os("unlock the name", location, error));
        done.and_then(|done| unlocked.map(|()| done))
    }
}

/// Gives the payload its reserved name. The caller holds NAME of the ledger.
///
/// A file that has this name already belongs to no buffer, because the only ledger is that of this process. It is
/// removed.
fn publish(mut payload: DraftSegment, partial: &Home, how: &Making<'_>) -> Result<Segment> {
    os::step("render: about to name the payload");
    let mut backoff = Backoff::until(how.until);
    let text = how.description.map(Description::to_text);
    loop {
        match payload.publish(&partial.location, Publish::New, false, text.as_deref().map(str::as_bytes)) {
            Ok(payload) => return Ok(payload),
            Err((Error { kind: ErrorKind::AlreadyExists, .. }, draft)) => {
                remove(&partial.backend, &partial.location, how.until)?;
                wait(&mut backoff, partial, how)?;
                payload = draft;
            }
            Err((error, _)) => return Err(error),
        }
    }
}

/// Removes payload and ledger of a buffer, damaged or not. Returns `false` if there was no payload, or if the buffer
/// has just been finished: then the payload has become the array.
pub(super) fn discard(backend: &Directory, location: &Location) -> Result<bool> {
    let until = Deadline::after(DISCARD_WAIT);
    let payload = pin(backend, &location.companion(Companion::Partial)?, Access::Read)?;
    let ledger = remove(backend, &location.companion(Companion::Ledger)?, until)?;
    os::step("render: ledger removed");
    if remove_without_ledger(backend, location, until)? {
        return Ok(true);
    }
    // Its painters gave it another name, or another process removed it once its ledger was gone.
    let is_finished = |file: &File| os::LINKS_TELL && os::facts(file).is_ok_and(|facts| facts.links > 0);
    Ok(ledger && payload.is_some_and(|(file, _)| !is_finished(&file)))
}

/// Removes a payload that has no ledger. Returns `false` if there is no such payload, or it has one.
fn remove_without_ledger(backend: &Directory, location: &Location, until: Deadline) -> Result<bool> {
    let partial = location.companion(Companion::Partial)?;
    let Some((_leased, id)) = pin_leased(backend, &partial, until)? else { return Ok(false) };
    // The payload was opened by its name before the ledger is looked for. A creator names the ledger first and the
    // payload second. So this payload has had its ledger: if there is none now, it was removed, and the payload can
    // never be finished.
    if has_name(backend, &location.companion(Companion::Ledger)?)? {
        return Ok(false);
    }
    backend.unlink_within(&partial, Some(id), until.left())
}

/// Opens and leases the file that has the name now. Until the turn is dropped, no pool can recycle its memory for
/// another buffer.
fn pin_leased(backend: &Directory, at: &Location, until: Deadline) -> Result<Option<(Turn, FileId)>> {
    let mut backoff = Backoff::until(until);
    loop {
        let Some((file, facts)) = pin(backend, at, Access::Read)? else { return Ok(None) };
        let mut turn = Turn::new(file);
        if turn.try_lock(LockKind::Shared, LEASE).map_err(|error| Error::os("lease", at, error))? {
            return Ok(Some((turn, facts.id)));
        }
        // A pool holds the lease exclusively: it has just taken the memory back, or is publishing it. The next attempt
        // opens the file that has the name by then.
        if !backoff.pause() {
            return Err(ErrorKind::TimedOut { waited: until.limit() }.at(at));
        }
    }
}

/// Fails early if the name belongs to a file that could not be replaced when the buffer is finished.
fn refuse_irreplaceable(home: &Home) -> Result<()> {
    match home.backend.open(&home.location, Access::Read) {
        Err(error @ Error { kind: ErrorKind::PermissionDenied { .. } | ErrorKind::NotAnArray { .. }, .. }) => {
            Err(error)
        }
        _ => Ok(()),
    }
}

/// Removes the file that has the name at this moment, by identity.
fn remove(backend: &Directory, at: &Location, until: Deadline) -> Result<bool> {
    match pin(backend, at, Access::Read)? {
        Some((_pinned, facts)) => backend.unlink_within(at, Some(facts.id), until.left()),
        None => Ok(false),
    }
}
