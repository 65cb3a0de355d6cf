//! The microscopist at the shell: what was downloaded is edited and goes back, or becomes a volume of its own, and
//! keeps its place, resolution and chunks. Follows docs/guide/volumes.md. Volumes are read by CloudVolume, zarr-python
//! and tensorstore where `NDSHM_TEST_PYTHON` has them, and their documents by serde.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::scene::{Finished, Scene, not_run, run, text};

/// The volume has 40 x 34 x 20 elements of 4 x 4 x 40 nm and begins at (100, 205, 7).
const CREATE: [&str; 13] = [
    "--create",
    "--format",
    "precomputed",
    "--dtype",
    "uint16",
    "--order",
    "f",
    "--shape",
    "40,34,20",
    "--origin",
    "100,205,7",
    "--chunk",
    "16,16,8",
];

/// A region that is aligned to chunks, and not a cube.
const REGION: &str = "116:132,205:221,15:27";

fn element(at: [usize; 3]) -> u16 {
    u16::try_from(at[0] + 50 * at[1] + 1800 * at[2]).expect("small")
}

/// Returns the elements of a region, relative to the volume's begin, in F order.
fn elements(ranges: [std::ops::Range<usize>; 3], change: u16) -> Vec<u8> {
    let [x, y, z] = ranges;
    let at = z.flat_map(|z| y.clone().map(move |y| (z, y))).flat_map(|(z, y)| x.clone().map(move |x| [x, y, z]));
    at.flat_map(|at| (element(at) + change).to_le_bytes()).collect()
}

/// Creates the volume. Its array had no description, so all is given as options.
fn volume(scene: &Scene, more: &[&str]) -> std::path::PathBuf {
    let to = scene.volume();
    fs::write(scene.emulated().join("first"), elements([0..40, 0..34, 0..20], 0)).expect("written");
    let mut command = scene.ndshm(["upload", "first", text(&to), "--quiet", "--resolution", "4,4,40"]);
    run(command.args(CREATE).args(more)).expect_code(0);
    fs::remove_file(scene.emulated().join("first")).expect("ours");
    to
}

fn download(scene: &Scene, from: &Path, name: &str, more: &[&str]) {
    run(scene.ndshm(["download", text(from), name, "--quiet", "--order", "f"]).args(more)).expect_code(0);
}

fn upload(scene: &Scene, name: &str, to: &str, more: &[&str]) -> Finished {
    run(scene.ndshm(["upload", name, to, "--quiet"]).args(more))
}

/// Adds 1 to each element, as a program would that maps the file.
fn edit(scene: &Scene, name: &str) {
    let path = scene.emulated().join(name);
    let mut bytes = fs::read(&path).expect("the array");
    for element in bytes.chunks_exact_mut(2) {
        let new = u16::from_le_bytes([element[0], element[1]]) + 1;
        element.copy_from_slice(&new.to_le_bytes());
    }
    // Opened for writing only, so that the file and its description stay.
    let mut file = fs::OpenOptions::new().write(true).open(&path).expect("the array");
    std::io::Write::write_all(&mut file, &bytes).expect("written");
}

fn document(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("a document")).expect("JSON")
}

/// Runs Python, which must find what it asserts.
pub(crate) fn python(script: &str) {
    let Some(python) = std::env::var_os("NDSHM_TEST_PYTHON") else {
        not_run(
            "reading by other programs",
            "it needs NDSHM_TEST_PYTHON, a Python with cloudvolume, zarr and tensorstore",
        );
        return;
    };
    run(Command::new(python).args(["-c", script])).expect_code(0);
}

/// CloudVolume reads the elements, resolution, begin and unit of a volume of this shape. `change` was added to each
/// element.
fn cloudvolume_reads(path: &Path, begin: [i64; 3], shape: [i64; 3], change: u16) {
    python(&format!(
        r#"
import numpy as np
from cloudvolume import CloudVolume
vol = CloudVolume("precomputed://file://{}", progress=False, fill_missing=False)
assert list(vol.resolution) == [4, 4, 40], vol.resolution
assert list(vol.voxel_offset) == {begin:?}, vol.voxel_offset
assert list(vol.volume_size) == {shape:?}, vol.volume_size
at = np.mgrid[tuple(slice(b, b + s) for b, s in zip({begin:?}, {shape:?}))] - np.array([100, 205, 7]).reshape(3, 1, 1, 1)
expected = at[0] + 50 * at[1] + 1800 * at[2] + {change}
assert (vol[:, :, :][..., 0] == expected).all()
"#,
        path.display()
    ));
}

#[test]
fn edited_region_goes_back_to_its_place() {
    let scene = Scene::new();
    let em = volume(&scene, &[]);
    download(&scene, &em, "part", &["--bbox", REGION]);
    edit(&scene, "part");
    // The volume is named in another way than for the download.
    let link = scene.temporary().join("link");
    #[cfg(unix)]
    std::os::unix::fs::symlink(&em, &link).expect("a link");
    let other = if cfg!(unix) { format!("precomputed://file://{}/", text(&link)) } else { text(&em).to_owned() };
    let report = upload(&scene, "part", &other, &["--json"]).expect_code(0).json();
    assert_eq!((&report["bbox"], &report["stored"]), (&json!("116:132,205:221,15:27,0:1"), &json!(2)));
    assert_eq!(report["created"], Value::Null);

    download(&scene, &em, "back", &["--bbox", REGION]);
    let back = fs::read(scene.emulated().join("back")).expect("it");
    assert!(back == elements([16..32, 0..16, 8..20], 1), "the edited region");
    download(&scene, &em, "back", &["--bbox", "100:116,:,:", "--replace"]);
    let back = fs::read(scene.emulated().join("back")).expect("it");
    assert!(back == elements([0..16, 0..34, 0..20], 0), "the rest is as it was");
    // Only a part of it, still without --bbox.
    let report = upload(&scene, "part", text(&em), &["--json", "--cutout", "116:132,205:221,15:23"]);
    assert_eq!(report.expect_code(0).json()["stored"], 1);
}

#[test]
fn array_of_another_volume_or_scale_needs_its_region() {
    let scene = Scene::new();
    let em = volume(&scene, &[]);
    download(&scene, &em, "part", &["--bbox", REGION]);
    let copy = scene.temporary().join("copy");
    let copied = copy_of(&em, &copy);
    assert!(copied > 1, "chunks were copied");
    let refused = upload(&scene, "part", text(&copy), &[]).expect_code(2);
    assert!(refused.err.contains("give --bbox 116:132,205:221,15:27,0:1"), "{refused:?}");
    assert!(refused.err.contains(text(&em)), "{refused:?}");
    upload(&scene, "part", text(&copy), &["--bbox", REGION]).expect_code(0);

    // A coarser scale, as a program that downsamples adds it.
    let mut info = document(&em.join("info"));
    let mut coarse = info["scales"][0].clone();
    (coarse["key"], coarse["resolution"]) = ("8_8_40".into(), json!([8, 8, 40]));
    (coarse["size"], coarse["voxel_offset"]) = (json!([20, 17, 20]), json!([50, 102, 7]));
    info["scales"].as_array_mut().expect("a list").push(coarse);
    fs::write(em.join("info"), info.to_string()).expect("written");
    let refused = upload(&scene, "part", text(&em), &["--mip", "1"]).expect_code(2);
    assert!(refused.err.contains("4_4_40") && refused.err.contains("8_8_40"), "{refused:?}");
    assert!(refused.err.contains("--mip") && refused.err.contains("--bbox"), "{refused:?}");
    // Nor does it fill a scale that happens to have its shape.
    info["scales"][1]["size"] = json!([16, 16, 12]);
    fs::write(em.join("info"), info.to_string()).expect("written");
    let refused = upload(&scene, "part", text(&em), &["--mip", "1"]).expect_code(2);
    assert!(refused.err.contains("4_4_40") && refused.err.contains("8_8_40"), "{refused:?}");
    let table = upload(&scene, "part", text(&em), &[]).expect_code(0);
    assert!(table.out.contains("116:132,205:221,15:27,0:1"), "{table:?}");
}

/// Copies a directory. Returns how many files it had.
fn copy_of(from: &Path, to: &Path) -> usize {
    fs::create_dir(to).expect("made");
    let mut count = 0;
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        if entry.path().is_dir() {
            count += copy_of(&entry.path(), &to.join(entry.file_name()));
        } else {
            fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
            count += 1;
        }
    }
    count
}

#[test]
fn copy_of_a_region_keeps_offset_resolution_and_chunks() {
    let scene = Scene::new();
    let em = volume(&scene, &["--encoding", "raw"]);
    download(&scene, &em, "part", &["--bbox", REGION]);
    edit(&scene, "part");
    let copy = scene.temporary().join("copy");
    let to = format!("precomputed://{}", text(&copy));
    let report = upload(&scene, "part", &to, &["--create", "--json"]).expect_code(0).json();
    let created = &report["created"];
    assert_eq!((&created["resolution"], &created["unit"]), (&json!([4.0, 4.0, 40.0]), &json!("nm")));
    assert_eq!((&created["is_resolution_assumed"], &report["warnings"]), (&json!(false), &json!([])));
    let info = document(&copy.join("info"));
    let (scale, old) = (&info["scales"][0], &document(&em.join("info"))["scales"][0]);
    assert_eq!((&scale["voxel_offset"], &scale["size"]), (&json!([116, 205, 15]), &json!([16, 16, 12])));
    for member in ["key", "resolution", "chunk_sizes", "encoding"] {
        assert_eq!(scale[member], old[member], "{member}");
    }
    cloudvolume_reads(&copy, [116, 205, 15], [16, 16, 12], 1);
    // The same command can be repeated, and its table says what it created.
    let table = upload(&scene, "part", &to, &["--create"]).expect_code(0).out;
    assert!(
        table.contains("4 x 4 x 40 nm") && table.contains("16 x 16 x 8") && !table.contains("resolution  1"),
        "{table}"
    );

    // Options win.
    let other = scene.temporary().join("other");
    let options =
        ["--create", "--format", "precomputed", "--origin", "1,2,3", "--resolution", "8,8,8", "--encoding", "png"];
    let report = upload(&scene, "part", text(&other), &[&options[..], &["--chunk", "8,8,8", "--json"]].concat());
    assert_eq!(report.expect_code(0).json()["warnings"], json!([]));
    let scale = document(&other.join("info"))["scales"][0].clone();
    assert_eq!((&scale["voxel_offset"], &scale["resolution"]), (&json!([1, 2, 3]), &json!([8, 8, 8])));
    assert_eq!((&scale["chunk_sizes"], &scale["encoding"]), (&json!([[8, 8, 8]]), &json!("png")));
}

#[test]
fn zarr_copy_keeps_what_zarr_can_and_says_the_rest() {
    let scene = Scene::new();
    let em = volume(&scene, &["--encoding", "png"]);
    download(&scene, &em, "part", &["--bbox", REGION]);
    let copy = scene.temporary().join("copy.zarr");
    let done = upload(&scene, "part", text(&copy), &["--create", "--format", "zarr3"]).expect_code(0);
    assert!(done.err.contains("116,205,15") && done.err.contains("begins at 0"), "{done:?}");
    assert!(done.err.contains("zstd") && done.err.contains("png"), "{done:?}");
    assert!(done.out.contains("4 x 4 x 40 nm"), "{done:?}");
    let written = document(&copy.join("zarr.json"));
    assert_eq!(written["dimension_names"], json!(["x", "y", "z", "channel"]));
    assert_eq!(written["attributes"]["dimension_units"], json!(["4 nm", "4 nm", "40 nm", null]));
    assert_eq!(written["chunk_grid"]["configuration"]["chunk_shape"], json!([16, 16, 8, 1]));
    python(&format!(
        r#"
import numpy as np, tensorstore as ts, zarr
at = np.mgrid[16:32, 0:16, 8:20]
expected = (at[0] + 50 * at[1] + 1800 * at[2])[..., None]
array = zarr.open_array({path:?}, mode="r")
assert array.metadata.dimension_names == ("x", "y", "z", "channel")
assert (array[...] == expected).all()
store = ts.open({{"driver": "zarr3", "kvstore": "file://" + {path:?} + "/"}}, read=True).result()
assert store.domain.labels == ("x", "y", "z", "channel"), store.domain.labels
assert [unit and (unit.multiplier, unit.base_unit) for unit in store.dimension_units] == [(4, "nm"), (4, "nm"), (40, "nm"), None]
assert (store.read().result() == expected).all()
"#,
        path = text(&copy)
    ));
    // And back to Precomputed, with the offset given by hand: nothing else was lost on the way.
    download(&scene, &copy, "again", &[]);
    let back = scene.temporary().join("back");
    let to = format!("precomputed://{}", text(&back));
    upload(&scene, "again", &to, &["--create", "--origin", "116,205,15"]).expect_code(0);
    cloudvolume_reads(&back, [116, 205, 15], [16, 16, 12], 0);

    let old = scene.temporary().join("old.zarr");
    let done = upload(&scene, "part", text(&old), &["--create", "--format", "zarr2"]).expect_code(0);
    assert!(done.err.contains("names of the axes"), "{done:?}");
    // A region of three ranges and a chunk of three lengths both mean all channels.
    let new = ["--create", "--format", "zarr3", "--chunk", "8,8,8", "--bbox", "0:16,0:16,0:12", "--json"];
    let report = upload(&scene, "part", text(&scene.temporary().join("three")), &new).expect_code(0).json();
    assert_eq!(report["bbox"], "0:16,0:16,0:12,0:1");
    assert_eq!(report["stored"], 8);
}

#[test]
fn without_a_description_the_resolution_is_said_to_be_assumed() {
    let scene = Scene::new();
    fs::write(scene.emulated().join("x"), [7u8; 64]).expect("written");
    let to = scene.temporary().join("new");
    let layout = ["--dtype", "uint8", "--shape", "4,4,4", "--order", "c", "--chunk", "4,4,4", "--create"];
    let done = upload(&scene, "x", text(&to), &[&layout[..], &["--format", "precomputed"]].concat()).expect_code(0);
    assert!(done.out.contains("1 nm (assumed; --resolution gives it)"), "{done:?}");
    let json = upload(&scene, "x", text(&to), &[&layout[..], &["--format", "precomputed", "--json"]].concat());
    let created = json.expect_code(0).json()["created"].clone();
    assert_eq!((&created["is_resolution_assumed"], &created["resolution"]), (&json!(true), &json!([1.0, 1.0, 1.0])));
    let zarr = scene.temporary().join("zarr");
    let done = upload(&scene, "x", text(&zarr), &[&layout[..], &["--format", "zarr3"]].concat()).expect_code(0);
    assert!(done.out.contains("not recorded (--resolution gives it)"), "{done:?}");
}

/// A copy of JPEG pictures as JPEG pictures has other elements than its source.
#[test]
fn copy_of_a_jpeg_volume_is_lossless_and_labels_stay_labels() {
    let scene = Scene::new();
    fs::write(scene.emulated().join("x"), (0..4096_u32).map(|at| (at % 61) as u8).collect::<Vec<_>>())
        .expect("written");
    let layout = ["--create", "--format", "precomputed", "--dtype", "uint8", "--shape", "16,16,16", "--order", "f"];
    let jpeg = scene.temporary().join("jpeg");
    let how = ["--chunk", "16,16,16", "--encoding", "jpeg"];
    upload(&scene, "x", text(&jpeg), &[&layout[..], &how].concat()).expect_code(0);
    download(&scene, &jpeg, "lossy", &[]);
    let copy = scene.temporary().join("copy");
    let to = format!("precomputed://{}", text(&copy));
    let done = upload(&scene, "lossy", &to, &["--create"]).expect_code(0);
    assert!(done.err.contains("without loss") && done.err.contains("jpeg"), "{done:?}");
    assert_eq!(document(&copy.join("info"))["scales"][0]["encoding"], "raw");
    download(&scene, &copy, "same", &[]);
    let read = |name: &str| fs::read(scene.emulated().join(name)).expect("an array");
    assert!(read("same") == read("lossy"));

    let labels: Vec<u8> = (0..4096_u32).flat_map(|at| (at / 512 * 1_000_003).to_le_bytes()).collect();
    fs::write(scene.emulated().join("y"), &labels).expect("written");
    let layout = ["--create", "--format", "precomputed", "--dtype", "uint32", "--shape", "16,16,16", "--order", "f"];
    let how = ["--chunk", "16,16,16", "--encoding", "compressed_segmentation"];
    let segments = scene.temporary().join("segments");
    upload(&scene, "y", text(&segments), &[&layout[..], &how].concat()).expect_code(0);
    download(&scene, &segments, "labels", &[]);
    let copy = scene.temporary().join("copy-of-labels");
    let done = upload(&scene, "labels", &format!("precomputed://{}", text(&copy)), &["--create"]).expect_code(0);
    assert!(done.err.is_empty(), "{done:?}");
    let info = document(&copy.join("info"));
    assert_eq!(
        (&info["type"], &info["scales"][0]["encoding"]),
        (&json!("segmentation"), &json!("compressed_segmentation"))
    );
    let zarr = scene.temporary().join("labels.zarr");
    let done = upload(&scene, "labels", text(&zarr), &["--create", "--format", "zarr3"]).expect_code(0);
    assert!(done.err.contains("labels") && done.err.contains("zstd"), "{done:?}");
    // A type that is given for Zarr is still refused.
    let refused = scene.temporary().join("refused.zarr");
    let typed = ["--create", "--format", "zarr3", "--type", "segmentation"];
    assert!(upload(&scene, "labels", text(&refused), &typed).expect_code(2).err.contains("Zarr has no member"));
    assert!(!refused.exists());
}

/// An array of z, y, x in a volume of x, y, z would be another picture.
#[test]
fn exchanged_axes_are_refused() {
    let scene = Scene::new();
    let to = volume(&scene, &[]);
    let zarr = scene.volume().with_extension("zarr");
    fs::create_dir(&zarr).expect("a directory");
    let document = json!({
        "zarr_format": 3, "node_type": "array", "shape": [40, 34, 20], "data_type": "uint16", "fill_value": 7,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [16, 16, 8]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "dimension_names": ["z", "y", "x"],
    });
    fs::write(zarr.join("zarr.json"), document.to_string()).expect("written");
    download(&scene, &zarr, "zyx", &[]);
    for more in [&[][..], &["--bbox", "100:140,205:239,7:27"]] {
        let refused = upload(&scene, "zyx", text(&to), more).expect_code(2);
        assert!(refused.err.contains("z, y, x") && refused.err.contains("numpy.transpose"), "{}", refused.err);
    }
    let new = scene.volume().with_extension("new");
    let refused = upload(&scene, "zyx", text(&new), &["--create", "--format", "precomputed"]).expect_code(2);
    assert!(refused.err.contains("x, y, z") && !new.exists(), "{}", refused.err);
    upload(&scene, "zyx", text(&new), &["--create", "--format", "zarr3"]).expect_code(0);
    upload(&scene, "zyx", text(&to), &["--ignore-description", "--order", "c"]).expect_code(0);
}
