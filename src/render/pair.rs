//! How payload and ledger come into being, are found again, and go: the only file that knows in which order.
//!
//! The ledger's name is the right to the buffer. It appears first, by exactly one process; only that process makes the payload, and has
//! BEGINNING of the ledger write-locked until the payload has its name. So a ledger without its payload is young as long as that lock is
//! held, and stale as soon as it is free. A payload without a ledger belongs to no buffer, for the ledger's name also goes first.
//!
//! Whatever is removed is removed by identity, through a descriptor that pins it: what another process began meanwhile under the same
//! names is never touched. The one exception is what a beginner finds under the payload's name: it removes that while it has the
//! ledger's NAME locked, when its ledger cannot lose its name, and no other buffer can begin.

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

/// How long discarding waits for a pool that is just about to use the payload's memory.
const PIN_WAIT: Duration = Duration::from_secs(5);

/// Payload and ledger of one buffer, attached.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) payload: Segment,
    /// The payload's reserved name.
    pub(super) partial: Home,
    pub(super) ledger: LedgerSegment,
}

/// How a buffer is joined, and how it is begun if there is none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Making<'a> {
    pub(super) draft: DraftOptions,
    /// The finished array may take the name of one that exists.
    pub(super) replace: bool,
    /// Where the payload's memory comes from.
    pub(super) pool: Option<&'a Pool>,
    pub(super) shared_with: &'a SharedWith,
    /// What the array will say about itself.
    pub(super) description: Option<&'a Description>,
    /// How long to wait for another process that begins.
    pub(super) timeout: Duration,
}

/// What stands at a buffer's reserved names.
enum FoundPair {
    Pair(Box<Pair>),
    /// No process has begun.
    Nothing,
    /// A process is about to, or something changed under our eyes: look again.
    Beginning,
}

impl Pair {
    /// Attaches to a buffer that another process began.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is none, or it is finished; `TimedOut` if its payload does not appear.
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

    /// Attaches to the buffer with this work, or begins it.
    ///
    /// # Errors
    ///
    /// `Mismatch` if another work is being painted under the name; `AlreadyExists` if an array has it, unless `replace`.
    pub(super) fn open_or_create(home: &Home, work: &RenderSpec, bytes: u64, how: &Making<'_>) -> Result<Self> {
        let mut backoff = Backoff::new(how.timeout);
        loop {
            let found = Self::find(home, how)?;
            if let FoundPair::Pair(pair) = &found {
                work.require(&pair.ledger.record.work, &home.location)?;
            }
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

    /// `Ok(None)`: another process was quicker, or has discarded what this one began.
    fn create(home: &Home, work: &RenderSpec, bytes: u64, how: &Making<'_>) -> Result<Option<Self>> {
        let Making { draft, replace, pool, shared_with, .. } = *how;
        let backend = &home.backend;
        let partial = home.companion(Companion::Partial)?;
        let ledger_home = home.companion(Companion::Ledger)?;
        // It may have the room that is needed.
        remove_without_ledger(backend, &home.location)?;
        // Room is taken only by the one that wins the name, or a crowd of beginners would fill the memory.
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
                // What is new has no room yet, and is of no use to the pool.
                if let (Some(pool), true) = (pool, is_recycled) {
                    pool.keep(payload);
                }
                return Ok(None);
            }
            Err((error, _)) => return Err(error),
        };
        os::step("render: ledger published");
        // From here on the buffer is ours, unless another process discards it.
        let begin = || {
            // A process that finished the buffer between our look and the ledger's name gave the array its name first.
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
                let _the_first_error_counts = ledger.unlink();
                Err(error)
            }
        }
    }

    fn find(home: &Home, how: &Making<'_>) -> Result<FoundPair> {
        let admit = |facts: &os::Facts| how.shared_with.admit(facts, home, how.draft.permissions);
        let Some(ledger) = LedgerFile::open(home, admit)? else { return Ok(FoundPair::Nothing) };
        // Asked before the payload is looked for: when the beginner gives it up, the payload has its name.
        let is_young = ledger.is_young()?;
        let record = ledger.record.clone();
        let stale = |ledger: &LedgerFile| ledger.unlink().map(|_| FoundPair::Nothing);
        if record.boot != os::boot_id() {
            // What was in memory at another boot may not have reached the disk, whatever the ledger says. No process of
            // this boot leases such a ledger; another machine may.
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
            // Finished or discarded, and only the ledger was not cleared away; or its beginner has died.
            _ if !is_young => return stale(&ledger),
            _ => return Ok(FoundPair::Beginning),
        };
        let bytes = record.work.bytes().unwrap_or(u64::MAX);
        // Its room was taken by the one that began it, or was not to be taken.
        let attach = Attach { sparse: true, ..Attach::new(Access::ReadWrite) };
        match Segment::attach_file(payload, &partial, Expect::Payload(bytes), attach) {
            Ok(Some(payload)) => {
                let Some(ledger) = ledger.attach()? else { return Ok(FoundPair::Beginning) };
                // Finished or discarded while we attached?
                if partial.leads_to(record.payload)? && ledger.is_current()? {
                    return Ok(FoundPair::Pair(Box::new(Self { payload, partial, ledger })));
                }
                Ok(FoundPair::Beginning)
            }
            // Another file that has got the number of the one that died with its beginner.
            Err(Error::SizeMismatch { .. }) if !is_young => stale(&ledger),
            Ok(None) | Err(Error::SizeMismatch { .. }) => Ok(FoundPair::Beginning),
            // Another process may have more address space.
            Err(Error::TooLarge { .. }) => Err(record.work.too_large(&home.location)),
            Err(error) => Err(error),
        }
    }
}

/// Waits a little for a process that begins.
fn wait(backoff: &mut Backoff, home: &Home, how: &Making<'_>) -> Result<()> {
    let (location, waited) = (home.location.to_string(), how.timeout);
    if backoff.pause() { Ok(()) } else { Err(Error::TimedOut { location, waited }) }
}

/// BEGINNING of a ledger, write-locked until this is dropped.
struct Beginning(File);

impl Beginning {
    /// Locks it on the draft's own description. A second descriptor gives it up before the mapping goes.
    fn lock(ledger: &DraftSegment, home: &Home) -> Result<Self> {
        let file = ledger.file().file().try_clone();
        file.and_then(|file| os::try_lock(&file, LockKind::Exclusive, BEGINNING).map(|_| Self(file)))
            .map_err(|error| Error::os("begin", &home.location, error))
    }

    /// Does something while no process can take the ledger's name away. `None`: it has gone already.
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
        let _ = os::unlock(&self.0, BEGINNING); // the mapping keeps the description
    }
}

/// Gives the payload its name. What has the name has no ledger: the only one is ours.
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

/// Removes payload and ledger of a buffer, damaged or not; `false` if there was neither.
pub(super) fn discard(backend: &Directory, location: &Location) -> Result<bool> {
    let ledger = remove(backend, &location.companion(Companion::Ledger)?)?;
    os::step("render: ledger removed");
    Ok(remove_without_ledger(backend, location)? || ledger)
}

/// Removes a payload that has no ledger. `Ok(false)`: there is none, or it has one.
fn remove_without_ledger(backend: &Directory, location: &Location) -> Result<bool> {
    let partial = location.companion(Companion::Partial)?;
    let Some((_leased, id)) = pin_leased(backend, &partial)? else { return Ok(false) };
    // A payload gets its name after its ledger: what has a name and no ledger now has lost it for ever.
    Ok(!has_name(backend, &location.companion(Companion::Ledger)?)? && Backend::unlink(backend, &partial, Some(id))?)
}

/// Opens and leases what has the name now. While it is leased, no pool uses its memory for another buffer.
fn pin_leased(backend: &Directory, at: &Location) -> Result<Option<(File, FileId)>> {
    let mut backoff = Backoff::new(PIN_WAIT);
    loop {
        let Some((file, facts)) = pin(backend, at, Access::Read)? else { return Ok(None) };
        if os::try_lock(&file, LockKind::Shared, LEASE).map_err(|error| Error::os("lease", at, error))? {
            return Ok(Some((file, facts.id)));
        }
        // A pool has just taken it back, or is about to let others have it: look again what has the name.
        if !backoff.pause() {
            return Err(Error::TimedOut { location: at.to_string(), waited: PIN_WAIT });
        }
    }
}

/// Refuses, before anything is painted, what could not be replaced when all is.
fn refuse_irreplaceable(home: &Home) -> Result<()> {
    match home.backend.open(&home.location, Access::Read) {
        Err(error @ (Error::PermissionDenied { .. } | Error::NotAnArray { .. })) => Err(error),
        _ => Ok(()),
    }
}

/// Removes the file that has a name now, and no other.
fn remove(backend: &Directory, at: &Location) -> Result<bool> {
    match pin(backend, at, Access::Read)? {
        Some((_pinned, facts)) => Backend::unlink(backend, at, Some(facts.id)),
        None => Ok(false),
    }
}
