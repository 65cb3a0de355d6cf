//! Options of drafts.

use super::Pages;

/// How a [`Backend`](super::Backend) makes the file of a [`Draft`](crate::Draft).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftOptions {
    /// Permission bits, exact (no umask).
    pub permissions: u32,
    /// Which memory is allocated in advance, and on which pages.
    pub pages: Pages,
}

impl Default for DraftOptions {
    fn default() -> Self {
        Self { permissions: 0o600, pages: Pages::default() }
    }
}
