//! Children on Windows: they outlive their parent, are terminated without being asked, and find the file for their
//! reports by its name.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io;
use std::mem::ManuallyDrop;
use std::os::windows::fs::OpenOptionsExt;
use std::process::ExitStatus;

use windows_sys::Win32::Storage::FileSystem as fs;

/// `STATUS_STACK_BUFFER_OVERRUN`, which is also what a program that aborts itself ends with.
const FAIL_FAST: i32 = i32::from_ne_bytes(0xC000_0409_u32.to_ne_bytes());

/// Creates the file for the children's reports, and returns the name by which they find it. It vanishes with the last
/// handle.
pub(crate) fn create_report() -> io::Result<(File, OsString)> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    options.attributes(fs::FILE_ATTRIBUTE_TEMPORARY).custom_flags(fs::FILE_FLAG_DELETE_ON_CLOSE);
    let made = tempfile::Builder::new().prefix(".ndshm-report-").make(|path| options.open(path))?;
    let (file, path) = made.into_parts();
    // Never dropped, because that would remove the name that the children need. The system removes it with the last
    // handle.
    let path = ManuallyDrop::new(path);
    Ok((file, path.as_os_str().to_owned()))
}

/// In a child: opens the file of [`create_report`].
pub(crate) fn inherited_report(name: &OsStr) -> io::Result<ManuallyDrop<File>> {
    let file = OpenOptions::new().write(true).open(name)?;
    Ok(ManuallyDrop::new(file))
}

/// Whether the process ended itself as `abort` does.
pub(crate) fn is_abort(status: ExitStatus) -> bool {
    status.code() == Some(FAIL_FAST)
}
