//! Which places each topic is tested in. CONTRIBUTING.md shows the same table, with the reasons.
//!
//! A topic is a file of a suite with its folder of parts, or a suite that is about no place. The first place of an ordinary run has
//! every topic, so that a platform with one place misses none.

/// Names the place of this whole run, where the environment around it makes the place: a file system (`scripts/in-place`) or a user.
/// `first` is the first place of an ordinary run.
const PLACE: &str = "NDSHM_TEST_PLACE";

const EVERYWHERE: &[&str] = &["shm", "emulated", "hidden", "overlayfs", "tmpfs", "user"];

/// Places, and what is tested in each of them.
pub const TABLE: &[(&[&str], &[&str])] = &[
    (
        EVERYWHERE,
        &[
            "conformance::arrays",
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
            "conformance::orphans",
            "conformance::pool",
            "conformance::races",
            "conformance::render",
            "linux::counted",
            "linux::descriptors",
            "linux::limits",
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
            "steps::drops",
            "steps::locks",
            "steps::names",
            "steps::render",
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
        ],
    ),
    (&["shm", "overlayfs", "user"], &["processes"]),
    (&["shm", "tmpfs", "user"], &["selection"]),
    (&["shm", "user"], &["manager"]),
    (&["shm"], &["conformance::fuzz", "conformance::hostile_arena", "interop::manager", "sharing::managed", "tidy"]),
];

/// Where a run is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Run {
    /// In all places that need nothing around them.
    Ordinary,
    /// In the first of those.
    First,
    /// In the place with this name, of whatever kind its backends are.
    Within(String),
}

impl Run {
    /// The run that the environment asks for.
    pub fn asked_for() -> Self {
        match std::env::var(PLACE).as_deref() {
            Err(_) => Self::Ordinary,
            Ok("first") => Self::First,
            Ok(place) if EVERYWHERE.contains(&place) => Self::Within(place.to_owned()),
            Ok(other) => panic!("{PLACE}: no place is called {other:?}"),
        }
    }

    /// Whether this run has the trial with this name, if the first of its places is called so.
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

/// The table and CONTRIBUTING.md say the same.
#[cfg(target_os = "linux")]
pub fn trials() -> Vec<libtest_mimic::Trial> {
    crate::support::trials("tidy", crate::tests![the_table_of_topics_is_on_the_page])
}

#[cfg(target_os = "linux")]
fn the_table_of_topics_is_on_the_page() {
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
