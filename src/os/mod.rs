//! Floor 0: the operating system, one contract and one file per family that keeps it.
//!
//! Everything above says *what* (a draft, a lock, room); this floor knows *how*. It is the only floor with
//! `cfg(target_os)`, returns plain [`io::Result`](std::io::Result)s, and knows nothing of locations, arrays or errors
//! of the crate. Each family offers the same functions:
//!
//! | function | contract |
//! |---|---|
//! | `SUPPORTED` | whether processes can share anything here |
//! | `open` | opens a file that exists, never follows a link, never blocks, never inherits |
//! | `create_nameless` | a new empty file without a name, or `Unsupported` where that cannot be named later |
//! | `create_hidden` | a new empty file under a free name, exclusively |
//! | `link_nameless`, `rename_new`, `rename_over` | give or change a name in one step |
//! | `reopen` | a new open file description of the same file, by descriptor |
//! | `is_in_file_system_of` | whether a file is in the file system of a directory |
//! | `set_attribute`, `attribute`, `remove_attribute` | an extended attribute of a file, where the file system has any |
//! | `lease`, `Leased::unlink` | the proof that no process has a file open or mapped, and removing its name under that proof; refused where there is none |
//! | `open_directory`, `names_in`, `facts_in`, `open_in`, .. | the same by an open directory, without following links |
//! | `is_dead`, `start_of_first_process`, `not_the_containers` | what can be known about processes by their numbers, and about the container |
//! | `facts` | identity, links, length, owner, group, mode of an open file |
//! | `reserve` | allocates room now, for a new file before it has its length: afterwards no access fails for lack of room |
//! | `reserve_part`, `free_part` | allocates or frees room for a part of a file that may have holes, where the system can |
//! | `has_holes` | whether pages of a file lack room, where the system tells |
//! | `Mapping` | bytes of a file in memory, where huge pages fit; how many of them are on huge pages |
//! | `HugeWindows` | the parts of a file that could each be a huge page, and can be put onto one |
//! | `thread_time` | the processor time of this thread so far; on Windows the time of the clock |
//! | `available`, `available_memory` | how much `reserve` could allocate in a directory or in memory, and which limit is the nearest |
//! | `try_lock`, `lock`, `unlock`, `is_locked` | byte-range locks that belong to the open file description |
//! | `locked_at` | where a lock of another description is, where the system tells |
//! | `unlink`, `finish_unlink` | remove a name while other processes use the file; remove a file that could not be removed then |
//! | `seal`, `is_sealed`, `create_sealable` | memory that can never change again |
//! | `temporary_directory` | where temporary files are, or `Unsupported` where there are no files |
//! | `private_directory` | a directory only this user, or its own group, can write into |
//! | `pair`, `connect` | stream sockets between processes of one machine, which no program that is run inherits |
//! | `listen` | gives a socket a path of any length, which is free or has only a dead process's socket |
//! | `Listener::accept`, `has_name`, `remove_name` | accept a connection; check the name by its identity, and remove it, at the latest with the listener |
//! | `Socket::send`, `receive`, `receive_files`, `room_for` | bytes and open files, at most until a deadline; files leave the socket only if this process has descriptors for all of them |
//! | `Socket::peer` | the process at the other end, as the kernel says |
//! | `SOCKETS_CARRY_FILES` | whether open files can be received without ever losing one |
//! | `daemon`: `supported`, `wait`, `Process`, .. | waiting for several sockets at once, and for the death of the processes at their other ends |
//! | `daemon`: `set_apart`, `leave_session`, `keep_descriptors`, .. | a program in the background that outlives the process that started it |
//! | `wait_on`, `wake` | sleep while a word of shared memory has a value, with a time limit; wake its sleepers, in any process. Where that is impossible, short sleeps |
//! | `fork_generation`, `forks` | a number that differs between a process and its forked children; how many forks it has begun, unless one is under way |
//! | `PerProcess`, `Fact` | statics without a lock that a forked child could inherit locked |
//! | `LOCKS_CONVERT` | whether `try_lock` changes a lock of the same description from one kind to the other, in one step or not at all |
//! | `LINKS_TELL` | whether the facts of an open file say that its name has gone |
//! | `RESERVING_SETS_LENGTH` | whether `reserve` gives a shorter file its length |
//! | `MAPPINGS_HOLD_LOCKS`, `DESCRIPTORS_CAN_BE_SHARED`, `MAPPING` | whether mappings hold locks, whether arrays are shared by descriptors, why a mapping fails |
//! | `process_number` | the number of this process; 0 where processes have none |
//! | `own_program`, `prepare_child` | start this program again; what a child gets and how it is bound to its parent |
//! | `create_report`, `inherited_report` | a file without a name, or one that vanishes, for the reports of children about their end |
//! | `Watched`, `wait_for_end`, `Bell`, `Stop` | children, and waiting for the end of any of them; end that wait, or one of `daemon`; end a child |
//! | `ending_signal`, `is_abort`, `signal_name` | how a child ended |
//! | `forbidden_name` | why a file cannot have this name here |
//! | `step`, `point` | in debug builds with `--cfg ndshm_steps`, stop this process where a test wants that; otherwise nothing |
//! | `share_with_group` | gives a file to a group, every member of which may then read and write it |
//! | `is_member` | whether a user is a member of a group, if the machine's user data know the user |
//! | `user_id`, `is_user`, `is_surely_user` | the effective user; whether a file of that owner is this user's, for certain or as far as numbers say |
//! | `since_boot` | the time since the boot, by one clock for all processes of the machine, or `None` where a process cannot tell it |
//! | `is_lost_at_boot` | whether a file is in memory, so that none is of an earlier boot |
//! | `known_boot_id`, `user_tag`, `descriptor_limit`, .. | facts of machine and process |

use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

/// Defines the functions of systems that lack something. They take the arguments of their counterparts, and always
/// return the same.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
macro_rules! answers {
    ($($(#[$about:meta])* fn $name:ident($($argument:ty),*) -> $result:ty = $answer:expr;)*) => {
        $($(#[$about])* pub(crate) fn $name($(_: $argument),*) -> $result { $answer })*
    };
}

/// Defines methods of a type that has no values.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
macro_rules! never {
    ($(fn $name:ident($($argument:ty),*) -> $result:ty;)*) => {
        $(pub(crate) fn $name(&self, $(_: $argument),*) -> $result { match self.0 {} })*
    };
}

cfg_if::cfg_if! {
    if #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))] {
        mod fill;
        mod posix;
        pub(crate) mod sockets;

        /// Compiles its items: this system has sockets, which tests above this floor need.
        #[cfg(all(test, feature = "channel"))]
        macro_rules! with_sockets {
            ($($item:item)*) => { $($item)* }
        }
    } else {
        #[path = "lacking/not_unix.rs"]
        mod not_unix;
        #[cfg_attr(not(feature = "channel"), allow(dead_code, unreachable_pub))] // the manager needs less
        #[path = "lacking/sockets.rs"]
        mod sockets;
        pub(crate) use self::not_unix::*;

        /// Leaves out its items, which need sockets. `lacking/sockets.rs` has tests for systems without them.
        #[cfg(all(test, feature = "channel"))]
        macro_rules! with_sockets {
            ($($item:item)*) => {};
        }
    }
}

cfg_if::cfg_if! {
    if #[cfg(any(target_os = "linux", target_os = "android"))] {
        mod linux;
        pub(crate) use self::linux::*;
    } else {
        #[path = "lacking/daemon.rs"]
        pub(crate) mod daemon;
        #[path = "lacking/not_linux.rs"]
        mod not_linux;
        pub(crate) use self::not_linux::*;

        cfg_if::cfg_if! {
            if #[cfg(target_vendor = "apple")] {
                mod apple;
                pub(crate) use self::apple::*;
            } else if #[cfg(windows)] {
                mod fill;
                mod windows;
                pub(crate) use self::windows::*;
            } else {
                #[path = "lacking/unsupported.rs"]
                mod unsupported;
                pub(crate) use self::unsupported::*;
            }
        }
    }
}

#[cfg_attr(not(feature = "channel"), allow(unreachable_pub))]
pub use self::sockets::Socket;
pub(crate) use self::sockets::{Listener, connect, listen};
#[cfg(feature = "channel")]
pub(crate) use self::sockets::{SOCKETS_CARRY_FILES, pair};
#[cfg(all(test, feature = "channel"))]
pub(crate) use with_sockets;

cfg_if::cfg_if! {
    if #[cfg(all(ndshm_steps, debug_assertions, unix))] {
        mod step;
        pub(crate) use self::step::{point, step};
    } else {
        #[inline(always)]
        pub(crate) fn step(_name: &str) {}

        #[inline(always)]
        pub(crate) fn point(_changes: bool) {}
    }
}

/// Whether processes can share anything here. Sharing needs locks that end with the process that holds them.
pub(crate) const SUPPORTED: bool =
    cfg!(any(target_os = "linux", target_os = "android", target_vendor = "apple", windows));

const LINUX: bool = cfg!(any(target_os = "linux", target_os = "android"));

/// Where shared memory objects live: `shm_open(3)` opens this directory's files. Elsewhere they cannot be listed, or
/// room cannot be reserved.
pub(crate) const SHARED_MEMORY: Option<&str> = if LINUX { Some("/dev/shm") } else { None };

/// Whether a lock can be changed from one kind to the other in one step, so that no other process gets in between.
/// Tried on Linux only; on Windows a second lock would wait for the first.
pub(crate) const LOCKS_CONVERT: bool = LINUX;

/// Whether a mapping can hold a lock after its descriptor is closed. Even on Linux not every file system allows that,
/// so it must be tested. Elsewhere the descriptor holds the lock.
pub(crate) const MAPPINGS_HOLD_LOCKS: bool = LINUX;

/// Whether an array can be handed to another process by its descriptor alone.
pub(crate) const DESCRIPTORS_CAN_BE_SHARED: bool = LINUX;

/// Whether `reserve` gives a shorter file its length.
pub(crate) const RESERVING_SETS_LENGTH: bool = LINUX;

/// Whether [`Facts::links`] of an open file always shows that its name has gone. On Windows a mapped file is renamed
/// instead of removed. Windows shows the new name to an open handle, Wine does not.
pub(crate) const LINKS_TELL: bool = !cfg!(windows);

/// The operation that an error about a failed mapping names, with the likely reason.
pub(crate) const MAPPING: &str = if LINUX {
    "mapping it (address space or vm.max_map_count used up?)"
} else {
    "mapping it (address space used up?)"
};

/// Returns the number of this process.
pub(crate) fn process_number() -> u32 {
    if SUPPORTED { std::process::id() } else { 0 }
}

/// Returns where temporary files are.
pub(crate) fn temporary_directory() -> io::Result<PathBuf> {
    if SUPPORTED { Ok(std::env::temp_dir()) } else { Err(io::ErrorKind::Unsupported.into()) }
}

mod per_process;
pub(crate) use self::per_process::{Fact, MOMENT, PerProcess};

#[cfg(test)]
mod sleep_tests;

/// The process at the other end of a socket.
#[cfg_attr(not(feature = "channel"), allow(unreachable_pub))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The effective user of the process that connected, listened or made the pair, at that time.
    pub user: u32,
    /// Its process id, where the system returns it and the process has one in this pid namespace. The process may have
    /// ended, and the id may be another's by now.
    pub process: Option<u32>,
}

/// The identity of a file on this machine while it is open or mapped: device and inode number, or volume and file
/// index.
///
/// Numbers are reused as soon as no process has the file open or mapped. An identity proves something only while a
/// mapping or descriptor keeps the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    /// Number of the device or volume.
    pub device: u64,
    /// Number of the file on it.
    pub number: u64,
}

/// The metadata of a file.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) id: FileId,
    /// Names that lead to it; 0 once it is unlinked.
    pub(crate) links: u64,
    /// Length in bytes.
    pub(crate) length: u64,
    /// Allocated bytes. On disks they are more than those of the file's own pages.
    pub(crate) allocated: u64,
    /// The preferred size of reads and writes: for a file in memory that of its pages. 0 where it is not known.
    pub(crate) block: u64,
    /// The owner's number; 0 where users have none.
    pub(crate) owner: u32,
    /// The group's number; 0 where there are no groups.
    pub(crate) group: u32,
    /// Permission bits.
    pub(crate) mode: u32,
    pub(crate) modified: SystemTime,
    /// `None` for a regular file, else what it is: "a directory", ..
    pub(crate) other: Option<&'static str>,
}

/// Whether several holders can have the lock at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockKind {
    /// Any number of holders; also called a read lock.
    Shared,
    /// One holder; also called a write lock. Needs a descriptor open for writing.
    Exclusive,
}

/// A range of bytes to lock; it may lie beyond the end of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockRange {
    pub(crate) start: u64,
    pub(crate) length: u64,
}

impl LockRange {
    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.start < other.start + other.length && other.start < self.start + self.length
    }
}

/// A way to end a child. The later one is the stronger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    /// SIGTERM: the child may clean up first. On Windows a program without a window cannot be asked, and is terminated.
    Ask,
    /// SIGKILL, or `TerminateProcess`.
    Kill,
}

/// How much room there is, and which limit bounds it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) bytes: u64,
    pub(crate) bound: Bound,
}

/// The limit that is reached first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code))] // not every system has every limit
pub(crate) enum Bound {
    /// The file system itself.
    FileSystem,
    /// A memory file system with a size set by its mount.
    MemoryFileSystem,
    /// A memory control group: a container's memory limit.
    ControlGroup,
    /// The machine's memory.
    Machine,
    /// The file system has bytes but no inode for another file.
    Inodes,
    /// The user's quota on the file system.
    Quota,
    /// The length of files that the process may make.
    FileSize,
    /// The user's limit on emulated shared memory.
    Limit,
}

/// Why a directory cannot be used as a private one.
#[derive(Debug)]
pub(crate) enum PrivateDirectoryError {
    /// It exists, and other users could replace files in it.
    #[allow(dead_code)] // where there are no directories, none is found unsafe
    Unsafe { reason: &'static str, owner: u32, mode: u32 },
    /// The system call to make or query it failed.
    Os(io::Error),
}

impl From<io::Error> for PrivateDirectoryError {
    fn from(error: io::Error) -> Self {
        Self::Os(error)
    }
}

/// Whether this user has that number.
pub(crate) fn is_user(number: u32) -> bool {
    user_id() == number
}

/// Whether this user may treat files of that one as its own.
pub(crate) fn owns_files_of(user: u32) -> bool {
    [0, user].contains(&user_id())
}

/// Whether the error says that there is no room: no blocks, no inodes, no quota, or the largest length of a file.
pub(crate) fn is_out_of_room(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Returns the identity of this boot, if this process can read it now: in a container parts of /proc may be hidden.
/// Memory of an earlier boot is gone.
pub(crate) fn known_boot_id() -> Option<[u8; 16]> {
    static BOOT: PerProcess<[u8; 16]> = PerProcess::new();
    BOOT.get_or_try(find_boot_id)
}
