//! Frames from one writer to any number of readers: from a camera, a simulation, a decoder.
//!
//! A stream keeps the last frames in a ring of slots. A reader holds a frame without copying it: the writer skips its
//! slot. Readers map the stream read-only and never delay the writer. A [`StreamCursor`] makes the writer wait until
//! its frames are done with.
//!
//! ```
//! use std::time::Duration;
//!
//! use ndarray_shm::ndarray::Ix2;
//! use ndarray_shm::{ErrorKind, StreamReader, StreamWriter};
//!
//! let mut writer = StreamWriter::<u16, _>::create("stream-example", (480, 640), 8)?;
//! let mut reader = StreamReader::<u16, Ix2>::open("stream-example")?; // usually in another process
//!
//! let mut frame = writer.frame()?;
//! frame.view_mut().fill(7);
//! frame.commit()?;
//!
//! let frame = reader.next_wait(Duration::from_secs(1))?;
//! assert_eq!((frame.number(), frame.view()[(479, 639)]), (1, 7));
//!
//! drop(writer); // ends the stream and removes the name
//! assert!(matches!(reader.next_wait(Duration::MAX).unwrap_err().kind, ErrorKind::Closed { .. }));
//! assert_eq!(frame.view()[(0, 0)], 7); // what a reader holds stays
//! # Ok::<(), ndarray_shm::Error>(())
//! ```
//!
//! Not for messages that go to one receiver each: that is what [queues](crate::arena::Queue) are for. Not for arrays of
//! different shapes.
//!
//! # Lifetimes
//!
//! - The name goes when the writer [ends](StreamWriter::end) the stream or is dropped, unless the stream is
//!   [kept](StreamOptions::keep). After a kill it stays for a successor ([`StreamOptions::resume`]), until [`unlink`]
//!   or [`StreamOptions::replace`].
//! - The memory is freed with the name and the last process that has the stream open.
//! - A frame is held as long as its [`Frame`] lives. If the process dies, the kernel frees it at once.
//!
//! # Costs
//!
//! Taking a frame and giving it up are two system calls, about 1.6 µs, and 16 ns more for each lock that any process
//! has on the stream. A reader that waits holds nothing, and wakes ten times a second to ask whether the writer lives.

// From the lowest to the highest: meta and geometry (arithmetic), memory (words and pointers), files (opening and
// checking the two files), cursors, slots (locks), waiting, begin (in which order the files appear and disappear),
// writer, reader, options, inspect. docs/layout/stream.md describes bytes and locks to other languages.
mod begin;
mod cursors;
mod files;
mod geometry;
mod inspect;
mod memory;
mod meta;
mod options;
mod protocol;
mod reader;
mod slots;
mod waiting;
mod writer;

pub use self::cursors::Backpressure;
pub use self::inspect::{CursorInspection, StreamInspection, inspect};
pub use self::meta::MetaField;
pub use self::options::StreamOptions;
pub use self::reader::{Frame, StreamCursor, StreamReader};
pub use self::writer::{NewFrame, StreamWriter};
use crate::backend::{Directory, Location};
use crate::error::Result;
use crate::segment::Home;

/// Removes the name of a stream, damaged or not, whether it has a writer or not. Returns `false` if there was none.
///
/// Processes that have it open go on, the writer included; no process finds it any more.
///
/// # Examples
///
/// ```
/// use ndarray_shm::{StreamWriter, default_directory, stream};
///
/// let writer = StreamWriter::<u8, _>::create("unlink-stream-example", 100, 4)?;
/// let (directory, name) = (default_directory()?, "unlink-stream-example".parse()?);
/// assert!(stream::unlink(&directory, &name)?);
/// assert!(!stream::unlink(&directory, &name)?);
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
///
/// # Errors
///
/// [`PermissionDenied`](crate::ErrorKind::PermissionDenied): this user may not remove the files.
pub fn unlink(backend: &Directory, location: &Location) -> Result<bool> {
    let home = Home { backend: backend.clone(), location: location.clone() };
    begin::remove(&home).map_err(|error| error.about(location))
}

/// Removes a [cursor](StreamCursor) of a stream, so that the writer no longer keeps frames for it. Returns `false` if
/// there was none of this name.
///
/// # Errors
///
/// [`HasReader`](crate::ErrorKind::HasReader): a process reads with it.
/// [`NotFound`](crate::ErrorKind::NotFound): there is no stream of this name.
pub fn unlink_cursor(backend: &Directory, location: &Location, cursor: &str) -> Result<bool> {
    let home = Home { backend: backend.clone(), location: location.clone() };
    let removed = inspect::keeper_of(&home).and_then(|keeper| cursors::unlink(&keeper, cursor, &home));
    removed.map_err(|error| error.about(location))
}
