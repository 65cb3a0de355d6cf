//! The bytes of the lock space, and what processes agree on for each.
//!
//! All locks lie on the file that they protect, far beyond any byte it can have, so that they cost no byte and any
//! language that can call fcntl(2) can take part. Of a renderbuffer, cells are locked on the payload, BEGINNING on the
//! ledger. docs/layout.md shows them to other languages.

use crate::os::LockRange;

/// On Windows the byte below it is used too: `os/windows/locks.rs`.
const BASE: u64 = 1 << 62;

/// Read-locked by every attachment of a plain array, through the mapping's own file description: whether a process is
/// attached.
pub(crate) const LEASE: LockRange = LockRange { start: BASE, length: 1 };

/// Write-locked by a process that is about to remove or replace this file's name. Read-locked instead by a process that
/// cannot take a write lock, or that has waited long enough for processes that keep a read lock.
pub(crate) const NAME: LockRange = LockRange { start: BASE + 1, length: 1 };

/// Fairness: a waiting writer write-locks it, and readers and claims query it before they take cells. They respect it
/// for a limited time only.
pub(crate) const GATE: LockRange = LockRange { start: BASE + 2, length: 1 };

/// Read-locked by every attachment of a counted array, instead of [`LEASE`]: a counted attachment makes sure that no
/// process has mapped the same bytes as plain elements.
pub(crate) const COUNTED: LockRange = LockRange { start: BASE + 3, length: 1 };

/// Of a ledger: write-locked by the process that begins the buffer, from before the ledger has its name until the
/// payload has its name. A ledger without payload is stale as soon as this is free.
pub(crate) const BEGINNING: LockRange = LockRange { start: BASE + 4, length: 1 };

/// Of a keeper: write-locked by the writer of its stream, which excludes other writers. Of frames: write-locked by the
/// same process, as far as readers leave it to it, so that they can query whether it lives.
pub(crate) const WRITER: LockRange = LockRange { start: BASE + 5, length: 1 };

/// Of a keeper: write-locked for an instant to add or remove a cursor.
pub(crate) const CURSORS: LockRange = LockRange { start: BASE + 6, length: 1 };

/// Write-locked for an instant to change several spans of an arena.
pub(crate) const SPANS: LockRange = LockRange { start: BASE + 16, length: 1 };

/// Write-locked while the holds of dead members of an arena are reclaimed.
pub(crate) const RECOVER: LockRange = LockRange { start: BASE + 17, length: 1 };

/// Returns the byte that member `seat` of an arena write-locks for as long as its process lives.
pub(crate) fn seat(seat: u32) -> LockRange {
    LockRange { start: BASE + 64 + u64::from(seat), length: 1 }
}

/// Returns the byte of a keeper that the reader with cursor `index` write-locks for as long as its process lives.
pub(crate) fn cursor(index: u64) -> LockRange {
    LockRange { start: BASE + 64 + index, length: 1 }
}

/// Bits of the largest process number.
const PROCESS_BITS: u32 = 22;

/// Returns the bytes of frames that the writer of a stream write-locks to write to slot `index`.
pub(crate) fn slot(index: usize) -> LockRange {
    LockRange { start: ALL_CELLS.start + ((index as u64) << PROCESS_BITS), length: 1 << PROCESS_BITS }
}

/// Returns the byte of a slot that a process with this number read-locks to keep its frame.
pub(crate) fn slot_reader(index: usize, process: u32) -> LockRange {
    let all = slot(index);
    LockRange { start: all.start + u64::from(process) % all.length, length: 1 }
}

/// Every cell: what a read or write guard of the whole array locks.
pub(crate) const ALL_CELLS: LockRange = LockRange { start: BASE + 4096, length: 1 << 61 };

/// Returns the cell of chunk `index`.
pub(crate) fn cell(index: usize) -> LockRange {
    LockRange { start: ALL_CELLS.start + index as u64, length: 1 }
}

/// Returns the bytes of the slots of a chunk in a cache: read-locked to read it, write-locked to fill them.
pub(crate) fn cache_slots(first: u64, count: u64) -> LockRange {
    LockRange { start: ALL_CELLS.start + first, length: count }
}

/// Bits of a slot's number in a cache, and of a key's byte.
const CACHE_BITS: u32 = 41;

/// Returns the byte that a process write-locks to fill the chunk of a key, or to ask whether it is up to date. Keys may
/// share a byte.
#[allow(clippy::cast_possible_truncation)] // the lower bits
pub(crate) fn cache_key(key: u128) -> LockRange {
    let byte = key as u64 & ((1 << CACHE_BITS) - 1);
    LockRange { start: ALL_CELLS.start + (1 << CACHE_BITS) + byte, length: 1 }
}
