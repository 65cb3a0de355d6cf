//! The layout of a dataset from its attributes: shape, block shape, element type and compression.
//!
//! An accepted layout has lengths with products that do not overflow, and blocks that fit in memory.

use ndarray_shm::DType;
use serde_json::Value;

use super::attributes::{N5Attributes, brief};
use crate::bbox::to_usize;
use crate::description::{dtype_name, dtype_named};
use crate::error::{Error, Result, SourceFailure};
use crate::unpack::Packing;

/// Maximum bytes of a decoded block: blocks are decoded whole.
pub(super) const LARGEST_BLOCK: usize = 2 << 30;

/// Maximum number of axes; more than other programs read.
const MOST_AXES: usize = 32;

/// The supported compressions, for messages.
const KNOWN: &str = "raw, gzip, bzip2, zstd and blosc, and with the feature `codecs` lz4 and xz";

/// The compression of a block's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockPacking {
    Raw,
    Packed(Packing),
    /// Frames as in lz4-java.
    #[cfg(feature = "codecs")]
    Lz4Frames,
}

/// The layout of a dataset.
#[derive(Debug, Clone)]
pub(super) struct DatasetLayout {
    /// Elements along each axis, x first.
    pub(super) shape: Vec<u64>,
    /// Elements along each axis of a block.
    pub(super) block: Vec<u64>,
    pub(super) dtype: DType,
    pub(super) packing: BlockPacking,
    /// The attributes' name of the compression.
    pub(super) packing_name: String,
}

impl DatasetLayout {
    /// Parses the attributes of a dataset.
    ///
    /// # Errors
    ///
    /// [`Source`](Error::Source): the attributes are damaged, or need something that is not supported.
    /// [`UnsupportedDType`](Error::UnsupportedDType): the element type is not a number.
    pub(super) fn read(attributes: &N5Attributes) -> Result<Self> {
        let json = attributes.json();
        let refused = |kind, reason: String| Error::volume(kind, attributes.name(), reason);
        let damaged = |reason: String| refused(SourceFailure::Damaged, reason);
        let lengths = |name: &str, least: u64| {
            let value = &json[name];
            let read = |value: &Value| value.as_u64().filter(|length| (least..=1 << 62).contains(length));
            let lengths: Option<Vec<u64>> = value.as_array().and_then(|values| values.iter().map(read).collect());
            lengths.filter(|lengths| !lengths.is_empty()).ok_or_else(|| {
                damaged(format!("`{name}` is {}, but must be a list of whole numbers from {least} on", brief(value)))
            })
        };
        let shape = lengths("dimensions", 0)?;
        let block = lengths("blockSize", 1)?;
        if shape.len() != block.len() {
            let reason = format!("`dimensions` has {} axes, but `blockSize` has {}", shape.len(), block.len());
            return Err(damaged(reason));
        }
        if shape.len() > MOST_AXES {
            return Err(refused(
                SourceFailure::Unsupported,
                format!("it has {} axes, more than {MOST_AXES}", shape.len()),
            ));
        }
        if json["isLabelMultiset"].as_bool() == Some(true) {
            let reason =
                "its elements are label multisets, which are lists and no numbers: convert it to uint64 labels";
            return Err(refused(SourceFailure::Unsupported, reason.to_owned()));
        }
        let dtype = dtype(&json["dataType"], attributes)?;
        let (packing, packing_name) = packing(json).map_err(|(kind, reason)| refused(kind, reason))?;
        // A block that reaches beyond the volume may be cut off there.
        let cut: Vec<u64> = block.iter().zip(&shape).map(|(block, length)| (*block).min((*length).max(1))).collect();
        if bytes(&cut, dtype).is_none_or(|bytes| bytes > LARGEST_BLOCK) {
            let reason = format!(
                "`blockSize` {block:?} of {} makes blocks of more than {LARGEST_BLOCK} bytes, which cannot be decoded whole",
                dtype_name(dtype).unwrap_or_default()
            );
            return Err(refused(SourceFailure::Unsupported, reason));
        }
        Ok(Self { shape, block, dtype, packing, packing_name })
    }

    /// Returns the maximum bytes of a block's elements.
    pub(super) fn most_bytes(&self) -> usize {
        bytes(&self.block, self.dtype).map_or(LARGEST_BLOCK, |bytes| bytes.min(LARGEST_BLOCK))
    }
}

fn bytes(lengths: &[u64], dtype: DType) -> Option<usize> {
    let bytes = lengths.iter().try_fold(dtype.size() as u64, |so_far, length| so_far.checked_mul(*length))?;
    isize::try_from(bytes).is_ok().then(|| to_usize(bytes))
}

fn dtype(value: &Value, attributes: &N5Attributes) -> Result<DType> {
    let Some(name) = value.as_str() else {
        let reason = format!("`dataType` is {}, but must be the name of an element type", brief(value));
        return Err(Error::volume(SourceFailure::Damaged, attributes.name(), reason));
    };
    let is_known = |dtype: &DType| {
        !matches!(dtype, DType::F16 | DType::Bf16 | DType::Complex64 | DType::Complex128) // N5 has no such types
    };
    dtype_named(name)
        .filter(is_known)
        .ok_or_else(|| Error::UnsupportedDType { volume: attributes.volume().to_owned(), dtype: brief(value) })
}

/// Returns the compression of blocks, and the attributes' name of it.
///
/// Datasets before version 2 of the format name it in `compressionType`, others in `compression` with its parameters,
/// of which only `useZlib` matters for unpacking.
fn packing(json: &Value) -> Result<(BlockPacking, String), (SourceFailure, String)> {
    let (name, zlib) = match (&json["compression"], &json["compressionType"]) {
        (Value::Null, Value::Null) if json.get("codecs").is_some() => {
            let reason =
                format!("its blocks are described by `codecs`, which cannot be read: a `compression` of {KNOWN} can");
            return Err((SourceFailure::Unsupported, reason));
        }
        (Value::Null, old) => (old, false),
        (new, _) => (&new["type"], new["useZlib"].as_bool() == Some(true)),
    };
    let Some(name) = name.as_str() else {
        let reason = "it does not say how its blocks are packed: `compression` must have a `type`";
        return Err((SourceFailure::Damaged, reason.to_owned()));
    };
    let packing = match name {
        "raw" => BlockPacking::Raw,
        "gzip" if zlib => BlockPacking::Packed(Packing::Zlib),
        "gzip" => BlockPacking::Packed(Packing::Gzip),
        "bzip2" => BlockPacking::Packed(Packing::Bz2),
        "zstd" => BlockPacking::Packed(Packing::Zstd),
        "blosc" => BlockPacking::Packed(Packing::Blosc),
        #[cfg(feature = "codecs")]
        "xz" => BlockPacking::Packed(Packing::Xz),
        #[cfg(feature = "codecs")]
        "lz4" => BlockPacking::Lz4Frames,
        #[cfg(not(feature = "codecs"))]
        "xz" | "lz4" => {
            let reason = format!(
                "its blocks are packed by `{name}`, and this program was built without it: build it with the feature `codecs`"
            );
            return Err((SourceFailure::Unsupported, reason));
        }
        other => {
            let reason =
                format!("its blocks are packed by `{}`, which cannot be read: {KNOWN} can", brief(&Value::from(other)));
            return Err((SourceFailure::Unsupported, reason));
        }
    };
    Ok((packing, name.to_owned()))
}
