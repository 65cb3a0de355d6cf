//! Shards: many chunks in one object, found through its index.
//!
//! An index is input. Every place that it names is checked before anything is read or reserved.

use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

use zarrs::array::{ArrayToBytesCodecTraits, CodecChain, DataType, FillValue, data_type};
use zarrs::metadata::v3::MetadataV3;

use crate::bbox::to_usize;
use crate::error::Cause;
use crate::zarr::codecs::{Chain, Elements, configured, options};
use crate::zarr::place;
use crate::zarr::unpack::Expected;

/// Bytes of one entry of an index: offset and length.
const ENTRY: u64 = 16;

/// Most bytes of an index; a larger one would be of sixteen million chunks.
const MOST_INDEX: u64 = 256 << 20;

/// Both words of an entry, where the chunk is not stored.
const MISSING: u64 = u64::MAX;

/// How chunks are put together in shards.
#[derive(Debug)]
pub(super) struct Shards {
    /// Elements of a shard along each axis.
    shape: Vec<u64>,
    /// Chunks of a shard along each axis.
    counts: Vec<u64>,
    chunk: Chain,
    fill: Vec<u8>,
    index: Arc<CodecChain>,
    index_shape: Vec<NonZeroU64>,
    index_bytes: u64,
    index_first: bool,
}

/// Where the chunks of one shard are.
#[derive(Debug)]
pub(super) struct Index {
    places: Vec<[u64; 2]>,
    /// Bytes of the shard, where they are known.
    length: Option<u64>,
}

impl Shards {
    /// Reads the configuration of the codec that makes shards of this shape.
    pub(super) fn new(
        codec: &dyn ArrayToBytesCodecTraits,
        elements: &Elements,
        shape: &[NonZeroU64],
    ) -> Result<Self, Cause> {
        let setting = |key: &str| configured(codec, key).ok_or_else(|| format!("the shards have no `{key}`"));
        let chunk_shape: Vec<NonZeroU64> = serde_json::from_value(setting("chunk_shape")?)?;
        let codecs: Vec<MetadataV3> = serde_json::from_value(setting("codecs")?)?;
        let index_codecs: Vec<MetadataV3> = serde_json::from_value(setting("index_codecs")?)?;
        let index_first = setting("index_location")? == "start";
        let tiled = chunk_shape.len() == shape.len()
            && shape.iter().zip(&chunk_shape).all(|(shard, chunk)| shard.get() % chunk.get() == 0);
        if !tiled {
            return Err(format!("chunks of shape {chunk_shape:?} do not tile shards of shape {shape:?}").into());
        }
        let counts: Vec<u64> = shape.iter().zip(&chunk_shape).map(|(shard, chunk)| shard.get() / chunk.get()).collect();
        let total = counts.iter().try_fold(1u64, |total, count| total.checked_mul(*count));
        if total.is_none_or(|total| total.saturating_mul(ENTRY) > MOST_INDEX) {
            return Err(format!("shards of {counts:?} chunks have an index of more than {MOST_INDEX} bytes").into());
        }
        let index = Arc::new(CodecChain::from_metadata(&index_codecs)?);
        let index_shape: Vec<NonZeroU64> =
            counts.iter().chain(&[2]).filter_map(|count| NonZeroU64::new(*count)).collect();
        let representation =
            index.encoded_representation(&index_shape, &data_type::uint64(), &FillValue::from(MISSING))?;
        let zarrs::array::BytesRepresentation::FixedSize(index_bytes) = representation else {
            return Err("the index of shards is packed to a length that nobody can know before".into());
        };
        Ok(Self {
            shape: shape.iter().map(|length| length.get()).collect(),
            counts,
            chunk: Chain::new(Arc::new(CodecChain::from_metadata(&codecs)?), elements, &chunk_shape)?,
            fill: elements.fill.as_ne_bytes().to_vec(),
            index,
            index_shape,
            index_bytes,
            index_first,
        })
    }

    /// Returns the codecs of one chunk.
    pub(super) fn chunk(&self) -> &Chain {
        &self.chunk
    }

    /// Returns the chunks of a shard along each axis.
    pub(super) fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Returns how many bytes a stored index has.
    pub(super) fn index_bytes(&self) -> u64 {
        self.index_bytes
    }

    /// Whether the index is in front of the chunks and not behind them.
    pub(super) fn index_first(&self) -> bool {
        self.index_first
    }

    /// Reads an index; `length` is that of the shard, where it is known.
    pub(super) fn read_index(&self, bytes: Vec<u8>, length: Option<u64>) -> Result<Index, Cause> {
        if bytes.len() as u64 != self.index_bytes {
            let (found, needed) = (bytes.len(), self.index_bytes);
            return Err(format!("the shard is cut short: its index has {found} bytes, where {needed} belong").into());
        }
        let (uint64, missing): (DataType, _) = (data_type::uint64(), FillValue::from(MISSING));
        let decoded = self
            .index
            .decode(bytes.into(), &self.index_shape, &uint64, &missing, &options())
            .map_err(|error| format!("the index of the shard is damaged: {error}"))?
            .into_fixed()?;
        let word = |bytes: &[u8]| bytes.try_into().map_or(MISSING, u64::from_ne_bytes);
        let places =
            decoded.chunks_exact(to_usize(ENTRY)).map(|entry| [word(&entry[..8]), word(&entry[8..])]).collect();
        Ok(Index { places, length })
    }

    /// Returns where a chunk is in its shard, if it is stored.
    pub(super) fn locate(&self, index: &Index, number: u64) -> Result<Option<Range<u64>>, Cause> {
        let [offset, bytes] = *index.places.get(to_usize(number)).ok_or("the index of the shard is too short")?;
        if (offset, bytes) == (MISSING, MISSING) {
            return Ok(None);
        }
        let wrong = |why: &str| {
            let text = format!("the index of the shard places chunk {number} at {offset}, {bytes} bytes long: {why}");
            Cause::from(text)
        };
        let end = offset.checked_add(bytes).ok_or_else(|| wrong("beyond any file"))?;
        if self.index_first && offset < self.index_bytes {
            return Err(wrong("in the index itself"));
        }
        if let Some(length) = index.length {
            let room = if self.index_first { length } else { length.saturating_sub(self.index_bytes) };
            if end > room {
                return Err(wrong("beyond the end of the shard"));
            }
        }
        match self.chunk.packed() {
            Expected::Exactly(size) if bytes != size as u64 => Err(wrong("a chunk has another length")),
            Expected::AtMost(most) if bytes > most as u64 => Err(wrong("no chunk is so long")),
            _ => Ok(Some(offset..end)),
        }
    }

    /// Decodes a shard that is in memory as a whole; its elements are in C order.
    pub(super) fn decode_whole(&self, bytes: &[u8]) -> Result<Vec<u8>, Cause> {
        let length = bytes.len() as u64;
        let index_at = if self.index_first { 0 } else { length.saturating_sub(self.index_bytes) };
        let stored = part(bytes, index_at..index_at.saturating_add(self.index_bytes));
        let index = self.read_index(stored.unwrap_or(bytes).to_vec(), Some(length))?;
        let shape: Vec<usize> = self.shape.iter().map(|length| to_usize(*length)).collect();
        let chunk_shape = self.chunk.shape();
        let mut whole = place::filled(&shape, &self.fill)?;
        for (number, chunk) in numbers(&self.counts).enumerate() {
            let Some(range) = self.locate(&index, number as u64)? else { continue };
            let packed = part(bytes, range).ok_or("the shard is cut short")?.to_vec();
            let (elements, order) = self.chunk.decode(packed, Vec::new())?;
            let window: Vec<Range<usize>> = chunk
                .iter()
                .zip(&chunk_shape)
                .map(|(at, length)| to_usize(*at) * length..(to_usize(*at) + 1) * length)
                .collect();
            place::put(&elements, &chunk_shape, order, &mut whole, &shape, &window)?;
        }
        Ok(whole)
    }

    /// Puts a shard together of packed chunks, in the order of the index; those that are `None` are not stored.
    pub(super) fn assemble(
        &self,
        chunks: impl Iterator<Item = Result<Option<Vec<u8>>, crate::error::Error>>,
        failed: impl Fn(Cause) -> crate::error::Error,
    ) -> Result<Vec<u8>, crate::error::Error> {
        let mut shard = if self.index_first { vec![0; to_usize(self.index_bytes)] } else { Vec::new() };
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
            .index
            .encode(index.into(), &self.index_shape, &uint64, &missing, &options())
            .map_err(|error| failed(error.into()))?;
        if self.index_first {
            let place = shard.get_mut(..index.len()).ok_or_else(|| failed("the index has no room".into()))?;
            place.copy_from_slice(&index);
        } else {
            shard.extend_from_slice(&index);
        }
        Ok(shard)
    }
}

/// Returns the number of a chunk in the index, from its place in the shard along each axis.
pub(super) fn number(at: &[u64], counts: &[u64]) -> u64 {
    at.iter().zip(counts).fold(0, |number, (at, count)| number * count + at)
}

/// Walks the places of a grid, the last axis fastest.
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

fn part(bytes: &[u8], range: Range<u64>) -> Option<&[u8]> {
    bytes.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
}
