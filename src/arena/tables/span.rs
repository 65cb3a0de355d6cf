//! The word of a span: free, cut into blocks, or part of a run that is one block.
//!
//! ```text
//! bits 63..32  epoch: counts the changes
//! bits 31..28  0 = free, 1 = cut into blocks, 2 = head of a run, 3 = part of a run
//! bits 27..0   of a cut span: its class; of a head: the number of spans of its run
//! ```
//!
//! The epoch prevents ABA. A process may load a word and be stopped while other processes free the span and cut it in
//! the same way again. With the epoch its exchange fails, or it sees that the area is another one.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::os;

use super::sizes::{CLASSES, Size};

const KIND_SHIFT: u32 = 28;
const VALUE: u64 = (1 << KIND_SHIFT) - 1;
pub(crate) const FREE: u64 = 0;
pub(crate) const BLOCKS: u64 = 1;
pub(crate) const HEAD: u64 = 2;
pub(crate) const PART: u64 = 3;

/// A span's word at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) u64);

impl Span {
    pub(crate) fn kind(self) -> u64 {
        self.0 >> KIND_SHIFT & 0xf
    }

    /// Returns the span's next word, with another kind and value.
    pub(crate) fn become_(self, kind: u64, value: u64) -> Self {
        Self((self.0 >> 32).wrapping_add(1) << 32 | kind << KIND_SHIFT | value & VALUE)
    }

    pub(crate) fn is_free(self) -> bool {
        self.kind() == FREE
    }

    pub(crate) fn is_part(self) -> bool {
        self.kind() == PART
    }

    /// Returns the size of its blocks, if it is cut or the head of a run.
    #[allow(clippy::cast_possible_truncation)] // 28 bits
    pub(crate) fn size(self) -> Option<Size> {
        let value = (self.0 & VALUE) as u32;
        match self.kind() {
            BLOCKS if (value as usize) < CLASSES => Some(Size::Small(value as u8)),
            HEAD if value > 0 => Some(Size::Run(value)),
            _ => None,
        }
    }
}

/// A span or run that has blocks. The word, with its epoch, distinguishes it from earlier and later areas in the same
/// spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Area {
    pub(crate) span: u32,
    pub(crate) word: Span,
}

/// Iterates over the numbers below `count`, from `from` on and then from 0.
pub(crate) fn around(count: u32, from: u32) -> impl Iterator<Item = u32> {
    let from = from.min(count);
    (from..count).chain(0..from)
}

/// Changes a span's word if it is still `current`. Returns whether it was.
pub(crate) fn exchange(word: &AtomicU64, current: Span, new: Span) -> bool {
    os::point(true);
    word.compare_exchange(current.0, new.0, Ordering::AcqRel, Ordering::Acquire).is_ok()
}
