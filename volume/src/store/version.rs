//! What tells a stored object from a later one under the same key.

/// What tells a stored object from a later one under the same key.
///
/// [`ChunkSource::version`](crate::ChunkSource::version) asks the store for it, and
/// [`fetch_with_version`](crate::ChunkSource::fetch_with_version) returns that of the fetched bytes. What was computed
/// from the bytes of a [known](Self::Known) version may be used as long as the store names the same version.
///
/// A process that writes through a memory map may change a file after its times have changed; no version tells that.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ObjectVersion {
    /// The store does not say: a web server without entity tags, or with weak ones. A modification time alone is not a
    /// version, because servers round it to seconds.
    Unknown,
    /// There is no such object.
    Missing,
    /// The object's version: the entity tag of a server; device, inode, length, modification time and change time of a
    /// file. Two objects of one volume with equal texts have equal bytes.
    Known(String),
    /// The object changed while it was read, so that the bytes may be of two versions; or it changed so recently that a
    /// later change may leave its times as they are. The same call returns another variant once the object has not
    /// changed for two seconds.
    ///
    /// A file with times in the future is unsettled until then.
    Unsettled,
}

/// The version of bytes that were read, or of the object that a store has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoredVersion {
    /// The store does not say.
    Unknown,
    /// The object's tag. If it is not settled, a later object may have the same one.
    Tagged { tag: String, is_settled: bool },
    /// The bytes are of more than one version.
    Mixed,
}

impl StoredVersion {
    /// Returns the version of a tag that no later object has.
    #[cfg(any(feature = "remote", test))]
    pub(crate) fn settled(tag: impl Into<String>) -> Self {
        Self::Tagged { tag: tag.into(), is_settled: true }
    }

    /// Returns the version of bytes of which some have this version, and some another.
    pub(crate) fn and(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Mixed, _) | (_, Self::Mixed) => Self::Mixed,
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Tagged { tag, is_settled }, Self::Tagged { tag: other, is_settled: also }) if tag == other => {
                Self::Tagged { tag: tag.clone(), is_settled: *is_settled && *also }
            }
            (Self::Tagged { .. }, Self::Tagged { .. }) => Self::Mixed,
        }
    }

    pub(crate) fn is_settled(&self) -> bool {
        matches!(self, Self::Tagged { is_settled: true, .. })
    }
}

impl From<StoredVersion> for ObjectVersion {
    fn from(version: StoredVersion) -> Self {
        match version {
            StoredVersion::Unknown => Self::Unknown,
            StoredVersion::Tagged { tag, is_settled: true } => Self::Known(tag),
            StoredVersion::Tagged { is_settled: false, .. } | StoredVersion::Mixed => Self::Unsettled,
        }
    }
}

/// `None` is an object that is not there.
impl From<Option<StoredVersion>> for ObjectVersion {
    fn from(version: Option<StoredVersion>) -> Self {
        version.map_or(Self::Missing, Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bytes_of_one_settled_version_have_a_known_one() {
        let young = |tag: &str| StoredVersion::Tagged { tag: tag.to_owned(), is_settled: false };
        let old = StoredVersion::settled;
        for (one, other, both) in [
            (old("a"), old("a"), ObjectVersion::Known("a".to_owned())),
            (old("a"), old("b"), ObjectVersion::Unsettled),
            (old("a"), young("a"), ObjectVersion::Unsettled),
            (young("a"), young("a"), ObjectVersion::Unsettled),
            (old("a"), StoredVersion::Unknown, ObjectVersion::Unknown),
            (StoredVersion::Unknown, StoredVersion::Unknown, ObjectVersion::Unknown),
            (StoredVersion::Mixed, StoredVersion::Unknown, ObjectVersion::Unsettled),
            (StoredVersion::Mixed, old("a"), ObjectVersion::Unsettled),
            (StoredVersion::Mixed, StoredVersion::Mixed, ObjectVersion::Unsettled),
        ] {
            assert_eq!(ObjectVersion::from(one.and(&other)), both, "{one:?} and {other:?}");
            assert_eq!(ObjectVersion::from(other.and(&one)), both, "{other:?} and {one:?}");
        }
        assert_eq!(ObjectVersion::from(None), ObjectVersion::Missing);
    }
}
