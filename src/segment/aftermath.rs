//! What remains to be done after a segment was unmapped.

use super::{Home, Verdict, reclaim_if_orphaned};
use crate::error::Result;
use crate::interrupt;
use crate::manager_client;
use crate::os::FileId;

/// Removes the name of a segment that this process has left, if no other process uses it. Dropping this does it, so it
/// is the last field of what holds the segment.
#[derive(Debug)]
pub(crate) struct Aftermath {
    home: Home,
    id: FileId,
    /// The verdict, if it is known already. Otherwise the lease is queried: the handles that are still counted may be
    /// those of killed processes.
    found: Option<Verdict>,
    is_done: bool,
}

impl Aftermath {
    pub(crate) fn new(home: Home, id: FileId, found: Option<Verdict>) -> Self {
        Self { home, id, found, is_done: false }
    }

    /// Does it now, and returns what was found.
    pub(crate) fn reclaim(mut self) -> Result<Verdict> {
        self.run()
    }

    fn run(&mut self) -> Result<Verdict> {
        self.is_done = true;
        let found = self.found.map_or_else(|| reclaim_if_orphaned(&self.home, Some(self.id), true), Ok)?;
        if let Verdict::InFlight(left) = found {
            manager_client::remind(&self.home.backend, left);
        }
        Ok(found)
    }
}

impl Drop for Aftermath {
    fn drop(&mut self) {
        if !self.is_done {
            // On failure the segment stays an orphan, which another process reclaims.
            let _ = interrupt::uninterrupted(|| self.run());
        }
    }
}
