//! How long a file stays after its last use, of those that outlive their processes for some time: two words of its
//! header. Processes that use it map them; `gc` and the manager read them in the file.

use std::fs::File;
use std::time::{Duration, SystemTime};

use super::footer::Kind;
use super::open_file::read_trailer;
use crate::backend::Location;
use crate::error::{Error, Result};
use crate::os;

/// Offset of the word that says when the file was last used, in seconds since 1970. A file on a disk outlives the clock
/// that counts from the start of the machine.
pub(crate) const SEEN: u64 = 8;

/// Offset of the word that says for how many seconds the file stays after that.
pub(crate) const KEEP: u64 = 16;

/// The word of a file that stays until its name is removed.
const FOR_EVER: u64 = u64::MAX;

/// The longest trailer of such a file.
const LONGEST_TRAILER: usize = 4096;

/// Returns the present time as a word.
pub(crate) fn wall_clock() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns a time to stay as a word: whole seconds, rounded up.
pub(crate) fn keep_to_word(keep: Duration) -> u64 {
    keep.as_secs().saturating_add(u64::from(keep.subsec_nanos() > 0))
}

/// Returns the time to stay that a word says.
pub(crate) fn keep_of_word(word: u64) -> Duration {
    if word == FOR_EVER { Duration::MAX } else { Duration::from_secs(word) }
}

/// Returns for how long a file was not used. A clock that was set back does not make it older.
pub(crate) fn unused_for(seen: u64) -> Duration {
    Duration::from_secs(wall_clock().saturating_sub(seen))
}

/// Returns how much longer a file of this kind and length stays if no process uses it, zero if it need not; and for how
/// long it was not used.
///
/// # Errors
///
/// [`Trailer`](crate::ErrorKind::Trailer): it is damaged, or none of this kind.
pub(crate) fn time_left(file: &File, length: u64, kind: Kind, at: &Location) -> Result<(Duration, Duration)> {
    read_trailer(file, length, kind, LONGEST_TRAILER, at)?;
    let word = |offset| {
        let mut bytes = [0; 8];
        os::read_exact_at(file, &mut bytes, offset).map_err(|error| Error::os("read the header of", at, error))?;
        Ok::<_, Error>(u64::from_le_bytes(bytes))
    };
    let (keep, unused) = (keep_of_word(word(KEEP)?), unused_for(word(SEEN)?));
    Ok((if keep == Duration::MAX { keep } else { keep.saturating_sub(unused) }, unused))
}
