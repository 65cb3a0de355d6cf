//! What asks the program to end, turned into the flag that downloads look at.
//!
//! Nothing is printed: whoever works sees the flag after its chunk, cleans up and returns. Who asks a second time does not want to
//! wait for that; what is left then is what a kill leaves, and can be continued.

use std::io;

use ndarray_shm_volume::StopFlag;

use crate::exit::{Exit, Failure};

/// Returns a flag that Ctrl-C raises; on Unix (SIGINT) also SIGTERM and, unless it is ignored as under `nohup`, SIGHUP;
/// on Windows also Ctrl-Break.
pub(crate) fn flag() -> Result<StopFlag, Failure> {
    let stop = StopFlag::new();
    listen(stop.clone()).map_err(|error| Failure::new(Exit::Failed, format!("cannot listen to signals: {error}")))?;
    Ok(stop)
}

/// Calls `action` once, from a thread of its own, when any of the signals of [`flag`] comes.
#[cfg(unix)]
pub(crate) fn call(action: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

    let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter();
    let wanted = wanted.filter(|signal| *signal != SIGHUP || !crate::host::ignores(*signal));
    let mut signals = signal_hook::iterator::Signals::new(wanted)
        .map_err(|error| Failure::new(Exit::Failed, format!("cannot listen to signals: {error}")))?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            action();
        }
    });
    Ok(())
}

/// Calls `action` on Ctrl-C.
#[cfg(windows)]
pub(crate) fn call(action: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let mut action = Some(action);
    let call = move || {
        if let Some(action) = action.take() {
            action();
        }
    };
    ctrlc::set_handler(call).map_err(|error| Failure::new(Exit::Failed, format!("cannot listen to signals: {error}")))
}

#[cfg(unix)]
fn listen(stop: StopFlag) -> io::Result<()> {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

    /// As [`Exit::Interrupted`].
    const INTERRUPTED: i32 = 130;

    /// How long a signal may go unnoticed.
    const PATIENCE: Duration = Duration::from_millis(10);

    let caught = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if signal != SIGHUP || !crate::host::ignores(signal) {
            // In this order: the second one ends the program where it stands, as a kill would, even while it waits for a server.
            signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&caught))?;
            signal_hook::flag::register(signal, Arc::clone(&caught))?;
        }
    }
    // A handler may do next to nothing, so a thread carries its word to the flag. It ends with the process.
    std::thread::spawn(move || {
        while !caught.load(Ordering::Relaxed) {
            std::thread::sleep(PATIENCE);
        }
        stop.stop();
    });
    Ok(())
}

#[cfg(windows)]
fn listen(stop: StopFlag) -> io::Result<()> {
    ctrlc::set_handler(move || stop.stop()).map_err(io::Error::other)
}
