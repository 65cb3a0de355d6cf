//! The pipeline for remote volumes: concurrent fetches, bounded bytes in flight, errors, stopping.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ndarray::IxDyn;
use ndarray_shm::DType;
use ndarray_shm::backend::EntryKind;
use ndarray_shm_volume::demo::{DemoSpec, Pattern};
use ndarray_shm_volume::{Bbox, ChunkSource, Error, Fetched, Result, Scratch, StopFlag, VolumeMeta, Workers};

use crate::place::Place;

/// A volume with slow fetches. It records the requests.
#[derive(Debug)]
struct Remote<'a> {
    volume: &'a dyn ChunkSource,
    delay: Duration,
    /// Bytes that each fetch returns.
    packed: usize,
    /// The request at which the server disappears: this one and later ones fail.
    fails_at: Option<usize>,
    failed: AtomicUsize,
    stops_at: Option<(usize, StopFlag)>,
    /// No answer comes before this many requests were in progress at once.
    together: usize,
    requests: Gauge,
    bytes: Gauge,
    fetched: Mutex<HashMap<String, usize>>,
    decoded: AtomicUsize,
}

/// A current count and its maximum.
#[derive(Debug, Default)]
struct Gauge(AtomicUsize, AtomicUsize);

impl Gauge {
    fn add(&self, count: usize) {
        let now = self.0.fetch_add(count, Ordering::SeqCst) + count;
        self.1.fetch_max(now, Ordering::SeqCst);
    }
    fn subtract(&self, count: usize) {
        self.0.fetch_sub(count, Ordering::SeqCst);
    }
    fn most(&self) -> usize {
        self.1.load(Ordering::SeqCst)
    }
}

impl<'a> Remote<'a> {
    fn new(volume: &'a dyn ChunkSource, delay: Duration, packed: usize) -> Self {
        Self {
            volume,
            delay,
            packed,
            fails_at: None,
            failed: AtomicUsize::new(0),
            stops_at: None,
            together: 1,
            requests: Gauge::default(),
            bytes: Gauge::default(),
            fetched: Mutex::default(),
            decoded: AtomicUsize::new(0),
        }
    }

    /// Returns how often each region was fetched.
    fn fetched(&self) -> HashMap<String, usize> {
        self.fetched.lock().expect("the list").clone()
    }
}

impl ChunkSource for Remote<'_> {
    fn meta(&self) -> &VolumeMeta {
        self.volume.meta()
    }
    fn identity(&self) -> String {
        self.volume.identity()
    }
    fn is_remote(&self) -> bool {
        true
    }
    fn fetch(&self, region: &[Range<i64>]) -> Result<Fetched> {
        let gone = self.failed.load(Ordering::SeqCst) > 0;
        self.requests.add(1);
        let begin = Instant::now();
        while self.requests.most() < self.together && begin.elapsed() < Duration::from_mins(1) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(self.delay);
        self.requests.subtract(1);
        let mut fetched = self.fetched.lock().expect("the list");
        *fetched.entry(format!("{region:?}")).or_default() += 1;
        let count = fetched.values().sum::<usize>();
        if self.fails_at == Some(count) || gone {
            self.failed.fetch_add(1, Ordering::SeqCst);
            let (chunk, region) = ("far/away".to_owned(), format!("{region:?}"));
            return Err(Error::Chunk { chunk, region, cause: "the server is gone".into() });
        }
        if let Some((_, stop)) = self.stops_at.as_ref().filter(|(at, _)| *at == count) {
            stop.stop();
        }
        drop(fetched);
        self.bytes.add(self.packed);
        Ok(Fetched::Packed(vec![0; self.packed]))
    }
    fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        assert_eq!(fetched.len(), self.packed);
        self.volume.decode(region, Fetched::Later, scratch)?;
        drop(fetched);
        self.bytes.subtract(self.packed);
        self.decoded.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

fn spec() -> DemoSpec {
    DemoSpec::new(&[64, 64], &[8, 8], DType::U16).pattern(Pattern::Noise)
}

fn all() -> Bbox {
    Bbox::whole(&[64, 64])
}

const CHUNKS: usize = 64;

#[test]
fn concurrent_requests_reach_but_never_exceed_the_limit() {
    let place = Place::new();
    let volume = place.volume(&spec());
    for requests in [1, 5, 16] {
        let mut remote = Remote::new(&*volume, Duration::from_millis(10), 100);
        remote.together = requests;
        let options = place.options().requests(requests).workers(Workers::Threads(2)).replace(true);
        let done = place.download(&remote, &all(), &options).expect("a download");
        assert_eq!((done.painted, done.fetched), (CHUNKS, 100 * CHUNKS as u64));
        assert_eq!(remote.requests.most(), requests, "the limit is reached and not exceeded");
        assert!(remote.fetched().values().all(|count| *count == 1));
        let array = done.open::<u16, IxDyn>().expect("the array");
        assert!(array.read().expect("a guard").view() == spec().expected::<u16>(&all()).expect("all of it"));
        assert!(done.spent.fetching >= Duration::from_millis(10) * 64, "{:?}", done.spent);
    }
}

#[test]
fn bytes_in_flight_are_bounded_but_one_chunk_fits() {
    let place = Place::new();
    let volume = place.volume(&spec());
    // The limit, and the most bytes that may be in flight: a chunk that is being decoded counts until it is painted.
    for (limit, most) in [(2000, 2000), (1000, 1000), (1, 1000)] {
        let remote = Remote::new(&*volume, Duration::from_millis(1), 1000);
        let options = place.options().requests(16).in_flight(limit).workers(Workers::Threads(2)).replace(true);
        place.download(&remote, &all(), &options).expect("a download");
        // The first fetches reserve the size of an unpacked chunk, since nothing better is known. They may arrive when
        // the rest is full.
        let guesses = (usize::try_from(limit).expect("small") / 128).min(16);
        assert!(remote.bytes.most() <= most + guesses * (1000 - 128), "{} of {limit}", remote.bytes.most());
    }
}

#[test]
fn slow_decoder_bounds_the_fetched_chunks() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let remote = Remote::new(&*volume, Duration::ZERO, 128);
    let options = place.options().requests(8).in_flight(4 * 128).workers(Workers::Threads(1));
    place.download(&remote, &all(), &options).expect("a download");
    assert!(remote.bytes.most() <= 4 * 128, "{} bytes", remote.bytes.most());
}

#[test]
fn failed_request_ends_download_and_keeps_fetched_chunks() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let mut remote = Remote::new(&*volume, Duration::from_millis(3), 10);
    remote.fails_at = Some(30);
    let options = place.options().requests(4).workers(Workers::Threads(2)).keep_partial(true);
    let error = place.download(&remote, &all(), &options).expect_err("the server is gone");
    assert!(matches!(&error, Error::Chunk { chunk, .. } if chunk == "far/away"), "{error}");
    let first = remote.fetched();
    // Failed chunks are not painted. All other fetched chunks are, also those that arrive after the failure.
    let failed = remote.failed.load(Ordering::SeqCst);
    assert!((1..=4).contains(&failed), "each fetching thread fails once at most: {failed}");
    let painted = first.values().sum::<usize>() - failed;
    assert!((29..=32).contains(&painted), "{painted}");
    assert_eq!(remote.decoded.load(Ordering::SeqCst), painted);

    let again = Remote::new(&*volume, Duration::ZERO, 10);
    let done = place.download(&again, &all(), &place.options()).expect("the rest");
    assert_eq!((done.resumed, done.painted), (painted, CHUNKS - painted));
    assert_eq!(again.fetched().len(), CHUNKS - painted, "only the missing chunks");
    assert_eq!(
        again.fetched().keys().filter(|region| first.contains_key(*region)).count(),
        failed,
        "only failed chunks are fetched twice"
    );
}

#[test]
fn download_stops_within_one_request() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let stop = StopFlag::new();
    let mut remote = Remote::new(&*volume, Duration::ZERO, 10);
    remote.stops_at = Some((8, stop.clone()));
    let options = place.options().requests(4).stop(&stop).keep_partial(true);
    let error = place.download(&remote, &all(), &options).expect_err("it was stopped");
    let Error::Interrupted { done, total: CHUNKS } = error else { panic!("{error}") };
    assert_eq!(done, remote.fetched().len(), "fetched chunks are painted");
    assert!((8..=11).contains(&done), "the other requests may finish: {done}");
    assert_eq!(place.left(), [EntryKind::Ledger, EntryKind::Partial]);
}

/// A volume that panics while it decodes.
#[derive(Debug)]
struct Panicking<'a>(Remote<'a>);

impl ChunkSource for Panicking<'_> {
    fn meta(&self) -> &VolumeMeta {
        self.0.meta()
    }
    fn identity(&self) -> String {
        self.0.identity()
    }
    fn is_remote(&self) -> bool {
        true
    }
    fn fetch(&self, region: &[Range<i64>]) -> Result<Fetched> {
        self.0.fetch(region)
    }
    fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        assert!(self.0.decoded.load(Ordering::SeqCst) < 5, "on purpose");
        self.0.decode(region, fetched, scratch)
    }
}

#[test]
fn panicking_decoders_also_end_the_fetchers() {
    for workers in [1, 3] {
        let place = Place::new();
        let volume = place.volume(&spec());
        let source = Panicking(Remote::new(&*volume, Duration::ZERO, 1000));
        // Fetchers wait for space in the budget, which only decoders free.
        let options = place.options().requests(8).in_flight(4000).workers(Workers::Threads(workers));
        let error = place.download(&source, &all(), &options).expect_err("no thread decodes");
        assert!(matches!(&error, Error::Painting { report, .. } if report.contains("on purpose")), "{error}");
        assert!(source.0.fetched().len() < CHUNKS);
        assert_eq!(place.left(), []);
    }
}
