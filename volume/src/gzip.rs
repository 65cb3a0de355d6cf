//! gzip and zlib streams in memory, unpacked up to a limit.
//!
//! libdeflate unpacks in one call, twice as fast as streaming. It does not support several members; those are streamed.
//! A stream is untrusted input: one that holds more than the limit is an error, and uses no more memory than the limit.

use std::io::Read as _;

use libdeflater::{CompressionLvl, Compressor, DecompressionError, Decompressor};

use crate::error::Cause;

/// The beginning of a gzip member: the signature and the only method.
const SIGNATURE: [u8; 3] = [0x1f, 0x8b, 8];

/// Bytes of the shortest member: a header, an empty block and the trailer.
const SHORTEST: usize = 20;

/// The maximum compression ratio of deflate.
const BEST_RATIO: usize = 1032;

/// The message for a stream without a valid end.
const DAMAGED: &str = "the gzip stream is damaged or cut short";

/// Returns the maximum length of a stored object with `bytes` bytes of content, packed or not: no packing expands more
/// than that.
pub(crate) fn most_stored(bytes: usize) -> u64 {
    (bytes as u64).saturating_mul(2).saturating_add(64 << 10)
}

/// Whether these bytes begin like a gzip stream.
pub(crate) fn is_gzip(bytes: &[u8]) -> bool {
    bytes.starts_with(&SIGNATURE)
}

/// Unpacks a gzip stream of one or several members into `into`, replacing its content.
///
/// Ignores everything behind a member if its content ends exactly at the limit.
///
/// # Errors
///
/// The stream is damaged, or holds more than `limit` bytes.
pub(crate) fn unpack(bytes: &[u8], limit: usize, into: &mut Vec<u8>) -> Result<(), Cause> {
    if bytes.len() < SHORTEST || !is_gzip(bytes) {
        return Err("this is no gzip stream, or one that is cut short".into());
    }
    // The last four bytes are the length of the last member, which usually is the only one. They may be false.
    let said = bytes.last_chunk().map_or(0, |length| u32::from_le_bytes(*length) as usize);
    let several = || bytes[SHORTEST - 2..].windows(SIGNATURE.len()).any(|window| window == SIGNATURE);
    if said <= limit && said / BEST_RATIO <= bytes.len() {
        into.resize(said, 0);
        match Decompressor::new().gzip_decompress(bytes, into) {
            // A further member could only exceed the limit.
            Ok(length) if length == limit => return Ok(()),
            Ok(length) if !several() => {
                into.truncate(length);
                return Ok(());
            }
            Err(DecompressionError::BadData) if !several() => return Err(DAMAGED.into()),
            Ok(_) | Err(_) => {}
        }
    }
    // The last four bytes of a truncated stream are not its length. Only a streaming decoder tells a truncated stream
    // from one that is too long.
    stream(flate2::bufread::MultiGzDecoder::new(bytes), limit, into)
}

/// Unpacks the first member of a gzip stream into memory. Returns whether it has exactly that length.
pub(crate) fn unpack_exactly(bytes: &[u8], memory: &mut [u8]) -> bool {
    Decompressor::new().gzip_decompress(bytes, memory).is_ok_and(|length| length == memory.len())
}

/// Unpacks a zlib stream into memory. Returns whether it has exactly that length.
pub(crate) fn unpack_zlib_exactly(bytes: &[u8], memory: &mut [u8]) -> bool {
    Decompressor::new().zlib_decompress(bytes, memory).is_ok_and(|length| length == memory.len())
}

/// Unpacks a zlib stream into `into`, replacing its content.
///
/// # Errors
///
/// The stream is damaged, or holds more than `limit` bytes.
pub(crate) fn unpack_zlib(bytes: &[u8], limit: usize, into: &mut Vec<u8>) -> Result<(), Cause> {
    let most = limit.min(bytes.len().saturating_mul(BEST_RATIO));
    into.resize(most, 0);
    match Decompressor::new().zlib_decompress(bytes, into) {
        Ok(length) => {
            into.truncate(length);
            Ok(())
        }
        Err(DecompressionError::InsufficientSpace) => Err(too_long(limit)),
        Err(DecompressionError::BadData) => Err("the zlib stream is damaged".into()),
    }
}

/// Packs bytes as one gzip member.
///
/// # Errors
///
/// libdeflate may refuse; no case is known.
pub(crate) fn pack(bytes: &[u8]) -> Result<Vec<u8>, Cause> {
    let mut compressor = Compressor::new(CompressionLvl::default());
    let mut packed = vec![0; compressor.gzip_compress_bound(bytes.len())];
    let length = compressor.gzip_compress(bytes, &mut packed)?;
    packed.truncate(length);
    Ok(packed)
}

fn stream(decoder: impl std::io::Read, limit: usize, into: &mut Vec<u8>) -> Result<(), Cause> {
    into.clear();
    decoder.take((limit as u64).saturating_add(1)).read_to_end(into).map_err(|error| format!("{DAMAGED}: {error}"))?;
    if into.len() > limit { Err(too_long(limit)) } else { Ok(()) }
}

fn too_long(limit: usize) -> Cause {
    format!("what is packed here is longer than the {limit} bytes there can be").into()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn text(length: usize) -> Vec<u8> {
        (0..length as u64).map(|at| u8::try_from(at * at / 7 % 251).expect("small")).collect()
    }

    #[test]
    fn bytes_survive_a_round_trip() {
        for length in [0, 1, 100, 70_000] {
            let packed = pack(&text(length)).expect("packed");
            assert!(is_gzip(&packed));
            for limit in [length, length + 1, length + 1_000_000] {
                let mut into = vec![7; 5];
                unpack(&packed, limit, &mut into).expect("it fits");
                assert_eq!(into, text(length));
            }
        }
    }

    #[test]
    fn members_are_joined() {
        for (first, second) in [(100, 100), (5, 70_000), (70_000, 5), (0, 9), (9, 0)] {
            let packed = [pack(&text(first)).expect("packed"), pack(&text(second)).expect("packed")].concat();
            let mut into = Vec::new();
            unpack(&packed, 100_000, &mut into).expect("it fits");
            assert_eq!(into, [text(first), text(second)].concat(), "{first} and {second}");
            if first > 0 && second > 0 {
                assert!(unpack(&packed, first + second - 1, &mut into).is_err());
            }
        }
    }

    #[test]
    fn bomb_is_an_error_without_allocation() {
        let bomb = pack(&vec![0; 50 << 20]).expect("packed");
        let mut into = Vec::new();
        for lie in [None, Some(10u32), Some(u32::MAX)] {
            let mut bomb = bomb.clone();
            if let Some(lie) = lie {
                let end = bomb.len() - 4;
                bomb[end..].copy_from_slice(&lie.to_le_bytes());
            }
            assert!(unpack(&bomb, 1000, &mut into).is_err());
        }
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        zlib.write_all(&vec![0; 50 << 20]).expect("packed");
        let bomb = zlib.finish().expect("packed");
        assert!(unpack_zlib(&bomb, 1000, &mut into).expect_err("a bomb").to_string().contains("1000 bytes"));
        assert!(into.capacity() < 4096, "{}", into.capacity());
        unpack_zlib(&bomb, 50 << 20, &mut into).expect("no bomb where it fits");
        assert_eq!(into.len(), 50 << 20);
    }

    #[test]
    fn truncated_stream_is_reported_as_cut_short() {
        let packed = pack(&text(70_000)).expect("packed");
        for end in 0..packed.len() {
            let error = unpack(&packed[..end], 70_000, &mut Vec::new()).expect_err("cut").to_string();
            assert!(error.contains("cut short"), "cut at {end}: {error}");
        }
    }

    #[test]
    fn damaged_stream_is_an_error() {
        let packed = pack(&text(5000)).expect("packed");
        let mut into = Vec::new();
        for end in 0..packed.len() {
            assert!(unpack(&packed[..end], 5000, &mut into).is_err(), "cut at {end}");
        }
        for at in [0, 1, 2, 30, packed.len() / 2, packed.len() - 1, packed.len() - 8] {
            let mut damaged = packed.clone();
            damaged[at] ^= 0x55;
            assert!(unpack(&damaged, 5000, &mut into).is_err(), "byte {at}");
        }
        assert!(unpack_zlib(&packed, 5000, &mut into).is_err());
    }
}
