//! The yardsticks: the bare system calls, and memory that is already mapped.
//!
//! Only Linux has all of these calls. On other platforms the benches run without yardsticks.

#![allow(unsafe_code)]
#![allow(dead_code)] // each bench uses a part of it

use memmap2::MmapMut;

/// Touches and frees memory. If the host of a virtual machine has taken memory back, the host returns it now instead of
/// during the next measurement.
pub(crate) fn touch(bytes: usize, huge: bool) {
    let Ok(mut map) = MmapMut::map_anon(bytes.max(1)) else { return };
    #[cfg(target_os = "linux")]
    let _ = map.advise(if huge { memmap2::Advice::HugePage } else { memmap2::Advice::NoHugePage });
    let _ = huge;
    map.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
}

/// Adds up floats at the speed of the memory.
pub(crate) fn sum(values: &[f32]) -> f32 {
    const LANES: usize = 64;
    let mut sums = [0.0_f32; LANES];
    let (whole, rest) = values.split_at(values.len() / LANES * LANES);
    for part in whole.chunks_exact(LANES) {
        sums.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
    }
    std::hint::black_box(sums.iter().sum::<f32>() + rest.iter().sum::<f32>())
}

/// The fewest system calls for an array that is complete when its name appears, and whose room is reserved.
#[cfg(target_os = "linux")]
pub(crate) mod calls {
    use std::fs::File;
    use std::io;
    use std::os::fd::AsRawFd;

    use memmap2::{MmapMut, MmapOptions, MmapRaw};
    use rustix::fs::{self, AtFlags, CWD, FallocateFlags, Mode, OFlags};

    fn path(name: &str) -> String {
        format!("/dev/shm/{name}")
    }

    /// Opens a nameless file, reserves its room, maps it and links it: six calls with those that undo them. `lease`
    /// adds the lock that shows other processes whether any process is attached.
    pub(crate) fn create(name: &str, bytes: usize, lease: bool, fill: impl FnOnce(&mut [u8])) -> io::Result<MmapMut> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let nameless = File::from(fs::open("/dev/shm", flags, Mode::RUSR | Mode::WUSR)?);
        fs::fallocate(&nameless, FallocateFlags::empty(), 0, bytes as u64)?;
        // SAFETY: the file has no name, so no other process can open it.
        let mut map = unsafe { MmapOptions::new().len(bytes).map_mut(&nameless) }?;
        fill(&mut map);
        if lease {
            lock(&nameless)?;
        }
        let descriptor = format!("/proc/self/fd/{}", nameless.as_raw_fd());
        fs::linkat(CWD, descriptor, CWD, path(name), AtFlags::SYMLINK_FOLLOW)?;
        Ok(map)
    }

    /// Opens, maps and closes.
    pub(crate) fn attach(name: &str) -> io::Result<MmapRaw> {
        MmapRaw::map_raw(&open(name)?)
    }

    pub(crate) fn open(name: &str) -> io::Result<File> {
        Ok(fs::open(path(name), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?.into())
    }

    pub(crate) fn unlink(name: &str) -> io::Result<()> {
        Ok(fs::unlink(path(name))?)
    }

    #[allow(clippy::cast_possible_truncation)] // small constants
    fn lock(file: &File) -> io::Result<()> {
        let range = libc::flock {
            l_type: libc::F_RDLCK as i16,
            l_whence: libc::SEEK_SET as i16,
            l_start: 1 << 62,
            l_len: 1,
            l_pid: 0,
        };
        // SAFETY: the descriptor is open, and the struct lives through the call.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &range) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
