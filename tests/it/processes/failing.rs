//! Reports of failures: errors, panics, exit codes and signals, and the end of the other children.

#[cfg(unix)]
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
#[cfg(unix)]
use ndarray_shm::process;
use ndarray_shm::process::{Ending, SpawnOptions};

use super::{Scene, exists, failing_program, failure};
use crate::support;
#[cfg(unix)]
use crate::support::child::{Child, ROLE, program, say};
#[cfg(unix)]
use crate::support::eventually;
use crate::tests;

pub fn trials() -> Vec<Trial> {
    support::trials(
        "processes",
        tests![
            error_comes_with_its_causes_and_ends_the_others,
            error_of_all_children_is_reported_once,
            panic_is_reported_with_its_location,
            caught_panic_is_not_reported_for_a_later_exit,
            an_exit_code_is_reported,
            error_after_the_others_succeeded_is_reported,
            last_started_child_may_fail_first,
            other_children_end_before_any_join,
            very_long_message_is_truncated,
            exit_code_of_a_plain_program_is_reported,
            #[cfg(unix)]
            a_signal_is_reported_by_its_name,
            #[cfg(unix)]
            abort_of_an_entry_is_reported_as_a_signal,
            #[cfg(unix)]
            exit_status_reaped_elsewhere_is_not_success,
        ],
    )
}

fn error_comes_with_its_causes_and_ends_the_others() {
    let scene = Scene::new();
    let processes = scene.spawn(3, "fail-if-last");
    let error = failure(&processes);
    assert_eq!((error.index(), error.pid()), (2, processes.pids()[2]));
    assert_eq!(error.ending(), Ending::Exited(1));
    let message = "chunk 2 cannot be painted: the colour ran out";
    assert_eq!(error.message(), Some(message));
    assert_eq!(error.to_string(), format!("process 2 (pid {}) failed: {message}", error.pid()));
    assert!(processes.pids().iter().all(|pid| !exists(*pid)), "all children have ended and were reaped");
}

fn error_of_all_children_is_reported_once() {
    let scene = Scene::new();
    let processes = scene.spawn(4, "fail");
    let error = failure(&processes);
    assert_eq!(error.message(), Some(&*format!("chunk {} cannot be painted: the colour ran out", error.index())));
    assert_eq!(error.pid(), processes.pids()[error.index()]);
}

fn panic_is_reported_with_its_location() {
    let scene = Scene::new();
    let error = failure(&scene.spawn(1, "panic"));
    let message = error.message().unwrap();
    assert!(message.starts_with("panicked at tests") && message.contains("entries.rs:"), "{message}");
    assert!(message.ends_with(": the brush of 0 broke"), "{message}");
    assert_eq!(error.ending(), Ending::Exited(101));
}

fn caught_panic_is_not_reported_for_a_later_exit() {
    let scene = Scene::new();
    let error = failure(&scene.spawn(1, "survive"));
    assert_eq!(error.message(), None);
    assert_eq!(error.ending(), Ending::Exited(4));
}

fn an_exit_code_is_reported() {
    let scene = Scene::new();
    let error = failure(&scene.spawn(1, "exit-3"));
    assert_eq!(error.ending().code(), Some(3));
    assert_eq!(error.to_string(), format!("process 0 (pid {}) ended with exit code 3", error.pid()));
}

fn error_after_the_others_succeeded_is_reported() {
    let scene = Scene::new();
    let processes = scene.spawn(3, "fail-if-first");
    scene.wait_for(&["here-0"]);
    #[cfg(unix)]
    eventually("the other children end", || !processes.pids()[1..].iter().any(|pid| exists(*pid)));
    assert_eq!(processes.join_timeout(Duration::ZERO), Ok(false));
    scene.go();
    assert_eq!(failure(&processes).index(), 0);
}

fn last_started_child_may_fail_first() {
    let scene = Scene::new();
    let error = failure(&scene.spawn(4, "fail-if-last"));
    assert_eq!(error.index(), 3);
}

fn other_children_end_before_any_join() {
    let scene = Scene::new();
    let processes = scene.spawn(3, "fail-if-last");
    #[cfg(unix)]
    eventually("all children end", || !processes.pids().iter().any(|pid| exists(*pid)));
    assert_eq!(failure(&processes).index(), 2);
}

fn very_long_message_is_truncated() {
    let scene = Scene::new();
    let error = failure(&scene.spawn(2, "fail-at-length"));
    let message = error.message().unwrap();
    assert!(message.starts_with("at length at length") && message.len() > 10_000, "{}", message.len());
    assert!(message.len() <= 1 << 16);
}

fn exit_code_of_a_plain_program_is_reported() {
    let code = failing_program().status().unwrap().code().unwrap();
    assert_ne!(code, 0);
    let error = failure(&SpawnOptions::new().spawn_commands(1, |_| failing_program()).unwrap());
    assert_eq!(error.ending(), Ending::Exited(code));
    assert_eq!(error.message(), None);
}

#[cfg(unix)]
fn a_signal_is_reported_by_its_name() {
    for name in ["KILL", "TERM", "INT", "SEGV"] {
        let scene = Scene::new();
        let processes = SpawnOptions::new().spawn_commands(1, |_| scene.shell(&format!("kill -{name} $$"))).unwrap();
        let error = failure(&processes);
        assert_eq!(error.ending().signal_name().as_deref(), Some(&*format!("SIG{name}")));
        assert_eq!(error.to_string(), format!("process 0 (pid {}) was killed by SIG{name}", error.pid()));
    }
}

#[cfg(unix)]
fn abort_of_an_entry_is_reported_as_a_signal() {
    let scene = Scene::new();
    let error = failure(&scene.spawn(1, "abort"));
    assert!(error.to_string().ends_with("was killed by SIGABRT"), "{error}");
}

/// A child that ignores SIGCHLD, so that the kernel reaps its children. It reports what `join` returns for a child.
#[cfg(unix)]
#[allow(unsafe_code)]
pub fn spawn_and_ignore(_: &[String]) {
    // SAFETY: no function is installed as a handler.
    let before = unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    assert_ne!(before, libc::SIG_ERR);
    match process::spawn(1, "succeed", &[]).unwrap().join() {
        Ok(()) => say("success"),
        Err(error) => say(error),
    }
}

#[cfg(unix)]
fn exit_status_reaped_elsewhere_is_not_success() {
    let mut command = Command::new(program());
    command.env(ROLE, "spawn-and-ignore");
    let said = Child::spawn(command).line();
    assert!(said.contains("an unknown status") && said.contains("SIGCHLD is ignored"), "{said}");
}
