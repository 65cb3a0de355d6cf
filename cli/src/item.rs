//! What is known about one file in shared memory, as `ls` and `info` tell it.

use ndarray_shm::Directory;
use std::time::{Duration, SystemTime};

use ndarray_shm::backend::{DirectoryEntry, EntryKind};
use serde::Serialize;

use crate::arena::ArenaReport;
use crate::counted::{CountedReport, Look};
use crate::describe::DescriptionReport;
use crate::{host, places, units};

/// One file, as `ls --json` and `info --json` print it.
#[derive(Debug, Serialize)]
pub(crate) struct Item {
    /// The public name; for drafts, which have none, the file's.
    pub(crate) name: String,
    pub(crate) backend: String,
    pub(crate) path: String,
    /// "array", "counted", "arena", "counters", "partial" (a renderbuffer that is not finished), "ledger", "draft", or "lock" (what
    /// uploads lock).
    pub(crate) kind: &'static str,
    /// Length in bytes.
    pub(crate) size: u64,
    /// Bytes for which room is taken.
    pub(crate) allocated: u64,
    /// Whether some process has it mapped; `null` where this user may not ask.
    pub(crate) attached: Option<bool>,
    /// Seconds since it was made or last changed by other means than a mapping.
    pub(crate) age_seconds: u64,
    /// Number of the owner; `null` where files have none.
    pub(crate) owner: Option<u32>,
    pub(crate) owner_name: Option<String>,
    /// Permission bits in octal; `null` where files have none.
    pub(crate) mode: Option<String>,
    /// Of a renderbuffer that is not finished; `null` for everything else.
    pub(crate) chunks_done: Option<usize>,
    pub(crate) chunks_total: Option<usize>,
    /// What a counted array says about itself; `null` for everything else, and if it cannot be read.
    pub(crate) counted: Option<CountedReport>,
    /// Why it cannot.
    pub(crate) counted_error: Option<String>,
    /// What a plain array says about itself; `null` for everything else, and if it says nothing that could be true.
    pub(crate) description: Option<DescriptionReport>,
    /// Of an arena, or counters; `null` for everything else.
    pub(crate) arena: Option<ArenaReport>,
    /// Whether it is one of the two files of a renderbuffer, without the other.
    #[serde(skip)]
    pub(crate) is_half: bool,
}

impl Item {
    /// Gathers what is known about an entry.
    pub(crate) fn new(backend: &Directory, entry: &DirectoryEntry) -> Self {
        let ledger = (entry.kind == EntryKind::Partial).then(|| places::ledger(backend, entry)).and_then(Result::ok);
        let owner = host::FILES_HAVE_OWNERS.then_some(entry.owner);
        let look = Look::at(backend, entry);
        let kind = match (entry.kind, &look) {
            (EntryKind::Array, Look::Counted(_) | Look::Damaged(_)) => "counted",
            (EntryKind::Array, Look::Arena(arena)) => arena.kind(),
            (EntryKind::Array, _) if places::is_lock(entry) => "lock",
            (EntryKind::Array, _) => "array",
            (EntryKind::Partial, _) => "partial",
            (EntryKind::Ledger, _) => "ledger",
            (EntryKind::Draft, _) => "draft",
            _ => "other",
        };
        let (mut counted, mut counted_error, mut arena, mut description) = (None, None, None, None);
        match look {
            Look::Counted(found) => counted = Some(*found),
            Look::Arena(found) => arena = Some(*found),
            Look::Plain(found) => description = found.as_ref().map(DescriptionReport::from),
            Look::Damaged(error) | Look::Unknown(error) => counted_error = Some(error),
            Look::Other => {}
        }
        let attached = match (&counted, &arena) {
            (Some(counted), _) => Some(counted.attached),
            (_, Some(arena)) => Some(arena.attached),
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
            is_half: false,
        }
    }

    /// The owner's name, or number where it has none; `None` where files have no owners.
    pub(crate) fn owner(&self) -> Option<String> {
        self.owner_name.clone().or_else(|| self.owner.map(|owner| owner.to_string()))
    }

    /// Whether a process is attached, in a word.
    pub(crate) fn attached(&self) -> &'static str {
        match self.attached {
            Some(true) => "yes",
            Some(false) => "no",
            None => "unknown",
        }
    }

    /// How old it is, in a word or two.
    pub(crate) fn age(&self) -> String {
        units::age(Duration::from_secs(self.age_seconds))
    }

    /// Whether what it says about itself cannot be true.
    pub(crate) fn is_damaged(&self) -> bool {
        self.kind == "counted" && self.counted.is_none()
    }

    /// How many handles it has, where they are counted; else whether a process is attached.
    pub(crate) fn users(&self) -> String {
        match (&self.counted, &self.arena) {
            (Some(counted), _) => counted.users(),
            (_, Some(arena)) => arena.users(),
            _ => self.attached().to_owned(),
        }
    }

    /// What it is, and what is special about it.
    pub(crate) fn state(&self) -> String {
        if let Some(counted) = &self.counted {
            return counted.summary();
        }
        if let Some(arena) = &self.arena {
            return arena.summary();
        }
        if let Some(description) = self.description.as_ref().filter(|_| self.kind == "array") {
            return description.summary();
        }
        match (self.chunks_done, self.chunks_total) {
            _ if self.is_damaged() => format!("{}, damaged", self.kind),
            _ if self.is_half && self.kind == "ledger" => "ledger without renderbuffer".to_owned(),
            _ if self.is_half => format!("{} without ledger", self.kind),
            _ if self.kind == "lock" => "lock of uploads".to_owned(),
            (Some(done), Some(total)) => format!("{}, {done} of {total} chunks", self.kind),
            _ => self.kind.to_owned(),
        }
    }
}
