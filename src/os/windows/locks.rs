//! Range locks that belong to the open file, by `LockFileEx`.
//!
//! They are mandatory for reading and writing through handles. But all locks of this crate lie far beyond the end of
//! the file, and mappings ignore them, so plain reads are not affected. Unlike on Unix, a second lock on the same
//! handle conflicts with the first instead of replacing it, and only a range that was locked as a whole can be
//! unlocked. The floors above do neither.

use std::fs::File;
use std::io;
use std::os::windows::io::AsRawHandle;
use std::time::Duration;

use windows_sys::Win32::Foundation::{ERROR_IO_PENDING, ERROR_LOCK_VIOLATION};
use windows_sys::Win32::Storage::FileSystem::{
    LOCKFILE_EXCLUSIVE_LOCK, LOCKFILE_FAIL_IMMEDIATELY, LockFileEx, UnlockFileEx,
};
use windows_sys::Win32::System::IO::{OVERLAPPED, OVERLAPPED_0, OVERLAPPED_0_0};

use super::{check, is_one_of};
use crate::backoff::Backoff;
use crate::os::{LockKind, LockRange};

/// Held by a process while it queries an exclusive lock. The query takes that lock for a moment, and without this byte
/// a second query would report it. The byte lies directly below the lock space.
const QUESTION: LockRange = LockRange { start: (1 << 62) - 1, length: 1 };

/// How long to wait for another process's query. A query makes three calls, and takes longer only if the process is
/// suspended between them.
const QUESTION_WAIT: Duration = Duration::from_millis(100);

/// Takes the lock, or returns `Ok(false)` if another lock conflicts. A query by another process does not conflict,
/// unless that process is suspended.
pub(crate) fn try_lock(file: &File, kind: LockKind, range: LockRange) -> io::Result<bool> {
    let at_once = || at_once(file, kind, range);
    if at_once()? {
        return Ok(true);
    }
    // The conflicting lock may be that of a query. While this process holds QUESTION, no exclusive query is under way.
    Ok(kind == LockKind::Exclusive && without_questions(file, at_once)?.unwrap_or(false))
}

/// Takes the lock. Waits for it without limit.
pub(crate) fn lock(file: &File, kind: LockKind, range: LockRange) -> io::Result<()> {
    take(file, kind, range, 0)
}

/// Releases the lock on exactly this range.
#[allow(unsafe_code)]
pub(crate) fn unlock(file: &File, range: LockRange) -> io::Result<()> {
    let (low, high) = halves(range.length);
    let mut place = place_of(range);
    // SAFETY: the handle is open for the whole call and synchronous, so that `place` is not used after it.
    check(unsafe { UnlockFileEx(file.as_raw_handle(), 0, low, high, &raw mut place) })
}

/// Queries whether a lock would refuse `kind` on the range. A lock that `file` itself holds counts too.
///
/// Windows has no such query. The lock is taken and released at once. A process that requests a shared lock at that
/// moment is refused and must try again. Shared queries do not collide, and exclusive ones take turns.
///
/// # Errors
///
/// `TimedOut` if another process does not finish its query.
pub(crate) fn is_locked(file: &File, kind: LockKind, range: LockRange) -> io::Result<bool> {
    let look = || -> io::Result<bool> {
        let taken = at_once(file, kind, range)?;
        if taken {
            unlock(file, range)?;
        }
        Ok(!taken)
    };
    match kind {
        LockKind::Shared => look(),
        LockKind::Exclusive => without_questions(file, look)?.ok_or_else(|| {
            let why = "another process queries a lock of the same file and does not finish: is it suspended?";
            io::Error::new(io::ErrorKind::TimedOut, why)
        }),
    }
}

/// Calls `act` while no other process queries an exclusive lock of the file. Returns `None` if a query takes too long.
fn without_questions<R>(file: &File, act: impl FnOnce() -> io::Result<R>) -> io::Result<Option<R>> {
    let mut backoff = Backoff::new(QUESTION_WAIT);
    while !at_once(file, LockKind::Exclusive, QUESTION)? {
        if !backoff.pause() {
            return Ok(None);
        }
    }
    let done = act();
    unlock(file, QUESTION)?;
    done.map(Some)
}

fn at_once(file: &File, kind: LockKind, range: LockRange) -> io::Result<bool> {
    match take(file, kind, range, LOCKFILE_FAIL_IMMEDIATELY) {
        Ok(()) => Ok(true),
        Err(error) if is_one_of(&error, &[ERROR_LOCK_VIOLATION, ERROR_IO_PENDING]) => Ok(false),
        Err(error) => Err(error),
    }
}

#[allow(unsafe_code)]
fn take(file: &File, kind: LockKind, range: LockRange, flags: u32) -> io::Result<()> {
    let flags = match kind {
        LockKind::Shared => flags,
        LockKind::Exclusive => flags | LOCKFILE_EXCLUSIVE_LOCK,
    };
    let (low, high) = halves(range.length);
    let mut place = place_of(range);
    // SAFETY: the handle is open for the whole call and synchronous (every file here is opened that way), so that
    // `place` is not used after it.
    check(unsafe { LockFileEx(file.as_raw_handle(), flags, 0, low, high, &raw mut place) })
}

#[allow(clippy::cast_possible_truncation)] // the halves of a number are what is asked for
fn halves(number: u64) -> (u32, u32) {
    (number as u32, (number >> 32) as u32)
}

fn place_of(range: LockRange) -> OVERLAPPED {
    #[allow(non_snake_case)] // their names
    let (Offset, OffsetHigh) = halves(range.start);
    let anonymous = OVERLAPPED_0 { Anonymous: OVERLAPPED_0_0 { Offset, OffsetHigh } };
    OVERLAPPED { Anonymous: anonymous, ..OVERLAPPED::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Wants = fn(&File, LockKind, LockRange) -> io::Result<bool>;

    #[test]
    fn locks_belong_to_the_open_file_and_end_with_it() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        std::fs::write(&path, b"bytes").expect("a file");
        let open = || super::super::open(&path, true).expect("the file");
        let (one, two) = (open(), open());
        let range = LockRange { start: (1 << 62) + 4096, length: 1 << 61 };
        assert!(try_lock(&one, LockKind::Shared, range).expect("an answer"));
        assert!(try_lock(&two, LockKind::Shared, range).expect("an answer"));
        unlock(&two, range).expect("it was locked");
        assert!(is_locked(&two, LockKind::Exclusive, range).expect("an answer"));
        assert!(!is_locked(&two, LockKind::Shared, range).expect("an answer"));
        let inside = LockRange { start: range.start + 7, length: 1 };
        assert!(!try_lock(&two, LockKind::Exclusive, inside).expect("an answer"));
        let duplicate = one.try_clone().expect("a second handle of the same open file");
        drop(one);
        assert!(is_locked(&two, LockKind::Exclusive, range).expect("an answer"));
        drop(duplicate);
        assert!(!is_locked(&two, LockKind::Exclusive, range).expect("an answer"));
        assert_eq!(std::fs::read(&path).expect("plain reading goes on"), b"bytes");
    }

    #[test]
    fn query_does_not_count_as_a_lock() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        std::fs::write(&path, b"").expect("a file");
        let open = || super::super::open(&path, true).expect("the file");
        let range = LockRange { start: 1 << 62, length: 1 };
        let (asking, other) = (open(), open());
        for (wants, answer) in [(is_locked as Wants, false), (try_lock, true)] {
            lock(&asking, LockKind::Exclusive, QUESTION).expect("no process has it");
            lock(&asking, LockKind::Exclusive, range).expect("no process has it");
            let waits = std::thread::spawn({
                let other = other.try_clone().expect("a second handle");
                move || wants(&other, LockKind::Exclusive, range)
            });
            std::thread::sleep(QUESTION_WAIT / 4);
            assert!(!waits.is_finished());
            unlock(&asking, range).expect("it was locked");
            unlock(&asking, QUESTION).expect("it was locked");
            assert_eq!(waits.join().expect("no panic").expect("an answer"), answer);
        }
        unlock(&other, range).expect("it was taken");
        // A process that is suspended during its query delays this one, but not for ever.
        lock(&asking, LockKind::Exclusive, QUESTION).expect("no process has it");
        lock(&asking, LockKind::Exclusive, range).expect("no process has it");
        assert_eq!(is_locked(&other, LockKind::Exclusive, range).expect_err("late").kind(), io::ErrorKind::TimedOut);
        assert!(!try_lock(&other, LockKind::Exclusive, range).expect("an answer"));
    }

    #[test]
    fn waiter_gets_a_released_lock() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        std::fs::write(&path, b"").expect("a file");
        let range = LockRange { start: 1 << 62, length: 1 };
        let holder = super::super::open(&path, true).expect("the file");
        lock(&holder, LockKind::Exclusive, range).expect("it is free");
        let waiter = std::thread::spawn(move || {
            let file = super::super::open(&path, true).expect("the file");
            lock(&file, LockKind::Exclusive, range)
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiter.is_finished());
        drop(holder);
        waiter.join().expect("no panic").expect("the lock");
    }
}
