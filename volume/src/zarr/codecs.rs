//! Encodes and decodes one chunk. Pure computation, no store.
//!
//! zarrs parses the codecs and encodes. This module decodes itself where that is frequent or dangerous: it unpacks
//! bytes up to a limit, does not touch elements that are already in the needed form, and validates the index of a
//! shard.

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::Arc;

use ndarray_shm::{DType, Order};
use zarrs::array::codec::{
    BloscCodec, BytesCodec, Bz2Codec, GzipCodec, ShardingCodec, TransposeCodec, ZlibCodec, ZstdCodec,
};
use zarrs::array::{
    ArrayBytes, ArrayToArrayCodecTraits, ArrayToBytesCodecTraits, BytesRepresentation, BytesToBytesCodecTraits,
    CodecChain, DataType, FillValue,
};
#[cfg(feature = "codecs")]
use zarrs::array::{CodecError, codec::PcodecCodec};
use zarrs::metadata::v3::MetadataV3;

use crate::bbox::to_usize;
use crate::error::Cause;
use crate::gzip;
use crate::region_memory::RegionMemory;
use crate::unpack::{Expected, Packing};
use crate::zarr::codec_settings::{configured, options};
use crate::zarr::extensions::BytesExtension;
#[cfg(feature = "codecs")]
use crate::zarr::pcodec;
use crate::zarr::place;
use crate::zarr::shard_index::{ShardIndex, ShardIndexCodec, numbers, part, setting};

/// Bytes by which a packed chunk may exceed the worst case of zarrs: other writers pack differently.
const SLACK: u64 = 64 << 10;

/// The element type and fill value of an array, also in the types of zarrs.
#[derive(Debug, Clone)]
pub(super) struct ElementType {
    pub(super) dtype: DType,
    /// Whether elements are booleans, each in a byte.
    pub(super) is_bool: bool,
    pub(super) data_type: DataType,
    pub(super) fill: FillValue,
}

/// The codecs of chunks of one shape.
#[derive(Debug)]
pub(super) struct Chain {
    codecs: Arc<CodecChain>,
    elements: ElementType,
    shape: Vec<NonZeroU64>,
    /// Bytes of a decoded chunk.
    size: usize,
    /// Length of a stored chunk, or its maximum.
    packed: Expected,
    /// In the order of encoding.
    stages: Vec<PackingStage>,
    serialized: Serialized,
    /// Order of the elements, if the array-to-array codecs change nothing else.
    order: Option<Order>,
}

/// A codec that packs bytes.
#[derive(Debug)]
struct PackingStage {
    codec: Arc<dyn BytesToBytesCodecTraits>,
    decoder: Decoder,
    unpacked: BytesRepresentation,
    expected: Expected,
}

/// The decoder of a bytes-to-bytes codec.
#[derive(Debug)]
enum Decoder {
    Packing(Packing),
    Extension(BytesExtension),
    Zarrs,
}

/// How elements are serialized to bytes.
#[derive(Debug)]
enum Serialized {
    /// In native byte order.
    Native,
    /// With the bytes of each number reversed; holds the number's length in bytes.
    Swapped(usize),
    Shards(Box<ShardCodec>),
    #[cfg(feature = "codecs")]
    Pcodec,
    /// By a codec that only zarrs decodes.
    Otherwise,
}

/// The codec that groups chunks in shards.
#[derive(Debug)]
pub(super) struct ShardCodec {
    /// Elements of a shard along each axis.
    shape: Vec<u64>,
    index: ShardIndexCodec,
    chunk: Chain,
    fill: Vec<u8>,
}

/// Shape, type and fill value of a chunk between two array-to-array codecs.
type Representation = (Vec<NonZeroU64>, DataType, FillValue);

impl Chain {
    pub(super) fn new(codecs: Arc<CodecChain>, elements: &ElementType, shape: &[NonZeroU64]) -> Result<Self, Cause> {
        let lengths: Vec<u64> = shape.iter().map(|length| length.get()).collect();
        let size = lengths.iter().try_fold(elements.dtype.size() as u64, |size, length| size.checked_mul(*length));
        // Above isize::MAX the arithmetic of zarrs overflows; a quarter leaves room for what packing may add.
        let Some(size) = size.and_then(|size| isize::try_from(size).ok()).filter(|size| *size <= isize::MAX / 4) else {
            return Err(format!("chunks of shape {lengths:?} are larger than the address space").into());
        };
        let size = size.unsigned_abs();
        let (last_shape, last_type, last_fill) = representations(&codecs, elements, shape)?.pop().ok_or("no codecs")?;
        let writer = codecs.array_to_bytes_codec();
        let serialized = if writer.as_any().is::<BytesCodec>() {
            let endian = configured(&**writer, "endian");
            let width = match elements.dtype {
                DType::Complex64 | DType::Complex128 => elements.dtype.size() / 2,
                _ => elements.dtype.size(),
            };
            let foreign = if cfg!(target_endian = "little") { "big" } else { "little" };
            match (endian.as_ref().and_then(|endian| endian.as_str()), width) {
                _ if last_type != elements.data_type => Serialized::Otherwise,
                (Some(endian), 2..) if endian == foreign => Serialized::Swapped(width),
                _ => Serialized::Native,
            }
        } else if writer.as_any().is::<ShardingCodec>() {
            let elements = ElementType { data_type: last_type.clone(), fill: last_fill.clone(), ..elements.clone() };
            Serialized::Shards(Box::new(ShardCodec::new(&**writer, &elements, &last_shape)?))
        } else {
            other_serializer(&**writer, elements, &last_type)?
        };
        let mut unpacked = writer.encoded_representation(&last_shape, &last_type, &last_fill)?;
        let mut stages = Vec::new();
        for codec in codecs.bytes_to_bytes_codecs() {
            let packed = codec.encoded_representation(&unpacked);
            let expected = expected(unpacked, size)?;
            stages.push(PackingStage { codec: Arc::clone(codec), decoder: decoder_of(&**codec), unpacked, expected });
            unpacked = packed;
        }
        let packed = expected(unpacked, size)?;
        let order = order(codecs.array_to_array_codecs(), shape.len());
        Ok(Self { codecs, elements: elements.clone(), shape: shape.to_vec(), size, packed, stages, serialized, order })
    }

    /// Returns the number of elements along each axis.
    pub(super) fn shape(&self) -> Vec<usize> {
        self.shape.iter().map(|length| to_usize(length.get())).collect()
    }

    /// Returns the length of a stored chunk, or its maximum.
    pub(super) fn packed(&self) -> Expected {
        self.packed
    }

    /// Returns the sharding codec if it is the only codec.
    pub(super) fn only_shards(&self) -> Option<&ShardCodec> {
        match &self.serialized {
            Serialized::Shards(shards) if self.stages.is_empty() && self.codecs.array_to_array_codecs().is_empty() => {
                Some(shards)
            }
            _ => None,
        }
    }

    /// Returns the order of stored elements if they are not packed, so that a part can be read alone.
    pub(super) fn stored_plainly(&self) -> Option<Order> {
        let plain = self.stages.is_empty() && matches!(self.serialized, Serialized::Native | Serialized::Swapped(_));
        if plain { self.order } else { None }
    }

    /// Converts plainly stored elements to native byte order, and back.
    pub(super) fn make_native(&self, bytes: &mut [u8]) {
        if let Serialized::Swapped(width) = self.serialized {
            bytes.chunks_exact_mut(width).for_each(<[u8]>::reverse);
        }
    }

    /// Decodes a chunk, reusing `memory`. Returns its elements in native byte order, and their order in memory.
    pub(super) fn decode(&self, packed: Vec<u8>, memory: Vec<u8>) -> Result<(Vec<u8>, Order), Cause> {
        let options = options();
        let (mut bytes, mut spare) = (packed, memory);
        for stage in self.stages.iter().rev() {
            match &stage.decoder {
                Decoder::Packing(packing) => packing.unpack(&bytes, stage.expected, &mut spare)?,
                Decoder::Extension(codec) => codec.unpack(&bytes, stage.expected, &mut spare)?,
                Decoder::Zarrs => {
                    spare = stage.codec.decode(Cow::Owned(bytes), &stage.unpacked, &options)?.into_owned();
                    bytes = Vec::new();
                    stage.expected.check(spare.len())?;
                }
            }
            std::mem::swap(&mut bytes, &mut spare);
        }
        crate::spare::give(spare);
        let arrays = self.codecs.array_to_array_codecs();
        let mut decoded = match &self.serialized {
            Serialized::Native | Serialized::Swapped(_) => {
                if bytes.len() != self.size {
                    return Err(format!("it has {} bytes, where {} belong", bytes.len(), self.size).into());
                }
                self.make_native(&mut bytes);
                ArrayBytes::from(bytes)
            }
            Serialized::Shards(shards) => ArrayBytes::from(shards.decode_whole(&bytes)?),
            #[cfg(feature = "codecs")]
            Serialized::Pcodec => ArrayBytes::from(pcodec::unpack(&bytes, self.elements.dtype, self.size)?),
            Serialized::Otherwise => {
                let steps = representations(&self.codecs, &self.elements, &self.shape)?;
                let (shape, data_type, fill) = steps.last().ok_or("no codecs")?;
                let serializer = self.codecs.array_to_bytes_codec();
                serializer.decode(Cow::Owned(bytes), shape, data_type, fill, &options)?
            }
        };
        let order = if let Some(order) = self.order {
            order
        } else {
            let steps = representations(&self.codecs, &self.elements, &self.shape)?;
            for (codec, (shape, data_type, fill)) in arrays.iter().zip(&steps).rev() {
                decoded = codec.decode(decoded, shape, data_type, fill, &options)?;
            }
            Order::C
        };
        let bytes = decoded.into_fixed()?.into_owned();
        Expected::Exactly(self.size).check(bytes.len())?;
        self.check_bools(&bytes)?;
        Ok((bytes, order))
    }

    /// Decodes a chunk into memory of its length, in C or F order. Returns whether it did that;
    /// [`decode`](Self::decode) decodes every chunk, and tells why this one cannot be.
    pub(super) fn decode_into(&self, packed: &[u8], memory: &mut RegionMemory<'_>) -> bool {
        let Some(memory) = self.order.and_then(|order| memory.in_order(order)) else { return false };
        let plain = matches!(self.serialized, Serialized::Native | Serialized::Swapped(_));
        let unpacked = match &self.stages[..] {
            [PackingStage { decoder: Decoder::Packing(packing), expected, .. }] => {
                plain && *expected == Expected::Exactly(memory.len()) && packing.unpack_exactly(packed, memory)
            }
            _ => false,
        };
        if unpacked {
            self.make_native(memory);
        }
        unpacked && self.check_bools(memory).is_ok()
    }

    /// Returns the order of the elements of a decoded chunk.
    pub(super) fn decoded_order(&self) -> Order {
        self.order.unwrap_or_default()
    }

    /// Whether elements are booleans.
    pub(super) fn has_bools(&self) -> bool {
        self.elements.is_bool
    }

    /// Checks that the bytes of boolean elements are 0 or 1. Any other byte is damage, which readers interpret
    /// differently.
    pub(super) fn check_bools(&self, bytes: &[u8]) -> Result<(), Cause> {
        let other = bytes.iter().find(|byte| self.elements.is_bool && **byte > 1);
        other.map_or(Ok(()), |byte| Err(format!("it has the byte {byte}, where elements of bool are 0 or 1").into()))
    }

    /// Encodes the elements of a whole chunk, in native byte order and C order.
    pub(super) fn encode(&self, elements: Vec<u8>) -> Result<Vec<u8>, Cause> {
        Expected::Exactly(self.size).check(elements.len())?;
        let plain = matches!(self.serialized, Serialized::Native | Serialized::Swapped(_));
        if self.order != Some(Order::C) || !plain {
            let ElementType { data_type, fill, .. } = &self.elements;
            let packed = self.codecs.encode(elements.into(), &self.shape, data_type, fill, &options())?;
            return Ok(packed.into_owned());
        }
        let mut bytes = elements;
        self.make_native(&mut bytes);
        for stage in &self.stages {
            bytes = match stage.decoder {
                // One call, about twice as fast as zarrs. The level in the metadata does not bind writers.
                Decoder::Packing(Packing::Gzip) => gzip::pack(&bytes)?,
                _ => stage.codec.encode(Cow::Owned(bytes), &options())?.into_owned(),
            };
        }
        Ok(bytes)
    }
}

impl ShardCodec {
    /// Parses the configuration of a sharding codec for shards of this shape.
    fn new(codec: &dyn ArrayToBytesCodecTraits, elements: &ElementType, shape: &[NonZeroU64]) -> Result<Self, Cause> {
        let chunk_shape: Vec<NonZeroU64> = serde_json::from_value(setting(codec, "chunk_shape")?)?;
        let codecs: Vec<MetadataV3> = serde_json::from_value(setting(codec, "codecs")?)?;
        let tiled = chunk_shape.len() == shape.len()
            && shape.iter().zip(&chunk_shape).all(|(shard, chunk)| shard.get() % chunk.get() == 0);
        if !tiled {
            return Err(format!("chunks of shape {chunk_shape:?} do not tile shards of shape {shape:?}").into());
        }
        let counts = shape.iter().zip(&chunk_shape).map(|(shard, chunk)| shard.get() / chunk.get()).collect();
        Ok(Self {
            shape: shape.iter().map(|length| length.get()).collect(),
            index: ShardIndexCodec::new(codec, counts)?,
            chunk: Chain::new(Arc::new(CodecChain::from_metadata(&codecs)?), elements, &chunk_shape)?,
            fill: elements.fill.as_ne_bytes().to_vec(),
        })
    }

    /// Returns the codecs of one chunk.
    pub(super) fn chunk(&self) -> &Chain {
        &self.chunk
    }

    /// Returns the codec of the index.
    pub(super) fn index(&self) -> &ShardIndexCodec {
        &self.index
    }

    /// Returns where a chunk is in its shard, if it is stored.
    pub(super) fn locate(&self, index: &ShardIndex, number: u64) -> Result<Option<Range<u64>>, Cause> {
        self.index.locate(index, number, self.chunk.packed())
    }

    /// Decodes a whole shard in memory. Returns its elements in C order.
    fn decode_whole(&self, bytes: &[u8]) -> Result<Vec<u8>, Cause> {
        let length = bytes.len() as u64;
        let stored = part(bytes, self.index.range(length));
        let index = self.index.read(stored.unwrap_or(bytes).to_vec(), Some(length))?;
        let shape: Vec<usize> = self.shape.iter().map(|length| to_usize(*length)).collect();
        let chunk_shape = self.chunk.shape();
        let mut whole = place::filled(&shape, &self.fill)?;
        for (number, chunk) in numbers(self.index.counts()).enumerate() {
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
}

/// Returns the representation of a chunk before each array-to-array codec, and after the last.
fn representations(
    codecs: &CodecChain,
    elements: &ElementType,
    shape: &[NonZeroU64],
) -> Result<Vec<Representation>, Cause> {
    let mut all = vec![(shape.to_vec(), elements.data_type.clone(), elements.fill.clone())];
    for codec in codecs.array_to_array_codecs() {
        if let Some((shape, data_type, fill)) = all.last() {
            all.push(codec.encoded_representation(shape, data_type, fill)?);
        }
    }
    Ok(all)
}

fn expected(bytes: BytesRepresentation, size: usize) -> Result<Expected, Cause> {
    let most = |most: u64| Ok(Expected::AtMost(usize::try_from(most.saturating_mul(2).saturating_add(SLACK))?));
    match bytes {
        BytesRepresentation::FixedSize(size) => Ok(Expected::Exactly(usize::try_from(size)?)),
        BytesRepresentation::BoundedSize(bound) => most(bound),
        BytesRepresentation::UnboundedSize => most(size as u64),
    }
}

fn decoder_of(codec: &dyn BytesToBytesCodecTraits) -> Decoder {
    let codec = codec.as_any();
    if let Some(extension) = codec.downcast_ref::<BytesExtension>() {
        return Decoder::Extension(extension.clone());
    }
    Decoder::Packing(match () {
        () if codec.is::<GzipCodec>() => Packing::Gzip,
        () if codec.is::<ZlibCodec>() => Packing::Zlib,
        () if codec.is::<ZstdCodec>() => Packing::Zstd,
        () if codec.is::<Bz2Codec>() => Packing::Bz2,
        () if codec.is::<BloscCodec>() => Packing::Blosc,
        () => return Decoder::Zarrs,
    })
}

/// Returns how elements are serialized by a codec other than `bytes` and `sharding_indexed`.
#[cfg_attr(
    not(feature = "codecs"),
    expect(clippy::unnecessary_wraps, reason = "codecs that are compiled in can refuse")
)]
fn other_serializer(
    writer: &dyn ArrayToBytesCodecTraits,
    elements: &ElementType,
    last_type: &DataType,
) -> Result<Serialized, Cause> {
    #[cfg(feature = "codecs")]
    if writer.as_any().is::<PcodecCodec>() {
        if *last_type != elements.data_type || !pcodec::has(elements.dtype) {
            return Err(CodecError::UnsupportedDataType(last_type.clone(), "pcodec".to_owned()).into());
        }
        return Ok(Serialized::Pcodec);
    }
    let _ = (writer, elements, last_type);
    Ok(Serialized::Otherwise)
}

/// Returns the order of elements behind these codecs, if it is C or F and they change nothing else.
fn order(codecs: &[Arc<dyn ArrayToArrayCodecTraits>], axes: usize) -> Option<Order> {
    let mut order: Vec<usize> = (0..axes).collect();
    for codec in codecs {
        if !codec.as_any().is::<TransposeCodec>() {
            return None;
        }
        let moved: Vec<usize> = serde_json::from_value(configured(&**codec, "order")?).ok()?;
        order = moved.iter().map(|from| order.get(*from).copied()).collect::<Option<_>>()?;
    }
    match () {
        () if order.iter().copied().eq(0..axes) => Some(Order::C),
        () if order.iter().copied().eq((0..axes).rev()) => Some(Order::F),
        () => None,
    }
}
