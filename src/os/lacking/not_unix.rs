//! Windows, and systems where nothing can be shared: no forks, no signals, no numbers of users, no paths of bytes.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use crate::os::{LockKind, LockRange, Stop, Watched};

answers! {
    /// Returns 0: there are no forks.
    fn fork_generation() -> u64 = 0;

    /// Returns 0: there are no forks.
    #[allow(clippy::unnecessary_wraps)] // elsewhere a fork may be under way
    fn forks() -> Option<u64> = Some(0);

    /// Does nothing: there are no forks.
    fn keep_from_children(&File) -> () = ();

    /// Does nothing: there are no forks.
    fn no_longer_keep_from_children(&File) -> () = ();

    /// Returns the length of the largest file that this process may make. Here no limit is known.
    fn largest_file() -> u64 = u64::MAX;

    /// Locks nothing: a process that may remove a file can take a write lock here.
    #[allow(clippy::unnecessary_wraps)] // other systems can fail
    fn try_lock_whole(&File) -> io::Result<bool> = Ok(true);

    /// Unlocks nothing: nothing is locked here.
    #[allow(clippy::unnecessary_wraps)] // other systems can fail
    fn unlock_whole(&File) -> io::Result<()> = Ok(());

    /// Returns `None`: the system does not tell where a lock is.
    #[allow(clippy::unnecessary_wraps)] // other systems can fail
    fn locked_at(&File, LockKind, LockRange) -> io::Result<Option<u64>> = Ok(None);

    /// Returns 0: users have no numbers here, and every file has the owner 0.
    fn user_id() -> u32 = 0;

    /// Returns `None`: users and groups have no numbers here.
    #[allow(clippy::unnecessary_wraps)] // other systems can fail
    fn is_member(u32, u32) -> io::Result<Option<bool>> = Ok(None);

    /// Refuses: files have no groups here.
    fn share_with_group(&File, u32) -> io::Result<()> =
        Err(io::Error::new(io::ErrorKind::Unsupported, "files have no groups here"));

    /// Refuses: files have no attributes of this kind here.
    fn set_attribute(&File, &[u8]) -> io::Result<()> =
        Err(io::Error::new(io::ErrorKind::Unsupported, "files have no extended attributes here"));

    /// Reads the attribute of a file: there is none.
    #[allow(clippy::unnecessary_wraps)] // other systems can fail
    fn attribute(&File, &mut [u8]) -> io::Result<Option<usize>> = Ok(None);

    /// Removes the attribute of a file: there is none.
    #[allow(clippy::unnecessary_wraps)] // other systems can fail
    fn remove_attribute(&File) -> io::Result<()> = Ok(());

    /// Sets permission bits, of which there are none.
    #[allow(clippy::unnecessary_wraps)] // other systems can fail
    fn set_mode(&File, u32) -> io::Result<()> = Ok(());

    /// Returns `None`: there are no signals.
    fn ending_signal(ExitStatus) -> Option<i32> = None;
}

/// Makes a path from UTF-8, because paths are not bytes here.
pub(crate) fn path_from(bytes: Vec<u8>) -> Option<PathBuf> {
    Some(String::from_utf8(bytes).ok()?.into())
}

/// Does nothing: children inherit no report here.
pub(crate) fn prepare_child(_command: &mut Command, _report: Option<Arc<File>>) {}

impl Watched {
    /// Terminates the child, which cannot be asked to end.
    pub(crate) fn stop(&mut self, _how: Stop) {
        let _ = self.child.kill(); // it may have ended
    }
}

/// Returns a signal's number, because signals have no names here.
pub(crate) fn signal_name(signal: i32) -> Cow<'static, str> {
    format!("signal {signal}").into()
}
