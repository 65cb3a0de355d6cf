//! Named steps: moments between two system calls at which a test stops this process, to see what others can do then.
//!
//! This file is compiled with `--cfg ndshm_steps` only, which no released build has. Without it a step is nothing at all.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Signal, getpid, kill_process};

/// Names the step at which the process stops itself, the first time that it comes there.
const WHERE: &str = "NDSHM_STEP";

/// Stops the process, if this is the step that the environment names. In the main thread nothing more is run before it is continued.
pub(crate) fn step(name: &str) {
    static STOPPED: AtomicBool = AtomicBool::new(false);
    if std::env::var_os(WHERE).is_some_and(|at| at == name) && !STOPPED.swap(true, Ordering::Relaxed) {
        kill_process(getpid(), Signal::STOP).expect("a process may stop itself");
    }
}
