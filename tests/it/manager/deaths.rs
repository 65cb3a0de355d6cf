//! Arrays of dead clients are removed at once, those of living clients are not.

use std::path::Path;
use std::time::Instant;

use libtest_mimic::Trial;

use super::stage::{Stage, announce, hold};
use crate::support::child::Child;
use crate::support::machine::send_signal;
use crate::support::{self, eventually};
use crate::tests;

pub fn trials() -> Vec<Trial> {
    support::trials(
        "manager",
        tests![
            what_a_killed_client_held_is_removed_at_once,
            what_somebody_else_holds_stays,
            a_death_is_seen_though_a_forked_child_keeps_the_socket,
            a_forked_child_is_a_client_of_its_own,
            a_client_that_becomes_another_program_is_looked_after,
            it_finds_what_died_before_it_began,
        ],
    )
}

fn what_a_killed_client_held_is_removed_at_once() {
    let stage = Stage::new();
    let _manager = stage.manager(&[]);
    for round in 0..5 {
        let name = format!("held-{round}");
        let mut client = stage.client_with(&name, 1);
        let since = Instant::now();
        client.kill();
        stage.wait_until_gone(&name, since);
        stage.wait_for_clients(0);
    }
    assert_eq!(stage.status().unwrap().reclaimed, 5);
}

fn what_somebody_else_holds_stays() {
    let stage = Stage::new();
    let _manager = stage.manager(&[]);
    let mut one = stage.client_with("held-one", 1);
    let mut other = stage.client_with("held-other", 2);
    one.kill();
    stage.wait_until_gone("held-one", Instant::now());
    let before = stage.status().unwrap().sweeps;
    eventually("it looks again", || stage.status().unwrap().sweeps > before);
    assert!(stage.has("held-other"));
    other.kill();
    stage.wait_until_gone("held-other", Instant::now());
}

fn a_death_is_seen_though_a_forked_child_keeps_the_socket() {
    let stage = Stage::new();
    let _manager = stage.manager(&[]);
    let mut client = stage.client();
    announce(&mut client);
    stage.wait_for_clients(1);
    let forked = client.ask("fork");
    // Only now, so that the forked child does not hold it.
    hold(&mut client, "held-x");
    let since = Instant::now();
    client.kill();
    stage.wait_until_gone("held-x", since);
    assert!(Path::new(&format!("/proc/{forked}/fd")).exists(), "the child lives, and its copy of the socket with it");
    send_signal("KILL", &forked);
}

fn a_forked_child_is_a_client_of_its_own() {
    let stage = Stage::new();
    let _manager = stage.manager(&[]);
    let mut client = stage.client_with("held-parent", 1);
    let forked = client.ask("fork-announce held-child");
    stage.wait_for_clients(2);
    eventually("the child holds an array", || stage.has("held-child"));
    send_signal("KILL", &forked);
    stage.wait_until_gone("held-child", Instant::now());
    stage.wait_for_clients(1);
    announce(&mut client);
    assert!(stage.has("held-parent"));
    client.kill();
    stage.wait_until_gone("held-parent", Instant::now());
}

fn a_client_that_becomes_another_program_is_looked_after() {
    let stage = Stage::new();
    let _manager = stage.manager(&[]);
    let mut client = stage.client_with("held-x", 1);
    client.tell("exec");
    client.expect("sleeps");
    stage.wait_until_gone("held-x", Instant::now());
    client.kill();
    stage.wait_for_clients(0);
}

fn it_finds_what_died_before_it_began() {
    let stage = Stage::new();
    // It must not start one itself, which might be the first to listen.
    let mut command = stage.role("manager-client");
    command.arg(stage.arrays()).env("NDSHM_MANAGER", "off");
    let mut client = Child::spawn(command);
    hold(&mut client, "held-x");
    client.kill();
    assert!(stage.has("held-x"));
    let mut command = stage.role("manager");
    command.env("NDSHM_EMULATED_DIR", stage.arrays());
    let _manager = Child::spawn(command);
    stage.wait_until_gone("held-x", Instant::now());
}
