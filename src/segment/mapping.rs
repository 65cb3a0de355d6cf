//! From an open file to mapped bytes: lengths, holes, and the mapping that carries the lease.

use std::fs::File;

use super::Home;
use super::open_file::unlinked;
use super::room::with_room;
use crate::backend::{Access, Backend};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, Facts, Mapping};

/// Allocates the holes of a file that may have some, so that no later access raises SIGBUS. With read access, only
/// where reading a hole allocates memory.
pub(super) fn fill_holes(file: &File, facts: &Facts, home: &Home, access: Access) -> Result<()> {
    let Home { backend, location } = home;
    let reserve = |file: &File| with_room(backend, || backend.reserve(file)).map_err(|error| error.about(location));
    if access == Access::ReadWrite {
        return reserve(file);
    }
    // On a disk, reading a hole allocates nothing. In memory (tmpfs), it allocates a page.
    if !os::holes_take_memory(file) {
        return Ok(());
    }
    match backend.open(location, Access::ReadWrite) {
        Ok(writable) if os::facts(&writable).is_ok_and(|now| now.id == facts.id) => reserve(&writable),
        // The system does not tell whether there are holes: on a tmpfs with huge pages, one reaches beyond the end of
        // the file. A user that may only read has no other way to find out, so the count decides.
        Err(Error { kind: ErrorKind::PermissionDenied { .. }, .. }) if os::has_holes(file, facts).is_none() => Ok(()),
        Err(Error { kind: ErrorKind::PermissionDenied { .. }, .. }) => Err(ErrorKind::Unsupported {
            what: "it has holes, reading them takes memory, and this user may not fill them beforehand; open it with \
                   OpenOptions::leave_holes"
                .into(),
        }
        .at(location)),
        // The name was replaced or removed meanwhile. Only the caller's file may be filled, not another file of that
        // name.
        Ok(_) | Err(Error { kind: ErrorKind::NotFound, .. }) => Err(unlinked(home)),
        Err(error) => Err(error),
    }
}

pub(super) fn map_length(length: u64, name: &str) -> Result<usize> {
    usize::try_from(length).ok().filter(|length| isize::try_from(*length).is_ok()).ok_or_else(|| too_large(name))
}

pub(super) fn too_large(name: &str) -> Error {
    ErrorKind::TooLarge { shape: Vec::new(), item: 1 }.at(name)
}

/// Maps `length` bytes of the file from `start`.
///
/// An empty file is mapped too, because the mapping carries the lease; that mapping is never accessed. Where a mapping
/// carries no lease, the kept descriptor does, and an empty file is represented by other memory.
pub(super) fn map(file: &File, start: u64, length: u64, access: Access, name: &str) -> Result<Mapping> {
    map_as(file, start, length, Sharing::of(access), name)
}

/// Where bytes go that are written through a mapping.
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

/// Like `map`, with a choice of the sharing.
pub(super) fn map_as(file: &File, start: u64, length: u64, sharing: Sharing, name: &str) -> Result<Mapping> {
    let write = sharing == Sharing::Shared;
    let mapped = match map_length(length, name)? {
        0 => Mapping::of_empty(file, write),
        length if sharing == Sharing::CopyOnWrite => Mapping::copy_on_write(file, start, length),
        length => Mapping::new(file, start, length, write),
    };
    mapped.map_err(|error| Error::os(os::MAPPING, name, error))
}
