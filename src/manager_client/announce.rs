//! The client's side: tells the manager which directories this process uses, and starts one if there is none.
//!
//! Nothing here fails or waits: without a manager everything works, only the memory of killed processes is freed later.
//! A process has one connection, kept as long as it lives. A forked child has its own: what it inherits is its parent's,
//! and is neither used nor closed.

use std::io::ErrorKind;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::address;
use super::program::{self, Program};
use super::wire::{self, CANNOT, GREETING, REFUSAL, Talk, Use};
use crate::backend::Directory;
use crate::backoff::Backoff;
use crate::error::{Error, Result, with_causes};
use crate::os::{FileId, PerProcess};
use crate::segment::Home;

/// Directories that one process announces.
const MOST: usize = 64;

/// How long an announcement may be held up by another one of the same process.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long a reminder may be held up: it is given while an array is dropped.
const REMINDER: Duration = Duration::from_micros(100);

/// How often the connection is looked at, and how long to wait after the first failure.
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
    /// A thread is about to make the connection.
    starting: bool,
    look_at: Option<Instant>,
    failures: u32,
}

#[derive(Debug)]
struct Known {
    /// As the caller names it.
    directory: PathBuf,
    backend: String,
    /// Whether this manager knows it, or nobody can tell it.
    told: bool,
    /// What it was when the manager was told.
    id: Option<FileId>,
    /// When the manager is to look at it, or was.
    look: Option<Instant>,
}

/// Tells the manager that this process uses counted arrays of a backend, and starts one if there is none.
///
/// [Counted arrays](crate::counted) do this by themselves. It never fails and never waits: what it cannot do at once is left to a thread that
/// ends within seconds.
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

/// Tells the manager, if there is one, that a name stays only because of handles in flight, and when the last of them
/// expires: no death would make it look then.
///
/// Called while an array is dropped. It fails in silence: the manager looks from time to time anyway.
pub(crate) fn remind(home: &Home, after: Duration) {
    if program::choice() == Program::Off {
        return;
    }
    if let Some(mut slot) = STATE.lock(REMINDER) {
        slot.value.get_or_insert_default().remind(home.backend.path(), home.backend.name(), after);
    }
}

impl Announcer {
    fn known(&mut self, directory: &Path, backend: &str) -> Option<&mut Known> {
        self.known.iter_mut().find(|known| known.directory == directory && known.backend == backend)
    }

    /// Remembers a directory, if there is room.
    fn learn(&mut self, directory: &Path, backend: &str) {
        if self.known(directory, backend).is_none() && self.known.len() < MOST {
            let (directory, backend) = (directory.to_owned(), backend.to_owned());
            self.known.push(Known { directory, backend, told: false, id: None, look: None });
        }
    }

    /// Uses a connection from now on.
    fn connect(&mut self, talk: Talk) {
        if talk.say(GREETING).is_ok() {
            self.known.iter_mut().for_each(|known| known.told = false);
            self.connection = Some(talk);
            self.failures = 0;
        }
    }

    /// Tells the manager what it does not know yet.
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

    /// Tells the manager when to look at a directory, unless it will look there before.
    fn remind(&mut self, directory: &Path, backend: &str, after: Duration) {
        let now = Instant::now();
        let (Some(known), Some(at)) = (self.known(directory, backend), now.checked_add(after)) else { return };
        // What that look finds says when the next one must be.
        if known.look.is_some_and(|look| now < look && look <= at) {
            return;
        }
        known.look = Some(at);
        let line = known.reminder(now).filter(|_| known.told);
        if let (Some(talk), Some(line)) = (&self.connection, line) {
            let _announcing_will_notice = talk.say(&line);
        }
    }

    /// Reads the manager's answers; says whether it refuses this process. At their end there is no connection any more.
    fn listen(&mut self) -> bool {
        let Some(talk) = &mut self.connection else { return false };
        let mut is_refused = false;
        loop {
            match talk.hear(Instant::now()) {
                Ok(None) => break,
                Ok(Some(line)) => {
                    if let Some(refusal) = line.strip_prefix(REFUSAL) {
                        warn_once(&format!("it refuses this process: {refusal}"));
                        is_refused = true;
                    } else if let Some(reason) = line.strip_prefix(CANNOT) {
                        log::debug!("the manager cannot watch a directory: {reason}");
                    }
                }
                Err(error) if error.kind() == ErrorKind::TimedOut => return false,
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::InvalidData) => break,
                // No socket at all: somebody closed it, and the number may be somebody else's.
                Err(_) => {
                    let _never_closed = self.connection.take().map(ManuallyDrop::new);
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

    /// Waits longer from failure to failure.
    fn pause(&mut self) {
        let pause = LOOK.saturating_mul(1 << self.failures.min(6)).min(LONGEST_PAUSE);
        self.failures += 1;
        self.look_at = Some(Instant::now() + pause);
    }

    fn fail(&mut self, error: &Error) {
        self.pause();
        // Where there is no manager at all nobody misses it.
        if !error.is_unsupported() {
            warn_once(&with_causes(error));
        }
    }

    /// Lets a thread start a manager and connect to it; it ends within seconds.
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
    /// The line that asks for the look that is still to come.
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
        // Even if it could not be started: another process may have started one.
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

/// Says once per process that and why there is no manager.
fn warn_once(reason: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        log::warn!(
            "no manager ({reason}). Everything works without it, but what killed processes leave is removed only when \
             somebody reclaims it. NDSHM_MANAGER=off says that this is intended."
        );
    }
}
