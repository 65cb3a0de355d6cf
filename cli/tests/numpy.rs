//! Arrays that NumPy saved, imported and exported by the real program and compared by NumPy, bit for bit: every element type, both
//! byte orders, both memory orders, no axes and no elements.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

/// Runs the Python side; `scripts/test` makes the environment that it needs.
fn python(arguments: &[&str], input: &str) -> String {
    let interpreter = std::env::var_os("NDSHM_TEST_PYTHON")
        .expect("NDSHM_TEST_PYTHON names a Python with numpy: run scripts/test, which makes one");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/npy_peer.py");
    let mut child = Command::new(interpreter)
        .arg(script)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python starts");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("Python listens");
    succeeded(&child.wait_with_output().expect("Python ends"))
}

fn succeeded(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn what_numpy_saved_is_imported_and_exported_bit_for_bit() {
    let files = tempfile::Builder::new().prefix("ndshm-numpy-").tempdir().expect("a directory");
    let emulated = tempfile::Builder::new().prefix("ndshm-numpy-").tempdir().expect("a directory");
    let ndshm = |arguments: &[&str]| -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ndshm"));
        command.env("EMULATE_SHM", "1").env("NDSHM_EMULATED_DIR", emulated.path()).env("NDSHM_MANAGER", "off");
        let output = command.args(arguments).output().expect("the program starts");
        serde_json::from_str(&succeeded(&output)).expect("JSON")
    };
    let written = python(&["write", files.path().to_str().expect("text")], "");
    let written: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(written.len() > 13 * 8 * 2, "{}", written.len());
    let (mut trips, mut elements) = (String::new(), 0);
    for (number, saved) in written.iter().enumerate() {
        let name = format!("array-{number}");
        let file = saved["file"].as_str().expect("a path");
        let mut arguments = vec!["import", file, &name, "--json"];
        if let Some(dtype) = saved["dtype"].as_str() {
            arguments.extend(["--dtype", dtype]);
        }
        let imported = ndshm(&arguments);
        let lengths: Vec<String> =
            imported["shape"].as_array().expect("a shape").iter().map(Value::to_string).collect();
        let exported = format!("{file}.exported");
        let (dtype, order) = (imported["dtype"].as_str().expect("text"), imported["order"].as_str().expect("text"));
        let shape = lengths.join(",");
        ndshm(&["export", &name, &exported, "--json", "--dtype", dtype, "--shape", &shape, "--order", order]);
        let trip = json!({
            "file": file, "array": imported["path"], "exported": exported, "order": order, "dtype": saved["dtype"],
        });
        trips.push_str(&trip.to_string());
        trips.push('\n');
        elements += saved["elements"].as_u64().expect("a number");
    }
    let compared: u64 = python(&["compare"], &trips).trim().parse().expect("a number");
    assert_eq!(compared, elements);
}
