//! The places in which each topic is tested. CONTRIBUTING.md has the same table with reasons.
//!
//! A topic is a file of a suite with its folder of parts, or a suite that is not run per place. The first place of an
//! ordinary run has every topic, so that a platform with one place runs them all.

/// The variable that names the place of the whole run, if the environment makes the place: a file system
/// (`scripts/in-place`) or a user. `first` means the first place of an ordinary run.
const PLACE: &str = "NDSHM_TEST_PLACE";

const EVERYWHERE: &[&str] = &["shm", "emulated", "hidden", "overlayfs", "tmpfs", "user"];

/// Places, and the topics that are tested in each of them.
pub const TABLE: &[(&[&str], &[&str])] = &[
    (
        EVERYWHERE,
        &[
            "conformance::arrays",
            "conformance::cache_kills",
            "conformance::chunk_caches",
            "conformance::copied_streams",
            "conformance::counted",
            "conformance::counted_races",
            "conformance::crashes",
            "conformance::descriptions",
            "conformance::errors",
            "conformance::frozen",
            "conformance::guards",
            "conformance::handles",
            "conformance::lookalikes",
            "conformance::names",
            "conformance::options",
            "conformance::orphans",
            "conformance::pool",
            "conformance::races",
            "conformance::recycled",
            "conformance::render",
            "conformance::stream_kills",
            "conformance::streams",
            "linux::borrowers",
            "linux::counted",
            "linux::descriptors",
            "linux::holes",
            "linux::inherited",
            "linux::limits",
            "linux::namespaces",
            "linux::pages",
            "linux::pool",
            "linux::rights",
            "linux::shared",
            "linux::users",
            "sharing::forks",
            "sharing::onward",
            "sharing::torch",
            "sharing::troubles",
            "steps::attach",
            "steps::caches",
            "steps::drops",
            "steps::give_up",
            "steps::locks",
            "steps::names",
            "steps::recycle",
            "steps::render",
            "steps::streams",
            "steps::tickets",
        ],
    ),
    (&["shm", "hidden", "overlayfs"], &["sharing::kills", "steps::stress"]),
    (
        &["shm", "emulated", "overlayfs"],
        &[
            "conformance::arena",
            "conformance::counters",
            "conformance::hostile",
            "conformance::queue_kills",
            "conformance::queue_senders",
            "conformance::queues",
            "conformance::roles",
            "linux::arena",
            "linux::time_limits",
            "sharing::limits",
            "sharing::messages",
        ],
    ),
    (
        &["shm", "emulated"],
        &[
            "interop::channels",
            "interop::cloudvolume",
            "interop::descriptions",
            "interop::layers",
            "interop::locks",
            "interop::numpy",
            "interop::painters",
            "interop::shared_memory",
            "interop::streams",
        ],
    ),
    (&["shm", "emulated", "user"], &["linux::foreign"]),
    (&["shm", "overlayfs", "user"], &["processes"]),
    (&["shm", "tmpfs", "user"], &["selection"]),
    (&["shm", "user"], &["manager"]),
    (
        &["shm"],
        &[
            "conformance::fuzz",
            "conformance::hostile_arena",
            "interop::manager",
            "sharing::foreign",
            "sharing::managed",
            "steps::foreign",
            "tidy",
        ],
    ),
];

/// The places of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Run {
    /// All places that need no special environment.
    Ordinary,
    /// The first of those places.
    First,
    /// The place with this name, which stands for all backends of the run.
    Within(String),
}

impl Run {
    /// Returns the run that the environment asks for.
    pub fn asked_for() -> Self {
        match std::env::var(PLACE).as_deref() {
            Err(_) => Self::Ordinary,
            Ok("first") => Self::First,
            Ok(place) if EVERYWHERE.contains(&place) => Self::Within(place.to_owned()),
            Ok(other) => panic!("{PLACE}: no place is called {other:?}"),
        }
    }

    /// Returns whether this run includes the trial with this name. `first` is the name of the run's first place.
    pub fn has(&self, name: &str, first: &str) -> bool {
        let (topic, place) = match name.split("::").collect::<Vec<_>>()[..] {
            [suite, place, file, _] => (format!("{suite}::{file}"), place),
            ["tidy", ..] => ("tidy".to_owned(), first),
            [ref topic @ .., _] => (topic.join("::"), first),
            [] => unreachable!("a trial has a name"),
        };
        let row = TABLE.iter().find(|(_, topics)| topics.contains(&topic.as_str()));
        let (places, _) = row.unwrap_or_else(|| panic!("{topic} is not in the table of topics (tests/it/topics.rs)"));
        match self {
            Self::Within(run) => places.contains(&run.as_str()),
            _ => place == first || places.contains(&place),
        }
    }
}

/// Returns the test that compares the table with CONTRIBUTING.md.
#[cfg(target_os = "linux")]
pub fn trials() -> Vec<libtest_mimic::Trial> {
    crate::support::trials("tidy", crate::tests![table_of_topics_matches_contributing_page])
}

#[cfg(target_os = "linux")]
fn table_of_topics_matches_contributing_page() {
    use std::collections::BTreeSet;

    let page = include_str!("../../CONTRIBUTING.md");
    // `suite::{file, file}` stands for several topics.
    let expand = |word: &str| match word.split_once("::{") {
        Some((suite, files)) => {
            files.trim_end_matches('}').split(", ").map(|file| format!("{suite}::{file}")).collect()
        }
        None => vec![word.to_owned()],
    };
    let words = |cell: &str| -> BTreeSet<String> { cell.split('`').skip(1).step_by(2).flat_map(expand).collect() };
    let rows = page.lines().filter(|line| line.starts_with("| `")).map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        assert!(!cells[3].is_empty(), "no reason: {line}");
        (words(cells[1]), words(cells[2]))
    });
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let table: BTreeSet<_> = TABLE.iter().map(|(places, topics)| (owned(topics), owned(places))).collect();
    assert_eq!(table, rows.collect(), "left: tests/it/topics.rs; right: CONTRIBUTING.md");
}
