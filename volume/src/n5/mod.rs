//! N5 datasets, alone or as the scales of a group, in any store; for reading only.
//!
//! The only module that knows this format. A document describes a dataset or group (`attributes`, `layout`, `scales`),
//! a block records its own size (`block`, `lz4_frames`), and a volume combines both with a store (`volume`). Every
//! document and block is untrusted input.
//!
//! Axes are in N5's own order, x first, which is the fastest in a block: blocks are in F order, like those of
//! Precomputed volumes.

mod attributes;
mod block;
mod layout;
#[cfg(feature = "codecs")]
mod lz4_frames;
mod scales;
mod volume;

use std::sync::Arc;

use self::attributes::{ATTRIBUTES, N5Attributes};
use self::scales::{N5Group, geometry};
use self::volume::N5Volume;
use crate::description::ScaleInfo;
use crate::error::{Error, Result, SourceFailure};
use crate::store::Store;
use crate::volume::ChunkSource;

/// The message for attempts to write the format.
pub(crate) const READ_ONLY: &str =
    "N5 volumes can be read, but not written: write to a Zarr or Precomputed volume instead";

/// Whether a dataset, a group or a container exists.
///
/// A group may have no document: it is recognised by its first scale.
pub(crate) fn found(store: &Arc<dyn Store>) -> Result<bool> {
    for key in [ATTRIBUTES.to_owned(), format!("s0/{ATTRIBUTES}")] {
        if store.get_at_most(&key, attributes::LONGEST)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Opens one scale for reading: a dataset has one scale, a group may have several.
///
/// # Errors
///
/// - [`Source`](crate::Error::Source): there is no dataset or group, the group has no scales (the message lists the
///   datasets in it), the attributes are damaged, or the compression of blocks is not supported;
/// - [`Scale`](crate::Error::Scale): it has fewer scales;
/// - [`UnsupportedDType`](crate::Error::UnsupportedDType): shared memory does not support its element type;
/// - [`Store`](crate::Error::Store): the store cannot be reached.
pub(crate) fn open(store: &Arc<dyn Store>, mip: usize) -> Result<Box<dyn ChunkSource>> {
    let root = N5Attributes::read(store, "")?;
    let missing =
        |volume: String, count: usize| Error::Scale { volume, mip, scales: format!("{count}, counted from 0") };
    if let Some(dataset) = root.as_ref().filter(|root| root.is_dataset()) {
        if mip > 0 {
            return Err(missing(dataset.volume().to_owned(), 1));
        }
        return Ok(Box::new(N5Volume::open(store, dataset, "", |axes| geometry(dataset.json(), None, axes))?));
    }
    let group = N5Group::read(store, root)?;
    let Some(scale) = group.scale(store, mip)? else {
        return Err(match group.count(store)? {
            0 => Error::volume(SourceFailure::NotAVolume, group.volume(), scales::no_dataset(store)),
            count => missing(group.volume().to_owned(), count),
        });
    };
    Ok(Box::new(N5Volume::open(store, &scale.attributes, &scale.path, |axes| group.geometry(&scale, axes))?))
}

/// Lists the scales, the finest first.
///
/// # Errors
///
/// Those of [`open`].
pub(crate) fn scales(store: &Arc<dyn Store>) -> Result<Vec<ScaleInfo>> {
    let info = |volume: N5Volume, key: String| {
        let (meta, geometry) = volume.into_parts();
        ScaleInfo::new(key, meta, geometry.lengths)
    };
    let root = N5Attributes::read(store, "")?;
    if let Some(dataset) = root.as_ref().filter(|root| root.is_dataset()) {
        let volume = N5Volume::open(store, dataset, "", |axes| geometry(dataset.json(), None, axes))?;
        return Ok(vec![info(volume, String::new())]);
    }
    let group = N5Group::read(store, root)?;
    let mut all = Vec::new();
    while let Some(scale) = group.scale(store, all.len())? {
        let volume = N5Volume::open(store, &scale.attributes, &scale.path, |axes| group.geometry(&scale, axes))?;
        all.push(info(volume, scale.path));
    }
    if all.is_empty() {
        return Err(Error::volume(SourceFailure::NotAVolume, group.volume(), scales::no_dataset(store)));
    }
    Ok(all)
}
