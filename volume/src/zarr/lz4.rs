//! LZ4 in the framing of numcodecs: the size as a little-endian number of four bytes, then one block.

use crate::error::Cause;
use crate::unpack::{Expected, unpack_lz4_block};

/// Unpacks into `into`, replacing its content.
///
/// # Errors
///
/// The block is damaged, or its number of bytes differs from `expected` or from its header.
pub(super) fn unpack(packed: &[u8], expected: Expected, into: &mut Vec<u8>) -> Result<(), Cause> {
    let (size, block) = packed.split_first_chunk().ok_or("this is no LZ4 block behind its size")?;
    let size = usize::try_from(u32::from_le_bytes(*size))?;
    expected.check(size)?;
    unpack_lz4_block(block, size, into)
}

/// Packs bytes.
///
/// # Errors
///
/// The bytes are 4 GiB or more.
pub(super) fn pack(bytes: &[u8]) -> Result<Vec<u8>, Cause> {
    let size = u32::try_from(bytes.len())?;
    let mut packed = size.to_le_bytes().to_vec();
    packed.extend(lz4_flex::block::compress(bytes));
    Ok(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn false_size_is_an_error_without_allocation() {
        let bytes = vec![3; 100_000];
        let packed = pack(&bytes).expect("packed");
        let mut into = vec![1; 9];
        for expected in [Expected::Exactly(bytes.len()), Expected::AtMost(bytes.len() + 9)] {
            unpack(&packed, expected, &mut into).expect("it fits");
            assert!(into == bytes);
        }
        for expected in [Expected::Exactly(1000), Expected::AtMost(1000), Expected::Exactly(100_001)] {
            let mut into = Vec::new();
            unpack(&packed, expected, &mut into).expect_err("another size");
            assert!(into.capacity() < 1 << 16);
        }
        for lie in [0, 1, 99_999, 100_001, 1 << 30, u32::MAX] {
            let mut lying = packed.clone();
            lying[..4].copy_from_slice(&lie.to_le_bytes());
            for expected in [Expected::Exactly(lie as usize), Expected::AtMost(usize::MAX)] {
                let mut into = Vec::new();
                unpack(&lying, expected, &mut into).expect_err("a lie");
                assert!(into.capacity() < 1 << 20, "{lie}: {}", into.capacity());
            }
        }
        for end in 0..packed.len() {
            unpack(&packed[..end], Expected::Exactly(bytes.len()), &mut into).expect_err("cut short");
        }
    }
}
