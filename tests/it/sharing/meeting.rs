//! Connects a test with its children over a socket in the test's directory, and checks what each process leaves.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ndarray::Ix2;
use ndarray_shm::counted::{Channel, ChannelListener, ReceivedArray, SharingStrategy};
use ndarray_shm::{CreateOptions, Directory, Element, RefcountedArray};

use crate::support::child::Child;
use crate::support::machine::open_files;
use crate::support::machine::{mappings, open_paths};
use crate::support::{Place, backend_of_child};

/// The longest wait for an event that is immediate on an idle machine.
pub const LONG: Duration = Duration::from_secs(60);

/// Returns how many rounds to run: `usual`, or the number in `NDSHM_TEST_ROUNDS`.
pub fn repeats(usual: usize) -> usize {
    std::env::var("NDSHM_TEST_ROUNDS").map_or(usual, |rounds| rounds.parse().expect("a number"))
}

/// Returns the strategies that this platform supports.
pub fn strategies() -> impl Iterator<Item = SharingStrategy> {
    SharingStrategy::ALL.into_iter().filter(|strategy| strategy.is_supported())
}

/// A test's directory for arrays, and the socket to which its children connect.
#[derive(Debug)]
pub struct Meeting {
    pub place: Place,
    listener: ChannelListener,
    sockets: tempfile::TempDir,
}

impl Meeting {
    pub fn new(place: &Place) -> Self {
        let sockets = tempfile::Builder::new().prefix("ndshm-it-").tempdir().expect("a directory for sockets");
        let listener = ChannelListener::bind(sockets.path().join("parent")).expect("a listener");
        Self { place: place.private(), listener, sockets }
    }

    /// Returns a child's meeting: in the place of its parent, with its own socket below a directory of the parent's.
    pub fn of_parent(place: Place, directory: &Path) -> Self {
        let sockets = tempfile::tempdir_in(directory).expect("a directory for sockets");
        let listener = ChannelListener::bind(sockets.path().join("parent")).expect("a listener");
        Self { place, listener, sockets }
    }

    /// Returns a path for a socket, in a directory that is removed after the test.
    pub fn path(&self, name: &str) -> PathBuf {
        self.sockets.path().join(name)
    }

    /// Starts a child, and returns it with the channel to it. The child gets the socket's path as its first argument,
    /// and connects first.
    pub fn child(&self, role: &str, arguments: &[&str]) -> (Child, Channel) {
        let path = self.path("parent").display().to_string();
        let child = Child::start(&self.place, role, &[&[path.as_str()], arguments].concat());
        let channel = self.listener.accept_timeout(LONG).expect("the child connects");
        (child, channel)
    }

    /// Creates an array with this strategy.
    pub fn share<T: Element>(&self, strategy: SharingStrategy, value: T) -> RefcountedArray<T, Ix2> {
        share(&self.place.backend, strategy, value)
    }

    /// Returns how many names the directory has, including hidden ones.
    pub fn names(&self) -> usize {
        names(&self.place.backend)
    }

    /// Asserts that neither the directory nor this process has anything left of this test.
    #[track_caller]
    pub fn is_clean(&self) {
        assert_eq!(Traces::of(&self.place.backend), Traces::default(), "left behind by the test's own process");
    }
}

/// Returns how many files a directory has.
pub fn names(backend: &Directory) -> usize {
    std::fs::read_dir(backend.path()).expect("a directory").count()
}

/// Creates an array of 5 times 5 equal elements.
pub fn share<T: Element>(backend: &Directory, strategy: SharingStrategy, value: T) -> RefcountedArray<T, Ix2> {
    options(backend).share_with(strategy, (5, 5), |mut view| view.fill(value)).expect("an array")
}

pub fn options(backend: &Directory) -> CreateOptions {
    CreateOptions::new().directory(backend.clone())
}

/// Attaches to a received array.
#[track_caller]
pub fn attach<T: Element>(received: ReceivedArray) -> RefcountedArray<T, Ix2> {
    received.attach().expect("a received array attaches")
}

/// Returns whether every element has this value.
pub fn all<T: Element + PartialEq>(array: &RefcountedArray<T, Ix2>, value: T) -> bool {
    array.read().expect("a guard").iter().all(|element| *element == value)
}

/// Asserts that each array shows what was written through the other.
#[track_caller]
pub fn assert_same_memory(one: &RefcountedArray<f32, Ix2>, other: &RefcountedArray<f32, Ix2>) {
    for (from, to) in [(one, other), (other, one)] {
        let before = from.read().expect("a guard")[[4, 4]];
        from.write().expect("a guard")[[4, 4]] = before + 1.0;
        assert_eq!(to.read().expect("a guard")[[4, 4]], before + 1.0, "another array");
    }
}

/// The names in a directory of arrays, and this process's descriptors and mappings of its files. Other tests run in
/// this process at the same time, but in their own directories.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Traces {
    names: Vec<String>,
    descriptors: Vec<String>,
    mappings: Vec<String>,
}

impl Traces {
    pub fn of(backend: &Directory) -> Self {
        let directory = backend.path();
        let entries = std::fs::read_dir(directory).expect("a directory").filter_map(Result::ok);
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        Self { names, ..Self::of_process(backend) }
    }

    /// Returns how many descriptors of this process lead there.
    pub fn descriptors(&self) -> usize {
        self.descriptors.len()
    }

    /// Returns this process's descriptors and mappings of arrays in the directory, named or not.
    fn of_process(backend: &Directory) -> Self {
        let directory = format!("{}/", backend.path().display());
        let paths = open_paths("self").into_iter().map(|path| path.display().to_string());
        let descriptors = paths.filter(|path| path.contains(&directory)).collect();
        Self { names: Vec::new(), descriptors, mappings: mappings(&directory) }
    }
}

/// Runs an action in a child that is connected to the socket in the first argument. Asserts that the action leaves no
/// descriptor and no mapping.
pub fn leaving_nothing(arguments: &[String], act: impl FnOnce(&Directory, Channel)) {
    let backend = backend_of_child();
    // The first call probes with open files: not to be counted below.
    let _ = backend.lock_survives_close().expect("a directory");
    let before = open_files();
    act(&backend, Channel::connect(&arguments[0]).expect("the parent listens"));
    assert_eq!(Traces::of_process(&backend), Traces::default(), "left behind by a child");
    assert_eq!(open_files(), before, "descriptors left behind by a child");
}
