//! Downloads into a pool: the elements are right, and the memory and the name are released.

use ndarray::Ix3;
use ndarray_shm::pool::PoolOptions;
use ndarray_shm::{DType, Directory};
use ndarray_shm_volume::demo::{DemoSpec, Pattern};
use ndarray_shm_volume::{Bbox, Error};

use crate::place::Place;
use crate::regions::downloads_with_one_chunk_missing;

/// Whether pools reuse memory on this system.
const RECYCLES: bool = cfg!(target_os = "linux");

#[test]
fn each_download_reuses_the_memory_of_the_last() {
    for place in Place::of_each_kind() {
        let spec = DemoSpec::new(&[40, 40, 40], &[16, 16, 16], DType::U16).pattern(Pattern::Noise);
        let source = place.volume(&spec);
        let pool = PoolOptions::new().directory(place.backend.clone()).create().expect("a pool");
        // Regions of equal size and smaller ones: every element of the reused memory is painted over.
        for text in ["0:20,:,:", "20:40,:,:", ":,0:20,:", "7:27,:,:", ":,:,20:40", "0:10,3:40,:"] {
            let bbox = Bbox::parse(text, &Bbox::whole(spec.shape())).expect(text);
            let done = place.download(&*source, &bbox, &place.options().pool(&pool)).expect("a download");
            let same = done.clone();
            let array = done.open::<u16, Ix3>().expect("the array");
            assert_eq!(
                array.read().expect("a guard").view().into_dyn(),
                spec.expected::<u16>(&bbox).expect("a region"),
                "{text}"
            );
            drop(done);
            assert_eq!(place.left().len(), 1, "a clone keeps the name");
            drop(same);
            assert_eq!(place.left(), []);
            assert!(array.read().is_err(), "the name has gone");
            drop(array);
        }
        let stats = pool.stats();
        assert_eq!(stats.hits, if RECYCLES { 4 } else { 0 }, "{stats:?}");
        assert_eq!(stats.lent.arrays, 0);
    }
}

#[test]
fn missing_chunks_have_the_fill_value_in_reused_memory() {
    let place = Place::new();
    let pool = PoolOptions::new().directory(place.backend.clone()).create().expect("a pool");
    pool.take::<i16, _>((10, 10)).expect("memory").view_mut().fill(-1);
    downloads_with_one_chunk_missing(&place, &place.options().pool(&pool));
    assert_eq!(pool.stats().hits, u64::from(RECYCLES));
}

#[test]
fn pool_of_another_backend_is_refused() {
    let place = Place::new();
    let spec = DemoSpec::new(&[10, 10], &[5, 5], DType::I16);
    let source = place.volume(&spec);
    let pool = PoolOptions::new().directory(place.backend.clone()).create().expect("a pool");
    let elsewhere = Directory::new("elsewhere", place.path(""));
    let options = place.options().pool(&pool).directory(elsewhere);
    let refused = place.download(&*source, &Bbox::whole(&[10, 10]), &options);
    assert!(
        matches!(
            refused,
            Err(Error::Array(ndarray_shm::Error { kind: ndarray_shm::ErrorKind::InvalidSetting { .. }, .. }))
        ),
        "{refused:?}"
    );
    crate::place::corrupt(&place.path("volume/c/1/0"));
    let failed = place.download(&*source, &Bbox::whole(&[10, 10]), &place.options().pool(&pool));
    assert!(matches!(failed, Err(Error::Chunk { .. })), "{failed:?}");
    assert_eq!(place.left(), []);
}
