//! Memory of a GPU: one memfd for each allocation, named `fake-cuda:TAG:GPU`.
//!
//! Work reads and writes it through its descriptor, never through a mapping: unmapped addresses then give errors, not
//! signals.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_OUT_OF_MEMORY,
    CUDA_ERROR_UNKNOWN,
};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use crate::calls::Answer;
use crate::machine::{Machine, tag};
use crate::remote;

/// Sizes of memory and address ranges are multiples of this number of bytes.
pub(crate) const GRANULARITY: usize = 2 << 20;

/// An allocation of memory on a GPU, shared by handles, mappings and unfinished work.
pub(crate) struct Physical {
    file: OwnedFd,
    pub(crate) size: usize,
    pub(crate) gpu: u32,
    pub(crate) inode: u64,
    /// Whether a descriptor may be exported.
    pub(crate) exportable: bool,
}

impl Physical {
    /// Allocates zeroed memory. The size is a multiple of the granularity.
    pub(crate) fn create(machine: &Machine, gpu: u32, size: usize, exportable: bool) -> Answer<Arc<Self>> {
        let bytes = u64::try_from(size).or(Err(CUDA_ERROR_OUT_OF_MEMORY))?;
        if machine.limited && in_use(Some(gpu)).saturating_add(bytes) > machine.memory {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let name = format!("{}{gpu}", prefix(&machine.tag));
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .or(Err(CUDA_ERROR_OUT_OF_MEMORY))?;
        rustix::fs::ftruncate(&file, bytes).or(Err(CUDA_ERROR_OUT_OF_MEMORY))?;
        // The size is part of the kernel's promise to all holders.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .or(Err(CUDA_ERROR_OPERATING_SYSTEM))?;
        let inode = rustix::fs::fstat(&file).or(Err(CUDA_ERROR_OPERATING_SYSTEM))?.st_ino;
        Ok(Arc::new(Self { file, size, gpu, inode, exportable }))
    }

    /// Takes memory that came as a descriptor, and cannot be exported again. Descriptors of anything else, or of
    /// another tag, are an unknown error, as a driver answers (580, on an H100).
    pub(crate) fn import(machine: &Machine, file: OwnedFd) -> Answer<Arc<Self>> {
        let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).or(Err(CUDA_ERROR_UNKNOWN))?;
        let gpu = gpu_of(&link.to_string_lossy(), &machine.tag).ok_or(CUDA_ERROR_UNKNOWN)?;
        machine.ordinal(gpu)?;
        let status = rustix::fs::fstat(&file).or(Err(CUDA_ERROR_INVALID_VALUE))?;
        let size = usize::try_from(status.st_size).or(Err(CUDA_ERROR_INVALID_VALUE))?;
        Ok(Arc::new(Self { file, size, gpu, inode: status.st_ino, exportable: false }))
    }

    /// The descriptor's number in this process.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// A new descriptor for another process.
    pub(crate) fn duplicate(&self) -> Answer<OwnedFd> {
        self.file.try_clone().or(Err(CUDA_ERROR_OPERATING_SYSTEM))
    }

    /// Copies memory of a C function's caller into this memory. The caller promised that it is readable.
    pub(crate) fn write(&self, offset: usize, source: usize, size: usize) -> Answer {
        self.transfer(offset, size, |at, done| {
            let source = std::ptr::with_exposed_provenance(source + done);
            // SAFETY: the kernel copies at most the given number of bytes and answers EFAULT where none are readable.
            unsafe { libc::pwrite64(self.descriptor(), source, size - done, at) }
        })
    }

    /// Copies this memory into memory of a C function's caller. The caller promised that it is writable and otherwise
    /// unused.
    pub(crate) fn read(&self, offset: usize, target: usize, size: usize) -> Answer {
        self.transfer(offset, size, |at, done| {
            let target = std::ptr::with_exposed_provenance_mut(target + done);
            // SAFETY: the kernel writes at most the given number of bytes, into memory that the caller promised to
            // leave to the copy, and answers EFAULT where none are writable.
            unsafe { libc::pread64(self.descriptor(), target, size - done, at) }
        })
    }

    /// Repeats a step, which gets the offset and the bytes done, until all bytes are done.
    fn transfer(&self, offset: usize, size: usize, step: impl Fn(i64, usize) -> isize) -> Answer {
        if offset.checked_add(size).is_none_or(|end| end > self.size) {
            return Err(CUDA_ERROR_ILLEGAL_ADDRESS);
        }
        let mut done = 0;
        while done < size {
            let at = i64::try_from(offset + done).or(Err(CUDA_ERROR_ILLEGAL_ADDRESS))?;
            match usize::try_from(step(at, done)) {
                Ok(0) => return Err(CUDA_ERROR_ILLEGAL_ADDRESS),
                Ok(step) => done += step,
                Err(_) if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return Err(CUDA_ERROR_ILLEGAL_ADDRESS),
            }
        }
        Ok(())
    }

    /// Sets bytes. Zeros take no memory of this machine.
    pub(crate) fn fill(&self, offset: usize, value: u8, size: usize) -> Answer {
        if value == 0 {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            return rustix::fs::fallocate(&self.file, hole, offset as u64, size as u64)
                .or(Err(CUDA_ERROR_ILLEGAL_ADDRESS));
        }
        let bytes = vec![value; size.min(1 << 20)];
        let mut done = 0;
        while done < size {
            let step = bytes.len().min(size - done);
            self.write(offset + done, bytes.as_ptr().expose_provenance(), step)?;
            done += step;
        }
        Ok(())
    }

    /// Copies from another allocation, or from this one.
    pub(crate) fn copy_from(&self, offset: usize, source: &Self, source_offset: usize, size: usize) -> Answer {
        let mut buffer = vec![0_u8; size.min(1 << 20)];
        let mut done = 0;
        while done < size {
            let step = buffer.len().min(size - done);
            source.read(source_offset + done, buffer.as_mut_ptr().expose_provenance(), step)?;
            self.write(offset + done, buffer.as_ptr().expose_provenance(), step)?;
            done += step;
        }
        Ok(())
    }
}

/// The start of the names of memory of a tag.
fn prefix(tag: &str) -> String {
    format!("fake-cuda:{tag}:")
}

/// The GPU of the memory that a link of `/proc` or a line of `/proc/PID/maps` names.
fn gpu_of(link: &str, tag: &str) -> Option<u32> {
    let rest = link.strip_prefix("/memfd:")?.strip_prefix(&prefix(tag))?;
    rest.strip_suffix(" (deleted)").unwrap_or(rest).parse().ok()
}

/// Bytes of memory of one GPU, or of all GPUs of the tag, that any process has open or mapped.
pub(crate) fn in_use(gpu: Option<u32>) -> u64 {
    let tag = tag();
    let mut sizes: HashMap<u64, u64> = HashMap::new();
    let mut found = |link: &str, inode: u64, size: u64| {
        if gpu_of(link, &tag).is_some_and(|owner| gpu.is_none_or(|gpu| gpu == owner)) {
            let known = sizes.entry(inode).or_default();
            *known = size.max(*known);
        }
    };
    // Processes end while this looks at them, and some belong to other users; what cannot be read has no memory of this
    // tag.
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        if !process.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        for entry in fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            let Ok(link) = fs::read_link(entry.path()) else { continue };
            let link = link.to_string_lossy();
            if gpu_of(&link, &tag).is_some()
                && let Ok(status) = rustix::fs::stat(entry.path())
            {
                found(&link, status.st_ino, u64::try_from(status.st_size).unwrap_or(0));
            }
        }
        let maps = fs::read(process.path().join("maps")).unwrap_or_default();
        let maps = String::from_utf8_lossy(&maps);
        for area in maps.lines().filter(|line| line.contains("fake-cuda:")).filter_map(crate::maps::parse_line) {
            found(&area.path, area.inode, area.offset + (area.end - area.start) as u64);
        }
    }
    sizes.values().sum()
}

/// Opens memory that a process has open under a number, if it is still that memory.
pub(crate) fn open_remote(machine: &Machine, file: remote::RemoteFile) -> Answer<Arc<Physical>> {
    let file = file.open(&prefix(&machine.tag)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    Physical::import(machine, file)
}
