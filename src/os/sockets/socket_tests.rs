//! Bytes and files sent through sockets.

use std::io::{ErrorKind, IoSlice, Read, Seek, Write};
use std::time::Duration;

use super::*;
use crate::os::sockets::testing::{
    alone, child, file, inherited, leave_all_room, leave_room_for, no_children, open_descriptors,
};

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(20)
}

fn late() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn send(socket: &Socket, bytes: &[u8], files: &[&File]) -> io::Result<usize> {
    socket.send(&[IoSlice::new(bytes)], files, Some(late()))
}

/// Files that each hold their own number.
fn numbered(count: usize) -> Vec<File> {
    let make = |number: usize| {
        let mut file = tempfile::tempfile().unwrap();
        write!(file, "{number}").unwrap();
        file
    };
    (0..count).map(make).collect()
}

fn number(mut file: &File) -> usize {
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text.parse().unwrap()
}

fn send_numbered(socket: &Socket, count: usize) {
    let files = numbered(count);
    send(socket, &[u8::try_from(count).unwrap()], &files.iter().collect::<Vec<_>>()).unwrap();
}

#[test]
fn full_and_empty_sockets_time_out() {
    let _guard = no_children();
    let (one, other) = pair().unwrap();
    assert_eq!(one.receive(&mut [0], Some(soon())).unwrap_err().kind(), ErrorKind::TimedOut);
    let full = loop {
        if let Err(error) = one.send(&[IoSlice::new(&[0; 4096])], &[], Some(soon())) {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::TimedOut);
    assert!(other.receive(&mut [0; 4096], Some(late())).unwrap() > 0);
    drop(other);
    assert_eq!(send(&one, b"a", &[]).unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert_eq!(
        one.receive(&mut [0], Some(late())).unwrap_err().kind(),
        ErrorKind::ConnectionReset,
        "it had not read all"
    );
    assert_eq!(one.receive(&mut [0], Some(late())).unwrap(), 0);
}

#[test]
fn socket_that_is_no_stream_is_refused() {
    let datagrams = std::os::unix::net::UnixDatagram::unbound().unwrap();
    let socket = Socket::from(OwnedFd::from(datagrams));
    assert_eq!(socket.require_stream().unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(Socket::from(OwnedFd::from(File::open("/dev/null").unwrap())).require_stream().is_err());
    let (one, _other) = UnixStream::pair().unwrap();
    Socket::from(one).require_stream().unwrap();
}

#[test]
fn peer_of_a_pair_is_this_process() {
    let (one, _other) = pair().unwrap();
    let peer = one.peer().unwrap();
    assert_eq!(peer.user, crate::os::user_id());
    assert!(peer.process.is_none_or(|process| process == std::process::id()));
}

#[test]
fn another_process_receives_files_and_answers() {
    const NAME: &str = "os::sockets::socket::tests::another_process_receives_files_and_answers";
    if let Some(socket) = inherited() {
        let files = socket.receive_files(3, Some(late())).unwrap();
        let numbers: Vec<usize> = files.iter().map(number).collect();
        for file in &files {
            assert!(rustix::io::fcntl_getfd(file).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        }
        send(&socket, format!("{numbers:?}").as_bytes(), &[]).unwrap();
        return;
    }
    let (own, others) = pair().unwrap();
    let mut child = child(NAME, others);
    if SOCKETS_CARRY_FILES {
        send_numbered(&own, 3);
        let mut answer = [0; 9];
        let mut length = 0;
        while length < answer.len() {
            length += match own.receive(&mut answer[length..], Some(late())).unwrap() {
                0 => break,
                received => received,
            };
        }
        assert_eq!(&answer, b"[0, 1, 2]");
    }
    assert_eq!(child.wait().unwrap().success(), SOCKETS_CARRY_FILES);
}

#[test]
fn files_without_room_for_them_stay_in_the_socket() {
    if !alone("os::sockets::socket::tests::files_without_room_for_them_stay_in_the_socket") {
        return;
    }
    let (one, other) = pair().unwrap();
    let before = open_descriptors();
    send_numbered(&one, 64);
    assert_eq!(send(&one, b"after", &[]).unwrap(), 5);
    assert_eq!(open_descriptors(), before, "the sender has closed its own");

    for room in [0, 1, 40, 63] {
        leave_room_for(room);
        let error = other.receive_files(64, Some(late())).unwrap_err();
        assert!(crate::os::is_out_of_descriptors(&error), "{error}");
        leave_all_room();
        assert_eq!(open_descriptors(), before, "with room for {room}");
    }
    leave_room_for(64);
    let files = other.receive_files(64, Some(late())).unwrap();
    leave_all_room();
    assert_eq!(files.iter().map(number).collect::<Vec<_>>(), (0..64).collect::<Vec<_>>());
    assert_eq!(open_descriptors(), before + 64);
    drop(files);
    assert_eq!(open_descriptors(), before);

    let mut rest = [0; 9];
    assert_eq!(other.receive(&mut rest, Some(late())).unwrap(), 5);
    assert_eq!(&rest[..5], b"after");
}

#[test]
fn message_releases_its_files_when_taken_or_dropped() {
    let _guard = no_children();
    let is_closed = |socket: &Socket| socket.receive(&mut [0], Some(soon())).is_ok_and(|received| received == 0);
    for taken in [true, false] {
        let (one, other) = pair().unwrap();
        let (end, watched) = pair().unwrap();
        send(&one, &[1], &[&file(end)]).unwrap();
        assert!(!is_closed(&watched), "it is in flight");
        if taken {
            let files = other.receive_files(1, Some(late())).unwrap();
            assert!(!is_closed(&watched), "it is here");
            drop(files);
        } else {
            drop(other);
        }
        assert!(is_closed(&watched), "no process has it, taken: {taken}");
    }
}

#[test]
fn wrong_number_of_files_is_not_received() {
    let (one, other) = pair().unwrap();
    send_numbered(&one, 3);
    for wrong in [1, 2, 4] {
        assert_eq!(other.receive_files(wrong, Some(late())).unwrap_err().kind(), ErrorKind::InvalidData);
    }
    assert_eq!(other.receive_files(3, Some(late())).unwrap().len(), 3);
    send(&one, &[2], &[]).unwrap();
    assert_eq!(other.receive_files(2, Some(late())).unwrap_err().kind(), ErrorKind::InvalidData, "there are none");
    drop(one);
    assert_eq!(other.receive(&mut [0], Some(late())).unwrap(), 1);
    assert_eq!(other.receive_files(2, Some(late())).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn send_waits_while_too_many_files_are_in_flight() {
    if !alone("os::sockets::socket::tests::send_waits_while_too_many_files_are_in_flight") {
        return;
    }
    // Only unprivileged users have this limit. For a privileged one the socket becomes full.
    let (one, other) = pair().unwrap();
    let files = numbered(32);
    let files: Vec<&File> = files.iter().collect();
    leave_room_for(40);
    let mut sent = 0;
    let error = loop {
        match one.send(&[IoSlice::new(&[32])], &files, Some(soon())) {
            Ok(bytes) => sent += bytes,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(sent <= 3 || crate::os::user_id() == 0, "{sent} messages: the limit is not there");
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| one.send(&[IoSlice::new(&[32])], &files, Some(late())));
        for _ in 0..=sent {
            assert_eq!(other.receive_files(32, Some(late())).unwrap().len(), 32);
        }
        assert_eq!(sender.join().unwrap().unwrap(), 1);
    });
}
