//! Volumes that zarr-python wrote are downloaded by the real program, and compared by zarr-python element for element:
//! Zarr v2 and v3, whole and in part, in both orders, in real and in emulated shared memory.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use self::python::succeeded;

#[path = "../../volume/tests/it/python.rs"]
mod python;

/// Runs the Python script and returns its output.
fn python(arguments: &[&str], input: &str) -> String {
    python::run("zarr_peer.py", "zarr", arguments, input)
}

/// Where downloads go: the setting and the directory of a backend, and names in it. Dropping this removes the names.
struct Target {
    emulate: &'static str,
    directory: PathBuf,
    names: Vec<String>,
}

impl Target {
    fn download(&mut self, volume: &str, bbox: Option<&str>, order: &str, how: &[&str]) -> PathBuf {
        let name = format!("ndshm-zarr-python-{}-{}", std::process::id(), self.names.len());
        self.names.push(name.clone());
        let mut command = self.ndshm();
        command.args(["download", volume, "--location", &name, "--order", order]).args(how);
        command.args(bbox.map(|bbox| format!("--bbox={bbox}")));
        succeeded(&command.output().expect("the program starts"));
        self.directory.join(name)
    }

    fn ndshm(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ndshm"));
        command.env("EMULATE_SHM", self.emulate).env("NDSHM_EMULATED_DIR", &self.directory);
        command
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = std::fs::remove_file(self.directory.join(name));
        }
    }
}

#[test]
fn zarr_python_volumes_are_downloaded_exactly() {
    let volumes = tempfile::Builder::new().prefix("ndshm-zarr-").tempdir().expect("a directory");
    let emulated = tempfile::Builder::new().prefix("ndshm-zarr-").tempdir().expect("a directory");
    let mut targets = vec![Target { emulate: "1", directory: emulated.path().into(), names: Vec::new() }];
    if cfg!(target_os = "linux") {
        targets.push(Target { emulate: "0", directory: "/dev/shm".into(), names: Vec::new() });
    }
    let written = python(&["write", &volumes.path().display().to_string()], "");
    let written: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(written.len(), 13);
    for volume in written {
        let path = volume["path"].as_str().expect("a path");
        let shape: Vec<u64> = volume["shape"]
            .as_array()
            .expect("a shape")
            .iter()
            .map(|length| length.as_u64().expect("a length"))
            .collect();
        let whole: Vec<(u64, u64)> = shape.iter().map(|length| (0, *length)).collect();
        // This region begins and ends inside chunks along every axis.
        let cut: Vec<(u64, u64)> = shape.iter().map(|length| (length / 5 + 1, length - length / 7)).collect();
        let text: Vec<String> = cut.iter().map(|(start, end)| format!("{start}:{end}")).collect();
        let mut downloads = String::new();
        for target in &mut targets {
            for order in ["c", "f"] {
                for (bbox, argument) in [(&whole, None), (&cut, Some(text.join(",")))] {
                    let how: &[&str] = if order == "c" { &["--workers", "2"] } else { &["--workers=2", "--processes"] };
                    let file = target.download(path, argument.as_deref(), order, how);
                    let download = json!({ "file": file, "bbox": bbox, "order": order });
                    downloads.push_str(&download.to_string());
                    downloads.push('\n');
                }
            }
        }
        let compared: u64 = python(&["compare", path], &downloads).trim().parse().expect("a number");
        let elements = |bbox: &[(u64, u64)]| bbox.iter().map(|(start, end)| end - start).product::<u64>();
        let downloads_of_each = 2 * targets.len() as u64;
        assert_eq!(compared, downloads_of_each * (elements(&whole) + elements(&cut)), "{path}");
        for target in &mut targets {
            for name in target.names.drain(..) {
                std::fs::remove_file(target.directory.join(name)).expect("it was made");
            }
        }
    }
}
