//! Systems where nobody can be waited for who is no child: nothing here works, and those who ask do without.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::Facts;

/// A socket that others can connect to; here there is none.
#[derive(Debug)]
pub(crate) enum Listener {}

/// A connection; here there is none.
#[derive(Debug)]
pub(crate) enum Stream {}

/// A process; here there is none.
#[derive(Debug)]
pub(crate) enum Process {}

/// What another thread can ring; here there is none.
#[derive(Debug)]
pub(crate) enum Bell {}

/// Who made the other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) process: u32,
    pub(crate) user: u32,
}

/// What could be waited for.
#[derive(Debug, Clone, Copy)]
#[allow(dead_code)] // nobody waits
pub(crate) enum Source<'a> {
    Listener(&'a Listener),
    Stream(&'a Stream),
    Process(&'a Process),
    Bell(&'a Bell),
}

fn unsupported<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this platform cannot wait for the death of another process"))
}

pub(crate) fn listen(_path: &Path) -> io::Result<Listener> {
    unsupported()
}

pub(crate) fn connect(_path: &Path) -> io::Result<Stream> {
    unsupported()
}

impl Listener {
    pub(crate) fn accept(&self) -> io::Result<Option<Stream>> {
        match *self {}
    }
}

impl Stream {
    pub(crate) fn peer(&self) -> io::Result<Peer> {
        match *self {}
    }

    pub(crate) fn process(&self) -> io::Result<Option<Process>> {
        match *self {}
    }

    pub(crate) fn abandon(self) {
        match self {}
    }

    pub(crate) fn send(&self, _bytes: &[u8]) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn receive(&self, _into: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        unsupported()
    }

    pub(crate) fn ring(&self) {
        match *self {}
    }
}

pub(crate) fn wait(_sources: &[Source<'_>], _limit: Option<Duration>) -> io::Result<Vec<bool>> {
    unsupported()
}

/// Whether this user owns it: nobody asks where nothing is made.
pub(crate) fn is_own(_facts: &Facts) -> bool {
    true
}

pub(crate) fn is_this_user(_user: u32) -> bool {
    true
}

pub(crate) fn path_from(bytes: Vec<u8>) -> Option<PathBuf> {
    Some(String::from_utf8(bytes).ok()?.into())
}

pub(crate) fn is_trusted_like(_path: &Path, _model: &Path) -> bool {
    false
}

pub(crate) fn has_borrowed_rights() -> bool {
    false
}

pub(crate) fn set_apart(_command: &mut Command) {}

pub(crate) fn leave_session() -> io::Result<()> {
    unsupported()
}

pub(crate) fn keep_descriptors() {}
