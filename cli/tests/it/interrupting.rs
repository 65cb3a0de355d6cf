//! Signals to a blocked program, and a kill before the first chunk is stored.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use ndarray_shm::ndarray::Ix1;
use ndarray_shm::{CreateOptions, SharedArray};
use sysinfo::{Pid, Signal};

use crate::scene::{Scene, names_in, run, signal, wait_until};

/// Creates an array of 64 elements, each 7. No process can read it while a write guard lives.
fn array(scene: &Scene) -> SharedArray<u8, Ix1> {
    let array = CreateOptions::new().directory(scene.directory()).create::<u8, Ix1>("x", 64).expect("made");
    array.write().expect("no other process has it").fill(7);
    array
}

fn start(command: &mut Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

#[test]
fn second_signal_ends_a_blocked_program_with_json() {
    let scene = Scene::new();
    let array = array(&scene);
    let guard = array.write().expect("no other process has it");
    let out = scene.temporary().join("x.npy");
    let mut child = start(scene.ndshm(["export", "x", "--dtype", "uint8", "--shape", "64", "--json"]).arg(&out));
    let mut words = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    words.read_line(&mut line).expect("text");
    assert!(line.contains("waiting for a process that writes"), "{line}");
    // A second signal right after the first one counts as the same, so it is repeated.
    let pid = Pid::from_u32(child.id());
    let mut status = None;
    wait_until("the end", || {
        let _ = signal(pid, Signal::Interrupt);
        status = child.try_wait().expect("a state");
        status.is_some()
    });
    assert_eq!(status.expect("an end").code(), Some(130));
    let (mut told, mut printed) = (String::new(), String::new());
    words.read_to_string(&mut told).expect("text");
    child.stdout.take().expect("piped").read_to_string(&mut printed).expect("text");
    let document: serde_json::Value =
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed}"));
    assert!(document["error"].as_str().is_some_and(|error| error.contains("interrupted twice")), "{document:#}");
    assert!(document["because"].as_array().is_some_and(Vec::is_empty) && document["advice"].is_null(), "{document:#}");
    assert_eq!(told.matches("error: interrupted twice").count(), 1, "{told}");
    drop(guard);
    assert!(!out.exists());
}

/// The upload is killed when the volume exists but no chunk, which would show how chunks are compressed.
#[test]
fn upload_killed_before_its_first_chunk_is_resumed() {
    let scene = Scene::new();
    let array = array(&scene);
    for (encoding, suffix) in [("gzip", ".gz"), ("raw", "")] {
        let volume = scene.temporary().join(encoding);
        let upload = |encoding: &str| {
            let mut command = scene.ndshm(["upload", "x", volume.to_str().expect("text"), "--order", "c", "--json"]);
            let new = ["--create", "--format", "precomputed", "--encoding", encoding, "--dtype", "uint8"];
            command.args(new).args(["--shape", "4,4,4", "--chunk", "4,4,4"]);
            command
        };
        // The upload creates the volume, and then waits for the writer of the array.
        let guard = array.write().expect("no other process has it");
        let mut child = start(&mut upload(encoding));
        wait_until("the volume", || volume.join("info").is_file());
        child.kill().expect("it is ours");
        child.wait().expect("its end");
        drop(guard);
        assert!(!volume.join("1_1_1").exists(), "no chunk is there");

        let report = run(&mut upload(encoding)).expect_code(0).json();
        assert_eq!(report["stored"], 1, "{report:#}");
        assert_eq!(names_in(&volume.join("1_1_1")), [format!("0-4_0-4_0-4{suffix}")]);
        // The existing chunks decide, not `--encoding`.
        let stored = fs::read(volume.join(format!("1_1_1/0-4_0-4_0-4{suffix}"))).expect("the chunk");
        run(&mut upload(if encoding == "raw" { "gzip" } else { "raw" })).expect_code(0);
        assert_eq!(names_in(&volume.join("1_1_1")), [format!("0-4_0-4_0-4{suffix}")]);
        assert_eq!(fs::read(volume.join(format!("1_1_1/0-4_0-4_0-4{suffix}"))).expect("the chunk"), stored);
    }
}
