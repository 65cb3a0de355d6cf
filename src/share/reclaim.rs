//! Removing what nobody holds any more. A STAND-IN, replaced when counted arrays are merged: it takes plain arrays whose
//! name begins with `ndshm-orphan-` for counted ones.

use std::time::Duration;

use crate::backend::{Backend, EntryKind};
use crate::error::{Error, Result};
use crate::segment;

/// What reclaiming a directory did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    /// Segments that were removed.
    pub(crate) removed: usize,
    /// When the next handle in flight expires, if one protects something.
    pub(crate) next: Option<Duration>,
    /// A lease looked held by a process that is about to go: look again soon.
    pub(crate) busy: bool,
}

/// Removes the counted segments of a directory whose holders are all dead.
pub(crate) fn sweep(backend: &dyn Backend) -> Result<Swept> {
    let mut swept = Swept::default();
    for entry in backend.list()? {
        let Some(location) = entry.location().filter(|_| entry.kind == EntryKind::Array) else { continue };
        if !location.as_str().starts_with("ndshm-orphan-") {
            continue;
        }
        match segment::is_attached(backend, &location) {
            Ok(true) => swept.busy = true,
            Ok(false) => swept.removed += usize::from(backend.unlink(&location, Some(entry.id))?),
            Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(swept)
}
