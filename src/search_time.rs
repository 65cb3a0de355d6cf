//! How long a search took, and the pause after it.

use std::time::Duration;

use crate::os;

/// Measures a search by the processor time of this thread.
///
/// The clock would count also the time in which the thread was stopped, or waited for a processor or a lock.
#[derive(Debug)]
pub(crate) struct SearchTime(Duration);

impl SearchTime {
    /// The pause after a search is at least this many times as long as the search.
    const REST: u32 = 4;
    /// A long search makes the pause no longer than this.
    const LONGEST_REST: Duration = Duration::from_millis(100);

    /// Begins to measure.
    pub(crate) fn begin() -> Self {
        Self(os::thread_time())
    }

    /// Returns the time that was spent since the beginning.
    pub(crate) fn spent(&self) -> Duration {
        os::thread_time().saturating_sub(self.0)
    }

    /// Returns the shortest pause after a search that took so long, so that repeated searches leave the processor to
    /// other work.
    pub(crate) fn rest_after(search: Duration) -> Duration {
        search.saturating_mul(Self::REST).min(Self::LONGEST_REST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_has_an_upper_limit() {
        let millis = Duration::from_millis;
        let rests = [0, 1, 10, 25, 26, 3000].map(|search| SearchTime::rest_after(millis(search)));
        assert_eq!(rests, [0, 4, 40, 100, 100, 100].map(millis));
        assert_eq!(SearchTime::rest_after(Duration::MAX), millis(100));
    }
}
