//! Zarr arrays, versions 2 and 3, and pyramids of them (OME-Zarr), in any store.
//!
//! The only module besides `demo` that uses the crate zarrs. No type of zarrs leaves it; error messages of zarrs do, as
//! causes.
//!
//! A document describes an array or group (`document`, `multiscales`), with its codecs in the spelling of zarrs
//! (`spelling`). Codecs convert a chunk to bytes and back (`codecs`, `unpack`, `shard_index`; `extensions` has those
//! that zarrs lacks). An array combines both with a store (`array`, `indexes`, `sink`).

mod array;
mod checksum;
mod codec_settings;
mod codecs;
mod configuration;
mod create;
mod delta;
mod document;
mod extensions;
mod growing;
mod indexes;
#[cfg(feature = "codecs")]
mod lz4;
#[cfg(feature = "codecs")]
mod lzma;
mod multiscales;
#[cfg(feature = "codecs")]
mod pcodec;
mod place;
mod prepare;
mod shard_index;
mod sink;
mod spelling;

use std::sync::Arc;

use serde_json::Value;

use self::array::ZarrArray;
pub(crate) use self::codec_settings::{options as codec_options, without_pool};
pub(crate) use self::create::{check, dimension_units, sharding_codec};
use self::document::Document;
pub(crate) use self::growing::{GrowingArray, attributes, group, read_rows};
use self::multiscales::Multiscales;
pub use self::prepare::prepare;
use crate::description::{Lengths, NewVolume, ScaleInfo};
use crate::error::{Error, Result, SourceFailure};
use crate::store::Store;
use crate::volume::{ChunkSink, ChunkSource, VolumeKind};

/// Whether a Zarr array or group is there.
pub(crate) fn found(store: &Arc<dyn Store>) -> Result<bool> {
    for file in [document::V3, document::V2, document::V2_GROUP] {
        if store.get(file)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Opens one scale for reading: an array has one scale, a group may have several.
///
/// # Errors
///
/// - [`Source`](Error::Source): there is no array or group, the group has no scales (the message lists its arrays), the
///   metadata is damaged, or a codec or the chunk grid is not supported;
/// - [`Scale`](Error::Scale): it has fewer scales;
/// - [`UnsupportedDType`](Error::UnsupportedDType): shared memory does not support its element type.
pub(crate) fn open(store: &Arc<dyn Store>, mip: usize) -> Result<Box<dyn ChunkSource>> {
    Ok(Box::new(open_scale(store, mip)?))
}

/// Opens one scale for reading and writing.
///
/// # Errors
///
/// Those of [`open`].
pub(crate) fn open_writable(store: &Arc<dyn Store>, mip: usize) -> Result<Box<dyn ChunkSink>> {
    Ok(Box::new(open_scale(store, mip)?))
}

/// Lists the scales, the finest first.
///
/// # Errors
///
/// Those of [`open`].
pub(crate) fn scales(store: &Arc<dyn Store>) -> Result<Vec<ScaleInfo>> {
    let document = root(store)?;
    if document.is_array() {
        let meta = ZarrArray::open(store, &document)?.meta;
        let lengths = create::lengths(&document.attributes(store)?, meta.shape.len()).unwrap_or_default();
        return Ok(vec![ScaleInfo::new(String::new(), meta, lengths)]);
    }
    let scales = Multiscales::read(store, &document)?;
    let info = |dataset: &multiscales::Dataset| {
        let array = open_dataset(store, &document, &scales, dataset)?;
        Ok(ScaleInfo::new(dataset.path.clone(), array.meta, array.lengths))
    };
    scales.datasets.iter().map(info).collect()
}

/// Creates an array without chunks.
///
/// # Errors
///
/// [`Source`](Error::Source): the place is not empty. [`NewVolume`](Error::NewVolume): Zarr does not support what is
/// asked for. [`Store`](Error::Store): the metadata cannot be written.
pub(crate) fn create(store: &Arc<dyn Store>, new: &NewVolume) -> Result<Box<dyn ChunkSink>> {
    let mut array = create::create(store, new)?;
    array.lengths = Lengths { resolution: new.resolution.clone(), unit: new.unit.clone(), ..Lengths::default() };
    Ok(Box::new(array))
}

fn root(store: &Arc<dyn Store>) -> Result<Document> {
    Document::read(store, "")?.ok_or_else(|| {
        let place = store.locate("");
        let place = place.trim_end_matches(['/', '\\']);
        Error::volume(SourceFailure::Absent, place, "this is no Zarr array: it has neither zarr.json nor .zarray")
    })
}

fn open_scale(store: &Arc<dyn Store>, mip: usize) -> Result<ZarrArray> {
    let document = root(store)?;
    let missing = |count: usize, name: &str| {
        let (volume, scales) = (name.to_owned(), format!("{count}, counted from 0"));
        Error::Scale { volume, mip, scales }
    };
    if document.is_array() {
        if mip > 0 {
            return Err(missing(1, document.volume()));
        }
        let mut array = ZarrArray::open(store, &document)?;
        // No element depends on the attributes. On a server those of version 2 would cost a request.
        let attributes = match document.own_attributes() {
            Some(attributes) => attributes.clone(),
            None if store.is_remote() => Value::Null,
            None => document.attributes(store).unwrap_or_default(),
        };
        array.lengths = create::lengths(&attributes, array.meta.shape.len()).unwrap_or_default();
        return Ok(array);
    }
    let scales = Multiscales::read(store, &document)?;
    let dataset = scales.datasets.get(mip).ok_or_else(|| missing(scales.datasets.len(), document.volume()))?;
    open_dataset(store, &document, &scales, dataset)
}

fn open_dataset(
    store: &Arc<dyn Store>,
    group: &Document,
    scales: &Multiscales,
    dataset: &multiscales::Dataset,
) -> Result<ZarrArray> {
    let mut array = ZarrArray::open(store, &Multiscales::document(store, group, dataset)?)?;
    if scales.axes.len() == array.meta.shape.len() {
        array.meta.axes.clone_from(&scales.axes);
    }
    array.meta.kind = scales.has_labels.then_some(VolumeKind::Segmentation);
    array.lengths = dataset.lengths.clone().of_axes(array.meta.shape.len());
    array.scale.clone_from(&dataset.path);
    Ok(array)
}
