//! Killed senders, and senders of false messages.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use ndarray::{Ix1, Ix2};
use ndarray_shm::counted::{Channel, ReceivedArray, Reclaim, SharingStrategy};
use ndarray_shm::{Error, ErrorKind, FrozenArray, IntoError, Pages, RefcountedArray};

use super::meeting::{Meeting, all, attach, leaving_nothing, options, share, strategies};
use crate::support::child::{Role, hear, say};
use crate::support::{Place, eventually};
use crate::tests;

pub fn trials(place: &Place) -> Vec<Trial> {
    let mut trials = place.trials(
        "sharing",
        "troubles",
        tests![
            array_of_a_killed_sender_arrives,
            unused_handle_in_a_message_expires,
            partial_message_of_a_killed_sender_never_arrives,
            forged_messages_are_refused,
            array_description_in_a_message_is_checked,
            closed_channel_leaves_unread_handles_in_flight,
        ],
    );
    if cfg!(target_os = "linux") {
        trials.extend(place.trials(
            "sharing",
            "troubles",
            tests![
                descriptor_of_another_file_is_refused,
                holes_of_an_array_received_by_descriptor_are_filled,
                descriptor_attaches_without_the_senders_directory,
            ],
        ));
    }
    trials
}

pub const ROLES: &[(&str, Role)] = &[("send-and-hang", send_and_hang), ("send-for-ever", send_for_ever)];

/// A child that sends an array, and holds it until it is killed.
fn send_and_hang(arguments: &[String]) {
    leaving_nothing(arguments, |backend, channel| {
        let array = share(backend, arguments[1].parse().unwrap(), 8_f32);
        channel.send("take it", &[&array]).unwrap();
        say("sent");
        hear();
    });
}

fn array_of_a_killed_sender_arrives(place: &Place) {
    for strategy in strategies() {
        // A child that another test is spawning has a copy of every descriptor until its program runs, and so keeps the
        // dead sender's lease. Then dropping the array leaves its name to the next reclaim. That happens once in dozens
        // of rounds.
        assert!((0..10).any(|_| dropping_removes_what_a_killed_sender_sent(place, strategy)), "{strategy}");
    }
}

fn dropping_removes_what_a_killed_sender_sent(place: &Place, strategy: SharingStrategy) -> bool {
    let meeting = Meeting::new(place);
    let (mut child, channel) = meeting.child("send-and-hang", &[strategy.as_str()]);
    child.expect("sent");
    child.kill();
    let reclaimed = Reclaim::new().run(&meeting.place.backend).unwrap();
    assert_eq!(reclaimed.in_flight, usize::from(strategy == SharingStrategy::FileSystem));
    assert!(reclaimed.removed.is_empty(), "{reclaimed:?}");
    let received = channel.receive::<String>().unwrap();
    let array = attach::<f32>(received.arrays.into_iter().next().unwrap());
    assert!(all(&array, 8.0));
    assert!(matches!(channel.receive::<String>().unwrap_err().kind, ErrorKind::Closed { .. }));
    drop(array); // the dead sender is still counted, and must not keep the name
    let removed = meeting.names() == 0;
    eventually("no process has a copy of a descriptor", || {
        Reclaim::new().run(&meeting.place.backend).unwrap();
        meeting.names() == 0
    });
    meeting.is_clean();
    removed
}

fn unused_handle_in_a_message_expires(place: &Place) {
    let meeting = Meeting::new(place);
    let array = meeting.share(SharingStrategy::FileSystem, 1_f32);
    let grace = Duration::from_millis(200);
    let options = ndarray_shm::counted::HandleOptions::new().grace(grace);
    let (here, there) = Channel::pair().unwrap();
    let begin = Instant::now();
    here.send(&array.handle_with(options).unwrap(), &[]).unwrap();
    drop(array);
    let names = meeting.names();
    assert!(names == 1 || begin.elapsed() >= grace, "{names}");
    eventually("the handle expires", || {
        Reclaim::new().run(&meeting.place.backend).unwrap();
        meeting.names() == 0
    });
    assert!(begin.elapsed() >= grace, "{:?}", begin.elapsed());
    let handle = there.receive::<ndarray_shm::counted::Handle>().unwrap().message;
    assert!(handle.attach::<f32, Ix2>().unwrap_err().is_not_found());
    meeting.is_clean();
}

/// A child that sends a message that exceeds every socket buffer, with an array of each strategy.
fn send_for_ever(arguments: &[String]) {
    leaving_nothing(arguments, |backend, channel| {
        let arrays: Vec<RefcountedArray<f32, Ix2>> =
            strategies().map(|strategy| share(backend, strategy, 1.0)).collect();
        let all: Vec<_> = arrays.iter().map(|array| array as _).collect();
        channel.send("small", &all).unwrap();
        say("begins");
        channel.send(&"x".repeat(8 << 20), &all).unwrap();
        say("ends");
    });
}

fn partial_message_of_a_killed_sender_never_arrives(place: &Place) {
    let meeting = Meeting::new(place);
    let (mut child, channel) = meeting.child("send-for-ever", &[]);
    child.expect("begins");
    assert_eq!(channel.receive::<String>().unwrap().message, "small");
    // Once a part has arrived, the sender is in the middle of the message. It stays there, since no process receives
    // the rest.
    let socket = channel.into_socket();
    eventually("the message begins", || {
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        rustix::net::recv(&socket, &mut [0; 64], flags).is_ok_and(|(_, arrived)| arrived > 0)
    });
    let channel = Channel::from_socket(socket).unwrap();
    assert_eq!(child.line_within(Duration::from_millis(20)), None, "the message is not complete");
    child.kill();
    assert!(matches!(channel.receive::<String>().unwrap_err().kind, ErrorKind::Closed { .. }));
    assert!(matches!(channel.receive::<String>().unwrap_err().kind, ErrorKind::Closed { .. }), "and stays so");
    // The handle in the partial message protects the array for 30 seconds. The test checks that without waiting.
    let reclaimed = Reclaim::new().run(&meeting.place.backend).unwrap();
    assert_eq!((reclaimed.in_flight, reclaimed.removed.len()), (1, 0), "{reclaimed:?}");
    assert!(reclaimed.next.is_some_and(|next| next <= Duration::from_secs(30)));
}

/// Returns a forged message: a valid header with this body.
pub fn forged(body: &str) -> Vec<u8> {
    [b"NDSM", &u32::try_from(body.len()).unwrap().to_le_bytes()[..], body.as_bytes()].concat()
}

/// Returns a channel, and its other end as a plain socket for forged bytes.
pub fn stranger() -> (std::os::unix::net::UnixStream, Channel) {
    let (theirs, ours) = std::os::unix::net::UnixStream::pair().unwrap();
    (theirs, Channel::from_socket(ours).unwrap())
}

fn forged_messages_are_refused(place: &Place) {
    use std::io::Write;
    let meeting = Meeting::new(place);
    let sealed = r#"{"strategy":"sealed","dtype":"<f4","shape":[2],"order":"C"}"#;
    if cfg!(target_os = "linux") {
        // The byte that should carry a descriptor carries none.
        let (mut theirs, channel) = stranger();
        theirs.write_all(&forged(&format!(r#"{{"message":1,"arrays":[{sealed}]}}"#))).unwrap();
        theirs.write_all(&[1]).unwrap();
        let error = channel.receive::<u32>().unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Protocol { .. }), "{error}");
        assert!(matches!(channel.receive::<u32>().unwrap_err().kind, ErrorKind::Protocol { .. }), "and stays so");
    }
    // A body that is no valid message is not consumed by a failed receive.
    for body in [r#"{"message":1}"#, r#"{"arrays":[]}"#, "\u{0}"] {
        let (mut theirs, channel) = stranger();
        theirs.write_all(&forged(body)).unwrap();
        for _ in 0..2 {
            let error = channel.receive::<u32>().unwrap_err();
            assert!(matches!(error.kind, ErrorKind::Message { .. }), "{body}: {error}");
        }
    }
    // A message with an invalid array is dropped, and the next message arrives.
    for array in [
        "{}",
        r#"{"strategy":"file_system","dtype":"<f3","shape":[2],"order":"C","handle":"x"}"#,
        r#"{"strategy":"file_system","dtype":"<f4","shape":[-2],"order":"C","handle":"x"}"#,
        r#"{"strategy":"file_system","dtype":"<f4","shape":[2],"order":"C","handle":"x"}"#,
    ] {
        let (mut theirs, channel) = stranger();
        theirs.write_all(&forged(&format!(r#"{{"message":1,"arrays":[{array}]}}"#))).unwrap();
        theirs.write_all(&forged(r#"{"message":2,"arrays":[]}"#)).unwrap();
        let error = channel.receive::<u32>().unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Protocol { .. }), "{array}: {error}");
        assert_eq!(channel.receive::<u32>().unwrap().message, 2, "{array}");
    }
    // A length beyond the limit is refused before memory is allocated for it.
    let (mut theirs, channel) = stranger();
    theirs.write_all(&[b"NDSM", &u32::MAX.to_le_bytes()[..]].concat()).unwrap();
    assert!(matches!(channel.receive::<u32>().unwrap_err().kind, ErrorKind::Protocol { .. }));
    meeting.is_clean();
}

/// Receives an array from a message in which `what` is replaced by `lie`.
fn with_lie(array: &RefcountedArray<f32, Ix2>, what: &str, lie: &str) -> ReceivedArray {
    use std::io::Write;
    let handle = array.handle().unwrap();
    let truth = format!(r#"{{"strategy":"file_system","dtype":"<f4","shape":[5,5],"order":"C","handle":"{handle}"}}"#);
    let parcel = truth.replacen(what, lie, 1);
    assert_ne!(parcel, truth);
    let (mut theirs, channel) = stranger();
    theirs.write_all(&forged(&format!(r#"{{"message":null,"arrays":[{parcel}]}}"#))).unwrap();
    channel.receive::<()>().unwrap().arrays.into_iter().next().unwrap()
}

fn array_description_in_a_message_is_checked(place: &Place) {
    let meeting = Meeting::new(place);
    let array = meeting.share(SharingStrategy::FileSystem, 1_f32);
    let received = with_lie(&array, "[5,5]", "[1000,1000]");
    assert_eq!(received.shape(), [1000, 1000], "the message's shape");
    let attached = attach::<f32>(received);
    assert_eq!(attached.shape(), [5, 5], "the array's own shape");
    drop(attached);
    let received = with_lie(&array, "<f4", "<f8");
    let error = received.attach::<f64, Ix2>().unwrap_err();
    assert!(matches!(error.error().kind, ErrorKind::DTypeMismatch { .. }), "{error}");
    assert!(all(&attach::<f32>(error.into_inner()), 1.0));
    // A handle with another array's number.
    let id: String = array.handle().unwrap().to_string().split(':').nth(2).unwrap().to_owned();
    let received = with_lie(&array, &id, &id.chars().rev().collect::<String>());
    let error = received.attach::<f32, Ix2>().unwrap_err();
    assert_eq!(error.error().kind, ErrorKind::HandleSpent, "{error}");
    drop(error);
    assert_eq!(array.refcount(), 1);
    drop(array);
    // A handle that was issued only for its number and never attached stays in flight.
    eventually("no process has a copy of a descriptor", || {
        Reclaim::new().run(&meeting.place.backend).unwrap().in_flight == 1
    });
}

fn closed_channel_leaves_unread_handles_in_flight(place: &Place) {
    for strategy in strategies() {
        let meeting = Meeting::new(place);
        let (here, there) = Channel::pair().unwrap();
        let array = meeting.share(strategy, 1_f32);
        here.send("one", &[&array]).unwrap();
        here.send("two", &[&array]).unwrap();
        // The first message is received and dropped with its array. The second is unread when the channel closes.
        drop(there.receive::<String>().unwrap());
        drop((here, there));
        let unread = usize::from(strategy == SharingStrategy::FileSystem);
        assert_eq!((array.refcount(), array.in_flight()), (1, unread), "closing the channel does not read messages");
        drop(array);
        if unread == 0 {
            meeting.is_clean();
        }
    }
}

/// Sends the descriptors of a forged message: at most four.
#[cfg(target_os = "linux")]
pub fn send_descriptors(theirs: &std::os::unix::net::UnixStream, files: &[&std::fs::File]) {
    use std::os::fd::AsFd;
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    let count = [u8::try_from(files.len()).unwrap()];
    let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&files)));
    let byte = [std::io::IoSlice::new(&count)];
    rustix::net::sendmsg(theirs, &byte, &mut control, rustix::net::SendFlags::empty()).unwrap();
}

/// Receives an array from a forged message with this file as its descriptor.
#[cfg(target_os = "linux")]
fn announced(parcel: &str, file: &std::fs::File) -> ReceivedArray {
    use std::io::Write;
    let (mut theirs, channel) = stranger();
    theirs.write_all(&forged(&format!(r#"{{"message":null,"arrays":[{parcel}]}}"#))).unwrap();
    send_descriptors(&theirs, &[file]);
    channel.receive::<()>().unwrap().arrays.into_iter().next().unwrap()
}

#[cfg(target_os = "linux")]
fn descriptor_of_another_file_is_refused(place: &Place) {
    let meeting = Meeting::new(place);
    let directory = meeting.place.directory().display().to_string();
    let counted = format!(
        r#"{{"strategy":"file_descriptor","dtype":"<f4","shape":[5,5],"order":"C","backend":"x","directory":"{directory}","location":"x"}}"#
    );
    let sealed = r#"{"strategy":"sealed","dtype":"<f4","shape":[5,5],"order":"C"}"#;
    let name = meeting.place.location("plain");
    drop(meeting.place.options().create::<f32, _>(name.location(), (5, 5)).unwrap());
    let plain = std::fs::File::options().read(true).write(true).open(meeting.place.path(&name)).unwrap();
    let refused = |result: Result<(), IntoError<ReceivedArray>>| Error::from(result.unwrap_err());
    let attach = |received: ReceivedArray| refused(received.attach::<f32, Ix2>().map(drop));
    let error = attach(announced(&counted, &plain));
    assert_eq!(error.kind, ErrorKind::NotCounted, "{error}");
    let error = refused(announced(&counted, &plain).reader::<f32, Ix2>().map(drop));
    assert_eq!(error.kind, ErrorKind::NotCounted, "{error}");
    let frozen = |received: ReceivedArray| refused(received.frozen::<f32, Ix2>().map(drop));
    let error = frozen(announced(sealed, &plain));
    assert!(
        matches!(error.kind, ErrorKind::Unsupported { .. }) && error.to_string().contains("F_SEAL_WRITE"),
        "{error}"
    );
    // The file is sealed, but shorter than the message says.
    let shorter = FrozenArray::<f32, _>::create_with((5, 4), |_| {}).unwrap();
    let error = frozen(announced(sealed, shorter.file().unwrap()));
    assert!(matches!(error.kind, ErrorKind::SizeMismatch { expected: 100, found: 80, .. }), "{error}");
    let error = attach(announced(&counted, shorter.file().unwrap()));
    assert!(error.kind == ErrorKind::NotCounted || matches!(error.kind, ErrorKind::PermissionDenied { .. }), "{error}");
    // The file is a counted array, but the message gives another name.
    let array = meeting.share(SharingStrategy::FileSystem, 1_f32);
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(meeting.place.directory().join(array.location().unwrap().as_str()));
    let error = attach(announced(&counted, &file.unwrap()));
    assert!(
        matches!(&error, Error { kind: ErrorKind::Trailer { reason, .. }, .. } if reason.contains("made for the name")),
        "{error}"
    );
    assert_eq!(array.refcount(), 1);
    drop((array, plain, name));
    meeting.is_clean();
}

#[cfg(target_os = "linux")]
fn holes_of_an_array_received_by_descriptor_are_filled(place: &Place) {
    if !place.has_holes() {
        return;
    }
    let meeting = Meeting::new(place);
    let (here, there) = Channel::pair().unwrap();
    let sparse = options(&meeting.place.backend).pages(Pages::Sparse);
    let array = sparse.share::<u8, Ix1>(SharingStrategy::FileDescriptor, 1 << 20).unwrap();
    assert!(array.is_sparse().unwrap());
    here.send(&(), &[&array]).unwrap();
    let received = there.receive::<()>().unwrap().arrays.into_iter().next().unwrap();
    let same = received.attach::<u8, Ix1>().unwrap();
    assert!(!same.is_sparse().unwrap(), "attaching fills holes, so that no access raises a signal");
    drop((array, same));
    meeting.is_clean();
}

#[cfg(target_os = "linux")]
fn descriptor_attaches_without_the_senders_directory(place: &Place) {
    let meeting = Meeting::new(place);
    let (here, there) = Channel::pair().unwrap();
    let array = meeting.share(SharingStrategy::FileDescriptor, 2_f32);
    here.send(&(), &[&array, &array]).unwrap();
    // The receiver has no such directory, as in another container.
    let gone = tempfile::tempdir().unwrap().path().to_owned();
    let nowhere = ndarray_shm::Directory::new("nowhere", gone);
    let received = there.receive::<()>().unwrap().arrays;
    let [one, other] = <[_; 2]>::try_from(received).unwrap().map(|received| received.directory(nowhere.clone()));
    let same = attach::<f32>(one);
    assert!(all(&same, 2.0));
    drop(same);
    assert_eq!(other.reader::<f32, Ix2>().unwrap().view().sum(), 50.0);
    drop(array);
    meeting.is_clean();
}
