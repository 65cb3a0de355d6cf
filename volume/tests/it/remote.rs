//! Volumes behind a network, as the pipeline sees them: many fetches at a time, bounded bytes, errors and wishes to stop.

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

/// A volume with chunks that take a while to arrive. It records the requests.
#[derive(Debug)]
struct Remote<'a> {
    volume: &'a dyn ChunkSource,
    delay: Duration,
    /// Bytes that each fetch brings.
    packed: usize,
    /// With this one the server goes away: what is asked for afterwards fails too.
    fails_at: Option<usize>,
    failed: AtomicUsize,
    stops_at: Option<(usize, StopFlag)>,
    /// No answer comes before so many requests were under way at a time.
    together: usize,
    requests: Gauge,
    bytes: Gauge,
    fetched: Mutex<HashMap<String, usize>>,
    decoded: AtomicUsize,
}

/// How many there are now, and how many there were at most.
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

    /// How often each region was fetched.
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
fn as_many_requests_as_are_allowed_are_under_way_at_a_time() {
    let place = Place::new();
    let volume = place.volume(&spec());
    for requests in [1, 5, 16] {
        let mut remote = Remote::new(&*volume, Duration::from_millis(10), 100);
        remote.together = requests;
        let options = place.options().requests(requests).workers(Workers::Threads(2)).replace(true);
        let done = place.download(&remote, &all(), &options).expect("a download");
        assert_eq!((done.painted, done.fetched), (CHUNKS, 100 * CHUNKS as u64));
        assert_eq!(remote.requests.most(), requests, "no more, and at some time as many");
        assert!(remote.fetched().values().all(|count| *count == 1));
        let array = done.open::<u16, IxDyn>().expect("the array");
        assert!(array.read().expect("a guard").view() == spec().expected::<u16>(&all()).expect("all of it"));
        assert!(done.spent.fetching >= Duration::from_millis(10) * 64, "{:?}", done.spent);
    }
}

#[test]
fn bytes_on_their_way_are_bounded_and_one_chunk_always_fits() {
    let place = Place::new();
    let volume = place.volume(&spec());
    // The limit, and the most there may be: what is being decoded counts until it is painted.
    for (limit, most) in [(2000, 2000), (1000, 1000), (1, 1000)] {
        let remote = Remote::new(&*volume, Duration::from_millis(1), 1000);
        let options = place.options().requests(16).in_flight(limit).workers(Workers::Threads(2)).replace(true);
        place.download(&remote, &all(), &options).expect("a download");
        // The first fetches reserve a chunk's own bytes, since nothing better is known. All of them may come when the rest is full.
        let guesses = (usize::try_from(limit).expect("small") / 128).min(16);
        assert!(remote.bytes.most() <= most + guesses * (1000 - 128), "{} of {limit}", remote.bytes.most());
    }
}

#[test]
fn one_slow_decoder_does_not_let_the_fetched_pile_up() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let remote = Remote::new(&*volume, Duration::ZERO, 128);
    let options = place.options().requests(8).in_flight(4 * 128).workers(Workers::Threads(1));
    place.download(&remote, &all(), &options).expect("a download");
    assert!(remote.bytes.most() <= 4 * 128, "{} bytes", remote.bytes.most());
}

#[test]
fn a_request_that_fails_ends_the_download_and_what_was_fetched_is_kept_on_request() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let mut remote = Remote::new(&*volume, Duration::from_millis(3), 10);
    remote.fails_at = Some(30);
    let options = place.options().requests(4).workers(Workers::Threads(2)).keep_partial(true);
    let error = place.download(&remote, &all(), &options).expect_err("the server is gone");
    assert!(matches!(&error, Error::Chunk { chunk, .. } if chunk == "far/away"), "{error}");
    let first = remote.fetched();
    // What failed was not painted; all others that were fetched are, also those that came after the failure.
    let failed = remote.failed.load(Ordering::SeqCst);
    assert!((1..=4).contains(&failed), "each asks once at most: {failed}");
    let painted = first.values().sum::<usize>() - failed;
    assert!((29..=32).contains(&painted), "{painted}");
    assert_eq!(remote.decoded.load(Ordering::SeqCst), painted);

    let again = Remote::new(&*volume, Duration::ZERO, 10);
    let done = place.download(&again, &all(), &place.options()).expect("the rest");
    assert_eq!((done.resumed, done.painted), (painted, CHUNKS - painted));
    assert_eq!(again.fetched().len(), CHUNKS - painted, "only what was missing");
    assert_eq!(
        again.fetched().keys().filter(|region| first.contains_key(*region)).count(),
        failed,
        "only what failed twice"
    );
}

#[test]
fn a_download_is_stopped_within_one_request() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let stop = StopFlag::new();
    let mut remote = Remote::new(&*volume, Duration::ZERO, 10);
    remote.stops_at = Some((8, stop.clone()));
    let options = place.options().requests(4).stop(&stop).keep_partial(true);
    let error = place.download(&remote, &all(), &options).expect_err("it was stopped");
    let Error::Interrupted { done, total: CHUNKS } = error else { panic!("{error}") };
    assert_eq!(done, remote.fetched().len(), "what was fetched is painted");
    assert!((8..=11).contains(&done), "each of the other requests at most: {done}");
    assert_eq!(place.left(), [EntryKind::Ledger, EntryKind::Partial]);
}

/// Panics while it decodes.
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
fn decoders_that_panic_end_the_fetchers_too() {
    for workers in [1, 3] {
        let place = Place::new();
        let volume = place.volume(&spec());
        let source = Panicking(Remote::new(&*volume, Duration::ZERO, 1000));
        // Fetchers wait for room: without decoders they never get more of it.
        let options = place.options().requests(8).in_flight(4000).workers(Workers::Threads(workers));
        let error = place.download(&source, &all(), &options).expect_err("no thread decodes");
        assert!(matches!(&error, Error::Painting { report, .. } if report.contains("on purpose")), "{error}");
        assert!(source.0.fetched().len() < CHUNKS);
        assert_eq!(place.left(), []);
    }
}
