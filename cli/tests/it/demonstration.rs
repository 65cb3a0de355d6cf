//! `demo`: the first command that new users run.

use crate::scene::{Finished, Scene, names_in, run};
#[cfg(unix)]
use crate::scene::{Running, signal, wait_until};

#[test]
fn demo_with_clean_leaves_nothing() {
    let scene = Scene::new();
    let finished = run(&mut scene.ndshm(["demo", "--clean"])).expect_code(0);
    assert!(finished.out.contains("np.memmap("), "{finished:?}");
    assert_eq!(scene.files(), [""; 0]);
    assert_eq!(names_in(&scene.temporary()), [""; 0]);
}

#[test]
fn a_demo_can_be_repeated_and_keeps_its_array() {
    let scene = Scene::new();
    run(&mut scene.ndshm(["demo"])).expect_code(0);
    let first = scene.files();
    assert!(first.contains(&"ndshm-demo".to_owned()), "{first:?}");
    run(&mut scene.ndshm(["demo"])).expect_code(0);
    assert_eq!(scene.files(), first);
    assert_eq!(names_in(&scene.temporary()), [""; 0]);
    let mut unlink = scene.ndshm(["unlink"]);
    run(unlink.args(first)).expect_code(0);
    assert_eq!(scene.files(), [""; 0]);
}

#[test]
fn demo_reports_in_json() {
    let scene = Scene::new();
    let finished = run(&mut scene.ndshm(["demo", "--clean", "--json", "--location", "shown"])).expect_code(0);
    assert_demonstrated(&finished, "emulated");
    assert_eq!(scene.files(), [""; 0]);
}

fn assert_demonstrated(finished: &Finished, backend: &str) {
    let report = finished.json();
    assert_eq!(report["cleaned"], true, "{report:#}");
    assert_eq!(report["downloads"].as_array().expect("a list").len(), 5, "{report:#}");
    for download in report["downloads"].as_array().expect("a list") {
        assert_eq!(download["verified"], true, "{report:#}");
        assert_eq!(download["backend"], backend, "{report:#}");
        assert_eq!(download["painted"], download["chunks"], "{report:#}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_demo_in_real_shared_memory_leaves_nothing() {
    let mut scene = Scene::new();
    let name = scene.shm_name();
    let finished = run(&mut scene.ndshm_in_shm(["demo", "--clean", "--json", "--location", &name])).expect_code(0);
    assert_demonstrated(&finished, "shm");
    let left: Vec<String> = names_in("/dev/shm".as_ref()).into_iter().filter(|file| file.contains(&name)).collect();
    assert_eq!(left, [""; 0]);
    assert_eq!(scene.files(), [""; 0]);
}

// Unix only: `crashes.rs` has the reason.
#[cfg(unix)]
#[test]
fn interrupted_demo_leaves_nothing() {
    let scene = Scene::new();
    let mut running = Running::start(&mut scene.ndshm(["demo"]));
    wait_until("the first array", || {
        assert!(running.is_running(), "it ended too early");
        scene.files().contains(&"ndshm-demo".to_owned())
    });
    assert!(signal(running.pid(), sysinfo::Signal::Interrupt));
    let finished = running.finish().expect_code(130);
    assert!(finished.err.contains("nothing was left behind"), "{finished:?}");
    assert_eq!(scene.files(), [""; 0]);
    assert_eq!(names_in(&scene.temporary()), [""; 0]);
}
