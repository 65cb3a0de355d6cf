//! Streams: a Python program with nothing but its standard library reads and holds frames.

use libtest_mimic::Trial;
use ndarray::{Ix2, ShapeBuilder as _};
use ndarray_shm::stream::{StreamOptions, StreamWriter, inspect};
use ndarray_shm::{DType, Error, ErrorKind};

use super::peer::Peer;
use crate::support::Place;
use crate::support::child::{Child, Role, hear, say};
use crate::support::{Name, backend_of_child};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "interop",
        "streams",
        tests![python_holds_frames, python_copies_frames, python_sees_the_end_of_a_writer],
    )
}

pub const ROLES: &[(&str, Role)] = &[("stream-writer", write_until_killed)];

fn options(place: &Place) -> StreamOptions {
    StreamOptions::new().directory(place.backend.clone())
}

fn fill(writer: &mut StreamWriter<u16, Ix2>, value: u16) -> Result<u64, Error> {
    let mut frame = writer.frame()?;
    frame.view_mut().fill(value);
    frame.commit()
}

fn attached(place: &Place, name: &Name) -> Peer {
    let mut python = Peer::start(place, "stream_peer.py");
    let directory = place.backend.path().display();
    python.expect(format!("attach {directory} {}", name.as_str()), "<u2 5,7 F 4");
    python
}

fn python_holds_frames(place: &Place) {
    let name = place.location("seen");
    let mut writer =
        options(place).meta("gain", DType::F32, 2).create::<u16, Ix2>(name.location(), (5, 7).f(), 4).unwrap();
    let mut python = attached(place, &name);
    python.expect("hold 1", "gone");
    let mut frame = writer.frame().unwrap();
    frame
        .view_mut()
        .indexed_iter_mut()
        .for_each(|((row, column), element)| *element = u16::try_from(10 * row + column).unwrap());
    frame.commit().unwrap();
    python.expect("wait 0", "1");
    python.expect("hold 1", "805");
    python.expect("element 3 6", "36");
    fill(&mut writer, 2).unwrap();
    python.expect("hold 2", "70");
    // Twice the same slot: one lock of one description.
    python.expect("hold 2", "70");
    python.expect("drop", "done");
    python.expect("drop", "done");
    for value in 3..40 {
        fill(&mut writer, value).unwrap();
    }
    python.expect("sums", "70");
    python.expect("hold 1", "gone");
    python.expect("hold 39", &(35 * 39).to_string());
    let pid: u32 = python.ask("number").parse().unwrap();
    fill(&mut writer, 40).unwrap();
    python.expect("hold 40", &(35 * 40).to_string());
    let found = inspect(&place.backend, name.location()).unwrap();
    assert_eq!((found.held, found.holders.as_slice()), (3, &[pid][..]));
    fill(&mut writer, 41).unwrap();
    let full = fill(&mut writer, 42).unwrap_err();
    assert!(matches!(&full.kind, ErrorKind::SlotsHeld { holders, .. } if *holders == [pid]), "{full}");
    python.expect("drop", "done");
    fill(&mut writer, 42).unwrap();
    python.expect("sums", &format!("{} {}", 35 * 39, 35 * 40));
    writer.end().unwrap();
    python.expect("wait 42", "None");
    python.expect("facts", "42 1 False");
    python.expect("sums", &format!("{} {}", 35 * 39, 35 * 40));
    python.finish();
}

fn python_copies_frames(place: &Place) {
    let name = place.location("copied");
    let mut writer = options(place).copied(true).create::<u16, Ix2>(name.location(), (5, 7).f(), 4).unwrap();
    let mut python = attached(place, &name);
    for value in 1..40 {
        fill(&mut writer, value).unwrap();
        if value < 4 {
            python.expect(format!("hold {value}"), &(35 * value).to_string());
        }
    }
    python.expect("sums", "35 70 105");
    python.expect("hold 35", "gone");
    python.expect("hold 39", &(35 * 39).to_string());
    assert_eq!(inspect(&place.backend, name.location()).unwrap().held, 0);
    python.expect("drop", "done");
    python.finish();
}

/// Writes a frame for each word.
fn write_until_killed(arguments: &[String]) {
    let options = StreamOptions::new().directory(backend_of_child());
    let mut writer = options.create::<u16, Ix2>(arguments[0].as_str(), (5, 7).f(), 4).unwrap();
    loop {
        say(fill(&mut writer, 1).unwrap());
        hear();
    }
}

fn python_sees_the_end_of_a_writer(place: &Place) {
    let name = place.location("killed");
    let mut writer = Child::start(place, "stream-writer", &[name.as_str()]);
    writer.expect("1");
    let mut python = attached(place, &name);
    python.expect("wait 0", "1");
    python.expect("facts", "1 0 True");
    writer.kill();
    python.expect("wait 1", "None");
    python.expect("facts", "1 0 False");
    python.expect("hold 1", "35");
    let mut next = options(place).resume(true).create::<u16, Ix2>(name.location(), (5, 7).f(), 4).unwrap();
    fill(&mut next, 2).unwrap();
    python.expect("wait 1", "2");
    python.expect("facts", "2 0 True");
    python.finish();
}
