//! N5 volumes: `info` lists them, downloads read them, uploads refuse them.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::scene::{Scene, run, text};

const SHAPE: [u16; 3] = [10, 9, 8];
const BLOCK: u16 = 4;

fn element(x: u16, y: u16, z: u16) -> u16 {
    x + 100 * y + 1000 * z
}

/// Writes a container with one group of two scales. Only the first scale has elements.
fn write(directory: &Path) {
    let factors = [[1, 1, 1], [2, 2, 1]];
    for (mip, factors) in factors.iter().enumerate() {
        let scale = directory.join(format!("raw/s{mip}"));
        fs::create_dir_all(&scale).expect("made");
        let dataset = json!({
            "dimensions": SHAPE.map(|length| length >> mip), "blockSize": [BLOCK, BLOCK, BLOCK], "dataType": "uint16",
            "compression": {"type": "raw"}, "downsamplingFactors": factors,
        });
        fs::write(scale.join("attributes.json"), dataset.to_string()).expect("written");
    }
    fs::write(directory.join("attributes.json"), r#"{"n5": "2.5.1"}"#).expect("written");
    let group = json!({"pixelResolution": {"dimensions": [4, 4, 40], "unit": "nm"}});
    fs::write(directory.join("raw/attributes.json"), group.to_string()).expect("written");
    let grid = SHAPE.map(|length| length.div_ceil(BLOCK));
    for (x, y, z) in (0..grid[0]).flat_map(|x| (0..grid[1]).flat_map(move |y| (0..grid[2]).map(move |z| (x, y, z)))) {
        let ranges = [x, y, z].map(|number| number * BLOCK);
        let ends: [u16; 3] = std::array::from_fn(|axis| (ranges[axis] + BLOCK).min(SHAPE[axis]));
        let mut bytes = vec![0, 0, 0, 3];
        (0..3).for_each(|axis| bytes.extend(u32::from(ends[axis] - ranges[axis]).to_be_bytes()));
        for z in ranges[2]..ends[2] {
            for y in ranges[1]..ends[1] {
                (ranges[0]..ends[0]).for_each(|x| bytes.extend(element(x, y, z).to_be_bytes()));
            }
        }
        let file = directory.join(format!("raw/s0/{x}/{y}/{z}"));
        fs::create_dir_all(file.parent().expect("a directory")).expect("made");
        fs::write(file, bytes).expect("written");
    }
}

/// Returns all elements in F order.
fn expected() -> Vec<u8> {
    let planes = (0..SHAPE[2]).flat_map(|z| (0..SHAPE[1]).map(move |y| (y, z)));
    planes.flat_map(|(y, z)| (0..SHAPE[0]).flat_map(move |x| element(x, y, z).to_ne_bytes())).collect()
}

#[test]
fn n5_is_listed_downloaded_and_planned_but_not_written() {
    let scene = Scene::new();
    let container = scene.volume();
    write(&container);
    let group = container.join("raw");

    let report = run(scene.ndshm(["info", "--json"]).arg(&group)).expect_code(0).json();
    let scales = &report["scales"];
    assert_eq!((&scales[0]["key"], &scales[1]["key"]), (&json!("s0"), &json!("s1")), "{report}");
    assert_eq!((&scales[1]["resolution"], &scales[1]["unit"]), (&json!([8.0, 8.0, 40.0]), &json!("nm")));
    assert_eq!((&scales[0]["axes"], &scales[0]["encoding"]), (&json!(["x", "y", "z"]), &json!("N5, raw")));
    let refused = run(scene.ndshm(["info"]).arg(&container)).expect_code(1);
    assert!(refused.err.contains("this is an N5 group") && refused.err.contains("(raw)"), "{refused:?}");

    // One block is cut short, so the download fails. After the block is restored, the same command finishes the array.
    let block = container.join("raw/s0/2/2/1");
    let good = fs::read(&block).expect("a block");
    fs::write(&block, &good[..good.len() - 1]).expect("damaged");
    let download = ["download", "--order", "f", "--processes", "--workers", "2", "--keep-partial", "--quiet", "--json"];
    let mut command = scene.ndshm(download);
    let failed = run(command.args(["--location", "em"]).arg(&group));
    assert!(failed.err.contains("raw/s0/2/2/1") || failed.err.contains(r"raw\s0\2\2\1"), "{failed:?}");
    fs::write(&block, &good).expect("restored");
    let mut command = scene.ndshm(download);
    let done = run(command.args(["--location", "em"]).arg(&group)).expect_code(0).json();
    assert_eq!(done["chunks"], json!(18), "{done}");
    assert!(fs::read(scene.emulated().join("em")).expect("there") == expected());

    let parts = run(scene.ndshm(["plan", "--shards", "2", "--json"]).arg(&group)).expect_code(0);
    assert!(parts.out.contains("0:10"), "{parts:?}");
    let refused = run(scene.ndshm(["upload", "em", text(&container.join("raw/s0"))]).args(["--order", "f"]));
    assert!(refused.err.contains("read, but not written"), "{refused:?}");
    let refused = run(scene.ndshm(["upload", "em", "n5://new", "--create"]).args(["--order", "f"])).expect_code(2);
    assert!(refused.err.contains("read, but not written"), "{refused:?}");
}
