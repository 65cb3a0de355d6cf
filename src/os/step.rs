//! Named steps: moments between two system calls at which a test stops this process, to see what other processes can do
//! then.
//!
//! Points are moments before a word of shared memory is read or changed, which is no system call: there the process
//! makes one, so that a program that traces it (tests/explore) can let another process go on.
//!
//! This file is compiled only in debug builds with `--cfg ndshm_steps`. `.cargo/config.toml` sets that for this
//! repository, but not for crates that depend on this one. Elsewhere steps and points do nothing.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Signal, getpid, kill_process};

/// The environment variable with the name of a step: the process stops itself when it first reaches that step. With
/// `every N` it stops itself at every Nth step instead.
const WHERE: &str = "NDSHM_STEP";

/// Stops the process, if this is the step that the environment names. The main thread runs nothing more before it is
/// continued.
pub(crate) fn step(name: &str) {
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let Ok(at) = std::env::var(WHERE) else { return };
    let every = at.strip_prefix("every ").and_then(|number| number.parse::<u64>().ok());
    let is_here = match every {
        Some(every) => PASSED.fetch_add(1, Ordering::Relaxed) % every == every - 1,
        None => at == name && PASSED.fetch_add(1, Ordering::Relaxed) == 0,
    };
    if is_here {
        kill_process(getpid(), Signal::STOP).expect("a process may stop itself");
    }
}

/// The environment variable that has points make their system call.
const POINTS: &str = "NDSHM_POINTS";

/// The number of a system call that does not exist, and the argument by which a point differs from its other uses in
/// tests/explore.
const MARK: libc::c_long = 0x6e64_7368;
const MEMORY: libc::c_long = 1;

/// Tells a tracing program that a word of shared memory is read or changed next.
#[allow(unsafe_code)]
pub(crate) fn point(changes: bool) {
    static ARE_MADE: LazyLock<bool> = LazyLock::new(|| std::env::var_os(POINTS).is_some());
    if *ARE_MADE {
        // SAFETY: the kernel knows no such call, and returns an error.
        unsafe { libc::syscall(MARK, MEMORY, libc::c_long::from(changes), 0) };
    }
}
