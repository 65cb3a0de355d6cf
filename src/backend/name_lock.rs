//! The lock of a file's name. A process takes it before it removes or replaces the name.

use std::time::Duration;

use super::lock_space::NAME;
use super::{Location, Turn};
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::interrupt;
use crate::os::LockKind;

/// Which processes the lock of a name excludes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alone {
    /// All other processes: it is a write lock.
    Yes,
    /// All other processes that respect the lock of the whole file: it is a read lock, with that lock.
    Agreed,
    /// Only those that take write locks: it is a read lock.
    No,
}

/// Locks the name of the file of `turn`. Waits at most `limit`, then takes a read lock beside another read lock.
///
/// Processes hold the name for an instant, unless one is stopped just then or keeps a read lock. Any process that may
/// read the file can keep a read lock, so a removal must not wait for it without limit.
pub(crate) fn lock_name(turn: &mut Turn, kind: LockKind, at: &Location, limit: Duration) -> Result<Alone> {
    let mut backoff = Backoff::new(limit);
    let explain = |error| Error::os("lock the name", at, error);
    loop {
        match kind {
            LockKind::Exclusive if turn.try_lock(kind, NAME).map_err(explain)? => return Ok(Alone::Yes),
            // The read lock excludes processes that can take a write lock. The lock of the whole file excludes those
            // that cannot.
            LockKind::Shared
                if turn
                    .try_lock(kind, NAME)
                    .and_then(|name| Ok(name && turn.try_lock_whole()?))
                    .map_err(explain)? =>
            {
                return Ok(Alone::Agreed);
            }
            _ if !interrupt::goes_on() => return Err(ErrorKind::Interrupted.at(at)),
            _ if backoff.pause() => {}
            _ if turn.try_lock(LockKind::Shared, NAME).map_err(explain)? => return Ok(Alone::No),
            _ => return Err(ErrorKind::TimedOut { waited: limit }.at(at)),
        }
    }
}
