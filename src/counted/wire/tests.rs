//! Messages that arrive whole, in parts, not at all, and without free descriptors.

use std::io::{Read, Seek, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::os::sockets::testing::{alone, file, leave_all_room, leave_room_for, no_children, open_descriptors};

const SOON: Duration = Duration::from_millis(20);
const LATE: Duration = Duration::from_secs(20);

fn pair() -> (Wire, Wire) {
    let (one, other) = os::pair().unwrap();
    (Wire::new(one, "one").unwrap(), Wire::new(other, "other").unwrap())
}

/// Returns a wire, and the other end of its connection as a bare socket.
fn half() -> (Wire, Socket) {
    let (one, other) = os::pair().unwrap();
    (Wire::new(one, "one").unwrap(), other)
}

fn send_bytes(socket: &Socket, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        bytes = &bytes[socket.send(&[IoSlice::new(bytes)], &[], deadline(LATE)).unwrap()..];
    }
}

fn frame(body: &[u8]) -> Vec<u8> {
    [&prefix(body.len()).unwrap(), body].concat()
}

/// Receives the next message, with this many files.
fn receive(wire: &Wire, files: usize, limit: Duration) -> Result<(Vec<u8>, Vec<File>)> {
    wire.receive(limit, |body| Ok((body.to_vec(), files)))
}

fn body(wire: &Wire) -> Vec<u8> {
    receive(wire, 0, LATE).unwrap().0
}

/// Returns files that each contain their number.
fn numbered(count: usize) -> Vec<File> {
    let make = |number: usize| {
        let mut file = tempfile::tempfile().unwrap();
        write!(file, "{number}").unwrap();
        file
    };
    (0..count).map(make).collect()
}

fn assert_numbered(files: Vec<File>, count: usize) {
    assert_eq!(files.len(), count);
    for (number, mut file) in files.into_iter().enumerate() {
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, number.to_string());
    }
}

fn send_numbered(wire: &Wire, body: &[u8], count: usize) {
    let files = numbered(count);
    wire.send(body, &files.iter().collect::<Vec<_>>(), LATE).unwrap();
}

#[test]
fn message_arrives_as_it_was_sent() {
    let (one, other) = pair();
    for length in [0, 1, 7, 8, 9, 4096, 3 * STEP + 5] {
        let sent: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| one.send(&sent, &[], LATE).unwrap());
            assert!(body(&other) == sent, "{length} bytes");
        });
    }
    assert_eq!(one.socket.peer().unwrap().user, other.socket.peer().unwrap().user);
    assert_eq!(&frame(b"body"), b"NDSM\x04\0\0\0body");
}

#[test]
fn message_may_arrive_byte_by_byte() {
    let (wire, raw) = half();
    let bytes = frame(b"letter");
    for byte in &bytes {
        assert!(matches!(receive(&wire, 0, Duration::from_millis(1)).unwrap_err().kind, ErrorKind::TimedOut { .. }));
        send_bytes(&raw, &[*byte]);
    }
    assert_eq!(body(&wire), b"letter");
    send_bytes(&raw, &[bytes.clone(), bytes].concat());
    assert_eq!((body(&wire), body(&wire)), (b"letter".to_vec(), b"letter".to_vec()));
}

#[test]
fn incomplete_message_reads_as_closed() {
    let bytes = frame(b"letter");
    for length in 0..bytes.len() {
        let (wire, raw) = half();
        send_bytes(&raw, &frame(b"first"));
        send_bytes(&raw, &bytes[..length]);
        drop(raw);
        assert_eq!(body(&wire), b"first");
        for _again in 0..2 {
            let error = receive(&wire, 0, LATE).unwrap_err();
            assert!(matches!(error.kind, ErrorKind::Closed { .. }), "{length} bytes: {error:?}");
        }
    }
}

#[test]
fn foreign_protocol_is_refused_at_its_first_wrong_byte() {
    for at in 0..MAGIC.len() {
        let (wire, raw) = half();
        let mut begin = MAGIC[..=at].to_vec();
        begin[at] ^= 1;
        send_bytes(&raw, &begin);
        let error = receive(&wire, 0, LATE).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Protocol { .. }) && error.to_string().contains("NDSM"), "{error}");
        send_bytes(&raw, &frame(b"a good one"));
        assert!(matches!(receive(&wire, 0, LATE).unwrap_err().kind, ErrorKind::Protocol { .. }), "nothing tells where a message begins");
        wire.send(b"still heard", &[], LATE).unwrap();
    }
}

#[test]
fn too_long_body_is_neither_sent_nor_received() {
    let (wire, raw) = half();
    let error = wire.send(&vec![0; LONGEST_BODY + 1], &[], LATE).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Protocol { .. }) && error.to_string().contains("67108865"), "{error}");
    assert_eq!(raw.receive(&mut [0], deadline(SOON)).unwrap_err().kind(), io::ErrorKind::TimedOut, "nothing was sent");
    wire.send(b"next", &[], LATE).unwrap();

    for length in [u32::try_from(LONGEST_BODY).unwrap() + 1, u32::MAX] {
        let (wire, raw) = half();
        send_bytes(&raw, &[MAGIC, length.to_le_bytes()].concat());
        assert!(matches!(receive(&wire, 0, LATE).unwrap_err().kind, ErrorKind::Protocol { .. }));
    }
    let (wire, raw) = half();
    send_bytes(&raw, &prefix(LONGEST_BODY).unwrap());
    assert!(matches!(receive(&wire, 0, SOON).unwrap_err().kind, ErrorKind::TimedOut { .. }), "it may come");
}

#[test]
fn messages_of_many_senders_do_not_mix() {
    const EACH: usize = 50;
    let (one, other) = pair();
    let message = |sender: u8, number: usize| vec![sender; 1 + number * 997];
    std::thread::scope(|scope| {
        for (from, to) in [(&one, &other), (&other, &one)] {
            for sender in 0..4 {
                scope.spawn(move || {
                    (0..EACH).for_each(|number| from.send(&message(sender, number), &[], Duration::MAX).unwrap());
                });
            }
            scope.spawn(move || {
                let mut next = [0; 4];
                for _ in 0..4 * EACH {
                    let body = body(to);
                    let number = &mut next[usize::from(body[0])];
                    assert!(body == message(body[0], *number));
                    *number += 1;
                }
            });
        }
    });
}

#[test]
fn many_receivers_get_every_message_once() {
    let (one, other) = pair();
    let mut got: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let receivers: Vec<_> =
            (0..4).map(|_| scope.spawn(|| (0..25).map(|_| body(&other)).collect::<Vec<_>>())).collect();
        (0..100_u8).for_each(|number| one.send(&[number], &[], LATE).unwrap());
        receivers.into_iter().flat_map(|receiver| receiver.join().unwrap()).collect()
    });
    got.sort();
    assert_eq!(got, (0..100_u8).map(|number| vec![number]).collect::<Vec<_>>());
}

#[test]
fn receiver_without_limit_does_not_delay_one_with_a_limit() {
    let (one, other) = pair();
    let waiting = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| {
            other.receive(Duration::MAX, |body| {
                waiting.store(true, Ordering::SeqCst);
                Ok((body.to_vec(), 0))
            })
        });
        assert!(matches!(receive(&other, 0, SOON).unwrap_err().kind, ErrorKind::TimedOut { .. }));
        one.send(b"patience", &[], LATE).unwrap();
        assert_eq!(patient.join().unwrap().unwrap().0, b"patience");
    });
    assert!(waiting.load(Ordering::SeqCst));
}

#[test]
fn message_sent_in_part_ends_its_direction() {
    let (one, other) = pair();
    let error = one.send(&vec![0; 8 << 20], &[], SOON).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::TimedOut { .. }), "{error:?}");
    let error = one.send(b"next", &[], LATE).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Protocol { .. }) && error.to_string().contains("in part"), "{error}");
    assert!(matches!(receive(&other, 0, LATE).unwrap_err().kind, ErrorKind::Closed { .. }), "the receiver does not wait for the rest");
    other.send(b"the other way", &[], LATE).unwrap();
    assert_eq!(body(&one), b"the other way");
}

#[test]
fn channel_still_works_when_no_byte_was_sent() {
    let (wire, raw) = half();
    let mut filled = 0;
    while let Ok(sent) = wire.socket.send(&[IoSlice::new(&[0; 4096])], &[], deadline(SOON)) {
        filled += sent;
    }
    assert!(matches!(wire.send(b"later", &[], SOON).unwrap_err().kind, ErrorKind::TimedOut { .. }));
    let mut rest = vec![0; filled];
    let mut read = 0;
    while read < filled {
        read += raw.receive(&mut rest[read..], deadline(LATE)).unwrap();
    }
    wire.send(b"now", &[], LATE).unwrap();
    assert_eq!(body(&Wire::new(raw, "raw").unwrap()), b"now");
}

#[test]
fn closed_end_is_an_error_for_sender_and_receiver() {
    let _no_children = no_children();
    let (one, other) = pair();
    one.send(b"last", &[], LATE).unwrap();
    drop(one);
    assert!(matches!(other.send(b"answer", &[], LATE).unwrap_err().kind, ErrorKind::Closed { .. }));
    assert_eq!(body(&other), b"last", "what was sent before can be read");
    let error = receive(&other, 0, Duration::MAX).unwrap_err();
    assert!(matches!(error.kind, ErrorKind::Closed { .. }), "{error:?}");
    assert_eq!(error.to_string(), "`other`: the other end of the channel was closed");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::BrokenPipe);
    std::thread::scope(|scope| {
        let (one, other) = pair();
        let waiting = scope.spawn(move || receive(&one, 0, Duration::MAX).unwrap_err());
        drop(other);
        assert!(matches!(waiting.join().unwrap().kind, ErrorKind::Closed { .. }), "also while it waits");
    });
}

#[test]
fn undecodable_message_stays_the_next_one() {
    let (one, other) = pair();
    one.send(b"letter", &[], LATE).unwrap();
    let refuse = |_: &[u8]| Err::<((), usize), _>(other.protocol("not today"));
    assert!(matches!(other.receive(LATE, refuse).unwrap_err().kind, ErrorKind::Protocol { .. }));
    assert_eq!(body(&other), b"letter");
}

#[test]
fn files_arrive_with_their_message() {
    let (one, other) = pair();
    for count in [1, 63, 64, 65, 128, 200] {
        std::thread::scope(|scope| {
            scope.spawn(|| send_numbered(&one, b"look", count));
            let (letter, files) = receive(&other, count, LATE).unwrap();
            assert_eq!(letter, b"look");
            assert_numbered(files, count);
        });
        one.send(b"after", &[], LATE).unwrap();
        assert_eq!(body(&other), b"after");
    }
}

#[test]
fn message_is_kept_until_its_files_arrive() {
    let (wire, raw) = half();
    send_bytes(&raw, &frame(b"look"));
    assert!(matches!(receive(&wire, 70, SOON).unwrap_err().kind, ErrorKind::TimedOut { .. }));
    let files = numbered(70);
    let files: Vec<&File> = files.iter().collect();
    raw.send(&[IoSlice::new(&[64])], &files[..64], deadline(LATE)).unwrap();
    assert!(matches!(receive(&wire, 70, SOON).unwrap_err().kind, ErrorKind::TimedOut { .. }));
    raw.send(&[IoSlice::new(&[6])], &files[64..], deadline(LATE)).unwrap();
    let (letter, files) = receive(&wire, 70, LATE).unwrap();
    assert_eq!(letter, b"look");
    assert_numbered(files, 70);
}

#[test]
fn wrong_number_of_files_breaks_the_channel() {
    let (one, other) = pair();
    send_numbered(&one, b"look", 3);
    assert!(matches!(receive(&other, 2, LATE).unwrap_err().kind, ErrorKind::Protocol { .. }));
    assert!(matches!(receive(&other, 3, LATE).unwrap_err().kind, ErrorKind::Protocol { .. }));
}

#[test]
fn receiver_without_descriptors_gets_the_message_later() {
    if !alone("counted::wire::tests::receiver_without_descriptors_gets_the_message_later") {
        return;
    }
    let (one, other) = pair();
    let before = open_descriptors();
    for count in [1, 64, 100, 200] {
        send_numbered(&one, b"look", count);
        let mut asked = 0;
        for room in [0, 1, count / 2, count - 1] {
            if room < count {
                asked += 1;
                leave_room_for(room);
                let error = receive(&other, count, LATE).unwrap_err();
                assert!(matches!(error.kind, ErrorKind::TooManyOpenFiles { .. }), "{error:?}");
                leave_all_room();
                assert_eq!(open_descriptors(), before, "{count} files, room for {room}");
            }
        }
        assert!(asked > 0);
        // This time room is made by closing other files instead of raising the limit.
        let others: Vec<File> = (0..count).map(|_| File::open("/dev/null").unwrap()).collect();
        leave_room_for(0);
        assert!(matches!(receive(&other, count, LATE).unwrap_err().kind, ErrorKind::TooManyOpenFiles { .. }));
        drop(others);
        let (letter, files) = receive(&other, count, LATE).unwrap();
        leave_all_room();
        assert_eq!(letter, b"look");
        assert_numbered(files, count);
        assert_eq!(open_descriptors(), before);
    }
}

#[test]
fn dropping_the_wire_closes_files_not_received() {
    let _no_children = no_children();
    let is_closed = |socket: &Socket| socket.receive(&mut [0], deadline(SOON)).is_ok_and(|received| received == 0);
    for in_part in [true, false] {
        let (wire, raw) = half();
        let (end, watched) = os::pair().unwrap();
        send_bytes(&raw, &frame(b"look"));
        let files = numbered(63);
        let end = file(end);
        let files: Vec<&File> = files.iter().chain([&end]).collect();
        raw.send(&[IoSlice::new(&[64])], &files, deadline(LATE)).unwrap();
        drop(end);
        if in_part {
            assert!(matches!(receive(&wire, 65, SOON).unwrap_err().kind, ErrorKind::TimedOut { .. }));
            assert_eq!(wire.inbox.take(None).unwrap().thing.files.len(), 64, "they are kept until the message is complete");
        }
        assert!(!is_closed(&watched));
        drop(wire);
        assert!(is_closed(&watched), "in part: {in_part}");
    }
}

#[test]
fn forked_child_must_adopt_the_wire() {
    let (mut one, other) = pair();
    one.generation += 1; // a forked child sees another fork generation
    for error in [one.send(b"mine", &[], LATE).unwrap_err(), receive(&one, 0, LATE).unwrap_err()] {
        assert!(matches!(error.kind, ErrorKind::Unsupported { .. }) && error.to_string().contains("fork"), "{error}");
    }
    let one = one.adopt();
    one.send(b"mine", &[], LATE).unwrap();
    assert_eq!(body(&other), b"mine");
    let turn = one.outbox.take(None).unwrap();
    std::mem::forget(turn); // as if another thread of the parent were sending during the fork
    let one = one.adopt();
    assert!(matches!(one.send(b"mine", &[], LATE).unwrap_err().kind, ErrorKind::Protocol { .. }));
    other.send(b"heard", &[], LATE).unwrap();
    assert_eq!(body(&one), b"heard");
}
