//! `ndshm ls --by` and `ndshm ls --metrics`: sums over the listed names, as a table, in JSON, and as metrics.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use ndarray_shm::Directory;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use serde::Serialize;

use crate::args::words::SumBy;
use crate::arrays::item::Item;
use crate::exit::{Exit, Failure};
use crate::files::output::Output;
use crate::machine::host;
use crate::show::report::{self, Column, Table};
use crate::show::units;

/// Sums over the names of one user or of one kind, as `ls --by --json` prints them.
#[derive(Debug, Default, Serialize)]
struct GroupSum {
    /// Name or number of the user, or the kind.
    group: String,
    names: usize,
    /// Bytes of the files.
    size: u64,
    /// Bytes of memory or disk that are allocated.
    allocated: u64,
    /// How many of the names have a process that is attached, as far as this user may ask.
    attached: usize,
}

// The columns after the first.
const NAMES: Column = Column::Right("NAMES");
const ATTACHED: Column = Column::Right("ATTACHED");
const SIZE: Column = Column::Right("SIZE");
const ALLOCATED: Column = Column::Right("ALLOCATED");

/// Writes sums by user or by kind.
pub(crate) fn write(items: &[Item], by: SumBy, is_json: bool, out: &mut dyn Write) -> Result<(), Failure> {
    let mut sums: BTreeMap<String, GroupSum> = BTreeMap::new();
    for item in items {
        let group = match by {
            SumBy::User => item.owner().unwrap_or_else(|| "-".to_owned()),
            SumBy::Kind => item.kind.to_owned(),
        };
        let sum = sums.entry(group.clone()).or_insert_with(|| GroupSum { group, ..GroupSum::default() });
        sum.names += 1;
        sum.size += item.size;
        sum.allocated += item.allocated;
        sum.attached += usize::from(item.attached == Some(true));
    }
    let mut sums: Vec<GroupSum> = sums.into_values().collect();
    sums.sort_by_key(|sum| std::cmp::Reverse(sum.allocated));
    if is_json {
        return Ok(report::json(out, &sums)?);
    }
    let mut table = match by {
        SumBy::User => Table::new(&[Column::Left("USER"), NAMES, ATTACHED, SIZE, ALLOCATED]),
        SumBy::Kind => Table::new(&[Column::Left("KIND"), NAMES, ATTACHED, SIZE, ALLOCATED]),
    };
    for sum in &sums {
        let (names, attached) = (sum.names.to_string(), sum.attached.to_string());
        table.row([units::printable(&sum.group), names, attached, units::size(sum.size), units::size(sum.allocated)]);
    }
    if table.is_empty() {
        writeln!(out, "no arrays")?;
    } else {
        table.write(out)?;
    }
    Ok(())
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfBackend {
    backend: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfKind {
    backend: String,
    kind: String,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfName {
    backend: String,
    kind: String,
    name: String,
}

/// Returns metrics, as text, about the items and the directories in which they are. Names are in it only if asked for:
/// a collector keeps each of them for ever.
pub(crate) fn metrics(items: &[Item], places: &[Directory], with_names: bool) -> Result<String, Failure> {
    let [names, attached, orphaned, allocated]: [Family<OfKind, Gauge>; 4] = Default::default();
    let [handles, in_flight, free, total]: [Family<OfBackend, Gauge>; 4] = Default::default();
    let each = Family::<OfName, Gauge>::default();
    for place in places {
        let of = OfBackend { backend: place.name().to_owned() };
        handles.get_or_create(&of).set(0);
        in_flight.get_or_create(&of).set(0);
        if let Some(room) = host::room(place.path()) {
            free.get_or_create(&of).set(number(room.free));
            total.get_or_create(&of).set(number(room.total));
        }
    }
    for item in items {
        let of = OfBackend { backend: item.backend.clone() };
        let kind = OfKind { backend: item.backend.clone(), kind: item.kind.to_owned() };
        let is_orphaned = item.counted.as_ref().is_some_and(|counted| counted.orphaned)
            || item.arena.as_ref().is_some_and(|arena| arena.orphaned);
        names.get_or_create(&kind).inc();
        allocated.get_or_create(&kind).inc_by(number(item.allocated));
        attached.get_or_create(&kind).inc_by(i64::from(item.attached == Some(true)));
        orphaned.get_or_create(&kind).inc_by(i64::from(is_orphaned));
        if let Some(counted) = &item.counted {
            handles.get_or_create(&of).inc_by(i64::from(counted.refcount));
            in_flight.get_or_create(&of).inc_by(number(counted.in_flight as u64));
        }
        if with_names {
            let name = OfName { backend: of.backend, kind: kind.kind, name: item.name.clone() };
            each.get_or_create(&name).set(number(item.allocated));
        }
    }
    let mut registry = Registry::with_prefix("ndshm");
    registry.register("names", "Names in shared memory, by kind", names);
    registry.register("attached_names", "Names to which a process is attached", attached);
    registry.register("orphaned_names", "Counted arrays and arenas of processes that all were killed", orphaned);
    registry.register_with_unit("allocated", "Memory or disk that names have", Unit::Bytes, allocated);
    registry.register("handles", "Handles of counted arrays, those of killed processes included", handles);
    registry.register("handles_in_flight", "Handles that were sent and have not arrived", in_flight);
    registry.register_with_unit("free", "Free memory or disk of the file system", Unit::Bytes, free);
    registry.register_with_unit("total", "Memory or disk of the file system", Unit::Bytes, total);
    if with_names {
        registry.register_with_unit("name_allocated", "Memory or disk that a name has", Unit::Bytes, each);
    }
    let mut text = String::new();
    encode(&mut text, &registry).map_err(|error| Failure::new(Exit::Failed, error))?;
    Ok(text)
}

/// Writes the text to a file that a collector never sees in part, or to the output.
pub(crate) fn publish(text: &str, file: Option<&Path>, out: &mut dyn Write) -> Result<(), Failure> {
    let Some(path) = file else { return Ok(out.write_all(text.as_bytes())?) };
    let mut output = Output::begin(path, true)?;
    output.put(text.as_bytes())?;
    output.finish()
}

fn number(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
