//! Every system but Linux. Features of Linux are refused, reported as missing, or replaced by polling.

#![allow(clippy::unnecessary_wraps, clippy::unused_self)] // as their counterparts

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, SystemTime};

use memmap2::{MmapOptions, MmapRaw};

use crate::backoff::Backoff;
use crate::os::{Facts, Room};

/// Whether a file of that owner is certainly this user's. User numbers are trusted here.
pub(crate) use crate::os::is_user as is_surely_user;

/// How long the end of a child may go unnoticed.
const LOOK: Duration = Duration::from_millis(10);

answers! {
    /// Refuses: a file without a name could never be given one.
    fn create_nameless(&Path, u32) -> io::Result<File> = Err(io::ErrorKind::Unsupported.into());

    /// Refuses, as [`create_nameless`] does.
    fn link_nameless(&File, &Path) -> io::Result<()> = Err(io::ErrorKind::Unsupported.into());

    /// Refuses: no memory can be sealed.
    fn create_sealable() -> io::Result<File> = Err(io::ErrorKind::Unsupported.into());

    /// Refuses: no memory can be sealed.
    fn seal(&File) -> io::Result<()> = Err(io::ErrorKind::Unsupported.into());

    /// Returns false: no file can be sealed.
    fn is_sealed(&File) -> bool = false;

    /// Returns false: on disks, reading a hole allocates nothing.
    fn holes_take_memory(&File) -> bool = false;

    /// Returns false: files are on disks.
    fn is_lost_at_boot(&File) -> bool = false;

    /// Returns `None`: the system does not report how much memory this process could allocate. Files take room on the
    /// disk, which `available` returns.
    fn available_memory() -> Option<Room> = None;

    /// Returns false. Nothing depends on it here, because every attachment keeps its descriptor.
    fn is_in_file_system_of(&File, &Path) -> bool = false;

    /// Refuses: room is allocated for whole files, from their beginning on.
    fn reserve_part(&File, Range<u64>) -> io::Result<()> = Err(io::ErrorKind::Unsupported.into());

    /// Refuses: room is freed with the file.
    fn free_part(&File, Range<u64>) -> io::Result<()> = Err(io::ErrorKind::Unsupported.into());

    /// Refuses: no lease proves that a file is unused, so that no name of another program is looked at. The next ones
    /// too.
    fn open_directory(&Path) -> io::Result<File> = no_leases();
    fn open_directory_in(&File, &OsStr) -> io::Result<File> = no_leases();
    fn names_in(&File) -> io::Result<Vec<OsString>> = no_leases();
    fn facts_in(&File, &OsStr) -> io::Result<(Facts, SystemTime)> = no_leases();
    fn open_in(&File, &OsStr) -> io::Result<File> = no_leases();
    fn remove_directory_in(&File, &OsStr) -> io::Result<()> = no_leases();
    fn lease(File) -> io::Result<LeaseAnswer> = no_leases();
    fn start_of_first_process() -> io::Result<SystemTime> = no_leases();
    fn not_the_containers(&Path) -> io::Result<Option<&'static str>> = no_leases();

    /// Returns false: nothing needs it here.
    fn has_attributes(&File) -> bool = false;

    /// Returns `None`: the number is not looked up.
    fn is_dead(u32) -> Option<bool> = None;

    /// Returns the path by which this program can be started again.
    fn own_program() -> io::Result<PathBuf> = std::env::current_exe();

    /// Wakes nothing: sleepers poll the word.
    fn wake(&AtomicU32, u32) -> usize = 0;
}

fn no_leases<T>() -> io::Result<T> {
    let reason = "only Linux can prove that no process uses the file of another program";
    Err(io::Error::new(io::ErrorKind::Unsupported, reason))
}

/// The answer to the request for a lease, which is always refused here.
#[derive(Debug)]
#[allow(dead_code)] // as on Linux
pub(crate) enum LeaseAnswer {
    Granted(Leased),
    InUse,
    NotPermitted,
    Unsupported,
}

/// A file under a write lease. Here the type has no values.
#[derive(Debug)]
pub(crate) struct Leased(Infallible);

impl Leased {
    never! {
        fn unlink(&File, &OsStr, &OsStr, SystemTime) -> io::Result<bool>;
    }
}

/// Returns whether a file has fewer allocated bytes than its length needs.
pub(crate) fn has_holes(_file: &File, facts: &Facts) -> Option<bool> {
    Some(facts.allocated < facts.length)
}

/// Sleeps while the word is `expected`, for `limit` at most. Polls the word, first after 20 µs, later every 2 ms.
pub(crate) fn wait_on(word: &AtomicU32, expected: u32, limit: Duration) {
    let mut backoff = Backoff::new(limit);
    while word.load(Ordering::Acquire) == expected && backoff.pause() {}
}

/// Bytes of a file, mapped shared. They are unmapped when it is dropped.
#[derive(Debug)]
pub(crate) struct Mapping(MmapRaw);

impl Mapping {
    /// Maps `length` bytes, at least one, from `offset` on, for writing too if `write`.
    pub(crate) fn new(file: &File, offset: u64, length: usize, write: bool) -> io::Result<Self> {
        let mut options = MmapOptions::new();
        options.offset(offset).len(length);
        Ok(Self(if write { options.map_raw(file)? } else { options.map_raw_read_only(file)? }))
    }

    /// Maps `length` bytes, at least one, from `offset` on, so that writing changes a copy of the page that only this
    /// process has.
    #[allow(unsafe_code)]
    pub(crate) fn copy_on_write(file: &File, offset: u64, length: usize) -> io::Result<Self> {
        let mut options = MmapOptions::new();
        options.offset(offset).len(length);
        // SAFETY: memmap2 asks for care because a slice of the mapping could change under its reader. The mapping
        // becomes a raw one at once, and each access to its bytes has a proof of its own, as for a shared mapping.
        Ok(Self(unsafe { options.map_copy(file) }?.into()))
    }

    /// Represents an empty file, which cannot be mapped, by one byte of other memory, which is never accessed.
    pub(crate) fn of_empty(_file: &File, _write: bool) -> io::Result<Self> {
        Ok(Self(MmapOptions::new().len(1).map_anon()?.into()))
    }

    /// Does nothing: mappings hold no locks here, so none has to be kept from forked children.
    pub(crate) fn keep_from_children(&self) -> io::Result<()> {
        Ok(())
    }

    /// Does nothing: memmap2 changes no mapping that is borrowed.
    pub(crate) fn forbid_writing(&self, _end: usize) -> io::Result<()> {
        Ok(())
    }

    /// Returns where the bytes begin.
    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    /// Returns 0: the system does not report how many of the bytes are mapped by huge pages.
    pub(crate) fn huge_bytes(&self) -> io::Result<u64> {
        Ok(0)
    }
}

/// The windows of a file that could each be a huge page. Here the type has no values.
#[derive(Debug)]
pub(crate) struct HugeWindows<'a>(Infallible, PhantomData<&'a File>);

impl<'a> HugeWindows<'a> {
    /// Returns `Ok(None)`: no file has windows.
    pub(crate) fn of(_file: &'a File, _length: u64) -> io::Result<Option<Self>> {
        Ok(None)
    }

    never! {
        fn size() -> u64;
        fn count() -> usize;
        fn prepare(Range<usize>) -> io::Result<()>;
        fn collapse(Range<usize>) -> io::Result<()>;
    }
}

/// A child that has not been waited for.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) child: Child,
}

/// Ends a wait of the thread that made the bell.
#[derive(Debug, Clone)]
pub(crate) struct Bell(Thread);

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(thread::current()))
    }

    pub(crate) fn ring(&self) {
        self.0.unpark();
    }
}

impl Watched {
    pub(crate) fn new(child: Child) -> Self {
        Self { child }
    }
}

/// Returns when the bell rang or the time is over, or sooner: a child may have ended. The bell is the calling thread's.
pub(crate) fn wait_for_end<'a>(_: impl Iterator<Item = &'a Watched>, _bell: &Bell, limit: Option<Duration>) {
    thread::park_timeout(limit.map_or(LOOK, |limit| limit.min(LOOK)));
}
