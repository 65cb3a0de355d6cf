//! What a system call is to the scheduler: private, a point of choice, a wait, or a question of the time; and what it
//! touches that another process can see.

use std::fmt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::unistd::Pid;

use super::tracee::Tracee;
use crate::world::{MARK, Mark};

/// What a call reads or changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Object {
    /// A name in the room's directory, as a number that stands for its text.
    Name(u64),
    /// All names.
    Directory,
    /// Metadata, attributes and bytes of a file, by its inode.
    File(u64),
    /// How many names files have.
    Links,
    /// Bytes of a file's lock space, from the first to the last.
    Locks(u64, u64, u64),
    /// Words and elements in shared memory.
    Memory,
    /// Not known, or more than one of these: everything.
    Any,
}

/// One object of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touch {
    object: Object,
    changes: bool,
}

impl Touch {
    const fn reads(object: Object) -> Self {
        Self { object, changes: false }
    }

    const fn changes(object: Object) -> Self {
        Self { object, changes: true }
    }

    /// Whether the order of two calls that touch these can be seen.
    fn conflicts(self, other: Self) -> bool {
        use Object::{Any, Directory, Locks, Name};
        let meet = match (self.object, other.object) {
            (Any, _) | (_, Any) | (Directory, Name(_) | Directory) | (Name(_), Directory) => true,
            (Locks(one, from, to), Locks(two, start, end)) => one == two && from <= end && start <= to,
            (one, two) => one == two,
        };
        meet && (self.changes || other.changes)
    }
}

/// A moment at which the scheduler chooses which process goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    /// The call, and what it is about, without what differs from run to run.
    pub text: String,
    pub touches: Vec<Touch>,
    /// Between two calls of the library, where another process may go on at no cost.
    pub is_between: bool,
    /// The errors that the call can return.
    pub errors: &'static [i32],
}

impl Point {
    /// Whether both orders of two calls lead to the same.
    pub fn commutes(&self, other: &Self) -> bool {
        !self.touches.iter().any(|one| other.touches.iter().any(|two| one.conflicts(*two)))
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// How a call that waits is made without waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// `F_OFD_SETLKW`, as `F_OFD_SETLK`.
    Lock,
    /// A futex, with no time. Once it sleeps, only a wake or its limit ends that.
    Word(Word),
    /// poll(2), with no time.
    Poll,
    /// The end of a child, with `WNOHANG`.
    Child,
    /// A pipe or socket, made non-blocking.
    Stream,
}

/// A word of a shared file on which processes sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    file: u64,
    offset: u64,
}

/// A system call.
#[derive(Debug)]
pub enum Call {
    /// No other process can see it.
    Private,
    /// A question of the time, which is answered at this address by a clock of this kind.
    Time {
        clock: u64,
        answer: u64,
    },
    /// A sleep of so many nanoseconds.
    Sleep(u64),
    Point(Point),
    /// A point that waits, at most so many nanoseconds.
    Wait {
        point: Point,
        wait: Wait,
        limit: Option<u64>,
    },
    /// A point that wakes at most so many sleepers.
    Wake {
        point: Point,
        word: Word,
        most: u64,
    },
    /// A process tells the scheduler something.
    Mark(Mark),
}

/// The directory in which the processes meet.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    device: u64,
}

impl Place {
    pub fn new(path: &Path) -> Self {
        let device = path.metadata().expect("the room exists").dev();
        Self { path: path.into(), device }
    }

    /// Returns what a path means here: a name, or nothing.
    fn name(&self, path: &str) -> Option<String> {
        let rest = path.strip_prefix(self.path.to_str()?)?.trim_start_matches('/');
        Some(masked(rest))
    }
}

/// Replaces what is random in a name.
pub fn masked(name: &str) -> String {
    for prefix in [".ndshm-draft-", "ndshm-"] {
        if name.starts_with(prefix) {
            return format!("{prefix}*");
        }
    }
    name.into()
}

fn number_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

const LOCK_ERRORS: &[i32] = &[libc::ENOLCK];
const OPEN_ERRORS: &[i32] = &[libc::EMFILE];
const ROOM_ERRORS: &[i32] = &[libc::ENOSPC, libc::EINTR];
const NO_ERRORS: &[i32] = &[];

/// Reads a call of a process that has stopped at its beginning.
pub struct Reader<'a> {
    pub tracee: &'a Tracee,
    pub place: &'a Place,
}

impl Reader<'_> {
    /// Returns the inode of a descriptor, if it is of a file in the place.
    fn file(&self, descriptor: u64) -> Option<u64> {
        let descriptor = i32::try_from(descriptor).ok().filter(|descriptor| *descriptor >= 0)?;
        let facts = std::fs::metadata(format!("/proc/{}/fd/{descriptor}", self.tracee.pid)).ok()?;
        (facts.dev() == self.place.device && facts.is_file()).then(|| facts.ino())
    }

    fn is_socket(&self, descriptor: u64) -> bool {
        let descriptor = i32::try_from(descriptor).unwrap_or(-1);
        std::fs::metadata(format!("/proc/{}/fd/{descriptor}", self.tracee.pid))
            .is_ok_and(|facts| facts.file_type().is_socket())
    }

    fn is_directory(&self, descriptor: u64) -> bool {
        std::fs::metadata(format!("/proc/{}/fd/{descriptor}", self.tracee.pid))
            .is_ok_and(|facts| facts.dev() == self.place.device && facts.is_dir())
    }

    /// Returns the name at a path, and what it touches.
    fn name_at(&self, path: u64) -> Option<String> {
        self.place.name(&self.tracee.text(path))
    }

    fn word(&self, at: u64) -> u64 {
        let bytes = self.tracee.read(at, 8);
        bytes.try_into().map_or(0, u64::from_le_bytes)
    }

    fn half(&self, at: u64) -> u32 {
        let bytes = self.tracee.read(at, 4);
        bytes.try_into().map_or(0, u32::from_le_bytes)
    }

    /// Returns the nanoseconds of a `timespec`.
    fn time(&self, at: u64) -> u64 {
        self.word(at).saturating_mul(1_000_000_000).saturating_add(self.word(at + 8))
    }

    fn on_file(&self, what: &str, descriptor: u64, changes: bool, errors: &'static [i32]) -> Call {
        let Some(file) = self.file(descriptor) else { return Call::Private };
        // Facts about a file tell how many names it has.
        point(what, vec![Touch { object: Object::File(file), changes }, Touch::reads(Object::Links)], errors)
    }

    fn on_name(&self, what: &str, path: u64, changes: bool, errors: &'static [i32]) -> Call {
        let Some(name) = self.name_at(path) else { return Call::Private };
        if name.is_empty() {
            return Call::Private; // the directory itself
        }
        let mut touches =
            [Object::Name(number_of(&name)), Object::Links].map(|object| Touch { object, changes }).to_vec();
        // Facts about the file that has the name.
        let facts = std::fs::symlink_metadata(self.tracee.text(path)).ok();
        touches.extend(facts.map(|facts| Touch::reads(Object::File(facts.ino()))));
        point(&format!("{what} {name}"), touches, errors)
    }

    fn lock(&self, descriptor: u64, command: i32, at: u64) -> Call {
        let Some(file) = self.file(descriptor) else { return Call::Private };
        // struct flock: two halves of 16 bits, then start and length after padding.
        let kind = self.half(at) as i16;
        let (start, length) = (self.word(at + 8), self.word(at + 16));
        let last = if length == 0 { u64::MAX } else { start.saturating_add(length - 1) };
        let object = Object::Locks(file, start, last);
        let kind = match i32::from(kind) {
            libc::F_RDLCK => "read",
            libc::F_WRLCK => "write",
            _ => "un",
        };
        let range = range_name(start, length);
        if command == libc::F_OFD_GETLK {
            return point(&format!("ask {kind}lock {range}"), vec![Touch::reads(object)], LOCK_ERRORS);
        }
        let errors = if kind == "un" { NO_ERRORS } else { LOCK_ERRORS };
        let point = Point {
            text: format!("{kind}lock {range}"),
            touches: vec![Touch::changes(object)],
            is_between: false,
            errors,
        };
        if command == libc::F_OFD_SETLKW {
            return Call::Wait { point, wait: Wait::Lock, limit: None };
        }
        Call::Point(point)
    }

    fn rename(&self, from: u64, to: u64) -> Call {
        let names = [from, to].map(|path| self.name_at(path));
        let mut touches: Vec<_> =
            names.iter().flatten().map(|name| Touch::changes(Object::Name(number_of(name)))).collect();
        if touches.is_empty() {
            return Call::Private;
        }
        touches.push(Touch::changes(Object::Links));
        let [from, to] = names.map(Option::unwrap_or_default);
        point(&format!("rename {from} {to}"), touches, NO_ERRORS)
    }

    /// Returns what the call is.
    pub fn read(&self, number: i64, arguments: &[u64; 6]) -> Call {
        let [first, second, third, fourth, ..] = *arguments;
        let is_child = |flags: u64| flags & libc::CLONE_VM as u64 == 0;
        match number {
            MARK => match Mark::of(self.tracee, first, second, third) {
                Mark::Between => {
                    Call::Point(Point { text: "between".into(), touches: vec![], is_between: true, errors: NO_ERRORS })
                }
                Mark::Memory { changes } => {
                    let what = if changes { "change memory" } else { "read memory" };
                    point(what, vec![Touch { object: Object::Memory, changes }], NO_ERRORS)
                }
                other => Call::Mark(other),
            },
            libc::SYS_clock_gettime => Call::Time { clock: first, answer: second },
            libc::SYS_nanosleep => Call::Sleep(self.time(first)),
            libc::SYS_clock_nanosleep => Call::Sleep(self.time(third)),
            libc::SYS_open => self.open(first, second),
            libc::SYS_openat => self.open(second, third),
            libc::SYS_stat | libc::SYS_lstat => self.on_name("stat", first, false, NO_ERRORS),
            libc::SYS_newfstatat | libc::SYS_statx => self.stat(first, second),
            libc::SYS_fstat => self.on_file("look at a file", first, false, NO_ERRORS),
            libc::SYS_unlink => self.on_name("unlink", first, true, NO_ERRORS),
            libc::SYS_unlinkat => self.on_name("unlink", second, true, NO_ERRORS),
            libc::SYS_rename => self.rename(first, second),
            libc::SYS_renameat | libc::SYS_renameat2 => self.rename(second, fourth),
            libc::SYS_link => self.on_name("link", second, true, NO_ERRORS),
            libc::SYS_linkat => self.on_name("link", fourth, true, NO_ERRORS),
            libc::SYS_fcntl => match i32::try_from(second).unwrap_or(0) {
                command @ (libc::F_OFD_SETLK | libc::F_OFD_SETLKW | libc::F_OFD_GETLK) => {
                    self.lock(first, command, third)
                }
                _ => Call::Private,
            },
            libc::SYS_flock => self.on_file("flock", first, true, LOCK_ERRORS),
            libc::SYS_ftruncate => self.on_file("set the length of a file", first, true, ROOM_ERRORS),
            libc::SYS_fallocate => self.on_file("allocate a file", first, true, ROOM_ERRORS),
            libc::SYS_fchmod | libc::SYS_fchown => self.on_file("change a file", first, true, NO_ERRORS),
            libc::SYS_fsetxattr => self.on_file("set an attribute", first, true, &[libc::ENOSPC]),
            libc::SYS_fremovexattr => self.on_file("remove an attribute", first, true, NO_ERRORS),
            libc::SYS_fgetxattr => self.on_file("read an attribute", first, false, NO_ERRORS),
            libc::SYS_read | libc::SYS_pread64 => self.on_file("read a file", first, false, NO_ERRORS),
            libc::SYS_write | libc::SYS_pwrite64 => self.on_file("write a file", first, true, ROOM_ERRORS),
            libc::SYS_lseek => self.on_file("look for holes", first, false, NO_ERRORS),
            libc::SYS_mmap => self.on_file("map", arguments[4], false, &[libc::ENOMEM]),
            libc::SYS_munmap if self.is_shared(first) => point("unmap", vec![Touch::changes(Object::Any)], NO_ERRORS),
            libc::SYS_close => match self.file(first) {
                Some(file) => {
                    let locks = Touch::changes(Object::Locks(file, 0, u64::MAX));
                    point("close", vec![locks, Touch::changes(Object::File(file))], NO_ERRORS)
                }
                None if self.is_socket(first) => any("close a socket"),
                None => Call::Private,
            },
            libc::SYS_getdents64 if self.is_directory(first) => {
                point("list", vec![Touch::reads(Object::Directory)], NO_ERRORS)
            }
            libc::SYS_fork | libc::SYS_vfork => any("fork"),
            libc::SYS_clone if is_child(first) => any("fork"),
            libc::SYS_exit_group => any("end"),
            libc::SYS_futex if second & 128 == 0 => self.futex(arguments),
            libc::SYS_poll => {
                let limit = i32::try_from(third & 0xffff_ffff).ok().filter(|limit| *limit >= 0 && third < 1 << 31);
                wait("poll", Wait::Poll, limit.map(|limit| u64::from(limit.unsigned_abs()) * 1_000_000))
            }
            libc::SYS_ppoll => wait("poll", Wait::Poll, (third != 0).then(|| self.time(third))),
            libc::SYS_wait4 | libc::SYS_waitid => wait("wait for a child", Wait::Child, None),
            libc::SYS_sendmsg | libc::SYS_sendto | libc::SYS_shutdown => any("send"),
            libc::SYS_recvmsg => receive(third),
            libc::SYS_recvfrom => receive(fourth),
            _ => Call::Private,
        }
    }

    fn open(&self, path: u64, flags: u64) -> Call {
        let text = self.tracee.text(path);
        let Some(name) = self.place.name(&text) else {
            // A file without a name that is opened again through its descriptor, which nothing else can change.
            return Call::Private;
        };
        let flags = i32::try_from(flags & 0xffff_ffff).unwrap_or(0);
        if flags & libc::O_TMPFILE == libc::O_TMPFILE {
            return point("make a file", vec![], OPEN_ERRORS);
        }
        if flags & libc::O_DIRECTORY != 0 || name.is_empty() {
            return Call::Private;
        }
        let changes = flags & libc::O_CREAT != 0;
        let touch = Touch { object: Object::Name(number_of(&name)), changes };
        point(&format!("open {name}"), vec![touch], OPEN_ERRORS)
    }

    /// fstatat(2) and statx(2), of a descriptor or a path.
    fn stat(&self, descriptor: u64, path: u64) -> Call {
        let text = if path == 0 { String::new() } else { self.tracee.text(path) };
        if text.is_empty() {
            return self.on_file("look at a file", descriptor, false, NO_ERRORS);
        }
        self.on_name("stat", path, false, NO_ERRORS)
    }

    fn futex(&self, [address, operation, value, time, ..]: &[u64; 6]) -> Call {
        let Some(mapping) = mapping_at(self.tracee.pid, *address).filter(|mapping| mapping.is_shared) else {
            return Call::Private;
        };
        let word = Word { file: mapping.file, offset: address - mapping.start + mapping.offset };
        let operation = i32::try_from(operation & 0x7f).unwrap_or(0);
        match operation {
            libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET => {
                let limit = (*time != 0 && operation == libc::FUTEX_WAIT).then(|| self.time(*time));
                wait("wait for a word", Wait::Word(word), limit)
            }
            _ => {
                let touches = vec![Touch::changes(Object::Memory)];
                let point = Point { text: "wake".into(), touches, is_between: false, errors: NO_ERRORS };
                Call::Wake { point, word, most: *value }
            }
        }
    }

    /// Whether an address is in a shared mapping.
    fn is_shared(&self, address: u64) -> bool {
        mapping_at(self.tracee.pid, address).is_some_and(|mapping| mapping.is_shared)
    }
}

/// A mapping of a process.
#[derive(Debug, Clone, Copy)]
pub struct ItsMapping {
    pub is_shared: bool,
    /// The inode of its file, and the offset of its first byte there.
    pub file: u64,
    offset: u64,
    start: u64,
}

impl ItsMapping {
    /// Returns which page of the file is at an address.
    pub fn page_of(&self, address: u64) -> u64 {
        (address - self.start + self.offset) / 4096
    }
}

/// Returns the mapping at an address.
pub fn mapping_at(pid: Pid, address: u64) -> Option<ItsMapping> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    maps.lines().find_map(|line| {
        // from-to rwxs offset device inode path
        let mut words = line.split_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let bound = |text| u64::from_str_radix(text, 16).ok();
        let start = bound(from)?;
        if !(start..bound(to)?).contains(&address) {
            return None;
        }
        let is_shared = words.next()?.ends_with('s');
        let offset = bound(words.next()?)?;
        Some(ItsMapping { is_shared, file: words.nth(1)?.parse().ok()?, offset, start })
    })
}

fn point(text: &str, touches: Vec<Touch>, errors: &'static [i32]) -> Call {
    Call::Point(Point { text: text.into(), touches, is_between: false, errors })
}

fn any(text: &str) -> Call {
    point(text, vec![Touch::changes(Object::Any)], NO_ERRORS)
}

fn wait(text: &str, wait: Wait, limit: Option<u64>) -> Call {
    let point =
        Point { text: text.into(), touches: vec![Touch::changes(Object::Any)], is_between: false, errors: NO_ERRORS };
    Call::Wait { point, wait, limit }
}

fn receive(flags: u64) -> Call {
    if flags & libc::MSG_DONTWAIT as u64 == 0 { wait("receive", Wait::Stream, None) } else { any("receive") }
}

/// Names a range of the lock space, as `src/backend/lock_space.rs` does.
fn range_name(start: u64, length: u64) -> String {
    const BASE: u64 = 1 << 62;
    const SLOT: u64 = 1 << 22;
    /// No array here has as many chunks: beyond it is the number of a process, which differs from run to run.
    const MOST_CELLS: u64 = 16;
    match start.checked_sub(BASE) {
        Some(0) => "LEASE".into(),
        Some(1) => "NAME".into(),
        Some(2) => "GATE".into(),
        Some(3) => "COUNTED".into(),
        Some(4) => "BEGINNING".into(),
        Some(5) => "WRITER".into(),
        Some(6) => "CURSORS".into(),
        Some(16) => "SPANS".into(),
        Some(17) => "RECOVER".into(),
        Some(seat @ 64..4096) => format!("SEAT or CURSOR {}", seat - 64),
        Some(cell) => match cell.wrapping_sub(4096) {
            cell if length == SLOT => format!("SLOT {}", cell / SLOT),
            0 if length > SLOT => "CELLS".into(),
            cell if cell < MOST_CELLS && length == 1 => format!("CELL {cell}"),
            cell => format!("part of SLOT {}", cell / SLOT),
        },
        None => format!("{start}"),
    }
}
