//! Children that are spawned together: their success and failure, the order in which their ends are reported, and what
//! they leave.
//!
//! The tests of `torch.multiprocessing.spawn` are among those of `starting`, `joining` and `failing`. Each test has its
//! own directory. The children wait only while it exists, so that no child outlives a failed test.

mod ending;
mod entries;
mod failing;
#[cfg(target_os = "linux")]
mod forking;
mod joining;
mod keeping_going;
#[cfg(target_os = "linux")]
mod leftovers;
#[cfg(unix)]
pub mod painting;
mod starting;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use libtest_mimic::Trial;
use ndarray_shm::process::{ChildError, Processes, SpawnOptions};
use tempfile::TempDir;

pub use entries::ENTRIES;

use crate::support::child::Role;
use crate::support::eventually;

pub fn trials() -> Vec<Trial> {
    let parts = [
        starting::trials,
        joining::trials,
        failing::trials,
        ending::trials,
        keeping_going::trials,
        #[cfg(target_os = "linux")]
        forking::trials,
        #[cfg(unix)]
        painting::trials,
        #[cfg(target_os = "linux")]
        leftovers::trials,
    ];
    parts.into_iter().flat_map(|trials| trials()).collect()
}

pub const ROLES: &[(&str, Role)] = &[
    #[cfg(unix)]
    ("spawn-and-ignore", failing::spawn_and_ignore),
    #[cfg(target_os = "linux")]
    ("fork-and-compare", forking::fork_and_compare),
    #[cfg(target_os = "linux")]
    ("fork-and-join", forking::fork_and_join),
];

/// The longest wait before a test fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// A test's directory, through which the test and its children signal each other by files.
struct Scene(TempDir);

impl Scene {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap()
    }

    /// Spawns children and discards their standard error.
    fn spawn(&self, count: usize, entry: &str) -> Processes {
        quietly().spawn(count, entry, &[self.path()]).unwrap()
    }

    fn wait_for(&self, names: &[&str]) {
        eventually("the children arrive", || names.iter().all(|name| self.file(name).exists()));
    }

    fn go(&self) {
        fs::write(self.file("go"), "").unwrap();
    }

    /// Lets one child of `three_that_take_turns` go on.
    fn let_go(&self, index: usize) {
        fs::write(self.file(&format!("go-{index}")), "").unwrap();
    }

    /// Returns a command that runs a shell script with the directory as `$1`.
    #[cfg(unix)]
    fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-e", "-c", script, "sh", self.path()]);
        command
    }
}

fn quietly() -> SpawnOptions<'static> {
    SpawnOptions::new().configure(|_, command| {
        command.stderr(Stdio::null());
    })
}

/// Joins processes, and asserts that they end.
fn end(processes: &Processes) -> Result<(), ChildError> {
    match processes.join_timeout(PATIENCE) {
        Ok(ended) => {
            assert!(ended, "the children still run");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn failure(processes: &Processes) -> ChildError {
    end(processes).expect_err("a child failed")
}

/// Returns whether there is a process with this number, running or a zombie.
#[cfg(unix)]
fn exists(pid: u32) -> bool {
    Command::new("kill").args(["-0", &pid.to_string()]).stderr(Stdio::null()).status().unwrap().success()
}

/// Returns false: other platforms have no simple way to ask whether a process exists.
#[cfg(not(unix))]
fn exists(_pid: u32) -> bool {
    false
}

/// Returns the next end, and asserts that there is one.
fn next(processes: &Processes) -> (usize, Result<(), ChildError>) {
    processes.next_end(Some(PATIENCE)).expect("a child ends")
}

/// Spawns three children that each end when told. Child 0 ends with a failure.
fn three_that_take_turns(scene: &Scene) -> Processes {
    let processes = quietly().keep_going(true).spawn(3, "take-turns", &[scene.path()]).unwrap();
    scene.wait_for(&["here-0", "here-1", "here-2"]);
    processes
}

/// Returns a command that fails: this program has no such option.
fn failing_program() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("--no-such-option").stdout(Stdio::null()).stderr(Stdio::null());
    command
}
