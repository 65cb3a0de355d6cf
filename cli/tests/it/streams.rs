//! Streams of frames: `ls`, `info`, `unlink` and `gc` show and remove them without delaying a writer or a reader.

use std::fs;

use ndarray_shm::stream::StreamOptions;
use ndarray_shm::{CreateOptions, ErrorKind};
use serde_json::{Value, json};

use crate::counted::line;
use crate::holder::Holder;
use crate::scene::{Scene, run, wait_until};

fn list(scene: &Scene, more: &[&str]) -> Value {
    run(scene.ndshm(["ls", "--backend", "emulated", "--json"]).args(more)).expect_code(0).json()
}

/// Returns the facts of a stream that `info` shows.
fn info(scene: &Scene, name: &str) -> Value {
    run(&mut scene.ndshm(["info", name, "--json"])).expect_code(0).json()["stream"].clone()
}

fn text(scene: &Scene, arguments: &[&str]) -> String {
    run(&mut scene.ndshm(arguments)).expect_code(0).out
}

#[test]
fn stream_is_one_line_of_the_list() {
    let scene = Scene::new();
    let holder = Holder::create_stream(&scene.emulated(), "camera", 3);
    let listed = list(&scene, &[]);
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "the keeper is not shown: {listed:#}");
    let (item, stream) = (&listed[0], &listed[0]["stream"]);
    assert_eq!((&item["name"], &item["kind"], &item["attached"]), (&json!("camera"), &json!("stream"), &json!(true)));
    let length = fs::metadata(scene.emulated().join(".ndshm-frames-camera")).expect("there").len();
    assert_eq!(item["size"], length);
    for (fact, expected) in [
        ("dtype", json!("<u2")),
        ("shape", json!([4, 6])),
        ("order", json!("C")),
        ("slots", json!(8)),
        ("copied", json!(false)),
        ("frames", json!(3)),
        ("head", json!(3)),
        ("epoch", json!(1)),
        ("writer", json!("alive")),
        ("held", json!(0)),
        ("held_by", json!([])),
        ("cursors", json!([])),
        ("meta", json!([{"name": "stage", "dtype": "<f8", "count": 3}])),
    ] {
        assert_eq!(stream[fact], expected, "{fact}: {stream:#}");
    }
    let row = line(&scene, "camera");
    assert!(row.contains(" writer ") && row.ends_with("stream <u2 4x6, 8 slots"), "{row}");
    let all = list(&scene, &["--all"]);
    let kinds: Vec<_> = all.as_array().expect("a list").iter().map(|item| &item["kind"]).collect();
    assert_eq!(kinds, ["stream", "keeper"], "{all:#}");
    assert_eq!(list(&scene, &["cam*"]).as_array().map(Vec::len), Some(1));
    holder.let_go();
    assert_eq!(scene.files(), [""; 0], "the writer has ended the stream");
}

#[test]
fn info_shows_frames_held_slots_and_cursors() {
    let scene = Scene::new();
    let camera = Holder::start_camera(&scene.emulated(), "camera");
    let reader = Holder::read_stream(&scene.emulated(), "camera");
    // The cursor has acknowledged one frame, holds two, and lets the writer commit as many as there are slots.
    wait_until("a full stream", || {
        let stream = info(&scene, "camera")["stream"].clone();
        stream["held"] == 2 && stream["cursors"][0]["behind"] == 8
    });
    let stream = info(&scene, "camera")["stream"].clone();
    // Windows does not tell which process has a lock.
    let held_by = if cfg!(unix) { json!([reader.pid().as_u32()]) } else { json!([]) };
    assert_eq!(stream["held_by"], held_by, "{stream:#}");
    let (head, cursor) = (stream["head"].as_u64().expect("a number"), &stream["cursors"][0]);
    let expected = json!({
        "name": "disk", "acknowledged": head - 8, "behind": 8, "policy": "wait", "has_reader": true,
    });
    assert_eq!(cursor, &expected, "{stream:#}");
    assert!(stream["rate"].as_f64().expect("a rate") > 0.0, "{stream:#}");
    assert!(line(&scene, "camera").contains(" writer, 1 cursor "));

    let shown = text(&scene, &["info", "camera"]);
    let by = if cfg!(unix) { format!("2 of 8, by the process {}", reader.pid()) } else { "2 of 8".to_owned() };
    let cursor = format!("disk: acknowledged {}, 8 behind, has a reader, policy wait", head - 8);
    let newest = format!("number {head}");
    for expected in [
        "a stream of frames",
        "4 x 6 (y, x), C order",
        "unit        um",
        "stage: <f8 x 3",
        "lives",
        &by,
        &cursor,
        &newest,
    ] {
        assert!(shown.contains(expected), "no {expected:?}: {shown}");
    }

    let refused = run(&mut scene.ndshm(["unlink", "--stream", "--cursor", "disk", "camera"])).expect_code(1);
    assert!(refused.err.contains("reads with the cursor"), "{refused:?}");
    reader.kill();
    wait_until("the kernel to release the locks", || {
        let stream = info(&scene, "camera")["stream"].clone();
        stream["held"] == 0 && stream["cursors"][0]["has_reader"] == false
    });
    let unlinked = text(&scene, &["unlink", "--stream", "--cursor", "disk", "camera"]);
    assert_eq!(unlinked, "unlinked the cursor `disk` of camera\n");
    wait_until("the writer to go on", || info(&scene, "camera")["stream"]["head"].as_u64() > Some(head + 100));
    let gone = run(&mut scene.ndshm(["unlink", "--stream", "--cursor", "disk", "camera"])).expect_code(3);
    assert!(gone.err.contains("no cursor `disk`") && gone.err.contains("info --stream camera"), "{gone:?}");
    camera.let_go();
    assert_eq!(scene.files(), [""; 0]);
}

#[test]
fn killed_writer_is_dead_and_can_be_resumed() {
    let scene = Scene::new();
    Holder::create_stream(&scene.emulated(), "camera", 5).kill();
    let found = info(&scene, "camera");
    assert_eq!((&found["attached"], &found["stream"]["writer"]), (&json!(false), &json!("dead")), "{found:#}");
    assert!(line(&scene, "camera").contains(" dead writer "));
    let shown = text(&scene, &["info", "camera"]);
    assert!(shown.contains("has died") && shown.contains("ndshm unlink --stream camera"), "{shown}");
    let doctor = run(&mut scene.ndshm(["doctor", "--json"])).out;
    assert!(doctor.lines().any(|line| line.contains("ndshm unlink --stream ") && line.contains(" camera")), "{doctor}");
    let gone = run(&mut scene.ndshm(["gc", "--backend", "emulated", "--json"])).expect_code(0).json();
    assert_eq!(gone["removed"], json!([]), "it can be resumed");

    let camera = Holder::start_camera(&scene.emulated(), "camera");
    wait_until("a frame of the successor", || info(&scene, "camera")["stream"]["head"].as_u64() > Some(5));
    let stream = info(&scene, "camera")["stream"].clone();
    assert_eq!((&stream["epoch"], &stream["writer"]), (&json!(2), &json!("alive")), "{stream:#}");
    camera.kill();
    assert_eq!(text(&scene, &["unlink", "--stream", "camera"]), "unlinked camera\n");
    assert_eq!(scene.files(), [""; 0]);
}

#[test]
fn kept_stream_has_ended() {
    let scene = Scene::new();
    let options = StreamOptions::new().directory(scene.directory()).keep(true);
    drop(options.create::<f32, _>("kept", 7, 3).expect("created"));
    let stream = info(&scene, "kept")["stream"].clone();
    assert_eq!((&stream["writer"], &stream["rate"]), (&json!("ended"), &Value::Null), "{stream:#}");
    assert!(line(&scene, "kept").contains(" ended "));
    let shown = text(&scene, &["info", "kept"]);
    assert!(shown.contains("none yet") && shown.contains("is kept"), "{shown}");
    let doctor = run(&mut scene.ndshm(["doctor", "--json"])).out;
    assert!(!doctor.lines().any(|line| line.contains("unlink --stream") && line.contains(" kept")), "{doctor}");
}

#[test]
fn array_and_stream_of_one_name_are_told_apart() {
    let scene = Scene::new();
    let holder = Holder::create_stream(&scene.emulated(), "both", 1);
    for (arguments, code) in [(&["unlink", "both"][..], 3), (&["view", "both", "--columns", "9"], 3)] {
        let refused = run(&mut scene.ndshm(arguments)).expect_code(code);
        assert!(refused.err.contains("only a stream") && refused.err.contains("--stream both"), "{refused:?}");
    }
    let options = CreateOptions::new().directory(scene.directory());
    drop(options.create::<u8, ndarray::Ix1>("both", 100).expect("created"));
    let found = run(&mut scene.ndshm(["info", "both", "--json"])).expect_code(0).json();
    assert_eq!((&found["array"]["size"], &found["stream"]), (&json!(100), &Value::Null), "{found:#}");
    assert!(text(&scene, &["info", "both"]).contains("ndshm info --stream both"));
    let found = run(&mut scene.ndshm(["info", "--stream", "both", "--json"])).expect_code(0).json();
    assert_eq!((&found["array"], &found["stream"]["stream"]["head"]), (&Value::Null, &json!(1)), "{found:#}");

    let open = || StreamOptions::new().directory(scene.directory()).open::<u16, ndarray::Ix2>("both");
    let mut reader = open().expect("opened");
    let report = run(&mut scene.ndshm(["unlink", "--stream", "both", "--json"])).expect_code(0).json();
    let expected = json!([{
        "name": "both", "unlinked": true, "backend": "emulated", "cursor": null, "attached": true, "in_flight": null,
        "error": null,
    }]);
    assert_eq!(report, expected);
    assert_eq!(reader.next().expect("it is there").expect("a frame").number(), 1, "the memory stays");
    assert_eq!(open().unwrap_err().kind, ErrorKind::NotFound);
    let refused = run(&mut scene.ndshm(["unlink", "--stream", "both"])).expect_code(3);
    assert!(refused.err.contains("no stream of this name"), "{refused:?}");
    run(&mut scene.ndshm(["info", "--stream", "both"])).expect_code(3);
    run(&mut scene.ndshm(["unlink", "both"])).expect_code(0);
    assert_eq!(scene.names(), [""; 0]);
    holder.let_go();
}

#[test]
fn parts_of_a_killed_removal_are_named_and_removed() {
    let scene = Scene::new();
    for name in ["frames", "keeper"] {
        Holder::create_stream(&scene.emulated(), name, 1).kill();
    }
    fs::remove_file(scene.emulated().join(".ndshm-keeper-frames")).expect("there");
    fs::remove_file(scene.emulated().join(".ndshm-frames-keeper")).expect("there");
    assert!(line(&scene, "frames").ends_with("stream <u2 4x6, 8 slots, without keeper"));
    assert!(line(&scene, "keeper").ends_with("keeper without stream"));
    assert!(text(&scene, &["info", "frames"]).contains("without keeper"));
    let text = run(&mut scene.ndshm(["gc", "--backend", "emulated"])).expect_code(0).out;
    assert!(text.contains("removed .ndshm-frames-frames (emulated, frames of a stream without keeper, "), "{text}");
    assert!(text.contains("removed .ndshm-keeper-keeper (emulated, a keeper without stream, "), "{text}");
    assert_eq!(scene.files(), [""; 0]);
}

#[test]
fn damaged_stream_is_shown_and_unlinked() {
    let scene = Scene::new();
    Holder::create_stream(&scene.emulated(), "damaged", 1).kill();
    fs::write(scene.emulated().join(".ndshm-frames-damaged"), [7; 4096]).expect("written");
    assert!(line(&scene, "damaged").ends_with("stream, damaged"));
    let item = &list(&scene, &[])[0];
    assert!(item["stream"].is_null() && item["stream_error"].is_string(), "{item:#}");
    let shown = text(&scene, &["info", "damaged"]);
    assert!(shown.contains("a damaged trailer") && shown.contains("error "), "{shown}");
    assert_eq!(text(&scene, &["unlink", "--stream", "damaged"]), "unlinked damaged\n");
    assert_eq!(scene.files(), [""; 0]);
}

#[test]
fn newest_frames_are_drawn_until_the_stream_ends() {
    let scene = Scene::new();
    let missing = run(&mut scene.ndshm(["view", "--live", "camera", "--columns", "6"])).expect_code(3);
    assert!(missing.err.contains("nothing is called `camera`"), "{missing:?}");
    let camera = Holder::start_camera(&scene.emulated(), "camera");
    let no_terminal = run(&mut scene.ndshm(["view", "--live", "camera"])).expect_code(2);
    assert!(no_terminal.err.contains("--columns"), "{no_terminal:?}");
    let mut viewer = scene.ndshm(["view", "--live", "camera", "--columns", "6", "--range", "0:65535"]);
    let mut viewer = viewer.stdout(std::process::Stdio::piped()).spawn().expect("started");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(viewer.stdout.take().expect("piped")));
    let mut line = || lines.next().expect("a line").expect("text");
    let (begin, mut last) = (std::time::Instant::now(), 0);
    for _ in 0..4 {
        // Four rows of six elements, two rows in a line.
        let picture = [line(), line()];
        assert!(picture.iter().all(|line| line.matches('▀').count() == 6), "{picture:?}");
        let text = line();
        let number = text.strip_prefix("camera: frame ").and_then(|text| text.split_once(';')).expect("a number").0;
        let number: u64 = number.parse().expect("a number");
        assert!(number > last && text.ends_with("black is 0, white 65535"), "{text}");
        last = number;
    }
    assert!(begin.elapsed().as_millis() >= 290, "at most ten a second");
    camera.let_go();
    while lines.next().is_some() {}
    assert!(viewer.wait().expect("ended").success());
    let camera = Holder::start_camera(&scene.emulated(), "camera");
    let array = run(&mut scene.ndshm(["view", "camera", "--columns", "6"])).expect_code(3);
    assert!(array.err.contains("there is only a stream of that name"), "{array:?}");
    camera.let_go();
}
