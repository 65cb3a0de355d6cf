//! Encodes and decodes the elements of a chunk. All encodings share two functions.
//!
//! Pure computation. Elements are in native byte order and dense, x fastest and channels slowest, as in the format
//! itself.

use ndarray_shm::DType;

use super::info::Scale;
use super::{jpeg, pictures, segmentation};
use crate::error::Cause;
use crate::gzip;

/// The supported encodings, for messages.
const KNOWN: &str = "raw, jpeg, png and compressed_segmentation";

/// An encoding and its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChunkEncoding {
    Raw,
    Jpeg { quality: u8 },
    Png,
    Segmentation { block: [usize; 3] },
}

/// Shape and element type of a chunk, which is cut off where the volume ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChunkLayout {
    /// Lengths along x, y, z and channels.
    pub(super) shape: [usize; 4],
    pub(super) dtype: DType,
}

/// Limit for the bytes that partial blocks may add to a `compressed_segmentation` chunk, whatever the description says.
const MOST_OF_BLOCKS: usize = 1 << 30;

impl ChunkLayout {
    /// Returns the bytes of all elements. Cannot overflow: the size was checked when the volume was opened.
    pub(super) fn bytes(self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.size()
    }

    /// Returns the maximum length of the stored chunk, for all encodings but blocks of labels.
    pub(super) fn most_packed_bytes(self) -> usize {
        self.bytes().saturating_mul(4).saturating_add(1 << 16)
    }

    fn picture(self) -> pictures::PictureLayout {
        pictures::PictureLayout { shape: self.shape, size: self.dtype.size() }
    }
}

impl ChunkEncoding {
    /// Returns the maximum length of a stored chunk.
    pub(super) fn most_packed_bytes(self, layout: ChunkLayout) -> usize {
        let Self::Segmentation { block } = self else { return layout.most_packed_bytes() };
        // Blocks are stored whole, also where the chunk cuts them off: a flat chunk of large blocks is longer than its
        // labels.
        let blocks = layout.shape.iter().zip(block.iter().chain([&1]));
        let blocks =
            blocks.fold(1_usize, |count, (length, block)| count.saturating_mul(length.div_ceil((*block).max(1))));
        let numbers = block.iter().fold(4_usize, |bytes, length| bytes.saturating_mul(*length)).saturating_add(8);
        let blocks = blocks.saturating_mul(numbers).min(MOST_OF_BLOCKS);
        layout.most_packed_bytes().saturating_add(blocks)
    }

    /// Returns the name of the decoder, where another one would give other elements.
    pub(super) fn decoder(self) -> Option<&'static str> {
        matches!(self, Self::Jpeg { .. }).then_some(jpeg::DECODER)
    }

    /// Returns the encoding of a scale.
    ///
    /// # Errors
    ///
    /// The encoding is unknown, or does not support the element type; the text is a complete message.
    pub(super) fn of(scale: &Scale) -> Result<Self, String> {
        let channels = scale.meta.shape[3];
        let dtype = scale.meta.dtype;
        let (encoding, fits, needs) = match scale.encoding.as_str() {
            "raw" => (Self::Raw, true, ""),
            "jpeg" => (
                Self::Jpeg { quality: scale.jpeg_quality },
                dtype == DType::U8 && matches!(channels, 1 | 3),
                "uint8 elements and 1 or 3 channels",
            ),
            "png" => (
                Self::Png,
                matches!(dtype, DType::U8 | DType::U16) && channels <= 4,
                "uint8 or uint16 elements and 1 to 4 channels",
            ),
            "compressed_segmentation" => (
                Self::Segmentation { block: scale.block_size.unwrap_or(segmentation::BLOCK) },
                matches!(dtype, DType::U32 | DType::U64),
                "uint32 or uint64 elements",
            ),
            other => {
                let known = match other {
                    "compresso" | "crackle" | "kempressed" | "fpzip" | "zfpc" | "jxl" => "",
                    _ => ", which is not known here",
                };
                return Err(format!(
                    "its chunks are encoded as `{other}`{known}: {KNOWN} can be read (CloudVolume can convert it)"
                ));
            }
        };
        if fits {
            return Ok(encoding);
        }
        Err(format!("its chunks are encoded as `{}`, which needs {needs}, not {channels} of {dtype}", scale.encoding))
    }

    /// Whether chunks of this encoding are wrapped in gzip, by CloudVolume and by this crate.
    pub(super) fn is_worth_packing(self) -> bool {
        matches!(self, Self::Raw | Self::Segmentation { .. })
    }

    /// Decodes a chunk that may be a gzip stream around the encoding; `spare` is memory to reuse.
    pub(super) fn decode(self, packed: Vec<u8>, layout: ChunkLayout, mut spare: Vec<u8>) -> Result<Vec<u8>, Cause> {
        // No encoding begins like gzip, but raw elements may. Raw bytes of exactly the expected length are taken as
        // elements; see `must_unpack` for a gzip stream that happens to have that length.
        let is_plain = self == Self::Raw && packed.len() == layout.bytes();
        let mut bytes = packed;
        if !is_plain && gzip::is_gzip(&bytes) {
            let limit = if self == Self::Raw { layout.bytes() } else { self.most_packed_bytes(layout) };
            gzip::unpack(&bytes, limit, &mut spare)?;
            std::mem::swap(&mut bytes, &mut spare);
        }
        match self {
            Self::Raw => {
                if bytes.len() != layout.bytes() {
                    let (is, should) = (bytes.len(), layout.bytes());
                    return Err(
                        format!("it has {is} bytes instead of {should}: it was cut off, or is no such chunk").into()
                    );
                }
                swap_bytes(&mut bytes, layout.dtype);
                std::mem::swap(&mut bytes, &mut spare);
            }
            Self::Jpeg { .. } => pictures::decode_jpeg(&bytes, layout.picture(), &mut spare)?,
            Self::Png => pictures::decode_png(&bytes, layout.picture(), &mut spare)?,
            Self::Segmentation { block } => {
                let segments = segmentation::LabelLayout { shape: layout.shape, block };
                segmentation::decode(&bytes, segments, layout.dtype.size(), &mut spare)?;
            }
        }
        crate::spare::give(bytes);
        Ok(spare)
    }

    /// Decodes a raw chunk that is a gzip stream into memory of its length. Returns whether it did that;
    /// [`decode`](Self::decode) decodes every chunk, and tells why this one cannot be.
    pub(super) fn decode_into(self, packed: &[u8], layout: ChunkLayout, memory: &mut [u8]) -> bool {
        let is_packed = self == Self::Raw && packed.len() != layout.bytes() && gzip::is_gzip(packed);
        let unpacked = is_packed && gzip::unpack_exactly(packed, memory);
        if unpacked {
            swap_bytes(memory, layout.dtype);
        }
        unpacked
    }

    /// Whether a gzip stream of this length must be unpacked before [`decode`](Self::decode), which would take it for
    /// elements.
    pub(super) fn must_unpack(self, packed: &[u8], layout: ChunkLayout) -> bool {
        self == Self::Raw && packed.len() == layout.bytes()
    }

    /// Encodes a chunk.
    pub(super) fn encode(self, mut bytes: Vec<u8>, layout: ChunkLayout) -> Result<Vec<u8>, Cause> {
        if bytes.len() != layout.bytes() {
            return Err(format!("{} bytes of elements instead of {}", bytes.len(), layout.bytes()).into());
        }
        match self {
            Self::Raw => {
                swap_bytes(&mut bytes, layout.dtype);
                Ok(bytes)
            }
            Self::Jpeg { quality } => pictures::encode_jpeg(&bytes, layout.picture(), quality),
            Self::Png => pictures::encode_png(&bytes, layout.picture()),
            Self::Segmentation { block } => segmentation::encode(
                &bytes,
                segmentation::LabelLayout { shape: layout.shape, block },
                layout.dtype.size(),
            ),
        }
    }
}

/// Converts between little endian, the stored byte order, and native byte order.
pub(super) fn swap_bytes(bytes: &mut [u8], dtype: DType) {
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_chunks_of_large_blocks_stay_within_the_limit() {
        for (shape, block) in [([64, 64, 1, 1], [64, 64, 64]), ([1, 1, 4096, 1], [8, 8, 8])] {
            let layout = ChunkLayout { shape, dtype: DType::U32 };
            let encoding = ChunkEncoding::Segmentation { block };
            let labels: Vec<u8> = (0..4096_u32).flat_map(|number| (number % 1000 * 77).to_le_bytes()).collect();
            let packed = encoding.encode(labels.clone(), layout).expect("encoded");
            assert!(packed.len() > layout.most_packed_bytes(), "longer than other encodings: {}", packed.len());
            assert!(packed.len() <= encoding.most_packed_bytes(layout), "{} for {shape:?}", packed.len());
            assert!(encoding.decode(packed, layout, Vec::new()).expect("decoded") == labels);
        }
    }
}
