//! What the system shows of this process.

/// How many descriptors or handles this process has open.
#[cfg(unix)]
pub fn open_files() -> usize {
    std::fs::read_dir("/dev/fd").expect("a list of descriptors").count() - 1 // the directory itself
}

/// How many descriptors or handles this process has open.
#[cfg(windows)]
#[allow(unsafe_code)]
pub fn open_files() -> usize {
    use windows_sys::Win32::System::Threading::{GetCurrentProcess, GetProcessHandleCount};
    let mut count = 0;
    // SAFETY: the first call only returns a constant.
    let process = unsafe { GetCurrentProcess() };
    // SAFETY: `process` stands for this process, and `count` may be written.
    let done = unsafe { GetProcessHandleCount(process, &raw mut count) };
    assert_ne!(done, 0, "{}", std::io::Error::last_os_error());
    count as usize
}
