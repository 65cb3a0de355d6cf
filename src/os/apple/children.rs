//! Children on Apple systems: they outlive their parent, and their end is polled.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::process::Command;
use std::sync::Arc;

use crate::os::posix::children::{before_exec, for_children, number, signal_group};
use crate::os::{Stop, Watched};

/// Creates the file for the children's reports, and returns the argument by which they find it.
pub(crate) fn create_report() -> io::Result<(File, OsString)> {
    for_children(&tempfile::tempfile()?)
}

/// Lets a child inherit the report.
pub(crate) fn prepare_child(command: &mut Command, report: Option<Arc<File>>) {
    before_exec(command, report, || Ok(()));
}

impl Watched {
    /// Sends it the signal, and its group if it leads one.
    pub(crate) fn stop(&mut self, how: Stop) {
        if let Some(pid) = number(self.child.id()) {
            let _ = rustix::process::kill_process(pid, how.signal()); // it may have ended
            signal_group(pid, how.signal());
        }
    }
}
