//! `ChunkCache`: creating and opening a cache, and looking for chunks.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::claim::KeyClaim;
use super::geometry::{CacheGeometry, SlotRun, TRAILER};
use super::holds::CacheLocks;
use super::memory::CacheMemory;
use super::table::{Counter, FoundChunk, Records};
use crate::backend::{Access, Backend, Companion, Directory, DraftOptions, IntoLocation, Location, Pages, Publish};
use crate::error::{Error, ErrorKind, Result};
use crate::interrupt;
use crate::manager_client;
use crate::os;
use crate::segment::footer::Kind;
use crate::segment::{DraftSegment, Home, LockFile, Mapped, SharedWith, pin, read_trailer, stay, with_room};

/// The mode of a cache that is not shared with a group.
const PERMISSIONS: u32 = 0o600;

/// How many times a cache is opened again because another one got its name.
const TRIES: usize = 1000;

/// How long a cache stays after its last use, unless its options say otherwise.
const KEEP: Duration = Duration::from_secs(3600);

/// How long a process that waits for a chunk sleeps at most: a killed filler does not ring.
const LOOK: Duration = Duration::from_millis(5);

/// Chunks under keys that all processes of this user share, or of [more users](CacheOptions::shared_with).
///
/// A clone is the same cache. A forked child can use it too.
#[derive(Clone)]
pub struct ChunkCache(Arc<OpenCache>);

/// A cache as this process has it open.
#[derive(Debug)]
pub(super) struct OpenCache {
    /// Unmapped before the description with the locks is closed, which may remove an unlinked file.
    memory: CacheMemory,
    geometry: CacheGeometry,
    pub(super) locks: CacheLocks,
    /// The public name.
    home: Home,
    id: u128,
    /// When this process last noted that it uses the cache.
    seen: AtomicU64,
}

/// Options for creating and opening caches.
///
/// # Examples
///
/// ```
/// use ndarray_shm::Directory;
/// use ndarray_shm::cache::{self, CacheOptions};
///
/// let options = CacheOptions::new().directory(Directory::emulated()?);
/// let cache = options.create("cache-options-example", 1 << 20)?;
/// assert_eq!(cache.bytes(), 1 << 20);
/// cache::unlink(cache.directory(), cache.location())?;
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "options do nothing until `create` or `open` is called"]
pub struct CacheOptions {
    backend: Option<Directory>,
    keep: Option<Duration>,
    shared_with: SharedWith,
}

impl CacheOptions {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses this directory instead of the [default](crate::default_directory).
    pub fn directory(mut self, directory: Directory) -> Self {
        self.backend = Some(directory);
        self
    }

    /// Keeps the cache for this long after its last use, in whole seconds, rounded up; by default for an hour. Then the
    /// [manager](crate::manager) or [`reclaim`](crate::counted::reclaim) removes it, unless a process has it open: one
    /// that opened it, or a forked child that has looked for a chunk. With `Duration::MAX` it goes only when asked for:
    /// by [`unlink`](super::unlink) or [`Reclaim::caches`](crate::counted::Reclaim::caches). A cache that exists gets
    /// this time too.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = Some(keep);
        self
    }

    /// Chooses the users that may use the cache together. The default is [`SharedWith::OnlyMe`]. These users must be
    /// trusted: a process that may write to the cache can give every other one wrong bytes.
    ///
    /// It only decides about a cache that is created, and about the caches of other users that are opened: one of this
    /// user that exists stays as it is. In a directory with the sticky bit only its owner, or root, removes it.
    ///
    /// # Examples
    ///
    /// ```
    /// use ndarray_shm::cache::{CacheOptions, SharedWith};
    ///
    /// // Of this user, and of members of group 100.
    /// let options = CacheOptions::new().shared_with(SharedWith::Group(100));
    /// # let _ = options;
    /// ```
    pub fn shared_with(mut self, users: SharedWith) -> Self {
        self.shared_with = users;
        self
    }

    /// Creates a cache: see [`ChunkCache::create`].
    ///
    /// # Errors
    ///
    /// As [`ChunkCache::create`].
    pub fn create(&self, location: impl IntoLocation, bytes: u64) -> Result<ChunkCache> {
        let home = Home::new(self.backend.as_ref(), location)?;
        OpenCache::create(&home, bytes, self).map(ChunkCache::of).map_err(|error| about(error, &home))
    }

    /// Opens a cache: see [`ChunkCache::open`].
    ///
    /// # Errors
    ///
    /// As [`ChunkCache::open`].
    pub fn open(&self, location: impl IntoLocation) -> Result<ChunkCache> {
        let home = Home::new(self.backend.as_ref(), location)?;
        let opened = OpenCache::open(&home, &self.shared_with).map_err(|error| about(error, &home))?;
        let opened = opened.ok_or_else(|| ErrorKind::NotFound.at(&home.location))?;
        Ok(self.keep_longer(opened))
    }

    /// Opens a cache, or creates it: see [`ChunkCache::open_or_create`].
    ///
    /// # Errors
    ///
    /// As [`ChunkCache::open_or_create`].
    pub fn open_or_create(&self, location: impl IntoLocation, bytes: u64) -> Result<ChunkCache> {
        let home = Home::new(self.backend.as_ref(), location)?;
        for _ in 0..TRIES {
            let opened = OpenCache::open(&home, &self.shared_with).map_err(|error| about(error, &home))?;
            if let Some(opened) = opened {
                let wanted = CacheGeometry::new(bytes, true).map_err(|error| about(error, &home))?;
                return match opened.geometry.bytes() {
                    found if found == wanted.bytes() => Ok(self.keep_longer(opened)),
                    found => Err(ErrorKind::CacheSize { asked: bytes, found }.at(&home.location)),
                };
            }
            match OpenCache::create(&home, bytes, self) {
                Err(Error { kind: ErrorKind::AlreadyExists, .. }) => {} // another process was faster
                created => return created.map(ChunkCache::of).map_err(|error| about(error, &home)),
            }
        }
        Err(ErrorKind::Unlinked.at(&home.location))
    }

    /// Opens or creates the one cache of this user that needs no name: see [`ChunkCache::of_user`].
    ///
    /// # Errors
    ///
    /// As [`ChunkCache::of_user`].
    pub fn of_user(&self, bytes: u64) -> Result<ChunkCache> {
        self.open_or_create(format!("chunks-{}", os::user_tag()), bytes)
    }

    fn keep_longer(&self, opened: OpenCache) -> ChunkCache {
        if let Some(keep) = self.keep {
            opened.records().set_keep(keep);
        }
        ChunkCache::of(opened)
    }
}

/// Names the cache instead of its file.
fn about(error: Error, home: &Home) -> Error {
    match error.kind {
        ErrorKind::InvalidLocation { .. } => error,
        _ => error.about(&home.location),
    }
}

impl OpenCache {
    fn create(home: &Home, bytes: u64, options: &CacheOptions) -> Result<Self> {
        let file = home.companion(Companion::Cache)?;
        let id = crate::random::number();
        let draft = |is_sparse: bool| -> Result<_> {
            let geometry = CacheGeometry::new(bytes, is_sparse)?;
            let pages = if is_sparse { Pages::Sparse } else { Pages::Base };
            let how = DraftOptions { permissions: PERMISSIONS, pages };
            let draft = DraftSegment::with_trailer(home, geometry.payload(), &geometry.to_trailer(id), how)?;
            if is_sparse {
                // Every process looks at the records: they have their memory from the beginning.
                with_room(&home.backend, || home.backend.reserve_part(draft.file().file(), 0..geometry.words()))?;
            }
            Ok((geometry, draft))
        };
        let (geometry, draft) = match draft(true) {
            Ok((geometry, sparse)) if allocated(sparse.file().file(), home)? < geometry.payload() => (geometry, sparse),
            // The backend allocates whole files only.
            Ok(_) | Err(Error { kind: ErrorKind::Unsupported { .. }, .. }) => draft(false)?,
            Err(error) => return Err(error),
        };
        options.shared_with.open_to(&draft, &file, PERMISSIONS)?;
        let (own, id_of_file) = (LockFile::of_draft(&draft, &file.location)?, draft.mapped().id());
        let locks = CacheLocks::new(&file, id_of_file, own)?;
        // After the description with the locks, so that it is unmapped before that is closed, also if the name is
        // taken: closing removes an unlinked file where a mapped one cannot be removed.
        let memory = CacheMemory::new(draft.map_again(&file.location)?, geometry.words());
        let records = Records::new(memory.words(), &geometry);
        records.set_keep(options.keep.unwrap_or(KEEP));
        records.see(stay::wall_clock());
        draft.publish(&file.location, Publish::New, false, None).map_err(|(error, _)| error)?;
        Ok(Self { memory, geometry, locks, home: home.clone(), id, seen: AtomicU64::new(0) })
    }

    fn open(home: &Home, shared_with: &SharedWith) -> Result<Option<Self>> {
        let at = home.companion(Companion::Cache)?;
        for _ in 0..TRIES {
            let Some((file, facts)) = pin(&at.backend, &at.location, Access::ReadWrite)? else { return Ok(None) };
            shared_with.admit(&facts, home, PERMISSIONS, &Cell::new(None))?;
            let (footer, trailer) = read_trailer(&file, facts.length, Kind::Cache, TRAILER, &home.location)?;
            let geometry = CacheGeometry::parse(&trailer, footer.payload)
                .map_err(|reason| ErrorKind::Trailer { reason }.at(&home.location))?;
            let Some(locks) = CacheLocks::open(&at, facts.id)? else { continue };
            // After the locks, as in `create`.
            let mapped = Mapped::unreserved(&file, &facts, &at, Access::ReadWrite)?;
            let memory = CacheMemory::new(mapped, geometry.words());
            let (home, id, seen) = (home.clone(), footer.id, AtomicU64::new(0));
            return Ok(Some(Self { memory, geometry, locks, home, id, seen }));
        }
        Err(ErrorKind::Unlinked.at(&home.location))
    }

    pub(super) fn records(&self) -> Records<'_> {
        Records::new(self.memory.words(), &self.geometry)
    }

    pub(super) fn geometry(&self) -> &CacheGeometry {
        &self.geometry
    }

    /// Notes that the cache is used now, so that it stays, and lets the manager know of its directory.
    fn see(&self) {
        let now = stay::wall_clock();
        // Guards no other data, so Relaxed suffices.
        if self.seen.swap(now, Ordering::Relaxed) != now {
            self.records().see(now);
            manager_client::announce(&self.home.backend);
        }
    }

    pub(super) fn memory(&self) -> &CacheMemory {
        &self.memory
    }

    /// Gives slots their memory, which are locked for writing. Returns `false` if there is none.
    pub(super) fn reserve(&self, run: SlotRun) -> Result<bool> {
        let at = self.geometry.slots_of(run);
        if at.is_empty() || !self.geometry.is_sparse || self.records().have_memory(run) {
            return Ok(true);
        }
        let backend = &self.home.backend;
        match self.locks.with_file(|own| backend.reserve_part(own.file(), at)) {
            Ok(()) => Ok(true),
            Err(Error { kind: ErrorKind::NoSpace { .. }, .. }) => Ok(false),
            Err(error) => Err(error.about(&self.home.location)),
        }
    }

    /// Locks a chunk that was found, if it is still there.
    fn hold(&self, found: FoundChunk, key: u128, length: u64) -> Result<bool> {
        os::step("cache: chunk found");
        if !self.locks.read(found.run)? {
            return Ok(false);
        }
        if self.records().is_there(&found, key, length) {
            return Ok(true);
        }
        self.locks.release(found.run);
        Ok(false)
    }
}

/// Why a chunk is not in the cache, and does not get into it: make it without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bypass {
    /// It is longer than 64 MiB, or than a quarter of the cache.
    TooLong,
    /// Another process fills it, and takes too long.
    Late,
}

/// Result of [`ChunkCache::look`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Lookup {
    /// The chunk is there, and up to date.
    Found(CachedChunk),
    /// This process is the only one that makes the chunk now, or checks whether it is up to date.
    Claimed(KeyClaim),
    /// The cache cannot help.
    Bypass(Bypass),
}

/// What a cache holds and what it was good for, as [`ChunkCache::inspect`] returns it.
///
/// # Examples
///
/// ```
/// use ndarray_shm::cache::{self, ChunkCache};
///
/// let cache = ChunkCache::create("inspect-cache-example", 1 << 20)?;
/// assert_eq!((cache.inspect()?.bytes, cache.inspect()?.filled), (1 << 20, 0));
/// cache::unlink(cache.directory(), cache.location())?;
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CacheInspection {
    /// Bytes of all slots.
    pub bytes: u64,
    /// Bytes of slots with chunks that can be found.
    pub filled: u64,
    /// Bytes of memory that the file has now, records included.
    pub allocated: u64,
    /// How long the cache stays after its last use: see [`CacheOptions::keep`].
    pub keep: Duration,
    /// For how long no process has looked for a chunk, in whole seconds.
    pub unused: Duration,
    /// Chunks that were found.
    pub hits: u64,
    /// Chunks that were filled.
    pub fills: u64,
    /// Lookups that waited for a process that filled the chunk.
    pub waits: u64,
    /// Chunks that made way for others.
    pub evictions: u64,
    /// Chunks that were found to be out of date.
    pub stale: u64,
    /// Lookups of chunks that are too long.
    pub too_long: u64,
    /// Chunks that were not kept because readers held all slots in which they could be.
    pub held: u64,
    /// Chunks that were not kept because there was no memory.
    pub no_space: u64,
    /// Lookups that did not wait longer for another process.
    pub late: u64,
    /// Chunks that were not kept because it was not known which version of the stored object they are.
    pub unversioned: u64,
}

impl ChunkCache {
    fn of(open: OpenCache) -> Self {
        Self(Arc::new(open))
    }

    pub(super) fn open_cache(&self) -> &OpenCache {
        &self.0
    }

    /// Creates a cache for `bytes` bytes of chunks, rounded up to a multiple of 512 KiB. Only this user can open it,
    /// unless [`CacheOptions::shared_with`] chooses others.
    ///
    /// It takes 0.25 % of that at once, for its records, and the rest as it is filled. [`CacheOptions`] chooses another
    /// directory, too.
    ///
    /// # Errors
    ///
    /// - [`AlreadyExists`](ErrorKind::AlreadyExists): there is a cache of this name.
    /// - [`InvalidSetting`](ErrorKind::InvalidSetting): the size is below 512 KiB or beyond all measure.
    /// - [`NoSpace`](ErrorKind::NoSpace), [`PermissionDenied`](ErrorKind::PermissionDenied), and those of
    ///   [`default_directory`](crate::default_directory).
    pub fn create(location: impl IntoLocation, bytes: u64) -> Result<Self> {
        CacheOptions::new().create(location, bytes)
    }

    /// Opens a cache that exists.
    ///
    /// # Errors
    ///
    /// - [`NotFound`](ErrorKind::NotFound): there is no cache of this name. An array is none.
    /// - [`ForeignOwner`](ErrorKind::ForeignOwner), [`PermissionDenied`](ErrorKind::PermissionDenied): it is another
    ///   user's that was [not chosen](CacheOptions::shared_with), or every user may write to it.
    /// - [`Trailer`](ErrorKind::Trailer): its bookkeeping is damaged.
    /// - [`TimedOut`](ErrorKind::TimedOut): a process that was about to remove it, because it was not used, is stopped.
    /// - [`Interrupted`](ErrorKind::Interrupted), while it waits for such a process.
    pub fn open(location: impl IntoLocation) -> Result<Self> {
        CacheOptions::new().open(location)
    }

    /// Opens a cache, or creates it if there is none. Of several processes that do so at once, one creates it.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open) and [`create`](Self::create). [`CacheSize`](ErrorKind::CacheSize): it exists with
    /// another size.
    pub fn open_or_create(location: impl IntoLocation, bytes: u64) -> Result<Self> {
        CacheOptions::new().open_or_create(location, bytes)
    }

    /// Opens the one cache of this user that needs no name, or creates it: `chunks-` and the number of the user.
    ///
    /// # Errors
    ///
    /// Those of [`open_or_create`](Self::open_or_create).
    pub fn of_user(bytes: u64) -> Result<Self> {
        CacheOptions::new().of_user(bytes)
    }

    /// Refuses what a process of another fork generation has of this cache.
    pub(super) fn refuse_forked_child(&self, generation: u64, what: &str) -> Result<()> {
        if generation == os::fork_generation() {
            return Ok(());
        }
        let what = format!("{what} (look for it again here)").into();
        Err(ErrorKind::Unsupported { what }.at(self.location()))
    }

    /// Returns the name.
    pub fn location(&self) -> &Location {
        &self.0.home.location
    }

    /// Returns the directory in which the name is.
    pub fn directory(&self) -> &Directory {
        &self.0.home.backend
    }

    /// Returns how many bytes of chunks fit.
    pub fn bytes(&self) -> u64 {
        self.0.geometry.bytes()
    }

    /// Returns a random number that tells this cache from all others.
    pub fn id(&self) -> u128 {
        self.0.id
    }

    /// Returns the time of the cache: a number that all its processes agree on, and that grows. A chunk that was
    /// checked at this time or later is up to date for a volume that is opened now.
    pub fn now(&self) -> u64 {
        self.0.records().tick()
    }

    /// Looks for the chunk of a key, with `length` bytes, that was checked at the time `since` or later. If it is not
    /// there, claims the key; while another process has it, waits at most `patience`.
    ///
    /// The key is a hash of everything that the bytes depend on, except the [version](super::NewChunk::publish) of the
    /// stored object. Different chunks must have different keys, so it is one of 128 bits.
    ///
    /// # Errors
    ///
    /// [`Interrupted`](ErrorKind::Interrupted), and those of locking. In a forked child, those of opening the file once
    /// more: [`Unlinked`](ErrorKind::Unlinked) if the name has gone, and [`TimedOut`](ErrorKind::TimedOut).
    pub fn look(&self, key: u128, length: usize, since: u64, patience: Duration) -> Result<Lookup> {
        let (open, records, wanted) = (&*self.0, self.0.records(), length as u64);
        if open.geometry.run_for(wanted).is_none() {
            records.count(Counter::TooLong);
            return Ok(Lookup::Bypass(Bypass::TooLong));
        }
        open.see();
        let begin = Instant::now();
        let mut has_waited = false;
        loop {
            // Before looking: who fills a chunk after that is heard.
            let bell = records.bell();
            if let Some(chunk) = self.find(key, length, since)? {
                return Ok(Lookup::Found(chunk));
            }
            if open.locks.lock_key(key)? {
                let claim = KeyClaim::new(self, key, length);
                os::step("cache: key locked");
                // It may have been filled between the two steps.
                let old = self.find_any(key, length, None)?;
                return Ok(match old {
                    Some(chunk) if chunk.checked() >= since => {
                        records.count(Counter::Hits);
                        drop(claim);
                        Lookup::Found(chunk)
                    }
                    old => Lookup::Claimed(claim.with_old(old)),
                });
            }
            let left = patience.saturating_sub(begin.elapsed());
            if left.is_zero() {
                if has_waited {
                    records.count(Counter::Late);
                }
                return Ok(Lookup::Bypass(Bypass::Late));
            }
            if !interrupt::goes_on() {
                return Err(ErrorKind::Interrupted.at(self.location()));
            }
            if !has_waited {
                records.count(Counter::Waits);
                has_waited = true;
            }
            records.wait(bell, left.min(LOOK));
        }
    }

    /// Looks for the chunk of a key that was checked at the time `since` or later, as [`look`](Self::look) does, but
    /// waits for no process and claims nothing.
    ///
    /// # Errors
    ///
    /// As [`look`](Self::look).
    pub fn find(&self, key: u128, length: usize, since: u64) -> Result<Option<CachedChunk>> {
        self.0.see();
        let found = self.find_any(key, length, Some(since))?;
        if found.is_some() {
            self.0.records().count(Counter::Hits);
        }
        Ok(found)
    }

    /// Looks for the chunk of a key, as [`find`](Self::find) does, that was made from this version of the stored
    /// object. For callers that ask the store for the version at each access.
    ///
    /// # Errors
    ///
    /// As [`look`](Self::look).
    pub fn find_version(&self, key: u128, length: usize, version: u128) -> Result<Option<CachedChunk>> {
        self.0.see();
        let found = self.find_any(key, length, None)?.filter(|chunk| chunk.version() == version);
        if found.is_some() {
            self.0.records().count(Counter::Hits);
        }
        Ok(found)
    }

    /// Looks for a chunk once, with any time of its last check or one that is `since` or later.
    fn find_any(&self, key: u128, length: usize, since: Option<u64>) -> Result<Option<CachedChunk>> {
        let (open, records) = (&*self.0, self.0.records());
        let Some(found) = records.find(key, length as u64) else { return Ok(None) };
        if since.is_some_and(|since| records.checked(&found) < since) || !open.hold(found, key, length as u64)? {
            return Ok(None);
        }
        let chunk = CachedChunk { cache: self.clone(), found, length, generation: os::fork_generation() };
        // Once more: only now it is certain of which chunk it is the time.
        if since.is_some_and(|since| records.checked(&found) < since) {
            return Ok(None);
        }
        records.touch(&found);
        Ok(Some(chunk))
    }

    /// Frees memory until the chunks have at most `bytes` bytes: those first that were not used for the longest time.
    /// Chunks that a process reads stay. Returns how much memory the file has then, records included.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) where a file cannot lose a part of its memory. Then [`unlink`] frees it.
    /// [`Interrupted`](ErrorKind::Interrupted).
    ///
    /// [`unlink`]: super::unlink
    pub fn trim(&self, bytes: u64) -> Result<u64> {
        let (open, records) = (&*self.0, self.0.records());
        if !open.geometry.is_sparse {
            let what = "freeing memory of this cache, which got all of it when it was created (unlink it)".into();
            return Err(ErrorKind::Unsupported { what }.at(self.location()));
        }
        let fixed = open.allocated()?.min(open.geometry.words());
        let slot = |first| SlotRun { first, count: 1 };
        let filled = (0..open.geometry.slots).filter(|first| records.have_memory(slot(*first)));
        let mut slots: Vec<(u64, u64)> = filled.map(|first| (records.used(first), first)).collect();
        slots.sort_unstable();
        for (used, first) in slots {
            if open.allocated()?.saturating_sub(fixed) <= bytes {
                break;
            }
            if !interrupt::goes_on() {
                return Err(ErrorKind::Interrupted.at(self.location()));
            }
            let run = slot(first);
            if !open.locks.fill(run)? {
                continue;
            }
            // A part of a chunk that lost another part is of no use any more.
            if ![0, used].contains(&records.used(first)) {
                open.locks.release(run); // it was used since it was looked at
                continue;
            }
            records.clear(run);
            let freed = open.locks.with_file(|own| {
                os::free_part(own.file(), open.geometry.slots_of(run))
                    .map_err(|error| Error::os("free memory of", self.location(), error))
            });
            open.locks.release(run);
            freed?;
        }
        open.allocated()
    }

    /// Returns what the cache holds, and what it was good for.
    ///
    /// # Errors
    ///
    /// Those of querying the file.
    pub fn inspect(&self) -> Result<CacheInspection> {
        let (open, records) = (&*self.0, self.0.records());
        let (bytes, (keep, unused)) = (open.geometry.bytes(), records.stay());
        let [hits, fills, waits, evictions, stale, too_long, held, no_space, late, unversioned] = records.counters();
        Ok(CacheInspection {
            bytes,
            filled: records.filled() * (bytes / open.geometry.slots),
            allocated: open.allocated()?,
            keep,
            unused,
            hits,
            fills,
            waits,
            evictions,
            stale,
            too_long,
            held,
            no_space,
            late,
            unversioned,
        })
    }
}

impl OpenCache {
    /// Returns how much memory the file has.
    fn allocated(&self) -> Result<u64> {
        self.locks.with_file(|own| allocated(own.file(), &self.home))
    }
}

/// Returns how much memory a file has.
fn allocated(file: &File, home: &Home) -> Result<u64> {
    Ok(os::facts(file).map_err(|error| Error::os("look at", &home.location, error))?.allocated)
}

impl fmt::Debug for ChunkCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkCache").field("location", self.location()).field("bytes", &self.bytes()).finish()
    }
}

/// A chunk in a cache. Its bytes do not change as long as this lives, and its slots are not used for another one.
///
/// Copy the bytes and drop it: each chunk that is held is a lock on the file, and each lock makes those of all
/// processes slower. [The room](super) has an example.
#[must_use = "a chunk that is dropped may make way for others"]
pub struct CachedChunk {
    cache: ChunkCache,
    found: FoundChunk,
    length: usize,
    generation: u64,
}

impl CachedChunk {
    /// Returns the bytes.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](ErrorKind::Unsupported) in a forked child, because its parent holds the chunk: look for it again
    /// there.
    #[allow(unsafe_code)]
    pub fn bytes(&self) -> Result<&[u8]> {
        self.cache.refuse_forked_child(self.generation, "a chunk that the parent of this process holds")?;
        let open = &*self.cache.0;
        // SAFETY: this process has the slots locked for reading until this is dropped. They have their memory, because
        // a chunk is in them.
        Ok(unsafe { open.memory.bytes(&open.geometry.slots_of(self.found.run), self.length) })
    }

    fn is_own_process(&self) -> bool {
        self.generation == os::fork_generation()
    }

    /// Returns the version of the stored object from which the bytes are.
    pub fn version(&self) -> u128 {
        self.cache.0.records().version(&self.found)
    }

    /// Returns the last time of the cache at which this was known to be the version of the stored object.
    pub fn checked(&self) -> u64 {
        self.cache.0.records().checked(&self.found)
    }

    /// Notes that the version was that of the stored object at this time: [`now`](ChunkCache::now), before asking the
    /// store.
    ///
    /// In a forked child it does nothing.
    pub fn confirm(&self, checked: u64) {
        if !self.is_own_process() {
            return; // the slots may have another chunk by now
        }
        let records = self.cache.0.records();
        records.confirm(&self.found, checked);
        records.count(Counter::Hits);
    }

    pub(super) fn found(&self) -> &FoundChunk {
        &self.found
    }
}

impl Drop for CachedChunk {
    fn drop(&mut self) {
        if self.is_own_process() {
            self.cache.0.locks.release(self.found.run);
        }
    }
}

impl fmt::Debug for CachedChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedChunk").field("length", &self.length).finish_non_exhaustive()
    }
}
