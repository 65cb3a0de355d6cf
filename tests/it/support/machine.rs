//! What the system shows of processes, and signals to them.

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

/// The lines of the system's list of this process's mappings that contain a text. None where there is no such list.
pub fn mappings(containing: &str) -> Vec<String> {
    let list = if cfg!(target_os = "linux") {
        std::fs::read_to_string("/proc/self/maps").expect("a list of mappings")
    } else {
        String::new()
    };
    list.lines().filter(|line| line.contains(containing)).map(Into::into).collect()
}

/// The files that a process's descriptors lead to. The process is `self` or a process id.
#[cfg(target_os = "linux")]
pub fn open_paths(process: &str) -> Vec<std::path::PathBuf> {
    let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).expect("a list of descriptors").flatten();
    descriptors.filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok()).collect()
}

/// Sends a signal to a process, or to the group with the number after a minus sign. Where there are no signals it
/// fails.
pub fn send_signal(signal: &str, process: impl std::fmt::Display) {
    let to = process.to_string();
    let status = std::process::Command::new("kill").args(["-s", signal, "--", &to]).status().expect("kill runs");
    assert!(status.success(), "kill -s {signal} {to}");
}
