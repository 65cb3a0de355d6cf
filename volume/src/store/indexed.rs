//! Reads chunks through the index of a shard: all bytes must be of one version of the shard.
//!
//! An index is read once and cached. Another process may replace the shard between two reads, and then the offsets of
//! the cached index are wrong for the new one.

use crate::error::{Error, Result, StoreFailure};
use crate::store::{ObjectVersion, StoredVersion};

/// Whether a cached index may be used without asking the store whether it is that of the current shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexTrust {
    /// It may: a chunk that it does not have counts as missing.
    Cached,
    /// It may not, unless bytes that are read later prove it.
    Checked,
}

/// The bytes of a chunk, `None` if it is not stored, and the version of the object that all of them are from.
pub(crate) type VersionedBytes = (Option<Vec<u8>>, ObjectVersion);

/// One attempt to read a chunk.
#[derive(Debug)]
pub(crate) struct IndexedRead {
    /// The bytes; `None` if the chunk is not stored.
    pub(crate) bytes: Result<Option<Vec<u8>>>,
    /// Version of the index; `None` if there is no shard, or the index could not be read.
    pub(crate) index: Option<StoredVersion>,
    /// Whether the index was read before this attempt, at least in part.
    pub(crate) is_cached: bool,
    /// Version of the chunk's own bytes, if any were read.
    pub(crate) part: Option<StoredVersion>,
}

impl IndexedRead {
    /// Returns the answer of an attempt that failed at the index.
    pub(crate) fn failed(error: Error) -> Self {
        Self { bytes: Err(error), index: None, is_cached: false, part: None }
    }

    fn version(&self) -> Option<StoredVersion> {
        let index = self.index.as_ref()?;
        Some(self.part.as_ref().map_or_else(|| index.clone(), |part| index.and(part)))
    }

    /// Whether the attempt used an index that is not that of the current shard, or may not be.
    fn is_outdated(&self, trust: IndexTrust, current: impl FnOnce() -> Result<Option<StoredVersion>>) -> Result<bool> {
        match (&self.bytes, self.version()) {
            (Err(_), None) => Ok(false),
            // No answer says nothing about the index.
            (Err(error), _) if error.store_failure().is_some_and(StoreFailure::may_pass) => Ok(false),
            // The first error is the one to report. So it is if the shard has gone since its index was read, and the
            // caller does not ask for versions: its chunks are lost, and do not count as never stored.
            (Err(_), index) => {
                Ok(current()
                    .is_ok_and(|current| current != index && (current.is_some() || trust == IndexTrust::Checked)))
            }
            (Ok(_), Some(StoredVersion::Mixed)) => Ok(true),
            (Ok(_), _) if trust == IndexTrust::Cached || !self.is_cached => Ok(false),
            (Ok(_), Some(whole)) if self.part.is_some() => {
                // The index was read when the shard was young: a later index may have the same tag.
                Ok(!whole.is_settled() && self.part.as_ref().is_some_and(StoredVersion::is_settled))
            }
            (Ok(_), index) => Ok(current()? != index),
        }
    }
}

/// Reads a chunk of a shard, and once more after `forget` if the cached index is not that of the current shard, the
/// version of which is `current`. Returns the version of all bytes that the answer depends on.
pub(crate) fn read_through_index(
    trust: IndexTrust,
    read: impl Fn() -> IndexedRead,
    current: impl FnOnce() -> Result<Option<StoredVersion>>,
    forget: impl FnOnce(),
) -> Result<VersionedBytes> {
    let mut last = read();
    if last.is_outdated(trust, current)? {
        forget();
        last = read();
    }
    let version = last.version().into();
    Ok((last.bytes?, version))
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::error::StoreFault;

    fn old(tag: &str) -> StoredVersion {
        StoredVersion::settled(tag)
    }

    fn young(tag: &str) -> StoredVersion {
        StoredVersion::Tagged { tag: tag.to_owned(), is_settled: false }
    }

    fn known(tag: &str) -> ObjectVersion {
        ObjectVersion::Known(tag.to_owned())
    }

    /// An attempt that reads this byte of this version with an index of that one.
    fn found(byte: u8, part: StoredVersion, index: StoredVersion, is_cached: bool) -> IndexedRead {
        IndexedRead { bytes: Ok(Some(vec![byte])), index: Some(index), is_cached, part: Some(part) }
    }

    /// An attempt that finds no chunk, or no shard.
    fn absent(index: Option<StoredVersion>, is_cached: bool) -> IndexedRead {
        IndexedRead { bytes: Ok(None), index, is_cached, part: None }
    }

    /// An attempt that fails behind a cached index.
    fn failed(failure: StoreFailure, index: StoredVersion) -> IndexedRead {
        let error = Error::Store {
            op: "reading",
            object: "0.shard".to_owned(),
            cause: Box::new(StoreFault { failure, text: "no".to_owned() }),
        };
        IndexedRead { bytes: Err(error), index: Some(index), is_cached: true, part: None }
    }

    /// Makes these attempts. Returns the answer, and how many attempts and how many questions it took.
    fn answer(
        trust: IndexTrust,
        attempts: Vec<IndexedRead>,
        current: Option<StoredVersion>,
    ) -> (Result<VersionedBytes>, usize, usize) {
        let (made, asked, forgotten) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let attempts = RefCell::new(attempts.into_iter());
        let read = || {
            made.set(made.get() + 1);
            attempts.borrow_mut().next().expect("no more attempts")
        };
        let current = || {
            asked.set(asked.get() + 1);
            Ok(current)
        };
        let answer = read_through_index(trust, read, current, || forgotten.set(forgotten.get() + 1));
        assert_eq!(forgotten.get() + 1, made.get(), "an index that is read again is forgotten first");
        (answer, made.get(), asked.get())
    }

    fn of(answer: Result<VersionedBytes>) -> (Option<u8>, ObjectVersion) {
        let (bytes, version) = answer.expect("no error");
        (bytes.map(|bytes| bytes[0]), version)
    }

    #[test]
    fn index_of_another_version_is_read_again_once() {
        for trust in [IndexTrust::Cached, IndexTrust::Checked] {
            for is_cached in [true, false] {
                let first = || found(1, old("b"), old("a"), is_cached);
                let (end, made, asked) = answer(trust, vec![first(), found(2, old("b"), old("b"), false)], None);
                assert_eq!((of(end), made, asked), ((Some(2), known("b")), 2, 0));
                let (end, made, _) = answer(trust, vec![first(), found(2, old("c"), old("b"), false)], None);
                assert_eq!((of(end), made), ((Some(2), ObjectVersion::Unsettled), 2), "it goes on changing");
                let (end, made, asked) = answer(trust, vec![found(1, old("a"), old("a"), is_cached)], None);
                assert_eq!((of(end), made, asked), ((Some(1), known("a")), 1, 0));
            }
            let young = vec![found(1, young("b"), young("a"), true), found(2, young("b"), young("b"), false)];
            let (end, made, _) = answer(trust, young, None);
            assert_eq!((of(end), made), ((Some(2), ObjectVersion::Unsettled), 2), "young versions differ too");
        }
    }

    #[test]
    fn index_of_a_young_shard_is_read_again_when_it_is_settled() {
        let settled = || vec![found(1, old("a"), young("a"), true), found(2, old("a"), old("a"), false)];
        let (end, made, _) = answer(IndexTrust::Checked, settled(), None);
        assert_eq!((of(end), made), ((Some(2), known("a")), 2));
        let (end, made, _) = answer(IndexTrust::Cached, settled(), None);
        assert_eq!((of(end), made), ((Some(1), ObjectVersion::Unsettled), 1));
        let (end, made, _) = answer(IndexTrust::Checked, vec![found(1, young("a"), young("a"), true)], None);
        assert_eq!((of(end), made), ((Some(1), ObjectVersion::Unsettled), 1), "not yet");
    }

    #[test]
    fn chunk_is_missing_only_in_the_current_shard() {
        for (index, current) in [(Some("a"), Some("b")), (Some("a"), None), (None, Some("b"))] {
            let attempts = || vec![absent(index.map(old), true), found(2, old("b"), old("b"), false)];
            let (end, made, asked) = answer(IndexTrust::Checked, attempts(), current.map(old));
            assert_eq!((of(end), made, asked), ((Some(2), known("b")), 2, 1), "{index:?}, now {current:?}");
            let (end, made, asked) = answer(IndexTrust::Cached, attempts(), current.map(old));
            let version = index.map_or(ObjectVersion::Missing, known);
            assert_eq!((of(end), made, asked), ((None, version), 1, 0), "{index:?}, now {current:?}");
        }
        for index in [Some("a"), None] {
            let version = || index.map_or(ObjectVersion::Missing, known);
            let (end, made, _) = answer(IndexTrust::Checked, vec![absent(index.map(old), true)], index.map(old));
            assert_eq!((of(end), made), ((None, version()), 1));
            let (end, _, asked) = answer(IndexTrust::Checked, vec![absent(index.map(old), false)], None);
            assert_eq!((of(end), asked), ((None, version()), 0), "it has just been read");
        }
    }

    #[test]
    fn failure_behind_an_old_index_is_tried_again() {
        for trust in [IndexTrust::Cached, IndexTrust::Checked] {
            let attempts = || vec![failed(StoreFailure::Damaged, old("a")), found(2, old("b"), old("b"), false)];
            let (end, made, _) = answer(trust, attempts(), Some(old("b")));
            assert_eq!((of(end), made), ((Some(2), known("b")), 2));
            let (end, made, _) = answer(trust, attempts(), Some(old("a")));
            assert!(end.is_err() && made == 1, "the index is right, and the shard is damaged");
            let silent = vec![failed(StoreFailure::NoAnswer, old("a"))];
            let (end, made, asked) = answer(trust, silent, Some(old("b")));
            assert!(end.is_err() && (made, asked) == (1, 0), "a server that is silent is not asked again");
            let fresh = IndexedRead { is_cached: false, ..failed(StoreFailure::Damaged, old("a")) };
            let (end, made, _) = answer(trust, vec![fresh, found(2, old("b"), old("b"), false)], Some(old("b")));
            assert_eq!((of(end), made), ((Some(2), known("b")), 2), "it was replaced behind the index");
            let none = IndexedRead { index: None, ..failed(StoreFailure::Damaged, old("a")) };
            let (end, made, asked) = answer(trust, vec![none], Some(old("b")));
            assert!(end.is_err() && (made, asked) == (1, 0), "the index itself cannot be read");
        }
    }
}
