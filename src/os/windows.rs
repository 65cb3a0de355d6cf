//! Windows: files of the user's own directory, kept open as long as they are mapped.
//!
//! What differs from Unix, and what is made of it, stands where it is done: names in `windows/names.rs`, files in
//! `windows/files.rs` and `windows/facts.rs`, locks in `windows/locks.rs`, rights in `windows/rights.rs`, children in
//! `windows/children.rs`. Tested under Wine, which is not Windows.

mod children;
mod facts;
mod files;
mod locks;
mod names;
mod rights;

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use windows_sys::Wdk::System::SystemInformation::NtQuerySystemInformation;
use windows_sys::Win32::Foundation as code;
use windows_sys::Win32::System::SystemInformation::GetTickCount64;

pub(crate) use self::children::{
    Bell, EndWatch, Stop, create_report, ending_signal, inherited_report, is_abort, own_program, prepare_child,
    signal_name,
};
pub(crate) use self::facts::{facts, facts_at};
pub(crate) use self::files::{
    available, create_hidden, is_writable_directory, open, read_exact_at, rename_new, rename_over, reopen, reserve,
    sweep, unlink, write_all_at,
};
pub(crate) use self::locks::{is_locked, lock, try_lock, unlock};
pub(crate) use self::names::forbidden_name;
pub(crate) use self::rights::{private_directory, user_tag};
use super::Room;

/// Where shared memory objects live: nowhere that could be listed. Windows has named sections, but they cannot be
/// listed, and vanish with their last handle.
pub(crate) const SHARED_MEMORY: Option<&str> = None;

/// Whether a lock can be changed from one kind to the other in one step. Here a second lock would wait for the first, and
/// between giving up one and taking the other anybody may come.
pub(crate) const LOCKS_CONVERT: bool = false;

/// Whether a mapping can hold a lock after its handle is closed. Here the handle holds it.
pub(crate) const MAPPINGS_HOLD_LOCKS: bool = false;

/// Whether [`Facts::links`] tells of every file that is open whether its name has gone. Here the name is moved aside where the file
/// is mapped; Windows tells an open handle of that, Wine does not.
pub(crate) const LINKS_TELL: bool = false;

/// Whether an array can be handed to another process by its descriptor alone.
pub(crate) const DESCRIPTORS_CAN_BE_SHARED: bool = false;

/// What is said to have failed where a mapping does, with the likely reason.
pub(crate) const MAPPING: &str = "mapping it (address space used up?)";

/// Whether a file that room was taken in has that length already.
pub(crate) const RESERVING_SETS_LENGTH: bool = false;

/// Handles that a process may have. A limit of the handle table, not a setting.
const MOST_HANDLES: u64 = 1 << 24;

/// Refuses: a file without a name could never be given one.
pub(crate) fn create_nameless(_directory: &Path, _mode: u32) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Refuses, as [`create_nameless`] does.
pub(crate) fn link_nameless(_file: &File, _to: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether a hole of this file takes memory when it is merely read; on disks it does not.
pub(crate) fn holes_take_memory(_file: &File) -> bool {
    false
}

/// Returns how many bytes of memory this process could take now. Files take disk, which [`available`] knows.
pub(crate) fn available_memory() -> Option<Room> {
    None
}

/// Refuses: no memory can be sealed.
pub(crate) fn create_sealable() -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Refuses: no memory can be sealed.
pub(crate) fn seal(_file: &File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether neither bytes nor length can change any more: never.
pub(crate) fn is_sealed(_file: &File) -> bool {
    false
}

/// Returns a number that a forked child does not share with its parent: there are no forks.
pub(crate) fn fork_generation() -> u64 {
    0
}

/// Returns how many children this process has forked: none.
pub(crate) fn forked_children() -> u64 {
    0
}

/// Returns how long a file may be that this process makes; here no limit is known.
pub(crate) fn largest_file() -> u64 {
    u64::MAX
}

/// Returns how many handles this process may have.
pub(crate) fn descriptor_limit() -> u64 {
    MOST_HANDLES
}

/// Returns how long ago this boot was, sleep included.
#[allow(unsafe_code)]
pub(crate) fn since_boot() -> Duration {
    // SAFETY: it takes nothing and only returns a number.
    Duration::from_millis(unsafe { GetTickCount64() })
}

/// Returns the identity of this boot, where it is told: what was in memory before another one is gone.
///
/// It is the time of the boot as it was read then. Setting the clock moves the boot time that the system tells, and
/// what it was moved by beside it; their difference stays.
pub(crate) fn known_boot_id() -> Option<[u8; 16]> {
    static BOOT: OnceLock<Option<[u8; 16]>> = OnceLock::new();
    *BOOT.get_or_init(|| Some((u128::from(boot_time()?) << 64 | u128::from(u64::MAX)).to_be_bytes()))
}

/// `SYSTEM_TIMEOFDAY_INFORMATION`, of which the public headers show only the size.
#[repr(C)]
#[derive(Debug, Default)]
struct TimeOfDay {
    boot_time: i64,
    current_time: i64,
    time_zone_bias: i64,
    time_zone_id: u32,
    reserved: u32,
    boot_time_bias: i64,
    sleep_time_bias: i64,
}

#[allow(unsafe_code)]
fn boot_time() -> Option<u64> {
    const SYSTEM_TIME_OF_DAY: i32 = 3;
    let mut time = TimeOfDay::default();
    let size = u32::try_from(size_of::<TimeOfDay>()).ok()?;
    // SAFETY: `time` has `size` bytes, all of them integers, and may be written; the length that was written is not
    // asked.
    let status =
        unsafe { NtQuerySystemInformation(SYSTEM_TIME_OF_DAY, (&raw mut time).cast(), size, std::ptr::null_mut()) };
    let known = status >= 0 && time.boot_time != 0;
    known.then(|| u64::try_from(time.boot_time.wrapping_sub(time.boot_time_bias)).ok()).flatten()
}

/// Whether the error is one of these of Windows.
fn is_one_of(error: &io::Error, codes: &[u32]) -> bool {
    error.raw_os_error().is_some_and(|raw| codes.iter().any(|code| i64::from(*code) == i64::from(raw)))
}

/// Turns one of Windows' error codes into an error.
fn os_error(code: u32) -> io::Error {
    io::Error::from_raw_os_error(i32::try_from(code).unwrap_or(i32::MAX))
}

/// Whether the error says that process or system have no handle left.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    is_one_of(error, &[code::ERROR_TOO_MANY_OPEN_FILES, code::ERROR_NO_SYSTEM_RESOURCES])
}

/// Whether the error says that the user's quota is used up.
pub(crate) fn is_over_quota(error: &io::Error) -> bool {
    is_one_of(error, &[code::ERROR_DISK_QUOTA_EXCEEDED])
}

/// Whether the error says that there is no room: disk, quota, or what a file can hold.
pub(crate) fn is_out_of_room(error: &io::Error) -> bool {
    let codes = [
        code::ERROR_DISK_FULL,
        code::ERROR_HANDLE_DISK_FULL,
        code::ERROR_DISK_QUOTA_EXCEEDED,
        code::ERROR_FILE_TOO_LARGE,
    ];
    is_one_of(error, &codes)
}

/// Whether the error says that a link or another kind of file stands where a regular one was expected.
pub(crate) fn is_not_a_file(error: &io::Error) -> bool {
    is_one_of(error, &[code::ERROR_DIRECTORY, code::ERROR_DIRECTORY_NOT_SUPPORTED, code::ERROR_CANT_ACCESS_FILE])
}

/// Whether an open file is in the very file system that a directory is in; not asked here, where every attachment keeps its
/// descriptor.
pub(crate) fn is_in_file_system_of(_file: &File, _directory: &Path) -> bool {
    false
}

/// Locks nothing: whoever may remove a file can take the stronger lock here.
#[allow(clippy::unnecessary_wraps)] // other systems can fail
pub(crate) fn try_lock_whole(_file: &File) -> io::Result<bool> {
    Ok(true)
}

/// Whether this user may treat files of that one as its own; users have no numbers here.
pub(crate) fn owns_files_of(_user: u32) -> bool {
    true
}

/// Whether this user has that number; users have none here.
pub(crate) fn is_user(_number: u32) -> bool {
    true
}

/// Makes a path of text; paths are not bytes here.
pub(crate) fn path_from(bytes: Vec<u8>) -> Option<std::path::PathBuf> {
    Some(String::from_utf8(bytes).ok()?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_is_known_and_stays_the_same() {
        assert_eq!(boot_time(), boot_time());
        assert!(boot_time().is_some());
        assert_eq!(known_boot_id(), known_boot_id());
    }
}
