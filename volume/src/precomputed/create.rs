//! Writes the description of a new volume, in a form that CloudVolume, neuroglancer and tensorstore all accept.

use std::sync::Arc;

use ndarray_shm::DType;
use serde_json::json;

use super::UNIT;
use super::encoding::ChunkEncoding;
use super::info::{INFO, Info, name_of};
use super::segmentation;
use super::volume::PrecomputedVolume;
use crate::description::{Encoding, NewVolume};
use crate::error::{Error, Result, SourceFailure};
use crate::store::{self, Store};
use crate::take_over::is_in_other_order;
use crate::volume::{ChunkSink, VolumeKind};

/// The format's name for the encoding of labels.
const SEGMENTATION: &str = "compressed_segmentation";

/// Number of spatial axes; the channel axis follows.
const SPACE: usize = 3;

/// Creates a volume of one scale, without chunks.
///
/// # Errors
///
/// [`Source`](Error::Source): there is one already. [`NewVolume`](Error::NewVolume): the format does not support what
/// is asked for, or the kind of the elements (image or labels) is not given.
pub(crate) fn create(store: Arc<dyn Store>, new: &NewVolume) -> Result<Box<dyn ChunkSink>> {
    let file = store.locate(INFO);
    if store.get(INFO)?.is_some() {
        let reason = "there is a Precomputed volume already: choose another place, or open it";
        return Err(Error::volume(SourceFailure::AlreadyExists, file, reason));
    }
    let document = describe(new).map_err(|reason| Error::new_volume(&file, reason))?;
    let mut text = serde_json::to_vec_pretty(&document)
        .map_err(|error| Error::new_volume(&file, format!("its description cannot be written: {error}")))?;
    text.push(b'\n');
    // A description that cannot be read is never written.
    let info = Info::parse(&text, file.clone(), "").map_err(Error::of_new_volume)?;
    let scale = info.scale(0)?;
    refuse_to_mix(&*store, &scale.prefix)?;
    ChunkEncoding::of(scale).map_err(|reason| Error::new_volume(&file, reason))?;
    store::make(&*store, INFO, &text)?;
    let packs = packs(new.encoding, store.is_remote());
    Ok(Box::new(PrecomputedVolume::open(store, 0)?.packing(packs)))
}

/// Whether chunks of a volume created with this encoding are wrapped in gzip. A server announces the wrapping to every
/// reader; in a directory only CloudVolume and this crate find wrapped files.
pub(super) fn packs(encoding: Encoding, is_remote: bool) -> bool {
    match encoding {
        Encoding::Gzip | Encoding::CompressedSegmentationGzip => true,
        Encoding::CompressedSegmentation => is_remote,
        _ => false,
    }
}

/// Refuses a place that is not empty: existing chunks would be taken for the new volume's, and other programs would
/// find an existing Zarr array or N5 dataset.
fn refuse_to_mix(store: &dyn Store, prefix: &str) -> Result<()> {
    let there = "there is something already: choose another place, or remove it first";
    for file in ["zarr.json", ".zarray", ".zgroup", "attributes.json"] {
        if store.get(file)?.is_some() {
            return Err(Error::volume(SourceFailure::AlreadyExists, store.locate(file), there));
        }
    }
    match store.list(prefix.trim_end_matches('/'))?.first() {
        Some(other) => {
            let reason = format!("{there} (`{other}`)");
            Err(Error::volume(SourceFailure::AlreadyExists, store.locate(prefix), reason))
        }
        None => Ok(()),
    }
}

fn describe(new: &NewVolume) -> Result<serde_json::Value, String> {
    let axes = new.shape.len();
    if axes != SPACE && axes != SPACE + 1 {
        return Err(format!("a Precomputed volume has x, y, z and, behind them, channels: not {axes} axes"));
    }
    if is_in_other_order(&new.axes, &["x", "y", "z", "channel"].map(str::to_owned)) {
        return Err(format!(
            "the axes are {}, and a Precomputed volume has x, y, z and channels in this order: transpose the array, or choose Zarr, which keeps the \
             order of the axes",
            new.axes.join(", ")
        ));
    }
    if new.chunk_shape.len() < SPACE || new.chunk_shape.len() > axes || new.chunk_shape.contains(&0) {
        return Err(format!("chunks of shape {:?} do not divide a volume of shape {:?}", new.chunk_shape, new.shape));
    }
    let channels = new.shape.get(SPACE).copied().unwrap_or(1);
    if channels == 0 || new.shape[..SPACE].contains(&0) {
        return Err(format!("a volume of shape {:?} has no elements", new.shape));
    }
    if new.chunk_shape.get(SPACE).is_some_and(|length| *length < channels) {
        return Err(format!("every chunk of a Precomputed volume has all {channels} channels"));
    }
    if new.fill.as_ref().is_some_and(|element| element.iter().any(|byte| *byte != 0)) {
        return Err("missing chunks of a Precomputed volume are 0: leave the fill value out".to_owned());
    }
    if new.shard_shape.is_some() {
        return Err("Precomputed volumes can be written without shards only".to_owned());
    }
    let mut origin = new.origin.clone();
    if origin.len() > SPACE && origin[SPACE..].iter().any(|origin| *origin != 0) {
        return Err("channels of a Precomputed volume begin at 0".to_owned());
    }
    origin.resize(SPACE, 0);
    let mut resolution = if new.resolution.is_empty() { vec![1.0; SPACE] } else { new.resolution.clone() };
    resolution.truncate(SPACE);
    if resolution.len() < SPACE || resolution.iter().any(|length| !length.is_finite() || *length <= 0.0) {
        return Err(format!("a resolution of {:?} is not three lengths", new.resolution));
    }
    if new.unit != UNIT && !new.resolution.is_empty() {
        return Err(format!("the resolution of a Precomputed volume is in {UNIT}, not in `{}`", new.unit));
    }
    let data_type =
        name_of(new.dtype).ok_or_else(|| format!("Precomputed volumes have no elements of type {}", new.dtype))?;
    let encoding = match new.encoding {
        Encoding::Raw | Encoding::Gzip => "raw",
        Encoding::Jpeg => "jpeg",
        Encoding::Png => "png",
        Encoding::CompressedSegmentation | Encoding::CompressedSegmentationGzip => SEGMENTATION,
        Encoding::Zstd | Encoding::Blosc => {
            return Err("chunks of Precomputed volumes are raw, gzip, jpeg, png, compressed_segmentation or \
                        compressed_segmentation_gzip"
                .to_owned());
        }
    };
    let kind = kind(new)?;
    new.check_quality()?;
    let names: Vec<String> = resolution.iter().map(f64::to_string).collect();
    let mut scale = json!({
        "key": names.join("_"),
        "size": &new.shape[..SPACE],
        "voxel_offset": origin,
        "chunk_sizes": [&new.chunk_shape[..SPACE]],
        "resolution": resolution.iter().map(|length| short(*length)).collect::<Vec<_>>(),
        "encoding": encoding,
    });
    if let Some(quality) = new.jpeg_quality {
        scale["jpeg_quality"] = json!(quality);
    }
    if encoding == SEGMENTATION {
        scale["compressed_segmentation_block_size"] = json!(segmentation::BLOCK);
    }
    Ok(json!({
        "@type": "neuroglancer_multiscale_volume",
        "type": kind.name(),
        "data_type": data_type,
        "num_channels": channels,
        "scales": [scale],
    }))
}

/// Returns the kind of the elements. A wrong kind becomes wrong labels when another program downsamples the volume.
fn kind(new: &NewVolume) -> Result<VolumeKind, String> {
    let Some(kind) = new.made_kind() else {
        return Err(format!(
            "elements of type {} may be intensities or labels, and programs that downsample average the one and must not \
             average the other: say whether the volume is of type image or segmentation",
            new.dtype
        ));
    };
    match (kind, new.encoding) {
        (VolumeKind::Image, Encoding::CompressedSegmentation | Encoding::CompressedSegmentationGzip) => Err(format!(
            "chunks that are {} hold labels: choose the type segmentation, or another encoding",
            new.encoding.name()
        )),
        (VolumeKind::Segmentation, Encoding::Jpeg) => {
            Err("jpeg changes elements, so that labels become other labels: choose raw, gzip, \
             png or compressed_segmentation for the type segmentation, or choose the type image"
                .to_owned())
        }
        (VolumeKind::Segmentation, _) if new.kind.is_some() && new.dtype == DType::F32 => {
            Err("labels are whole numbers: a volume of float32 is of type image".to_owned())
        }
        _ => Ok(kind),
    }
}

/// Writes whole numbers without a decimal point, like other programs.
fn short(length: f64) -> serde_json::Value {
    let text = length.to_string();
    text.parse::<u64>().map_or_else(|_| json!(length), |whole| json!(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_packed_on_servers_or_on_request() {
        for (encoding, in_directory, on_server) in [
            (Encoding::Raw, false, false),
            (Encoding::Gzip, true, true),
            (Encoding::Png, false, false),
            (Encoding::CompressedSegmentation, false, true),
            (Encoding::CompressedSegmentationGzip, true, true),
        ] {
            assert_eq!((packs(encoding, false), packs(encoding, true)), (in_directory, on_server), "{encoding:?}");
        }
    }
}
