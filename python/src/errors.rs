//! Converts the library's errors to the exceptions of `ndshm._errors`.

use ndarray_shm::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Returns the exception for an error. It has the class in `ndshm._errors` that `class_of` names, and the error's text.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    named(py, class_of(error), &error.to_string())
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
