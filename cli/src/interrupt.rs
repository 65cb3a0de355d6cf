//! Signals that ask the program to end, turned into the flag that downloads look at.
//!
//! Nothing is printed and nothing exits here: whoever works sees the flag after its chunk, cleans up and returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ndarray_shm_volume::StopFlag;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::exit::{Exit, Failure};

/// How long a signal may go unnoticed.
const PATIENCE: Duration = Duration::from_millis(10);

/// Returns a flag that Ctrl-C (SIGINT), SIGTERM and, unless it is ignored as under `nohup`, SIGHUP raise.
pub(crate) fn flag() -> Result<StopFlag, Failure> {
    let caught = Arc::new(AtomicBool::new(false));
    for signal in signals() {
        signal_hook::flag::register(signal, Arc::clone(&caught))
            .map_err(|error| Failure::new(Exit::Failed, format!("cannot listen to signals: {error}")))?;
    }
    let stop = StopFlag::new();
    let raised = stop.clone();
    // A handler may do next to nothing, so a thread carries its word to the flag. It ends with the process.
    thread::spawn(move || {
        while !caught.load(Ordering::Relaxed) {
            thread::sleep(PATIENCE);
        }
        raised.stop();
    });
    Ok(stop)
}

#[cfg(unix)]
fn signals() -> Vec<i32> {
    let mut signals = vec![SIGINT, SIGTERM];
    if !crate::host::ignores(signal_hook::consts::SIGHUP) {
        signals.push(signal_hook::consts::SIGHUP);
    }
    signals
}

#[cfg(not(unix))]
fn signals() -> Vec<i32> {
    vec![SIGINT, SIGTERM]
}
