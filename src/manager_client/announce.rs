//! Announces to the manager which directories this process uses, and starts a manager if there is none.
//!
//! Nothing here fails or waits for long: without a manager everything works, only the memory of killed processes is
//! freed later. A process keeps one connection as long as it lives. A forked child makes its own: the inherited one
//! belongs to its parent, and the child neither uses nor closes it.

use std::io;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::address;
use super::program::{self, Program};
use super::wire::{self, CANNOT, GREETING, REFUSAL, Talk, Use};
use crate::backend::Directory;
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result, with_causes};
use crate::os::{FileId, PerProcess};

/// Maximum number of directories that one process announces.
const MOST: usize = 64;

/// How long an announcement waits for another thread's announcement.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long a reminder waits for another thread: it is sent while an array is dropped.
const REMINDER: Duration = Duration::from_micros(100);

/// The shortest time between two checks of the connection, and the pause after the first failure.
const LOOK: Duration = Duration::from_secs(1);

/// The longest pause between attempts to find or start a manager.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// How long a manager that was started may take to listen.
const START: Duration = Duration::from_secs(10);

static STATE: PerProcess<Announcer> = PerProcess::new();

#[derive(Debug, Default)]
struct Announcer {
    known: Vec<Known>,
    connection: Option<Talk>,
    /// Whether a thread is starting a manager and will connect to it.
    starting: bool,
    /// When to check the connection next.
    look_at: Option<Instant>,
    /// Failures since the last connection.
    failures: u32,
}

#[derive(Debug)]
struct Known {
    /// The path as the caller wrote it.
    directory: PathBuf,
    backend: String,
    /// Whether it was announced on this connection, or cannot be announced because it does not exist.
    told: bool,
    /// Its identity when it was announced.
    id: Option<FileId>,
    /// The time of the last reminder's search, past or to come.
    look: Option<Instant>,
}

/// Announces to the manager that this process uses counted arrays of a directory, and starts a manager if there is
/// none.
///
/// [Counted arrays](crate::counted) call this by themselves. It never fails. It waits at most 100 ms, for another
/// thread that announces at the same time. Starting a manager is left to a thread that ends within seconds.
pub fn announce(backend: &Directory) {
    let choice = program::choice();
    if choice == Program::Off {
        return;
    }
    let Some(mut slot) = STATE.lock(PATIENCE) else { return };
    let state = slot.value.get_or_insert_default();
    state.learn(backend.path(), backend.name());
    let now = Instant::now();
    if state.look_at.is_none_or(|at| now >= at) {
        state.look_at = Some(now + LOOK);
        let is_refused = state.listen();
        if state.connection.is_none() && !state.starting && !is_refused {
            match address::socket_path(None).and_then(|path| Ok((address::connect(&path)?, path))) {
                Ok((Some(talk), _)) => state.connect(talk),
                Ok((None, path)) => state.begin(choice, path),
                Err(error) => state.fail(&error),
            }
        }
    }
    state.tell();
}

/// Reminds the manager, if there is one, to search a directory when the tickets of an array in flight have expired. No
/// death would make it search then, and only the tickets still keep the array's name.
///
/// Called while an array is dropped. It fails silently: the manager also searches at regular intervals.
pub(crate) fn remind(directory: &Directory, after: Duration) {
    if program::choice() == Program::Off {
        return;
    }
    if let Some(mut slot) = STATE.lock(REMINDER) {
        slot.value.get_or_insert_default().remind(directory.path(), directory.name(), after);
    }
}

impl Announcer {
    fn known(&mut self, directory: &Path, backend: &str) -> Option<&mut Known> {
        self.known.iter_mut().find(|known| known.directory == directory && known.backend == backend)
    }

    /// Adds a directory, if there is room.
    fn learn(&mut self, directory: &Path, backend: &str) {
        if self.known(directory, backend).is_none() && self.known.len() < MOST {
            let (directory, backend) = (directory.to_owned(), backend.to_owned());
            self.known.push(Known { directory, backend, told: false, id: None, look: None });
        }
    }

    /// Uses this connection from now on. All directories will be announced on it.
    fn connect(&mut self, talk: Talk) {
        if talk.say(GREETING).is_ok() {
            self.known.iter_mut().for_each(|known| known.told = false);
            self.connection = Some(talk);
            self.failures = 0;
        }
    }

    /// Announces the directories that were not announced on this connection yet.
    fn tell(&mut self) {
        let Some(talk) = &self.connection else { return };
        for known in self.known.iter_mut().filter(|known| !known.told) {
            known.told = match Use::of(&known.directory, &known.backend) {
                Some(used) => {
                    known.id = Some(used.id);
                    let reminder = known.reminder(Instant::now());
                    [Some(used.line()), reminder].into_iter().flatten().all(|line| talk.say(&line).is_ok())
                }
                None => true,
            };
            if !known.told {
                self.connection = None;
                return;
            }
        }
    }

    /// Reminds the manager to search a directory, unless a reminder for an earlier time is still to come.
    fn remind(&mut self, directory: &Path, backend: &str, after: Duration) {
        let now = Instant::now();
        let (Some(known), Some(at)) = (self.known(directory, backend), now.checked_add(after)) else { return };
        // The earlier search also sees the later tickets, and schedules the next search itself.
        if known.look.is_some_and(|look| now < look && look <= at) {
            return;
        }
        known.look = Some(at);
        let line = known.reminder(now).filter(|_| known.told);
        if let (Some(talk), Some(line)) = (&self.connection, line) {
            let _ = talk.say(&line); // the next announcement finds the connection broken
        }
    }

    /// Reads the manager's answers, and returns whether it refuses this process. Drops the connection if it has ended.
    fn listen(&mut self) -> bool {
        let Some(talk) = &mut self.connection else { return false };
        let mut is_refused = false;
        loop {
            match talk.hear(Instant::now()) {
                Ok(None) => break,
                Ok(Some(line)) => {
                    if let Some(refusal) = line.strip_prefix(REFUSAL) {
                        warn_once(&format!("the manager refuses this process: {refusal}"));
                        is_refused = true;
                    } else if let Some(reason) = line.strip_prefix(CANNOT) {
                        log::debug!("the manager cannot watch a directory: {reason}");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return false,
                Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::InvalidData) => {
                    break;
                }
                // Not a socket any more: other code of this process closed the descriptor, and its number may mean
                // another file by now. So it is forgotten without closing it.
                Err(_) => {
                    let _ = self.connection.take().map(ManuallyDrop::new);
                    return false;
                }
            }
        }
        self.connection = None;
        if is_refused {
            self.pause();
        }
        is_refused
    }

    /// Postpones the next attempt, longer with each failure.
    fn pause(&mut self) {
        let pause = LOOK.saturating_mul(1 << self.failures.min(6)).min(LONGEST_PAUSE);
        self.failures += 1;
        self.look_at = Some(Instant::now() + pause);
    }

    fn fail(&mut self, error: &Error) {
        self.pause();
        // No warning on platforms without a manager.
        if !matches!(error.kind, ErrorKind::Unsupported { .. }) {
            warn_once(&with_causes(error));
        }
    }

    /// Spawns a thread that starts a manager and connects to it. The thread ends within seconds.
    fn begin(&mut self, choice: Program, socket: PathBuf) {
        let thread = std::thread::Builder::new().name("ndshm-manager".to_owned());
        let started = thread.spawn(move || {
            let outcome = find_or_start(&choice, &socket);
            let Some(mut slot) = STATE.lock(PATIENCE) else { return };
            let state = slot.value.get_or_insert_default();
            state.starting = false;
            match outcome {
                Ok(talk) => {
                    state.connect(talk);
                    state.tell();
                }
                Err(reason) => {
                    state.pause();
                    warn_once(&reason);
                }
            }
        });
        match started {
            Ok(_) => self.starting = true,
            Err(error) => warn_once(&format!("no thread can be started: {error}")),
        }
    }
}

impl Known {
    /// Returns the line that asks for a search, if its time is still to come.
    fn reminder(&self, now: Instant) -> Option<String> {
        let left = self.look?.checked_duration_since(now)?;
        Some(wire::look_line(self.id?, left))
    }
}

fn find_or_start(choice: &Program, socket: &Path) -> Result<Talk, String> {
    let program = program::find(choice)?;
    let started = program::start(&program, socket);
    let mut backoff = Backoff::new(if started.is_ok() { START } else { Duration::ZERO });
    loop {
        // Tried even if the program failed to start: another process may have started a manager.
        match address::connect(socket) {
            Ok(Some(talk)) => return Ok(talk),
            Ok(None) if backoff.pause() => {}
            Ok(None) => {
                started?;
                return Err(format!("{} does not listen", program.display()));
            }
            Err(error) => return Err(with_causes(&error)),
        }
    }
}

/// Logs, once per process, that there is no manager, and why.
fn warn_once(reason: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    // Of several threads, one swap returns false. Relaxed suffices: the flag guards no other data.
    if !SAID.swap(true, Ordering::Relaxed) {
        log::warn!(
            "no manager ({reason}). Everything works without it, but orphans of killed processes stay until `ndshm gc` or \
             another process reclaims them. Set NDSHM_MANAGER=off if this is intended."
        );
    }
}
