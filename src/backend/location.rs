//! Names of segments: which are valid, and which are reserved for the bookkeeping of this crate.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};
use crate::os;

/// Prefix of the file names of ledgers, drafts, unfinished renderbuffers and streams. No location may begin with it.
pub const RESERVED_PREFIX: &str = ".ndshm-";

/// Longest file name in bytes that every common file system allows.
const LONGEST: usize = 255;

/// The name of a segment: 1 to 255 bytes of UTF-8, without `/` and NUL, not `.` or `..`, not reserved.
///
/// One leading `/` is dropped, because POSIX and Python write names of shared memory that way. Every function that
/// takes a location takes a string too.
///
/// ```
/// use ndarray_shm::Location;
///
/// let location: Location = "/my-example".parse()?;
/// assert_eq!(location.as_str(), "my-example");
/// assert!("a/b".parse::<Location>().is_err());
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
pub struct Location(Box<str>);

impl Location {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidLocation`]: the name breaks a rule, which the error states.
    /// - [`ErrorKind::Reserved`]: the name begins with [`RESERVED_PREFIX`].
    pub fn new(name: &str) -> Result<Self> {
        let name = name.strip_prefix('/').unwrap_or(name);
        let rules = [
            (name.is_empty(), "it is empty (give it a name of 1 to 255 bytes)"),
            (name.len() > LONGEST, "it is longer than 255 bytes"),
            (name == "." || name == "..", "it means a directory"),
            (name.contains('/'), "it contains '/' (a location is one name, not a path)"),
            (name.contains('\0'), "it contains a NUL byte"),
        ];
        let broken = rules.into_iter().find_map(|(is_broken, reason)| is_broken.then_some(reason));
        if let Some(reason) = broken.or_else(|| os::forbidden_name(name)) {
            let shown: String = name.chars().take(40).collect();
            let location = if shown.len() < name.len() { format!("{shown}..") } else { shown };
            return Err(ErrorKind::InvalidLocation { reason }.at(location));
        }
        // Ignores case, because some file systems do, and some fold the long s too.
        let folded = name.chars().map(|letter| if letter == 'ſ' { 's' } else { letter.to_ascii_lowercase() });
        if folded.take(RESERVED_PREFIX.len()).eq(RESERVED_PREFIX.chars()) {
            let reason = "names that begin with `.ndshm-` belong to this crate's own bookkeeping";
            return Err(ErrorKind::Reserved { reason }.at(name));
        }
        Ok(Self(name.into()))
    }

    /// Returns the name, without a leading slash.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Makes a unique name from a random number, short enough for every system.
    pub(crate) fn unique(random: u128) -> Self {
        #[allow(clippy::cast_possible_truncation)] // 64 bits of it are enough
        Self(format!("ndshm-{:016x}", random as u64).into())
    }

    /// Takes the file name of a draft, which no public location can have. Returns `None` for other names.
    pub(crate) fn of_draft(name: &str) -> Option<Self> {
        (name.starts_with(RESERVED_PREFIX) && !name.contains('/') && Self::of_companion(name).is_none())
            .then(|| Self(name.into()))
    }

    /// Makes a unique file name for a draft from a random number.
    pub(crate) fn hidden(random: u128) -> Self {
        #[allow(clippy::cast_possible_truncation)] // 64 bits of it are enough
        Self(format!("{RESERVED_PREFIX}draft-{:016x}", random as u64).into())
    }

    /// Returns the name of a bookkeeping file that belongs to this location.
    pub(crate) fn companion(&self, kind: Companion) -> Result<Self> {
        let name = format!("{}{}", kind.prefix(), self.0);
        if name.len() > LONGEST {
            let reason = "the name of a renderbuffer, a stream or a cache may have 241 bytes, because its files are named after it";
            return Err(ErrorKind::InvalidLocation { reason }.at(&self.0));
        }
        Ok(Self(name.into()))
    }

    /// Recognises a companion's file name; the inverse of [`companion`](Self::companion).
    pub(crate) fn of_companion(name: &str) -> Option<(Companion, Self)> {
        Companion::ALL.into_iter().find_map(|kind| {
            let location = Self::new(name.strip_prefix(kind.prefix())?).ok()?;
            Some((kind, location))
        })
    }
}

/// The bookkeeping files that belong to a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Companion {
    /// The payload of an unfinished renderbuffer.
    Partial,
    /// The ledger of a renderbuffer.
    Ledger,
    /// The frames of a stream.
    Frames,
    /// The keeper of a stream: its writer's lock and its cursors.
    Keeper,
    /// A cache of chunks.
    Cache,
}

impl Companion {
    const ALL: [Self; 5] = [Self::Partial, Self::Ledger, Self::Frames, Self::Keeper, Self::Cache];

    const fn prefix(self) -> &'static str {
        match self {
            Self::Partial => ".ndshm-part-",
            Self::Ledger => ".ndshm-ledger-",
            Self::Frames => ".ndshm-frames-",
            Self::Keeper => ".ndshm-keeper-",
            Self::Cache => ".ndshm-cache-",
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Location {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for Location {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl TryFrom<String> for Location {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::new(&name)
    }
}

impl From<Location> for String {
    fn from(location: Location) -> Self {
        location.0.into()
    }
}

/// A conversion into a [`Location`], from a string in any form or from a location.
///
/// Implemented for every type with `AsRef<str>`, so there is nothing to implement by hand.
pub trait IntoLocation {
    /// Checks and converts.
    ///
    /// # Errors
    ///
    /// As [`Location::new`].
    fn into_location(self) -> Result<Location>;
}

impl<L: AsRef<str>> IntoLocation for L {
    fn into_location(self) -> Result<Location> {
        Location::new(self.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_leading_slash_is_dropped() {
        assert_eq!(Location::new("/x").expect("a name").as_str(), "x");
        assert!(matches!(Location::new("//x"), Err(Error { kind: ErrorKind::InvalidLocation { .. }, .. })));
        assert!(matches!(Location::new("/"), Err(Error { kind: ErrorKind::InvalidLocation { .. }, .. })));
    }

    #[test]
    fn every_broken_rule_has_its_own_reason() {
        let long = "x".repeat(256);
        let mut reasons = Vec::new();
        for name in ["", ".", "..", "a/b", "a\0b", long.as_str()] {
            match Location::new(name) {
                Err(Error { kind: ErrorKind::InvalidLocation { reason, .. }, .. }) => reasons.push(reason),
                other => panic!("{name:?}: {other:?}"),
            }
        }
        reasons.dedup();
        assert_eq!(reasons.len(), 5); // "." and ".." share theirs
        assert!(matches!(Location::new(".ndshm-x"), Err(Error { kind: ErrorKind::Reserved { .. }, .. })));
        for folded in [".NDshm-x", ".ndſhm-x", ".NDſHM-ledger-x"] {
            assert!(matches!(Location::new(folded), Err(Error { kind: ErrorKind::Reserved { .. }, .. })), "{folded}");
        }
        assert!(Location::new(&"x".repeat(255)).is_ok());
    }

    #[test]
    fn companion_leads_back_to_its_location() {
        let location = Location::new("volume").expect("a name");
        for kind in Companion::ALL {
            let companion = location.companion(kind).expect("short enough");
            assert_eq!(Location::of_companion(companion.as_str()), Some((kind, location.clone())));
        }
        assert!(Location::new(&"x".repeat(242)).expect("a name").companion(Companion::Ledger).is_err());
        assert!(Location::new(&"x".repeat(241)).expect("a name").companion(Companion::Ledger).is_ok());
    }
}
