//! `ndshm gc`: removes orphans and other files that dead processes left, and reports why the other arrays stay.
//!
//! The library decides what is removed. The other arrays are inspected afterwards, only for the report; they may have
//! changed by then.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use ndarray_shm::backend::{DirectoryEntry, EntryKind};
use ndarray_shm::counted::{Reclaim, Removed, RemovedKind};
use ndarray_shm::{Directory, Error, ErrorKind, cache};
use ndarray_shm_volume::{Found, LeftoverKind, reclaim};
use serde::Serialize;

use crate::args::GcArgs;
use crate::arrays::places;
use crate::commands::foreign;
use crate::exit::{Exit, Failure};
use crate::machine::host;
use crate::show::{report, units};

/// The result of a run, as `gc --json` prints it.
#[derive(Debug, Default, Serialize)]
struct GcReport {
    dry_run: bool,
    /// Files that were removed, or would be without `--dry-run`.
    removed: Vec<RemovedFile>,
    /// Bytes of all removed files.
    bytes: u64,
    /// Counted arrays, arenas and caches that a process is attached to.
    in_use: usize,
    /// Counted arrays, arenas and caches that are kept although no process is attached.
    kept: usize,
    /// Counted arrays that are kept only by handles in flight.
    in_flight: usize,
    /// Seconds until the first of these loses its protection; `null` if there is none.
    protected_seconds: Option<u64>,
    /// Orphaned arrays and arenas that are too young for `--older-than`.
    young: usize,
    /// Other users' files that could not be inspected or removed.
    skipped: Vec<Refusal>,
    /// All other files that could not be inspected or removed.
    failed: Vec<Refusal>,
}

#[derive(Debug, Serialize)]
struct RemovedFile {
    name: String,
    backend: String,
    path: String,
    /// "counted", "arena", "counters", "partial" (a renderbuffer without its ledger), "ledger" (a ledger without its
    /// renderbuffer), "frames" (of a stream without its keeper), "keeper" (of a stream without its frames), "cache",
    /// "draft", "lock" or "download" (what a killed download without a name had painted).
    kind: &'static str,
    /// Bytes of memory or disk that it occupied.
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Refusal {
    name: String,
    backend: String,
    path: String,
    /// User id of the owner; `null` where files have no owner.
    owner: Option<u32>,
    error: String,
}

/// Runs `ndshm gc`.
pub(crate) fn run(args: &GcArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    if args.foreign || args.entrypoint {
        return foreign::remove(args, out);
    }
    if args.user.is_some() {
        let failure = Failure::new(Exit::Usage, "--user needs --foreign or --entrypoint");
        return Err(failure.advice("leave it out: root removes the orphans of all users"));
    }
    let mut gc = GcReport { dry_run: args.dry_run, ..GcReport::default() };
    let mut exit = Exit::Done;
    for backend in places::existing(args.backend)? {
        if let Err(failure) = gc.reclaim(&backend, args) {
            exit = Exit::Failed;
            failure.while_doing(format!("not inspected: {}", backend.path().display())).print(&mut io::stderr());
        }
    }
    gc.bytes = gc.removed.iter().map(|gone| gone.bytes).sum();
    if !gc.failed.is_empty() {
        exit = Exit::Failed;
    }
    if args.output.json {
        report::json(out, &gc)?;
    } else {
        gc.write(args, out)?;
    }
    Ok(exit)
}

impl GcReport {
    /// Reclaims the orphans of one directory and reports the rest.
    fn reclaim(&mut self, backend: &Directory, args: &GcArgs) -> Result<(), Failure> {
        let owners: HashMap<String, u32> = backend.list()?.into_iter().map(|entry| (entry.name, entry.owner)).collect();
        let owner_of = |name: &str| owners.get(name).copied().filter(|_| host::FILES_HAVE_OWNERS);
        let older_than = args.older_than.unwrap_or_default();
        let options = Reclaim::new().dry_run(args.dry_run).in_flight(args.in_flight).caches(args.caches);
        let options = options.older_than(older_than);
        let cleared = reclaim(options, backend)?;
        for Removed { name, bytes, kind, .. } in cleared.reclaimed.removed {
            let path = backend.path().join(&name).display().to_string();
            let owner = owner_of(&name);
            if args.dry_run && !may_remove(owner) {
                let error = "it belongs to another user".to_owned();
                self.skipped.push(Refusal { name, backend: backend.name().to_owned(), path, owner, error });
                continue;
            }
            let kind = match kind {
                RemovedKind::Arena => "arena",
                RemovedKind::Counters => "counters",
                RemovedKind::Draft => "draft",
                RemovedKind::Payload => "partial",
                RemovedKind::Ledger => "ledger",
                RemovedKind::Frames => "frames",
                RemovedKind::Keeper => "keeper",
                RemovedKind::Cache => "cache",
                _ => "counted",
            };
            self.removed.push(RemovedFile { name, backend: backend.name().to_owned(), path, kind, bytes });
        }
        for leftover in cleared.leftovers {
            self.removed.push(RemovedFile {
                path: backend.path().join(&leftover.name).display().to_string(),
                name: leftover.name,
                backend: backend.name().to_owned(),
                kind: if leftover.kind == LeftoverKind::UploadLock { "lock" } else { "download" },
                bytes: leftover.bytes,
            });
        }
        for (name, error) in cleared.reclaimed.failed.into_iter().chain(cleared.failed) {
            self.refuse(backend, owner_of(&name), name, error);
        }
        self.look_at_the_rest(backend, args)
    }

    /// Records a file that could not be inspected or removed. It is a failure only if the file belongs to this user.
    fn refuse(&mut self, backend: &Directory, owner: Option<u32>, name: String, error: Error) {
        let path = backend.path().join(&name).display().to_string();
        let is_damaged = matches!(error.kind, ErrorKind::Trailer { .. });
        let mut failure = Failure::from(error);
        let error = failure.to_string();
        let is_ours = owner == host::user();
        if is_ours {
            if is_damaged {
                let cache = name
                    .strip_prefix(".ndshm-cache-")
                    .map(|cache| format!("`ndshm unlink --cache {cache}` removes it"));
                let array = || format!("`ndshm info {name}` shows it, `ndshm unlink {name}` removes it");
                failure = failure.advice(cache.unwrap_or_else(array));
            }
            failure.while_doing(format!("not removed: {}", units::printable(&path))).print(&mut io::stderr());
        }
        let refusal = Refusal { name, backend: backend.name().to_owned(), path, owner, error };
        if is_ours { self.failed.push(refusal) } else { self.skipped.push(refusal) }
    }

    /// Counts the arrays, arenas and caches that stay, by the reason.
    fn look_at_the_rest(&mut self, backend: &Directory, args: &GcArgs) -> Result<(), Failure> {
        let older_than = args.older_than.unwrap_or_default();
        for entry in backend.list()? {
            if entry.kind == EntryKind::Cache {
                if self.removed.iter().any(|gone| gone.name == entry.name && gone.backend == backend.name()) {
                    continue; // a dry run leaves it
                }
                if let Some(is_attached) =
                    entry.location().and_then(|location| cache::attached(backend, &location).ok())
                {
                    *(if is_attached { &mut self.in_use } else { &mut self.kept }) += 1;
                }
                continue;
            }
            let counted = match Found::at(backend, &entry) {
                Found::Counted(counted) => counted,
                Found::Arena(arena) => {
                    self.in_use += usize::from(arena.is_attached);
                    self.kept += usize::from(!arena.is_attached && arena.is_kept);
                    self.young += usize::from(arena.is_orphaned() && age(&entry) < older_than);
                    continue;
                }
                _ => continue,
            };
            if counted.is_attached {
                self.in_use += 1;
            } else if counted.is_kept {
                self.kept += 1;
            } else if counted.in_flight > 0 && !args.in_flight {
                self.in_flight += 1;
                let left = units::seconds_left(counted.protected_for);
                self.protected_seconds = Some(self.protected_seconds.map_or(left, |first| first.min(left)));
            } else if age(&entry) < older_than {
                self.young += 1;
            }
        }
        Ok(())
    }

    /// Writes the report as text.
    fn write(&self, args: &GcArgs, out: &mut dyn Write) -> Result<(), Failure> {
        let done = if self.dry_run { "would remove" } else { "removed" };
        for RemovedFile { name, backend, kind, bytes, .. } in &self.removed {
            let what = match *kind {
                "arena" => ", an arena",
                "counters" => ", counters",
                "draft" => ", a draft",
                "partial" => ", a renderbuffer without ledger",
                "ledger" => ", a ledger without renderbuffer",
                "frames" => ", frames of a stream without keeper",
                "keeper" => ", a keeper without stream",
                "cache" => ", a cache of chunks",
                "lock" => ", a lock of uploads",
                "download" => ", a download without a name",
                _ => "",
            };
            writeln!(out, "{done} {} ({backend}{what}, {})", units::printable(name), units::size(*bytes))?;
        }
        match self.removed.len() {
            0 => writeln!(out, "nothing to remove")?,
            count => writeln!(out, "{done} {}, {}", units::count(count, "name"), units::size(self.bytes))?,
        }
        let first = units::left(Duration::from_secs(self.protected_seconds.unwrap_or(0)));
        let age = units::left(args.older_than.unwrap_or_default());
        let stay: Vec<String> = [
            (self.in_use, "in use".to_owned()),
            (self.kept, "kept".to_owned()),
            (self.in_flight, format!("protected by handles in flight (the first for {first} more)")),
            (self.young, format!("orphaned, but younger than {age}")),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, why)| format!("{count} {why}"))
        .collect();
        if !stay.is_empty() {
            writeln!(out, "counted arrays, arenas and caches that stay: {}", stay.join(", "))?;
        }
        if !self.skipped.is_empty() {
            let files = units::count(self.skipped.len(), "file");
            writeln!(out, "{files} of other users could not be inspected or removed: only their owners can")?;
        }
        if !self.failed.is_empty() {
            writeln!(out, "{} could not be inspected or removed", units::count(self.failed.len(), "file"))?;
        }
        Ok(())
    }
}

fn age(entry: &DirectoryEntry) -> Duration {
    SystemTime::now().duration_since(entry.modified).unwrap_or_default()
}

/// Whether this user may remove a file: in a shared directory such as /dev/shm only its owner and the superuser may.
fn may_remove(owner: Option<u32>) -> bool {
    let user = host::user();
    owner == user || user == Some(0)
}
