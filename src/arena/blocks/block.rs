//! A block: the description at its beginning, and a hold that keeps it.
//!
//! ```text
//! offset  size  field (little-endian)
//!      0     8  element type, a numpy type string, padded with NUL
//!      8     1  order, 'C' or 'F'
//!      9     1  number of axes, at most 32
//!     10     6  zero
//!     16   8 n  lengths of the axes
//!            ..  up to a multiple of 64; then the elements
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ndarray::{Dimension, IxDyn};

use super::allocate::Taken;
use crate::arena::header::ArenaHeader;
use crate::arena::tables::sizes::ALIGNMENT;
use crate::array::{DType, Element, Layout, Order};
use crate::error::{Error, ErrorKind, Result};

/// Maximum number of axes that a description has room for.
const MOST_AXES: usize = 32;
/// Words before the lengths.
const FIRST_LENGTH: usize = 2;
/// Stands for no entry: an arena has fewer entries.
const NO_ENTRY: u32 = u32::MAX;

/// Returns the number of bytes before the elements of an array with this many axes.
fn description_bytes(axes: usize) -> u64 {
    (((FIRST_LENGTH + axes) * 8) as u64).next_multiple_of(ALIGNMENT)
}

fn dtype_word(dtype: DType) -> u64 {
    dtype.as_str().bytes().rev().fold(0, |word, byte| word << 8 | u64::from(byte))
}

/// The words of all element types.
static DTYPE_WORDS: LazyLock<Vec<u64>> = LazyLock::new(|| DType::ALL.iter().copied().map(dtype_word).collect());

fn shape_word(order: Order, axes: usize) -> u64 {
    let order = if order == Order::F { b'F' } else { b'C' };
    u64::from(order) | (axes as u64) << 8
}

/// The description of a block, checked against the block's size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BlockContents {
    pub(crate) dtype: DType,
    pub(crate) order: Order,
    pub(crate) shape: IxDyn,
    /// Offset of the elements from the first span, and their length, in bytes.
    pub(crate) at: u64,
    pub(crate) bytes: u64,
}

/// One hold on a block.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) header: Arc<ArenaHeader>,
    pub(crate) entry: u32,
    /// Offset of the elements from the first span, and their length, in bytes.
    at: u64,
    bytes: u64,
}

impl Block {
    /// Takes a block for an array, and writes the description. With a limit, waits for a free block.
    pub(crate) fn allocate<T: Element, D: Dimension>(
        header: &Arc<ArenaHeader>,
        layout: &Layout<T, D>,
        limit: Option<Duration>,
    ) -> Result<Self> {
        let axes = layout.shape().len();
        if axes > MOST_AXES {
            return Err(Error::setting("the shape", format!("{axes} axes"), "at most 32 axes"));
        }
        let (ahead, bytes) = (description_bytes(axes), layout.bytes());
        let needed = ahead.saturating_add(bytes);
        let taken = match limit {
            None => header.allocate(needed)?,
            Some(limit) => header.allocate_wait(needed, limit)?,
        };
        let block = Self { header: Arc::clone(header), entry: taken.entry, at: taken.at + ahead, bytes };
        let words = [dtype_word(T::DTYPE), shape_word(layout.order(), axes)];
        let lengths = layout.shape().iter().map(|length| *length as u64);
        for (word, value) in header.description_words(&taken, axes).iter().zip(words.into_iter().chain(lengths)) {
            word.store(value, Ordering::Relaxed);
        }
        Ok(block)
    }

    /// Takes over a hold of this process, and reads the description. If that is damaged, releases the hold.
    pub(crate) fn of_held(header: &Arc<ArenaHeader>, entry: u32) -> Result<(Self, BlockContents)> {
        let mut block = Self { header: Arc::clone(header), entry, at: 0, bytes: 0 };
        let described = header.describe(entry)?;
        (block.at, block.bytes) = (described.at, described.bytes);
        Ok((block, described))
    }

    /// Returns the address of the elements: a multiple of 64, valid for the bytes of the array as long as this value
    /// lives.
    ///
    /// # Panics
    ///
    /// In a forked child, which holds no block: the memory may be another array by now.
    pub(crate) fn pointer(&self) -> *mut u8 {
        assert!(
            self.header.is_own_process(),
            "`{}`: a forked child does not hold its parent's arrays: open the arena again in the child",
            self.header.name()
        );
        let pointer = self.header.bytes_at(0, self.at, self.bytes);
        pointer.expect("it was located within the data, and the arena is not left while a block is held")
    }

    /// Releases the hold. Fails if there was none.
    pub(crate) fn release(mut self) -> Result<()> {
        let entry = std::mem::replace(&mut self.entry, NO_ENTRY);
        self.header.release(entry)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.entry != NO_ENTRY {
            let _ = self.header.release(self.entry); // fails only in a forked child, which holds no block
        }
        self.header.end_sent();
    }
}

impl ArenaHeader {
    /// Returns the words of a block's description, for an array with this many axes.
    fn description_words(&self, taken: &Taken, axes: usize) -> &[AtomicU64] {
        self.words_at(taken.at, (FIRST_LENGTH + axes) as u64)
    }

    /// Reads the description of the block of an entry, which this process holds.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Trailer`]: the description is damaged.
    pub(crate) fn describe(&self, entry: u32) -> Result<BlockContents> {
        let read = || {
            let taken = self.locate(entry).ok_or("its span has no such block")?;
            let [dtype, rest] = self.description_words(&taken, 0) else { return Err("it lies outside the data") };
            let (dtype, rest) = (dtype.load(Ordering::Relaxed), rest.load(Ordering::Relaxed));
            let known = DTYPE_WORDS.iter().position(|known| *known == dtype);
            let dtype = known.map(|known| DType::ALL[known]).ok_or("its element type is unknown")?;
            let axes = usize::from(rest.to_le_bytes()[1]);
            let order = [Order::C, Order::F].into_iter().find(|order| shape_word(*order, axes) == rest);
            let order = order.filter(|_| axes <= MOST_AXES).ok_or("its order or number of axes is not valid")?;
            let lengths = self.description_words(&taken, axes).get(FIRST_LENGTH..).ok_or("it lies outside the data")?;
            let mut shape = IxDyn::zeros(axes);
            let mut bytes = Some(dtype.size() as u64);
            for (word, to) in lengths.iter().zip(shape.slice_mut()) {
                let length = word.load(Ordering::Relaxed);
                bytes = bytes.and_then(|bytes| bytes.checked_mul(length));
                *to = usize::try_from(length).map_err(|_| "an axis is longer than the address space")?;
            }
            let ahead = description_bytes(axes);
            let room = taken.bytes.checked_sub(ahead);
            let bytes = bytes.filter(|bytes| Some(*bytes) <= room).ok_or("its shape does not fit its block")?;
            Ok(BlockContents { dtype, order, shape, at: taken.at + ahead, bytes })
        };
        read().map_err(|reason| {
            ErrorKind::Trailer { reason: format!("the array in entry {entry}: {reason}") }.at(self.name())
        })
    }
}
