//! What can go wrong between a volume and an array, in words that say what to do about it.
//!
//! Errors of the array itself are the core's and pass through unchanged.

use std::any::Any;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A cause that came from another crate, kept for [`source`](std::error::Error::source) only.
pub(crate) type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Everything that can go wrong between volumes and arrays.
///
/// `Display` says what happened and what to do. `Debug`, which a `main` that returns an error prints, is the variant's name, the same
/// text and all causes in one line.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// What the path leads to is no volume that can be read or made.
    #[error("`{volume}`{}: {reason}", if *kind == ErrorKind::Damaged { " is damaged" } else { "" })]
    Source {
        /// What it is instead; [`kind`](Error::kind) returns it.
        kind: ErrorKind,
        /// The volume that was opened, or the metadata document of it that is wrong: a path or a URL.
        volume: String,
        /// What is there, and what to do.
        reason: String,
        /// What the reader of the format said.
        #[source]
        cause: Option<Cause>,
    },
    /// The volume does not have this scale.
    #[error("`{volume}`: there is no scale {mip}: it has {scales}")]
    Scale {
        /// The volume that was opened: a path or a URL.
        volume: String,
        /// The scale that was asked for.
        mip: usize,
        /// How many it has, and what they are called or counted from.
        scales: String,
    },
    /// The format does not have a volume as it was to be made, or its description leaves out what cannot be assumed.
    #[error("`{volume}`: {reason}")]
    NewVolume {
        /// Where it was to be: a path or a URL.
        volume: String,
        /// What the format does not have or needs, and what to choose instead.
        reason: String,
        /// What the reader of the format said.
        #[source]
        cause: Option<Cause>,
    },
    /// The volume's elements are of a type that arrays in shared memory do not have.
    #[error("`{volume}`: elements of type {dtype} cannot be shared (supported: {SUPPORTED})")]
    UnsupportedDType {
        /// The volume: a path or a URL.
        volume: String,
        /// The type, as the volume's metadata writes it.
        dtype: String,
    },
    /// A chunk is there, but cannot be read or decoded.
    #[error("chunk `{chunk}` (region {region}) cannot be read: repair it, or leave its region out")]
    Chunk {
        /// The file or key of the chunk; of a chunk in a shard `CHUNK in SHARD`.
        chunk: String,
        /// The part of the volume that was asked for.
        region: String,
        /// What the codec or the file system said.
        #[source]
        cause: Cause,
    },
    /// A chunk is there, but this user may not read it.
    #[error(
        "chunk `{chunk}` (region {region}) cannot be read: give this user the right to read this file, or leave its region out"
    )]
    ChunkDenied {
        /// The file of the chunk.
        chunk: String,
        /// The part of the volume that was asked for.
        region: String,
        /// What the file system, or the server, said.
        #[source]
        cause: Cause,
    },
    /// A chunk may be there, but its server cannot send it in a form that can be used: not a part of a shard, or packed in another way.
    #[error(
        "chunk `{chunk}` (region {region}) cannot be had from this server: serve the volume in another way, or copy it to a directory"
    )]
    ChunkUnserved {
        /// The key of the chunk.
        chunk: String,
        /// The part of the volume that was asked for.
        region: String,
        /// What the server answered.
        #[source]
        cause: Cause,
    },
    /// A chunk is not stored, and neither the format nor the caller says what its elements are then.
    #[error(
        "chunk `{chunk}` (region {region}) is not stored: ask for missing chunks to be filled if that is how this volume \
         leaves out background"
    )]
    Missing {
        /// The file or key of the chunk.
        chunk: String,
        /// The part of the volume that was asked for.
        region: String,
    },
    /// What missing chunks are to be filled with is no element of the volume.
    #[error("fill value `{value}` for elements of {dtype}: {reason}")]
    FillValue {
        /// The value as it was given.
        value: String,
        /// The type of the elements.
        dtype: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The store did not answer, or refused, after as many attempts as it is worth; [`store_failure`](Error::store_failure) tells which.
    #[error("{op} `{object}` failed")]
    Store {
        /// What was being done.
        op: &'static str,
        /// The object: a path or a URL.
        object: String,
        /// What the store said last.
        #[source]
        cause: Cause,
    },
    /// What should lead to a volume does not.
    #[error("`{url}`: {reason}")]
    Url {
        /// The URL as it was given.
        url: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// The region does not fit the objects that the volume is stored in.
    #[error(
        "region `{region}` cuts through what is stored as one object of shape {stored:?} (grid begins at {origin:?}): choose \
         {aligned} or allow read-modify-write"
    )]
    Alignment {
        /// The region as it was given.
        region: String,
        /// Elements along each axis of one stored object.
        stored: Vec<u64>,
        /// Where their grid begins.
        origin: Vec<i64>,
        /// The smallest region around it that fits.
        aligned: String,
    },
    /// The region is not one, or not one of this volume.
    #[error("region `{bbox}`: {reason}")]
    Bbox {
        /// The region as it was given.
        bbox: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The [`StopFlag`](crate::StopFlag) was raised.
    #[error("interrupted after {done} of {total} chunks")]
    Interrupted {
        /// Chunks that were painted by then.
        done: usize,
        /// Chunks there are.
        total: usize,
    },
    /// All worker processes were lost before the work was done. What they painted is kept.
    #[error(
        "all worker processes were lost after {done} of {total} chunks (the same call again paints only the rest): \
         {report}"
    )]
    Worker {
        /// How each of them ended, with the last lines of what it said.
        report: String,
        /// Chunks that are painted.
        done: usize,
        /// Chunks there are.
        total: usize,
    },
    /// The workers gave up by themselves: trying again would fail again.
    #[error("no worker could paint the rest after {done} of {total} chunks: {report}")]
    Painting {
        /// What they said.
        report: String,
        /// Chunks that were painted by then.
        done: usize,
        /// Chunks there are.
        total: usize,
    },
    /// A thread that writes panicked. What it had stored is whole, and the same call again does no harm.
    #[error("writing ended after {done} of {total} objects: {report}")]
    Writing {
        /// What the thread said.
        report: String,
        /// Objects that were stored by then.
        done: usize,
        /// Objects there are.
        total: usize,
    },
    /// Which part of the work is meant cannot be known.
    #[error("part `{part}`: {reason}")]
    Shard {
        /// The part as it was given, or what stands for it.
        part: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// The array itself could not be made, opened, painted or finished.
    #[error(transparent)]
    Array(#[from] ndarray_shm::Error),
    /// Any other answer of the operating system.
    #[error("{op} `{path}` failed", path = path.display())]
    Io {
        /// What was being done.
        op: &'static str,
        /// The file or directory it was done to.
        path: PathBuf,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
}

/// What a path or URL leads to instead of a volume that can be used. Programs decide by it; messages are for people and may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No volume is described there: the directory, bucket, key or description does not exist.
    Absent,
    /// Something else is there: a file, a group of arrays, meshes, annotations, an object that is no marker.
    NotAVolume,
    /// The description is there, but cut short, not JSON, or has fields that make no sense.
    Damaged,
    /// The description is sound, and asks for something that this library does not have: an element type, a codec, a chunk grid,
    /// writing shards.
    Unsupported,
    /// The program was compiled without the feature that the URL or a codec of the volume needs.
    NotBuiltIn,
    /// A volume was to be made where something else is already.
    AlreadyExists,
}

/// Why a store gave nothing. Programs decide by it whether asking again may help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreFailure {
    /// The store did not answer, or was overloaded, for as long as a request is tried again. It may answer later.
    NoAnswer,
    /// The store refused the credentials that were sent. They may have expired.
    CredentialsRefused,
    /// The store refused a request without credentials, or the file system this user.
    Forbidden,
    /// The store cannot do what was asked for: not send a part of an object, or only in another encoding; or it refused the request.
    Unserved,
    /// The object itself is wrong: shorter than its index says, longer than it can be, gone.
    Damaged,
}

impl StoreFailure {
    /// Whether the same request may succeed later, with other credentials perhaps.
    pub fn may_pass(self) -> bool {
        matches!(self, Self::NoAnswer | Self::CredentialsRefused)
    }
}

/// What a store, or the reader of shards above it, knows of a failure: the cause of a [`Store`](Error::Store).
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct StoreFault {
    pub(crate) failure: StoreFailure,
    pub(crate) text: String,
}

/// Returns what a thread said when it panicked.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message").to_owned()
}

const SUPPORTED: &str = "8 to 64 bit integers, float16, bfloat16, float32, float64, complex64, complex128";

/// The name of a variant.
macro_rules! variant_name {
    ($error:expr; $($name:ident,)*) => { match $error { $(Error::$name { .. } => stringify!($name),)* } };
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = variant_name! {
            self;
            Source, Scale, NewVolume, UnsupportedDType, Chunk, ChunkDenied, ChunkUnserved, Missing, FillValue, Store, Url, Alignment, Bbox,
            Interrupted, Worker, Painting, Writing, Shard, Array, Io,
        };
        if let Self::Array(error) = self {
            return write!(f, "{name}: {error:?}");
        }
        let kind = self.kind().map_or_else(String::new, |kind| format!("({kind:?})"));
        write!(f, "{name}{kind}: {}", with_causes(self))
    }
}

/// Returns an error and what caused it in one line. What an error repeats of its cause is said once.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |cause| cause.source()).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

impl Error {
    /// Returns what is wrong with the volume itself or its place; `None` if the error is about something else, such as a region, a
    /// chunk or the store.
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Source { kind, .. } => Some(*kind),
            Self::UnsupportedDType { .. } => Some(ErrorKind::Unsupported),
            _ => None,
        }
    }

    /// Returns why a store gave nothing; `None` if the error is about something else. A store that says no more did not answer.
    pub fn store_failure(&self) -> Option<StoreFailure> {
        let Self::Store { cause, .. } = self else { return None };
        let fault = cause.downcast_ref::<StoreFault>().map(|fault| fault.failure);
        let of_file = cause.downcast_ref::<io::Error>().map(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => StoreFailure::Forbidden,
            _ => StoreFailure::Unserved,
        });
        Some(fault.or(of_file).unwrap_or(StoreFailure::NoAnswer))
    }

    /// The error of an object that is not what its volume says it is.
    pub(crate) fn damaged_object(object: String, text: impl Into<String>) -> Self {
        let cause = Box::new(StoreFault { failure: StoreFailure::Damaged, text: text.into() });
        Self::Store { op: "reading", object, cause }
    }

    pub(crate) fn volume(kind: ErrorKind, volume: impl fmt::Display, reason: impl Into<String>) -> Self {
        Self::Source { kind, volume: volume.to_string(), reason: reason.into(), cause: None }
    }

    /// Adds the cause to an error of [`volume`](Self::volume).
    pub(crate) fn because(mut self, error: impl Into<Cause>) -> Self {
        if let Self::Source { cause, .. } | Self::NewVolume { cause, .. } = &mut self {
            *cause = Some(error.into());
        }
        self
    }

    pub(crate) fn new_volume(volume: impl fmt::Display, reason: impl Into<String>) -> Self {
        Self::NewVolume { volume: volume.to_string(), reason: reason.into(), cause: None }
    }

    /// Says of what is wrong with the description of a volume that is to be made that it came from the caller.
    pub(crate) fn of_new_volume(self) -> Self {
        match self {
            Self::Source { volume, reason, cause, .. } => Self::NewVolume { volume, reason, cause },
            other => other,
        }
    }

    /// The error of a chunk that was found and cannot be used.
    pub(crate) fn chunk(chunk: String, region: String, cause: Cause) -> Self {
        let answer = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        if answer == Some(io::ErrorKind::PermissionDenied) {
            return Self::ChunkDenied { chunk, region, cause };
        }
        Self::Chunk { chunk, region, cause }
    }

    /// Makes what a directory's store said of an object an error of that chunk: a disk does not recover by waiting, as servers do.
    pub(crate) fn of_file(self, region: String) -> Self {
        match self {
            Self::Store { object, cause, .. } => Self::chunk(object, region, cause),
            other => other,
        }
    }

    /// Makes what a server said of a chunk's object an error of that chunk, unless it may pass.
    pub(crate) fn of_answer(self, region: String) -> Self {
        let failure = self.store_failure();
        match self {
            Self::Store { object: chunk, cause, .. } if failure == Some(StoreFailure::Forbidden) => {
                Self::ChunkDenied { chunk, region, cause }
            }
            Self::Store { object: chunk, cause, .. } if failure == Some(StoreFailure::Unserved) => {
                Self::ChunkUnserved { chunk, region, cause }
            }
            Self::Store { object: chunk, cause, .. } if failure == Some(StoreFailure::Damaged) => {
                Self::chunk(chunk, region, cause)
            }
            other => other,
        }
    }

    /// Names a chunk beside the shard that it is in.
    pub(crate) fn in_shard(mut self, name: impl fmt::Display) -> Self {
        if let Self::Chunk { chunk, .. }
        | Self::ChunkDenied { chunk, .. }
        | Self::ChunkUnserved { chunk, .. }
        | Self::Store { object: chunk, .. } = &mut self
        {
            *chunk = format!("{name} in {chunk}");
        }
        self
    }

    pub(crate) fn io(op: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io { op, path: path.into(), source }
    }

    pub(crate) fn bbox(bbox: impl fmt::Display, reason: impl Into<String>) -> Self {
        Self::Bbox { bbox: bbox.to_string(), reason: reason.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_is_the_name_the_advice_and_the_causes_in_one_line() {
        let error = Error::volume(ErrorKind::Damaged, "v/info", "it is cut short").because("EOF");
        assert_eq!(format!("{error:?}"), "Source(Damaged): `v/info` is damaged: it is cut short: EOF");
        let error = Error::from(ndarray_shm::Error::NotFound { location: "x".into() });
        assert_eq!(format!("{error:?}"), format!("Array: NotFound: {error}"));
        assert!(format!("{error:#?}").contains("create it first"));
    }

    #[test]
    fn file_without_rights_is_no_server_that_may_answer_later() {
        let cause = Box::new(io::Error::from(io::ErrorKind::PermissionDenied));
        let error = Error::Store { op: "reading", object: "v/0.gz".into(), cause }.of_file("0:4".into());
        assert!(matches!(&error, Error::ChunkDenied { chunk, .. } if chunk == "v/0.gz"), "{error}");
        let cause = Box::new(io::Error::from(io::ErrorKind::UnexpectedEof));
        let error = Error::Store { op: "reading", object: "v/0".into(), cause }.of_file("0:4".into());
        assert!(matches!(error, Error::Chunk { .. }), "{error}");
    }

    #[test]
    fn answers_that_may_pass_stay_answers_and_others_are_errors_of_the_chunk() {
        let answer = |failure| {
            let cause = Box::new(StoreFault { failure, text: "no".into() });
            Error::Store { op: "reading", object: "v/0.shard".into(), cause }.of_answer("0:4".into()).in_shard("0-4")
        };
        for failure in [StoreFailure::NoAnswer, StoreFailure::CredentialsRefused] {
            let error = answer(failure);
            assert_eq!(error.store_failure(), Some(failure));
            assert!(failure.may_pass() && error.to_string().contains("`0-4 in v/0.shard`"), "{error}");
        }
        assert!(matches!(answer(StoreFailure::Forbidden), Error::ChunkDenied { .. }));
        assert!(matches!(answer(StoreFailure::Unserved), Error::ChunkUnserved { .. }));
        let error = answer(StoreFailure::Damaged);
        assert!(matches!(&error, Error::Chunk { chunk, .. } if chunk == "0-4 in v/0.shard"), "{error}");
        let foreign = Error::Store { op: "reading", object: "x".into(), cause: "gone".into() };
        assert_eq!(foreign.store_failure(), Some(StoreFailure::NoAnswer), "as it says nothing else");
    }
}
