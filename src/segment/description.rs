//! The description of a plain array: a text beside the bytes of its file, in an extended attribute. It is read and written by name,
//! without attaching.
//!
//! Knows the length and the place of the text, not its contents.

use std::fs::File;

use super::attach::lease_own;
use super::plain::refuse_bookkeeping;
use super::{Home, is_named, look, unlinked};
use crate::backend::lock_space::LEASE;
use crate::backend::{Access, Backend, Directory, Location};
use crate::error::{Error, Result};
use crate::os;

/// The longest description in bytes. ext4 keeps all extended attributes of a file in one block of 4 KiB.
pub(crate) const LONGEST_DESCRIPTION: usize = 3500;

/// How many times a name is opened again because it was replaced meanwhile.
const TRIES: u32 = 1000;

/// Reads the description of an open file. Returns `None` if there is none, or if it is too long or may not be read.
pub(super) fn read<'a>(backend: &Directory, file: &File, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let length = backend.attribute(file, buffer).ok()??;
    buffer.get(..length)
}

/// Returns the length and the description of the plain array of this name.
pub(crate) fn read_description<'a>(
    backend: &Directory,
    location: &Location,
    buffer: &'a mut [u8],
) -> Result<(u64, Option<&'a [u8]>)> {
    let home = Home { backend: backend.clone(), location: location.clone() };
    for _ in 0..TRIES {
        let file = backend.open(location, Access::Read)?;
        let facts = look(&file, location)?;
        refuse_bookkeeping(&file, &facts, location)?;
        let length = read(backend, &file, buffer).map(<[u8]>::len);
        // After the file was opened, a pool may have recycled its memory for an array of another name. Then the description is of
        // that array.
        if is_named(&look(&file, location)?, &home)? {
            return Ok((facts.length, length.and_then(|length| buffer.get(..length))));
        }
    }
    Err(unlinked(&home))
}

/// Writes the description of the plain array of this name, if the array has the given length, or removes the description.
pub(crate) fn describe(backend: &Directory, location: &Location, new: Option<(u64, &[u8])>) -> Result<()> {
    let home = Home { backend: backend.clone(), location: location.clone() };
    for _ in 0..TRIES {
        let file = backend.open(location, Access::ReadWrite)?;
        // While it is leased, no pool uses the memory for another array.
        lease_own(&file, LEASE, location.as_str())?;
        let described = describe_leased(&file, &home, new);
        let _ = os::unlock(&file, LEASE); // a process that is just being spawned may have a copy of the descriptor
        if described? {
            return Ok(());
        }
    }
    Err(unlinked(&home))
}

/// Returns `Ok(false)` if the name leads to another file by now.
fn describe_leased(file: &File, home: &Home, new: Option<(u64, &[u8])>) -> Result<bool> {
    let Home { backend, location } = home;
    let facts = look(file, location)?;
    if !is_named(&facts, home)? {
        return Ok(false);
    }
    refuse_bookkeeping(file, &facts, location)?;
    if let Some((expected, _)) = new.filter(|(bytes, _)| *bytes != facts.length) {
        let (location, found) = (location.to_string(), facts.length);
        return Err(Error::SizeMismatch { location, expected, found, description: None });
    }
    match backend.set_attribute(file, new.map(|(_, text)| text)) {
        Ok(()) => Ok(true),
        Err(Error::Unsupported { .. }) => Err(Error::Unsupported {
            location: location.to_string(),
            what: "its file system has no extended attributes of `user.` (tmpfs has them since Linux 6.6), which keep the \
                   description: give type and shape where the array is opened"
                .into(),
        }),
        Err(error) => Err(error.about(location)),
    }
}
