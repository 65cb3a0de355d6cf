//! A microscopist at the shell has volumes of several programs and wants to look at one plane. The commands are those
//! of docs/guide/volumes.md ("From the command line"): `info`, `download` without `--order`, `view --slice z=20`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::scene::{Scene, not_run, run, text};

/// Lengths of x, y and z: no two are equal, and z has a plane 20.
const SHAPE: [usize; 3] = [37, 29, 23];
/// Where the Precomputed volume begins.
const ORIGIN: [i64; 3] = [100, -50, 300];
/// The plane to look at.
const Z: usize = 20;

fn element(x: usize, y: usize, z: usize) -> u8 {
    u8::try_from((x * 7 + y * 31 + z * 101 + x * y * z) % 251).expect("small")
}

/// Returns the elements of the axes that `axes` names, the first of which is the slowest. Channel 1 is inverted.
fn bytes(axes: &str) -> Vec<u8> {
    let length = |axis| match axis {
        'x' => SHAPE[0],
        'y' => SHAPE[1],
        'z' => SHAPE[2],
        _ => 2,
    };
    let mut points = vec![[0; 4]]; // x, y, z, c
    for axis in axes.chars() {
        let place = "xyzc".find(axis).expect("an axis");
        let along = |point: [usize; 4]| {
            (0..length(axis)).map(move |index| {
                let mut point = point;
                point[place] = index;
                point
            })
        };
        points = points.into_iter().flat_map(along).collect();
    }
    points.iter().map(|[x, y, z, c]| if *c == 1 { !element(*x, *y, *z) } else { element(*x, *y, *z) }).collect()
}

/// Returns the plane as rows of x.
fn expected(z: usize) -> Vec<u8> {
    (0..SHAPE[1]).flat_map(|y| (0..SHAPE[0]).map(move |x| element(x, y, z))).collect()
}

fn write(path: &Path, content: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    fs::write(path, content).expect("written");
}

/// Writes a Precomputed volume of one chunk.
fn precomputed(path: &Path) {
    let info = json!({
        "type": "image", "data_type": "uint8", "num_channels": 1,
        "scales": [{
            "key": "8_8_40", "size": SHAPE, "voxel_offset": ORIGIN, "chunk_sizes": [SHAPE], "resolution": [8, 8, 40],
            "encoding": "raw",
        }],
    });
    write(&path.join("info"), info.to_string());
    let range = |axis: usize| format!("{}-{}", ORIGIN[axis], ORIGIN[axis] + i64::try_from(SHAPE[axis]).expect("small"));
    write(&path.join(format!("8_8_40/{}_{}_{}", range(0), range(1), range(2))), bytes("zyx"));
}

/// Writes a Zarr array of one chunk.
fn zarr(path: &Path, version: u8, axes: &str, f_order: bool) {
    let shape: Vec<usize> = axes.chars().map(|axis| "xyz".find(axis).map_or(2, |place| SHAPE[place])).collect();
    let names: Vec<String> = axes.chars().map(String::from).collect();
    let memory: String = if f_order { axes.chars().rev().collect() } else { axes.to_owned() };
    if version == 2 {
        let document = json!({
            "zarr_format": 2, "shape": shape, "chunks": shape, "dtype": "|u1", "compressor": null, "fill_value": 0,
            "order": if f_order { "F" } else { "C" }, "filters": null,
        });
        write(&path.join(".zarray"), document.to_string());
        write(&path.join(vec!["0"; axes.len()].join(".")), bytes(&memory));
        return;
    }
    let document = json!({
        "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes"}], "dimension_names": names,
    });
    write(&path.join("zarr.json"), document.to_string());
    write(&path.join(format!("c/{}", vec!["0"; axes.len()].join("/"))), bytes(&memory));
}

/// Writes an OME-Zarr group of one scale. Returns the path of its array.
fn ome(path: &Path, version: u8, axes: &str) -> PathBuf {
    let array = path.join("0");
    zarr(&array, version, axes, false);
    let axes: Vec<Value> = axes
        .chars()
        .map(|name| json!({"name": name.to_string(), "type": if name == 'c' { "channel" } else { "space" }}))
        .collect();
    let scales = json!([{"type": "scale", "scale": vec![1.0; axes.len()]}]);
    let datasets = json!([{"path": "0", "coordinateTransformations": scales}]);
    if version == 2 {
        write(&path.join(".zgroup"), r#"{"zarr_format": 2}"#);
        let attributes = json!({"multiscales": [{"version": "0.4", "axes": axes, "datasets": datasets}]});
        write(&path.join(".zattrs"), attributes.to_string());
    } else {
        let ome = json!({"version": "0.5", "multiscales": [{"axes": axes, "datasets": datasets}]});
        let group = json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": ome}});
        write(&path.join("zarr.json"), group.to_string());
    }
    array
}

/// Writes an N5 dataset of one block.
fn n5(path: &Path) {
    let dataset = json!({"dimensions": SHAPE, "blockSize": SHAPE, "dataType": "uint8", "compression": {"type": "raw"}});
    write(&path.join("attributes.json"), dataset.to_string());
    let mut block = vec![0, 0, 0, 3];
    SHAPE.iter().for_each(|length| block.extend(u32::try_from(*length).expect("small").to_be_bytes()));
    block.extend(bytes("zyx"));
    write(&path.join("0/0/0"), block);
}

/// Returns a picture as width, height and shades.
fn picture(path: &Path) -> (u32, u32, Vec<u8>) {
    let decoder = png::Decoder::new(std::io::Cursor::new(fs::read(path).expect("there")));
    let mut reader = decoder.read_info().expect("a PNG");
    let mut samples = vec![0; reader.output_buffer_size().expect("small")];
    let info = reader.next_frame(&mut samples).expect("a picture");
    assert_eq!(info.color_type, png::ColorType::Grayscale);
    samples.truncate(info.buffer_size());
    (info.width, info.height, samples)
}

/// Reads the plane with another program.
fn read_by_peer(kind: &str, path: &Path, z: i64, axes: &str) -> Option<Vec<u8>> {
    let Some(python) = std::env::var_os("NDSHM_TEST_PYTHON") else {
        not_run("the planes of other programs", "it needs NDSHM_TEST_PYTHON (scripts/test)");
        return None;
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/plane_peer.py");
    let finished = run(Command::new(python).args([script, kind, text(path), &z.to_string(), axes])).expect_code(0);
    let digits = finished.out.trim();
    let digit = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal");
    Some((0..digits.len()).step_by(2).map(digit).collect())
}

#[test]
fn picture_of_z_is_the_plane_that_other_programs_read() {
    let scene = Scene::new();
    let place = |name: &str| scene.temporary().join(name);
    let mut volumes: Vec<(PathBuf, &str, PathBuf, String, &str)> = Vec::new();
    precomputed(&place("precomputed"));
    volumes.push((place("precomputed"), "precomputed", place("precomputed"), String::new(), "x, y, z, channel"));
    for (version, axes, names) in [(3, "xyz", "x, y, z"), (3, "zyx", "z, y, x")] {
        let path = place(&format!("zarr{version}-{axes}"));
        zarr(&path, version, axes, false);
        volumes.push((path.clone(), "zarr", path, axes.to_owned(), names));
    }
    for (version, axes, names) in
        [(2, "xyz", "x, y, z"), (2, "zyx", "z, y, x"), (2, "czyx", "c, z, y, x"), (3, "czyx", "c, z, y, x")]
    {
        let path = place(&format!("ome{version}-{axes}"));
        let array = ome(&path, version, axes);
        volumes.push((path, "zarr", array, axes.to_owned(), names));
    }
    n5(&place("n5"));
    volumes.push((place("n5"), "n5", place("n5"), String::new(), "x, y, z"));
    for (volume, kind, array, axes, names) in &volumes {
        // "z" of `info URL` is "z" of `view`.
        let url = text(volume);
        let info = run(&mut scene.ndshm(["info", url])).expect_code(0).out;
        assert!(info.contains(&format!("({names})")), "{names}: {info}");
        let z = if *kind == "precomputed" { ORIGIN[2] } else { 0 } + i64::try_from(Z).expect("small");
        let theirs = read_by_peer(kind, array, z, axes);
        for order in [&[][..], &["--order", "f"]] {
            run(scene.ndshm(["download", url, "em", "--replace", "--quiet"]).args(order)).expect_code(0);
            let out = scene.temporary().join("plane.png");
            let command = ["view", "em", "--slice", "z=20", "--range", "0:255", "--replace", "--out", text(&out)];
            let said = run(&mut scene.ndshm(command)).expect_code(0).out;
            let (width, height, shades) = picture(&out);
            assert_eq!((width, height), (37, 29), "{url} {order:?}: {said}");
            assert!(shades == expected(Z), "{url} {order:?}: {said}");
            assert!(
                theirs.as_ref().is_none_or(|theirs| *theirs == shades),
                "{url} {order:?}: another plane than {kind}'s"
            );
            assert!(said.contains("x (axis") && said.contains("to the right, y (axis"), "{said}");
            // Where the region does not begin at 0, an index is not a coordinate.
            assert_eq!(said.contains("z=320"), *kind == "precomputed", "{said}");
            // Without a plane, the picture says which one it took.
            let command = ["view", "em", "--range", "0:255", "--replace", "--out", text(&out)];
            let said = run(&mut scene.ndshm(command)).expect_code(0).out;
            assert!(picture(&out).2 == expected(SHAPE[2] / 2) && said.contains(" z=11"), "{url} {order:?}: {said}");

            let info = run(&mut scene.ndshm(["info", "em"])).expect_code(0).out;
            assert!(info.contains(&format!("({names})")), "{info}");
            let npy = scene.temporary().join("em.npy");
            let export = ["export", "em", text(&npy), "--replace", "--quiet"];
            let export = run(&mut scene.ndshm(export)).expect_code(0).out;
            assert!(export.contains(&format!("({names})")), "{export}");
        }
    }
}

/// A region of the Precomputed volume: an index counts within the array, and `view` says the coordinate.
#[test]
fn picture_of_a_cut_out_says_its_coordinate_in_the_volume() {
    let scene = Scene::new();
    precomputed(&scene.volume());
    let out = scene.temporary().join("plane.png");
    let mut command = scene.ndshm(["download", text(&scene.volume()), "em", "--bbox", "100:137,-50:-21,310:323"]);
    let report = run(command.args(["--json", "--quiet"])).expect_code(0).json();
    assert_eq!(report["axes"], json!(["x", "y", "z", "channel"]));
    let command = ["view", "em", "--slice", "z=10", "--range", "0:255", "--json", "--out", text(&out)];
    let report = run(&mut scene.ndshm(command)).expect_code(0).json();
    assert!(picture(&out).2 == expected(Z), "{report:#}");
    assert_eq!(report["axes"], json!(["x", "y", "z", "channel"]));
    assert_eq!((&report["slice"], &report["slice_in_volume"]), (&json!("z=10, channel=0"), &json!("z=320, channel=0")));
    let command = ["view", "em", "--slice", "z=320", "--replace", "--out", text(&out)];
    let refused = run(&mut scene.ndshm(command)).expect_code(2);
    assert!(refused.err.contains("has 13 elements") && refused.err.contains("counts from 0"), "{refused:?}");
}

/// A plain Zarr v2 array names no axes: no letter is guessed, and the error has the form that works.
#[test]
fn axes_without_names_are_cut_by_number() {
    let scene = Scene::new();
    let out = scene.temporary().join("plane.png");
    for (axes, f_order) in [("zyx", false), ("xyz", false), ("zyx", true), ("xyz", true)] {
        let volume = scene.temporary().join(format!("{axes}-{f_order}"));
        zarr(&volume, 2, axes, f_order);
        for order in ["c", "f"] {
            let mut command = scene.ndshm(["download", text(&volume), "em", "--replace", "--quiet"]);
            run(command.args(["--order", order])).expect_code(0);
            let view = |more: &[&str]| {
                let mut command = scene.ndshm(["view", "em", "--range", "0:255", "--replace", "--out", text(&out)]);
                run(command.args(more))
            };
            for cut in [&["--slice", "z=20"][..], &["--channel", "20"]] {
                let refused = view(cut).expect_code(2);
                assert!(refused.err.contains("have no names") && refused.err.contains("--slice 0=20"), "{refused:?}");
                assert!(!out.exists(), "nothing was written");
            }
            // By number, or with names.
            let by_number = if axes == "zyx" { "0=20" } else { "2=20" };
            let said = view(&["--slice", by_number]).expect_code(0).out;
            assert!(said.contains(&format!(" at {by_number}: axis ")), "{said}");
            view(&["--axes", axes, "--slice", "z=20"]).expect_code(0);
            assert!(picture(&out).2 == expected(Z), "{axes} {order}");
            // A plane is shown all the same, and said which.
            let said = view(&[]).expect_code(0).out;
            let contiguous = if order == "c" { 2 } else { 0 };
            assert!(said.contains(&format!("axis {contiguous} to the right, axis 1 down")), "{said}");
            fs::remove_file(&out).expect("there");
        }
    }
}

/// Notes are untrusted, and those of another shape hold no more.
#[test]
fn malformed_notes_name_no_axes() {
    let scene = Scene::new();
    let volume = scene.volume();
    zarr(&volume, 3, "zyx", false);
    run(&mut scene.ndshm(["download", text(&volume), "em", "--quiet"])).expect_code(0);
    let out = scene.temporary().join("plane.png");
    let view = |more: &[&str]| {
        let mut command = scene.ndshm(["view", "em", "--replace", "--out", text(&out)]);
        run(command.args(more))
    };
    view(&["--slice", "z=0"]).expect_code(0);
    // The elements are the same with the last two axes merged.
    let merged = view(&["--shape", "23,1073", "--slice", "z=0"]).expect_code(2);
    assert!(merged.err.contains("have no names"), "{merged:?}");
    for axes in ["z y", "z y x c", "z y y", "2 1 0"] {
        run(&mut scene.ndshm(["describe", "em", "--note", &format!("axes={axes}")])).expect_code(0);
        let refused = view(&["--slice", "z=0"]).expect_code(2);
        assert!(refused.err.contains("have no names"), "{axes}: {refused:?}");
        view(&[]).expect_code(0);
    }
    run(&mut scene.ndshm(["describe", "em", "--note", "axes=z \u{202e}y x"])).expect_code(0);
    for finished in [view(&["--slice", "z=0"]).expect_code(0), view(&["--slice", "q=0"]).expect_code(2)] {
        assert!(!finished.out.contains('\u{202e}') && !finished.err.contains('\u{202e}'), "{finished:?}");
    }
    let info = run(&mut scene.ndshm(["info", "em"])).expect_code(0).out;
    assert!(info.contains(r"\u{202e}y") && !info.contains('\u{202e}'), "{info}");
}

/// A description holds 3,500 bytes. What a long path leaves no room for is said, not lost in silence.
#[test]
fn notes_that_do_not_fit_are_named() {
    let scene = Scene::new();
    // The path is as long as leaves no room for the last notes. The program gets a relative one, as a shell would.
    let mut path = scene.temporary().canonicalize().expect("there");
    while path.as_os_str().len() < 3_322 {
        path.push("d".repeat((3_342 - path.as_os_str().len()).min(200)));
    }
    fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    zarr(&path, 3, "zyx", false);
    let mut command = scene.ndshm(["download", ".", "em", "--json"]);
    let finished = run(command.current_dir(&path)).expect_code(0);
    let warnings = finished.json()["warnings"].to_string();
    assert!(warnings.contains("lacks") && warnings.contains("encoding"), "{warnings}");
    assert!(finished.err.contains("lacks"), "{finished:?}");
    let notes = run(&mut scene.ndshm(["describe", "em", "--json"])).expect_code(0).json()["notes"].clone();
    assert_eq!((&notes["axes"], &notes["bbox"]), (&json!("z y x"), &json!("0:23,0:29,0:37")), "{notes:#}");
    assert!(notes["source"].as_str().is_some_and(|source| source.ends_with(text(&path))), "{notes:#}");
    assert_eq!(notes["encoding"], Value::Null);
}
