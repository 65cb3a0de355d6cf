//! Failures of requests: a text without the secrets that a URL may contain, and whether a retry may help.

use std::error::Error as StdError;
use std::fmt;

use object_store::client::HttpError;

use super::lengths::Endless;
use super::reach::Unreached;
use crate::error::{StoreFailure, StoreFault};

/// The status for a range that begins behind the end of an object.
const RANGE_NOT_SATISFIABLE: u16 = 416;

/// Maximum length of the message, in characters: a server's answer may be long.
const LONGEST_ANSWER: usize = 300;

/// Why one request failed.
#[derive(Debug)]
pub(super) struct RequestFailure {
    text: String,
    again: bool,
    about_range: bool,
    failure: StoreFailure,
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for RequestFailure {}

impl RequestFailure {
    /// A permanent failure: the server does not have the object in a usable form.
    pub(super) fn last(text: impl Into<String>) -> Self {
        Self { text: text.into(), again: false, about_range: false, failure: StoreFailure::Unserved }
    }

    /// The object is damaged.
    pub(super) fn damaged(text: impl Into<String>) -> Self {
        Self { failure: StoreFailure::Damaged, ..Self::last(text) }
    }

    /// The server refused these credentials.
    pub(super) fn denied(text: impl Into<String>) -> Self {
        Self { failure: StoreFailure::CredentialsRefused, ..Self::last(text) }
    }

    /// The server cannot send the requested range.
    pub(super) fn about_range(text: impl Into<String>) -> Self {
        Self { about_range: true, ..Self::last(text) }
    }

    /// An answer ended early. A retry may help; if each attempt ends so, the object is damaged.
    pub(super) fn too_short(text: impl Into<String>) -> Self {
        Self { again: true, ..Self::damaged(text) }
    }

    /// No answer came, for a reason that is not the server's answer.
    pub(super) fn no_answer(text: impl Into<String>) -> Self {
        Self { failure: StoreFailure::NoAnswer, ..Self::last(text) }
    }

    /// The bucket was not found, or the server that knows its region was never reached.
    pub(super) fn not_reached(error: &object_store::Error) -> Self {
        Self { failure: StoreFailure::NotReached, ..Self::last(words(error)) }
    }

    /// A failure before the body. `object_store` has already retried every status that is worth it, so that only broken
    /// connections are retried here. `status` is that of the last answer, if there was one.
    pub(super) fn of_request(error: &object_store::Error, status: Option<u16>, is_anonymous: bool) -> Self {
        let unreached = is_unreached(error);
        let again = unreached || is_broken_connection(error);
        // A refused range, an answer that is not a part, or another part: `object_store` has no error kind for these,
        // but one for most other failures.
        let about_range = !again && matches!(error, object_store::Error::Generic { .. });
        let failure = match (error, status) {
            _ if unreached => StoreFailure::NotReached,
            _ if again => StoreFailure::NoAnswer,
            _ if is_endless(error) => StoreFailure::Damaged,
            (object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. }, _)
            | (_, Some(401 | 403)) => {
                if is_anonymous {
                    StoreFailure::Forbidden
                } else {
                    StoreFailure::CredentialsRefused
                }
            }
            (_, Some(RANGE_NOT_SATISFIABLE)) => StoreFailure::Damaged,
            // `object_store` retried these until its time limit.
            (_, Some(status)) if !is_retried(status) => StoreFailure::Unserved,
            _ => StoreFailure::NoAnswer,
        };
        Self { text: words(error), again, about_range, failure }
    }

    /// A failure while the body was received.
    pub(super) fn of_body(error: &object_store::Error) -> Self {
        Self { text: words(error), again: true, about_range: false, failure: StoreFailure::NoAnswer }
    }

    /// Converts it to the error cause that callers of the stores see.
    pub(super) fn into_fault(self) -> StoreFault {
        StoreFault { failure: self.failure, text: self.text }
    }

    /// Whether a retry may help.
    pub(super) fn may_pass(&self) -> bool {
        self.again
    }

    /// Whether the server has never been reached.
    pub(super) fn is_unreached(&self) -> bool {
        self.failure == StoreFailure::NotReached
    }

    /// Whether the requested range may be the cause.
    pub(super) fn is_about_range(&self) -> bool {
        self.about_range
    }

    /// Appends how long the request was retried.
    pub(super) fn after(mut self, tried: impl fmt::Display) -> Self {
        self.text = format!("{} ({tried})", self.text);
        self
    }
}

/// Whether `object_store` repeats a request with this status.
pub(super) fn is_retried(status: u16) -> bool {
    matches!(status, 408 | 429 | 500..)
}

fn chain<'error>(error: &'error (dyn StdError + 'static)) -> impl Iterator<Item = &'error (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

/// Whether the server of a request has never been reached.
fn is_unreached(error: &object_store::Error) -> bool {
    chain(error).any(|error| error.downcast_ref::<Unreached>().is_some())
}

/// Whether an answer without a length exceeded the limit.
fn is_endless(error: &object_store::Error) -> bool {
    chain(error).any(|error| error.downcast_ref::<Endless>().is_some())
}

fn is_broken_connection(error: &object_store::Error) -> bool {
    !is_endless(error) && chain(error).any(|error| error.downcast_ref::<HttpError>().is_some())
}

/// Joins the texts of the error chain, without errors that repeat their source, and without the one that prints the URL
/// with password and signature. The caller names the object.
fn words(error: &(dyn StdError + 'static)) -> String {
    let texts: Vec<String> = chain(error).map(ToString::to_string).collect();
    let mut parts: Vec<&str> = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let repeats = texts.get(index + 1).is_some_and(|next| text.contains(next.as_str()));
        if !repeats && !text.contains("Error performing") {
            parts.push(text);
        }
    }
    let mut text = parts.join(": ");
    if let Some((end, _)) = text.char_indices().nth(LONGEST_ANSWER) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Returns why an attempt failed, for the list of retries.
pub(super) fn reason(error: &HttpError) -> String {
    words(error)
}

/// Whether an S3 server denied access, which it also does for a missing object if the client may not list the bucket.
/// The error code is an XML element of the answer, which `object_store` passes on only as text.
pub(super) fn is_denied(error: &object_store::Error) -> bool {
    chain(error).any(|error| error.to_string().contains("<Code>AccessDenied</Code>"))
}
