//! Words that the writer and the readers of a case share: which readers are ready, and how many frames each has read.
//! They are no part of what is measured, and the same for all cases.

use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memmap2::MmapRaw;
use rustix::time::{ClockId, clock_gettime};

use crate::Failable;

/// How long a process waits for another one before it reports an error.
const PATIENCE: Duration = Duration::from_secs(30);

/// Words in cache lines of their own: the first three belong to the case, the others to its readers, two to each.
pub struct Board {
    memory: MmapRaw,
    /// The file, which its creator removes.
    own: Option<PathBuf>,
}

impl Board {
    const LINE: usize = 64;

    pub fn create(address: &str, readers: usize) -> Failable<Self> {
        let path = Self::path(address);
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        file.set_len((Self::LINE * (3 + 2 * readers)) as u64)?;
        Ok(Self { memory: MmapRaw::map_raw(&file)?, own: Some(path) })
    }

    pub fn open(address: &str) -> Failable<Self> {
        let file = File::options().read(true).write(true).open(Self::path(address))?;
        Ok(Self { memory: MmapRaw::map_raw(&file)?, own: None })
    }

    fn path(address: &str) -> PathBuf {
        PathBuf::from(format!("/dev/shm/{address}-board"))
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        let at = Self::LINE * index;
        assert!(at < self.memory.len(), "word {index}");
        // SAFETY: the word lies in the mapping, is aligned, and all processes access it as an atomic only.
        unsafe { AtomicU64::from_ptr(self.memory.as_mut_ptr().wrapping_add(at).cast()) }
    }

    /// Not 0: the readers end.
    pub fn stop(&self) -> &AtomicU64 {
        self.word(0)
    }

    /// The frames that all readers together have read.
    pub fn all(&self) -> &AtomicU64 {
        self.word(1)
    }

    /// Readers sleep on it.
    pub fn bell(&self) -> &AtomicU32 {
        // SAFETY: as in `word`. No access of 8 bytes covers it.
        unsafe { AtomicU32::from_ptr(self.memory.as_mut_ptr().wrapping_add(2 * Self::LINE).cast()) }
    }

    /// Not 0: a reader is about to take its first frame.
    pub fn ready(&self, reader: usize) -> &AtomicU64 {
        self.word(3 + 2 * reader)
    }

    /// The frames that a reader has read and given up.
    pub fn done(&self, reader: usize) -> &AtomicU64 {
        self.word(4 + 2 * reader)
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        if let Some(path) = &self.own {
            let _ = std::fs::remove_file(path); // scripts/bench-peers looks for leftovers
        }
    }
}

/// Waits until a word is at least `value`. Calls `pause` between two looks.
pub fn wait_for(word: &AtomicU64, value: u64, mut pause: impl FnMut()) -> Failable<()> {
    let begin = Instant::now();
    while word.load(Ordering::Acquire) < value {
        pause();
        if begin.elapsed() > PATIENCE {
            return Err("a frame was lost, or a reader has ended".into());
        }
    }
    Ok(())
}

/// Spins for a time.
pub fn spin(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Nanoseconds by a clock that all processes share, `CLOCK_MONOTONIC`.
pub fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Nanoseconds of processor time that this process has used.
pub fn used() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
