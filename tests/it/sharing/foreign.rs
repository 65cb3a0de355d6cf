//! Descriptors of other libraries in messages: they arrive with their notes beside arrays, are taken by their kind
//! only, and are closed when no receiver takes them.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use libtest_mimic::Trial;
use ndarray::{Ix1, Ix2};
use ndarray_shm::counted::{Channel, Foreign, ReceivedArray, Reclaim, SharingStrategy};
use ndarray_shm::{DType, Error, ErrorKind, FrozenArray, IntoError, Order};

use super::meeting::{Meeting, Traces, all, attach, leaving_nothing, share};
use super::troubles::{forged, send_descriptors, stranger};
use crate::support::child::{Role, hear, say};
use crate::support::{Place, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    place.trials(
        "sharing",
        "foreign",
        tests![
            foreign_descriptor_of_a_killed_sender_arrives_beside_arrays,
            one_value_is_sent_twice,
            foreign_descriptor_is_taken_by_its_kind_only,
            array_is_not_taken_as_foreign,
            received_foreign_descriptor_is_closed_when_dropped,
            malformed_and_unknown_parcels_lose_one_message_and_no_descriptor,
            impossible_values_are_refused,
            message_with_a_long_note_is_not_sent,
        ],
    )
}

pub const ROLES: &[(&str, Role)] = &[("send-foreign", send_foreign)];

const KIND: &str = "test-file";
/// A note with characters that JSON escapes.
const NOTE: &str = "{\"offset\": 8,\n \"device\": \"\u{fc}\u{0}\"}";

/// Creates a file without a name in the meeting's directory, so that its descriptors can be counted.
fn nameless_file(directory: &Path, text: &str) -> File {
    let path = directory.join("foreign");
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn foreign(meeting: &Meeting, text: &str) -> Foreign {
    let file = nameless_file(meeting.place.backend.path(), text);
    Foreign::new(KIND, DType::I16, &[2, 3], Order::F, NOTE, file).unwrap()
}

/// Returns the whole text of a foreign file.
fn text_of(foreign: Foreign) -> String {
    let mut file = foreign.into_descriptor();
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

fn descriptors(meeting: &Meeting) -> usize {
    Traces::of(&meeting.place.backend).descriptors()
}

fn refused<T: std::fmt::Debug>(result: Result<T, IntoError<ReceivedArray>>) -> (Error, ReceivedArray) {
    result.unwrap_err().into_parts()
}

/// A child that sends a foreign descriptor between two arrays, and then waits to be killed.
fn send_foreign(arguments: &[String]) {
    leaving_nothing(arguments, |backend, channel| {
        let file = nameless_file(backend.path(), "memory of a device");
        let foreign = Foreign::new(KIND, DType::I16, &[2, 3], Order::F, NOTE, file).unwrap();
        let counted = share(backend, SharingStrategy::FileDescriptor, 5_f32);
        let named = share(backend, SharingStrategy::FileSystem, 6_f32);
        let frozen = FrozenArray::<u8, _>::create_with(3, |mut view| view.fill(9)).unwrap();
        channel.send("mixed", &[&counted, &foreign, &named, &frozen]).unwrap();
        say("sent");
        hear();
    });
}

fn foreign_descriptor_of_a_killed_sender_arrives_beside_arrays(place: &Place) {
    let meeting = Meeting::new(place);
    let (mut child, channel) = meeting.child("send-foreign", &[]);
    child.expect("sent");
    child.kill();
    let received = channel.receive::<String>().unwrap();
    assert_eq!(received.message, "mixed");
    let [counted, foreign, named, frozen] = <[_; 4]>::try_from(received.arrays).unwrap();
    let kinds = [&counted, &foreign, &named, &frozen].map(|array| array.kind().map(str::to_owned));
    assert_eq!(kinds, [None, Some(KIND.to_owned()), None, None]);
    assert!(all(&attach::<f32>(counted), 5.0));
    assert!(all(&attach::<f32>(named), 6.0));
    assert_eq!(frozen.frozen::<u8, Ix1>().unwrap().sum(), 27);
    assert_eq!((foreign.dtype(), foreign.shape(), foreign.order()), (DType::I16, &[2, 3][..], Order::F));
    assert_eq!((foreign.strategy(), foreign.is_sealed()), (SharingStrategy::FileDescriptor, false));
    let foreign = foreign.foreign(KIND).unwrap();
    assert_eq!((foreign.dtype(), foreign.shape(), foreign.order()), (DType::I16, &[2, 3][..], Order::F));
    assert_eq!((foreign.kind(), foreign.note()), (KIND, NOTE));
    assert_eq!(text_of(foreign), "memory of a device");
    // The killed sender is still counted: the reclaim removes the name, once no process that another test spawns has a
    // copy.
    eventually("the name is reclaimed", || {
        Reclaim::new().run(&meeting.place.backend).unwrap();
        meeting.names() == 0
    });
    meeting.is_clean();
}

fn one_value_is_sent_twice(place: &Place) {
    let meeting = Meeting::new(place);
    let (here, there) = Channel::pair().unwrap();
    let sent = foreign(&meeting, "again");
    here.send("one", &[&sent, &sent]).unwrap();
    here.send("two", &[&sent]).unwrap();
    let identity = |file: &File| file.metadata().map(|facts| (facts.dev(), facts.ino())).unwrap();
    let expected = identity(sent.descriptor());
    assert_eq!(descriptors(&meeting), 1, "the duplicates are in the socket only");
    drop(sent);
    let mut received = there.receive::<String>().unwrap().arrays;
    received.extend(there.receive::<String>().unwrap().arrays);
    let received: Vec<Foreign> = received.into_iter().map(|array| array.foreign(KIND).unwrap()).collect();
    assert_eq!((received.len(), descriptors(&meeting)), (3, 3));
    assert!(received.iter().all(|foreign| identity(foreign.descriptor()) == expected));
    // What was received can be sent on.
    there.send("back", &[&received[2]]).unwrap();
    drop(received);
    let [back] = <[_; 1]>::try_from(here.receive::<String>().unwrap().arrays).unwrap();
    let back = back.foreign(KIND).unwrap();
    assert_eq!(back.note(), NOTE);
    assert_eq!(text_of(back), "again");
    meeting.is_clean();
}

fn foreign_descriptor_is_taken_by_its_kind_only(place: &Place) {
    let meeting = Meeting::new(place);
    let (here, there) = Channel::pair().unwrap();
    here.send(&(), &[&foreign(&meeting, "mine")]).unwrap();
    let [received] = <[_; 1]>::try_from(there.receive::<()>().unwrap().arrays).unwrap();
    let advice = |error: &Error| {
        assert!(
            matches!(error.kind, ErrorKind::Unsupported { .. }) && error.to_string().contains("foreign(\"test-file\")"),
            "{error}"
        );
    };
    let (error, received) = refused(received.attach::<i16, Ix2>());
    advice(&error);
    let (error, received) = refused(received.reader::<i16, Ix2>());
    advice(&error);
    let (error, received) = refused(received.frozen::<i16, Ix2>());
    advice(&error);
    let (error, received) = refused(received.foreign("test-fil"));
    advice(&error);
    let (error, received) = refused(received.directory(meeting.place.backend.clone()).foreign(""));
    advice(&error);
    assert_eq!(text_of(received.foreign(KIND).unwrap()), "mine");
    meeting.is_clean();
}

fn array_is_not_taken_as_foreign(place: &Place) {
    let meeting = Meeting::new(place);
    let (here, there) = Channel::pair().unwrap();
    for strategy in SharingStrategy::ALL {
        here.send(&(), &[&meeting.share(strategy, 1_f32)]).unwrap();
        let [received] = <[_; 1]>::try_from(there.receive::<()>().unwrap().arrays).unwrap();
        let (error, received) = refused(received.foreign(KIND));
        assert!(
            matches!(error.kind, ErrorKind::Unsupported { .. }) && error.to_string().contains("attach()"),
            "{error}"
        );
        assert!(all(&attach::<f32>(received), 1.0));
    }
    meeting.is_clean();
}

fn received_foreign_descriptor_is_closed_when_dropped(place: &Place) {
    let meeting = Meeting::new(place);
    let (here, there) = Channel::pair().unwrap();
    here.send(&(), &[&foreign(&meeting, "unwanted"), &foreign(&meeting, "unwanted too")]).unwrap();
    assert_eq!(descriptors(&meeting), 0);
    let received = there.receive::<()>().unwrap();
    assert_eq!(descriptors(&meeting), 2);
    drop(received);
    assert_eq!(descriptors(&meeting), 0);
    // A message that is never received keeps nothing when the channel has gone.
    here.send(&(), &[&foreign(&meeting, "unread")]).unwrap();
    drop((here, there));
    meeting.is_clean();
}

/// Returns a parcel in which `what` is replaced by `by`.
fn parcel_with(what: &str, by: &str) -> String {
    let parcel = r#"{"strategy":"foreign","dtype":"<i2","shape":[2,3],"order":"C","kind":"test-file","note":"x"}"#;
    let changed = parcel.replacen(what, by, 1);
    assert!(what.is_empty() || changed != parcel, "{what}");
    changed
}

fn malformed_and_unknown_parcels_lose_one_message_and_no_descriptor(place: &Place) {
    let meeting = Meeting::new(place);
    let file = nameless_file(meeting.place.backend.path(), "bytes");
    let long = format!("\"{}\"", "k".repeat(65));
    for (what, by) in [
        (r#","note":"x""#, ""),
        (r#""x""#, "7"),
        (r#""x""#, "null"),
        (r#""kind":"test-file","#, ""),
        (r#""test-file""#, "[]"),
        (r#""test-file""#, r#""""#),
        (r#""test-file""#, r#""Test""#),
        (r#""test-file""#, r#""test\n""#),
        (r#""test-file""#, &long),
        ("[2,3]", "[2,-3]"),
        ("[2,3]", "6"),
        ("<i2", "<i3"),
        (r#""C""#, r#""X""#),
        ("foreign", "by_magic"),
        ("foreign", ""),
    ] {
        let parcel = parcel_with(what, by);
        let (mut theirs, channel) = stranger();
        let good = parcel_with("", "");
        theirs.write_all(&forged(&format!(r#"{{"message":1,"arrays":[{good},{parcel}]}}"#))).unwrap();
        send_descriptors(&theirs, &[&file, &file]);
        theirs.write_all(&forged(&format!(r#"{{"message":2,"arrays":[{good}]}}"#))).unwrap();
        send_descriptors(&theirs, &[&file]);
        let error = channel.receive::<u32>().unwrap_err();
        assert!(
            matches!(error.kind, ErrorKind::Protocol { .. }) && error.to_string().contains("dropped"),
            "{parcel}: {error}"
        );
        assert_eq!(descriptors(&meeting), 1, "{parcel}");
        let received = channel.receive::<u32>().unwrap();
        assert_eq!((received.message, descriptors(&meeting)), (2, 2), "{parcel}");
        let [received] = <[_; 1]>::try_from(received.arrays).unwrap();
        assert_eq!(received.foreign(KIND).unwrap().note(), "x");
    }
    drop(file);
    meeting.is_clean();
}

fn impossible_values_are_refused(place: &Place) {
    let meeting = Meeting::new(place);
    let file = || nameless_file(meeting.place.backend.path(), "");
    for kind in ["", "CUDA", "a b", "\u{e4}", &"k".repeat(65)] {
        let error = Foreign::new(kind, DType::U8, &[1], Order::C, "", file()).unwrap_err();
        assert!(
            matches!(&error, Error { kind: ErrorKind::InvalidSetting { value, .. }, .. } if value == kind),
            "{error}"
        );
    }
    for shape in [&[usize::MAX, 2][..], &[usize::MAX], &[usize::MAX, 0, 2]] {
        let error = Foreign::new(KIND, DType::I64, shape, Order::C, "", file()).unwrap_err();
        assert!(
            matches!(&error, Error { kind: ErrorKind::TooLarge { shape: found, item: 8, .. }, .. } if found == shape),
            "{error}"
        );
    }
    let (mut theirs, channel) = stranger();
    let parcel = parcel_with("[2,3]", &format!("[{}]", usize::MAX));
    theirs.write_all(&forged(&format!(r#"{{"message":1,"arrays":[{parcel}]}}"#))).unwrap();
    send_descriptors(&theirs, &[&file()]);
    let [received] = <[_; 1]>::try_from(channel.receive::<u32>().unwrap().arrays).unwrap();
    let (error, received) = refused(received.foreign(KIND));
    assert!(matches!(error.kind, ErrorKind::TooLarge { .. }), "{error}");
    assert_eq!(descriptors(&meeting), 1, "and it is given back");
    drop(received);
    meeting.is_clean();
}

fn message_with_a_long_note_is_not_sent(place: &Place) {
    let meeting = Meeting::new(place);
    let (here, there) = Channel::pair().unwrap();
    let file = nameless_file(meeting.place.backend.path(), "");
    let long = Foreign::new(KIND, DType::U8, &[0], Order::C, "x".repeat(65 << 20), file).unwrap();
    let error = here.send("too long", &[&long]).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Protocol { .. }), "{error}");
    assert_eq!(descriptors(&meeting), 1);
    here.send("short", &[]).unwrap();
    assert_eq!(there.receive::<String>().unwrap().message, "short");
    drop(long);
    meeting.is_clean();
}
