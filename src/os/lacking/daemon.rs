//! Systems that can wait only for the death of children. Every function here fails, and callers do without.

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::os::{Bell, Listener, Socket};

fn unsupported<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this platform cannot wait for the death of another process"))
}

answers! {
    /// Succeeds where this module works. Here it returns the reason why it does not.
    fn supported() -> io::Result<()> = unsupported();
    fn wait(&[Source<'_>], Option<Duration>) -> io::Result<Vec<bool>> = unsupported();
    fn is_trusted_like(&Path, &Path) -> bool = false;
    fn has_borrowed_rights() -> bool = false;
    fn leave_session() -> io::Result<()> = unsupported();
    fn set_apart(&mut Command) -> () = ();
    fn keep_descriptors() -> () = ();
}

/// A process. Here the type has no values.
#[derive(Debug)]
pub(crate) enum Process {}

impl Process {
    pub(crate) fn of_peer(_socket: &Socket) -> io::Result<Option<Self>> {
        unsupported()
    }
}

/// What `wait` could wait for.
#[derive(Debug, Clone, Copy)]
#[allow(dead_code)] // never waited for
pub(crate) enum Source<'a> {
    Listener(&'a Listener),
    Socket(&'a Socket),
    Process(&'a Process),
    Bell(&'a Bell),
}
