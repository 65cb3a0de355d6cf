//! Known facts about one file in shared memory, as `ls` and `info` show them.

use std::time::{Duration, SystemTime};

use ndarray_shm::backend::{DirectoryEntry, EntryKind};
use ndarray_shm::{Directory, ErrorKind, stream};
use ndarray_shm_volume::{Found, OtherUse};
use serde::Serialize;

use super::arena::ArenaReport;
use super::cache::CacheReport;
use super::counted::CountedReport;
use super::description::DescriptionReport;
use super::places;
use super::stream::StreamReport;
use crate::exit::Failure;
use crate::machine::host;
use crate::show::units;

/// One file, as `ls --json` and `info --json` print it.
#[derive(Debug, Serialize)]
pub(crate) struct Item {
    /// The public name; for drafts, which have none, the file name.
    pub(crate) name: String,
    pub(crate) backend: String,
    pub(crate) path: String,
    /// "array", "counted", "arena", "counters", "partial" (a renderbuffer that is not finished), "ledger", "stream",
    /// "keeper" (of a stream), "cache" (of chunks), "draft", "lock" (a file that uploads lock) or "semaphore" (of the C
    /// library).
    pub(crate) kind: &'static str,
    /// Length in bytes.
    pub(crate) size: u64,
    /// Bytes of memory or disk that are allocated.
    pub(crate) allocated: u64,
    /// Whether a process is attached, of a stream its writer; `null` if this user may not ask.
    pub(crate) attached: Option<bool>,
    /// Seconds since it was created, or last changed other than through a mapping.
    pub(crate) age_seconds: u64,
    /// Number of the owner; `null` on platforms without owners.
    pub(crate) owner: Option<u32>,
    pub(crate) owner_name: Option<String>,
    /// Permission bits in octal; `null` on platforms without them.
    pub(crate) mode: Option<String>,
    /// Finished chunks of a renderbuffer; `null` for everything else.
    pub(crate) chunks_done: Option<usize>,
    pub(crate) chunks_total: Option<usize>,
    /// Facts of a counted array; `null` for everything else, and if they cannot be read.
    pub(crate) counted: Option<CountedReport>,
    /// Why these facts cannot be read, or `null`.
    pub(crate) counted_error: Option<String>,
    /// Description of a plain array; `null` for everything else, and without a valid description.
    pub(crate) description: Option<DescriptionReport>,
    /// Facts of an arena or counters; `null` for everything else.
    pub(crate) arena: Option<ArenaReport>,
    /// Facts of a stream; `null` for everything else, and if they cannot be read.
    pub(crate) stream: Option<StreamReport>,
    /// Why the facts of a stream cannot be read, or `null`.
    pub(crate) stream_error: Option<String>,
    /// Facts of a cache of chunks; `null` for everything else, and if they cannot be read.
    pub(crate) cache: Option<CacheReport>,
    /// Why the facts of a cache cannot be read, or `null`.
    pub(crate) cache_error: Option<String>,
    /// Whether it is one of the two files of a renderbuffer or a stream, and the other is missing.
    #[serde(skip)]
    pub(crate) is_half: bool,
    /// Whether it is a counted array, an arena or a stream with an invalid trailer.
    #[serde(skip)]
    pub(crate) is_damaged: bool,
}

impl Item {
    /// Collects the facts about an entry.
    pub(crate) fn new(backend: &Directory, entry: &DirectoryEntry) -> Self {
        let ledger = (entry.kind == EntryKind::Partial).then(|| places::ledger(backend, entry)).and_then(Result::ok);
        let owner = host::FILES_HAVE_OWNERS.then_some(entry.owner);
        let found = Found::at(backend, entry);
        let kind = match (entry.kind, &found) {
            (EntryKind::Array, Found::Counted(_) | Found::Damaged(_)) => "counted",
            (EntryKind::Array, Found::Arena(arena)) => ArenaReport::new(arena).kind(),
            (EntryKind::Array, found) => match found.other_use(entry) {
                Some(OtherUse::UploadLock) => "lock",
                Some(OtherUse::Semaphore) => "semaphore",
                _ => "array",
            },
            (EntryKind::Partial, _) => "partial",
            (EntryKind::Ledger, _) => "ledger",
            (EntryKind::Frames, _) => "stream",
            (EntryKind::Keeper, _) => "keeper",
            (EntryKind::Cache, _) => "cache",
            (EntryKind::Draft, _) => "draft",
            _ => "other",
        };
        let mut is_damaged = matches!(found, Found::Damaged(_));
        let (mut counted, mut counted_error, mut arena, mut description) = (None, None, None, None);
        match found {
            Found::Counted(found) => counted = Some(CountedReport::new(&found)),
            Found::Arena(found) => arena = Some(ArenaReport::new(&found)),
            Found::Plain(found) => description = found.as_ref().map(DescriptionReport::from),
            Found::Damaged(error) | Found::Unknown(error) => counted_error = Some(Failure::from(error).to_string()),
            _ => {}
        }
        let (mut stream, mut stream_error) = (None, None);
        if let (EntryKind::Frames, Some(location)) = (entry.kind, entry.location()) {
            match stream::inspect(backend, &location) {
                Ok(found) => stream = Some(StreamReport::new(found)),
                Err(error) if error.kind == ErrorKind::NotFound => {} // it has just been removed
                Err(error) => {
                    is_damaged = matches!(error.kind, ErrorKind::Trailer { .. });
                    stream_error = Some(Failure::from(error).to_string());
                }
            }
        }
        let (mut cache, mut cache_error) = (None, None);
        // Before it is opened, which attaches this process for a moment.
        let attached_to_cache = match (entry.kind, entry.location()) {
            (EntryKind::Cache, Some(location)) => {
                let attached = ndarray_shm::cache::attached(backend, &location).ok();
                match CacheReport::of(backend, &location) {
                    Ok(found) => cache = Some(found),
                    Err(failure) => cache_error = Some(failure.to_string()),
                }
                attached
            }
            _ => None,
        };
        let attached = match (&counted, &arena, entry.kind) {
            (Some(counted), ..) => Some(counted.attached),
            (_, Some(arena), _) => Some(arena.attached),
            (.., EntryKind::Frames) => stream.as_ref().and_then(|stream| stream.has_writer),
            (.., EntryKind::Cache) => attached_to_cache,
            // A keeper and a draft are no arrays to attach to.
            (.., EntryKind::Keeper) => None,
            _ => places::attached(backend, entry),
        };
        let age = SystemTime::now().duration_since(entry.modified).unwrap_or(Duration::ZERO);
        Self {
            name: entry.location().map_or_else(|| entry.name.clone(), String::from),
            backend: backend.name().to_owned(),
            path: backend.path().join(&entry.name).display().to_string(),
            kind,
            size: entry.len,
            allocated: entry.allocated,
            attached,
            age_seconds: age.as_secs(),
            owner,
            owner_name: owner.and_then(host::user_name),
            mode: host::FILES_HAVE_OWNERS.then(|| format!("{:04o}", entry.mode & 0o7777)),
            chunks_done: ledger.as_ref().map(|ledger| ledger.done),
            chunks_total: ledger.as_ref().map(|ledger| ledger.total),
            counted,
            counted_error,
            description,
            arena,
            stream,
            stream_error,
            cache,
            cache_error,
            is_half: false,
            is_damaged,
        }
    }

    /// Returns the owner's name, else number; `None` on platforms without owners.
    pub(crate) fn owner(&self) -> Option<String> {
        self.owner_name.clone().or_else(|| self.owner.map(|owner| owner.to_string()))
    }

    /// Returns in one word whether a process is attached.
    pub(crate) fn attached(&self) -> &'static str {
        match self.attached {
            Some(true) => "yes",
            Some(false) => "no",
            None => "unknown",
        }
    }

    /// Returns its age with a unit.
    pub(crate) fn age(&self) -> String {
        units::age(Duration::from_secs(self.age_seconds))
    }

    /// Returns its users: the number of handles or members, a stream's writer, else whether a process is attached.
    pub(crate) fn users(&self) -> String {
        match (&self.counted, &self.arena, &self.stream) {
            (Some(counted), ..) => counted.users(),
            (_, Some(arena), _) => arena.users(),
            (.., Some(stream)) => stream.users(),
            _ => self.attached().to_owned(),
        }
    }

    /// Returns what it is, for a table.
    pub(crate) fn state(&self) -> String {
        if let Some(counted) = &self.counted {
            return counted.summary();
        }
        if let Some(arena) = &self.arena {
            return arena.summary();
        }
        if let Some(stream) = &self.stream {
            return stream.summary() + if self.is_half { ", without keeper" } else { "" };
        }
        if let Some(cache) = &self.cache {
            return cache.summary();
        }
        if let Some(description) = self.description.as_ref().filter(|_| self.kind == "array") {
            return description.summary();
        }
        match (self.chunks_done, self.chunks_total) {
            _ if self.is_damaged => format!("{}, damaged", self.kind),
            _ if self.is_half && self.kind == "ledger" => "ledger without renderbuffer".to_owned(),
            _ if self.is_half && self.kind == "keeper" => "keeper without stream".to_owned(),
            _ if self.is_half && self.kind == "stream" => "stream without keeper".to_owned(),
            _ if self.is_half => format!("{} without ledger", self.kind),
            _ if self.kind == "lock" => "lock of uploads".to_owned(),
            (Some(done), Some(total)) => format!("{}, {done} of {total} chunks", self.kind),
            _ => self.kind.to_owned(),
        }
    }
}
