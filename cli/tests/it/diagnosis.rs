//! `doctor`: its checks and their states, and that it leaves nothing behind.

use serde_json::Value;

use crate::scene::{Finished, Scene, names_in, run};

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().expect("a list");
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{name}: {report:#}"))
}

fn diagnose(scene: &Scene, setting: &str) -> Finished {
    run(scene.ndshm(["doctor", "--json"]).env("EMULATE_SHM", setting))
}

#[test]
fn exit_code_follows_the_states_of_the_checks() {
    let scene = Scene::new();
    let finished = diagnose(&scene, "1");
    let report = finished.json();
    let about_shm: &[&str] =
        if cfg!(target_os = "linux") { &["shm-room", "shm-locks", "shm-drafts"] } else { &["shm-room"] };
    for name in about_shm.iter().chain(&[
        "backend",
        "emulated-room",
        "emulated-locks",
        "emulated-drafts",
        "open-files",
        "mappings",
        "huge-pages",
        "log-out",
        "manager",
        "leftovers",
        "emulated-descriptions",
        "orphans",
    ]) {
        let check = check(&report, name);
        let status = check["status"].as_str().expect("a word");
        assert!(["ok", "warning", "problem"].contains(&status), "{check:#}");
        assert_eq!(check["advice"].is_null(), status == "ok", "{check:#}");
        assert!(!check["found"].as_str().expect("text").is_empty(), "{check:#}");
    }
    let problems = report["checks"].as_array().expect("a list").iter().filter(|c| c["status"] == "problem").count();
    assert_eq!(report["healthy"], problems == 0);
    assert_eq!(finished.code, Some(i32::from(problems > 0)));
    assert_eq!(scene.files(), [""; 0]);
    assert_eq!(names_in(&scene.temporary()), [""; 0]);

    let text = run(&mut scene.ndshm(["doctor"])).out;
    assert!(
        text.lines().count() > if cfg!(target_os = "linux") { 11 } else { 8 } && text.contains("emulated-room"),
        "{text}"
    );
}

#[test]
fn invalid_boolean_setting_is_a_problem() {
    let scene = Scene::new();
    let finished = diagnose(&scene, "maybe").expect_code(1);
    let report = finished.json();
    assert_eq!(check(&report, "backend")["status"], "problem");
    assert!(check(&report, "backend")["found"].as_str().expect("text").contains("maybe"), "{report:#}");
    let text = run(scene.ndshm(["doctor"]).env("EMULATE_SHM", "maybe")).expect_code(1).out;
    assert!(text.starts_with("PROBLEM"), "{text}");
}

#[cfg(unix)]
#[test]
fn emulated_directory_writable_by_all_users_is_a_problem() {
    let scene = Scene::new();
    scene.set_mode_of_emulated(0o777);
    let report = diagnose(&scene, "1").expect_code(1).json();
    assert_eq!(check(&report, "emulated-room")["status"], "problem");
    assert!(check(&report, "emulated-room")["advice"].as_str().expect("text").contains("0700"), "{report:#}");
}

#[cfg(target_os = "linux")]
#[test]
fn read_only_shared_memory_is_reported_with_advice() {
    use crate::scene::with_mounts;
    let scene = Scene::new();
    let read_only = "mount -t tmpfs -o ro,size=256m none /dev/shm";
    for (setting, status, code) in [(None, "warning", 0), (Some("0"), "problem", 1)] {
        let mut command = scene.ndshm_in_shm(["doctor", "--json"]);
        command.envs(setting.map(|value| ("EMULATE_SHM", value)));
        let test = "read_only_shared_memory_is_reported_with_advice";
        let Some(mut command) = with_mounts(test, read_only, &command) else { return };
        let report = run(&mut command).expect_code(code).json();
        let found = check(&report, "shm-locks");
        assert_eq!(found["status"], status, "{found:#}");
        assert!(found["found"].as_str().expect("text").contains("mounted read-only"), "{found:#}");
        let advice = found["advice"].as_str().expect("advice");
        assert!(advice.contains("remount,rw") && advice.contains("EMULATE_SHM=1"), "{found:#}");
        if setting.is_none() {
            let backend = check(&report, "backend")["found"].as_str().expect("text").to_owned();
            assert!(backend.contains("because no array can be created in /dev/shm"), "{backend}");
        }
    }
}

/// The emulated directory shares its disk with other data. A limit keeps arrays from filling it.
#[cfg(target_os = "linux")]
#[test]
fn nearly_full_disk_is_a_warning() {
    use crate::scene::with_mounts;
    let scene = Scene::new();
    let limited = run(scene.ndshm(["doctor", "--json"]).env("NDSHM_EMULATED_LIMIT", "10M")).json();
    let found = check(&limited, "emulated-room")["found"].as_str().expect("text").to_owned();
    assert!(found.contains("10.0 MiB free") && found.contains("NDSHM_EMULATED_LIMIT allows 10.0 MiB"), "{found}");
    let wrong = run(scene.ndshm(["doctor", "--json"]).env("NDSHM_EMULATED_LIMIT", "10 GB")).expect_code(1).json();
    assert_eq!(check(&wrong, "emulated-room")["status"], "problem", "{wrong:#}");
    assert!(check(&wrong, "emulated-room")["found"].as_str().expect("text").contains("such as 10G"), "{wrong:#}");

    let mount = format!("mount -t tmpfs -o mode=0700,size=256m none '{}'", scene.emulated().display());
    let test = "nearly_full_disk_is_a_warning";
    let Some(mut command) = with_mounts(test, &mount, &scene.ndshm(["doctor", "--json"])) else { return };
    let report = run(&mut command).json();
    let full = check(&report, "emulated-room");
    assert_eq!(full["status"], "warning", "{full:#}");
    assert!(full["found"].as_str().expect("text").contains("little space is left on this disk"), "{full:#}");
    assert!(full["advice"].as_str().expect("text").contains("NDSHM_EMULATED_LIMIT"), "{full:#}");
}

/// Windows has no limit on descriptors.
#[cfg(unix)]
#[test]
fn few_descriptors_are_a_problem() {
    let scene = Scene::new();
    let mut limited = std::process::Command::new("sh");
    limited
        .args(["-c", "ulimit -n 20 && exec \"$0\" doctor --json", env!("CARGO_BIN_EXE_ndshm")])
        .env("EMULATE_SHM", "1")
        .env("NDSHM_EMULATED_DIR", scene.emulated());
    let report = run(&mut limited).expect_code(1).json();
    assert_eq!(check(&report, "open-files")["status"], "problem");
}
