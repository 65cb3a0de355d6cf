//! Neuroglancer Precomputed volumes of other programs, for other programs, and damaged ones.

mod descriptions;
mod hostile;
mod kinds;
mod peers;

use std::path::Path;

/// Runs the Python script, and returns its output.
fn python(arguments: &[&Path], input: &str) -> String {
    crate::python::run("precomputed_cases.py", "cloud-volume and tensorstore", arguments, input)
}
