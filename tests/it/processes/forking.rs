//! Forked children: how a value notices that it is in one.

use std::process::Command;

use libtest_mimic::Trial;
use ndarray_shm::process::fork_generation;

use crate::support;
use crate::support::child::{Child, ROLE, program, say};
use crate::support::forks::in_forked_child;
use crate::tests;

pub fn trials() -> Vec<Trial> {
    support::trials("processes", tests![fork_generation_differs_in_children_and_grandchildren])
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
    let mut command = Command::new(program());
    command.env(ROLE, "fork-and-compare");
    let mut child = Child::spawn(command);
    child.expect("compared");
    child.finish();
}
