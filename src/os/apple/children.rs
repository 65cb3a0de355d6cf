//! Children on Apple systems: they outlive their parent, and their end is looked for.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::process::Command;
use std::sync::Arc;

use crate::os::posix::children::{before_exec, for_children, number, signal_group};
use crate::os::{Stop, Watched};

/// Creates the file for the children's last words, and says how they find it.
pub(crate) fn create_report() -> io::Result<(File, OsString)> {
    for_children(&tempfile::tempfile()?)
}

/// Arranges that a child inherits the report.
pub(crate) fn prepare_child(command: &mut Command, report: Option<Arc<File>>) {
    before_exec(command, report, || Ok(()));
}

impl Watched {
    /// Sends it the signal, and its group if it leads one.
    pub(crate) fn stop(&mut self, how: Stop) {
        if let Some(pid) = number(self.child.id()) {
            let _ended_already = rustix::process::kill_process(pid, how.signal());
            signal_group(pid, how.signal());
        }
    }
}
