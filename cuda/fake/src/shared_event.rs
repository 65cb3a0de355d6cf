//! Events that processes share: a memfd with a counter of recordings and a ring with the state of the latest ones.
//!
//! A process that records holds a lock on the byte of the recording's place in the ring until the recording is
//! complete. The lock belongs to an open file description that only this process has, so the kernel releases it when
//! the process dies; a recording that is neither complete nor locked counts as complete. (A forked child has the
//! description too: as long as it lives, the recording seems to go on.) A place that is still in use fails the
//! recording that would need it.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, CUDA_ERROR_MAP_FAILED, CUDA_ERROR_OPERATING_SYSTEM,
    CUDA_ERROR_OUT_OF_MEMORY,
};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::calls::{Answer, locked};
use crate::machine::tag;
use crate::remote::RemoteFile;

/// Places in the ring.
const RING: usize = 4096;

/// The file's contents. Zeros are a new event.
#[repr(C)]
struct Shared {
    /// 1 once the creator has destroyed the event.
    destroyed: AtomicU64,
    /// Number of recordings so far.
    recorded: AtomicU64,
    /// For each place in the ring, the number of the latest recording that is complete.
    completed: [AtomicU64; RING],
}

const _: () = assert!(offset_of!(Shared, completed) == 16);

/// One process's side of an event.
pub(crate) struct SharedEvent {
    file: OwnedFd,
    shared: *const Shared,
    creator: bool,
    /// Recordings of this side that are not complete: a lock does not conflict with its own holder.
    mine: Mutex<BTreeSet<u64>>,
}

// SAFETY: the mapping belongs to the value, and consists of atomics.
unsafe impl Send for SharedEvent {}
// SAFETY: the mapping consists of atomics.
unsafe impl Sync for SharedEvent {}

impl SharedEvent {
    /// A new event.
    pub(crate) fn create() -> Answer<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(name(), flags).or(Err(CUDA_ERROR_OUT_OF_MEMORY))?;
        rustix::fs::ftruncate(&file, size_of::<Shared>() as u64).or(Err(CUDA_ERROR_OUT_OF_MEMORY))?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .or(Err(CUDA_ERROR_OPERATING_SYSTEM))?;
        Self::map(file, true)
    }

    /// Opens an event of another process that has not destroyed it.
    pub(crate) fn open(file: RemoteFile) -> Answer<Self> {
        let event = Self::map(file.open(&name()).ok_or(CUDA_ERROR_INVALID_HANDLE)?, false)?;
        let destroyed = event.shared().destroyed.load(Ordering::SeqCst) != 0;
        if destroyed { Err(CUDA_ERROR_INVALID_HANDLE) } else { Ok(event) }
    }

    fn map(file: OwnedFd, creator: bool) -> Answer<Self> {
        let seals = rustix::fs::fcntl_get_seals(&file).or(Err(CUDA_ERROR_INVALID_HANDLE))?;
        let size = rustix::fs::fstat(&file).map_or(0, |status| status.st_size);
        if !seals.contains(SealFlags::SHRINK) || usize::try_from(size) != Ok(size_of::<Shared>()) {
            return Err(CUDA_ERROR_INVALID_HANDLE);
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at addresses that the kernel selects.
        let mapped =
            unsafe { rustix::mm::mmap(ptr::null_mut(), size_of::<Shared>(), access, MapFlags::SHARED, &file, 0) };
        let shared = mapped.or(Err(CUDA_ERROR_MAP_FAILED))?.cast::<Shared>().cast_const();
        Ok(Self { file, shared, creator, mine: Mutex::default() })
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the mapping has the size of `Shared`, which the seals keep, starts at a page, and lives as long as
        // this value; all processes use it as atomics.
        unsafe { &*self.shared }
    }

    /// How another process opens the event.
    pub(crate) fn remote(&self) -> Answer<RemoteFile> {
        RemoteFile::of(self.file.as_fd()).or(Err(CUDA_ERROR_OPERATING_SYSTEM))
    }

    /// Lets no more processes open the event.
    pub(crate) fn destroy(&self) {
        if self.creator {
            self.shared().destroyed.store(1, Ordering::SeqCst);
        }
    }

    /// The latest recording; 0 if there is none.
    pub(crate) fn latest(&self) -> u64 {
        self.shared().recorded.load(Ordering::SeqCst)
    }

    fn place(&self, record: u64) -> &AtomicU64 {
        &self.shared().completed[place_of(record)]
    }

    /// Begins a recording.
    pub(crate) fn record(&self) -> Answer<u64> {
        let mut mine = locked(&self.mine);
        loop {
            let record = self.latest() + 1;
            let before = record.saturating_sub(RING as u64);
            if mine.contains(&before) {
                return Err(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
            }
            // Before another process can wait for the recording.
            if !self.lock(record, libc::F_WRLCK)? {
                if self.place(record).load(Ordering::SeqCst) < before {
                    return Err(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
                }
                // Another process records at this moment, or looks whether it was first.
                std::thread::yield_now();
                continue;
            }
            // What had this place before is complete, or its process is dead; from now on the lock says something else.
            self.place(record).fetch_max(before, Ordering::SeqCst);
            let counter = &self.shared().recorded;
            if counter.compare_exchange(record - 1, record, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                mine.insert(record);
                return Ok(record);
            }
            // Another process was faster, and complete: it no longer needs the lock.
            self.lock(record, libc::F_UNLCK)?;
        }
    }

    /// Completes a recording of this process.
    pub(crate) fn complete(&self, record: u64) {
        // Before the lock is released: other processes look at it after the lock.
        self.place(record).fetch_max(record, Ordering::SeqCst);
        let mut mine = locked(&self.mine);
        mine.remove(&record);
        // Fails only if the kernel has no memory for it; the recording is complete anyway.
        let _ = self.lock(record, libc::F_UNLCK);
    }

    /// Whether a recording is complete, or its process is dead.
    pub(crate) fn is_done(&self, record: u64) -> bool {
        let complete = || self.place(record).load(Ordering::SeqCst) >= record;
        if record == 0 || complete() {
            return true;
        }
        if locked(&self.mine).contains(&record) {
            return false;
        }
        // A lock that cannot be read is taken for held.
        !self.is_locked(record).unwrap_or(true)
    }

    fn region(record: u64, kind: libc::c_int) -> libc::flock {
        // SAFETY: zeros are a valid `flock`.
        let mut region: libc::flock = unsafe { std::mem::zeroed() };
        region.l_type = libc::c_short::try_from(kind).unwrap_or(0);
        region.l_whence = libc::c_short::try_from(libc::SEEK_SET).unwrap_or(0);
        region.l_start = i64::try_from(place_of(record)).unwrap_or(0);
        region.l_len = 1;
        region
    }

    /// Takes or releases the lock of a recording's place. False if another process holds it.
    fn lock(&self, record: u64, kind: libc::c_int) -> Answer<bool> {
        let region = Self::region(record, kind);
        // SAFETY: the descriptor is open, and the command takes a `flock`.
        let result = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &raw const region) };
        match std::io::Error::last_os_error().raw_os_error() {
            _ if result == 0 => Ok(true),
            Some(libc::EAGAIN | libc::EACCES) => Ok(false),
            _ => Err(CUDA_ERROR_OPERATING_SYSTEM),
        }
    }

    /// Whether another side holds the lock of a recording's place.
    fn is_locked(&self, record: u64) -> Answer<bool> {
        let mut region = Self::region(record, libc::F_WRLCK);
        // SAFETY: the descriptor is open, and the command changes a `flock`.
        let result = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut region) };
        if result != 0 {
            return Err(CUDA_ERROR_OPERATING_SYSTEM);
        }
        Ok(libc::c_int::from(region.l_type) != libc::F_UNLCK)
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        let start = self.shared.cast_mut().cast();
        // SAFETY: the mapping belongs to this value, which ends.
        // Fails only without memory; the mapping then stays.
        let _ = unsafe { rustix::mm::munmap(start, size_of::<Shared>()) };
    }
}

/// The place of a recording in the ring.
fn place_of(record: u64) -> usize {
    usize::try_from(record).unwrap_or(0) % RING
}

/// The name of the events' files.
fn name() -> String {
    format!("fake-cuda-event:{}", tag())
}
