//! Plain segments: all bytes of the file are payload, and all of the payload are elements. Files with a footer are
//! attached here too, if they are expected ([`Expect::Bookkeeping`]).

use std::fs::File;

use super::attach::{Attach, FoundBy, Subject, attach, by_name};
use super::description::{self, LONGEST_DESCRIPTION};
use super::open_file::{read_footer, refuse_bookkeeping};
use super::{Home, Segment};
use crate::backend::lock_space::LEASE;
use crate::backend::{Directory, Location};
use crate::error::{ErrorKind, Result};
use crate::os::{Facts, LockRange};

/// What a file must be to be attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Exactly this many bytes, without a footer of this crate.
    Payload(u64),
    /// A file with a footer, of any length.
    Bookkeeping,
}

impl Subject for Expect {
    type Record = ();
    type Memory = Segment;
    const LEASE: LockRange = LEASE;

    fn read(&self, file: &File, facts: &Facts, location: &Location) -> Result<()> {
        match *self {
            Self::Payload(expected) => {
                refuse_bookkeeping(file, facts, location)?;
                let found = facts.length;
                let mismatch = || ErrorKind::SizeMismatch { expected, found, description: None }.at(location);
                (expected == found).then_some(()).ok_or_else(mismatch)
            }
            Self::Bookkeeping if read_footer(file, facts.length, location)?.is_some_and(|found| found.is_ours()) => {
                Ok(())
            }
            Self::Bookkeeping => {
                Err(ErrorKind::Trailer { reason: "it has no footer of this crate".into() }.at(location))
            }
        }
    }

    fn enter(&self, mapped: Segment, (): &(), _how: &Attach) -> Result<Segment> {
        Ok(mapped)
    }
}

/// A plain array. `check` gets its length and its description, and fails if it is not the expected array.
struct Plain<'a, F> {
    backend: &'a Directory,
    check: F,
}

impl<R, F: Fn(u64, Option<&[u8]>) -> Result<R>> Subject for Plain<'_, F> {
    type Record = R;
    type Memory = Segment;
    const LEASE: LockRange = LEASE;

    fn read(&self, file: &File, facts: &Facts, location: &Location) -> Result<R> {
        refuse_bookkeeping(file, facts, location)?;
        let mut buffer = [0; LONGEST_DESCRIPTION];
        (self.check)(facts.length, description::read(self.backend, file, &mut buffer))
    }

    fn enter(&self, mapped: Segment, _read: &R, _how: &Attach) -> Result<Segment> {
        Ok(mapped)
    }
}

impl Segment {
    /// Opens, leases and maps the plain array of this name, unless `check` refuses its length or its description.
    pub(crate) fn attach_described<R>(
        home: &Home,
        how: Attach,
        check: impl Fn(u64, Option<&[u8]>) -> Result<R>,
    ) -> Result<(Self, R)> {
        by_name(home, how, &Plain { backend: &home.backend, check })
    }

    /// Leases and maps a file that was opened by name. Returns `Ok(None)` if the name leads to another file by now.
    pub(crate) fn attach_file(file: File, home: &Home, expect: Expect, how: Attach) -> Result<Option<Self>> {
        Ok(attach(file, FoundBy::Name, home, how, &expect)?.map(|(segment, ())| segment))
    }
}
