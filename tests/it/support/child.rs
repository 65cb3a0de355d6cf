//! Child processes: the same program in another role, which parent and child speak with line by line.

use std::io::{BufRead, BufReader, Write};
#[cfg(target_os = "linux")]
use std::path::Path;
use std::path::PathBuf;
use std::process::{Child as Process, ChildStdin, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use super::Place;
use super::machine::send_signal;
use super::start::start;

pub const ROLE: &str = "NDSHM_TEST_ROLE";

/// How long a child may take for anything before the test fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// The program that children run: this one, or what `NDSHM_TEST_PROGRAM` names, a build of it for another platform.
pub fn program() -> PathBuf {
    let other = std::env::var_os("NDSHM_TEST_PROGRAM").map(PathBuf::from);
    other.unwrap_or_else(|| std::env::current_exe().expect("this program's path"))
}

/// Copies the program, for children of other users.
#[cfg(target_os = "linux")]
pub fn copy_program(to: &Path) {
    // Another process copies the file. Every child that this process spawns meanwhile would inherit a descriptor of the
    // copy, and a file that is open for writing cannot be executed.
    let mut install = Command::new("install");
    install.args(["-m", "755"]).arg(program()).arg(to);
    assert!(install.status().expect("install runs").success());
}

/// What a child does. It gets its arguments, and speaks with the parent through `say` and `hear`.
pub type Role = fn(&[String]);

/// Plays the role that the environment names; `None` if it names none.
pub fn play(roles: &[(&str, Role)]) -> Option<ExitCode> {
    let name = std::env::var(ROLE).ok()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let role = roles.iter().find(|(known, _)| *known == name);
    let (_, role) = role.unwrap_or_else(|| panic!("no role is called {name:?}"));
    role(&arguments);
    Some(ExitCode::SUCCESS)
}

/// In a child: sends a line to the parent.
pub fn say(line: impl std::fmt::Display) {
    println!("{line}");
    std::io::stdout().flush().expect("the parent listens");
}

/// In a child: waits for a line of the parent. Ends the process if the parent has ended.
pub fn hear() -> String {
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).unwrap_or(0) == 0 {
        std::process::exit(9);
    }
    line.trim_end().to_owned()
}

/// A running child, killed on drop.
#[derive(Debug)]
pub struct Child {
    process: Process,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

/// Whether a child of this process, which must not have ended, has stopped itself at its step.
#[cfg(ndshm_steps)]
pub fn is_stopped(process: u32) -> bool {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let id = rustix::process::Pid::from_raw(process as i32).expect("a process");
    let any = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(id), any).expect("it is a child");
    assert!(!status.as_ref().is_some_and(|status| status.exited() || status.killed()), "it ended before its step");
    status.is_some_and(|status| status.stopped())
}

impl Child {
    /// Starts a role in a place.
    pub fn start(place: &Place, role: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(program());
        command.env(ROLE, role).envs(place.environment()).args(arguments);
        Self::spawn(command)
    }

    /// Starts any command as a child, with its standard input and output.
    pub fn spawn(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = start(&mut command).unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let stdout = process.stdout.take().expect("piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { stdin: process.stdin.take(), process, lines }
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends a line to the child.
    pub fn tell(&mut self, line: impl std::fmt::Display) {
        let stdin = self.stdin.as_mut().expect("not closed");
        writeln!(stdin, "{line}").expect("the child listens");
        stdin.flush().expect("the child listens");
    }

    /// Waits for the child's next line.
    pub fn line(&mut self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("child {} says nothing", self.id()),
            Err(RecvTimeoutError::Disconnected) => panic!("child ended without a word: {:?}", self.process.wait()),
        }
    }

    /// Sends a line to the child and waits for its answer.
    pub fn ask(&mut self, question: impl std::fmt::Display) -> String {
        self.tell(question);
        self.line()
    }

    /// Waits for a line within a time; `None` if there is none.
    pub fn line_within(&mut self, limit: Duration) -> Option<String> {
        self.lines.recv_timeout(limit).ok()
    }

    /// Waits for the child's end and returns its lines that were not read yet. The child must be killed before, or end
    /// by itself.
    pub fn rest(&mut self) -> Vec<String> {
        self.lines.iter().collect()
    }

    /// Waits for exactly this line.
    pub fn expect(&mut self, line: &str) {
        assert_eq!(self.line(), line);
    }

    /// Stops every thread of the child, where there is a signal for it. Elsewhere it does nothing: a child that has
    /// said something and expects an answer waits anyway.
    pub fn stop(&self) {
        if cfg!(unix) {
            send_signal("STOP", self.id());
        }
    }

    /// Starts a role that stops itself at a named step of the library, and waits until it has.
    #[cfg(ndshm_steps)]
    pub fn start_until(place: &Place, role: &str, arguments: &[&str], step: &str) -> Self {
        let child = Self::start_with_step(place, role, arguments, step);
        super::eventually("the child reaches its step", || child.is_stopped());
        child
    }

    /// Starts a role that stops itself at a named step of the library, if it reaches it.
    #[cfg(ndshm_steps)]
    pub fn start_with_step(place: &Place, role: &str, arguments: &[&str], step: &str) -> Self {
        let mut command = Command::new(program());
        command.env(ROLE, role).env("NDSHM_STEP", step).envs(place.environment()).args(arguments);
        Self::spawn(command)
    }

    /// Whether the child, which must not have ended, has stopped itself at its step.
    #[cfg(ndshm_steps)]
    pub fn is_stopped(&self) -> bool {
        is_stopped(self.id())
    }

    /// Lets a stopped child go on.
    #[cfg(ndshm_steps)]
    pub fn resume(&self) {
        let id = rustix::process::Pid::from_raw(self.id() as i32).expect("a process");
        rustix::process::kill_process(id, rustix::process::Signal::CONT).expect("it is there");
    }

    /// Kills the child as `kill -9` and `TerminateProcess` do, and waits until it is gone.
    pub fn kill(&mut self) {
        self.process.kill().expect("it can be killed");
        self.process.wait().expect("it can be waited for");
    }

    /// Kills the child, which must not have ended by a panic before.
    pub fn kill_alive(&mut self) {
        self.kill();
        let status = self.end();
        assert_ne!(status.code(), Some(101), "the child had panicked before it was killed");
    }

    /// Waits for the child's end and returns its status.
    pub fn end(&mut self) -> ExitStatus {
        self.stdin = None;
        self.process.wait().expect("it can be waited for")
    }

    /// Waits for the child's end, which must be a success.
    pub fn finish(mut self) {
        let status = self.end();
        assert!(status.success(), "child ended with {status}");
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have ended already
        let _ = self.process.wait();
    }
}

/// Lets signals of the terminal end this process and its children. A shell starts background processes with some of
/// these signals ignored, and children inherit that.
#[cfg(unix)]
#[allow(unsafe_code)]
pub fn hear_the_terminal() {
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
        // SAFETY: no handler is installed, and no other thread runs yet.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}
