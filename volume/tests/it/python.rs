//! Runs the Python programs that tests compare this crate with.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs a script that needs these packages, and returns its output; `scripts/test` makes the environment.
pub(crate) fn run(script: &str, packages: &str, arguments: &[impl AsRef<OsStr>], input: &str) -> String {
    let interpreter = std::env::var_os("NDSHM_TEST_PYTHON").unwrap_or_else(|| {
        panic!("NDSHM_TEST_PYTHON names a Python with {packages}: run scripts/test, which makes one")
    });
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(script);
    let mut child = Command::new(interpreter)
        .arg(script)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("Python starts");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("Python reads its input");
    succeeded(&child.wait_with_output().expect("Python ends"))
}

/// Asserts that a program succeeded, and returns its output.
pub(crate) fn succeeded(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}
