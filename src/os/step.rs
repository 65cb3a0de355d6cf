//! Named steps: moments between two system calls at which a test stops this process, to see what others can do then.
//!
//! This file is compiled in debug builds with `--cfg ndshm_steps` only: `.cargo/config.toml` says that for this repository, and
//! nothing says it for a crate that depends on this one. Elsewhere a step is nothing at all.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Signal, getpid, kill_process};

/// Names the step at which the process stops itself, the first time that it comes there; or, with `every N`, says that it does so at
/// each step with a number that N divides.
const WHERE: &str = "NDSHM_STEP";

/// Stops the process, if this is the step that the environment names. In the main thread nothing more is run before it is continued.
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
