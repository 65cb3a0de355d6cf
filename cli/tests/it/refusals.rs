//! Refused commands: their errors and exit codes, and that they leave nothing behind.

use std::fs;

use crate::scene::{Scene, run, text};
use crate::volume;

#[test]
fn invalid_command_lines_exit_with_code_2() {
    let scene = Scene::new();
    let volume = scene.volume();
    let volume = volume.to_str().expect("text");
    for arguments in [
        &[][..],
        &["fly"],
        &["download", volume],
        &["download", volume, "--location", "a/b"],
        &["download", volume, "--location", ".ndshm-part-x"],
        &["download", volume, "--location", "x", "--order", "z"],
        &["download", volume, "--location", "x", "--workers", "0"],
        &["unlink"],
        &["info", ""],
        &["gc", "--older-than", "soon"],
    ] {
        let finished = run(&mut scene.ndshm(arguments)).expect_code(2);
        assert!(finished.err.contains("Usage") || finished.err.contains("--help"), "{finished:?}");
    }
    assert_eq!(scene.files(), [""; 0]);
}

#[test]
fn exit_codes_and_environment_have_one_help_page() {
    let scene = Scene::new();
    let all = run(&mut scene.ndshm(["help", "environment"])).expect_code(0).out;
    for word in ["Exit codes:", "130", "EMULATE_SHM", "NDSHM_EMULATED_DIR", "NO_COLOR"] {
        assert!(all.contains(word), "{word}: {all}");
    }
    assert!(run(&mut scene.ndshm(["--help"])).expect_code(0).out.contains("Exit codes:"));
    for command in ["download", "ls", "gc", "demo"] {
        let help = run(&mut scene.ndshm([command, "--help"])).expect_code(0).out;
        assert!(help.contains("ndshm help environment") && !help.contains("Exit codes:"), "{help}");
        assert!(!help.contains("worker  "), "the worker command is hidden: {help}");
    }
}

#[test]
fn short_help_is_short() {
    let scene = Scene::new();
    for command in
        ["download", "upload", "ls", "info", "describe", "view", "export", "import", "unlink", "gc", "doctor", "demo"]
    {
        let help = |how| run(&mut scene.ndshm([command, how])).expect_code(0).out;
        let (short, long) = (help("-h"), help("--help"));
        assert!(short.len() < long.len() && short.contains("ndshm help environment"), "{command}: {short}");
        assert!(!short.contains("Fields of"), "{command}: {short}");
    }
}

#[test]
fn array_name_is_an_argument_or_an_option() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    let source = scene.volume();
    let source = source.to_str().expect("UTF-8");
    run(&mut scene.ndshm(["download", source, "one", "--quiet"])).expect_code(0);
    run(&mut scene.ndshm(["download", source, "--location", "two", "--quiet"])).expect_code(0);
    assert_eq!(scene.files(), ["one", "two"]);
    for wrong in [&["three", "--location", "four"][..], &["three", "--file", "f"], &[]] {
        run(scene.ndshm(["download", source, "--quiet"]).args(wrong)).expect_code(2);
    }
}

#[test]
fn colours_are_for_terminals_and_can_be_forbidden() {
    let scene = Scene::new();
    let plain = run(&mut scene.ndshm(["info", "nothing"])).expect_code(3);
    assert!(plain.err.starts_with("error: ") && !plain.err.contains('\u{1b}'), "{plain:?}");
    let forced = run(scene.ndshm(["info", "nothing"]).env("CLICOLOR_FORCE", "1")).expect_code(3);
    assert!(forced.err.starts_with("\u{1b}[1m\u{1b}[31merror:\u{1b}[0m "), "{forced:?}");
    let found = run(scene.ndshm(["doctor"]).env("CLICOLOR_FORCE", "1"));
    assert!(found.out.contains("\u{1b}[32mok "), "{found:?}");
    let forbidden = run(scene.ndshm(["doctor"]).env("NO_COLOR", "1"));
    assert!(!forbidden.out.contains('\u{1b}'), "{forbidden:?}");
}

#[test]
fn invalid_bounding_box_exits_with_code_2() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    for bbox in ["0:8", "0:8,0:8,0:8,0:8", "0:8,0:8,0:100000", "8:0,0:8,0:8", "0:8,x,0:8", "-1:8,0:8,0:8", "0:8,0:8,"] {
        let mut command = scene.ndshm(["download", "--location", "x", "--bbox", bbox]);
        let finished = run(command.arg(scene.volume())).expect_code(2);
        assert!(finished.err.contains("0:237,0:288,0:273"), "the error shows the bounds: {finished:?}");
    }
    assert_eq!(scene.files(), [""; 0]);
}

/// Requests for something that the volume, its format or the array does not have.
#[test]
fn unsupported_request_exits_with_code_2() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    fs::write(scene.emulated().join("x"), [7; 64]).expect("written");
    let (there, new) = (scene.volume(), scene.temporary().join("new"));
    let (there, new) = (there.to_str().expect("text"), new.to_str().expect("text"));
    let create = |format: &str, more: &[&str]| {
        let mut command = scene.ndshm(["upload", "x", new, "--json", "--order", "c", "--create", "--format", format]);
        command.args(more);
        command
    };
    let zarr = ["--dtype", "uint8", "--shape", "8,8", "--encoding"];
    // Each of these shapes is as large as the array.
    let precomputed = |shape| ["--shape", shape, "--chunk", "4,4,4", "--encoding"];
    let wrong = [
        (scene.ndshm(["download", there, "--location", "y", "--mip", "1", "--json"]), "no scale 1"),
        (scene.ndshm(["upload", "x", there, "--mip", "1", "--json"]), "no scale 1"),
        (scene.ndshm(["plan", there, "--shards", "2", "--mip", "1", "--json"]), "no scale 1"),
        (scene.ndshm(["upload", "x", there, "--bbox", "0:40,0:48,0:56", "--order", "c", "--json"]), "64 bytes"),
        (create("zarr3", &[&zarr[..], &["raw", "--chunk", "8"]].concat()), "cannot tile"),
        (create("zarr2", &[&zarr[..], &["raw", "--chunk", "8,8,8"]].concat()), "cannot tile"),
        (create("zarr3", &[&zarr[..], &["jpeg", "--chunk", "8,8"]].concat()), "no encoding jpeg"),
        (create("zarr3", &[&zarr[..], &["raw", "--chunk", "4,4", "--shard-shape", "8,6"]].concat()), "no multiples"),
        (
            create("precomputed", &[&precomputed("4,4,4")[..], &["zstd", "--dtype", "uint8"]].concat()),
            "raw, gzip, jpeg",
        ),
        (create("precomputed", &[&precomputed("4,4,2")[..], &["jpeg", "--dtype", "uint16"]].concat()), "needs uint8"),
        (
            create(
                "precomputed",
                &[&precomputed("4,4,4")[..], &["png", "--dtype", "uint8", "--jpeg-quality", "60"]].concat(),
            ),
            "jpeg chunks only",
        ),
        (
            create("precomputed", &[&precomputed("4,2,1")[..], &["raw", "--dtype", "float64"]].concat()),
            "no elements of type",
        ),
    ];
    for (mut command, reason) in wrong {
        let finished = run(&mut command).expect_code(2);
        assert!(
            finished.json()["error"].as_str().is_some_and(|error| error.contains(reason)),
            "{reason}: {finished:?}"
        );
        assert!(!scene.temporary().join("new").exists(), "{reason}");
    }
    assert_eq!(scene.files(), ["x"]);
}

#[test]
fn invalid_boolean_setting_is_named_with_valid_values() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    let mut command = scene.ndshm(["download", "--location", "x"]);
    let finished = run(command.arg(scene.volume()).env("EMULATE_SHM", "maybe")).expect_code(2);
    assert!(finished.err.contains("EMULATE_SHM") && finished.err.contains("maybe"), "{finished:?}");
    assert!(finished.err.contains("1, true or yes"), "{finished:?}");
    run(scene.ndshm(["info", "x"]).env("EMULATE_SHM", "maybe")).expect_code(2);
    assert_eq!(scene.files(), [""; 0]);
}

#[test]
fn error_names_a_source_without_a_volume() {
    let scene = Scene::new();
    fs::create_dir(scene.volume()).expect("made");
    let sources = [scene.volume(), scene.volume().join("nowhere")];
    for source in sources {
        let mut command = scene.ndshm(["download", "--location", "x"]);
        let finished = run(command.arg(&source)).expect_code(1);
        assert!(finished.err.contains(source.to_str().expect("text")), "{finished:?}");
    }
    assert_eq!(scene.files(), [""; 0]);
}

/// Metadata that is cut short, is not JSON, or has invalid fields.
#[test]
fn damaged_metadata_is_reported_and_not_replaced() {
    let scene = Scene::new();
    fs::write(scene.emulated().join("x"), [7; 64]).expect("written");
    let zarr = ["--format", "zarr3"];
    let precomputed = ["--format", "precomputed"];
    for (file, text, format) in [
        ("zarr.json", "", zarr),
        ("zarr.json", r#"{"zarr_format": 3, "node_ty"#, zarr),
        ("zarr.json", r#"{"zarr_format": 3, "node_type": "leaf"}"#, zarr),
        ("zarr.json", r#"{"zarr_format": 3, "node_type": "array", "data_type": "uint8", "shape": "large"}"#, zarr),
        (".zarray", r#"{"zarr_format": 2, "dtype": "|u1", "shape": [4, 4, 4]}"#, ["--format", "zarr2"]),
        (".zarray", "\0\0\0", ["--format", "zarr2"]),
        ("info", "not JSON", precomputed),
        ("info", "[]", precomputed),
        ("info", r#"{"data_type": "uint8", "scales": [{"key": "1_1_1", "size": [4, 4]}]}"#, precomputed),
    ] {
        fs::create_dir(scene.volume()).expect("made");
        let document = scene.volume().join(file);
        fs::write(&document, text).expect("written");
        let order = ["--order", "c", "--quiet"];
        let upload = |more: &[&str]| run(scene.ndshm(["upload", "x"]).arg(scene.volume()).args(order).args(more));
        let new = ["--create", "--dtype", "uint8", "--shape", "4,4,4", "--chunk", "4,4,4"];
        for finished in [upload(&[]), upload(&[&new[..], &format].concat())] {
            let finished = finished.expect_code(1);
            assert!(finished.err.contains(&format!("{file}` is damaged: ")), "{text}: {finished:?}");
            assert!(finished.err.contains("restore this document"), "{text}: {finished:?}");
            assert!(!finished.err.contains("--create") && !finished.err.contains("remove"), "{text}: {finished:?}");
        }
        assert_eq!(fs::read_to_string(&document).expect("there"), text);
        fs::remove_dir_all(scene.volume()).expect("ours");
    }
    // `--create` is advised where nothing exists, but not where something else exists.
    let upload = || run(scene.ndshm(["upload", "x", "--order", "c", "--quiet"]).arg(scene.volume())).expect_code(1);
    assert!(upload().err.contains("--create creates the volume"));
    fs::create_dir(scene.volume()).expect("made");
    assert!(upload().err.contains("--create creates the volume"));
    fs::write(scene.volume().join("zarr.json"), r#"{"zarr_format": 3, "node_type": "group"}"#).expect("written");
    let finished = upload();
    assert!(finished.err.contains("a Zarr group") && !finished.err.contains("--create"), "{finished:?}");
}

#[test]
fn taken_name_is_replaced_only_with_replace() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    fs::write(scene.emulated().join("taken"), b"precious").expect("written");
    let mut command = scene.ndshm(["download", "--location", "taken", "--bbox", "0:8,0:8,0:8"]);
    let finished = run(command.arg(scene.volume())).expect_code(1);
    assert!(finished.err.contains("--replace"), "{finished:?}");
    assert_eq!(fs::read(scene.emulated().join("taken")).expect("there"), b"precious");
    assert_eq!(scene.files(), ["taken"]);

    let mut command = scene.ndshm(["download", "--location", "taken", "--bbox", "0:8,0:8,0:8", "--replace"]);
    run(command.arg(scene.volume())).expect_code(0);
    assert_eq!(fs::read(scene.emulated().join("taken")).expect("there"), volume::expected(&[0..8, 0..8, 0..8], true));
}

#[test]
fn missing_array_is_reported_before_a_missing_terminal() {
    let scene = Scene::new();
    let finished = run(&mut scene.ndshm(["view", "nowhere"])).expect_code(3);
    assert!(finished.err.contains("nothing is called `nowhere`"), "{finished:?}");
    assert!(!finished.err.contains("terminal"), "{finished:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn error_names_the_backend_that_has_the_array() {
    let mut scene = Scene::new();
    let name = scene.shm_name();
    fs::write(scene.emulated().join(&name), [7; 8]).expect("written");
    for arguments in [&["unlink", &name][..], &["info", &name], &["unlink", &name, "--backend", "shm"]] {
        let finished = run(scene.ndshm_in_shm(arguments).env("EMULATE_SHM", "0")).expect_code(3);
        let place = scene.emulated().display().to_string();
        assert!(finished.err.contains(&format!("there is one of that name in {place}")), "{finished:?}");
        assert!(finished.err.contains("--backend emulated") && finished.err.contains("EMULATE_SHM=1"), "{finished:?}");
    }
    assert_eq!(scene.files(), [name.as_str()]);
    run(scene.ndshm_in_shm(["unlink", &name, "--backend", "emulated"]).env("EMULATE_SHM", "0")).expect_code(0);
    let finished = run(scene.ndshm_in_shm(["unlink", &name]).env("EMULATE_SHM", "0")).expect_code(3);
    assert!(finished.err.contains("`ndshm ls`"), "{finished:?}");
}

#[test]
fn misspelt_emulated_directory_is_named_and_not_created() {
    let scene = Scene::new();
    volume::write(&scene.volume());
    let wrong = scene.temporary().join("mis").join("spelt");
    let mut command = scene.ndshm(["download", "--location", "x", "--bbox", "0:8,0:8,0:8"]);
    let finished = run(command.arg(scene.volume()).env("NDSHM_EMULATED_DIR", &wrong)).expect_code(2);
    assert!(
        finished.err.contains("NDSHM_EMULATED_DIR") && finished.err.contains("a directory in an existing one"),
        "{finished:?}"
    );
    assert!(!finished.err.contains("because"), "the error has no cause: {finished:?}");
    let report = run(scene.ndshm(["doctor", "--json"]).env("NDSHM_EMULATED_DIR", &wrong)).expect_code(1);
    assert!(report.out.contains("a directory in an existing one"), "{report:?}");
    assert!(!wrong.parent().expect("its parent").exists());
}

#[test]
fn error_is_printed_once() {
    let scene = Scene::new();
    let finished = run(&mut scene.ndshm(["info", "nowhere"])).expect_code(3);
    assert_eq!(finished.out, "");
    assert_eq!(finished.err.matches("error:").count(), 1, "{finished:?}");
    assert_eq!(finished.err.matches("nowhere").count(), 1, "{finished:?}");
}

#[cfg(not(feature = "remote"))]
#[test]
fn remote_url_without_the_feature_advises_a_build() {
    let scene = Scene::new();
    for url in ["https://example.org/volume", "precomputed://s3://bucket/key"] {
        let finished = run(&mut scene.ndshm(["download", url, "--location", "x"])).expect_code(2);
        assert!(finished.err.contains("--features remote"), "{finished:?}");
    }
}

#[test]
fn failures_are_json_with_the_json_option() {
    let scene = Scene::new();
    let finished = run(&mut scene.ndshm(["info", "nowhere", "--json"])).expect_code(3);
    let told = finished.json();
    assert!(told["error"].as_str().expect("words").contains("nowhere"), "{told:#}");
    assert!(told["because"].as_array().is_some_and(Vec::is_empty), "{told:#}");
    assert!(told["advice"].as_str().expect("words").contains("ndshm ls"), "{told:#}");
    assert!(finished.err.contains("nowhere"), "standard error has the text too: {finished:?}");
    let nowhere = scene.volume();
    let told = run(&mut scene.ndshm(["plan", text(&nowhere), "--shards", "2", "--json"])).expect_code(1).json();
    assert!(told["error"].as_str().expect("words").contains(text(&nowhere)), "{told:#}");
}

/// What people type first, and what they are told.
#[test]
fn a_wrong_first_command_is_told_the_right_one() {
    let scene = Scene::new();
    let told = |arguments: &[&str], code: i32, advice: &[&str]| {
        let finished = run(&mut scene.ndshm(arguments)).expect_code(code);
        assert!(advice.iter().all(|words| finished.err.contains(words)), "{arguments:?}: {finished:?}");
    };
    told(&["view", "./em"], 2, &["of a volume", "ndshm download SOURCE NAME"]);
    told(&["export", "precomputed://em", "em.npy"], 2, &["of a volume"]);
    told(&["view", "em"], 3, &["`ndshm ls` lists all names"]);
    told(&["info", "em"], 3, &["`ndshm ls` lists all names", "no directory of this name either"]);
    told(&["view", "em", "--out", "picture.JPG"], 2, &["PNG files only", "choose `picture.png`"]);
    for arguments in [&["help", "--help"][..], &["help", "-h"], &["help"]] {
        let help = run(&mut scene.ndshm(arguments)).expect_code(0).out;
        assert!(help.contains(" <COMMAND>") && help.contains("Exit codes:"), "{help}");
    }
    assert!(run(&mut scene.ndshm(["help", "view", "--help"])).expect_code(0).out.contains(" view [OPTIONS] <NAME>"));
    assert_eq!(scene.files(), [""; 0]);
}
