//! Facts of platform, machine and user. Every function answers `None` where the platform does not say; nothing here
//! leaves a trace.

use std::fs;
use std::io;
use std::path::Path;
use std::time::UNIX_EPOCH;

/// Whether files have owners with numbers, and permission bits.
pub(crate) const FILES_HAVE_OWNERS: bool = cfg!(unix);

/// Whether there are file systems on which a lock lives as long as a mapping. Elsewhere a descriptor is kept for it.
pub(crate) const MAPPINGS_MAY_HOLD_LOCKS: bool = cfg!(target_os = "linux");

/// Whether systemd may run this machine.
pub(crate) const MAY_HAVE_SYSTEMD: bool = cfg!(target_os = "linux");

/// The environment variable that says where temporary files are.
pub(crate) const TEMPORARY_DIRECTORY: &str = if cfg!(windows) { "TMP" } else { "TMPDIR" };

/// Size of a file system, in bytes and inodes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileSystemSpace {
    pub(crate) total: u64,
    /// Bytes that an ordinary user may still take.
    pub(crate) free: u64,
    /// Files that may still be made; `None` where that is not limited.
    pub(crate) free_inodes: Option<u64>,
}

#[cfg(unix)]
#[expect(clippy::unnecessary_wraps, reason = "other platforms do not say")]
mod imp {
    use std::path::Path;

    use rustix::process::Resource;

    use super::FileSystemSpace;

    /// Asks `statvfs(3)` about the file system that a path is on.
    pub(crate) fn room(path: &Path) -> Option<FileSystemSpace> {
        let facts = rustix::fs::statvfs(path).ok()?;
        Some(FileSystemSpace {
            total: facts.f_blocks.saturating_mul(facts.f_frsize),
            free: facts.f_bavail.saturating_mul(facts.f_frsize),
            free_inodes: (facts.f_files > 0).then_some(facts.f_favail),
        })
    }

    /// Whether the file system that a path is on is mounted read-only.
    pub(crate) fn is_read_only(path: &Path) -> bool {
        use rustix::fs::StatVfsMountFlags;
        rustix::fs::statvfs(path).is_ok_and(|facts| facts.f_flag.contains(StatVfsMountFlags::RDONLY))
    }

    /// Returns the number of a file, which no other file of its file system has meanwhile; 0 where there are none.
    pub(crate) fn file_number(facts: &std::fs::Metadata) -> u64 {
        std::os::unix::fs::MetadataExt::ino(facts)
    }

    /// Returns how many descriptors this process may have now, and up to how many it may ask for.
    pub(crate) fn descriptor_limits() -> Option<(u64, u64)> {
        let limit = rustix::process::getrlimit(Resource::Nofile);
        Some((limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX)))
    }

    /// Takes as many descriptors as this process may ask for.
    pub(crate) fn raise_descriptor_limit() {
        let mut limit = rustix::process::getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        let _as_before = rustix::process::setrlimit(Resource::Nofile, limit);
    }

    /// Returns the number of the user this program acts for.
    pub(crate) fn user() -> Option<u32> {
        Some(rustix::process::geteuid().as_raw())
    }

    /// Whether this user may make files in a directory, as far as permissions and the mount go.
    pub(crate) fn may_make_files(directory: &Path) -> bool {
        use rustix::fs::{Access, access};
        access(directory, Access::WRITE_OK | Access::EXEC_OK).is_ok()
    }

    /// Gives temporary files that are to stay the permissions that other files get: what the umask leaves.
    pub(crate) fn permit_as_usual(builder: &mut tempfile::Builder<'_, '_>) {
        use std::os::unix::fs::PermissionsExt as _;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }

    /// Takes room for a file's bytes, where the file system can; what cannot be had is an error.
    #[cfg(target_os = "linux")]
    pub(crate) fn reserve(file: &std::fs::File, bytes: u64) -> std::io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        match fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes) {
            Err(rustix::io::Errno::NOSPC) => Err(rustix::io::Errno::NOSPC.into()),
            // It is only sooner known; writing takes the room too.
            _ => Ok(()),
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn reserve(_file: &std::fs::File, _bytes: u64) -> std::io::Result<()> {
        Ok(())
    }

    /// Tries whether a nameless file can be made in a directory.
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

    /// Windows has a table of fixed size for each process.
    pub(crate) fn descriptor_limits() -> Option<(u64, u64)> {
        const MOST_HANDLES: u64 = 1 << 24;
        cfg!(windows).then_some((MOST_HANDLES, MOST_HANDLES))
    }

    /// The table of handles has a fixed size.
    pub(crate) fn raise_descriptor_limit() {}

    pub(crate) fn user() -> Option<u32> {
        None
    }

    pub(crate) fn makes_nameless_files(_directory: &Path) -> Option<bool> {
        None
    }

    /// Files inherit what their directory says.
    pub(crate) fn permit_as_usual(_builder: &mut tempfile::Builder<'_, '_>) {}

    #[expect(clippy::unnecessary_wraps, reason = "other platforms may have no room")]
    pub(crate) fn reserve(_file: &std::fs::File, _bytes: u64) -> std::io::Result<()> {
        Ok(())
    }

    /// There are no permissions that could be asked: a file is made, and goes at once.
    pub(crate) fn may_make_files(directory: &Path) -> bool {
        tempfile::tempfile_in(directory).is_ok()
    }
}

pub(crate) use imp::{
    descriptor_limits, file_number, is_read_only, makes_nameless_files, may_make_files, permit_as_usual,
    raise_descriptor_limit, reserve, room, user,
};

/// Tells a file from another that stands in its place later, also after a restart: when it was made, and its number. What is
/// written to it changes neither. (Windows lends a file that is made within 15 seconds under the same name the time of the old one; where
/// the system does not say when a file was made, as older kernels do not in memory, another one may have the same number.)
pub(crate) fn mark(facts: &fs::Metadata) -> String {
    let made = facts.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let made = made.map_or_else(String::new, |time| format!("made {}.{:09}, ", time.as_secs(), time.subsec_nanos()));
    format!("{made}number {}", file_number(facts))
}

/// Whether writing failed because the reader has closed its end.
pub(crate) fn reader_has_gone(error: &io::Error) -> bool {
    /// What Windows says where the reader did not close the pipe but disconnected it.
    const ERROR_PIPE_NOT_CONNECTED: i32 = 233;
    let is_disconnected = cfg!(windows) && error.raw_os_error() == Some(ERROR_PIPE_NOT_CONNECTED);
    is_disconnected || error.kind() == io::ErrorKind::BrokenPipe
}

/// Reads a file by which a Unix system tells about itself; elsewhere its path would lead into the current drive.
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

/// Returns how many mappings a process may have (`vm.max_map_count`).
pub(crate) fn mapping_limit() -> Option<u64> {
    told_by_system("/proc/sys/vm/max_map_count")?.trim().parse().ok()
}

/// Returns the type of the file system that a path is on ("tmpfs", "overlay"), by the mount with the longest fitting
/// path.
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
        // Of mounts at one point the last one is on top; `max_by_key` keeps the last of equals.
        .max_by_key(|(length, _)| *length)
        .map(|(_, kind)| kind)
}

/// Returns a user's name, as far as /etc/passwd knows it.
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
    fn the_mount_with_the_longest_path_tells_the_file_system() {
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
