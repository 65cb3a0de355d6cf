//! Volumes in parts, and the way back: `plan`, `--shard`, `--markers`, `upload`, `info SOURCE`.

use std::fs;
use std::path::Path;
use std::process::Command;

use ndarray::ShapeBuilder as _;
use ndarray_shm::{CreateOptions, RefcountedArray};
use serde_json::Value;

use crate::scene::{Finished, Scene, run};
use crate::volume::{self, CHUNKS, SHAPE};

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

fn download(scene: &Scene, name: &str, arguments: &[&str]) -> Command {
    let mut command = scene.ndshm(["download", "--location", name, "--json", "--quiet"]);
    command.args(arguments).arg(scene.volume());
    command
}

/// Uploads the array of the whole volume.
fn upload(scene: &Scene, to: &Path, arguments: &[&str]) -> Finished {
    let mut command = scene.ndshm(["upload", "x", text(to), "--json", "--quiet"]);
    run(command.args(arguments))
}

/// Demands that a volume holds what it should, by downloading it.
#[track_caller]
fn assert_whole(scene: &Scene, volume: &Path) {
    run(&mut scene.ndshm(["download", text(volume), "--location", "again", "--replace", "--quiet"])).expect_code(0);
    assert!(fs::read(scene.emulated().join("again")).expect("there") == volume::expected_whole());
}

#[test]
fn a_plan_divides_everything_and_is_the_same_every_time() {
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
fn four_parts_are_the_whole_in_any_order_and_a_marked_one_is_not_done_again() {
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
    // A mark outlives the memory of a machine: the part is painted again.
    fs::remove_file(scene.emulated().join("part-3")).expect("ours");
    assert_eq!(part(3, &[])["painted"], CHUNKS / 4, "{CHUNKS} chunks");
    // Marks of another work say nothing about this one.
    let other = part(3, &["--order", "f", "--replace"]);
    assert_eq!(other["order"], "F", "{other:#}");
}

#[test]
fn parts_are_told_by_the_scheduler() {
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
fn an_array_goes_up_into_a_new_volume_and_comes_down_again() {
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
        // The same command again does the same again.
        let again = upload(&scene, &to, &create).expect_code(0).json();
        assert_eq!((&again["stored"], &again["background"]), (&report["stored"], &report["background"]));
        let other = [&["--create", "--dtype", "uint8", "--shape", &shape, "--order", "c"], *how].concat();
        upload(&scene, &to, &other).expect_code(1);
        let info = run(&mut scene.ndshm(["info", "--json", text(&to)])).expect_code(0).json();
        assert_eq!(info["scales"][0]["shape"], serde_json::json!(SHAPE));
        assert_eq!(info["scales"][0]["dtype"], "<u2");
        let table = run(&mut scene.ndshm(["info", text(&to)])).expect_code(0).out;
        assert!(table.contains("1 scale\n") && table.contains("237 x 288 x 273"), "{table}");
    }
}

#[test]
fn an_upload_in_four_parts_is_the_whole_in_any_order_one_of_them_twice() {
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
fn a_cutout_touches_nothing_else_and_cut_objects_are_changed_only_if_that_is_said() {
    let scene = Scene::new();
    let to = scene.temporary().join("new");
    fs::write(scene.emulated().join("x"), [7u8; 8 * 8]).expect("written");
    let create = ["--create", "--format", "zarr3", "--dtype", "uint8", "--shape", "8,8", "--chunk", "4,4"];
    let cut = ["--order", "c", "--cutout", "0:4,2:6"];
    let refused = upload(&scene, &to, &[&create[..], &cut].concat()).expect_code(2);
    assert!(refused.err.contains("read-modify-write"), "{refused:?}");
    upload(&scene, &to, &[&cut[..], &["--read-modify-write"]].concat()).expect_code(0);
    run(&mut scene.ndshm(["download", text(&to), "--location", "back", "--quiet"])).expect_code(0);
    let expected: Vec<u8> = (0..64).map(|at| if at < 32 && (2..6).contains(&(at % 8)) { 7 } else { 0 }).collect();
    assert_eq!(fs::read(scene.emulated().join("back")).expect("there"), expected);

    // A file of the elements is as good as an array.
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
fn uploads_that_make_no_sense_say_why() {
    let scene = Scene::new();
    fs::write(scene.emulated().join("x"), [7u8; 64]).expect("written");
    let to = scene.temporary().join("new");
    for (arguments, code, says) in [
        (&["--create"][..], 2, "--format"),
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

#[test]
fn info_of_a_name_stays_what_it_is() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    fs::write(scene.emulated().join("volume"), b"an array").expect("written");
    let here = scene.volume().parent().expect("a directory").to_owned();
    let info = |what: &str| run(scene.ndshm(["info", what]).current_dir(&here));
    assert!(info("volume").expect_code(0).out.contains("an array"));
    assert!(info("./volume").expect_code(0).out.contains("1 scale"));
    fs::remove_file(scene.emulated().join("volume")).expect("ours");
    assert!(info("volume").expect_code(3).err.contains("./volume"));
    info("./nowhere").expect_code(1);
    info("ftp://host/x").expect_code(2);
}

#[test]
fn failures_are_json_where_json_was_asked_for() {
    let scene = Scene::new();
    let finished = run(&mut scene.ndshm(["info", "nowhere", "--json"])).expect_code(3);
    let told = finished.json();
    assert!(told["error"].as_str().expect("words").contains("nowhere"), "{told:#}");
    assert!(told["because"].as_array().is_some_and(Vec::is_empty), "{told:#}");
    assert!(told["advice"].as_str().expect("words").contains("ndshm ls"), "{told:#}");
    assert!(finished.err.contains("nowhere"), "people are told too: {finished:?}");
    let nowhere = scene.volume();
    let told = run(&mut scene.ndshm(["plan", text(&nowhere), "--shards", "2", "--json"])).expect_code(1).json();
    assert!(told["error"].as_str().expect("words").contains(text(&nowhere)), "{told:#}");
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
    // A coarser scale, as those who downsample add it.
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
fn a_volume_that_is_another_is_not_taken_for_the_one_that_is_to_be_made() {
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
        // The same command again does the same again.
        put(to, format, encoding).expect_code(0);
    }
    // What would be lossless would be stored with loss, what would be found by one program would not.
    put("a", "precomputed", "raw").expect_code(1);
    put("b", "precomputed", "jpeg").expect_code(1);
    put("c", "zarr3", "raw").expect_code(1);
    put("c", "zarr2", "zstd").expect_code(1);
}

#[test]
fn marks_of_another_array_or_place_do_not_count() {
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
    assert_eq!(put("4:12")["stored"], 1, "the array lies elsewhere");
    fs::write(&file, b"ABCDEFGH").expect("a file");
    assert_eq!(put("4:12")["stored"], 1, "it is another array");

    let get = |name: &str| {
        let mut command =
            scene.ndshm(["download", text(&to), "--location", name, "--bbox", "4:8", "--json", "--quiet"]);
        run(command.args(["--shard", "0/1", "--markers", text(&scene.temporary().join("marks-down"))]))
    };
    get("one").expect_code(0);
    assert_eq!(get("one").expect_code(0).json()["state"], "already done");
    fs::write(scene.emulated().join("two"), b"????").expect("somebody's array of the same size");
    get("two").expect_code(1);
    // Who changes the array in place has it still; one that is made anew under its name is another.
    let made = || fs::metadata(scene.emulated().join("one")).and_then(|facts| facts.created()).ok();
    let before = made();
    fs::write(scene.emulated().join("one"), b"wxyz").expect("written");
    // Wine takes the last change of a file for the time when it was made.
    if made() == before {
        assert_eq!(get("one").expect_code(0).json()["state"], "already done");
    }
    // The old one is kept, so that its number is not used again at once.
    fs::rename(scene.emulated().join("one"), scene.emulated().join("old")).expect("renamed");
    fs::write(scene.emulated().join("one"), b"????").expect("somebody's array of the same size");
    get("one").expect_code(1);
    fs::remove_file(scene.emulated().join("one")).expect("removed");
    assert_eq!(get("one").expect_code(0).json()["painted"], 1, "it is not there");
    assert_eq!(get("one").expect_code(0).json()["state"], "already done");
}

/// Without the order the elements of what was downloaded in F order would change places in silence.
#[test]
fn upload_of_a_plain_array_needs_its_order() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    let bbox = ["--bbox", "30:90,40:100,50:120"];
    run(&mut download(&scene, "x", &[&bbox[..], &["--order", "f"]].concat())).expect_code(0);
    let (file, to) = (scene.emulated().join("x"), scene.temporary().join("volume"));
    let create = ["--create", "--format", "zarr3", "--dtype", "uint16", "--shape", "60,60,70", "--chunk", "32,32,32"];
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

/// Both orders are the same where at most one axis is longer than 1.
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
fn an_order_that_is_not_the_array_s_own_is_refused() {
    let scene = Scene::new();
    let options = CreateOptions::<RefcountedArray<u8, _>>::new().backend(scene.backend());
    let array = options.create_with("x", (2, 4).f(), |mut view| view.fill(7)).expect("a new array");
    let to = scene.temporary().join("volume");
    let new = ["--create", "--format", "zarr3", "--dtype", "uint8", "--shape", "2,4", "--chunk", "2,2"];
    let put = |order: &str| run(scene.ndshm(["upload", "x", text(&to), "--quiet", "--order", order]).args(new));
    let finished = put("c").expect_code(2);
    assert!(finished.err.contains("its order is F, not C"), "{finished:?}");
    assert!(!to.exists());
    put("f").expect_code(0);
    drop(array);
}
