//! Facts about platform, machine and user. Functions return `None` where the platform does not report the fact. None of
//! them leaves a file behind.

use std::fs;
use std::io;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// Whether files have owners with numbers, and permission bits.
pub(crate) const FILES_HAVE_OWNERS: bool = cfg!(unix);

/// Whether a mapping can keep a lock on some file systems of this platform. Elsewhere an attachment keeps a descriptor.
pub(crate) const MAPPINGS_MAY_HOLD_LOCKS: bool = cfg!(target_os = "linux");

/// Whether this platform may run systemd.
pub(crate) const MAY_HAVE_SYSTEMD: bool = cfg!(target_os = "linux");

/// The environment variable with the directory for temporary files.
pub(crate) const TEMPORARY_DIRECTORY: &str = if cfg!(windows) { "TMP" } else { "TMPDIR" };

/// Size of a file system, in bytes and inodes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileSystemSpace {
    pub(crate) total: u64,
    /// Bytes that an ordinary user can still allocate.
    pub(crate) free: u64,
    /// Number of files that can still be created; `None` if unlimited.
    pub(crate) free_inodes: Option<u64>,
}

#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "other platforms do not say")]
mod imp {
    use std::path::Path;

    use rustix::process::Resource;

    use super::FileSystemSpace;

    /// Returns the size of the file system of a path, from `statvfs(3)`.
    pub(crate) fn room(path: &Path) -> Option<FileSystemSpace> {
        let facts = rustix::fs::statvfs(path).ok()?;
        Some(FileSystemSpace {
            total: facts.f_blocks.saturating_mul(facts.f_frsize),
            free: facts.f_bavail.saturating_mul(facts.f_frsize),
            free_inodes: (facts.f_files > 0).then_some(facts.f_favail),
        })
    }

    /// Whether the file system of a path is mounted read-only.
    pub(crate) fn is_read_only(path: &Path) -> bool {
        use rustix::fs::StatVfsMountFlags;
        rustix::fs::statvfs(path).is_ok_and(|facts| facts.f_flag.contains(StatVfsMountFlags::RDONLY))
    }

    /// Returns the inode number of a file; 0 where there is none.
    pub(crate) fn file_number(facts: &std::fs::Metadata) -> u64 {
        std::os::unix::fs::MetadataExt::ino(facts)
    }

    /// Returns the soft and the hard limit on descriptors of this process.
    pub(crate) fn descriptor_limits() -> Option<(u64, u64)> {
        let limit = rustix::process::getrlimit(Resource::Nofile);
        Some((limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX)))
    }

    /// Raises the soft limit on descriptors to the hard limit.
    pub(crate) fn raise_descriptor_limit() {
        let mut limit = rustix::process::getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        let _ = rustix::process::setrlimit(Resource::Nofile, limit); // if refused, the old limit stays
    }

    /// Returns the effective user id.
    pub(crate) fn user() -> Option<u32> {
        Some(rustix::process::geteuid().as_raw())
    }

    /// Whether permissions and the mount allow this user to create files in a directory.
    pub(crate) fn may_make_files(directory: &Path) -> bool {
        use rustix::fs::{Access, access};
        access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok()
    }

    /// Gives the builder's files the usual permissions, 0666 without the umask, because they are renamed and stay.
    pub(crate) fn permit_as_usual(builder: &mut tempfile::Builder<'_, '_>) {
        use std::os::unix::fs::PermissionsExt as _;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }

    /// Reserves space for a file's bytes, where the file system supports that. A full disk is an error.
    #[cfg(target_os = "linux")]
    pub(crate) fn reserve(file: &std::fs::File, bytes: u64) -> std::io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        match fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes) {
            Err(rustix::io::Errno::NOSPC) => Err(rustix::io::Errno::NOSPC.into()),
            // Reserving only detects a full disk earlier; writing allocates too.
            _ => Ok(()),
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn reserve(_file: &std::fs::File, _bytes: u64) -> std::io::Result<()> {
        Ok(())
    }

    /// Whether a file without a name can be created in a directory.
    #[cfg(target_os = "linux")]
    pub(crate) fn makes_nameless_files(directory: &Path) -> Option<bool> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        Some(rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR).is_ok())
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn makes_nameless_files(_directory: &Path) -> Option<bool> {
        None
    }
}

#[cfg(not(unix))]
mod imp {
    use std::path::Path;

    use super::FileSystemSpace;

    pub(crate) fn room(_path: &Path) -> Option<FileSystemSpace> {
        None
    }

    pub(crate) fn is_read_only(_path: &Path) -> bool {
        false
    }

    pub(crate) fn file_number(_facts: &std::fs::Metadata) -> u64 {
        0
    }

    /// On Windows each process has a handle table of fixed size.
    pub(crate) fn descriptor_limits() -> Option<(u64, u64)> {
        const MOST_HANDLES: u64 = 1 << 24;
        cfg!(windows).then_some((MOST_HANDLES, MOST_HANDLES))
    }

    /// Does nothing: the handle table has a fixed size.
    pub(crate) fn raise_descriptor_limit() {}

    pub(crate) fn user() -> Option<u32> {
        None
    }

    pub(crate) fn makes_nameless_files(_directory: &Path) -> Option<bool> {
        None
    }

    /// Does nothing: files inherit the permissions of their directory.
    pub(crate) fn permit_as_usual(_builder: &mut tempfile::Builder<'_, '_>) {}

    #[expect(clippy::unnecessary_wraps, reason = "other platforms may have no room")]
    pub(crate) fn reserve(_file: &std::fs::File, _bytes: u64) -> std::io::Result<()> {
        Ok(())
    }

    /// Creates a temporary file and removes it, as there are no permission bits to check.
    pub(crate) fn may_make_files(directory: &Path) -> bool {
        tempfile::tempfile_in(directory).is_ok()
    }
}

pub(crate) use imp::{
    descriptor_limits, file_number, is_read_only, makes_nameless_files, may_make_files, permit_as_usual,
    raise_descriptor_limit, reserve, room, user,
};

/// Returns an identity of a file: its creation time and inode number. Writing to the file changes neither, and a file
/// that replaces it later, also after a restart, has another identity. Two exceptions: Windows gives a file the
/// creation time of the one that had its name up to 15 seconds before. Older kernels report no creation time on tmpfs,
/// where inode numbers may repeat.
pub(crate) fn mark(facts: &fs::Metadata) -> String {
    let made = facts.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let made = made.map_or_else(String::new, |time| format!("made {}.{:09}, ", time.as_secs(), time.subsec_nanos()));
    format!("{made}number {}", file_number(facts))
}

/// Whether writing failed because the reader has closed its end.
pub(crate) fn reader_has_gone(error: &io::Error) -> bool {
    /// Error of Windows if the reader disconnected the pipe instead of closing it.
    const ERROR_PIPE_NOT_CONNECTED: i32 = 233;
    let is_disconnected = cfg!(windows) && error.raw_os_error() == Some(ERROR_PIPE_NOT_CONNECTED);
    is_disconnected || error.kind() == io::ErrorKind::BrokenPipe
}

/// Reads a system file of Unix. Elsewhere the path would be one on the current drive.
fn told_by_system(path: &str) -> Option<String> {
    if cfg!(unix) { fs::read_to_string(path).ok() } else { None }
}

/// Returns whether this process was started with a signal ignored, as `nohup` does with SIGHUP (Linux; elsewhere no).
#[cfg(unix)]
pub(crate) fn ignores(signal: i32) -> bool {
    let Some(status) = told_by_system("/proc/self/status") else { return false };
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| (1..=64).contains(&signal) && mask >> (signal - 1) & 1 == 1)
}

/// Returns the most mappings of a process (`vm.max_map_count`).
pub(crate) fn mapping_limit() -> Option<u64> {
    told_by_system("/proc/sys/vm/max_map_count")?.trim().parse().ok()
}

/// Returns the file system type of a path ("tmpfs", "overlay"): that of the mount with the longest matching path.
pub(crate) fn file_system(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    file_system_in(&told_by_system("/proc/self/mounts")?, &path)
}

fn file_system_in(mounts: &str, path: &Path) -> Option<String> {
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (point, kind) = (fields.next()?.replace("\\040", " "), fields.next()?);
            path.starts_with(&point).then(|| (point.len(), kind.to_owned()))
        })
        // The last mount at a point hides the earlier ones. `max_by_key` returns the last of equal elements.
        .max_by_key(|(length, _)| *length)
        .map(|(_, kind)| kind)
}

/// Returns a user's name, if /etc/passwd has it.
pub(crate) fn user_name(user: u32) -> Option<String> {
    name_in(&told_by_system("/etc/passwd")?, user)
}

fn name_in(passwd: &str, user: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(user)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_with_the_longest_path_gives_the_file_system() {
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\nx /dev/shm/my\\040dir ext2 rw 0 0\n\
                      overlay /tmp overlay rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n";
        let kind = |path: &str| file_system_in(mounts, Path::new(path));
        assert_eq!(kind("/dev/shm").as_deref(), Some("tmpfs"));
        assert_eq!(kind("/dev/shm/my dir/x").as_deref(), Some("ext2"));
        assert_eq!(kind("/dev/shmem").as_deref(), Some("ext4"));
        assert_eq!(kind("/tmp/x").as_deref(), Some("tmpfs"), "the later mount hides the earlier");
        assert_eq!(file_system_in("", Path::new("/")), None);
    }

    #[test]
    fn users_are_found_by_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\n+::::::\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(name_in(passwd, 1000).as_deref(), Some("ann"));
        assert_eq!(name_in(passwd, 100), None);
    }
}
