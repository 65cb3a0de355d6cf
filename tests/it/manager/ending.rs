//! The conditions that end a manager, and signals that do not.

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
            manager_survives_signals_to_its_clients_group,
            manager_without_clients_ends_and_leaves_nothing,
            manager_ends_after_its_socket_is_removed,
        ],
    )
}

fn manager_survives_signals_to_its_clients_group() {
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

fn manager_without_clients_ends_and_leaves_nothing() {
    // Long enough for a running client to connect before the manager ends, on a slow machine too.
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

fn manager_ends_after_its_socket_is_removed() {
    let stage = Stage::new();
    let mut first = stage.manager(&[]);
    std::fs::remove_file(&stage.socket.path).unwrap();
    let _second = stage.manager(&[]);
    // A manager checks its socket every ten seconds.
    first.expect("ended");
    assert!(stage.status().is_some(), "the first manager left the second one's socket");
}
