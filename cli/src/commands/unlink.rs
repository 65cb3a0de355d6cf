//! `ndshm unlink`: removes names, and reports each.

use std::io::{self, Write};

use ndarray_shm::backend::EntryKind;
use ndarray_shm::{Location, render};
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
    /// Whether a process was attached, which keeps the memory until it detaches; `null` if unknown.
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
        let outcome = match remove(&search, location, args.partial) {
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
                    attached: None,
                    in_flight: None,
                    error: Some(failure.to_string()),
                }
            }
        };
        if !args.output.json && outcome.unlinked {
            let attached = match outcome.attached {
                Some(true) if args.partial => " (processes were painting it: they will stop with an error)",
                Some(true) => " (still attached: the memory is freed when the last process detaches)",
                _ => "",
            };
            writeln!(out, "unlinked {location}{attached}")?;
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

fn remove(search: &Search, location: &Location, partial: bool) -> Result<UnlinkReport, Failure> {
    let (wanted, other) =
        if partial { (EntryKind::Partial, EntryKind::Array) } else { (EntryKind::Array, EntryKind::Partial) };
    let found = search.find(location, &[wanted]).map_err(|failure| {
        let otherwise = search.find(location, &[other]).is_ok();
        match (otherwise, partial) {
            (true, false) => failure.advice(format!(
                "there is only an unfinished renderbuffer: `ndshm unlink --partial {location}` removes it; \
                 the same `download` command resumes it"
            )),
            (true, true) => failure.advice(format!(
                "there is a finished array, but no unfinished renderbuffer: `ndshm unlink {location}` removes the array"
            )),
            (false, _) => failure,
        }
    })?;
    let NameMatch { backend, array, partial: half } = &found;
    let entry = if partial { half } else { array };
    let in_flight = entry.as_ref().and_then(|entry| match Found::at(backend, entry) {
        Found::Counted(counted) => Some(counted.in_flight),
        _ => None,
    });
    let attached = entry.as_ref().and_then(|entry| places::attached(backend, entry));
    let unlinked = if partial { render::discard(backend, location)? } else { backend.unlink(location)? };
    if !unlinked {
        return Err(Failure::new(Exit::NotFound, format!("another process has just removed `{location}`")));
    }
    Ok(UnlinkReport {
        name: location.to_string(),
        unlinked,
        backend: Some(backend.name().to_owned()),
        attached,
        in_flight,
        error: None,
    })
}
