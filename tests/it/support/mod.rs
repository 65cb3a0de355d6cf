//! What tests stand on: places to test in, names that clean up after themselves, children.

pub mod child;
mod hidden;
pub mod machine;
mod meddling;
pub mod sandbox;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use ndarray_shm::{Backend, Directory, Location, default_backend, render};

/// Tells a child that its drafts are to be hidden ones.
const HIDDEN: &str = "NDSHM_TEST_HIDDEN";

/// In a child: the backend under test, with its way of making drafts.
pub fn backend_of_child() -> Arc<dyn Backend> {
    let backend = default_backend().expect("the parent chose one");
    if std::env::var(HIDDEN).is_ok_and(|hidden| hidden == "1") {
        return Arc::new(hidden::HiddenDrafts(Directory::new("hidden", backend.directory())));
    }
    backend
}

/// A test that runs in every place.
pub type Test = fn(&Place);

/// A backend under test, and how a child finds the same one.
#[derive(Debug, Clone)]
pub struct Place {
    pub name: &'static str,
    pub backend: Arc<dyn Backend>,
    emulate: bool,
    _directory: Option<Arc<tempfile::TempDir>>,
}

impl Place {
    /// Real shared memory.
    pub fn shm() -> Self {
        Self { name: "shm", backend: Directory::shm().expect("/dev/shm"), emulate: false, _directory: None }
    }

    /// Files in a fresh directory.
    pub fn emulated() -> Self {
        let parent = std::env::var_os("NDSHM_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let directory =
            tempfile::Builder::new().prefix("ndshm-it-").tempdir_in(&parent).expect("a directory for tests");
        let backend = Arc::new(Directory::new("emulated", directory.path()));
        Self { name: "emulated", backend, emulate: true, _directory: Some(Arc::new(directory)) }
    }

    /// Files in a fresh directory, with drafts that are hidden instead of nameless.
    pub fn hidden() -> Self {
        let emulated = Self::emulated();
        let directory = Directory::new("hidden", emulated.directory());
        Self { name: "hidden", backend: Arc::new(hidden::HiddenDrafts(directory)), ..emulated }
    }

    /// The same backend, with something done before each operation.
    pub fn meddling(
        &self,
        before: impl Fn(&'static str, Option<&Location>) -> ndarray_shm::Result<()> + Send + Sync + 'static,
    ) -> Arc<dyn Backend> {
        Arc::new(meddling::Meddling { inner: Arc::clone(&self.backend), before: Box::new(before) })
    }

    /// Whether drafts have hidden names here, which a killed maker leaves behind.
    pub fn has_hidden_drafts(&self) -> bool {
        self.name == "hidden"
    }

    pub fn directory(&self) -> &Path {
        self.backend.directory()
    }

    /// The environment in which a child's default backend is this one.
    pub fn environment(&self) -> [(&'static str, String); 3] {
        [
            (HIDDEN, u8::from(self.has_hidden_drafts()).to_string()),
            ("EMULATE_SHM", u8::from(self.emulate).to_string()),
            ("NDSHM_EMULATED_DIR", self.directory().display().to_string()),
        ]
    }

    /// A location nobody else uses; what it names is gone when it goes out of scope.
    pub fn location(&self, label: &str) -> Name {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let location = format!("ndshm-it-{}-{number}-{label}", std::process::id());
        Name { location: location.parse().expect("a location"), backend: Arc::clone(&self.backend) }
    }

    /// Everything in the directory that belongs to the location, bookkeeping included.
    pub fn files_of(&self, location: &Name) -> Vec<String> {
        let entries = self.backend.list().expect("a listing");
        let own = |name: &String| name.ends_with(location.as_str());
        entries.into_iter().map(|entry| entry.name).filter(own).collect()
    }

    /// Wraps test functions of one file, once for this place.
    pub fn trials(&self, file: &str, tests: &[(&str, Test)]) -> Vec<Trial> {
        let trial = |&(name, test): &(&str, Test)| {
            let place = self.clone();
            Trial::test(format!("{file}::{}::{name}", self.name), move || {
                test(&place);
                Ok::<(), Failed>(())
            })
        };
        tests.iter().map(trial).collect()
    }
}

/// A location that is unlinked when it goes out of scope, also when the test fails.
#[derive(Debug)]
pub struct Name {
    location: Location,
    backend: Arc<dyn Backend>,
}

impl Name {
    pub fn as_str(&self) -> &str {
        self.location.as_str()
    }

    pub fn location(&self) -> &Location {
        &self.location
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _gone = self.backend.unlink(&self.location, None);
        let _gone = render::discard(&*self.backend, &self.location);
    }
}

/// Names a list of test functions after themselves.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name)),*] };
}

/// Waits for something that must happen, and says what if it does not.
pub fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(60), "never happened: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
