//! `ndshm ls`: what lives in shared memory, real and emulated.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ndarray_shm::{Backend, Entry, EntryKind};
use serde::Serialize;

use crate::cli::ListArgs;
use crate::exit::{Exit, Failure};
use crate::report::{self, Column, Table};
use crate::{host, places, units};

/// One file, as `ls --json` and `info --json` print it.
#[derive(Debug, Serialize)]
pub(crate) struct Item {
    /// The public name; for drafts, which have none, the file's.
    pub(crate) name: String,
    pub(crate) backend: String,
    pub(crate) path: String,
    /// "array", "partial" (a renderbuffer that is not finished), "ledger" or "draft".
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
}

impl Item {
    /// Gathers what is known about an entry.
    pub(crate) fn new(backend: &Arc<dyn Backend>, entry: &Entry) -> Self {
        let ledger = (entry.kind == EntryKind::Partial).then(|| places::ledger(backend, entry)).and_then(Result::ok);
        let owner = host::FILES_HAVE_OWNERS.then_some(entry.owner);
        let age = SystemTime::now().duration_since(entry.modified).unwrap_or(Duration::ZERO);
        Self {
            name: entry.location().map_or_else(|| entry.name.clone(), String::from),
            backend: backend.name().to_owned(),
            path: display(&backend.directory().join(&entry.name)),
            kind: match entry.kind {
                EntryKind::Array => "array",
                EntryKind::Partial => "partial",
                EntryKind::Ledger => "ledger",
                EntryKind::Draft => "draft",
                _ => "other",
            },
            size: entry.len,
            allocated: entry.allocated,
            attached: places::attached(backend, entry),
            age_seconds: age.as_secs(),
            owner,
            owner_name: owner.and_then(host::user_name),
            mode: host::FILES_HAVE_OWNERS.then(|| format!("{:04o}", entry.mode & 0o7777)),
            chunks_done: ledger.as_ref().map(|ledger| ledger.done),
            chunks_total: ledger.as_ref().map(|ledger| ledger.total),
        }
    }

    /// The owner's name, or number where it has none; `None` where files have no owners.
    pub(crate) fn owner(&self) -> Option<String> {
        self.owner_name.clone().or_else(|| self.owner.map(|owner| owner.to_string()))
    }

    /// Whether somebody is attached, in a word.
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

    fn state(&self) -> String {
        match (self.chunks_done, self.chunks_total) {
            (Some(done), Some(total)) => format!("{}, {done} of {total} chunks", self.kind),
            _ => self.kind.to_owned(),
        }
    }
}

/// Runs `ndshm ls`.
pub(crate) fn run(args: &ListArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let mut items = Vec::new();
    for backend in places::existing(args.backend)? {
        let entries = backend.list()?;
        let shown =
            entries.iter().filter(|entry| args.all || matches!(entry.kind, EntryKind::Array | EntryKind::Partial));
        items.extend(shown.map(|entry| Item::new(&backend, entry)));
    }
    if args.json {
        report::json(out, &items)?;
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&[
        Column::Left("NAME"),
        Column::Right("SIZE"),
        Column::Left("ATTACHED"),
        Column::Right("AGE"),
        Column::Left("OWNER"),
        Column::Left("BACKEND"),
        Column::Left("STATE"),
    ]);
    for item in &items {
        table.row([
            units::printable(&item.name),
            units::size(item.size),
            item.attached().to_owned(),
            item.age(),
            item.owner().unwrap_or_else(|| "-".to_owned()),
            item.backend.clone(),
            item.state(),
        ]);
    }
    if table.is_empty() {
        writeln!(out, "no arrays")?;
    } else {
        table.write(out)?;
    }
    Ok(Exit::Done)
}

/// Writes a path as text; bytes that are not UTF-8 become replacement characters.
pub(crate) fn display(path: &Path) -> String {
    path.display().to_string()
}
