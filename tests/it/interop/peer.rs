//! A Python process that answers questions, one line each.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ndarray_shm::{DType, Order};

use crate::support::child::Child;
use crate::support::{Name, Place};

/// A running script of tests/it/python; killed when it goes out of scope.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    /// Libraries that write to the home directory find one that goes again.
    _home: tempfile::TempDir,
}

/// The interpreter that has the peers.
pub fn python() -> PathBuf {
    let python = std::env::var_os("NDSHM_TEST_PYTHON").filter(|path| !path.is_empty());
    python.map(PathBuf::from).expect(
        "NDSHM_TEST_PYTHON is not set: run scripts/test, which makes a Python environment with the peers \
         (tests/it/python/requirements.txt) and sets it",
    )
}

/// A folder or file of this package.
pub fn of_package(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

impl Peer {
    /// Starts a script in a place.
    pub fn start(place: &Place, script: &str) -> Self {
        Self::with_environment(script, &place.environment())
    }

    /// Starts a script in an environment.
    pub fn with_environment(script: &str, environment: &[(&str, String)]) -> Self {
        let home = tempfile::tempdir().expect("a home");
        let mut command = Command::new(python());
        command
            .arg("-B") // leaves no compiled files in the source tree
            .arg(of_package("tests/it/python").join(script))
            .env_remove("NDSHM_EMULATED_DIR")
            .env("PYTHONPATH", of_package("docs/python")) // the programs that docs/layout.md links
            .env("HOME", home.path())
            .envs(environment.iter().map(|(name, value)| (name, value)));
        Self { child: Child::spawn(command), _home: home }
    }

    /// Tells the script something and waits for its answer.
    pub fn ask(&mut self, question: impl Display) -> String {
        self.child.ask(question)
    }

    /// Asks, and insists on the answer.
    pub fn expect(&mut self, question: impl Display, answer: &str) {
        assert_eq!(self.ask(&question), answer, "the answer to `{question}`");
    }

    /// Asks, and insists on the kind of error.
    pub fn expect_error(&mut self, question: impl Display, kind: &str) {
        let answer = self.ask(&question);
        assert!(answer.starts_with(&format!("{kind}:")), "the answer to `{question}` is `{answer}`");
    }

    /// Tells the script something that it will answer later.
    pub fn tell(&mut self, question: impl Display) {
        self.child.tell(question);
    }

    /// The answer to what it was told, if there is one within this time.
    pub fn answer_within(&mut self, limit: Duration) -> Option<String> {
        self.child.line_within(limit)
    }

    /// Kills the process as `kill -9` does, and waits until it is gone.
    pub fn kill(&mut self) {
        self.child.kill();
    }

    /// Lets the script end, which must be a good end.
    pub fn finish(self) {
        self.child.finish();
    }
}

/// An array as the scripts want to have it described.
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

    /// `command NAME dtype shape order`.
    pub fn of(&self, command: &str, name: impl Display) -> String {
        format!("{command} {name} {} {} {}", self.dtype, axes(&self.shape), self.order)
    }

    /// `command NAME dtype shape order seed`.
    pub fn with(&self, command: &str, name: impl Display, seed: usize) -> String {
        format!("{} {seed}", self.of(command, name))
    }
}

/// Lengths as the scripts read them.
pub fn axes(shape: &[usize]) -> String {
    shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Where a peer that knows only files finds an array.
pub fn path(place: &Place, name: &Name) -> String {
    place.directory().join(name.as_str()).display().to_string()
}
