//! For tests of sockets: a separate process, in which no other thread opens and closes descriptors, and a child to
//! communicate with.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::socket::Socket;

/// Write-locked by a thread that starts a process, until the child runs its own program.
static STARTING: RwLock<()> = RwLock::new(());

/// Keeps the tests of this program from starting processes: until a child runs its own program it has a copy of every
/// descriptor, and what a test closes is not closed yet.
pub(crate) fn no_children() -> RwLockReadGuard<'static, ()> {
    STARTING.read().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a process.
fn spawn(command: &mut Command) -> Child {
    let _starting = STARTING.write().unwrap_or_else(PoisonError::into_inner);
    command.spawn().unwrap()
}

const ROLE: &str = "NDSHM_UNIT_TEST_ROLE";

/// The test program itself, asked to run one test in another role.
fn again(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Runs the test of this name in a separate process. Returns `true` in that process, which must run the test, and
/// `false` in this one after the test has passed.
pub(crate) fn alone(test: &str) -> bool {
    if role().is_some() {
        return true;
    }
    let output = spawn(again(test, "alone").stdout(Stdio::piped()).stderr(Stdio::piped())).wait_with_output().unwrap();
    let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && told.contains("1 passed"), "{test} by itself: {told}");
    false
}

/// Runs the test of this name in a child that has `socket` as its standard input.
pub(crate) fn child(test: &str, socket: Socket) -> Child {
    let socket: OwnedFd = socket.into();
    spawn(again(test, "child").stdin(Stdio::from(socket)).stdout(Stdio::null()))
}

/// Returns, in the child, the socket that was given to [`child`]; `None` in the parent.
pub(crate) fn inherited() -> Option<Socket> {
    use std::os::fd::AsFd;
    (role()? == "child").then(|| std::io::stdin().as_fd().try_clone_to_owned().unwrap().into())
}

/// The numbers of the descriptors that this process has open.
fn descriptors() -> BTreeSet<usize> {
    let look = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = look.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap());
    // Reading the directory itself had one, which is closed by now.
    let still_open = |number: &usize| std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok();
    numbers.collect::<BTreeSet<usize>>().into_iter().filter(still_open).collect()
}

/// How many descriptors this process has open.
pub(crate) fn open_descriptors() -> usize {
    descriptors().len()
}

/// Lets this process open exactly `room` more descriptors. The system limits their numbers, and numbers between those
/// of open descriptors may be free.
pub(crate) fn leave_room_for(room: usize) {
    let open = descriptors();
    let first_forbidden = (0..).filter(|number| !open.contains(number)).nth(room).unwrap();
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(first_forbidden as u64), maximum }).unwrap();
}

/// Lets this process open as many descriptors as its hard limit allows.
pub(crate) fn leave_all_room() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}

/// Returns the open file of a socket.
pub(crate) fn file(socket: Socket) -> File {
    OwnedFd::from(socket).into()
}
