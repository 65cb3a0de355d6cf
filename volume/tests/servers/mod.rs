//! Real servers for tests: S3 (moto), web servers (nginx, and one in Python), and a proxy that fails on purpose.
//!
//! A server listens on a free port of the loopback. It ends when its standard input does: when its value is dropped,
//! and when the test process is killed. A test that uses servers includes this folder:
//! `#[path = "../servers/mod.rs"] mod servers;`.

// Each test uses its own part of this.
#![allow(dead_code, unreachable_pub, unused_imports)]

mod proxy;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub use self::proxy::{Fault, FaultyProxy, Request};

/// Returns the Python that has moto. Without one, prints a message that the test runner does not capture; the caller
/// ends its test.
pub fn python(test: &str) -> Option<PathBuf> {
    let python = std::env::var_os("NDSHM_TEST_PYTHON").map(PathBuf::from);
    if python.is_none() {
        let _ = writeln!(
            std::io::stderr(),
            "NOT RUN: {test} needs NDSHM_TEST_PYTHON, a Python with moto[server] (scripts/test)"
        );
    }
    python
}

/// A child that printed its port, and ends when its standard input does.
#[derive(Debug)]
struct Served {
    child: Child,
    port: u16,
}

impl Served {
    fn start(script: &str, arguments: &[&Path]) -> Self {
        let python = std::env::var_os("NDSHM_TEST_PYTHON").expect("NDSHM_TEST_PYTHON: ask `python()` first");
        // Tests of the command line use this file too.
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../volume/tests/python").join(script);
        let mut child = Command::new(python)
            .arg(script)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("its standard output");
        BufReader::new(stdout).read_line(&mut line).expect("its first line");
        let port = line.trim().parse().unwrap_or_else(|_| {
            let _ = child.kill();
            panic!("no port, but {line:?} and {:?}", child.wait())
        });
        Self { child, port }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // At the end of its standard input the server also ends the processes that it started.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// An S3 server with a bucket `test`. It accepts any credentials, and requests without credentials.
#[derive(Debug)]
pub struct S3Server {
    served: Served,
    objects: Option<PathBuf>,
}

impl S3Server {
    /// Starts a server without objects.
    pub fn start() -> Self {
        Self::start_on(0, None)
    }

    /// Starts a server with the files `objects/BUCKET/KEY` as objects. A `KEY.gz` becomes the object `KEY` with
    /// Content-Encoding gzip.
    pub fn start_with(objects: &Path) -> Self {
        Self::start_on(0, Some(objects.to_owned()))
    }

    fn start_on(port: u16, objects: Option<PathBuf>) -> Self {
        let port = PathBuf::from(port.to_string());
        let mut arguments = vec![port.as_path()];
        arguments.extend(objects.as_deref());
        Self { served: Served::start("serve_s3.py", &arguments), objects }
    }

    /// Returns the value for `AWS_ENDPOINT_URL`.
    pub fn endpoint(&self) -> String {
        self.served.url()
    }

    /// Returns the environment, for [`Command::envs`], in which `s3://test/..` leads to this server or to a proxy in
    /// front of it.
    pub fn environment(endpoint: &str) -> [(&'static str, String); 6] {
        [
            ("AWS_ENDPOINT_URL", endpoint.to_owned()),
            ("AWS_ACCESS_KEY_ID", "test".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "test".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_DEFAULT_REGION", "us-east-1".to_owned()),
        ]
    }

    /// Kills the server (SIGKILL): connections break, new ones are refused. Objects that it was not started with are
    /// lost.
    pub fn kill(&mut self) {
        self.served.kill();
    }

    /// Replaces the server by a new one on the same port.
    pub fn restart(&mut self) {
        self.kill();
        *self = Self::start_on(self.served.port, self.objects.clone());
    }
}

/// A web server of a directory.
#[derive(Debug)]
pub struct HttpServer {
    served: Served,
    _scratch: Option<tempfile::TempDir>,
}

impl HttpServer {
    /// Starts the Python server. It sends parts of files, and `NAME.gz` with Content-Encoding gzip for `NAME`.
    pub fn start(directory: &Path) -> Self {
        Self { served: Served::start("serve_files.py", &[directory, Path::new("tags")]), _scratch: None }
    }

    /// Starts a server that sends parts of files under their own names only: a request for `NAME` does not find
    /// `NAME.gz`.
    pub fn plain(directory: &Path) -> Self {
        Self {
            served: Served::start("serve_files.py", &[directory, Path::new("tags"), Path::new("plain")]),
            _scratch: None,
        }
    }

    /// Starts a server like [`start`](Self::start)'s that sends no tags.
    pub fn without_tags(directory: &Path) -> Self {
        Self { served: Served::start("serve_files.py", &[directory]), _scratch: None }
    }

    /// Starts a server that sends neither tags nor lengths.
    pub fn without_lengths(directory: &Path) -> Self {
        Self { served: Served::start("serve_files.py", &[directory, Path::new("lengthless")]), _scratch: None }
    }

    /// Starts a server that sends whole files whatever part is requested.
    pub fn without_ranges(directory: &Path) -> Self {
        Self { served: Served::start("serve_files.py", &[directory, Path::new("rangeless")]), _scratch: None }
    }

    /// Starts nginx, which compresses every answer if the client accepts that. Returns `None`, with a message, where
    /// nginx is not installed.
    pub fn nginx(directory: &Path) -> Option<Self> {
        let places = ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx", "/opt/homebrew/bin/nginx"];
        let Some(nginx) = places.into_iter().map(Path::new).find(|place| place.exists()) else {
            let _ = writeln!(std::io::stderr(), "NOT RUN: nginx is not installed (Debian: apt install nginx-light)");
            return None;
        };
        let scratch = tempfile::tempdir().expect("a temporary directory");
        let served = Served::start("serve_nginx.py", &[nginx, directory, scratch.path()]);
        Some(Self { served, _scratch: Some(scratch) })
    }

    /// Returns the URL of its directory, without a slash at the end.
    pub fn url(&self) -> String {
        self.served.url()
    }
}
