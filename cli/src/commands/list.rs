//! `ndshm ls`: lists the arrays and streams in real and emulated shared memory.

use std::io::{self, IsTerminal as _, Write};
use std::thread;
use std::time::{Duration, Instant};

use console::Term;
use ndarray_shm::backend::{DirectoryEntry, EntryKind};
use ndarray_shm_volume::StopFlag;

use crate::args::ListArgs;
use crate::arrays::item::Item;
use crate::arrays::places;
use crate::commands::{foreign, sums};
use crate::exit::{Exit, Failure};
use crate::interrupt;
use crate::show::report::{self, Column, Table};
use crate::show::units;

/// Interval at which `--watch` checks for a signal.
const TICK: Duration = Duration::from_millis(50);

/// Runs `ndshm ls`.
pub(crate) fn run(args: &ListArgs, out: &mut dyn Write) -> Result<Exit, Failure> {
    if args.foreign {
        return foreign::list(args, out);
    }
    if let Some(pause) = args.watch {
        return watch(args, pause, out);
    }
    let items = look(args)?;
    if let Some(file) = &args.metrics {
        let text = sums::metrics(&items, &places::existing(args.backend)?, args.names)?;
        sums::publish(&text, file.as_deref(), out)?;
        return Ok(Exit::Done);
    }
    if items.is_empty() && !args.patterns.is_empty() {
        return Err(Failure::new(Exit::NotFound, format!("nothing matches {}", patterns(args))));
    }
    match args.by {
        Some(by) => sums::write(&items, by, args.output.json, out)?,
        None if args.output.json => report::json(out, &items)?,
        None => write(&items, args, out)?,
    }
    Ok(Exit::Done)
}

/// Lists repeatedly. A terminal is cleared before each list. A signal ends this with success.
fn watch(args: &ListArgs, pause: Duration, out: &mut dyn Write) -> Result<Exit, Failure> {
    let stop = interrupt::flag()?;
    let is_terminal = io::stdout().is_terminal();
    loop {
        let items = look(args)?;
        if is_terminal {
            Term::stdout().clear_screen()?;
        }
        write(&items, args, out)?;
        if !is_terminal {
            writeln!(out)?;
        }
        out.flush()?;
        if wait(pause, &stop) {
            return Ok(Exit::Done);
        }
    }
}

/// Waits for the pause. Returns `true` if a signal came before its end.
fn wait(pause: Duration, stop: &StopFlag) -> bool {
    let begin = Instant::now();
    while !stop.is_stopped() {
        let left = pause.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return false;
        }
        thread::sleep(left.min(TICK));
    }
    true
}

/// Returns the items to list.
fn look(args: &ListArgs) -> Result<Vec<Item>, Failure> {
    let mut items = Vec::new();
    for backend in places::existing(args.backend)? {
        let entries = backend.list()?;
        for entry in &entries {
            let is_half = is_half(entry, &entries);
            let name = entry.location().map_or_else(|| entry.name.clone(), String::from);
            let is_meant = args.patterns.is_empty() || args.patterns.iter().any(|pattern| pattern.matches(&name));
            let is_shown =
                matches!(entry.kind, EntryKind::Array | EntryKind::Partial | EntryKind::Frames | EntryKind::Cache);
            let is_summed = args.by.is_some() || args.metrics.is_some();
            if is_meant && (args.all || is_summed || is_half || is_shown) {
                items.push(Item { is_half, ..Item::new(&backend, entry) });
            }
        }
    }
    Ok(items)
}

fn write(items: &[Item], args: &ListArgs, out: &mut dyn Write) -> Result<(), Failure> {
    let mut table = Table::new(&[
        Column::Left("NAME"),
        Column::Right("SIZE"),
        Column::Left("USERS"),
        Column::Right("AGE"),
        Column::Left("OWNER"),
        Column::Left("BACKEND"),
        Column::Left("WHAT"),
    ]);
    for item in items {
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
    match (table.is_empty(), args.patterns.is_empty()) {
        (true, true) => writeln!(out, "no arrays")?,
        (true, false) => writeln!(out, "nothing matches {}", patterns(args))?,
        _ => table.write(out)?,
    }
    Ok(())
}

fn patterns(args: &ListArgs) -> String {
    let quoted: Vec<String> =
        args.patterns.iter().map(|pattern| format!("`{}`", units::printable(pattern.as_str()))).collect();
    quoted.join(" or ")
}

/// Whether an entry is one of the two files of a renderbuffer or a stream, and the other is missing.
fn is_half(entry: &DirectoryEntry, entries: &[DirectoryEntry]) -> bool {
    let other = match entry.kind {
        EntryKind::Partial => EntryKind::Ledger,
        EntryKind::Ledger => EntryKind::Partial,
        EntryKind::Frames => EntryKind::Keeper,
        EntryKind::Keeper => EntryKind::Frames,
        _ => return false,
    };
    let location = entry.location();
    !entries.iter().any(|found| found.kind == other && found.location() == location)
}
