//! Linux: files in memory, at addresses where huge pages can be mapped as such.
//!
//! A huge page of a file is mapped as one only where address and offset agree modulo its size. Elsewhere it is mapped
//! as 512 small ones, each with a fault of its own. No flag of mmap(2) requests such an address, so one is searched for
//! first.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ptr::{NonNull, null_mut};

use rustix::mm::{self, Advice, MapFlags, MprotectFlags, ProtFlags};

use super::huge::{SMALLEST_HUGE_PAGE, huge_page_size};

/// How many times an address is searched for again because another thread took the one that was found.
const TRIES: u32 = 16;

/// Bytes of a file, mapped shared. They are unmapped when it is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// Where the mapping begins, on a page boundary.
    start: NonNull<c_void>,
    /// How many bytes are mapped.
    length: usize,
    /// Bytes of the mapping before the requested ones.
    ahead: usize,
}

// SAFETY: it owns addresses, not the bytes there: every read or write through them has a proof of its own.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing here changes through a shared reference.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes, at least one, from `offset` on, for writing too if `write`.
    ///
    /// Pages beyond the end of the file can be mapped. An access to one kills the process.
    pub(crate) fn new(file: &File, offset: u64, length: usize, write: bool) -> io::Result<Self> {
        let protection = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        Self::mapped(file, offset, length, protection, MapFlags::SHARED)
    }

    /// Maps `length` bytes, at least one, from `offset` on, so that writing changes a copy of the page that only this
    /// process has.
    pub(crate) fn copy_on_write(file: &File, offset: u64, length: usize) -> io::Result<Self> {
        // Nothing is reserved: few pages are ever copied, and the file may be larger than the memory.
        let sharing = MapFlags::PRIVATE | MapFlags::NORESERVE;
        Self::mapped(file, offset, length, ProtFlags::READ | ProtFlags::WRITE, sharing)
    }

    fn mapped(file: &File, offset: u64, length: usize, protection: ProtFlags, sharing: MapFlags) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let ahead = usize::try_from(offset % page as u64).unwrap_or(0);
        let offset = offset - ahead as u64;
        let length = length.checked_add(ahead).ok_or(io::ErrorKind::OutOfMemory)?;
        let start = place(file, offset, length, protection, sharing)?;
        Ok(Self { start, length, ahead })
    }

    /// Maps one byte beyond the end of an empty file, so that the mapping can hold its lock. The byte is never
    /// accessed.
    pub(crate) fn of_empty(file: &File, write: bool) -> io::Result<Self> {
        Self::new(file, 0, 1, write)
    }

    /// Returns where the bytes begin.
    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        self.start.as_ptr().cast::<u8>().wrapping_add(self.ahead)
    }

    /// Leaves the mapping out of forked children, so that a lock that it holds ends with this process. The bytes must
    /// never be read.
    pub(crate) fn keep_from_children(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping, and its bytes are never accessed, not in a forked child either.
        Ok(unsafe { mm::madvise(self.start.as_ptr(), self.length, Advice::LinuxDontFork) }?)
    }

    /// Makes the pages that begin in the first `end` bytes read-only, apart from a last one that goes beyond `end`. A
    /// write to one kills the process.
    ///
    /// For a mapping made for writing, without bytes ahead.
    pub(crate) fn forbid_writing(&self, end: usize) -> io::Result<()> {
        let end = end.min(self.length);
        let whole = end - end % rustix::param::page_size();
        // SAFETY: the range is in this mapping. The caller's proofs end every safe write to these bytes before the
        // call, and a write that they do not cover is stopped by the kernel.
        Ok(unsafe { mm::mprotect(self.start.as_ptr(), whole, MprotectFlags::READ) }?)
    }

    /// Returns how many of the mapped bytes are mapped by huge pages.
    ///
    /// The kernel counts only pages that are mapped already. So one page of every window with memory is mapped first.
    /// Then all mappings of the process are read (`/proc/self/smaps`), in a time that grows with their pages.
    pub(crate) fn huge_bytes(&self) -> io::Result<u64> {
        if self.length < SMALLEST_HUGE_PAGE {
            return Ok(0);
        }
        let begin = self.start.as_ptr() as usize;
        let (end, size) = (begin + self.length, huge_page_size());
        for window in (begin.next_multiple_of(size)..end).step_by(size).take_while(|window| end - window >= size) {
            let window = self.start.as_ptr().wrapping_byte_add(window - begin);
            if is_in_memory(window) {
                populate(window);
            }
        }
        let maps = BufReader::new(File::open("/proc/self/smaps")?);
        mapped_huge(maps, begin, end)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the one that was mapped for `self`, no other code unmaps it, and every use of its bytes
        // borrows or owns `self`.
        let _ = unsafe { mm::munmap(self.start.as_ptr(), self.length) };
    }
}

/// Maps at an address where huge pages fit, if the mapping can have any; anywhere, if no such address is found.
fn place(
    file: &File,
    offset: u64,
    length: usize,
    protection: ProtFlags,
    sharing: MapFlags,
) -> io::Result<NonNull<c_void>> {
    let anywhere = || map_near(null_mut(), file, offset, length, protection, sharing);
    if length < SMALLEST_HUGE_PAGE || length < huge_page_size() {
        return anywhere();
    }
    let size = huge_page_size();
    let fits =
        |start: NonNull<c_void>| (start.as_ptr() as u64).wrapping_sub(offset).trailing_zeros() >= size.trailing_zeros();
    for _ in 0..TRIES {
        let Some(free) = free_place(length, size, offset) else { break };
        let start = map_near(free, file, offset, length, protection, sharing)?;
        if fits(start) {
            return Ok(start);
        }
        unmap(start.as_ptr(), length)?;
    }
    anywhere()
}

/// Finds free addresses of this length that agree with an offset modulo the size of a huge page.
///
/// The range is unmapped before it is returned, so another thread may map it first. (Mapping over a reserved range
/// would need no retry. But if that fails, it is unknown whether the range is still reserved and may be unmapped.)
fn free_place(length: usize, size: usize, offset: u64) -> Option<*mut c_void> {
    let reserved = length.checked_add(size)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: without a fixed address the kernel chooses one where nothing is mapped.
    let start = unsafe { mm::mmap_anonymous(null_mut(), reserved, ProtFlags::empty(), flags) }.ok()?;
    unmap(start, reserved).ok()?;
    let remainder = usize::try_from(offset % size as u64).ok()?;
    let skip = remainder.wrapping_sub(start as usize) % size;
    Some(start.wrapping_byte_add(skip))
}

/// Maps a file at an address if nothing is there, else anywhere.
fn map_near(
    wanted: *mut c_void,
    file: &File,
    offset: u64,
    length: usize,
    protection: ProtFlags,
    sharing: MapFlags,
) -> io::Result<NonNull<c_void>> {
    // SAFETY: the address is a hint, without `MAP_FIXED`: no existing mapping is replaced.
    let start = unsafe { mm::mmap(wanted, length, protection, sharing, file, offset) }?;
    NonNull::new(start).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Unmaps a range that one of the functions above has just mapped and not yet returned.
fn unmap(start: *mut c_void, length: usize) -> io::Result<()> {
    // SAFETY: both callers pass a range that they got from mmap(2) and never accessed.
    Ok(unsafe { mm::munmap(start, length) }?)
}

/// Whether a page of a mapping has memory. Mapping it would allocate some. If the process may not query, the kernel
/// returns that it has memory.
fn is_in_memory(page: *mut c_void) -> bool {
    let mut answer = 0;
    // SAFETY: for a length of one byte one byte is written, to `answer`. The page itself is not accessed.
    let asked = unsafe { libc::mincore(page, 1, &raw mut answer) };
    asked == 0 && answer & 1 == 1
}

/// Maps a page as reading it would, but without a signal if there is no memory. Before Linux 5.14 nothing happens. The
/// caller reads the effect from `/proc/self/smaps`.
fn populate(page: *mut c_void) {
    // SAFETY: this advice changes no byte, and the page need not exist.
    let _ = unsafe { mm::madvise(page, rustix::param::page_size(), Advice::LinuxPopulateRead) };
}

/// Parses `/proc/PID/smaps`, and returns how many bytes of the mappings between two addresses are mapped by huge pages.
fn mapped_huge(maps: impl BufRead, begin: usize, end: usize) -> io::Result<u64> {
    let mut ours = false;
    let mut bytes = 0;
    for line in maps.lines() {
        let line = line?;
        let (first, rest) = line.split_once(' ').unwrap_or((&line, ""));
        if let Some(field) = first.strip_suffix(':') {
            if ours && ["ShmemPmdMapped", "FilePmdMapped"].contains(&field) {
                bytes += rest.trim().trim_end_matches(" kB").parse::<u64>().map_or(0, |kilobytes| kilobytes * 1024);
            }
        } else if let Some((from, to)) = first.split_once('-') {
            let number = |text| usize::from_str_radix(text, 16).ok();
            let (Some(from), Some(to)) = (number(from), number(to)) else { continue };
            if from >= end {
                break;
            }
            ours = to > begin;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mappings_in_the_range_count() {
        let mapping = |range: &str, huge: u64| {
            format!(
                "{range} rw-s 00000000 00:19 7 /dev/shm/x\nSize: 4096 kB\nShmemPmdMapped:  {huge} kB\nVmFlags: rd wr\n"
            )
        };
        let maps = ["1000-2000", "2000-5000", "5000-6000", "6000-9000"].map(|range| mapping(range, 2048)).concat();
        assert_eq!(mapped_huge(maps.as_bytes(), 0x2000, 0x6000).expect("text"), 2 * 2048 * 1024);
        assert_eq!(mapped_huge(maps.as_bytes(), 0x9000, 0xa000).expect("text"), 0);
        assert_eq!(mapped_huge("garbage\n".as_bytes(), 0, 1).expect("text"), 0);
    }

    #[test]
    fn large_mappings_fit_huge_pages_at_every_offset() {
        let file = tempfile::tempfile().expect("a file");
        let (page, size) = (rustix::param::page_size() as u64, huge_page_size());
        file.set_len(4 * size as u64).expect("a length");
        for offset in [0, page, 3 * page, size as u64, size as u64 + page] {
            for length in [size, size + 1, 2 * size + 12345] {
                let mapping = Mapping::new(&file, offset, length, true).expect("a mapping");
                assert_eq!((mapping.as_mut_ptr() as u64).wrapping_sub(offset) % size as u64, 0, "{offset} {length}");
            }
        }
        let inside = Mapping::new(&file, page + 5, 7, false).expect("a mapping");
        assert_eq!(inside.as_mut_ptr() as u64 % page, 5);
    }
}
