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

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use windows_sys::Wdk::System::SystemInformation::NtQuerySystemInformation;
use windows_sys::Win32::Foundation as code;
use windows_sys::Win32::System::SystemInformation::GetTickCount64;

pub(crate) use self::children::{
    Bell, Watched, create_report, inherited_report, is_abort, wait_for_end,
};
pub(crate) use self::facts::{facts, facts_at};
pub(crate) use self::files::{
    available, create_hidden, is_writable_directory, open, read_exact_at, rename_new, rename_over, reopen, reserve,
    sweep, unlink, write_all_at,
};
pub(crate) use self::locks::{is_locked, lock, try_lock, unlock};
pub(crate) use self::names::forbidden_name;
pub(crate) use self::rights::{private_directory, user_tag};
pub(crate) use super::not_unix::*;

/// Whether processes can share anything here.
pub(crate) const SUPPORTED: bool = true;

/// Handles that a process may have. A limit of the handle table, not a setting.
const MOST_HANDLES: u64 = 1 << 24;

/// Returns the number of this process.
pub(crate) use std::process::id as process_number;

/// Returns where temporary files are.
#[allow(clippy::unnecessary_wraps)] // some systems have no files
pub(crate) fn temporary_directory() -> io::Result<std::path::PathBuf> {
    Ok(std::env::temp_dir())
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
    // No process is forked here that could inherit it half made.
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
