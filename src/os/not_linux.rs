//! Every system but Linux: what only Linux has is refused, or known to be missing.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::Room;

/// Where shared memory objects live: nowhere that could be listed, or where room could be reserved.
pub(crate) const SHARED_MEMORY: Option<&str> = None;

/// Whether a lock can be changed from one kind to the other in one step. Tried on Linux only; on Windows a second lock would
/// wait for the first.
pub(crate) const LOCKS_CONVERT: bool = false;

/// Whether a mapping can hold a lock after its descriptor is closed. Here the descriptor holds it.
pub(crate) const MAPPINGS_HOLD_LOCKS: bool = false;

/// Whether an array can be handed to another process by its descriptor alone.
pub(crate) const DESCRIPTORS_CAN_BE_SHARED: bool = false;

/// What is said to have failed where a mapping does, with the likely reason.
pub(crate) const MAPPING: &str = "mapping it (address space used up?)";

/// Whether a file that room was taken in has that length already.
pub(crate) const RESERVING_SETS_LENGTH: bool = false;

answers! {
    /// Refuses: a file without a name could never be given one.
    fn create_nameless(&Path, u32) -> io::Result<File> = Err(io::ErrorKind::Unsupported.into());

    /// Refuses, as [`create_nameless`] does.
    fn link_nameless(&File, &Path) -> io::Result<()> = Err(io::ErrorKind::Unsupported.into());

    /// Refuses: no memory can be sealed.
    fn create_sealable() -> io::Result<File> = Err(io::ErrorKind::Unsupported.into());

    /// Refuses: no memory can be sealed.
    fn seal(&File) -> io::Result<()> = Err(io::ErrorKind::Unsupported.into());

    /// Whether neither bytes nor length can change any more: never.
    fn is_sealed(&File) -> bool = false;

    /// Whether a hole of this file takes memory when it is merely read; on disks it does not.
    fn holes_take_memory(&File) -> bool = false;

    /// Returns how many bytes of memory this process could take now: the system does not say. Files take disk, which `available`
    /// knows.
    fn available_memory() -> Option<Room> = None;

    /// Whether an open file is in the very file system that a directory is in; not asked here, where every attachment keeps its
    /// descriptor.
    fn is_in_file_system_of(&File, &Path) -> bool = false;

    /// Returns the path by which this program can be started again.
    fn own_program() -> io::Result<PathBuf> = std::env::current_exe();
}
