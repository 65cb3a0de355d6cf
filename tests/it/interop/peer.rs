//! A Python process that answers requests, one line each.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ndarray_shm::{DType, Order};

use crate::support::child::Child;
use crate::support::{Name, Place};

/// A running script of tests/it/python. Dropping it kills the process.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    /// A temporary home directory, for libraries that write to it.
    _home: tempfile::TempDir,
}

/// Returns the interpreter that has the peers' packages.
pub fn python() -> PathBuf {
    let python = std::env::var_os("NDSHM_TEST_PYTHON").filter(|path| !path.is_empty());
    python.map(PathBuf::from).expect(
        "NDSHM_TEST_PYTHON is not set: run scripts/test, which makes a Python environment with the peers \
         (tests/it/python/requirements.txt) and sets it",
    )
}

/// Returns the path of a folder or file of this package.
pub fn of_package(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

impl Peer {
    /// Starts a script with a place's environment.
    pub fn start(place: &Place, script: &str) -> Self {
        Self::with_environment(script, &place.environment())
    }

    /// Starts a script with these environment variables.
    pub fn with_environment(script: &str, environment: &[(&str, String)]) -> Self {
        let home = tempfile::tempdir().expect("a home");
        let mut command = Command::new(python());
        command
            .arg("-B") // leaves no compiled files in the source tree
            .arg(of_package("tests/it/python").join(script))
            .env_remove("NDSHM_EMULATED_DIR")
            .env("PYTHONPATH", of_package("docs/python")) // the programs that docs/layout/python.md links
            .env("HOME", home.path())
            .envs(environment.iter().map(|(name, value)| (name, value)));
        Self { child: Child::spawn(command), _home: home }
    }

    /// Sends a request to the script and returns its answer.
    pub fn ask(&mut self, question: impl Display) -> String {
        self.child.ask(question)
    }

    /// Sends a request, and asserts the answer.
    pub fn expect(&mut self, question: impl Display, answer: &str) {
        assert_eq!(self.ask(&question), answer, "the answer to `{question}`");
    }

    /// Sends a request, and asserts the kind of error.
    pub fn expect_error(&mut self, question: impl Display, kind: &str) {
        let answer = self.ask(&question);
        assert!(answer.starts_with(&format!("{kind}:")), "the answer to `{question}` is `{answer}`");
    }

    /// Sends a request without waiting for the answer.
    pub fn tell(&mut self, question: impl Display) {
        self.child.tell(question);
    }

    /// Returns the answer to an earlier request, if it comes within this time.
    pub fn answer_within(&mut self, limit: Duration) -> Option<String> {
        self.child.line_within(limit)
    }

    /// Kills the process as `kill -9` does, and waits for its end.
    pub fn kill(&mut self) {
        self.child.kill();
    }

    /// Ends the script, and asserts that it succeeds.
    pub fn finish(self) {
        self.child.finish();
    }
}

/// An array's type, shape and order, as the scripts take them.
#[derive(Debug, Clone)]
pub struct About {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub order: Order,
}

impl About {
    pub fn new(dtype: DType, shape: &[usize], order: Order) -> Self {
        Self { dtype, shape: shape.to_vec(), order }
    }

    /// Returns the request `command NAME dtype shape order`.
    pub fn of(&self, command: &str, name: impl Display) -> String {
        format!("{command} {name} {} {} {}", self.dtype, axes(&self.shape), self.order)
    }

    /// Returns the request `command NAME dtype shape order seed`.
    pub fn with(&self, command: &str, name: impl Display, seed: usize) -> String {
        format!("{} {seed}", self.of(command, name))
    }
}

/// Formats lengths as the scripts read them.
pub fn axes(shape: &[usize]) -> String {
    shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Returns the path of an array's file, for peers that open files.
pub fn path(place: &Place, name: &Name) -> String {
    place.directory().join(name.as_str()).display().to_string()
}
