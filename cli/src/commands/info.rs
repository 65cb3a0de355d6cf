//! `ndshm info`: all known facts about one name.

use std::io::Write;
use std::path::Path;

use ndarray_shm::Location;
use ndarray_shm::array::Description;
use ndarray_shm::backend::{DirectoryEntry, EntryKind};
use ndarray_shm::render::{self, Ledger};
use ndarray_shm_volume::{VolumeNotes, VolumeUrl};
use serde::Serialize;

use super::scales;
use crate::args::{InfoArgs, InfoSubject};
use crate::arrays::cache::CacheReport;
use crate::arrays::description::DescriptionReport;
use crate::arrays::item::Item;
use crate::arrays::places::{self, NameMatch, Search};
use crate::arrays::typed::named_axes;
use crate::exit::{Exit, Failure};
use crate::machine::holders::Holders;
use crate::show::{report, units};

/// A name, as `info --json` prints it.
#[derive(Debug, Serialize)]
struct InfoReport {
    name: String,
    backend: String,
    /// The array with this name, or `null`.
    array: Option<ArrayInfo>,
    /// The renderbuffer that gets this name when it is finished, or `null`.
    partial: Option<PartialInfo>,
    /// The stream with this name, or `null`: it is shown only if there is no array, or if it is asked for.
    stream: Option<StreamInfo>,
    /// The cache with this name, or `null`: it is shown only if nothing else has the name.
    cache: Option<CacheInfo>,
}

#[derive(Debug, Serialize)]
struct CacheInfo {
    #[serde(flatten)]
    item: Item,
    #[serde(flatten)]
    holders: Holders,
}

#[derive(Debug, Serialize)]
struct ArrayInfo {
    #[serde(flatten)]
    item: Item,
    /// Whether fewer bytes of memory or disk are allocated than it has.
    sparse: bool,
    #[serde(flatten)]
    holders: Holders,
}

#[derive(Debug, Serialize)]
struct PartialInfo {
    #[serde(flatten)]
    item: Item,
    /// Facts from the ledger; `null` if it cannot be read.
    ledger: Option<LedgerInfo>,
    /// Why the ledger cannot be read, or `null`.
    ledger_error: Option<String>,
    #[serde(flatten)]
    holders: Holders,
}

#[derive(Debug, Serialize)]
struct StreamInfo {
    #[serde(flatten)]
    item: Item,
    #[serde(flatten)]
    holders: Holders,
}

#[derive(Debug, Serialize)]
struct LedgerInfo {
    /// The element type as `NumPy` writes it: "<u2".
    dtype: String,
    /// "C" or "F".
    order: String,
    shape: Vec<usize>,
    /// A word for each axis, its name or its number; empty if no axis has a name.
    axes: Vec<String>,
    chunk_shape: Vec<usize>,
    /// Elements of the first chunk that lie before the array, for each axis.
    chunk_offset: Vec<usize>,
    chunks_done: usize,
    chunks_total: usize,
    /// Identity of what is painted, as the program that paints writes it.
    fingerprint: String,
}

impl LedgerInfo {
    fn new(ledger: Ledger, said: Option<&Description>) -> Self {
        let notes = said.map(|said| VolumeNotes::read(said, &ledger.shape)).unwrap_or_default();
        Self {
            axes: named_axes(&notes),
            dtype: ledger.dtype.to_string(),
            order: ledger.order.to_string(),
            shape: ledger.shape,
            chunk_shape: ledger.chunk_shape,
            chunk_offset: ledger.chunk_offset,
            chunks_done: ledger.done,
            chunks_total: ledger.total,
            fingerprint: ledger.fingerprint,
        }
    }
}

/// Runs `ndshm info`.
pub(crate) fn run(args: &InfoArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let location = match &args.subject {
        InfoSubject::Volume(url) => return scales::run(url, args.output.json, out),
        InfoSubject::Name(location) => location,
    };
    let found = match find(location, args) {
        Ok(found) => found,
        // `download` takes such a text for a volume too.
        Err(failure) if failure.exit() == Exit::NotFound && !args.stream && Path::new(location.as_str()).is_dir() => {
            let url = VolumeUrl::local(Path::new(".").join(location.as_str()));
            return scales::run(&url, args.output.json, out).map_err(|no_volume| {
                failure.advice(format!(
                    "there is a directory of this name, but it cannot be shown as a volume: {no_volume}"
                ))
            });
        }
        Err(failure) if failure.exit() == Exit::NotFound && !args.stream => {
            return Err(failure.advice_too("there is no directory of this name either, which could be a volume"));
        }
        Err(failure) => return Err(failure),
    };
    let backend = &found.backend;
    let holders = |entry: &DirectoryEntry| Holders::of(&backend.path().join(&entry.name), entry.id);
    let is_stream = args.stream || (found.array.is_none() && found.partial.is_none());
    let info = InfoReport {
        name: location.to_string(),
        backend: backend.name().to_owned(),
        array: found.array.as_ref().filter(|_| !is_stream).map(|entry| ArrayInfo {
            item: Item::new(backend, entry),
            sparse: entry.allocated < entry.len,
            holders: holders(entry),
        }),
        partial: found.partial.as_ref().filter(|_| !is_stream).map(|entry| {
            let (ledger, ledger_error) = match places::ledger(backend, entry) {
                Ok(ledger) => {
                    let said = render::description(backend, location).ok().flatten(); // it only names axes
                    (Some(LedgerInfo::new(ledger, said.as_ref())), None)
                }
                Err(failure) => (None, Some(failure.to_string())),
            };
            PartialInfo { item: Item::new(backend, entry), ledger, ledger_error, holders: holders(entry) }
        }),
        stream: found.frames.as_ref().filter(|_| is_stream).map(|entry| {
            let item = Item { is_half: found.keeper.is_none(), ..Item::new(backend, entry) };
            StreamInfo { item, holders: holders(entry) }
        }),
        cache: found
            .cache
            .as_ref()
            .filter(|_| found.array.is_none() && found.partial.is_none() && found.frames.is_none())
            .map(|entry| CacheInfo { item: Item::new(backend, entry), holders: holders(entry) }),
    };
    if args.output.json {
        report::json(out, &info)?;
    } else {
        write(&info, out)?;
        if found.frames.is_some() && !is_stream {
            writeln!(out, "  there is also a stream of this name: `ndshm info --stream {location}` shows it")?;
        }
    }
    Ok(Exit::Done)
}

/// Finds the array or the renderbuffer of a name, else its stream.
fn find(location: &Location, args: &InfoArgs) -> Result<NameMatch, Failure> {
    let search = Search::new(args.backend)?;
    if args.stream {
        return search.find(location, &[EntryKind::Frames]);
    }
    match search.find(location, &[EntryKind::Array, EntryKind::Partial]) {
        Err(failure) if failure.exit() == Exit::NotFound => {
            search.find(location, &[EntryKind::Frames, EntryKind::Array, EntryKind::Partial, EntryKind::Cache])
        }
        other => other,
    }
}

fn write(info: &InfoReport, out: &mut dyn Write) -> Result<(), Failure> {
    if let Some(array) = &info.array {
        let item = &array.item;
        let what = match (&item.counted, &item.arena, &item.counted_error) {
            (Some(_), ..) => "a counted array",
            (_, Some(arena), _) if arena.is_counters => "counters of loans",
            (_, Some(_), _) => "an arena",
            (.., Some(_)) if item.is_damaged => "a counted array with a damaged trailer",
            _ if item.kind == "lock" => "a lock of uploads",
            _ if item.kind == "semaphore" => "a semaphore of the C library",
            (.., Some(_)) => "an array, or another program's file (its bytes cannot be read)",
            _ if item.description.is_some() => "an array",
            _ => "an array, or another program's file (it has no description: `ndshm describe` writes one)",
        };
        writeln!(out, "{}: {what}", info.name)?;
        let mut facts = facts(item);
        facts.insert(2, ("allocated".to_owned(), room(item, array.sparse)));
        let owned =
            |facts: Vec<(&'static str, String)>| facts.into_iter().map(|(label, fact)| (label.to_owned(), fact));
        facts.extend(item.description.iter().flat_map(DescriptionReport::facts));
        facts.extend(item.counted.iter().flat_map(|counted| owned(counted.facts())));
        facts.extend(item.arena.iter().flat_map(|arena| owned(arena.facts())));
        facts.extend(item.counted_error.iter().map(|error| ("error".to_owned(), error.clone())));
        facts.push(("holders".to_owned(), array.holders.describe()));
        report::facts(out, &facts)?;
    }
    if let Some(partial) = &info.partial {
        writeln!(out, "{}: a renderbuffer that is not finished", info.name)?;
        let mut facts = facts(&partial.item);
        match (&partial.ledger, &partial.ledger_error) {
            (Some(ledger), _) => {
                facts.extend(ledger_facts(ledger).into_iter().map(|(label, fact)| (label.to_owned(), fact)));
            }
            (None, error) => {
                facts.push(("ledger".to_owned(), error.clone().unwrap_or_else(|| "unknown".to_owned())));
            }
        }
        facts.push(("holders".to_owned(), partial.holders.describe()));
        report::facts(out, &facts)?;
        let name = &info.name;
        writeln!(out, "  the same `download` command resumes it; `ndshm unlink --partial {name}` removes it")?;
    }
    if let Some(StreamInfo { item, holders }) = &info.stream {
        let what = match (item.is_damaged, item.is_half) {
            (true, _) => "a stream with a damaged trailer",
            (_, true) => "a stream without keeper: no process can become its writer",
            _ => "a stream of frames",
        };
        writeln!(out, "{}: {what}", info.name)?;
        let mut facts = facts(item);
        facts.retain(|(label, _)| label != "attached"); // the writer's line says more
        facts.extend(item.stream.iter().flat_map(|stream| stream.facts(&info.name)));
        facts.extend(item.stream_error.iter().map(|error| ("error".to_owned(), error.clone())));
        facts.push(("holders".to_owned(), holders.describe()));
        report::facts(out, &facts)?;
    }
    if let Some(CacheInfo { item, holders }) = &info.cache {
        writeln!(out, "{}: a cache of chunks", info.name)?;
        let mut facts = facts(item);
        facts.insert(2, ("allocated".to_owned(), units::size(item.allocated)));
        facts.extend(item.cache.iter().flat_map(CacheReport::facts));
        facts.extend(item.cache_error.iter().map(|error| ("error".to_owned(), error.clone())));
        facts.push(("holders".to_owned(), holders.describe()));
        report::facts(out, &facts)?;
    }
    Ok(())
}

fn facts(item: &Item) -> Vec<(String, String)> {
    let mut facts = vec![
        ("path", format!("{} ({})", units::printable(&item.path), item.backend)),
        ("size", format!("{} ({} bytes)", units::size(item.size), item.size)),
        ("attached", item.attached().to_owned()),
        ("age", item.age()),
    ];
    if let (Some(owner), Some(mode)) = (item.owner(), &item.mode) {
        facts.push(("owner", format!("{owner}, mode {mode}")));
    }
    facts.into_iter().map(|(label, fact)| (label.to_owned(), fact)).collect()
}

fn room(item: &Item, sparse: bool) -> String {
    if sparse {
        format!("{}: sparse, writing may run out of space", units::size(item.allocated))
    } else {
        "all of it".to_owned()
    }
}

fn ledger_facts(ledger: &LedgerInfo) -> Vec<(&'static str, String)> {
    let LedgerInfo { chunks_done: done, chunks_total: total, .. } = ledger;
    vec![
        ("dtype", ledger.dtype.clone()),
        ("shape", units::named_shape_in_order(&ledger.shape, &ledger.axes, &ledger.order)),
        ("chunk shape", units::shape(&ledger.chunk_shape)),
        ("painted", format!("{done} of {}", units::count(*total, "chunk"))),
        ("fingerprint", units::printable(&ledger.fingerprint)),
    ]
}
