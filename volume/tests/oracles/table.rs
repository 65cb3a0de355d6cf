//! The table in `docs/formats.md`: exactly what this run found equal.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::matrix::{Format, Kept, Oracle};
use crate::refused;

/// Makes the run write the page. Without it the run compares the page with its result.
const WRITE: &str = "NDSHM_WRITE_DOCS";

const BEGIN: &str = "<!-- what follows is written by volume/tests/oracles: NDSHM_WRITE_DOCS=1 -->\n";
const END: &str = "<!-- what a test wrote ends here -->\n";

/// Which program created, wrote and read a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Direction {
    /// The oracle wrote it, this crate read it.
    Read,
    /// This crate created and wrote it, the oracle read it.
    Written,
    /// The oracle created it, this crate wrote it, the oracle read it.
    WrittenIntoTheirs,
}

/// A volume of which every region was found equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Outcome {
    pub(crate) format: Format,
    pub(crate) encoding: &'static str,
    pub(crate) direction: Direction,
    pub(crate) oracle: Oracle,
    pub(crate) kept: Kept,
    pub(crate) dtype: &'static str,
}

/// Compares the page with the outcomes, or writes it.
pub(crate) fn check(outcomes: &[Outcome]) -> Result<(), String> {
    let path = page();
    let old = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let parts = old.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let Some((before, after)) = parts else { return Err(format!("{}: no table markers", path.display())) };
    let new = format!("{before}{BEGIN}\n{}\n{END}{after}", table(outcomes));
    if new == old {
        return Ok(());
    }
    if std::env::var_os(WRITE).is_some() {
        return fs::write(&path, new).map_err(|error| format!("{}: {error}", path.display()));
    }
    let line = new.lines().zip(old.lines()).find(|(new, old)| new != old);
    Err(format!("docs/formats.md differs from this run (new and old: {line:?}): {WRITE}=1 writes it anew"))
}

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/formats.md")
}

fn table(outcomes: &[Outcome]) -> String {
    let mut rows: BTreeMap<(Format, usize, &str), Vec<&Outcome>> = BTreeMap::new();
    for outcome in outcomes {
        rows.entry((outcome.format, outcome.encoding.starts_with("sharded").into(), outcome.encoding))
            .or_default()
            .push(outcome);
    }
    let mut text = String::from(
        "| format | encoding | read, as written by | written anew, read back by | written into what was made by | element types | \
         stores |\n|---|---|---|---|---|---|---|\n",
    );
    for ((format, _, encoding), outcomes) in rows {
        let by = |direction| {
            let oracles: BTreeSet<&str> =
                outcomes.iter().filter(|one| one.direction == direction).map(|one| one.oracle.shown()).collect();
            if oracles.is_empty() { "-".to_owned() } else { oracles.into_iter().collect::<Vec<_>>().join(", ") }
        };
        let stores = |directions: &[Direction]| {
            let stores: BTreeSet<Kept> =
                outcomes.iter().filter(|one| directions.contains(&one.direction)).map(|one| one.kept).collect();
            stores.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        let read = stores(&[Direction::Read]);
        let written = stores(&[Direction::Written, Direction::WrittenIntoTheirs]);
        let stores = match (read.as_str(), written.as_str()) {
            (read, "") => format!("read: {read}"),
            ("", written) => format!("written: {written}"),
            (read, written) if read == written => read.to_owned(),
            (read, written) => format!("read: {read}; written: {written}"),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {stores} |",
            format.shown(),
            shown(format, encoding),
            by(Direction::Read),
            by(Direction::Written),
            by(Direction::WrittenIntoTheirs),
            types(outcomes.iter().map(|one| one.dtype).collect()),
        );
    }
    let _ = writeln!(text, "\nWhat is refused with its name in the error:\n");
    let mut refused: BTreeMap<(Format, &str), Vec<&str>> = BTreeMap::new();
    for one in refused::all() {
        refused.entry((one.format, one.what)).or_default().push(one.name);
    }
    for ((format, what), names) in refused {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let _ = writeln!(text, "- {}: {what} {}", format.shown(), names.join(", "));
    }
    text
}

/// Returns the names of types, with one name for a family that is complete.
fn types(mut names: BTreeSet<&str>) -> String {
    const FAMILIES: &[(&str, &[&str])] = &[
        ("uint8 to uint64", &["uint8", "uint16", "uint32", "uint64"]),
        ("int8 to int64", &["int8", "int16", "int32", "int64"]),
        ("float16 to float64", &["float16", "float32", "float64"]),
        ("complex64, complex128", &["complex64", "complex128"]),
    ];
    let mut shown = Vec::new();
    for (family, members) in FAMILIES {
        if members.iter().all(|name| names.contains(name)) {
            members.iter().for_each(|name| assert!(names.remove(name)));
            shown.push(*family);
        }
    }
    shown.extend(names);
    shown.join(", ")
}

fn shown(format: Format, encoding: &str) -> String {
    match (format, encoding) {
        (Format::Precomputed, "gzip") => "raw, packed by gzip".to_owned(),
        (Format::Precomputed, "compressed_segmentation_gzip") => "compressed_segmentation, packed by gzip".to_owned(),
        (Format::Precomputed, "sharded gzip") => "sharded: raw, packed by gzip".to_owned(),
        (_, "raw") => "raw".to_owned(),
        _ => match encoding.strip_prefix("sharded ") {
            Some(inner) => format!("sharded: {inner}"),
            None => encoding.to_owned(),
        },
    }
}

impl Format {
    fn shown(self) -> &'static str {
        match self {
            Self::Precomputed => "Precomputed",
            Self::Zarr2 => "Zarr v2",
            Self::Zarr3 => "Zarr v3",
            Self::N5 => "N5",
        }
    }
}

impl Oracle {
    fn shown(self) -> &'static str {
        match self {
            Self::CloudVolume => "CloudVolume",
            Self::Tensorstore => "tensorstore",
            Self::ZarrPython => "zarr-python",
        }
    }
}
