//! Notes about the handles that this process has issued, and about memory that it can use again. A forked child has
//! notes of its own.
//!
//! When memory runs out, this process gives up the reusable handles that were loaded since they were last pickled, the
//! oldest first.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ndarray_shm::counted::{Handle, HandleOptions, Reclaim, give_up, inspect_in, on_no_space};
use ndarray_shm::{Directory, Result, default_directory};

use crate::memory::Counted;
use crate::recycle::Shelf;

/// The least number of handles at which those of freed arrays are looked for.
const MANY: usize = 1024;

/// An array's random number, and whether the handle is reusable.
type Key = (u128, bool);

/// A handle that was issued.
struct Issued {
    text: String,
    key: Key,
    /// The time until which it protects its array.
    end: Instant,
    /// The path of the array.
    path: PathBuf,
}

/// The notes of a process, and those of its forked child, which inherits this page, perhaps locked, and begins the
/// next.
pub(crate) struct Page {
    notes: Mutex<Option<Notes>>,
    shelf: Mutex<Option<Shelf>>,
    next: OnceLock<Box<Page>>,
}

impl Page {
    const fn new() -> Self {
        Self { notes: Mutex::new(None), shelf: Mutex::new(None), next: OnceLock::new() }
    }

    /// Calls `act` with the notes. Called without the interpreter's lock only, because another thread may have the
    /// notes for the time of an operation on an array.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Notes) -> R) -> R {
        let mut notes: MutexGuard<'_, _> = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        act(notes.get_or_insert_default())
    }

    /// Calls `act` with the notes if no other thread has them. For callers that keep the interpreter's lock: a thread
    /// that gives it away may wait for it longer than `act` takes.
    pub(crate) fn try_with<R>(&self, act: impl FnOnce(&mut Notes) -> R) -> Option<R> {
        self.notes.try_lock().ok().map(|mut notes| act(notes.get_or_insert_default()))
    }

    /// Calls `act` with the memory that can be used again. Called without the interpreter's lock only, as
    /// [`with`](Self::with).
    pub(crate) fn with_shelf<R>(&self, act: impl FnOnce(&mut Shelf) -> R) -> R {
        let mut guard: MutexGuard<'_, _> = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        act(guard.get_or_insert_default())
    }
}

static FIRST: Page = Page::new();

/// Begins the page of this process: when the package is imported, and in a forked child, which has one thread then.
pub(crate) fn begin() -> &'static Page {
    if on_no_space(make_room) { &FIRST } else { current().next.get_or_init(|| Box::new(Page::new())) }
}

/// Returns the page of this process.
fn current() -> &'static Page {
    let mut page = &FIRST;
    while let Some(next) = page.next.get() {
        page = next;
    }
    page
}

/// Gives up pickles in a directory, of which so many bytes are missing. Returns whether any were freed.
fn make_room(directory: &Directory, bytes: u64) -> bool {
    let page = current();
    // What killed processes have left is of no use to any process.
    let reclaimed = Reclaim::new().run(directory).is_ok_and(|reclaimed| !reclaimed.removed.is_empty());
    if page.with_shelf(Shelf::clear) || reclaimed {
        return true;
    }
    // The notes are not locked while arrays are looked at: if another thread pickles one of them again meanwhile, its
    // handle counts as not loaded and stays.
    let handles = page.with(|notes| notes.handles_in(directory, |issued| issued.key.1));
    let freed = give_up(&handles, bytes) > 0;
    if freed {
        page.with(Notes::forget_freed);
    }
    freed
}

/// Returns how many bytes of arrays in the default directory are kept by handles of this process, while no process is
/// attached to them. 0 if `place` is the path of another directory.
pub(crate) fn kept(place: &Path) -> u64 {
    let usual = default_directory().ok().filter(|usual| place.is_relative() || usual.path() == place);
    let Some(directory) = usual else { return 0 };
    let mut handles = current().with(|notes| notes.handles_in(&directory, |_| true));
    // An array can have a handle of either kind.
    handles.sort_by(|one, other| one.location().cmp(other.location()));
    handles.dedup_by(|one, other| one.location() == other.location());
    let found = handles.iter().filter_map(|handle| inspect_in(&directory, handle.location()).ok());
    let kept = found.filter(|array| !array.is_attached && array.in_flight > 0);
    kept.filter_map(|array| Some(directory.path().join(array.location.as_str()).metadata().ok()?.len())).sum()
}

#[derive(Default)]
pub(crate) struct Notes {
    /// The one that was renewed last has the largest number.
    issued: BTreeMap<u64, Issued>,
    /// The handle that the next pickle of an array renews.
    current: HashMap<Key, u64>,
    next: u64,
    /// The number of handles at which those of freed arrays are forgotten, so that a process that sends many arrays
    /// does not grow.
    most: usize,
}

impl Notes {
    pub(crate) fn issue(&mut self, array: &dyn Counted, reusable: bool, grace: Duration) -> Result<String> {
        let key = (array.id(), reusable);
        let before = self.current.get(&key).and_then(|number| self.issued.get(number));
        let (mut is_renewed, mut is_kept) = (false, false);
        if let Some(issued) = before {
            let handle: Handle = issued.text.parse()?;
            is_renewed = array.renew(&handle, grace);
            // One with all uses that a ticket can have cannot be renewed. One that was used up protects nothing, and is
            // forgotten.
            is_kept = !is_renewed && array.is_protected_by(&handle);
        }
        let before = self.current.remove(&key).filter(|_| !is_kept).and_then(|number| self.issued.remove(&number));
        let before = before.filter(|_| is_renewed);
        let options = HandleOptions::new().grace(grace);
        let text = match &before {
            Some(issued) => issued.text.clone(),
            None => array.issue(if reusable { options.reusable() } else { options })?.to_string(),
        };
        let now = Instant::now();
        // Renewing shortens nothing that was promised before.
        let end = before.map_or(now, |issued| issued.end).max(now + grace);
        let path = array.attached().directory().path().join(array.name());
        self.current.insert(key, self.next);
        self.issued.insert(self.next, Issued { text: text.clone(), key, end, path });
        self.next += 1;
        self.forget_old(now);
        Ok(text)
    }

    /// Forgets handles that have expired and, if there are many, those of arrays that have gone.
    fn forget_old(&mut self, now: Instant) {
        while self.issued.first_key_value().is_some_and(|(_, first)| first.end <= now) {
            let first = self.issued.pop_first();
            self.leave(first);
        }
        if self.issued.len() > self.most.max(MANY) {
            self.forget_freed();
            // The limit grows with what is left, so that the cost for each handle is constant.
            self.most = 2 * self.issued.len();
        }
    }

    /// Forgets the handles of arrays that have gone.
    fn forget_freed(&mut self) {
        let freed = |issued: &Issued| !Path::exists(&issued.path);
        let freed: Vec<u64> = self.issued.iter().filter(|(_, one)| freed(one)).map(|(number, _)| *number).collect();
        for number in freed {
            let issued = self.issued.remove_entry(&number);
            self.leave(issued);
        }
    }

    /// Forgets the handles of an array that has given its memory to another one.
    pub(crate) fn forget_array(&mut self, id: u128) {
        for key in [(id, false), (id, true)] {
            let number = self.current.get(&key).copied();
            let issued = number.and_then(|number| self.issued.remove_entry(&number));
            self.leave(issued);
        }
    }

    /// Returns the handles of arrays in a directory, that which was renewed last at the end.
    fn handles_in(&self, directory: &Directory, is_meant: fn(&Issued) -> bool) -> Vec<Handle> {
        let there = |issued: &&Issued| is_meant(issued) && issued.path.parent() == Some(directory.path());
        self.issued.values().filter(there).filter_map(|issued| issued.text.parse().ok()).collect()
    }

    /// Returns all handles.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.issued.values().map(|issued| issued.text.clone()).collect()
    }

    /// Returns the reusable handles that protect their arrays beyond this time.
    pub(crate) fn reusable_after(&self, time: Instant) -> Vec<String> {
        let is_meant = |issued: &&Issued| issued.key.1 && issued.end > time;
        self.issued.values().filter(is_meant).map(|issued| issued.text.clone()).collect()
    }

    /// Forgets a handle.
    pub(crate) fn forget(&mut self, handle: &str) {
        let found = self.issued.iter().find(|(_, issued)| issued.text == handle).map(|(number, _)| *number);
        let issued = found.and_then(|number| self.issued.remove_entry(&number));
        self.leave(issued);
    }

    /// Lets the next pickle issue another handle in place of one that was removed.
    fn leave(&mut self, issued: Option<(u64, Issued)>) {
        if let Some((number, issued)) = issued
            && self.current.get(&issued.key) == Some(&number)
        {
            self.current.remove(&issued.key);
        }
    }
}
