//! Uploads into real formats: new volumes, concurrent writes of shards, background.

use std::fs;
use std::thread;

use ndarray::{Array3, ArrayD, Axis, IxDyn, Slice};
use ndarray_shm::{CreateOptions, DType};
use ndarray_shm_volume::{
    Alignment, Bbox, ChunkSource, DownloadOptions, Encoding, NewVolume, UploadOptions, VolumeFormat, VolumeOptions,
    VolumeUrl, create_volume, download_to_shared_memory, open_volume, upload_from_array, upload_from_shared_memory,
};

use crate::place::Place;

pub(crate) fn counted(shape: [usize; 3]) -> Array3<u32> {
    let mut next = 0;
    Array3::from_shape_simple_fn(shape, || {
        next += 1;
        next
    })
}

pub(crate) fn downloaded(volume: &dyn ChunkSource, bbox: &Bbox) -> ArrayD<u32> {
    let place = Place::new();
    let options = DownloadOptions::new().directory(place.backend.clone());
    let done = download_to_shared_memory(volume, bbox, &place.location, &options).expect("a download");
    let array = done.open::<u32, IxDyn>().expect("the array");
    array.read().expect("a guard").to_owned()
}

pub(crate) fn new_volume(shape: &[u64], shards: bool) -> NewVolume {
    let mut new = NewVolume::new(VolumeFormat::Zarr, shape, &[8, 8, 8], DType::U32);
    new.encoding = Encoding::Gzip;
    new.shard_shape = shards.then(|| vec![16, 16, 16]);
    new
}

pub(crate) fn new_volume_is_filled_from_shared_memory() {
    let place = Place::new();
    let array = counted([20, 17, 40]).into_dyn();
    let options = CreateOptions::new().directory(place.backend.clone());
    let shared =
        options.create_with::<u32, IxDyn>(place.location.clone(), IxDyn(&[20, 17, 40]), |mut to| to.assign(&array));
    let shared = shared.expect("an array");
    for (shards, objects) in [(false, 45), (true, 12)] {
        let url = VolumeUrl::local(place.path(&format!("new-{shards}")));
        let volume = create_volume(&url, &new_volume(&[20, 17, 40], shards)).expect("a new volume");
        let all = volume.meta().domain();
        let options = UploadOptions::new().directory(place.backend.clone());
        let done = upload_from_shared_memory(&*volume, &all, &place.location, &options).expect("an upload");
        assert_eq!((done.stored, done.bytes), (objects, 20 * 17 * 40 * 4));
        assert_eq!(downloaded(&*open_volume(&url).expect("the volume"), &all), array);
        assert!(create_volume(&url, &new_volume(&[20, 17, 40], shards)).is_err(), "it is there already");
    }
    assert!(shared.read().expect("it is still there").view() == array);
}

/// A shard is written as a whole, by one upload at a time.
pub(crate) fn concurrent_changes_of_the_same_shards_lose_nothing() {
    let place = Place::new();
    let url = VolumeUrl::local(place.path("volume"));
    create_volume(&url, &new_volume(&[32, 32, 32], true)).expect("a new volume");
    let array = counted([32, 32, 32]).into_dyn();
    for round in 0..3 {
        thread::scope(|scope| {
            // The border between the halves cuts through chunks of four of the eight shards.
            for (at, half, shards) in [(0..11, "0:32,0:32,0:11", 4), (11..32, "0:32,0:32,11:32", 8)] {
                let (url, mut part) = (&url, array.view());
                part.slice_axis_inplace(Axis(2), Slice::from(at));
                let part = part.mapv(|element| element + round);
                scope.spawn(move || {
                    let volume = VolumeOptions::new().open_writable(url).expect("the volume");
                    let options = UploadOptions::new().alignment(Alignment::ReadModifyWrite).workers(2);
                    let half = half.parse().expect("a box");
                    assert_eq!(
                        upload_from_array(&*volume, &half, &part.view(), &options).expect("an upload").stored,
                        shards
                    );
                });
            }
        });
        let volume = open_volume(&url).expect("the volume");
        assert_eq!(downloaded(&*volume, &volume.meta().domain()), array.mapv(|element| element + round));
    }
}

pub(crate) fn background_of_a_zarr_volume_is_not_stored() {
    let place = Place::new();
    let url = VolumeUrl::local(place.path("volume"));
    let volume = create_volume(&url, &new_volume(&[32, 8, 8], false)).expect("a new volume");
    let mut array = counted([32, 8, 8]).into_dyn();
    let all = volume.meta().domain();
    upload_from_array(&*volume, &all, &array.view(), &UploadOptions::new()).expect("all of it");
    array.slice_axis_mut(Axis(0), Slice::from(8..24)).fill(0);
    let options = UploadOptions::new().skip_background(true);
    let done = upload_from_array(&*volume, &all, &array.view(), &options).expect("all of it");
    assert_eq!((done.stored, done.background), (2, 2));
    let chunks = fs::read_dir(place.path("volume/c")).expect("chunks").count();
    let objects = (0..4).filter(|number| place.path(&format!("volume/c/{number}/0/0")).is_file()).count();
    assert!(objects == 2 && chunks >= 2, "{objects} of {chunks}");
    assert_eq!(downloaded(&*open_volume(&url).expect("the volume"), &all), array);
}
