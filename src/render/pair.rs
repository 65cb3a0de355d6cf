//! Creates, finds and removes payload and ledger. Only this file knows the order in which they appear and disappear.
//!
//! The ledger's name appears first, and linking it gives exactly one process, the creator, the right to the buffer. Only the creator
//! names the payload. It holds a write lock on BEGINNING of the ledger from before the ledger has its name until the payload has its
//! own. So a ledger without a payload is young while BEGINNING is locked, and stale when it is free. When a buffer is discarded, the
//! ledger's name disappears first. So a payload without a ledger belongs to no buffer. When a buffer is finished, the payload moves to
//! its public name first, and the ledger that remains is stale until it is removed.
//!
//! Files are removed by identity, through an open descriptor that keeps the inode number from being used again. So a buffer that another
//! process began meanwhile under the same names is not touched. A creator that finds a file under the payload's name removes it while it
//! holds NAME of its ledger. Meanwhile no process can remove the ledger's name, and therefore none can begin another buffer.

use std::fs::File;
use std::time::Duration;

use super::SharedWith;
use super::ledger::{LedgerFile, LedgerRecord, LedgerSegment, RenderSpec};
use crate::array::Description;
use crate::backend::lock_space::{BEGINNING, LEASE, NAME};
use crate::backend::{Access, Alone, Backend, Companion, Directory, DraftOptions, Location, Pages, Publish, lock_name};
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::os::{self, FileId, LockKind};
use crate::pool::Pool;
use crate::segment::{Attach, DraftSegment, Expect, Home, Segment, has_name, pin};

/// How long discarding waits for a pool that is taking the payload's memory at that moment.
const PIN_WAIT: Duration = Duration::from_secs(5);

/// The attached payload and ledger of one buffer.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) payload: Segment,
    /// The payload's reserved name.
    pub(super) partial: Home,
    pub(super) ledger: LedgerSegment,
}

/// How to join a buffer, and how to begin one if there is none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Making<'a> {
    pub(super) draft: DraftOptions,
    /// Whether the finished array may replace an existing one.
    pub(super) replace: bool,
    /// Where the payload's memory comes from.
    pub(super) pool: Option<&'a Pool>,
    pub(super) shared_with: &'a SharedWith,
    /// The description of the finished array.
    pub(super) description: Option<&'a Description>,
    /// How long to wait for a creator that has not named the payload yet.
    pub(super) timeout: Duration,
}

/// Result of looking for a buffer under its reserved names.
enum FoundPair {
    Pair(Box<Pair>),
    /// There is no buffer.
    Nothing,
    /// A creator has named the ledger and not the payload yet, or the names changed during the search. The caller retries.
    Beginning,
}

impl Pair {
    /// Attaches to an existing buffer.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is none, or it is finished; `TimedOut` if its payload does not appear in time.
    pub(super) fn open(home: &Home, how: &Making<'_>) -> Result<Self> {
        let mut backoff = Backoff::new(how.timeout);
        loop {
            match Self::find(home, how)? {
                FoundPair::Pair(pair) => return Ok(*pair),
                FoundPair::Nothing => return Err(Error::NotFound { location: home.location.to_string() }),
                FoundPair::Beginning => wait(&mut backoff, home, how)?,
            }
        }
    }

    /// Attaches to the buffer with this work, or begins one.
    ///
    /// # Errors
    ///
    /// `Mismatch` if the buffer of this name has another work; `AlreadyExists` if an array has the name, unless `replace`.
    pub(super) fn open_or_create(home: &Home, work: &RenderSpec, bytes: u64, how: &Making<'_>) -> Result<Self> {
        let mut backoff = Backoff::new(how.timeout);
        loop {
            let found = Self::find(home, how)?;
            if let FoundPair::Pair(pair) = &found {
                work.require(&pair.ledger.record.work, &home.location)?;
            }
            // After the search: a buffer that another process finishes meanwhile gets its public name before its ledger is removed, so it
            // is found either there or here.
            if how.replace {
                refuse_irreplaceable(home)?;
            } else {
                home.refuse_taken()?;
            }
            match found {
                FoundPair::Pair(pair) => return Ok(*pair),
                FoundPair::Nothing => {
                    if let Some(pair) = Self::create(home, work, bytes, how)? {
                        return Ok(pair);
                    }
                }
                FoundPair::Beginning => {}
            }
            wait(&mut backoff, home, how)?;
        }
    }

    /// Begins a buffer. Returns `None` if another process began one first, or discarded this one.
    fn create(home: &Home, work: &RenderSpec, bytes: u64, how: &Making<'_>) -> Result<Option<Self>> {
        let Making { draft, replace, pool, shared_with, .. } = *how;
        let backend = &home.backend;
        let partial = home.companion(Companion::Partial)?;
        let ledger_home = home.companion(Companion::Ledger)?;
        // A payload that a killed process left may occupy the memory that is needed now.
        remove_without_ledger(backend, &home.location)?;
        // Memory is reserved only after the ledger has its name. Otherwise many processes that begin at the same time could
        // exhaust it, although only one of them succeeds.
        let unreserved = DraftOptions { pages: Pages::Sparse, ..draft };
        let (payload, is_recycled) = match pool {
            Some(pool) => pool.lend(bytes, unreserved)?,
            None => (DraftSegment::new(backend.clone(), bytes, unreserved)?, false),
        };
        let (payload_id, boot, chunks) = (payload.segment().id(), os::boot_id(), work.chunks()?);
        let record = LedgerRecord { work: work.clone(), payload: payload_id, boot, chunks };
        let ledger = LedgerSegment::draft(&ledger_home, &record, DraftOptions { pages: Pages::Base, ..draft })?;
        for file in [&payload, &ledger] {
            shared_with.open_to(file, home, draft.permissions)?;
        }
        let own = Beginning::lock(&ledger, home)?;
        let ledger = match ledger.publish(&ledger_home.location, Publish::New, false, None) {
            Ok(segment) => LedgerSegment { segment, home: ledger_home, record },
            Err((Error::AlreadyExists { .. }, _)) => {
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
            // `find` saw no ledger, but another process may have finished a buffer in the meantime. It named the array before it
            // removed the ledger, so the array has its name now.
            if !replace {
                home.refuse_taken()?;
            }
            match pool {
                _ if !draft.pages.are_reserved() => {}
                Some(pool) => pool.making_room(|| payload.reserve(draft.pages))?,
                None => payload.reserve(draft.pages)?,
            }
            own.while_named(&ledger, how.timeout, || publish(payload, &partial, how))
        };
        match begin() {
            Ok(payload) => Ok(payload.map(|payload| Self { payload, partial, ledger })),
            Err(error) => {
                let _ = ledger.unlink(); // the first error is returned; a ledger that stays is stale
                Err(error)
            }
        }
    }

    /// Looks for ledger and payload, and attaches to both. Removes a ledger that is stale.
    fn find(home: &Home, how: &Making<'_>) -> Result<FoundPair> {
        let admit = |facts: &os::Facts| how.shared_with.admit(facts, home, how.draft.permissions);
        let Some(ledger) = LedgerFile::open(home, admit)? else { return Ok(FoundPair::Nothing) };
        // BEGINNING is queried before the payload is looked for. In the other order, a creator could name the payload and release
        // BEGINNING between the two steps: the payload would seem to be missing, and a live ledger would be removed as stale.
        let is_young = ledger.is_young()?;
        let record = ledger.record.clone();
        let stale = |ledger: &LedgerFile| ledger.unlink().map(|_| FoundPair::Nothing);
        if record.boot != os::boot_id() {
            // After a crash of the machine, chunks that the ledger calls finished may never have reached the disk. No process of this
            // boot leases such a ledger. If it is leased, the process is on another machine and uses a network file system.
            if ledger.is_in_use()? {
                let location = home.location.to_string();
                let (expected, found) = ("this machine, now".into(), "a process of another machine or boot".into());
                return Err(Error::Mismatch { location, what: "machine", expected, found });
            }
            return stale(&ledger);
        }
        let partial = home.companion(Companion::Partial)?;
        let payload = match pin(&home.backend, &partial.location, Access::ReadWrite)? {
            Some((file, facts)) if facts.id == record.payload => {
                admit(&facts)?;
                file
            }
            // The payload is missing, and no creator is about to name it. Either the buffer was finished or discarded and a process
            // died before it removed the ledger, or the creator died.
            _ if !is_young => return stale(&ledger),
            _ => return Ok(FoundPair::Beginning),
        };
        let bytes = record.work.bytes().unwrap_or(u64::MAX); // never: opening the ledger has checked it
        // Sparse: attaching reserves nothing. The creator has reserved the memory, unless its options said not to.
        let attach = Attach { sparse: true, ..Attach::new(Access::ReadWrite) };
        match Segment::attach_file(payload, &partial, Expect::Payload(bytes), attach) {
            Ok(Some(payload)) => {
                let Some(ledger) = ledger.attach()? else { return Ok(FoundPair::Beginning) };
                // Checked again after both leases were taken: the buffer may have been finished or discarded meanwhile.
                if partial.leads_to(record.payload)? && ledger.is_current()? {
                    return Ok(FoundPair::Pair(Box::new(Self { payload, partial, ledger })));
                }
                Ok(FoundPair::Beginning)
            }
            // The creator died before the payload had its name, and another file has the inode number of the payload now.
            Err(Error::SizeMismatch { .. }) if !is_young => stale(&ledger),
            Ok(None) | Err(Error::SizeMismatch { .. }) => Ok(FoundPair::Beginning),
            // The error names the shape; the buffer itself is valid for a process with more address space.
            Err(Error::TooLarge { .. }) => Err(record.work.too_large(&home.location)),
            Err(error) => Err(error),
        }
    }
}

/// Pauses before the next attempt. Fails with `TimedOut` when the caller's time limit has passed.
fn wait(backoff: &mut Backoff, home: &Home, how: &Making<'_>) -> Result<()> {
    let (location, waited) = (home.location.to_string(), how.timeout);
    if backoff.pause() { Ok(()) } else { Err(Error::TimedOut { location, waited }) }
}

/// A write lock on BEGINNING of a ledger, until this is dropped.
struct Beginning(File);

impl Beginning {
    /// Takes the lock on the draft's own open file description. The mapping also keeps this description, so unlocking later needs
    /// a descriptor of it: this is a duplicate.
    fn lock(ledger: &DraftSegment, home: &Home) -> Result<Self> {
        let file = ledger.file().file().try_clone();
        file.and_then(|file| os::try_lock(&file, LockKind::Exclusive, BEGINNING).map(|_| Self(file)))
            .map_err(|error| Error::os("begin", &home.location, error))
    }

    /// Calls `act` under the lock on NAME of the ledger, so that no process can remove the ledger's name meanwhile. Returns `None`
    /// without calling `act` if the name was removed already.
    fn while_named<R>(
        &self,
        ledger: &LedgerSegment,
        limit: Duration,
        act: impl FnOnce() -> Result<R>,
    ) -> Result<Option<R>> {
        if lock_name(&self.0, LockKind::Exclusive, &ledger.home.location, limit)? != Alone::Yes {
            return Err(Error::TimedOut { location: ledger.home.location.to_string(), waited: limit });
        }
        let done = ledger.is_current().and_then(|is_current| is_current.then(act).transpose());
        let unlocked =
            os::unlock(&self.0, NAME).map_err(|error| Error::os("unlock the name", &ledger.home.location, error));
        done.and_then(|done| unlocked.map(|()| done))
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        // Closing the descriptor does not unlock: the mapping keeps the description. If this fails, BEGINNING is released with it.
        let _ = os::unlock(&self.0, BEGINNING);
    }
}

/// Gives the payload its reserved name. The caller holds NAME of the ledger.
///
/// A file that has this name already belongs to no buffer, because the only ledger is that of this process. It is removed.
fn publish(mut payload: DraftSegment, partial: &Home, how: &Making<'_>) -> Result<Segment> {
    os::step("render: about to name the payload");
    let mut backoff = Backoff::new(how.timeout);
    let text = how.description.map(Description::to_text);
    loop {
        match payload.publish(&partial.location, Publish::New, false, text.as_deref().map(str::as_bytes)) {
            Ok(payload) => return Ok(payload),
            Err((Error::AlreadyExists { .. }, draft)) => {
                remove(&partial.backend, &partial.location)?;
                wait(&mut backoff, partial, how)?;
                payload = draft;
            }
            Err((error, _)) => return Err(error),
        }
    }
}

/// Removes payload and ledger of a buffer, damaged or not. Returns `false` if there was neither.
pub(super) fn discard(backend: &Directory, location: &Location) -> Result<bool> {
    let ledger = remove(backend, &location.companion(Companion::Ledger)?)?;
    os::step("render: ledger removed");
    Ok(remove_without_ledger(backend, location)? || ledger)
}

/// Removes a payload that has no ledger. Returns `false` if there is no such payload, or it has one.
fn remove_without_ledger(backend: &Directory, location: &Location) -> Result<bool> {
    let partial = location.companion(Companion::Partial)?;
    let Some((_leased, id)) = pin_leased(backend, &partial)? else { return Ok(false) };
    // The payload was opened by its name before the ledger is looked for. A creator names the ledger first and the payload second. So
    // this payload has had its ledger: if there is none now, it was removed, and the payload can never be finished.
    Ok(!has_name(backend, &location.companion(Companion::Ledger)?)? && Backend::unlink(backend, &partial, Some(id))?)
}

/// Opens and leases the file that has the name now. While it is leased, no pool can recycle its memory for another buffer.
fn pin_leased(backend: &Directory, at: &Location) -> Result<Option<(File, FileId)>> {
    let mut backoff = Backoff::new(PIN_WAIT);
    loop {
        let Some((file, facts)) = pin(backend, at, Access::Read)? else { return Ok(None) };
        if os::try_lock(&file, LockKind::Shared, LEASE).map_err(|error| Error::os("lease", at, error))? {
            return Ok(Some((file, facts.id)));
        }
        // A pool holds the lease exclusively: it has just taken the memory back, or is publishing it. The next attempt opens the
        // file that has the name by then.
        if !backoff.pause() {
            return Err(Error::TimedOut { location: at.to_string(), waited: PIN_WAIT });
        }
    }
}

/// Fails early if the name belongs to a file that could not be replaced when the buffer is finished.
fn refuse_irreplaceable(home: &Home) -> Result<()> {
    match home.backend.open(&home.location, Access::Read) {
        Err(error @ (Error::PermissionDenied { .. } | Error::NotAnArray { .. })) => Err(error),
        _ => Ok(()),
    }
}

/// Removes the file that has the name at this moment, by identity.
fn remove(backend: &Directory, at: &Location) -> Result<bool> {
    match pin(backend, at, Access::Read)? {
        Some((_pinned, facts)) => Backend::unlink(backend, at, Some(facts.id)),
        None => Ok(false),
    }
}
