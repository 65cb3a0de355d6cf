//! Giving up handles when memory runs out: those with which a process has attached, of arrays to which no process is
//! attached any more.

use std::collections::HashSet;
use std::time::Duration;

use super::handle::Handle;
use crate::backend::{Access, Backend, Directory};
use crate::backoff::Backoff;
use crate::error::Result;
use crate::os::{self, FileId};
use crate::segment::trailer::Trailer;
use crate::segment::{Home, is_leased, set_make_room};

/// How long receivers that are still attached are waited for. A receiver that has just sent its result leaves in a
/// moment.
const PATIENCE: Duration = Duration::from_millis(500);

/// Sets what this process does before one of its allocations fails with [`NoSpace`](crate::ErrorKind::NoSpace), for
/// example [`give_up`].
///
/// `make_room` is called by the thread that allocates, with the directory and the number of bytes that are missing, and
/// returns whether to try again. It is called for every array, draft, arena and renderbuffer of this crate, also before
/// a pool frees its idle memory; not when the process may not make so long a file, nor for the memory of a
/// [`SealableDraft`](crate::array::SealableDraft), nor while it runs itself. An allocation that still fails calls it
/// again, at most 100 times.
///
/// The function stays for the life of the process, and forked children inherit it: there it must neither give up the
/// parent's handles nor wait for a lock that a thread of the parent held. Returns `false` if there is one already.
///
/// # Examples
///
/// A sender of handles that its receivers may load any number of times:
///
/// ```
/// use std::sync::Mutex;
///
/// use ndarray_shm::counted::{Handle, HandleOptions, SharingStrategy, give_up, on_no_space};
/// use ndarray_shm::{CreateOptions, RefcountedArray, process};
///
/// static SENT: Mutex<Vec<Handle>> = Mutex::new(Vec::new());
///
/// let generation = process::fork_generation();
/// on_no_space(move |directory, bytes| {
///     if process::fork_generation() != generation {
///         return false; // a forked child: the handles are its parent's
///     }
///     let sent = SENT.lock().unwrap();
///     give_up(sent.iter().filter(|handle| handle.directory() == directory.path()), bytes) > 0
/// });
///
/// let array = CreateOptions::new().share::<u8, _>(SharingStrategy::FileSystem, 100)?;
/// let handle = array.handle_with(HandleOptions::new().reusable())?;
/// SENT.lock().unwrap().push(handle.clone());
/// # handle.revoke()?;
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
pub fn on_no_space(make_room: impl Fn(&Directory, u64) -> bool + Send + Sync + 'static) -> bool {
    set_make_room(make_room)
}

/// Gives up reusable handles, in the given order, until `bytes` bytes are free. Returns how many bytes were freed.
///
/// A handle is given up if a process has attached with it since it was issued or last [renewed](Handle::renew), it is
/// the only one in flight of its array, and no process is attached to that array now: neither this one nor a receiver.
/// One use is enough: if the handle was sent several times, receivers that come later fail. Attaching with it then
/// fails as with a [revoked](Handle::revoke) one. A process that is attaching at this moment either gets the array, and
/// keeps it, or fails in that way. Handles that no process has used, handles for one use, and arrays that are
/// [kept](crate::RefcountedArray::keep) stay. Another handle in flight keeps its array.
///
/// Receivers that are still attached, but are about to leave, are waited for, for half a second. If all these arrays
/// together would not free `bytes`, no handle is given up.
///
/// It is for a process's own handles: the others do not know that theirs may be given up. Handles that lead nowhere are
/// skipped.
pub fn give_up<'a>(handles: impl IntoIterator<Item = &'a Handle>, bytes: u64) -> u64 {
    let mut handles: Vec<&Handle> = handles.into_iter().collect();
    let mut seen = HashSet::new();
    handles.retain(|handle| seen.insert(handle.ticket()));
    let mut backoff = Backoff::new(PATIENCE);
    loop {
        let (unattached, attached): (Vec<Used>, Vec<Used>) =
            handles.iter().filter_map(|handle| Used::of(handle)).partition(|used| !used.is_attached);
        let [now, soon] = [&unattached, &attached].map(|used| used.iter().map(|used| used.bytes).sum::<u64>());
        if now >= bytes {
            let mut freed = 0;
            for used in unattached {
                if freed < bytes {
                    freed += used.give_up();
                }
            }
            return freed;
        }
        if now + soon < bytes || !backoff.pause() {
            return 0;
        }
    }
}

/// A handle with which a process has attached, and its array at one moment.
struct Used<'a> {
    handle: &'a Handle,
    home: Home,
    file: FileId,
    bytes: u64,
    is_attached: bool,
}

impl<'a> Used<'a> {
    /// Looks at a handle without attaching. Returns `None` if it was not used, leads nowhere, or does not decide about
    /// its array.
    fn of(handle: &'a Handle) -> Option<Self> {
        let (ticket, id) = handle.ticket();
        let home = handle.home(None).ok()?;
        let file = home.backend.open(&home.location, Access::Read).ok()?;
        let facts = os::facts(&file).ok()?;
        let trailer = Trailer::read(&file, &facts, home.location.as_str()).ok()?;
        let stays = trailer.state.is_kept() || !trailer.is_original();
        let is_only = trailer.in_flight(os::since_boot()).0 <= 1;
        if trailer.id != id || stays || !is_only || !trailer.is_used(ticket) {
            return None;
        }
        let is_attached = is_leased(&file, &home.location).ok()?;
        Some(Self { handle, home, file: facts.id, bytes: facts.allocated, is_attached })
    }

    /// Gives the handle up. Returns how many bytes that has freed.
    ///
    /// A receiver that attaches meanwhile is counted before it uses its ticket. If it uses the ticket first, it has the
    /// array, and the name goes when it leaves. If the ticket is gone by then, it leaves again.
    fn give_up(&self) -> u64 {
        os::step("give up: not attached");
        if self.revoke().unwrap_or(false) && !self.home.leads_to(self.file).unwrap_or(true) { self.bytes } else { 0 }
    }

    fn revoke(&self) -> Result<bool> {
        let (ticket, _) = self.handle.ticket();
        let (was_revoked, memory) = self.handle.change_soon(None, |counts| counts.revoke_used(ticket))?;
        os::step("give up: revoked");
        drop(memory); // the last handle to leave removes the name
        Ok(was_revoked)
    }
}
