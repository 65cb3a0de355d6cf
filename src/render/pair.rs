//! How payload and ledger come into being, are found again, and go: the only file that knows in which order.
//!
//! The ledger's name is the right to the buffer. It is published first, by exactly one process; only that process makes
//! the payload. So a ledger without its payload either belongs to someone who is at work, and then it is leased, or to
//! someone who died, and then it is stale. A payload without a ledger belongs to nobody.

use ndarray::Dimension;

use super::ledger::{LedgerSegment, Record, Work, this_boot};
use crate::array::Element;
use crate::array::layout::Layout;
use crate::backend::{Access, Companion, DraftOptions, Publish};
use crate::error::{Error, Result};
use crate::segment::locks::Backoff;
use crate::segment::{Attach, DraftSegment, Expect, Home, Segment, is_attached};

/// Payload and ledger of one buffer, attached.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) payload: Segment,
    /// The payload's reserved name.
    pub(super) partial: Home,
    pub(super) ledger: LedgerSegment,
}

/// What stands at a buffer's reserved names.
enum Found {
    Pair(Box<Pair>),
    /// Nobody has begun.
    Nothing,
    /// Somebody is about to.
    Beginning,
}

impl Pair {
    /// Attaches to a buffer that someone began.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is none, or it is finished.
    pub(super) fn open(home: &Home) -> Result<Self> {
        let mut backoff = Backoff::new(std::time::Duration::MAX);
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
    pub(super) fn open_or_create<T: Element, D: Dimension>(
        home: &Home,
        work: &Work,
        layout: &Layout<D>,
        options: DraftOptions,
        replace: bool,
    ) -> Result<Self> {
        let mut backoff = Backoff::new(std::time::Duration::MAX);
        loop {
            match Self::find(home)? {
                Found::Pair(pair) => {
                    work.require(&pair.ledger.record().work, &home.location)?;
                    return Ok(*pair);
                }
                Found::Nothing => {
                    if !replace {
                        refuse_finished(home)?;
                    }
                    if let Some(pair) = Self::create(home, work, layout.bytes::<T>(), options)? {
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
    fn create(home: &Home, work: &Work, bytes: u64, options: DraftOptions) -> Result<Option<Self>> {
        let backend = &home.backend;
        let partial = Home { backend: backend.clone(), location: home.location.companion(Companion::Partial)? };
        let ledger_home = Home { backend: backend.clone(), location: home.location.companion(Companion::Ledger)? };
        // Room is taken only by the one that wins the name, or a crowd of beginners would fill the memory.
        let unreserved = DraftOptions { sparse: true, ..options };
        let payload = DraftSegment::new(backend.clone(), bytes, unreserved).map_err(|error| error.renamed(&home.location))?;
        let record = Record { work: work.clone(), payload: payload.segment().id(), boot: this_boot() };
        let ledger = LedgerSegment::draft(backend, &record, DraftOptions { sparse: false, ..options })
            .map_err(|error| error.renamed(&home.location))?;
        let ledger = match ledger.publish(&ledger_home.location, Publish::New, false) {
            Ok(segment) => LedgerSegment::of(segment, ledger_home, record)?,
            Err((Error::AlreadyExists { .. }, _)) => return Ok(None),
            Err((error, _)) => return Err(error),
        };
        let made = (|| {
            if !options.sparse {
                payload.reserve().map_err(|error| error.renamed(&home.location))?;
            }
            // Whatever has the name has no ledger: nobody's.
            payload.publish(&partial.location, Publish::Replace, false).map_err(|(error, _)| error)
        })();
        match made {
            Ok(payload) => Ok(Some(Self { payload, partial, ledger })),
            Err(error) => {
                ledger.unlink()?;
                Err(error)
            }
        }
    }

    fn find(home: &Home) -> Result<Found> {
        let partial = Home { backend: home.backend.clone(), location: home.location.companion(Companion::Partial)? };
        let ledger_location = home.location.companion(Companion::Ledger)?;
        // Asked before leasing: our own lease would answer.
        let in_use = match is_attached(&*home.backend, &ledger_location) {
            Err(Error::NotFound { .. }) => return Ok(Found::Nothing),
            other => other?,
        };
        let ledger = match LedgerSegment::attach(&home.backend, &home.location) {
            Err(Error::NotFound { .. } | Error::Unlinked { .. }) => return Ok(Found::Beginning),
            other => other?,
        };
        let record = ledger.record();
        if record.boot != this_boot() && !in_use {
            // What was in memory at the last boot may not have reached the disk, whatever the ledger says.
            ledger.unlink()?;
            home.backend.unlink(&partial.location, None)?;
            return Ok(Found::Nothing);
        }
        let bytes = record.work.bytes().unwrap_or(u64::MAX);
        match Segment::attach(&partial, Expect::Payload(bytes), Attach::new(Access::ReadWrite)) {
            Ok(payload) if payload.id() == record.payload => {
                if ledger.is_current()? {
                    return Ok(Found::Pair(Box::new(Self { payload, partial, ledger })));
                }
                Ok(Found::Beginning)
            }
            Ok(_) | Err(Error::NotFound { .. } | Error::Unlinked { .. } | Error::SizeMismatch { .. }) => {
                if is_finished(home, &ledger)? || !in_use {
                    ledger.unlink()?;
                    return Ok(Found::Nothing);
                }
                Ok(Found::Beginning)
            }
            Err(error) => Err(error.renamed(&home.location)),
        }
    }
}

/// Whether the payload has its public name already, and only the ledger was not cleared away.
fn is_finished(home: &Home, ledger: &LedgerSegment) -> Result<bool> {
    has_public_name(home, ledger.record().payload)
}

/// Whether the public name leads to this file.
pub(super) fn has_public_name(home: &Home, id: crate::os::FileId) -> Result<bool> {
    match home.backend.open(&home.location, Access::Read) {
        Ok(file) => Ok(crate::os::facts(&file).is_ok_and(|facts| facts.id == id)),
        Err(Error::NotFound { .. } | Error::NotAnArray { .. } | Error::PermissionDenied { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

fn refuse_finished(home: &Home) -> Result<()> {
    match home.backend.open(&home.location, Access::Read) {
        Err(Error::NotFound { .. }) => Ok(()),
        Ok(_) | Err(Error::PermissionDenied { .. }) => {
            Err(Error::AlreadyExists { location: home.location.to_string() })
        }
        Err(error) => Err(error),
    }
}
