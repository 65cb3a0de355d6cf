//! Linux: huge pages for files in memory, whatever their file system was mounted with.
//!
//! A window is a range as large and as aligned as a huge page. `MADV_COLLAPSE` of madvise(2) (Linux 6.1) moves the
//! pages of a window onto a huge page, with zeros where there were none. It refuses an empty window, and needs no
//! privilege.

use std::fs::File;
use std::io;
use std::ops::Range;

use rustix::fs::{self, FallocateFlags};

use super::Mapping;
use super::room::is_on_tmpfs;
use crate::os::Fact;

/// No kernel has smaller huge pages of files than this.
pub(super) const SMALLEST_HUGE_PAGE: usize = 2 << 20;

/// Not every C library defines it.
const MADV_COLLAPSE: libc::c_int = 25;

/// Returns the size of a huge page: 2 MiB if base pages have 4 KiB.
pub(super) fn huge_page_size() -> usize {
    static SIZE: Fact = Fact::new();
    SIZE.get_or(|| {
        let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").unwrap_or_default();
        let told = text.trim().parse::<usize>().ok();
        told.filter(|size| size.is_power_of_two() && *size >= SMALLEST_HUGE_PAGE).unwrap_or(SMALLEST_HUGE_PAGE)
    })
}

/// The windows of a file that could each be a huge page. None of them goes beyond the end of the file.
#[derive(Debug)]
pub(crate) struct HugeWindows<'a> {
    file: &'a File,
    map: Mapping,
    size: usize,
    count: usize,
}

impl<'a> HugeWindows<'a> {
    /// Finds the windows in the first `length` bytes of a file. A shorter file gets this length. Returns `None` if
    /// there is no whole window, or if the file is not in memory.
    pub(crate) fn of(file: &'a File, length: u64) -> io::Result<Option<Self>> {
        let size = huge_page_size();
        let Ok(length) = usize::try_from(length) else { return Ok(None) };
        let count = length / size;
        if count == 0 || !is_on_tmpfs(file) {
            return Ok(None);
        }
        if fs::fstat(file)?.st_size < i64::try_from(length).unwrap_or(i64::MAX) {
            file.set_len(length as u64)?;
        }
        let map = Mapping::new(file, 0, count * size, false)?;
        Ok(Some(Self { file, map, size, count }))
    }

    /// Returns the size of a window.
    pub(crate) fn size(&self) -> u64 {
        self.size as u64
    }

    /// Returns the number of windows.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Allocates the first byte of each of these windows, so that none is empty. Bytes already written stay.
    ///
    /// # Errors
    ///
    /// There is no room.
    pub(crate) fn prepare(&self, windows: Range<usize>) -> io::Result<()> {
        for window in windows {
            fs::fallocate(self.file, FallocateFlags::empty(), window as u64 * self.size(), 1)?;
        }
        Ok(())
    }

    /// Puts each of these windows onto a huge page. Bytes already written stay.
    ///
    /// # Errors
    ///
    /// At least one window is not on a huge page. Windows on huge pages stay there. `InvalidInput`: the window never
    /// will be (an older kernel, or forbidden to the process or the machine), or it is empty, or the file system has no
    /// room for all of it.
    #[allow(unsafe_code)]
    pub(crate) fn collapse(&self, windows: Range<usize>) -> io::Result<()> {
        if windows.is_empty() || windows.end > self.count {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let start = self.map.as_mut_ptr().wrapping_add(windows.start * self.size);
        // SAFETY: the range is inside of this mapping, as was just checked, and the advice changes no byte that any
        // code can read.
        let answer = unsafe { libc::madvise(start.cast(), windows.len() * self.size, MADV_COLLAPSE) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::create_sealable;

    #[test]
    fn only_whole_windows_of_memory_files_are_found() {
        let size = huge_page_size() as u64;
        let memory = create_sealable().expect("memory");
        assert!(HugeWindows::of(&memory, size - 1).expect("a mapping").is_none());
        let windows = HugeWindows::of(&memory, 3 * size - 1).expect("a mapping").expect("windows");
        assert_eq!((windows.count(), memory.metadata().expect("facts").len()), (2, 3 * size - 1));
        windows.prepare(0..2).expect("room");
        assert_eq!(memory.metadata().expect("facts").len(), 3 * size - 1);
        assert_eq!(windows.collapse(1..3).expect_err("beyond the end").kind(), io::ErrorKind::InvalidInput);
    }
}
