//! `ndshm ls`: what lives in shared memory, real and emulated.

use std::io::Write;

use ndarray_shm::backend::{DirectoryEntry, EntryKind};

use crate::cli::ListArgs;
use crate::exit::{Exit, Failure};
use crate::item::Item;
use crate::report::{self, Column, Table};
use crate::{places, units};

/// Runs `ndshm ls`.
pub(crate) fn run(args: &ListArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    let mut items = Vec::new();
    for backend in places::existing(args.backend)? {
        let entries = backend.list()?;
        for entry in &entries {
            let is_half = is_half(entry, &entries);
            if args.all || is_half || matches!(entry.kind, EntryKind::Array | EntryKind::Partial) {
                items.push(Item { is_half, ..Item::new(&backend, entry) });
            }
        }
    }
    if args.json {
        report::json(out, &items)?;
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&[
        Column::Left("NAME"),
        Column::Right("SIZE"),
        Column::Left("USERS"),
        Column::Right("AGE"),
        Column::Left("OWNER"),
        Column::Left("BACKEND"),
        Column::Left("STATE"),
    ]);
    for item in &items {
        table.row([
            units::printable(&item.name),
            units::size(item.size),
            item.users(),
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

/// Whether an entry is one of the two files of a renderbuffer, and the other is not there.
fn is_half(entry: &DirectoryEntry, entries: &[DirectoryEntry]) -> bool {
    let other = match entry.kind {
        EntryKind::Partial => EntryKind::Ledger,
        EntryKind::Ledger => EntryKind::Partial,
        _ => return false,
    };
    let location = entry.location();
    !entries.iter().any(|found| found.kind == other && found.location() == location)
}
