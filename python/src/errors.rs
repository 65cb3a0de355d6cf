//! Converts the library's errors to the exceptions of `ndshm._errors`.

use std::path::Path;

use ndarray_shm::Error;
use ndarray_shm::render::OtherWork;
use ndarray_shm_volume::{self as volume, ErrorKind, StoreFailure};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::notes;

/// Returns the exception for an error. It has the class in `ndshm._errors` that `class_of` names, and the error's text,
/// or what that says in Python's terms.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let text = match error {
        Error::AlreadyExists { location } => format!(
            "`{location}` exists already (ndshm.open attaches to it, ndshm.unlink removes it, and calls with `replace` replace it)"
        ),
        Error::NotDescribed { location } => format!(
            "`{location}` does not describe itself (give shape= and dtype=, and order= if it is \"F\", or write them down once with \
             `ndshm describe`)"
        ),
        Error::DescriptionMismatch { location, expected, found } => format!(
            "`{location}` describes itself as {found}, not as {expected} (open it without shape, dtype and order, as what it is; if the \
             description is wrong, correct it with `ndshm describe`; reinterpret=True takes the same bytes for other numbers, and converts none)"
        ),
        Error::Mismatch { location, what, expected, found, state: OtherWork::Idle } => format!(
            "`{location}` is an unfinished buffer or download with another {what}: found {found}, expected {expected}, and no process is \
             attached to it (replace=True replaces it, ndshm.unlink({location:?}, partial=True) removes it; or choose another name)"
        ),
        Error::Mismatch { location, what, expected, found, state: OtherWork::Attached } => format!(
            "`{location}` is being painted with another {what}: found {found}, expected {expected}, and a process is attached to it, \
             perhaps this one (wait until it is finished, choose another name, or take it from its painters with \
             ndshm.unlink({location:?}, partial=True))"
        ),
        Error::Mismatch { location, what, expected, found, state: OtherWork::Finished } => format!(
            "`{location}` is a finished array of another {what}: found {found}, expected {expected} (ndshm.unlink({location:?}) removes it, \
             replace=True replaces it; or choose another name)"
        ),
        Error::NoSpace { location, needed, available, in_flight, advice } if *in_flight > 0 => {
            let own = notes::kept(Path::new(location)).min(*in_flight);
            let [all, own, others] = [*in_flight, own, in_flight - own].map(|bytes| bytes.div_ceil(1 << 20));
            format!(
                "`{location}` needs {needed} bytes, but only {available} are available, and pickles keep {all} MiB of arrays that no \
                 process has: {own} MiB by pickles of this process that were not loaded yet (ndshm.in_flight.clear() ends them), {others} \
                 MiB by those of other processes. A pickle expires NDSHM_PICKLE_GRACE seconds after it was made, 600 by default; \
                 ndshm.gc(in_flight=True) frees all these arrays now. Or {advice}"
            )
        }
        other => other.to_string(),
    };
    named(py, class_of(error), &text)
}

/// Returns the exception for an error of a volume. Its text has the causes too.
pub(crate) fn volume_exception(py: Python<'_>, error: &volume::Error) -> PyErr {
    if let volume::Error::Array(error @ Error::ShapeMismatch { .. }) = error {
        return named(py, class_of(error), &format!("{error} (bbox= says which region it is)"));
    }
    if let volume::Error::Array(error) = error {
        return exception(py, error);
    }
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(because) = cause {
        let because_text = because.to_string();
        if !text.contains(&because_text) {
            text = format!("{text}: {because_text}");
        }
        cause = because.source();
    }
    if let volume::Error::OtherScale { .. } = error {
        text.push_str(": open the scale that the array is from (mip=), or give its region in this scale (bbox=)");
    }
    if let volume::Error::Alignment { .. } = error {
        text.push_str(", with partial=True");
    }
    if let volume::Error::Missing { .. } = error {
        text.push_str(", with missing=\"fill\" or missing=<number>");
    }
    named(py, class_of_volume_error(error), &text)
}

/// Returns the exception for an error of an array on a GPU. Its text has the cause too.
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
    let text = match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    };
    named(py, class, &text)
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
        Error::Source { kind: ErrorKind::Absent, .. } => "NotFound",
        Error::Source { kind: ErrorKind::AlreadyExists, .. } => "AlreadyExists",
        Error::Source { kind: ErrorKind::Unsupported | ErrorKind::NotBuiltIn, .. } | Error::UnsupportedDType { .. } => {
            "Unsupported"
        }
        Error::Source { .. } => "NotAVolume",
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

fn class_of(error: &Error) -> &'static str {
    match error {
        Error::NotFound { .. } | Error::NoDirectory { .. } => "NotFound",
        Error::Elsewhere { .. } => "Elsewhere",
        Error::AlreadyExists { .. } => "AlreadyExists",
        Error::InvalidLocation { .. } | Error::InvalidSetting { .. } | Error::TooLarge { .. } => "InvalidArgument",
        Error::Reserved { .. } | Error::NotAnArray { .. } | Error::NotCounted { .. } => "NotAnArray",
        Error::NoSpace { .. } => "NoSpace",
        Error::SizeMismatch { .. }
        | Error::DescriptionMismatch { .. }
        | Error::DTypeMismatch { .. }
        | Error::ShapeMismatch { .. }
        | Error::Mismatch { .. } => "Mismatch",
        Error::Incomplete { .. } => "Incomplete",
        Error::HandleSpent { .. } => "HandleExpired",
        Error::TooManyHandles { .. } => "TooManyHandles",
        Error::NotDescribed { .. } => "NotDescribed",
        Error::Unlinked { .. } => "Unlinked",
        Error::WouldBlock { .. } => "WouldBlock",
        Error::WouldDeadlock { .. } => "WouldDeadlock",
        Error::TimedOut { .. } => "TimedOut",
        Error::Interrupted { .. } => "Cancelled",
        Error::PermissionDenied { .. } | Error::ForeignOwner { .. } => "PermissionDenied",
        Error::TooManyOpenFiles { .. } => "TooManyOpenFiles",
        Error::Unsupported { .. } => "Unsupported",
        _ => "NdshmError",
    }
}
