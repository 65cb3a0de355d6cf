//! Starting a manager: by the first client, once, from the right program, and again after a kill.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray_shm::manager;

use super::stage::{Stage, announce, hold, reachable};
use crate::support::child::{Child, program};
use crate::support::machine::{open_paths, send_signal};
use crate::support::{self, eventually};
use crate::tests;

pub fn trials() -> Vec<Trial> {
    support::trials(
        "manager",
        tests![
            first_client_starts_a_manager_without_its_descriptors,
            concurrent_clients_start_one_manager,
            manager_is_found_beside_the_program_and_in_path,
            announcement_after_a_kill_starts_another_manager,
            concurrent_starts_leave_one_manager,
            disabled_manager_is_neither_started_nor_told,
            unstartable_manager_logs_one_warning,
        ],
    )
}

fn first_client_starts_a_manager_without_its_descriptors() {
    let stage = Stage::new();
    let mut client = stage.client();
    println!("announcing took {:?}", announce(&mut client));
    stage.wait_for_clients(1);
    println!("announcing again took {:?}", announce(&mut client));
    let status = stage.status().unwrap();
    let process = PathBuf::from(format!("/proc/{}", status.pid));
    assert_eq!(std::fs::read_link(process.join("cwd")).unwrap(), Path::new("/"));
    let open = open_paths(&status.pid.to_string());
    let is_own = |path: &&PathBuf| {
        let text = path.to_string_lossy();
        !(Some(path.as_path()) == stage.socket.path.parent()
            || *text == *"/dev/null"
            || text.starts_with("socket:")
            || text.starts_with("anon_inode"))
    };
    let foreign: Vec<&PathBuf> = open.iter().filter(is_own).collect();
    assert!(foreign.is_empty(), "{foreign:?} of {open:?}");
    let stat = std::fs::read_to_string(process.join("stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let (parent, session) = (fields[1], fields[3]);
    assert_ne!(parent, client.id().to_string());
    assert_eq!(session, status.pid.to_string(), "a session of its own");
    assert_eq!(std::fs::metadata(&stage.socket.path).unwrap().permissions().mode() & 0o777, 0o600);
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", client.id())).unwrap_or_default();
    assert_eq!(children.trim(), "", "no zombie");
}

fn concurrent_clients_start_one_manager() {
    let stage = Stage::new();
    let mut clients: Vec<Child> = (0..6).map(|_| stage.client()).collect();
    clients.iter_mut().for_each(|client| client.tell("announce"));
    stage.wait_for_clients(6);
    let status = stage.status().unwrap();
    for (number, mut client) in clients.into_iter().enumerate() {
        client.line();
        hold(&mut client, &format!("held-{number}"));
        client.kill();
    }
    (0..6).for_each(|number| stage.wait_until_gone(&format!("held-{number}"), Instant::now()));
    assert_eq!(stage.status().unwrap().pid, status.pid);
}

fn manager_is_found_beside_the_program_and_in_path() {
    for how in ["beside", "in PATH"] {
        let stage = Stage::new();
        let folder = stage.base().join("bin");
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink(program(), folder.join("ndshm")).unwrap();
        let mut command = if how == "beside" {
            let copy = reachable(&stage);
            std::fs::rename(copy, folder.join("client")).unwrap();
            stage.command(&folder.join("client"), "manager-client")
        } else {
            stage.role("manager-client")
        };
        command.env_remove("NDSHM_MANAGER").arg(stage.arrays());
        command.env("PATH", if how == "beside" { stage.base() } else { &folder });
        let mut client = Child::spawn(command);
        announce(&mut client);
        stage.wait_for_clients(1);
    }
}

fn announcement_after_a_kill_starts_another_manager() {
    let stage = Stage::new();
    let mut client = stage.client_with("held-x", 1);
    let first = stage.status().unwrap().pid;
    send_signal("KILL", first);
    eventually("the manager is dead", || stage.status().is_none());
    assert!(stage.socket.path.exists(), "a dead manager's socket stays");
    // A client checks its connection only at bounded intervals, so that the first announcements may not notice.
    eventually("the next announcement starts another", || {
        announce(&mut client);
        std::thread::sleep(Duration::from_millis(100));
        stage.status().is_some_and(|status| status.clients == 1)
    });
    assert_ne!(stage.status().unwrap().pid, first);
    client.kill();
    stage.wait_until_gone("held-x", Instant::now());
}

fn concurrent_starts_leave_one_manager() {
    for _ in 0..10 {
        let stage = Stage::new();
        let mut both: Vec<Child> = (0..2).map(|_| Child::spawn(stage.role("manager"))).collect();
        let mut words: Vec<String> = both.iter_mut().map(Child::line).collect();
        words.sort();
        assert_eq!(words, ["another", "listens"]);
        // The next manager must be able to start while the old one is ending.
        assert!(manager::stop(Some(&stage.socket.path)).unwrap());
        let mut next = Child::spawn(stage.role("manager"));
        next.expect("listens");
    }
}

fn disabled_manager_is_neither_started_nor_told() {
    let stage = Stage::new();
    let _manager = stage.manager(&[]);
    let mut command = stage.role("manager-client");
    command.arg(stage.arrays()).env("NDSHM_MANAGER", "off");
    let mut client = Child::spawn(command);
    announce(&mut client);
    client.tell("warnings");
    client.expect("0");
    assert_eq!(stage.status().unwrap().clients, 0);
}

fn unstartable_manager_logs_one_warning() {
    let stage = Stage::new();
    let mut clients = ["/nonexistent/ndshm", "/bin/false"].map(|path| {
        let mut command = stage.role("manager-client");
        command.arg(stage.arrays()).env("NDSHM_MANAGER", path);
        Child::spawn(command)
    });
    for (number, client) in clients.iter_mut().enumerate() {
        announce(client);
        eventually("the warning", || client.ask("warnings") == "1");
        hold(client, &format!("works-without-{number}"));
    }
    // A client tries to start the manager again after a second.
    std::thread::sleep(Duration::from_millis(1100));
    for client in &mut clients {
        announce(client);
    }
    std::thread::sleep(Duration::from_millis(200));
    for client in &mut clients {
        client.tell("warnings");
        client.expect("1");
        client.kill();
    }
    assert!(!stage.socket.path.exists());
}
