//! The memory of an attached array: a plain segment, or one handle of a counted one.

use std::fs::File;

use crate::backend::lock_space::LEASE;
use crate::error::{Error, Result};
use crate::os::{LockKind, LockRange};
use crate::segment::locks::{Hold, Wait};
use crate::segment::{CountedSegment, Segment};

/// The attached memory. What plain and counted arrays do differently under the same method is decided here.
#[derive(Debug)]
pub(crate) enum ArrayMemory {
    Plain(Segment),
    Counted(CountedSegment),
}

/// Why the memory of a counted array is never plain.
const COUNTED: &str = "only `RefcountedArray` asks, and it is made of counted memory alone";

impl ArrayMemory {
    pub(super) fn segment(&self) -> &Segment {
        match self {
            Self::Plain(segment) => segment,
            Self::Counted(counted) => counted.segment(),
        }
    }

    /// Returns the memory of an array that was created or attached as a plain one.
    pub(super) fn into_plain(self) -> Segment {
        match self {
            Self::Plain(segment) => segment,
            Self::Counted(_) => unreachable!("a `RefcountedArray` never gives the array away that it dereferences to"),
        }
    }

    /// Returns the memory of an array that was created or attached as a counted one.
    pub(super) fn counted(&self) -> &CountedSegment {
        match self {
            Self::Plain(_) => unreachable!("{COUNTED}"),
            Self::Counted(counted) => counted,
        }
    }

    /// As [`counted`](Self::counted).
    pub(super) fn counted_mut(&mut self) -> &mut CountedSegment {
        match self {
            Self::Plain(_) => unreachable!("{COUNTED}"),
            Self::Counted(counted) => counted,
        }
    }

    /// As [`counted`](Self::counted).
    pub(super) fn into_counted(self) -> CountedSegment {
        match self {
            Self::Plain(_) => unreachable!("{COUNTED}"),
            Self::Counted(counted) => counted,
        }
    }

    /// Locks cells, for a guard.
    pub(super) fn hold(&self, kind: LockKind, range: LockRange, wait: Wait<'_>) -> Result<Hold> {
        match self {
            Self::Plain(segment) => segment.hold(kind, range, wait),
            Self::Counted(counted) => counted.hold(kind, range, wait),
        }
    }

    /// Returns the error for writing, which says why it is refused.
    pub(super) fn read_only(&self) -> Error {
        match self {
            Self::Plain(segment) => segment.read_only(),
            Self::Counted(counted) => counted.read_only(),
        }
    }

    /// Opens a descriptor with a lease of its own.
    pub(super) fn leased_descriptor(&self) -> Result<File> {
        match self {
            Self::Plain(segment) => {
                segment.refuse_inherited()?;
                segment.leased_descriptor(segment.access(), LEASE)
            }
            Self::Counted(counted) => counted.leased_descriptor(),
        }
    }
}

impl From<Segment> for ArrayMemory {
    fn from(segment: Segment) -> Self {
        Self::Plain(segment)
    }
}

impl From<CountedSegment> for ArrayMemory {
    fn from(counted: CountedSegment) -> Self {
        Self::Counted(counted)
    }
}
