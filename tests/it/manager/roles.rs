//! The roles of the children of these tests: managers, clients, and the program that clients start as their manager.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ndarray_shm::manager::{self, Manager, ManagerOptions, Program};
use ndarray_shm::{CreateOptions, Directory, Error, ErrorKind};

use crate::support::child::{ROLE, hear, program, say};
use crate::support::eventually;

/// A role: runs the manager of the socket that the environment names. The argument is its idle time in milliseconds.
pub fn be_manager(arguments: &[String]) {
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

/// A role: a client that executes requests. Started with the argument `manager`, it acts as `ndshm manager`.
pub fn be_client(arguments: &[String]) {
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
                let options = CreateOptions::new().directory(backend());
                arrays.push(options.create_counted::<u8, _>(name, 4).unwrap());
                say("held");
            }
            ("fork", _) => say(fork()),
            ("fork-announce", name) => say(fork_and(|| {
                manager::announce(&backend());
                let options = CreateOptions::new().directory(backend());
                let _held = options.create_counted::<u8, _>(name, 4).unwrap();
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

pub fn sleep(_arguments: &[String]) {
    say("sleeps");
    hear();
}

/// Forks a child that only sleeps, and returns its process number.
fn fork() -> u32 {
    fork_and(|| std::thread::sleep(Duration::from_secs(60)))
}

#[allow(unsafe_code)]
fn fork_and(action: impl FnOnce()) -> u32 {
    // SAFETY: the child continues with a copy of this thread. The C library keeps its allocator usable in a forked
    // child.
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

/// Acts as the program that a client starts as its manager.
fn be_program(arguments: &[String]) {
    let socket = PathBuf::from(&arguments[3]);
    if arguments[1] == "--detach" {
        let mut command = Command::new(program());
        command.args(["manager", "--background", "--socket"]).arg(&socket);
        let mut started = manager::spawn_detached(&mut command).unwrap();
        eventually("the manager listens", || {
            let _ = started.try_wait().unwrap(); // it ends at once if another manager was first
            manager::status(Some(&socket)).unwrap().is_some()
        });
    } else {
        manager::leave_session().unwrap();
        manager::run(&ManagerOptions::new().socket(&socket).idle_exit(Duration::from_secs(60))).unwrap();
    }
}

/// A role: reports the manager's status, or the error.
pub fn ask(_arguments: &[String]) {
    match manager::status(None) {
        Ok(Some(status)) => say(format!("runs {}", status.pid)),
        Ok(None) => say("none"),
        Err(Error { kind: ErrorKind::PermissionDenied { owner, reason, .. }, .. }) => {
            say(format!("denied {owner}: {reason}"));
        }
        Err(error) => say(error),
    }
}
