//! Handles: a counted array's name on its way to another process, as one line of text.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::backend::{Access, Directory, Location, remembered};
use crate::error::{Error, Result};
use crate::os;
use crate::percent::{decode, encode};
use crate::random;
#[cfg(feature = "channel")]
use crate::segment::DROP_WAIT;
use crate::segment::counts::{MOST_TICKETS, Ticket};
use crate::segment::{Attach, CountedBy, CountedSegment, Home};

/// How long a handle keeps its array if nothing else is said.
const GRACE: Duration = Duration::from_secs(30);

/// First word of the text, with its version.
const SCHEME: &str = "ndshm1";

/// How often a handle can be used, and how long it keeps the array alive by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "options do nothing until `handle_with` is called"]
pub struct HandleOptions {
    grace: Duration,
    reusable: bool,
}

impl Default for HandleOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl HandleOptions {
    /// Begins with a handle for one user that keeps the array for 30 seconds.
    pub fn new() -> Self {
        Self { grace: GRACE, reusable: false }
    }

    /// Keeps the array for this long (a week at most) even if no process is attached. A handle that comes later is still good
    /// as long as a process has the array.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Lets any number of processes attach, until the handle is [revoked](Handle::revoke).
    pub fn reusable(mut self) -> Self {
        self.reusable = true;
        self
    }
}

/// A counted array's name in flight. A process that has it can attach, in any process of the same machine and directory.
///
/// It is written and read as one line of text without blanks, and with the feature `serde` as a string. While it is on its
/// way the array stays, even if its sender is killed, for the grace time its sender chose. Made for one user, it is used up
/// by attaching; a copy that comes second is [`HandleSpent`](Error::HandleSpent).
///
/// ```
/// use ndarray_shm::counted::{Handle, SharingStrategy};
/// use ndarray_shm::{CreateOptions, RefcountedArray};
///
/// let array = CreateOptions::<RefcountedArray<u16, _>>::new().share(SharingStrategy::FileSystem, (2, 3))?;
/// let text = array.handle()?.to_string();
/// drop(array);
///
/// // in another process, within the grace time
/// let handle: Handle = text.parse()?;
/// let array = handle.attach::<u16, ndarray::Ix2>()?;
/// assert_eq!(array.shape(), [2, 3]);
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
pub struct Handle {
    ticket: Ticket,
    id: u128,
    backend: String,
    directory: PathBuf,
    location: Location,
}

impl Handle {
    /// Notes in the array that a handle is on its way, and returns it.
    pub(super) fn issue(memory: &CountedSegment, id: u128, options: HandleOptions) -> Result<Self> {
        let ticket = Ticket::new(random::number(), options.reusable);
        let (home, counts) = (memory.home(), memory.counts());
        if counts.state().is_dead() {
            return Err(Error::Unlinked { location: home.location.to_string() });
        }
        if !counts.issue(ticket, os::since_boot(), options.grace) {
            return Err(Error::TooManyHandles {
                location: home.location.to_string(),
                limit: MOST_TICKETS as u64,
                doing: "on their way",
            });
        }
        let (backend, directory) = address(&home.backend);
        Ok(Self { ticket, id, backend, directory, location: home.location.clone() })
    }

    /// Revokes the handle: it keeps the array no longer, and no process can attach with it. `Ok(false)`: it was used already,
    /// or the array is gone.
    ///
    /// Every holder of the handle can revoke it, also a receiver that does not want the array.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](Error::PermissionDenied).
    pub fn revoke(&self) -> Result<bool> {
        self.revoke_in(None, Attach::new(Access::Read)).and_then(|(revoked, memory)| {
            memory.map_or(Ok(()), CountedSegment::close)?;
            Ok(revoked)
        })
    }

    /// Takes the handle back without waiting for long; what cannot be had at once expires.
    #[cfg(feature = "channel")]
    pub(super) fn give_up(&self, backend: Option<&Directory>) {
        let how = Attach { patience: DROP_WAIT, ..Attach::new(Access::Read) };
        let _left_when_dropped = self.revoke_in(backend, how);
    }

    fn revoke_in(&self, backend: Option<&Directory>, how: Attach) -> Result<(bool, Option<CountedSegment>)> {
        let home = self.home(backend)?;
        let how = Attach { sparse: true, ..how };
        match CountedSegment::attach(&home, how, CountedBy::Array(self.id), |_| Ok(())) {
            Ok((memory, ())) => Ok((memory.counts().revoke(self.ticket), Some(memory))),
            // The name is another array's by now, or nothing's.
            Err(Error::NotFound { .. } | Error::Unlinked { .. } | Error::HandleSpent { .. }) => Ok((false, None)),
            Err(error) => Err(error),
        }
    }

    /// Returns the array's name.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Returns the directory in which the name is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether any number of processes can attach with it.
    pub fn is_reusable(&self) -> bool {
        self.ticket.is_many()
    }

    pub(super) fn entry(&self) -> CountedBy {
        CountedBy::Ticket(self.ticket, self.id)
    }

    /// Finds the place that the handle means, which need not be this process's default.
    pub(super) fn home(&self, backend: Option<&Directory>) -> Result<Home> {
        let backend = backend.cloned().map_or_else(|| backend_at(&self.backend, &self.directory), Ok)?;
        Ok(Home { backend, location: self.location.clone() })
    }
}

/// Returns how another process finds a backend: by its name and its directory, wherever that process works.
pub(super) fn address(backend: &Directory) -> (String, PathBuf) {
    let directory = backend.path();
    (backend.name().to_owned(), std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned()))
}

/// Returns the backend of a directory that another process named. The emulated directory is checked as always.
pub(super) fn backend_at(name: &str, directory: &Path) -> Result<Directory> {
    if let Ok(real) = Directory::shm() {
        if real.path() == directory {
            return Ok(real);
        }
    }
    if Directory::emulated_path().is_ok_and(|path| path == directory) {
        return Directory::emulated();
    }
    Ok(remembered(name, directory))
}

/// `ndshm1:ticket:id:backend:directory:location`, with everything but letters, digits and `-._/` written as `%xx`.
impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [backend, location] = [self.backend.as_bytes(), self.location.as_str().as_bytes()].map(encode);
        let directory = path_to_text(&self.directory);
        write!(f, "{SCHEME}:{:016x}:{:032x}:{backend}:{directory}:{location}", self.ticket.number(), self.id)
    }
}

/// Writes a path as text, whatever bytes it has.
pub(super) fn path_to_text(path: &Path) -> String {
    encode(path.as_os_str().as_encoded_bytes())
}

/// Reads a path that must be absolute, so that it means the same in every process.
pub(super) fn path_of_text(text: &str) -> Option<PathBuf> {
    os::path_from(decode(text)?).filter(|path| path.is_absolute())
}

impl FromStr for Handle {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = || Error::InvalidSetting {
            setting: "the handle",
            value: text.chars().take(200).collect(),
            expected: "the line that its sender printed, which begins with `ndshm1:`",
        };
        let parts: Vec<&str> = text.trim().split(':').collect();
        let [SCHEME, ticket, id, backend, directory, location] = parts[..] else { return Err(invalid()) };
        let ticket = u64::from_str_radix(ticket, 16).ok().and_then(Ticket::from_number).ok_or_else(invalid)?;
        let id = u128::from_str_radix(id, 16).map_err(|_| invalid())?;
        let text = |escaped| decode(escaped).and_then(|bytes| String::from_utf8(bytes).ok());
        let (Some(backend), Some(location)) = (text(backend), text(location)) else { return Err(invalid()) };
        let directory = path_of_text(directory).ok_or_else(invalid)?;
        Ok(Self { ticket, id, backend, directory, location: Location::new(&location)? })
    }
}

impl TryFrom<String> for Handle {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Handle> for String {
    fn from(handle: Handle) -> Self {
        handle.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_read_as_it_is_written() {
        let directory = std::env::temp_dir().join("blank and:colon");
        let location =
            Location::new(if os::forbidden_name(":").is_some() { "名 %41" } else { "名 %41:" }).expect("a name");
        let handle = Handle { ticket: Ticket::new(7, true), id: 1 << 100, backend: "x y".into(), directory, location };
        let text = handle.to_string();
        assert!(text.chars().all(|letter| letter.is_ascii_graphic()), "{text}");
        assert_eq!(text.parse::<Handle>().expect("its own text"), handle);
        for end in 0..text.len() {
            let cut = text[..end].parse::<Handle>();
            assert!(cut.is_err() || cut.is_ok_and(|cut| cut.location != handle.location), "{}", &text[..end]);
        }
        for text in ["", "ndshm2:1:1:a:/b:c", "ndshm1:0:1:a:/b:c", "ndshm1:1:1:a:b:c", "ndshm1:1:1:a:/b:.ndshm-x"] {
            assert!(text.parse::<Handle>().is_err(), "{text}");
        }
    }
}
