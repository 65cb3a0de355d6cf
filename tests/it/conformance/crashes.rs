//! Stopped and killed processes: they show no half-filled array, lose no chunk and leave no lock.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::Array;
use ndarray_shm::{CreateOptions, ErrorKind, NextClaim, RenderBuffer};

use crate::support::child::{Child, Role, hear, say};
use crate::support::{Name, Place, backend_of_child, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "crashes",
        tests![
            stopped_or_killed_creator_shows_no_name,
            killed_painter_releases_its_chunk,
            buffer_completes_after_one_of_four_painters_dies,
            buffer_resumes_after_all_painters_died,
            ledger_without_payload_does_not_block,
            stale_ledger_of_killed_finisher_is_removed,
        ],
    )
}

pub const ROLES: &[(&str, Role)] =
    &[("fill-slowly", fill_slowly), ("claim-and-hang", claim_and_hang), ("paint", paint)];

/// A child that says `half-way` in the middle of filling an array, and waits there.
fn fill_slowly(arguments: &[String]) {
    let fill = |mut view: ndarray::ArrayViewMut1<'_, u8>| {
        view.fill(1);
        say("half-way");
        hear();
    };
    let options = CreateOptions::new().directory(backend_of_child());
    options.create_with::<u8, _>(arguments[0].as_str(), 1 << 20, fill).unwrap();
    say("created");
}

fn stopped_or_killed_creator_shows_no_name(place: &Place) {
    let place = &place.fresh(); // so that every hidden draft is this test's
    let name = place.location("half-way");
    let mut child = Child::start(place, "fill-slowly", &[name.as_str()]);
    child.expect("half-way");
    child.stop();
    let open = || place.open_options().open::<u8, _>(name.location(), 1 << 20);
    assert!(open().unwrap_err().is_not_found());
    assert!(place.everything().iter().all(|file| !file.contains(name.as_str())));
    // The name is free for another process meanwhile.
    let array = place.options().create::<u8, _>(name.location(), 4).unwrap();
    assert!(array.unlink().unwrap());
    drop(array);
    // Other tests may have drafts in /dev/shm, where this test's draft has no name anyway.
    let hidden_drafts = || if place.name == "shm" { 0 } else { place.hidden_drafts() };
    let hidden = usize::from(place.has_hidden_drafts());
    assert_eq!(hidden_drafts(), hidden);
    child.kill();
    assert!(open().unwrap_err().is_not_found());
    assert!(place.everything().iter().all(|file| !file.contains(name.as_str())));
    assert_eq!(hidden_drafts(), hidden, "a killed creator leaves at most a hidden name");

    let mut child = Child::start(place, "fill-slowly", &[name.as_str()]);
    child.expect("half-way");
    child.tell("go on");
    child.expect("created");
    assert_eq!(open().unwrap().read().unwrap().iter().filter(|value| **value == 1).count(), 1 << 20);
}

const SHAPE: (usize, usize) = (96, 64);
const CHUNK: (usize, usize) = (8, 8);
const CHUNKS: usize = 96;

fn value(i: usize, j: usize) -> u32 {
    (i * 1000 + j) as u32
}

fn begin(place: &Place, name: &Name) -> RenderBuffer<u32, ndarray::Ix2> {
    place.render_options().create(name.location(), SHAPE, CHUNK, "crash tests").unwrap()
}

fn check(place: &Place, name: &Name, buffer: RenderBuffer<u32, ndarray::Ix2>) {
    let array = buffer.finish().unwrap();
    assert_eq!(*array.read().unwrap(), *Array::from_shape_fn(SHAPE, |(i, j)| value(i, j)));
    assert_eq!(place.files_of(name), [name.as_str()]);
}

/// A child that paints free chunks and says how many it painted. A second argument is its pause in each chunk, in
/// microseconds. With a third, it paints at most that many chunks and then hangs in the middle of another.
fn paint(arguments: &[String]) {
    let buffer = RenderBuffer::<u32, ndarray::Ix2>::open(arguments[0].as_str()).unwrap();
    let pause = Duration::from_micros(arguments.get(1).map_or(0, |text| text.parse().unwrap()));
    let most = arguments.get(2).map_or(usize::MAX, |text| text.parse().unwrap());
    say("ready");
    let mut painted = 0;
    loop {
        match buffer.claim_next_wait(Duration::from_secs(60)).unwrap() {
            NextClaim::Chunk(mut chunk) => {
                let (rows, columns) = (chunk.region()[0].start, chunk.region()[1].start);
                let mut view = chunk.view_mut();
                for ((i, j), element) in view.indexed_iter_mut() {
                    *element = value(rows + i, columns + j);
                    if i == 4 && j == 0 {
                        std::thread::sleep(pause); // half a chunk is painted
                        if painted == most {
                            hear();
                        }
                    }
                }
                chunk.commit().unwrap();
                painted += 1;
            }
            NextClaim::Busy => panic!("no painter takes a minute for one chunk"),
            NextClaim::AllDone => break,
        }
    }
    say(painted);
}

/// A child that claims a chunk, spoils its first row, and never finishes.
fn claim_and_hang(arguments: &[String]) {
    let buffer = RenderBuffer::<u32, ndarray::Ix2>::open(arguments[0].as_str()).unwrap();
    let NextClaim::Chunk(mut chunk) = buffer.claim_next().unwrap() else { panic!("there are free chunks") };
    chunk.view_mut().row_mut(0).fill(u32::MAX);
    say(chunk.index());
    hear();
}

fn killed_painter_releases_its_chunk(place: &Place) {
    let name = place.location("killed-painter");
    let buffer = begin(place, &name);
    let mut hanging = Child::start(place, "claim-and-hang", &[name.as_str()]);
    hanging.expect("0");
    let mut painter = Child::start(place, "paint", &[name.as_str()]);
    painter.expect("ready");
    eventually("all but the hanging chunk are painted", || buffer.progress().done == CHUNKS - 1);
    assert_eq!(painter.line_within(Duration::from_millis(50)), None, "it waits for the claimed chunk");
    hanging.kill();
    painter.expect(&CHUNKS.to_string());
    painter.finish();
    check(place, &name, buffer);
}

fn buffer_completes_after_one_of_four_painters_dies(place: &Place) {
    for round in 0..10 {
        let name = place.location("four-painters");
        let buffer = begin(place, &name);
        let mut painters: Vec<Child> = (0..4).map(|_| Child::start(place, "paint", &[name.as_str(), "500"])).collect();
        painters.iter_mut().for_each(|painter| painter.expect("ready"));
        eventually("some chunks are painted", || buffer.progress().done >= round * 7);
        painters.remove(round % 4).kill();
        for mut painter in painters {
            painter.line();
            painter.finish();
        }
        check(place, &name, buffer);
    }
}

fn buffer_resumes_after_all_painters_died(place: &Place) {
    let name = place.location("resume");
    drop(begin(place, &name)); // its creator has left too
    let mut painters: Vec<Child> =
        (0..3).map(|_| Child::start(place, "paint", &[name.as_str(), "2000", "20"])).collect();
    painters.iter_mut().for_each(|painter| painter.expect("ready"));
    let ledger = || ndarray_shm::render::ledger(&place.backend, name.location()).unwrap();
    eventually("some chunks are painted", || ledger().done >= 10);
    painters.iter_mut().for_each(Child::kill);
    let done = ledger().done;
    assert!((10..CHUNKS).contains(&done), "{done}");
    let buffer = begin(place, &name);
    assert_eq!(buffer.progress().done, done);
    let mut painter = Child::start(place, "paint", &[name.as_str()]);
    painter.expect("ready");
    painter.expect(&(CHUNKS - done).to_string());
    painter.finish();
    check(place, &name, buffer);
}

fn ledger_without_payload_does_not_block(place: &Place) {
    let name = place.location("beginner");
    drop(begin(place, &name));
    // The state after a creator died between publishing the ledger and the payload.
    let partial = place.files_of(&name).into_iter().find(|file| file.contains("part")).expect("a payload");
    std::fs::remove_file(place.directory().join(partial)).unwrap();
    let again = place.render_options().open::<u32, ndarray::Ix2>(name.location());
    assert!(again.unwrap_err().is_not_found());
    let buffer = begin(place, &name);
    assert_eq!(buffer.progress().done, 0);
    buffer.discard().unwrap();
    assert!(place.files_of(&name).is_empty());
}

fn stale_ledger_of_killed_finisher_is_removed(place: &Place) {
    let name = place.location("finisher");
    let buffer = begin(place, &name);
    let file = |kind: &str| place.files_of(&name).into_iter().find(|file| file.contains(kind)).expect("a file");
    let (partial, ledger) = (place.directory().join(file("part")), place.directory().join(file("ledger")));
    // The state after a process died between renaming the payload and removing the ledger. `buffer` is still attached.
    std::fs::rename(partial, place.path(&name)).unwrap();
    let options = || place.render_options();
    let error = options().create::<u32, _>(name.location(), SHAPE, CHUNK, "crash tests").unwrap_err();
    assert_eq!(error.kind, ErrorKind::AlreadyExists, "{error}");
    assert!(!ledger.exists(), "removed by the next process");
    drop(buffer);
}
