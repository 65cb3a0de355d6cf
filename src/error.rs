//! What can go wrong, in words that say what to do about it.
//!
//! Every variant names the array it is about. A name in the messages is the public location; a nameless draft is named
//! by the directory it lives in.

use std::borrow::Cow;
use std::time::Duration;
use std::{fmt, io};

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong with an array in shared memory.
///
/// `Display` says what happened and what to do; the cause, where the operating system gave one, is in
/// [`source`](std::error::Error::source) and is not repeated. `Debug`, which a `main` that returns an error prints, is
/// the variant's name, the same text and all causes in one line.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing has this name.
    #[error("`{location}`: no array has this name (create it first, or check the spelling and EMULATE_SHM)")]
    NotFound {
        /// The name asked for.
        location: String,
    },
    /// Nothing has this name in the place that was searched, but an array in the other of the two usual places has it.
    /// A kind of [`NotFound`](Self::NotFound): [`is_not_found`](Self::is_not_found) is true for it.
    ///
    /// Whatever opens an array by its name in `/dev/shm` or in the emulated directory reports this, and so does
    /// [`unlink`](crate::unlink()).
    #[error(
        "`{location}`: no array has this name in {searched}, but there is one in {directory} (EMULATE_SHM={emulate} chooses that \
         place)"
    )]
    Elsewhere {
        /// The name asked for.
        location: String,
        /// The directory that was searched.
        searched: String,
        /// The directory in which the name is.
        directory: String,
        /// The value of `EMULATE_SHM` that chooses this directory.
        emulate: u8,
    },
    /// The directory in which arrays are to live is missing.
    #[error("`{directory}`: this directory does not exist (create it first, or correct its path)")]
    NoDirectory {
        /// Its path.
        directory: String,
    },
    /// The name is taken.
    #[error("`{location}` exists already (open it, unlink it, or ask for it to be replaced)")]
    AlreadyExists {
        /// The name asked for.
        location: String,
    },
    /// The name breaks the rules for locations.
    #[error("`{location}` cannot be a location: {reason}")]
    InvalidLocation {
        /// The name as it was given, shortened if it is very long.
        location: String,
        /// Which rule it breaks.
        reason: &'static str,
    },
    /// The name or the bytes belong to this crate's own bookkeeping.
    #[error("`{location}` is reserved: {reason}")]
    Reserved {
        /// The name asked for.
        location: String,
        /// What it is instead of an array.
        reason: &'static str,
    },
    /// What stands at the location is not a regular file.
    #[error("`{location}` is {found}, not an array (remove it or choose another name)")]
    NotAnArray {
        /// The name asked for.
        location: String,
        /// What was found: "a directory", "a symbolic link", ..
        found: &'static str,
    },
    /// There is not enough room for the pages; what was to be made was not.
    #[error("`{location}` needs {needed} bytes, but only {available} are available{}: {advice}", kept(*in_flight))]
    NoSpace {
        /// The name or directory the room was asked for.
        location: String,
        /// Bytes asked for.
        needed: u64,
        /// Bytes that could be had.
        available: u64,
        /// Bytes of arrays in the same directory that only handles in flight keep: no process is attached to them.
        in_flight: u64,
        /// Which limit it was, and how to raise it.
        advice: Cow<'static, str>,
    },
    /// shape * element size does not fit the address space, or the array is larger than a file can be.
    #[error("`{location}`: an array of shape {shape:?} with {item} byte elements is larger than the address space")]
    TooLarge {
        /// The name asked for.
        location: String,
        /// The shape asked for.
        shape: Vec<usize>,
        /// Bytes of one element.
        item: usize,
    },
    /// The segment does not have the size that shape and element type ask for.
    #[error(
        "`{location}` holds {found} bytes, but this shape and element type need exactly {expected}{}",
        described(description.as_deref())
    )]
    SizeMismatch {
        /// The name asked for.
        location: String,
        /// Bytes that shape and element type need.
        expected: u64,
        /// Bytes the segment has.
        found: u64,
        /// What the array says about itself, if it says anything.
        description: Option<String>,
    },
    /// The array describes itself as another one.
    #[error(
        "`{location}` describes itself as {found}, not as {expected} (open it as what it is; if the description is wrong, correct it \
         with `ndshm describe`; `reinterpret(true)` or `--ignore-description` takes the same bytes for other numbers, and converts none)"
    )]
    DescriptionMismatch {
        /// The name asked for.
        location: String,
        /// Type, shape and order asked for.
        expected: String,
        /// Those that the array says.
        found: String,
    },
    /// The array says nothing about itself that could be true of its bytes.
    #[error(
        "`{location}` does not describe itself (say its element type, shape and order, or write them down once with `ndshm describe`)"
    )]
    NotDescribed {
        /// The name asked for.
        location: String,
    },
    /// Another process has replaced the array, or its description, since the description was read.
    #[error(
        "`{location}`: the array or its description was replaced since it was read (read the description again, then change it)"
    )]
    Changed {
        /// The name asked for.
        location: String,
    },
    /// The stored element type is another one.
    #[error("`{location}` has elements of type {found}, not {expected}")]
    DTypeMismatch {
        /// The name asked for.
        location: String,
        /// The type asked for.
        expected: String,
        /// The type found.
        found: String,
    },
    /// The stored shape is another one.
    #[error("`{location}` has the shape {found}, not {expected}")]
    ShapeMismatch {
        /// The name asked for.
        location: String,
        /// The shape asked for.
        expected: String,
        /// The shape found.
        found: String,
    },
    /// A renderbuffer of this name is painted for another purpose.
    #[error("`{location}` {}", other_work(*state, what, expected, found))]
    Mismatch {
        /// The name asked for.
        location: String,
        /// What differs: "fingerprint", "shape", ..
        what: &'static str,
        /// What was asked for; of a fingerprint only the words that differ, if both have as many.
        expected: String,
        /// What the buffer says.
        found: String,
        /// What became of the buffer, which decides what can be done.
        state: OtherWork,
    },
    /// Our own bookkeeping bytes are damaged, cut short, or of another version.
    #[error("`{location}`: the bookkeeping bytes are not valid: {reason} (discard or unlink it and start anew)")]
    Trailer {
        /// The name asked for.
        location: String,
        /// What is wrong with them.
        reason: String,
    },
    /// The file is an array without a trailer, or another program's.
    #[error("`{location}` is not a counted array: its bytes do not say what it is (open it with its type and shape)")]
    NotCounted {
        /// The name asked for.
        location: String,
    },
    /// The handle led to the array once, or for a time, and does so no more.
    #[error("`{location}`: this handle has been used or taken back, or came too late (ask the sender for another)")]
    HandleSpent {
        /// The name asked for.
        location: String,
    },
    /// The maximum number of handles is attached or in flight.
    #[error(
        "`{location}`: {limit} handles are {doing} already, and there is no room to count more: wait until some are dropped"
    )]
    TooManyHandles {
        /// The name asked for.
        location: String,
        /// How many can be counted.
        limit: u64,
        /// "attached" or "in flight".
        doing: &'static str,
    },
    /// As many processes as there can be have an arena, or counters, open.
    #[error(
        "`{location}`: {limit} processes have it open already, the most that can (each time that a process opens it counts; clones do \
         not): close it in one of them, or wait until one ends"
    )]
    TooManyProcesses {
        /// The name asked for.
        location: String,
        /// How many processes can have it open.
        limit: u32,
    },
    /// The name has gone, or means something else by now; the mapping itself is intact.
    #[error("`{location}` was unlinked or replaced while it was in use (open it again by name, or begin anew)")]
    Unlinked {
        /// The name it had.
        location: String,
    },
    /// Another holder has the lock, and the call does not wait.
    #[error("`{location}` is locked by another guard or claim (try again, or use a form that waits)")]
    WouldBlock {
        /// The array asked for.
        location: String,
    },
    /// This thread holds a guard that the request conflicts with: waiting would never end.
    #[error("`{location}`: this thread holds a guard that this request conflicts with (drop it first)")]
    WouldDeadlock {
        /// The array asked for.
        location: String,
    },
    /// The time given ran out.
    #[error("`{location}`: not available within {waited:?}")]
    TimedOut {
        /// The array asked for.
        location: String,
        /// How long was waited.
        waited: std::time::Duration,
    },
    /// The callback of [`interruptible`](crate::backend::interruptible) has ended the call. Nothing has changed, except
    /// that a sparse file of another process may have got some of its memory.
    #[error("`{location}`: the call was interrupted (make it again)")]
    Interrupted {
        /// The array, or the directory in which a new one was to be.
        location: String,
    },
    /// Chunks of the renderbuffer are still missing.
    #[error("`{location}`: {done} of {total} chunks are painted (paint the rest, then finish)")]
    Incomplete {
        /// The array asked for.
        location: String,
        /// Chunks that are finished.
        done: usize,
        /// Chunks there are.
        total: usize,
    },
    /// The process or the system has no descriptor left.
    #[error(
        "`{location}`: no descriptor left (this process may open {limit}): raise `ulimit -n`, or hold fewer guards, \
         claims and drafts at once"
    )]
    TooManyOpenFiles {
        /// The array asked for.
        location: String,
        /// The process's own limit.
        limit: u64,
    },
    /// The user, the file's mode or the way it was opened forbids this.
    #[error("`{location}`: permission denied: {reason} (owner uid {owner}, mode {mode:03o})")]
    PermissionDenied {
        /// The array asked for.
        location: String,
        /// Owner of the file, or of the directory where there is no file; 0 where users have no numbers.
        owner: u32,
        /// Permission bits of the same.
        mode: u32,
        /// What was forbidden.
        reason: &'static str,
    },
    /// The file belongs to another user, and files of that user were not asked for.
    #[error("`{location}` belongs to user {owner}, and this process to user {user}: {reason}")]
    ForeignOwner {
        /// The array asked for.
        location: String,
        /// Owner of the file.
        owner: u32,
        /// Effective user of this process.
        user: u32,
        /// Why the owner matters, and what to do.
        reason: &'static str,
    },
    /// A setting does not make sense.
    #[error("{setting} is {value:?}, but must be {expected}")]
    InvalidSetting {
        /// The environment variable or option.
        setting: &'static str,
        /// Its value.
        value: String,
        /// What it may be, as words that follow "must be".
        expected: &'static str,
    },
    /// The manager is not what it should be, or does not do what it should.
    #[error("manager at `{location}`: {reason}")]
    Manager {
        /// Its socket.
        location: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The platform or file system cannot do this.
    #[error("`{location}`: not supported: {what}")]
    Unsupported {
        /// The array asked for.
        location: String,
        /// What is not supported, and what to do instead.
        what: Cow<'static, str>,
    },
    /// The other end of a channel is gone, or has ended its side, or a queue was closed: nothing more will come, and
    /// nothing can be sent. Or a queue is empty, and all of its registered senders have left or died.
    #[error("`{location}`: {reason}")]
    Closed {
        /// The channel: the path of its socket, if it has one. Or the arena.
        location: String,
        /// What has ended, and what to do if that was not meant.
        reason: &'static str,
    },
    /// There is no room for another message.
    #[error("`{location}`: queue {queue} is full: {capacity} messages wait (receive some, or use a form that waits)")]
    QueueFull {
        /// The arena.
        location: String,
        /// Which of its queues.
        queue: u32,
        /// How many messages fit.
        capacity: usize,
    },
    /// The message that is next is not of the type asked for. It stays: receive it as another, or skip it.
    #[error("`{location}`: the message is not what was expected: {reason}")]
    Message {
        /// The channel: the path of its socket, if it has one.
        location: String,
        /// What is different.
        reason: String,
    },
    /// What came through a channel is not a message, or what was to be sent cannot be one.
    #[error("`{location}`: channel protocol: {reason}")]
    Protocol {
        /// The channel: the path of its socket, if it has one.
        location: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// Any other answer of the operating system.
    #[error("`{location}`: {op} failed")]
    Os {
        /// What was being done.
        op: &'static str,
        /// The array or path it was done to.
        location: String,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// The state of a renderbuffer with other work than the caller's: see [`Error::Mismatch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OtherWork {
    /// It is unfinished, and a process is attached to it, perhaps this one.
    Attached,
    /// It is unfinished, and no process is attached to it.
    /// [`RenderOptions::replace`](crate::render::RenderOptions::replace) replaces it, and
    /// [`render::discard`](crate::render::discard) removes it.
    Idle,
    /// It is finished: an array has the name. Reported with
    /// [`RenderOptions::accept_finished`](crate::render::RenderOptions::accept_finished) only.
    Finished,
}

fn other_work(state: OtherWork, what: &str, expected: &str, found: &str) -> String {
    match state {
        OtherWork::Attached => format!(
            "is being painted with another {what}: found {found}, expected {expected}, and a process is attached to the buffer (wait \
             until it is finished, choose another name, or take it from its painters with `render::discard`)"
        ),
        OtherWork::Idle => format!(
            "is an unfinished buffer with another {what}: found {found}, expected {expected}, and no process is attached to it \
             (`replace(true)` replaces it, `render::discard` removes it; or choose another name)"
        ),
        OtherWork::Finished => format!(
            "is a finished array of another {what}: found {found}, expected {expected} (unlink it, or ask for it to be replaced, or choose \
             another name)"
        ),
    }
}

fn kept(in_flight: u64) -> String {
    if in_flight == 0 {
        return String::new();
    }
    let mebibytes = in_flight.div_ceil(1 << 20);
    format!(
        ", and handles in flight (those of pickles, for example) keep {mebibytes} MiB of arrays to which no process is attached \
         (they expire; `ndshm gc --in-flight` ends them and frees the arrays)"
    )
}

fn described(description: Option<&str>) -> String {
    description.map(|found| format!(" (it describes itself as {found})")).unwrap_or_default()
}

/// One predicate per variant that programs act upon.
macro_rules! predicates {
    ($($name:ident => $variant:ident, $doc:literal;)*) => {
        impl Error {
            $(#[doc = $doc] pub fn $name(&self) -> bool { matches!(self, Self::$variant { .. }) })*
        }
    };
}

impl Error {
    /// Whether nothing has the name, at least where it was searched.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. } | Self::Elsewhere { .. })
    }
}

predicates! {
    is_already_exists => AlreadyExists, "Whether the name is taken.";
    is_reserved => Reserved, "Whether name or bytes belong to this crate's bookkeeping.";
    is_no_space => NoSpace, "Whether there was not enough room.";
    is_mismatch => Mismatch, "Whether a renderbuffer of this name has another purpose.";
    is_description_mismatch => DescriptionMismatch, "Whether the array describes itself as another one.";
    is_not_described => NotDescribed, "Whether the array does not describe itself.";
    is_changed => Changed, "Whether the array or its description was replaced meanwhile.";
    is_not_counted => NotCounted, "Whether the file says nothing about itself.";
    is_handle_spent => HandleSpent, "Whether a handle leads nowhere any more.";
    is_unlinked => Unlinked, "Whether the name has gone or means something else.";
    is_would_block => WouldBlock, "Whether another holder has the lock.";
    is_would_deadlock => WouldDeadlock, "Whether waiting would never end.";
    is_timed_out => TimedOut, "Whether the time ran out.";
    is_interrupted => Interrupted, "Whether the callback of `interruptible` has ended the call.";
    is_incomplete => Incomplete, "Whether chunks are still missing.";
    is_permission_denied => PermissionDenied, "Whether permissions forbid it.";
    is_foreign_owner => ForeignOwner, "Whether it belongs to another user that was not allowed.";
    is_unsupported => Unsupported, "Whether platform or file system cannot do it.";
    is_too_many_open_files => TooManyOpenFiles, "Whether process or system have no descriptor left.";
    is_closed => Closed, "Whether the other end of the channel is gone, or the queue has ended.";
    is_queue_full => QueueFull, "Whether there was no room for another message.";
    is_protocol => Protocol, "Whether the channel carried something that is no message, or was asked to.";
}

/// The name of a variant.
macro_rules! variant_name {
    ($error:expr; $($name:ident,)*) => { match $error { $(Error::$name { .. } => stringify!($name),)* } };
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = variant_name! {
            self;
            NotFound, Elsewhere, NoDirectory, AlreadyExists, InvalidLocation, Reserved, NotAnArray, NoSpace, TooLarge, SizeMismatch,
            DescriptionMismatch, NotDescribed, Changed,
            DTypeMismatch, ShapeMismatch, Mismatch, Trailer, NotCounted, HandleSpent, TooManyHandles, TooManyProcesses,
            Unlinked,
            WouldBlock, WouldDeadlock, TimedOut, Interrupted, Incomplete, TooManyOpenFiles, PermissionDenied, ForeignOwner,
            InvalidSetting, Manager, Unsupported, Closed, QueueFull, Message, Protocol, Os,
        };
        write!(f, "{name}: {}", with_causes(self))
    }
}

impl Error {
    /// Wraps the operating system's answer to `op`, giving the answers that have a variant of their own that variant.
    pub(crate) fn os(op: &'static str, location: impl fmt::Display, source: io::Error) -> Self {
        let location = location.to_string();
        if crate::os::is_out_of_descriptors(&source) {
            return Self::TooManyOpenFiles { location, limit: crate::os::descriptor_limit() };
        }
        match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound { location },
            io::ErrorKind::AlreadyExists => Self::AlreadyExists { location },
            // Our own floor 0 gives the reason with it, the kernel none.
            io::ErrorKind::Unsupported if source.get_ref().is_some() => {
                Self::Unsupported { location, what: format!("{op}: {source}").into() }
            }
            io::ErrorKind::Unsupported => Self::Unsupported { location, what: op.into() },
            // As above. The kernel's own interruptions are not reported, but the call is made again.
            io::ErrorKind::Interrupted if source.get_ref().is_some() => Self::Interrupted { location },
            _ => Self::Os { op, location, source },
        }
    }

    /// The same about a socket or a process, where it is no array that is missing or there already: `op` says what to
    /// do.
    pub(crate) fn os_elsewhere(op: &'static str, location: impl fmt::Display, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists => {
                Self::Os { op, location: location.to_string(), source }
            }
            // The reason alone: `op` advises about systems that can do it.
            io::ErrorKind::Unsupported if source.get_ref().is_some() => {
                Self::Unsupported { location: location.to_string(), what: source.to_string().into() }
            }
            _ => Self::os(op, location, source),
        }
    }
}

impl Error {
    /// Names the time limit that the caller has set, of which the last wait got only the rest.
    pub(crate) fn with_limit(mut self, limit: Duration) -> Self {
        if let Self::TimedOut { waited, .. } = &mut self {
            *waited = limit;
        }
        self
    }

    /// Names the array that the caller knows, instead of the directory or bookkeeping file in which the error was met.
    pub(crate) fn about(mut self, array: impl fmt::Display) -> Self {
        match &mut self {
            Self::NotFound { location }
            | Self::AlreadyExists { location }
            | Self::InvalidLocation { location, .. }
            | Self::Reserved { location, .. }
            | Self::NotAnArray { location, .. }
            | Self::NoSpace { location, .. }
            | Self::TooLarge { location, .. }
            | Self::SizeMismatch { location, .. }
            | Self::DescriptionMismatch { location, .. }
            | Self::NotDescribed { location }
            | Self::Changed { location }
            | Self::DTypeMismatch { location, .. }
            | Self::ShapeMismatch { location, .. }
            | Self::Mismatch { location, .. }
            | Self::Trailer { location, .. }
            | Self::NotCounted { location }
            | Self::HandleSpent { location }
            | Self::TooManyHandles { location, .. }
            | Self::TooManyProcesses { location, .. }
            | Self::Unlinked { location }
            | Self::WouldBlock { location }
            | Self::WouldDeadlock { location }
            | Self::TimedOut { location, .. }
            | Self::Interrupted { location }
            | Self::Incomplete { location, .. }
            | Self::TooManyOpenFiles { location, .. }
            | Self::PermissionDenied { location, .. }
            | Self::ForeignOwner { location, .. }
            | Self::Unsupported { location, .. }
            | Self::Os { location, .. } => *location = array.to_string(),
            // About no array: a setting, the manager, a queue, a channel.
            _ => {}
        }
        self
    }
}

/// Keeps the kind, so that `?` in a function that returns `io::Result` loses nothing a caller may match on.
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        use io::ErrorKind as Kind;
        let kind = match &error {
            Error::NotFound { .. }
            | Error::Elsewhere { .. }
            | Error::NoDirectory { .. }
            | Error::Unlinked { .. }
            | Error::HandleSpent { .. } => Kind::NotFound,
            Error::AlreadyExists { .. } => Kind::AlreadyExists,
            Error::InvalidLocation { .. }
            | Error::Reserved { .. }
            | Error::NotAnArray { .. }
            | Error::TooLarge { .. }
            | Error::InvalidSetting { .. } => Kind::InvalidInput,
            Error::NoSpace { .. } => Kind::StorageFull,
            Error::SizeMismatch { .. }
            | Error::DescriptionMismatch { .. }
            | Error::NotDescribed { .. }
            | Error::DTypeMismatch { .. }
            | Error::ShapeMismatch { .. }
            | Error::Mismatch { .. }
            | Error::NotCounted { .. }
            | Error::Message { .. }
            | Error::Protocol { .. }
            | Error::Trailer { .. } => Kind::InvalidData,
            Error::WouldBlock { .. } | Error::Incomplete { .. } | Error::QueueFull { .. } => Kind::WouldBlock,
            Error::WouldDeadlock { .. } => Kind::Deadlock,
            Error::TimedOut { .. } => Kind::TimedOut,
            Error::PermissionDenied { .. } | Error::ForeignOwner { .. } => Kind::PermissionDenied,
            Error::Unsupported { .. } => Kind::Unsupported,
            // Not `Interrupted`: the standard library makes calls with that error again, without asking.
            Error::Interrupted { .. }
            | Error::Changed { .. }
            | Error::TooManyOpenFiles { .. }
            | Error::TooManyHandles { .. }
            | Error::TooManyProcesses { .. }
            | Error::Manager { .. } => Kind::Other,
            Error::Closed { .. } => Kind::BrokenPipe,
            Error::Os { source, .. } => source.kind(),
        };
        Self::new(kind, error)
    }
}

/// An error that gives back the value that could not be consumed.
///
/// A draft that could not be published still holds the filled array: publish it elsewhere, or copy it.
///
/// # Examples
///
/// ```
/// use ndarray_shm::{Draft, SharedArray, unlink};
///
/// SharedArray::<u8, _>::create("into-error-example", 3)?;
/// let error = Draft::<u8, _>::new(3)?.publish("into-error-example").unwrap_err();
/// assert!(error.error().is_already_exists());
/// let draft = error.into_inner(); // nothing of it is lost
/// unlink("into-error-example")?;
/// draft.publish("into-error-example")?;
/// # unlink("into-error-example")?;
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
pub struct IntoError<A, E = Error> {
    error: E,
    value: Box<A>,
}

impl<A, E> IntoError<A, E> {
    /// Joins an error and the value that could not be consumed, for crates with an error of their own.
    pub fn new(error: E, value: A) -> Self {
        Self { error, value: Box::new(value) }
    }

    /// Changes the value.
    pub fn map<B>(self, change: impl FnOnce(A) -> B) -> IntoError<B, E> {
        IntoError::new(self.error, change(*self.value))
    }

    /// Returns what went wrong.
    pub fn error(&self) -> &E {
        &self.error
    }

    /// Gives the value back.
    pub fn into_inner(self) -> A {
        *self.value
    }

    /// Gives the error and the value back.
    pub fn into_parts(self) -> (E, A) {
        (self.error, *self.value)
    }
}

impl<A, E: fmt::Debug> fmt::Debug for IntoError<A, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IntoError").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<A, E: fmt::Display> fmt::Display for IntoError<A, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<A, E: std::error::Error> std::error::Error for IntoError<A, E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl<A> From<IntoError<A>> for Error {
    fn from(error: IntoError<A>) -> Self {
        error.error
    }
}

/// Returns an error and what caused it, in one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_name_advice_and_causes_in_one_line() {
        let error = Error::NotFound { location: "x".into() };
        assert_eq!(format!("{error:?}"), format!("NotFound: {error}"));
        let source = io::Error::new(io::ErrorKind::PermissionDenied, "no rights");
        let error = Error::Os { op: "opening", location: "x".into(), source };
        for text in [format!("{error:?}"), format!("{error:#?}")] {
            assert_eq!(text, "Os: `x`: opening failed: no rights");
        }
    }

    #[test]
    fn unsupported_platform_gets_no_foreign_advice() {
        let source = io::Error::new(io::ErrorKind::Unsupported, "this platform has no sockets; share arrays by name");
        let error = Error::os_elsewhere("listening (the directory must exist)", "x", source);
        assert_eq!(error.to_string(), "`x`: not supported: this platform has no sockets; share arrays by name");
    }

    #[test]
    fn invalid_setting_names_setting_value_and_choices() {
        let error = Error::InvalidSetting { setting: "the order", value: "C\n".into(), expected: "C or F" };
        assert_eq!(error.to_string(), r#"the order is "C\n", but must be C or F"#);
    }
}
