//! The process that runs the oracles, and the directory of all tests.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use ndarray_shm::{Directory, Location};
use serde_json::{Value, json};

use crate::matrix::Kept;
use crate::servers::HttpServer;
use crate::table::Outcome;

/// The interpreter that has the oracles.
pub(crate) const PYTHON: &str = "NDSHM_TEST_PYTHON";

/// The variable that leads this crate and the oracles to the S3 server.
pub(crate) const ENDPOINT: &str = "AWS_ENDPOINT_URL";

/// The state that all tests share. Its directory is removed at the end, also if tests fail.
#[derive(Debug)]
pub(crate) struct World {
    oracles: Mutex<Option<Oracles>>,
    directory: tempfile::TempDir,
    pub(crate) backend: Directory,
    outcomes: Mutex<Vec<Outcome>>,
    count: AtomicUsize,
    web: OnceLock<HttpServer>,
}

/// The process of `oracle.py`, which answers questions one after the other.
#[derive(Debug)]
struct Oracles {
    child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl World {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for folder in ["arrays", "home", "served"] {
            fs::create_dir(directory.path().join(folder)).expect("a folder");
        }
        let backend: Directory = Directory::new("test", directory.path().join("arrays"));
        Self {
            oracles: Mutex::new(None),
            directory,
            backend,
            outcomes: Mutex::default(),
            count: AtomicUsize::new(0),
            web: OnceLock::new(),
        }
    }

    /// Sends a question and returns the answer. An oracle's failure becomes an error with the oracle's message.
    pub(crate) fn ask(&self, question: &Value) -> Result<Value, String> {
        let mut oracles = self.oracles.lock().unwrap_or_else(PoisonError::into_inner);
        let oracles = oracles.get_or_insert_with(|| Oracles::start(&self.directory.path().join("home")));
        let answer = oracles.ask(question);
        match answer["error"].as_str() {
            Some(error) => Err(format!("{error}\nasked: {question}")),
            None => Ok(answer),
        }
    }

    /// Returns a unique path.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("served").join(format!("{}-{name}", self.count.fetch_add(1, Ordering::Relaxed)))
    }

    /// Returns a unique location.
    pub(crate) fn location(&self) -> Location {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        Location::new(&format!("oracles-{}-{number}", std::process::id())).expect("a location")
    }

    /// Returns the place of a new volume, in the form that `oracle.py` expects, and its URL without a format.
    pub(crate) fn place(&self, kept: Kept) -> (Value, String) {
        let path = self.path("volume");
        let text = path.to_str().expect("a path in UTF-8");
        match kept {
            Kept::Files => (json!({ "file": text }), format!("file://{text}")),
            Kept::S3 => {
                let endpoint = std::env::var(ENDPOINT).expect("main started the server");
                let key = path.file_name().and_then(|name| name.to_str()).expect("a name");
                (json!({ "s3": { "endpoint": endpoint, "bucket": "test", "key": key } }), format!("s3://test/{key}"))
            }
            // The oracle writes files, which a web server then serves.
            Kept::Http => {
                let web = self.web.get_or_init(|| HttpServer::plain(&self.directory.path().join("served")));
                let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
                (json!({ "file": text }), format!("{}/{name}", web.url()))
            }
        }
    }

    /// Records a volume that was found equal.
    pub(crate) fn note(&self, outcome: Outcome) {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
    }

    /// Returns the volumes that were found equal, sorted.
    pub(crate) fn outcomes(&self) -> Vec<Outcome> {
        let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        outcomes.sort();
        outcomes
    }
}

/// Removes a volume that was found equal, if it is in files, so that the files of all tests do not pile up.
pub(crate) fn remove(place: &Value) -> Result<(), String> {
    place["file"].as_str().map_or(Ok(()), fs::remove_dir_all).map_err(|error| error.to_string())
}

impl Oracles {
    fn start(home: &Path) -> Self {
        let python = std::env::var_os(PYTHON).expect("tests run only if it is set");
        let mut child = Command::new(python)
            .arg("-B") // leaves no compiled files in the source tree
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/oracle.py"))
            .env("HOME", home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python starts");
        let questions = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut oracles = Self { child, questions, answers };
        let ready = oracles.answer();
        assert!(ready["ready"].is_array(), "the oracles say {ready}");
        oracles
    }

    fn ask(&mut self, question: &Value) -> Value {
        writeln!(self.questions.as_mut().expect("open until the end"), "{question}")
            .expect("the oracles read questions");
        self.answer()
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the oracles answer");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("the oracles said {line:?}; they may have died"))
    }
}

impl Drop for Oracles {
    fn drop(&mut self) {
        // The process ends when its standard input does.
        self.questions = None;
        let _ = self.child.wait();
    }
}
