//! Downloads compared, byte by byte, with the formula that made the volume.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::scene::{Scene, run, text};
use crate::volume::{self, CHUNKS, SHAPE};

/// Downloads the volume of the scene.
pub(crate) fn download(scene: &Scene, name: &str, arguments: &[&str]) -> Command {
    let mut command = scene.ndshm(["download", "--location", name, "--json", "--quiet"]);
    command.args(arguments).arg(scene.volume());
    command
}

/// Demands that a volume holds what it should, by downloading it.
#[track_caller]
pub(crate) fn assert_whole(scene: &Scene, volume: &Path) {
    run(&mut scene.ndshm(["download", text(volume), "--location", "again", "--replace", "--quiet"])).expect_code(0);
    assert!(fs::read(scene.emulated().join("again")).expect("there") == volume::expected_whole());
}

#[test]
fn threads_paint_the_whole_volume_in_c_order() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    let mut command = scene.ndshm(["download", "--location", "whole", "--workers", "3"]);
    let finished = run(command.arg(scene.volume())).expect_code(0);
    assert!(
        finished.out.contains(&format!("painted {CHUNKS} of {CHUNKS} chunks; 0 were already done")),
        "{finished:?}"
    );
    let path = scene.emulated().join("whole");
    let python = format!(
        "a = np.memmap({}, dtype=\"<u2\", mode=\"r\", shape=({}, {}, {}), order=\"C\")",
        // Python's text is written like JSON's, backslashes and all.
        serde_json::json!(path),
        SHAPE[0],
        SHAPE[1],
        SHAPE[2]
    );
    assert!(finished.out.contains(&python), "{finished:?}");
    assert!(finished.err.contains(&format!("of {CHUNKS} chunks")), "progress: {finished:?}");
    assert!(fs::read(path).expect("there") == volume::expected_whole());
    assert_eq!(scene.files(), ["whole"]);
}

#[test]
fn processes_paint_an_unaligned_region_in_f_order() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    let mut command = scene.ndshm(["download", "--location", "part", "--processes", "--workers", "2", "--order", "f"]);
    let command = command.args(["--bbox", "13:99,5:50,:", "--json", "--quiet"]).arg(scene.volume());
    let finished = run(command).expect_code(0);
    assert_eq!(finished.err, "");
    let report = finished.json();
    assert_eq!(report["shape"], serde_json::json!([86, 45, SHAPE[2]]));
    assert_eq!(report["order"], "F");
    assert_eq!(report["dtype"], "<u2");
    assert_eq!(report["location"], "part");
    assert_eq!(report["backend"], "emulated");
    assert_eq!(report["bytes"], 86 * 45 * SHAPE[2] * 2);
    assert_eq!(report["chunks"], 3 * 2 * 5);
    assert_eq!(report["painted"], 3 * 2 * 5);
    assert_eq!(report["resumed"], 0);
    assert_eq!(report["python"][0], "import numpy as np");
    assert!(report["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0));
    let bytes = fs::read(scene.emulated().join("part")).expect("there");
    assert!(bytes == volume::expected(&[13..99, 5..50, 0..SHAPE[2]], false));
}

#[test]
fn worker_processes_use_the_directory_of_their_parent() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    // The environment says real shared memory; the switch, which workers do not get, says emulated.
    let mut command = scene.ndshm_in_shm(["download", "--location", "small", "--processes", "--workers", "2"]);
    let command = command.args(["--emulate", "--bbox", "0:50,0:50,0:60"]).arg(scene.volume());
    run(command.env("EMULATE_SHM", "0")).expect_code(0);
    let bytes = fs::read(scene.emulated().join("small")).expect("there");
    assert!(bytes == volume::expected(&[0..50, 0..50, 0..60], true));
}

#[cfg(target_os = "linux")]
#[test]
fn processes_paint_into_real_shared_memory() {
    let mut scene = Scene::new();
    let name = scene.shm_name();
    volume::write(&scene.volume());
    let mut command = scene.ndshm_in_shm(["download", "--location", &name, "--processes", "--workers", "2"]);
    let command = command.args(["--bbox", "30:90,40:100,50:120"]).arg(scene.volume());
    let finished = run(command).expect_code(0);
    let path = format!("/dev/shm/{name}");
    assert!(finished.out.contains(&path), "{finished:?}");
    assert!(fs::read(&path).expect("there") == volume::expected(&[30..90, 40..100, 50..120], true));
    assert_eq!(scene.files(), [""; 0]);
    let text = run(&mut scene.ndshm_in_shm(["unlink", &name])).expect_code(0).out;
    assert_eq!(text, format!("unlinked {name}\n"));
}

#[test]
fn a_region_can_become_a_file_in_any_directory() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    let file = scene.temporary().join("region.raw");
    let get = |more: &[&str]| {
        let mut command = scene.ndshm(["download", "--file", text(&file), "--bbox", "30:90,40:100,50:120", "--json"]);
        run(command.args(more).arg(scene.volume()))
    };
    let report = get(&["--processes", "--workers", "2"]).expect_code(0).json();
    assert!(report["path"].as_str().expect("a path").ends_with("region.raw"), "{report:#}");
    assert!(fs::read(&file).expect("there") == volume::expected(&[30..90, 40..100, 50..120], true));
    let finished = get(&[]).expect_code(1);
    assert!(finished.json()["advice"].as_str().expect("advice").contains("--replace"), "{finished:?}");
    get(&["--replace"]).expect_code(0);
    assert_eq!(scene.files(), [""; 0]);
    assert_eq!(crate::scene::names_in(&scene.temporary()), ["region.raw"]);
}

#[test]
fn missing_chunks_are_what_is_said() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    fs::remove_file(scene.volume().join("0.0.0")).expect("it is stored");
    let get =
        |more: &[&str]| run(&mut download(&scene, "x", &[&["--bbox", "0:4,0:4,0:4", "--replace"], more].concat()));
    let bytes = || fs::read(scene.emulated().join("x")).expect("there");
    get(&[]).expect_code(0);
    assert_eq!(bytes(), 4242u16.to_le_bytes().repeat(64));
    get(&["--fill", "7", "--processes", "--workers", "2"]).expect_code(0);
    assert_eq!(bytes(), 7u16.to_le_bytes().repeat(64));
    let finished = get(&["--missing", "error"]).expect_code(1);
    assert!(finished.err.contains("not stored"), "{finished:?}");
    for value in ["65536", "-1", "x"] {
        get(&["--fill", value]).expect_code(2);
    }
    get(&["--missing", "maybe"]).expect_code(2);
    get(&["--channels", "0:1"]).expect_code(2);
    get(&["--mip", "9"]).expect_code(2);
}
