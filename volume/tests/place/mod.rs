//! A place for one test: a volume and a backend of its own. Both are removed when the test ends, also if it fails.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use ndarray::{ArrayD, IxDyn, ShapeBuilder as _};
use ndarray_shm::backend::EntryKind;
use ndarray_shm::cache::{self, CacheOptions};
use ndarray_shm::{Directory, Element, Location, Order, render};
use ndarray_shm_volume::demo::{self, DemoSpec};
use ndarray_shm_volume::{
    Bbox, CachedVolume, ChunkSource, DownloadOptions, Downloaded, Fetched, ObjectVersion, Placed, ReadOptions,
    RegionMemory, Result, Scratch, VolumeMeta, VolumeUrl, download_to_shared_memory, open_volume, read, read_into,
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
        check_reads(source, bbox, &expected);
        self.check_cached(source, bbox, &expected);
    }

    /// Reads and downloads a region through a cache: first into it, then from it.
    fn check_cached<T: Element + PartialEq>(&self, source: &dyn ChunkSource, bbox: &Bbox, expected: &ArrayD<T>) {
        let options = CacheOptions::new().directory(self.backend.clone());
        // Far more than the chunks need, so that none makes way. Windows writes all of it at once.
        let (meta, chunks) = (source.meta(), source.meta().chunks(bbox).total());
        let of_chunk = meta.chunk_shape.iter().product::<u64>() * meta.dtype.size() as u64;
        let bytes = (chunks * of_chunk.next_power_of_two().max(32 << 10) * 8).clamp(2 << 20, 64 << 20);
        let cache = options.create(self.location.as_str(), bytes).expect("a cache");
        let cached = CachedVolume::new(Settled::new(source), &cache);
        for _ in 0..2 {
            check_reads(&cached, bbox, expected);
        }
        let found = cache.inspect().expect("a cache");
        assert_eq!(cached.source().fetched.load(Ordering::Relaxed) as u64, chunks, "each chunk is fetched once");
        assert!(found.hits >= chunks && found.unversioned == 0, "{found:?}");
        let done = self.download(&cached, bbox, &self.options()).expect("a download");
        let array = done.open::<T, IxDyn>().expect("the array");
        assert!(array.read().expect("a guard").view() == *expected, "{source:?}, region {bbox}, from a cache");
        drop(array);
        assert!(self.backend.unlink(&self.location).expect("unlink"));
        assert!(cache::unlink(&self.backend, &self.location).expect("unlink"));
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

/// Reads a region into new arrays, and into views with gaps and with reversed axes.
#[allow(dead_code)]
pub(crate) fn check_reads<T: Element + PartialEq>(source: &dyn ChunkSource, bbox: &Bbox, expected: &ArrayD<T>) {
    let plain = ReadOptions::new();
    for options in [plain.clone(), plain.clone().order(Order::C).threads(1), plain.clone().order(Order::F).threads(3)] {
        let found = read::<T, IxDyn>(source, bbox, &options).expect("a read");
        assert!(found == *expected, "{source:?}, region {bbox}, {options:?}");
    }
    let zero: T = bytemuck::Zeroable::zeroed();
    let around: Vec<usize> = bbox.shape().iter().map(|length| 2 * length + 3).collect();
    for f_order in [false, true] {
        let mut memory = ArrayD::from_elem(IxDyn(&around).set_f(f_order), zero);
        let ends: Vec<_> = bbox.shape().iter().map(|length| isize::try_from(2 * length + 1).expect("small")).collect();
        let steps = |axis: ndarray::AxisDescription| {
            let step = if axis.axis.index() == 1 { -2 } else { 2 };
            ndarray::Slice::new(1, Some(ends[axis.axis.index()]), step)
        };
        let view = memory.slice_each_axis_mut(steps);
        read_into(source, bbox, view, &plain).expect("a read");
        let mut view = memory.slice_each_axis_mut(steps);
        assert!(view == *expected, "{source:?}, region {bbox}, with gaps");
        view.fill(zero);
        assert!(memory.iter().all(|element| *element == zero), "nothing beside it was written");
    }
}

/// A volume that is as old as it must be to be cached: all of its objects have one known version.
#[derive(Debug)]
pub(crate) struct Settled<'a> {
    source: &'a dyn ChunkSource,
    pub(crate) version: AtomicUsize,
    /// How many chunks were fetched.
    pub(crate) fetched: AtomicUsize,
    /// How often the version was asked for.
    pub(crate) asked: AtomicUsize,
}

#[allow(dead_code)]
impl<'a> Settled<'a> {
    pub(crate) fn new(source: &'a dyn ChunkSource) -> Self {
        Self { source, version: AtomicUsize::new(0), fetched: AtomicUsize::new(0), asked: AtomicUsize::new(0) }
    }

    fn known(&self) -> ObjectVersion {
        ObjectVersion::Known(self.version.load(Ordering::Relaxed).to_string())
    }
}

impl ChunkSource for Settled<'_> {
    fn meta(&self) -> &VolumeMeta {
        self.source.meta()
    }
    fn identity(&self) -> String {
        self.source.identity()
    }
    fn cache_identity(&self) -> Option<String> {
        Some(self.source.identity())
    }
    fn is_remote(&self) -> bool {
        self.source.is_remote()
    }
    fn order(&self) -> Order {
        self.source.order()
    }
    fn fetch(&self, region: &[Range<i64>]) -> Result<Fetched> {
        self.source.fetch(region)
    }
    fn version(&self, _: &[Range<i64>]) -> Result<ObjectVersion> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(self.known())
    }
    fn fetch_with_version(&self, region: &[Range<i64>]) -> Result<(Fetched, ObjectVersion)> {
        self.fetched.fetch_add(1, Ordering::Relaxed);
        let (fetched, _) = self.source.fetch_with_version(region)?;
        Ok((fetched, self.known()))
    }
    fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        self.source.decode(region, fetched, scratch)
    }
    fn decode_into(&self, region: &[Range<i64>], fetched: Fetched, memory: &mut RegionMemory<'_>) -> Result<Placed> {
        self.source.decode_into(region, fetched, memory)
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
