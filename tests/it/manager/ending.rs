//! When a manager ends, and what does not end it.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;

use super::stage::{Stage, announce, hold};
use crate::support;
use crate::support::child::Child;
use crate::support::machine::send_signal;
use crate::tests;

pub fn trials() -> Vec<Trial> {
    support::trials(
        "manager",
        tests![
            it_survives_what_ends_its_clients_group,
            without_clients_it_ends_and_leaves_nothing,
            one_whose_socket_was_removed_makes_way,
        ],
    )
}

fn it_survives_what_ends_its_clients_group() {
    for signal in ["INT", "HUP"] {
        let stage = Stage::new();
        let mut command = stage.role("manager-client");
        command.arg(stage.arrays()).process_group(0);
        let mut client = Child::spawn(command);
        announce(&mut client);
        stage.wait_for_clients(1);
        hold(&mut client, "held-x");
        let status = stage.status().unwrap();
        send_signal(signal, format!("-{}", client.id()));
        stage.wait_until_gone("held-x", Instant::now());
        assert_eq!(stage.status().unwrap().pid, status.pid, "SIG{signal}");
    }
}

fn without_clients_it_ends_and_leaves_nothing() {
    // Long enough for a client that runs already to be known before it ends, on a slow machine too.
    const IDLE: Duration = Duration::from_secs(2);
    let stage = Stage::new();
    let mut client = stage.client();
    client.tell("warnings");
    client.expect("0");
    let mut manager = stage.manager(&[&IDLE.as_millis().to_string()]);
    announce(&mut client);
    stage.wait_for_clients(1);
    hold(&mut client, "held-x");
    std::thread::sleep(IDLE + Duration::from_millis(500));
    assert_eq!(stage.status().unwrap().clients, 1, "not while there is a client");
    client.kill();
    manager.expect("ended");
    manager.finish();
    let mut left: Vec<PathBuf> = std::fs::read_dir(stage.base()).unwrap().map(|e| e.unwrap().path()).collect();
    left.retain(|path| *path != stage.arrays());
    assert!(left.is_empty(), "{left:?}");
    assert!(!stage.has("held-x"));
}

fn one_whose_socket_was_removed_makes_way() {
    let stage = Stage::new();
    let mut first = stage.manager(&[]);
    std::fs::remove_file(&stage.socket.path).unwrap();
    let _second = stage.manager(&[]);
    // It looks every ten seconds.
    first.expect("ended");
    assert!(stage.status().is_some(), "it did not take the other's socket with it");
}
