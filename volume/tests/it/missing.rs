//! Missing chunks: the volume or the caller decides how they are read.

use ndarray::IxDyn;
use ndarray_shm::DType;
use ndarray_shm::backend::EntryKind;
use ndarray_shm::pool::PoolOptions;
use ndarray_shm_volume::demo::DemoSpec;
use ndarray_shm_volume::{Bbox, Error, FillValue, Missing, StopFlag, Workers};

use crate::place::Place;

fn spec() -> DemoSpec {
    DemoSpec::new(&[12, 12], &[4, 4], DType::I16).complete(true)
}

fn all() -> Bbox {
    Bbox::whole(&[12, 12])
}

/// Downloads a volume of nine chunks without the middle one; the elements of the missing chunk must have the expected
/// value.
fn check(missing: Missing, expected: i16) {
    let place = Place::new();
    let volume = place.volume(&spec());
    std::fs::remove_file(place.path("volume/c/1/1")).expect("a chunk to remove");
    let done = place.download(&*volume, &all(), &place.options().missing(missing)).expect("a download");
    let array = done.open::<i16, IxDyn>().expect("the array");
    let mut whole = spec().expected::<i16>(&all()).expect("all of it");
    whole.slice_mut(ndarray::s![4..8, 4..8]).fill(expected);
    assert_eq!(array.read().expect("a guard").view(), whole);
}

#[test]
fn missing_chunk_has_the_volumes_or_callers_value() {
    check(Missing::AsStored, 7);
    check(Missing::Fill, 7);
    check(Missing::FillWith(FillValue::of(-3i16)), -3);
    check(Missing::FillWith(FillValue::of(0i16)), 0);
}

#[test]
fn missing_chunk_is_an_error_on_request() {
    let place = Place::new();
    let volume = place.volume(&spec());
    place.download(&*volume, &all(), &place.options().missing(Missing::Error)).expect("nothing is missing");
    std::fs::remove_file(place.path("volume/c/1/1")).expect("a chunk to remove");
    let options = place.options().missing(Missing::Error).replace(true).keep_partial(true);
    let error = place.download(&*volume, &all(), &options).expect_err("a chunk is missing");
    assert!(matches!(&error, Error::Missing { region, .. } if region == "4:8,4:8"), "{error}");
    assert_eq!(place.left(), [EntryKind::Ledger, EntryKind::Partial, EntryKind::Array]);
}

/// The chunks that an earlier run filled are not recorded, so the count covers this run only.
#[test]
fn only_chunks_filled_in_this_run_count() {
    let place = Place::new();
    let volume = place.volume(&spec());
    for chunk in ["0/0", "1/1", "2/2"] {
        std::fs::remove_file(place.path("volume/c").join(chunk)).expect("a chunk to remove");
    }
    let last = place.path("volume/c/2/1");
    let sound = std::fs::read(&last).expect("a chunk");
    std::fs::write(&last, [0]).expect("cut short");
    let options = || place.options().workers(Workers::Threads(1)).missing(Missing::Fill);
    place.download(&*volume, &all(), &options().keep_partial(true)).expect_err("a damaged chunk");
    std::fs::write(&last, sound).expect("repaired");
    let done = place.download(&*volume, &all(), &options()).expect("the rest");
    assert_eq!((done.resumed, done.painted, done.filled), (7, 2, 1));
    let again = place.download(&*volume, &all(), &options().replace(true)).expect("all of it");
    assert_eq!((again.resumed, again.painted, again.filled), (0, 9, 3));
    assert!(again.warnings.is_empty() && done.warnings.is_empty());
}

#[test]
fn fill_value_of_another_type_is_refused_early() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let options = place.options().missing(Missing::FillWith(FillValue::of(0u8)));
    let error = place.download(&*volume, &all(), &options).expect_err("another type");
    assert!(matches!(error, Error::FillValue { .. }), "{error}");
    assert_eq!(place.left(), []);
}

#[test]
fn two_different_backgrounds_are_never_mixed() {
    let place = Place::new();
    let volume = place.volume(&spec());
    let stop = StopFlag::new();
    stop.stop();
    let seven = || place.options().missing(Missing::FillWith(FillValue::of(7i16)));
    place.download(&*volume, &all(), &seven().stop(&stop).keep_partial(true)).expect_err("it was stopped");
    for other in [Missing::FillWith(FillValue::of(8i16)), Missing::Error] {
        let error = place.download(&*volume, &all(), &place.options().missing(other)).expect_err("another background");
        assert!(
            matches!(error, Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::Mismatch { .. }, .. })),
            "{error}"
        );
    }
    // 7 is also the volume's own fill value, so the default options describe the same work.
    place.download(&*volume, &all(), &place.options()).expect("the same");
}

#[test]
fn reused_memory_never_shows_stale_elements() {
    for (missing, expected) in [(Missing::AsStored, 7), (Missing::FillWith(FillValue::of(0i16)), 0)] {
        let place = Place::new();
        let volume = place.volume(&spec());
        std::fs::remove_dir_all(place.path("volume/c")).expect("all chunks");
        let pool = PoolOptions::new().directory(place.backend.clone()).create().expect("a pool");
        pool.take::<i16, _>((12, 12)).expect("memory").view_mut().fill(-1);
        let options = place.options().pool(&pool).missing(missing);
        let done = place.download(&*volume, &all(), &options).expect("a download");
        let array = done.open::<i16, IxDyn>().expect("the array");
        assert!(array.read().expect("a guard").iter().all(|element| *element == expected));
        assert_eq!(volume.meta().fill.as_deref(), Some(7i16.to_ne_bytes().as_slice()));
    }
}
