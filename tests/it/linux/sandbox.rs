//! Children in a restricted environment: private mounts, memory limits, few descriptors.

use std::path::PathBuf;
use std::process::Command;

use libtest_mimic::Trial;

use crate::support::{Place, child};

/// Returns the `unshare` options by which this user gets private mounts, if any work: as root, or as root of a user
/// namespace.
fn unshare() -> Option<&'static [&'static str]> {
    const WAYS: [&[&str]; 2] = [&["-m", "--propagation", "private"], &["-U", "-r", "-m", "--propagation", "private"]];
    WAYS.into_iter().find(|way| {
        let tried = Command::new("unshare").args(*way).args(["mount", "-t", "tmpfs", "none", "/mnt"]).output();
        tried.is_ok_and(|output| output.status.success())
    })
}

/// Marks tests that cannot run here as ignored, and prints the reason.
pub fn unless(reason: &str, possible: bool, trials: Vec<Trial>) -> Vec<Trial> {
    if !possible {
        for trial in &trials {
            eprintln!("NOT RUN: {}: {reason}", trial.name());
        }
    }
    trials.into_iter().map(|trial| trial.with_ignored_flag(!possible)).collect()
}

/// Marks tests as ignored where private mounts are impossible.
pub fn with_private_mounts(trials: Vec<Trial>) -> Vec<Trial> {
    unless("private mounts cannot be had", has_private_mounts(), trials)
}

/// Returns a command that runs a role in its own mount namespace, after a script has mounted the file systems it needs.
pub fn with_mounts(place: &Place, script: &str, role: &str, arguments: &[&str]) -> Command {
    finish(in_mounts(script), place, role, arguments)
}

/// Returns a command without its program: run in its own mount namespace, after a script.
pub fn in_mounts(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(unshare().expect("checked before")).args(["sh", "-e", "-c", &format!("{script}\nexec \"$0\" \"$@\"")]);
    command
}

/// Whether this user can have private mounts.
pub fn has_private_mounts() -> bool {
    unshare().is_some()
}

/// Marks tests as ignored where time namespaces are impossible.
pub fn with_time_namespaces(trials: Vec<Trial>) -> Vec<Trial> {
    let possible = unshare().is_some_and(|way| {
        let tried = Command::new("unshare").args(way).args(["--time", "--boottime", "3600", "true"]).output();
        tried.is_ok_and(|output| output.status.success())
    });
    unless("time namespaces cannot be had", possible, trials)
}

/// Returns a command that runs a role in its own time namespace, in which the machine seems to run for so much longer,
/// after a script in its own mount namespace.
pub fn with_time(place: &Place, seconds: i64, script: &str, role: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(unshare().expect("checked before")).args(["--time", "--boottime", &seconds.to_string()]);
    command.args(["sh", "-e", "-c", &format!("{script}\nexec \"$0\" \"$@\"")]);
    finish(command, place, role, arguments)
}

/// Returns a command that runs a role with a limit on descriptors.
pub fn with_descriptors(place: &Place, limit: u32, role: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-e", "-c", &format!("ulimit -n {limit}\nexec \"$0\" \"$@\"")]);
    finish(command, place, role, arguments)
}

/// Returns a command that runs a role with a limit on file sizes in bytes.
pub fn with_file_size(place: &Place, limit: u64, role: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("prlimit");
    command.arg(format!("--fsize={limit}"));
    finish(command, place, role, arguments)
}

fn finish(mut command: Command, place: &Place, role: &str, arguments: &[&str]) -> Command {
    command.arg(child::program()).args(arguments);
    command.env(child::ROLE, role).envs(place.environment());
    command
}

/// A memory control group. Dropping it removes the group.
#[derive(Debug)]
pub struct MemoryGroup {
    directory: PathBuf,
}

impl MemoryGroup {
    /// Creates a group with a limit in bytes. Returns `None` where this user cannot.
    pub fn new(limit: u64) -> Option<Self> {
        let name = format!("ndshm-it-{}", std::process::id());
        for (root, file) in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")] {
            let group = Self { directory: PathBuf::from(root).join(&name) };
            if std::fs::create_dir(&group.directory).is_ok()
                && std::fs::write(group.directory.join(file), limit.to_string()).is_ok()
            {
                return Some(group);
            }
        }
        None
    }

    /// Returns a command that runs a role inside the group.
    pub fn command(&self, place: &Place, role: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("sh");
        let procs = self.directory.join("cgroup.procs");
        command.args(["-e", "-c", &format!("echo $$ > {}\nexec \"$0\" \"$@\"", procs.display())]);
        finish(command, place, role, arguments)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // The group can stay busy briefly after its last process has ended.
        for _ in 0..1000 {
            if std::fs::remove_dir(&self.directory).is_ok() || !self.directory.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        eprintln!("left behind: {}", self.directory.display());
    }
}
