//! Descriptors of other processes, reached through `/proc/PID/fd` while they are open there.

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

/// The 64 bytes of a handle for another process.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Ticket([u8; 64]);

impl crate::calls::Plain for Ticket {}

impl Ticket {
    /// Packs eight numbers.
    pub(crate) fn new(words: [u64; 8]) -> Self {
        let mut bytes = [0; 64];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        Self(bytes)
    }

    /// The eight numbers.
    pub(crate) fn words(&self) -> [u64; 8] {
        let mut words = [0; 8];
        for (word, bytes) in words.iter_mut().zip(self.0.chunks_exact(8)) {
            *word = bytes.try_into().map_or(0, u64::from_ne_bytes);
        }
        words
    }
}

/// An open file of a process, known by its inode: process ids and numbers of descriptors are used again.
#[derive(Clone, Copy)]
pub(crate) struct RemoteFile {
    pub(crate) pid: u32,
    descriptor: u32,
    inode: u64,
}

impl RemoteFile {
    /// A file that this process has open.
    pub(crate) fn of(file: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let inode = rustix::fs::fstat(file)?.st_ino;
        Ok(Self { pid: std::process::id(), descriptor: file.as_raw_fd().unsigned_abs(), inode })
    }

    pub(crate) fn from_words(words: [u64; 2]) -> Self {
        let [packed, inode] = words;
        let [low, high] = [packed & u64::from(u32::MAX), packed >> 32];
        Self { pid: u32::try_from(high).unwrap_or(0), descriptor: u32::try_from(low).unwrap_or(0), inode }
    }

    pub(crate) fn words(self) -> [u64; 2] {
        [u64::from(self.pid) << 32 | u64::from(self.descriptor), self.inode]
    }

    /// Opens the memfd, with an open file description of its own, if its process still has it open and its name starts
    /// so.
    pub(crate) fn open(self, name: &str) -> Option<OwnedFd> {
        let path = format!("/proc/{}/fd/{}", self.pid, self.descriptor);
        let link = fs::read_link(&path).ok()?;
        link.to_string_lossy().strip_prefix("/memfd:")?.strip_prefix(name)?;
        let file = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).ok()?;
        (rustix::fs::fstat(&file).ok()?.st_ino == self.inode).then_some(file)
    }
}
