//! Children on Windows: they outlive their parent, are terminated without being asked, and find the file for their last
//! words by its name.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::os::windows::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;

use windows_sys::Win32::Storage::FileSystem as fs;

use super::facts::SHARE_ALL;
pub(crate) use crate::os::look::{Bell, EndWatch};

/// `STATUS_STACK_BUFFER_OVERRUN`, which is also what a program that aborts itself ends with.
const FAIL_FAST: i32 = i32::from_ne_bytes(0xC000_0409_u32.to_ne_bytes());

/// Returns the path by which this program can be started again.
pub(crate) fn own_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

/// Creates the file for the children's last words, and says how they find it. It vanishes with the last handle.
pub(crate) fn create_report() -> io::Result<(File, OsString)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).share_mode(SHARE_ALL);
    options.attributes(fs::FILE_ATTRIBUTE_TEMPORARY).custom_flags(fs::FILE_FLAG_DELETE_ON_CLOSE);
    let made = tempfile::Builder::new().prefix(".ndshm-report-").make(|path| options.open(path))?;
    let (file, path) = made.into_parts();
    // Dropped, the path would remove the name that the children need. The system removes it with the last handle.
    let path = ManuallyDrop::new(path);
    Ok((file, path.as_os_str().to_owned()))
}

/// In a child: finds the file that [`create_report`] described.
pub(crate) fn inherited_report(name: &OsStr) -> io::Result<ManuallyDrop<File>> {
    let file = OpenOptions::new().write(true).share_mode(SHARE_ALL).open(name)?;
    Ok(ManuallyDrop::new(file))
}

/// There is nothing to arrange.
pub(crate) fn prepare_child(_command: &mut Command, _report: Option<Arc<File>>) {}

/// Which of the two ways to end a child is meant; here there is only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// `TerminateProcess`: what has no window cannot be asked.
    Ask,
    /// `TerminateProcess`.
    Kill,
}

impl EndWatch {
    /// Terminates a child that has not been waited for.
    #[allow(clippy::unused_self)] // Linux has more to do it by
    pub(crate) fn stop(&self, child: &mut Child, _how: Stop) {
        let _ended_already = child.kill();
    }
}

/// Returns the signal that ended a process: there are none.
pub(crate) fn ending_signal(_status: ExitStatus) -> Option<i32> {
    None
}

/// Whether the process ended itself as `abort` does.
pub(crate) fn is_abort(status: ExitStatus) -> bool {
    status.code() == Some(FAIL_FAST)
}

/// Returns a signal's name: there are none.
pub(crate) fn signal_name(signal: i32) -> Cow<'static, str> {
    format!("signal {signal}").into()
}
