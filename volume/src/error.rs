//! Errors of downloads and uploads. Each message says what to do.
//!
//! Errors of the array itself come from the core and pass through unchanged.

use std::any::Any;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// A result with [`Error`] as its error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of another crate, kept only for [`source`](std::error::Error::source).
pub(crate) type Cause = Box<dyn std::error::Error + Send + Sync>;

/// An error of a volume, a download or an upload.
///
/// `Display` says what happened and what to do. `Debug`, which a `main` that returns an error prints, is the same text
/// and all causes in one line.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path or URL does not lead to a volume that can be read or created.
    #[error("`{volume}`{}: {reason}", if *failure == SourceFailure::Damaged { " is damaged" } else { "" })]
    Source {
        /// What is there instead.
        failure: SourceFailure,
        /// The volume, or its metadata document that is wrong: a path or a URL.
        volume: String,
        /// What is there, and what to do.
        reason: String,
        /// The error of the format's reader.
        #[source]
        cause: Option<Cause>,
    },
    /// The volume does not have this scale.
    #[error("`{volume}`: there is no scale {mip}: it has {scales}")]
    Scale {
        /// The volume that was opened: a path or a URL.
        volume: String,
        /// The requested scale.
        mip: usize,
        /// How many scales there are, with their names or their first number.
        scales: String,
    },
    /// The format cannot represent the new volume, or the description of the new volume lacks a required field.
    #[error("`{volume}`: {reason}")]
    NewVolume {
        /// The path or URL of the new volume.
        volume: String,
        /// What the format lacks or requires, and what to choose instead.
        reason: String,
        /// The error of the format's reader.
        #[source]
        cause: Option<Cause>,
    },
    /// Arrays in shared memory do not have the volume's element type.
    #[error("`{volume}`: elements of type {dtype} cannot be shared (supported: {SUPPORTED})")]
    UnsupportedDType {
        /// The volume: a path or a URL.
        volume: String,
        /// The type, as the volume's metadata writes it.
        dtype: String,
    },
    /// A chunk exists, but cannot be read or decoded.
    #[error("chunk `{chunk}` (region {region}) cannot be read: repair it, or leave its region out")]
    Chunk {
        /// The file or key of the chunk; for a chunk in a shard `CHUNK in SHARD`.
        chunk: String,
        /// The requested region.
        region: String,
        /// The error of the codec or the file system.
        #[source]
        cause: Cause,
    },
    /// A chunk exists, but this user has no permission to read it.
    #[error(
        "chunk `{chunk}` (region {region}) cannot be read: give this user permission to read this file, or leave its region out"
    )]
    ChunkDenied {
        /// The file of the chunk.
        chunk: String,
        /// The requested region.
        region: String,
        /// The error of the file system or the server.
        #[source]
        cause: Cause,
    },
    /// The server cannot send a chunk in a usable form: it does not send parts of a shard, or it encodes the chunk in
    /// another way.
    #[error(
        "chunk `{chunk}` (region {region}) cannot be read from this server: serve the volume in another way, or copy it to a directory"
    )]
    ChunkUnserved {
        /// The key of the chunk.
        chunk: String,
        /// The requested region.
        region: String,
        /// The server's answer.
        #[source]
        cause: Cause,
    },
    /// A chunk is not stored, and neither the format nor the caller gives a value for its elements.
    #[error(
        "chunk `{chunk}` (region {region}) is not stored: if this volume leaves out chunks of only background, ask for missing \
         chunks to be filled"
    )]
    Missing {
        /// The file or key of the chunk.
        chunk: String,
        /// The requested region.
        region: String,
    },
    /// The value for missing chunks is not an element of the volume.
    #[error("fill value `{value}` for elements of {dtype}: {reason}")]
    FillValue {
        /// The value as it was given.
        value: String,
        /// The type of the elements.
        dtype: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The store refused, or did not answer after all retries; [`store_failure`](Error::store_failure) tells which.
    #[error("{op} `{object}` failed")]
    Store {
        /// The operation.
        op: &'static str,
        /// The object: a path or a URL.
        object: String,
        /// The last error of the store.
        #[source]
        cause: Cause,
    },
    /// The URL or path is invalid.
    #[error("`{url}`: {reason}")]
    Url {
        /// The URL as it was given.
        url: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// The region does not lie on the boundaries of stored objects.
    #[error(
        "region `{region}` cuts through what is stored as one object of shape {stored:?} (grid begins at {origin:?}): choose \
         {aligned} or allow read-modify-write"
    )]
    Alignment {
        /// The region as it was given.
        region: String,
        /// Elements along each axis of one stored object.
        stored: Vec<u64>,
        /// Origin of their grid.
        origin: Vec<i64>,
        /// The smallest aligned region around it.
        aligned: String,
    },
    /// The region is invalid, or not in this volume.
    #[error("region `{bbox}`: {reason}")]
    Bbox {
        /// The region as it was given.
        bbox: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The array is from another scale of the volume, so that its region does not say where it belongs in this one.
    #[error("the array is from scale {array:?} of {volume:?}, and the volume is open at its scale {scale:?}")]
    OtherScale {
        /// The volume: a path or a URL.
        volume: String,
        /// The volume's name of the scale that the array is from.
        array: String,
        /// Its name of the scale that was opened.
        scale: String,
    },
    /// The array's axes have the names of the volume's in another order, so that its elements would be stored at
    /// exchanged coordinates.
    #[error(
        "the axes of the array are {}, and those of {volume:?} are {}: transpose the array first", array.join(", "), axes.join(", ")
    )]
    OtherAxes {
        /// The volume: a path or a URL.
        volume: String,
        /// The names of the array's axes.
        array: Vec<String>,
        /// The names of the volume's axes.
        axes: Vec<String>,
    },
    /// The [`StopFlag`](crate::StopFlag) was raised.
    #[error("interrupted after {done} of {total} chunks")]
    Interrupted {
        /// Chunks that were painted by then.
        done: usize,
        /// Number of chunks.
        total: usize,
    },
    /// All worker processes died before the work was finished. Their finished chunks are kept.
    #[error(
        "all worker processes were lost after {done} of {total} chunks (the same call again paints only the rest): \
         {report}"
    )]
    Worker {
        /// How each of them ended, with its last lines of output.
        report: String,
        /// Chunks that are painted.
        done: usize,
        /// Number of chunks.
        total: usize,
    },
    /// The workers panicked, or ended before anything was painted. A retry would fail again.
    #[error("no worker could paint the rest after {done} of {total} chunks: {report}")]
    Painting {
        /// The workers' output.
        report: String,
        /// Chunks that were painted by then.
        done: usize,
        /// Number of chunks.
        total: usize,
    },
    /// A writing thread panicked. The objects that it stored are complete, and the same call may be repeated.
    #[error("writing ended after {done} of {total} objects: {report}")]
    Writing {
        /// The thread's panic message.
        report: String,
        /// Objects that were stored by then.
        done: usize,
        /// Number of objects.
        total: usize,
    },
    /// The part of the work is invalid or unknown.
    #[error("part `{part}`: {reason}")]
    Shard {
        /// The part as it was given, or `auto`.
        part: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// The array itself could not be created, opened, painted or finished.
    #[error(transparent)]
    Array(#[from] ndarray_shm::Error),
    /// Any other error of the operating system.
    #[error("{op} `{path}` failed", path = path.display())]
    Io {
        /// The operation.
        op: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
}

/// What a path or URL leads to instead of a usable volume. Programs should match this; messages are for users and may
/// change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SourceFailure {
    /// The directory, bucket, key or description does not exist.
    Absent,
    /// Something else is there: a file, a group of arrays, meshes, annotations, an object that is not a marker.
    NotAVolume,
    /// The description is truncated, not JSON, or has invalid fields.
    Damaged,
    /// The description is valid, but needs something that this library does not have: an element type, a codec, a chunk
    /// grid, writing shards.
    Unsupported,
    /// The program was compiled without the feature that the URL or a codec of the volume needs.
    NotBuiltIn,
    /// The place of a new volume is not empty.
    AlreadyExists,
}

/// Why a request to a store failed. Programs can decide by it whether to retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreFailure {
    /// The store did not answer, or was overloaded, until the retries ended. It may answer later.
    NoAnswer,
    /// The host is unknown, or refuses connections, and has never answered this process: the address is probably wrong.
    /// Such a request is retried for a few seconds only, unless `NDSHM_RETRY_SECONDS` is set.
    NotReached,
    /// The store refused the credentials. They may have expired.
    CredentialsRefused,
    /// The store refused a request without credentials, or the file system refused this user.
    Forbidden,
    /// The store refused the request, cannot send a part of an object, or sends it only in another encoding.
    Unserved,
    /// The object itself is wrong: shorter than its index says, longer than possible, or removed.
    Damaged,
}

impl StoreFailure {
    /// Returns whether the same request may succeed later, perhaps with new credentials.
    pub fn may_pass(self) -> bool {
        matches!(self, Self::NoAnswer | Self::NotReached | Self::CredentialsRefused)
    }

    /// Returns what to do about the failure. The text of the error's cause ends with it, after a colon and a space.
    pub fn advice(self) -> Option<&'static str> {
        match self {
            Self::NotReached => Some(
                "check the address; to wait for a server that is about to start, set NDSHM_RETRY_SECONDS, such as to 120",
            ),
            _ => None,
        }
    }
}

/// The failure as the store, or the reader of shards above it, reports it: the cause of a [`Store`](Error::Store).
#[derive(Debug, thiserror::Error)]
#[error("{text}{}", failure.advice().map(|advice| format!(": {advice}")).unwrap_or_default())]
pub(crate) struct StoreFault {
    pub(crate) failure: StoreFailure,
    pub(crate) text: String,
}

/// Returns the message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message").to_owned()
}

const SUPPORTED: &str = "8 to 64 bit integers, float16, bfloat16, float32, float64, complex64, complex128";

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&ndarray_shm::with_causes(self))
    }
}

impl Error {
    /// Returns what is wrong with the volume itself or its path; `None` for errors about anything else, such as a
    /// region, a chunk or the store.
    pub fn source_failure(&self) -> Option<SourceFailure> {
        match self {
            Self::Source { failure, .. } => Some(*failure),
            Self::UnsupportedDType { .. } => Some(SourceFailure::Unsupported),
            _ => None,
        }
    }

    /// Returns why a store failed; `None` for all errors but [`Store`](Error::Store). A cause of unknown type counts as
    /// [`NoAnswer`](StoreFailure::NoAnswer).
    pub fn store_failure(&self) -> Option<StoreFailure> {
        let Self::Store { cause, .. } = self else { return None };
        let fault = cause.downcast_ref::<StoreFault>().map(|fault| fault.failure);
        let of_file = cause.downcast_ref::<io::Error>().map(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => StoreFailure::Forbidden,
            _ => StoreFailure::Unserved,
        });
        Some(fault.or(of_file).unwrap_or(StoreFailure::NoAnswer))
    }

    /// Creates the error of an object that contradicts its volume's metadata.
    pub(crate) fn damaged_object(object: String, text: impl Into<String>) -> Self {
        let cause = Box::new(StoreFault { failure: StoreFailure::Damaged, text: text.into() });
        Self::Store { op: "reading", object, cause }
    }

    pub(crate) fn volume(failure: SourceFailure, volume: impl fmt::Display, reason: impl Into<String>) -> Self {
        Self::Source { failure, volume: volume.to_string(), reason: reason.into(), cause: None }
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

    /// Turns an error about the description of a new volume into [`NewVolume`](Error::NewVolume), as the description is
    /// the caller's.
    pub(crate) fn of_new_volume(self) -> Self {
        match self {
            Self::Source { volume, reason, cause, .. } => Self::NewVolume { volume, reason, cause },
            other => other,
        }
    }

    /// Creates the error of a chunk that exists but cannot be used.
    pub(crate) fn chunk(chunk: String, region: String, cause: Cause) -> Self {
        let answer = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        if answer == Some(io::ErrorKind::PermissionDenied) {
            return Self::ChunkDenied { chunk, region, cause };
        }
        Self::Chunk { chunk, region, cause }
    }

    /// Converts an error of a directory's store to an error of the chunk: waiting does not repair a disk, as it may a
    /// server.
    pub(crate) fn of_file(self, region: String) -> Self {
        match self {
            Self::Store { object, cause, .. } => Self::chunk(object, region, cause),
            other => other,
        }
    }

    /// Converts an error of a server's store to an error of the chunk, unless it [may pass](StoreFailure::may_pass).
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

    /// Adds the name of a chunk to an error about its shard.
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
    fn debug_prints_text_and_causes_in_one_line() {
        let error = Error::volume(SourceFailure::Damaged, "v/info", "it is cut short").because("EOF");
        assert_eq!(format!("{error:?}"), "`v/info` is damaged: it is cut short: EOF");
        let error = Error::from(ndarray_shm::ErrorKind::NotFound.at("x"));
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(format!("{error:#?}").contains("create it first"));
    }

    #[test]
    fn file_errors_are_permanent_errors_of_the_chunk() {
        let cause = Box::new(io::Error::from(io::ErrorKind::PermissionDenied));
        let error = Error::Store { op: "reading", object: "v/0.gz".into(), cause }.of_file("0:4".into());
        assert!(matches!(&error, Error::ChunkDenied { chunk, .. } if chunk == "v/0.gz"), "{error}");
        let cause = Box::new(io::Error::from(io::ErrorKind::UnexpectedEof));
        let error = Error::Store { op: "reading", object: "v/0".into(), cause }.of_file("0:4".into());
        assert!(matches!(error, Error::Chunk { .. }), "{error}");
    }

    #[test]
    fn permanent_store_failures_become_errors_of_the_chunk() {
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
