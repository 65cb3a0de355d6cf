//! Uploads into new and existing volumes, and refused uploads.

use std::fs;
use std::path::Path;

use ndarray::ShapeBuilder as _;
use ndarray_shm::CreateOptions;
use serde_json::Value;

use crate::downloading::{assert_whole, download};
use crate::scene::{Finished, Scene, run, text};
use crate::volume::{self, SHAPE};

/// Uploads the array `x`.
pub(crate) fn upload(scene: &Scene, to: &Path, arguments: &[&str]) -> Finished {
    let mut command = scene.ndshm(["upload", "x", text(to), "--json", "--quiet"]);
    run(command.args(arguments))
}

#[test]
fn uploaded_array_is_downloaded_unchanged() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    run(&mut download(&scene, "x", &[])).expect_code(0);
    let shape = SHAPE.map(|length| length.to_string()).join(",");
    for (number, how) in [
        &["--format", "zarr2", "--encoding", "gzip", "--chunk", "64,64,64"][..],
        &["--format", "zarr3", "--encoding", "zstd", "--chunk", "32,32,32", "--shard-shape", "128,64,64"],
        &["--format", "zarr3", "--encoding", "blosc", "--chunk", "50,60,70"],
    ]
    .iter()
    .enumerate()
    {
        let to = scene.temporary().join(format!("new-{number}"));
        let create = [&["--create", "--dtype", "uint16", "--shape", &shape, "--order", "c"], *how].concat();
        let report = upload(&scene, &to, &create).expect_code(0).json();
        assert_eq!(report["bytes"], SHAPE.iter().product::<usize>() * 2);
        assert!(report["stored"].as_u64().expect("a number") > 10, "{report:#}");
        assert_whole(&scene, &to);
        // Repeating the command uploads the same again.
        let again = upload(&scene, &to, &create).expect_code(0).json();
        assert_eq!((&again["stored"], &again["background"]), (&report["stored"], &report["background"]));
        let other = ["--create", "--ignore-description", "--dtype", "int16", "--shape", &shape, "--order", "c"];
        let other = [&other, *how].concat();
        upload(&scene, &to, &other).expect_code(1);
        let info = run(&mut scene.ndshm(["info", "--json", text(&to)])).expect_code(0).json();
        assert_eq!(info["scales"][0]["shape"], serde_json::json!(SHAPE));
        assert_eq!(info["scales"][0]["dtype"], "<u2");
        let table = run(&mut scene.ndshm(["info", text(&to)])).expect_code(0).out;
        assert!(table.contains("1 scale\n") && table.contains("237 x 288 x 273"), "{table}");
    }
}

#[test]
fn mismatched_type_is_refused_before_a_volume_exists() {
    let scene = Scene::new();
    let to = scene.temporary().join("new");
    fs::write(scene.emulated().join("x"), [7u8; 64]).expect("written");
    let create =
        |dtype| ["--create", "--format", "zarr3", "--dtype", dtype, "--shape", "8,8", "--chunk", "4,4", "--order", "c"];
    let refused = upload(&scene, &to, &create("uint16")).expect_code(2);
    let advice = refused.json()["advice"].as_str().expect("advice").to_owned();
    assert!(advice.contains("of 1 byte each, but --dtype is <u2"), "{refused:?}");
    assert!(!to.exists(), "no empty volume is left");
    upload(&scene, &to, &create("uint8")).expect_code(0);

    // The same for an existing volume, and for arrays that describe themselves.
    fs::write(scene.emulated().join("x"), [7u8; 128]).expect("written");
    let refused = upload(&scene, &to, &["--order", "c"]).expect_code(2);
    assert!(refused.err.contains("of 2 bytes each, but the volume's are of type |u1"), "{refused:?}");
    fs::remove_file(scene.emulated().join("x")).expect("there");
    let options = CreateOptions::new().directory(scene.directory());
    let array = options.create_counted_with::<f32, _>("x", (8, 8), |mut view| view.fill(1.0)).expect("an array");
    let refused = upload(&scene, &to, &[]).expect_code(2);
    assert!(refused.err.contains("of type <f4, but the volume's are of type |u1"), "{refused:?}");
    let other = scene.temporary().join("other");
    let refused = upload(&scene, &other, &["--create", "--format", "zarr3", "--dtype", "uint8", "--chunk", "4,4"]);
    assert!(refused.expect_code(2).err.contains("of type <f4, but --dtype is |u1"));
    assert!(!other.exists());
    drop(array);
}

#[test]
fn create_names_all_missing_options_at_once() {
    let scene = Scene::new();
    let to = scene.temporary().join("new");
    fs::write(scene.emulated().join("x"), [7u8; 64]).expect("written");
    let missing = |arguments: &[&str]| {
        let refused = upload(&scene, &to, arguments).expect_code(2);
        refused.json()["error"].as_str().expect("an error").to_owned()
    };
    let all = ["--dtype", "--shape", "--order", "--chunk"];
    let error = missing(&["--create"]);
    assert!(all.iter().all(|option| error.contains(option)), "{error}");
    let error = missing(&["--create", "--format", "zarr3", "--shape", "8,8", "--chunk", "4,4"]);
    let named = all.map(|option| error.contains(option));
    assert_eq!(named, [true, false, true, false], "{error}");
    assert!(!to.exists());
}

/// An empty side stands for the volume's bound, also while the volume is being created.
#[test]
fn open_sides_of_a_region_are_the_volume_bounds() {
    let scene = Scene::new();
    let to = scene.temporary().join("new");
    fs::write(scene.emulated().join("x"), [7u8; 32]).expect("written");
    let create = ["--create", "--format", "zarr3", "--dtype", "uint8", "--chunk", "4,4", "--order", "c"];
    let refused = upload(&scene, &to, &[&create[..], &["--bbox", ":,4:"]].concat()).expect_code(2);
    assert!(refused.err.contains("open end") && refused.err.contains("give --shape, the size"), "{refused:?}");
    let report =
        upload(&scene, &to, &[&create[..], &["--bbox", ":,4:", "--shape", "8,8"]].concat()).expect_code(0).json();
    assert_eq!(report["bbox"], "0:8,4:8");
    let report = upload(&scene, &to, &["--bbox", "4:,:", "--order", "c"]).expect_code(0).json();
    assert_eq!(report["bbox"], "4:8,0:8");
    let report = run(&mut scene.ndshm(["download", text(&to), "--location", "y", "--bbox", ":2,:", "--json"]));
    assert_eq!(report.expect_code(0).json()["bbox"], "0:2,0:8");
    let form = run(&mut scene.ndshm(["download", text(&to), "--location", "z", "--bbox", "0:2"])).expect_code(2);
    assert!(form.err.contains("an empty side is the volume's bound"), "{form:?}");
}

#[test]
fn cutout_changes_cut_objects_only_with_read_modify_write() {
    let scene = Scene::new();
    let to = scene.temporary().join("new");
    fs::write(scene.emulated().join("x"), [7u8; 8 * 8]).expect("written");
    let create = ["--create", "--format", "zarr3", "--dtype", "uint8", "--shape", "8,8", "--chunk", "4,4"];
    let cut = ["--order", "c", "--cutout", "0:4,2:6"];
    let cuts = |arguments: &[&str]| {
        let refused = upload(&scene, &to, &[arguments, &cut].concat()).expect_code(2);
        assert!(refused.err.contains("give --read-modify-write"), "{refused:?}");
    };
    cuts(&create);
    assert!(!to.exists(), "a refused command makes no volume");
    upload(&scene, &to, &[&create[..], &cut, &["--read-modify-write"]].concat()).expect_code(0);
    cuts(&[]);
    run(&mut scene.ndshm(["download", text(&to), "--location", "back", "--quiet"])).expect_code(0);
    let expected: Vec<u8> = (0..64).map(|at| if at < 32 && (2..6).contains(&(at % 8)) { 7 } else { 0 }).collect();
    assert_eq!(fs::read(scene.emulated().join("back")).expect("there"), expected);

    // A file with the elements can be the source instead of an array.
    let file = scene.temporary().join("elements");
    fs::write(&file, [9u8; 16]).expect("written");
    let mut command = scene.ndshm(["upload", text(&file), text(&to), "--file", "--bbox", "4:8,4:8", "--quiet"]);
    run(command.args(["--order", "c"])).expect_code(0);
    run(&mut scene.ndshm(["download", text(&to), "--location", "back", "--replace", "--quiet"])).expect_code(0);
    let back = fs::read(scene.emulated().join("back")).expect("there");
    assert!(back.iter().enumerate().all(|(at, byte)| (*byte == 9) == (at >= 32 && at % 8 >= 4)), "{back:?}");
    assert_eq!(fs::read(&file).expect("there"), [9u8; 16]);
}

#[test]
fn invalid_uploads_report_the_reason() {
    let scene = Scene::new();
    fs::write(scene.emulated().join("x"), [7u8; 64]).expect("written");
    let to = scene.temporary().join("new");
    for (arguments, code, says) in [
        (&["--create"][..], 2, "--dtype"),
        (&["--create", "--format", "zarr3"], 2, "--dtype"),
        (&["--create", "--format", "zarr3", "--dtype", "uint8"], 2, "--shape"),
        (&["--create", "--format", "zarr3", "--dtype", "uint8", "--shape", "8,8"], 2, "--chunk"),
        (&["--chunk", "4,4"], 2, "--create"),
        (&[], 1, "new"),
        (&["--create", "--format", "zarr3", "--dtype", "uint16", "--shape", "8,8", "--chunk", "4,4"], 2, "bytes"),
    ] {
        let finished = upload(&scene, &to, &[arguments, &["--order", "c"]].concat()).expect_code(code);
        assert!(finished.err.contains(says), "{says}: {finished:?}");
        fs::remove_dir_all(&to).ok();
    }
    run(&mut scene.ndshm(["upload", "nowhere", text(&to)])).expect_code(3);
    run(&mut scene.ndshm(["upload", "a/b", text(&to)])).expect_code(2);
    run(&mut scene.ndshm(["upload", "x", "ftp://host/volume"])).expect_code(2);
    assert_eq!(fs::read(scene.emulated().join("x")).expect("there"), [7u8; 64]);
}

#[test]
fn scales_and_channels_are_chosen() {
    let scene = Scene::new();
    let to = scene.temporary().join("new");
    let url = format!("precomputed://{}", text(&to));
    let elements: Vec<u8> = (0..8 * 6 * 4 * 2).map(|at| u8::try_from(at % 251).expect("small")).collect();
    fs::write(scene.emulated().join("x"), &elements).expect("written");
    let create =
        ["--create", "--dtype", "uint8", "--bbox=-4:4,0:6,10:14,0:2", "--chunk", "4,4,4,2", "--resolution", "4,4,40"];
    let put = |more: &[&str]| run(scene.ndshm(["upload", "x", &url, "--order", "f", "--quiet"]).args(more));
    put(&create).expect_code(0);
    let info = fs::read(to.join("info")).expect("there");
    let mut info: Value = serde_json::from_slice(&info).expect("JSON");
    assert_eq!(info["scales"][0]["voxel_offset"], serde_json::json!([-4, 0, 10]), "{info:#}");
    // A coarser scale, as a program that downsamples adds it.
    let mut coarse = info["scales"][0].clone();
    (coarse["key"], coarse["resolution"]) = ("8_8_40".into(), serde_json::json!([8, 8, 40]));
    (coarse["size"], coarse["voxel_offset"]) = (serde_json::json!([4, 3, 4]), serde_json::json!([-2, 0, 10]));
    info["scales"].as_array_mut().expect("a list").push(coarse);
    fs::write(to.join("info"), info.to_string()).expect("written");
    fs::write(scene.emulated().join("x"), [9u8; 4 * 3 * 4 * 2]).expect("written");
    put(&["--mip", "1"]).expect_code(0);

    let table = run(&mut scene.ndshm(["info", &url])).expect_code(0).out;
    assert!(table.contains("2 scales") && table.contains("8_8_40") && table.contains("-4,0,10,0"), "{table}");
    let get = |more: &[&str]| {
        let down = ["download", &url, "--location", "y", "--order", "f", "--replace", "--quiet", "--json"];
        run(scene.ndshm(down).args(more))
    };
    let bytes = || fs::read(scene.emulated().join("y")).expect("there");
    get(&["--bbox=-4:4,0:6,10:14"]).expect_code(0);
    assert!(bytes() == elements, "all channels");
    for how in
        [&["--channels", "1:2"][..], &["--channels", "1:2", "--bbox=-4:4,0:6,10:14", "--processes", "--workers", "2"]]
    {
        let report = get(how).expect_code(0).json();
        assert_eq!(report["bbox"], "-4:4,0:6,10:14,1:2");
        assert!(bytes() == elements[8 * 6 * 4..]);
    }
    get(&["--mip", "1", "--processes", "--workers", "2"]).expect_code(0);
    assert_eq!(bytes(), [9u8; 4 * 3 * 4 * 2]);
    get(&["--mip", "2"]).expect_code(2);
    get(&["--channels", "2:3"]).expect_code(2);
}

#[test]
fn create_refuses_an_existing_volume_that_differs() {
    let scene = Scene::new();
    let file = scene.temporary().join("x.raw");
    fs::write(&file, vec![7; 64 * 32 * 32]).expect("a file");
    let put = |to: &str, format: &str, encoding: &str| {
        let mut command = scene.ndshm(["upload", text(&file), text(&scene.temporary().join(to)), "--file", "--quiet"]);
        command.args(["--create", "--dtype", "uint8", "--shape", "64,32,32", "--chunk", "40,32,32", "--order", "c"]);
        run(command.args(["--format", format, "--encoding", encoding]))
    };
    for (to, format, encoding) in [("a", "precomputed", "jpeg"), ("b", "precomputed", "raw"), ("c", "zarr3", "zstd")] {
        put(to, format, encoding).expect_code(0);
        // Repeating the command opens the existing volume.
        put(to, format, encoding).expect_code(0);
    }
    // A volume with another JPEG quality is another volume too.
    let asks = |to: &str, quality: &str| {
        let mut command = scene.ndshm(["upload", text(&file), text(&scene.temporary().join(to)), "--file", "--quiet"]);
        command.args(["--create", "--dtype", "uint8", "--shape", "64,32,32", "--chunk", "40,32,32", "--order", "c"]);
        run(command.args(["--format", "precomputed", "--encoding", "jpeg", "--jpeg-quality", quality]))
    };
    asks("d", "30").expect_code(0);
    asks("d", "30").expect_code(0);
    asks("d", "40").expect_code(1);
    asks("a", "30").expect_code(1);
    asks("e", "0").expect_code(2);
    let info = fs::read_to_string(scene.temporary().join("d/info")).expect("a description");
    assert!(info.contains("\"jpeg_quality\": 30"), "{info}");
    // With another encoding, elements could be stored with loss. In another format, programs would not find the volume.
    put("a", "precomputed", "raw").expect_code(1);
    put("b", "precomputed", "jpeg").expect_code(1);
    put("c", "zarr3", "raw").expect_code(1);
    put("c", "zarr2", "zstd").expect_code(1);
}

/// Without its order, an array that was downloaded in F order would be uploaded with permuted elements and no error.
#[test]
fn upload_of_a_plain_array_needs_its_order() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    let bbox = ["--bbox", "30:90,40:100,50:120"];
    run(&mut download(&scene, "x", &[&bbox[..], &["--order", "f"]].concat())).expect_code(0);
    let (file, to) = (scene.emulated().join("x"), scene.temporary().join("volume"));
    let create = ["--create", "--format", "zarr3", "--dtype", "uint16", "--shape", "60,60,70", "--chunk", "32,32,32"];
    run(&mut scene.ndshm(["describe", "x", "--clear"])).expect_code(0);
    for source in [&["x"][..], &[text(&file), "--file"]] {
        let refused = |finished: Finished| {
            let finished = finished.expect_code(2);
            assert!(finished.err.contains("--order f") && finished.err.contains("memory order"), "{finished:?}");
        };
        refused(run(scene.ndshm(["upload"]).args(source).arg(&to).args(create)));
        assert!(!to.exists());
        run(scene.ndshm(["upload"]).args(source).arg(&to).args(create).args(["--order", "f"])).expect_code(0);
        refused(run(scene.ndshm(["upload"]).args(source).arg(&to)));
        let get = run(&mut scene.ndshm(["download", text(&to), "--location", "back", "--replace", "--quiet"]));
        get.expect_code(0);
        let back = fs::read(scene.emulated().join("back")).expect("there");
        assert!(back == volume::expected(&[30..90, 40..100, 50..120], true));
        fs::remove_dir_all(&to).expect("ours");
    }
}

/// If at most one axis is longer than 1, both orders are the same.
#[test]
fn array_with_one_long_axis_needs_no_order() {
    let scene = Scene::new();
    fs::write(scene.emulated().join("x"), [7; 8]).expect("written");
    let to = scene.temporary().join("volume");
    let new = ["--create", "--format", "zarr3", "--dtype", "uint8", "--shape", "4,8,4", "--chunk", "2,8,2"];
    let region = ["--bbox", "1:2,0:8,3:4", "--read-modify-write"];
    let report = upload(&scene, &to, &[&new[..], &region].concat()).expect_code(0).json();
    assert_eq!((&report["order"], &report["stored"]), (&"C".into(), &1.into()));
    upload(&scene, &to, &region).expect_code(0);
    let refused = upload(&scene, &to, &["--bbox", "0:2,0:4,0:1"]).expect_code(2);
    assert!(refused.err.contains("memory order"), "{refused:?}");
    let layout = ["--dtype", "uint8", "--shape", "1,8"];
    run(scene.ndshm(["export", "x"]).arg(scene.temporary().join("x.npy")).args(layout)).expect_code(0);
    run(scene.ndshm(["view", "x", "--columns", "9"]).args(layout)).expect_code(0);
}

#[test]
fn contradicting_order_is_refused() {
    let scene = Scene::new();
    let options = CreateOptions::new().directory(scene.directory());
    let array = options.create_counted_with::<u8, _>("x", (2, 4).f(), |mut view| view.fill(7)).expect("a new array");
    let to = scene.temporary().join("volume");
    let new = ["--create", "--format", "zarr3", "--dtype", "uint8", "--shape", "2,4", "--chunk", "2,2"];
    let put = |order: &str| run(scene.ndshm(["upload", "x", text(&to), "--quiet", "--order", order]).args(new));
    let finished = put("c").expect_code(2);
    assert!(finished.err.contains("its order is F, not C"), "{finished:?}");
    assert!(!to.exists());
    put("f").expect_code(0);
    drop(array);
}
