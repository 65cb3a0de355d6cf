//! Several threads create a volume in one place, after each has seen that there is none.

use std::ops::Range;
use std::sync::{Arc, Barrier};
use std::thread;

use ndarray_shm::DType;

use super::VolumeOptions;
use crate::description::NewVolume;
use crate::error::{Result, SourceFailure};
use crate::store::url::{VolumeFormat, VolumeUrl};
use crate::store::{self, Object, ObjectPart, Store, StoredVersion};
use crate::{precomputed, zarr};

/// A directory store in which each thread waits for the others after listing: the last check for an existing volume.
#[derive(Debug)]
struct Gate {
    files: Arc<dyn Store>,
    others: Barrier,
}

impl Store for Gate {
    fn locate(&self, key: &str) -> String {
        self.files.locate(key)
    }
    fn cache_place(&self, key: &str) -> Option<String> {
        self.files.cache_place(key)
    }
    fn is_remote(&self) -> bool {
        false
    }
    fn get_at_most(&self, key: &str, most: u64) -> Result<Option<Object>> {
        self.files.get_at_most(key, most)
    }
    fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<ObjectPart>> {
        self.files.get_range(key, range)
    }
    fn get_suffix(&self, key: &str, length: u64) -> Result<Option<ObjectPart>> {
        self.files.get_suffix(key, length)
    }
    fn size(&self, key: &str) -> Result<Option<u64>> {
        self.files.size(key)
    }
    fn version(&self, key: &str) -> Result<Option<StoredVersion>> {
        self.files.version(key)
    }
    fn put(&self, key: &str, bytes: Vec<u8>, gzip: bool) -> Result<()> {
        self.files.put(key, bytes, gzip)
    }
    fn put_new(&self, key: &str, bytes: Vec<u8>) -> Result<bool> {
        self.files.put_new(key, bytes)
    }
    fn delete(&self, key: &str) -> Result<bool> {
        self.files.delete(key)
    }
    fn list(&self, prefix: &str) -> Result<Vec<String>> {
        let names = self.files.list(prefix);
        self.others.wait();
        names
    }
}

/// Creates all volumes at the same time. Returns which of them succeeded, and the resolution of the resulting volume.
fn made(new: &[NewVolume]) -> (Vec<bool>, Vec<f64>) {
    let directory = tempfile::tempdir().expect("a directory");
    let url = VolumeUrl::local(directory.path());
    let gate: Arc<dyn Store> =
        Arc::new(Gate { files: store::open(&url).expect("a store"), others: Barrier::new(new.len()) });
    let ends: Vec<_> = thread::scope(|scope| {
        let creators: Vec<_> = new
            .iter()
            .map(|new| {
                let gate = Arc::clone(&gate);
                scope.spawn(move || match new.format {
                    VolumeFormat::Zarr => zarr::create(&gate, new).map(drop),
                    VolumeFormat::Precomputed => precomputed::create(gate, new).map(drop),
                    VolumeFormat::N5 => unreachable!("volumes that are made here have other formats"),
                })
            })
            .collect();
        creators.into_iter().map(|creator| creator.join().expect("no panic")).collect()
    });
    let there = VolumeOptions::new().open(&url).expect("a volume");
    for (new, end) in new.iter().zip(&ends) {
        match end {
            Ok(()) => assert!(new.is_like(there.meta()), "{new:?}, and there is {:?}", there.meta()),
            Err(error) => assert_eq!(error.source_failure(), Some(SourceFailure::AlreadyExists), "{error:?}"),
        }
    }
    let scales = VolumeOptions::new().scales(&url).expect("its scales");
    (ends.iter().map(Result::is_ok).collect(), scales[0].resolution.clone())
}

#[test]
fn one_of_several_different_creators_succeeds() {
    for (format, version) in [(VolumeFormat::Zarr, 3), (VolumeFormat::Zarr, 2), (VolumeFormat::Precomputed, 1)] {
        for _ in 0..10 {
            let new = [4, 8, 12, 16].map(|length| {
                let mut new = NewVolume::new(format, &[length; 3], &[4; 3], DType::U8);
                new.version = version;
                new.resolution = vec![f64::from(u32::try_from(length).expect("small")); 3];
                new
            });
            let (ends, resolution) = made(&new);
            assert_eq!(ends.iter().filter(|end| **end).count(), 1, "{format:?} {version}");
            let creator = ends.iter().position(|end| *end).expect("one of them");
            assert_eq!(resolution, new[creator].resolution, "{format:?} {version}");
        }
    }
}

#[test]
fn all_creators_of_the_same_volume_succeed() {
    for (format, version) in [(VolumeFormat::Zarr, 3), (VolumeFormat::Zarr, 2), (VolumeFormat::Precomputed, 1)] {
        let mut new = NewVolume::new(format, &[8; 3], &[4; 3], DType::U16);
        new.version = version;
        assert_eq!(made(&[new.clone(), new.clone(), new]).0, [true; 3], "{format:?} {version}");
    }
}
