//! Arrays that describe themselves: commands need no type, shape or order, and `describe` shows, corrects and removes
//! them.

use std::fs;
use std::path::Path;

use ndarray::ShapeBuilder as _;
use ndarray_shm::CreateOptions;

use crate::scene::{Finished, Scene, run};
use crate::volume;

/// Whether arrays in the tests' directory describe themselves.
fn describes(scene: &Scene) -> bool {
    let describes = scene.directory().can_describe().expect("a test file");
    assert_eq!(describes, cfg!(target_os = "linux"));
    describes
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn array(scene: &Scene) {
    let options = CreateOptions::new().directory(scene.directory());
    options.create_with::<u16, _>("x", (3, 4).f(), |mut view| view[[2, 1]] = 7).expect("created");
}

/// Returns the layout options that a command needs for the array: none if it describes itself.
fn layout(scene: &Scene) -> &'static [&'static str] {
    if describes(scene) { &[] } else { &["--dtype", "uint16", "--shape", "3,4", "--order", "f"] }
}

#[test]
fn described_array_needs_no_layout() {
    let scene = Scene::new();
    array(&scene);
    let npy = scene.temporary().join("x.npy");
    run(scene.ndshm(["export", "x", text(&npy)]).args(layout(&scene))).expect_code(0);
    run(scene.ndshm(["view", "x", "--columns", "9"]).args(layout(&scene))).expect_code(0);
    run(&mut scene.ndshm(["import", text(&npy), "y"])).expect_code(0);
    assert_eq!(
        fs::read(scene.emulated().join("y")).expect("there"),
        fs::read(scene.emulated().join("x")).expect("there")
    );

    let listed = run(&mut scene.ndshm(["ls", "--backend", "emulated", "--json"])).expect_code(0).json();
    let table = run(&mut scene.ndshm(["ls", "--backend", "emulated"])).expect_code(0).out;
    let info = run(&mut scene.ndshm(["info", "x"])).expect_code(0).out;
    if describes(&scene) {
        for item in listed.as_array().expect("a list") {
            let said = &item["description"];
            assert_eq!((&said["dtype"], &said["order"]), (&"<u2".into(), &"F".into()), "{item:#}");
            assert_eq!(said["shape"], serde_json::json!([3, 4]));
        }
        assert!(table.contains("array <u2 3x4"), "{table}");
        assert!(info.contains("x: an array\n") && info.contains("3 x 4, F order"), "{info}");
    } else {
        assert_eq!(listed[0]["description"], serde_json::Value::Null);
        assert!(info.contains("`ndshm describe` writes one"), "{info}");
    }
}

#[test]
fn download_is_uploaded_without_its_order() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    let file = scene.temporary().join("region.bin");
    let bbox = ["--bbox", "30:90,40:100,50:120", "--order", "f", "--quiet"];
    run(scene.ndshm(["download", text(&scene.volume()), "--location", "x"]).args(bbox)).expect_code(0);
    run(scene.ndshm(["download", text(&scene.volume()), "--file", text(&file)]).args(bbox)).expect_code(0);
    let create = ["--create", "--format", "zarr3", "--chunk", "32,32,32", "--quiet"];
    let said = if describes(&scene) { &[][..] } else { &["--dtype", "uint16", "--shape", "60,60,70", "--order", "f"] };
    for source in [&["x"][..], &[text(&file), "--file"]] {
        let to = scene.temporary().join("volume");
        run(scene.ndshm(["upload"]).args(source).arg(&to).args(create).args(said)).expect_code(0);
        run(&mut scene.ndshm(["download", text(&to), "--location", "back", "--replace", "--quiet"])).expect_code(0);
        let back = fs::read(scene.emulated().join("back")).expect("there");
        assert!(back == volume::expected(&[30..90, 40..100, 50..120], true));
        fs::remove_dir_all(&to).expect("ours");
    }
    if describes(&scene) {
        let shown = run(&mut scene.ndshm(["describe", "x", "--json"])).expect_code(0).json();
        assert_eq!(shown["notes"]["bbox"], "30:90,40:100,50:120");
        let source = shown["notes"]["source"].as_str().expect("a source");
        assert!(source.ends_with(text(scene.volume().file_name().expect("a name").as_ref())), "{source}");
    }
}

#[test]
fn bool_volume_becomes_bytes_described_as_bool() {
    let scene = Scene::new();
    let path = scene.temporary().join("bools");
    fs::create_dir(&path).expect("a directory");
    let document = serde_json::json!({
        "zarr_format": 2, "shape": [2, 2], "chunks": [2, 2], "dtype": "|b1", "order": "C", "fill_value": null,
        "compressor": null, "filters": [{"id": "crc32"}],
    });
    fs::write(path.join(".zarray"), document.to_string()).expect("the metadata");
    fs::write(path.join("0.0"), [0xef, 0x88, 0xff, 0xee, 1, 0, 0, 1]).expect("the chunk");
    let volume = run(&mut scene.ndshm(["info", text(&path)])).expect_code(0).out;
    assert!(volume.contains("elements of bool"), "{volume}");
    run(&mut scene.ndshm(["download", text(&path), "x", "--quiet"])).expect_code(0);
    assert_eq!(fs::read(scene.emulated().join("x")).expect("there"), [1, 0, 0, 1]);
    if describes(&scene) {
        let info = run(&mut scene.ndshm(["info", "x"])).expect_code(0).out;
        assert!(info.lines().any(|line| line.split_whitespace().eq(["elements", "bool"])), "{info}");
    }
}

#[test]
fn contradiction_is_refused_unless_the_description_is_ignored() {
    let scene = Scene::new();
    array(&scene);
    let npy = scene.temporary().join("x.npy");
    let export = |more: &[&str]| run(scene.ndshm(["export", "x", text(&npy), "--replace"]).args(more));
    let whole = |dtype, order| ["--dtype", dtype, "--shape", "3,4", "--order", order];
    for (dtype, order) in [("int16", "f"), ("uint16", "c")] {
        let finished = export(&whole(dtype, order));
        if describes(&scene) {
            let finished: Finished = finished.expect_code(2);
            assert!(finished.err.contains("describes itself as <u2 of shape [3, 4] in F order"), "{finished:?}");
            assert!(finished.err.contains("--ignore-description") && finished.err.contains("ndshm describe"));
        } else {
            finished.expect_code(0);
        }
        export(&[&whole(dtype, order)[..], &["--ignore-description"]].concat()).expect_code(0);
    }
    // A flat shape in memory order agrees with the description.
    export(&["--dtype", "uint16", "--shape", "12"]).expect_code(0);
    let needed = export(&["--ignore-description"]).expect_code(2);
    assert!(needed.err.contains("give --dtype and --shape"), "{needed:?}");
}

#[test]
fn description_is_written_corrected_and_removed() {
    let scene = Scene::new();
    fs::write(scene.emulated().join("x"), [0u8; 24]).expect("written");
    let describe = |more: &[&str]| run(scene.ndshm(["describe", "x"]).args(more));
    let unsaid = describe(&[]).expect_code(1);
    assert!(unsaid.err.contains("does not describe itself"), "{unsaid:?}");
    let needs = describe(&["--dtype", "uint16"]).expect_code(2);
    assert!(needs.err.contains("give --shape"), "{needs:?}");
    describe(&["--dtype", "uint16", "--shape", "3,4"]).expect_code(2); // which order?
    describe(&["--dtype", "uint16", "--shape", "3,5", "--order", "c"]).expect_code(2);
    let written = describe(&["--dtype", "uint16", "--shape", "3,4", "--order", "c", "--note", "source=\u{202e}here"]);
    if !describes(&scene) {
        let written = written.expect_code(1);
        assert!(written.err.contains("extended attributes"), "{written:?}");
        return;
    }
    let written = written.expect_code(0);
    assert!(written.out.contains("3 x 4, C order") && written.out.contains("\\u{202e}here"), "{written:?}");
    let corrected = describe(&["--order", "f", "--note", "unit=nm", "--json"]).expect_code(0).json();
    assert_eq!((&corrected["order"], &corrected["dtype"]), (&"F".into(), &"<u2".into()));
    assert_eq!(corrected["notes"], serde_json::json!({"source": "\u{202e}here", "unit": "nm"}));
    describe(&["--note", "Not a key=x"]).expect_code(2);
    describe(&["--clear"]).expect_code(0);
    describe(&[]).expect_code(1);
    run(&mut scene.ndshm(["describe", "nothing"])).expect_code(3);
}
