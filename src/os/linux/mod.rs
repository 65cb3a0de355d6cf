//! Linux: nameless files that get their name when they are ready, memory that can be sealed, room that is really
//! allocated.

mod bell;
mod children;
mod container;
pub(crate) mod daemon;
mod futex;
mod holes;
mod huge;
mod lease;
mod mapping;
mod room;

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{self, AtFlags, CWD, FallocateFlags, MemfdFlags, Mode, OFlags, RenameFlags, SealFlags, SeekFrom};
use rustix::io::Errno;
use rustix::time::ClockId;

pub(crate) use self::bell::Bell;
pub(crate) use self::children::{Watched, create_report, own_program, prepare_child, wait_for_end};
pub(crate) use self::container::{is_dead, not_the_containers, start_of_first_process};
pub(crate) use self::futex::{wait_on, wake};
pub(crate) use self::holes::has_holes;
pub(crate) use self::huge::HugeWindows;
pub(crate) use self::lease::{
    LeaseAnswer, Leased, facts_in, has_attributes, lease, names_in, open_directory, open_directory_in, open_in,
    remove_directory_in,
};
pub(crate) use self::mapping::Mapping;
use self::room::is_of_the_kernel;
pub(crate) use self::room::{available, available_memory, holes_take_memory, is_lost_at_boot};
use super::fill::fill;
use super::posix::groups::is_listed_member;
pub(crate) use super::posix::*;
use super::{Fact, PerProcess, is_user};
use crate::interrupt;

/// fallocate(2) is called for at most this many bytes at a time, so that a signal interrupts little and little is done
/// twice, and the caller's callback is asked often enough.
const RESERVE_STEP: u64 = 1 << 26;

/// But for no less than this, however many signals arrive.
const SHORTEST_RESERVE_STEP: u64 = 1 << 16;

/// Creates an empty file without a name in `directory`, which [`link_nameless`] can name once.
///
/// # Errors
///
/// `Unsupported` where the file system has no `O_TMPFILE` or /proc is not mounted; use [`create_hidden`] then.
pub(crate) fn create_nameless(directory: &Path, mode: u32) -> io::Result<File> {
    // Only success is remembered: the look itself can fail, and /proc may be mounted later.
    static PROC: Fact = Fact::new();
    if PROC.get().is_none() {
        if !Path::new("/proc/self/fd").is_dir() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        PROC.set(1);
    }
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    match fs::open(directory, flags, Mode::from_raw_mode(0o600)) {
        Ok(descriptor) => {
            let file = File::from(descriptor);
            set_mode(&file, mode)?;
            Ok(file)
        }
        // Kernels before O_TMPFILE see an attempt to write a directory. File systems without it return EOPNOTSUPP.
        Err(Errno::ISDIR | Errno::OPNOTSUPP | Errno::INVAL) => Err(io::ErrorKind::Unsupported.into()),
        Err(error) => Err(error.into()),
    }
}

/// Gives a nameless file its name, which must be free.
pub(crate) fn link_nameless(file: &File, to: &Path) -> io::Result<()> {
    Ok(fs::linkat(CWD, descriptor_path(file), CWD, to, AtFlags::SYMLINK_FOLLOW)?)
}

/// Renames without replacing anything.
pub(crate) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // File systems without the flag: a hard link refuses a taken name too, but link and unlink are two steps.
        Err(Errno::INVAL | Errno::NOSYS) => {
            fs::linkat(CWD, from, CWD, to, AtFlags::empty())?;
            Ok(fs::unlink(from)?)
        }
        other => Ok(other?),
    }
}

/// Opens the same file again: a new description, with locks and offset of its own.
///
/// # Errors
///
/// `Unsupported` where /proc is not mounted.
pub(crate) fn reopen(file: &File, write: bool) -> io::Result<File> {
    let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
    match fs::open(descriptor_path(file), access | OFlags::CLOEXEC, Mode::empty()) {
        Ok(again) => Ok(again.into()),
        Err(Errno::NOENT) => {
            let reason = "an open file can be opened again only where /proc is mounted";
            Err(io::Error::new(io::ErrorKind::Unsupported, reason))
        }
        Err(error) => Err(error.into()),
    }
}

fn descriptor_path(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into()
}

/// Whether an open file is in the file system of a directory. Device numbers do not suffice: an overlay can have the
/// number of the file system below it.
pub(crate) fn is_in_file_system_of(file: &File, directory: &Path) -> bool {
    let (Ok(own), Ok(other)) = (fs::fstat(file), fs::stat(directory)) else { return false };
    let (Ok(kind), Ok(other_kind)) = (fs::fstatfs(file), fs::statfs(directory)) else { return false };
    own.st_dev == other.st_dev && kind.f_type == other_kind.f_type
}

/// Allocates the first `length` bytes. Bytes already written stay. A shorter file gets this length.
///
/// Where the file system cannot allocate ahead, a file without holes is accepted, and a file that no other process can
/// see (`exclusive`) is written from end to end.
pub(crate) fn reserve(file: &File, length: u64, exclusive: bool) -> io::Result<()> {
    let mut interrupted = Ok(());
    let allocated = in_steps(length, |at, step| {
        interrupted = interrupt::check();
        if interrupted.is_err() { Err(Errno::CANCELED) } else { fs::fallocate(file, FallocateFlags::empty(), at, step) }
    });
    match allocated {
        Err(Errno::CANCELED) if interrupted.is_err() => interrupted,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) if exclusive => fill(file, length),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => match fs::seek(file, SeekFrom::Hole(0)) {
            Ok(hole) if hole >= length => Ok(()),
            _ => Err(io::ErrorKind::Unsupported.into()),
        },
        other => Ok(other?),
    }
}

/// Allocates a part of a file, which may have other holes. Bytes already written stay.
pub(crate) fn reserve_part(file: &File, part: Range<u64>) -> io::Result<()> {
    let length = part.end.saturating_sub(part.start);
    let allocate = |at, step| fs::fallocate(file, FallocateFlags::empty(), part.start + at, step);
    match in_steps(length, allocate) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Err(io::ErrorKind::Unsupported.into()),
        other => Ok(other?),
    }
}

/// Frees the room of a part of a file, which has zeros there afterwards.
pub(crate) fn free_part(file: &File, part: Range<u64>) -> io::Result<()> {
    let length = part.end.saturating_sub(part.start);
    let freed = rustix::io::retry_on_intr(|| {
        fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, part.start, length)
    });
    match freed {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Err(io::ErrorKind::Unsupported.into()),
        other => Ok(other?),
    }
}

/// Calls `allocate` for one step after the other, with its offset and length, and repeats steps that signals have
/// interrupted.
///
/// tmpfs of older kernels gives up at any signal, and frees what the call has allocated. Where signals arrive faster
/// than a call takes, only shorter calls end.
fn in_steps(length: u64, mut allocate: impl FnMut(u64, u64) -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    let (mut at, mut longest) = (0, RESERVE_STEP);
    while at < length {
        let step = longest.min(length - at);
        match allocate(at, step) {
            Ok(()) => (at, longest) = (at + step, RESERVE_STEP.min(longest * 2)),
            Err(Errno::INTR) => longest = SHORTEST_RESERVE_STEP.max(longest / 2),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Creates memory that has no name and can be sealed: `memfd_create(2)`.
pub(crate) fn create_sealable() -> io::Result<File> {
    const NAME: &CStr = c"ndarray-shm";
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match fs::memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
        // Kernels before 6.3 do not know the flag.
        Err(Errno::INVAL) => Ok(fs::memfd_create(NAME, flags)?.into()),
        other => Ok(other?.into()),
    }
}

/// Forbids every change of the bytes and of the length, to every process and for ever.
///
/// # Errors
///
/// `ResourceBusy` while any writable mapping exists.
pub(crate) fn seal(file: &File) -> io::Result<()> {
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    Ok(fs::fcntl_add_seals(file, seals)?)
}

/// Whether neither bytes nor length can change any more. False for files that cannot be sealed.
pub(crate) fn is_sealed(file: &File) -> bool {
    let needed = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
    fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(needed))
}

/// Whether a file of that owner is certainly this user's.
pub(crate) fn is_surely_user(owner: u32) -> bool {
    is_user(owner) && !stands_for_many(owner, "uid")
}

/// Whether a user is a member of a group, according to the user data of this machine. `None`: they do not know the
/// user, or a number is not that of one user or one group.
pub(crate) fn is_member(user: u32, group: u32) -> io::Result<Option<bool>> {
    if stands_for_many(user, "uid") || stands_for_many(group, "gid") { Ok(None) } else { is_listed_member(user, group) }
}

/// Whether the number of a user (`uid`) or a group (`gid`) stands for all that have none in this user namespace: they
/// are shown with the overflow id.
fn stands_for_many(number: u32, kind: &str) -> bool {
    let read = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    let is_overflow = number == read(format!("/proc/sys/kernel/overflow{kind}")).trim().parse().unwrap_or(65534);
    // Each line is a range: first number inside, first number outside, how many.
    let lengths = |map: String| -> u64 { map.split_whitespace().skip(2).step_by(3).flat_map(str::parse::<u64>).sum() };
    is_overflow && lengths(read(format!("/proc/self/{kind}_map"))) != u64::from(u32::MAX)
}

/// Returns how long ago this boot was, sleep included, by the clock of the first time namespace. `None`: this process
/// cannot tell how much the clock of its own namespace differs from that.
///
/// The difference is looked up once: a process changes its namespace only by setns(2), before it has threads.
pub(crate) fn since_boot() -> Option<Duration> {
    static AHEAD: PerProcess<i128> = PerProcess::new();
    let ahead = AHEAD.get_or_try(find_offset)?;
    let nanoseconds = i128::try_from(clock(ClockId::Boottime).as_nanos()).ok()?.checked_sub(ahead)?;
    Some(Duration::from_nanos(u64::try_from(nanoseconds).ok()?))
}

/// Returns by how many nanoseconds the boot clock of this process's time namespace is ahead of that of the first one:
/// `time_namespaces(7)`.
fn find_offset() -> Option<i128> {
    /// The name of the first namespace, which has this number on every machine.
    const FIRST: &str = "time:[4026531834]";
    let own = match std::fs::read_link("/proc/self/ns/time") {
        Ok(own) => own,
        // A kernel without time namespaces, unless /proc is not mounted.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Path::new("/proc/self").is_dir().then_some(0),
        Err(_) => return None,
    };
    if own == Path::new(FIRST) {
        return Some(0);
    }
    // The offsets are those that children get. A process that has called unshare(2), and no exec(2) since, is not in
    // that namespace.
    let of_children = std::fs::read_link("/proc/self/ns/time_for_children").ok()?;
    (own == of_children)
        .then(|| std::fs::read_to_string("/proc/self/timens_offsets").ok())
        .flatten()
        .and_then(|text| boot_offset(&text))
}

/// Reads the offset of the boot clock: a line for each clock, with its name, seconds and nanoseconds.
fn boot_offset(text: &str) -> Option<i128> {
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    // The first kernels with time namespaces write the number of the clock.
    let mut words = lines.find_map(|mut words| ["boottime", "7"].contains(&words.next()?).then_some(words))?;
    let (seconds, nanoseconds) = (words.next()?.parse::<i64>().ok()?, words.next()?.parse::<i64>().ok()?);
    Some(i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds))
}

/// Reads the kernel's random number for this boot. `None` if the file is not the kernel's: some containers mount one
/// with a number of their own over it, and what they share with other processes is still of one boot.
pub(super) fn find_boot_id() -> Option<[u8; 16]> {
    let mut file = File::open("/proc/sys/kernel/random/boot_id").ok().filter(is_of_the_kernel)?;
    let mut text = Vec::new();
    io::Read::read_to_end(&mut file, &mut text).ok()?;
    boot_id_from(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservation_ends_in_a_storm_of_signals() {
        // Every call that would take longer than 1 MiB takes is interrupted, and has to be repeated.
        let (mut calls, mut end) = (0, 0);
        let storm = |at, step| {
            calls += 1;
            assert_eq!(at, end, "without gaps");
            if step > 1 << 20 {
                return Err(Errno::INTR);
            }
            end += step;
            Ok(())
        };
        assert_eq!(in_steps((64 << 20) + 1, storm), Ok(()));
        assert_eq!((end, calls < 200), ((64 << 20) + 1, true), "{calls} calls");
        let mut calls = 0;
        assert_eq!(
            in_steps(1 << 30, |_, _| {
                calls += 1;
                Ok(())
            }),
            Ok(())
        );
        assert_eq!((calls, in_steps(1, |_, _| Err(Errno::NOSPC))), ((1 << 30) / RESERVE_STEP, Err(Errno::NOSPC)));
    }

    #[test]
    fn offset_of_the_boot_clock_is_read() {
        assert_eq!(
            boot_offset("monotonic           0         0\nboottime      -3600 500000000\n"),
            Some(-3_599_500_000_000)
        );
        assert_eq!(boot_offset("1 5 0\n7 6 0\n"), Some(6_000_000_000));
        for text in ["", "monotonic 0 0\n", "boottime 1\n", "boottime x 0\n"] {
            assert_eq!(boot_offset(text), None, "{text}");
        }
    }
}
