//! `ndshm describe`: shows, writes or removes the description of a plain array. The elements are not touched.
//!
//! A description is escaped before it is printed, since any program may have written it.

use std::io::Write;

use ndarray_shm::ErrorKind;
use ndarray_shm::array::{Description, SeenDescription};
use ndarray_shm::backend::EntryKind;

use crate::args::DescribeArgs;
use crate::arrays::description::DescriptionReport;
use crate::arrays::places::Search;
use crate::arrays::typed::plain_layout;
use crate::exit::{Exit, Failure};
use crate::show::report;

/// Runs `ndshm describe`.
pub(crate) fn run(args: &DescribeArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let found = Search::new(args.backend)?.find(&args.location, &[EntryKind::Array])?;
    let (backend, location) = (&found.backend, &args.location);
    if found.array.is_none() {
        return Err(Failure::new(Exit::NotFound, format!("nothing is called `{location}`")));
    }
    if args.clear {
        backend.clear_description(location)?;
    } else if args.dtype.is_some() || args.shape.is_some() || args.order.is_some() || !args.notes.is_empty() {
        // Not merged into what another process writes, or gives the name to, meanwhile.
        let seen = backend.see_description(location)?;
        backend.describe_seen(location, &seen, Some(&corrected(args, &seen)?))?;
    }
    let description = backend.description(location)?;
    let report = description.as_ref().map(DescriptionReport::from);
    if args.output.json {
        report::json(out, &report)?;
        return Ok(Exit::Done);
    }
    match report {
        Some(report) => {
            writeln!(out, "{location} has a description")?;
            report::facts(out, &report.facts())?;
        }
        None if args.clear => writeln!(out, "{location} has no description any more")?,
        None => return Err(ErrorKind::NotDescribed.at(location).into()),
    }
    Ok(Exit::Done)
}

/// Returns the new description: values from the command line, else those of the old description.
fn corrected(args: &DescribeArgs, seen: &SeenDescription) -> Result<Description, Failure> {
    let old = seen.description();
    let (dtype, shape, order) =
        plain_layout(&args.location, seen.bytes(), args.dtype, args.shape.as_ref(), args.order, old.as_ref())?;
    let mut new = Description::new(dtype, &shape, order)?;
    let kept = old.iter().flat_map(Description::notes);
    let added = args.notes.iter().map(|(key, text)| (key.as_str(), text.as_str()));
    for (key, text) in kept.chain(added) {
        new = new.with_note(key, text)?;
    }
    Ok(new)
}
