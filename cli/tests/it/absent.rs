//! Missing chunks are counted and reported, and chunks in nested directories are found.

use std::fs;
use std::path::{Path, PathBuf};

use crate::downloading::download;
use crate::scene::{Scene, names_in, run, text};
use crate::uploading::upload;
use crate::volume;

/// A region of eight chunks, all of which are stored.
const REGION: [&str; 2] = ["--bbox", "0:64,0:64,0:120"];

/// Options for painting by threads and by processes.
const WAYS: [&[&str]; 2] = [&["--workers", "2"], &["--workers", "2", "--processes"]];

#[test]
fn missing_chunks_are_counted_by_threads_and_processes() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    for how in WAYS {
        let get = |more: &[&str]| run(&mut download(&scene, "x", &[how, &REGION, &["--replace"], more].concat()));
        let report = get(&[]).expect_code(0).json();
        let (chunks, before) =
            (report["chunks"].as_u64().expect("a number"), report["filled"].as_u64().expect("a number"));
        assert!(before < chunks, "{report:#}");
        let stored = fs::rename(scene.volume().join("0.0.0"), scene.temporary().join("kept"));
        stored.expect("the first chunk is stored");
        let finished = get(&["--fill", "7"]).expect_code(0);
        assert_eq!(finished.json()["filled"], before + 1, "{finished:?}");
        assert_eq!(finished.json()["warnings"], serde_json::json!([]), "{finished:?}");
        assert_eq!(finished.err, "");
        fs::rename(scene.temporary().join("kept"), scene.volume().join("0.0.0")).expect("put back");
    }
}

#[test]
fn region_without_stored_chunks_gives_a_warning() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    for name in names_in(&scene.volume()) {
        if name != ".zarray" {
            fs::remove_file(scene.volume().join(name)).expect("a chunk");
        }
    }
    for how in WAYS {
        let finished = run(&mut download(&scene, "x", &[how, &REGION, &["--replace"]].concat())).expect_code(0);
        let report = finished.json();
        assert_eq!(report["filled"], report["chunks"], "{report:#}");
        let warning = report["warnings"][0].as_str().expect("a warning");
        assert!(warning.contains("none of the chunks of this region is stored"), "{warning}");
        assert!(["scale", "path", "names"].iter().all(|cause| warning.contains(cause)), "{warning}");
        assert_eq!(finished.err.trim_end(), format!("warning: {warning}"), "once, in spite of --quiet");
    }
    let mut command = scene.ndshm(["download", "--location", "y", "--quiet", "--workers", "1"]);
    let finished = run(command.args(["--bbox", "0:4,0:4,0:4"]).arg(scene.volume())).expect_code(0);
    assert!(finished.out.contains("filled") && finished.out.contains("1 chunk not stored"), "{finished:?}");
    assert!(finished.err.contains("the only chunk of this region is not stored"), "{finished:?}");
}

/// Worker processes too report a missing chunk as an error of that chunk, and the download keeps nothing.
#[test]
fn missing_chunk_as_error_leaves_nothing_behind() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    fs::remove_file(scene.volume().join("0.0.0")).expect("a chunk");
    for how in WAYS {
        let finished =
            run(&mut download(&scene, "x", &[how, &REGION, &["--missing", "error"]].concat())).expect_code(1);
        let told = finished.json();
        assert!(told["error"].as_str().expect("an error").contains("is not stored"), "{told:#}");
        assert!(told["advice"].as_str().expect("advice").contains("--missing fill"), "{told:#}");
        assert_eq!(scene.files(), [""; 0]);
    }
}

/// Creates a Precomputed volume of eight chunks and an array with its elements. Returns the directory of its only
/// scale.
fn precomputed(scene: &Scene, path: &Path, encoding: &str) -> PathBuf {
    fs::write(scene.emulated().join("x"), elements()).expect("written");
    let create =
        ["--create", "--format", "precomputed", "--encoding", encoding, "--dtype", "uint8", "--shape", "8,8,8"];
    upload(scene, path, &[&create[..], &["--chunk", "4,4,4", "--order", "f"]].concat()).expect_code(0);
    path.join("1_1_1")
}

fn elements() -> Vec<u8> {
    (0..512u32).map(|at| u8::try_from(at % 250 + 1).expect("small")).collect()
}

/// Moves chunks to the nested paths that neuroglancer-scripts writes.
fn nest(directory: &Path) {
    for name in names_in(directory) {
        let parts: Vec<&str> = name.split('_').collect();
        let below = directory.join(parts[0]).join(parts[1]);
        fs::create_dir_all(&below).expect("made");
        fs::rename(directory.join(&name), below.join(parts[2])).expect("moved");
    }
}

#[test]
fn chunks_in_nested_directories_are_read_and_written_there() {
    for (encoding, suffix) in [("raw", ""), ("gzip", ".gz")] {
        let scene = Scene::new();
        let path = scene.temporary().join("volume");
        let directory = precomputed(&scene, &path, encoding);
        nest(&directory);
        let ranges = ["0-4", "4-8"];
        assert_eq!(names_in(&directory), ranges);
        let get = |more: &[&str]| {
            let arguments =
                ["download", text(&path), "--location", "y", "--order", "f", "--replace", "--quiet", "--json"];
            run(scene.ndshm(arguments).args(more))
        };
        for how in WAYS {
            assert_eq!(get(how).expect_code(0).json()["filled"], 0);
            assert_eq!(fs::read(scene.emulated().join("y")).expect("there"), elements());
        }

        // Chunks that are changed in part and chunks that are stored whole keep their paths.
        fs::write(scene.emulated().join("x"), vec![9; 4 * 8 * 8]).expect("written");
        let part = ["--bbox", "2:6,:,:,:", "--order", "f", "--read-modify-write"];
        upload(&scene, &path, &part).expect_code(0);
        assert_eq!(names_in(&directory), ranges);
        assert_eq!(names_in(&directory.join("0-4/4-8")), ranges.map(|range| format!("{range}{suffix}")));
        get(&[]).expect_code(0);
        let bytes = fs::read(scene.emulated().join("y")).expect("there");
        let expected = |(at, element): (usize, u8)| if (2..6).contains(&(at % 8)) { 9 } else { element };
        assert_eq!(bytes, elements().into_iter().enumerate().map(expected).collect::<Vec<u8>>());

        // A chunk missing in the nested layout is reported as missing.
        let chunk = directory.join("4-8").join("0-4").join(format!("0-4{suffix}"));
        fs::remove_file(&chunk).expect("a chunk");
        let finished = get(&[]).expect_code(1);
        assert!(finished.err.contains("is not stored") && finished.err.contains("4:8,0:4,0:4"), "{finished:?}");
        assert_eq!(get(&["--missing", "fill", "--processes"]).expect_code(0).json()["filled"], 1);
        // The error of a damaged chunk names its nested path.
        fs::write(&chunk, [0x1f, 0x8b, 8, 0]).expect("damaged");
        let finished = get(&["--missing", "fill"]).expect_code(1);
        assert!(finished.err.contains(&format!("chunk `{}`", chunk.display())), "{finished:?}");
    }
}

#[test]
fn scale_with_chunks_in_two_layouts_is_not_written() {
    let scene = Scene::new();
    let path = scene.temporary().join("volume");
    let directory = precomputed(&scene, &path, "raw");
    fs::create_dir_all(directory.join("0-4/0-4")).expect("made");
    fs::rename(directory.join("0-4_0-4_0-4"), directory.join("0-4/0-4/0-4")).expect("moved");
    let finished = upload(&scene, &path, &["--order", "f"]).expect_code(1);
    let told = finished.json();
    let error = told["error"].as_str().expect("an error");
    assert!(error.contains("two layouts") && error.contains("0-4/0-4/0-4") && error.contains("0-4_0-4_4-8"), "{error}");
    // Chunks of both layouts are read.
    let mut command = scene.ndshm(["download", text(&path), "--location", "y", "--order", "f", "--quiet"]);
    run(&mut command).expect_code(0);
    assert_eq!(fs::read(scene.emulated().join("y")).expect("there"), elements());
}
