//! Reclaiming what killed processes leave: orphaned counted arrays, drafts of killed creators, and halves of renderbuffers that were
//! being begun or discarded.
//!
//! Nothing here guesses. An array is removed only if the kernel says that no process is attached, and its trailer is ours and says that no
//! ticket protects it. Both are checked again while no process can attach.

use std::fs::File;
use std::time::{Duration, SystemTime};

use crate::backend::lock_space::{BEGINNING, LEASE};
use crate::backend::{Access, Backend, Companion, Directory, DirectoryEntry, EntryKind, Location};
use crate::error::{Error, Result};
use crate::os::{self, LockKind};
use crate::segment::footer::Kind;
use crate::segment::trailer::PAGE;
use crate::segment::{Home, Verdict, has_name, is_leased, pin, reclaim_if_orphaned};

/// A draft without a lease may be one that is just being made: it is left alone until it is this old.
const DRAFT_AGE: Duration = Duration::from_secs(60);

/// What to reclaim.
///
/// ```
/// use ndarray_shm::counted::Reclaim;
/// use ndarray_shm::default_backend;
///
/// let found = Reclaim::new().dry_run(true).run(&default_backend()?)?;
/// println!("{} arrays could be removed", found.removed.len());
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
#[must_use = "nothing is done until `run` is called"]
pub struct Reclaim {
    dry_run: bool,
    older_than: Duration,
}

/// A file that was removed, or would have been.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Removed {
    /// Its file name.
    pub name: String,
    /// How many bytes of memory or disk it took.
    pub bytes: u64,
    /// What it was.
    pub kind: RemovedKind,
}

/// What a file was that [`Reclaim`] removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemovedKind {
    /// A counted array that no process was attached to.
    CountedArray,
    /// An [arena](crate::Arena) that no process was attached to.
    Arena,
    /// The file of [counters](crate::arena::loans::Counters) that no process was attached to.
    Counters,
    /// A draft of a dead creator.
    Draft,
    /// The payload of a renderbuffer, without its ledger.
    Payload,
    /// The ledger of a renderbuffer, without its payload.
    Ledger,
}

/// What reclaiming a directory by [`Reclaim::run`] found.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Reclaimed {
    /// What was removed.
    pub removed: Vec<Removed>,
    /// How many files of other users were not looked at: they are theirs to reclaim. root looks at all.
    pub foreign: usize,
    /// How many counted arrays and arenas are in use.
    pub attached: usize,
    /// How many are kept although no process is attached.
    pub kept: usize,
    /// How many are copies, or were moved to another file system: they were made in another file, and are left alone.
    pub copies: usize,
    /// How many are kept only by handles on their way.
    pub in_flight: usize,
    /// When the first of these loses that protection.
    pub next: Option<Duration>,
    /// What could not be looked at or removed, and why: damaged files, and those that only others may remove.
    pub failed: Vec<(String, Error)>,
}

/// Removes, from every directory that arrays live in, what only the dead have left, and says what it was.
///
/// Safe at any time, in any process: living holders, handles in flight and other programs' files are never touched. [`Reclaim`] does it
/// in one directory, or only says what it would remove.
///
/// # Errors
///
/// Those of listing a directory. What a single file answers is in [`Reclaimed::failed`].
pub fn reclaim() -> Result<Vec<Reclaimed>> {
    let exists = Directory::emulated_path().is_ok_and(|path| path.is_dir());
    let emulated = exists.then(|| Directory::emulated().ok()).flatten();
    let directories = Directory::shm().ok().into_iter().chain(emulated);
    directories.map(|backend| Reclaim::new().run(&backend)).collect()
}

impl Reclaim {
    /// Begins with removing everything that can be.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only says what would be removed.
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Leaves alone what was made or changed within this time.
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = age;
        self
    }

    /// Goes through one directory.
    ///
    /// # Errors
    ///
    /// As [`reclaim`].
    pub fn run(self, backend: &Directory) -> Result<Reclaimed> {
        let mut reclaimed = Reclaimed::default();
        for entry in backend.list()? {
            if !os::owns_files_of(entry.owner) {
                reclaimed.foreign += 1;
                continue;
            }
            let age = SystemTime::now().duration_since(entry.modified).unwrap_or_default();
            if age < self.older_than {
                continue;
            }
            let done = match entry.kind {
                // A counted array is never shorter than its last page, and always a number of pages.
                EntryKind::Array if entry.len >= PAGE as u64 && entry.len % PAGE as u64 == 0 => {
                    self.array(backend, &entry, &mut reclaimed)
                }
                EntryKind::Draft if age >= DRAFT_AGE => {
                    self.draft(backend, &entry).map(|gone| gone.then_some(RemovedKind::Draft))
                }
                EntryKind::Partial => self.payload(backend, &entry).map(|gone| gone.then_some(RemovedKind::Payload)),
                EntryKind::Ledger => self.ledger(backend, &entry).map(|gone| gone.then_some(RemovedKind::Ledger)),
                _ => Ok(None),
            };
            match done {
                Ok(Some(kind)) => {
                    let DirectoryEntry { name, allocated: bytes, .. } = entry;
                    reclaimed.removed.push(Removed { name, bytes, kind });
                }
                // Whatever disappears while we look was not there, and what is not counted is not ours to judge.
                Ok(None) | Err(Error::NotFound { .. } | Error::NotAnArray { .. } | Error::NotCounted { .. }) => {}
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
        match reclaim_if_orphaned(&home, Some(entry.id), !self.dry_run)? {
            Verdict::Orphan(kind) => {
                return Ok(Some(match kind {
                    Kind::Arena => RemovedKind::Arena,
                    Kind::Counters => RemovedKind::Counters,
                    Kind::Counted | Kind::Ledger => RemovedKind::CountedArray,
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

    /// A living maker has a lease on its draft.
    fn draft(self, backend: &Directory, entry: &DirectoryEntry) -> Result<bool> {
        let Some(location) = Location::of_draft(&entry.name) else { return Ok(false) };
        let file = backend.open(&location, Access::Read)?;
        if is_leased(&file, &location)? {
            return Ok(false);
        }
        Ok(self.dry_run || Backend::unlink(backend, &location, Some(entry.id))?)
    }

    /// A payload without a ledger is what a killed discard leaves. Its painters, if there are any, have a lease.
    fn payload(self, backend: &Directory, entry: &DirectoryEntry) -> Result<bool> {
        let Some((_, location)) = Location::of_companion(&entry.name) else { return Ok(false) };
        let partial = location.companion(Companion::Partial)?;
        let Some(file) = open_listed(backend, &partial, Access::ReadWrite, entry)? else { return Ok(false) };
        // A payload gets its name after its ledger: what is open and has no ledger now has lost it for ever.
        if has_name(backend, &location.companion(Companion::Ledger)?)? || is_leased(&file, &partial)? {
            return Ok(false);
        }
        // Leased alone, so that no pool makes it the payload of another buffer.
        let lease = || os::try_lock(&file, LockKind::Exclusive, LEASE).map_err(|e| Error::os("lease", &partial, e));
        Ok(self.dry_run || (lease()? && Backend::unlink(backend, &partial, Some(entry.id))?))
    }

    /// A ledger without a payload is what a killed beginner or finisher leaves. A living beginner has its BEGINNING locked.
    fn ledger(self, backend: &Directory, entry: &DirectoryEntry) -> Result<bool> {
        let Some((_, location)) = Location::of_companion(&entry.name) else { return Ok(false) };
        let ledger = location.companion(Companion::Ledger)?;
        let Some(file) = open_listed(backend, &ledger, Access::Read, entry)? else { return Ok(false) };
        // Asked before the payload is looked for: when the beginner gives it up, the payload has its name.
        let is_young = os::is_locked(&file, LockKind::Exclusive, BEGINNING)
            .map_err(|error| Error::os("ask for the beginner of", &ledger, error))?;
        if is_young || has_name(backend, &location.companion(Companion::Partial)?)? {
            return Ok(false);
        }
        Ok(self.dry_run || Backend::unlink(backend, &ledger, Some(entry.id))?)
    }
}

/// Opens what has a name, if it is still the file that was listed.
fn open_listed(backend: &Directory, at: &Location, access: Access, entry: &DirectoryEntry) -> Result<Option<File>> {
    Ok(pin(backend, at, access)?.and_then(|(file, facts)| (facts.id == entry.id).then_some(file)))
}
