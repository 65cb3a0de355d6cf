//! Arrays that NumPy saved are imported and exported by the real program, and compared by NumPy bit for bit: every
//! element type, both byte orders, both memory orders, no axes and no elements.

use std::process::Command;

use serde_json::{Value, json};

use self::python::succeeded;

#[path = "../../volume/tests/it/python.rs"]
mod python;

/// Runs the Python script and returns its output.
fn python(arguments: &[&str], input: &str) -> String {
    python::run("npy_peer.py", "numpy", arguments, input)
}

#[test]
fn numpy_files_are_imported_and_exported_exactly() {
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
