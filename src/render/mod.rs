//! Arrays that many painters fill at the same time, chunk by chunk. Killed painters do no harm.
//!
//! A *painter* is a thread or process that paints chunks; a *worker* is a painter that a program starts for that. A
//! painter *claims* a chunk before painting it. A claim is a lock that the kernel releases when the process dies, so
//! that another painter can paint the chunk. A [`RenderBuffer`] gets its public name when all chunks are finished. The
//! next run with the same fingerprint resumes an interrupted one.
//!
//! ```standalone_crate
//! use std::error::Error;
//! use std::time::Duration;
//!
//! use ndarray_shm::ndarray::Ix2;
//! use ndarray_shm::process::{self, Context};
//! use ndarray_shm::{NextClaim, RenderBuffer, unlink};
//!
//! /// Paints chunks until none is left. Every worker runs this.
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
//!     process::init(&[("paint", paint)]); // must come first: in a worker, this runs `paint` and does not return
//!
//!     let buffer = RenderBuffer::<u8, _>::create("render-example", (6, 8), (4, 4), "an image, version 1")?;
//!     if let Err(failure) = process::spawn_workers(2, "paint", &[])?.join() {
//!         eprintln!("{failure}"); // a worker was killed, for example; another worker has painted its chunk
//!     }
//!     let array = buffer.finish()?; // fails if chunks are missing; the next run resumes
//!     assert_eq!(array.read()?.iter().filter(|element| **element == 7).count(), 48);
//!     unlink("render-example")?;
//!     Ok(())
//! }
//! ```
//!
//! Not for a single writer: [`SharedArray::write`](crate::SharedArray::write) is simpler. Not for chunks that change
//! again: a committed chunk cannot be painted again.

// From the lowest to the highest: grid (arithmetic of chunks), ledger (the ledger's bytes), sharing (owners of files),
// pair (payload and ledger: the order in which they appear and disappear), schedule (the order in which chunks are
// tried), claim (views under a lock), buffer (the public type), options (its settings).
//
// Other programs take part in the same protocol of cells and states: docs/layout/renderbuffer.md describes it to
// them, and docs/python/ndshm_painter.py follows it.
mod buffer;
mod claim;
mod grid;
mod ledger;
mod options;
mod pair;
mod schedule;

pub use self::buffer::RenderBuffer;
pub use self::claim::{ChunkClaim, ChunkGuard, Claim, NextClaim, RenderProgress};
pub use self::grid::ChunkGrid;
pub use self::ledger::Ledger;
use self::ledger::LedgerFile;
pub use self::options::RenderOptions;
use crate::array::{Description, description_at};
use crate::backend::{Companion, Directory, Location};
pub use crate::error::OtherWork;
use crate::error::{ErrorKind, Result};
pub use crate::segment::SharedWith;
use crate::segment::{Home, is_attached};

/// Reads the ledger of an unfinished renderbuffer, without attaching to it and without knowing its element type.
///
/// # Examples
///
/// ```
/// use ndarray_shm::{RenderBuffer, default_directory, render};
///
/// let buffer = RenderBuffer::<u8, _>::create("ledger-example", (6, 8), (4, 4), "an example")?;
/// let (directory, name) = (default_directory()?, "ledger-example".parse()?);
/// assert_eq!(render::ledger(&directory, &name)?.shape, [6, 8]);
/// assert!(render::attached(&directory, &name)?);
///
/// drop(buffer); // the unfinished buffer stays and can be resumed
/// assert!(render::discard(&directory, &name)?);
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
///
/// # Errors
///
/// - [`NotFound`](crate::ErrorKind::NotFound): no such buffer was begun, or it is finished.
/// - [`Trailer`](crate::ErrorKind::Trailer): the ledger is damaged.
pub fn ledger(backend: &Directory, location: &Location) -> Result<Ledger> {
    let home = Home { backend: backend.clone(), location: location.clone() };
    let not_found = || Err(ErrorKind::NotFound.at(location));
    let found = LedgerFile::open(&home, |_| Ok(()));
    found.and_then(|found| found.map_or_else(not_found, |ledger| ledger.look())).map_err(|error| error.about(location))
}

/// Returns whether any process is attached to an unfinished renderbuffer.
///
/// [`ledger`] has an example.
///
/// # Errors
///
/// [`NotFound`](crate::ErrorKind::NotFound): no such buffer was begun, or it is finished.
pub fn attached(backend: &Directory, location: &Location) -> Result<bool> {
    is_attached(backend, &location.companion(Companion::Partial)?).map_err(|error| error.about(location))
}

/// Returns the description of the array that an unfinished renderbuffer will be, with its notes.
///
/// Returns `None` if there is none, as [`Directory::description`] does. It is a claim of the process that began the
/// buffer; [`ledger`] says what is painted.
///
/// # Errors
///
/// [`NotFound`](crate::ErrorKind::NotFound): no such buffer was begun, or it is finished. Otherwise those of
/// [`Directory::description`].
pub fn description(backend: &Directory, location: &Location) -> Result<Option<Description>> {
    description_at(backend, &location.companion(Companion::Partial)?).map_err(|error| error.about(location))
}

/// Removes the payload and the ledger of an unfinished renderbuffer, damaged or not. Returns `false` if there was no
/// payload, or if another process has just finished the buffer: then the array stays.
///
/// In painters that are still attached, the next claim fails. [`ledger`] has an example.
///
/// # Errors
///
/// [`PermissionDenied`](crate::ErrorKind::PermissionDenied): this user may not remove the files.
pub fn discard(backend: &Directory, location: &Location) -> Result<bool> {
    pair::discard(backend, location).map_err(|error| error.about(location))
}
