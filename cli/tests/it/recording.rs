//! `record`: what is on the disk after an orderly end, after Ctrl-C, and after kills.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use ndarray_shm::stream::StreamOptions;
use ndarray_shm::{Location, stream};
use serde_json::{Value, json};

use crate::holder::Holder;
#[cfg(target_os = "linux")]
use crate::round_trips::python;
#[cfg(unix)]
use crate::scene::signal;
use crate::scene::{Scene, run, wait_until};

/// Returns the length of an array of a recording, and the elements of its rows, of chunks that are stored raw.
fn array(place: &Path, name: &str) -> (u64, Vec<u8>) {
    let document = fs::read(place.join(name).join("zarr.json")).expect("a document");
    let document: Value = serde_json::from_slice(&document).expect("JSON");
    let shape: Vec<u64> = serde_json::from_value(document["shape"].clone()).expect("a shape");
    let chunk: Vec<u64> =
        serde_json::from_value(document["chunk_grid"]["configuration"]["chunk_shape"].clone()).expect("a shape");
    let size = match document["data_type"].as_str().expect("a type") {
        "uint16" => 2,
        "uint64" | "int64" | "float64" => 8,
        other => panic!("{other}"),
    };
    let rest = ".0".repeat(shape.len() - 1);
    let chunks = (0..shape[0].div_ceil(chunk[0])).map(|number| place.join(name).join(format!("c.{number}{rest}")));
    let mut bytes: Vec<u8> = chunks.flat_map(|chunk| fs::read(chunk).expect("a chunk")).collect();
    bytes.truncate(usize::try_from(shape.iter().product::<u64>() * size).expect("small"));
    (shape[0], bytes)
}

/// Returns how many frames readers see; 0 if they cannot be read at this moment.
fn rows(place: &Path) -> u64 {
    let document = fs::read(place.join("frames/zarr.json")).unwrap_or_default();
    serde_json::from_slice::<Value>(&document).map_or(0, |document| document["shape"][0].as_u64().unwrap_or(0))
}

/// Checks that all arrays of a recording of the camera belong together, and returns the numbers of the frames.
fn numbers(place: &Path) -> Vec<u64> {
    let (rows, frames) = array(place, "frames");
    let rows_beside = |name| {
        let (length, mut bytes) = array(place, name);
        assert!(length >= rows, "{name} is shown before the frames");
        bytes.truncate(usize::try_from(bytes.len() as u64 / length.max(1) * rows).expect("small"));
        bytes
    };
    let words = |bytes: Vec<u8>| bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("8"))).collect();
    let numbers: Vec<u64> = words(rows_beside("number"));
    for (number, frame) in numbers.iter().zip(frames.chunks(4 * 6 * 2)) {
        let element = u16::try_from(number % 65_536).expect("small").to_le_bytes();
        assert!(frame.chunks(2).all(|found| found == element), "frame {number}");
    }
    let times: Vec<u64> = words(rows_beside("time"));
    assert!(times.is_sorted() && times.first().is_none_or(|time| *time > 1_600_000_000_000_000_000), "{times:?}");
    assert_eq!(rows_beside("meta_stage").len(), numbers.len() * 3 * 8);
    numbers
}

fn record<'a>(scene: &Scene, place: &Path, more: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = scene.ndshm(["record", "camera", place.to_str().expect("text"), "--json", "--quiet"]);
    command.args(more);
    command
}

fn cursors(scene: &Scene) -> Value {
    run(&mut scene.ndshm(["info", "camera", "--json"])).expect_code(0).json()["stream"]["stream"]["cursors"].clone()
}

#[test]
fn frames_are_recorded_until_there_are_enough() {
    let scene = Scene::new();
    let camera = Holder::start_camera(&scene.emulated(), "camera");
    let place = scene.temporary().join("out.zarr");
    let found = run(&mut record(&scene, &place, ["--frames", "23"])).expect_code(0).json();
    let stored = numbers(&place);
    assert_eq!((&found["name"], &found["frames"], stored.len()), (&json!("camera"), &json!(23), 23), "{found:#}");
    assert_eq!(found["last"].as_u64(), stored.last().copied());
    assert_eq!(found["missing"], json!([]), "the cursor kept them");
    assert!(stored.windows(2).all(|pair| pair[1] == pair[0] + 1), "{stored:?}");
    assert_eq!(cursors(&scene), json!([]), "there is nothing to go on with");
    // Four frames in a chunk: half of the slots.
    assert!(place.join("frames/c.5.0.0").is_file() && !place.join("frames/c.6.0.0").exists());
    let shown = run(&mut scene.ndshm(["record", "camera", place.to_str().expect("text"), "--frames", "40", "-q"]));
    let shown = shown.expect_code(0).out;
    let stored = numbers(&place);
    let (before, after) = (stored[22] + 1, stored[23] - 1);
    assert!(shown.starts_with("recorded camera\n") && shown.contains("  frames   40, the last has number "), "{shown}");
    let missing = if before == after { before.to_string() } else { format!("{before} to {after}") };
    assert!(before > after || shown.contains(&format!("  missing  {missing}\n")), "{missing}: {shown}");
    camera.let_go();
}

#[test]
fn recording_ends_with_the_stream() {
    let scene = Scene::new();
    let camera = Holder::start_camera(&scene.emulated(), "camera");
    let place = scene.temporary().join("out.zarr");
    let recorder = record(&scene, &place, ["--encoding", "zstd"]).stdout(Stdio::piped()).spawn().expect("started");
    wait_until("a chunk", || place.join("frames/c.0.0.0").is_file());
    let killed = place.join("frames/.ndshm-1-1-0.partial");
    fs::write(&killed, b"of a killed recorder").expect("written");
    camera.let_go();
    let done = recorder.wait_with_output().expect("ended");
    let found: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert!(done.status.success() && found["missing"] == json!([]), "{found:#}");
    assert_eq!(scene.files(), [""; 0], "the stream has ended");
    let info = run(&mut scene.ndshm(["info", place.join("frames").to_str().expect("text"), "--json"])).expect_code(0);
    assert_eq!(info.json()["scales"][0]["shape"][0], found["frames"], "a volume as any other");
    #[cfg(target_os = "linux")]
    python(&format!(
        r#"
import numpy as np, tensorstore, zarr
group = zarr.open_group({place:?}, mode="r")
number = group["number"][:]
assert len(number) == {frames}, number
frames = group["frames"][:]
assert (frames == (number % 65536).astype("u2")[:, None, None]).all()
assert group["time"].attrs["units"] == "nanoseconds since 1970-01-01"
assert (np.diff(group["time"][:]) > 0).all() and (np.diff(group["uptime"][:]) > 0).all()
assert group["meta_stage"].shape == ({frames}, 3) and group["frames"].metadata.dimension_names[0] == "frame"
spec = {{"driver": "zarr3", "kvstore": {{"driver": "file", "path": {place:?} + "/frames/"}}}}
assert (tensorstore.open(spec, read=True).result().read().result() == frames).all()
"#,
        frames = found["frames"],
    ));
}

#[test]
fn recorder_that_is_killed_again_and_again_misses_no_frame() {
    let scene = Scene::new();
    let camera = Holder::start_camera(&scene.emulated(), "camera");
    let place = scene.temporary().join("out.zarr");
    let mut lengths = vec![0];
    for turn in 1..=20 {
        let mut recorder = record(&scene, &place, ["--policy", "wait"]).stdout(Stdio::null()).spawn().expect("started");
        // In every second turn it comes to frames of its own; in the others it is killed whatever it does.
        let before = lengths[lengths.len() - 1] as u64;
        if turn % 2 == 1 {
            wait_until("more frames", || rows(&place) > before);
        }
        thread::sleep(Duration::from_millis(turn * 37 % 60 + 5));
        recorder.kill().expect("killed");
        recorder.wait().expect("a child");
        let stored = numbers(&place);
        assert!(stored.windows(2).all(|pair| pair[1] == pair[0] + 1), "{stored:?}");
        assert!(lengths.last().is_none_or(|length| *length <= stored.len()), "{lengths:?}: {}", stored.len());
        lengths.push(stored.len());
    }
    let last = lengths[lengths.len() - 1];
    let wanted = (last + 10).to_string();
    let found = run(&mut record(&scene, &place, ["--policy", "wait", "--frames", &wanted])).expect_code(0).json();
    let stored = numbers(&place);
    assert_eq!((&found["missing"], stored.len()), (&json!([]), last + 10), "{found:#}");
    assert!(stored.windows(2).all(|pair| pair[1] == pair[0] + 1), "{stored:?}");
    camera.let_go();
}

#[cfg(unix)]
#[test]
fn interrupted_recording_goes_on_behind_its_last_frame() {
    use sysinfo::{Pid, Signal};

    let scene = Scene::new();
    let camera = Holder::start_camera(&scene.emulated(), "camera");
    let place = scene.temporary().join("out.zarr");
    for _ in 0..3 {
        let before = rows(&place);
        let command = &mut record(&scene, &place, ["--policy", "wait"]);
        let recorder = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
        // Before it has stored frames of its own, it may not heed signals yet.
        wait_until("frames", || rows(&place) > before + 8);
        assert!(signal(Pid::from_u32(recorder.id()), Signal::Interrupt));
        let done = recorder.wait_with_output().expect("ended");
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(done.status.code() == Some(130) && text.contains("the same command goes on"), "{text}");
        let stored = numbers(&place);
        let acknowledged = cursors(&scene)[0]["acknowledged"].as_u64();
        assert_eq!(acknowledged, stored.last().copied(), "also of a chunk that is not full");
        assert!(stored.windows(2).all(|pair| pair[1] == pair[0] + 1), "{stored:?}");
    }
    camera.let_go();
}

#[test]
fn recorder_waits_for_the_successor_of_a_killed_writer() {
    let scene = Scene::new();
    let camera = Holder::start_camera(&scene.emulated(), "camera");
    let place = scene.temporary().join("out.zarr");
    let mut recorder =
        record(&scene, &place, []).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("started");
    wait_until("a chunk", || place.join("frames/c.0.0.0").is_file());
    camera.kill();
    let mut said = BufReader::new(recorder.stderr.take().expect("piped")).lines();
    let waits = said.find(|line| line.as_ref().is_ok_and(|line| line.contains("waiting for another one")));
    assert!(waits.is_some(), "it ended");
    let before = rows(&place);
    let camera = Holder::start_camera(&scene.emulated(), "camera");
    wait_until("frames of the second", || rows(&place) > before);
    camera.let_go();
    assert!(recorder.wait().expect("ended").success());
    let stored = numbers(&place);
    assert!(stored.windows(2).all(|pair| pair[1] == pair[0] + 1), "{stored:?}");
}

#[test]
fn what_cannot_be_recorded_is_refused_and_nothing_is_lost() {
    let scene = Scene::new();
    let place = scene.temporary().join("out.zarr");
    let refused = |place: &Path, more: &[&str], code: i32, text: &str| {
        let done = run(&mut record(&scene, place, more.iter().copied())).expect_code(code);
        assert!(done.err.contains(text), "{text}: {done:?}");
    };
    refused(&place, &[], 3, "nothing is called `camera`");
    let camera = Holder::start_camera(&scene.emulated(), "camera");
    refused(&place, &["--per-chunk", "5"], 2, "choose 1 to 4");
    refused(&place, &["--per-chunk", "0"], 2, "choose 1 to 4");
    refused(&place, &["--encoding", "jpeg"], 2, "Zarr has no encoding jpeg");
    assert!(!place.exists(), "nothing was made");
    assert_eq!(cursors(&scene), json!([]), "a recorder that is refused leaves no cursor");
    let other = scene.temporary().join("other");
    fs::create_dir(&other).expect("created");
    fs::write(other.join("notes.txt"), "mine").expect("written");
    refused(&other, &[], 1, "there is something already");
    assert_eq!(fs::read_dir(&other).expect("a directory").count(), 1);
    run(&mut record(&scene, &place, ["--frames", "6", "--per-chunk", "2"])).expect_code(0);
    refused(&place, &["--cursor", "second"], 1, "with the cursor `record`");
    refused(&place, &["--per-chunk", "3"], 2, "begun with 2 frames in a chunk");
    refused(&place, &["--encoding", "zstd"], 2, "begun with");
    assert_eq!(numbers(&place).len(), 6);
    camera.let_go();
    let camera = Holder::start_camera(&scene.emulated(), "camera");
    refused(&place, &[], 1, "this is a recording of the stream `camera`");
    assert_eq!(numbers(&place).len(), 6);
    // One recorder at a time.
    let cursor = StreamOptions::new().directory(scene.directory());
    let cursor = cursor.open_cursor::<u16, ndarray::Ix2>("camera", "record", stream::Backpressure::Overwrite);
    refused(&scene.temporary().join("second.zarr"), &[], 1, "reads with the cursor");
    drop(cursor);
    let location: Location = "camera".parse().expect("a name");
    let directory = scene.directory();
    assert!(stream::unlink_cursor(&directory, &location, "record").expect("removed"));
    camera.let_go();
}

#[test]
fn replayed_recording_is_the_same_stream_again() {
    let scene = Scene::new();
    let camera = Holder::start_camera(&scene.emulated(), "camera");
    let place = scene.temporary().join("out.zarr");
    run(&mut record(&scene, &place, ["--frames", "30"])).expect_code(0);
    camera.let_go();
    let replay = |more: &[&str]| {
        let mut command = scene.ndshm(["replay", place.to_str().expect("text"), "again", "--json"]);
        command.args(more);
        command
    };
    let player = replay(&["--rate", "20"]).stdout(Stdio::piped()).spawn().expect("started");
    wait_until("the stream", || scene.files().iter().any(|file| file == ".ndshm-frames-again"));
    let copy = scene.temporary().join("copy.zarr");
    let command = ["record", "again", copy.to_str().expect("text"), "--json", "--quiet"];
    run(&mut scene.ndshm(command)).expect_code(0);
    let done = player.wait_with_output().expect("ended");
    let found: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!((&found["frames"], &found["name"]), (&json!(30), &json!("again")), "{found:#}");
    assert!(found["seconds"].as_f64().expect("a number") >= 29.0 / 20.0, "{found:#}");
    let ((_, before), (rows, after)) = (array(&place, "frames"), array(&copy, "frames"));
    let (rows, frame) = (usize::try_from(rows).expect("small"), 4 * 6 * 2);
    // The recorder came when some frames had been written.
    assert!(rows > 20 && before[(30 - rows) * frame..] == after, "{rows}");
    let document = |place: &Path, name: &str| {
        let text = fs::read(place.join(name).join("zarr.json")).expect("a document");
        serde_json::from_slice::<Value>(&text).expect("JSON")
    };
    let notes = json!({"axes": "y x", "resolution": "0.65 0.65", "unit": "um"});
    for place in [&place, &copy] {
        let frames = document(place, "frames");
        assert_eq!(frames["dimension_names"], json!(["frame", "y", "x"]));
        assert_eq!(frames["attributes"]["dimension_units"], json!([null, "0.65 um", "0.65 um"]));
        assert_eq!(document(place, "meta_stage")["dimension_names"], json!(["frame", "meta_stage_dim_1"]));
        assert_eq!(document(place, "")["attributes"]["ndshm"]["notes"], notes);
    }
    assert_eq!(array(&place, "meta_stage").1[(30 - rows) * 24..], array(&copy, "meta_stage").1);
    assert_eq!(scene.files(), [""; 0], "the stream has ended");
    let missing = run(&mut scene.ndshm(["replay", scene.emulated().to_str().expect("text"), "again"])).expect_code(1);
    assert!(missing.err.contains("this is no recording"), "{missing:?}");
    let refused = run(&mut replay(&["--rate", "0"])).expect_code(2);
    assert!(refused.err.contains("more than 0"), "{refused:?}");
}
