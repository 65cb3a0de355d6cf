//! Reads into private memory: which threads work, straight decoding, several regions, errors, and what ends a read.
//!
//! That reads give the elements of every format is tested beside downloads, by `Place::check`, and against peers by the
//! tests of oracles.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ndarray::{Array2, Array3, Ix1, Ix2, Ix3, IxDyn};
use ndarray_shm::backend::interruptible;
use ndarray_shm::{DType, Order};
use ndarray_shm_volume::demo::{Codec, DemoSpec, Format};
use ndarray_shm_volume::{
    Bbox, ChunkSource, Encoding, Error, Fetched, FillValue, Missing, NewVolume, Placed, ReadOptions, RegionMemory,
    Result, Scratch, StopFlag, UploadOptions, VolumeFormat, VolumeMeta, VolumeUrl, create_volume, end_read_threads,
    open_volume, read, read_into, read_many, upload_from_array,
};

use crate::place::{Place, check_reads, corrupt};

fn spec() -> DemoSpec {
    DemoSpec::new(&[40, 30], &[16, 16], DType::U16).complete(true)
}

fn region() -> Bbox {
    "1:40,0:29".parse().expect("a region")
}

/// A volume that notes which threads decode, and how many chunks were decoded straight into their place.
#[derive(Debug)]
struct Watched<'a> {
    volume: &'a dyn ChunkSource,
    is_remote: bool,
    /// How many fetches of a remote volume must be under way before one is answered.
    together: usize,
    /// The fetch that fails, with the flag that it raises before.
    fails_at: Option<(usize, StopFlag)>,
    under_way: AtomicUsize,
    most: AtomicUsize,
    fetched: AtomicUsize,
    threads: Mutex<BTreeSet<String>>,
    straight: AtomicUsize,
}

impl<'a> Watched<'a> {
    fn new(volume: &'a dyn ChunkSource) -> Self {
        Self {
            volume,
            is_remote: false,
            together: 1,
            fails_at: None,
            under_way: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            fetched: AtomicUsize::new(0),
            threads: Mutex::default(),
            straight: AtomicUsize::new(0),
        }
    }

    fn threads(&self) -> Vec<String> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl ChunkSource for Watched<'_> {
    fn meta(&self) -> &VolumeMeta {
        self.volume.meta()
    }
    fn identity(&self) -> String {
        self.volume.identity()
    }
    fn is_remote(&self) -> bool {
        self.is_remote
    }
    fn order(&self) -> Order {
        self.volume.order()
    }
    fn fetch(&self, region: &[Range<i64>]) -> Result<Fetched> {
        let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        let begin = Instant::now();
        while self.most.load(Ordering::SeqCst) < self.together && begin.elapsed() < Duration::from_mins(1) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let number = self.fetched.fetch_add(1, Ordering::SeqCst) + 1;
        let fetched = match &self.fails_at {
            Some((at, flag)) if number >= *at => {
                flag.stop();
                Err(Error::Store { op: "reading", object: "far/away".to_owned(), cause: "the server is gone".into() })
            }
            _ => self.volume.fetch(region),
        };
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        fetched
    }
    fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        let name = std::thread::current().name().unwrap_or("none").to_owned();
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
        self.volume.decode(region, fetched, scratch)
    }
    fn decode_into(&self, region: &[Range<i64>], fetched: Fetched, memory: &mut RegionMemory<'_>) -> Result<Placed> {
        if self.is_remote && matches!(fetched, Fetched::Later) {
            return Ok(Placed::Declined(fetched)); // `fetch` notes it
        }
        let placed = self.volume.decode_into(region, fetched, memory)?;
        self.straight.fetch_add(usize::from(matches!(placed, Placed::Filled { .. })), Ordering::SeqCst);
        Ok(placed)
    }
}

/// Returns the kind of an error of the array.
fn kind(error: &Error) -> &ndarray_shm::ErrorKind {
    let Error::Array(ndarray_shm::Error { kind, .. }) = error else { panic!("{error}") };
    kind
}

#[test]
fn region_in_one_chunk_is_read_by_the_calling_thread() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let watched = Watched::new(&*volume);
    let own = std::thread::current().name().expect("tests have names").to_owned();
    for text in ["3:7,5:9", "16:30,0:16", "39:40,29:30"] {
        let bbox = volume.meta().parse_bbox(text).expect("a region");
        let found = read::<u16, Ix2>(&watched, &bbox, &ReadOptions::new().threads(8)).expect("a read");
        assert_eq!(found.into_dyn(), spec().expected::<u16>(&bbox).expect("a region"));
    }
    assert_eq!(watched.threads(), [own]);
}

#[test]
fn helpers_of_the_process_read_beside_the_caller() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let expected = spec().expected::<u16>(&region()).expect("the region");
    let mut remote = Watched::new(&*volume);
    (remote.is_remote, remote.together) = (true, 5);
    let options = ReadOptions::new().requests(5);
    let found = read::<u16, IxDyn>(&remote, &region(), &options).expect("a read");
    assert!(found == expected);
    assert_eq!(remote.most.load(Ordering::SeqCst), 5, "the limit is reached and not exceeded");
    let is_known = |name: &String| name.starts_with("ndshm-read-") || name.contains("helpers_of_the_process");
    assert!(remote.threads().iter().all(is_known), "{:?}", remote.threads());
    // Also after their end, and for many callers at once.
    end_read_threads();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    assert!(read::<u16, IxDyn>(&*volume, &region(), &ReadOptions::new()).expect("a read") == expected);
                    end_read_threads();
                }
            });
        }
    });
}

#[test]
fn chunk_with_a_contiguous_place_is_decoded_straight_into_it() {
    let place = Place::new();
    for (codec, is_straight) in
        [(Codec::Uncompressed, true), (Codec::Zstd, true), (Codec::Gzip, true), (Codec::Blosc, false)]
    {
        for (f_order, big_endian) in [(false, false), (true, true)] {
            let spec = DemoSpec::new(&[32, 16, 20], &[8, 16, 10], DType::U32)
                .codec(codec)
                .f_order(f_order)
                .big_endian(big_endian)
                .format(if f_order { Format::ZarrV2 } else { Format::ZarrV3 })
                .complete(true);
            let directory = place.path(&format!("{codec:?}-{f_order}"));
            ndarray_shm_volume::demo::write_volume(&directory, &spec).expect("a volume");
            let volume = open_volume(&directory).expect("the volume");
            let straight = |text: &str, options: &ReadOptions| {
                let watched = Watched::new(&*volume);
                let bbox = volume.meta().parse_bbox(text).expect("a region");
                let found = read::<u32, IxDyn>(&watched, &bbox, options).expect("a read");
                assert!(found == spec.expected::<u32>(&bbox).expect("a region"), "{spec:?}, {text}, {options:?}");
                watched.straight.into_inner()
            };
            let (own, plain) = (ReadOptions::new(), codec == Codec::Uncompressed);
            assert_eq!(straight("8:16,:,10:20", &own), usize::from(is_straight), "{spec:?}: a whole chunk");
            let turned = own.clone().order(if f_order { Order::C } else { Order::F });
            assert_eq!(straight("8:16,:,10:20", &turned), 0, "{spec:?}: it has to be turned");
            assert_eq!(straight("8:16,:,:", &own.clone().threads(2)), if f_order && is_straight { 2 } else { 0 });
            assert_eq!(straight("9:16,:,10:20", &own), 0, "{spec:?}: more than half of a chunk");
            // A contiguous part of plainly stored elements.
            let part = if f_order { "8:16,:,12:13" } else { "9:11,:,10:20" };
            assert_eq!(straight(part, &own), usize::from(plain), "{spec:?}: a slab");
        }
    }
}

#[test]
fn precomputed_chunks_are_read_in_their_own_order() {
    let place = Place::new();
    for encoding in [Encoding::Raw, Encoding::Gzip] {
        let mut new = NewVolume::new(VolumeFormat::Precomputed, &[20, 12, 10, 1], &[10, 8, 5, 1], DType::U16);
        (new.origin, new.encoding) = (vec![100, -4, 7, 0], encoding);
        let directory = place.path(&format!("{encoding:?}"));
        let sink = create_volume(VolumeUrl::local(&directory), &new).expect("a volume");
        let domain = sink.meta().domain();
        let value = |at: IxDyn| u16::try_from(at[0] * 600 + at[1] * 50 + at[2] * 5 + 1).expect("small");
        let elements = ndarray::ArrayD::from_shape_fn(IxDyn(&domain.shape()), value);
        upload_from_array(&*sink, &domain, &elements.view(), &UploadOptions::new()).expect("an upload");

        let volume = open_volume(&directory).expect("the volume");
        assert_eq!(volume.order(), Order::F);
        for text in ["100:110,-4:4,7:12,0:1", "110:120,4:8,12:17,:", ":,:,:,:", "103:111,-1:5,8:9,:"] {
            let bbox = volume.meta().parse_bbox(text).expect("a region");
            let ranges: Vec<_> =
                bbox.ranges().iter().zip(domain.ranges()).map(|(a, b)| a.start - b.start..a.end - b.start).collect();
            let part = elements.slice_each_axis(|axis| {
                let range = &ranges[axis.axis.index()];
                let at = |at: i64| isize::try_from(at).expect("small");
                (at(range.start)..at(range.end)).into()
            });
            check_reads(&*volume, &bbox, &part.to_owned());
            let watched = Watched::new(&*volume);
            let found = read::<u16, IxDyn>(&watched, &bbox, &ReadOptions::new()).expect("a read");
            assert!(found.t().is_standard_layout(), "in F order");
            let is_one_chunk = volume.meta().chunks(&bbox).total() == 1;
            assert_eq!(watched.straight.into_inner(), usize::from(is_one_chunk && !text.starts_with("103")), "{text}");
        }
    }
}

#[test]
fn several_regions_are_read_at_once() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let texts = ["0:40,0:30", "3:4,5:6", "10:20,10:20", "10:20,10:20"];
    let regions: Vec<Bbox> = texts.iter().map(|text| volume.meta().parse_bbox(text).expect("a region")).collect();
    let arrays = read_many::<u16, Ix2>(&*volume, &regions, &ReadOptions::new()).expect("reads");
    assert_eq!(arrays.len(), 4);
    for (array, bbox) in arrays.into_iter().zip(&regions) {
        assert_eq!(array.into_dyn(), spec().expected::<u16>(bbox).expect("a region"));
    }
    assert!(read_many::<u16, Ix2>(&*volume, &[], &ReadOptions::new()).expect("nothing to read").is_empty());
    let outside = [region(), "0:41,0:1".parse().expect("a box")];
    let error = read_many::<u16, Ix2>(&*volume, &outside, &ReadOptions::new()).expect_err("outside");
    assert!(matches!(error, Error::Bbox { .. }), "{error}");
}

#[test]
fn points_and_volumes_without_axes_are_read() {
    let place = Place::new();
    let volume = place.volume(&DemoSpec::new(&[], &[], DType::F64).complete(true));
    let bbox = Bbox::whole(&[]);
    let found = read::<f64, IxDyn>(&*volume, &bbox, &ReadOptions::new()).expect("a read");
    assert_eq!(found, DemoSpec::new(&[], &[], DType::F64).expected::<f64>(&bbox).expect("a point"));
}

#[test]
fn missing_chunks_are_filled_or_errors() {
    let place = Place::new();
    let volume = place.volume(&DemoSpec::new(&[10, 10], &[5, 5], DType::I16).complete(true));
    std::fs::remove_file(place.path("volume/c/1/0")).expect("a chunk to remove");
    let bbox: Bbox = "4:10,0:5".parse().expect("a region");
    let found = |options: &ReadOptions| read::<i16, Ix2>(&*volume, &bbox, options).map(|array| array[[1, 0]]);
    assert_eq!(found(&ReadOptions::new()).expect("the volume has a fill value"), 7);
    let chosen = FillValue::of(-3_i16);
    assert_eq!(found(&ReadOptions::new().missing(Missing::FillWith(chosen))).expect("the caller's value"), -3);
    let error = found(&ReadOptions::new().missing(Missing::Error)).expect_err("it is not stored");
    assert!(matches!(&error, Error::Missing { region, .. } if region == "5:10,0:5"), "{error}");
    let whole: Bbox = "5:10,0:5".parse().expect("a region");
    let array = read::<i16, Ix2>(&*volume, &whole, &ReadOptions::new()).expect("one whole chunk");
    assert!(array.iter().all(|element| *element == 7));
}

#[test]
fn wrong_calls_have_the_errors_of_downloads() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let options = ReadOptions::new();
    let error = read::<i16, Ix2>(&*volume, &region(), &options).expect_err("another type");
    assert!(matches!(kind(&error), ndarray_shm::ErrorKind::DTypeMismatch { .. }), "{error}");
    let error = read::<u16, Ix1>(&*volume, &region(), &options).expect_err("other axes");
    assert!(matches!(kind(&error), ndarray_shm::ErrorKind::ShapeMismatch { .. }), "{error}");
    let mut memory = Array2::<u16>::from_elem((39, 28), 7);
    let error = read_into(&*volume, &region(), memory.view_mut().into_dyn(), &options).expect_err("another shape");
    assert!(matches!(kind(&error), ndarray_shm::ErrorKind::ShapeMismatch { .. }), "{error}");
    assert!(memory.iter().all(|element| *element == 7), "nothing was read");
    for text in ["0:41,0:30", "-1:4,0:30", "0:4,0:0", "0:4"] {
        let bbox = text.split(',').map(|axis| {
            let (start, end) = axis.split_once(':').expect("a range");
            start.parse().expect("a number")..end.parse().expect("a number")
        });
        let Ok(bbox) = Bbox::new(bbox.collect()) else { continue };
        let error = read::<u16, IxDyn>(&*volume, &bbox, &options).expect_err(text);
        assert!(matches!(error, Error::Bbox { .. }), "{error}");
    }
    let other = ReadOptions::new().missing(Missing::FillWith(FillValue::of(1_u8)));
    let error = read::<u16, Ix2>(&*volume, &region(), &other).expect_err("another type of element");
    assert!(matches!(error, Error::FillValue { .. }), "{error}");
}

#[test]
fn memory_that_no_machine_has_is_an_error() {
    #[derive(Debug)]
    struct Huge(VolumeMeta);
    impl ChunkSource for Huge {
        fn meta(&self) -> &VolumeMeta {
            &self.0
        }
        fn identity(&self) -> String {
            "huge".to_owned()
        }
        fn decode(&self, _: &[Range<i64>], _: Fetched, _: &mut Scratch) -> Result<()> {
            unreachable!("there is no memory for it")
        }
    }
    let length = 1 << 40;
    let meta = VolumeMeta::new(&[length, length], &[length, length], DType::U64);
    let huge = Huge(meta);
    for lengths in [[length, length], [1 << 20, length]] {
        let bbox = Bbox::whole(&lengths);
        let error = read::<u64, Ix2>(&huge, &bbox, &ReadOptions::new()).expect_err("too large");
        assert!(matches!(kind(&error), ndarray_shm::ErrorKind::TooLarge { .. }), "{error}");
    }
}

#[test]
fn damaged_chunk_is_an_error_that_names_it() {
    let place = Place::new();
    for codec in [Codec::Zstd, Codec::Gzip, Codec::Uncompressed] {
        let directory = place.path(&format!("{codec:?}"));
        ndarray_shm_volume::demo::write_volume(&directory, &spec().codec(codec)).expect("a volume");
        let volume = open_volume(&directory).expect("the volume");
        let file = directory.join("c/1/1");
        if codec == Codec::Uncompressed {
            std::fs::write(&file, [1, 2, 3]).expect("a chunk that is too short");
        } else {
            corrupt(&file);
        }
        for bbox in [region(), "16:32,16:30".parse().expect("a chunk"), "16:18,16:18".parse().expect("a part")] {
            for options in [ReadOptions::new().threads(1), ReadOptions::new().threads(4)] {
                let error = read::<u16, Ix2>(&*volume, &bbox, &options).expect_err("a damaged chunk");
                let Error::Chunk { chunk, .. } = &error else { panic!("{error}") };
                assert!(chunk.replace('\\', "/").ends_with("c/1/1"), "{chunk}");
            }
        }
    }
}

#[test]
fn panic_of_a_codec_is_an_error() {
    #[derive(Debug)]
    struct Panicking(VolumeMeta);
    impl ChunkSource for Panicking {
        fn meta(&self) -> &VolumeMeta {
            &self.0
        }
        fn identity(&self) -> String {
            "panicking".to_owned()
        }
        fn decode(&self, _: &[Range<i64>], _: Fetched, _: &mut Scratch) -> Result<()> {
            panic!("on purpose")
        }
    }
    let volume = Panicking(VolumeMeta::new(&[8, 8], &[4, 4], DType::U8));
    for text in ["0:1,0:1", "0:8,0:8"] {
        let bbox = text.parse().expect("a region");
        let error = read::<u8, Ix2>(&volume, &bbox, &ReadOptions::new().threads(4)).expect_err("a panic");
        let Error::Painting { report, .. } = &error else { panic!("{error}") };
        assert!(report.contains("on purpose"), "{report}");
    }
}

#[test]
fn raised_flag_and_interrupting_callback_end_a_read() {
    // A slow volume: the callback is asked about ten times a second.
    #[derive(Debug)]
    struct Slow<'a>(&'a dyn ChunkSource, AtomicUsize);
    impl ChunkSource for Slow<'_> {
        fn meta(&self) -> &VolumeMeta {
            self.0.meta()
        }
        fn identity(&self) -> String {
            self.0.identity()
        }
        fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
            self.1.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(120));
            self.0.decode(region, fetched, scratch)
        }
    }
    let place = Place::new();
    let volume = place.volume(&spec());
    let stop = StopFlag::new();
    stop.stop();
    let error = read::<u16, Ix2>(&*volume, &region(), &ReadOptions::new().stop(&stop)).expect_err("stopped");
    assert!(matches!(error, Error::Interrupted { done: 0, total: 6 }), "{error}");
    for threads in [1, 3] {
        let slow = Slow(&*volume, AtomicUsize::new(0));
        let options = ReadOptions::new().threads(threads);
        let error = interruptible(|| false, || read::<u16, Ix2>(&slow, &region(), &options)).expect_err("interrupted");
        assert!(matches!(error, Error::Interrupted { total: 6, .. }), "{error}");
        assert!(slow.1.into_inner() <= 2 * threads, "each thread ends its chunk");
        interruptible(|| true, || read::<u16, Ix2>(&*volume, &region(), &options)).expect("it goes on");
    }
}

#[test]
fn stopped_read_does_not_report_the_silent_server() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let (stop, other) = (StopFlag::new(), StopFlag::new());
    for (flag, is_stopped) in [(&stop, true), (&other, false)] {
        let mut remote = Watched::new(&*volume);
        (remote.is_remote, remote.fails_at) = (true, Some((3, flag.clone())));
        let options = ReadOptions::new().requests(4).stop(&stop);
        let options = if is_stopped { options } else { options.stop(&StopFlag::new()) };
        let error = read::<u16, Ix2>(&remote, &region(), &options).expect_err("the server is gone");
        match error {
            Error::Interrupted { total: 6, .. } if is_stopped => {}
            Error::Store { object, .. } if !is_stopped => assert_eq!(object, "far/away"),
            error => panic!("{error}"),
        }
    }
}

#[test]
fn slots_of_a_batch_are_read_by_several_threads() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let mut batch = Array3::<u16>::zeros((8, 10, 10));
    let crop = |number: usize| -> Bbox {
        volume.meta().parse_bbox(&format!("{0}:{1},{0}:{1}", number, number + 10)).expect("a region")
    };
    std::thread::scope(|scope| {
        for (number, slot) in batch.outer_iter_mut().enumerate() {
            let volume = &*volume;
            scope
                .spawn(move || read_into(volume, &crop(number), slot.into_dyn(), &ReadOptions::new()).expect("a read"));
        }
    });
    for (number, slot) in batch.outer_iter().enumerate() {
        let expected = spec().expected::<u16>(&crop(number)).expect("a region");
        assert_eq!(slot.into_dimensionality::<Ix2>().expect("a slot").into_dyn(), expected);
    }
    assert!(read::<u16, Ix3>(&*volume, &region(), &ReadOptions::new()).is_err());
}
