//! Volumes through a cache: each chunk is fetched once, what has changed is noticed, and a cache that cannot help is in
//! no way.
//!
//! That cached reads give the elements of every format is tested by `Place::check`, and versions by `versions`.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ndarray::{ArrayD, Ix2, IxDyn};
use ndarray_shm::DType;
use ndarray_shm::backend::interruptible;
use ndarray_shm::cache::{CacheOptions, ChunkCache, Lookup};
use ndarray_shm_volume::demo::DemoSpec;
use ndarray_shm_volume::{
    Bbox, CachedVolume, ChunkSource, Error, Fetched, FillValue, Missing, ObjectVersion, ReadOptions, Recheck, Result,
    Scratch, VolumeMeta, VolumeUrl, open_volume, read, read_many,
};

use crate::place::{Place, Settled};

/// 3 x 2 chunks, the last ones smaller.
fn spec() -> DemoSpec {
    DemoSpec::new(&[40, 30], &[16, 16], DType::U16).complete(true)
}

fn whole() -> Bbox {
    Bbox::whole(&[40, 30])
}

fn cache_in(place: &Place, bytes: u64) -> ChunkCache {
    CacheOptions::new().directory(place.backend.clone()).open_or_create("cache", bytes).expect("a cache")
}

fn elements(source: &dyn ChunkSource, bbox: &Bbox) -> ArrayD<u16> {
    read(source, bbox, &ReadOptions::new()).expect("a read")
}

fn fetched(volume: &CachedVolume<Settled<'_>>) -> [usize; 2] {
    let counters = [&volume.source().fetched, &volume.source().asked];
    counters.map(|counter| counter.swap(0, Ordering::Relaxed))
}

#[test]
fn each_chunk_is_fetched_once_and_checked_once_per_opening() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let cache = cache_in(&place, 1 << 20);
    let expected = spec().expected::<u16>(&whole()).expect("a region");
    let open = || CachedVolume::new(Settled::new(&*volume), &cache);
    let first = open();
    let parts: Vec<Bbox> = ["0:20,0:20", "15:40,10:30", "3:4,5:6"].map(|text| text.parse().expect("a region")).to_vec();
    let found = read_many::<u16, IxDyn>(&first, &parts, &ReadOptions::new()).expect("a read");
    for (bbox, found) in parts.iter().zip(found) {
        assert_eq!(found, spec().expected::<u16>(bbox).expect("a region"));
    }
    assert_eq!((elements(&first, &whole()), fetched(&first)), (expected.clone(), [6, 6]));
    // Another process would see the same.
    let second = open();
    assert_eq!((elements(&second, &whole()), fetched(&second)), (expected.clone(), [0, 6]));
    assert_eq!((elements(&second, &whole()), fetched(&second)), (expected.clone(), [0, 0]), "once per opening");
    assert_eq!((elements(&first, &whole()), fetched(&first)), (expected.clone(), [0, 0]));
    let always = open().recheck(Recheck::Always);
    for _ in 0..2 {
        assert_eq!((elements(&always, &whole()), fetched(&always)), (expected.clone(), [0, 6]));
    }
    let never = open().recheck(Recheck::Never);
    assert_eq!((elements(&never, &whole()), fetched(&never)), (expected, [0, 0]));
}

#[test]
fn changed_object_is_fetched_again_by_those_who_ask() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let (path, other) = (place.path("volume"), place.path("other"));
    ndarray_shm_volume::demo::write_volume(&other, &spec().pattern(ndarray_shm_volume::demo::Pattern::Noise))
        .expect("a volume");
    let cache = cache_in(&place, 1 << 20);
    let opened = || CachedVolume::new(Settled::new(&*volume), &cache);
    let (first, always, never) = (opened(), opened().recheck(Recheck::Always), opened().recheck(Recheck::Never));
    let old = elements(&first, &whole());
    std::fs::copy(other.join("c/1/0"), path.join("c/1/0")).expect("another chunk");
    for source in [first.source(), always.source(), never.source()] {
        source.version.store(1, Ordering::Relaxed);
    }
    let new = elements(&*volume, &whole());
    assert_ne!(new, old);
    assert_eq!(elements(&first, &whole()), old, "it was opened before");
    assert_eq!(elements(&never, &whole()), old);
    assert_eq!(elements(&always, &whole()), new);
    assert_eq!(fetched(&always), [6, 6], "all versions have changed");
    assert_eq!(elements(&first, &whole()), new, "a new chunk is used by all");
    let third = opened();
    third.source().version.store(1, Ordering::Relaxed);
    assert_eq!((elements(&third, &whole()), fetched(&third)), (new, [0, 6]));
    assert_eq!(cache.inspect().expect("a cache").stale, 6);
}

#[test]
fn missing_chunk_is_known_to_be_missing_until_it_is_stored() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let (chunk, kept) = (place.path("volume/c/1/0"), place.path("kept"));
    std::fs::rename(&chunk, &kept).expect("a chunk");
    let cache = cache_in(&place, 1 << 20);
    let open = || CachedVolume::new(Settled::new(&*volume), &cache);
    let fill = ReadOptions::new().missing(Missing::FillWith(FillValue::of(9_u16)));
    let (bbox, source) = ("16:32,0:16".parse::<Bbox>().expect("a region"), open());
    for _ in 0..2 {
        let found = read::<u16, Ix2>(&source, &bbox, &fill).expect("a read");
        assert!(found.iter().all(|element| *element == 9));
    }
    assert_eq!(fetched(&source), [1, 1], "it is known to be missing the second time");
    let refused = read::<u16, Ix2>(&source, &bbox, &ReadOptions::new().missing(Missing::Error));
    assert!(matches!(refused, Err(Error::Missing { .. })), "{refused:?}");
    std::fs::rename(&kept, &chunk).expect("a chunk");
    let source = open();
    source.source().version.store(1, Ordering::Relaxed);
    assert_eq!(elements(&source, &bbox), spec().expected::<u16>(&bbox).expect("a region"));
    assert_eq!(fetched(&source), [1, 2]);
}

#[test]
fn files_that_have_just_changed_are_read_and_not_kept() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let cache = cache_in(&place, 1 << 20);
    let source = CachedVolume::new(open_volume(VolumeUrl::local(place.path("volume"))).expect("a volume"), &cache);
    for _ in 0..2 {
        for text in ["0:40,0:30", "5:9,7:20"] {
            let bbox: Bbox = text.parse().expect("a region");
            assert_eq!(elements(&source, &bbox), spec().expected::<u16>(&bbox).expect("a region"));
        }
    }
    let found = cache.inspect().expect("a cache");
    assert_eq!((found.fills, found.hits), (0, 0), "unless this took 2 s: {found:?}");
    assert!(found.unversioned >= 14);
    assert_eq!(source.identity(), volume.identity());
}

/// A volume in memory, which has no identity for caches.
#[derive(Debug)]
struct Nameless(VolumeMeta);

impl ChunkSource for Nameless {
    fn meta(&self) -> &VolumeMeta {
        &self.0
    }
    fn identity(&self) -> String {
        "in memory".to_owned()
    }
    fn decode(&self, _: &[Range<i64>], _: Fetched, scratch: &mut Scratch) -> Result<()> {
        scratch.fill(&5_u16.to_ne_bytes());
        Ok(())
    }
}

#[test]
fn volume_without_identity_is_read_past_the_cache() {
    let place = Place::new();
    let cache = cache_in(&place, 1 << 20);
    let source = CachedVolume::new(Nameless(VolumeMeta::new(&[40, 30], &[16, 16], DType::U16)), &cache);
    assert!(elements(&source, &whole()).iter().all(|element| *element == 5));
    let found = cache.inspect().expect("a cache");
    assert_eq!((found.fills, found.hits, found.unversioned), (0, 0, 0));
}

#[test]
fn chunks_that_do_not_fit_are_read_past_the_cache() {
    let place = Place::new();
    let spec = DemoSpec::new(&[700, 700], &[600, 600], DType::U16).complete(true);
    let volume = place.volume(&spec);
    let cache = cache_in(&place, 1 << 20);
    let source = CachedVolume::new(Settled::new(&*volume), &cache);
    for text in ["0:700,0:700", "3:9,590:650", "600:700,600:700"] {
        let bbox: Bbox = text.parse().expect("a region");
        for _ in 0..2 {
            assert_eq!(elements(&source, &bbox), spec.expected::<u16>(&bbox).expect("a region"), "{text}");
        }
    }
    let found = cache.inspect().expect("a cache");
    assert!(found.too_long > 0 && found.fills == 3, "the chunks at the border fit: {found:?}");
}

#[test]
fn chunk_that_another_process_fills_for_too_long_is_read_past_the_cache() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let cache = cache_in(&place, 1 << 20);
    let source = CachedVolume::new(Settled::new(&*volume), &cache).patience(Duration::from_millis(1));
    let other = CachedVolume::new(Holding { source: Settled::new(&*volume), cache: &cache, inner: &source }, &cache);
    assert_eq!(elements(&other, &"0:3,0:3".parse().expect("a region")).len(), 9);
    assert_eq!(cache.inspect().expect("a cache").late, 1);
}

/// A volume that, while it fetches a chunk, lets another one read the same chunk.
#[derive(Debug)]
struct Holding<'a> {
    source: Settled<'a>,
    cache: &'a ChunkCache,
    inner: &'a CachedVolume<Settled<'a>>,
}

impl ChunkSource for Holding<'_> {
    fn meta(&self) -> &VolumeMeta {
        self.source.meta()
    }
    fn identity(&self) -> String {
        self.source.identity()
    }
    fn cache_identity(&self) -> Option<String> {
        self.source.cache_identity()
    }
    fn fetch_with_version(&self, region: &[Range<i64>]) -> Result<(Fetched, ObjectVersion)> {
        let bbox: Bbox = "1:3,0:3".parse().expect("a region");
        assert_eq!(elements(self.inner, &bbox), spec().expected::<u16>(&bbox).expect("a region"));
        assert_eq!(self.cache.inspect().expect("a cache").waits, 1);
        self.source.fetch_with_version(region)
    }
    fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        self.source.decode(region, fetched, scratch)
    }
}

#[test]
fn read_that_waits_for_another_process_can_be_interrupted() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let cache = cache_in(&place, 1 << 20);
    let source = CachedVolume::new(Settled::new(&*volume), &cache).patience(Duration::from_mins(1));
    // Claims the keys of all chunks, as a process that is stopped would.
    let claiming =
        CachedVolume::new(Claiming { source: Settled::new(&*volume), held: &cache, waiting: &source }, &cache);
    let begin = Instant::now();
    let _ = elements(&claiming, &"0:3,0:3".parse().expect("a region"));
    assert!(begin.elapsed() < Duration::from_secs(30));
}

/// A volume that, while it fetches a chunk, lets a read of all chunks be interrupted.
#[derive(Debug)]
struct Claiming<'a> {
    source: Settled<'a>,
    held: &'a ChunkCache,
    waiting: &'a CachedVolume<Settled<'a>>,
}

impl ChunkSource for Claiming<'_> {
    fn meta(&self) -> &VolumeMeta {
        self.source.meta()
    }
    fn identity(&self) -> String {
        self.source.identity()
    }
    fn cache_identity(&self) -> Option<String> {
        self.source.cache_identity()
    }
    fn fetch_with_version(&self, region: &[Range<i64>]) -> Result<(Fetched, ObjectVersion)> {
        let begin = Instant::now();
        for threads in [1, 4] {
            let options = ReadOptions::new().threads(threads);
            let soon = move || begin.elapsed() < Duration::from_millis(200);
            let read = interruptible(soon, || read::<u16, Ix2>(self.waiting, &whole(), &options));
            assert!(matches!(read, Err(Error::Interrupted { .. })), "{read:?}");
        }
        assert!(matches!(self.held.look(1, 10, 0, Duration::ZERO), Ok(Lookup::Claimed(_))), "the cache works");
        self.source.fetch_with_version(region)
    }
    fn decode(&self, region: &[Range<i64>], fetched: Fetched, scratch: &mut Scratch) -> Result<()> {
        self.source.decode(region, fetched, scratch)
    }
}

#[test]
fn volume_with_a_cache_in_another_cache_is_itself() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let cache = cache_in(&place, 1 << 20);
    let inner = CachedVolume::new(Settled::new(&*volume), &cache);
    let outer = CachedVolume::new(inner, &cache);
    let expected = spec().expected::<u16>(&whole()).expect("a region");
    for _ in 0..2 {
        assert_eq!(elements(&outer, &whole()), expected);
    }
    assert_eq!(elements(&CachedVolume::new(Settled::new(&*volume), &cache), &whole()), expected);
    assert_eq!(outer.source().source().fetched.load(Ordering::Relaxed), 6);
}
