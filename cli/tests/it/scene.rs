//! A scene for each test: an emulated directory, a directory for volumes and temporary files, and names in real shared
//! memory. All of it is removed at the end.

#[path = "../../../tests/it/support/start.rs"]
mod start;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ndarray_shm::{Directory, Location, render};
use serde_json::Value;
use sysinfo::{Pid, ProcessRefreshKind, ProcessStatus, ProcessesToUpdate, Signal, System, UpdateKind};
use tempfile::TempDir;

use self::start::start;

/// The timeout of every wait. Nothing takes so long even on a slow machine, so reaching it is a failure.
pub(crate) const PATIENCE: Duration = Duration::from_mins(10);

/// The environment variable that says where temporary files are.
const TEMPORARY_DIRECTORY: &str = if cfg!(windows) { "TMP" } else { "TMPDIR" };

/// Directories that only one test uses.
pub(crate) struct Scene {
    root: TempDir,
    names: Vec<Location>,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let root = tempfile::Builder::new().prefix("ndshm-test-").tempdir().expect("a temporary directory");
        let scene = Self { root, names: Vec::new() };
        fs::create_dir(scene.emulated()).expect("made");
        #[cfg(unix)]
        scene.set_mode_of_emulated(0o700);
        fs::create_dir(scene.temporary()).expect("made");
        scene
    }

    /// Returns the path of the emulated directory, which is empty at first.
    pub(crate) fn emulated(&self) -> PathBuf {
        self.root.path().join("emulated")
    }

    /// Sets the permission bits of the emulated directory, which are 0700 at first.
    #[cfg(unix)]
    pub(crate) fn set_mode_of_emulated(&self, mode: u32) {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(self.emulated(), fs::Permissions::from_mode(mode)).expect("ours");
    }

    /// Returns the program's directory for temporary files.
    pub(crate) fn temporary(&self) -> PathBuf {
        self.root.path().join("temporary")
    }

    /// Returns a path for a volume.
    pub(crate) fn volume(&self) -> PathBuf {
        self.root.path().join("volume")
    }

    /// Returns the path of the manager's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.root.path().join("manager.sock")
    }

    /// Returns the emulated directory as a backend.
    pub(crate) fn directory(&self) -> Directory {
        Directory::new("emulated", self.emulated())
    }

    /// Returns the names of all files in the emulated directory.
    pub(crate) fn files(&self) -> Vec<String> {
        names_in(&self.emulated())
    }

    /// Returns the names of all files except those that Windows hides: unlinked files that are still mapped.
    pub(crate) fn names(&self) -> Vec<String> {
        self.files().into_iter().filter(|file| !(cfg!(windows) && file.starts_with(".ndshm-gone-"))).collect()
    }

    /// Returns a name in real shared memory that no other test uses. The scene removes it at the end.
    #[cfg(target_os = "linux")]
    pub(crate) fn shm_name(&mut self) -> String {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ndshm-test-{}-{next}", std::process::id());
        self.names.push(name.parse().expect("a good name"));
        name
    }

    /// Returns a command for the program with emulated shared memory.
    pub(crate) fn ndshm<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = self.ndshm_in_shm(arguments);
        command.env("EMULATE_SHM", "1");
        command
    }

    /// Returns a command for the program with real shared memory, on platforms that have it.
    pub(crate) fn ndshm_in_shm<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ndshm"));
        command
            .args(arguments)
            .env_remove("EMULATE_SHM")
            .env("NDSHM_EMULATED_DIR", self.emulated())
            .env(TEMPORARY_DIRECTORY, self.temporary())
            // No test uses the user's manager. Tests of the manager use the scene's socket.
            .env("NDSHM_MANAGER", "off")
            .env("NDSHM_MANAGER_SOCKET", self.socket())
            .stdin(Stdio::null());
        command
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = ndarray_shm::manager::stop(Some(&self.socket())); // few scenes have a manager
        let Ok(shm) = Directory::shm() else { return };
        for name in &self.names {
            let _ = shm.unlink(name);
            let _ = render::discard(&shm, name);
        }
    }
}

/// Returns the names in a directory, sorted.
pub(crate) fn names_in(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Exit code and output of a program that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Finished {
    /// Asserts the exit code, and that the program did not panic.
    #[track_caller]
    pub(crate) fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        assert!(!self.err.contains("panicked"), "{self:#?}");
        self
    }

    /// Reads the standard output as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }
}

/// Runs a program to its end.
pub(crate) fn run(command: &mut Command) -> Finished {
    Running::start(command).finish()
}

/// A running program. Dropping this kills it.
pub(crate) struct Running {
    child: Child,
    output: Option<thread::JoinHandle<(String, String)>>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = start(command.stdout(Stdio::piped()).stderr(Stdio::piped())).expect("the program starts");
        let (mut out, mut err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let output = thread::spawn(move || {
            let errors = thread::spawn(move || read(&mut err));
            (read(&mut out), errors.join().expect("read"))
        });
        Self { child, output: Some(output) }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_u32(self.child.id())
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    /// Kills it. It has no time to clean up.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the process is there");
    }

    /// Returns the worker processes that it has at this moment.
    pub(crate) fn workers(&self) -> Vec<Pid> {
        let mut system = System::new();
        let refresh = ProcessRefreshKind::nothing().with_cmd(UpdateKind::Always).without_tasks();
        system.refresh_processes_specifics(ProcessesToUpdate::All, true, refresh);
        system
            .processes()
            .values()
            .filter(|process| process.parent() == Some(self.pid()) && process.cmd().iter().any(|word| word == "worker"))
            .filter(|process| process.status() != ProcessStatus::Zombie)
            .map(sysinfo::Process::pid)
            .collect()
    }

    /// Waits for its end.
    pub(crate) fn finish(mut self) -> Finished {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("a child") {
                Some(status) => break status,
                None if start.elapsed() > PATIENCE => panic!("the program does not end"),
                None => thread::sleep(Duration::from_millis(1)),
            }
        };
        let (out, err) = self.output.take().expect("only once").join().expect("read");
        Finished { code: status.code(), out, err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the same command with the default action for SIGHUP. Under `nohup` the tests' children would inherit that it
/// is ignored.
#[cfg(unix)]
pub(crate) fn heeding_hangup(command: &Command) -> Command {
    // Only GNU's `env` has the option. On other platforms, do not run the tests under `nohup`.
    let mut heeding = if cfg!(target_os = "linux") {
        let mut env = Command::new("env");
        env.arg("--default-signal=HUP").arg(command.get_program());
        env
    } else {
        Command::new(command.get_program())
    };
    heeding.args(command.get_args()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => heeding.env(name, value),
            None => heeding.env_remove(name),
        };
    }
    heeding
}

/// Returns the command in a mount namespace of its own, where `script` runs first. Returns `None`, and prints that the
/// test did not run, if this user cannot create one.
#[cfg(target_os = "linux")]
pub(crate) fn with_mounts(test: &str, script: &str, command: &Command) -> Option<Command> {
    const WAYS: [&[&str]; 2] = [&["-m", "--propagation", "private"], &["-U", "-r", "-m", "--propagation", "private"]];
    let mut ways = WAYS.into_iter();
    let way = ways.find(|way| {
        let tried = Command::new("unshare").args(*way).args(["mount", "-t", "tmpfs", "none", "/dev/shm"]).output();
        tried.is_ok_and(|output| output.status.success())
    });
    let Some(way) = way else {
        not_run(test, "this user cannot create private mounts");
        return None;
    };
    let script = format!("{script}\nexec \"$0\" \"$@\"");
    Some(wrapped(command, "unshare", &[way, &["sh", "-e", "-c", &script]].concat()))
}

/// Returns the command for a process that must obey file permissions even if it is root's. Returns `None`, and prints
/// that the test did not run, if `setpriv` fails.
#[cfg(target_os = "linux")]
pub(crate) fn bound_by_rights(test: &str, command: &Command) -> Option<Command> {
    const LESS: &[&str] = &["--bounding-set", "-dac_override,-dac_read_search"];
    if !rustix::process::geteuid().is_root() {
        return Some(wrapped(command, "env", &[]));
    }
    let tried = Command::new("setpriv").args(LESS).arg("true").output();
    if tried.is_ok_and(|output| output.status.success()) {
        return Some(wrapped(command, "setpriv", LESS));
    }
    not_run(test, "it needs setpriv, which takes permissions from root");
    None
}

/// Prints that a test did not run, past the test harness's capture.
pub(crate) fn not_run(test: &str, reason: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "NOT RUN: {test}: {reason}");
}

/// Returns a command that runs `program` with the command as its last arguments, in the same environment.
#[cfg(target_os = "linux")]
fn wrapped(command: &Command, program: &str, arguments: &[&str]) -> Command {
    let mut wrapped = Command::new(program);
    wrapped.args(arguments).arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    wrapped
}

/// Sends a signal to a process; Windows has only `Kill`. Returns `false` if the process does not exist.
pub(crate) fn signal(pid: Pid, signal: Signal) -> bool {
    look_at(pid).process(pid).is_some_and(|process| process.kill_with(signal).expect("a signal of this platform"))
}

/// Returns whether a process is running. A zombie is not.
pub(crate) fn is_running(pid: Pid) -> bool {
    let gone = [ProcessStatus::Zombie, ProcessStatus::Dead];
    look_at(pid).process(pid).is_some_and(|process| !gone.contains(&process.status()))
}

fn look_at(pid: Pid) -> System {
    let mut system = System::new();
    system.refresh_processes_specifics(
        ProcessesToUpdate::Some(&[pid]),
        true,
        ProcessRefreshKind::nothing().without_tasks(),
    );
    system
}

fn read(stream: &mut impl std::io::Read) -> String {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("readable");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits until `is_true` returns `true`, or panics after [`PATIENCE`].
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < PATIENCE, "timed out waiting for {what}");
        thread::sleep(Duration::from_micros(500));
    }
}

/// Returns a path as text.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}
