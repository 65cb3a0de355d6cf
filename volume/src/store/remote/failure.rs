//! What a server's failure is in words, without the secrets that a URL may carry, and whether asking again may help.

use std::error::Error as StdError;
use std::fmt;

use object_store::client::HttpError;

use super::lengths::Endless;
use crate::error::{StoreFailure, StoreFault};

/// The status for a part that begins behind the end of an object.
const RANGE_NOT_SATISFIABLE: u16 = 416;

/// The longest part of a server's answer that is worth repeating.
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
    /// One that asking again would only repeat: the server does not have the object in a form that can be used.
    pub(super) fn last(text: impl Into<String>) -> Self {
        Self { text: text.into(), again: false, about_range: false, failure: StoreFailure::Unserved }
    }

    /// The object is not what it should be.
    pub(super) fn damaged(text: impl Into<String>) -> Self {
        Self { failure: StoreFailure::Damaged, ..Self::last(text) }
    }

    /// The server refused these credentials.
    pub(super) fn denied(text: impl Into<String>) -> Self {
        Self { failure: StoreFailure::CredentialsRefused, ..Self::last(text) }
    }

    /// The server cannot send the part that was asked for, or counts in another way.
    pub(super) fn about_range(text: impl Into<String>) -> Self {
        Self { about_range: true, ..Self::last(text) }
    }

    /// One that may pass, unless it is the same each time: an answer came to its end and was too short.
    pub(super) fn too_short(text: impl Into<String>) -> Self {
        Self { again: true, ..Self::damaged(text) }
    }

    /// No object was had, for a reason that the server has not told.
    pub(super) fn no_answer(text: impl Into<String>) -> Self {
        Self { failure: StoreFailure::NoAnswer, ..Self::last(text) }
    }

    /// Before the body came: whatever status is worth it has been asked for again, so that only a broken connection is left. `status` is
    /// that of the last answer, if there was one.
    pub(super) fn of_request(error: &object_store::Error, status: Option<u16>, is_anonymous: bool) -> Self {
        let again = is_broken_connection(error);
        // The status for it, an answer that is no part, another part: `object_store` has no kind for these, but one for most others.
        let about_range = !again && matches!(error, object_store::Error::Generic { .. });
        let failure = match (error, status) {
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
            // These were asked for again, for as long as it is worth.
            (_, None | Some(408 | 429 | 500..)) => StoreFailure::NoAnswer,
            (_, Some(_)) => StoreFailure::Unserved,
        };
        Self { text: words(error), again, about_range, failure }
    }

    /// While the body came.
    pub(super) fn of_body(error: &object_store::Error) -> Self {
        Self { text: words(error), again: true, about_range: false, failure: StoreFailure::NoAnswer }
    }

    /// Returns what is told of it above the stores.
    pub(super) fn into_fault(self) -> StoreFault {
        StoreFault { failure: self.failure, text: self.text }
    }

    /// Whether asking again may help.
    pub(super) fn may_pass(&self) -> bool {
        self.again
    }

    /// Whether the part that was asked for may be the problem.
    pub(super) fn is_about_range(&self) -> bool {
        self.about_range
    }

    /// Adds how long it was tried.
    pub(super) fn after(mut self, tried: impl fmt::Display) -> Self {
        self.text = format!("{} ({tried})", self.text);
        self
    }
}

fn chain(error: &object_store::Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(Some(error as &(dyn StdError + 'static)), |error: &&(dyn StdError + 'static)| {
        (*error).source()
    })
}

/// Whether an answer that says no length was longer than it can be.
fn is_endless(error: &object_store::Error) -> bool {
    chain(error).any(|error| error.downcast_ref::<Endless>().is_some())
}

fn is_broken_connection(error: &object_store::Error) -> bool {
    !is_endless(error) && chain(error).any(|error| error.downcast_ref::<HttpError>().is_some())
}

/// Joins what the chain of errors says. Many of them repeat their source, and the one that knows the URL prints it with its
/// password and signature: those are left out, and the caller names the object.
fn words(error: &object_store::Error) -> String {
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

/// Whether a server of S3's kind refused, as it also does when an object is not there and the asker may not know that. Its error code
/// is an element of the answer, which `object_store` hands on only as text.
pub(super) fn is_denied(error: &object_store::Error) -> bool {
    chain(error).any(|error| error.to_string().contains("<Code>AccessDenied</Code>"))
}
