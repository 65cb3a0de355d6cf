//! Streams with copied frames: no reader holds a slot, and no frame is torn although nothing is locked.

use std::time::Duration;

use libtest_mimic::Trial;
use ndarray::{Array2, Ix2, ShapeBuilder as _};
use ndarray_shm::stream::{self, Backpressure, Frame, StreamCursor, StreamOptions, StreamReader, StreamWriter};
use ndarray_shm::{DType, ErrorKind};

use crate::support::Place;
use crate::support::backend_of_child;
use crate::support::child::{Child, Role, hear, say};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "conformance",
        "copied_streams",
        tests![
            copied_frames_are_whole,
            copied_frames_hold_no_slot,
            copies_have_order_values_and_times,
            cursor_of_a_copied_stream_misses_none,
            stream_is_taken_over_as_it_is,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[("copied-write", write), ("copied-read", read)];

const SHAPE: (usize, usize) = (3, 171);

fn options(place: &Place) -> StreamOptions {
    StreamOptions::new().directory(place.backend.clone()).copied(true)
}

fn add(writer: &mut StreamWriter<u64, Ix2>) -> u64 {
    let mut frame = writer.frame().unwrap();
    let number = frame.number();
    frame.view_mut().fill(number);
    frame.set_meta("copy", &[number]).unwrap();
    frame.commit().unwrap()
}

/// A child that adds frames as fast as it can until it is told to end.
fn write(arguments: &[String]) {
    let options = StreamOptions::new().directory(backend_of_child()).copied(true).meta("copy", DType::U64, 1);
    let mut writer: StreamWriter<u64, Ix2> = options.create(&arguments[0], SHAPE, 3).unwrap();
    say("writing");
    let ends = std::thread::spawn(hear);
    while !ends.is_finished() {
        add(&mut writer);
    }
    say(writer.head());
    writer.end().unwrap();
}

/// A child that checks each frame that it gets until the stream ends, and reports how many those were.
fn read(arguments: &[String]) {
    let options = StreamOptions::new().directory(backend_of_child());
    let mut reader: StreamReader<u64, Ix2> = options.open(&arguments[0]).unwrap();
    say("reading");
    let (mut count, mut last) = (0_u64, 0);
    let mut check = |frame: &Frame<u64, Ix2>| {
        assert!(frame.view().iter().all(|element| *element == frame.number()), "torn: {frame:?}");
        assert_eq!(frame.meta::<u64>("copy").unwrap(), [frame.number()]);
        count += 1;
    };
    loop {
        if let Some(frame) = reader.get(reader.head().saturating_sub(1)).unwrap() {
            check(&frame);
        }
        match if arguments[1] == "next" { reader.next() } else { reader.latest() } {
            Ok(Some(frame)) => {
                check(&frame);
                assert!(frame.number() > last, "{frame:?} after {last}");
                last = frame.number();
            }
            Ok(None) => {}
            Err(error) if matches!(error.kind, ErrorKind::Closed { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    say(count);
}

fn copied_frames_are_whole(place: &Place) {
    let name = place.location("fast");
    let mut writer = Child::start(place, "copied-write", &[name.as_str()]);
    writer.expect("writing");
    let mut readers: Vec<_> =
        ["next", "latest"].map(|how| Child::start(place, "copied-read", &[name.as_str(), how])).into_iter().collect();
    for reader in &mut readers {
        reader.expect("reading");
    }
    std::thread::sleep(Duration::from_millis(300));
    writer.tell("end");
    let head: u64 = writer.line().parse().unwrap();
    writer.finish();
    let counts: Vec<u64> = readers.iter_mut().map(|reader| reader.line().parse().unwrap()).collect();
    readers.into_iter().for_each(Child::finish);
    println!("{}: {head} frames, {counts:?} of them checked", place.name);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

fn copied_frames_hold_no_slot(place: &Place) {
    let name = place.location("kept");
    let mut writer: StreamWriter<u64, Ix2> =
        options(place).meta("copy", DType::U64, 1).create(name.location(), SHAPE, 3).unwrap();
    let mut reader: StreamReader<u64, Ix2> =
        StreamOptions::new().directory(place.backend.clone()).open(name.location()).unwrap();
    let mut kept = Vec::new();
    for number in 1..=20 {
        assert_eq!(add(&mut writer), number);
        kept.push(reader.next().unwrap().unwrap());
        assert_eq!(reader.held().unwrap(), 0);
    }
    let found = stream::inspect(&place.backend, name.location()).unwrap();
    assert!(found.copied && found.held == 0 && found.frames == 3, "{found:?}");
    writer.end().unwrap();
    drop(reader);
    for (frame, number) in kept.iter().zip(1..) {
        assert!(frame.number() == number && frame.view().iter().all(|element| *element == number));
        frame.hold().unwrap();
    }
}

fn copies_have_order_values_and_times(place: &Place) {
    let name = place.location("order");
    let wanted = options(place).meta("gain", DType::F32, 2);
    let mut writer: StreamWriter<u16, Ix2> = wanted.create(name.location(), (3, 5).f(), 4).unwrap();
    let array = Array2::from_shape_fn((3, 5), |(row, column)| u16::try_from(10 * row + column).unwrap());
    let mut frame = writer.frame().unwrap();
    frame.view_mut().assign(&array);
    frame.set_meta("gain", &[0.5_f32, 2.0]).unwrap();
    frame.commit().unwrap();
    let dropped = writer.frame().unwrap();
    drop(dropped); // it never was
    let mut reader: StreamReader<u16, Ix2> = options(place).open(name.location()).unwrap();
    let frame = reader.next().unwrap().unwrap();
    assert_eq!(frame.view(), array);
    assert_eq!((frame.meta::<f32>("gain").unwrap(), frame.epoch()), (vec![0.5, 2.0], 1));
    assert!(frame.wall_time().elapsed().is_ok_and(|time| time < Duration::from_secs(60)));
    assert!(reader.next().unwrap().is_none() && reader.get(2).unwrap().is_none());
    // Elements that fill no word.
    for length in [0, 1, 7, 9] {
        let name = place.location(&format!("bytes-{length}"));
        let mut writer: StreamWriter<u8, _> = options(place).create(name.location(), length, 3).unwrap();
        let mut frame = writer.frame().unwrap();
        frame.view_mut().fill(255);
        frame.commit().unwrap();
        let mut reader: StreamReader<u8, ndarray::Ix1> = options(place).open(name.location()).unwrap();
        assert_eq!(reader.latest().unwrap().unwrap().view().to_vec(), vec![255; length]);
    }
}

fn cursor_of_a_copied_stream_misses_none(place: &Place) {
    let name = place.location("cursor");
    let wanted = options(place).meta("copy", DType::U64, 1);
    let mut writer: StreamWriter<u64, Ix2> = wanted.create(name.location(), SHAPE, 4).unwrap();
    add(&mut writer);
    let mut cursor: StreamCursor<u64, Ix2> =
        options(place).open_cursor(name.location(), "disk", Backpressure::Wait).unwrap();
    for _ in 0..4 {
        add(&mut writer);
    }
    let full = writer.frame().unwrap_err();
    assert!(
        matches!(&full.kind, ErrorKind::SlotsHeld { slots: 4, holders, cursors } if holders.is_empty() && cursors == &["disk"]),
        "{full}"
    );
    for number in 2..40 {
        assert_eq!(cursor.next().unwrap().unwrap().number(), number);
        cursor.acknowledge(number).unwrap();
        assert_eq!(add(&mut writer), number + 4);
    }
}

fn stream_is_taken_over_as_it_is(place: &Place) {
    let name = place.location("taken");
    let wanted = options(place).keep(true).meta("copy", DType::U64, 1);
    let mut writer: StreamWriter<u64, Ix2> = wanted.create(name.location(), SHAPE, 3).unwrap();
    add(&mut writer);
    drop(writer);
    let held = wanted.clone().resume(true).copied(false).create::<u64, Ix2>(name.location(), SHAPE, 3).unwrap_err();
    assert!(matches!(&held.kind, ErrorKind::InvalidSetting { .. }) && held.to_string().contains("copied"), "{held}");
    let mut writer: StreamWriter<u64, Ix2> = wanted.resume(true).create(name.location(), SHAPE, 3).unwrap();
    assert_eq!((add(&mut writer), writer.epoch()), (2, 2));
    drop(writer);
    assert!(stream::unlink(&place.backend, name.location()).unwrap());
}
