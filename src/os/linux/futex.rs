//! Sleeping on a word of shared memory until another process has changed it: futex(2).

use std::sync::atomic::AtomicU32;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Timespec};

/// How long a sleep is where the kernel refuses to wait, as in a sandbox without the call.
const REFUSED: Duration = Duration::from_millis(1);

/// Sleeps while the word is `expected`, until a process [wakes](wake) its sleepers, or for `limit`.
///
/// It may end early for no reason: check the condition, and wait again. The kernel identifies the word by its place in
/// the file, so sleepers and waker may be in different processes.
pub(crate) fn wait_on(word: &AtomicU32, expected: u32, limit: Duration) {
    let time = Timespec::try_from(limit).ok(); // a limit that does not fit the type is none
    // Without the flag PRIVATE, which would mean the threads of one process.
    match futex::wait(word, Flags::empty(), expected, time.as_ref()) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => {}
        Err(_) => thread::sleep(REFUSED.min(limit)),
    }
}

/// Wakes at most `how_many` sleepers of the word, in any process; returns how many were woken.
///
/// Change the word first. The kernel compares it before a thread sleeps, so a thread that is about to sleep then does
/// not.
pub(crate) fn wake(word: &AtomicU32, how_many: u32) -> usize {
    // The kernel reads the number as a signed one.
    let how_many = how_many.min(i32::MAX.unsigned_abs());
    futex::wake(word, Flags::empty(), how_many).unwrap_or(0)
}
