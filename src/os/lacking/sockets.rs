//! Systems without sockets that carry open files (Windows, wasm32-unknown-unknown). No socket can be made or connected.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, IoSlice};
use std::path::Path;
use std::time::Instant;

use crate::os::Peer;

pub(crate) const SOCKETS_CARRY_FILES: bool = false;

/// A connected stream socket between two processes of this machine. On this platform the type has no values.
#[derive(Debug)]
pub struct Socket(Infallible);

/// A socket to which other processes connect. On this platform the type has no values.
#[derive(Debug)]
pub(crate) struct Listener(Infallible);

/// The error of every function that would make one.
fn unsupported<T>() -> io::Result<T> {
    let reason = "this platform has no sockets that carry open files; share arrays by name";
    Err(io::Error::new(io::ErrorKind::Unsupported, reason))
}

answers! {
    fn pair() -> io::Result<(Socket, Socket)> = unsupported();
    fn connect(&Path, Option<Instant>) -> io::Result<Socket> = unsupported();
    fn listen(&Path) -> io::Result<Listener> = unsupported();
}

impl Listener {
    never! {
        fn accept(Option<Instant>) -> io::Result<Socket>;
        fn has_name() -> bool;
        fn remove_name() -> ();
    }
}

impl Socket {
    never! {
        fn require_stream() -> io::Result<()>;
        fn peer() -> io::Result<Peer>;
        fn send(&[IoSlice<'_>], &[&File], Option<Instant>) -> io::Result<usize>;
        fn receive(&mut [u8], Option<Instant>) -> io::Result<usize>;
        fn receive_files(usize, Option<Instant>) -> io::Result<Vec<File>>;
        fn room_for(usize) -> io::Result<()>;
        fn end_sending() -> ();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attempt_fails_with_the_reason() {
        let path = Path::new("a");
        for answer in [listen(path).map(drop), pair().map(drop), connect(path, None).map(drop)] {
            let error = answer.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
            assert!(error.to_string().contains("by name"), "{error}");
        }
    }
}
