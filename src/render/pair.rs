//! How payload and ledger come into being, are found again, and go: the only file that knows in which order.
//!
//! The ledger's name is the right to the buffer. It is published first, by exactly one process; only that process makes
//! the payload. So a ledger without its payload either belongs to someone who is at work, and then it is leased, or to
//! someone who died, and then it is stale. A payload without a ledger belongs to nobody.
//!
//! Whatever is removed is removed by identity, through a descriptor that pins it: what somebody else began meanwhile under
//! the same names is never touched.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use super::ledger::{LedgerFile, LedgerSegment, Record, Work};
use crate::backend::lock_space::LEASE;
use crate::backend::{Access, Backend, Companion, DraftOptions, Location, Pages, Publish};
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::os::{self, FileId, LockKind};
use crate::pool::Pool;
use crate::segment::{Attach, DraftSegment, Expect, Home, Segment};

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

/// How a buffer is begun, if it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Making<'a> {
    pub(super) draft: DraftOptions,
    /// The finished array may take the name of one that exists.
    pub(super) replace: bool,
    /// Where the payload's memory comes from.
    pub(super) pool: Option<&'a Pool>,
}

/// What stands at a buffer's reserved names.
enum Found {
    Pair(Box<Pair>),
    /// Nobody has begun.
    Nothing,
    /// Somebody is about to, or something changed under our eyes: look again.
    Beginning,
}

impl Pair {
    /// Attaches to a buffer that someone began.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is none, or it is finished.
    pub(super) fn open(home: &Home) -> Result<Self> {
        let mut backoff = Backoff::endless();
        loop {
            match Self::find(home)? {
                Found::Pair(pair) => return Ok(*pair),
                Found::Nothing => return Err(Error::NotFound { location: home.location.to_string() }),
                Found::Beginning => backoff.pause(),
            };
        }
    }

    /// Attaches to the buffer with this work, or begins it.
    ///
    /// # Errors
    ///
    /// `Mismatch` if another work is being painted under the name; `AlreadyExists` if an array has it, unless `replace`.
    pub(super) fn open_or_create(home: &Home, work: &Work, bytes: u64, how: &Making<'_>) -> Result<Self> {
        let mut backoff = Backoff::endless();
        loop {
            let found = Self::find(home)?;
            if let Found::Pair(pair) = &found {
                work.require(&pair.ledger.record().work, &home.location)?;
            }
            if how.replace {
                refuse_irreplaceable(home)?;
            } else {
                home.refuse_taken()?;
            }
            match found {
                Found::Pair(pair) => return Ok(*pair),
                Found::Nothing => {
                    if let Some(pair) = Self::create(home, work, bytes, how)? {
                        return Ok(pair);
                    }
                }
                Found::Beginning => {
                    backoff.pause();
                }
            }
        }
    }

    /// `Ok(None)`: somebody else was quicker.
    fn create(home: &Home, work: &Work, bytes: u64, making: &Making<'_>) -> Result<Option<Self>> {
        let Making { draft: how, replace, pool } = *making;
        let backend = &home.backend;
        let partial = companion(home, Companion::Partial)?;
        let ledger_home = companion(home, Companion::Ledger)?;
        // Room is taken only by the one that wins the name, or a crowd of beginners would fill the memory.
        let unreserved = DraftOptions { pages: Pages::Sparse, ..how };
        let (mut payload, is_recycled) = match pool {
            Some(pool) => pool.lend(bytes, unreserved)?,
            None => (DraftSegment::new(Arc::clone(backend), bytes, unreserved)?, false),
        };
        let record = Record { work: work.clone(), payload: payload.segment().id(), boot: os::boot_id() };
        let ledger = LedgerSegment::draft(backend, &record, DraftOptions { pages: Pages::Base, ..how })?;
        let ledger = match ledger.publish(&ledger_home.location, Publish::New, false) {
            Ok(segment) => LedgerSegment::of(segment, ledger_home, record)?,
            Err((Error::AlreadyExists { .. }, _)) => {
                // What is new has no room yet, and is of no use to the pool.
                if let (Some(pool), true) = (pool, is_recycled) {
                    pool.keep(payload);
                }
                return Ok(None);
            }
            Err((error, _)) => return Err(error),
        };
        // From here on the buffer is ours, unless somebody discards it.
        let make = || {
            // Whoever finished between our look and the ledger's name gave the array its name first.
            if !replace {
                home.refuse_taken()?;
            }
            // A payload that is there has no ledger, so it is nobody's; it may have the room that is needed.
            remove(&**backend, &partial.location)?;
            match pool {
                _ if !how.pages.are_reserved() => Ok(()),
                Some(pool) => pool.making_room(|| payload.reserve(how.pages)),
                None => payload.reserve(how.pages),
            }
        };
        if let Err(error) = make() {
            let _the_first_error_counts = ledger.unlink();
            return Err(error);
        }
        loop {
            match payload.publish(&partial.location, Publish::New, false) {
                Ok(payload) if ledger.is_current()? => return Ok(Some(Self { payload, partial, ledger })),
                Ok(payload) => {
                    backend.unlink(&partial.location, Some(payload.id()))?;
                    return Ok(None); // discarded meanwhile
                }
                Err((Error::AlreadyExists { .. }, draft)) => {
                    if !ledger.is_current()? {
                        return Ok(None);
                    }
                    remove(&**backend, &partial.location)?;
                    payload = draft;
                }
                Err((error, _)) => {
                    let _the_first_error_counts = ledger.unlink();
                    return Err(error);
                }
            }
        }
    }

    fn find(home: &Home) -> Result<Found> {
        let Some(ledger) = LedgerFile::open(home)? else { return Ok(Found::Nothing) };
        // Asked before leasing: our own lease would answer others who ask.
        let in_use = ledger.is_in_use()?;
        let record = ledger.record().clone();
        let stale = |ledger: &LedgerFile| ledger.unlink().map(|_| Found::Nothing);
        if record.boot != os::boot_id() {
            // What was in memory at another boot may not have reached the disk, whatever the ledger says. Nobody of this
            // boot leases such a ledger; another machine may.
            if in_use {
                let location = home.location.to_string();
                let (expected, found) = ("this machine, now".into(), "a process of another machine or boot".into());
                return Err(Error::Mismatch { location, what: "machine", expected, found });
            }
            return stale(&ledger);
        }
        let partial = companion(home, Companion::Partial)?;
        let bytes = record.work.bytes().unwrap_or(u64::MAX);
        // Its room was taken by the one that began it, or was not to be taken.
        let how = Attach { sparse: true, ..Attach::new(Access::ReadWrite) };
        match Segment::attach(&partial, Expect::Payload(bytes), how) {
            Ok(payload) if payload.id() == record.payload => {
                let Some(ledger) = ledger.attach()? else { return Ok(Found::Beginning) };
                // Finished or discarded while we attached?
                if partial.leads_to(record.payload)? && ledger.is_current()? {
                    return Ok(Found::Pair(Box::new(Self { payload, partial, ledger })));
                }
                Ok(Found::Beginning)
            }
            Ok(_) | Err(Error::NotFound { .. } | Error::Unlinked { .. } | Error::SizeMismatch { .. }) => {
                // Finished, and only the ledger was not cleared away; or begun by somebody who died.
                if home.leads_to(record.payload)? || !in_use {
                    return stale(&ledger);
                }
                Ok(Found::Beginning)
            }
            // Another process may have more address space.
            Err(Error::TooLarge { location, .. }) => {
                let Work { shape, dtype, .. } = record.work;
                Err(Error::TooLarge { location, shape, item: dtype.size() })
            }
            Err(error) => Err(error),
        }
    }
}

/// Removes payload and ledger of a buffer, damaged or not; `false` if there was neither.
pub(super) fn discard(backend: &dyn Backend, location: &Location) -> Result<bool> {
    // The payload is opened before the ledger goes, so that it is not the one of somebody who begins in between.
    let partial = location.companion(Companion::Partial)?;
    let payload = pin_leased(backend, &partial)?;
    let ledger = remove(backend, &location.companion(Companion::Ledger)?)?;
    let payload = match payload {
        Some((_pinned, id)) => backend.unlink(&partial, Some(id))?,
        None => false,
    };
    Ok(ledger || payload)
}

/// Opens and leases what has the name now. Leased, it is nobody's to use again: a pool could make it the payload of a buffer that
/// somebody begins meanwhile.
fn pin_leased(backend: &dyn Backend, at: &Location) -> Result<Option<(File, FileId)>> {
    let mut backoff = Backoff::new(PIN_WAIT);
    loop {
        let Some((file, id)) = pin(backend, at)? else { return Ok(None) };
        if os::try_lock(&file, LockKind::Shared, LEASE).map_err(|error| Error::os("lease", at, error))? {
            return Ok(Some((file, id)));
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

fn companion(home: &Home, kind: Companion) -> Result<Home> {
    Ok(Home { backend: Arc::clone(&home.backend), location: home.location.companion(kind)? })
}

/// Removes the file that has a name now, and no other.
fn remove(backend: &dyn Backend, at: &Location) -> Result<bool> {
    match pin(backend, at)? {
        Some((_pinned, id)) => backend.unlink(at, Some(id)),
        None => Ok(false),
    }
}

/// Opens what has a name: as long as the descriptor lives, its identity is not reused.
fn pin(backend: &dyn Backend, at: &Location) -> Result<Option<(File, FileId)>> {
    let file = match backend.open(at, Access::Read) {
        Err(Error::NotFound { .. }) => return Ok(None),
        other => other?,
    };
    let facts = os::facts(&file).map_err(|error| Error::os("look at", at, error))?;
    Ok(Some((file, facts.id)))
}
