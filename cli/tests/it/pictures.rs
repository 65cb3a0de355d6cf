//! `view`: pictures of planes, in PNG files and as blocks in a terminal.

use std::fs;
use std::path::Path;

use crate::scene::{Finished, Scene, run};
use crate::volume;

/// Reads a picture. Returns width, height, number of samples per pixel, and the samples.
fn read(path: &Path) -> (u32, u32, usize, Vec<u8>) {
    let decoder = png::Decoder::new(std::io::Cursor::new(fs::read(path).expect("there")));
    let mut reader = decoder.read_info().expect("a PNG");
    let mut samples = vec![0; reader.output_buffer_size().expect("small")];
    let info = reader.next_frame(&mut samples).expect("a picture");
    assert_eq!(info.bit_depth, png::BitDepth::Eight);
    samples.truncate(info.buffer_size());
    (info.width, info.height, info.color_type.samples(), samples)
}

fn view(scene: &Scene, name: &str, arguments: &[&str]) -> Finished {
    run(scene.ndshm(["view", name]).args(arguments))
}

#[test]
fn plane_is_shown_with_x_to_the_right() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    for order in ["c", "f"] {
        let mut command =
            scene.ndshm(["download", "--location", order, "--order", order, "--bbox", "30:50,10:40,7:27"]);
        run(command.arg(scene.volume())).expect_code(0);
        let out = scene.temporary().join(format!("{order}.png"));
        let path = out.to_str().expect("text");
        // The volume names no axes.
        let layout = ["--dtype", "uint16", "--shape", "20,30,20", "--order", order, "--range", "0:65535"];
        let named = ["--axes", "zyx", "--slice", "z=3", "--out", path, "--json"];
        let report = view(&scene, order, &[&layout[..], &named].concat()).expect_code(0).json();
        assert_eq!(report["slice"], "z=3");
        assert_eq!((&report["width"], &report["height"]), (&20.into(), &30.into()));
        assert_eq!((&report["right"], &report["down"]), (&2.into(), &1.into()));
        let (width, height, samples, shades) = read(&out);
        assert_eq!((width, height, samples), (20, 30, 1));
        for (row, column) in [(0, 0), (29, 19), (11, 3)] {
            let element = f64::from(volume::expected_at([33, 10 + row, 7 + column]));
            let shade = f64::from(shades[row * 20 + column]);
            assert!((shade - element / 257.0).abs() <= 0.51, "{order} {row} {column}: {shade} of {element}");
        }
        // Without names, the contiguous axis goes to the right.
        let slowest = if order == "c" { "0=3" } else { "2=3" };
        let plain = [&layout[..], &["--slice", slowest, "--out", path, "--json", "--replace"]].concat();
        let report = view(&scene, order, &plain).expect_code(0).json();
        assert_eq!(report["right"], if order == "c" { 2 } else { 0 });
        let by_number =
            [&layout[..], &["--slice", "1=3", "--out", path, "--json", "--replace", "--every", "4"]].concat();
        let report = view(&scene, order, &by_number).expect_code(0).json();
        assert_eq!((&report["width"], &report["height"], &report["every"]), (&5.into(), &5.into(), &4.into()));
    }
}

#[test]
fn non_finite_values_are_shown_and_labels_have_colours() {
    let scene = Scene::new();
    let floats: Vec<u8> = [1.0, f32::NAN, 3.0, f32::INFINITY, f32::NEG_INFINITY, 2.0]
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    fs::write(scene.emulated().join("floats"), floats).expect("written");
    let out = scene.temporary().join("floats.png");
    let arguments = ["--dtype", "<f4", "--shape", "2,3", "--order", "c", "--out", out.to_str().expect("text")];
    let finished = view(&scene, "floats", &arguments).expect_code(0);
    assert!(finished.out.contains("black is 1, white 3"), "{finished:?}");
    assert_eq!(read(&out), (3, 2, 1, vec![0, 0, 255, 255, 0, 128]));
    assert!(view(&scene, "floats", &arguments).expect_code(1).err.contains("--replace"));

    let labels: Vec<u8> = [0u64, 7, 7, u64::MAX].iter().flat_map(|value| value.to_le_bytes()).collect();
    fs::write(scene.emulated().join("labels"), labels).expect("written");
    let out = scene.temporary().join("labels.png");
    let arguments = ["--dtype", "uint64", "--shape", "4,1", "--labels", "--out", out.to_str().expect("text")];
    view(&scene, "labels", &arguments).expect_code(0);
    let (width, height, samples, colours) = read(&out);
    assert_eq!((width, height, samples), (1, 4, 3));
    assert_eq!(colours[..3], [0; 3]);
    assert_eq!(colours[3..6], colours[6..9]);
    assert_ne!(colours[3..6], colours[9..12]);
}

#[test]
fn a_terminal_gets_two_rows_in_a_line() {
    let scene = Scene::new();
    fs::write(scene.emulated().join("steps"), [0u8, 255, 255, 0, 128, 64]).expect("written");
    let what = ["--dtype", "uint8", "--shape", "3,2", "--order", "c", "--columns", "80"];
    let mut command = scene.ndshm(["view", "steps"]);
    let finished = run(command.args(what).env("COLORTERM", "truecolor")).expect_code(0);
    let lines: Vec<&str> = finished.out.lines().collect();
    assert_eq!(
        lines[..2],
        [
            "\x1b[38;2;0;0;0m\x1b[48;2;255;255;255m▀\x1b[38;2;255;255;255m\x1b[48;2;0;0;0m▀\x1b[0m",
            "\x1b[38;2;128;128;128m▀\x1b[38;2;64;64;64m▀\x1b[0m",
        ]
    );
    let mut command = scene.ndshm(["view", "steps"]);
    let finished = run(command.args(what).env_remove("COLORTERM")).expect_code(0);
    assert!(finished.out.starts_with("\x1b[38;5;16m\x1b[48;5;231m▀"), "{finished:?}");
    fs::write(scene.emulated().join("wide"), vec![1u8; 1000 * 500]).expect("written");
    let arguments = ["--dtype", "uint8", "--shape", "500,1000", "--order", "c", "--columns", "40"];
    let finished = view(&scene, "wide", &arguments).expect_code(0);
    assert_eq!(finished.out.lines().next().expect("a line").matches('▀').count(), 40);
    assert_eq!(finished.out.matches('▀').count(), 40 * 10);
}

#[test]
fn view_reports_missing_and_invalid_options() {
    let scene = Scene::new();
    fs::write(scene.emulated().join("x"), [0; 24]).expect("written");
    let layout = ["--dtype", "uint16", "--shape", "3,4"];
    for (arguments, code, says) in [
        (&layout[..], 2, "--out"),
        (&["--columns", "9"][..], 2, "--dtype and --shape"),
        (&["--columns", "9", "--dtype", "uint16"], 2, "--shape"),
        (&["--columns", "9", "--dtype", "uint16", "--shape", "3,5"], 2, "24 bytes"),
        (&["--columns", "9", "--dtype", "uint16", "--shape", "3,4"], 2, "--order f"),
        (
            &["--columns", "9", "--dtype", "uint16", "--shape", "3,4", "--order", "c", "--slice", "0=3"],
            2,
            "has 3 elements",
        ),
        (
            &["--columns", "9", "--dtype", "uint16", "--shape", "3,4", "--order", "c", "--slice", "t=3"],
            2,
            "no axis `t`",
        ),
        (&["--columns", "9", "--dtype", "uint17", "--shape", "3,4"], 2, "uint16"),
        (&["--columns", "9", "--dtype", "uint16", "--shape", "18446744073709551615,2"], 2, "24 bytes"),
    ] {
        let finished = view(&scene, "x", arguments).expect_code(code);
        assert!(finished.err.contains(says), "{says}: {finished:?}");
        assert_eq!(finished.out, "");
    }
    view(&scene, "nowhere", &["--columns", "9"]).expect_code(3);
}

#[test]
fn counted_arrays_and_renderbuffers_need_no_layout() {
    use ndarray_shm::render::RenderOptions;
    use ndarray_shm::{CreateOptions, CreationMode};

    let scene = Scene::new();
    let options = CreateOptions::new().directory(scene.directory()).mode(CreationMode::CreateNew);
    let counted = options.create_counted_with::<u8, _>("counted", (2, 3), |mut view| view[[1, 2]] = 9).expect("made");
    let out = scene.temporary().join("x.png");
    let path = out.to_str().expect("text");
    view(&scene, "counted", &["--out", path]).expect_code(0);
    assert_eq!(read(&out), (3, 2, 1, vec![0, 0, 0, 0, 0, 255]));
    let finished = view(&scene, "counted", &["--out", path, "--replace", "--dtype", "int8"]).expect_code(2);
    assert!(finished.err.contains("contradict"), "{finished:?}");
    let npy = scene.temporary().join("x.npy");
    run(scene.ndshm(["export", "counted"]).arg(&npy)).expect_code(0);
    assert!(fs::read(&npy).expect("there").ends_with(b"\n\0\0\0\0\0\x09"));
    assert_eq!(counted.refcount(), 1, "the viewer has detached");
    drop(counted);

    let options = RenderOptions::new().directory(scene.directory()).note("axes", "y x");
    let buffer = options.create::<u8, _>("half", (4, 4), (2, 4), "by a test").expect("begun");
    let ndarray_shm::render::Claim::Chunk(mut claim) = buffer.claim(1).expect("free") else { panic!("it is free") };
    claim.view_mut().fill(5);
    claim.commit().expect("committed");
    let finished = view(&scene, "half", &["--out", path, "--replace", "--range", "0:5"]).expect_code(0);
    assert!(finished.out.contains("not finished"), "{finished:?}");
    assert_eq!(
        finished.out.contains("x (axis 1) to the right, y (axis 0) down"),
        cfg!(target_os = "linux"),
        "{finished:?}"
    );
    let info = run(&mut scene.ndshm(["info", "half"])).expect_code(0).out;
    assert_eq!(info.contains("4 x 4 (y, x), C order"), cfg!(target_os = "linux"), "{info}");
    assert_eq!(read(&out), (4, 4, 1, [vec![0; 8], vec![255; 8]].concat()));
    let finished = run(scene.ndshm(["export", "half"]).arg(&npy)).expect_code(3);
    assert!(finished.err.contains("unfinished"), "{finished:?}");
    buffer.discard().expect("ours");
    assert_eq!(scene.files(), [""; 0]);
}
