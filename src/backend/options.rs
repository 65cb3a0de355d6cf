//! Options of drafts, and the settings that all options for creating share.

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

/// Defines the setters that all options for creating share, so that they mean the same everywhere. The arguments are
/// further documentation of `permissions` for the type.
macro_rules! common_settings {
    ($(#[doc = $permissions:expr])*) => {
        /// Uses this directory instead of the [default](crate::default_backend).
        pub fn backend(mut self, directory: crate::backend::Directory) -> Self {
            self.backend = Some(directory);
            self
        }

        /// Creates files with these permission bits, whatever the umask. The default is 0600. Windows has no permission
        /// bits.
        ///
        $(#[doc = $permissions])*
        pub fn permissions(mut self, bits: u32) -> Self {
            self.draft.permissions = bits & 0o777;
            self
        }

        /// Chooses which memory is allocated in advance, and on which pages. The default is
        /// [`Pages::Auto`](crate::Pages::Auto).
        pub fn pages(mut self, pages: crate::backend::Pages) -> Self {
            self.draft.pages = pages;
            self
        }
    };
}

pub(crate) use common_settings;
