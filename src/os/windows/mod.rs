//! Windows: files of the user's own directory, kept open as long as they are mapped.
//!
//! Each file describes how Windows differs from Unix in its subject: names in `windows/names.rs`, files in
//! `windows/files.rs` and `windows/facts.rs`, locks in `windows/locks.rs`, rights in `windows/rights.rs`, children in
//! `windows/children.rs`. Tested under Wine, which is not Windows.

mod children;
mod facts;
mod files;
mod locks;
mod names;
mod rights;

use std::io;
use std::time::Duration;

use windows_sys::Wdk::System::SystemInformation::NtQuerySystemInformation;
use windows_sys::Win32::Foundation as code;
use windows_sys::Win32::System::SystemInformation::GetTickCount64;
use windows_sys::Win32::System::Threading::{GetCurrentThread, GetThreadTimes};
use windows_sys::core::BOOL;

pub(crate) use self::children::{create_report, inherited_report, is_abort};
pub(crate) use self::facts::{facts, facts_at};
pub(crate) use self::files::{
    available, create_hidden, is_writable_directory, open, read_exact_at, rename_new, rename_over, reopen, reserve,
    finish_unlink, unlink, write_all_at,
};
pub(crate) use self::locks::{is_locked, lock, try_lock, unlock};
pub(crate) use self::names::forbidden_name;
pub(crate) use self::rights::{private_directory, user_tag};

/// Returns how many handles this process may have: a limit of the handle table, not a setting.
pub(crate) fn descriptor_limit() -> u64 {
    1 << 24
}

/// Returns how long ago this boot was, sleep included.
#[allow(unsafe_code)]
#[allow(clippy::unnecessary_wraps)] // not every process can tell it on Linux
pub(crate) fn since_boot() -> Option<Duration> {
    // SAFETY: it takes nothing and only returns a number.
    Some(Duration::from_millis(unsafe { GetTickCount64() }))
}

/// Returns the processor time of this thread. The system counts it in ticks of about 16 ms.
#[allow(unsafe_code)]
pub(crate) fn thread_time() -> Duration {
    let [mut begin, mut end, mut kernel, mut user] = [code::FILETIME { dwLowDateTime: 0, dwHighDateTime: 0 }; 4];
    // SAFETY: it takes nothing and returns a pseudo-handle.
    let thread = unsafe { GetCurrentThread() };
    // SAFETY: this thread's pseudo-handle is valid here, and the four times may be written.
    let known = unsafe { GetThreadTimes(thread, &raw mut begin, &raw mut end, &raw mut kernel, &raw mut user) };
    // Counts of 100 ns.
    let spent = |time: code::FILETIME| u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime);
    if known == 0 { Duration::ZERO } else { Duration::from_nanos((spent(kernel) + spent(user)).saturating_mul(100)) }
}

/// Returns the time of the boot, by the clock as it was then.
///
/// Setting the clock changes the boot time that the system returns, and by as much the bias that it returns too. Their
/// difference stays.
pub(super) fn find_boot_id() -> Option<[u8; 16]> {
    Some((u128::from(boot_time()?) << 64 | u128::from(u64::MAX)).to_be_bytes())
}

#[allow(unsafe_code)]
fn boot_time() -> Option<u64> {
    const SYSTEM_TIME_OF_DAY: i32 = 3;
    // `SYSTEM_TIMEOFDAY_INFORMATION`, of which the public headers show only the size.
    let mut time = [0i64; 6];
    let size = u32::try_from(size_of_val(&time)).ok()?;
    // SAFETY: `time` has `size` bytes and may be written; the length that was written is not requested.
    let status =
        unsafe { NtQuerySystemInformation(SYSTEM_TIME_OF_DAY, (&raw mut time).cast(), size, std::ptr::null_mut()) };
    let [boot_time, _now, _time_zone_bias, _time_zone, boot_time_bias, _sleep_time_bias] = time;
    let known = status >= 0 && boot_time != 0;
    known.then(|| u64::try_from(boot_time.wrapping_sub(boot_time_bias)).ok()).flatten()
}

/// Whether the error has one of these codes of Windows.
fn is_one_of(error: &io::Error, codes: &[u32]) -> bool {
    error.raw_os_error().is_some_and(|raw| codes.iter().any(|code| i64::from(*code) == i64::from(raw)))
}

/// Converts the return value of most functions of Windows into a result: 0 is a failure.
fn check(done: BOOL) -> io::Result<()> {
    if done == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether the error says that process or system have no handle left.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    is_one_of(error, &[code::ERROR_TOO_MANY_OPEN_FILES, code::ERROR_NO_SYSTEM_RESOURCES])
}

/// Whether the error says that there is a link or another kind of file instead of a regular one.
pub(crate) fn is_not_a_file(error: &io::Error) -> bool {
    is_one_of(error, &[code::ERROR_DIRECTORY, code::ERROR_DIRECTORY_NOT_SUPPORTED, code::ERROR_CANT_ACCESS_FILE])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_time_is_known_and_constant() {
        assert_eq!(boot_time(), boot_time());
        assert!(boot_time().is_some());
    }
}
