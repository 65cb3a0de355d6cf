//! Neuroglancer Precomputed volumes.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::open::{NewVolume, ScaleInfo};
use crate::store::Store;
use crate::volume::{ChunkSink, ChunkSource};

fn unsupported(store: &Arc<dyn Store>) -> Error {
    Error::no_volume(store.locate("info"), "it looks like Neuroglancer Precomputed, which is not supported yet")
}

/// Whether such a volume is there.
pub(crate) fn found(store: &Arc<dyn Store>) -> Result<bool> {
    Ok(store.get("info")?.is_some())
}

/// Opens one scale for reading.
pub(crate) fn open(store: Arc<dyn Store>, _mip: usize) -> Result<Box<dyn ChunkSource>> {
    Err(unsupported(&store))
}

/// Opens one scale for reading and writing.
pub(crate) fn open_writable(store: Arc<dyn Store>, _mip: usize) -> Result<Box<dyn ChunkSink>> {
    Err(unsupported(&store))
}

/// Lists the scales.
pub(crate) fn scales(store: &Arc<dyn Store>) -> Result<Vec<ScaleInfo>> {
    Err(unsupported(store))
}

/// Makes a volume.
pub(crate) fn create(store: Arc<dyn Store>, _new: &NewVolume) -> Result<Box<dyn ChunkSink>> {
    Err(unsupported(&store))
}
