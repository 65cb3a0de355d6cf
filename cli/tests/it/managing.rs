//! `ndshm manager`: started by hand and by a client, queried, stopped and killed.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ndarray_shm::cache::CacheOptions;
use ndarray_shm::manager::{self, Program};
use ndarray_shm::{CreateOptions, Directory};
use sysinfo::{Pid, Signal};

use crate::scene::{Running, Scene, heeding_hangup, is_running, run, signal, wait_until, with_mounts};

/// The environment variable that makes `role_of_a_client` a client. Its value is the client's directory.
const CLIENT: &str = "NDSHM_TEST_CLIENT";

/// The environment variable that makes it hold a cache instead of an array.
const CACHE: &str = "NDSHM_TEST_CACHE";

/// Not a test: a client that the tests below start, which holds an array until it is killed.
#[test]
fn role_of_a_client() {
    let Some(directory) = std::env::var_os(CLIENT) else { return };
    manager::set_program(Program::Search);
    let backend = Directory::new("emulated", directory);
    if std::env::var_os(CACHE).is_some() {
        let options = CacheOptions::new().directory(backend).keep(Duration::from_secs(2));
        let cache = options.create("held-y", 1 << 20).expect("a new cache");
        let claim = cache.look(1, 4, 0, Duration::ZERO).expect("looked");
        thread::sleep(Duration::from_mins(5));
        drop(claim);
        return;
    }
    let _held = CreateOptions::new().directory(backend).create_counted::<u8, _>("held-x", 4).expect("a new array");
    thread::sleep(Duration::from_mins(5));
}

fn client(scene: &Scene) -> Running {
    Running::start(&mut client_command(scene))
}

fn client_command(scene: &Scene) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "managing::role_of_a_client"]).env(CLIENT, scene.emulated());
    command.env("NDSHM_MANAGER", env!("CARGO_BIN_EXE_ndshm")).env("NDSHM_MANAGER_SOCKET", scene.socket());
    command.env("NDSHM_EMULATED_DIR", scene.emulated()).stdin(Stdio::null());
    command
}

fn has_array(scene: &Scene) -> bool {
    scene.emulated().join("held-x").exists()
}

fn wait_for_clients(scene: &Scene, clients: usize) -> Pid {
    let mut pid = 0;
    wait_until("the manager and its clients", || {
        let status = manager::status(Some(&scene.socket())).expect("an answer");
        status.is_some_and(|status| {
            pid = status.pid;
            status.clients == clients
        })
    });
    Pid::from_u32(pid)
}

fn assert_gone(scene: &Scene) {
    let since = Instant::now();
    wait_until("the end of the array", || !has_array(scene));
    println!("gone after {:?}", since.elapsed());
    // If the manager missed the death, only its periodic search every ten seconds would find the array.
    assert!(since.elapsed() < Duration::from_secs(8));
}

/// Returns the names of a manager's files: its socket, and files with names that begin with the socket's.
fn traces(scene: &Scene) -> Vec<String> {
    let directory = scene.socket();
    let directory = directory.parent().expect("in the scene");
    let mut names = crate::scene::names_in(directory);
    names.retain(|name| name.starts_with("manager.sock"));
    names
}

#[test]
fn manager_reclaims_after_a_killed_client() {
    let scene = Scene::new();
    let mut client = client(&scene);
    let pid = wait_for_clients(&scene, 1);
    wait_until("the array", || has_array(&scene));
    client.kill();
    assert_gone(&scene);
    let report = run(&mut scene.ndshm(["manager", "status", "--json"])).expect_code(0).json();
    assert_eq!(report["running"], true);
    assert_eq!(report["pid"], pid.as_u32());
    assert_eq!(report["clients"], 0);
    assert_eq!(report["reclaimed"], 1);
    run(&mut scene.ndshm(["manager", "stop"])).expect_code(0);
    wait_until("its end", || !is_running(pid));
    assert_eq!(traces(&scene), [""; 0]);
}

#[test]
fn manager_removes_a_cache_some_time_after_its_last_user() {
    let scene = Scene::new();
    let mut user = Running::start(client_command(&scene).env(CACHE, "1"));
    wait_for_clients(&scene, 1);
    thread::sleep(Duration::from_secs(3));
    assert_eq!(scene.files(), [".ndshm-cache-held-y"], "it is open");
    user.kill();
    wait_until("its end", || scene.files().is_empty());
}

#[test]
fn next_client_replaces_a_killed_manager() {
    let scene = Scene::new();
    run(&mut scene.ndshm(["manager", "--detach"])).expect_code(0);
    let first = wait_for_clients(&scene, 0);
    assert!(signal(first, Signal::Kill));
    wait_until("its death", || !is_running(first));
    assert_eq!(traces(&scene), ["manager.sock"]);
    run(&mut scene.ndshm(["manager", "status"])).expect_code(3);
    let mut client = client(&scene);
    let second = wait_for_clients(&scene, 1);
    assert_ne!(first, second);
    wait_until("the array", || has_array(&scene));
    client.kill();
    assert_gone(&scene);
}

#[test]
fn status_and_stop_report_a_missing_manager() {
    let scene = Scene::new();
    for command in ["status", "stop"] {
        let finished = run(&mut scene.ndshm(["manager", command])).expect_code(3);
        assert!(finished.err.contains("no manager listens at"), "{finished:?}");
    }
    let report = run(&mut scene.ndshm(["manager", "status", "--json"])).expect_code(3).json();
    assert_eq!(report["running"], false);
    assert_eq!(report["socket"], scene.socket().to_str().expect("text"));
    assert_eq!(traces(&scene), [""; 0]);
}

#[test]
fn second_manager_reports_the_first_and_exits() {
    let scene = Scene::new();
    let mut both: Vec<Running> = (0..2).map(|_| Running::start(&mut scene.ndshm(["manager"]))).collect();
    let mut ended = 0;
    wait_until("the end of one", || {
        ended = usize::from(!both[1].is_running());
        both.iter_mut().any(|one| !one.is_running())
    });
    let finished = both.swap_remove(ended).finish().expect_code(0);
    let pid = wait_for_clients(&scene, 0);
    assert_eq!(finished.out, format!("a manager is already running: process {pid}\n"));
    assert_eq!(pid, both[0].pid());
    for _ in 0..2 {
        let finished = run(&mut scene.ndshm(["manager", "--detach"])).expect_code(0);
        assert_eq!(finished.out, format!("a manager is already running: process {pid}\n"));
    }
}

#[test]
fn signal_ends_a_foreground_manager_cleanly() {
    for interruption in [Signal::Interrupt, Signal::Term, Signal::Hangup] {
        let scene = Scene::new();
        let running = Running::start(&mut heeding_hangup(&scene.ndshm(["manager"])));
        wait_for_clients(&scene, 0);
        assert!(signal(running.pid(), interruption));
        let finished = running.finish().expect_code(0);
        assert!(finished.out.contains("listens at"), "{finished:?}");
        assert_eq!(traces(&scene), [""; 0]);
    }
}

#[test]
fn idle_manager_ends_after_its_timeout() {
    let scene = Scene::new();
    let mut client = client(&scene);
    let pid = wait_for_clients(&scene, 1);
    run(&mut scene.ndshm(["manager", "stop"])).expect_code(0);
    wait_until("its end", || !is_running(pid));
    client.kill();
    // The next manager finds the array of a client that was killed after its manager was stopped.
    // A manager stays while arrays are in flight, so it must not see those of other programs: it gets a /dev/shm of its
    // own.
    let manager = scene.ndshm(["manager", "--idle", "1"]);
    let script = "mount -t tmpfs none /dev/shm";
    let Some(mut manager) = with_mounts("idle_manager_ends_after_its_timeout", script, &manager) else { return };
    let finished = run(&mut manager).expect_code(0);
    assert!(finished.out.contains("listens at"), "{finished:?}");
    assert!(!has_array(&scene));
    assert_eq!(traces(&scene), [""; 0]);
}

#[test]
fn background_manager_inherits_nothing_from_its_parent() {
    let scene = Scene::new();
    // Standard output and error are pipes: if the manager kept them open, `run` would not return.
    let mut command = scene.ndshm(["manager", "--detach", "--idle", "30", "--socket", "manager.sock"]);
    let finished = run(command.current_dir(scene.socket().parent().expect("in the scene"))).expect_code(0);
    let pid = wait_for_clients(&scene, 0);
    assert_eq!(finished.out, format!("process {pid} runs in the background\n"));
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).expect("it runs"), Path::new("/"));
    for standard in 0..3 {
        assert_eq!(fs::read_link(format!("/proc/{pid}/fd/{standard}")).expect("it runs"), Path::new("/dev/null"));
    }
}

#[test]
fn failure_to_listen_is_reported() {
    let scene = Scene::new();
    fs::write(scene.socket(), b"a file").expect("written");
    for arguments in [&["manager"][..], &["manager", "--detach"]] {
        let finished = run(&mut scene.ndshm(arguments)).expect_code(1);
        assert!(finished.err.contains("manager"), "{finished:?}");
    }
    let finished = run(scene.ndshm(["manager"]).env("NDSHM_MANAGER_SOCKET", "")).expect_code(2);
    assert!(finished.err.contains("NDSHM_MANAGER_SOCKET"), "{finished:?}");
    let missing = scene.temporary().join("missing/manager.sock");
    let finished = run(scene.ndshm(["manager", "--socket"]).arg(missing)).expect_code(1);
    assert!(finished.err.contains("its directory must exist") || finished.err.contains("directory must exist"));
}
