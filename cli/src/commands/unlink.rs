//! `ndshm unlink`: removes names, and reports each.

use std::io::{self, Write};

use ndarray_shm::backend::EntryKind;
use ndarray_shm::{ErrorKind, Location, cache, render, stream};
use ndarray_shm_volume::Found;
use serde::Serialize;

use crate::args::UnlinkArgs;
use crate::arrays::places::{self, NameMatch, Search};
use crate::exit::{Exit, Failure};
use crate::show::{report, units};

/// The result for one name, as `unlink --json` prints it.
#[derive(Debug, Serialize)]
struct UnlinkReport {
    name: String,
    /// Whether the name existed and was removed.
    unlinked: bool,
    backend: Option<String>,
    /// The cursor of the stream that was to be removed instead of the name; `null` without `--cursor`.
    cursor: Option<String>,
    /// Whether a process was attached, which keeps the memory until it detaches; of a stream, whether its writer lives;
    /// `null` if unknown.
    attached: Option<bool>,
    /// Handles in flight of a counted array, which can no longer be attached; `null` for everything else.
    in_flight: Option<usize>,
    /// Why the name was not removed, or `null`.
    error: Option<String>,
}

/// Runs `ndshm unlink`.
///
/// Tries every name. The exit code is that of the worst result: a failure, else a name that was not found.
pub(crate) fn run(args: &UnlinkArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let search = Search::new(args.backend)?;
    let mut exit = Exit::Done;
    let mut outcomes = Vec::new();
    for location in &args.locations {
        let outcome = match remove(&search, location, args) {
            Ok(outcome) => outcome,
            Err(failure) => {
                if exit != Exit::Failed {
                    exit = failure.exit();
                }
                failure.print(&mut io::stderr());
                UnlinkReport {
                    name: location.to_string(),
                    unlinked: false,
                    backend: None,
                    cursor: args.cursor.clone(),
                    attached: None,
                    in_flight: None,
                    error: Some(failure.to_string()),
                }
            }
        };
        if !args.output.json && outcome.unlinked {
            let attached = match outcome.attached {
                Some(true) if args.cursor.is_some() => "",
                Some(true) if args.stream => " (its writer goes on, but no process finds it any more)",
                Some(true) if args.partial => " (processes were painting it: they will stop with an error)",
                Some(true) => " (still attached: the memory is freed when the last process detaches)",
                _ => "",
            };
            let cursor = args.cursor.as_deref().map(|cursor| format!("the cursor `{}` of ", units::printable(cursor)));
            writeln!(out, "unlinked {}{location}{attached}", cursor.unwrap_or_default())?;
            if let Some(count @ 1..) = outcome.in_flight {
                writeln!(out, "{} in flight can no longer be attached", units::count(count, "handle"))?;
            }
        }
        outcomes.push(outcome);
    }
    if args.output.json {
        report::json(out, &outcomes)?;
    }
    Ok(exit)
}

/// Removes one name, or a cursor of the stream of that name.
fn remove(search: &Search, location: &Location, args: &UnlinkArgs) -> Result<UnlinkReport, Failure> {
    let wanted: &[EntryKind] = match (args.partial, args.stream) {
        _ if args.cache => &[EntryKind::Cache],
        (true, _) => &[EntryKind::Partial],
        (_, true) => &[EntryKind::Frames, EntryKind::Keeper],
        _ => &[EntryKind::Array],
    };
    let found = search.find(location, wanted).map_err(|failure| match other(search, location, wanted) {
        Some(advice) if failure.exit() == Exit::NotFound => failure.advice(advice),
        _ => failure,
    })?;
    if args.stream {
        return remove_stream(&found, location, args.cursor.as_deref());
    }
    if args.cache {
        return remove_cache(&found, location);
    }
    let NameMatch { backend, array, partial: half, .. } = &found;
    let entry = if args.partial { half } else { array };
    let in_flight = entry.as_ref().and_then(|entry| match Found::at(backend, entry) {
        Found::Counted(counted) => Some(counted.in_flight),
        _ => None,
    });
    let attached = entry.as_ref().and_then(|entry| places::attached(backend, entry));
    let unlinked = if args.partial { render::discard(backend, location)? } else { backend.unlink(location)? };
    if !unlinked {
        return Err(Failure::new(Exit::NotFound, format!("another process has just removed `{location}`")));
    }
    Ok(UnlinkReport {
        name: location.to_string(),
        unlinked,
        backend: Some(backend.name().to_owned()),
        cursor: None,
        attached,
        in_flight,
        error: None,
    })
}

/// Returns advice about a name that has something else than what is to be removed.
fn other(search: &Search, location: &Location, wanted: &[EntryKind]) -> Option<String> {
    let has = |kind: EntryKind| !wanted.contains(&kind) && search.find(location, &[kind]).is_ok();
    if has(EntryKind::Partial) {
        return Some(format!(
            "there is only an unfinished renderbuffer: `ndshm unlink --partial {location}` removes it; \
             the same `download` command resumes it"
        ));
    }
    if has(EntryKind::Array) {
        let missing = match wanted.first() {
            Some(EntryKind::Partial) => "no unfinished renderbuffer",
            Some(EntryKind::Cache) => "no cache of this name",
            _ => "no stream of this name",
        };
        return Some(format!("there is a finished array, but {missing}: `ndshm unlink {location}` removes the array"));
    }
    if has(EntryKind::Frames) {
        return Some(format!("there is only a stream of this name: `ndshm unlink --stream {location}` removes it"));
    }
    has(EntryKind::Cache)
        .then(|| format!("there is only a cache of this name: `ndshm unlink --cache {location}` removes it"))
}

/// Removes a cache of chunks.
fn remove_cache(found: &NameMatch, location: &Location) -> Result<UnlinkReport, Failure> {
    let backend = &found.backend;
    let attached = cache::attached(backend, location).ok();
    if !cache::unlink(backend, location)? {
        return Err(Failure::new(Exit::NotFound, format!("another process has just removed `{location}`")));
    }
    Ok(UnlinkReport {
        name: location.to_string(),
        unlinked: true,
        backend: Some(backend.name().to_owned()),
        cursor: None,
        attached,
        in_flight: None,
        error: None,
    })
}

/// Removes a stream or one of its cursors.
fn remove_stream(found: &NameMatch, location: &Location, cursor: Option<&str>) -> Result<UnlinkReport, Failure> {
    let backend = &found.backend;
    let attached = stream::inspect(backend, location).ok().and_then(|stream| stream.has_writer);
    let unlinked = match cursor {
        None => stream::unlink(backend, location)?,
        Some(cursor) => stream::unlink_cursor(backend, location, cursor).map_err(|error| {
            let has_reader = matches!(error.kind, ErrorKind::HasReader { .. });
            let failure = Failure::from(error);
            if has_reader {
                failure.advice("end the process that reads with it first, then repeat this")
            } else {
                failure
            }
        })?,
    };
    match cursor {
        _ if unlinked => {}
        None => return Err(Failure::new(Exit::NotFound, format!("another process has just removed `{location}`"))),
        Some(cursor) => {
            let message = format!("the stream `{location}` has no cursor `{}`", units::printable(cursor));
            let advice = format!("`ndshm info --stream {location}` lists its cursors");
            return Err(Failure::new(Exit::NotFound, message).advice(advice));
        }
    }
    Ok(UnlinkReport {
        name: location.to_string(),
        unlinked,
        backend: Some(backend.name().to_owned()),
        cursor: cursor.map(str::to_owned),
        attached,
        in_flight: None,
        error: None,
    })
}
