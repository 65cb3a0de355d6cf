//! Neuroglancer Precomputed: volumes of the axes x, y, z and channel, described by a document called `info`.
//!
//! The only module that knows this format. It reads and writes single chunks, and reads shards. Every document, index
//! and chunk is untrusted input. The encodings of elements are in `encoding` and the modules that it uses, which know
//! no stores.

mod create;
mod encoding;
mod existing;
mod info;
mod jpeg;
mod key;
mod names;
mod pictures;
mod segmentation;
mod sharding;
mod shards;
mod volume;

use std::sync::Arc;

pub(crate) use self::create::create;
use self::info::{INFO, Info};
use self::volume::PrecomputedVolume;
use crate::description::{Encoding, ScaleInfo};
use crate::error::Result;
use crate::store::Store;
use crate::volume::{ChunkSink, ChunkSource};

/// Unit of resolutions.
const UNIT: &str = "nm";

/// Whether there is an `info` document. Its content is checked when it is opened.
pub(crate) fn found(store: &Arc<dyn Store>) -> Result<bool> {
    Ok(store.get(INFO)?.is_some())
}

/// Opens a scale for reading.
///
/// # Errors
///
/// - [`Source`](crate::Error::Source): there is no such volume, its description is damaged or describes something else,
///   or the encoding of its chunks is not supported;
/// - [`Scale`](crate::Error::Scale): it has fewer scales;
/// - [`UnsupportedDType`](crate::Error::UnsupportedDType): shared memory does not support its element type;
/// - [`Store`](crate::Error::Store): the store cannot be reached.
pub(crate) fn open(store: Arc<dyn Store>, mip: usize) -> Result<Box<dyn ChunkSource>> {
    Ok(Box::new(PrecomputedVolume::open(store, mip)?))
}

/// Opens a scale for reading and writing.
///
/// Chunks that are raw or `compressed_segmentation` are wrapped in gzip if the volume was created so: the caller may
/// know (`made`), and existing chunks in a directory show it. Without either they are wrapped in remote stores, as
/// CloudVolume does, and not in directories.
///
/// # Errors
///
/// Those of [`open`], and [`Source`](crate::Error::Source) if the scale is sharded, its chunks are named in two
/// layouts, or, in a bucket, in nested directories.
pub(crate) fn open_writable(store: Arc<dyn Store>, mip: usize, made: Option<Encoding>) -> Result<Box<dyn ChunkSink>> {
    let packs = made.map(|encoding| create::packs(encoding, store.is_remote()));
    Ok(Box::new(PrecomputedVolume::open(store, mip)?.writable(packs)?))
}

/// Lists the scales, the finest first. Scales with unreadable chunks are included.
///
/// # Errors
///
/// Those of [`open`], except for unsupported encodings.
pub(crate) fn scales(store: &Arc<dyn Store>) -> Result<Vec<ScaleInfo>> {
    let scales = Info::read(&**store)?.scales.into_iter();
    let described = scales.map(|scale| ScaleInfo {
        key: scale.key,
        meta: scale.meta,
        resolution: scale.resolution,
        unit: UNIT.to_owned(),
    });
    Ok(described.collect())
}
