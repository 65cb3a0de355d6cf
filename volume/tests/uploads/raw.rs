//! The simplest volume: a directory with a file for each stored object, which holds its chunks one after the other as
//! they are in memory. It can be slow, remote or broken, and counts stores.

use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ndarray::{ArrayD, Axis, IxDyn, Slice};
use ndarray_shm::{Element, Order};
use ndarray_shm_volume::{
    Bbox, ChunkSink, ChunkSource, Elements, Fetched, Gather, Result, Scratch, StopFlag, VolumeMeta,
};

/// The volume. Each file is named after the first corner of its object.
#[derive(Debug)]
pub(crate) struct Raw {
    directory: PathBuf,
    pub(crate) meta: VolumeMeta,
    /// Order of the elements in stored chunks.
    pub(crate) order: Order,
    pub(crate) remote: bool,
    /// How long each store takes, so that a process can be killed during one.
    pub(crate) delay: Duration,
    /// No object is stored before this many stores were in progress at once.
    pub(crate) together: usize,
    /// A file that a store creates before it writes; the store continues when the file is removed.
    pub(crate) gate: Option<PathBuf>,
    /// This many objects are stored without waiting, the rest only after the flag is raised.
    pub(crate) held: Option<(usize, StopFlag)>,
    /// The name of an object: encoding it panics.
    pub(crate) panicking: Option<String>,
    /// A suffix of the identity.
    pub(crate) suffix: String,
    pub(crate) stored: AtomicUsize,
    pub(crate) storing: AtomicUsize,
    /// The most stores that were in progress at once.
    pub(crate) most: AtomicUsize,
}

impl Raw {
    pub(crate) fn new(directory: &Path, meta: VolumeMeta) -> Self {
        fs::create_dir_all(directory.join("new")).expect("a directory");
        Self {
            directory: directory.to_owned(),
            meta,
            order: Order::C,
            remote: false,
            delay: Duration::ZERO,
            together: 0,
            gate: None,
            held: None,
            panicking: None,
            suffix: String::new(),
            stored: AtomicUsize::new(0),
            storing: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        }
    }

    pub(crate) fn name(region: &[Range<i64>]) -> String {
        let corners: Vec<String> = region.iter().map(|range| range.start.to_string()).collect();
        format!("at_{}", corners.join("_"))
    }

    fn path(&self, region: &[Range<i64>]) -> PathBuf {
        self.directory.join(Self::name(region))
    }

    /// Returns the stored objects: names, sorted, with their bytes.
    pub(crate) fn objects(&self) -> Vec<(String, Vec<u8>)> {
        let entries = fs::read_dir(&self.directory).expect("the volume").map(|entry| entry.expect("an entry").path());
        let mut all: Vec<_> = entries
            .filter(|path| path.is_file())
            .map(|path| (path.file_name().expect("a name").display().to_string(), fs::read(&path).expect("an object")))
            .collect();
        all.sort();
        all
    }

    /// Reads a region; elements of missing chunks are `missing`.
    pub(crate) fn read_all<T: Element>(&self, bbox: &Bbox, missing: T) -> ArrayD<T> {
        let mut array = ArrayD::from_elem(IxDyn(&bbox.shape()), missing);
        let mut scratch = Scratch::new();
        for chunk in self.meta.chunks(bbox) {
            self.read(&chunk, &mut scratch).expect("a chunk");
            let mut to = array.view_mut();
            for (axis, (range, all)) in chunk.iter().zip(bbox.ranges()).enumerate() {
                let start = usize::try_from(range.start - all.start).expect("inside");
                let length = usize::try_from(range.end - range.start).expect("inside");
                to.slice_axis_inplace(Axis(axis), Slice::from(start..start + length));
            }
            match scratch.elements::<T>(&chunk).expect("elements") {
                Elements::Missing => {}
                Elements::Fill(value) => to.fill(value),
                Elements::Block(block) => to.assign(&block),
            }
        }
        array
    }

    /// Returns the cell of a grid that a region lies in, cut off where the volume ends.
    fn cell(&self, region: &[Range<i64>], lengths: &[u64]) -> Vec<Range<i64>> {
        let axes = region.iter().zip(lengths).zip(self.meta.domain().ranges().to_vec());
        axes.map(|((range, length), whole)| {
            let length = i64::try_from(*length).expect("small");
            let start = whole.start + (range.start - whole.start) / length * length;
            start..(start + length).min(whole.end)
        })
        .collect()
    }
}

/// Waits for a condition, but at most two minutes.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_mins(2), "timed out waiting until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn lengths(region: &[Range<i64>]) -> Vec<usize> {
    region.iter().map(|range| usize::try_from(range.end - range.start).expect("not empty")).collect()
}

impl ChunkSource for Raw {
    fn meta(&self) -> &VolumeMeta {
        &self.meta
    }

    fn identity(&self) -> String {
        format!("raw {}{}", self.directory.display(), self.suffix)
    }

    fn is_remote(&self) -> bool {
        self.remote
    }

    fn decode(&self, region: &[Range<i64>], _fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        let object = self.cell(region, &self.meta.stored_shape);
        let bytes = match fs::read(self.path(&object)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                scratch.missing();
                return Ok(());
            }
            Err(error) => panic!("{error}"),
        };
        let wanted = self.cell(region, &self.meta.chunk_shape);
        let mut at = 0;
        for chunk in self.meta.chunks(&Bbox::new(object).expect("not empty")) {
            let shape = lengths(&chunk);
            let size = shape.iter().product::<usize>() * self.meta.dtype.size();
            if chunk == wanted {
                let window = region.iter().zip(&chunk).map(|(range, chunk)| {
                    let start = usize::try_from(range.start - chunk.start).expect("inside");
                    start..start + usize::try_from(range.end - range.start).expect("inside")
                });
                let window = window.collect();
                scratch.block(bytes[at..at + size].to_vec(), shape, self.order, window);
                return Ok(());
            }
            at += size;
        }
        panic!("{region:?} is in no chunk");
    }
}

impl ChunkSink for Raw {
    fn encode(&self, region: &[Range<i64>], from: &dyn Gather) -> Result<Vec<u8>> {
        assert_eq!(region, self.cell(region, &self.meta.stored_shape), "one cell, cut off only where the volume ends");
        assert_ne!(
            self.panicking.as_deref(),
            Some(Self::name(region).as_str()),
            "this object's encoding panics on purpose"
        );
        let (mut packed, mut bytes) = (Vec::new(), vec![7; 3]);
        for chunk in self.meta.chunks(&Bbox::new(region.to_vec()).expect("not empty")) {
            from.gather(&chunk, self.order, &mut bytes)?;
            assert_eq!(bytes.len(), lengths(&chunk).iter().product::<usize>() * self.meta.dtype.size());
            packed.extend_from_slice(&bytes);
        }
        Ok(packed)
    }

    fn store(&self, region: &[Range<i64>], packed: Vec<u8>) -> Result<()> {
        let now = 1 + self.storing.fetch_add(1, Ordering::SeqCst);
        self.most.fetch_max(now, Ordering::SeqCst);
        thread::sleep(self.delay);
        until("enough are being stored", || self.most.load(Ordering::SeqCst) >= self.together);
        if let Some(gate) = &self.gate {
            fs::write(gate, "").expect("a gate");
            until("the gate is gone", || !gate.exists());
        }
        if let Some((count, flag)) = &self.held {
            until("the flag is raised", || self.stored.load(Ordering::SeqCst) < *count || flag.is_stopped());
        }
        self.storing.fetch_sub(1, Ordering::SeqCst);
        let name = Self::name(region);
        let new = self.directory.join("new").join(format!("{name}-{}", std::process::id()));
        fs::write(&new, packed).expect("a new object");
        let begin = Instant::now();
        while let Err(error) = fs::rename(&new, self.path(region)) {
            // Windows may refuse while another process reads the file of this name.
            assert!(cfg!(windows) && begin.elapsed() < Duration::from_mins(1), "in its place: {error}");
            thread::sleep(Duration::from_millis(1));
        }
        self.stored.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn erase(&self, region: &[Range<i64>]) -> Result<()> {
        match fs::remove_file(self.path(region)) {
            Err(error) if error.kind() != ErrorKind::NotFound => panic!("{error}"),
            _ => Ok(()),
        }
    }
}
