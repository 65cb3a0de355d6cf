//! What asks the program to end, turned into the flag that downloads look at.
//!
//! A worker sees the flag after its chunk, cleans up and returns. A request to a server that does not answer sees no
//! flag: a second signal ends the program at once, as a kill would, and so does the first one before there is anything
//! to clean up.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use ndarray_shm_volume::{Retries, StopFlag, VolumeUrl};

use crate::exit::{Exit, Failure};

/// A second signal that comes sooner than this is the first one, sent twice: to the process and to its group.
const TWICE: Duration = Duration::from_secs(1);

/// What is said after a second signal.
const AGAIN: &str = "interrupted twice: what is painted was left as it is";

/// How long a server may be silent before the user is told, and the pause until the user is told again.
const SILENCE: Duration = Duration::from_secs(5);

/// How long a request may be retried before the user is told.
pub(crate) const RETRIED: Duration = Duration::from_secs(1);

/// Opens a volume. There is nothing to clean up yet, so a signal ends the program at once. If the server does not
/// answer, which may last minutes, the user is told why.
pub(crate) fn opening<T>(stop: &StopFlag, url: &VolumeUrl, open: impl FnOnce() -> T) -> T {
    const TICK: Duration = Duration::from_millis(20);

    let (opened, is_open) = mpsc::channel::<()>();
    let (stop, name) = (stop.clone(), crate::show::units::printable(&url.to_string()));
    let retries = Retries::new();
    let watched = retries.clone();
    std::thread::spawn(move || {
        let begin = Instant::now();
        let mut told: Option<Instant> = None;
        while is_open.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            if stop.is_stopped() {
                end(&format!("interrupted while waiting for {name}"));
            }
            if told.is_some_and(|told| told.elapsed() < SILENCE) {
                continue;
            }
            let retry = watched.current().filter(|retry| retry.elapsed >= RETRIED);
            if retry.is_some() || (told.is_none() && begin.elapsed() > SILENCE) {
                told = Some(Instant::now());
                let retry =
                    retry.map_or_else(String::new, |retry| crate::show::units::printable(&format!("{retry}: ")));
                eprintln!("still waiting for {name}: {retry}NDSHM_RETRY_SECONDS says for how long, Ctrl-C ends it");
            }
        }
    });
    let result = retries.run(open);
    drop(opened);
    result
}

/// Ends the program without cleaning up.
fn end(message: &str) -> ! {
    Failure::new(Exit::Interrupted, message).end()
}

/// Returns a flag that Ctrl-C raises; on Unix (SIGINT) also SIGTERM and, unless it is ignored as under `nohup`, SIGHUP;
/// on Windows also Ctrl-Break.
pub(crate) fn flag() -> Result<StopFlag, Failure> {
    let stop = StopFlag::new();
    listen(stop.clone()).map_err(|error| Failure::new(Exit::Failed, format!("cannot listen to signals: {error}")))?;
    Ok(stop)
}

/// Fails if the flag is raised, in a command that leaves nothing behind then.
pub(crate) fn check(stop: &StopFlag) -> Result<(), Failure> {
    if stop.is_stopped() {
        Err(Failure::new(Exit::Interrupted, "interrupted; nothing was left behind"))
    } else {
        Ok(())
    }
}

/// Calls `action` once, from a thread of its own, when any of the signals of [`flag`] comes.
#[cfg(unix)]
pub(crate) fn call(action: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

    let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter();
    let wanted = wanted.filter(|signal| *signal != SIGHUP || !crate::machine::host::ignores(*signal));
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

    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

    /// How long a signal may go unnoticed.
    const PATIENCE: Duration = Duration::from_millis(10);

    let caught = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if signal != SIGHUP || !crate::machine::host::ignores(signal) {
            signal_hook::flag::register(signal, Arc::clone(&caught))?;
        }
    }
    // A handler may do next to nothing, so a thread carries its word to the flag. It ends with the process.
    std::thread::spawn(move || {
        while !caught.load(Ordering::Relaxed) {
            std::thread::sleep(PATIENCE);
        }
        stop.stop();
        std::thread::sleep(TWICE);
        caught.store(false, Ordering::Relaxed);
        while !caught.load(Ordering::Relaxed) {
            std::thread::sleep(PATIENCE);
        }
        end(AGAIN);
    });
    Ok(())
}

#[cfg(windows)]
fn listen(stop: StopFlag) -> io::Result<()> {
    let mut first = None;
    let asked = move || {
        if first.get_or_insert_with(Instant::now).elapsed() > TWICE {
            end(AGAIN);
        }
        stop.stop();
    };
    ctrlc::set_handler(asked).map_err(io::Error::other)
}
