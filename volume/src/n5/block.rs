//! Decodes a block: a header with its shape, and its packed elements.
//!
//! Pure computation. Stored elements are big-endian, and the first axis is the fastest. Decoded elements are in native
//! byte order.

use super::layout::{BlockPacking, DatasetLayout, LARGEST_BLOCK};
use crate::error::Cause;
use crate::unpack::Expected;

/// Returns the maximum length of a header: a mode, the number of axes, their lengths and the number of elements.
pub(super) const fn most_header_bytes(axes: usize) -> u64 {
    8 + 4 * axes as u64
}

/// Parses a header. Returns the elements along each axis, and the bytes behind the header.
fn split<'a>(stored: &'a [u8], layout: &DatasetLayout) -> Result<(Vec<usize>, &'a [u8]), Cause> {
    let mut rest = stored;
    let mode = u16::from_be_bytes(take(&mut rest)?);
    match mode {
        0 | 1 => {}
        2 => return Err("it holds an object, where elements belong".into()),
        other => return Err(format!("it has the mode {other}, which the format does not have").into()),
    }
    let axes = usize::from(u16::from_be_bytes(take(&mut rest)?));
    if axes != layout.block.len() {
        return Err(format!("it has {axes} axes, where {} belong", layout.block.len()).into());
    }
    let mut shape = Vec::with_capacity(axes);
    for (axis, most) in layout.block.iter().enumerate() {
        let length = u32::from_be_bytes(take(&mut rest)?);
        if length == 0 || u64::from(length) > *most {
            let reason = format!("it says that axis {axis} has {length} elements, where 1 to {most} belong");
            return Err(reason.into());
        }
        shape.push(length as usize);
    }
    let elements = shape.iter().try_fold(1_usize, |so_far, length| so_far.checked_mul(*length));
    let bytes = elements.and_then(|elements| elements.checked_mul(layout.dtype.size()));
    if bytes.is_none_or(|bytes| bytes > LARGEST_BLOCK || isize::try_from(bytes).is_err()) {
        let reason =
            format!("it says that its shape is {shape:?}: more than {LARGEST_BLOCK} bytes are not decoded whole");
        return Err(reason.into());
    }
    if mode == 1 {
        let said = u32::from_be_bytes(take(&mut rest)?);
        if elements != Some(said as usize) {
            let reason = format!("it says that it has {said} elements, which a shape of {shape:?} has not");
            return Err(reason.into());
        }
    }
    Ok((shape, rest))
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Cause> {
    let (first, behind) = rest.split_first_chunk::<N>().ok_or("its header is cut short")?;
    *rest = behind;
    Ok(*first)
}

/// Decodes a block into `into`, replacing its content. Returns the elements along each axis.
///
/// # Errors
///
/// The block is damaged, or its header is invalid. Allocates no more memory than the header and the layout both permit.
pub(super) fn decode(stored: &[u8], layout: &DatasetLayout, into: &mut Vec<u8>) -> Result<Vec<usize>, Cause> {
    let (shape, packed) = split(stored, layout)?;
    let size = shape.iter().product::<usize>() * layout.dtype.size();
    match layout.packing {
        BlockPacking::Raw => {
            Expected::Exactly(size).check(packed.len())?;
            into.clear();
            into.extend_from_slice(packed);
        }
        BlockPacking::Packed(packing) => packing.unpack(packed, Expected::Exactly(size), into)?,
        #[cfg(feature = "codecs")]
        BlockPacking::Lz4Frames => super::lz4_frames::unpack(packed, size, into)?,
    }
    if cfg!(target_endian = "little") {
        match layout.dtype.size() {
            2 => swap::<2>(into),
            4 => swap::<4>(into),
            8 => swap::<8>(into),
            _ => {}
        }
    }
    Ok(shape)
}

/// Reverses the bytes of each element.
fn swap<const N: usize>(bytes: &mut [u8]) {
    bytes.as_chunks_mut::<N>().0.iter_mut().for_each(|element| element.reverse());
}

#[cfg(test)]
mod tests {
    use ndarray_shm::DType;

    use super::*;
    use crate::unpack::Packing;

    fn layout(block: &[u64], dtype: DType, packing: BlockPacking) -> DatasetLayout {
        let block = block.to_vec();
        DatasetLayout { shape: block.clone(), block, dtype, packing, packing_name: String::new() }
    }

    fn header(mode: u16, lengths: &[u32]) -> Vec<u8> {
        let axes = u16::try_from(lengths.len()).expect("few");
        let lengths = lengths.iter().flat_map(|length| length.to_be_bytes());
        [mode.to_be_bytes(), axes.to_be_bytes()].concat().into_iter().chain(lengths).collect()
    }

    #[test]
    fn elements_become_native_in_reused_memory() {
        let layout = layout(&[3, 2], DType::U32, BlockPacking::Raw);
        for (shape, mode) in [([3, 2], 0), ([2, 2], 0), ([1, 1], 1)] {
            let mut stored = header(mode, &shape);
            let count = shape[0] * shape[1];
            if mode == 1 {
                stored.extend(count.to_be_bytes());
            }
            (0..count).for_each(|value| stored.extend((value << 20).to_be_bytes()));
            for mut memory in [vec![], vec![9; 3], vec![9; 999]] {
                let found = decode(&stored, &layout, &mut memory).expect("a block");
                assert_eq!(found, shape.map(|length| length as usize));
                let expected: Vec<u8> = (0..count).flat_map(|value| (value << 20).to_ne_bytes()).collect();
                assert_eq!(memory, expected);
            }
        }
    }

    #[test]
    fn false_headers_are_errors_before_allocation() {
        let deep = layout(&[1 << 20, 1 << 20, 1 << 20], DType::U64, BlockPacking::Packed(Packing::Gzip));
        let flat = layout(&[4, 4], DType::U8, BlockPacking::Raw);
        let varlength = [header(1, &[2, 2]), 5_u32.to_be_bytes().to_vec(), vec![0; 5]].concat();
        for (layout, stored, said) in [
            (&flat, vec![], "cut short"),
            (&flat, vec![0, 0, 0, 2, 0, 0], "cut short"),
            (&flat, header(2, &[4, 4]), "an object"),
            (&flat, header(7, &[4, 4]), "mode 7"),
            (&flat, header(0, &[4]), "1 axes, where 2 belong"),
            (&flat, header(0, &[4, 4, 4]), "3 axes, where 2 belong"),
            (&flat, header(0, &[4, 0]), "axis 1 has 0 elements"),
            (&flat, header(0, &[4, 5]), "axis 1 has 5 elements, where 1 to 4 belong"),
            (&flat, header(0, &[u32::MAX, u32::MAX]), "axis 0 has 4294967295 elements"),
            (&flat, [header(0, &[4, 4]), vec![0; 15]].concat(), "15 bytes, where 16 belong"),
            (&flat, [header(0, &[4, 4]), vec![0; 17]].concat(), "17 bytes, where 16 belong"),
            (&flat, varlength, "it has 5 elements"),
            (&deep, header(0, &[1 << 20, 1 << 20, 1 << 20]), "are not decoded whole"),
        ] {
            let mut into = Vec::new();
            let error = decode(&stored, layout, &mut into).expect_err(said).to_string();
            assert!(error.contains(said), "{said}: {error}");
            assert!(into.capacity() < 1 << 10, "{said}: {}", into.capacity());
        }
        // The header claims 1 GiB, which so few bytes cannot unpack to.
        let large = [header(0, &[1 << 20, 1 << 7, 1]), b"these are not so many bytes".to_vec()].concat();
        for packing in [
            BlockPacking::Raw,
            BlockPacking::Packed(Packing::Gzip),
            BlockPacking::Packed(Packing::Zlib),
            BlockPacking::Packed(Packing::Bz2),
            BlockPacking::Packed(Packing::Zstd),
            BlockPacking::Packed(Packing::Blosc),
            #[cfg(feature = "codecs")]
            BlockPacking::Packed(Packing::Xz),
            #[cfg(feature = "codecs")]
            BlockPacking::Lz4Frames,
        ] {
            let mut into = Vec::new();
            decode(&large, &DatasetLayout { packing, ..deep.clone() }, &mut into).expect_err("not so many bytes");
            assert!(into.capacity() < 1 << 20, "{packing:?}: {}", into.capacity());
        }
    }
}
