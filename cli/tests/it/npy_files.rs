//! Refusals of `import` and `export`, which leave nothing behind. `numpy.rs` tests that the elements are right.

use std::fs;
use std::path::PathBuf;

use crate::scene::{Scene, names_in, run};

/// Writes a file with this dictionary in front of these bytes.
fn npy(scene: &Scene, dictionary: &str, elements: &[u8]) -> PathBuf {
    let length = u16::try_from(dictionary.len()).expect("short").to_le_bytes();
    let path = scene.temporary().join("x.npy");
    fs::write(&path, [b"\x93NUMPY\x01\x00", &length[..], dictionary.as_bytes(), elements].concat()).expect("written");
    path
}

#[test]
fn invalid_files_create_no_arrays() {
    let scene = Scene::new();
    let file = |descr: &str, shape: &str, bytes: usize| {
        let dictionary = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        npy(&scene, &dictionary, &vec![0; bytes])
    };
    for (descr, shape, bytes, says) in [
        ("<u2", "(3, 4)", 23, "cut off"),
        ("<u2", "(3, 4)", 25, "only one array"),
        ("<u2", "(4294967296, 4294967296)", 0, "no memory"),
        ("<u2", "(18446744073709551615, 2)", 0, "no memory"),
        // Addresses of 32 bits cannot reach so many elements.
        ("<u2", "(1152921504606846976,)", 0, if usize::BITS == 32 { "no memory" } else { "cut off" }),
        ("|O", "(3,)", 24, "Python objects"),
        ("<U4", "(3,)", 48, "<U4"),
        ("|b1", "(3,)", 3, "--dtype uint8"),
        ("<f16", "(1,)", 16, "<f16"),
    ] {
        let path = file(descr, shape, bytes);
        let finished = run(scene.ndshm(["import"]).arg(&path).arg("x")).expect_code(1);
        assert!(finished.err.contains(says) && finished.err.contains("x.npy"), "{says}: {finished:?}");
        assert_eq!(scene.files(), [""; 0]);
    }
    let path = file("<u4", "(2,)", 8);
    let finished = run(scene.ndshm(["import", "--dtype", "uint8"]).arg(&path).arg("x")).expect_code(1);
    assert!(finished.err.contains("cannot be interpreted as"), "{finished:?}");
    let finished = run(&mut scene.ndshm(["import", "nowhere.npy", "x"])).expect_code(3);
    assert!(finished.err.contains("nowhere.npy"), "{finished:?}");
    let finished = run(scene.ndshm(["import"]).arg(scene.temporary()).arg("x")).expect_code(1);
    assert!(finished.err.contains("not a file"), "{finished:?}");
    assert_eq!(scene.files(), [""; 0]);
}

#[test]
fn existing_targets_are_replaced_only_with_replace() {
    let scene = Scene::new();
    let path = npy(&scene, "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 2), }", &[1, 2, 3, 4]);
    fs::write(scene.emulated().join("x"), b"precious").expect("written");
    let import = |more: &[&str]| run(scene.ndshm(["import", "--json"]).args(more).arg(&path).arg("x"));
    let finished = import(&[]).expect_code(1);
    assert!(finished.json()["advice"].as_str().expect("advice").contains("--replace"), "{finished:?}");
    assert_eq!(fs::read(scene.emulated().join("x")).expect("there"), b"precious");
    let report = import(&["--replace"]).expect_code(0).json();
    assert_eq!((&report["order"], &report["dtype"]), (&"F".into(), &"|u1".into()));
    assert_eq!(fs::read(scene.emulated().join("x")).expect("there"), [1, 2, 3, 4]);

    let out = scene.temporary().join("out.npy");
    let export = |more: &[&str]| {
        let layout = ["--dtype", "uint8", "--shape", "2,2", "--order", "f"];
        run(scene.ndshm(["export", "x"]).arg(&out).args(layout).args(more))
    };
    run(&mut scene.ndshm(["describe", "x", "--clear"])).expect_code(0);
    let unsaid = run(scene.ndshm(["export", "x", "--dtype", "uint8", "--shape", "2,2"]).arg(&out)).expect_code(2);
    assert!(unsaid.err.contains("--order f") && !out.exists(), "{unsaid:?}");
    export(&[]).expect_code(0);
    assert!(fs::read(&out).expect("there").ends_with(&[1, 2, 3, 4]));
    let first = fs::read(&out).expect("there");
    fs::write(&out, b"precious").expect("written");
    assert!(export(&[]).expect_code(1).err.contains("--replace"));
    assert_eq!(fs::read(&out).expect("there"), b"precious");
    export(&["--replace"]).expect_code(0);
    assert_eq!(fs::read(&out).expect("there"), first);
    assert_eq!(names_in(&scene.temporary()), ["out.npy", "x.npy"], "no temporary file is left");
}

#[test]
fn error_names_the_unwritable_file() {
    let scene = Scene::new();
    fs::write(scene.emulated().join("x"), [0; 4]).expect("written");
    let out = scene.temporary().join("nowhere").join("x.npy");
    let finished = run(scene.ndshm(["export", "x", "--dtype", "uint8", "--shape", "4"]).arg(&out)).expect_code(1);
    assert!(finished.err.contains("nowhere"), "{finished:?}");
    assert_eq!(names_in(&scene.temporary()), [""; 0]);
}
