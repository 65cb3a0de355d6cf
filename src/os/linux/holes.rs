//! Holes: pages of a file without room.
//!
//! The count of allocated bytes (`st_blocks`) tells them only in memory. On disks it includes the blocks of attributes
//! and extents, which can stand for missing pages. `SEEK_HOLE` does not tell them: it takes room that was reserved and
//! not yet written for a hole. Calling fallocate(2) to be sure is no way either: XFS refuses it on a file that has all
//! its room, if the disk has no more of that size.

use std::fs::File;

use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use super::room::is_in_memory;
use crate::os::Facts;

/// Most extents that one call returns.
const EXTENTS: u32 = 64;

/// The last extent of a file; data that lie in the inode, so that changing them may take room (linux/fiemap.h).
const LAST: u32 = 1;
const INLINE: u32 = 1 << 9;

/// `FS_IOC_FIEMAP`. The extents behind the request are not part of its size.
const FIEMAP: Opcode = opcode::read_write::<Request>(b'f', 11);

/// `struct fiemap` without its extents.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    found: u32,
    room: u32,
    reserved: u32,
}

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Extent {
    start: u64,
    physical: u64,
    length: u64,
    reserved: [u64; 2],
    flags: u32,
    more_reserved: [u32; 3],
}

#[repr(C)]
#[derive(Debug)]
struct Extents {
    request: Request,
    list: [Extent; EXTENTS as usize],
}

/// Returns whether a file has holes, or `None` where the file system does not tell. The facts must be those of the
/// file.
pub(crate) fn has_holes(file: &File, facts: &Facts) -> Option<bool> {
    if !is_in_memory(file) {
        return lacks_extents(file, facts.length);
    }
    // There only pages count. Those beyond the end of the file count too: another program may have reserved them, or a
    // huge page reaches there. Each of them can stand for a missing page.
    let page = rustix::param::page_size() as u64;
    let needed = facts.length.checked_next_multiple_of(page)?;
    match facts.allocated {
        allocated if allocated < needed => Some(true),
        allocated if allocated == needed && facts.block <= page => Some(false),
        _ => None,
    }
}

/// Returns whether the extents of a file leave out any of its first `length` bytes, or `None` where the file system has
/// no list of them.
///
/// See <https://docs.kernel.org/filesystems/fiemap.html>. An extent that has no place on the disk yet has its room all
/// the same.
#[allow(unsafe_code)]
fn lacks_extents(file: &File, length: u64) -> Option<bool> {
    let mut end = 0;
    while end < length {
        let request = Request { start: end, length: length - end, room: EXTENTS, ..Request::default() };
        let mut extents = Extents { request, list: [Extent::default(); EXTENTS as usize] };
        // SAFETY: the number is that of FS_IOC_FIEMAP, which gets a `struct fiemap` with as many extents behind it as
        // it says.
        let call = unsafe { Updater::<FIEMAP, Extents>::new(&mut extents) };
        // SAFETY: the call reads and writes the memory that `call` borrows, and changes nothing else.
        unsafe { ioctl(file, call) }.ok()?;
        let found = extents.list.get(..extents.request.found as usize)?;
        for extent in found {
            if extent.start > end || extent.flags & INLINE != 0 {
                return Some(true);
            }
            end = end.max(extent.start.saturating_add(extent.length));
        }
        if end < length && found.last().is_none_or(|extent| extent.flags & LAST != 0) {
            return Some(true);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FallocateFlags, fallocate};

    use super::*;
    use crate::os::{facts, write_all_at};

    #[test]
    fn request_has_the_number_and_the_layout_of_the_kernel() {
        assert_eq!((size_of::<Request>(), size_of::<Extent>(), std::mem::offset_of!(Extents, list)), (32, 56, 32));
        #[cfg(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64", target_arch = "arm"))]
        assert_eq!(FIEMAP, 0xc020_660b);
    }

    #[test]
    fn holes_are_told_from_reserved_pages() {
        let page = rustix::param::page_size() as u64;
        let byte = |file: &File, page_number: u64| write_all_at(file, &[1], page_number * page).expect("room");
        let reserve = |file: &File, first: u64, count: u64| {
            fallocate(file, FallocateFlags::empty(), first * page, count * page).expect("room");
        };
        for file in [tempfile::tempfile(), crate::os::create_sealable()].map(|file| file.expect("a file")) {
            // Not every file system tells. With huge pages, files in memory do not.
            let tells = if is_in_memory(&file) {
                facts(&file).expect("facts").block == page
            } else {
                lacks_extents(&file, 1).is_some()
            };
            if !tells {
                println!("NOT RUN: a file system does not tell holes");
                continue;
            }
            let found = || has_holes(&file, &facts(&file).expect("facts")).expect("it tells");
            assert!(!found(), "an empty file");
            file.set_len(400 * page).expect("a length");
            assert!(found());
            // More extents than one call returns.
            (0..400).step_by(2).for_each(|number| byte(&file, number));
            assert!(found());
            reserve(&file, 0, 399);
            assert!(found(), "the last page is missing");
            reserve(&file, 399, 1);
            assert!(!found());
            byte(&file, 7);
            assert!(!found());
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, punch, 200 * page, page).expect("a hole");
            assert!(found());
        }
    }
}
