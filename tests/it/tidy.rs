//! The architecture's rules, held by reading the source: floors, unsafe, platforms, sizes, dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;

/// The modules at the root and the floor each one is on; a file uses its own floor and lower ones.
const FLOORS: &[(&str, u32)] = &[
    ("backoff", 0),
    ("error", 0),
    ("os", 0),
    ("random", 0),
    ("backend", 1),
    ("segment", 2),
    ("array", 3),
    ("share", 4),
    ("pool", 4),
    ("process", 4),
    ("manager", 4),
    ("arena", 5),
    ("render", 5),
];

/// The same for the crate of volumes.
const VOLUME_FLOORS: &[(&str, u32)] = &[
    ("error", 0),
    ("bbox", 1),
    ("progress", 1),
    ("shard", 1),
    ("spare", 1),
    ("gzip", 1),
    ("turn", 1),
    ("copy", 1),
    ("grid", 2),
    ("scratch", 2),
    ("store", 2),
    ("volume", 3),
    ("description", 4),
    ("missing", 4),
    ("plan", 4),
    ("markers", 4),
    ("zarr", 5),
    ("precomputed", 5),
    ("demo", 5),
    ("open", 6),
    ("download", 7),
    ("upload", 7),
];

const LONGEST_FILE: usize = 500;
const MOST_CRATES: usize = 36;

pub fn trials() -> Vec<Trial> {
    let tests: &[(&str, fn())] = crate::tests![
        a_file_uses_only_its_own_floor_and_lower_ones,
        unsafe_is_where_the_architecture_says_and_nowhere_else,
        platforms_are_told_apart_on_the_lowest_floor_only,
        files_say_what_they_are_for_and_stay_short,
        nothing_is_unfinished_or_skipped,
        the_core_stays_light,
        the_first_command_builds_no_network,
        dependencies_ask_for_no_newer_compiler_than_we_promise,
    ];
    crate::support::trials("tidy", tests)
}

/// Tests that real shared memory has and its emulation has not, or the other way round: all of them are on the page,
/// with the reason. With only one of the two there is nothing to compare.
pub fn differences(trials: &[Trial]) -> Option<Trial> {
    const BACKENDS: [&str; 2] = ["shm", "emulated"];
    let mut of: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for name in trials.iter().map(Trial::name) {
        if let [suite, backend, file, test] = name.split("::").collect::<Vec<_>>()[..] {
            if let Some(backend) = BACKENDS.into_iter().find(|known| *known == backend) {
                of.entry(format!("{suite}::{file}::{test}")).or_default().insert(backend);
            }
        }
    }
    let tested: BTreeSet<&str> = of.values().flatten().copied().collect();
    let single: BTreeSet<(String, &str)> =
        of.iter().filter(|(_, on)| on.len() == 1).map(|(test, on)| (test.clone(), *on.first().unwrap())).collect();
    (tested.len() == BACKENDS.len()).then(|| {
        Trial::test("tidy::tests_that_only_one_backend_has_are_listed_with_the_reason", move || {
            let page = fs::read_to_string(root().join("docs/platforms.md")).unwrap();
            let section = page.split("### Tests that only one backend has").nth(1).expect("a section about them");
            let rows = section.split("\n#").next().unwrap().lines().filter(|line| line.starts_with("| `"));
            let row = |line: &str| -> (String, String) {
                let cells: Vec<&str> = line.split('|').map(str::trim).collect();
                assert!(!cells[3].is_empty(), "no reason: {line}");
                (cells[1].trim_matches('`').to_owned(), cells[2].to_owned())
            };
            let listed: BTreeSet<(String, String)> = rows.map(row).collect();
            let single: BTreeSet<(String, String)> =
                single.into_iter().map(|(test, on)| (test, on.to_owned())).collect();
            assert_eq!(single, listed, "left: the tests; right: docs/platforms.md");
            Ok(())
        })
    })
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust file below a folder, with its path from the root and its text.
fn sources(folder: &str) -> Vec<(String, String)> {
    let mut folders = vec![root().join(folder)];
    let mut files: Vec<PathBuf> = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    assert!(!files.is_empty(), "{folder} has no source");
    files.sort();
    let name = |path: &Path| path.strip_prefix(root()).unwrap().display().to_string().replace('\\', "/");
    files.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

fn fail_if_any(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

fn a_file_uses_only_its_own_floor_and_lower_ones() {
    let mut complaints = Vec::new();
    for (folder, floors) in [("src", FLOORS), ("volume/src", VOLUME_FLOORS)] {
        check_floors(folder, floors, &mut complaints);
    }
    fail_if_any(&complaints);
}

fn check_floors(folder: &str, floors: &[(&str, u32)], complaints: &mut Vec<String>) {
    let floor = |module: &str| floors.iter().find(|(name, _)| *name == module).map(|(_, floor)| *floor);
    for (file, text) in sources(folder) {
        let module = file[folder.len() + 1..].split('/').next().unwrap().trim_end_matches(".rs");
        if module == "lib" {
            continue;
        }
        let own = floor(module).unwrap_or_else(|| panic!("{file} is on no floor: add it to FLOORS"));
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            for used in line.match_indices("crate::").filter_map(|(at, _)| {
                let rest = &line[at + "crate::".len()..];
                rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
            }) {
                if floor(used).is_some_and(|used| used > own) {
                    complaints.push(format!("{file}:{}: floor {own} uses crate::{used}", number + 1));
                }
            }
        }
    }
}

fn unsafe_is_where_the_architecture_says_and_nowhere_else() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let section = page.split("## Where `unsafe` is").nth(1).expect("ARCHITECTURE.md lists the files with unsafe");
    let section = section.split("\n## ").next().unwrap();
    let listed: BTreeSet<String> = section.split('`').filter(|word| word.starts_with("src/")).map(Into::into).collect();
    let code = |text: &str| -> String {
        text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
    };
    let has_unsafe = |text: &str| {
        let text = code(text);
        ["unsafe {", "unsafe fn", "unsafe impl", "unsafe trait"].iter().any(|word| text.contains(word))
    };
    let found: BTreeSet<String> =
        sources("src").into_iter().filter(|(_, text)| has_unsafe(text)).map(|(file, _)| file).collect();
    assert_eq!(found, listed, "left: what the source has; right: what ARCHITECTURE.md lists");
    for crate_ in ["volume", "cli"] {
        for (file, text) in sources(&format!("{crate_}/src")) {
            assert!(!has_unsafe(&text), "{file}: only the core has unsafe");
        }
    }
}

fn platforms_are_told_apart_on_the_lowest_floor_only() {
    let words = ["target_os", "cfg(unix)", "cfg(windows)", "cfg(target", "std::os::"];
    // The models need loom, which Cargo.toml has for this platform only.
    let models = r#"target_os = "linux", target_pointer_width = "64"))]"#;
    let mut complaints = Vec::new();
    for (file, text) in sources("src") {
        let lines = text.lines().enumerate().filter(|(_, line)| {
            let code = !line.trim_start().starts_with("//");
            code && words.iter().any(|word| line.contains(word)) && !line.ends_with(models)
        });
        if !file.starts_with("src/os/") {
            complaints.extend(lines.map(|(number, line)| format!("{file}:{}: {line}", number + 1)));
        }
    }
    fail_if_any(&complaints);
}

fn files_say_what_they_are_for_and_stay_short() {
    let mut complaints = Vec::new();
    for folder in ["src", "tests", "examples", "benches", "volume/src", "cli/src"] {
        for (file, text) in sources(folder) {
            if !text.starts_with("//!") {
                complaints.push(format!("{file} does not begin with what it is for"));
            }
            // Tests are lists: they may be as long as there are promises.
            if text.lines().count() > LONGEST_FILE && !file.starts_with("tests/") {
                complaints.push(format!("{file} has more than {LONGEST_FILE} lines"));
            }
        }
    }
    fail_if_any(&complaints);
}

fn nothing_is_unfinished_or_skipped() {
    // Written apart, or this file would find itself.
    let words = [concat!("to", "do!("), concat!("un", "implemented!("), concat!("db", "g!("), concat!("FIX", "ME")];
    let words = words.iter().chain(&[concat!("#[ig", "nore")]);
    let mut complaints = Vec::new();
    for folder in ["src", "tests", "examples", "benches", "volume", "cli"] {
        for (file, text) in sources(folder) {
            complaints.extend(words.clone().filter(|word| text.contains(**word)).map(|word| format!("{file}: {word}")));
        }
    }
    fail_if_any(&complaints);
}

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn the_core_stays_light() {
    let tree = cargo(&["tree", "-p", "ndarray-shm", "-e", "normal", "--prefix", "none", "--format", "{p}"]);
    let crates: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(" (").next()).collect();
    assert!(crates.len() > 5, "{tree}");
    assert!(crates.len() < MOST_CRATES, "{} crates: {crates:?}", crates.len());
}

fn the_first_command_builds_no_network() {
    let tree = |features: &[&str]| {
        cargo(&[&["tree", "-p", "ndshm", "-e", "normal", "--prefix", "none", "--format", "{p}"], features].concat())
    };
    let network = |tree: &str| ["tokio", "object_store", "reqwest"].map(|name| tree.contains(&format!("\n{name} v")));
    assert_eq!(network(&tree(&[])), [false; 3], "what is behind URLs is a feature");
    assert_eq!(network(&tree(&["--features", "remote"])), [true; 3], "the feature brings it");
}

fn dependencies_ask_for_no_newer_compiler_than_we_promise() {
    let metadata: serde_json::Value =
        serde_json::from_str(&cargo(&["metadata", "--format-version", "1", "--all-features"])).unwrap();
    let version = |text: &str| -> Vec<u32> { text.split('.').map(|part| part.parse().unwrap()).collect() };
    let packages = metadata["packages"].as_array().unwrap();
    let promised = packages.iter().find(|package| package["name"] == "ndarray-shm").unwrap()["rust_version"].as_str();
    let promised = version(promised.expect("the core promises a compiler version"));
    let features = ["--features", "channel,half,num-complex,serde"];
    let tree = cargo(
        &[&["tree", "-p", "ndarray-shm", "-e", "normal", "--prefix", "none", "--format", "{p}"], &features[..]]
            .concat(),
    );
    let used: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    let mut complaints = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap();
        if let (true, Some(needed)) = (used.contains(name), package["rust_version"].as_str()) {
            if version(needed) > promised {
                complaints.push(format!("{name} needs Rust {needed}"));
            }
        }
    }
    fail_if_any(&complaints);
}
