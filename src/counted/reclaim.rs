//! Reclaims the files that killed processes left in one directory: orphaned counted arrays, arenas and counters, and
//! drafts. Of a renderbuffer it reclaims a payload without a ledger, or a ledger without a payload; caches of chunks
//! when they were not used for as long as they stay.
//!
//! A counted array is removed only if no process holds its lease and its trailer is valid and has no ticket that
//! protects it. Both are checked once more under an exclusive lock on the lease, so that no process can attach between
//! the check and the removal.

use std::fs::File;
use std::time::{Duration, SystemTime};

use crate::backend::lock_space::{BEGINNING, LEASE, WRITER};
use crate::backend::{Access, Backend, Companion, Directory, DirectoryEntry, EntryKind, Location, Turn};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, LockKind};
use crate::segment::footer::Kind;
use crate::segment::trailer;
use crate::segment::{Home, Tickets, Verdict, has_name, is_leased, pin, reclaim_unused, stay};

/// Minimum age of a draft to be removed. A younger draft without a lease may have a living creator that has not taken
/// the lease yet.
const DRAFT_AGE: Duration = Duration::from_secs(60);

/// The longest time that a manager waits for an unused cache. One that stays longer is left to a later search.
const LONGEST_WATCH: Duration = Duration::from_secs(24 * 3600);

/// Options for reclaiming files in one directory.
///
/// ```
/// use ndarray_shm::counted::Reclaim;
/// use ndarray_shm::default_directory;
///
/// let found = Reclaim::new().dry_run(true).run(&default_directory()?)?;
/// println!("{} arrays could be removed", found.removed.len());
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[must_use = "nothing is done until `run` is called"]
pub struct Reclaim {
    dry_run: bool,
    in_flight: bool,
    caches: bool,
    older_than: Duration,
}

/// A file that was removed, or that a dry run would have removed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Removed {
    /// Its file name.
    pub name: String,
    /// Bytes of memory or disk that it took.
    pub bytes: u64,
    /// What kind of file it was.
    pub kind: RemovedKind,
}

/// The kind of a file that [`Reclaim`] removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemovedKind {
    /// An orphaned counted array.
    CountedArray,
    /// An orphaned [arena](crate::Arena).
    Arena,
    /// An orphaned file of [counters](crate::arena::loans::Counters).
    Counters,
    /// A draft of a dead creator.
    Draft,
    /// The payload of a renderbuffer without a ledger.
    Payload,
    /// The ledger of a renderbuffer without a payload.
    Ledger,
    /// The frames of a stream without a keeper.
    Frames,
    /// The keeper of a stream without frames.
    Keeper,
    /// A [cache](crate::cache) of chunks that was not used for as long as it [stays](crate::cache::CacheOptions::keep).
    Cache,
}

/// Result of [`Reclaim::run`] for one directory.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Reclaimed {
    /// The files that were removed, or that a dry run would have removed.
    pub removed: Vec<Removed>,
    /// Number of files that were skipped because they belong to other users. For root it is 0.
    pub foreign: usize,
    /// Number of counted arrays, arenas and caches to which a process is attached.
    pub attached: usize,
    /// Number of counted arrays and arenas that are not in use and [kept](crate::RefcountedArray::keep), and of caches
    /// that no process has open and that [stay](crate::cache::CacheOptions::keep).
    pub kept: usize,
    /// Number of counted arrays and arenas that are copies, or were moved to another file system. They are left alone.
    pub copies: usize,
    /// Number of counted arrays that only handles in flight protect.
    pub in_flight: usize,
    /// Time until the first of these arrays loses its protection, or the first of these caches does not stay longer, if
    /// that is within a day.
    pub next: Option<Duration>,
    /// Files that could not be read or removed, with the reason: damaged files, and those that this user may not
    /// remove.
    pub failed: Vec<(String, Error)>,
}

/// Removes the files that killed processes left in shared memory and, if it exists, in the emulated directory, and the
/// caches of chunks there that were not used for as long as they stay.
///
/// Returns one result for each directory. It can be called at any time by any process: files that a process uses or a
/// handle in flight protects, and files of other programs, are left alone. [`Reclaim`] does the same in one directory,
/// or only lists what it would remove.
///
/// # Errors
///
/// Those of listing a directory. Errors of single files are in [`Reclaimed::failed`].
pub fn reclaim() -> Result<Vec<Reclaimed>> {
    let exists = Directory::emulated_path().is_ok_and(|path| path.is_dir());
    let emulated = exists.then(|| Directory::emulated().ok()).flatten();
    let directories = Directory::shm().ok().into_iter().chain(emulated);
    directories.map(|backend| Reclaim::new().run(&backend)).collect()
}

impl Reclaim {
    /// Returns the defaults: everything that can be reclaimed is removed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses whether to only list what would be removed.
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Chooses whether to also remove the arrays that only handles in flight protect. Attaching with such a handle then
    /// fails.
    pub fn in_flight(mut self, in_flight: bool) -> Self {
        self.in_flight = in_flight;
        self
    }

    /// Chooses whether to also remove the caches of chunks that no process has open, although they would stay.
    pub fn caches(mut self, caches: bool) -> Self {
        self.caches = caches;
        self
    }

    /// Leaves files alone that were created or changed, and caches that were used, within this time.
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = age;
        self
    }

    /// Returns whether nothing is removed.
    pub fn is_dry_run(self) -> bool {
        self.dry_run
    }

    /// Returns the age below which files are left alone.
    pub fn least_age(self) -> Duration {
        self.older_than
    }

    /// Reclaims in one directory.
    ///
    /// # Errors
    ///
    /// As [`reclaim`].
    pub fn run(self, backend: &Directory) -> Result<Reclaimed> {
        let mut reclaimed = Reclaimed::default();
        for entry in backend.list()? {
            if !entry.is_own() {
                reclaimed.foreign += 1;
                continue;
            }
            let age = SystemTime::now().duration_since(entry.modified).unwrap_or_default();
            if age < self.older_than {
                continue;
            }
            let done = match entry.kind {
                EntryKind::Array if trailer::fits_in(entry.len) => self.array(backend, &entry, &mut reclaimed),
                EntryKind::Draft if age >= DRAFT_AGE => {
                    self.draft(backend, &entry).map(|gone| gone.then_some(RemovedKind::Draft))
                }
                EntryKind::Partial => self.payload(backend, &entry).map(|gone| gone.then_some(RemovedKind::Payload)),
                EntryKind::Ledger => self.ledger(backend, &entry).map(|gone| gone.then_some(RemovedKind::Ledger)),
                EntryKind::Frames => self.frames(backend, &entry).map(|gone| gone.then_some(RemovedKind::Frames)),
                EntryKind::Keeper => self.keeper(backend, &entry).map(|gone| gone.then_some(RemovedKind::Keeper)),
                EntryKind::Cache => {
                    self.cache(backend, &entry, &mut reclaimed).map(|gone| gone.then_some(RemovedKind::Cache))
                }
                EntryKind::Array | EntryKind::Draft => Ok(None),
            };
            match done {
                Ok(Some(kind)) => {
                    let DirectoryEntry { name, allocated: bytes, .. } = entry;
                    reclaimed.removed.push(Removed { name, bytes, kind });
                }
                // The file disappeared since it was listed, or it is not a counted array and therefore not ours to
                // remove.
                Ok(None)
                | Err(Error {
                    kind: ErrorKind::NotFound | ErrorKind::NotAnArray { .. } | ErrorKind::NotCounted, ..
                }) => {}
                Err(error) => reclaimed.failed.push((entry.name, error)),
            }
        }
        Ok(reclaimed)
    }

    fn array(
        self,
        backend: &Directory,
        entry: &DirectoryEntry,
        reclaimed: &mut Reclaimed,
    ) -> Result<Option<RemovedKind>> {
        let Ok(location) = Location::new(&entry.name) else { return Ok(None) };
        let home = Home { backend: backend.clone(), location };
        let tickets = if self.in_flight { Tickets::Ignored } else { Tickets::Protect };
        match reclaim_unused(&home, Some(entry.id), !self.dry_run, tickets, Duration::ZERO)? {
            Verdict::Orphan(kind) => {
                return Ok(Some(match kind {
                    Kind::Arena => RemovedKind::Arena,
                    Kind::Counters => RemovedKind::Counters,
                    Kind::Counted | Kind::Ledger | Kind::Frames | Kind::Keeper | Kind::Cache => {
                        RemovedKind::CountedArray
                    }
                }));
            }
            Verdict::Gone => {}
            Verdict::Copy => reclaimed.copies += 1,
            Verdict::Attached => reclaimed.attached += 1,
            Verdict::Kept => reclaimed.kept += 1,
            Verdict::InFlight(left) => {
                reclaimed.in_flight += 1;
                reclaimed.next = Some(reclaimed.next.map_or(left, |next| next.min(left)));
            }
        }
        Ok(None)
    }

    /// Removes a draft of a dead creator. A living creator holds the draft's lease.
    fn draft(self, backend: &Directory, entry: &DirectoryEntry) -> Result<bool> {
        let Some(location) = Location::of_draft(&entry.name) else { return Ok(false) };
        let file = backend.open(&location, Access::Read)?;
        if is_leased(&file, &location)? {
            return Ok(false);
        }
        Ok(self.dry_run || Backend::unlink(backend, &location, Some(entry.id))?)
    }

    /// Removes a payload without a ledger, as a killed discard leaves it. Painters that still use it hold its lease.
    fn payload(self, backend: &Directory, entry: &DirectoryEntry) -> Result<bool> {
        let Some((_, location)) = Location::of_companion(&entry.name) else { return Ok(false) };
        let partial = location.companion(Companion::Partial)?;
        let Some(file) = open_listed(backend, &partial, Access::ReadWrite, entry)? else { return Ok(false) };
        // The order of these steps matters. A creator names the ledger first and the payload second. So the payload,
        // opened by its name above, has had its ledger: if there is no ledger now, it was removed, and the payload can
        // never be finished. Looking for the ledger first would be wrong: a creator could name both files between the
        // two steps. A payload that was finished meanwhile has its public name, and unlinking the hidden name by
        // identity does not touch it.
        if has_name(backend, &location.companion(Companion::Ledger)?)? || is_leased(&file, &partial)? {
            return Ok(false);
        }
        // Until the name is removed, the exclusive lease keeps every pool from recycling this memory for another
        // renderbuffer.
        let mut alone = Turn::new(file);
        let mut lease = || alone.try_lock(LockKind::Exclusive, LEASE).map_err(|e| Error::os("lease", &partial, e));
        Ok(self.dry_run || (lease()? && Backend::unlink(backend, &partial, Some(entry.id))?))
    }

    /// Removes a ledger without a payload, as a killed creator or a killed finish leaves it. A living creator holds
    /// BEGINNING until the payload has its name.
    fn ledger(self, backend: &Directory, entry: &DirectoryEntry) -> Result<bool> {
        let Some((_, location)) = Location::of_companion(&entry.name) else { return Ok(false) };
        let ledger = location.companion(Companion::Ledger)?;
        let Some(file) = open_listed(backend, &ledger, Access::Read, entry)? else { return Ok(false) };
        // BEGINNING is queried before the payload is looked for. In the other order, a creator could name the payload
        // and release BEGINNING between the two steps: the payload would seem to be missing, and a live ledger would be
        // removed.
        let is_young = os::is_locked(&file, LockKind::Exclusive, BEGINNING)
            .map_err(|error| Error::os("query the lock of the creator of", &ledger, error))?;
        if is_young || has_name(backend, &location.companion(Companion::Partial)?)? {
            return Ok(false);
        }
        Ok(self.dry_run || Backend::unlink(backend, &ledger, Some(entry.id))?)
    }

    /// Removes the frames of a stream without a keeper, as a killed removal leaves them. The keeper had its name
    /// before, so it was removed, and no process can become the writer of these frames.
    fn frames(self, backend: &Directory, entry: &DirectoryEntry) -> Result<bool> {
        let Some((_, location)) = Location::of_companion(&entry.name) else { return Ok(false) };
        let frames = location.companion(Companion::Frames)?;
        let Some(_pinned) = open_listed(backend, &frames, Access::Read, entry)? else { return Ok(false) };
        if has_name(backend, &location.companion(Companion::Keeper)?)? {
            return Ok(false);
        }
        Ok(self.dry_run || Backend::unlink(backend, &frames, Some(entry.id))?)
    }

    /// Removes the keeper of a stream without frames, as a killed writer leaves it when it begins or ends one. A living
    /// writer holds WRITER from before the frames have their name.
    fn keeper(self, backend: &Directory, entry: &DirectoryEntry) -> Result<bool> {
        let Some((_, location)) = Location::of_companion(&entry.name) else { return Ok(false) };
        let keeper = location.companion(Companion::Keeper)?;
        let Some(file) = open_listed(backend, &keeper, Access::ReadWrite, entry)? else { return Ok(false) };
        let mut alone = Turn::new(file);
        let locked = alone.try_lock(LockKind::Exclusive, WRITER).map_err(|error| Error::os("lock", &keeper, error))?;
        if !locked || has_name(backend, &location.companion(Companion::Frames)?)? {
            return Ok(false);
        }
        Ok(self.dry_run || Backend::unlink(backend, &keeper, Some(entry.id))?)
    }

    /// Removes a cache that no process has open, and that was not used for as long as it stays.
    fn cache(self, backend: &Directory, entry: &DirectoryEntry, reclaimed: &mut Reclaimed) -> Result<bool> {
        let Some((_, location)) = Location::of_companion(&entry.name) else { return Ok(false) };
        let at = location.companion(Companion::Cache)?;
        let Some(file) = open_listed(backend, &at, Access::ReadWrite, entry)? else { return Ok(false) };
        if is_leased(&file, &at)? {
            reclaimed.attached += 1;
            return Ok(false);
        }
        if !self.is_due(&file, &at, entry, reclaimed)? {
            return Ok(false);
        }
        if self.dry_run {
            return Ok(true);
        }
        // Until the name is removed, no process opens it: it waits, and then finds no cache, or another one.
        let mut alone = Turn::new(file);
        if !alone.try_lock(LockKind::Exclusive, LEASE).map_err(|error| Error::os("lock", &at, error))? {
            reclaimed.attached += 1;
            return Ok(false);
        }
        os::step("gc: cache locked");
        // It may have been opened, used and closed since it was looked at.
        Ok(self.is_due(alone.file(), &at, entry, reclaimed)? && Backend::unlink(backend, &at, Some(entry.id))?)
    }

    /// Returns whether a cache that no process has open need not stay. If it stays, notes that.
    fn is_due(self, file: &File, at: &Location, entry: &DirectoryEntry, reclaimed: &mut Reclaimed) -> Result<bool> {
        let (left, unused) = stay::time_left(file, entry.len, Kind::Cache, at)?;
        if unused < self.older_than {
            return Ok(false);
        }
        if left.is_zero() || self.caches {
            return Ok(true);
        }
        reclaimed.kept += 1;
        if left <= LONGEST_WATCH {
            reclaimed.next = Some(reclaimed.next.map_or(left, |next| next.min(left)));
        }
        Ok(false)
    }
}

/// Opens a file by name, if it is still the file that was listed.
fn open_listed(backend: &Directory, at: &Location, access: Access, entry: &DirectoryEntry) -> Result<Option<File>> {
    Ok(pin(backend, at, access)?.and_then(|(file, facts)| (facts.id == entry.id).then_some(file)))
}
