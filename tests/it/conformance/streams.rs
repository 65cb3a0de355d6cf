//! Streams: frames from one writer to readers in other processes, cursors, takeovers, and what a kill leaves.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray::{Ix1, Ix2, ShapeBuilder};
use ndarray_shm::stream::{self, Backpressure, Frame, StreamCursor, StreamOptions};
use ndarray_shm::{DType, ErrorKind, Location, StreamReader, StreamWriter};

use crate::support::child::{Child, Role, hear, say};
use crate::support::{Name, Place, backend_of_child, eventually, rounds};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "streams",
        tests![
            frames_arrive_whole_and_in_order,
            slow_reader_is_told_what_it_missed,
            held_frame_is_never_overwritten,
            frame_outlives_reader_writer_and_name,
            two_frames_of_one_slot_are_held_until_both_are_dropped,
            newest_frame_is_never_overwritten,
            dropped_frame_was_never_there,
            writer_says_who_holds_its_slots,
            killed_reader_frees_its_frame,
            waiting_reader_wakes_for_frame_end_and_replacement,
            death_of_the_writer_is_told,
            wait_for_a_number_takes_no_frame,
            wait_for_a_number_ends_with_the_stream_and_its_writer,
            successor_goes_on_with_the_next_number,
            other_frames_are_not_taken_over,
            living_writer_is_not_replaced,
            names_are_taken_once,
            end_removes_the_name_unless_kept,
            unlinked_stream_goes_on,
            later_stream_is_not_that_of_a_removed_keeper,
            values_travel_beside_the_elements,
            notes_say_what_frames_are,
            cursor_misses_no_frame,
            cursor_goes_on_after_a_kill,
            backpressure_depends_on_the_policy,
            cursor_is_told_of_the_first_frames_that_it_missed,
            cursor_has_one_reader,
            streams_of_other_types_are_refused,
            stream_is_no_array_and_array_no_stream,
            settings_of_streams_are_checked,
            inspection_says_who_uses_a_stream,
            killed_writers_never_tear_a_frame,
            full_directory_leaves_nothing_behind,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[
    ("stream-write", write),
    ("stream-write-on", write_on),
    ("stream-check", check),
    ("stream-hold", hold),
    ("stream-record", record),
];

const SHAPE: (usize, usize) = (5, 700);
const SOON: Duration = Duration::from_secs(60);

fn options(place: &Place) -> StreamOptions {
    StreamOptions::new().directory(place.backend.clone())
}

fn options_of_child() -> StreamOptions {
    StreamOptions::new().directory(backend_of_child())
}

/// A stream that this process writes. Dropping the name removes what a failed test leaves.
fn made(place: &Place, label: &str, slots: usize) -> (Name, StreamWriter<u64, Ix2>) {
    let name = place.location(label);
    let writer = options(place).create(name.location(), SHAPE, slots).expect("room");
    (name, writer)
}

fn open(place: &Place, name: &Name) -> StreamReader<u64, Ix2> {
    options(place).open(name.location()).expect("it was created")
}

/// Adds a frame in which each element is its number.
fn add(writer: &mut StreamWriter<u64, Ix2>) -> u64 {
    let mut frame = writer.frame().expect("a free slot");
    let number = frame.number();
    frame.view_mut().fill(number);
    frame.commit().expect("it is this process's")
}

/// Asserts that a frame is whole, and returns its number.
fn whole(frame: &Frame<u64, Ix2>) -> u64 {
    assert!(frame.view().iter().all(|element| *element == frame.number()), "torn: {frame:?}");
    frame.number()
}

fn kind<T: std::fmt::Debug>(result: ndarray_shm::Result<T>) -> ErrorKind {
    result.expect_err("it must fail").kind
}

/// A child that adds a frame for each line it hears, or ends the stream.
fn write(arguments: &[String]) {
    let (name, slots) = (&arguments[0], arguments[1].parse().unwrap());
    let mut writer: StreamWriter<u64, Ix2> = options_of_child().resume(true).create(name, SHAPE, slots).unwrap();
    say("writing");
    while hear() == "frame" {
        say(add(&mut writer));
    }
    writer.end().unwrap();
    say("ended");
}

/// A child that takes a stream over and adds frames until it is killed.
fn write_on(arguments: &[String]) {
    let name = &arguments[0];
    let mut writer: StreamWriter<u64, Ix2> = options_of_child().resume(true).create(name, SHAPE, 4).unwrap();
    say(writer.epoch());
    loop {
        let mut frame = writer.frame_wait(SOON).unwrap();
        let number = frame.number();
        frame.view_mut().fill(number);
        frame.commit().unwrap();
    }
}

/// A child that checks every frame that it gets, until the stream ends or is replaced. It says how many, and how many
/// it missed.
fn check(arguments: &[String]) {
    let mut reader: StreamReader<u64, Ix2> = options_of_child().open(&arguments[0]).unwrap();
    say("reading");
    let (mut count, mut last) = (0, 0);
    loop {
        let frame = match arguments[1].as_str() {
            "latest" => reader.latest_wait(Duration::MAX),
            _ => reader.next_wait(Duration::MAX),
        };
        match frame {
            Ok(frame) => {
                assert!(whole(&frame) > last);
                (count, last) = (count + 1, frame.number());
            }
            Err(error) if error.kind == ErrorKind::NoWriter => {}
            Err(error) => {
                assert!(matches!(error.kind, ErrorKind::Closed { .. } | ErrorKind::Unlinked), "{error}");
                break;
            }
        }
    }
    say(format!("{count} {} {last}", reader.lost()));
}

/// A child that holds the newest frame until it hears something.
fn hold(arguments: &[String]) {
    let mut reader: StreamReader<u64, Ix2> = options_of_child().open(&arguments[0]).unwrap();
    let frame = reader.latest_wait(SOON).unwrap();
    say(whole(&frame));
    hear();
    say(whole(&frame));
}

/// A child that reads with a cursor, says each number, and acknowledges it when it hears something.
fn record(arguments: &[String]) {
    let [name, policy] = arguments else { panic!("{arguments:?}") };
    let policy = if policy == "wait" { Backpressure::Wait } else { Backpressure::WaitWhileAlive };
    let mut cursor: StreamCursor<u64, Ix2> = options_of_child().open_cursor(name, "disk", policy).unwrap();
    say(format!("from {}", cursor.acknowledged()));
    loop {
        match cursor.next_wait(Duration::MAX) {
            Ok(frame) => {
                say(whole(&frame));
                hear();
                cursor.acknowledge(frame.number()).unwrap();
                say("acknowledged");
            }
            Err(error) => return say(format!("{:?}", error.kind)),
        }
    }
}

fn frames_arrive_whole_and_in_order(place: &Place) {
    let (name, mut writer) = made(place, "stream-order", 64);
    let mut readers: Vec<_> = (0..3).map(|_| Child::start(place, "stream-check", &[name.as_str(), "next"])).collect();
    readers.push(Child::start(place, "stream-check", &[name.as_str(), "latest"]));
    readers.iter_mut().for_each(|reader| reader.expect("reading"));
    for number in 1..=50 {
        assert_eq!(add(&mut writer), number);
    }
    writer.end().unwrap();
    for (index, mut reader) in readers.into_iter().enumerate() {
        let line = reader.line();
        assert!(if index < 3 { line == "50 0 50" } else { line.ends_with(" 50") }, "{index}: {line}");
        reader.finish();
    }
    assert!(place.files_of(&name).is_empty());
}

fn slow_reader_is_told_what_it_missed(place: &Place) {
    let (name, mut writer) = made(place, "stream-slow", 4);
    let mut reader = open(place, &name);
    assert!(reader.next().unwrap().is_none() && reader.latest().unwrap().is_none() && reader.get(0).unwrap().is_none());
    add(&mut writer);
    assert_eq!(whole(&reader.next_wait(SOON).unwrap()), 1);
    for _ in 0..10 {
        add(&mut writer);
    }
    assert_eq!(whole(&reader.next().unwrap().unwrap()), 8, "the oldest of four");
    assert_eq!((reader.lost(), reader.head(), reader.held().unwrap()), (6, 11, 0));
    assert!(reader.get(7).unwrap().is_none());
    assert_eq!(whole(&reader.get(10).unwrap().unwrap()), 10);
    assert_eq!(whole(&reader.latest().unwrap().unwrap()), 11);
    assert_eq!((reader.lost(), reader.latest().unwrap().is_none()), (6, true));
    // A late reader begins with what is there, and has missed nothing.
    let mut late = open(place, &name);
    assert_eq!((whole(&late.next().unwrap().unwrap()), late.lost()), (8, 0));
    // One that had got as far as 5 before goes on there.
    let mut again = open(place, &name);
    again.since(5).unwrap();
    assert_eq!((whole(&again.next().unwrap().unwrap()), again.lost()), (8, 2));
    again.since(11).unwrap();
    assert!(again.next().unwrap().is_none() && again.latest().unwrap().is_none());
    again.since(0).unwrap();
    assert_eq!((whole(&again.next().unwrap().unwrap()), again.lost()), (8, 2));
    let error = again.since(12).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::InvalidSetting { .. }) && error.location == name.as_str(), "{error}");
}

fn held_frame_is_never_overwritten(place: &Place) {
    let (name, mut writer) = made(place, "stream-hold", 3);
    add(&mut writer);
    let mut child = Child::start(place, "stream-hold", &[name.as_str()]);
    child.expect("1");
    for _ in 0..20 {
        add(&mut writer);
    }
    child.tell("look");
    child.expect("1");
    child.finish();
}

fn frame_outlives_reader_writer_and_name(place: &Place) {
    let (name, mut writer) = made(place, "stream-outlives", 3);
    let mut reader = open(place, &name);
    add(&mut writer);
    let frame = reader.next().unwrap().unwrap();
    drop(reader);
    writer.end().unwrap();
    drop(writer);
    assert!(place.files_of(&name).is_empty());
    let mut writer = options(place).create::<u64, _>(name.location(), SHAPE, 3).unwrap();
    for _ in 0..5 {
        add(&mut writer);
    }
    assert_eq!(whole(&frame), 1);
}

fn two_frames_of_one_slot_are_held_until_both_are_dropped(place: &Place) {
    let (name, mut writer) = made(place, "stream-two", 3);
    let mut reader = open(place, &name);
    add(&mut writer);
    let (one, two) = (reader.next().unwrap().unwrap(), reader.get(1).unwrap().unwrap());
    assert_eq!(reader.held().unwrap(), 1);
    drop(one);
    for _ in 0..5 {
        add(&mut writer);
    }
    assert_eq!(whole(&two), 1);
    std::thread::scope(|scope| scope.spawn(move || drop(two)).join().unwrap());
    assert_eq!(reader.held().unwrap(), 0);
    add(&mut writer);
    assert!(reader.get(1).unwrap().is_none());
}

fn newest_frame_is_never_overwritten(place: &Place) {
    let (name, mut writer) = made(place, "stream-newest", 3);
    add(&mut writer);
    let mut reader = open(place, &name);
    let frames: Vec<_> = (0..2).map(|_| (add(&mut writer), reader.get(writer.head()).unwrap().unwrap())).collect();
    // One slot has the newest frame, one is held, and the third one can be written.
    drop(writer.frame().unwrap());
    assert_eq!(whole(&reader.latest().unwrap().unwrap()), 3);
    assert_eq!(frames.iter().map(|(number, frame)| number + whole(frame)).sum::<u64>(), 10);
}

fn dropped_frame_was_never_there(place: &Place) {
    let (name, mut writer) = made(place, "stream-dropped", 3);
    let mut reader = open(place, &name);
    let mut frame = writer.frame().unwrap();
    frame.view_mut().fill(9);
    assert_eq!(frame.number(), 1);
    drop(frame);
    assert_eq!((add(&mut writer), writer.head()), (1, 1));
    assert_eq!(whole(&reader.next().unwrap().unwrap()), 1);
}

fn writer_says_who_holds_its_slots(place: &Place) {
    let (name, mut writer) = made(place, "stream-held", 3);
    let mut children = Vec::new();
    for _ in 0..2 {
        let number = add(&mut writer);
        let mut child = Child::start(place, "stream-hold", &[name.as_str()]);
        child.expect(&number.to_string());
        children.push(child);
    }
    add(&mut writer);
    let ErrorKind::SlotsHeld { slots, holders, cursors } = kind(writer.frame()) else { panic!("another error") };
    assert_eq!((slots, cursors.is_empty()), (3, true));
    if cfg!(unix) {
        let mut expected: Vec<_> = children.iter().map(Child::id).collect();
        expected.sort_unstable();
        assert_eq!(holders, expected);
    }
    assert!(matches!(kind(writer.frame_wait(Duration::from_millis(20))), ErrorKind::SlotsHeld { .. }));
    children[0].tell("look");
    children[0].expect("1");
    drop(writer.frame_wait(SOON).unwrap());
    children[1].kill();
    add(&mut writer);
}

fn killed_reader_frees_its_frame(place: &Place) {
    let (name, mut writer) = made(place, "stream-killed", 3);
    for number in 1..=10 {
        add(&mut writer);
        let mut child = Child::start(place, "stream-hold", &[name.as_str()]);
        child.expect(&number.to_string());
        child.kill();
    }
    // No slot is lost: all three have a frame again.
    for _ in 0..3 {
        add(&mut writer);
    }
    let reader = open(place, &name);
    assert!((11..=13).all(|number| reader.get(number).unwrap().is_some()));
}

fn waiting_reader_wakes_for_frame_end_and_replacement(place: &Place) {
    let (name, mut writer) = made(place, "stream-wakes", 4);
    let mut child = Child::start(place, "stream-check", &[name.as_str(), "next"]);
    child.expect("reading");
    assert!(child.line_within(Duration::from_millis(250)).is_none(), "it waits");
    add(&mut writer);
    writer.end().unwrap();
    child.expect("1 0 1");
    child.finish();

    let mut writer = options(place).keep(true).create::<u64, _>(name.location(), SHAPE, 4).unwrap();
    let mut child = Child::start(place, "stream-check", &[name.as_str(), "next"]);
    child.expect("reading");
    let mut reader = open(place, &name);
    add(&mut writer);
    std::thread::sleep(Duration::from_millis(20));
    let mut killed = Child::start(place, "stream-check", &[name.as_str(), "latest"]);
    killed.expect("reading");
    writer.end().unwrap();
    assert!(matches!(kind(writer.frame()), ErrorKind::Closed { .. }));
    // A successor need not wait for the value.
    drop(options(place).keep(true).resume(true).create::<u64, _>(name.location(), SHAPE, 4).unwrap());
    drop(writer);
    child.expect("1 0 1");
    killed.expect("1 0 1");
    // What is kept can be read, and is replaced only on request.
    assert_eq!(kind(options(place).create::<u64, _>(name.location(), SHAPE, 4)), ErrorKind::AlreadyExists);
    assert_eq!(whole(&open(place, &name).next().unwrap().unwrap()), 1);
    let mut writer = options(place).replace(true).create::<u64, _>(name.location(), (2, 3), 4).unwrap();
    assert_eq!(whole(&reader.next_wait(SOON).unwrap()), 1);
    assert_eq!(kind(reader.next_wait(SOON)), ErrorKind::Unlinked);
    assert_eq!((add(&mut writer), open(place, &name).layout().shape().to_vec()), (1, vec![2, 3]));
}

fn death_of_the_writer_is_told(place: &Place) {
    let name = place.location("stream-death");
    let mut child = Child::start(place, "stream-write", &[name.as_str(), "4"]);
    child.expect("writing");
    let mut reader = open(place, &name);
    assert_eq!(child.ask("frame"), "1");
    assert_eq!(reader.has_writer().unwrap(), Some(true));
    assert_eq!(whole(&reader.next_wait(SOON).unwrap()), 1);
    assert!(matches!(kind(reader.next_wait(Duration::from_millis(250))), ErrorKind::TimedOut { .. }), "it lives");
    child.kill();
    assert_eq!(kind(reader.next_wait(SOON)), ErrorKind::NoWriter);
    assert_eq!(reader.has_writer().unwrap(), Some(false));
    // What the writer has left can be read, and a late reader is told after that.
    let mut late = open(place, &name);
    assert_eq!(whole(&late.next_wait(SOON).unwrap()), 1);
    assert_eq!(kind(late.latest_wait(SOON)), ErrorKind::NoWriter);
}

fn wait_for_a_number_takes_no_frame(place: &Place) {
    let name = place.location("stream-head");
    let mut child = Child::start(place, "stream-write", &[name.as_str(), "4"]);
    child.expect("writing");
    let mut reader = open(place, &name);
    assert_eq!((reader.last(), reader.epoch()), (0, 1));
    let begin = Instant::now();
    assert!(matches!(kind(reader.head_wait(0, Duration::from_millis(250))), ErrorKind::TimedOut { .. }));
    assert!(begin.elapsed() >= Duration::from_millis(250));
    std::thread::scope(|scope| {
        let watch = reader.clone();
        let waiting = scope.spawn(move || watch.head_wait(0, SOON));
        assert_eq!(child.ask("frame"), "1");
        assert_eq!(waiting.join().unwrap().unwrap(), 1);
    });
    assert_eq!(child.ask("frame"), "2");
    assert_eq!(reader.head_wait(1, Duration::ZERO).unwrap(), 2);
    assert_eq!((reader.last(), reader.held().unwrap()), (0, 0));
    assert_eq!(whole(&reader.next().unwrap().unwrap()), 1);
    assert_eq!((reader.last(), reader.lost()), (1, 0));
    assert!(matches!(kind(reader.head_wait(2, Duration::ZERO)), ErrorKind::TimedOut { .. }));
    child.ask("end");
    child.finish();
}

fn wait_for_a_number_ends_with_the_stream_and_its_writer(place: &Place) {
    let name = place.location("stream-head-ends");
    let mut child = Child::start(place, "stream-write", &[name.as_str(), "4"]);
    child.expect("writing");
    let reader = open(place, &name);
    assert_eq!(child.ask("frame"), "1");
    child.kill();
    assert_eq!(reader.head_wait(0, SOON).unwrap(), 1, "what was committed comes first");
    assert_eq!(kind(reader.head_wait(1, SOON)), ErrorKind::NoWriter);
    let mut child = Child::start(place, "stream-write", &[name.as_str(), "4"]);
    child.expect("writing");
    assert_eq!(reader.epoch(), 2);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| reader.head_wait(1, SOON));
        child.ask("end");
        assert!(matches!(kind(waiting.join().unwrap()), ErrorKind::Closed { .. }));
    });
    child.finish();

    let options = options(place).keep(true);
    let mut first = options.create::<u64, _>(name.location(), SHAPE, 4).unwrap();
    let reader = open(place, &name);
    add(&mut first);
    drop(first);
    assert!(matches!(kind(reader.head_wait(1, SOON)), ErrorKind::Closed { .. }));
    let second = options.replace(true).create::<u64, _>(name.location(), SHAPE, 4).unwrap();
    assert_eq!(kind(reader.head_wait(1, SOON)), ErrorKind::Unlinked);
    assert_eq!(reader.head_wait(0, SOON).unwrap(), 1, "a frame that is there comes first");
    drop(second);
    assert!(stream::unlink(&place.backend, name.location()).unwrap());
}

fn successor_goes_on_with_the_next_number(place: &Place) {
    let name = place.location("stream-successor");
    let mut reader = None;
    for epoch in 1..=3 {
        let mut child = Child::start(place, "stream-write", &[name.as_str(), "4"]);
        child.expect("writing");
        let reader = reader.get_or_insert_with(|| open(place, &name));
        for number in 2 * epoch - 1..=2 * epoch {
            assert_eq!(child.ask("frame"), number.to_string());
            let frame = reader.next_wait(SOON).unwrap();
            assert_eq!((whole(&frame), frame.epoch()), (number, epoch));
        }
        child.kill();
    }
    // Without a request a killed writer's stream is not taken over.
    assert_eq!(kind(options(place).create::<u64, _>(name.location(), SHAPE, 4)), ErrorKind::AlreadyExists);
    assert!(stream::unlink(&place.backend, name.location()).unwrap());
    assert!(!stream::unlink(&place.backend, name.location()).unwrap());
    let writer = options(place).resume(true).create::<u64, _>(name.location(), SHAPE, 4).unwrap();
    assert_eq!((writer.head(), writer.epoch()), (0, 1), "there is none to take over");
}

fn other_frames_are_not_taken_over(place: &Place) {
    let name = place.location("stream-other");
    let mut child = Child::start(place, "stream-write", &[name.as_str(), "4"]);
    child.expect("writing");
    child.kill();
    let resume = options(place).resume(true);
    assert!(matches!(kind(resume.create::<u8, _>(name.location(), SHAPE, 4)), ErrorKind::DTypeMismatch { .. }));
    assert!(matches!(kind(resume.create::<u64, _>(name.location(), (5, 701), 4)), ErrorKind::ShapeMismatch { .. }));
    let f = (5, 700).f();
    assert!(matches!(kind(resume.create::<u64, _>(name.location(), f, 4)), ErrorKind::ShapeMismatch { .. }));
    assert!(matches!(kind(resume.create::<u64, _>(name.location(), SHAPE, 5)), ErrorKind::InvalidSetting { .. }));
    let with_meta = resume.clone().meta("gain", DType::F64, 1);
    let error = with_meta.create::<u64, _>(name.location(), SHAPE, 4).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::InvalidSetting { .. }) && error.location == name.as_str(), "{error}");
    let noted = resume.clone().note("axes", "y x");
    assert!(matches!(kind(noted.create::<u64, _>(name.location(), SHAPE, 4)), ErrorKind::InvalidSetting { .. }));
    // With both requests, other frames are replaced, and the same ones are taken over.
    let both = resume.replace(true).keep(true);
    let mut first = both.create::<u64, _>(name.location(), SHAPE, 5).unwrap();
    assert_eq!((add(&mut first), first.epoch()), (1, 1));
    drop(first);
    let second = both.create::<u64, _>(name.location(), SHAPE, 5).unwrap();
    assert_eq!((second.head(), second.epoch()), (1, 2));
}

fn living_writer_is_not_replaced(place: &Place) {
    let (name, mut writer) = made(place, "stream-living", 3);
    for options in [options(place).resume(true), options(place).replace(true)] {
        assert_eq!(kind(options.create::<u64, _>(name.location(), SHAPE, 3)), ErrorKind::HasWriter);
    }
    assert_eq!(kind(options(place).create::<u64, _>(name.location(), SHAPE, 3)), ErrorKind::AlreadyExists);
    assert_eq!(add(&mut writer), 1);
    let mut child = Child::start(place, "stream-hold", &[name.as_str()]);
    child.expect("1");
}

fn names_are_taken_once(place: &Place) {
    let name = place.location("stream-once");
    for _ in 0..rounds(30) {
        let create = || options(place).create::<u64, _>(name.location(), SHAPE, 3);
        let writers: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(create)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let (made, refused): (Vec<_>, Vec<_>) = writers.into_iter().partition(Result::is_ok);
        assert_eq!(made.len(), 1);
        for result in refused {
            assert_eq!(kind(result), ErrorKind::AlreadyExists);
        }
    }
    assert!(place.files_of(&name).is_empty());
}

fn end_removes_the_name_unless_kept(place: &Place) {
    let (name, writer) = made(place, "stream-end", 3);
    assert_eq!(place.files_of(&name).len(), 2);
    drop(writer);
    assert!(place.files_of(&name).is_empty());
    assert!(kind(options(place).open::<u64, Ix2>(name.location())) == ErrorKind::NotFound);
    let kept = options(place).keep(true).create::<u64, _>(name.location(), SHAPE, 3).unwrap();
    drop(kept);
    place.reclaim();
    assert_eq!(place.files_of(&name).len(), 2, "it is kept on purpose");
    assert!(matches!(kind(open(place, &name).next_wait(SOON)), ErrorKind::Closed { .. }));
}

fn unlinked_stream_goes_on(place: &Place) {
    let (name, mut writer) = made(place, "stream-unlinked", 3);
    let mut reader = open(place, &name);
    assert!(stream::unlink(&place.backend, name.location()).unwrap());
    assert!(place.files_of(&name).is_empty());
    add(&mut writer);
    assert_eq!(whole(&reader.next_wait(SOON).unwrap()), 1);
    // Another stream takes the name, and the end of the first one does not remove it.
    let mut other = options(place).create::<u64, _>(name.location(), SHAPE, 3).unwrap();
    writer.end().unwrap();
    assert!(matches!(kind(reader.next_wait(SOON)), ErrorKind::Closed { .. }));
    assert_eq!((add(&mut other), place.files_of(&name).len()), (1, 2));
}

fn later_stream_is_not_that_of_a_removed_keeper(place: &Place) {
    let name = place.location("stream-keeper");
    // Off Unix a file that is open keeps its name.
    if cfg!(unix) {
        let mut child = Child::start(place, "stream-write", &[name.as_str(), "3"]);
        child.expect("writing");
        child.ask("frame");
        std::fs::remove_file(place.directory().join(format!(".ndshm-keeper-{}", name.as_str()))).unwrap();
        // The writer lives, without a name for its lock. Its frames are of no use to another writer.
        let mut reader = open(place, &name);
        let mut writer = options(place).create::<u64, _>(name.location(), SHAPE, 3).unwrap();
        assert_eq!((writer.head(), add(&mut writer)), (0, 1));
        assert_eq!(whole(&reader.next().unwrap().unwrap()), 1);
        assert_eq!(kind(reader.next()), ErrorKind::Unlinked);
    }
    // Frames alone are reclaimed, and so is a keeper alone.
    for half in [".ndshm-keeper-", ".ndshm-frames-"] {
        drop(options(place).keep(true).create::<u64, _>(name.location(), SHAPE, 3).unwrap());
        std::fs::remove_file(place.directory().join(format!("{half}{}", name.as_str()))).unwrap();
        place.reclaim();
        assert!(place.files_of(&name).is_empty(), "without {half}");
    }
}

fn values_travel_beside_the_elements(place: &Place) {
    let name = place.location("stream-meta");
    let options = options(place).meta("flag", DType::U8, 1).meta("position", DType::F64, 3);
    let mut writer = options.create::<u8, _>(name.location(), 10, 3).unwrap();
    let mut frame = writer.frame().unwrap();
    frame.set_meta("position", &[1.0, -2.5, 1e300]).unwrap();
    frame.set_meta("flag", &[7_u8]).unwrap();
    assert!(matches!(kind(frame.set_meta("position", &[1.0])), ErrorKind::InvalidSetting { .. }));
    assert!(matches!(kind(frame.set_meta("flag", &[7_i8])), ErrorKind::InvalidSetting { .. }));
    assert!(matches!(kind(frame.set_meta("gain", &[7_u8])), ErrorKind::InvalidSetting { .. }));
    frame.commit().unwrap();
    let mut reader = self::options(place).open::<u8, Ix1>(name.location()).unwrap();
    let frame = reader.next().unwrap().unwrap();
    assert_eq!(frame.meta::<f64>("position").unwrap(), [1.0, -2.5, 1e300]);
    assert_eq!(frame.meta::<u8>("flag").unwrap(), [7]);
    let offsets: Vec<_> = reader.meta_fields().iter().map(|field| field.offset).collect();
    assert_eq!((offsets, frame.meta_bytes()[0]), (vec![0, 8], 7));
    assert!(frame.wall_time().elapsed().unwrap_or_default() < SOON && frame.time().is_some());
}

fn notes_say_what_frames_are(place: &Place) {
    let name = place.location("stream-notes");
    let long = "é".repeat(1000);
    let notes = [("axes", "y x"), ("resolution", "0.65 0.65"), ("unit", "um"), ("made-by", long.as_str())];
    let options = notes.iter().fold(options(place), |options, (key, text)| options.note(key, text));
    let writer = options.create::<u64, _>(name.location(), SHAPE, 4).unwrap();
    let reader = open(place, &name);
    let inspected = stream::inspect(&place.backend, name.location()).unwrap();
    for found in [writer.description(), reader.description(), &inspected.description] {
        assert!(found.notes().eq(notes), "{found:?}");
        assert_eq!((found.dtype(), found.shape()), (DType::U64, &[5, 700][..]));
    }
    drop(writer);
    let kept = options.clone().keep(true).create::<u64, _>(name.location(), SHAPE, 4).unwrap();
    drop(kept);
    let again = options.resume(true).create::<u64, _>(name.location(), SHAPE, 4).unwrap();
    assert_eq!(again.epoch(), 2, "the same notes");
}

fn cursor_misses_no_frame(place: &Place) {
    let (name, mut writer) = made(place, "stream-cursor", 4);
    add(&mut writer);
    let mut child = Child::start(place, "stream-record", &[name.as_str(), "alive"]);
    child.expect("from 1");
    for expected in 2..60_u64 {
        while writer.head() < expected + 2 && writer.frame().is_ok() {
            add(&mut writer);
        }
        child.expect(&expected.to_string());
        child.tell("done");
        child.expect("acknowledged");
    }
    writer.end().unwrap();
    loop {
        let line = child.line();
        if line.parse::<u64>().is_ok() {
            child.tell("done");
            child.expect("acknowledged");
        } else {
            assert!(line.starts_with("Closed"), "{line}");
            break;
        }
    }
    child.finish();
}

fn cursor_goes_on_after_a_kill(place: &Place) {
    let (name, mut writer) = made(place, "stream-restart", 8);
    let mut from = 0;
    let mut child = Child::start(place, "stream-record", &[name.as_str(), "wait"]);
    child.expect("from 0");
    for round in 0..5_u64 {
        for _ in 0..3 {
            add(&mut writer);
        }
        // It acknowledges two of the frames that it gets, and is killed with the third one.
        for step in 0..2 {
            child.expect(&(from + 1 + step).to_string());
            child.tell("done");
            child.expect("acknowledged");
        }
        from += 2;
        child.expect(&(from + 1).to_string());
        child.kill();
        child = Child::start(place, "stream-record", &[name.as_str(), "wait"]);
        child.expect(&format!("from {from}"));
        child.expect(&(from + 1).to_string());
        child.tell("done");
        child.expect("acknowledged");
        from += 1;
        assert_eq!(from, 3 * (round + 1));
    }
}

fn backpressure_depends_on_the_policy(place: &Place) {
    let (name, mut writer) = made(place, "stream-policy", 3);
    let held = |writer: &mut StreamWriter<u64, Ix2>| match writer.frame() {
        Ok(_) => None,
        Err(error) => match error.kind {
            ErrorKind::SlotsHeld { cursors, .. } => Some(cursors),
            other => panic!("{other:?}"),
        },
    };
    let mut child = Child::start(place, "stream-record", &[name.as_str(), "alive"]);
    child.expect("from 0");
    for _ in 0..3 {
        add(&mut writer);
    }
    child.expect("1");
    assert_eq!(held(&mut writer), Some(vec!["disk".to_owned()]));
    child.kill();
    assert_eq!(held(&mut writer), None, "its reader has died");
    add(&mut writer);

    let mut child = Child::start(place, "stream-record", &[name.as_str(), "wait"]);
    assert!(child.line().starts_with("from"));
    child.kill();
    let mut added = 0;
    while held(&mut writer).is_none() {
        add(&mut writer);
        added += 1;
        assert!(added < 5);
    }
    assert!(!stream::unlink_cursor(&place.backend, name.location(), "another").unwrap());
    assert!(stream::unlink_cursor(&place.backend, name.location(), "disk").unwrap());
    assert_eq!(held(&mut writer), None);

    let overwrite = options(place).open_cursor::<u64, Ix2>(name.location(), "eye", Backpressure::Overwrite).unwrap();
    for _ in 0..7 {
        add(&mut writer);
    }
    assert!(overwrite.acknowledged() < writer.head() - 3);
}

fn cursor_is_told_of_the_first_frames_that_it_missed(place: &Place) {
    let (name, mut writer) = made(place, "stream-early", 4);
    let open = || options(place).open_cursor::<u64, Ix2>(name.location(), "eye", Backpressure::Overwrite).unwrap();
    let mut early = open();
    for _ in 0..10 {
        add(&mut writer);
    }
    assert_eq!((whole(&early.next().unwrap().unwrap()), early.reader().lost()), (7, 6));
    drop(early);
    let mut again = open();
    assert_eq!((whole(&again.next().unwrap().unwrap()), again.reader().lost()), (7, 6), "nothing was acknowledged");
}

fn cursor_has_one_reader(place: &Place) {
    let (name, mut writer) = made(place, "stream-one", 3);
    let mut child = Child::start(place, "stream-record", &[name.as_str(), "alive"]);
    child.expect("from 0");
    let open = |cursor: &str| options(place).open_cursor::<u64, Ix2>(name.location(), cursor, Backpressure::Wait);
    assert_eq!(kind(open("disk")), ErrorKind::HasReader { cursor: "disk".into() });
    let unlinked = stream::unlink_cursor(&place.backend, name.location(), "disk");
    assert_eq!(kind(unlinked), ErrorKind::HasReader { cursor: "disk".into() });
    child.kill();
    let mut cursor = open("disk").unwrap();
    assert!(matches!(kind(cursor.acknowledge(1)), ErrorKind::InvalidSetting { .. }));
    add(&mut writer);
    let frame = cursor.next_wait(SOON).unwrap();
    cursor.acknowledge(frame.number()).unwrap();
    cursor.acknowledge(0).unwrap();
    assert_eq!((cursor.acknowledged(), cursor.name()), (1, "disk"));
    assert!(matches!(kind(open("")), ErrorKind::InvalidSetting { .. }));
    let rest: Vec<_> = (0..61).map(|index| open(&format!("{index}")).unwrap()).collect();
    assert!(matches!(kind(open("one more")), ErrorKind::InvalidSetting { .. }));
    drop(rest);
}

fn streams_of_other_types_are_refused(place: &Place) {
    let (name, _writer) = made(place, "stream-types", 3);
    let options = options(place);
    assert!(matches!(kind(options.open::<u8, Ix2>(name.location())), ErrorKind::DTypeMismatch { .. }));
    assert!(matches!(kind(options.open::<u64, Ix1>(name.location())), ErrorKind::ShapeMismatch { .. }));
    let any: StreamReader<u64, ndarray::IxDyn> = options.open(name.location()).unwrap();
    assert_eq!(any.layout().shape(), [5, 700]);
}

fn stream_is_no_array_and_array_no_stream(place: &Place) {
    let (name, _writer) = made(place, "stream-array", 3);
    assert_eq!(kind(place.open_options().open::<u64, _>(name.location(), SHAPE)), ErrorKind::NotFound);
    let array = place.options().create::<u64, _>(name.location(), SHAPE).unwrap();
    assert_eq!(place.files_of(&name).len(), 3, "arrays have names of their own");
    drop(array);
    // Neither file can be reached as an array, not even by its reserved name.
    for file in [".ndshm-frames-", ".ndshm-keeper-"] {
        assert!(matches!(kind(Location::new(&format!("{file}{}", name.as_str()))), ErrorKind::Reserved { .. }));
    }
    // A copy under another name is bookkeeping, and no array.
    let copy = place.location("stream-copy");
    std::fs::copy(place.directory().join(format!(".ndshm-frames-{}", name.as_str())), place.path(&copy)).unwrap();
    assert!(matches!(kind(place.open_options().open_bytes(copy.location())), ErrorKind::Reserved { .. }));
    // Other bytes under the reserved names are refused.
    let damaged = place.location("stream-damaged");
    std::fs::write(place.directory().join(format!(".ndshm-frames-{}", damaged.as_str())), [7; 10_000]).unwrap();
    assert!(matches!(kind(options(place).open::<u64, Ix2>(damaged.location())), ErrorKind::Trailer { .. }));
    assert!(matches!(kind(options(place).create::<u64, _>(damaged.location(), SHAPE, 3)), ErrorKind::Trailer { .. }));
    drop(options(place).replace(true).create::<u64, _>(damaged.location(), SHAPE, 3).unwrap());
}

fn settings_of_streams_are_checked(place: &Place) {
    let name = place.location("stream-settings");
    for slots in [0, 1, 2, 100_000] {
        let error = options(place).create::<u8, _>(name.location(), 10, slots).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::InvalidSetting { .. }), "{error}");
    }
    let twice = options(place).meta("a", DType::U8, 1).meta("a", DType::U8, 1);
    assert!(matches!(kind(twice.create::<u8, _>(name.location(), 10, 3)), ErrorKind::InvalidSetting { .. }));
    let long = options(place).meta("a", DType::F64, 31);
    assert!(matches!(kind(long.create::<u8, _>(name.location(), 10, 3)), ErrorKind::InvalidSetting { .. }));
    for (key, text) in [
        ("axes", "x"),
        ("axes", "x x"),
        ("axes", "x  y"),
        ("axes", "x y z"),
        ("Axes", "y x"),
        ("shape", "4 4"),
        ("unit", "\n"),
        ("long", &"x".repeat(3500)),
    ] {
        let error = options(place).note(key, text).create::<u8, _>(name.location(), (4, 4), 3).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::InvalidSetting { .. }), "{key}: {error}");
    }
    let huge = options(place).create::<u64, _>(name.location(), (usize::MAX / 64, 1), 1000);
    assert!(matches!(kind(huge), ErrorKind::TooLarge { .. }));
    let long = "x".repeat(242);
    assert!(matches!(kind(options(place).create::<u8, _>(&long, 10, 3)), ErrorKind::InvalidLocation { .. }));
    assert!(place.files_of(&name).is_empty());
    // Frames without elements, and without axes, are frames.
    for shape in [&[][..], &[0, 4]] {
        let mut writer = options(place).create::<u8, _>(name.location(), shape, 3).unwrap();
        writer.frame().unwrap().commit().unwrap();
        let mut reader = options(place).open::<u8, ndarray::IxDyn>(name.location()).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().view().shape(), shape);
    }
}

fn inspection_says_who_uses_a_stream(place: &Place) {
    let (name, mut writer) = made(place, "stream-inspect", 4);
    let inspect = || stream::inspect(&place.backend, name.location()).unwrap();
    assert_eq!((inspect().head, inspect().frames, inspect().rate, inspect().held), (0, 0, None, 0));
    for _ in 0..6 {
        add(&mut writer);
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut holder = Child::start(place, "stream-hold", &[name.as_str()]);
    holder.expect("6");
    let mut recorder = Child::start(place, "stream-record", &[name.as_str(), "alive"]);
    recorder.expect("from 6");
    let found = inspect();
    assert_eq!((found.head, found.frames, found.epoch, found.slots, found.held), (6, 4, 1, 4, 1));
    assert_eq!(
        (found.description.dtype(), found.description.shape(), found.has_writer, found.has_ended),
        (DType::U64, &[5, 700][..], Some(true), false)
    );
    assert!(found.rate.is_none_or(|rate| rate > 0.0 && rate < 1000.0));
    if cfg!(unix) {
        assert_eq!(found.holders, [holder.id()]);
    }
    let cursors = found.cursors.expect("this user's");
    assert_eq!((cursors.len(), cursors[0].name.as_str(), cursors[0].acknowledged), (1, "disk", 6));
    assert_eq!((cursors[0].has_reader, cursors[0].policy), (true, Backpressure::WaitWhileAlive));
    holder.kill();
    recorder.kill();
    // A frame that is being written is held by no reader.
    let frame = writer.frame().unwrap();
    eventually("the kernel has released the locks", || inspect().held == 1);
    assert!(inspect().holders.is_empty());
    drop(frame);
    eventually("the kernel has released the locks", || inspect().held == 0);
    let other = place.location("stream-inspect-none");
    assert_eq!(kind(stream::inspect(&place.backend, other.location())), ErrorKind::NotFound);
}

fn killed_writers_never_tear_a_frame(place: &Place) {
    let name = place.location("stream-kills");
    let mut first = Child::start(place, "stream-write-on", &[name.as_str()]);
    first.expect("1");
    let mut readers: Vec<_> = ["next", "latest", "next"]
        .into_iter()
        .map(|which| Child::start(place, "stream-check", &[name.as_str(), which]))
        .collect();
    readers.iter_mut().for_each(|reader| reader.expect("reading"));
    first.kill_alive();
    let mut head = 0;
    for round in 2..2 + rounds(40) as u64 {
        let mut writer = Child::start(place, "stream-write-on", &[name.as_str()]);
        writer.expect(&round.to_string());
        std::thread::sleep(Duration::from_micros(900 * (round % 7)));
        if round % 5 == 0 {
            readers[2].kill_alive();
            readers[2] = Child::start(place, "stream-check", &[name.as_str(), "next"]);
            readers[2].expect("reading");
        }
        writer.kill_alive();
        let found = stream::inspect(&place.backend, name.location()).unwrap();
        assert!(found.head >= head, "numbers never go back");
        head = found.head;
    }
    let last = options(place).resume(true).create::<u64, Ix2>(name.location(), SHAPE, 4).unwrap();
    assert!(last.head() >= head);
    drop(last);
    for mut reader in readers {
        let line = reader.line();
        assert!(line.split(' ').count() == 3, "{line}");
        reader.finish();
    }
    assert!(place.files_of(&name).is_empty());
}

fn full_directory_leaves_nothing_behind(place: &Place) {
    let place = place.private();
    let name = place.location("stream-full");
    let failing = place.meddling(|operation, _| match operation {
        "draft" => Err(ErrorKind::NoSpace { needed: 2, available: 1, in_flight: 0, advice: "".into() }.at("full")),
        _ => Ok(()),
    });
    let options = StreamOptions::new().directory(failing);
    let error = options.create::<u64, _>(name.location(), SHAPE, 3).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::NoSpace { .. }) && error.location == name.as_str(), "{error}");
    assert!(place.files_of(&name).is_empty());
    // A stream that could not be replaced is as it was, its cursors included.
    let mut old = self::options(&place).keep(true).create::<u64, _>(name.location(), SHAPE, 3).unwrap();
    let cursor = |policy| self::options(&place).open_cursor::<u64, Ix2>(name.location(), "disk", policy);
    drop(cursor(Backpressure::Wait).unwrap());
    add(&mut old);
    drop(old);
    let error = options.replace(true).create::<u64, _>(name.location(), SHAPE, 3).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::NoSpace { .. }), "{error}");
    assert_eq!(whole(&cursor(Backpressure::Wait).unwrap().next().unwrap().unwrap()), 1);
    assert!(stream::unlink(&place.backend, name.location()).unwrap());
    // With a keeper and without frames.
    let drafts = std::sync::atomic::AtomicU32::new(0);
    let failing = place.meddling(move |operation, _| match operation {
        "draft" if drafts.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 1 => {
            Err(ErrorKind::NoSpace { needed: 2, available: 1, in_flight: 0, advice: "".into() }.at("full"))
        }
        _ => Ok(()),
    });
    let options = StreamOptions::new().directory(failing);
    assert!(matches!(kind(options.create::<u64, _>(name.location(), SHAPE, 3)), ErrorKind::NoSpace { .. }));
    assert!(place.files_of(&name).is_empty(), "{:?}", place.files_of(&name));
}
