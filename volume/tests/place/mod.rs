//! A place for one test: a volume and a backend of its own. Both are removed when the test ends, also if it fails.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use ndarray::{ArrayD, IxDyn};
use ndarray_shm::backend::EntryKind;
use ndarray_shm::{Directory, Element, Location, Order, render};
use ndarray_shm_volume::demo::{self, DemoSpec};
use ndarray_shm_volume::{
    Bbox, ChunkSource, DownloadOptions, Downloaded, Result, VolumeUrl, download_to_shared_memory, open_volume,
};

/// A directory for volumes, a backend and a location.
#[derive(Debug)]
pub(crate) struct Place {
    directory: tempfile::TempDir,
    pub(crate) backend: Directory,
    pub(crate) location: Location,
}

// Each test binary uses its own part of this.
#[allow(dead_code)]
impl Place {
    /// Arrays are files of a temporary directory.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let arrays = directory.path().join("arrays");
        std::fs::create_dir(&arrays).expect("a directory for arrays");
        Self { directory, backend: Directory::new("test", arrays), location: unique() }
    }

    /// Arrays are in real shared memory, which only Linux has.
    #[cfg(target_os = "linux")]
    pub(crate) fn in_shared_memory() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        Self { directory, backend: Directory::shm().expect("/dev/shm"), location: unique() }
    }

    /// One place of each kind that this platform has.
    pub(crate) fn of_each_kind() -> Vec<Self> {
        vec![
            Self::new(),
            #[cfg(target_os = "linux")]
            Self::in_shared_memory(),
        ]
    }

    /// Returns a path for a volume of this name.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a demo volume and opens it.
    pub(crate) fn volume(&self, spec: &DemoSpec) -> Box<dyn ChunkSource> {
        let path = self.path("volume");
        demo::write_volume(&path, spec).expect("a volume");
        open_volume(VolumeUrl::local(&path)).expect("the volume that was written")
    }

    /// Returns options that paint into this place's backend.
    pub(crate) fn options(&self) -> DownloadOptions<'static> {
        DownloadOptions::new().directory(self.backend.clone())
    }

    /// Downloads to this place's location.
    pub(crate) fn download(
        &self,
        source: &dyn ChunkSource,
        bbox: &Bbox,
        options: &DownloadOptions<'_>,
    ) -> Result<Downloaded> {
        download_to_shared_memory(source, bbox, &self.location, options)
    }

    /// Downloads a region in both orders, compares every element with the expected one, and unlinks the arrays.
    pub(crate) fn check<T: Element + PartialEq>(&self, source: &dyn ChunkSource, spec: &DemoSpec, bbox: &Bbox) {
        let expected: ArrayD<T> = spec.expected(bbox).expect("a region of the volume");
        for order in [Order::C, Order::F] {
            let done = self.download(source, bbox, &self.options().order(order)).expect("a download");
            assert_eq!((done.painted, done.resumed), (done.chunks, 0));
            assert_eq!(done.bytes, (expected.len() * size_of::<T>()) as u64);
            let array = done.open::<T, IxDyn>().expect("the array");
            assert!(array.read().expect("a guard").view() == expected, "{spec:?}, region {bbox}, order {order}");
            drop(array);
            assert!(self.backend.unlink(&self.location).expect("unlink"));
        }
    }

    /// Returns the kinds of the backend's entries for this place's location.
    pub(crate) fn left(&self) -> Vec<EntryKind> {
        let entries = self.backend.list().expect("the backend's entries");
        entries
            .iter()
            .filter(|entry| entry.location().as_ref() == Some(&self.location))
            .map(|entry| entry.kind)
            .collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.backend.unlink(&self.location);
        let _ = render::discard(&self.backend, &self.location);
    }
}

/// Damages a file: changes the bytes of its second half.
#[allow(dead_code)]
pub(crate) fn corrupt(file: &Path) {
    let mut bytes = std::fs::read(file).expect("the file to damage");
    let middle = bytes.len() / 2;
    bytes[middle..].iter_mut().for_each(|byte| *byte = byte.wrapping_mul(31).wrapping_add(7));
    std::fs::write(file, bytes).expect("the damaged file");
}

fn unique() -> Location {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("volume-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    Location::new(&name).expect("a location")
}
