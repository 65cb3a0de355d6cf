//! Ending children: by a signal with a grace period, by dropping their handle, and by their parent's death.

#[cfg(target_os = "linux")]
use std::fs;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
#[cfg(unix)]
use ndarray_shm::process::{Ending, SpawnOptions};

#[cfg(unix)]
use super::failure;
use super::{Scene, end, exists};
use crate::support;
#[cfg(target_os = "linux")]
use crate::support::eventually;
#[cfg(target_os = "linux")]
use crate::support::machine::send_signal;
use crate::tests;

pub fn trials() -> Vec<Trial> {
    support::trials(
        "processes",
        tests![
            dropped_handle_kills_the_children_at_once,
            terminated_children_have_not_failed,
            #[cfg(unix)]
            child_ignoring_sigterm_is_killed_after_the_grace_period,
            #[cfg(unix)]
            child_has_time_to_clean_up_on_sigterm,
            #[cfg(unix)]
            process_group_ends_with_its_leader,
            #[cfg(target_os = "linux")]
            killing_a_child_kills_its_children,
        ],
    )
}

/// Returns whether a process runs. A zombie does not.
#[cfg(target_os = "linux")]
fn runs(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next()).is_some_and(|state| state != 'Z')
}

fn dropped_handle_kills_the_children_at_once() {
    let scene = Scene::new();
    let processes = scene.spawn(2, "wait");
    scene.wait_for(&["here-0", "here-1"]);
    let (pids, begin) = (processes.pids().to_vec(), Instant::now());
    drop(processes);
    assert!(begin.elapsed() < Duration::from_secs(20), "the grace period is 30 s");
    assert!(pids.iter().all(|pid| !exists(*pid)), "{pids:?}");
}

fn terminated_children_have_not_failed() {
    let scene = Scene::new();
    let processes = scene.spawn(2, "wait");
    scene.wait_for(&["here-0", "here-1"]);
    processes.terminate();
    processes.terminate();
    assert_eq!(end(&processes), Ok(()));
    assert!(!scene.file("go").exists());
}

#[cfg(unix)]
fn child_ignoring_sigterm_is_killed_after_the_grace_period() {
    const GRACE: Duration = Duration::from_millis(400);
    let scene = Scene::new();
    let stubborn = "trap '' TERM; : > \"$1/deaf\"; while [ -e \"$1\" ]; do sleep 0.05; done";
    let failing = "while ! [ -e \"$1/go\" ]; do sleep 0.05; done; exit 3";
    let scripts = [stubborn, failing];
    let options = SpawnOptions::new().grace(GRACE);
    let processes = options.spawn_commands(2, |index| scene.shell(scripts[index])).unwrap();
    scene.wait_for(&["deaf"]);
    let begin = Instant::now();
    scene.go();
    let error = failure(&processes);
    assert_eq!((error.index(), error.ending()), (1, Ending::Exited(3)));
    assert!(begin.elapsed() >= GRACE, "{:?}", begin.elapsed());
    assert!(!exists(processes.pids()[0]));
}

#[cfg(unix)]
fn child_has_time_to_clean_up_on_sigterm() {
    let scene = Scene::new();
    let careful =
        "trap 'sleep 0.3; : > \"$1/clean\"; exit 0' TERM; : > \"$1/ready\"; while [ -e \"$1\" ]; do sleep 0.05; done";
    let processes = SpawnOptions::new().spawn_commands(1, |_| scene.shell(careful)).unwrap();
    scene.wait_for(&["ready"]);
    processes.terminate();
    end(&processes).unwrap();
    assert!(scene.file("clean").exists());
}

#[cfg(unix)]
fn process_group_ends_with_its_leader() {
    use std::os::unix::process::CommandExt as _;
    let scene = Scene::new();
    let script = "(while [ -e \"$1\" ]; do sleep 0.05; done) & echo $! > \"$1/new\"; mv \"$1/new\" \"$1/pid\"; wait";
    let grouped = SpawnOptions::new().configure(|_, command| {
        command.process_group(0);
    });
    let processes = grouped.spawn_commands(1, |_| scene.shell(script)).unwrap();
    scene.wait_for(&["pid"]);
    let grandchild: u32 = scene.read("pid").trim().parse().unwrap();
    assert!(exists(grandchild));
    processes.terminate();
    end(&processes).unwrap();
    // The grandchild is not this process's child: another process reaps it, at some time.
    #[cfg(target_os = "linux")]
    eventually("the grandchild ends", || !runs(grandchild));
}

#[cfg(target_os = "linux")]
fn killing_a_child_kills_its_children() {
    let scene = Scene::new();
    let processes = scene.spawn(1, "spawn");
    scene.wait_for(&["inner/here-0", "inner/here-1"]);
    let inner: Vec<u32> =
        ["inner/here-0", "inner/here-1"].iter().map(|name| scene.read(name).parse().unwrap()).collect();
    assert!(inner.iter().all(|pid| runs(*pid)));
    send_signal("KILL", processes.pids()[0]);
    let error = failure(&processes);
    assert!(error.to_string().ends_with("was killed by SIGKILL"), "{error}");
    eventually("the grandchildren end", || !inner.iter().any(|pid| runs(*pid)));
    assert!(scene.file("inner").exists(), "the grandchildren did not end for lack of their directory");
}
