//! Real servers for tests: S3 (moto), web servers (nginx, and one of ours in Python), and a proxy that fails on purpose.
//!
//! A server is on a free port of the loopback, ends when its value is dropped, and when the test process is killed: it watches its
//! standard input. A test that uses them includes this folder: `#[path = "../servers/mod.rs"] mod servers;`.

// Each test uses its own part of this.
#![allow(dead_code, unreachable_pub, unused_imports)]

mod proxy;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub use self::proxy::{Fault, FaultyProxy, Request};

/// Returns the Python that has moto; without it says so, past the test runner's capture, and the test is over.
pub fn python(test: &str) -> Option<PathBuf> {
    let python = std::env::var_os("NDSHM_TEST_PYTHON").map(PathBuf::from);
    if python.is_none() {
        let _told = writeln!(
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
            let _over = child.kill();
            panic!("no port, but {line:?} and {:?}", child.wait())
        });
        Self { child, port }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn kill(&mut self) {
        let _over = self.child.kill();
        let _over = self.child.wait();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Its standard input ends, so that it takes along what it started itself.
        drop(self.child.stdin.take());
        let _over = self.child.wait();
    }
}

/// An S3 server. It has a bucket `test`, takes any credentials and requests without.
#[derive(Debug)]
pub struct S3Server {
    served: Served,
    objects: Option<PathBuf>,
}

impl S3Server {
    /// Starts one.
    pub fn start() -> Self {
        Self::start_on(0, None)
    }

    /// Starts one that has objects: files `objects/BUCKET/KEY`; those that end in `.gz` are under Content-Encoding gzip without it.
    pub fn start_with(objects: &Path) -> Self {
        Self::start_on(0, Some(objects.to_owned()))
    }

    fn start_on(port: u16, objects: Option<PathBuf>) -> Self {
        let port = PathBuf::from(port.to_string());
        let mut arguments = vec![port.as_path()];
        arguments.extend(objects.as_deref());
        Self { served: Served::start("serve_s3.py", &arguments), objects }
    }

    /// Returns what `AWS_ENDPOINT_URL` is to be.
    pub fn endpoint(&self) -> String {
        self.served.url()
    }

    /// Returns the environment in which `s3://test/..` means this server (or what is in front of it): for [`Command::envs`].
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

    /// Kills it (SIGKILL): connections break, new ones are refused. Objects that it was not started with are lost.
    pub fn kill(&mut self) {
        self.served.kill();
    }

    /// Starts one in its place, on the same port.
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
    /// Starts one of ours: sends parts of files, and `NAME.gz` under Content-Encoding gzip for `NAME`.
    pub fn start(directory: &Path) -> Self {
        Self { served: Served::start("serve_files.py", &[directory, Path::new("tags")]), _scratch: None }
    }

    /// One that sends parts of files, and has just the files: of `NAME.gz` it does not know that it could be asked for as `NAME`.
    pub fn plain(directory: &Path) -> Self {
        Self {
            served: Served::start("serve_files.py", &[directory, Path::new("tags"), Path::new("plain")]),
            _scratch: None,
        }
    }

    /// As [`start`](Self::start), with answers that have no tag.
    pub fn without_tags(directory: &Path) -> Self {
        Self { served: Served::start("serve_files.py", &[directory]), _scratch: None }
    }

    /// The same, with answers that do not say how long they are.
    pub fn without_lengths(directory: &Path) -> Self {
        Self { served: Served::start("serve_files.py", &[directory, Path::new("lengthless")]), _scratch: None }
    }

    /// One that sends files whole, whatever part of them is asked for.
    pub fn without_ranges(directory: &Path) -> Self {
        Self { served: Served::start("serve_files.py", &[directory, Path::new("rangeless")]), _scratch: None }
    }

    /// Starts nginx, which packs on the way whatever the client says it can unpack. `None`, said aloud, where it is not installed.
    pub fn nginx(directory: &Path) -> Option<Self> {
        let places = ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx", "/opt/homebrew/bin/nginx"];
        let Some(nginx) = places.into_iter().map(Path::new).find(|place| place.exists()) else {
            let _told =
                writeln!(std::io::stderr(), "NOT RUN: nginx is not installed (Debian: apt install nginx-light)");
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
