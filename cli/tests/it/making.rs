//! Volumes that `upload --create` creates: the type of their elements, the compression of labels, and refusals that
//! leave nothing.

use std::fs;

use serde_json::Value;

use crate::scene::{Finished, Scene, names_in, run, text};

/// Creates a volume `new` of 4 x 4 x 4 elements from an array `x`.
fn make(scene: &Scene, dtype: &str, more: &[&str]) -> Finished {
    let size: usize = dtype.trim_start_matches(char::is_alphabetic).parse::<usize>().expect("bits") / 8;
    fs::write(scene.emulated().join("x"), vec![1; 64 * size]).expect("written");
    let to = scene.temporary().join("new");
    let mut command = scene.ndshm(["upload", "x", text(&to), "--create", "--order", "f", "--quiet"]);
    command.args(["--dtype", dtype, "--shape", "4,4,4", "--chunk", "4,4,4"]);
    run(command.args(more))
}

#[test]
fn type_of_a_new_volume_is_stored_and_printed() {
    let scene = Scene::new();
    let to = scene.temporary().join("new");
    for (dtype, encoding, said, expected, assumed) in [
        ("uint8", "raw", None, "image", true),
        ("uint8", "gzip", Some("segmentation"), "segmentation", false),
        ("uint16", "png", None, "image", true),
        ("uint16", "raw", Some("image"), "image", false),
        ("int32", "raw", None, "image", true),
        ("float32", "raw", None, "image", true),
        ("uint32", "raw", Some("segmentation"), "segmentation", false),
        ("uint32", "compressed_segmentation", None, "segmentation", false),
        ("uint64", "compressed_segmentation_gzip", Some("segmentation"), "segmentation", false),
        ("uint64", "gzip", Some("image"), "image", false),
    ] {
        let mut options = vec!["--format", "precomputed", "--encoding", encoding];
        options.extend(said.iter().flat_map(|said| ["--type", said]));
        let printed = make(&scene, dtype, &options).expect_code(0).out;
        let line = printed.lines().find_map(|line| line.trim().strip_prefix("type ")).expect("a line").trim();
        let told = if assumed { "image (assumed; for labels give --type segmentation)" } else { expected };
        assert_eq!(line, told, "{dtype} {encoding}");
        let info: Value = serde_json::from_slice(&fs::read(to.join("info")).expect("info")).expect("JSON");
        assert_eq!(info["type"], expected, "{dtype} {encoding}");

        // Repeating the command opens the existing volume, and JSON shows the same type.
        options.push("--json");
        assert_eq!(make(&scene, dtype, &options).expect_code(0).json()["type"], expected);
        let shown = run(&mut scene.ndshm(["info", text(&to), "--json"])).expect_code(0).json();
        assert_eq!(shown["type"], expected);
        let shown = run(&mut scene.ndshm(["info", text(&to)])).expect_code(0).out;
        assert!(shown.contains(&format!(": 1 scale of type {expected}\n")), "{shown}");
        fs::remove_dir_all(&to).expect("ours");
    }
}

#[test]
fn type_is_required_where_nothing_implies_it() {
    let scene = Scene::new();
    let to = scene.temporary().join("new");
    for (dtype, encoding) in [("uint32", "raw"), ("uint64", "gzip")] {
        let refused = make(&scene, dtype, &["--format", "precomputed", "--encoding", encoding, "--json"]);
        let error = refused.expect_code(2).json()["error"].as_str().expect("an error").to_owned();
        assert!(error.contains("--type image or segmentation") && !error.contains("plain array"), "{error}");
        assert!(!to.exists());
    }
    // `--type` is listed with the other missing options, if the volume can need it.
    fs::write(scene.emulated().join("x"), [7u8; 64]).expect("written");
    let missing = |arguments: &[&str]| {
        let refused = run(scene.ndshm(["upload", "x", text(&to), "--create"]).args(arguments)).expect_code(2);
        ["--dtype", "--chunk", "--type"].map(|option| refused.err.contains(option))
    };
    assert_eq!(missing(&["--format", "precomputed"]), [true; 3]);
    assert_eq!(missing(&["--dtype", "uint32", "--format", "precomputed"]), [false, true, true]);
    assert_eq!(missing(&["--dtype", "uint8", "--format", "precomputed"]), [false, true, false]);
    assert_eq!(missing(&["--dtype", "uint32"]), [false, true, false], "Zarr");
    assert_eq!(missing(&["--dtype", "uint32", "--format", "zarr2"]), [false, true, false]);
    assert_eq!(missing(&["--format", "precomputed", "--type", "image"]), [true, true, false]);
    let labels = ["--format", "precomputed", "--encoding", "compressed_segmentation"];
    assert_eq!(missing(&labels), [true, true, false]);
    assert!(!to.exists());
}

#[test]
fn contradicting_type_is_refused_and_leaves_nothing() {
    let scene = Scene::new();
    let to = scene.temporary().join("new");
    for (dtype, options, reason) in [
        (
            "uint32",
            &["--format", "precomputed", "--encoding", "compressed_segmentation", "--type", "image"][..],
            "labels",
        ),
        ("uint8", &["--format", "precomputed", "--encoding", "jpeg", "--type", "segmentation"], "jpeg changes"),
        ("uint8", &["--format", "zarr3", "--type", "image"], "Zarr has no member"),
        ("uint32", &["--format", "zarr2", "--type", "segmentation"], "Zarr has no member"),
        ("uint8", &["--format", "precomputed", "--type", "labels"], "[possible values: image, segmentation]"),
    ] {
        let refused = make(&scene, dtype, options).expect_code(2);
        assert!(refused.err.contains(reason), "{reason}: {refused:?}");
        assert!(!to.exists(), "{reason}");
    }
    // Labels in Zarr need no type, and get none.
    let report = make(&scene, "uint64", &["--format", "zarr3", "--json"]).expect_code(0).json();
    assert!(report["type"].is_null(), "{report:#}");
    let shown = run(&mut scene.ndshm(["info", text(&to), "--json"])).expect_code(0).json();
    assert!(shown["type"].is_null(), "{shown:#}");
    fs::remove_dir_all(&to).expect("ours");

    // The type of an existing volume must be given.
    make(&scene, "uint8", &["--format", "precomputed", "--type", "segmentation"]).expect_code(0);
    let other = make(&scene, "uint8", &["--format", "precomputed"]).expect_code(1);
    assert!(other.err.contains("say --type segmentation"), "{other:?}");
    let info: Value = serde_json::from_slice(&fs::read(to.join("info")).expect("info")).expect("JSON");
    assert_eq!(info["type"], "segmentation");
}

/// Other programs do not look for files named `.gz`: such chunks would read as 0.
#[test]
fn local_labels_are_gzipped_only_on_request() {
    let scene = Scene::new();
    let to = scene.temporary().join("new");
    let chunk = |suffix: &str| vec![format!("0-4_0-4_0-4{suffix}")];
    let put = |encoding: &str| {
        make(&scene, "uint32", &["--format", "precomputed", "--encoding", encoding]).expect_code(0);
        names_in(&to.join("1_1_1"))
    };
    assert_eq!(put("compressed_segmentation"), chunk(""));
    assert_eq!(put("compressed_segmentation_gzip"), chunk(""), "existing chunks decide the compression");
    fs::remove_dir_all(&to).expect("ours");
    assert_eq!(put("compressed_segmentation_gzip"), chunk(".gz"));
    assert_eq!(put("compressed_segmentation"), chunk(".gz"));
    run(&mut scene.ndshm(["upload", "x", text(&to), "--order", "f", "--quiet"])).expect_code(0);
    assert_eq!(names_in(&to.join("1_1_1")), chunk(".gz"));
}

#[test]
fn missing_source_or_invalid_region_leaves_no_volume() {
    let scene = Scene::new();
    let to = scene.temporary().join("new");
    let file = scene.temporary().join("elements");
    fs::write(&file, [7; 64]).expect("written");
    let nowhere = scene.temporary().join("nowhere");
    let (file, nowhere, directory) = (text(&file), text(&nowhere), scene.temporary());
    let directory = text(&directory);
    for (source, more, code) in [
        // The region omits the channel axis, so the size of the array alone does not show the error.
        (&["--file", nowhere][..], &["--shape", "8,8,8,1", "--bbox", "0:4,0:4,0:4"][..], 3),
        (&["--file", nowhere], &["--shape", "4,4,4"], 3),
        (&["--file", nowhere], &[], 3),
        (&["--file", directory], &["--shape", "8,8,8,1", "--bbox", "0:4,0:4,0:4"], 2),
        (&["nowhere"], &["--shape", "8,8,8,1", "--bbox", "0:4,0:4,0:4"], 3),
        (&["nowhere"], &["--shape", "4,4,4"], 3),
        (&["--file", file], &["--shape", "8,8,8", "--bbox", "0:4,0:4,6:10"], 2),
        (&["--file", file], &["--shape", "8,8,8,1", "--bbox", "0:4,0:4,0:2"], 2),
        (&["--file", file], &["--shape", "4,4,4", "--cutout", "0:4,0:4,0:8"], 2),
    ] {
        let mut command = scene.ndshm(["upload"]);
        command.args(source).arg(&to).args(["--create", "--format", "precomputed", "--order", "f"]);
        let refused = run(command.args(["--dtype", "uint8", "--chunk", "4,4,4"]).args(more)).expect_code(code);
        assert!(!refused.err.contains("panicked"), "{refused:?}");
        assert!(!to.exists(), "{source:?} {more:?}");
    }
}

/// The array's description is checked before the volume is created.
#[cfg(target_os = "linux")]
#[test]
fn mismatched_description_leaves_no_volume() {
    let scene = Scene::new();
    let to = scene.temporary().join("new");
    fs::write(scene.emulated().join("x"), [1; 64]).expect("written");
    let layout = ["--dtype", "uint8", "--shape", "2,32", "--order", "f"];
    run(scene.ndshm(["describe", "x"]).args(layout)).expect_code(0);
    let mut command = scene.ndshm(["upload", "x", text(&to), "--create", "--format", "precomputed", "--order", "f"]);
    command.args(["--dtype", "uint8", "--shape", "4,4,4", "--chunk", "4,4,4"]);
    let refused = run(&mut command).expect_code(2);
    assert!(refused.err.contains("describes itself as") && !to.exists(), "{refused:?}");
    run(command.arg("--ignore-description")).expect_code(0);
}

/// bioformats2raw writes a group with a group for each image. The first one is `0`.
#[test]
fn error_for_a_container_names_its_first_image() {
    let scene = Scene::new();
    let attributes = r#"{"bioformats2raw.layout": 3}"#;
    for (name, attributes) in [
        (".zattrs", attributes.to_owned()),
        ("zarr.json", format!(r#"{{"zarr_format": 3, "node_type": "group", "attributes": {{"ome": {attributes}}}}}"#)),
    ] {
        let image = scene.volume().join("0");
        fs::create_dir_all(&image).expect("made");
        for group in [scene.volume(), image.clone()] {
            fs::write(group.join(".zgroup"), r#"{"zarr_format": 2}"#).expect("written");
        }
        fs::write(scene.volume().join(name), attributes).expect("written");
        let refused = run(&mut scene.ndshm(["info", text(&scene.volume())])).expect_code(1);
        assert!(refused.err.contains(&format!("`{}/0`", scene.volume().display())), "{refused:?}");
        fs::remove_dir_all(scene.volume()).expect("ours");
    }
}
