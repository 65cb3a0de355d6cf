//! The yardstick: a ring of slots with sequence numbers over a bare mapping, as programs write it by hand. A reader
//! looks at a slot in place and finds out afterwards whether it was overwritten meanwhile. It holds nothing.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use memmap2::MmapRaw;
use rustix::thread::futex;

use super::ways::{Look, Reading, SLOTS, Seen, Writing, fill};
use crate::Failable;

/// Bytes before the first slot, and of the part of each slot that holds its number.
const PAGE: usize = 4096;

struct Words {
    memory: MmapRaw,
    /// Bytes of a frame.
    bytes: usize,
}

impl Words {
    fn length(bytes: usize) -> usize {
        PAGE + SLOTS * Self::slot(bytes)
    }

    fn slot(bytes: usize) -> usize {
        PAGE + bytes.next_multiple_of(PAGE)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at + 8 <= self.memory.len() && at.is_multiple_of(8), "a word at {at}");
        // SAFETY: the word lies in the mapping and is aligned. All processes access it as an atomic only.
        unsafe { AtomicU64::from_ptr(self.memory.as_mut_ptr().wrapping_add(at).cast()) }
    }

    /// The number of the newest frame.
    fn head(&self) -> &AtomicU64 {
        self.word(0)
    }

    /// Readers sleep on it.
    fn bell(&self) -> &AtomicU32 {
        // SAFETY: as in `word`. No access of 8 bytes covers it.
        unsafe { AtomicU32::from_ptr(self.memory.as_mut_ptr().wrapping_add(64).cast()) }
    }

    /// The number of the frame in the slot of frame `number`; 0 while it is written.
    fn number(&self, number: u64) -> &AtomicU64 {
        self.word(PAGE + number as usize % SLOTS * Self::slot(self.bytes))
    }

    /// Where frame `number` is.
    fn frame(&self, number: u64) -> *mut [u8] {
        let at = 2 * PAGE + number as usize % SLOTS * Self::slot(self.bytes);
        assert!(at + self.bytes <= self.memory.len(), "a frame at {at}");
        std::ptr::slice_from_raw_parts_mut(self.memory.as_mut_ptr().wrapping_add(at), self.bytes)
    }
}

fn path(address: &str) -> PathBuf {
    PathBuf::from(format!("/dev/shm/{address}-ring"))
}

/// The writing side.
pub struct Ring {
    words: Words,
    wakes: bool,
    path: PathBuf,
}

impl Ring {
    pub fn create(address: &str, bytes: usize, wakes: bool) -> Failable<Self> {
        let path = path(address);
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        file.set_len(Words::length(bytes) as u64)?;
        Ok(Self { words: Words { memory: MmapRaw::map_raw(&file)?, bytes }, wakes, path })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path); // scripts/bench-peers looks for leftovers
    }
}

impl Writing for Ring {
    fn send(&mut self, source: &[u8], head: [u64; 2]) -> Failable<()> {
        let words = &self.words;
        let number = words.head().load(Ordering::Relaxed) + 1;
        words.number(number).store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        // SAFETY: the slot lies in the mapping, and there is one writer. A reader that looks at it meanwhile races with
        // it and discards what it saw: such rings rely on that, and this library does not.
        fill(unsafe { &mut *words.frame(number) }, source, head);
        words.number(number).store(number, Ordering::Release);
        words.head().store(number, Ordering::Release);
        if self.wakes {
            words.bell().fetch_add(1, Ordering::Release);
            futex::wake(words.bell(), futex::Flags::empty(), i32::MAX as u32)?;
        }
        Ok(())
    }
}

/// The reading side.
pub struct RingReader {
    words: Words,
    last: u64,
}

impl RingReader {
    pub fn open(address: &str, bytes: usize) -> Failable<Self> {
        let file = File::options().read(true).write(true).open(path(address))?;
        Ok(Self { words: Words { memory: MmapRaw::map_raw(&file)?, bytes }, last: 0 })
    }
}

impl Reading for RingReader {
    fn poll(&mut self, look: Look) -> Failable<Option<Seen>> {
        let words = &self.words;
        let head = words.head().load(Ordering::Acquire);
        if head == self.last {
            return Ok(None);
        }
        let number = (self.last + 1).max(head.saturating_sub(SLOTS as u64 - 2));
        self.last = number;
        if words.number(number).load(Ordering::Acquire) != number {
            return Ok(None);
        }
        // SAFETY: the slot lies in the mapping. A writer that overwrites it meanwhile is noticed below, too late by the
        // rules of the language: see `send`.
        let seen = look.at(unsafe { &*words.frame(number) });
        fence(Ordering::Acquire);
        if words.number(number).load(Ordering::Relaxed) != number {
            return Ok(None); // torn: overwritten meanwhile
        }
        Ok(Some(seen))
    }

    fn wait(&mut self, limit: Duration, look: Look) -> Failable<Option<Seen>> {
        let begin = Instant::now();
        loop {
            let bell = self.words.bell().load(Ordering::Acquire);
            if let Some(seen) = self.poll(look)? {
                return Ok(Some(seen));
            }
            let left = limit.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            let left = left.try_into()?;
            let _ = futex::wait(self.words.bell(), futex::Flags::empty(), bell, Some(&left)); // the loop looks again
        }
    }
}
