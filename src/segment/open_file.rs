//! What an open file tells: its metadata, whether it is leased, whether its name still leads to it, and whether it has
//! a footer.

use std::fmt;
use std::fs::File;

use super::Home;
use super::footer::{FOOTER, Footer, Kind, RawFooter};
use crate::backend::lock_space::{COUNTED, LEASE};
use crate::backend::{Access, Backend, Directory, Location};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, Facts, LockKind};

/// Returns whether any process is attached to the array of this name.
pub(crate) fn is_attached(backend: &Directory, at: &Location) -> Result<bool> {
    is_leased(&backend.open(at, Access::Read)?, at)
}

/// Returns whether any description other than this one holds a lease on the file, as a plain array or a counted one.
pub(crate) fn is_leased(file: &File, at: &Location) -> Result<bool> {
    // F_GETLK reports any lock that conflicts with a write lock, and needs no descriptor open for writing.
    let asked = |lease| os::is_locked(file, LockKind::Exclusive, lease);
    asked(LEASE)
        .and_then(|plain| Ok(plain || asked(COUNTED)?))
        .map_err(|error| Error::os("ask for the lease", at, error))
}

/// Returns the last bytes of a file as a footer; `None` if the file is too short.
pub(crate) fn read_footer(file: &File, length: u64, at: &Location) -> Result<Option<RawFooter>> {
    let Some(start) = length.checked_sub(FOOTER as u64) else { return Ok(None) };
    let mut tail = [0; FOOTER];
    os::read_exact_at(file, &mut tail, start).map_err(|error| Error::os("read the end of", at, error))?;
    Ok(RawFooter::of(&tail))
}

/// Reads the trailer of a file with bookkeeping that never changes, and checks its two checksums. It has at most
/// `longest` bytes, the footer included, which is not among those that are returned.
pub(crate) fn read_trailer(
    file: &File,
    length: u64,
    kind: Kind,
    longest: usize,
    at: &Location,
) -> Result<(Footer, Vec<u8>)> {
    let invalid = |reason| ErrorKind::Trailer { reason }.at(at);
    let raw = read_footer(file, length, at)?;
    let raw = raw.ok_or_else(|| invalid("it is shorter than a footer".into()))?;
    let footer = raw.validate(kind, length).map_err(invalid)?;
    if footer.trailer as usize > longest {
        let found = footer.trailer;
        return Err(invalid(format!("the trailer has {found} bytes, but may have at most {longest}")));
    }
    let mut trailer = vec![0; footer.trailer as usize - FOOTER];
    os::read_exact_at(file, &mut trailer, footer.payload).map_err(|error| Error::os("read the end of", at, error))?;
    if !raw.covers(&trailer) {
        return Err(invalid("the trailer's checksum is wrong".into()));
    }
    Ok((footer, trailer))
}

/// Returns the metadata of an open file.
pub(super) fn look(file: &File, name: impl fmt::Display) -> Result<Facts> {
    os::facts(file).map_err(|error| Error::os("look at", name, error))
}

/// Returns whether the name still leads to a file that was opened by it. The link count does not tell: recycled memory
/// has been renamed, and off Linux an unlinked file may have moved to a hidden name.
pub(super) fn is_named(facts: &Facts, home: &Home) -> Result<bool> {
    Ok(facts.links > 0 && home.leads_to(facts.id)?)
}

/// Refuses a file that has a footer of this crate.
pub(super) fn refuse_bookkeeping(file: &File, facts: &Facts, location: &Location) -> Result<()> {
    let Some(footer) = read_footer(file, facts.length, location)?.filter(RawFooter::is_ours) else { return Ok(()) };
    let reason = if footer.validate(Kind::Counted, facts.length).is_ok() {
        "it is a counted array (open it as a RefcountedArray)"
    } else if footer.claims(Kind::Arena) {
        "it is an arena (open it as an Arena)"
    } else {
        "it is bookkeeping of this crate, not an array"
    };
    Err(ErrorKind::Reserved { reason }.at(location))
}

/// Returns the error for a name that does not lead to the file any more.
pub(super) fn unlinked(home: &Home) -> Error {
    ErrorKind::Unlinked.at(&home.location)
}
