//! How a test and its children meet: a socket in a directory that goes with the test, and a look at what each leaves.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ndarray::{Dimension, Ix2};
use ndarray_shm::counted::{Channel, ChannelListener, ReceivedArray, SharingStrategy};
use ndarray_shm::{CreateOptions, Directory, Element, RefcountedArray};

use crate::support::child::Child;
use crate::support::machine::open_files;
use crate::support::machine::{mappings, open_paths};
use crate::support::{Place, backend_of_child};

/// How long anything may take that happens at once on an idle machine.
pub const LONG: Duration = Duration::from_secs(60);

/// How often something is done that is to go well every time: `usual`, or as often as `NDSHM_TEST_ROUNDS` says.
pub fn repeats(usual: usize) -> usize {
    std::env::var("NDSHM_TEST_ROUNDS").map_or(usual, |rounds| rounds.parse().expect("a number"))
}

/// The strategies that this platform has.
pub fn strategies() -> impl Iterator<Item = SharingStrategy> {
    SharingStrategy::ALL.into_iter().filter(|strategy| strategy.is_supported())
}

/// A test's directory for arrays, and the socket where its children find it.
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

    /// In a child: the place of its parent, and sockets of its own in a directory of the parent's.
    pub fn of_parent(place: Place, directory: &Path) -> Self {
        let sockets = tempfile::tempdir_in(directory).expect("a directory for sockets");
        let listener = ChannelListener::bind(sockets.path().join("parent")).expect("a listener");
        Self { place, listener, sockets }
    }

    /// A path for a socket, in the directory that goes with the test.
    pub fn path(&self, name: &str) -> PathBuf {
        self.sockets.path().join(name)
    }

    /// Starts a child, with the path of the test's own socket before its arguments; it connects first of all.
    pub fn child(&self, role: &str, arguments: &[&str]) -> (Child, Channel) {
        let path = self.path("parent").display().to_string();
        let child = Child::start(&self.place, role, &[&[path.as_str()], arguments].concat());
        let channel = self.listener.accept_timeout(LONG).expect("the child connects");
        (child, channel)
    }

    /// Makes an array that is shared by this strategy.
    pub fn share<T: Element>(&self, strategy: SharingStrategy, value: T) -> RefcountedArray<T, Ix2> {
        share(&self.place.backend, strategy, value)
    }

    /// How many names there are, hidden ones included.
    pub fn names(&self) -> usize {
        names(&self.place.backend)
    }

    /// Insists that nothing of this test is left in the directory or in this process.
    #[track_caller]
    pub fn is_clean(&self) {
        assert_eq!(Traces::of(&self.place.backend), Traces::default(), "left behind by the test's own process");
    }
}

/// Every file in a directory.
pub fn names(backend: &Directory) -> usize {
    std::fs::read_dir(backend.path()).expect("a directory").count()
}

/// Makes an array of 5 times 5 equal elements.
pub fn share<T: Element>(backend: &Directory, strategy: SharingStrategy, value: T) -> RefcountedArray<T, Ix2> {
    options(backend).share_with(strategy, (5, 5), |mut view| view.fill(value)).expect("an array")
}

pub fn options<T: Element, D: Dimension>(backend: &Directory) -> CreateOptions<RefcountedArray<T, D>> {
    CreateOptions::<RefcountedArray<_, _>>::new().backend(backend.clone())
}

/// Attaches what was received in whatever place.
#[track_caller]
pub fn attach<T: Element>(received: ReceivedArray) -> RefcountedArray<T, Ix2> {
    received.attach().expect("it can be attached")
}

/// Whether every element is this.
pub fn all<T: Element + PartialEq>(array: &RefcountedArray<T, Ix2>, value: T) -> bool {
    array.read().expect("a guard").iter().all(|element| *element == value)
}

/// Insists that what is written in one is seen in the other, both ways.
#[track_caller]
pub fn assert_same_memory(one: &RefcountedArray<f32, Ix2>, other: &RefcountedArray<f32, Ix2>) {
    for (from, to) in [(one, other), (other, one)] {
        let before = from.read().expect("a guard")[[4, 4]];
        from.write().expect("a guard")[[4, 4]] = before + 1.0;
        assert_eq!(to.read().expect("a guard")[[4, 4]], before + 1.0, "another array");
    }
}

/// What a directory of arrays has, and what leads there from this process. Other tests run in it at the same time, but in
/// directories of their own.
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

    /// How many descriptors of this process lead there.
    pub fn descriptors(&self) -> usize {
        self.descriptors.len()
    }

    /// What leads from this process to arrays in the directory, named or not.
    fn of_process(backend: &Directory) -> Self {
        let directory = format!("{}/", backend.path().display());
        let paths = open_paths("self").into_iter().map(|path| path.display().to_string());
        let descriptors = paths.filter(|path| path.contains(&directory)).collect();
        Self { names: Vec::new(), descriptors, mappings: mappings(&directory) }
    }
}

/// In a child: connects to the process that the first argument names, does something, and insists that neither a descriptor nor a
/// mapping is left of it.
pub fn leaving_nothing(arguments: &[String], act: impl FnOnce(&Directory, Channel)) {
    let backend = backend_of_child();
    let _probed = backend.lock_survives_close().expect("a directory");
    let before = open_files();
    act(&backend, Channel::connect(&arguments[0]).expect("the parent listens"));
    assert_eq!(Traces::of_process(&backend), Traces::default(), "left behind by a child");
    assert_eq!(open_files(), before, "descriptors left behind by a child");
}
