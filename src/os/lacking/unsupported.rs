//! Systems where nothing can be shared. The crate compiles, and every operation fails.
//!
//! wasm32-unknown-unknown has no files. FreeBSD and its relatives have no range locks that belong to the open file, and
//! their other locks do not suffice. The older locks of fcntl(2) belong to the process: its threads would not exclude
//! one another, and closing any descriptor of the file would drop the locks of every guard. Locks of flock(2) belong to
//! the open file, but have no ranges. illumos has the commands, for whole files only.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use crate::os::{Facts, LockKind, LockRange, PrivateDirectoryError, Room};

/// The error of every function that can fail.
fn unsupported<T>() -> io::Result<T> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "this platform lacks files, or range locks that belong to an open file (F_OFD_SETLK); nothing can be shared safely",
    ))
}

answers! {
    fn open(&Path, bool) -> io::Result<File> = unsupported();
    fn create_hidden(&Path, u32) -> io::Result<File> = unsupported();
    fn rename_new(&Path, &Path) -> io::Result<()> = unsupported();
    fn rename_over(&Path, &Path) -> io::Result<()> = unsupported();
    fn unlink(&Path) -> io::Result<()> = unsupported();
    fn finish_unlink(&File, &Path) -> () = ();
    fn reopen(&File, bool) -> io::Result<File> = unsupported();
    fn read_exact_at(&File, &mut [u8], u64) -> io::Result<()> = unsupported();
    fn write_all_at(&File, &[u8], u64) -> io::Result<()> = unsupported();
    fn facts(&File) -> io::Result<Facts> = unsupported();
    fn facts_at(&Path) -> io::Result<Facts> = unsupported();
    fn reserve(&File, u64, bool) -> io::Result<()> = unsupported();
    fn available(&Path) -> io::Result<Room> = unsupported();
    fn try_lock(&File, LockKind, LockRange) -> io::Result<bool> = unsupported();
    fn lock(&File, LockKind, LockRange) -> io::Result<()> = unsupported();
    fn unlock(&File, LockRange) -> io::Result<()> = unsupported();
    fn is_locked(&File, LockKind, LockRange) -> io::Result<bool> = unsupported();
    fn private_directory(&Path) -> Result<(), PrivateDirectoryError> = Ok(unsupported()?);
    fn is_writable_directory(&Path) -> bool = false;
    fn find_boot_id() -> Option<[u8; 16]> = None;
    fn since_boot() -> Option<Duration> = None;
    fn thread_time() -> Duration = Duration::ZERO;
    fn user_tag() -> String = "user".to_owned();
    fn forbidden_name(&str) -> Option<&'static str> = None;
    fn descriptor_limit() -> u64 = 0;
    fn is_out_of_descriptors(&io::Error) -> bool = false;
    fn is_not_a_file(&io::Error) -> bool = false;
    fn create_report() -> io::Result<(File, OsString)> = unsupported();
    fn inherited_report(&OsStr) -> io::Result<ManuallyDrop<File>> = unsupported();
    fn is_abort(ExitStatus) -> bool = false;
}
