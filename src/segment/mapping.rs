//! From an open file to mapped bytes: lengths, holes, and the mapping that carries the lease.

use std::fs::File;

use super::{Home, unlinked};
use crate::backend::{Access, Backend};
use crate::error::{Error, Result};
use crate::os::{self, Facts, Mapping};

/// Takes the room that a foreign file only promises, where touching its holes would take it.
pub(super) fn fill_holes(file: &File, facts: &Facts, home: &Home, access: Access) -> Result<()> {
    let Home { backend, location } = home;
    if access == Access::ReadWrite {
        return backend.reserve(file).map_err(|error| error.about(location));
    }
    // On a disk a hole is read as zeros at no cost; in memory the reader pays.
    if !os::holes_take_memory(file) {
        return Ok(());
    }
    match backend.open(location, Access::ReadWrite) {
        Ok(writable) if os::facts(&writable).is_ok_and(|now| now.id == facts.id) => {
            backend.reserve(&writable).map_err(|error| error.about(location))
        }
        Err(Error::PermissionDenied { .. }) => Err(Error::Unsupported {
            location: location.to_string(),
            what: "it has holes, reading them takes memory, and this user may not fill them beforehand; open it with \
                   AttachOptions::leave_holes"
                .into(),
        }),
        // The name was replaced or removed meanwhile. The attachment is to the caller's file, whatever has the name.
        Ok(_) | Err(Error::NotFound { .. }) => Err(unlinked(home)),
        Err(error) => Err(error),
    }
}

pub(super) fn map_length(length: u64, name: &str) -> Result<usize> {
    usize::try_from(length).ok().filter(|length| isize::try_from(*length).is_ok()).ok_or_else(|| too_large(name))
}

pub(super) fn too_large(name: &str) -> Error {
    Error::TooLarge { location: name.to_owned(), shape: Vec::new(), item: 1 }
}

/// An empty file is mapped too, never to be touched: the mapping carries the lease. Where that cannot be, the descriptor is
/// kept and carries it, and any memory will do.
pub(super) fn map(file: &File, start: u64, length: u64, access: Access, name: &str) -> Result<Mapping> {
    map_as(file, start, length, Sharing::of(access), name)
}

/// What becomes of the bytes that are written through a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// They cannot be written.
    ReadOnly,
    /// Every process that maps the file sees them.
    Shared,
    /// Only this process sees them.
    CopyOnWrite,
}

impl Sharing {
    pub(super) fn of(access: Access) -> Self {
        if access == Access::ReadWrite { Self::Shared } else { Self::ReadOnly }
    }
}

/// As `map`, with a choice of what becomes of bytes that are written.
pub(super) fn map_as(file: &File, start: u64, length: u64, sharing: Sharing, name: &str) -> Result<Mapping> {
    let write = sharing == Sharing::Shared;
    let mapped = match map_length(length, name)? {
        0 => Mapping::of_empty(file, write),
        length if sharing == Sharing::CopyOnWrite => Mapping::copy_on_write(file, start, length),
        length => Mapping::new(file, start, length, write),
    };
    mapped.map_err(|error| Error::os(os::MAPPING, name, error))
}
