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
