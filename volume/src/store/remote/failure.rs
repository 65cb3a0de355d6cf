//! What a server's failure is in words, without the secrets that a URL may carry, and whether asking again may help.

use std::error::Error as StdError;
use std::fmt;

use object_store::client::HttpError;

use super::lengths::Endless;

/// The longest part of a server's answer that is worth repeating.
const LONGEST_ANSWER: usize = 300;

/// Why one request failed.
#[derive(Debug)]
pub(super) struct RequestFailure {
    text: String,
    again: bool,
    about_range: bool,
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for RequestFailure {}

impl RequestFailure {
    /// One that asking again would only repeat.
    pub(super) fn last(text: impl Into<String>) -> Self {
        Self { text: text.into(), again: false, about_range: false }
    }

    /// The server cannot send the part that was asked for, or counts in another way.
    pub(super) fn about_range(text: impl Into<String>) -> Self {
        Self { text: text.into(), again: false, about_range: true }
    }

    /// One that may pass.
    pub(super) fn passing(text: impl Into<String>) -> Self {
        Self { text: text.into(), again: true, about_range: false }
    }

    /// Before the body came: whatever status is worth it has been asked for again, so that only a broken connection is left.
    pub(super) fn of_request(error: &object_store::Error) -> Self {
        let again = is_broken_connection(error);
        // The status for it, an answer that is no part, another part: `object_store` has no kind for these, but one for most others.
        let about_range = !again && matches!(error, object_store::Error::Generic { .. });
        Self { text: words(error), again, about_range }
    }

    /// While the body came.
    pub(super) fn of_body(error: &object_store::Error) -> Self {
        Self { text: words(error), again: true, about_range: false }
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

fn is_broken_connection(error: &object_store::Error) -> bool {
    let is_about_length = chain(error).any(|error| error.downcast_ref::<Endless>().is_some());
    !is_about_length && chain(error).any(|error| error.downcast_ref::<HttpError>().is_some())
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
