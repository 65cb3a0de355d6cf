//! Neuroglancer Precomputed as others write and read it, and as nobody should write it.

mod hostile;
mod peers;

use std::path::Path;

/// Runs the Python side, and returns what it prints.
fn python(arguments: &[&Path], input: &str) -> String {
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    let interpreter = std::env::var_os("NDSHM_TEST_PYTHON").expect(
        "NDSHM_TEST_PYTHON names a Python with cloud-volume and tensorstore: run scripts/test, which makes one",
    );
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/precomputed_cases.py");
    let mut child = Command::new(interpreter)
        .arg(script)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("Python starts");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("Python listens");
    let output = child.wait_with_output().expect("Python ends");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}
