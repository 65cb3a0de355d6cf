//! Systems without files that processes could share (wasm32-unknown-unknown, ..): everything compiles, nothing works.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;

pub(crate) use super::look::{Bell, EndWatch};
use super::{Facts, LockKind, LockRange, PrivateDirectoryError, Room};

/// Whether an array can be handed to another process by its descriptor alone.
pub(crate) const DESCRIPTORS_CAN_BE_SHARED: bool = false;

pub(crate) const SHARED_MEMORY: Option<&str> = None;
pub(crate) const LOCKS_CONVERT: bool = false;
pub(crate) const MAPPINGS_HOLD_LOCKS: bool = false;
pub(crate) const LINKS_TELL: bool = false;
pub(crate) const MAPPING: &str = "mapping it";
pub(crate) const RESERVING_SETS_LENGTH: bool = false;

/// What every function here answers.
fn unsupported<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this platform has no memory that processes could share"))
}

pub(crate) fn open(_path: &Path, _write: bool) -> io::Result<File> {
    unsupported()
}

pub(crate) fn create_nameless(_directory: &Path, _mode: u32) -> io::Result<File> {
    unsupported()
}

pub(crate) fn create_hidden(_path: &Path, _mode: u32) -> io::Result<File> {
    unsupported()
}

pub(crate) fn link_nameless(_file: &File, _to: &Path) -> io::Result<()> {
    unsupported()
}

pub(crate) fn rename_new(_from: &Path, _to: &Path) -> io::Result<()> {
    unsupported()
}

pub(crate) fn rename_over(_from: &Path, _to: &Path) -> io::Result<()> {
    unsupported()
}

pub(crate) fn unlink(_path: &Path) -> io::Result<()> {
    unsupported()
}

pub(crate) fn sweep(_file: &File, _directory: &Path) {}

pub(crate) fn reopen(_file: &File, _write: bool) -> io::Result<File> {
    unsupported()
}

pub(crate) fn read_exact_at(_file: &File, _bytes: &mut [u8], _at: u64) -> io::Result<()> {
    unsupported()
}

pub(crate) fn write_all_at(_file: &File, _bytes: &[u8], _at: u64) -> io::Result<()> {
    unsupported()
}

pub(crate) fn facts(_file: &File) -> io::Result<Facts> {
    unsupported()
}

pub(crate) fn facts_at(_path: &Path) -> io::Result<Facts> {
    unsupported()
}

pub(crate) fn reserve(_file: &File, _length: u64, _exclusive: bool) -> io::Result<()> {
    unsupported()
}

pub(crate) fn available(_directory: &Path) -> io::Result<Room> {
    unsupported()
}

/// Whether a hole of this file takes memory when it is merely read; on disks it does not.
pub(crate) fn holes_take_memory(_file: &File) -> bool {
    false
}

pub(crate) fn available_memory() -> Option<Room> {
    None
}

pub(crate) fn try_lock(_file: &File, _kind: LockKind, _range: LockRange) -> io::Result<bool> {
    unsupported()
}

pub(crate) fn lock(_file: &File, _kind: LockKind, _range: LockRange) -> io::Result<()> {
    unsupported()
}

pub(crate) fn unlock(_file: &File, _range: LockRange) -> io::Result<()> {
    unsupported()
}

pub(crate) fn is_locked(_file: &File, _kind: LockKind, _range: LockRange) -> io::Result<bool> {
    unsupported()
}

pub(crate) fn create_sealable() -> io::Result<File> {
    unsupported()
}

pub(crate) fn seal(_file: &File) -> io::Result<()> {
    unsupported()
}

pub(crate) fn is_sealed(_file: &File) -> bool {
    false
}

pub(crate) fn private_directory(_path: &Path) -> Result<(), PrivateDirectoryError> {
    Ok(unsupported()?)
}

pub(crate) fn is_writable_directory(_directory: &Path) -> bool {
    false
}

pub(crate) fn fork_generation() -> u64 {
    0
}

/// Returns how many children this process has forked: none.
pub(crate) fn forked_children() -> u64 {
    0
}

pub(crate) fn known_boot_id() -> Option<[u8; 16]> {
    None
}

pub(crate) fn since_boot() -> std::time::Duration {
    std::time::Duration::ZERO
}

pub(crate) fn user_tag() -> String {
    "user".to_owned()
}

pub(crate) fn forbidden_name(_name: &str) -> Option<&'static str> {
    None
}

/// Returns how long a file may be that this process makes; here no limit is known.
pub(crate) fn largest_file() -> u64 {
    u64::MAX
}

pub(crate) fn descriptor_limit() -> u64 {
    0
}

pub(crate) fn is_out_of_descriptors(_error: &io::Error) -> bool {
    false
}

pub(crate) fn is_over_quota(_error: &io::Error) -> bool {
    false
}

pub(crate) fn is_out_of_room(_error: &io::Error) -> bool {
    false
}

pub(crate) fn is_not_a_file(_error: &io::Error) -> bool {
    false
}

pub(crate) fn own_program() -> io::Result<PathBuf> {
    unsupported()
}

pub(crate) fn create_report() -> io::Result<(File, OsString)> {
    unsupported()
}

pub(crate) fn inherited_report(_name: &OsStr) -> io::Result<ManuallyDrop<File>> {
    unsupported()
}

pub(crate) fn prepare_child(_command: &mut Command, _report: Option<Arc<File>>) {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    Ask,
    Kill,
}

impl EndWatch {
    #[allow(clippy::unused_self)] // as its counterparts
    pub(crate) fn stop(&self, _child: &mut Child, _how: Stop) {}
}

pub(crate) fn ending_signal(_status: ExitStatus) -> Option<i32> {
    None
}

pub(crate) fn is_abort(_status: ExitStatus) -> bool {
    false
}

pub(crate) fn signal_name(signal: i32) -> Cow<'static, str> {
    format!("signal {signal}").into()
}

/// Whether an open file is in the very file system that a directory is in; not asked here, where every attachment keeps its
/// descriptor.
pub(crate) fn is_in_file_system_of(_file: &File, _directory: &Path) -> bool {
    false
}

/// Locks nothing: whoever may remove a file can take the stronger lock here.
#[allow(clippy::unnecessary_wraps)] // other systems can fail
pub(crate) fn try_lock_whole(_file: &File) -> io::Result<bool> {
    Ok(true)
}

/// Whether this user may treat files of that one as its own; users have no numbers here.
pub(crate) fn owns_files_of(_user: u32) -> bool {
    true
}

/// Whether this user has that number; users have none here.
pub(crate) fn is_user(_number: u32) -> bool {
    true
}

/// Makes a path of text; paths are not bytes here.
pub(crate) fn path_from(bytes: Vec<u8>) -> Option<std::path::PathBuf> {
    Some(String::from_utf8(bytes).ok()?.into())
}
