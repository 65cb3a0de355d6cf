//! Systems where only the death of a child can be waited for: nothing here works, and callers do without.

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::os::{Bell, Listener, Socket};

fn unsupported<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this platform cannot wait for the death of another process"))
}

answers! {
    /// Whether anything of this can be done here, and if not, why.
    fn supported() -> io::Result<()> = unsupported();
    fn wait(&[Source<'_>], Option<Duration>) -> io::Result<Vec<bool>> = unsupported();
    fn is_trusted_like(&Path, &Path) -> bool = false;
    fn has_borrowed_rights() -> bool = false;
    fn leave_session() -> io::Result<()> = unsupported();
    fn set_apart(&mut Command) -> () = ();
    fn keep_descriptors() -> () = ();
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
#[allow(dead_code)] // never waited for
pub(crate) enum Source<'a> {
    Listener(&'a Listener),
    Socket(&'a Socket),
    Process(&'a Process),
    Bell(&'a Bell),
}
