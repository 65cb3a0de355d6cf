//! `ls`, `info` and `unlink` on arrays that the library created.

use std::fs;
use std::process::Stdio;

use ndarray_shm::render::RenderOptions;
use ndarray_shm::{CreateOptions, SharedArray};

use crate::scene::{Scene, names_in, run};
use crate::volume;

fn array(scene: &Scene, name: &str) -> SharedArray<f32, ndarray::Ix2> {
    CreateOptions::new().directory(scene.directory()).create(name, (30, 40)).expect("created")
}

#[test]
fn patterns_choose_names() {
    let scene = Scene::new();
    let _held = ["em-1", "em-2", "seg-1"].map(|name| array(&scene, name));
    let names = |patterns: &[&str]| -> Vec<String> {
        let listed = run(scene.ndshm(["ls", "--backend", "emulated", "--json"]).args(patterns)).expect_code(0).json();
        listed.as_array().expect("a list").iter().map(|item| item["name"].as_str().expect("text").to_owned()).collect()
    };
    assert_eq!(names(&["em-*"]), ["em-1", "em-2"]);
    assert_eq!(names(&["*-[1]"]), ["em-1", "seg-1"]);
    assert_eq!(names(&["em-?", "seg-1"]), ["em-1", "em-2", "seg-1"]);
    let none = run(&mut scene.ndshm(["ls", "raw-*", "x"])).expect_code(3);
    assert!(none.err.contains("nothing matches `raw-*` or `x`"), "{none:?}");
    run(&mut scene.ndshm(["ls", "[a"])).expect_code(2);
    for wrong in ["--watch=0", "--watch=soon", "--watch=-1"] {
        run(&mut scene.ndshm(["ls", wrong])).expect_code(2);
    }
    run(&mut scene.ndshm(["ls", "--watch", "--json"])).expect_code(2);
}

/// New arrays appear in the next list, and Ctrl-C is the normal end, with exit code 0.
#[cfg(unix)]
#[test]
fn watch_shows_new_arrays_and_ends_on_a_signal() {
    use std::io::{BufRead as _, BufReader};

    let scene = Scene::new();
    let mut command = scene.ndshm(["ls", "--watch=0.1", "--backend", "emulated", "em*"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines().map(|line| line.expect("text"));
    assert_eq!(lines.next().as_deref(), Some("nothing matches `em*`"));
    let _held = array(&scene, "em");
    assert!(lines.any(|line| line.starts_with("em ")), "the output ended");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("ours");
    assert_eq!(lines.filter(|line| line.starts_with("error")).count(), 0);
    assert_eq!(child.wait().expect("a child").code(), Some(0));
}

#[test]
fn an_array_is_listed_shown_and_unlinked() {
    let scene = Scene::new();
    let held = array(&scene, "grid");

    let listed = run(&mut scene.ndshm(["ls", "--backend", "emulated", "--json"])).expect_code(0).json();
    assert_eq!(listed.as_array().expect("a list").len(), 1);
    assert_eq!(listed[0]["name"], "grid");
    assert_eq!(listed[0]["backend"], "emulated");
    assert_eq!(listed[0]["kind"], "array");
    assert_eq!(listed[0]["size"], 4800);
    assert_eq!(listed[0]["attached"], true);
    #[cfg(unix)]
    let (owner, mode) = (rustix::process::geteuid().as_raw(), "0600");
    #[cfg(not(unix))]
    let (owner, mode) = (serde_json::Value::Null, serde_json::Value::Null);
    assert_eq!(listed[0]["owner"], owner);
    assert_eq!(listed[0]["mode"], mode);

    let text = run(&mut scene.ndshm(["ls", "--backend", "emulated"])).expect_code(0).out;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("NAME  ") && lines[1].starts_with("grid  "), "{text}");
    assert!(lines[1].contains("4.7 KiB") && lines[1].contains("yes"), "{text}");

    let info = run(&mut scene.ndshm(["info", "grid", "--json"])).expect_code(0).json();
    assert_eq!(info["array"]["size"], 4800);
    assert_eq!(info["array"]["sparse"], false);
    assert_eq!(info["partial"], serde_json::Value::Null);

    drop(held);
    let info = run(&mut scene.ndshm(["info", "grid", "--json"])).expect_code(0).json();
    assert_eq!(info["array"]["attached"], false);
    let text = run(&mut scene.ndshm(["info", "grid"])).expect_code(0).out;
    assert!(text.contains("4800 bytes") && text.contains("mode 0600") == cfg!(unix), "{text}");

    let text = run(&mut scene.ndshm(["unlink", "grid"])).expect_code(0).out;
    assert_eq!(text, "unlinked grid\n");
    assert_eq!(scene.files(), [""; 0]);
    let text = run(&mut scene.ndshm(["ls", "--backend", "emulated"])).expect_code(0).out;
    assert_eq!(text, "no arrays\n");
}

#[cfg(target_os = "linux")]
#[test]
fn array_in_shared_memory_is_found_by_name() {
    let mut scene = Scene::new();
    let name = scene.shm_name();
    let shm = ndarray_shm::Directory::shm().expect("real shared memory");
    let held: SharedArray<u8, ndarray::Ix1> =
        CreateOptions::new().directory(shm).create(name.as_str(), 100).expect("created");

    let listed = run(&mut scene.ndshm_in_shm(["ls", "--json"])).expect_code(0).json();
    let ours = listed.as_array().expect("a list").iter().find(|item| item["name"] == name.as_str());
    let ours = ours.unwrap_or_else(|| panic!("{listed:#}"));
    assert_eq!(ours["backend"], "shm");
    assert_eq!(ours["attached"], true);

    let text = run(&mut scene.ndshm_in_shm(["unlink", &name])).expect_code(0).out;
    assert!(text.contains("still attached"), "{text}");
    run(&mut scene.ndshm_in_shm(["info", &name])).expect_code(3);
    assert_eq!(held.shape(), [100]);
}

#[cfg(target_os = "linux")]
#[test]
fn name_in_two_directories_needs_a_backend() {
    let mut scene = Scene::new();
    let name = scene.shm_name();
    let _emulated = array(&scene, &name);
    let shm = ndarray_shm::Directory::shm().expect("real shared memory");
    let _real: SharedArray<u8, ndarray::Ix1> =
        CreateOptions::new().directory(shm).create(name.as_str(), 100).expect("created");

    let refused = run(&mut scene.ndshm_in_shm(["unlink", &name])).expect_code(1);
    assert!(refused.err.contains("--backend"), "{refused:?}");
    let info = run(&mut scene.ndshm_in_shm(["info", &name, "--backend", "shm", "--json"]));
    assert_eq!(info.expect_code(0).json()["array"]["size"], 100);
    // The environment can choose the backend too.
    let info = run(&mut scene.ndshm(["info", &name, "--json"]));
    assert_eq!(info.expect_code(0).json()["array"]["size"], 4800);
}

#[test]
fn unfinished_renderbuffer_shows_its_progress() {
    let scene = Scene::new();
    let buffer = RenderOptions::new()
        .directory(scene.directory())
        .create::<u16, _>("half", (10, 10), (5, 5), "made by a test")
        .expect("created");
    let ndarray_shm::render::Claim::Chunk(claim) = buffer.claim(2).expect("claimed") else { panic!("free") };
    claim.commit().expect("committed");

    let listed = run(&mut scene.ndshm(["ls", "--backend", "emulated", "--json"])).expect_code(0).json();
    assert_eq!(listed.as_array().expect("a list").len(), 1, "the ledger is not shown: {listed:#}");
    assert_eq!(listed[0]["name"], "half");
    assert_eq!(listed[0]["kind"], "partial");
    assert_eq!(listed[0]["chunks_done"], 1);
    assert_eq!(listed[0]["chunks_total"], 4);
    assert_eq!(listed[0]["attached"], true);
    let all = run(&mut scene.ndshm(["ls", "--backend", "emulated", "--all", "--json"])).expect_code(0).json();
    assert_eq!(all.as_array().expect("a list").len(), 2, "{all:#}");

    let info = run(&mut scene.ndshm(["info", "half", "--json"])).expect_code(0).json();
    assert_eq!(info["array"], serde_json::Value::Null);
    let ledger = &info["partial"]["ledger"];
    assert_eq!(ledger["dtype"], "<u2");
    assert_eq!(ledger["order"], "C");
    assert_eq!(ledger["shape"], serde_json::json!([10, 10]));
    assert_eq!(ledger["chunk_shape"], serde_json::json!([5, 5]));
    assert_eq!(ledger["fingerprint"], "made by a test");
    let text = run(&mut scene.ndshm(["info", "half"])).expect_code(0).out;
    assert!(text.contains("1 of 4 chunks") && text.contains("made by a test"), "{text}");

    drop(buffer);
    let doctor = run(&mut scene.ndshm(["doctor", "--json"])).out;
    // Other programs may have left renderbuffers in this machine's shared memory, too.
    let mut advice = doctor.lines().filter(|line| line.contains("ndshm unlink --partial "));
    assert!(advice.any(|line| line.contains(" half")), "{doctor}");

    let refused = run(&mut scene.ndshm(["unlink", "half"])).expect_code(3);
    assert!(refused.err.contains("unlink --partial half"), "{refused:?}");
    run(&mut scene.ndshm(["unlink", "--partial", "half"])).expect_code(0);
    assert_eq!(scene.files(), [""; 0]);
}

#[test]
fn missing_name_does_not_stop_other_removals() {
    let scene = Scene::new();
    drop(array(&scene, "one"));
    drop(array(&scene, "two"));
    let finished = run(&mut scene.ndshm(["unlink", "one", "nowhere", "two", "--json"])).expect_code(3);
    assert!(finished.err.contains("`nowhere`"), "{finished:?}");
    let outcomes = finished.json();
    let unlinked: Vec<_> = outcomes.as_array().expect("a list").iter().map(|o| o["unlinked"].clone()).collect();
    assert_eq!(unlinked, [true, false, true]);
    assert_eq!(scene.files(), [""; 0]);
}

#[test]
fn inspection_creates_no_directory() {
    let scene = Scene::new();
    std::fs::remove_dir(scene.emulated()).expect("empty");
    for arguments in [&["ls"][..], &["info", "nothing", "--backend", "emulated"]] {
        run(&mut scene.ndshm_in_shm(arguments));
    }
    // On other platforms arrays are in the emulated directory, so `doctor` may create it.
    if cfg!(target_os = "linux") {
        run(&mut scene.ndshm_in_shm(["doctor"]));
    }
    assert!(!scene.emulated().exists());
    assert_eq!(names_in(&scene.temporary()), [""; 0]);
}

#[test]
fn a_closed_output_is_no_error() {
    let scene = Scene::new();
    let _held = array(&scene, "grid");
    for arguments in [&["ls"][..], &["ls", "--json"], &["info", "grid"], &["--help"]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = scene.ndshm(arguments);
        let child = command.stdout(writer).stderr(Stdio::piped()).spawn().expect("started");
        drop(command);
        let output = child.wait_with_output().expect("ended");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn info_takes_a_bare_name_for_an_array() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    fs::write(scene.emulated().join("volume"), b"an array").expect("written");
    let here = scene.volume().parent().expect("a directory").to_owned();
    let info = |what: &str| run(scene.ndshm(["info", what]).current_dir(&here));
    assert!(info("volume").expect_code(0).out.contains("an array"));
    assert!(info("./volume").expect_code(0).out.contains("1 scale"));
    fs::remove_file(scene.emulated().join("volume")).expect("ours");
    assert!(info("volume").expect_code(0).out.contains("1 scale"), "what a download would find");
    fs::remove_dir_all(scene.volume()).expect("ours");
    info("volume").expect_code(3);
    info("./nowhere").expect_code(1);
    info("ftp://host/x").expect_code(2);
}
