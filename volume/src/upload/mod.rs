//! The way back: an array in shared memory becomes a region of a volume.

mod options;

use ndarray_shm::Location;

pub use self::options::{Alignment, UploadOptions};
use crate::bbox::Bbox;
use crate::error::{Error, Result};
use crate::volume::ChunkSink;

/// A finished upload.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Uploaded {
    /// The part of the volume that was written.
    pub bbox: Bbox,
    /// Objects that were stored.
    pub stored: usize,
    /// Objects that hold nothing but background and were therefore left out, or taken away.
    pub background: usize,
    /// Bytes of the array that were written.
    pub bytes: u64,
    /// Bytes that were stored.
    pub stored_bytes: u64,
    /// What went wrong without stopping the work.
    pub warnings: Vec<String>,
}

/// Writes an array in shared memory into a region of a volume.
///
/// The array is only read, and never unlinked. It has the shape of `bbox` and the volume's element type.
///
/// # Errors
///
/// - [`Array`](Error::Array): there is no such array, or its size is another one.
/// - [`Bbox`](Error::Bbox), [`Alignment`](Error::Alignment): the region is not in the volume, or cuts through stored objects.
/// - [`Chunk`](Error::Chunk), [`Store`](Error::Store): an object could not be encoded or stored. Doing it again does no harm.
/// - [`Interrupted`](Error::Interrupted): the flag was raised.
pub fn upload_from_shared_memory(
    sink: &dyn ChunkSink,
    _bbox: &Bbox,
    _location: &Location,
    _options: &UploadOptions<'_>,
) -> Result<Uploaded> {
    Err(Error::no_volume(sink.identity(), "volumes cannot be written yet"))
}
