//! Handles: references to counted arrays, sent to other processes as one line of text.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use crate::backend::{Access, Directory, Location, remembered};
use crate::error::{Error, ErrorKind, Result};
use crate::os;
use crate::percent::{decode, encode};
use crate::random;
use crate::segment::counts::{Counts, MOST_TICKETS, Ticket};
use crate::segment::{Attach, CountedBy, CountedSegment, DROP_WAIT, Home};

/// The default grace time.
const GRACE: Duration = Duration::from_secs(30);

/// First word of the text, with its version.
const SCHEME: &str = "ndshm1";

/// Options of a [`Handle`]: how often it can be used, and how long it protects the array without any attached process.
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
    /// Returns the defaults: the handle can be used once, and protects the array for 30 seconds.
    pub fn new() -> Self {
        Self { grace: GRACE, reusable: false }
    }

    /// Sets the grace time: how long the handle protects the array, at most a week, while no process is attached.
    ///
    /// After that time the handle still works if a process is attached and the handle's slot was not needed for a newer
    /// handle.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Makes the handle reusable: any number of processes can attach with it, until it is [revoked](Handle::revoke).
    pub fn reusable(mut self) -> Self {
        self.reusable = true;
        self
    }
}

/// A reference to a counted array, with which any process on the same machine that reaches the same directory can
/// attach.
///
/// It is formatted and parsed as one line of text without blanks, and with the feature `serde` as a string. While it is
/// in flight, it protects the array for the grace time, even if the sender is killed. Attaching uses the handle up,
/// unless it is reusable; attaching with a second copy fails with [`HandleSpent`](ErrorKind::HandleSpent).
///
/// ```
/// use ndarray_shm::counted::{Handle, SharingStrategy};
/// use ndarray_shm::{CreateOptions, RefcountedArray};
///
/// let array = CreateOptions::new().share::<u16, _>(SharingStrategy::FileSystem, (2, 3))?;
/// let text = array.handle()?.to_string();
/// drop(array);
///
/// // in another process, within the grace time
/// let handle: Handle = text.parse()?;
/// let array = handle.attach::<u16, ndarray_shm::ndarray::Ix2>()?;
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
    /// Issues a ticket in the array's trailer and returns its handle.
    pub(super) fn issue(memory: &CountedSegment, id: u128, options: HandleOptions) -> Result<Self> {
        let ticket = Ticket::new(random::number(), options.reusable);
        let home = memory.home();
        let issued = memory.while_counted(|counts| counts.issue(ticket, os::since_boot(), options.grace));
        let Some(is_issued) = issued? else { return Err(ErrorKind::Unlinked.at(&home.location)) };
        if !is_issued {
            return Err(ErrorKind::TooManyHandles { limit: MOST_TICKETS as u64, doing: "in flight" }.at(&home.location));
        }
        let (backend, directory) = address(&home.backend);
        Ok(Self { ticket, id, backend, directory, location: home.location.clone() })
    }

    /// Revokes the handle: no process can attach with it any more, and it no longer protects the array.
    ///
    /// Any process that holds a copy can revoke it, including a receiver that does not want the array. Returns `false`
    /// if the handle was used or revoked before, or the array was removed.
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](ErrorKind::PermissionDenied): this user may not open the file for writing.
    pub fn revoke(&self) -> Result<bool> {
        self.change_and_leave(|counts| counts.revoke(self.ticket))
    }

    /// Renews the handle: from now on it protects the array for at least `grace`, at most a week, and one process more
    /// can attach with it, or any number if it is reusable. The text that stands for it stays the same.
    ///
    /// A longer time that was promised before is not shortened; [`expire`](Self::expire) does that.
    ///
    /// A sender that sends the same array again and again so needs one handle in the array's trailer, which has room
    /// for 128.
    ///
    /// Returns `false` if the handle was used up or revoked, if it has expired or is about to, or if the array was
    /// removed. Then a new handle must be issued.
    ///
    /// ```
    /// use ndarray_shm::counted::SharingStrategy;
    /// use ndarray_shm::{CreateOptions, RefcountedArray};
    ///
    /// let array = CreateOptions::new().share::<u16, _>(SharingStrategy::FileSystem, (2, 3))?;
    /// let handle = array.handle()?;
    /// assert!(handle.renew(std::time::Duration::from_secs(60))?); // for two receivers
    /// assert_eq!(array.in_flight(), 1);
    /// for _receiver in 0..2 {
    ///     handle.attach::<u16, ndarray_shm::ndarray::Ix2>()?;
    /// }
    /// assert!(handle.attach::<u16, ndarray_shm::ndarray::Ix2>().is_err());
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](ErrorKind::PermissionDenied): this user may not open the file for writing.
    pub fn renew(&self, grace: Duration) -> Result<bool> {
        self.change_and_leave(|counts| counts.renew(self.ticket, grace, os::since_boot))
    }

    /// Uses the handle up once, as [`attach`](Self::attach) does, for a receiver that does not want the array.
    ///
    /// Returns `false` if the handle was used up or revoked before, or the array was removed.
    ///
    /// ```
    /// use ndarray_shm::counted::SharingStrategy;
    /// use ndarray_shm::{CreateOptions, RefcountedArray};
    ///
    /// let array = CreateOptions::new().share::<u16, _>(SharingStrategy::FileSystem, (2, 3))?;
    /// let handle = array.handle()?;
    /// handle.renew(std::time::Duration::from_secs(60))?; // for two receivers
    /// assert!(handle.redeem()?);
    /// assert_eq!(array.in_flight(), 1);
    /// handle.redeem()?; // the other one does not come either
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](ErrorKind::PermissionDenied): this user may not open the file for writing.
    pub fn redeem(&self) -> Result<bool> {
        self.change_and_leave(|counts| counts.redeem(self.ticket))
    }

    /// Lets the handle protect the array for at least `grace` from now, at most a week. A longer time stays. Its uses
    /// do not change.
    ///
    /// It is for a sender that lives on, and knows that its receivers take longer than it thought.
    ///
    /// Returns `false` if the handle was used up or revoked, if it has expired or is about to, or if the array was
    /// removed.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use ndarray_shm::counted::SharingStrategy;
    /// use ndarray_shm::{CreateOptions, RefcountedArray};
    ///
    /// let array = CreateOptions::new().share::<u16, _>(SharingStrategy::FileSystem, (2, 3))?;
    /// let handle = array.handle()?;
    /// assert!(handle.prolong(Duration::from_secs(600))?);
    /// assert!(handle.redeem()? && !handle.prolong(Duration::from_secs(600))?);
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](ErrorKind::PermissionDenied): this user may not open the file for writing.
    pub fn prolong(&self, grace: Duration) -> Result<bool> {
        self.change_and_leave(|counts| counts.prolong(self.ticket, grace, os::since_boot))
    }

    /// Shortens the time for which the handle protects the array to `grace` from now. A shorter one stays. Its uses do
    /// not change.
    ///
    /// It is for a sender that ends, and had promised more time than its receivers still need. Use it with care:
    /// receivers that rely on the time that was promised before may lose the array. A process that is killed meanwhile
    /// leaves the time as it was.
    ///
    /// Returns `false` if the handle was used up or revoked, if it has expired or is about to, or if the array was
    /// removed.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use ndarray_shm::counted::{HandleOptions, SharingStrategy};
    /// use ndarray_shm::{CreateOptions, RefcountedArray};
    ///
    /// let array = CreateOptions::new().share::<u16, _>(SharingStrategy::FileSystem, (2, 3))?;
    /// let handle = array.handle_with(HandleOptions::new().reusable().grace(Duration::from_secs(600)))?;
    /// assert!(handle.expire(Duration::from_secs(30))?);
    /// # handle.revoke()?;
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PermissionDenied`](ErrorKind::PermissionDenied): this user may not open the file for writing.
    pub fn expire(&self, grace: Duration) -> Result<bool> {
        self.change_and_leave(|counts| counts.expire(self.ticket, grace, os::since_boot))
    }

    /// Renews the handle through an attachment, if that is to the array with the handle's random number.
    pub(super) fn renew_with(&self, memory: &CountedSegment, id: u128, grace: Duration) -> bool {
        self.id == id && memory.counts().renew(self.ticket, grace, os::since_boot)
    }

    /// Prolongs the handle through an attachment, if that is to the array with the handle's random number.
    pub(super) fn prolong_with(&self, memory: &CountedSegment, id: u128, grace: Duration) -> bool {
        self.id == id && memory.counts().prolong(self.ticket, grace, os::since_boot)
    }

    /// Uses the handle through an attachment, if that is to the array with the handle's random number.
    pub(super) fn redeem_with(&self, memory: &CountedSegment, id: u128) -> bool {
        self.id == id && memory.counts().redeem(self.ticket)
    }

    /// Revokes the handle without waiting for long. If that fails, the handle expires.
    #[cfg(feature = "channel")]
    pub(super) fn revoke_or_expire(&self, backend: Option<&Directory>) {
        let _ = self.change_soon(backend, |counts| counts.revoke(self.ticket)); // dropping the attachment detaches
    }

    /// Attaches to the array without waiting for long, and changes its tickets, as [`change`](Self::change) does.
    pub(super) fn change_soon(
        &self,
        backend: Option<&Directory>,
        change: impl FnOnce(&Counts) -> bool,
    ) -> Result<(bool, Option<CountedSegment>)> {
        self.change(backend, Attach { patience: DROP_WAIT, ..Attach::new(Access::Read) }, change)
    }

    /// Attaches to the array, changes its tickets and detaches.
    fn change_and_leave(&self, change: impl FnOnce(&Counts) -> bool) -> Result<bool> {
        let (changed, memory) = self.change(None, Attach::new(Access::Read), change)?;
        memory.map_or(Ok(()), CountedSegment::close)?;
        Ok(changed)
    }

    /// Attaches to the array, and changes its tickets. The result is that of `change`, or `false` if the array was
    /// removed.
    fn change(
        &self,
        backend: Option<&Directory>,
        how: Attach,
        change: impl FnOnce(&Counts) -> bool,
    ) -> Result<(bool, Option<CountedSegment>)> {
        let home = self.home(backend)?;
        // Holes stay: only the trailer is touched, which its creator has written as a whole.
        let how = Attach { sparse: true, ..how };
        match CountedSegment::attach(&home, how, CountedBy::Array(self.id), |_| Ok(())) {
            Ok((memory, ())) => Ok((change(memory.counts()), Some(memory))),
            // No array has the name any more, or another array has it.
            Err(Error { kind: ErrorKind::Unlinked | ErrorKind::HandleSpent, .. }) => Ok((false, None)),
            Err(error) if error.is_not_found() => Ok((false, None)),
            Err(error) => Err(error),
        }
    }

    /// Returns the array's name.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Returns the directory that contains the name.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns whether any number of processes can attach with it.
    pub fn is_reusable(&self) -> bool {
        self.ticket.is_many()
    }

    pub(super) fn entry(&self) -> CountedBy {
        CountedBy::Ticket(self.ticket, self.id)
    }

    /// Returns its ticket, and the random number of the array.
    pub(super) fn ticket(&self) -> (Ticket, u128) {
        (self.ticket, self.id)
    }

    /// Returns the place that the handle refers to, which may differ from this process's default.
    pub(super) fn home(&self, backend: Option<&Directory>) -> Result<Home> {
        let backend = backend.cloned().map_or_else(|| backend_at(&self.backend, &self.directory), Ok)?;
        Ok(Home { backend, location: self.location.clone() })
    }
}

/// Returns the name and the absolute directory by which another process finds a backend, whatever its working
/// directory.
pub(super) fn address(backend: &Directory) -> (String, PathBuf) {
    let directory = backend.path();
    (backend.name().to_owned(), std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned()))
}

/// Returns the backend of a directory that another process named.
///
/// The owner and permissions of the emulated directory are checked, as when this process chooses it.
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

/// `ndshm1:ticket:id:backend:directory:location`, with all bytes but letters, digits and `-._/` written as `%xx`.
impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [backend, location] = [self.backend.as_bytes(), self.location.as_str().as_bytes()].map(encode);
        let directory = path_to_text(&self.directory);
        write!(f, "{SCHEME}:{:016x}:{:032x}:{backend}:{directory}:{location}", self.ticket.number(), self.id)
    }
}

/// Encodes a path of any bytes as text.
pub(super) fn path_to_text(path: &Path) -> String {
    encode(path.as_os_str().as_encoded_bytes())
}

/// Decodes a path. It must be absolute, so that it means the same in every process.
pub(super) fn path_of_text(text: &str) -> Option<PathBuf> {
    os::path_from(decode(text)?).filter(|path| path.is_absolute())
}

impl FromStr for Handle {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = || {
            Error::setting(
                "the handle",
                text.chars().take(200).collect::<String>(),
                "the line that its sender printed, which begins with `ndshm1:`",
            )
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
    fn parsing_gives_the_formatted_handle_back() {
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
