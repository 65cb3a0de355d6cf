//! The manager's socket: its path, its protocol, and the limit on clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use libtest_mimic::Trial;
use ndarray_shm::manager::{self, Manager, ManagerOptions};
use ndarray_shm::{Error, ErrorKind};

use super::stage::Stage;
use crate::interop::peer::{of_package, python};
use crate::support::child::{Child, program};
use crate::support::{self, eventually};
use crate::tests;

pub fn trials() -> Vec<Trial> {
    let mut trials = support::trials(
        "manager",
        tests![
            socket_paths_of_any_length_work,
            foreign_file_at_the_socket_path_is_left_alone,
            malformed_request_is_answered_and_disconnected,
            directory_with_another_identity_is_not_watched,
            manager_at_its_client_limit_still_answers,
        ],
    );
    trials.extend(support::trials("interop::manager", tests![python_client_is_served]));
    trials
}

fn socket_paths_of_any_length_work() {
    let mut stage = Stage::new();
    let runtime = stage.base().join("r".repeat(200));
    std::fs::create_dir(&runtime).unwrap();
    std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o700)).unwrap();
    stage.socket.path = runtime.join("ndshm-manager.sock");
    let mut command = stage.role("manager");
    command.env_remove("NDSHM_MANAGER_SOCKET").env("XDG_RUNTIME_DIR", &runtime);
    let mut manager = Child::spawn(command);
    manager.expect("listens");
    let mut client = stage.client_with("held-x", 1);
    client.kill();
    stage.wait_until_gone("held-x", Instant::now());
    drop(manager);
    // Without a runtime directory the socket is in a directory below the temporary directory.
    let temporary = stage.base().join("t".repeat(200));
    std::fs::create_dir(&temporary).unwrap();
    let user = rustix::process::geteuid().as_raw();
    stage.socket.path = temporary.join(format!("ndshm-manager-{user}")).join("ndshm-manager.sock");
    let mut command = stage.role("manager");
    command.env_remove("NDSHM_MANAGER_SOCKET").env_remove("XDG_RUNTIME_DIR").env("TMPDIR", &temporary);
    Child::spawn(command).expect("listens");
    // Only the last part of a path cannot be shortened.
    let options = ManagerOptions::new().socket(temporary.join("x".repeat(100)));
    let error = Manager::start(&options).unwrap_err();
    assert!(error.to_string().contains("last part of the path"), "{error}");
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 1, "nothing is left of it");
}

fn foreign_file_at_the_socket_path_is_left_alone() {
    let stage = Stage::new();
    std::fs::write(&stage.socket.path, b"a file").unwrap();
    let start = || Manager::start(&ManagerOptions::new().socket(&stage.socket.path)).unwrap_err();
    assert!(
        matches!(start(), Error { kind: ErrorKind::Manager { reason, .. }, .. } if reason.contains("a file stands where"))
    );
    assert_eq!(std::fs::read(&stage.socket.path).unwrap(), b"a file");
    std::fs::remove_file(&stage.socket.path).unwrap();
    std::os::unix::fs::symlink("elsewhere", &stage.socket.path).unwrap();
    assert!(
        matches!(start(), Error { kind: ErrorKind::Manager { reason, .. }, .. } if reason.contains("symbolic link")),
        "it is not followed"
    );
    std::fs::remove_file(&stage.socket.path).unwrap();
    let _datagrams = UnixDatagram::bind(&stage.socket.path).unwrap();
    assert!(matches!(start().kind, ErrorKind::Os { .. }), "it is not taken for a manager");
    assert!(stage.socket.path.exists());
}

fn malformed_request_is_answered_and_disconnected() {
    let stage = Stage::new();
    let _manager = stage.manager(&[]);
    let long = vec![b'x'; 20_000];
    let greeting = b"ndshm-manager 1\n".as_slice();
    for (line, reason) in [
        (b"status\n".as_slice(), "greeting"),
        (b"ndshm-manager 2\n", "version 1"),
        (b"GET / HTTP/1.1\r\n", "the requests are"),
        (&[greeting, b"use 1 2 shm relative\n"].concat(), "absolute"),
        (&[greeting, b"look soon 1 2\n"].concat(), "milliseconds"),
        (&[greeting, b"\xff\n"].concat(), "text"),
        (&long, "16384"),
    ] {
        let mut stream = UnixStream::connect(&stage.socket.path).unwrap();
        let _ = stream.write_all(line); // the manager may close the connection before the end of the line
        let mut answer = String::new();
        // Unread bytes make the close a reset, which can overtake the answer.
        let end = stream.read_to_string(&mut answer);
        assert!(answer.contains(reason) || (line.len() > 10_000 && end.is_err()), "{answer:?}");
    }
    assert_eq!(stage.status().unwrap().clients, 0);
    let mut stream = UnixStream::connect(&stage.socket.path).unwrap();
    stream.write_all(b"ndshm-manager 1\nstatus\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ndshm-manager 1");
    assert!(lines.next().unwrap().unwrap().starts_with("status pid="));
}

fn directory_with_another_identity_is_not_watched() {
    let stage = Stage::new();
    let _manager = stage.manager(&[]);
    let mut stream = UnixStream::connect(&stage.socket.path).unwrap();
    stream.write_all(b"ndshm-manager 1\nuse 1 2 shm /dev/shm\nlook 5 1 2\nstatus\n").unwrap();
    let mut lines = BufReader::new(stream).lines().skip(1);
    let answer = lines.next().unwrap().unwrap();
    assert!(answer.starts_with("no the manager sees another directory"), "{answer}");
    let answer = lines.next().unwrap().unwrap();
    assert!(answer.starts_with("no this client has not announced"), "{answer}");
    assert!(lines.next().unwrap().unwrap().contains(" clients=0 "), "the connection stays");
}

fn manager_at_its_client_limit_still_answers() {
    let stage = Stage::new();
    let mut command = stage.command(Path::new("prlimit"), "manager");
    command.arg("--nofile=120").arg(program());
    let mut manager = Child::spawn(command);
    manager.expect("listens");
    let facts = std::fs::metadata(stage.arrays()).unwrap();
    let path = stage.arrays().canonicalize().unwrap();
    let connect = || {
        let mut stream = UnixStream::connect(&stage.socket.path).unwrap();
        write!(stream, "ndshm-manager 1\nuse {} {} x {}\n", facts.dev(), facts.ino(), path.display()).unwrap();
        let answer = BufReader::new(stream.try_clone().unwrap()).lines().nth(1).unwrap().unwrap();
        (stream, answer)
    };
    let mut clients = Vec::new();
    let refusal = loop {
        let (stream, answer) = connect();
        if answer != "ok" {
            break answer;
        }
        clients.push(stream);
    };
    assert!(refusal.starts_with("error there are too many clients"), "{refusal}");
    assert!(clients.len() > 20, "{}", clients.len());
    assert_eq!(stage.status().unwrap().clients, clients.len());
    assert!(manager::stop(Some(&stage.socket.path)).unwrap());
}

fn python_client_is_served() {
    const SCRIPT: &str = "
import sys
sys.path.insert(0, sys.argv[1])
import ndshm_manager
manager = ndshm_manager.Manager()
manager.use(sys.argv[2], 'a b')
print(manager.ask('status'), flush=True)
try:
    manager.ask('use 1 2 shm /dev/shm')
except OSError as error:
    print(error, flush=True)
sys.stdin.readline()
manager.look(sys.argv[2], 0.001)
sys.stdin.readline()
";
    let stage = Stage::new();
    let _manager = stage.manager(&[]);
    let mut command = Command::new(python());
    command.args(["-B", "-c", SCRIPT]).arg(of_package("docs/python")).arg(stage.arrays());
    let mut client = Child::spawn({
        command.env("NDSHM_MANAGER_SOCKET", &stage.socket.path);
        command
    });
    let said = client.line();
    assert!(said.starts_with("status pid=") && said.contains(" clients=1 "), "{said}");
    let said = client.line();
    assert!(said.starts_with("no the manager sees another directory"), "{said}");
    let sweeps = || stage.status().unwrap().sweeps;
    let before = sweeps();
    client.tell("remind");
    eventually("the manager sweeps the directory on request", || sweeps() > before);
    let before = sweeps();
    client.kill();
    stage.wait_for_clients(0);
    eventually("the manager sweeps the directory of the dead client", || sweeps() > before);
}
