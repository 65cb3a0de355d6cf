//! The `LZ4Block` stream of lz4-java: frames of LZ4 blocks, each with its lengths and a checksum; an empty frame ends
//! the stream.
//!
//! ```text
//! "LZ4Block"  token: 1 byte, method in the high half, block size in the low half
//!             packed length, unpacked length, checksum: u32, little-endian
//! ```

use crate::error::Cause;
use crate::unpack::{Expected, unpack_lz4_block};

/// The beginning of each frame.
const MAGIC: &[u8; 8] = b"LZ4Block";

/// Methods, in the high half of a token.
const RAW: u8 = 0x10;
const LZ4: u8 = 0x20;

/// The maximum block size is 2 to the power of this plus the low half of the token.
const LEAST_LEVEL: u32 = 10;

/// Seed of the checksums, and the bits of them that are stored.
const SEED: u32 = 0x9747_b28c;
const KEPT: u32 = 0x0fff_ffff;

/// Unpacks a stream of exactly `size` bytes into `into`, replacing its content.
///
/// # Errors
///
/// The stream is damaged, or holds more or fewer bytes. Allocates no memory for bytes that a frame claims but does not
/// hold.
pub(super) fn unpack(stream: &[u8], size: usize, into: &mut Vec<u8>) -> Result<(), Cause> {
    into.clear();
    let (mut rest, mut block) = (stream, Vec::new());
    loop {
        if take::<8>(&mut rest)? != *MAGIC {
            return Err("this is no stream of LZ4 frames: one of them does not begin with `LZ4Block`".into());
        }
        let [token] = take(&mut rest)?;
        let [packed, unpacked, checksum] =
            [take(&mut rest)?, take(&mut rest)?, take(&mut rest)?].map(u32::from_le_bytes);
        let method = token & 0xf0;
        if !matches!(method, RAW | LZ4) {
            return Err(format!("an LZ4 frame has the method {method:#x}, which is not known").into());
        }
        if unpacked == 0 && packed == 0 {
            return Expected::Exactly(size).check(into.len());
        }
        let left = size - into.len();
        let (packed, unpacked) = (packed as usize, unpacked as usize);
        if unpacked > 1 << (LEAST_LEVEL + u32::from(token & 0xf)) || unpacked == 0 {
            return Err(format!("an LZ4 frame says that it holds {unpacked} bytes, which its token forbids").into());
        }
        if unpacked > left {
            return Err(format!("what is packed here is longer than the {size} bytes there can be").into());
        }
        let (bytes, behind) = rest.split_at_checked(packed).ok_or("an LZ4 frame is cut short")?;
        rest = behind;
        let bytes = if method == RAW {
            Expected::Exactly(unpacked).check(packed)?;
            bytes
        } else {
            unpack_lz4_block(bytes, unpacked, &mut block)?;
            &block
        };
        if xxh32(bytes, SEED) & KEPT != checksum {
            return Err("the checksum of an LZ4 frame is another: it is damaged".into());
        }
        into.extend_from_slice(bytes);
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Cause> {
    let (first, behind) = rest.split_first_chunk::<N>().ok_or("the stream of LZ4 frames is cut short")?;
    *rest = behind;
    Ok(*first)
}

const PRIMES: [u32; 5] = [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d, 0x27d4_eb2f, 0x1656_67b1];

/// The checksum xxHash32.
fn xxh32(bytes: &[u8], seed: u32) -> u32 {
    let [p1, p2, p3, p4, p5] = PRIMES;
    let word = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes);
    let (stripes, tail) = bytes.as_chunks::<16>();
    let mut sum = if stripes.is_empty() {
        seed.wrapping_add(p5)
    } else {
        let mut lanes = [seed.wrapping_add(p1).wrapping_add(p2), seed.wrapping_add(p2), seed, seed.wrapping_sub(p1)];
        for stripe in stripes {
            for (lane, input) in lanes.iter_mut().zip(stripe.as_chunks::<4>().0) {
                *lane = lane.wrapping_add(word(input).wrapping_mul(p2)).rotate_left(13).wrapping_mul(p1);
            }
        }
        let [a, b, c, d] = lanes;
        a.rotate_left(1).wrapping_add(b.rotate_left(7)).wrapping_add(c.rotate_left(12)).wrapping_add(d.rotate_left(18))
    };
    #[expect(clippy::cast_possible_truncation, reason = "the algorithm counts modulo 2^32")]
    let length = bytes.len() as u32;
    sum = sum.wrapping_add(length);
    let (words, tail) = tail.as_chunks::<4>();
    for input in words {
        sum = sum.wrapping_add(word(input).wrapping_mul(p3)).rotate_left(17).wrapping_mul(p4);
    }
    for byte in tail {
        sum = sum.wrapping_add(u32::from(*byte).wrapping_mul(p5)).rotate_left(11).wrapping_mul(p1);
    }
    sum = (sum ^ (sum >> 15)).wrapping_mul(p2);
    sum = (sum ^ (sum >> 13)).wrapping_mul(p3);
    sum ^ (sum >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One sentence six times in blocks of 64 bytes, framed with the Python packages lz4 and xxhash.
    const STREAM: &str = "4c5a34426c6f636b201c0000004000000089b74000ff024e3520616e64204c5a34426c6f636b2c20110017505a34426c6f\
                          4c5a34426c6f636b201b00000026000000e2598b00fc02636b2c204e3520616e64204c5a34426c6f1100506f636b2c20\
                          4c5a34426c6f636b10000000000000000000000000";

    fn stream() -> Vec<u8> {
        let digits: Vec<u8> = STREAM.bytes().filter(u8::is_ascii_hexdigit).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("digits"), 16).expect("digits");
        digits.chunks(2).map(byte).collect()
    }

    /// One frame.
    fn frame(token: u8, bytes: &[u8], unpacked: u32, checksum: u32) -> Vec<u8> {
        let packed = u32::try_from(bytes.len()).expect("small");
        let numbers = [packed, unpacked, checksum].map(u32::to_le_bytes).concat();
        [&MAGIC[..], &[token], &numbers, bytes].concat()
    }

    #[test]
    fn checksums_are_those_of_xxhash() {
        let long: Vec<u8> = (0..768_u32).map(|at| u8::try_from(at % 256).expect("a byte")).collect();
        let odd = [&b"0123456789abcdef"[..], b"0123456789abcdef", b"xyz"].concat();
        for (bytes, ours, plain) in [
            (&b""[..], 0x8d3b_42d8, 0x02cc_5d05),
            (b"a", 0x12b7_e114, 0x550d_7456),
            (b"abc", 0x4d4c_b222, 0x32d1_53ff),
            (&long, 0xeaa8_5739, 0xcdb9_46b1),
            (&odd, 0x14c3_eb28, 0x4f2d_26c0),
        ] {
            assert_eq!((xxh32(bytes, SEED), xxh32(bytes, 0)), (ours, plain), "{bytes:?}");
        }
    }

    #[test]
    fn frames_of_both_methods_are_joined() {
        let expected = b"N5 and LZ4Block, ".repeat(6);
        for mut memory in [vec![], vec![9; 7], vec![9; 999]] {
            unpack(&stream(), 102, &mut memory).expect("a stream");
            assert_eq!(memory, expected);
        }
        let plain = [frame(RAW, b"abc", 3, 0x4d4c_b222 & KEPT), frame(RAW, b"", 0, 0)].concat();
        let mut into = Vec::new();
        unpack(&plain, 3, &mut into).expect("a stream");
        assert_eq!(into, b"abc");
    }

    #[test]
    fn damaged_streams_are_errors() {
        let whole = stream();
        for end in 0..whole.len() {
            unpack(&whole[..end], 102, &mut Vec::new()).expect_err("cut short");
        }
        for at in 0..whole.len() - 12 {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x40;
            // A larger maximum block size in the token is harmless.
            if let Ok(()) = unpack(&damaged, 102, &mut Vec::new()) {
                assert_eq!(at % 1000, 8, "byte {at} was changed and nothing was said");
            }
        }
    }

    #[test]
    fn false_frames_allocate_no_memory() {
        let end = frame(RAW, b"", 0, 0);
        let most = usize::try_from(1_u64 << 30).expect("an address");
        for (stream, size, said) in [
            (frame(LZ4 | 15, b"abc", 1 << 25, 0), most, "cannot hold"),
            (frame(LZ4 | 15, b"abc", u32::MAX, 0), most, "token forbids"),
            (frame(LZ4, b"abc", 1025, 0), most, "token forbids"),
            (frame(LZ4, b"abc", 0, 0), most, "token forbids"),
            (frame(RAW, b"abc", 4, 0), most, "3 bytes, where 4 belong"),
            (frame(0x30, b"abc", 3, 0), most, "method 0x30"),
            (frame(RAW, b"abc", 3, 1), most, "checksum"),
            (frame(RAW, b"abc", 3, 0x4d4c_b222 & KEPT), 2, "longer than the 2 bytes"),
            ([frame(RAW, b"abc", 3, 0x4d4c_b222 & KEPT), end.clone()].concat(), 4, "3 bytes, where 4 belong"),
            (end, 1, "0 bytes, where 1 belong"),
            (b"LZ4Frame".repeat(9), 1, "does not begin with"),
        ] {
            let mut into = Vec::new();
            let error = unpack(&stream, size, &mut into).expect_err(said).to_string();
            assert!(error.contains(said), "{said}: {error}");
            assert!(into.capacity() < 1 << 20, "{said}");
        }
    }
}
