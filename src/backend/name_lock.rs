//! The lock of a file's name, which a process takes that removes or replaces it.

use std::fs::File;
use std::time::Duration;

use super::Location;
use super::lock_space::NAME;
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::os::{self, LockKind};

/// What the lock of a name keeps out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alone {
    /// Every other holder of the name.
    Yes,
    /// The same, as long as all of them respect the lock of the whole file: this is a read lock.
    Agreed,
    /// Those that take write locks, and no others.
    No,
}

/// Names are held for an instant only, unless their holder is stopped just then, or keeps a read lock. A process that may only
/// read the file can do that: after `limit` a read lock beside it will do.
pub(crate) fn lock_name(file: &File, kind: LockKind, at: &Location, limit: Duration) -> Result<Alone> {
    let mut backoff = Backoff::new(limit);
    let explain = |error| Error::os("lock the name", at, error);
    let lock = |kind| os::try_lock(file, kind, NAME).map_err(explain);
    loop {
        match kind {
            LockKind::Exclusive if lock(kind)? => return Ok(Alone::Yes),
            // The weaker lock keeps out those that can take the stronger one; another of the whole file keeps out their like.
            LockKind::Shared if lock(kind)? && os::try_lock_whole(file).map_err(explain)? => return Ok(Alone::Agreed),
            _ if backoff.pause() => {}
            _ if lock(LockKind::Shared)? => return Ok(Alone::No),
            _ => return Err(Error::TimedOut { location: at.to_string(), waited: limit }),
        }
    }
}
