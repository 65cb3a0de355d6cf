//! Shell completions and manual pages: they contain every command, and bash can parse its script.

use crate::scene::{Scene, run};

/// Returns the commands that `--help` lists.
fn commands(scene: &Scene) -> Vec<String> {
    let help = run(&mut scene.ndshm(["--help"])).expect_code(0).out;
    let list = help.split("Commands:\n").nth(1).expect("a list of commands").split("\n\n").next().expect("its end");
    let names = list.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next().map(str::to_owned));
    let names: Vec<String> = names.filter(|name| !name.is_empty() && name != "help").collect();
    assert!(names.len() > 10, "{names:?}");
    names
}

#[test]
fn completions_know_every_command() {
    let scene = Scene::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = run(&mut scene.ndshm(["completions", shell])).expect_code(0).out;
        for command in commands(&scene) {
            assert!(script.contains(&command), "{shell}: no {command}");
        }
    }
    run(&mut scene.ndshm(["completions", "tcsh"])).expect_code(2);
}

#[test]
#[cfg(unix)] // bash
fn bash_reads_its_completions() {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    let scene = Scene::new();
    let script = run(&mut scene.ndshm(["completions", "bash"])).expect_code(0).out;
    let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().expect("bash");
    bash.stdin.take().expect("a pipe").write_all(script.as_bytes()).expect("bash reads");
    assert!(bash.wait().expect("bash ends").success());
}

#[test]
fn manual_pages_have_every_command_and_exit_codes() {
    let scene = Scene::new();
    let page = run(&mut scene.ndshm(["man"])).expect_code(0).out;
    assert!(
        page.contains(".TH ndshm 1") && page.contains("Exit codes") && page.contains("NDSHM_EMULATED_DIR"),
        "{page}"
    );
    for command in commands(&scene) {
        assert!(page.contains(&format!("ndshm\\-{command}(1)")), "no {command}: {page}");
        let own = run(&mut scene.ndshm(["man", &command])).expect_code(0).out;
        assert!(own.contains(&format!(".TH ndshm-{command} 1")), "{own}");
    }
    for unknown in ["fly", "worker"] {
        let finished = run(&mut scene.ndshm(["man", unknown])).expect_code(2);
        assert!(finished.err.contains("--help"), "{finished:?}");
    }
}

/// Every environment variable of this project that the sources read is in the help text, and the text has no other.
#[test]
fn help_lists_every_environment_variable_of_the_sources() {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    /// Read only by tests.
    const OF_TESTS: [&str; 3] = ["NDSHM_POINTS", "NDSHM_STEP", "NDSHM_UNIT_TEST_ROLE"];

    fn collect(directory: &Path, names: &mut BTreeSet<String>) {
        for entry in fs::read_dir(directory).expect("sources") {
            let path = entry.expect("an entry").path();
            let is_source = path.extension().is_some_and(|extension| extension == "rs" || extension == "py");
            if path.is_dir() {
                collect(&path, names);
            } else if is_source && path.file_name().is_none_or(|name| name != "help.rs") {
                let source = fs::read_to_string(&path).expect("text");
                let words = source.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
                let is_ours = |word: &&str| {
                    let rest = word.strip_prefix("NDSHM_").unwrap_or_default();
                    !rest.is_empty() && rest.chars().all(|letter| letter.is_ascii_uppercase() || letter == '_')
                };
                names.extend(words.filter(is_ours).map(str::to_owned));
                // Other names are read where they are written.
                for call in ["env::var(\"", "env::var_os(\"", "environ.get(\"", "environ[\""] {
                    let calls = source.split(call).skip(1);
                    names.extend(calls.filter_map(|rest| rest.split_once('"')).map(|(name, _)| name.to_owned()));
                }
            }
        }
    }

    let scene = Scene::new();
    let help = run(&mut scene.ndshm(["help", "environment"])).expect_code(0).out;
    let mut names = BTreeSet::from(["EMULATE_SHM".to_owned()]);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for sources in ["src", "volume/src", "cli/src", "cuda/src", "python/src", "python/ndshm"] {
        collect(&root.join(sources), &mut names);
    }
    names.retain(|name| !OF_TESTS.contains(&name.as_str()) && !name.starts_with("NDSHM_TEST_"));
    assert!(names.len() > 8, "{names:?}");
    let environment = help.split("Environment:\n").nth(1).expect("a list of variables");
    let listed: BTreeSet<&str> = environment
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .flat_map(|line| line.trim().split("  ").next().unwrap_or_default().split(", "))
        .collect();
    let is_listed = |name: &str| {
        listed
            .iter()
            .any(|listed| *listed == name || listed.strip_suffix('*').is_some_and(|family| name.starts_with(family)))
    };
    let missing: Vec<_> = names.iter().filter(|name| !is_listed(name)).collect();
    assert!(missing.is_empty(), "not in `ndshm help environment`: {missing:?}");
    let unknown: Vec<_> = listed.iter().filter(|name| name.starts_with("NDSHM_") && !names.contains(**name)).collect();
    assert!(unknown.is_empty(), "read nowhere: {unknown:?}");
}
