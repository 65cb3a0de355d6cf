//! CloudVolume's transfers: a buffer painted by workers is uploaded to a precomputed layer, and a layer is downloaded
//! into one of our arrays.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::{Dimension, IntoDimension, Ix4, ShapeBuilder};
use ndarray_shm::{NextClaim, Order, RenderBuffer, SharedArray};

use super::peer::{Peer, axes};
use super::sample::{self, assert_same, create, element, open};
use crate::support::child::{Child, hear, say};
use crate::support::{Name, Place};
use crate::tests;

/// Axes x, y, z and channel, in CloudVolume's order and layout.
const SHAPE: [usize; 4] = [64, 48, 16, 2];
const CHUNK: [usize; 4] = [16, 16, 8, 2];
const BOX: [[usize; 3]; 2] = [[16, 16, 8], [48, 48, 16]];
const WORKERS: usize = 3;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials("interop", "layers", tests![painted_arrays_are_uploaded, layers_are_downloaded])
}

/// Runs the tests in one Python process: importing CloudVolume takes longer than most of them.
fn with_cloudvolume(place: &Place, tests: &[fn(&Place, &mut Peer)]) {
    let mut cloudvolume = Peer::start(place, "cloudvolume_peer.py");
    tests.iter().for_each(|test| test(place, &mut cloudvolume));
    cloudvolume.finish();
}

fn painted_arrays_are_uploaded(place: &Place) {
    with_cloudvolume(place, &[array_painted_by_workers_is_uploaded, a_box_is_uploaded_out_of_a_larger_array]);
}

fn layers_are_downloaded(place: &Place) {
    let tests: [fn(&Place, &mut Peer); 2] =
        [layer_is_downloaded_into_a_new_array, layer_is_downloaded_into_an_attached_array];
    with_cloudvolume(place, &tests);
}

/// Creates an empty layer in a fresh directory, and returns the directory and the layer's path.
fn layer(cloudvolume: &mut Peer) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("layer").display().to_string();
    cloudvolume.expect(format!("make_layer {path} <u2 {} {}", axes(&SHAPE), axes(&CHUNK[..3])), "done");
    (directory, path)
}

/// A child that paints chunks until all are painted. It claims its first chunk before the test lets it go, so that it
/// paints at least one.
pub fn paint_layer(arguments: &[String]) {
    let seed = arguments[1].parse().unwrap();
    let buffer = RenderBuffer::<u16, Ix4>::open(arguments[0].as_str()).unwrap();
    let mut next = buffer.claim_next().unwrap();
    say("claimed");
    hear();
    let mut painted = 0;
    while let NextClaim::Chunk(chunk) = next {
        sample::paint(chunk, &SHAPE, seed);
        painted += 1;
        next = buffer.claim_next_wait(Duration::from_secs(60)).unwrap();
    }
    assert!(matches!(next, NextClaim::AllDone));
    say(painted);
}

/// Lets several processes paint one array.
fn paint(place: &Place, name: &Name, seed: usize) -> SharedArray<u16, Ix4> {
    let options = place.render_options();
    let buffer = options.create::<u16, _>(name.location(), SHAPE.f(), CHUNK, "a layer").unwrap();
    let workers = (0..WORKERS).map(|_| Child::start(place, "paint-layer", &[name.as_str(), &seed.to_string()]));
    let mut workers: Vec<Child> = workers.collect();
    workers.iter_mut().for_each(|worker| worker.expect("claimed"));
    workers.iter_mut().for_each(|worker| worker.tell("paint"));
    let painted: Vec<usize> = workers.iter_mut().map(|worker| worker.line().parse().unwrap()).collect();
    assert_eq!(painted.iter().sum::<usize>(), buffer.grid().len(), "{painted:?}");
    assert!(painted.iter().all(|count| *count > 0), "{painted:?}");
    workers.into_iter().for_each(Child::finish);
    buffer.finish().unwrap()
}

fn array_painted_by_workers_is_uploaded(place: &Place, cloudvolume: &mut Peer) {
    let name = place.location("upload");
    let array = paint(place, &name, 11);
    assert_same(&array, 11);
    for parallel in [1, 2] {
        let (_directory, path) = layer(cloudvolume);
        assert_ne!(cloudvolume.ask(format!("check_layer {path} <u2 11")), "same", "before anything is uploaded");
        cloudvolume.expect(format!("upload {path} {} {parallel}", name.as_str()), "done");
        cloudvolume.expect(format!("check_layer {path} <u2 11"), "same");
    }
    assert_same(&array, 11);
    assert_eq!(place.files_of(&name), [name.as_str()]);
}

fn a_box_is_uploaded_out_of_a_larger_array(place: &Place, cloudvolume: &mut Peer) {
    let name = place.location("upload-box");
    drop(paint(place, &name, 12));
    let (_directory, path) = layer(cloudvolume);
    let ends = format!("{} {}", axes(&BOX[0]), axes(&BOX[1]));
    cloudvolume.expect(format!("upload_box {path} {} 1 {ends}", name.as_str()), "done");
    cloudvolume.expect(format!("check_layer_box {path} <u2 12 {ends}"), "same");
}

/// Asserts that an array equals the box of the sample that fills the layer.
fn assert_same_box<D: Dimension>(array: &SharedArray<u16, D>, seed: usize) {
    for (at, found) in array.read().unwrap().indexed_iter() {
        let at = at.into_dimension();
        let mut place = at.slice().to_vec();
        place.iter_mut().zip(BOX[0]).for_each(|(place, start)| *place += start);
        assert_eq!(*found, element::<u16>(&SHAPE, &place, seed), "at {place:?}");
    }
}

fn box_shape() -> [usize; 4] {
    let [start, stop] = BOX;
    [stop[0] - start[0], stop[1] - start[1], stop[2] - start[2], SHAPE[3]]
}

fn layer_is_downloaded_into_a_new_array(place: &Place, cloudvolume: &mut Peer) {
    let (_directory, path) = layer(cloudvolume);
    cloudvolume.expect(format!("fill_layer {path} <u2 13"), "done");
    for parallel in [1, 2] {
        let name = place.location("download");
        let (location, start, stop) = (name.as_str(), axes(&BOX[0]), axes(&BOX[1]));
        cloudvolume.expect(format!("download {path} {location} {parallel} {start} {stop}"), "done");
        assert_same_box(&open::<u16>(place, &name, &box_shape(), Order::F), 13);
    }
}

fn layer_is_downloaded_into_an_attached_array(place: &Place, cloudvolume: &mut Peer) {
    let (_directory, path) = layer(cloudvolume);
    cloudvolume.expect(format!("fill_layer {path} <u2 14"), "done");
    let name = place.location("download-held");
    let array = create::<u16>(place, &name, &box_shape(), Order::F, 0);
    let (location, start, stop) = (name.as_str(), axes(&BOX[0]), axes(&BOX[1]));
    cloudvolume.expect(format!("download {path} {location} 1 {start} {stop}"), "done");
    assert_same_box(&array, 14);
}
