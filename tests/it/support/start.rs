//! Starting a process, for the tests of all packages: the others include this file by its path.

use std::io;
use std::process::{Child, Command};

/// Starts a process. Wine fails now and then with an internal error where a second attempt succeeds;
/// scripts/platform-tables counts the lines that say so.
pub(super) fn start(command: &mut Command) -> io::Result<Child> {
    const ERROR_INTERNAL_ERROR: i32 = 1359;
    match command.spawn() {
        Err(error) if cfg!(windows) && error.raw_os_error() == Some(ERROR_INTERNAL_ERROR) => {
            eprintln!("started again: {error}");
            command.spawn()
        }
        started => started,
    }
}
