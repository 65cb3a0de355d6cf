//! The architecture's rules, checked in the source: floors, unsafe code, platforms, file sizes, dependencies.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Trial;

/// The root modules and their floors. A file uses only its own and lower floors. Modules of one floor do not depend on
/// each other in a cycle.
const FLOORS: &[(&str, u32)] = &[
    ("backoff", 0),
    ("error", 0),
    ("interrupt", 0),
    ("os", 0),
    ("percent", 0),
    ("random", 0),
    ("search_time", 0),
    ("backend", 1),
    ("manager_client", 1),
    ("segment", 2),
    ("array", 3),
    ("foreign", 3),
    ("counted", 4),
    ("pool", 4),
    ("process", 4),
    ("manager", 5),
    ("arena", 5),
    ("stream", 5),
    ("render", 5),
    ("cache", 5),
];

/// The same for the volume crate.
const VOLUME_FLOORS: &[(&str, u32)] = &[
    ("error", 0),
    ("bbox", 1),
    ("retries", 0),
    ("progress", 1),
    ("shard", 1),
    ("spare", 1),
    ("gzip", 1),
    ("turn", 1),
    ("copy", 1),
    ("grid", 2),
    ("scratch", 2),
    ("store", 2),
    ("unpack", 2),
    ("region_memory", 3),
    ("volume", 3),
    ("cached", 4),
    ("description", 4),
    ("notes", 4),
    ("take_over", 4),
    ("missing", 4),
    ("plan", 4),
    ("markers", 4),
    ("zarr", 5),
    ("precomputed", 5),
    ("n5", 5),
    ("demo", 5),
    ("open", 6),
    ("recording", 6),
    ("download", 7),
    ("upload", 7),
    ("found", 9),
    ("leftovers", 8),
];

/// The same for the crate of GPU arrays.
const CUDA_FLOORS: &[(&str, u32)] = &[
    ("error", 0),
    ("uuid", 0),
    ("captures", 1),
    ("context", 1),
    ("device", 1),
    ("driver", 1),
    ("pending", 1),
    ("reaper", 1),
    ("stream", 1),
    ("copies", 2),
    ("layout", 2),
    ("memory", 2),
    ("array", 3),
    ("chunk", 3),
    ("lender", 3),
    ("export", 4),
    ("page_lockable", 4),
    ("page_locked", 4),
    ("parcel", 4),
    ("transfer", 5),
];

/// The files and folders that may distinguish platforms.
const PLATFORMS: &[&str] = &[
    "src/os/",
    "volume/src/download/processes.rs",
    "volume/src/store/",
    "cli/src/machine/holders.rs",
    "cli/src/machine/host.rs",
    "cli/src/interrupt.rs",
];

/// The words by which a `cfg` distinguishes platforms. `target_endian` is not among them, since files have a byte order
/// too.
const PLATFORM_WORDS: &[&str] = &[
    "unix",
    "windows",
    "target_os",
    "target_family",
    "target_vendor",
    "target_env",
    "target_arch",
    "target_pointer_width",
];

/// The number of lines beyond which a file is named in the output, as it may contain two ideas.
const LONG_FILE: usize = 800;
const MOST_CRATES: usize = 36;

pub fn trials() -> Vec<Trial> {
    let tests: &[(&str, fn())] = crate::tests![
        files_use_only_their_own_and_lower_floors,
        uses_are_found_in_every_notation,
        higher_floors_cycles_and_detours_are_refused,
        platform_words_are_found_in_code_only,
        unsafe_is_only_where_the_architecture_says,
        platforms_are_distinguished_on_the_lowest_floor_only,
        files_begin_with_their_purpose,
        comments_end_at_column_120,
        no_two_types_share_a_name,
        nothing_is_unfinished_or_skipped,
        debug_builds_have_named_steps,
        workflows_call_scripts_that_exist,
        the_core_stays_light,
        default_features_build_no_network_crates,
        dependencies_support_the_promised_compiler,
    ];
    crate::support::trials("tidy", tests)
}

/// Returns a test that every test of only one of the two backends is listed in docs/platforms.md with a reason. Returns
/// `None` if the run has only one of the backends.
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
        Trial::test("tidy::tests_of_one_backend_are_listed_with_a_reason", move || {
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

/// Returns every Rust file below a folder, with its path from the root and its text.
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

/// Returns the words, numbers and signs of a source with their lines. Comments are left out, and strings become `""`.
fn tokens(text: &str) -> Vec<(usize, &str)> {
    let mut tokens = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let hashes = rest
            .trim_start_matches(['b', 'c'])
            .strip_prefix('r')
            .map(|raw| raw.len() - raw.trim_start_matches('#').len());
        let raw = hashes.map(|hashes| format!("\"{}", "#".repeat(hashes))).filter(|end| {
            rest.trim_start_matches(['b', 'c', 'r']).trim_start_matches('#').starts_with('"') && !end.is_empty()
        });
        let (token, length) = if rest.starts_with("//") {
            ("", rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            ("", rest.find("*/").map_or(rest.len(), |end| end + 2))
        } else if let Some(end) = raw {
            let open = rest.find('"').unwrap() + 1;
            ("\"\"", rest[open..].find(&end).map_or(rest.len(), |at| open + at + end.len()))
        } else if first == '"' {
            let mut is_escaped = false;
            let end = rest[1..].find(|c| {
                let is_end = c == '"' && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                is_end
            });
            ("\"\"", end.map_or(rest.len(), |end| end + 2))
        } else if first == '\'' {
            // A character literal, or the quote of a lifetime.
            let mut inside = rest[1..].chars();
            let length = match (inside.next(), inside.next()) {
                (Some('\\'), _) => rest[3..].find('\'').map_or(rest.len(), |end| end + 4),
                (Some(c), Some('\'')) => c.len_utf8() + 2,
                _ => 1,
            };
            ("", length)
        } else if is_word(first) {
            let length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            (&rest[..length], length)
        } else if rest.starts_with("::") {
            ("::", 2)
        } else {
            (rest[..first.len_utf8()].trim(), first.len_utf8())
        };
        if !token.is_empty() {
            tokens.push((line, token));
        }
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    tokens
}

/// Returns the first names after a `::`: one name, or those of a group in braces.
fn first_names<'a>(tokens: &[(usize, &'a str)]) -> Vec<(usize, &'a str)> {
    if tokens.first().is_none_or(|(_, token)| *token != "{") {
        return tokens.first().copied().into_iter().collect();
    }
    let (mut depth, mut names) = (0, Vec::new());
    for pair in tokens.windows(2) {
        match pair[0].1 {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        match (depth, pair[0].1) {
            (0, _) => break,
            (1, "{" | ",") if pair[1].1 != "}" => names.push(pair[1]),
            _ => {}
        }
    }
    names
}

/// Returns the names that a file uses from the root of its crate, with the lines: through `crate::a`, `$crate::a`,
/// `crate::{a, b::c}`, and through enough `super`. `*`, `self` and `as` stand for the whole root.
fn uses_of_root<'a>(file: &str, text: &'a str) -> Vec<(usize, &'a str)> {
    let tokens = tokens(text);
    let at = |at: usize| tokens.get(at).map_or("", |(_, token)| *token);
    // A file of tests is a module of the file that it tests.
    let file = file.trim_end_matches(".rs").trim_end_matches("/mod");
    let file_depth = file.split('/').count() + usize::from(file.ends_with("_tests"));
    let (mut braces, mut names) = (Vec::new(), Vec::new());
    for (number, (line, token)) in tokens.iter().enumerate() {
        match *token {
            "{" => braces.push(number >= 2 && at(number - 2) == "mod"),
            "}" => drop(braces.pop()),
            "crate" if at(number + 1) == "as" => names.push((*line, "as")),
            "crate" if at(number + 1) == "::" => names.extend(first_names(&tokens[number + 2..])),
            "super" if number == 0 || at(number - 1) != "::" => {
                let chain =
                    (number..).step_by(2).take_while(|next| at(*next) == "super" && at(next + 1) == "::").count();
                if chain >= file_depth + braces.iter().filter(|is_module| **is_module).count() {
                    names.extend(first_names(&tokens[number + 2 * chain..]));
                }
            }
            _ => {}
        }
    }
    names
}

/// Returns the violations among the modules of one crate. `files` are paths in its folder with their texts.
fn complaints_about_floors(files: &[(&str, &str)], floor: &dyn Fn(&str) -> Option<u32>) -> Vec<String> {
    let module = |file: &str| file.split('/').next().unwrap().trim_end_matches(".rs").to_owned();
    let modules: BTreeSet<String> = files.iter().map(|(file, _)| module(file)).collect();
    let mut complaints: Vec<String> = Vec::new();
    let mut edges: BTreeMap<(String, String), String> = BTreeMap::new();
    for (file, text) in files.iter().filter(|(file, _)| !["lib.rs", "main.rs"].contains(file)) {
        let user = module(file);
        let Some(own) = floor(&user) else {
            complaints.push(format!("{file} is on no floor: add it to the table"));
            continue;
        };
        for (line, used) in uses_of_root(file, text) {
            let place = format!("{file}:{line}");
            match floor(used).filter(|_| modules.contains(used)) {
                // Items that exported macros need at the root, and the macros themselves, which the language puts
                // there.
                None if used.starts_with("__") || text.lines().nth(line - 1).unwrap().contains("$crate") => {}
                None if files.iter().any(|(_, text)| text.contains(&format!("macro_rules! {used} {{"))) => {}
                None => complaints.push(format!("{place}: crate::{used} is no module; name the one that has it")),
                Some(floor) if floor > own => complaints.push(format!("{place}: floor {own} uses crate::{used}")),
                Some(floor) if floor == own && used != user => {
                    edges.entry((user.clone(), used.to_owned())).or_insert(place);
                }
                Some(_) => {}
            }
        }
    }
    for ((user, used), place) in &edges {
        let mut reached = BTreeSet::from([used]);
        while let Some((_, next)) = edges.keys().find(|(from, to)| reached.contains(from) && !reached.contains(to)) {
            reached.insert(next);
        }
        if reached.contains(user) {
            complaints.push(format!("{place}: {user} uses crate::{used}, which needs {user}"));
        }
    }
    complaints
}

fn files_use_only_their_own_and_lower_floors() {
    let mut complaints = Vec::new();
    // All modules of the command-line program are on one floor.
    for (folder, floors) in
        [("src", Some(FLOORS)), ("volume/src", Some(VOLUME_FLOORS)), ("cuda/src", Some(CUDA_FLOORS)), ("cli/src", None)]
    {
        let sources = sources(folder);
        let files: Vec<(&str, &str)> =
            sources.iter().map(|(file, text)| (&file[folder.len() + 1..], text.as_str())).collect();
        let floor = |module: &str| match floors {
            Some(floors) => floors.iter().find(|(name, _)| *name == module).map(|(_, floor)| *floor),
            None => Some(0),
        };
        complaints.extend(complaints_about_floors(&files, &floor).into_iter().map(|text| format!("{folder}/{text}")));
    }
    fail_if_any(&complaints);
}

fn uses_are_found_in_every_notation() {
    let found = |file: &str, text: &str| -> Vec<String> {
        uses_of_root(file, text).into_iter().map(|(line, name)| format!("{line} {name}")).collect()
    };
    assert_eq!(found("a.rs", "use crate::b::C;\nfn f() { crate::d::e(crate::g::H) }"), ["1 b", "2 d", "2 g"]);
    assert_eq!(
        found("a.rs", "use crate::{\n    b::{self, C, crate_d},\n    e,\n    f as g,\n};"),
        ["2 b", "3 e", "4 f"]
    );
    assert_eq!(found("a.rs", "use {crate::b, std::io, crate::{c::*}};"), ["1 b", "1 c"]);
    assert_eq!(found("a.rs", "macro_rules! m { () => { $crate::b!(); crate ::\n c() } }"), ["1 b", "2 c"]);
    assert_eq!(found("a.rs", "use crate::*;\nuse crate::{self as r};\nuse crate as s;"), ["1 *", "2 self", "3 as"]);
    assert_eq!(
        found("a.rs", "use super::b;\nmod m { use super::c; use super::super::{d, e}; }\nuse super::f;").len(),
        4
    );
    assert_eq!(found("a/mod.rs", "use super::b;"), ["1 b"]);
    assert_eq!(found("a/c/d.rs", "use super::b;\nuse super::super::c;\nuse super::super::super::e;"), ["3 e"]);
    let hidden = "// crate::b\n/// crate::b\n/* crate::b */ pub(crate) pub(super) pub(in crate) \"crate::b \\\" crate::b\"\n\
                  r#\"crate::b \" crate::b\"# b'\"' '\\'' '\"' &'a str";
    assert_eq!(found("a.rs", hidden), [""; 0]);
    assert_eq!(found("a.rs", &format!("{hidden}\ncrate::c")), ["5 c"], "the lexer is in step afterwards");
}

fn higher_floors_cycles_and_detours_are_refused() {
    let floors = [("low", 0), ("a", 1), ("b", 1), ("c", 1), ("high", 2)];
    let floor = |module: &str| floors.iter().find(|(name, _)| *name == module).map(|(_, floor)| *floor);
    let wrong = |files: &[(&str, &str)]| complaints_about_floors(files, &floor);
    let rest = [("low.rs", ""), ("high.rs", "use crate::low;"), ("lib.rs", "use crate::high;")];
    let with = |files: &[(&'static str, &'static str)]| [files, &rest[..]].concat();
    let good =
        with(&[("a/mod.rs", "use crate::a::x;"), ("b.rs", "use crate::{a, low};"), ("c.rs", "use crate::{a, b};")]);
    assert_eq!(wrong(&good), [""; 0]);
    let upward = wrong(&with(&[("a/x.rs", "use crate::{low,\nhigh};")]));
    assert_eq!(upward, ["a/x.rs:2: floor 1 uses crate::high"]);
    let pair =
        wrong(&with(&[("a.rs", "use crate::b;"), ("b.rs", "fn f() { crate::a::g() }"), ("c.rs", "use crate::a;")]));
    assert_eq!(pair, ["a.rs:1: a uses crate::b, which needs a", "b.rs:1: b uses crate::a, which needs b"]);
    let ring = wrong(&with(&[("a.rs", "use crate::b;"), ("b.rs", "use super::c;"), ("c.rs", "use crate::{low, a};")]));
    assert_eq!(ring.len(), 3, "{ring:?}");
    let detour = wrong(&with(&[("a.rs", "use crate::Thing;\nuse crate::*;")]));
    assert_eq!(detour.len(), 2, "what the root exports may come from any floor: {detour:?}");
    assert_eq!(wrong(&with(&[("new.rs", "")])), ["new.rs is on no floor: add it to the table"]);
}

fn unsafe_is_only_where_the_architecture_says() {
    compare_unsafe("ARCHITECTURE.md", &["src", "volume/src", "cli/src", "python/src"]);
    compare_unsafe("cuda/ARCHITECTURE.md", &["cuda/src", "cuda/fake/src"]);
}

/// Compares the files below some folders that contain `unsafe` with those that a page lists.
fn compare_unsafe(page: &str, folders: &[&str]) {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let section = text.split("## Where `unsafe` is").nth(1).expect("a list of the files with unsafe");
    let section = section.split("\n## ").next().unwrap();
    let is_file = |word: &&str| folders.iter().any(|folder| word.starts_with(&format!("{folder}/")));
    let listed: BTreeSet<String> = section.split('`').filter(is_file).map(Into::into).collect();
    let has_unsafe = |(_, text): &(String, String)| tokens(text).iter().any(|(_, token)| *token == "unsafe");
    let all = folders.iter().flat_map(|folder| sources(folder));
    let found: BTreeSet<String> = all.filter(has_unsafe).map(|(file, _)| file).collect();
    assert_eq!(found, listed, "left: what the source has; right: what {page} lists");
}

/// Returns the lines of a source that distinguish platforms: a `cfg` in any form, and uses of `std::os`.
fn platform_lines(text: &str) -> BTreeSet<usize> {
    let tokens = tokens(text);
    let mut lines = BTreeSet::new();
    for (number, (line, token)) in tokens.iter().enumerate() {
        let after = &tokens[number + 1..];
        if matches!(*token, "std" | "core") && after.first().is_some_and(|(_, token)| *token == "::") {
            lines.extend(first_names(&after[1..]).into_iter().filter(|(_, name)| *name == "os").map(|(line, _)| line));
        }
        let mut inside = after.iter().map(|(_, token)| *token).skip_while(|token| *token == "!").peekable();
        if matches!(*token, "cfg" | "cfg_attr") && inside.peek() == Some(&"(") {
            let mut depth = 0;
            let inside = inside.take_while(|token| {
                depth += i32::from(*token == "(") - i32::from(*token == ")");
                depth > 0
            });
            if inside.collect::<Vec<_>>().iter().any(|word| PLATFORM_WORDS.contains(word)) {
                lines.insert(*line);
            }
        }
    }
    lines
}

fn platforms_are_distinguished_on_the_lowest_floor_only() {
    // The models need loom, which is a dependency on this platform only.
    let models = r#"target_os = "linux", target_pointer_width = "64"))]"#;
    let mut complaints = Vec::new();
    for (file, text) in ["src", "volume/src", "cli/src"].into_iter().flat_map(sources) {
        let found = platform_lines(&text);
        if PLATFORMS.iter().any(|known| file.starts_with(known)) {
            continue;
        }
        let lines =
            text.lines().enumerate().filter(|(number, line)| found.contains(&(number + 1)) && !line.ends_with(models));
        complaints.extend(lines.map(|(number, line)| format!("{file}:{}: {line}", number + 1)));
    }
    for known in PLATFORMS {
        let has_reason = |(file, text): &(String, String)| file.starts_with(known) && !platform_lines(text).is_empty();
        if !["src", "volume/src", "cli/src"].into_iter().flat_map(sources).any(|source| has_reason(&source)) {
            complaints.push(format!("{known} distinguishes no platforms: remove it from the list"));
        }
    }
    fail_if_any(&complaints);
}

fn platform_words_are_found_in_code_only() {
    let found = |text: &str| platform_lines(text).into_iter().collect::<Vec<_>>();
    for text in [
        "#[cfg(unix)]",
        "#[cfg(not(any(unix, windows)))]",
        "if cfg!(windows) {}",
        "#[cfg(all(\n    test,\n    target_os = \"linux\",\n))]",
        "#[cfg_attr(not(target_env = \"gnu\"), allow(dead_code))]",
        "use std::os::unix::fs::MetadataExt;",
        "use std::{os::fd::AsFd, path::Path};",
    ] {
        assert_eq!(found(text), [1], "{text}");
    }
    for text in
        ["// #[cfg(unix)]", "#[cfg(test)]", "\"cfg(unix)\"", "cfg!(target_endian = \"big\")", "fn f(windows: u8) {}"]
    {
        assert_eq!(found(text), [0; 0], "{text}");
    }
}

fn files_begin_with_their_purpose() {
    let mut complaints = Vec::new();
    for folder in ["src", "tests", "examples", "benches", "volume", "cuda", "cli"] {
        for (file, text) in sources(folder) {
            if !text.starts_with("//!") {
                complaints.push(format!("{file} does not begin with a `//!` comment"));
            }
            if text.lines().count() > LONG_FILE {
                println!("warning: {file} has more than {LONG_FILE} lines");
            }
        }
    }
    fail_if_any(&complaints);
}

/// Names that every crate may use for a type of its own.
const SHARED_NAMES: &[&str] = &["Error", "IntoError", "Result"];

/// Returns the types that a file defines, with their lines. Indented definitions, such as associated types, do not
/// count.
fn types(text: &str) -> Vec<(usize, &str)> {
    text.lines()
        .enumerate()
        .filter_map(|(number, line)| {
            let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
            let mut word = words.next()?;
            if line.starts_with(char::is_whitespace) || line.starts_with("//") {
                return None;
            }
            while matches!(word, "pub" | "crate" | "super" | "in" | "unsafe" | "arena") {
                word = words.next()?;
            }
            matches!(word, "struct" | "enum" | "trait" | "type" | "union")
                .then(|| words.next())?
                .map(|name| (number + 1, name))
        })
        .collect()
}

/// Code ends there by rustfmt, except for what is in quotes.
fn comments_end_at_column_120() {
    let mut complaints = Vec::new();
    for folder in ["src", "tests", "examples", "benches", "volume", "cuda", "cli", "python/src"] {
        for (file, text) in sources(folder) {
            let mut is_block = false; // a program or a picture in a comment
            for (number, line) in text.lines().enumerate() {
                let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
                let comment = comment.trim_start_matches(['/', '!']).trim_start();
                is_block ^= comment.starts_with("```");
                let is_table = comment.starts_with('|');
                if line.chars().count() > 120 && !is_block && !is_table {
                    complaints.push(format!("{file}:{}", number + 1));
                }
            }
        }
    }
    fail_if_any(&complaints);
}

fn no_two_types_share_a_name() {
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    let mut complaints = Vec::new();
    for (file, text) in ["src", "volume/src", "cuda/src", "cli/src"].into_iter().flat_map(sources) {
        // Platforms have types of the same name, of which only one is compiled. Tests have their own types.
        if file.starts_with("src/os/") || file.contains("test") || file.ends_with("_model.rs") {
            continue;
        }
        for (line, name) in types(&text).into_iter().filter(|(_, name)| !SHARED_NAMES.contains(name)) {
            let place = format!("{file}:{line}");
            if let Some(first) = known.insert(name.to_owned(), place.clone()) {
                complaints.push(format!("{name} is a type at {first} and another at {place}"));
            }
        }
    }
    assert!(known.len() > 300, "{} types", known.len());
    fail_if_any(&complaints);
}

fn nothing_is_unfinished_or_skipped() {
    // The words are split, so that this file does not contain them.
    let words = [concat!("to", "do!("), concat!("un", "implemented!("), concat!("db", "g!("), concat!("FIX", "ME")];
    let words = words.iter().chain(&[concat!("#[ig", "nore")]);
    let mut complaints = Vec::new();
    for folder in ["src", "tests", "examples", "benches", "volume", "cuda", "cli"] {
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

fn workflows_call_scripts_that_exist() {
    let mut called = BTreeSet::new();
    for file in fs::read_dir(root().join(".github/workflows")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let words = text.split_whitespace().filter(|word| word.starts_with("scripts/") || word.starts_with(".ci/"));
        called.extend(words.map(str::to_owned));
    }
    assert!(called.contains(".ci/run") && called.len() > 1, "{called:?}");
    let missing: Vec<String> = called.into_iter().filter(|script| !root().join(script).is_file()).collect();
    fail_if_any(&missing);
}

/// Without named steps the suite `steps` would be missing silently.
fn debug_builds_have_named_steps() {
    let has_steps = cfg!(ndshm_steps) || !cfg!(debug_assertions);
    assert!(has_steps, "RUSTFLAGS hides those of .cargo/config.toml: unset it, or add `--cfg ndshm_steps` to it");
}

fn the_core_stays_light() {
    let tree = cargo(&["tree", "-p", "ndarray-shm", "-e", "normal", "--prefix", "none", "--format", "{p}"]);
    let crates: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(" (").next()).collect();
    assert!(crates.len() > 5, "{tree}");
    assert!(crates.len() < MOST_CRATES, "{} crates: {crates:?}", crates.len());
}

fn default_features_build_no_network_crates() {
    let tree = |features: &[&str]| {
        cargo(&[&["tree", "-p", "ndshm", "-e", "normal", "--prefix", "none", "--format", "{p}"], features].concat())
    };
    let network = |tree: &str| ["tokio", "object_store", "reqwest"].map(|name| tree.contains(&format!("\n{name} v")));
    assert_eq!(network(&tree(&[])), [false; 3], "remote stores need a feature");
    assert_eq!(network(&tree(&["--features", "remote"])), [true; 3], "the feature includes remote stores");
    let libjpeg = |features: &str| tree(&["--features", features]).contains("\nturbojpeg-sys v");
    assert!(libjpeg("turbojpeg") && !libjpeg("full"), "no other feature needs cmake");
}

fn dependencies_support_the_promised_compiler() {
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
