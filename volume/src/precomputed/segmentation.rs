//! `compressed_segmentation`: each label is a small index into the table of labels of its block.
//!
//! Pure computation, after the description in neuroglancer's repository. Offsets count 32-bit little-endian words. A
//! chunk begins with the offset of each channel. A channel begins with two words for each block: the offset of the
//! block's table (24 bits) with the bit width of an index, then the offset of the indexes ("numbers" here). All of them
//! are untrusted input.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::error::Cause;

/// Default block shape, which all writers use.
pub(super) const BLOCK: [usize; 3] = [8, 8, 8];

/// Permitted bit widths of a label's number.
const WIDTHS: [u32; 7] = [0, 1, 2, 4, 8, 16, 32];

/// Bits of a table's offset.
const TABLE_BITS: u32 = 24;

/// Maximum elements of a block; all writers use 512.
const LARGEST_BLOCK: usize = 1 << 24;

/// Bytes of the widest label.
const WIDEST_LABEL: usize = 8;

/// Words of a block's header.
const HEADER: usize = 2;

/// A chunk: its lengths along x, y, z and channels, and the shape of its blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct LabelLayout {
    pub(super) shape: [usize; 4],
    pub(super) block: [usize; 3],
}

impl LabelLayout {
    /// Iterates over the blocks, x fastest; each is the region that it covers.
    fn blocks(self) -> impl Iterator<Item = LabelBlock> {
        let [nx, ny, nz] = self.grid();
        let cells = (0..nz).flat_map(move |z| (0..ny).flat_map(move |y| (0..nx).map(move |x| [x, y, z])));
        cells.map(move |cell| {
            let start = [0, 1, 2].map(|axis| cell[axis] * self.block[axis]);
            let length = [0, 1, 2].map(|axis| self.block[axis].min(self.shape[axis] - start[axis]));
            LabelBlock { start, length }
        })
    }

    fn grid(self) -> [usize; 3] {
        [0, 1, 2].map(|axis| self.shape[axis].div_ceil(self.block[axis]))
    }

    fn block_count(self) -> usize {
        self.grid().iter().product()
    }

    /// Returns for each row of a block its first element in the channel, and its first number in the block.
    fn rows(self, block: LabelBlock) -> impl Iterator<Item = (usize, usize)> {
        let [width, height, ..] = self.shape;
        (0..block.length[2]).flat_map(move |z| {
            (0..block.length[1]).map(move |y| {
                let voxel = block.start[0] + width * (block.start[1] + y + height * (block.start[2] + z));
                (voxel, self.block[0] * (y + self.block[1] * z))
            })
        })
    }

    fn channel_length(self) -> usize {
        self.shape[..3].iter().product()
    }

    /// Refuses lengths with a product beyond the address space, so that counts do not overflow, and blocks larger than
    /// any writer's, which would allocate numbers for elements that do not exist.
    fn checked(self) -> Result<Self, Cause> {
        let bytes = self.shape.iter().try_fold(WIDEST_LABEL, |product, length| product.checked_mul(*length));
        if bytes.is_none_or(|bytes| bytes > isize::MAX.cast_unsigned()) {
            return Err(format!("a chunk of shape {:?} is larger than the address space", self.shape).into());
        }
        let elements = self.block.iter().try_fold(1usize, |product, length| product.checked_mul(*length));
        match elements {
            Some(1..=LARGEST_BLOCK) => Ok(self),
            _ => Err(format!("blocks of shape {:?}: none has more than {LARGEST_BLOCK} elements", self.block).into()),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct LabelBlock {
    start: [usize; 3],
    length: [usize; 3],
}

/// Decodes labels of `size` bytes, 4 or 8, into `into`, replacing its content.
///
/// # Errors
///
/// The chunk is cut off, or contains invalid references.
pub(super) fn decode(bytes: &[u8], layout: LabelLayout, size: usize, into: &mut Vec<u8>) -> Result<(), Cause> {
    match size {
        4 => decode_labels::<1>(bytes, layout, into),
        8 => decode_labels::<2>(bytes, layout, into),
        _ => Err("only labels of 32 or 64 bits have this encoding".into()),
    }
}

fn decode_labels<const WORDS: usize>(bytes: &[u8], layout: LabelLayout, into: &mut Vec<u8>) -> Result<(), Cause> {
    let layout = layout.checked()?;
    if !bytes.len().is_multiple_of(4) {
        return Err(format!("{} bytes are no words of 4 bytes: it was cut off or is damaged", bytes.len()).into());
    }
    let words: Vec<u32> = bytes.chunks_exact(4).map(|word| word.try_into().map_or(0, u32::from_le_bytes)).collect();
    let channels = layout.shape[3];
    let headers = layout.block_count().checked_mul(HEADER).filter(|length| *length <= words.len());
    let Some(headers) = headers.filter(|_| channels <= words.len()) else {
        return Err(format!("{} bytes are too few for the headers of its blocks", bytes.len()).into());
    };
    let label_bytes = WORDS * size_of::<u32>();
    let channel_bytes = layout.channel_length() * label_bytes;
    into.resize(channel_bytes * channels, 0);
    for (channel, into) in into.chunks_exact_mut(channel_bytes.max(1)).enumerate() {
        let words = usize::try_from(words[channel]).ok().and_then(|start| words.get(start..));
        let Some(words) = words.filter(|words| words.len() >= headers) else {
            return Err(format!("channel {channel} is said to begin where the chunk has ended").into());
        };
        for (block, header) in layout.blocks().zip(words.chunks_exact(HEADER)) {
            let width = header[0] >> TABLE_BITS;
            let table = words.get((header[0] & ((1 << TABLE_BITS) - 1)) as usize..);
            let numbers = words.get(header[1] as usize..);
            let (Some(table), true) = (table, WIDTHS.contains(&width)) else {
                return Err(format!("the block at {:?} has a header that cannot be", block.start).into());
            };
            let read = match width {
                0 => fill::<WORDS>(table, layout, block, into),
                _ => numbers.and_then(|numbers| look_up::<WORDS>(table, numbers, width, layout, block, into)),
            };
            if read.is_none() {
                return Err(format!("the block at {:?} refers to what the chunk does not have", block.start).into());
            }
        }
    }
    Ok(())
}

fn fill<const WORDS: usize>(table: &[u32], layout: LabelLayout, block: LabelBlock, into: &mut [u8]) -> Option<()> {
    let label: [u32; WORDS] = table.get(..WORDS)?.try_into().ok()?;
    for (voxel, _) in layout.rows(block) {
        row_of::<WORDS>(into, voxel, block)?.for_each(|place| put(place, label));
    }
    Some(())
}

fn look_up<const WORDS: usize>(
    table: &[u32],
    numbers: &[u32],
    width: u32,
    layout: LabelLayout,
    block: LabelBlock,
    into: &mut [u8],
) -> Option<()> {
    let (labels, _) = table.as_chunks::<WORDS>();
    let mask = u32::MAX >> (u32::BITS - width);
    let width = width as usize;
    for (voxel, number) in layout.rows(block) {
        let mut bit = number * width;
        // A number never crosses a word boundary, because its width divides 32.
        for place in row_of::<WORDS>(into, voxel, block)? {
            let number = (numbers.get(bit / 32)? >> (bit % 32)) & mask;
            put(place, *labels.get(number as usize)?);
            bit += width;
        }
    }
    Some(())
}

fn row_of<const WORDS: usize>(
    into: &mut [u8],
    voxel: usize,
    block: LabelBlock,
) -> Option<std::slice::ChunksExactMut<'_, u8>> {
    let size = WORDS * size_of::<u32>();
    Some(into.get_mut(voxel * size..(voxel + block.length[0]) * size)?.chunks_exact_mut(size))
}

/// Writes a label, given as words with the low one first, in native byte order.
fn put<const WORDS: usize>(place: &mut [u8], label: [u32; WORDS]) {
    let label = label.iter().rev().fold(0u64, |so_far, word| so_far << 32 | u64::from(*word));
    let bytes = label.to_ne_bytes();
    let size = place.len();
    place.copy_from_slice(if cfg!(target_endian = "big") { &bytes[8 - size..] } else { &bytes[..size] });
}

/// Encodes labels of `size` bytes, 4 or 8, in native byte order and dense.
///
/// # Errors
///
/// The chunk has so many labels that a table's offset exceeds 24 bits.
pub(super) fn encode(bytes: &[u8], layout: LabelLayout, size: usize) -> Result<Vec<u8>, Cause> {
    let layout = layout.checked()?;
    let labels: Vec<u64> = match size {
        4 => bytes.as_chunks().0.iter().map(|label| u64::from(u32::from_ne_bytes(*label))).collect(),
        8 => bytes.as_chunks().0.iter().map(|label| u64::from_ne_bytes(*label)).collect(),
        _ => return Err("only labels of 32 or 64 bits have this encoding".into()),
    };
    let mut words = vec![0; layout.shape[3]];
    let channel_length = layout.channel_length().max(1);
    for (channel, labels) in labels.chunks_exact(channel_length).enumerate() {
        words[channel] = u32::try_from(words.len())?;
        encode_channel(labels, layout, size / size_of::<u32>(), &mut words)?;
    }
    Ok(words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

fn encode_channel(labels: &[u64], layout: LabelLayout, label_words: usize, words: &mut Vec<u32>) -> Result<(), Cause> {
    let headers = layout.block_count() * HEADER;
    // All tables go before all numbers, because a table's offset has fewer bits.
    let (mut tables, mut numbers) = (Vec::new(), Vec::new());
    let mut known: HashMap<Vec<u64>, u32> = HashMap::new();
    let mut starts = Vec::with_capacity(layout.block_count());
    for block in layout.blocks() {
        let mut distinct: Vec<u64> = Vec::new();
        for (voxel, _) in layout.rows(block) {
            for label in &labels[voxel..voxel + block.length[0]] {
                // Neighbours are mostly equal: skipping repetitions keeps the sort below short.
                if distinct.last() != Some(label) {
                    distinct.push(*label);
                }
            }
        }
        distinct.sort_unstable();
        distinct.dedup();
        let width = *WIDTHS.iter().find(|width| distinct.len() as u64 <= 1 << **width).ok_or("too many labels")?;
        let start = numbers.len();
        number_labels(labels, layout, block, (&distinct, width as usize), &mut numbers);
        let table = match known.entry(distinct) {
            Entry::Occupied(table) => *table.get(),
            Entry::Vacant(new) => {
                let table = headers + tables.len();
                for label in new.key() {
                    let halves = [*label & u64::from(u32::MAX), *label >> 32];
                    for half in &halves[..label_words] {
                        tables.push(u32::try_from(*half)?);
                    }
                }
                *new.insert(u32::try_from(table)?)
            }
        };
        if table >> TABLE_BITS != 0 {
            return Err("its labels are too many for compressed_segmentation: use smaller chunks".into());
        }
        starts.push((table | width << TABLE_BITS, start));
    }
    let first_number = headers + tables.len();
    for (table, start) in starts {
        words.extend([table, u32::try_from(first_number + start)?]);
    }
    words.extend(tables);
    words.extend(numbers);
    Ok(())
}

fn number_labels(
    labels: &[u64],
    layout: LabelLayout,
    block: LabelBlock,
    (distinct, width): (&[u64], usize),
    numbers: &mut Vec<u32>,
) {
    let start = numbers.len();
    let bits = layout.block.iter().product::<usize>() * width;
    numbers.resize(start + bits.div_ceil(32), 0);
    if width == 0 {
        return;
    }
    let mut last = (distinct[0], 0);
    for (voxel, number) in layout.rows(block) {
        let mut bit = number * width;
        for label in &labels[voxel..voxel + block.length[0]] {
            if last.0 != *label {
                last = (*label, distinct.partition_point(|known| known < label));
            }
            // Numbers fit in 32 bits, the largest width.
            numbers[start + bit / 32] |= u32::try_from(last.1).unwrap_or(u32::MAX) << (bit % 32);
            bit += width;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(shape: [usize; 4], block: [usize; 3]) -> LabelLayout {
        LabelLayout { shape, block }
    }

    /// Returns labels in runs, with at most `kinds` distinct values.
    fn labels(length: usize, kinds: u64) -> Vec<u64> {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let mut labels = Vec::new();
        while labels.len() < length {
            let (label, run) = (next() % kinds * 0x1_0000_0001, next() % 9 + 1);
            labels.extend((0..run).map(|_| label));
        }
        labels.truncate(length);
        labels
    }

    #[test]
    fn labels_survive_a_round_trip() {
        for shape in [[1, 1, 1, 1], [8, 8, 8, 1], [9, 17, 5, 2], [64, 3, 10, 1], [16, 16, 16, 3]] {
            for block in [[8, 8, 8], [4, 5, 6], [1, 1, 1], [64, 64, 64]] {
                for kinds in [1, 2, 3, 9, 200, 70_000] {
                    let wide = labels(shape.iter().product(), kinds);
                    let bytes: Vec<u8> = wide.iter().flat_map(|label| label.to_ne_bytes()).collect();
                    let packed = encode(&bytes, layout(shape, block), 8).expect("packed");
                    let mut into = vec![1; 3];
                    decode(&packed, layout(shape, block), 8, &mut into).expect("unpacked");
                    assert!(into == bytes, "{shape:?} {block:?} {kinds}");
                    let narrow: Vec<u8> = wide
                        .iter()
                        .flat_map(|label| u32::try_from(label >> 32).expect("small").to_ne_bytes())
                        .collect();
                    let packed = encode(&narrow, layout(shape, block), 4).expect("packed");
                    decode(&packed, layout(shape, block), 4, &mut into).expect("unpacked");
                    assert!(into == narrow, "{shape:?} {block:?} {kinds}");
                }
            }
        }
    }

    #[test]
    fn hostile_chunk_is_an_error() {
        let shape = layout([16, 16, 16, 2], BLOCK);
        let bytes: Vec<u8> = labels(16 * 16 * 16 * 2, 40).iter().flat_map(|label| label.to_ne_bytes()).collect();
        let packed = encode(&bytes, shape, 8).expect("packed");
        let mut into = Vec::new();
        for end in (0..packed.len()).step_by(97) {
            let _ = decode(&packed[..end], shape, 8, &mut into);
        }
        for words in [0, 1, 10, 33] {
            assert!(decode(&packed[..4 * words], shape, 8, &mut into).is_err(), "{words} words");
        }
        // Offsets of channels, tables and numbers, and widths, all beyond the end.
        for word in [0, 1, 2, 3, 4, 5] {
            let mut wrong = packed.clone();
            wrong[4 * word..4 * word + 4].copy_from_slice(&[255; 4]);
            assert!(decode(&wrong, shape, 8, &mut into).is_err(), "word {word}");
        }
        into = Vec::new();
        assert!(decode(&packed, layout([1 << 20, 1 << 20, 1 << 10, 1], BLOCK), 8, &mut into).is_err());
        assert!(decode(&packed, layout([16, 16, 16, 1], [usize::MAX, 1, usize::MAX >> 8]), 8, &mut into).is_err());
        assert!(decode(&packed, layout([16, 16, 16, usize::MAX >> 8], BLOCK), 8, &mut into).is_err());
        assert!(into.capacity() == 0, "nothing was allocated for what cannot be");
    }
}
