//! A descriptor that is readable while a reader of a stream has something to take, for select, poll and event loops.
//!
//! A thread watches the stream for it. It holds no frame, and never calls Python: the interpreter may end before it.
//! In a forked child neither the thread nor this bell is used: the child makes its own.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use ndarray_shm::backend::interruptible;
use ndarray_shm::{Error, ErrorKind};

use crate::frame::Reads;

/// How long the thread does not ring after a reader could not take a frame that is there, because a writer had locked
/// it.
const LOCKED: Duration = Duration::from_millis(20);

/// The descriptor of a reader, and the thread that watches for it. The thread ends within 100 ms after this is dropped.
pub(crate) struct StreamBell {
    /// The thread has a weak reference, so that a forked child, where no thread is left that could drop its own, closes
    /// its copies of the descriptors. There the mutex may be locked for ever.
    state: Arc<Mutex<BellState>>,
    descriptor: RawFd,
    thread: Thread,
    /// The process of the thread.
    pid: u32,
}

/// What the thread and the reader tell each other. Locked for moments.
struct BellState {
    /// The end that is readable, and the end to write to. `None` when the reader was closed.
    ends: Option<(UnixStream, UnixStream)>,
    /// Whether a byte is between the ends.
    is_ringing: bool,
    /// The number of the last frame that the reader has returned.
    last: u64,
    /// Whether the reader could not take a frame that is there.
    is_locked: bool,
    /// Whether it rings because the writer has died.
    has_died: bool,
    /// The number of the writer of the last death that was told.
    told: Option<u64>,
}

/// What the thread does next.
enum Watch {
    /// Waits for a later frame than this one.
    For(u64),
    /// Waits until the reader looks.
    Park,
    /// Waits for a moment.
    Pause,
    End,
}

fn lock(state: &Mutex<BellState>) -> MutexGuard<'_, BellState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl BellState {
    fn ring(&mut self) {
        if let Some((_, end)) = self.ends.as_mut().filter(|_| !self.is_ringing) {
            self.is_ringing = end.write_all(&[1]).is_ok();
        }
    }

    fn silence(&mut self) {
        if let Some((end, _)) = self.ends.as_mut().filter(|_| self.is_ringing) {
            let _ = end.read(&mut [0]); // fails if the program has read it
        }
        self.is_ringing = false;
    }

    fn next(&mut self) -> Watch {
        match self {
            Self { ends: None, .. } => Watch::End,
            Self { is_ringing: true, .. } => Watch::Park,
            _ if std::mem::take(&mut self.is_locked) => Watch::Pause,
            _ => Watch::For(self.last),
        }
    }
}

impl StreamBell {
    /// Starts the thread, which watches with `reader`.
    pub(crate) fn new(reader: Box<dyn Reads>) -> io::Result<Self> {
        let ends = UnixStream::pair()?;
        ends.0.set_nonblocking(true)?;
        ends.1.set_nonblocking(true)?;
        let descriptor = ends.0.as_raw_fd();
        let (is_ringing, is_locked, has_died) = (false, false, false);
        let state = BellState { ends: Some(ends), is_ringing, last: reader.last(), is_locked, has_died, told: None };
        let state = Arc::new(Mutex::new(state));
        let watched = Arc::downgrade(&state);
        let started = thread::Builder::new().name("ndshm-stream".into()).spawn(move || watch(&watched, &*reader))?;
        Ok(Self { state, descriptor, thread: started.thread().clone(), pid: process::id() })
    }

    /// Returns whether it is this process's, and not that of a process from which this one was forked.
    pub(crate) fn is_own(&self) -> bool {
        self.pid == process::id()
    }

    /// Returns the descriptor. With `tells_again`, it becomes readable for a dead writer also if that was told before.
    pub(crate) fn descriptor(&self, tells_again: bool) -> RawFd {
        if tells_again {
            lock(&self.state).told = None;
        }
        self.descriptor
    }

    /// Takes note that the reader has looked for a frame: that it found the frame `last`, or none after `last`, when
    /// `head` was the newest one. Returns whether none was found after the death of the writer.
    pub(crate) fn looked(&self, reader: &dyn Reads, head: u64, found: bool) -> bool {
        let mut state = lock(&self.state);
        state.last = reader.last();
        // The thread sees what is committed after this, because it begins with `last`.
        let has_next = reader.head() > state.last;
        state.is_locked = !found && head > state.last;
        let has_died = !found && std::mem::take(&mut state.has_died);
        if state.is_locked || !has_next && !state.has_died {
            state.silence();
            drop(state);
            self.thread.unpark();
        }
        has_died
    }

    /// Takes note that the reader goes on behind another frame.
    pub(crate) fn moved(&self, reader: &dyn Reads) {
        let mut state = lock(&self.state);
        state.last = reader.last();
        // The thread may be waiting for a frame behind the earlier position.
        if reader.head() > state.last {
            state.ring();
        } else if !state.has_died {
            state.silence();
            self.thread.unpark();
        }
    }
}

impl Drop for StreamBell {
    fn drop(&mut self) {
        if self.is_own() {
            // A duplicate of the descriptor becomes readable: its peer is gone.
            let ends = lock(&self.state).ends.take();
            drop(ends);
            self.thread.unpark();
        }
    }
}

/// The work of the thread.
fn watch(watched: &Weak<Mutex<BellState>>, reader: &dyn Reads) {
    while let Some(next) = watched.upgrade().map(|state| lock(&state).next()) {
        let number = match next {
            Watch::For(number) => number,
            Watch::Park => {
                thread::park();
                continue;
            }
            Watch::Pause => {
                thread::park_timeout(LOCKED);
                continue;
            }
            Watch::End => return,
        };
        let asked = Weak::clone(watched);
        // The reader may have gone back.
        let goes_on = move || asked.upgrade().is_some_and(|state| lock(&state).last >= number);
        let waited = interruptible(goes_on, || reader.head_wait(number, Duration::MAX));
        let Some(state) = watched.upgrade() else { return };
        let mut state = lock(&state);
        match waited {
            Ok(head) if head <= state.last => {} // the reader was faster
            Err(Error { kind: ErrorKind::Interrupted, .. }) => {}
            Err(Error { kind: ErrorKind::NoWriter, .. }) => {
                let epoch = Some(reader.epoch());
                if state.told != epoch {
                    (state.told, state.has_died) = (epoch, true);
                    state.ring();
                }
            }
            _ => state.ring(),
        }
    }
}
