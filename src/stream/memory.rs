//! The mapped bytes of a stream's files: words that processes share as atomics, and pointers to the elements of a slot.
//! If frames are copied, elements are words too, and there are no pointers to them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use ndarray::{Dimension, RawArrayView, RawArrayViewMut};

use super::geometry::StreamGeometry;
use crate::array::{Element, Layout};
use crate::backend::Access;
use crate::os;
use crate::segment::{Mapped, SharedWords};

/// How many words of a frame are copied between two points at which an exploring program can interrupt.
const WORDS_PER_POINT: usize = 64;

/// A word that processes share. A trait, so that loom can try every interleaving of the protocol with its own words.
pub(super) trait SharedWord {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn fence(order: Ordering);
}

impl SharedWord for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline]
    fn fence(order: Ordering) {
        fence(order);
    }
}

/// Words by their offset in bytes, which is a multiple of 8.
pub(super) trait StreamWords {
    type Word: SharedWord;

    fn word(&self, at: u64) -> &Self::Word;

    /// Returns words that follow each other.
    fn words(&self, at: u64, count: usize) -> &[Self::Word];

    /// Loads a word with all that was written before it was stored.
    fn load(&self, at: u64) -> u64 {
        os::point(false);
        self.word(at).load(Ordering::Acquire)
    }

    /// Stores a word after everything that was written before. The mapping is for writing.
    fn store(&self, at: u64, value: u64) {
        os::point(true);
        self.word(at).store(value, Ordering::Release);
    }

    /// Copies words out.
    fn copy_out(&self, at: u64, bytes: &mut [u8]) {
        for (chunk, at) in bytes.chunks_mut(8).zip((at..).step_by(8)) {
            let word = self.word(at).load(Ordering::Relaxed).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// Copies words in, and zeros behind the last byte. The mapping is for writing.
    fn copy_in(&self, at: u64, bytes: &[u8]) {
        for (chunk, at) in bytes.chunks(8).zip((at..).step_by(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(at).store(u64::from_le_bytes(word), Ordering::Relaxed);
        }
    }

    /// Copies words out, each for itself: meanwhile another process may store them.
    fn copy_words_out(&self, at: u64, count: usize) -> Vec<u64> {
        let mut words = Vec::with_capacity(count);
        for shared in self.words(at, count).chunks(WORDS_PER_POINT) {
            os::point(false);
            words.extend(shared.iter().map(|shared| shared.load(Ordering::Relaxed)));
        }
        words
    }

    /// Copies words in, each for itself: meanwhile other processes may load them. The mapping is for writing.
    fn copy_words_in(&self, at: u64, words: &[u64]) {
        let shared = self.words(at, words.len());
        for (words, shared) in words.chunks(WORDS_PER_POINT).zip(shared.chunks(WORDS_PER_POINT)) {
            os::point(true);
            words.iter().zip(shared).for_each(|(word, shared)| shared.store(*word, Ordering::Relaxed));
        }
    }

    /// Orders the words that were stored before against those that are loaded after: each of two processes that store
    /// one word and then load the other's sees the other's store, or is seen.
    fn fence() {
        Self::Word::fence(Ordering::SeqCst);
    }
}

/// A mapped file of a stream. Elements are behind its words.
#[derive(Debug)]
pub(super) struct StreamMemory(SharedWords);

impl StreamMemory {
    /// Takes a mapping that begins with `words` bytes of words.
    pub(super) fn new(mapped: Mapped, words: u64) -> Self {
        Self(SharedWords::new(mapped, words))
    }

    fn half_word(&self, at: u64) -> &AtomicU32 {
        self.0.half_word(at)
    }

    /// Returns a view of the elements of a slot. Nothing is read. The caller dereferences it only under the slot's
    /// lock.
    #[allow(unsafe_code)]
    pub(super) fn elements<T: Element, D: Dimension>(
        &self,
        geometry: &StreamGeometry,
        slot: usize,
        layout: &Layout<T, D>,
    ) -> RawArrayView<T, D> {
        let pointer = self.first_element(geometry, slot, layout);
        // SAFETY: nothing is dereferenced; the pointer is not null, and the layout was checked not to overflow.
        unsafe { RawArrayView::from_shape_ptr(layout.shape_with_order(), pointer.cast_const()) }
    }

    /// As [`elements`](Self::elements), for writing. The mapping is for writing.
    #[allow(unsafe_code)]
    pub(super) fn elements_mut<T: Element, D: Dimension>(
        &self,
        geometry: &StreamGeometry,
        slot: usize,
        layout: &Layout<T, D>,
    ) -> RawArrayViewMut<T, D> {
        assert!(self.0.mapped().access() == Access::ReadWrite, "the elements are written to");
        let pointer = self.first_element(geometry, slot, layout);
        // SAFETY: nothing is dereferenced; the pointer is not null, and the layout was checked not to overflow.
        unsafe { RawArrayViewMut::from_shape_ptr(layout.shape_with_order(), pointer) }
    }

    #[allow(unsafe_code)]
    fn first_element<T: Element, D: Dimension>(
        &self,
        geometry: &StreamGeometry,
        slot: usize,
        layout: &Layout<T, D>,
    ) -> *mut T {
        let at = geometry.elements(slot);
        assert!(
            slot < geometry.slots && at >= self.0.end() && at + layout.bytes() <= self.0.mapped().length() as u64,
            "slot {slot} of {}",
            geometry.slots
        );
        #[allow(clippy::cast_possible_truncation)] // it is mapped
        let at = at as usize;
        // SAFETY: the offset is less than the number of mapped bytes.
        let pointer = unsafe { self.0.mapped().pointer().add(at) }.cast::<T>();
        assert!(pointer.is_aligned(), "slots begin on a page, which every element type divides");
        pointer
    }

    /// Wakes every reader that sleeps. The mapping is for writing.
    pub(super) fn ring(&self) {
        let bell = self.half_word(StreamGeometry::BELL);
        os::point(true);
        bell.fetch_add(1, Ordering::Release);
        os::wake(bell, u32::MAX);
    }

    /// Returns the bell as it is now, for [`wait`](Self::wait). The caller looks for what it waits for afterwards.
    pub(super) fn bell(&self) -> u32 {
        os::point(false);
        self.half_word(StreamGeometry::BELL).load(Ordering::Acquire)
    }

    /// Sleeps until the bell has rung since, or for `limit`. May return early.
    pub(super) fn wait(&self, bell: u32, limit: Duration) {
        os::wait_on(self.half_word(StreamGeometry::BELL), bell, limit);
    }

    /// Says what readers have to expect. The mapping is for writing.
    pub(super) fn set_state(&self, state: StreamState) {
        os::point(true);
        self.half_word(StreamGeometry::STATE).store(state as u32, Ordering::Release);
    }

    /// Returns what readers have to expect.
    pub(super) fn state(&self) -> StreamState {
        os::point(false);
        match self.half_word(StreamGeometry::STATE).load(Ordering::Acquire) {
            1 => StreamState::Ended,
            2 => StreamState::Replaced,
            _ => StreamState::Open,
        }
    }
}

impl StreamWords for StreamMemory {
    type Word = AtomicU64;

    fn word(&self, at: u64) -> &AtomicU64 {
        self.0.word(at)
    }

    fn words(&self, at: u64, count: usize) -> &[AtomicU64] {
        self.0.words(at, count)
    }
}

/// What readers have to expect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamState {
    /// More frames, as long as the writer lives, or from its successor.
    Open = 0,
    /// No more frames: the writer has ended the stream.
    Ended = 1,
    /// No more frames: another stream has the name.
    Replaced = 2,
}
