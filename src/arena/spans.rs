//! Spans.

use super::ground::Ground;
use crate::error::Result;

impl Ground {
    /// Frees spans that belong to nothing.
    #[allow(clippy::unnecessary_wraps, clippy::unused_self)]
    pub(super) fn free_loose_spans(&self) -> Result<()> {
        Ok(())
    }
}
