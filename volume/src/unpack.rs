//! Unpacks bytes, up to a limit.
//!
//! A stream is untrusted input: a few thousand bytes can claim to unpack, or really unpack, to gigabytes. Each function
//! here has a limit for the output, allocates no memory that the stream cannot fill, and stops at the limit.

use std::cell::RefCell;
use std::io::Read as _;

use bzip2::read::MultiBzDecoder;
#[cfg(feature = "codecs")]
use liblzma::{
    bufread::XzDecoder,
    stream::{CONCATENATED, Stream},
};
use zarrs::array::codec::{blosc_decompress_bytes, blosc_validate};
use zstd::bulk::Decompressor;

use crate::error::Cause;
use crate::gzip;

/// The expected number of unpacked bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Exactly this many.
    Exactly(usize),
    /// At most this many: the content is packed again, so its length varies.
    AtMost(usize),
}

/// The compressions that this crate unpacks itself, without zarrs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    Gzip,
    Zlib,
    Zstd,
    Bz2,
    Blosc,
    /// xz streams, and legacy LZMA streams.
    #[cfg(feature = "codecs")]
    Xz,
}

/// Maximum memory for decoding xz, besides the output: the strongest preset needs 65 MiB, but a stream may ask for 4
/// GiB.
#[cfg(feature = "codecs")]
const XZ_MEMORY: u64 = 128 << 20;

thread_local! {
    /// Reused, because creating one costs as much as unpacking a small chunk.
    static ZSTD: RefCell<Decompressor<'static>> = RefCell::default();
}

impl Expected {
    pub(crate) fn limit(self) -> usize {
        match self {
            Self::Exactly(size) | Self::AtMost(size) => size,
        }
    }

    /// Checks the number of unpacked bytes.
    pub(crate) fn check(self, found: usize) -> Result<(), Cause> {
        match self {
            Self::Exactly(size) if found != size => {
                Err(format!("it unpacks to {found} bytes, where {size} belong").into())
            }
            Self::AtMost(size) if found > size => Err(too_much(size)),
            _ => Ok(()),
        }
    }
}

impl Packing {
    /// Unpacks into `into`, replacing its content.
    pub(crate) fn unpack(self, packed: &[u8], expected: Expected, into: &mut Vec<u8>) -> Result<(), Cause> {
        let limit = expected.limit();
        match self {
            Self::Gzip => gzip::unpack(packed, limit, into)?,
            Self::Zlib => gzip::unpack_zlib(packed, limit, into)?,
            Self::Zstd => unpack_zstd(packed, limit, into)?,
            Self::Bz2 => {
                into.clear();
                MultiBzDecoder::new(packed).take((limit as u64).saturating_add(1)).read_to_end(into)?;
                if into.len() > limit {
                    return Err(too_much(limit));
                }
            }
            Self::Blosc => unpack_blosc(packed, limit, into)?,
            #[cfg(feature = "codecs")]
            Self::Xz => unpack_xz(packed, limit, into)?,
        }
        expected.check(into.len())
    }

    /// Unpacks into memory of exactly the expected length. Returns `false`, with arbitrary content of the memory, if
    /// the stream does not have that length, is damaged, or is of a packing that unpacks into memory of its own:
    /// [`unpack`](Self::unpack) tells which.
    pub(crate) fn unpack_exactly(self, packed: &[u8], memory: &mut [u8]) -> bool {
        match self {
            Self::Gzip => gzip::unpack_exactly(packed, memory),
            Self::Zlib => gzip::unpack_zlib_exactly(packed, memory),
            Self::Zstd => {
                let length = ZSTD.with_borrow_mut(|zstd| zstd.decompress_to_buffer(packed, &mut *memory));
                length.is_ok_and(|length| length == memory.len())
            }
            _ => false,
        }
    }
}

fn unpack_zstd(packed: &[u8], limit: usize, into: &mut Vec<u8>) -> Result<(), Cause> {
    // The size in the frames' headers, or that of blocks of maximum size: an upper bound of the output.
    let bound = Decompressor::upper_bound(packed).ok_or("this is no zstd stream, or only the beginning of one")?;
    into.clear();
    into.try_reserve(bound.min(limit))?;
    match ZSTD.with_borrow_mut(|zstd| zstd.decompress_to_buffer(packed, into)) {
        Ok(length) if length <= limit => Ok(()),
        Err(error) if bound <= limit => Err(error.into()),
        Ok(_) | Err(_) => Err(too_much(limit)),
    }
}

fn unpack_blosc(packed: &[u8], limit: usize, into: &mut Vec<u8>) -> Result<(), Cause> {
    let size = blosc_validate(packed).ok_or("this is no blosc buffer, or only a part of one")?;
    if size > limit {
        return Err(too_much(limit));
    }
    // The size in the header is trusted only up to the limit. Decoding writes no bytes that were not packed.
    into.clear();
    if size > 0 {
        *into = blosc_decompress_bytes(packed, size, 1).map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[cfg(feature = "codecs")]
fn unpack_xz(packed: &[u8], limit: usize, into: &mut Vec<u8>) -> Result<(), Cause> {
    into.clear();
    let decoder = XzDecoder::new_stream(packed, Stream::new_auto_decoder(XZ_MEMORY, CONCATENATED)?);
    decoder.take((limit as u64).saturating_add(1)).read_to_end(into)?;
    if into.len() > limit { Err(too_much(limit)) } else { Ok(()) }
}

/// Unpacks one LZ4 block, which does not record its size, into `into`, replacing its content.
///
/// # Errors
///
/// The block is damaged, or does not hold exactly `size` bytes.
#[cfg(feature = "codecs")]
pub(crate) fn unpack_lz4_block(packed: &[u8], size: usize, into: &mut Vec<u8>) -> Result<(), Cause> {
    /// The maximum compression ratio of LZ4.
    const BEST_RATIO: usize = 255;
    if size / BEST_RATIO > packed.len() {
        return Err(format!("an LZ4 block of {} bytes cannot hold {size}", packed.len()).into());
    }
    into.clear();
    into.resize(size, 0);
    let found = lz4_flex::block::decompress_into(packed, into)?;
    Expected::Exactly(size).check(found)
}

fn too_much(limit: usize) -> Cause {
    format!("what is packed here is longer than the {limit} bytes there can be").into()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use zarrs::array::codec::{BloscCompressor, BloscShuffleMode, blosc_compress_bytes};

    use super::*;

    const ALL: &[Packing] = &[
        Packing::Gzip,
        Packing::Zlib,
        Packing::Zstd,
        Packing::Bz2,
        Packing::Blosc,
        #[cfg(feature = "codecs")]
        Packing::Xz,
    ];

    fn pack(packing: Packing, bytes: &[u8]) -> Vec<u8> {
        match packing {
            Packing::Gzip => gzip::pack(bytes).expect("packed"),
            Packing::Zlib => {
                let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(bytes).expect("packed");
                encoder.finish().expect("packed")
            }
            Packing::Zstd => zstd::bulk::compress(bytes, 3).expect("packed"),
            Packing::Bz2 => {
                let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::default());
                encoder.write_all(bytes).expect("packed");
                encoder.finish().expect("packed")
            }
            Packing::Blosc => {
                let level = 5u8.try_into().expect("a level");
                blosc_compress_bytes(bytes, level, BloscShuffleMode::NoShuffle, 1, BloscCompressor::LZ4, 0, 1)
                    .expect("packed")
            }
            #[cfg(feature = "codecs")]
            Packing::Xz => {
                let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 6);
                encoder.write_all(bytes).expect("packed");
                encoder.finish().expect("packed")
            }
        }
    }

    #[test]
    fn bytes_survive_a_round_trip_into_reused_memory() {
        let bytes: Vec<u8> = (0..70_000u32).flat_map(|at| (at.wrapping_mul(at) / 7).to_le_bytes()).collect();
        for packing in ALL.iter().copied() {
            let packed = pack(packing, &bytes);
            for memory in [vec![], vec![9; 7], vec![9; 1 << 21]] {
                for expected in [Expected::Exactly(bytes.len()), Expected::AtMost(bytes.len() + 5)] {
                    let mut into = memory.clone();
                    packing.unpack(&packed, expected, &mut into).expect("it fits");
                    assert!(into == bytes, "{packing:?} into {} bytes", memory.len());
                }
            }
        }
    }

    #[test]
    fn memory_is_filled_only_by_a_stream_of_its_length() {
        let bytes: Vec<u8> = (0..5000u32).map(|at| u8::try_from(at * at / 7 % 251).expect("small")).collect();
        for packing in ALL.iter().copied() {
            let packed = pack(packing, &bytes);
            let mut memory = vec![7; bytes.len()];
            let can = packing.unpack_exactly(&packed, &mut memory);
            assert_eq!(can, matches!(packing, Packing::Gzip | Packing::Zlib | Packing::Zstd), "{packing:?}");
            assert!(!can || memory == bytes);
            for length in [0, 1, bytes.len() - 1, bytes.len() + 1, 2 * bytes.len()] {
                assert!(!packing.unpack_exactly(&packed, &mut vec![7; length]), "{packing:?} into {length} bytes");
            }
            for end in (0..packed.len()).step_by(97) {
                assert!(!packing.unpack_exactly(&packed[..end], &mut memory), "{packing:?} cut at {end}");
            }
        }
    }

    #[test]
    fn wrong_length_is_an_error_and_bombs_allocate_nothing() {
        let bomb = vec![0; 8 << 20];
        for packing in ALL.iter().copied() {
            let packed = pack(packing, &bomb);
            let mut into = Vec::new();
            for expected in [Expected::Exactly(1000), Expected::AtMost(1000)] {
                let error = packing.unpack(&packed, expected, &mut into).expect_err("a bomb");
                assert!(into.capacity() < 1 << 20, "{packing:?}: {} bytes, {error}", into.capacity());
            }
            let packed = pack(packing, &bomb[..1000]);
            packing.unpack(&packed, Expected::Exactly(1001), &mut into).expect_err("too short");
            packing.unpack(&packed, Expected::Exactly(999), &mut into).expect_err("too long");
        }
    }

    #[test]
    fn damaged_streams_stay_within_the_memory_limit() {
        let bytes: Vec<u8> = (0..20_000u32).map(|at| u8::try_from(at * at / 7 % 251).expect("small")).collect();
        for packing in ALL.iter().copied() {
            let packed = pack(packing, &bytes);
            for end in (0..packed.len()).step_by(97).chain([packed.len() - 1]) {
                let mut into = Vec::new();
                let cut = packing.unpack(&packed[..end], Expected::Exactly(bytes.len()), &mut into);
                assert!(cut.is_err(), "{packing:?} cut at {end}");
            }
            for at in 0..packed.len().min(64) {
                let mut damaged = packed.clone();
                damaged[at] ^= 0xff;
                let mut into = Vec::new();
                // blosc has no checksum: damage may go unnoticed, but must do no harm.
                let _ = packing.unpack(&damaged, Expected::Exactly(bytes.len()), &mut into);
                assert!(into.capacity() < 1 << 20, "{packing:?}");
            }
        }
    }

    #[test]
    fn blosc_with_a_false_size_is_harmless() {
        use BloscCompressor::{BloscLZ, LZ4, LZ4HC, Snappy, Zlib, Zstd};

        /// Offsets of the unpacked size and of the block size in a buffer's header.
        const SIZES: [usize; 2] = [4, 8];
        let bomb = vec![7; 4 << 20];
        let level = || 5u8.try_into().expect("a level");
        let mut tried = 0;
        for inner in [BloscLZ, LZ4, LZ4HC, Snappy, Zlib, Zstd] {
            for shuffle in [BloscShuffleMode::NoShuffle, BloscShuffleMode::Shuffle, BloscShuffleMode::BitShuffle] {
                // Not every build of the library has all compressors.
                let Ok(packed) = blosc_compress_bytes(&bomb, level(), shuffle, 4, inner, 0, 1) else { continue };
                tried += 1;
                let mut into = Vec::new();
                for expected in [Expected::Exactly(1000), Expected::AtMost(1000), Expected::Exactly(bomb.len() + 1)] {
                    Packing::Blosc.unpack(&packed, expected, &mut into).expect_err("a bomb");
                    assert!(into.capacity() <= expected.limit(), "{inner:?}: {}", into.capacity());
                }
                for (at, lie) in
                    SIZES.iter().flat_map(|at| [0, 1, 1000, 1 << 23, i32::MAX as u32, u32::MAX].map(|lie| (*at, lie)))
                {
                    let mut lying = packed.clone();
                    lying[at..at + 4].copy_from_slice(&lie.to_le_bytes());
                    let mut into = Vec::new();
                    let unpacked = Packing::Blosc.unpack(&lying, Expected::Exactly(1000), &mut into);
                    assert!(unpacked.is_err() || into.len() == 1000, "{inner:?}, {lie} at {at}");
                    assert!(into.capacity() < 1 << 20, "{inner:?}, {lie} at {at}");
                }
                for end in [0, 1, 15, 16, 17, packed.len() / 2, packed.len() - 1] {
                    Packing::Blosc
                        .unpack(&packed[..end], Expected::Exactly(bomb.len()), &mut into)
                        .expect_err("cut short");
                }
            }
        }
        assert!(tried >= 12, "{tried}");
    }

    #[cfg(feature = "codecs")]
    #[test]
    fn xz_with_a_huge_dictionary_is_refused() {
        let mut options = liblzma::stream::LzmaOptions::new_preset(0).expect("options");
        options.dict_size(1 << 30);
        let mut filters = liblzma::stream::Filters::new();
        filters.lzma2(&options);
        let stream = Stream::new_stream_encoder(&filters, liblzma::stream::Check::Crc32).expect("a stream");
        let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
        encoder.write_all(&[7; 100]).expect("packed");
        let packed = encoder.finish().expect("packed");
        Packing::Xz.unpack(&packed, Expected::Exactly(100), &mut Vec::new()).expect_err("a dictionary of 1 GiB");
    }

    #[cfg(feature = "codecs")]
    #[test]
    fn lz4_block_of_another_size_is_an_error() {
        let bytes = vec![3; 100_000];
        let packed = lz4_flex::block::compress(&bytes);
        let mut into = vec![1; 9];
        unpack_lz4_block(&packed, bytes.len(), &mut into).expect("it fits");
        assert!(into == bytes);
        for wrong in [0, 99_999, 100_001, usize::MAX] {
            let mut into = Vec::new();
            unpack_lz4_block(&packed, wrong, &mut into).expect_err("another size");
            assert!(into.capacity() < 1 << 20, "{wrong}");
        }
        for end in 0..packed.len() {
            unpack_lz4_block(&packed[..end], bytes.len(), &mut Vec::new()).expect_err("cut short");
        }
    }
}
