//! Sizes of blocks: equal parts of a span, or runs of whole spans.
//!
//! A size class is the number of equal blocks in a span, so little is lost at the end of the span. The numbers are
//! chosen so that a header of 64 bytes and elements of 256, 512, 1024, .. bytes fit well, with about four classes per
//! doubling.

use crate::arena::tables::geometry::{ENTRIES_OF_SPAN, SPAN};

/// Alignment of every block, and of its elements.
pub(crate) const ALIGNMENT: u64 = 64;

/// Number of blocks in a span, for each class.
const BLOCKS: [u16; CLASSES] =
    [256, 204, 170, 146, 128, 113, 93, 78, 68, 60, 51, 42, 36, 31, 25, 21, 18, 15, 12, 11, 9, 7, 6, 5, 4, 3, 2];

/// Number of classes.
pub(crate) const CLASSES: usize = 27;

const _: () = assert!(BLOCKS[0] as u32 <= ENTRIES_OF_SPAN);

/// Size of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Size {
    /// A part of a span, by its class.
    Small(u8),
    /// A number of whole spans.
    Run(u32),
}

impl Size {
    /// Returns the smallest size that has room for `bytes`. `None` if no run is that long.
    pub(crate) fn of(bytes: u64) -> Option<Self> {
        let class = BLOCKS.partition_point(|blocks| block_of(*blocks) < bytes);
        match u8::try_from(class) {
            Ok(class) if usize::from(class) < CLASSES => Some(Self::Small(class)),
            _ => u32::try_from(bytes.div_ceil(SPAN)).ok().map(Self::Run),
        }
    }

    /// Returns how many blocks of this size a span, or the run, is cut into; 0 for an unknown class.
    pub(crate) fn blocks(self) -> u32 {
        match self {
            Self::Small(class) => BLOCKS.get(usize::from(class)).map_or(0, |blocks| u32::from(*blocks)),
            Self::Run(_) => 1,
        }
    }

    /// Returns the bytes of a block; 0 for an unknown class.
    pub(crate) fn block(self) -> u64 {
        match self {
            Self::Small(class) => BLOCKS.get(usize::from(class)).map_or(0, |blocks| block_of(*blocks)),
            Self::Run(spans) => u64::from(spans) * SPAN,
        }
    }
}

fn block_of(blocks: u16) -> u64 {
    SPAN / u64::from(blocks) / ALIGNMENT * ALIGNMENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_the_smallest_that_fits() {
        for bytes in 0..3 * SPAN {
            let size = Size::of(bytes).expect("it is short");
            assert!(size.block() >= bytes && size.block() % ALIGNMENT == 0, "{bytes}: {size:?}");
            assert!(u64::from(size.blocks()) * size.block() <= SPAN.max(size.block()), "{bytes}: {size:?}");
            if let Size::Small(class @ 1..) = size {
                assert!(Size::Small(class - 1).block() < bytes, "{bytes}: {size:?}");
            }
        }
        assert_eq!(Size::of(SPAN / 2 + 1), Some(Size::Run(1)));
        assert_eq!(Size::of(SPAN + 1), Some(Size::Run(2)));
        assert_eq!(Size::of(u64::MAX), None);
    }

    #[test]
    fn arrays_of_powers_of_two_waste_little() {
        for (elements, blocks) in [(256, 204), (512, 113), (1024, 60), (2048, 31), (4096, 15), (8192, 7)] {
            assert_eq!(Size::of(elements + 64).expect("it is short").blocks(), blocks);
        }
    }
}
