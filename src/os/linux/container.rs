//! What this process can know about the container that it runs in: its first process, and whether a directory is the
//! container's own or the machine's.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::time::ClockId;

use super::clock;

/// The first pid namespace, which has this number on every machine (`linux/proc_ns.h`).
const FIRST_PIDS: &str = "pid:[4026531836]";

/// The first ipc namespace.
const FIRST_IPC: &str = "ipc:[4026531839]";

/// A memory file system that was mounted within this time after the boot may be the machine's own /dev/shm.
const BOOT: Duration = Duration::from_secs(120);

/// Returns whether no process has this number, in its own pid namespace or another one. `None`: it is not known,
/// because this process is not in the first namespace, which shows all others, or may not see all processes.
pub(crate) fn is_dead(process: u32) -> Option<bool> {
    if is_namespace("pid", FIRST_PIDS) != Some(true) || hides_processes() {
        return None;
    }
    let number = process.to_string();
    for entry in std::fs::read_dir("/proc").ok()? {
        let entry = entry.ok()?;
        if !entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        // The numbers of a process in each of its namespaces. One that ends meanwhile has no such file.
        let Ok(status) = std::fs::read_to_string(entry.path().join("status")) else { continue };
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        if numbers.split_ascii_whitespace().any(|found| found == number) {
            return Some(false);
        }
    }
    Some(true)
}

/// Whether /proc shows only this user's processes: `hidepid` in proc(5).
fn hides_processes() -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut of_proc = mounts.lines().filter(|line| line.split(' ').nth(4) == Some("/proc"));
    of_proc.next_back().is_none_or(|line| {
        line.split(',').any(|option| option.starts_with("hidepid=") && !option.starts_with("hidepid=0"))
    })
}

/// Returns when process 1 of this pid namespace was started, or a little earlier.
///
/// # Errors
///
/// `Unsupported` where /proc does not show this pid namespace.
pub(crate) fn start_of_first_process() -> io::Result<SystemTime> {
    /// The start is in ticks of 10 ms, and the kernel gives files the time of its last tick.
    const TICKS: Duration = Duration::from_millis(20);
    let unknown = || io::Error::new(io::ErrorKind::Unsupported, "/proc does not show process 1 of this pid namespace");
    let own = std::fs::read_link("/proc/self")?;
    if own.to_str().and_then(|own| own.parse().ok()) != Some(std::process::id()) {
        return Err(unknown());
    }
    let stat = std::fs::read_to_string("/proc/1/stat")?;
    let ticks = start_ticks(&stat).ok_or_else(unknown)?;
    let per_second = u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100);
    let started = Duration::from_secs(ticks) / per_second;
    // In this order, so that a pause between them makes the start earlier. Both are by the boot clock of this time
    // namespace.
    let now = SystemTime::now();
    let age = clock(ClockId::Boottime).saturating_sub(started) + TICKS;
    now.checked_sub(age).ok_or_else(unknown)
}

/// Reads the start time of a process from /proc/PID/stat: the 20th field after its name, which is in parentheses.
fn start_ticks(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Returns why a directory may be one that processes outside this container use; `None` if it is the container's.
pub(crate) fn not_the_containers(directory: &Path) -> io::Result<Option<&'static str>> {
    if is_namespace("pid", FIRST_PIDS) != Some(false) {
        return Ok(Some("this is no container: the pid namespace is the machine's"));
    }
    if is_namespace("ipc", FIRST_IPC) != Some(false) {
        return Ok(Some("the ipc namespace is the machine's (--ipc=host, hostIPC)"));
    }
    let directory = directory.canonicalize()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let reason = directory.to_str().map_or(Some("its path is not text"), |path| not_own_mount(&mounts, path));
    if reason.is_some() {
        return Ok(reason);
    }
    // hostPath: the machine mounts its own at boot.
    let Ok(made) = std::fs::metadata(&directory)?.created() else {
        return Ok(Some("this kernel does not tell when its file system was made"));
    };
    let (Ok(age), Some(uptime)) = (SystemTime::now().duration_since(made), super::since_boot()) else {
        return Ok(Some("it is not known whether its file system was made at boot"));
    };
    let at_boot = uptime.checked_sub(age).is_none_or(|after_boot| after_boot < BOOT);
    Ok(at_boot.then_some("its file system was made when the machine started, as the machine's own is (hostPath)"))
}

/// Returns why the mount at a path may not be the container's own. See `proc_pid_mountinfo(5)`.
fn not_own_mount(mounts: &str, path: &str) -> Option<&'static str> {
    // The last mount at a path hides those before it.
    let mut mount = mounts.lines().filter_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let tags: Vec<&str> = fields.skip(1).collect();
        let mut file_system = file_system.split(' ');
        let kind = file_system.next()?;
        let options = file_system.nth(1)?;
        (point.replace("\\040", " ") == path).then_some((root, tags, kind, options))
    });
    let Some((root, tags, kind, options)) = mount.next_back() else {
        return Some("it is not a mount of its own");
    };
    if kind != "tmpfs" {
        return Some("it is not a tmpfs");
    }
    if root != "/" {
        return Some("it is a folder of another file system (hostPath)");
    }
    if tags.iter().any(|tag| tag.starts_with("shared:") || tag.starts_with("master:")) {
        return Some("its mount is shared with another mount namespace");
    }
    // Docker and Kubernetes always limit the size. The machine's own rarely has a limit.
    if !options.split(',').any(|option| option.starts_with("size=")) {
        return Some("it has no limit of size, as the machine's own (hostPath)");
    }
    None
}

/// Returns whether this process is in the first namespace of a kind. `None`: /proc does not say.
fn is_namespace(kind: &str, first: &str) -> Option<bool> {
    std::fs::read_link(format!("/proc/self/ns/{kind}")).ok().map(|own| own == Path::new(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_found_after_any_name() {
        let stat = "1 (a) b) c) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 1234 170000 300";
        assert_eq!(start_ticks(stat), Some(1234));
        assert_eq!(start_ticks("1 (a) S 0"), None);
        assert_eq!(start_ticks(""), None);
    }

    #[test]
    fn mounts_that_may_be_the_machines_are_refused() {
        let docker = "743 741 0:62 / /dev/shm rw,nosuid,nodev,noexec,relatime - tmpfs shm rw,size=65536k\n";
        let machine = "30 25 0:27 / /dev/shm rw,nosuid,nodev shared:4 - tmpfs tmpfs rw,inode64\n";
        let host_path = "30 25 0:27 / /dev/shm rw,nosuid,nodev - tmpfs tmpfs rw,inode64\n";
        let folder = "743 741 0:62 /a /dev/shm rw - tmpfs shm rw,size=65536k\n";
        let disk = "743 741 8:1 / /dev/shm rw - ext4 /dev/sda1 rw,size=1\n";
        let reason = |mounts: &str| not_own_mount(mounts, "/dev/shm");
        assert_eq!(reason(docker), None);
        assert_eq!(reason(&format!("{machine}{docker}")), None, "the later mount hides the earlier");
        for other in [machine, host_path, folder, disk, "", "nonsense", "1 2 3 - tmpfs"] {
            assert!(reason(other).is_some(), "{other}");
        }
    }

    #[test]
    fn own_process_is_alive() {
        assert_ne!(is_dead(std::process::id()), Some(true));
        assert_ne!(is_dead(u32::MAX), Some(false));
    }
}
