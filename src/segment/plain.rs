//! Plain segments: all bytes of the file are the payload, and all of them elements; and bookkeeping that is attached as if it were one.

use std::fs::File;

use super::attach::{Attach, Subject, attach, by_name};
use super::footer::{Kind, RawFooter};
use super::{Home, Segment, read_footer};
use crate::backend::Location;
use crate::backend::lock_space::LEASE;
use crate::error::{Error, Result};
use crate::os::{Facts, LockRange};

/// What a file that is attached must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Exactly this many bytes, and none of ours among them.
    Payload(u64),
    /// A file with a footer, of any length.
    Bookkeeping,
}

impl Subject for Expect {
    type Record = ();
    type Memory = Segment;
    const LEASE: LockRange = LEASE;

    fn read(&self, file: &File, facts: &Facts, location: &Location) -> Result<()> {
        let footer = read_footer(file, facts.length, location)?.filter(RawFooter::is_ours);
        match (*self, footer) {
            (Self::Payload(_), Some(footer)) => Err(Error::Reserved {
                location: location.to_string(),
                reason: if footer.validate(Kind::Counted, facts.length).is_ok() {
                    "it is a counted array (open it as a RefcountedArray)"
                } else if footer.claims(Kind::Arena) {
                    "it is an arena (open it as an Arena)"
                } else {
                    "it is bookkeeping of this crate, not an array"
                },
            }),
            (Self::Payload(expected), None) if expected != facts.length => {
                Err(Error::SizeMismatch { location: location.to_string(), expected, found: facts.length })
            }
            (Self::Bookkeeping, None) => {
                Err(Error::Trailer { location: location.to_string(), reason: "it has no footer of this crate".into() })
            }
            _ => Ok(()),
        }
    }

    fn enter(&self, mapped: Segment, (): &(), _home: &Home, _how: &Attach) -> Result<Segment> {
        Ok(mapped)
    }
}

impl Segment {
    /// Opens, leases and maps what has the name.
    pub(crate) fn attach(home: &Home, expect: Expect, how: Attach) -> Result<Self> {
        by_name(home, how, &expect).map(|(segment, ())| segment)
    }

    /// Leases and maps a file that was opened by name. `Ok(None)`: the name leads elsewhere by now.
    pub(crate) fn attach_file(file: File, home: &Home, expect: Expect, how: Attach) -> Result<Option<Self>> {
        Ok(attach(file, true, home, how, &expect)?.map(|(segment, ())| segment))
    }
}
