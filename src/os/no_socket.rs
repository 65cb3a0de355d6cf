//! Systems without sockets that could carry open files (Windows, wasm32-unknown-unknown): nothing can be made or connected.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, IoSlice};
use std::path::Path;
use std::time::Instant;

use super::Peer;

pub(crate) const SOCKETS_CARRY_FILES: bool = false;

/// A connected stream socket between two processes of this machine; on this platform there is none.
#[derive(Debug)]
pub struct Socket {
    never: Infallible,
}

/// A socket that others connect to; on this platform there is none.
#[derive(Debug)]
pub(crate) struct Listener {
    never: Infallible,
}

/// What everything answers that would make one.
fn unsupported<T>() -> io::Result<T> {
    let reason = "this platform has no sockets that carry open files; share arrays by name";
    Err(io::Error::new(io::ErrorKind::Unsupported, reason))
}

pub(crate) fn pair() -> io::Result<(Socket, Socket)> {
    unsupported()
}

pub(crate) fn connect(_path: &Path, _deadline: Option<Instant>) -> io::Result<Socket> {
    unsupported()
}

pub(crate) fn listen(_path: &Path) -> io::Result<Listener> {
    unsupported()
}

pub(crate) fn listen_replacing(_path: &Path) -> io::Result<Listener> {
    unsupported()
}

impl Listener {
    pub(crate) fn accept(&self, _deadline: Option<Instant>) -> io::Result<Socket> {
        match self.never {}
    }

    pub(crate) fn has_name(&self) -> bool {
        match self.never {}
    }

    pub(crate) fn remove_name(&self) {
        match self.never {}
    }
}

impl Socket {
    pub(crate) fn require_stream(&self) -> io::Result<()> {
        match self.never {}
    }

    pub(crate) fn peer(&self) -> io::Result<Peer> {
        match self.never {}
    }

    pub(crate) fn send(&self, _: &[IoSlice<'_>], _: &[&File], _: Option<Instant>) -> io::Result<usize> {
        match self.never {}
    }

    pub(crate) fn receive(&self, _buffer: &mut [u8], _deadline: Option<Instant>) -> io::Result<usize> {
        match self.never {}
    }

    pub(crate) fn receive_files(&self, _count: usize, _deadline: Option<Instant>) -> io::Result<Vec<File>> {
        match self.never {}
    }

    pub(crate) fn room_for(&self, _count: usize) -> io::Result<()> {
        match self.never {}
    }

    pub(crate) fn end_sending(&self) {
        match self.never {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_can_be_made_and_the_reason_is_given() {
        let path = Path::new("a");
        let listening = [listen(path).map(drop), listen_replacing(path).map(drop)];
        let answers = listening.into_iter().chain([pair().map(drop), connect(path, None).map(drop)]);
        for answer in answers {
            let error = answer.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
            assert!(error.to_string().contains("by name"), "{error}");
        }
    }
}
