//! The description of a plain array: a text beside the bytes of its file, in an extended attribute. It is read and
//! written by name, without attaching.
//!
//! Knows the length and the place of the text, not its contents.

use std::fs::File;
use std::time::Duration;

use super::Home;
use super::attach::{LEASE_WAIT, lease};
use super::open_file::refuse_bookkeeping;
use super::open_file::{is_named, look, unlinked};
use crate::backend::lock_space::LEASE;
use crate::backend::{Access, Alone, Backend, Directory, Location, Turn, lock_name};
use crate::backoff::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, FileId, LockKind};

/// The longest description in bytes. ext4 keeps all extended attributes of a file in one block of 4 KiB.
pub(crate) const LONGEST_DESCRIPTION: usize = 3500;

/// How long a change of a description waits for another one, or for a removal of the name.
const NAME_WAIT: Duration = Duration::from_secs(5);

/// How many times a name is opened again because it was replaced meanwhile.
const TRIES: u32 = 1000;

/// Reads the description of an open file. Returns `None` if there is none, or if it is too long or may not be read.
pub(super) fn read<'a>(backend: &Directory, file: &File, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let length = backend.attribute(file, buffer).ok()??;
    buffer.get(..length)
}

/// What was found of a plain array by name. While this keeps the file open, no other file gets the same identity.
#[derive(Debug)]
pub(crate) struct FoundDescription<T> {
    pinned: File,
    id: FileId,
    /// The length of the file.
    pub(crate) length: u64,
    pub(crate) text: Option<T>,
}

impl FoundDescription<&[u8]> {
    /// Copies the text.
    pub(crate) fn into_owned(self) -> FoundDescription<Box<[u8]>> {
        let Self { pinned, id, length, text } = self;
        FoundDescription { pinned, id, length, text: text.map(Into::into) }
    }
}

/// Finds the length and the description of the plain array of this name.
pub(crate) fn read_description<'a>(
    backend: &Directory,
    location: &Location,
    buffer: &'a mut [u8],
) -> Result<FoundDescription<&'a [u8]>> {
    let home = Home { backend: backend.clone(), location: location.clone() };
    for _ in 0..TRIES {
        let file = backend.open(location, Access::Read)?;
        let facts = look(&file, location)?;
        refuse_bookkeeping(&file, &facts, location)?;
        let length = read(backend, &file, buffer).map(<[u8]>::len);
        // After the file was opened, a pool may have recycled its memory for an array of another name. Then the
        // description is of that array.
        if is_named(&look(&file, location)?, &home)? {
            let text = length.and_then(|length| buffer.get(..length));
            return Ok(FoundDescription { pinned: file, id: facts.id, length: facts.length, text });
        }
    }
    Err(unlinked(&home))
}

/// Writes the description of the plain array of this name, if the array has the given length, or removes the
/// description. With `seen`, it does so only if array and description are still the ones that were found.
pub(crate) fn describe(
    backend: &Directory,
    location: &Location,
    new: Option<(u64, &[u8])>,
    seen: Option<&FoundDescription<Box<[u8]>>>,
) -> Result<()> {
    let home = Home { backend: backend.clone(), location: location.clone() };
    for _ in 0..TRIES {
        let mut turn = Turn::new(backend.open(location, Access::ReadWrite)?);
        os::step("describe: opened");
        // While it is leased, no pool uses the memory for another array. One that has it already, under another name,
        // keeps the lease.
        if !lease(turn.file(), LEASE, Deadline::after(LEASE_WAIT), Some(&home), location.as_str())? {
            continue;
        }
        turn.note(LEASE);
        if describe_leased(&mut turn, &home, new, seen)? {
            return Ok(());
        }
    }
    Err(unlinked(&home))
}

/// Returns `Ok(false)` if the name leads to another file by now.
fn describe_leased(
    turn: &mut Turn,
    home: &Home,
    new: Option<(u64, &[u8])>,
    seen: Option<&FoundDescription<Box<[u8]>>>,
) -> Result<bool> {
    // Two processes that have seen the same description do not both replace it, and what comes after a look is not
    // overwritten: every change of a description takes this lock.
    // A lock beside a process that keeps a read lock would not exclude another describer.
    if lock_name(turn, LockKind::Exclusive, &home.location, NAME_WAIT)? != Alone::Yes {
        return Err(ErrorKind::TimedOut { waited: NAME_WAIT }.at(&home.location));
    }
    let file = turn.file();
    let Some(seen) = seen else { return write(file, home, new) };
    let mut buffer = [0; LONGEST_DESCRIPTION];
    let mut is_as_seen = || -> Result<bool> {
        let facts = look(file, &home.location)?;
        let text = read(&home.backend, file, &mut buffer);
        Ok((facts.id, facts.length, text) == (seen.id, seen.length, seen.text.as_deref()))
    };
    let changed = || ErrorKind::Changed.at(&home.location);
    os::step("describe: name locked");
    match is_as_seen().and_then(|same| if same { write(file, home, new) } else { Err(changed()) }) {
        Ok(false) => Err(changed()),
        other => other,
    }
}

/// Returns `Ok(false)` if the name leads to another file by now. The caller has the lease.
fn write(file: &File, home: &Home, new: Option<(u64, &[u8])>) -> Result<bool> {
    let Home { backend, location } = home;
    let facts = look(file, location)?;
    if !is_named(&facts, home)? {
        return Ok(false);
    }
    refuse_bookkeeping(file, &facts, location)?;
    if let Some((expected, _)) = new.filter(|(bytes, _)| *bytes != facts.length) {
        return Err(ErrorKind::SizeMismatch { expected, found: facts.length, description: None }.at(location));
    }
    match backend.set_attribute(file, new.map(|(_, text)| text)) {
        Ok(()) => Ok(true),
        Err(Error { kind: ErrorKind::Unsupported { .. }, .. }) => {
            let what = "its file system has no extended attributes of `user.` (tmpfs has them since Linux 6.6), which keep the \
                        description: give type and shape where the array is opened";
            Err(ErrorKind::Unsupported { what: what.into() }.at(location))
        }
        Err(error) => Err(error.about(location)),
    }
}
