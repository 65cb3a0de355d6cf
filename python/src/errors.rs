//! Converts the library's errors to the exceptions of `ndshm._errors`.

use std::path::Path;

use ndarray_shm::render::OtherWork;
use ndarray_shm::{Error, ErrorKind, one_error_of_each_kind, with_causes};
use ndarray_shm_volume::{self as volume, SourceFailure, StoreFailure};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::notes;

/// Returns the exception for an error. Its text has the causes too, and says in Python's terms what to do.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let text = match in_python(error) {
        Some(text) => format!("`{}`: {text}", error.location),
        None => with_causes(error),
    };
    let exception = named(py, class_of(&error.kind), &text);
    let told = match &error.kind {
        ErrorKind::SlotsHeld { slots, holders, cursors } => (|| {
            let value = exception.value(py);
            value.setattr("slots", slots)?;
            value.setattr("holders", holders)?;
            value.setattr("cursors", cursors)
        })(),
        ErrorKind::HasReader { cursor } => exception.value(py).setattr("cursor", cursor),
        _ => Ok(()),
    };
    told.map_or_else(|failed| failed, |()| exception)
}

/// Returns the exceptions for one error of each kind.
#[pyfunction]
pub(crate) fn one_exception_of_each_kind(py: Python<'_>) -> Vec<PyErr> {
    one_error_of_each_kind().iter().map(|error| exception(py, error)).collect()
}

/// Returns what an error says in Python's terms, without the location; `None` if that is the same as in Rust's.
fn in_python(error: &Error) -> Option<String> {
    let location = &error.location;
    Some(match &error.kind {
        ErrorKind::AlreadyExists => {
            "this name exists already (ndshm.open attaches to it, ndshm.unlink removes it, and calls with `replace` replace it)".into()
        }
        ErrorKind::NotDescribed => {
            "the array does not describe itself (give shape= and dtype=, and order= if it is \"F\", or write them down once with \
             `ndshm describe`)".into()
        }
        ErrorKind::DescriptionMismatch { expected, found } => format!(
            "the array describes itself as {found}, not as {expected} (open it without shape, dtype and order, as what it is; if the \
             description is wrong, correct it with `ndshm describe`; reinterpret=True takes the same bytes for other numbers, and converts none)"
        ),
        ErrorKind::Mismatch { what, expected, found, state: OtherWork::Idle } => format!(
            "this is an unfinished buffer or download with another {what}: found {found}, expected {expected}, and no process is \
             attached to it (replace=True replaces it, ndshm.unlink({location:?}, partial=True) removes it; or choose another name)"
        ),
        ErrorKind::Mismatch { what, expected, found, state: OtherWork::Attached } => format!(
            "this is being painted with another {what}: found {found}, expected {expected}, and a process is attached to it, perhaps this \
             one (wait until it is finished, choose another name, or take it from its painters with ndshm.unlink({location:?}, \
             partial=True))"
        ),
        ErrorKind::Mismatch { what, expected, found, state: OtherWork::Finished } => format!(
            "this is a finished array of another {what}: found {found}, expected {expected} (ndshm.unlink({location:?}) removes it, \
             replace=True replaces it; or choose another name)"
        ),
        ErrorKind::NoSpace { needed, available, in_flight, advice } if *in_flight > 0 => {
            let own = notes::kept(Path::new(location)).min(*in_flight);
            let [all, own, others] = [*in_flight, own, in_flight - own].map(|bytes| bytes.div_ceil(1 << 20));
            format!(
                "{needed} bytes are needed, but only {available} are available, and pickles keep {all} MiB of arrays that no process has: \
                 {own} MiB by pickles of this process that were not loaded yet (ndshm.in_flight.clear() ends them), {others} MiB by those \
                 of other processes. A pickle expires NDSHM_PICKLE_GRACE seconds after it was made, 600 by default; \
                 ndshm.gc(in_flight=True) frees all these arrays now. Or {advice}"
            )
        }
        _ => return None,
    })
}

/// Returns the exception for an error of a volume. Its text has the causes too.
pub(crate) fn volume_exception(py: Python<'_>, error: &volume::Error) -> PyErr {
    let advice = match error {
        volume::Error::Array(Error { kind: ErrorKind::ShapeMismatch { .. }, .. }) => " (bbox= says which region it is)",
        volume::Error::Array(error) => return exception(py, error),
        volume::Error::OtherScale { .. } => {
            ": open the scale that the array is from (mip=), or give its region in this scale (bbox=)"
        }
        volume::Error::Alignment { .. } => ", with partial=True",
        volume::Error::Missing { .. } => ", with missing=\"fill\" or missing=<number>",
        _ => "",
    };
    named(py, class_of_volume_error(error), &format!("{}{advice}", with_causes(error)))
}

/// Returns the exception for an error of an array on a GPU. Its text has the causes too.
#[cfg(target_os = "linux")]
pub(crate) fn cuda_exception(py: Python<'_>, error: &ndarray_shm_cuda::Error) -> PyErr {
    use ndarray_shm_cuda::Error;
    let class = match error {
        Error::Host(error) => return exception(py, error),
        Error::NoSpace { .. } => "NoSpace",
        Error::NoDevice { .. } | Error::TooLarge { .. } => "InvalidArgument",
        Error::DType { .. } | Error::Shape { .. } => "Mismatch",
        Error::Malformed { .. } => "NotAnArray",
        Error::Shared => "InUse",
        Error::NoDriver | Error::DriverTooOld { .. } | Error::Unsupported { .. } => "Unsupported",
        _ => "CudaError",
    };
    named(py, class, &with_causes(error))
}

/// Returns an exception of this class in `ndshm._errors`.
pub(crate) fn named(py: Python<'_>, class: &str, text: &str) -> PyErr {
    let made =
        py.import("ndshm._errors").and_then(|module| module.getattr(class)).and_then(|class| class.call1((text,)));
    match made {
        Ok(value) => PyErr::from_value(value),
        // Happens only while the interpreter ends, when it can no longer import modules.
        Err(_) => PyRuntimeError::new_err(text.to_owned()),
    }
}

fn class_of_volume_error(error: &volume::Error) -> &'static str {
    use volume::Error;
    match error {
        Error::Source { failure, .. } => match failure {
            SourceFailure::Absent => "NotFound",
            SourceFailure::AlreadyExists => "AlreadyExists",
            SourceFailure::Unsupported | SourceFailure::NotBuiltIn => "Unsupported",
            _ => "NotAVolume",
        },
        Error::Array(error) => class_of(&error.kind),
        Error::UnsupportedDType { .. } => "Unsupported",
        Error::Scale { .. }
        | Error::OtherScale { .. }
        | Error::OtherAxes { .. }
        | Error::NewVolume { .. }
        | Error::FillValue { .. }
        | Error::Url { .. }
        | Error::Alignment { .. }
        | Error::Bbox { .. }
        | Error::Shard { .. } => "InvalidArgument",
        Error::Missing { .. } => "MissingChunk",
        Error::Chunk { .. } | Error::ChunkDenied { .. } | Error::ChunkUnserved { .. } => "ChunkError",
        Error::Store { .. } => match error.store_failure() {
            Some(StoreFailure::Forbidden | StoreFailure::CredentialsRefused) => "PermissionDenied",
            _ => "StoreError",
        },
        Error::Interrupted { .. } => "Cancelled",
        Error::Worker { .. } | Error::Painting { .. } | Error::Writing { .. } => "PaintError",
        Error::Io { source, .. } => match source.kind() {
            std::io::ErrorKind::NotFound => "NotFound",
            std::io::ErrorKind::PermissionDenied => "PermissionDenied",
            _ => "StoreError",
        },
        _ => "NdshmError",
    }
}

fn class_of(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound | ErrorKind::NoDirectory => "NotFound",
        ErrorKind::Elsewhere { .. } => "Elsewhere",
        ErrorKind::AlreadyExists => "AlreadyExists",
        ErrorKind::InvalidLocation { .. } | ErrorKind::InvalidSetting { .. } | ErrorKind::TooLarge { .. } => {
            "InvalidArgument"
        }
        ErrorKind::Reserved { .. } | ErrorKind::NotAnArray { .. } | ErrorKind::NotCounted => "NotAnArray",
        ErrorKind::NoSpace { .. } => "NoSpace",
        ErrorKind::SizeMismatch { .. }
        | ErrorKind::DescriptionMismatch { .. }
        | ErrorKind::DTypeMismatch { .. }
        | ErrorKind::ShapeMismatch { .. }
        | ErrorKind::Mismatch { .. }
        | ErrorKind::CacheSize { .. } => "Mismatch",
        ErrorKind::Incomplete { .. } => "Incomplete",
        ErrorKind::HandleSpent => "HandleExpired",
        ErrorKind::TooManyHandles { .. } => "TooManyHandles",
        ErrorKind::NotDescribed => "NotDescribed",
        ErrorKind::Unlinked => "Unlinked",
        ErrorKind::WouldBlock => "WouldBlock",
        ErrorKind::WouldDeadlock => "WouldDeadlock",
        ErrorKind::TimedOut { .. } => "TimedOut",
        ErrorKind::HasWriter => "HasWriter",
        ErrorKind::NoWriter => "NoWriter",
        ErrorKind::HasReader { .. } => "HasReader",
        ErrorKind::SlotsHeld { .. } => "SlotsHeld",
        ErrorKind::Closed { .. } => "Closed",
        ErrorKind::Interrupted => "Cancelled",
        ErrorKind::PermissionDenied { .. } | ErrorKind::ForeignOwner { .. } => "PermissionDenied",
        ErrorKind::TooManyOpenFiles { .. } => "TooManyOpenFiles",
        ErrorKind::Unsupported { .. } => "Unsupported",
        _ => "NdshmError",
    }
}
