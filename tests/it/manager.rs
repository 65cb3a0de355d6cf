//! The manager with real processes: clients that are killed, managers that are killed, strangers, long paths.
//!
//! Each test has a socket of its own in a directory of its own. Whatever manager serves there is ended with the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray_shm::manager::{self, Manager, ManagerOptions, Program, Status};
use ndarray_shm::{CreateOptions, Directory, Error, RefcountedArray};

use crate::interop::peer::{of_package, python};
use crate::linux::sandbox::unless;
use crate::support::child::{Child, ROLE, Role, hear, program, say};
use crate::support::eventually;
use crate::tests;

pub fn trials() -> Vec<Trial> {
    let anybody: &[(&str, fn())] = tests![
        what_a_killed_client_held_is_removed_at_once,
        what_somebody_else_holds_stays,
        a_death_is_seen_though_a_forked_child_keeps_the_socket,
        a_forked_child_is_a_client_of_its_own,
        a_client_that_becomes_another_program_is_looked_after,
        the_first_client_starts_it_and_nothing_of_the_client_stays_open,
        clients_that_begin_together_start_one,
        it_is_found_beside_the_program_and_in_path,
        it_survives_what_ends_its_clients_group,
        after_a_kill_the_next_announcement_starts_another,
        of_two_that_begin_together_one_is_the_manager,
        without_clients_it_ends_and_leaves_nothing,
        it_finds_what_died_before_it_began,
        paths_of_any_length_will_do,
        nonsense_is_answered_and_ends_the_connection,
        a_directory_that_is_another_one_is_not_watched,
        with_all_clients_it_can_serve_it_still_answers,
        one_whose_socket_was_removed_makes_way,
        something_else_at_the_socket_is_left_alone,
        switched_off_it_is_neither_started_nor_told,
        one_that_cannot_be_started_is_one_warning,
    ];
    let root: &[(&str, fn())] = tests![a_stranger_is_refused_on_both_sides, a_strangers_socket_is_left_alone];
    let is_root = rustix::process::geteuid().is_root();
    let mut trials = crate::support::trials("manager", anybody);
    trials.extend(crate::support::trials("interop::manager", tests![a_client_in_python_is_one_too]));
    trials.extend(unless("only root can be two users", is_root, crate::support::trials("manager", root)));
    trials
}

pub const ROLES: &[(&str, Role)] =
    &[("manager", be_manager), ("manager-client", be_client), ("manager-ask", ask), ("sleep", sleep)];

/// A role: the manager of the socket that the environment names, ending when idle for so many milliseconds.
fn be_manager(arguments: &[String]) {
    let mut options = ManagerOptions::new();
    if let Some(idle) = arguments.first() {
        options = options.idle_exit(Duration::from_millis(idle.parse().unwrap()));
    }
    match Manager::start(&options) {
        Ok(Some(manager)) => {
            say("listens");
            manager.run().unwrap();
            say("ended");
        }
        Ok(None) => say("another"),
        Err(error) => say(error),
    }
}

/// A role: a client that does what it is told. Started as a manager, it is what `ndshm manager` is.
fn be_client(arguments: &[String]) {
    if arguments.first().is_some_and(|first| first == "manager") {
        return be_program(arguments);
    }
    log::set_logger(&Counter).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    manager::set_program(Program::Search);
    let backend = || Directory::new("test", &arguments[0]);
    let mut arrays = Vec::new();
    loop {
        let line = hear();
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("announce", _) => {
                let begin = Instant::now();
                manager::announce(&backend());
                say(begin.elapsed().as_micros());
            }
            ("hold", name) => {
                let options = CreateOptions::<RefcountedArray<u8, _>>::new().backend(backend());
                arrays.push(options.create(name, 4).unwrap());
                say("held");
            }
            ("fork", _) => say(fork()),
            ("fork-announce", name) => say(fork_and(|| {
                manager::announce(&backend());
                let options = CreateOptions::<RefcountedArray<u8, _>>::new().backend(backend());
                let _held = options.create(name, 4).unwrap();
                std::thread::sleep(Duration::from_secs(60));
            })),
            ("exec", _) => {
                let error = Command::new(program()).env(ROLE, "sleep").exec();
                panic!("{error}");
            }
            ("warnings", _) => say(WARNINGS.load(Ordering::Relaxed)),
            other => panic!("{other:?}"),
        }
    }
}

fn sleep(_arguments: &[String]) {
    say("sleeps");
    hear();
}

/// Forks a child that does nothing, and returns its number.
fn fork() -> u32 {
    fork_and(|| std::thread::sleep(Duration::from_secs(60)))
}

#[allow(unsafe_code)]
fn fork_and(action: impl FnOnce()) -> u32 {
    // SAFETY: the child goes on with the memory of this thread; the C library's allocator is made for that.
    match unsafe { libc::fork() } {
        0 => {
            action();
            std::process::exit(0)
        }
        child => u32::try_from(child).expect("forked"),
    }
}

static WARNINGS: AtomicUsize = AtomicUsize::new(0);

struct Counter;

impl log::Log for Counter {
    fn enabled(&self, _metadata: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        if record.level() == log::Level::Warn {
            eprintln!("warning in {}: {}", std::process::id(), record.args());
            WARNINGS.fetch_add(1, Ordering::Relaxed);
        }
    }
    fn flush(&self) {}
}

/// What a client has started as its manager.
fn be_program(arguments: &[String]) {
    let socket = PathBuf::from(&arguments[3]);
    if arguments[1] == "--detach" {
        let mut command = Command::new(program());
        command.args(["manager", "--background", "--socket"]).arg(&socket);
        let mut started = manager::spawn_detached(&mut command).unwrap();
        eventually("the manager listens", || {
            let _another_won = started.try_wait().unwrap();
            manager::status(Some(&socket)).unwrap().is_some()
        });
    } else {
        manager::leave_session().unwrap();
        manager::run(&ManagerOptions::new().socket(&socket).idle_exit(Duration::from_secs(60))).unwrap();
    }
}

/// A role: says how the manager is, or what is wrong with it.
fn ask(_arguments: &[String]) {
    match manager::status(None) {
        Ok(Some(status)) => say(format!("runs {}", status.pid)),
        Ok(None) => say("none"),
        Err(Error::PermissionDenied { owner, reason, .. }) => say(format!("denied {owner}: {reason}")),
        Err(error) => say(error),
    }
}

/// A socket, and a directory for arrays. Dropped, no manager serves there any more.
struct Stage {
    base: tempfile::TempDir,
    socket: PathBuf,
}

impl Stage {
    fn new() -> Self {
        let base = tempfile::Builder::new().prefix("ndshm-it-manager-").tempdir().unwrap();
        std::fs::create_dir(base.path().join("arrays")).unwrap();
        let socket = base.path().join("s");
        Self { base, socket }
    }

    fn arrays(&self) -> PathBuf {
        self.base.path().join("arrays")
    }

    fn command(&self, program: &Path, role: &str) -> Command {
        let mut command = Command::new(program);
        command.env(ROLE, role).env("NDSHM_MANAGER_SOCKET", &self.socket).env("NDSHM_MANAGER", program);
        command.env("NDSHM_EMULATED_DIR", self.base.path().join("none"));
        command
    }

    fn role(&self, role: &str) -> Command {
        self.command(&program(), role)
    }

    /// A manager in the foreground.
    fn manager(&self, arguments: &[&str]) -> Child {
        let mut command = self.role("manager");
        command.args(arguments);
        let mut manager = Child::spawn(command);
        manager.expect("listens");
        manager
    }

    /// A client that has said nothing yet.
    fn client(&self) -> Child {
        let mut command = self.role("manager-client");
        command.arg(self.arrays());
        Child::spawn(command)
    }

    /// A client that the manager knows, and that holds an array.
    fn client_with(&self, name: &str, clients: usize) -> Child {
        let mut client = self.client();
        announce(&mut client);
        self.wait_for_clients(clients);
        hold(&mut client, name);
        assert!(self.has(name));
        client
    }

    fn status(&self) -> Option<Status> {
        manager::status(Some(&self.socket)).unwrap()
    }

    fn wait_for_clients(&self, clients: usize) {
        eventually("the manager knows its clients", || self.status().is_some_and(|status| status.clients == clients));
    }

    fn has(&self, name: &str) -> bool {
        self.arrays().join(name).exists()
    }

    /// Waits until an array has gone, which must not take long, and says how long it took.
    fn wait_until_gone(&self, name: &str, since: Instant) {
        eventually("the array goes", || !self.has(name));
        let took = since.elapsed();
        println!("{name} was gone after {took:?}");
        // Without a word of the death, the look that is taken every ten seconds would find it.
        assert!(took < Duration::from_secs(8), "{took:?}");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Ok(Some(status)) = manager::status(Some(&self.socket)) {
            if !matches!(manager::stop(Some(&self.socket)), Ok(true)) {
                kill("KILL", &status.pid.to_string());
            }
        }
    }
}

fn announce(client: &mut Child) -> Duration {
    client.tell("announce");
    let took = Duration::from_micros(client.line().parse().unwrap());
    // One that is being started may take ten seconds until it listens.
    assert!(took < Duration::from_secs(8), "an announcement waits for no manager: {took:?}");
    took
}

fn hold(client: &mut Child, name: &str) {
    client.tell(format!("hold {name}"));
    client.expect("held");
}

fn kill(signal: &str, whom: &str) {
    let status = Command::new("kill").args(["-s", signal, "--", whom]).status().unwrap();
    assert!(status.success(), "kill -s {signal} {whom}");
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
    client.tell("fork");
    let forked = client.line();
    // Only now, so that the forked child does not hold it.
    hold(&mut client, "held-x");
    let since = Instant::now();
    client.kill();
    stage.wait_until_gone("held-x", since);
    assert!(Path::new(&format!("/proc/{forked}/fd")).exists(), "the child lives, and its copy of the socket with it");
    kill("KILL", &forked);
}

fn a_forked_child_is_a_client_of_its_own() {
    let stage = Stage::new();
    let _manager = stage.manager(&[]);
    let mut client = stage.client_with("held-parent", 1);
    client.tell("fork-announce held-child");
    let forked = client.line();
    stage.wait_for_clients(2);
    eventually("the child holds an array", || stage.has("held-child"));
    kill("KILL", &forked);
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

fn the_first_client_starts_it_and_nothing_of_the_client_stays_open() {
    let stage = Stage::new();
    let mut client = stage.client();
    println!("announcing took {:?}", announce(&mut client));
    stage.wait_for_clients(1);
    println!("announcing again took {:?}", announce(&mut client));
    let status = stage.status().unwrap();
    let process = PathBuf::from(format!("/proc/{}", status.pid));
    assert_eq!(std::fs::read_link(process.join("cwd")).unwrap(), Path::new("/"));
    let open: Vec<PathBuf> = std::fs::read_dir(process.join("fd"))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .collect();
    let is_own = |path: &&PathBuf| {
        let text = path.to_string_lossy();
        !(Some(path.as_path()) == stage.socket.parent()
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
    assert_eq!(std::fs::metadata(&stage.socket).unwrap().permissions().mode() & 0o777, 0o600);
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", client.id())).unwrap_or_default();
    assert_eq!(children.trim(), "", "no zombie");
}

fn clients_that_begin_together_start_one() {
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

fn it_is_found_beside_the_program_and_in_path() {
    for how in ["beside", "in PATH"] {
        let stage = Stage::new();
        let folder = stage.base.path().join("bin");
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
        command.env("PATH", if how == "beside" { stage.base.path() } else { &folder });
        let mut client = Child::spawn(command);
        announce(&mut client);
        stage.wait_for_clients(1);
    }
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
        kill(signal, &format!("-{}", client.id()));
        stage.wait_until_gone("held-x", Instant::now());
        assert_eq!(stage.status().unwrap().pid, status.pid, "SIG{signal}");
    }
}

fn after_a_kill_the_next_announcement_starts_another() {
    let stage = Stage::new();
    let mut client = stage.client_with("held-x", 1);
    let first = stage.status().unwrap().pid;
    kill("KILL", &first.to_string());
    eventually("it is dead", || stage.status().is_none());
    assert!(stage.socket.exists(), "a dead manager's socket stays");
    // How often the connection is looked at is bounded.
    eventually("the next announcement starts another", || {
        announce(&mut client);
        std::thread::sleep(Duration::from_millis(100));
        stage.status().is_some_and(|status| status.clients == 1)
    });
    assert_ne!(stage.status().unwrap().pid, first);
    client.kill();
    stage.wait_until_gone("held-x", Instant::now());
}

fn of_two_that_begin_together_one_is_the_manager() {
    for _ in 0..10 {
        let stage = Stage::new();
        let mut both: Vec<Child> = (0..2).map(|_| Child::spawn(stage.role("manager"))).collect();
        let mut words: Vec<String> = both.iter_mut().map(Child::line).collect();
        words.sort();
        assert_eq!(words, ["another", "listens"]);
        // One ends and one begins at the same time: there must be no moment in which neither can.
        assert!(manager::stop(Some(&stage.socket)).unwrap());
        let mut next = Child::spawn(stage.role("manager"));
        next.expect("listens");
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
    let mut left: Vec<PathBuf> = std::fs::read_dir(stage.base.path()).unwrap().map(|e| e.unwrap().path()).collect();
    left.retain(|path| *path != stage.arrays());
    assert!(left.is_empty(), "{left:?}");
    assert!(!stage.has("held-x"));
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

fn paths_of_any_length_will_do() {
    let mut stage = Stage::new();
    let runtime = stage.base.path().join("r".repeat(200));
    std::fs::create_dir(&runtime).unwrap();
    std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o700)).unwrap();
    stage.socket = runtime.join("ndshm-manager.sock");
    let mut command = stage.role("manager");
    command.env_remove("NDSHM_MANAGER_SOCKET").env("XDG_RUNTIME_DIR", &runtime);
    let mut manager = Child::spawn(command);
    manager.expect("listens");
    let mut client = stage.client_with("held-x", 1);
    client.kill();
    stage.wait_until_gone("held-x", Instant::now());
    drop(manager);
    // No runtime directory: one in the temporary directory.
    let temporary = stage.base.path().join("t".repeat(200));
    std::fs::create_dir(&temporary).unwrap();
    let user = rustix::process::geteuid().as_raw();
    stage.socket = temporary.join(format!("ndshm-manager-{user}")).join("ndshm-manager.sock");
    let mut command = stage.role("manager");
    command.env_remove("NDSHM_MANAGER_SOCKET").env_remove("XDG_RUNTIME_DIR").env("TMPDIR", &temporary);
    Child::spawn(command).expect("listens");
    // The last part of a path is what cannot be shortened.
    let options = ManagerOptions::new().socket(temporary.join("x".repeat(100)));
    let error = Manager::start(&options).unwrap_err();
    assert!(error.to_string().contains("last part of the path"), "{error}");
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 1, "nothing is left of it");
}

fn nonsense_is_answered_and_ends_the_connection() {
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
        let mut stream = UnixStream::connect(&stage.socket).unwrap();
        let _refused_half_way = stream.write_all(line);
        let mut answer = String::new();
        // What was not read any more resets the connection, perhaps before its answer.
        let end = stream.read_to_string(&mut answer);
        assert!(answer.contains(reason) || (line.len() > 10_000 && end.is_err()), "{answer:?}");
    }
    assert_eq!(stage.status().unwrap().clients, 0);
    let mut stream = UnixStream::connect(&stage.socket).unwrap();
    stream.write_all(b"ndshm-manager 1\nstatus\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ndshm-manager 1");
    assert!(lines.next().unwrap().unwrap().starts_with("status pid="));
}

fn a_directory_that_is_another_one_is_not_watched() {
    let stage = Stage::new();
    let _manager = stage.manager(&[]);
    let mut stream = UnixStream::connect(&stage.socket).unwrap();
    stream.write_all(b"ndshm-manager 1\nuse 1 2 shm /dev/shm\nlook 5 1 2\nstatus\n").unwrap();
    let mut lines = BufReader::new(stream).lines().skip(1);
    let answer = lines.next().unwrap().unwrap();
    assert!(answer.starts_with("no that directory is another one"), "{answer}");
    let answer = lines.next().unwrap().unwrap();
    assert!(answer.starts_with("no this client did not say"), "{answer}");
    assert!(lines.next().unwrap().unwrap().contains(" clients=0 "), "the connection stays");
}

fn with_all_clients_it_can_serve_it_still_answers() {
    let stage = Stage::new();
    let mut command = stage.command(Path::new("prlimit"), "manager");
    command.arg("--nofile=120").arg(program());
    let mut manager = Child::spawn(command);
    manager.expect("listens");
    let facts = std::fs::metadata(stage.arrays()).unwrap();
    let path = stage.arrays().canonicalize().unwrap();
    let connect = || {
        let mut stream = UnixStream::connect(&stage.socket).unwrap();
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
    assert!(manager::stop(Some(&stage.socket)).unwrap());
}

fn one_whose_socket_was_removed_makes_way() {
    let stage = Stage::new();
    let mut first = stage.manager(&[]);
    std::fs::remove_file(&stage.socket).unwrap();
    let _second = stage.manager(&[]);
    // It looks every ten seconds.
    first.expect("ended");
    assert!(stage.status().is_some(), "it did not take the other's socket with it");
}

fn something_else_at_the_socket_is_left_alone() {
    let stage = Stage::new();
    std::fs::write(&stage.socket, b"a file").unwrap();
    let start = || Manager::start(&ManagerOptions::new().socket(&stage.socket)).unwrap_err();
    assert!(matches!(start(), Error::Manager { reason, .. } if reason.contains("a file stands where")));
    assert_eq!(std::fs::read(&stage.socket).unwrap(), b"a file");
    std::fs::remove_file(&stage.socket).unwrap();
    std::os::unix::fs::symlink("elsewhere", &stage.socket).unwrap();
    assert!(matches!(start(), Error::Manager { reason, .. } if reason.contains("symbolic link")), "it is not followed");
    std::fs::remove_file(&stage.socket).unwrap();
    let _datagrams = UnixDatagram::bind(&stage.socket).unwrap();
    assert!(matches!(start(), Error::Os { .. }), "it is not taken for a manager");
    assert!(stage.socket.exists());
}

fn switched_off_it_is_neither_started_nor_told() {
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

fn one_that_cannot_be_started_is_one_warning() {
    let stage = Stage::new();
    let mut clients = ["/nonexistent/ndshm", "/bin/false"].map(|path| {
        let mut command = stage.role("manager-client");
        command.arg(stage.arrays()).env("NDSHM_MANAGER", path);
        Child::spawn(command)
    });
    for (number, client) in clients.iter_mut().enumerate() {
        announce(client);
        eventually("the warning", || {
            client.tell("warnings");
            client.line() == "1"
        });
        hold(client, &format!("works-without-{number}"));
    }
    // It is tried again after a second.
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
    assert!(!stage.socket.exists());
}

fn a_client_in_python_is_one_too() {
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
    command.args(["-B", "-c", SCRIPT]).arg(of_package("tests/it/python")).arg(stage.arrays());
    let mut client = Child::spawn({
        command.env("NDSHM_MANAGER_SOCKET", &stage.socket);
        command
    });
    let said = client.line();
    assert!(said.starts_with("status pid=") && said.contains(" clients=1 "), "{said}");
    let said = client.line();
    assert!(said.starts_with("no that directory is another one"), "{said}");
    let sweeps = || stage.status().unwrap().sweeps;
    let before = sweeps();
    client.tell("remind");
    eventually("its directory is looked through when it says so", || sweeps() > before);
    let before = sweeps();
    client.kill();
    stage.wait_for_clients(0);
    eventually("its directory is looked through", || sweeps() > before);
}

/// Runs a program as somebody else.
const STRANGER: u32 = 65534;

/// A copy of this program that everybody can reach. Made by another process: a descriptor of ours would be in every child
/// that is just being spawned, and what somebody may write to cannot be executed.
fn reachable(stage: &Stage) -> PathBuf {
    std::fs::set_permissions(stage.base.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let copy = stage.base.path().join("program");
    assert!(Command::new("install").args(["-m", "755"]).arg(program()).arg(&copy).status().unwrap().success());
    copy
}

fn as_stranger(mut command: Command) -> Child {
    command.uid(STRANGER).gid(STRANGER);
    Child::spawn(command)
}

fn a_stranger_is_refused_on_both_sides() {
    let stage = Stage::new();
    let program = reachable(&stage);
    // The stranger cannot connect to ours ..
    let manager = stage.manager(&[]);
    let mut asker = as_stranger(stage.command(&program, "manager-ask"));
    let said = asker.line();
    assert!(said.starts_with("denied 0: this user may not connect"), "{said}");
    // .. and if everybody may, it is refused by the one side,
    std::fs::set_permissions(&stage.socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    let said = as_stranger(stage.command(&program, "manager-ask")).line();
    assert!(said.starts_with("denied 0: another user's program listens"), "{said}");
    drop(manager);
    std::fs::remove_file(&stage.socket).unwrap();
    // and by the other.
    let mut manager = as_stranger(stage.command(&program, "manager"));
    manager.expect("listens");
    let mut stream = UnixStream::connect(&stage.socket).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "error this manager serves another user, not user 0\n");
    match manager::status(Some(&stage.socket)) {
        Err(Error::PermissionDenied { owner, reason, .. }) => {
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
    let start = || Manager::start(&ManagerOptions::new().socket(&stage.socket)).unwrap_err();
    drop(UnixListener::bind(&stage.socket).unwrap());
    chown(&stage.socket, Some(STRANGER), None).unwrap();
    assert!(matches!(start(), Error::PermissionDenied { owner: STRANGER, .. }));
    assert!(stage.socket.exists());
}
