//! How drafts are made, and the settings that everything has that makes some.

use super::Pages;

/// How a [`Backend`](super::Backend) makes the file of a [`Draft`](crate::Draft).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraftOptions {
    /// Permission bits, exact (no umask).
    pub permissions: u32,
    /// What memory is taken in advance.
    pub pages: Pages,
}

impl Default for DraftOptions {
    fn default() -> Self {
        Self { permissions: 0o600, pages: Pages::default() }
    }
}

/// Writes the setters that all options for creating have, so that they mean the same everywhere. What follows is documentation of
/// `permissions` for the type at hand.
macro_rules! common_settings {
    ($(#[doc = $permissions:expr])*) => {
        /// Uses this directory instead of the [default](crate::default_backend).
        pub fn backend(mut self, directory: crate::backend::Directory) -> Self {
            self.backend = Some(directory);
            self
        }

        /// Creates files with these permission bits, whatever the umask; 0600 if not said. Windows has none.
        ///
        $(#[doc = $permissions])*
        pub fn permissions(mut self, bits: u32) -> Self {
            self.draft.permissions = bits & 0o777;
            self
        }

        /// Chooses what memory is taken in advance, and on what pages; [`Pages::Auto`](crate::Pages::Auto) if not said.
        pub fn pages(mut self, pages: crate::backend::Pages) -> Self {
            self.draft.pages = pages;
            self
        }
    };
}

pub(crate) use common_settings;
