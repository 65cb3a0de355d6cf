//! Systems where nobody can be waited for who is no child: nothing here works, and those who ask do without.

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{Bell, Listener, Socket};

fn unsupported<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this platform cannot wait for the death of another process"))
}

/// Whether anything of this can be done here, and if not, why.
pub(crate) fn supported() -> io::Result<()> {
    unsupported()
}

/// A process; here there is none.
#[derive(Debug)]
pub(crate) enum Process {}

impl Process {
    pub(crate) fn of_peer(_socket: &Socket) -> io::Result<Option<Self>> {
        unsupported()
    }
}

/// What could be waited for.
#[derive(Debug, Clone, Copy)]
#[allow(dead_code)] // nobody waits
pub(crate) enum Source<'a> {
    Listener(&'a Listener),
    Socket(&'a Socket),
    Process(&'a Process),
    Bell(&'a Bell),
}

pub(crate) fn wait(_sources: &[Source<'_>], _limit: Option<Duration>) -> io::Result<Vec<bool>> {
    unsupported()
}

pub(crate) fn is_this_user(_user: u32) -> bool {
    true
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
