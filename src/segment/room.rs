//! Room for new memory: what this process does before an allocation fails, and how much handles in flight keep then.
//!
//! Every allocation of a segment passes through [`with_room`].

use std::cell::Cell;
use std::sync::OnceLock;

use super::trailer;
use super::{Home, Verdict, reclaim_if_orphaned};
use crate::backend::{Directory, EntryKind, Location};
use crate::error::{Error, ErrorKind, Result};
use crate::{interrupt, os};

/// Makes room in a directory in which so many bytes are missing. Returns whether to try again.
type MakeRoom = dyn Fn(&Directory, u64) -> bool + Send + Sync;

/// Set once, so that a forked child finds no lock that another thread held.
static MAKE_ROOM: OnceLock<Box<MakeRoom>> = OnceLock::new();

/// How many times an allocation is tried again. Other processes may take what was freed.
const TRIES: u32 = 100;

thread_local! {
    /// Whether this thread is making room, so that an allocation of the function itself does not call it again.
    static IS_MAKING: Cell<bool> = const { Cell::new(false) };
}

/// Sets the function that makes room. Returns `false` if there is one already, which stays.
pub(crate) fn set_make_room(make_room: impl Fn(&Directory, u64) -> bool + Send + Sync + 'static) -> bool {
    MAKE_ROOM.set(Box::new(make_room)).is_ok()
}

/// Calls `allocate`, and again as long as there is no room and this process can make some.
pub(crate) fn with_room<R>(backend: &Directory, allocate: impl Fn() -> Result<R>) -> Result<R> {
    let mut tries = 0..TRIES;
    loop {
        match allocate() {
            Err(Error { kind: ErrorKind::NoSpace { needed, available, advice, .. }, location, .. }) => {
                let missing = needed.saturating_sub(available).max(1);
                // No room makes a file as long as the process may not make one.
                let can_help = needed <= os::largest_file() && !IS_MAKING.get();
                if !can_help || tries.next().is_none() || !make_room(backend, missing) {
                    let in_flight = if can_help { kept_in_flight(backend) } else { 0 };
                    return Err(ErrorKind::NoSpace { needed, available, in_flight, advice }.at(location));
                }
            }
            other => return other,
        }
    }
}

fn make_room(backend: &Directory, missing: u64) -> bool {
    /// Ends the making, also after a panic.
    struct Making;
    impl Drop for Making {
        fn drop(&mut self) {
            IS_MAKING.set(false);
        }
    }
    let Some(make_room) = MAKE_ROOM.get() else { return false };
    IS_MAKING.set(true);
    let _making = Making;
    // A handler of a signal could use what the function has locked.
    interrupt::uninterrupted(|| make_room(backend, missing))
}

/// Returns how many bytes in a directory are kept by handles in flight alone, as far as this user can see.
fn kept_in_flight(backend: &Directory) -> u64 {
    let mut kept = 0;
    for entry in backend.list().unwrap_or_default() {
        let Ok(location) = Location::new(&entry.name) else { continue };
        if entry.kind == EntryKind::Array && trailer::fits_in(entry.len) {
            let home = Home { backend: backend.clone(), location };
            let found = reclaim_if_orphaned(&home, Some(entry.id), false);
            kept += if matches!(found, Ok(Verdict::InFlight(_))) { entry.allocated } else { 0 };
        }
    }
    kept
}
