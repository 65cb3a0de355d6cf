//! The manager removes arrays of dead clients at once, and keeps those of living clients.

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
            arrays_of_a_killed_client_are_removed_at_once,
            arrays_of_living_clients_stay,
            death_is_noticed_despite_a_forked_childs_socket,
            a_forked_child_is_a_client_of_its_own,
            array_is_removed_soon_after_the_last_forked_child,
            arrays_are_removed_after_a_client_execs,
            manager_removes_arrays_orphaned_before_its_start,
        ],
    )
}

fn arrays_of_a_killed_client_are_removed_at_once() {
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

fn arrays_of_living_clients_stay() {
    let stage = Stage::new();
    let _manager = stage.manager(&[]);
    let mut one = stage.client_with("held-one", 1);
    let mut other = stage.client_with("held-other", 2);
    one.kill();
    stage.wait_until_gone("held-one", Instant::now());
    let before = stage.status().unwrap().sweeps;
    eventually("the manager sweeps again", || stage.status().unwrap().sweeps > before);
    assert!(stage.has("held-other"));
    other.kill();
    stage.wait_until_gone("held-other", Instant::now());
}

fn death_is_noticed_despite_a_forked_childs_socket() {
    let stage = Stage::new();
    let _manager = stage.manager(&[]);
    let mut client = stage.client();
    announce(&mut client);
    stage.wait_for_clients(1);
    let forked = client.ask("fork");
    // After the fork, so that the forked child does not hold the array.
    hold(&mut client, "held-x");
    let since = Instant::now();
    client.kill();
    stage.wait_until_gone("held-x", since);
    assert!(
        Path::new(&format!("/proc/{forked}/fd")).exists(),
        "the forked child lives and keeps its copy of the socket"
    );
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

fn array_is_removed_soon_after_the_last_forked_child() {
    let stage = Stage::new();
    let _manager = stage.manager(&[]);
    let mut client = stage.client_with("held-x", 1);
    let forked = client.ask("fork"); // it inherits the mapping
    client.kill();
    stage.wait_for_clients(0);
    // The manager has looked as often as it does for processes that end with the client.
    let before = stage.status().unwrap().sweeps;
    eventually("the manager goes on looking", || stage.status().unwrap().sweeps > before + 11);
    assert!(stage.has("held-x"), "the forked child is attached");
    send_signal("KILL", &forked);
    stage.wait_until_gone("held-x", Instant::now());
}

fn arrays_are_removed_after_a_client_execs() {
    let stage = Stage::new();
    let _manager = stage.manager(&[]);
    let mut client = stage.client_with("held-x", 1);
    client.tell("exec");
    client.expect("sleeps");
    stage.wait_until_gone("held-x", Instant::now());
    client.kill();
    stage.wait_for_clients(0);
}

fn manager_removes_arrays_orphaned_before_its_start() {
    let stage = Stage::new();
    // The client must not start a manager, which might listen before the one of this test.
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
