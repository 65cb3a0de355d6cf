//! The documentation pages: their links resolve, and their English stays plain.

use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::Trial;

use crate::support;

/// Words for unnamed actors. A sentence with one of them does not name the thing that acts (CONTRIBUTING.md).
const VAGUE: &[&str] =
    &["whoever", "nobody", "somebody", "anybody", "everybody", "whosoever", "he", "him", "his", "whom", "whose"];

/// The most such words in sources and pages. The number may only fall.
const MOST_VAGUE: usize = 24;

pub fn trials() -> Vec<Trial> {
    support::trials(
        "tidy",
        crate::tests![links_of_pages_resolve, glossary_agrees_with_public_names, vague_subjects_do_not_come_back],
    )
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns every file below the root with one of these endings, except built and hidden ones.
fn files(endings: &[&str]) -> Vec<PathBuf> {
    let mut folders = vec![root().to_path_buf()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !name.starts_with('.') && !["target", "shared"].contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                files.push(path);
            }
        }
    }
    assert!(!files.is_empty(), "no files end with {endings:?}");
    files
}

/// Returns a heading's anchor, as links name it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn links_of_pages_resolve() {
    let mut wrong = Vec::new();
    let mut looked_at = 0;
    for page in files(&[".md"]) {
        let text = fs::read_to_string(&page).unwrap();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://") && !target.contains(char::is_whitespace)) {
            looked_at += 1;
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            let leads = file.exists()
                && (heading.is_empty()
                    || fs::read_to_string(&file)
                        .unwrap()
                        .lines()
                        .any(|line| line.starts_with('#') && anchor(line.trim_start_matches('#')) == heading));
            if !leads {
                wrong.push(format!("{}: {target}", page.display()));
            }
        }
    }
    assert!(looked_at > 50, "only {looked_at} links were found");
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
}

/// The most words that the glossary may have.
const MOST_WORDS: usize = 40;

/// Words of public types that mean what they mean everywhere.
const ORDINARY: &[&str] = &[
    "Access",
    "Context",
    "Create",
    "Creation",
    "Ending",
    "Entry",
    "Error",
    "File",
    "Inspection",
    "Memory",
    "Other",
    "Page",
    "Pages",
    "Program",
    "Progress",
    "Result",
    "Shared",
];

/// Returns the words of a name in camel case.
fn words(name: &str) -> impl Iterator<Item = &str> {
    let begins: Vec<usize> = name.match_indices(char::is_uppercase).map(|(at, _)| at).collect();
    let ends: Vec<usize> = begins.iter().skip(1).copied().chain([name.len()]).collect();
    begins.into_iter().zip(ends).map(|(begin, end)| &name[begin..end])
}

/// Returns the names that a source exports: those in `pub use`, and the items that a room defines in its `mod.rs`.
fn exported(file: &Path, text: &str) -> Vec<String> {
    let name = |rest: &str| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().map(str::to_owned);
    let statements = text.split("\npub use ").skip(1).filter_map(|rest| rest.split(';').next());
    let mut names: Vec<String> =
        statements.flat_map(|names| names.split([',', '{', '}', ':', ' ', '\n'])).filter_map(name).collect();
    if file.ends_with("mod.rs") || file.ends_with("lib.rs") {
        let items = ["struct", "enum", "trait", "unsafe trait", "fn"].map(|kind| format!("\npub {kind} "));
        names.extend(items.iter().flat_map(|item| text.split(item).skip(1)).filter_map(name));
    }
    names.retain(|name| !name.is_empty());
    names
}

fn glossary_agrees_with_public_names() {
    let page = fs::read_to_string(root().join("docs/glossary.md")).unwrap();
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| word "))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!((20..=MOST_WORDS).contains(&rows.len()), "{} words", rows.len());
    let listed: Vec<&str> = rows.iter().flat_map(|row| row[2].split('`').skip(1).step_by(2)).collect();
    let known: Vec<String> = rows.iter().flat_map(|row| row[0].split([',', ' '])).map(str::to_owned).collect();
    let (mut public, mut complaints) = (Vec::new(), Vec::new());
    for folder in ["src", "volume/src", "cuda/src"] {
        for file in files(&[".rs"]).into_iter().filter(|file| file.starts_with(root().join(folder))) {
            let names = exported(&file, &fs::read_to_string(&file).unwrap());
            let is_core = folder == "src" && !file.starts_with(root().join("src/os"));
            let types = names.iter().filter(|name| is_core && name.starts_with(char::is_uppercase));
            for name in types.filter(|name| !listed.contains(&name.as_str())) {
                let is_known = |word: &str| {
                    let word = word.to_lowercase();
                    known.iter().any(|known| *known == word || word.strip_suffix('s') == Some(known))
                };
                if words(name).all(|word| !ORDINARY.contains(&word) && !is_known(word)) {
                    complaints.push(format!("{name} of {} has no word of the glossary", file.display()));
                }
            }
            public.extend(names);
        }
    }
    let gone = listed.iter().filter(|name| !public.iter().any(|public| public == *name));
    complaints.extend(gone.map(|name| format!("the glossary has {name}, which is no public name")));
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

fn vague_subjects_do_not_come_back() {
    let mut found = Vec::new();
    for file in files(&[".rs", ".md", ".py", ".toml"]) {
        let text = fs::read_to_string(&file).unwrap().to_lowercase();
        let words = text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-');
        let vague = words.filter(|word| VAGUE.contains(word)).count();
        if vague > 0 {
            found.push((vague, file.display().to_string()));
        }
    }
    let all: usize = found.iter().map(|(number, _)| number).sum();
    found.sort_by(|one, other| other.cmp(one));
    let worst: Vec<String> = found.iter().take(10).map(|(number, file)| format!("{number:5}  {file}")).collect();
    println!("vague subjects: {all}");
    assert!(
        all <= MOST_VAGUE,
        "{all} vague subjects, where there were {MOST_VAGUE}: name the thing that acts (the process, the reader, the kernel)\n{}",
        worst.join("\n")
    );
}
