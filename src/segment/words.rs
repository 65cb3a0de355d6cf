//! The words at the beginning of a mapped file, which processes share as atomics.

use std::sync::atomic::{AtomicU32, AtomicU64};

use super::Mapped;

/// A mapped file that begins with words. Other bytes are only behind them.
#[derive(Debug)]
pub(crate) struct SharedWords {
    mapped: Mapped,
    words: u64,
}

impl SharedWords {
    /// Takes a mapping that begins with `words` bytes of words: all processes access them as atomics or by system calls
    /// only, because a file with a footer cannot be opened as an array.
    pub(crate) fn new(mapped: Mapped, words: u64) -> Self {
        assert!(words <= mapped.length() as u64, "the words are mapped");
        Self { mapped, words }
    }

    /// Returns the mapping.
    pub(crate) fn mapped(&self) -> &Mapped {
        &self.mapped
    }

    /// Returns where the words end.
    pub(crate) fn end(&self) -> u64 {
        self.words
    }

    /// Returns the address of `bytes` bytes at an offset, which is a multiple of `bytes`.
    #[allow(unsafe_code)]
    fn pointer(&self, at: u64, bytes: u64) -> *mut u8 {
        assert!(at % bytes == 0 && at + bytes <= self.words, "a word at {at} of {}", self.words);
        #[allow(clippy::cast_possible_truncation)] // it is mapped
        let at = at as usize;
        // SAFETY: the offset is less than the number of mapped bytes.
        unsafe { self.mapped.pointer().add(at) }
    }

    /// Returns the word at an offset, which is a multiple of 8. In a mapping for reading it is only loaded.
    #[allow(unsafe_code)]
    #[allow(clippy::cast_ptr_alignment)] // checked in `pointer`
    pub(crate) fn word(&self, at: u64) -> &AtomicU64 {
        // SAFETY: the 8 bytes are mapped as long as `self` lives, begin at a multiple of 8 of a page, and are accessed
        // as atomics only. In a mapping for reading they are only loaded, which the processor does without a write.
        unsafe { AtomicU64::from_ptr(self.pointer(at, 8).cast()) }
    }

    /// Returns the half of a word at an offset, which is a multiple of 4.
    #[allow(unsafe_code)]
    #[allow(clippy::cast_ptr_alignment)] // checked in `pointer`
    pub(crate) fn half_word(&self, at: u64) -> &AtomicU32 {
        // SAFETY: as in `word`, with 4 bytes. No 8-byte access covers them.
        unsafe { AtomicU32::from_ptr(self.pointer(at, 4).cast()) }
    }

    /// Returns words that follow each other.
    #[allow(unsafe_code)]
    #[allow(clippy::cast_ptr_alignment)] // checked in `pointer`
    pub(crate) fn words(&self, at: u64, count: usize) -> &[AtomicU64] {
        assert!(
            at % 8 == 0 && count as u64 <= self.words.saturating_sub(at) / 8,
            "{count} words at {at} of {}",
            self.words
        );
        if count == 0 {
            return &[];
        }
        // SAFETY: as in `word`, for each of them: all of their bytes are before the end of the words.
        unsafe { std::slice::from_raw_parts(self.pointer(at, 8).cast(), count) }
    }
}
