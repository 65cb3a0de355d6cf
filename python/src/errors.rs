//! Converts the library's errors to the exceptions of `ndshm._errors`.

use ndarray_shm::Error;
use ndarray_shm_volume::{self as volume, ErrorKind, StoreFailure};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Returns the exception for an error. It has the class in `ndshm._errors` that `class_of` names, and the error's text.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    named(py, class_of(error), &error.to_string())
}

/// Returns the exception for an error of a volume. Its text has the causes too.
pub(crate) fn volume_exception(py: Python<'_>, error: &volume::Error) -> PyErr {
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
        Error::NotFound { .. } | Error::Elsewhere { .. } | Error::NoDirectory { .. } => "NotFound",
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
        Error::PermissionDenied { .. } | Error::ForeignOwner { .. } => "PermissionDenied",
        Error::TooManyOpenFiles { .. } => "TooManyOpenFiles",
        Error::Unsupported { .. } => "Unsupported",
        _ => "NdshmError",
    }
}
