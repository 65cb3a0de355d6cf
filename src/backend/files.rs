//! The backend of files in one directory. On Linux, real shared memory is such a directory too.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::filling::{self, EMULATED};
use super::lock_space::LEASE;
use super::name_lock::{Alone, lock_name};
use super::{
    Access, Backend, Companion, DirectoryEntry, DraftFile, DraftOptions, EntryKind, Location, Pages, Place, Publish,
    RESERVED_PREFIX, Turn, advice,
};
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, Bound, Fact, Facts, FileId, LockKind, Mapping, Room};

/// Drafts of up to this many bytes in total are made without reading the limits again, which takes longer than making a
/// small draft.
const UNCHECKED_BYTES: u64 = 1 << 20;

/// How many times a name is tried again that other processes change meanwhile.
const TRIES: u32 = 1000;

/// How long removing or replacing a name waits for another process that does so.
const NAME_WAIT: Duration = Duration::from_secs(10);

/// How many times in a row the test of locks must succeed. A process that is just being spawned can falsify a single
/// test.
const CLEAN_ROUNDS: u32 = 3;

/// Segments as files of one directory.
#[derive(Debug)]
pub(super) struct Files {
    name: String,
    path: PathBuf,
    survives: Fact,
    /// Bytes drafted since the limits were read. From [`UNCHECKED_BYTES`] on they are read again.
    unchecked: AtomicU64,
    /// Whether the warning of a full disk was logged.
    warned: AtomicBool,
}

impl Files {
    pub(super) fn new(name: String, path: PathBuf) -> Self {
        Self {
            name,
            path,
            survives: Fact::new(),
            unchecked: AtomicU64::new(UNCHECKED_BYTES),
            warned: AtomicBool::new(false),
        }
    }

    fn path_of(&self, at: &Location) -> PathBuf {
        self.path.join(at.as_str())
    }

    fn room(&self) -> Result<Room> {
        os::available(&self.path).map_err(|error| self.explain("ask for free room", error))
    }

    /// Fails if `needed` bytes do not fit, before anything is allocated.
    fn check_room(&self, needed: u64) -> Result<()> {
        if let Some(room) = self.room_to_limit()?.filter(|room| needed > room.bytes) {
            return Err(self.no_space(needed, room));
        }
        // Relaxed suffices: the sum only decides when the limits are read again.
        let drafted = self.unchecked.fetch_add(needed, Ordering::Relaxed).saturating_add(needed);
        if drafted < UNCHECKED_BYTES {
            return Ok(());
        }
        self.unchecked.store(0, Ordering::Relaxed);
        let room = self.room()?;
        if needed > room.bytes {
            self.unchecked.store(UNCHECKED_BYTES, Ordering::Relaxed);
            return Err(self.no_space(needed, room));
        }
        if self.name == EMULATED {
            filling::warn_of_full_disk(&self.path, room.bytes, needed, &self.warned);
        }
        Ok(())
    }

    /// Returns how much room is left below the limit that is set for emulated shared memory, if there is one.
    fn room_to_limit(&self) -> Result<Option<Room>> {
        if self.name == EMULATED { filling::room_to_limit(&self.path) } else { Ok(None) }
    }

    /// Returns this crate's error for a system error about the directory itself.
    fn explain(&self, op: &'static str, error: io::Error) -> Error {
        let location = self.path.display().to_string();
        let denied = |reason| denied(location.clone(), os::facts_at(&self.path).ok(), reason);
        match error.kind() {
            io::ErrorKind::PermissionDenied => denied("this user may not make files in the directory"),
            io::ErrorKind::ReadOnlyFilesystem => denied("the directory's file system is mounted read-only"),
            // The directory itself is missing, not an array.
            io::ErrorKind::NotFound => ErrorKind::NoDirectory.at(location),
            _ => Error::os(op, location, error),
        }
    }

    fn out_of_room(&self, op: &'static str, needed: u64, error: io::Error) -> Error {
        if !os::is_out_of_room(&error) {
            return self.explain(op, error);
        }
        let mut room = self.room().unwrap_or(Room { bytes: 0, bound: Bound::FileSystem });
        if error.kind() == io::ErrorKind::QuotaExceeded {
            room = Room { bytes: 0, bound: Bound::Quota };
        }
        self.no_space(needed, room)
    }

    fn no_space(&self, needed: u64, room: Room) -> Error {
        no_space(&self.path, Place::of(&self.name), needed, room)
    }

    /// Allocates every byte of a file. `exclusive` chooses the pages of a file that no other process can reach.
    fn fill_holes(&self, file: &File, exclusive: Option<Pages>) -> Result<()> {
        let op = "reserve room";
        let facts = os::facts(file).map_err(|error| self.explain(op, error))?;
        if os::has_holes(file, &facts) == Some(false) {
            return Ok(());
        }
        let needed = facts.length.saturating_sub(facts.allocated);
        if needed > 0 {
            self.check_room(needed)?;
        }
        let reserved = match exclusive {
            Some(pages) => super::reserve(file, facts.length, pages),
            None => os::reserve(file, facts.length, false),
        };
        reserved.map_err(|error| match error.kind() {
            io::ErrorKind::Unsupported => ErrorKind::Unsupported {
                what: "a file has holes that this file system cannot fill; open it with OpenOptions::leave_holes or \
                       read-only"
                    .into(),
            }
            .at(self.path.display()),
            // Allocated bytes that are not the file's own can hide holes. Then it is not known how many: one at least.
            _ => self.out_of_room(op, needed.max(facts.block), error),
        })
    }

    /// Returns this crate's error for a system error about a file of the directory.
    fn explain_at(&self, op: &'static str, at: &Location, error: io::Error) -> Error {
        let denial = error.kind() == io::ErrorKind::PermissionDenied;
        // A free name, or a taken one, is the usual error and needs no query of the name.
        if denial || os::is_not_a_file(&error) {
            let facts = os::facts_at(&self.path_of(at)).ok();
            if let Some(found) = facts.as_ref().and_then(|facts| facts.other) {
                return ErrorKind::NotAnArray { found }.at(at);
            }
            if denial {
                return denied(at.to_string(), facts, "this user may not open, rename or remove it");
            }
        }
        Error::os(op, at, error)
    }

    fn open_with_facts(&self, at: &Location, access: Access) -> Result<(File, Facts)> {
        let file = os::open(&self.path_of(at), access == Access::ReadWrite)
            .map_err(|error| self.explain_at("open", at, error))?;
        let facts = os::facts(&file).map_err(|error| Error::os("look at", at, error))?;
        match facts.other {
            Some(found) => Err(ErrorKind::NotAnArray { found }.at(at)),
            None => Ok((file, facts)),
        }
    }

    /// Opens the file of a name and locks its NAME, so that no other process removes or replaces it until the turn is
    /// dropped.
    ///
    /// Returns `Ok(None)` if the name is free.
    fn hold_name(&self, at: &Location, limit: Duration) -> Result<Option<(Turn, Facts, Alone)>> {
        let path = self.path_of(at);
        for _ in 0..TRIES {
            let ((file, facts), kind) = match self.open_with_facts(at, Access::ReadWrite) {
                Ok(opened) => (opened, LockKind::Exclusive),
                Err(Error { kind: ErrorKind::NotFound, .. }) => return Ok(None),
                // The owner can unlink a file that it may only read. The lock is then a read lock.
                Err(Error { kind: ErrorKind::PermissionDenied { .. }, .. }) => {
                    match self.open_with_facts(at, Access::Read) {
                        Err(Error { kind: ErrorKind::NotFound, .. }) => return Ok(None),
                        other => (other?, LockKind::Shared),
                    }
                }
                Err(error) => return Err(error),
            };
            let mut turn = Turn::new(file);
            let alone = lock_name(&mut turn, kind, at, limit)?;
            os::step("name: locked");
            // The lock is on the file that was opened. The name may lead to another file since then.
            match os::facts_at(&path) {
                Ok(now) if now.id == facts.id => return Ok(Some((turn, facts, alone))),
                Ok(_) => {} // replaced between opening and locking
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(self.explain_at("look at", at, error)),
            }
        }
        Err(ErrorKind::WouldBlock.at(at))
    }

    /// Removes the name of file `id`, with NAME of the file locked. Returns false if the name leads to another file by
    /// now.
    ///
    /// Unless the lock excludes all other processes, one of them may have removed the file since it was found, and the
    /// name may lead to a new file. So the file is renamed to a hidden name first, checked there, and renamed back if
    /// it is another one.
    fn remove(&self, at: &Location, id: FileId, alone: Alone) -> io::Result<bool> {
        let path = self.path_of(at);
        if alone == Alone::Yes {
            return os::unlink(&path).map(|()| true);
        }
        os::step("name: about to be removed beside others");
        let ((), hidden) = self.with_fresh_name(|hidden| os::rename_new(&path, hidden))?;
        let is_meant = os::facts_at(&hidden)?.id == id;
        if is_meant || os::rename_new(&hidden, &path).is_err() {
            // File `id`; or another file, if its name was taken again before it could be renamed back.
            os::unlink(&hidden)?;
        }
        Ok(is_meant)
    }

    /// Renames the hidden file at `from` to `to`, and replaces the file that has this name.
    fn replace(&self, from: &Path, to: &Location, limit: Duration) -> Result<()> {
        self.put(to, limit, |path, taken| if taken { os::rename_over(from, path) } else { os::rename_new(from, path) })
    }

    /// Gives a file a name, while no other process removes or replaces that name. `put` gets whether the name is taken.
    fn put(&self, to: &Location, limit: Duration, put: impl Fn(&Path, bool) -> io::Result<()>) -> Result<()> {
        let path = self.path_of(to);
        for _ in 0..TRIES {
            let held = self.hold_name(to, limit)?;
            match put(&path, held.is_some()) {
                Ok(()) => return Ok(()),
                // Another process took the name first: replace its file.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(self.explain_at("replace", to, error)),
            }
        }
        Err(ErrorKind::WouldBlock.at(to))
    }

    /// Tries hidden names until one is free.
    fn with_fresh_name<R>(&self, make: impl FnMut(&Path) -> io::Result<R>) -> io::Result<(R, PathBuf)> {
        let prefix = format!("{RESERVED_PREFIX}draft-");
        let named =
            tempfile::Builder::new().prefix(&prefix).rand_bytes(12).disable_cleanup(true).make_in(&self.path, make)?;
        let (result, path) = named.into_parts();
        Ok((result, path.to_path_buf()))
    }

    fn link_and_replace(&self, draft: &DraftFile, at: &Location) -> Result<()> {
        let link = |path: &Path| os::link_nameless(draft.file(), path);
        self.put(at, NAME_WAIT, |path, taken| {
            if !taken {
                return link(path);
            }
            // Linux replaces a name only by rename. A process killed between link and rename leaves the hidden name,
            // which `reclaim` removes.
            let ((), hidden) = self.with_fresh_name(link)?;
            os::step("replace: linked");
            os::rename_over(&hidden, path).inspect_err(|_| {
                let _ = os::unlink(&hidden); // may be gone already
            })
        })
    }

    /// Tests whether a lock outlives its descriptor in a mapping. Returns true only after several positive tests in a
    /// row.
    fn test_lock_survival(&self) -> Result<bool> {
        let mut clean = 0;
        for _ in 0..TRIES {
            match self.test_lock_survival_once()? {
                Some(true) => clean += 1,
                Some(false) => return Ok(false),
                None => clean = 0,
            }
            if clean == CLEAN_ROUNDS {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Locks, maps and closes a file, and queries the lock through a second description. Then unmaps, and queries
    /// again.
    ///
    /// Returns `None` if the lock outlives the mapping too: then a process that another thread is just spawning has a
    /// copy of the descriptor, and the first answer means nothing.
    fn test_lock_survival_once(&self) -> Result<Option<bool>> {
        if !os::MAPPINGS_HOLD_LOCKS {
            return Ok(Some(false));
        }
        let explain = |error| Error::os("test whether locks survive close", self.path.display(), error);
        let draft = self.draft(0, DraftOptions::default())?;
        let witness = match draft.path() {
            Some(path) => os::open(path, true),
            None => os::reopen(draft.file(), true),
        };
        let witness = witness.map_err(explain)?;
        let mapping = Mapping::of_empty(draft.file(), true).map_err(explain)?;
        let locked = || os::is_locked(&witness, LockKind::Exclusive, LEASE).map_err(explain);
        if !os::try_lock(draft.file(), LockKind::Shared, LEASE).map_err(explain)? {
            return Ok(Some(false));
        }
        drop(draft);
        let locked_after_close = locked()?;
        drop(mapping);
        if locked()? {
            return Ok(None);
        }
        Ok(Some(locked_after_close))
    }
}

/// Refuses files larger than the process may make. The kernel would send a signal (SIGXFSZ).
pub(crate) fn check_length(directory: &Path, length: u64) -> Result<()> {
    let largest = os::largest_file();
    if length > largest {
        let room = Room { bytes: largest, bound: Bound::FileSize };
        return Err(no_space(directory, Place::Directory, length, room));
    }
    Ok(())
}

fn no_space(directory: &Path, place: Place, needed: u64, room: Room) -> Error {
    ErrorKind::NoSpace { needed, available: room.bytes, in_flight: 0, advice: advice(room.bound, place, directory) }
        .at(directory.display())
}

fn denied(location: String, facts: Option<Facts>, reason: &'static str) -> Error {
    let (owner, mode) = facts.map_or((0, 0), |facts| (facts.owner, facts.mode));
    ErrorKind::PermissionDenied { owner, mode, reason }.at(location)
}

// SAFETY: a draft has no name, or one of 12 random characters in the reserved space, made exclusively; no function here
// changes a length after `draft`; names change by link or rename, which are atomic; survival of locks is tested.
#[allow(unsafe_code)]
unsafe impl Backend for Files {
    fn name(&self) -> &str {
        &self.name
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn draft(&self, length: u64, options: DraftOptions) -> Result<DraftFile> {
        check_length(&self.path, length)?;
        if options.pages.are_reserved() {
            self.check_room(length)?;
        }
        let draft = match os::create_nameless(&self.path, options.permissions) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => self
                .with_fresh_name(|path| os::create_hidden(path, options.permissions))
                .map(|(file, path)| DraftFile::hidden(file, path)),
            nameless => nameless.map(DraftFile::nameless),
        };
        let draft = draft.map_err(|error| self.out_of_room("make a draft", length, error))?;
        let file = draft.file();
        // Room first: some systems allocate it only behind the present end of a file.
        if options.pages.are_reserved() {
            let reserved = super::reserve(file, length, options.pages);
            reserved.map_err(|error| self.out_of_room("reserve room", length, error))?;
        }
        if !(options.pages.are_reserved() && os::RESERVING_SETS_LENGTH) {
            file.set_len(length).map_err(|error| self.out_of_room("size a draft", length, error))?;
        }
        Ok(draft)
    }

    fn reserve(&self, file: &File) -> Result<()> {
        self.fill_holes(file, None)
    }

    fn reserve_part(&self, file: &File, part: Range<u64>) -> Result<()> {
        let needed = part.end.saturating_sub(part.start);
        self.check_room(needed)?;
        os::reserve_part(file, part).map_err(|error| match error.kind() {
            io::ErrorKind::Unsupported => {
                let what = "reserving room for a part of a file on this file system".into();
                ErrorKind::Unsupported { what }.at(self.path.display())
            }
            _ => self.out_of_room("reserve room", needed, error),
        })
    }

    fn reserve_draft(&self, draft: &DraftFile, pages: Pages) -> Result<()> {
        self.fill_holes(draft.file(), Some(pages))
    }

    fn publish(&self, draft: &mut DraftFile, at: &Location, mode: Publish) -> Result<()> {
        let path = self.path_of(at);
        let explain = |error| self.explain_at("publish", at, error);
        match (draft.path(), mode) {
            (None, Publish::New) => os::link_nameless(draft.file(), &path).map_err(explain)?,
            (None, Publish::Replace) => self.link_and_replace(draft, at)?,
            (Some(hidden), Publish::New) => os::rename_new(hidden, &path).map_err(explain)?,
            (Some(hidden), Publish::Replace) => self.replace(hidden, at, NAME_WAIT)?,
        }
        draft.clear_path();
        Ok(())
    }

    fn open(&self, at: &Location, access: Access) -> Result<File> {
        self.open_with_facts(at, access).map(|(file, _)| file)
    }

    fn rename(&self, from: &Location, to: &Location, id: FileId, mode: Publish) -> Result<()> {
        self.rename_within(from, to, id, mode, NAME_WAIT)
    }

    fn rename_within(&self, from: &Location, to: &Location, id: FileId, mode: Publish, limit: Duration) -> Result<()> {
        let _held = match self.hold_name(from, limit)? {
            // The name may lead to another file by the time of the rename, and that file would be moved.
            Some((_, facts, Alone::No)) if facts.id == id => {
                return Err(ErrorKind::TimedOut { waited: limit }.at(from));
            }
            Some((turn, facts, _)) if facts.id == id => turn,
            _ => return Err(ErrorKind::NotFound.at(from)),
        };
        let (path, target) = (self.path_of(from), self.path_of(to));
        let same = os::facts_at(&target).ok().filter(|facts| facts.id == id);
        let explain = |at: &Location, error| self.explain_at("rename", at, error);
        match (same, mode) {
            (Some(_), _) if from == to => Ok(()),
            // Both names lead to the file already. A rename would do nothing and leave both.
            (Some(facts), _) if facts.links > 1 => os::unlink(&path).map_err(|error| explain(from, error)),
            // Two spellings of one name, where the file system ignores case; or a name that must be free.
            (Some(_), _) | (None, Publish::New) => os::rename_new(&path, &target).map_err(|error| explain(to, error)),
            (None, Publish::Replace) => self.replace(&path, to, limit),
        }
    }

    fn unlink(&self, at: &Location, id: Option<FileId>) -> Result<bool> {
        self.unlink_within(at, id, NAME_WAIT)
    }

    fn unlink_within(&self, at: &Location, id: Option<FileId>, limit: Duration) -> Result<bool> {
        match self.hold_name(at, limit)? {
            Some((_held, facts, alone)) if id.is_none_or(|id| id == facts.id) => match self.remove(at, facts.id, alone)
            {
                Ok(removed) => Ok(removed),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
                Err(error) => Err(self.explain_at("unlink", at, error)),
            },
            _ => Ok(false),
        }
    }

    fn list(&self) -> Result<Vec<DirectoryEntry>> {
        let explain = |error| self.explain("list the directory", error);
        let mut entries = Vec::new();
        for file in std::fs::read_dir(&self.path).map_err(explain)? {
            let file = file.map_err(explain)?;
            // A file that disappears meanwhile is left out.
            let Ok(facts) = os::facts_at(&file.path()) else { continue };
            if facts.other.is_some() {
                continue;
            }
            let name = file.file_name().to_string_lossy().into_owned();
            let kind = match Location::of_companion(&name) {
                Some((Companion::Partial, _)) => EntryKind::Partial,
                Some((Companion::Ledger, _)) => EntryKind::Ledger,
                Some((Companion::Frames, _)) => EntryKind::Frames,
                Some((Companion::Keeper, _)) => EntryKind::Keeper,
                Some((Companion::Cache, _)) => EntryKind::Cache,
                None if name.starts_with(RESERVED_PREFIX) => EntryKind::Draft,
                None => EntryKind::Array,
            };
            let Facts { id, length: len, allocated, owner, mode, modified, .. } = facts;
            entries.push(DirectoryEntry { name, len, allocated, id, owner, mode, modified, kind });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn available(&self) -> Result<u64> {
        let room = self.room()?.bytes;
        Ok(self.room_to_limit()?.map_or(room, |limited| limited.bytes.min(room)))
    }

    fn lock_survives_close(&self) -> Result<bool> {
        if let Some(survives) = self.survives.get() {
            return Ok(survives == 1);
        }
        match self.test_lock_survival() {
            Ok(survives) => Ok(self.survives.set(survives.into()) == 1),
            // A user that may only read here cannot make a test file. A descriptor too many is better than a lost lock.
            Err(Error { kind: ErrorKind::PermissionDenied { .. } | ErrorKind::NoSpace { .. }, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
