//! Changes of a volume by other processes, between an upload's reads: their elements are not lost, and stale state is
//! not used.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::SystemTime;

use ndarray::{ArrayD, IxDyn};
use ndarray_shm::DType;
use ndarray_shm_volume::{
    Alignment, Bbox, ChunkSink, ChunkSource, Elements, NewVolume, Scratch, UploadOptions, VolumeFormat, VolumeOptions,
    VolumeUrl, create_volume, open_volume, upload_from_array,
};

use crate::place::Place;

fn filled(shape: &[usize], value: u8) -> ArrayD<u8> {
    ArrayD::from_elem(IxDyn(shape), value)
}

fn writable(url: &VolumeUrl) -> Box<dyn ChunkSink> {
    VolumeOptions::new().open_writable(url).expect("the volume")
}

/// Reads a region that lies in one chunk; missing elements are 0.
fn read(volume: &dyn ChunkSource, region: &str) -> ArrayD<u8> {
    let region: Bbox = region.parse().expect(region);
    let mut scratch = Scratch::new();
    volume.read(region.ranges(), &mut scratch).expect("a chunk");
    match scratch.elements::<u8>(region.ranges()).expect("elements") {
        Elements::Missing => filled(&region.shape(), 0),
        Elements::Fill(value) => filled(&region.shape(), value),
        Elements::Block(view) => view.to_owned(),
    }
}

/// Changes a file's modification time, as writing the same content again does.
fn touch(path: &Path) {
    let file = File::options().write(true).open(path).expect("the file");
    file.set_modified(SystemTime::UNIX_EPOCH).expect("the file's new time");
}

/// A sink that has seen that there is no shard must look again before it erases the shard: another sink may have stored
/// it since.
pub(crate) fn shard_stored_meanwhile_is_not_removed_as_background() {
    let place = Place::new();
    let url = VolumeUrl::local(place.path("volume"));
    let mut new = NewVolume::new(VolumeFormat::Zarr, &[8, 8], &[4, 4], DType::U8);
    new.shard_shape = Some(vec![8, 8]);
    let first = create_volume(&url, &new).expect("a new volume");
    assert_eq!(read(&*first, "4:8,4:8"), filled(&[4, 4], 0), "nothing is there yet");

    let all = first.meta().domain();
    upload_from_array(&*writable(&url), &all, &filled(&[8, 8], 7).view(), &UploadOptions::new()).expect("all of it");
    let options = UploadOptions::new().alignment(Alignment::ReadModifyWrite).skip_background(true);
    let corner = "0:2,0:2".parse().expect("a box");
    upload_from_array(&*first, &corner, &filled(&[2, 2], 0).view(), &options).expect("a corner");
    assert_eq!(read(&*open_volume(&url).expect("the volume"), "4:8,4:8"), filled(&[4, 4], 7));
}

/// Rewriting the description, as adding a scale does, must not change the locks: the volume's objects are the same.
pub(crate) fn rewritten_description_keeps_the_same_locks() {
    for format in [VolumeFormat::Zarr, VolumeFormat::Precomputed] {
        let place = Place::new();
        let url = VolumeUrl::local(place.path("volume"));
        create_volume(&url, &NewVolume::new(format, &[64, 16, 16], &[64, 16, 16], DType::U8)).expect("a new volume");
        let early = writable(&url);
        touch(&place.path(if format == VolumeFormat::Zarr { "volume/zarr.json" } else { "volume/info" }));
        let late = writable(&url);
        let barrier = Barrier::new(2);
        for round in 1..=40 {
            thread::scope(|scope| {
                for (sink, half) in [(&early, 0..32), (&late, 32..64)] {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        let mut ranges = sink.meta().domain().ranges().to_vec();
                        ranges[0] = half;
                        let region = Bbox::new(ranges).expect("not empty");
                        let array = filled(&region.shape(), round);
                        barrier.wait();
                        let options = UploadOptions::new().alignment(Alignment::ReadModifyWrite).workers(1);
                        upload_from_array(&**sink, &region, &array.view(), &options).expect("a half");
                    });
                }
            });
            let volume = open_volume(&url).expect("the volume");
            let found = read(&*volume, &volume.meta().domain().to_string());
            assert_eq!(found.iter().find(|element| **element != round), None, "{format:?}, round {round}");
        }
    }
}

/// `CloudVolume` looks for `.br` before the plain file, so an old compressed copy would hide the new chunk.
pub(crate) fn new_chunk_removes_copies_of_other_compressions() {
    let place = Place::new();
    let url = VolumeUrl::local(place.path("volume"));
    let new = NewVolume::new(VolumeFormat::Precomputed, &[8, 8, 8], &[8, 8, 8], DType::U8);
    let volume = create_volume(&url, &new).expect("a new volume");
    let (all, directory) = (volume.meta().domain(), place.path("volume/1_1_1"));
    for suffix in ["br", "bz2", "zstd"] {
        for background in [false, true] {
            fs::create_dir_all(&directory).expect("a directory");
            let old = directory.join(format!("0-8_0-8_0-8.{suffix}"));
            fs::write(&old, b"packed by another program").expect("a file");
            let options = UploadOptions::new().skip_background(background);
            let array = filled(&[8, 8, 8, 1], u8::from(!background));
            upload_from_array(&*volume, &all, &array.view(), &options).expect("all of it");
            assert!(!old.exists(), "{suffix}, background {background}");
        }
    }
}

/// Readers that use the second chunk size would find old elements.
pub(crate) fn scale_with_several_chunk_sizes_is_not_writable() {
    let place = Place::new();
    let url = VolumeUrl::local(place.path("volume"));
    let new = NewVolume::new(VolumeFormat::Precomputed, &[8, 8, 8], &[8, 8, 8], DType::U8);
    create_volume(&url, &new).expect("a new volume");
    let info = place.path("volume/info");
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&info).expect("info")).expect("JSON");
    json["scales"][0]["chunk_sizes"] = serde_json::json!([[8, 8, 8], [4, 4, 4]]);
    fs::write(&info, json.to_string()).expect("info");
    assert!(open_volume(&url).is_ok(), "any of the sizes will do for reading");
    let error = VolumeOptions::new().open_writable(&url).expect_err("refused").to_string();
    assert!(error.contains("chunk sizes"), "{error}");
}

/// Old chunks with the names of new ones would become elements of the new volume.
pub(crate) fn precomputed_volume_is_not_created_over_other_files() {
    for there in ["1_1_1/0-64_0-64_0-64", "zarr.json", ".zarray"] {
        let place = Place::new();
        let path = place.path("volume").join(there);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(&path, b"{}").expect("a file");
        let new = NewVolume::new(VolumeFormat::Precomputed, &[8, 8, 8], &[8, 8, 8], DType::U8);
        let made = create_volume(VolumeUrl::local(place.path("volume")), &new);
        assert!(made.is_err(), "{there}");
        assert!(!place.path("volume/info").exists(), "{there}");
    }
}
