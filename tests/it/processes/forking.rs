//! Forked children: how a value notices that it is in one, and what the handle of the parent's processes does there.

use std::process::Command;
use std::time::Duration;

use libtest_mimic::Trial;
use ndarray_shm::process::{ChildError, Ending, fork_generation};

use super::{Scene, end};
use crate::support;
use crate::support::child::{Child, ROLE, program, say};
use crate::support::forks::{end_within, in_forked_child};
use crate::tests;

pub fn trials() -> Vec<Trial> {
    support::trials(
        "processes",
        tests![
            fork_generation_differs_in_children_and_grandchildren,
            forked_child_cannot_wait_for_its_parents_processes,
        ],
    )
}

/// A process with one thread that forks children, and compares their numbers with its own.
pub fn fork_and_compare(_: &[String]) {
    let own = fork_generation();
    for _ in 0..2 {
        in_forked_child(|| {
            let childs = fork_generation();
            in_forked_child(|| ![own, childs].contains(&fork_generation()));
            childs != own && childs == fork_generation()
        });
        assert_eq!(fork_generation(), own, "the number of a process never changes");
    }
    say("compared");
}

fn fork_generation_differs_in_children_and_grandchildren() {
    in_a_process_of_its_own("fork-and-compare", "compared");
}

/// Runs a role, which forks, in a process that has no other threads.
fn in_a_process_of_its_own(role: &str, answer: &str) {
    let mut command = Command::new(program());
    command.env(ROLE, role);
    let mut child = Child::spawn(command);
    child.expect(answer);
    child.finish();
}

/// A process that starts two others, and forks children that use its handle.
pub fn fork_and_join(_: &[String]) {
    let scene = Scene::new();
    let mut processes = Some(scene.spawn(2, "wait"));
    scene.wait_for(&["here-0", "here-1"]);
    in_forked_child(|| {
        end_within(60);
        let inherited = processes.as_mut().expect("inherited");
        let pids = inherited.pids().to_vec();
        let refuses = |index: usize, error: &ChildError| {
            assert_eq!((error.index(), error.pid(), error.ending()), (index, pids[index], Ending::Unsupported));
            assert!(error.to_string().contains("forked") && error.to_string().contains("wait there"), "{error}");
        };
        refuses(0, &inherited.join().unwrap_err());
        refuses(0, &inherited.join_timeout(Duration::MAX).unwrap_err());
        for index in 0..2 {
            let (found, how) = inherited.next_end(None).expect("each process once");
            assert_eq!(found, index);
            refuses(index, &how.unwrap_err());
        }
        assert_eq!(inherited.next_end(None), None, "a loop over all ends terminates");
        assert!(inherited.take_stdin(0).is_none());
        inherited.terminate();
        drop(processes.take());
        // A thread of the child itself can be started and joined afterwards.
        std::thread::spawn(|| true).join().unwrap()
    });
    let processes = processes.expect("the parent's");
    assert_eq!(processes.join_timeout(Duration::ZERO), Ok(false), "the child has ended nothing");
    scene.go();
    assert_eq!(end(&processes), Ok(()));
    assert_eq!(processes.next_end(None).map(|(_, how)| how), Some(Ok(())), "the child has taken no end");
    say("joined");
}

fn forked_child_cannot_wait_for_its_parents_processes() {
    in_a_process_of_its_own("fork-and-join", "joined");
}
