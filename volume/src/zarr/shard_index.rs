//! The index of a shard: the offsets and lengths of its chunks.
//!
//! It is untrusted input. Every range in it is checked before anything is read or reserved.

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

use zarrs::array::{ArrayToBytesCodecTraits, BytesRepresentation, CodecChain, DataType, FillValue, data_type};
use zarrs::metadata::v3::MetadataV3;

use crate::bbox::to_usize;
use crate::error::Cause;
use crate::unpack::Expected;
use crate::zarr::codec_settings::{configured, options};

/// Bytes of one entry of an index: offset and length.
const ENTRY: u64 = 16;

/// Maximum bytes of an index; a larger one would have more than sixteen million chunks.
const MOST_INDEX: u64 = 256 << 20;

/// Value of both words of an entry if the chunk is not stored.
const MISSING: u64 = u64::MAX;

/// The codec and place of a shard's index.
#[derive(Debug)]
pub(super) struct ShardIndexCodec {
    /// Chunks of a shard along each axis.
    counts: Vec<u64>,
    codecs: Arc<CodecChain>,
    shape: Vec<NonZeroU64>,
    bytes: u64,
    /// Whether the index is before the chunks instead of behind them.
    is_first: bool,
}

/// The index of one shard.
#[derive(Debug)]
pub(super) struct ShardIndex {
    /// Offset and length of each chunk.
    places: Vec<[u64; 2]>,
    /// Length of the shard in bytes, if it is known.
    length: Option<u64>,
}

impl ShardIndexCodec {
    /// Parses the configuration of a sharding codec; `counts` are the chunks of a shard along each axis.
    pub(super) fn new(codec: &dyn ArrayToBytesCodecTraits, counts: Vec<u64>) -> Result<Self, Cause> {
        let total = counts.iter().try_fold(1u64, |total, count| total.checked_mul(*count));
        if total.is_none_or(|total| total.saturating_mul(ENTRY) > MOST_INDEX) {
            return Err(format!("shards of {counts:?} chunks have an index of more than {MOST_INDEX} bytes").into());
        }
        let codecs: Vec<MetadataV3> = serde_json::from_value(setting(codec, "index_codecs")?)?;
        let codecs = Arc::new(CodecChain::from_metadata(&codecs)?);
        let shape: Vec<NonZeroU64> = counts.iter().chain(&[2]).filter_map(|count| NonZeroU64::new(*count)).collect();
        let representation = codecs.encoded_representation(&shape, &data_type::uint64(), &FillValue::from(MISSING))?;
        let BytesRepresentation::FixedSize(bytes) = representation else {
            return Err("the index of shards is packed to a length that cannot be known before".into());
        };
        let is_first = setting(codec, "index_location")? == "start";
        Ok(Self { counts, codecs, shape, bytes, is_first })
    }

    /// Returns the number of chunks of a shard along each axis.
    pub(super) fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Returns the length of a stored index in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the index is before the chunks instead of behind them.
    pub(super) fn is_first(&self) -> bool {
        self.is_first
    }

    /// Returns the range of the index in a shard of this length.
    pub(super) fn range(&self, length: u64) -> Range<u64> {
        let start = if self.is_first { 0 } else { length.saturating_sub(self.bytes) };
        start..start.saturating_add(self.bytes)
    }

    /// Decodes an index; `length` is that of the shard, if it is known.
    pub(super) fn read(&self, bytes: Vec<u8>, length: Option<u64>) -> Result<ShardIndex, Cause> {
        if bytes.len() as u64 != self.bytes {
            let (found, needed) = (bytes.len(), self.bytes);
            return Err(format!("the shard is cut short: its index has {found} bytes, where {needed} belong").into());
        }
        let (uint64, missing): (DataType, _) = (data_type::uint64(), FillValue::from(MISSING));
        let decoded = self
            .codecs
            .decode(bytes.into(), &self.shape, &uint64, &missing, &options())
            .map_err(|error| format!("the index of the shard is damaged: {error}"))?
            .into_fixed()?;
        let word = |bytes: &[u8]| bytes.try_into().map_or(MISSING, u64::from_ne_bytes);
        let places =
            decoded.chunks_exact(to_usize(ENTRY)).map(|entry| [word(&entry[..8]), word(&entry[8..])]).collect();
        Ok(ShardIndex { places, length })
    }

    /// Returns the range of a chunk in its shard, `None` if it is not stored; `packed` is the expected length of a
    /// packed chunk.
    pub(super) fn locate(
        &self,
        index: &ShardIndex,
        number: u64,
        packed: Expected,
    ) -> Result<Option<Range<u64>>, Cause> {
        let [offset, bytes] = *index.places.get(to_usize(number)).ok_or("the index of the shard is too short")?;
        if (offset, bytes) == (MISSING, MISSING) {
            return Ok(None);
        }
        let wrong = |why: &str| {
            let text = format!("the index of the shard places chunk {number} at {offset}, {bytes} bytes long: {why}");
            Cause::from(text)
        };
        let end = offset.checked_add(bytes).ok_or_else(|| wrong("beyond any file"))?;
        if self.is_first && offset < self.bytes {
            return Err(wrong("in the index itself"));
        }
        if let Some(length) = index.length {
            let room = if self.is_first { length } else { length.saturating_sub(self.bytes) };
            if end > room {
                return Err(wrong("beyond the end of the shard"));
            }
        }
        match packed {
            Expected::Exactly(size) if bytes != size as u64 => Err(wrong("a chunk has another length")),
            Expected::AtMost(most) if bytes > most as u64 => Err(wrong("no chunk is so long")),
            _ => Ok(Some(offset..end)),
        }
    }

    /// Assembles a shard from packed chunks, in the order of the index. Chunks that are `None` are not stored.
    pub(super) fn assemble(
        &self,
        chunks: impl Iterator<Item = Result<Option<Vec<u8>>, crate::error::Error>>,
        failed: impl Fn(Cause) -> crate::error::Error,
    ) -> Result<Vec<u8>, crate::error::Error> {
        let mut shard = if self.is_first { vec![0; to_usize(self.bytes)] } else { Vec::new() };
        let mut index: Vec<u8> = Vec::new();
        for chunk in chunks {
            let entry = match chunk? {
                None => [MISSING; 2],
                Some(packed) => {
                    let entry = [shard.len() as u64, packed.len() as u64];
                    shard.extend(packed);
                    entry
                }
            };
            index.extend(entry.iter().flat_map(|word| word.to_ne_bytes()));
        }
        let (uint64, missing) = (data_type::uint64(), FillValue::from(MISSING));
        let index = self
            .codecs
            .encode(index.into(), &self.shape, &uint64, &missing, &options())
            .map_err(|error| failed(error.into()))?;
        if self.is_first {
            let place = shard.get_mut(..index.len()).ok_or_else(|| failed("the index has no room".into()))?;
            place.copy_from_slice(&index);
        } else {
            shard.extend_from_slice(&index);
        }
        Ok(shard)
    }
}

/// Returns one entry of the configuration of a sharding codec.
pub(super) fn setting(codec: &dyn ArrayToBytesCodecTraits, key: &str) -> Result<serde_json::Value, Cause> {
    configured(codec, key).ok_or_else(|| format!("the shards have no `{key}`").into())
}

/// Returns the number of a chunk in the index, from its place in the shard along each axis.
pub(super) fn number(at: &[u64], counts: &[u64]) -> u64 {
    at.iter().zip(counts).fold(0, |number, (at, count)| number * count + at)
}

/// Iterates over the positions of a grid, the last axis fastest.
pub(super) fn numbers(counts: &[u64]) -> impl Iterator<Item = Vec<u64>> + '_ {
    let total: u64 = counts.iter().product();
    (0..total).map(move |mut number| {
        let mut at = vec![0; counts.len()];
        for (at, count) in at.iter_mut().zip(counts).rev() {
            *at = number % count;
            number /= count;
        }
        at
    })
}

/// Returns a range of a shard in memory, or `None` if the shard is shorter.
pub(super) fn part(bytes: &[u8], range: Range<u64>) -> Option<&[u8]> {
    bytes.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
}
