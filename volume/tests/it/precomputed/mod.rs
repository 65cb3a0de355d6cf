//! Neuroglancer Precomputed as other programs write and read it, and as no program should write it.

mod descriptions;
mod hostile;
mod kinds;
mod peers;

use std::path::Path;

/// Runs the Python side, and returns what it prints.
fn python(arguments: &[&Path], input: &str) -> String {
    crate::python::run("precomputed_cases.py", "cloud-volume and tensorstore", arguments, input)
}
