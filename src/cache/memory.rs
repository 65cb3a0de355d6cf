//! The bytes of chunks in a mapped cache: the one place where slots become slices.

use std::ops::Range;

use crate::segment::{Mapped, SharedWords};

/// A mapped cache. Its words are before its slots.
#[derive(Debug)]
pub(super) struct CacheMemory(SharedWords);

impl CacheMemory {
    /// Takes a mapping for writing that begins with `words` bytes of words.
    pub(super) fn new(mapped: Mapped, words: u64) -> Self {
        Self(SharedWords::new(mapped, words))
    }

    pub(super) fn words(&self) -> &SharedWords {
        &self.0
    }

    #[allow(unsafe_code)]
    fn pointer(&self, at: &Range<u64>, length: usize) -> *mut u8 {
        let mapped = self.0.mapped();
        assert!(
            length == 0
                || at.start >= self.0.end() && at.end <= mapped.length() as u64 && length as u64 <= at.end - at.start,
            "{length} bytes at {at:?}"
        );
        if length == 0 {
            return std::ptr::NonNull::dangling().as_ptr();
        }
        #[allow(clippy::cast_possible_truncation)] // it is mapped
        let at = at.start as usize;
        // SAFETY: the offset is less than the number of mapped bytes.
        unsafe { mapped.pointer().add(at) }
    }

    /// Returns the first `length` bytes of slots.
    ///
    /// # Safety
    ///
    /// As long as the slice is used, this process has the slots locked for reading, and they have their memory.
    #[allow(unsafe_code)]
    pub(super) unsafe fn bytes(&self, at: &Range<u64>, length: usize) -> &[u8] {
        // SAFETY: the bytes are mapped as long as `self` lives. Only a process that has them locked for writing changes
        // them, which the caller's lock excludes; any byte is a valid `u8`.
        unsafe { std::slice::from_raw_parts(self.pointer(at, length), length) }
    }

    /// Returns the first `length` bytes of slots, for writing.
    ///
    /// # Safety
    ///
    /// As long as the slice is used, this process has the slots locked for writing, no other slice of them is used, and
    /// they have their memory.
    #[allow(unsafe_code, clippy::mut_from_ref)]
    pub(super) unsafe fn bytes_mut(&self, at: &Range<u64>, length: usize) -> &mut [u8] {
        // SAFETY: as in `bytes`, with a lock that excludes all others.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(at, length), length) }
    }
}
