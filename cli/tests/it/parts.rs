//! Volumes in parts: `plan`, `--shard`, `--markers`.

use std::fs;

use serde_json::Value;

use crate::downloading::{assert_whole, download};
use crate::scene::{Scene, run, text};
use crate::uploading::upload;
use crate::volume::{self, CHUNKS, SHAPE};

#[test]
fn plan_covers_the_volume_and_is_deterministic() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    let plan = |arguments: &[&str]| run(scene.ndshm(["plan", "--json"]).args(arguments).arg(scene.volume()));
    let first = plan(&["--shards", "4"]).expect_code(0);
    assert_eq!(first.out, plan(&["--shards", "4"]).expect_code(0).out);
    let parts = first.json()["parts"].as_array().expect("a list").clone();
    let sum =
        |parts: &[Value], field: &str| parts.iter().map(|part| part[field].as_u64().expect("a number")).sum::<u64>();
    assert_eq!(parts.len(), 4);
    assert_eq!((sum(&parts, "chunks"), sum(&parts, "objects")), (CHUNKS as u64, CHUNKS as u64));
    assert_eq!(sum(&parts, "bytes"), (SHAPE.iter().product::<usize>() * 2) as u64);
    assert_eq!(parts[1]["shard"], "1/4");

    let few = plan(&["--shards", "5", "--bbox", "0:8,0:8,0:100"]).expect_code(0).json();
    let few = few["parts"].as_array().expect("a list").clone();
    assert_eq!((few[0]["bbox"].as_str(), few[1]["bbox"].as_str()), (Some("0:8,0:8,0:56"), Some("0:8,0:8,56:100")));
    assert!(few[2]["bbox"].is_null() && few[2]["bytes"] == 0);
    let table = run(scene.ndshm(["plan", "--shards", "2"]).arg(scene.volume())).expect_code(0).out;
    assert!(table.contains("SHARD") && table.contains("1/2"), "{table}");
    plan(&["--shards", "0"]).expect_code(2);
    plan(&["--shards", "2", "--bbox", "0:8"]).expect_code(2);
    plan(&[]).expect_code(2);
}

#[test]
fn four_parts_are_complete_and_marked_ones_are_skipped() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    let marks = scene.temporary().join("marks");
    let part = |index: usize, more: &[&str]| {
        let (name, shard) = (format!("part-{index}"), format!("{index}/4"));
        let arguments = [&["--shard", &shard, "--markers", text(&marks)], more].concat();
        run(&mut download(&scene, &name, &arguments)).expect_code(0).json()
    };
    for index in [2, 0, 3, 1] {
        let report = part(index, &[]);
        assert_eq!(report["shard"], format!("{index}/4"));
        let bbox = report["bbox"].as_str().expect("a region");
        let ranges: Vec<_> = bbox
            .split(',')
            .map(|range| {
                let (start, end) = range.split_once(':').expect("a range");
                start.parse().expect("a number")..end.parse().expect("a number")
            })
            .collect();
        let bytes = fs::read(scene.emulated().join(format!("part-{index}"))).expect("there");
        assert!(bytes == volume::expected(&ranges.try_into().expect("three axes"), true), "{bbox}");
    }
    let sum: u64 =
        (0..4).map(|index| fs::metadata(scene.emulated().join(format!("part-{index}"))).expect("there").len()).sum();
    assert_eq!(sum, (SHAPE.iter().product::<usize>() * 2) as u64);

    let again = part(3, &[]);
    assert_eq!(again["state"], "already done", "{again:#}");
    // A marker can outlive the array in memory. Then the part is painted again.
    fs::remove_file(scene.emulated().join("part-3")).expect("ours");
    assert_eq!(part(3, &[])["painted"], CHUNKS / 4, "{CHUNKS} chunks");
    // Markers of a job with other options do not count.
    let other = part(3, &["--order", "f", "--replace"]);
    assert_eq!(other["order"], "F", "{other:#}");
}

#[test]
fn scheduler_variables_choose_the_part() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    let slurm = |id: &str, count: &str| {
        let mut command = download(&scene, &format!("slurm-{id}"), &["--shard", "auto", "--bbox", "0:40,0:48,0:200"]);
        command.env("SLURM_ARRAY_TASK_ID", id).env("SLURM_ARRAY_TASK_MIN", "1").env("SLURM_ARRAY_TASK_MAX", "9");
        run(command.env("SLURM_ARRAY_TASK_COUNT", count))
    };
    assert_eq!(slurm("1", "9").expect_code(0).json()["shard"], "0/9");
    assert_eq!(slurm("4", "9").expect_code(0).json()["bbox"], "0:40,0:48,168:200");
    let last = slurm("9", "9").expect_code(0).json();
    assert!(last["bbox"].is_null() && last["state"] == "nothing", "{last:#}");
    assert!(!scene.files().contains(&"slurm-9".to_owned()));
    slurm("2", "4").expect_code(2);
    let pod = |arguments: &[&str]| run(download(&scene, "pod", arguments).env("JOB_COMPLETION_INDEX", "1"));
    let finished = pod(&["--shard", "auto"]).expect_code(2);
    assert!(finished.err.contains("JOB_COMPLETION_INDEX"), "{finished:?}");
    let report = pod(&["--shard", "auto", "--shards", "3", "--bbox", "0:40,0:48,0:160"]).expect_code(0).json();
    assert_eq!((&report["shard"], &report["bbox"]), (&"1/3".into(), &"0:40,0:48,56:112".into()));
    for shard in ["4/4", "1", "-1/4", "1/0", "a/b"] {
        run(&mut download(&scene, "x", &["--shard", shard])).expect_code(2);
    }
    run(&mut download(&scene, "x", &["--shard", "1/4", "--shards", "5"])).expect_code(2);
    run(&mut download(&scene, "x", &["--markers", "here"])).expect_code(2);
}

#[test]
fn upload_in_four_parts_is_complete_in_any_order() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    run(&mut download(&scene, "x", &[])).expect_code(0);
    let (to, marks) = (scene.temporary().join("new"), scene.temporary().join("marks"));
    let shape = SHAPE.map(|length| length.to_string()).join(",");
    let create = ["--create", "--format", "zarr3", "--dtype", "uint16", "--shape", &shape, "--chunk", "40,48,56"];
    let mut states = Vec::new();
    for shard in ["3/4", "1/4", "0/4", "1/4", "2/4"] {
        let arguments = [&create[..], &["--order", "c", "--shard", shard, "--markers", text(&marks)]].concat();
        let report = upload(&scene, &to, &arguments).expect_code(0).json();
        assert_eq!(report["shard"], shard);
        states.push(report["state"].as_str().unwrap_or("stored").to_owned());
    }
    assert_eq!(states, ["stored", "stored", "stored", "already done", "stored"]);
    assert_whole(&scene, &to);
}

#[test]
fn markers_of_another_array_or_region_are_ignored() {
    let scene = Scene::new();
    let (file, to, marks) =
        (scene.temporary().join("x.raw"), scene.temporary().join("volume"), scene.temporary().join("marks"));
    let create = ["--create", "--format", "zarr3", "--dtype", "uint8", "--shape", "16", "--chunk", "4"];
    let put = |region: &str| {
        let mut command = scene.ndshm(["upload", text(&file), text(&to), "--file", "--json", "--quiet"]);
        command.args(create).args(["--bbox", region, "--cutout", "4:8", "--shard", "0/1", "--markers", text(&marks)]);
        run(&mut command).expect_code(0).json()
    };
    fs::write(&file, b"abcdefgh").expect("a file");
    assert_eq!(put("0:8")["stored"], 1);
    assert_eq!(put("0:8")["state"], "already done");
    assert_eq!(put("4:12")["stored"], 1, "another region of the volume");
    fs::write(&file, b"ABCDEFGH").expect("a file");
    assert_eq!(put("4:12")["stored"], 1, "another array");

    let get = |name: &str| {
        let mut command =
            scene.ndshm(["download", text(&to), "--location", name, "--bbox", "4:8", "--json", "--quiet"]);
        run(command.args(["--shard", "0/1", "--markers", text(&scene.temporary().join("marks-down"))]))
    };
    get("one").expect_code(0);
    assert_eq!(get("one").expect_code(0).json()["state"], "already done");
    fs::write(scene.emulated().join("two"), b"????").expect("a foreign array of the same size");
    get("two").expect_code(1);
    // An array that was changed in place is still the same. An array created anew under its name is another one.
    let made = || fs::metadata(scene.emulated().join("one")).and_then(|facts| facts.created()).ok();
    let before = made();
    fs::write(scene.emulated().join("one"), b"wxyz").expect("written");
    // Wine reports the last change of a file as its creation time.
    if made() == before {
        assert_eq!(get("one").expect_code(0).json()["state"], "already done");
    }
    // The old file is kept, so that its inode number is not reused at once.
    fs::rename(scene.emulated().join("one"), scene.emulated().join("old")).expect("renamed");
    fs::write(scene.emulated().join("one"), b"????").expect("a foreign array of the same size");
    get("one").expect_code(1);
    fs::remove_file(scene.emulated().join("one")).expect("removed");
    assert_eq!(get("one").expect_code(0).json()["painted"], 1, "the array is missing");
    assert_eq!(get("one").expect_code(0).json()["state"], "already done");
}
