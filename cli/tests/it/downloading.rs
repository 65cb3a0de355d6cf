//! Downloads, compared byte by byte with the formula of the volume's elements.

use std::fs;
use std::path::Path;
use std::process::Command;

#[cfg(target_os = "linux")]
use crate::scene::bound_by_rights;
use crate::scene::{Scene, run, text};
use crate::volume::{self, CHUNKS, SHAPE};

/// Returns a command that downloads the scene's volume.
pub(crate) fn download(scene: &Scene, name: &str, arguments: &[&str]) -> Command {
    let mut command = scene.ndshm(["download", "--location", name, "--json", "--quiet"]);
    command.args(arguments).arg(scene.volume());
    command
}

/// Asserts by a download that a volume has the expected elements.
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
        // A Python string literal escapes backslashes as JSON does.
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
    // The environment selects real shared memory, and `--emulate`, which workers do not get, emulated memory.
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
fn missing_chunks_follow_the_options() {
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

/// A retry would not help: unlike a server, a disk does not recover by itself.
#[cfg(target_os = "linux")]
#[test]
fn unreadable_chunk_fails_the_download_without_retries() {
    use std::os::unix::fs::PermissionsExt as _;

    let scene = Scene::new();
    let elements: Vec<u8> = (0..512u32).map(|at| u8::try_from(at % 251).expect("small")).collect();
    fs::write(scene.emulated().join("x"), elements).expect("written");
    for format in ["precomputed", "zarr3"] {
        let to = scene.temporary().join(format);
        let encoding =
            ["--format", format, "--encoding", "gzip", "--shape", "8,8,8", "--chunk", "4,8,8", "--order", "c"];
        let mut command = scene.ndshm(["upload", "x", text(&to), "--create", "--quiet", "--dtype", "uint8"]);
        run(command.args(encoding)).expect_code(0);
        let last = files_below(&to).into_iter().max().expect("a chunk");
        for _ in ["by one thread, first chunk good", "again, as nothing was kept"] {
            fs::set_permissions(&last, fs::Permissions::from_mode(0o000)).expect("ours");
            let mut command = scene.ndshm(["download", text(&to), "--location", "y", "--workers", "1", "--json"]);
            let test = "unreadable_chunk_fails_the_download_without_retries";
            let Some(mut command) = bound_by_rights(test, command.args(["--requests", "1"])) else { return };
            let finished = run(&mut command).expect_code(1);
            let told = finished.json();
            let error = told["error"].as_str().expect("an error");
            assert!(error.contains("give this user permission to read"), "{finished:?}");
            assert!(error.contains(&format!("`{}`", last.display())), "the path of the file: {finished:?}");
            assert!(told["because"][0].as_str().expect("a cause").contains("ermission denied"), "{finished:?}");
            assert!(!finished.err.contains("NDSHM_RETRY_SECONDS") && !finished.err.contains("kept"), "{finished:?}");
            assert_eq!(scene.files(), ["x"], "nothing half-painted is kept");
        }
    }
}

/// Returns all files below a directory except the metadata of volumes.
#[cfg(target_os = "linux")]
fn files_below(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else if !["info", "zarr.json"].iter().any(|name| path.ends_with(name)) {
            files.push(path);
        }
    }
    files
}
