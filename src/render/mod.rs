//! Renderbuffers: arrays that many workers paint at once.
//!
//! Floor 5. Uses segments, locks and views of the floors below; adds the ledger of finished chunks and nothing else that lasts.

mod buffer;
mod claim;
mod grid;
mod ledger;
mod options;
mod pair;
mod sharing;

pub use self::buffer::RenderBuffer;
pub use self::claim::{ChunkClaim, ChunkGuard, Claim, NextClaim, RenderProgress};
pub use self::grid::ChunkGrid;
pub use self::ledger::Ledger;
use self::ledger::LedgerFile;
pub use self::options::RenderOptions;
pub use self::sharing::SharedWith;
use crate::backend::{Companion, Directory, Location};
use crate::error::{Error, Result};
use crate::segment::{Home, is_attached};

/// Reads the ledger of an unfinished renderbuffer, for programs that do not know the type of its elements.
///
/// Looking is not attaching: nobody notices.
///
/// # Errors
///
/// [`NotFound`](crate::Error::NotFound): nobody began it, or it is finished. [`Trailer`](crate::Error::Trailer): it is
/// damaged.
pub fn ledger(backend: &Directory, location: &Location) -> Result<Ledger> {
    let home = Home { backend: backend.clone(), location: location.clone() };
    let not_found = || Err(Error::NotFound { location: location.to_string() });
    let found = LedgerFile::open(&home, |_| Ok(()));
    found.and_then(|found| found.map_or_else(not_found, |ledger| ledger.look())).map_err(|error| error.about(location))
}

/// Whether any process is attached to an unfinished renderbuffer: painting it, waiting for it, or looking on.
///
/// # Errors
///
/// [`NotFound`](crate::Error::NotFound): nobody began it, or it is finished.
pub fn attached(backend: &Directory, location: &Location) -> Result<bool> {
    is_attached(backend, &location.companion(Companion::Partial)?).map_err(|error| error.about(location))
}

/// Removes what an unfinished renderbuffer left, damaged or not; `Ok(false)`: there was nothing.
///
/// Painters that are still at work notice at their next claim.
///
/// # Errors
///
/// [`PermissionDenied`](crate::Error::PermissionDenied).
pub fn discard(backend: &Directory, location: &Location) -> Result<bool> {
    pair::discard(backend, location).map_err(|error| error.about(location))
}
