//! Managers and clients of two users: neither side trusts the other. Needs root.

use std::io::Read;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Command;

use libtest_mimic::Trial;
use ndarray_shm::manager::{self, Manager, ManagerOptions};
use ndarray_shm::{Error, ErrorKind};

use super::stage::{Stage, announce, reachable};
use crate::linux::sandbox::unless;
use crate::support;
use crate::support::child::Child;
use crate::tests;

pub fn trials() -> Vec<Trial> {
    let tests: &[(&str, fn())] = tests![a_stranger_is_refused_on_both_sides, a_strangers_socket_is_left_alone];
    let is_root = rustix::process::geteuid().is_root();
    unless("only root can be two users", is_root, support::trials("manager", tests))
}

/// The other user's number.
const STRANGER: u32 = 65534;

fn as_stranger(mut command: Command) -> Child {
    command.uid(STRANGER).gid(STRANGER);
    Child::spawn(command)
}

fn a_stranger_is_refused_on_both_sides() {
    let stage = Stage::new();
    let program = reachable(&stage);
    // The permission bits keep the other user from connecting to this user's manager.
    let manager = stage.manager(&[]);
    let mut asker = as_stranger(stage.command(&program, "manager-ask"));
    let said = asker.line();
    assert!(said.starts_with("denied 0: this user may not connect"), "{said}");
    // If every user may connect, the other user's client refuses the manager.
    std::fs::set_permissions(&stage.socket.path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let said = as_stranger(stage.command(&program, "manager-ask")).line();
    assert!(said.starts_with("denied 0: another user's program listens"), "{said}");
    drop(manager);
    std::fs::remove_file(&stage.socket.path).unwrap();
    // The other user's manager refuses this user.
    let mut manager = as_stranger(stage.command(&program, "manager"));
    manager.expect("listens");
    let mut stream = UnixStream::connect(&stage.socket.path).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "error this manager serves another user, not user 0\n");
    match manager::status(Some(&stage.socket.path)) {
        Err(Error { kind: ErrorKind::PermissionDenied { owner, reason, .. }, .. }) => {
            assert_eq!(owner, STRANGER);
            assert!(reason.contains("another user's program"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let mut client = stage.client();
    announce(&mut client);
    client.tell("warnings");
    client.expect("1");
}

fn a_strangers_socket_is_left_alone() {
    let stage = Stage::new();
    let start = || Manager::start(&ManagerOptions::new().socket(&stage.socket.path)).unwrap_err();
    drop(UnixListener::bind(&stage.socket.path).unwrap());
    chown(&stage.socket.path, Some(STRANGER), None).unwrap();
    assert!(matches!(start().kind, ErrorKind::PermissionDenied { owner: STRANGER, .. }));
    assert!(stage.socket.path.exists());
}
