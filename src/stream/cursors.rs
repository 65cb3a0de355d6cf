//! Cursors: named readers that miss no frame. How far each has got stands in the keeper.
//!
//! ```text
//! keeper, 4096 bytes
//!      0   16  the random number of the stream that has these cursors
//!     16    8  how many of the entries have ever been used: the first ones
//!    128   64  for each of 62 cursors:
//!               0   8  the last number that it has acknowledged
//!               8   8  0: free; otherwise what the writer does: see `Backpressure`
//!              16  48  its name, UTF-8 padded with NUL
//! ```
//!
//! The byte CURSORS is write-locked to add or remove one, CURSOR n by the process that reads with cursor n. So the
//! kernel says whether it lives.
//!
//! A new cursor and the writer meet like this: the cursor stores in its entry that it holds all frames after the head,
//! fences, and loads the head again. If that has not changed, no frame that it holds was there before its fence. The
//! writer fences for each frame, and never overwrites the newest one. So before it can overwrite a frame that the
//! cursor holds, it has passed a fence after that of the cursor, and sees the entry.

use std::time::Duration;

use super::files::{KEEPER, KeeperFile};
use super::memory::{StreamMemory, StreamWords};
use crate::backend::lock_space::{CURSORS, cursor};
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::interrupt;
use crate::os::LockKind;
use crate::segment::Home;

/// Where the number of entries that have been used is.
const USED: u64 = 16;
const FIRST: u64 = 128;
const ENTRY: u64 = 64;
const POLICY: u64 = 8;
const NAME: u64 = 16;
/// Most cursors of a stream.
pub(super) const MOST: u64 = (KEEPER - FIRST) / ENTRY;
/// Longest name of a cursor in bytes.
const LONGEST_NAME: usize = 48;
const _: () = assert!(LONGEST_NAME as u64 == ENTRY - NAME);

/// How long a process waits for another one that adds or removes a cursor.
const WAIT: Duration = Duration::from_secs(10);

/// What the writer does when only frames are left that a cursor has not acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Backpressure {
    /// It overwrites them: the cursor only remembers how far its reader has got.
    Overwrite,
    /// It has no slot for a new frame as long as a process reads with the cursor. If that process ends, the frames may
    /// be overwritten.
    #[default]
    WaitWhileAlive,
    /// It has no slot for a new frame until the cursor is read on or removed, whether a process reads with it or not.
    Wait,
}

impl Backpressure {
    fn to_word(self) -> u64 {
        match self {
            Self::Overwrite => 1,
            Self::WaitWhileAlive => 2,
            Self::Wait => 3,
        }
    }

    fn of_word(word: u64) -> Option<Self> {
        [Self::Overwrite, Self::WaitWhileAlive, Self::Wait].into_iter().find(|policy| policy.to_word() == word)
    }
}

/// A cursor as its entry says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) index: u64,
    pub(super) name: String,
    pub(super) acknowledged: u64,
    pub(super) policy: Backpressure,
}

/// Where entry `index` begins.
fn place(index: u64) -> u64 {
    FIRST + ENTRY * index
}

/// Returns the indices of entries that may be in use.
fn used(memory: &impl StreamWords) -> std::ops::Range<u64> {
    0..memory.load(USED).min(MOST)
}

/// Returns the entries that are in use.
pub(super) fn entries(memory: &StreamMemory) -> impl Iterator<Item = Entry> {
    used(memory).filter_map(|index| {
        let policy = Backpressure::of_word(memory.load(place(index) + POLICY))?;
        let mut name = [0; LONGEST_NAME];
        memory.copy_out(place(index) + NAME, &mut name);
        let name = String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned();
        Some(Entry { index, name, acknowledged: memory.load(place(index)), policy })
    })
}

/// Returns the random number of the stream that has these cursors.
pub(super) fn stream(memory: &StreamMemory) -> u128 {
    let mut id = [0; 16];
    memory.copy_out(0, &mut id);
    u128::from_le_bytes(id)
}

/// Removes the cursors of the stream before.
pub(super) fn reset(keeper: &KeeperFile, id: u128, home: &Home) -> Result<()> {
    while_alone(keeper, home, || {
        used(&keeper.memory).for_each(|index| keeper.memory.store(place(index) + POLICY, 0));
        keeper.memory.copy_in(0, &id.to_le_bytes());
        Ok(())
    })
}

/// Calls `act` while no other process adds or removes a cursor.
fn while_alone<R>(keeper: &KeeperFile, home: &Home, act: impl FnOnce() -> Result<R>) -> Result<R> {
    let mut backoff = Backoff::new(WAIT);
    while !keeper.locks.try_lock(LockKind::Exclusive, CURSORS, home)? {
        if !interrupt::goes_on() {
            return Err(ErrorKind::Interrupted.at(&home.location));
        }
        if !backoff.pause() {
            return Err(ErrorKind::TimedOut { waited: WAIT }.at(&home.location));
        }
    }
    let done = act();
    keeper.locks.unlock(CURSORS, home)?;
    done
}

/// Returns whether a cursor keeps frame `number` from being overwritten. `is_read` says whether a process reads with
/// it.
pub(super) fn hold<E>(
    memory: &impl StreamWords,
    number: u64,
    is_read: impl Fn(u64) -> Result<bool, E>,
) -> Result<bool, E> {
    for index in used(memory) {
        let policy = Backpressure::of_word(memory.load(place(index) + POLICY));
        if policy.is_none_or(|policy| policy == Backpressure::Overwrite) || memory.load(place(index)) >= number {
            continue;
        }
        if policy == Some(Backpressure::Wait) || is_read(index)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether a process reads with a cursor.
pub(super) fn is_read(keeper: &KeeperFile, index: u64, home: &Home) -> Result<bool> {
    keeper.locks.is_locked(LockKind::Exclusive, cursor(index), home)
}

/// Notes that all frames up to `number` may be overwritten.
pub(super) fn acknowledge(memory: &impl StreamWords, index: u64, number: u64) {
    memory.store(place(index), number);
}

/// Begins a new cursor with the first frame after the head. Returns the head. `None`: it has changed meanwhile, and the
/// writer may not have seen the cursor.
pub(super) fn begin<M: StreamWords>(memory: &M, index: u64, head: impl Fn() -> u64) -> Option<u64> {
    let newest = head();
    acknowledge(memory, index, newest);
    M::fence();
    (head() == newest).then_some(newest)
}

/// Adds an entry, with its name already in it.
pub(super) fn show(memory: &impl StreamWords, index: u64, acknowledged: u64, policy: Backpressure) {
    memory.store(place(index), acknowledged);
    memory.store(place(index) + POLICY, policy.to_word());
    if index >= used(memory).end {
        memory.store(USED, index + 1);
    }
}

/// Finds or adds a cursor and makes this process its reader. Returns its index, and the last number that it has
/// acknowledged; of a new one that is `newest()`. Returns `None` if the keeper has the cursors of another stream.
pub(super) fn claim(
    keeper: &mut KeeperFile,
    id: u128,
    name: &str,
    policy: Backpressure,
    home: &Home,
    newest: impl FnOnce() -> u64,
) -> Result<Option<(u64, u64, bool)>> {
    check_name(name)?;
    let claimed = while_alone(keeper, home, || {
        if stream(&keeper.memory) != id {
            return Ok(None);
        }
        let found = entries(&keeper.memory).find(|entry| entry.name == name);
        if let Some(entry) = found {
            if !keeper.locks.try_lock(LockKind::Exclusive, cursor(entry.index), home)? {
                return Err(ErrorKind::HasReader { cursor: name.into() }.at(&home.location));
            }
            keeper.memory.store(place(entry.index) + POLICY, policy.to_word());
            return Ok(Some((entry.index, entry.acknowledged, false)));
        }
        let is_free = |index: &u64| keeper.memory.load(place(*index) + POLICY) == 0;
        for index in (0..MOST).filter(is_free) {
            if keeper.locks.try_lock(LockKind::Exclusive, cursor(index), home)? {
                let acknowledged = newest();
                keeper.memory.copy_in(place(index) + NAME, &padded(name));
                show(&keeper.memory, index, acknowledged, policy);
                return Ok(Some((index, acknowledged, true)));
            }
        }
        let expected = "at most 62: remove one with `stream::unlink_cursor` or `ndshm unlink --cursor`";
        Err(Error::setting("the number of cursors", MOST + 1, expected))
    })?;
    if let Some((index, ..)) = claimed {
        keeper.locks.turn().note(cursor(index));
    }
    Ok(claimed)
}

/// Removes a cursor. Returns `false` if there is none of this name.
pub(super) fn unlink(keeper: &KeeperFile, name: &str, home: &Home) -> Result<bool> {
    while_alone(keeper, home, || {
        let Some(entry) = entries(&keeper.memory).find(|entry| entry.name == name) else { return Ok(false) };
        if is_read(keeper, entry.index, home)? {
            return Err(ErrorKind::HasReader { cursor: name.into() }.at(&home.location));
        }
        keeper.memory.store(place(entry.index) + POLICY, 0);
        Ok(true)
    })
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > LONGEST_NAME || name.contains('\0') {
        return Err(Error::setting("the name of a cursor", name, "1 to 48 bytes of UTF-8, without NUL"));
    }
    Ok(())
}

fn padded(name: &str) -> [u8; LONGEST_NAME] {
    let mut bytes = [0; LONGEST_NAME];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}
