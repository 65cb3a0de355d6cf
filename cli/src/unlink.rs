//! `ndshm unlink`: removes names, each reported.

use std::io::{self, Write};

use ndarray_shm::backend::EntryKind;
use ndarray_shm::{Location, render};
use serde::Serialize;

use crate::cli::UnlinkArgs;
use crate::counted::Look;
use crate::exit::{Exit, Failure};
use crate::places::{self, NameMatch, Search};
use crate::{report, units};

/// What became of one name, as `unlink --json` prints it.
#[derive(Debug, Serialize)]
struct UnlinkReport {
    name: String,
    /// Whether the name was there and is gone.
    unlinked: bool,
    backend: Option<String>,
    /// Whether a process was still attached, so that its memory is not free yet; `null` if that is unknown.
    attached: Option<bool>,
    /// Number of handles of a counted array that were in flight and can no longer be attached; `null` for everything else.
    in_flight: Option<usize>,
    /// Why not, if not.
    error: Option<String>,
}

/// Runs `ndshm unlink`.
///
/// Every name is tried; the exit code tells of the worst: a failure, else a name that was not there.
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
        if !args.json && outcome.unlinked {
            let attached = match outcome.attached {
                Some(true) if args.partial => " (it was being painted: its painters will stop with an error)",
                Some(true) => " (still attached: its memory is free once the last process lets go)",
                _ => "",
            };
            writeln!(out, "unlinked {location}{attached}")?;
            if let Some(count @ 1..) = outcome.in_flight {
                writeln!(out, "{} in flight can no longer be attached", units::count(count, "handle"))?;
            }
        }
        outcomes.push(outcome);
    }
    if args.json {
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
                "there is only a half-painted renderbuffer: `ndshm unlink --partial {location}` removes it, \
                 the `download` that began it finishes it"
            )),
            (true, true) => failure.advice(format!(
                "there is a finished array, and nothing half-painted: `ndshm unlink {location}` removes it"
            )),
            (false, _) => failure,
        }
    })?;
    let NameMatch { backend, array, partial: half } = &found;
    let entry = if partial { half } else { array };
    let in_flight = entry.as_ref().and_then(|entry| match Look::at(backend, entry) {
        Look::Counted(counted) => Some(counted.in_flight),
        _ => None,
    });
    let attached = entry.as_ref().and_then(|entry| places::attached(backend, entry));
    let unlinked = if partial { render::discard(backend, location)? } else { backend.unlink(location)? };
    if !unlinked {
        return Err(Failure::new(Exit::NotFound, format!("`{location}` was removed by another process just now")));
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
