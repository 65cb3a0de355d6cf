//! What the processes of a run tell the scheduler, by a system call that does not exist.

use std::ffi::CString;
use std::fmt::Display;
use std::path::PathBuf;

use ndarray_shm::{Directory, Error};

use crate::machine::tracee::Tracee;

/// The number of the call, which the kernel answers with `ENOSYS`.
pub const MARK: i64 = 0x6e64_7368;

/// What a process tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// It is between two calls of the library.
    Between,
    /// It is about to read or change words or elements in shared memory.
    Memory { changes: bool },
    /// Something was returned.
    Report(String),
    /// It has the elements at an address to read, or to change, until it lets go.
    Hold { at: u64, changes: bool },
    /// It has nothing any more.
    LetGo,
}

impl Mark {
    /// Reads a mark of a process that has stopped at it.
    pub fn of(tracee: &Tracee, kind: u64, first: u64, second: u64) -> Self {
        match kind {
            0 => Self::Between,
            1 => Self::Memory { changes: first != 0 },
            2 => Self::Report(tracee.text(first)),
            3 => Self::Hold { at: first, changes: second != 0 },
            _ => Self::LetGo,
        }
    }
}

#[allow(unsafe_code)]
fn mark(kind: u64, first: u64, second: u64) {
    // SAFETY: the kernel knows no such call, and returns an error.
    unsafe { libc::syscall(MARK, kind, first, second) };
}

/// Between two calls of the library.
pub fn between() {
    mark(0, 0, 0);
}

/// Before elements are read.
pub fn see() {
    mark(1, 0, 0);
}

/// Before elements are changed.
pub fn alter() {
    mark(1, 1, 0);
}

/// Tells the result of a call.
pub fn report(what: impl Display) {
    let text = CString::new(what.to_string()).expect("a text without zero bytes");
    mark(2, text.as_ptr() as u64, 0);
}

/// Tells that the elements at an address are this process's to read or to change.
pub fn hold(at: *const u8, changes: bool) {
    mark(3, at as u64, u64::from(changes));
}

/// Tells that they are not any more.
pub fn let_go() {
    mark(4, 0, 0);
}

/// Returns the name of an error's kind.
pub fn kind(error: &Error) -> String {
    let text = format!("{:?}", error.kind);
    text.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default().into()
}

/// What every process of a run knows.
#[derive(Debug, Clone)]
pub struct World {
    pub directory: Directory,
    /// The letter of this process, which it writes into elements.
    pub letter: u8,
    /// A file that one process writes and the other reads, before they are scheduled.
    pub mail: PathBuf,
}
