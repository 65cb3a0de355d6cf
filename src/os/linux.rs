//! Linux: nameless files that get their name when they are ready, memory that can be sealed, room that is really taken.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{self, AtFlags, CWD, FallocateFlags, MemfdFlags, Mode, OFlags, RenameFlags, SealFlags, SeekFrom};
use rustix::io::Errno;

pub(crate) use super::posix::*;
pub(crate) use super::room::{available, available_memory};

/// Where shared memory objects live: `shm_open(3)` opens this directory's files.
pub(crate) const SHARED_MEMORY: Option<&str> = Some("/dev/shm");

/// Whether a mapping can hold a lock after its descriptor is closed. Even so, not on every file system: probe it.
pub(crate) const MAPPINGS_HOLD_LOCKS: bool = true;

/// fallocate(2) is called for this many bytes at a time, so that a signal interrupts little and nothing is done twice.
const RESERVE_STEP: u64 = 1 << 28;

/// Creates an empty file without a name in `directory`, which [`link_nameless`] can name once.
///
/// # Errors
///
/// `Unsupported` where the file system has no `O_TMPFILE` or /proc is not mounted; use [`create_hidden`] then.
pub(crate) fn create_nameless(directory: &Path, mode: u32) -> io::Result<File> {
    static PROC: OnceLock<bool> = OnceLock::new();
    if !PROC.get_or_init(|| Path::new("/proc/self/fd").is_dir()) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    match fs::open(directory, flags, Mode::from_raw_mode(0o600)) {
        Ok(descriptor) => {
            let file = File::from(descriptor);
            set_mode(&file, mode)?;
            Ok(file)
        }
        // Kernels before O_TMPFILE see an attempt to write a directory, and file systems without it say EOPNOTSUPP.
        Err(Errno::ISDIR | Errno::OPNOTSUPP | Errno::INVAL) => Err(io::ErrorKind::Unsupported.into()),
        Err(error) => Err(error.into()),
    }
}

/// Gives a nameless file its name, which nobody may have.
pub(crate) fn link_nameless(file: &File, to: &Path) -> io::Result<()> {
    Ok(fs::linkat(CWD, descriptor_path(file), CWD, to, AtFlags::SYMLINK_FOLLOW)?)
}

/// Renames without replacing anything.
pub(crate) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // File systems without the flag: a second link refuses a name that is taken, just as well but not in one step.
        Err(Errno::INVAL | Errno::NOSYS) => {
            fs::linkat(CWD, from, CWD, to, AtFlags::empty())?;
            Ok(fs::unlink(from)?)
        }
        other => Ok(other?),
    }
}

/// Opens the same file again: a new description, with locks and offset of its own.
pub(crate) fn reopen(file: &File, write: bool) -> io::Result<File> {
    let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
    Ok(fs::open(descriptor_path(file), access | OFlags::CLOEXEC, Mode::empty())?.into())
}

fn descriptor_path(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into()
}

/// Takes room for the first `length` bytes, which the file must have; bytes already written stay.
///
/// Where the file system cannot allocate ahead, a file without holes is as good, and a file that nobody else can see
/// (`exclusive`) is filled with zeros.
pub(crate) fn reserve(file: &File, length: u64, exclusive: bool) -> io::Result<()> {
    let mut at = 0;
    while at < length {
        let step = RESERVE_STEP.min(length - at);
        match fs::fallocate(file, FallocateFlags::empty(), at, step) {
            Ok(()) => at += step,
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) if exclusive => return fill_with_zeros(file, at, length),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                return match fs::seek(file, SeekFrom::Hole(0)) {
                    Ok(hole) if hole >= length => Ok(()),
                    _ => Err(io::ErrorKind::Unsupported.into()),
                };
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn fill_with_zeros(file: &File, mut at: u64, length: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let zeros = vec![0; 1 << 20];
    while at < length {
        let step = usize::try_from(length - at).map_or(zeros.len(), |left| left.min(zeros.len()));
        file.write_all_at(&zeros[..step], at)?;
        at += step as u64;
    }
    Ok(())
}

/// Creates memory that has no name and can be sealed: `memfd_create(2)`.
pub(crate) fn create_sealable() -> io::Result<File> {
    let name = CString::from(c"ndarray-shm");
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match fs::memfd_create(&name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(Errno::INVAL) => Ok(fs::memfd_create(&name, flags)?.into()),
        other => Ok(other?.into()),
    }
}

/// Forbids every change of the bytes and of the length, for ever and for everyone.
///
/// # Errors
///
/// `ResourceBusy` while any writable mapping exists.
pub(crate) fn seal(file: &File) -> io::Result<()> {
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    Ok(fs::fcntl_add_seals(file, seals)?)
}

/// Whether neither bytes nor length can change any more; `false` for files that have no seals at all.
pub(crate) fn is_sealed(file: &File) -> bool {
    let needed = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
    fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(needed))
}

/// Returns the identity of this boot: what was in memory before another one is gone.
pub(crate) fn boot_id() -> [u8; 16] {
    static BOOT: OnceLock<[u8; 16]> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        u128::from_str_radix(&digits, 16).unwrap_or_default().to_be_bytes()
    })
}
