//! What can go wrong, in words that say what to do about it.
//!
//! An error names the array it is about, once. A name in the messages is the public location; a nameless draft is named
//! by the directory it lives in.

use std::borrow::Cow;
use std::time::Duration;
use std::{fmt, io};

pub use self::examples::one_error_of_each_kind;

mod examples;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong with an array in shared memory.
///
/// `Display` says what it is about, what happened and what to do; the cause, where the operating system gave one, is in
/// [`source`](std::error::Error::source) and is not repeated. `Debug`, which a `main` that returns an error prints, is
/// the name of the kind, the same text and all causes in one line.
///
/// # Examples
///
/// ```
/// use ndarray_shm::{Error, ErrorKind, SharedArray, unlink};
///
/// let array = match SharedArray::<f32, _>::create("error-example", (4, 4)) {
///     Err(Error { kind: ErrorKind::AlreadyExists, .. }) => SharedArray::open("error-example", (4, 4))?,
///     Err(Error { kind: ErrorKind::NoSpace { needed, available, .. }, location, .. }) => {
///         panic!("{location}: {} bytes too few", needed - available)
///     }
///     other => other?,
/// };
/// # drop(array);
/// unlink("error-example")?;
/// # Ok::<(), Error>(())
/// ```
#[non_exhaustive]
pub struct Error {
    /// What went wrong, with the values that belong to it.
    pub kind: ErrorKind,
    /// What it is about, for people: the name of an array, shortened if it is very long; the directory of a draft,
    /// which has no name; an arena, a file, a socket or a channel; in words what has none of these, such as "this
    /// process". Empty if it is about a setting.
    pub location: String,
    /// The operating system's answer, if that was the cause.
    pub source: Option<io::Error>,
}

/// What went wrong: the kind of an [`Error`].
///
/// Its `Display` is the error's text without the location.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Nothing has this name.
    #[error("no array has this name (create it first, or check the spelling and EMULATE_SHM)")]
    NotFound,
    /// Nothing has this name in the place that was searched, but an array in the other of the two usual places has it.
    /// A kind of [`NotFound`](Self::NotFound): [`is_not_found`](Error::is_not_found) is true for it.
    ///
    /// Whatever opens an array by its name in `/dev/shm` or in the emulated directory reports this, and so does
    /// [`unlink`](crate::unlink()).
    #[error(
        "no array has this name in {searched}, but there is one in {directory} (EMULATE_SHM={emulate} chooses that \
         place)"
    )]
    Elsewhere {
        /// The directory that was searched.
        searched: String,
        /// The directory in which the name is.
        directory: String,
        /// The value of `EMULATE_SHM` that chooses this directory.
        emulate: u8,
    },
    /// The directory in which arrays are to live is missing.
    #[error("this directory does not exist (create it first, or correct its path)")]
    NoDirectory,
    /// The name is taken.
    #[error("this name exists already (open it, unlink it, or ask for it to be replaced)")]
    AlreadyExists,
    /// The name breaks the rules for locations.
    #[error("this cannot be a location: {reason}")]
    InvalidLocation {
        /// Which rule it breaks.
        reason: &'static str,
    },
    /// The name or the bytes belong to this crate's own bookkeeping.
    #[error("this is reserved: {reason}")]
    Reserved {
        /// What it is instead of an array.
        reason: &'static str,
    },
    /// What stands at the location is not a regular file.
    #[error("this is {found}, not an array (remove it or choose another name)")]
    NotAnArray {
        /// What was found: "a directory", "a symbolic link", ..
        found: &'static str,
    },
    /// There is not enough room for the pages; what was to be made was not.
    #[error("{needed} bytes are needed, but only {available} are available{}: {advice}", kept(*in_flight))]
    NoSpace {
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
    #[error("an array of shape {shape:?} with {item} byte elements is larger than the address space")]
    TooLarge {
        /// The shape asked for.
        shape: Vec<usize>,
        /// Bytes of one element.
        item: usize,
    },
    /// The segment does not have the size that shape and element type ask for.
    #[error(
        "the array holds {found} bytes, but this shape and element type need exactly {expected}{}",
        described(description.as_deref())
    )]
    SizeMismatch {
        /// Bytes that shape and element type need.
        expected: u64,
        /// Bytes the segment has.
        found: u64,
        /// What the array says about itself, if it says anything.
        description: Option<String>,
    },
    /// The array describes itself as another one.
    #[error(
        "the array describes itself as {found}, not as {expected} (open it as what it is; if the description is wrong, correct it \
         with `ndshm describe`; `reinterpret(true)` or `--ignore-description` takes the same bytes for other numbers, and converts none)"
    )]
    DescriptionMismatch {
        /// Type, shape and order asked for.
        expected: String,
        /// Those that the array says.
        found: String,
    },
    /// The array says nothing about itself that could be true of its bytes.
    #[error(
        "the array does not describe itself (say its element type, shape and order, or write them down once with `ndshm describe`)"
    )]
    NotDescribed,
    /// Another process has replaced the array, or its description, since the description was read.
    #[error("the array or its description was replaced since it was read (read the description again, then change it)")]
    Changed,
    /// The stored element type is another one.
    #[error("the array has elements of type {found}, not {expected}")]
    DTypeMismatch {
        /// The type asked for.
        expected: String,
        /// The type found.
        found: String,
    },
    /// The stored shape is another one.
    #[error("the array has the shape {found}, not {expected}")]
    ShapeMismatch {
        /// The shape asked for.
        expected: String,
        /// The shape found.
        found: String,
    },
    /// A cache of this name has another size.
    #[error(
        "the cache has room for {found} bytes, and {asked} were asked for (open it without a size, or remove it and make a \
         new one)"
    )]
    CacheSize {
        /// Bytes that were asked for.
        asked: u64,
        /// Bytes that fit.
        found: u64,
    },
    /// A renderbuffer of this name is painted for another purpose.
    #[error("{}", other_work(*state, what, expected, found))]
    Mismatch {
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
    #[error("the bookkeeping bytes are not valid: {reason} (discard or unlink it and start anew)")]
    Trailer {
        /// What is wrong with them.
        reason: String,
    },
    /// The file is an array without a trailer, or another program's.
    #[error("this is not a counted array: its bytes do not say what it is (open it with its type and shape)")]
    NotCounted,
    /// The handle led to the array once, or for a time, and does so no more.
    #[error("this handle has been used or taken back, or came too late (ask the sender for another)")]
    HandleSpent,
    /// The maximum number of handles is attached or in flight.
    #[error("{limit} handles are {doing} already, and there is no room to count more: wait until some are dropped")]
    TooManyHandles {
        /// How many can be counted.
        limit: u64,
        /// "attached" or "in flight".
        doing: &'static str,
    },
    /// As many processes as there can be have an arena, or counters, open.
    #[error(
        "{limit} processes have it open already, the most that can (each time that a process opens it counts; clones do \
         not): close it in one of them, or wait until one ends"
    )]
    TooManyProcesses {
        /// How many processes can have it open.
        limit: u32,
    },
    /// The name has gone, or means something else by now; the mapping itself is intact.
    #[error("the array was unlinked or replaced while it was in use (open it again by name, or begin anew)")]
    Unlinked,
    /// Another holder has the lock, and the call does not wait.
    #[error("this is locked by another guard or claim (try again, or use a form that waits)")]
    WouldBlock,
    /// This thread holds a guard that the request conflicts with: waiting would never end.
    #[error("this thread holds a guard that this request conflicts with (drop it first)")]
    WouldDeadlock,
    /// The time given ran out.
    #[error("not available within {waited:?}")]
    TimedOut {
        /// How long was waited.
        waited: std::time::Duration,
    },
    /// The callback of [`interruptible`](crate::backend::interruptible) has ended the call. Nothing has changed, except
    /// that a sparse file of another process may have got some of its memory.
    #[error("the call was interrupted (make it again)")]
    Interrupted,
    /// Another process is the writer of the stream.
    #[error("another process writes to this stream (end it there, or choose another name)")]
    HasWriter,
    /// The writer of the stream was killed, and no frame is left that this reader has not seen.
    #[error(
        "the writer of this stream has died, and no other one has taken it over yet (wait again, or start a writer that resumes it)"
    )]
    NoWriter,
    /// Another process reads with this cursor.
    #[error("another process reads with the cursor {cursor:?} (end it there, or choose another name)")]
    HasReader {
        /// Name of the cursor.
        cursor: String,
    },
    /// All slots of the stream are held.
    #[error("{}", slots_held(*slots, holders, cursors))]
    SlotsHeld {
        /// How many slots the stream has.
        slots: usize,
        /// Numbers of processes that hold some, sorted, as far as they are known. In another pid namespace they are
        /// those of other processes.
        holders: Vec<u32>,
        /// Names of the cursors that have not acknowledged frames.
        cursors: Vec<String>,
    },
    /// Chunks of the renderbuffer are still missing.
    #[error("{done} of {total} chunks are painted (paint the rest, then finish)")]
    Incomplete {
        /// Chunks that are finished.
        done: usize,
        /// Chunks there are.
        total: usize,
    },
    /// The process or the system has no descriptor left.
    #[error(
        "no descriptor left (this process may open {limit}): raise `ulimit -n`, or hold fewer guards, \
         claims and drafts at once"
    )]
    TooManyOpenFiles {
        /// The process's own limit.
        limit: u64,
    },
    /// The user, the file's mode or the way it was opened forbids this.
    #[error("permission denied: {reason} (owner uid {owner}, mode {mode:03o})")]
    PermissionDenied {
        /// Owner of the file, or of the directory where there is no file; 0 where users have no numbers.
        owner: u32,
        /// Permission bits of the same.
        mode: u32,
        /// What was forbidden.
        reason: &'static str,
    },
    /// The file belongs to another user, and files of that user were not asked for.
    #[error("this belongs to user {owner}, and this process to user {user}: {reason}")]
    ForeignOwner {
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
    #[error("manager: {reason}")]
    Manager {
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The platform or file system cannot do this.
    #[error("not supported: {what}")]
    Unsupported {
        /// What is not supported, and what to do instead.
        what: Cow<'static, str>,
    },
    /// The other end of a channel is gone, or has ended its side, or a queue was closed: nothing more will come, and
    /// nothing can be sent. Or a queue is empty, and all of its registered senders have left or died.
    #[error("{reason}")]
    Closed {
        /// What has ended, and what to do if that was not meant.
        reason: &'static str,
    },
    /// There is no room for another message.
    #[error("queue {queue} is full: {capacity} messages wait (receive some, or use a form that waits)")]
    QueueFull {
        /// Which of its queues.
        queue: u32,
        /// How many messages fit.
        capacity: usize,
    },
    /// The message that is next is not of the type asked for. It stays: receive it as another, or skip it.
    #[error("the message is not what was expected: {reason}")]
    Message {
        /// What is different.
        reason: String,
    },
    /// What came through a channel is not a message, or what was to be sent cannot be one.
    #[error("channel protocol: {reason}")]
    Protocol {
        /// What is wrong, and what to do.
        reason: String,
    },
    /// Any other answer of the operating system.
    #[error("{op} failed")]
    Os {
        /// What was being done.
        op: &'static str,
    },
}

/// The state of a renderbuffer with other work than the caller's: see [`ErrorKind::Mismatch`].
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
            "this is being painted with another {what}: found {found}, expected {expected}, and a process is attached to the buffer (wait \
             until it is finished, choose another name, or take it from its painters with `render::discard`)"
        ),
        OtherWork::Idle => format!(
            "this is an unfinished buffer with another {what}: found {found}, expected {expected}, and no process is attached to it \
             (`replace(true)` replaces it, `render::discard` removes it; or choose another name)"
        ),
        OtherWork::Finished => format!(
            "this is a finished array of another {what}: found {found}, expected {expected} (unlink it, or ask for it to be replaced, or choose \
             another name)"
        ),
    }
}

fn slots_held(slots: usize, holders: &[u32], cursors: &[String]) -> String {
    let list = |what: &str, names: Vec<String>| match names.len() {
        0 => String::new(),
        1 => format!(" by the {what} {}", names[0]),
        _ => format!(" by the {what}{} {}", if what.ends_with('s') { "es" } else { "s" }, names.join(", ")),
    };
    let parts = [
        list("process", holders.iter().map(ToString::to_string).collect()),
        list("cursor", cursors.iter().map(|name| format!("{name:?}")).collect()),
    ];
    let holders = parts.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join(" and");
    format!(
        "all {slots} slots are held{holders}, apart from that of the newest frame (try again, use a form that waits, or create the \
         stream with more slots)"
    )
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

impl ErrorKind {
    /// Returns the error of this kind about `location`.
    pub fn at(self, location: impl fmt::Display) -> Error {
        Error { kind: self, location: location.to_string(), source: None }
    }

    /// Returns the kind that an [`io::Error`] gets, so that `?` in a function that returns [`io::Result`] loses nothing
    /// that a caller may match on.
    fn of_io(&self) -> io::ErrorKind {
        use io::ErrorKind as Io;
        match self {
            Self::NotFound | Self::Elsewhere { .. } | Self::NoDirectory | Self::Unlinked | Self::HandleSpent => {
                Io::NotFound
            }
            Self::AlreadyExists => Io::AlreadyExists,
            Self::InvalidLocation { .. }
            | Self::Reserved { .. }
            | Self::NotAnArray { .. }
            | Self::TooLarge { .. }
            | Self::InvalidSetting { .. } => Io::InvalidInput,
            Self::NoSpace { .. } => Io::StorageFull,
            Self::SizeMismatch { .. }
            | Self::DescriptionMismatch { .. }
            | Self::NotDescribed
            | Self::DTypeMismatch { .. }
            | Self::ShapeMismatch { .. }
            | Self::Mismatch { .. }
            | Self::CacheSize { .. }
            | Self::NotCounted
            | Self::Message { .. }
            | Self::Protocol { .. }
            | Self::Trailer { .. } => Io::InvalidData,
            Self::WouldBlock
            | Self::Incomplete { .. }
            | Self::QueueFull { .. }
            | Self::HasWriter
            | Self::HasReader { .. }
            | Self::SlotsHeld { .. } => Io::WouldBlock,
            Self::WouldDeadlock => Io::Deadlock,
            Self::TimedOut { .. } => Io::TimedOut,
            Self::PermissionDenied { .. } | Self::ForeignOwner { .. } => Io::PermissionDenied,
            Self::Unsupported { .. } => Io::Unsupported,
            Self::Closed { .. } | Self::NoWriter => Io::BrokenPipe,
            // `Interrupted` too: the standard library makes calls with that error again, without asking.
            Self::Interrupted
            | Self::Changed
            | Self::TooManyOpenFiles { .. }
            | Self::TooManyHandles { .. }
            | Self::TooManyProcesses { .. }
            | Self::Manager { .. }
            | Self::Os { .. } => Io::Other,
        }
    }
}

impl Error {
    /// Returns the error for a setting or a limit that is not possible, which is about no place. `expected` says what
    /// is possible.
    pub fn setting(setting: &'static str, value: impl fmt::Display, expected: &'static str) -> Self {
        ErrorKind::InvalidSetting { setting, value: value.to_string(), expected }.at("")
    }

    /// Returns whether nothing has the name, at least where it was searched: [`NotFound`](ErrorKind::NotFound) or
    /// [`Elsewhere`](ErrorKind::Elsewhere).
    pub fn is_not_found(&self) -> bool {
        matches!(self.kind, ErrorKind::NotFound | ErrorKind::Elsewhere { .. })
    }

    /// Wraps the operating system's answer to `op`, giving the answers that have a kind of their own that kind.
    pub(crate) fn os(op: &'static str, location: impl fmt::Display, source: io::Error) -> Self {
        if crate::os::is_out_of_descriptors(&source) {
            return ErrorKind::TooManyOpenFiles { limit: crate::os::descriptor_limit() }.at(location);
        }
        match source.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound.at(location),
            io::ErrorKind::AlreadyExists => ErrorKind::AlreadyExists.at(location),
            // Our own floor 0 gives the reason with it, the kernel none.
            io::ErrorKind::Unsupported if source.get_ref().is_some() => {
                ErrorKind::Unsupported { what: format!("{op}: {source}").into() }.at(location)
            }
            io::ErrorKind::Unsupported => ErrorKind::Unsupported { what: op.into() }.at(location),
            // As above. The kernel's own interruptions are not reported, but the call is made again.
            io::ErrorKind::Interrupted if source.get_ref().is_some() => ErrorKind::Interrupted.at(location),
            _ => ErrorKind::Os { op }.at(location).because(source),
        }
    }

    /// The same about a socket or a process, where it is no array that is missing or there already: `op` says what to
    /// do.
    pub(crate) fn os_elsewhere(op: &'static str, location: impl fmt::Display, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists => ErrorKind::Os { op }.at(location).because(source),
            // The reason alone: `op` advises about systems that can do it.
            io::ErrorKind::Unsupported if source.get_ref().is_some() => {
                ErrorKind::Unsupported { what: source.to_string().into() }.at(location)
            }
            _ => Self::os(op, location, source),
        }
    }

    /// Adds the operating system's answer.
    pub(crate) fn because(self, source: io::Error) -> Self {
        Self { source: Some(source), ..self }
    }

    /// Names the time limit that the caller has set, of which the last wait got only the rest.
    pub(crate) fn with_limit(mut self, limit: Duration) -> Self {
        if let ErrorKind::TimedOut { waited } = &mut self.kind {
            *waited = limit;
        }
        self
    }

    /// Names the array that the caller knows, instead of the directory or bookkeeping file in which the error was met.
    pub(crate) fn about(self, array: impl fmt::Display) -> Self {
        match self.kind {
            // About no array.
            ErrorKind::InvalidSetting { .. } | ErrorKind::NoDirectory | ErrorKind::Manager { .. } => self,
            _ => Self { location: array.to_string(), ..self },
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.location.as_str() {
            "" => self.kind.fmt(f),
            location => write!(f, "`{location}`: {}", self.kind),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = format!("{:?}", self.kind);
        let name = kind.split(' ').next().unwrap_or_default();
        write!(f, "{name}: {}", with_causes(self))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = error.source.as_ref().map_or_else(|| error.kind.of_io(), io::Error::kind);
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
/// use ndarray_shm::{Draft, ErrorKind, SharedArray, unlink};
///
/// SharedArray::<u8, _>::create("into-error-example", 3)?;
/// let error = Draft::<u8, _>::new(3)?.publish("into-error-example").unwrap_err();
/// assert_eq!(error.error().kind, ErrorKind::AlreadyExists);
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

/// Returns an error and its causes in one line. Leaves out a cause that the text before it already has.
#[doc(hidden)] // for the other crates of this project
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |cause| cause.source()).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_name_advice_and_causes_in_one_line() {
        let error = ErrorKind::NotFound.at("x");
        assert_eq!(format!("{error:?}"), format!("NotFound: {error}"));
        let source = io::Error::new(io::ErrorKind::PermissionDenied, "no rights");
        let error = ErrorKind::Os { op: "opening" }.at("x").because(source);
        for text in [format!("{error:?}"), format!("{error:#?}")] {
            assert_eq!(text, "Os: `x`: opening failed: no rights");
        }
    }

    /// Compares what a user reads with `src/error/examples.txt`; with `NDSHM_TEST_WRITE_MESSAGES=1` writes it there.
    #[test]
    fn messages_of_all_kinds_are_as_written_down() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/src/error/examples.txt");
        let shown = |error: Error| {
            let text = format!("{error:?}");
            format!("{text}\n  io::ErrorKind::{:?}\n", io::Error::from(error).kind())
        };
        let messages = one_error_of_each_kind().into_iter().map(shown).collect::<String>();
        if std::env::var_os("NDSHM_TEST_WRITE_MESSAGES").is_some() {
            std::fs::write(file, &messages).expect("the file can be written");
        }
        assert_eq!(messages, std::fs::read_to_string(file).expect("the file is there"));

        let source = include_str!("error.rs");
        let (_, kinds) = source.split_once("pub enum ErrorKind {").expect("the kinds");
        let (kinds, _) = kinds.split_once("\n}").expect("their end");
        let lines = kinds.lines().filter_map(|line| line.strip_prefix("    "));
        let names = lines
            .filter(|line| line.starts_with(char::is_uppercase))
            .map(|line| line.trim_end_matches([' ', '{', ',']));
        let shown = messages.lines().filter(|line| !line.starts_with(' ')).filter_map(|line| line.split(':').next());
        assert_eq!(names.collect::<Vec<_>>(), shown.collect::<Vec<_>>(), "one of each kind, in their order");
    }

    #[test]
    fn unsupported_platform_gets_no_foreign_advice() {
        let source = io::Error::new(io::ErrorKind::Unsupported, "this platform has no sockets; share arrays by name");
        let error = Error::os_elsewhere("listening (the directory must exist)", "x", source);
        assert_eq!(error.to_string(), "`x`: not supported: this platform has no sockets; share arrays by name");
    }

    #[test]
    fn invalid_setting_names_setting_value_and_choices() {
        let error = Error::setting("the order", "C\n", "C or F");
        assert_eq!(error.to_string(), r#"the order is "C\n", but must be C or F"#);
    }
}
