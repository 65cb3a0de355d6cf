//! `ndshm manager`: runs the process that removes what killed processes leave behind, shows its status, and stops it.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use ndarray_shm::manager::{self, Manager, ManagerOptions, Status};
use serde::Serialize;

use crate::args::{ManagerArgs, ManagerCommand};
use crate::exit::{Exit, Failure};
use crate::interrupt;
use crate::machine::host;
use crate::show::{report, units};

/// How long a manager in the background runs without a client.
const IDLE: Duration = Duration::from_mins(1);

/// How long `--detach` waits until the new manager listens.
const PATIENCE: Duration = Duration::from_secs(10);

/// What `manager status --json` prints.
#[derive(Debug, Serialize)]
struct ManagerReport {
    running: bool,
    socket: String,
    #[serde(flatten)]
    facts: Option<ManagerFacts>,
}

#[derive(Debug, Serialize)]
struct ManagerFacts {
    pid: u32,
    version: String,
    uptime_seconds: f64,
    clients: usize,
    directories: usize,
    sweeps: u64,
    reclaimed: u64,
}

/// Runs `ndshm manager`.
pub(crate) fn run(args: &ManagerArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    match &args.command {
        Some(ManagerCommand::Status { output, socket }) => status(output.json, socket.path.as_deref(), out),
        Some(ManagerCommand::Stop { socket }) => stop(socket.path.as_deref(), out),
        None if args.detach => detach(args, out),
        None => serve(args, out),
    }
}

fn serve(args: &ManagerArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    if args.background {
        manager::leave_session()?;
    }
    let mut options = ManagerOptions::new();
    if let Some(path) = &args.socket.path {
        options = options.socket(path);
    }
    if let Some(idle) = args.idle.map(Duration::from_secs).or(args.background.then_some(IDLE)) {
        options = options.idle_exit(idle);
    }
    let Some(manager) = Manager::start(&options)? else {
        return already(manager::status(args.socket.path.as_deref())?.as_ref(), out);
    };
    // Each client needs two descriptors.
    host::raise_descriptor_limit();
    let stopper = manager.stopper();
    interrupt::call(move || stopper.stop())?;
    writeln!(out, "process {} listens at {}", std::process::id(), manager.socket().display())?;
    out.flush()?;
    manager.run()?;
    Ok(Exit::Done)
}

fn already(status: Option<&Status>, out: &mut dyn Write) -> Result<Exit, Failure> {
    match status {
        Some(status) => writeln!(out, "a manager is already running: process {}", status.pid)?,
        None => writeln!(out, "a manager was already running, but has just ended")?,
    }
    Ok(Exit::Done)
}

/// Starts this program again in the background and waits until it listens.
fn detach(args: &ManagerArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let socket = args.socket.path.as_deref();
    // An error here is the one that the new process would fail with.
    if let Some(status) = manager::status(socket)? {
        return already(Some(&status), out);
    }
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot find this program's executable: {error}")))?;
    let mut command = Command::new(program);
    command.args(["manager", "--background"]);
    // The new process starts in another directory, so the path must be absolute.
    command.arg("--socket").arg(manager::socket_path(socket)?);
    if let Some(idle) = args.idle {
        command.args(["--idle", &idle.to_string()]);
    }
    let mut child = manager::spawn_detached(&mut command)?;
    let begin = Instant::now();
    loop {
        let ended = child.try_wait().ok().flatten();
        if let Some(status) = manager::status(socket)? {
            writeln!(out, "process {} runs in the background", status.pid)?;
            return Ok(Exit::Done);
        }
        if ended.is_some_and(|status| !status.success()) || begin.elapsed() > PATIENCE {
            let failure = Failure::new(Exit::Failed, "the manager did not start");
            return Err(failure.advice("run `ndshm manager` without --detach to see why"));
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn status(json: bool, socket: Option<&Path>, out: &mut dyn Write) -> Result<Exit, Failure> {
    let status = manager::status(socket)?;
    let path = manager::socket_path(socket)?.display().to_string();
    let exit = if status.is_some() { Exit::Done } else { Exit::NotFound };
    if json {
        let facts = status.map(|status| ManagerFacts {
            pid: status.pid,
            version: status.version,
            uptime_seconds: status.uptime.as_secs_f64(),
            clients: status.clients,
            directories: status.directories,
            sweeps: status.sweeps,
            reclaimed: status.reclaimed,
        });
        report::json(out, &ManagerReport { running: facts.is_some(), socket: path, facts })?;
        return Ok(exit);
    }
    let Some(status) = status else { return Err(none(&path)) };
    writeln!(out, "manager, process {}", status.pid)?;
    let facts = [
        ("socket", path),
        ("version", status.version),
        ("running for", units::age(status.uptime)),
        ("clients", status.clients.to_string()),
        ("directories", status.directories.to_string()),
        ("looked", format!("{} times", status.sweeps)),
        ("removed", format!("{} arrays", status.reclaimed)),
    ];
    report::facts(out, &facts)?;
    Ok(exit)
}

fn stop(socket: Option<&Path>, out: &mut dyn Write) -> Result<Exit, Failure> {
    if !manager::stop(socket)? {
        return Err(none(&manager::socket_path(socket)?.display().to_string()));
    }
    writeln!(out, "the manager has ended")?;
    Ok(Exit::Done)
}

fn none(socket: &str) -> Failure {
    Failure::new(Exit::NotFound, format!("no manager listens at {socket}"))
}
