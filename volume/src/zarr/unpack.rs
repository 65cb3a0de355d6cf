//! Packed bytes become the bytes that were packed, and never more of them than there may be.
//!
//! A stream is input: a few thousand bytes can claim to be, or really be, gigabytes. Each function here knows how much may come
//! out, takes no memory that the stream cannot fill, and stops where it would become more.

use std::cell::RefCell;
use std::io::Read as _;

use bzip2::read::MultiBzDecoder;
use zarrs::array::codec::{blosc_decompress_bytes, blosc_validate};
use zstd::bulk::Decompressor;

use crate::error::Cause;
use crate::gzip;

/// How many bytes may come out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    /// So many.
    Exactly(usize),
    /// Not more than so many: what is in there is packed itself.
    AtMost(usize),
}

/// How bytes are packed, where we unpack them ourselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    Gzip,
    Zlib,
    Zstd,
    Bz2,
    Blosc,
}

thread_local! {
    /// Making one costs as much as unpacking a small chunk.
    static ZSTD: RefCell<Decompressor<'static>> = RefCell::default();
}

impl Expected {
    pub(super) fn limit(self) -> usize {
        match self {
            Self::Exactly(size) | Self::AtMost(size) => size,
        }
    }

    /// Checks how many came out.
    pub(super) fn check(self, found: usize) -> Result<(), Cause> {
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
    /// Unpacks into `into`, in place of what is there.
    pub(super) fn unpack(self, packed: &[u8], expected: Expected, into: &mut Vec<u8>) -> Result<(), Cause> {
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
        }
        expected.check(into.len())
    }
}

fn unpack_zstd(packed: &[u8], limit: usize, into: &mut Vec<u8>) -> Result<(), Cause> {
    // What the frames say, or what blocks of the largest size would come to; less than that may come out, never more.
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
    // Its header is believed only as far as memory can be had; nothing is written that was not packed.
    into.clear();
    if size > 0 {
        *into = blosc_decompress_bytes(packed, size, 1).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn too_much(limit: usize) -> Cause {
    format!("what is packed here is longer than the {limit} bytes there can be").into()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use zarrs::array::codec::{BloscCompressor, BloscShuffleMode, blosc_compress_bytes};

    use super::*;

    const ALL: [Packing; 5] = [Packing::Gzip, Packing::Zlib, Packing::Zstd, Packing::Bz2, Packing::Blosc];

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
        }
    }

    #[test]
    fn what_was_packed_comes_back_whatever_was_in_the_memory() {
        let bytes: Vec<u8> = (0..70_000u32).flat_map(|at| (at.wrapping_mul(at) / 7).to_le_bytes()).collect();
        for packing in ALL {
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
    fn another_length_is_an_error_and_a_bomb_takes_no_memory() {
        let bomb = vec![0; 8 << 20];
        for packing in ALL {
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
    fn damaged_streams_are_errors_and_never_take_more_memory_than_they_may() {
        let bytes: Vec<u8> = (0..20_000u32).map(|at| u8::try_from(at * at / 7 % 251).expect("small")).collect();
        for packing in ALL {
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
                let _result = packing.unpack(&damaged, Expected::Exactly(bytes.len()), &mut into);
                assert!(into.capacity() < 1 << 20, "{packing:?}");
            }
        }
    }
}
