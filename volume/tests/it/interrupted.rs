//! Downloads that are stopped, fail or run concurrently: what they leave, and how they resume.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ndarray::{Ix2, IxDyn};
use ndarray_shm::backend::EntryKind;
use ndarray_shm::{DType, Order, render};
use ndarray_shm_volume::demo::{self, DemoSpec};
use ndarray_shm_volume::{
    Bbox, ChunkSource, DownloadOptions, Downloaded, Error, Fetched, Result, Scratch, StopFlag, VolumeMeta, VolumeUrl,
    Workers, open_volume,
};

use crate::place::{Place, corrupt};

const PARTIAL: [EntryKind; 2] = [EntryKind::Ledger, EntryKind::Partial];

/// A volume that stops the download at the given number of decoded chunks.
#[derive(Debug)]
struct Stopping<'a> {
    volume: &'a dyn ChunkSource,
    stop: StopFlag,
    left: AtomicUsize,
}

impl<'a> Stopping<'a> {
    fn after(chunks: usize, volume: &'a dyn ChunkSource) -> Self {
        Self { volume, stop: StopFlag::new(), left: AtomicUsize::new(chunks) }
    }
}

impl ChunkSource for Stopping<'_> {
    fn meta(&self) -> &VolumeMeta {
        self.volume.meta()
    }
    fn identity(&self) -> String {
        self.volume.identity()
    }
    fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.stop.stop();
        }
        self.volume.decode(region, fetched, scratch)
    }
}

fn spec() -> DemoSpec {
    DemoSpec::new(&[40, 40], &[8, 8], DType::U16)
}

fn all() -> Bbox {
    Bbox::whole(&[40, 40])
}

/// Paints `chunks` of the 25 chunks of the volume and is stopped.
fn begin(place: &Place, volume: &dyn ChunkSource, chunks: usize, order: Order, keep: bool) {
    let source = Stopping::after(chunks, volume);
    let options = place.options().stop(&source.stop).keep_partial(keep).order(order).workers(Workers::Threads(1));
    let error = place.download(&source, &all(), &options).expect_err("it was stopped");
    let Error::Interrupted { done, total: 25 } = error else { panic!("{error}") };
    assert_eq!(done, chunks);
}

fn check(place: &Place, done: &Downloaded) {
    let array = done.open::<u16, Ix2>().expect("the array");
    let expected = spec().expected::<u16>(&all()).expect("all of it");
    assert_eq!(array.read().expect("a guard").view().into_dyn(), expected);
    assert_eq!(place.left(), [EntryKind::Array]);
}

#[test]
fn a_stopped_download_leaves_nothing() {
    let place = Place::new();
    let volume = place.volume(&spec());
    begin(&place, &*volume, 9, Order::C, false);
    assert_eq!(place.left(), []);
    let stop = StopFlag::new();
    stop.stop();
    let error = place.download(&*volume, &all(), &place.options().stop(&stop)).expect_err("stopped from the start");
    assert!(matches!(error, Error::Interrupted { done: 0, total: 25 }), "{error}");
    assert_eq!(place.left(), []);
}

#[test]
fn kept_chunks_are_resumed_and_only_the_rest_painted() {
    let places = || Place::of_each_kind().into_iter();
    for (place, order) in places().map(|place| (place, Order::C)).chain(places().map(|place| (place, Order::F))) {
        let volume = place.volume(&spec());
        begin(&place, &*volume, 9, order, true);
        assert_eq!(place.left(), PARTIAL);
        let ledger = render::ledger(&place.backend, &place.location).expect("the ledger");
        assert_eq!((ledger.done, ledger.total, ledger.order), (9, 25, order));
        assert!(ledger.fingerprint.starts_with("bbox=0:40,0:40 "), "{}", ledger.fingerprint);

        begin_again(&place, &*volume, order);
        let done = place.download(&*volume, &all(), &place.options().order(order)).expect("the rest");
        assert_eq!((done.resumed, done.painted, done.chunks), (13, 12, 25));
        check(&place, &done);
    }
}

/// Resumes for four chunks and is stopped again.
fn begin_again(place: &Place, volume: &dyn ChunkSource, order: Order) {
    let source = Stopping::after(4, volume);
    let options = place.options().stop(&source.stop).keep_partial(true).order(order).workers(Workers::Threads(1));
    let error = place.download(&source, &all(), &options).expect_err("it was stopped");
    assert!(matches!(error, Error::Interrupted { done: 13, total: 25 }), "{error}");
}

#[test]
fn painted_download_without_its_name_is_finished() {
    let place = Place::new();
    let volume = place.volume(&spec());
    begin(&place, &*volume, 24, Order::C, true);
    // A worker paints the last chunk; workers do not give the array its name.
    let painted =
        ndarray_shm_volume::paint_as_worker(&*volume, place.backend.clone(), &place.location, &StopFlag::new());
    assert_eq!(painted.expect("one chunk"), 1);
    assert_eq!(place.left(), PARTIAL);
    let done = place.download(&*volume, &all(), &place.options()).expect("its name");
    assert_eq!((done.resumed, done.painted), (25, 0));
    check(&place, &done);
}

#[test]
fn different_work_under_the_same_name_is_a_mismatch() {
    let place = Place::new();
    let volume = place.volume(&spec());
    begin(&place, &*volume, 3, Order::C, true);
    let refused = |source: &dyn ChunkSource, bbox: &str, options: &DownloadOptions<'_>| {
        let error = place.download(source, &bbox.parse().expect("a region"), options).expect_err("another work");
        assert!(
            matches!(error, Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::Mismatch { .. }, .. })),
            "{error}"
        );
    };
    refused(&*volume, "0:40,0:39", &place.options());
    refused(&*volume, "0:40,0:40", &place.options().order(Order::F));

    let other = place.path("other");
    demo::write_volume(&other, &spec()).expect("an equal volume elsewhere");
    let other = open_volume(VolumeUrl::local(&other)).expect("the other volume");
    refused(&*other, "0:40,0:40", &place.options());

    // A new volume with the same path, shape and type.
    std::fs::remove_dir_all(place.path("volume")).expect("the volume");
    let anew = place.volume(&spec());
    assert_ne!(anew.identity(), volume.identity());
    refused(&*anew, "0:40,0:40", &place.options());
    let error = ndarray_shm_volume::paint_as_worker(&*anew, place.backend.clone(), &place.location, &StopFlag::new());
    assert!(matches!(
        error,
        Err(Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::Mismatch { .. }, .. }))
    ));

    assert_eq!(place.left(), PARTIAL);
    let done = place.download(&*volume, &all(), &place.options()).expect("the first work is resumed");
    assert_eq!((done.resumed, done.painted), (3, 22));
}

/// What a killed download left makes way, and a download that is running does not.
#[test]
fn abandoned_download_of_other_work_is_replaced() {
    let place = Place::new();
    let volume = place.volume(&spec());
    begin(&place, &*volume, 3, Order::C, true);
    let half: Bbox = "0:20,0:40".parse().expect("a region");
    let replace = || place.options().replace(true);
    let running = place.backend.clone();
    let held =
        ndarray_shm::render::RenderOptions::new().directory(running).open::<u16, Ix2>(&place.location).expect("it");
    let error = place.download(&*volume, &half, &replace()).expect_err("another download is attached");
    let Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::Mismatch { state, .. }, .. }) = error else {
        panic!("{error}")
    };
    assert_eq!(state, ndarray_shm::render::OtherWork::Attached);
    drop(held);
    let error = place.download(&*volume, &half, &place.options()).expect_err("another region");
    let Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::Mismatch { state, .. }, .. }) = error else {
        panic!("{error}")
    };
    assert_eq!(state, ndarray_shm::render::OtherWork::Idle);
    let done = place.download(&*volume, &half, &replace()).expect("the other region");
    assert_eq!((done.resumed, done.shape.as_slice()), (0, &[20, 40][..]));
    assert_eq!(place.left(), [EntryKind::Array]);
}

/// A volume with a note that fills the description.
#[derive(Debug)]
struct Noted<'a>(&'a dyn ChunkSource);

impl ChunkSource for Noted<'_> {
    fn meta(&self) -> &VolumeMeta {
        self.0.meta()
    }
    fn identity(&self) -> String {
        self.0.identity()
    }
    fn notes(&self) -> Vec<(&'static str, String)> {
        vec![("long", "x".repeat(3440))]
    }
    fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        self.0.decode(region, fetched, scratch)
    }
}

/// The note would fit alone, and not beside the others and the digest that the renderbuffer adds.
#[test]
fn note_without_room_is_left_out() {
    let place = Place::new();
    let volume = place.volume(&spec());
    place.download(&Noted(&*volume), &all(), &place.options()).expect("the array");
    if let Some(found) = place.backend.description(&place.location).expect("readable") {
        let keys: Vec<_> = found.notes().map(|(key, _)| key).collect();
        assert_eq!(keys[0], "work");
        assert!(keys.contains(&"bbox") && !keys.contains(&"long"), "{keys:?}");
    }
}

#[test]
fn worker_needs_an_unfinished_download() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let join = || {
        let backend = place.backend.clone();
        ndarray_shm_volume::paint_as_worker(&*volume, backend, &place.location, &StopFlag::new())
    };
    assert!(matches!(join(), Err(Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::NotFound, .. }))));
    place.download(&*volume, &all(), &place.options()).expect("a download");
    assert!(
        matches!(join(), Err(Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::NotFound, .. }))),
        "it is finished"
    );
}

#[test]
fn broken_chunk_keeps_painted_chunks_on_request() {
    let place = Place::new();
    let volume = place.volume(&spec().complete(true));
    let chunk = place.path("volume/c/4/4");
    let intact = std::fs::read(&chunk).expect("the chunk");
    corrupt(&chunk);
    let options = place.options().keep_partial(true).workers(Workers::Threads(1));
    let error = place.download(&*volume, &all(), &options).expect_err("a broken chunk");
    assert!(matches!(error, Error::Chunk { .. }), "{error}");
    assert_eq!(place.left(), PARTIAL);

    std::fs::write(&chunk, intact).expect("the chunk");
    let done = place.download(&*volume, &all(), &place.options()).expect("the rest");
    assert_eq!((done.resumed, done.painted), (24, 1));
    let array = done.open::<u16, IxDyn>().expect("the array");
    let expected = spec().complete(true).expected::<u16>(&all()).expect("all of it");
    assert_eq!(array.read().expect("a guard").view(), expected);
}

/// A volume that counts the chunks decoded by each of two downloads. It decodes none before both downloads have begun.
#[derive(Debug)]
struct Shared<'a> {
    volume: &'a dyn ChunkSource,
    decoded: &'a [AtomicUsize; 2],
    number: usize,
}

impl ChunkSource for Shared<'_> {
    fn meta(&self) -> &VolumeMeta {
        self.volume.meta()
    }
    fn identity(&self) -> String {
        self.volume.identity()
    }
    fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        self.decoded[self.number].fetch_add(1, Ordering::SeqCst);
        let begin = Instant::now();
        while self.decoded.iter().any(|count| count.load(Ordering::SeqCst) == 0) {
            assert!(begin.elapsed() < Duration::from_mins(1), "the other download does not take part");
            std::thread::sleep(Duration::from_millis(1));
        }
        self.volume.decode(region, fetched, scratch)
    }
}

#[test]
fn concurrent_downloads_of_the_same_work_share_it() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let decoded = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let sources = [0, 1].map(|number| Shared { volume: &*volume, decoded: &decoded, number });
    let results: Vec<Result<Downloaded>> = std::thread::scope(|scope| {
        let downloads = sources.iter().map(|source| {
            let place = &place;
            scope.spawn(move || place.download(source, &all(), &place.options().workers(Workers::Threads(2))))
        });
        downloads.collect::<Vec<_>>().into_iter().map(|download| download.join().expect("no panic")).collect()
    });
    for result in results {
        check(&place, &result.expect("both get the array"));
    }
    assert_eq!(decoded.map(AtomicUsize::into_inner).iter().sum::<usize>(), 25, "no chunk was decoded twice");
}
