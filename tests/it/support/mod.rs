//! Support for tests: places to test in, names that clean up after themselves, child processes.

pub mod child;
pub mod counted;
mod elements;
pub mod files;
#[cfg(target_os = "linux")]
pub mod forks;
#[cfg(all(target_os = "linux", ndshm_steps))]
pub mod held_fork;
#[cfg(target_os = "linux")]
mod hidden;
pub mod machine;
#[cfg(target_os = "linux")]
pub mod manager_socket;
mod meddling;
pub mod random;
mod start;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use ndarray_shm::arena::ArenaOptions;
use ndarray_shm::backend::{Backend, EntryKind};
use ndarray_shm::counted::{Inspection, Reclaim, Reclaimed, inspect_in};
use ndarray_shm::pool::PoolOptions;
use ndarray_shm::render::{self, RenderOptions};
use ndarray_shm::stream;
use ndarray_shm::{Access, Arena, CreateOptions, Directory, Location, OpenOptions, default_directory};

use crate::topics::Run;

/// Tells a child to give its drafts hidden names.
const HIDDEN: &str = "NDSHM_TEST_HIDDEN";

/// In a child: the backend under test, with its way of making drafts.
pub fn backend_of_child() -> Directory {
    with_drafts_as_told(default_directory().expect("the parent chose one"))
}

/// In a child: this backend, with the way of making drafts that is under test.
pub fn with_drafts_as_told(backend: Directory) -> Directory {
    #[cfg(target_os = "linux")]
    if std::env::var(HIDDEN).is_ok_and(|hidden| hidden == "1") {
        return hidden::directory(backend.path());
    }
    backend
}

/// In a child: the arena that the first argument names.
pub fn arena_of_child(arguments: &[String]) -> Arena {
    Arena::open_in(&backend_of_child(), arguments[0].as_str()).expect("the parent made it")
}

/// A test that runs in every place.
pub type Test = fn(&Place);

/// A backend under test, and how a child finds the same one.
#[derive(Debug, Clone)]
pub struct Place {
    pub name: &'static str,
    pub backend: Directory,
    emulate: bool,
    _directory: Option<Arc<tempfile::TempDir>>,
}

impl Place {
    /// Whether the system can reserve room for the holes of a file that other processes may have open.
    pub const FILLS_HOLES: bool = cfg!(target_os = "linux");

    /// Whether memory of a pool can be used again.
    pub const RECYCLES: bool = cfg!(target_os = "linux");

    /// In a child: the place of the parent, which has this name.
    pub fn of_parent(name: &'static str) -> Self {
        Self { name, backend: backend_of_child(), emulate: true, _directory: None }
    }

    /// The backends that a run tests. With `EMULATE_SHM` set, real shared memory is not among them.
    pub fn all(run: &Run) -> Vec<Self> {
        let asked = std::env::var("EMULATE_SHM").unwrap_or_default().to_ascii_lowercase();
        let is_real = cfg!(target_os = "linux") && !["1", "true", "yes"].contains(&asked.as_str());
        let mut places: Vec<Self> = is_real.then(Self::shm).into_iter().collect();
        places.push(Self::emulated());
        #[cfg(target_os = "linux")]
        if *run == Run::Ordinary {
            places.push(Self::hidden());
        }
        if *run == Run::First {
            places.truncate(1);
        }
        places
    }

    fn shm() -> Self {
        Self { name: "shm", backend: Directory::shm().expect("/dev/shm"), emulate: false, _directory: None }
    }

    /// Files in a fresh directory.
    fn emulated() -> Self {
        let directory = tempfile::Builder::new().prefix("ndshm-it-").tempdir().expect("a directory for tests");
        let backend = Directory::new("emulated", directory.path());
        Self { name: "emulated", backend, emulate: true, _directory: Some(Arc::new(directory)) }
    }

    /// Files in a fresh directory, with drafts that are hidden instead of nameless, and without descriptions.
    #[cfg(target_os = "linux")]
    fn hidden() -> Self {
        let emulated = Self::emulated();
        Self { name: "hidden", backend: hidden::directory(emulated.directory()), ..emulated }
    }

    /// The same backend, with `before` called before each operation.
    pub fn meddling(
        &self,
        before: impl Fn(&'static str, Option<&Location>) -> ndarray_shm::Result<()> + Send + Sync + 'static,
    ) -> Directory {
        meddling(&self.backend, before)
    }

    /// The same kind of place in a directory of its own, where the directory can be chosen.
    pub fn fresh(&self) -> Self {
        match self.name {
            "emulated" => Self::emulated(),
            #[cfg(target_os = "linux")]
            "hidden" => Self::hidden(),
            _ => self.clone(),
        }
    }

    /// A test's own directory on the same file system, removed with everything in it when the test ends, also when it
    /// fails. For arrays whose names the test does not choose, and for checks of everything in the directory.
    pub fn private(&self) -> Self {
        if self.name != "shm" {
            return self.fresh();
        }
        let prefix = format!("ndshm-it-{}-", std::process::id());
        let directory = tempfile::Builder::new().prefix(&prefix).tempdir_in(self.directory()).expect("a directory");
        let backend = Directory::new("shm", directory.path());
        Self { name: "shm", backend, emulate: true, _directory: Some(Arc::new(directory)) }
    }

    /// Whether drafts have hidden names here, which a killed creator leaves behind.
    pub fn has_hidden_drafts(&self) -> bool {
        self.name == "hidden" || !cfg!(target_os = "linux")
    }

    /// Whether plain arrays describe themselves here.
    pub fn describes(&self) -> bool {
        let describes = self.backend.can_describe().expect("a test file");
        // tmpfs needs Linux 6.6 for it. All other file systems that are tested can do it.
        assert_eq!(
            describes,
            cfg!(target_os = "linux") && self.name != "hidden",
            "attributes in {}",
            self.directory().display()
        );
        describes
    }

    /// Whether a file can take less room than its length. On NTFS it cannot.
    pub fn has_holes(&self) -> bool {
        let name = self.location("holes");
        std::fs::File::create(self.path(&name)).and_then(|file| file.set_len(1 << 20)).expect("a file");
        self.allocated(name.as_str()) < 1 << 18
    }

    /// The bytes of room that the file with this name takes, according to the backend.
    pub fn allocated(&self, name: &str) -> u64 {
        let entries = self.backend.list().expect("a listing");
        entries.iter().find(|entry| entry.name == name).expect("it is listed").allocated
    }

    /// How many drafts have a hidden name now.
    pub fn hidden_drafts(&self) -> usize {
        let entries = self.backend.list().expect("a listing");
        entries.iter().filter(|entry| entry.kind == EntryKind::Draft).count()
    }

    pub fn directory(&self) -> &Path {
        self.backend.path()
    }

    pub fn path(&self, name: &Name) -> PathBuf {
        self.directory().join(name.as_str())
    }

    /// Options for creating arrays here.
    pub fn options(&self) -> CreateOptions {
        CreateOptions::new().directory(self.backend.clone())
    }

    /// Options for opening arrays here.
    pub fn open_options(&self) -> OpenOptions {
        OpenOptions::new().directory(self.backend.clone())
    }

    /// Inspects a counted array here.
    pub fn inspect(&self, name: &Name) -> ndarray_shm::Result<Inspection> {
        inspect_in(&self.backend, name.location())
    }

    /// Whether a file has the name.
    pub fn has(&self, name: &Name) -> bool {
        self.backend.open(name.location(), Access::Read).is_ok()
    }

    /// Reclaims orphans here.
    pub fn reclaim(&self) -> Reclaimed {
        Reclaim::new().run(&self.backend).expect("a listing")
    }

    /// Options for pools here.
    pub fn pool_options(&self) -> PoolOptions {
        PoolOptions::new().directory(self.backend.clone())
    }

    /// Options for arenas here.
    pub fn arena_options(&self) -> ArenaOptions {
        ArenaOptions::new().directory(self.backend.clone())
    }

    /// Options for renderbuffers here.
    pub fn render_options(&self) -> RenderOptions {
        RenderOptions::new().directory(self.backend.clone())
    }

    /// The environment in which a child's default backend is this one.
    pub fn environment(&self) -> [(&'static str, String); 3] {
        [
            (HIDDEN, u8::from(self.has_hidden_drafts()).to_string()),
            ("EMULATE_SHM", u8::from(self.emulate).to_string()),
            ("NDSHM_EMULATED_DIR", self.directory().display().to_string()),
        ]
    }

    /// A location that no other test uses. It is unlinked when the value is dropped.
    pub fn location(&self, label: &str) -> Name {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let location = format!("ndshm-it-{}-{number}-{label}", std::process::id());
        Name { location: location.parse().expect("a location"), backend: self.backend.clone() }
    }

    /// Every name in the directory, hidden ones included.
    pub fn everything(&self) -> Vec<String> {
        self.backend.list().expect("a listing").into_iter().map(|entry| entry.name).collect()
    }

    /// Every file in the directory that belongs to the location, payload and ledger of a renderbuffer included.
    pub fn files_of(&self, location: &Name) -> Vec<String> {
        self.everything().into_iter().filter(|name| name.ends_with(location.as_str())).collect()
    }

    /// Makes trials of the tests of one file of a suite, in this place.
    pub fn trials(&self, suite: &str, file: &str, tests: &[(&str, Test)]) -> Vec<Trial> {
        let trial = |&(name, test): &(&str, Test)| {
            let place = self.clone();
            Trial::test(format!("{suite}::{}::{file}::{name}", self.name), move || {
                test(&place);
                Ok::<(), Failed>(())
            })
        };
        tests.iter().map(trial).collect()
    }

    /// Every file that tests left here, hidden ones included.
    pub fn left(&self) -> Vec<String> {
        let own = format!("ndshm-it-{}-", std::process::id());
        self.everything().into_iter().filter(|name| self.name != "shm" || name.contains(&own)).collect()
    }
}

/// A backend with `before` called before each operation.
pub fn meddling(
    inner: &Directory,
    before: impl Fn(&'static str, Option<&Location>) -> ndarray_shm::Result<()> + Send + Sync + 'static,
) -> Directory {
    Directory::from(Arc::new(meddling::Meddling { inner: inner.clone(), before: Box::new(before) }))
}

/// A location that is unlinked on drop, also when the test fails.
#[derive(Debug)]
pub struct Name {
    location: Location,
    backend: Directory,
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
        let _ = self.backend.unlink(&self.location); // drop cannot fail
        let _ = render::discard(&self.backend, &self.location);
        let _ = stream::unlink(&self.backend, &self.location);
    }
}

/// The number of rounds of a loop that has `times` rounds on Linux. Under Wine a call takes ten times as long, and
/// Wine's server keeps each closed handle of a file open until the last lock on that file is gone: thousands of rounds
/// would use up its descriptors.
pub const fn rounds(times: usize) -> usize {
    if cfg!(windows) { times.div_ceil(10) } else { times }
}

/// Makes trials of the tests of a suite that does not depend on a place.
pub fn trials(suite: &str, tests: &[(&str, fn())]) -> Vec<Trial> {
    let trial = |&(name, test): &(&str, fn())| {
        Trial::test(format!("{suite}::{name}"), move || {
            test();
            Ok::<(), Failed>(())
        })
    };
    tests.iter().map(trial).collect()
}

/// Names a list of test functions after themselves.
#[macro_export]
macro_rules! tests {
    ($($(#[$attribute:meta])* $name:ident),* $(,)?) => { &[$($(#[$attribute])* (stringify!($name), $name)),*] };
}

/// Waits for something that must happen. Panics with its name if it does not.
pub fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < Duration::from_secs(120), "never happened: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
