//! Arrays that many workers paint at once, chunk by chunk, and that survive the death of any of them.
//!
//! A [`RenderBuffer`] has its public name only when all chunks are finished. Until then workers *claim* chunks: the claim is a lock
//! that the kernel releases when its process dies, so that another worker paints the chunk. A run that was interrupted is
//! resumed by the next one with the same fingerprint.
//!
//! ```standalone_crate
//! use std::error::Error;
//! use std::time::Duration;
//!
//! use ndarray_shm::ndarray::Ix2;
//! use ndarray_shm::process::{self, Context};
//! use ndarray_shm::{NextClaim, RenderBuffer, unlink};
//!
//! /// What every worker does: paints what the others have not.
//! fn paint(_: &Context) -> Result<(), Box<dyn Error>> {
//!     let buffer = RenderBuffer::<u8, Ix2>::open("render-example")?;
//!     while let NextClaim::Chunk(mut chunk) = buffer.claim_next_wait(Duration::MAX)? {
//!         chunk.view_mut().fill(7);
//!         chunk.commit()?;
//!     }
//!     Ok(())
//! }
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     process::init(&[("paint", paint)]); // first thing: a worker is this program started anew, and goes no further
//!
//!     let buffer = RenderBuffer::<u8, _>::create("render-example", (6, 8), (4, 4), "an image, version 1")?;
//!     if let Err(failure) = process::spawn_workers(2, "paint", &[])?.join() {
//!         eprintln!("{failure}"); // it was killed, say; the others have painted its chunk
//!     }
//!     let array = buffer.finish()?; // an error if chunks are missing: the next run goes on there
//!     assert_eq!(array.read()?.iter().filter(|element| **element == 7).count(), 48);
//!     unlink("render-example")?;
//!     Ok(())
//! }
//! ```
//!
//! Not for one writer, for which [`SharedArray::write`](crate::SharedArray::write) is simpler, and not for chunks that change again:
//! a committed chunk stays as it is.

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
/// Looking is not attaching: no process notices.
///
/// # Examples
///
/// ```
/// use ndarray_shm::{RenderBuffer, default_backend, render};
///
/// let buffer = RenderBuffer::<u8, _>::create("ledger-example", (6, 8), (4, 4), "an example")?;
/// let (directory, name) = (default_backend()?, "ledger-example".parse()?);
/// assert_eq!(render::ledger(&directory, &name)?.shape, [6, 8]);
/// assert!(render::attached(&directory, &name)?);
///
/// drop(buffer); // unfinished: it stays, to be resumed
/// assert!(render::discard(&directory, &name)?);
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
///
/// # Errors
///
/// [`NotFound`](crate::Error::NotFound): it was not begun, or it is finished. [`Trailer`](crate::Error::Trailer): it is
/// damaged.
pub fn ledger(backend: &Directory, location: &Location) -> Result<Ledger> {
    let home = Home { backend: backend.clone(), location: location.clone() };
    let not_found = || Err(Error::NotFound { location: location.to_string() });
    let found = LedgerFile::open(&home, |_| Ok(()));
    found.and_then(|found| found.map_or_else(not_found, |ledger| ledger.look())).map_err(|error| error.about(location))
}

/// Whether any process is attached to an unfinished renderbuffer: painting it, waiting for it, or looking on. [`ledger`] has an example.
///
/// # Errors
///
/// [`NotFound`](crate::Error::NotFound): it was not begun, or it is finished.
pub fn attached(backend: &Directory, location: &Location) -> Result<bool> {
    is_attached(backend, &location.companion(Companion::Partial)?).map_err(|error| error.about(location))
}

/// Removes what an unfinished renderbuffer left, damaged or not; `Ok(false)`: there was nothing.
///
/// Painters that are still at work notice at their next claim. [`ledger`] has an example.
///
/// # Errors
///
/// [`PermissionDenied`](crate::Error::PermissionDenied).
pub fn discard(backend: &Directory, location: &Location) -> Result<bool> {
    pair::discard(backend, location).map_err(|error| error.about(location))
}
