//! Streams while a reader or the writer is stopped, or killed, between two steps of a frame.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::Ix1;
use ndarray_shm::ErrorKind;
use ndarray_shm::stream::{StreamOptions, StreamReader, StreamWriter, inspect};

use crate::support::child::{Child, Role, say};
use crate::support::{Name, Place, backend_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "steps",
        "streams",
        tests![
            reader_that_is_stopped_before_its_lock_gets_a_whole_frame,
            reader_that_is_stopped_behind_its_lock_holds_the_slot,
            writer_that_is_killed_at_any_step_leaves_whole_frames,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[("step-stream-read", read), ("step-stream-write", write)];

const LENGTH: usize = 2000;
const SOON: Duration = Duration::from_secs(60);

/// A child that reads one frame, and reports its number and the frames that it missed.
fn read(arguments: &[String]) {
    let options = StreamOptions::new().directory(backend_of_child());
    let mut reader: StreamReader<u64, Ix1> = options.open(&arguments[0]).unwrap();
    let frame = reader.next_wait(SOON).unwrap();
    assert!(frame.view().iter().all(|element| *element == frame.number()), "torn: {frame:?}");
    say(format!("{} {}", frame.number(), reader.lost()));
}

/// A child that takes a stream over and adds two frames.
fn write(arguments: &[String]) {
    let options = StreamOptions::new().directory(backend_of_child()).resume(true).keep(true);
    let mut writer: StreamWriter<u64, Ix1> = options.create(&arguments[0], LENGTH, 3).unwrap();
    add(&mut writer);
    say(add(&mut writer));
}

fn add(writer: &mut StreamWriter<u64, Ix1>) -> u64 {
    let mut frame = writer.frame().unwrap();
    let number = frame.number();
    frame.view_mut().fill(number);
    frame.commit().unwrap()
}

fn options(place: &Place) -> StreamOptions {
    StreamOptions::new().directory(place.backend.clone())
}

fn made(place: &Place, label: &str) -> (Name, StreamWriter<u64, Ix1>) {
    let name = place.location(label);
    let mut writer = options(place).keep(true).create(name.location(), LENGTH, 3).unwrap();
    add(&mut writer);
    (name, writer)
}

fn unlink(place: &Place, name: &Name) {
    assert!(ndarray_shm::stream::unlink(&place.backend, name.location()).unwrap());
}

fn reader_that_is_stopped_before_its_lock_gets_a_whole_frame(place: &Place) {
    let (name, mut writer) = made(place, "before");
    let mut reader = Child::start_until(place, "step-stream-read", &[name.as_str()], "stream: slot found");
    for _ in 0..6 {
        add(&mut writer);
    }
    reader.resume();
    // Frame 1 is gone, and so 5 is the oldest.
    reader.expect("5 0");
    reader.finish();
    drop(writer);
    unlink(place, &name);
}

fn reader_that_is_stopped_behind_its_lock_holds_the_slot(place: &Place) {
    let (name, mut writer) = made(place, "behind");
    let mut reader = Child::start_until(place, "step-stream-read", &[name.as_str()], "stream: slot locked");
    for _ in 0..6 {
        add(&mut writer);
    }
    assert_eq!(inspect(&place.backend, name.location()).unwrap().held, 1);
    reader.resume();
    reader.expect("1 0");
    reader.finish();
    // A reader that is killed there keeps nothing.
    let mut reader = Child::start_until(place, "step-stream-read", &[name.as_str()], "stream: slot locked");
    reader.kill();
    assert_eq!(inspect(&place.backend, name.location()).unwrap().held, 0);
    drop(writer);
    unlink(place, &name);
}

fn writer_that_is_killed_at_any_step_leaves_whole_frames(place: &Place) {
    let name = place.location("killed");
    let mut head = 0;
    for turn in 0..4 {
        for (step, is_committed) in [
            ("stream: slot locked for writing", false),
            ("stream: number cleared", false),
            ("stream: slot unlocked", false),
            ("stream: head stored", true),
        ] {
            let mut writer = Child::start_until(place, "step-stream-write", &[name.as_str()], step);
            writer.kill();
            head += u64::from(is_committed);
            let mut reader: StreamReader<u64, Ix1> = options(place).open(name.location()).unwrap();
            assert_eq!(reader.head(), head, "{step}, {turn}");
            let mut last = 0;
            while let Some(frame) = reader.next().unwrap() {
                assert!(frame.view().iter().all(|element| *element == frame.number()), "torn at {step}: {frame:?}");
                last = frame.number();
            }
            assert_eq!(last, head, "{step}, {turn}");
            assert_eq!(reader.next_wait(SOON).unwrap_err().kind, ErrorKind::NoWriter);
        }
        // A whole turn: the next numbers follow.
        let mut writer = Child::start(place, "step-stream-write", &[name.as_str()]);
        head += 2;
        writer.expect(&head.to_string());
        writer.finish();
    }
    unlink(place, &name);
}
