//! Requests to a running manager that wait for the answer: `status` and `stop`.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::requests::Status;
use crate::error::{Error, Result};
use crate::manager_client::address;
use crate::manager_client::wire::{DONE, GREETING, REFUSAL, Talk};

/// How long a manager may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the status of this user's [manager](crate::manager), or `None` if none runs.
///
/// `socket` is the path of its socket; `None` means the [default socket](crate::manager).
///
/// # Errors
///
/// - [`PermissionDenied`](crate::ErrorKind::PermissionDenied): the manager is another user's.
/// - [`Manager`](crate::ErrorKind::Manager): the answer is malformed, or did not arrive within 10 seconds.
/// - [`Unsupported`](crate::ErrorKind::Unsupported) off Linux.
pub fn status(socket: Option<&Path>) -> Result<Option<Status>> {
    let Some((question, answer)) = Question::ask(socket, "status")? else { return Ok(None) };
    let status = Status::parse(&answer).ok_or_else(|| question.failed(&format!("it answers {answer:?}")))?;
    Ok(Some(status))
}

/// Stops this user's [manager](crate::manager), and waits until its socket is gone. Returns `false` if none runs.
///
/// # Errors
///
/// As [`status`].
pub fn stop(socket: Option<&Path>) -> Result<bool> {
    let Some((mut question, answer)) = Question::ask(socket, "stop")? else { return Ok(false) };
    if answer != DONE {
        return Err(question.failed(&format!("it answers {answer:?}")));
    }
    while question.line()?.is_some() {}
    Ok(true)
}

struct Question {
    path: PathBuf,
    talk: Talk,
    end: Instant,
}

impl Question {
    /// Connects, sends a line and returns the answer; `None` if there is no manager, or it is just ending.
    fn ask(socket: Option<&Path>, line: &str) -> Result<Option<(Self, String)>> {
        let path = address::socket_path(socket)?;
        let Some(talk) = address::connect(&path)? else { return Ok(None) };
        let mut question = Self { path, talk, end: Instant::now() + PATIENCE };
        match question.say(GREETING)?.as_deref() {
            Some(GREETING) => Ok(question.say(line)?.map(|answer| (question, answer))),
            Some(_) => Err(question.failed("it speaks another protocol")),
            None => Ok(None),
        }
    }

    /// Sends a line and returns the answer; `None` if the manager is just ending.
    fn say(&mut self, line: &str) -> Result<Option<String>> {
        match self.talk.say(line) {
            Err(error) if is_end(&error) => return Ok(None),
            other => other.map_err(|error| self.failed(&format!("it does not listen: {error}")))?,
        }
        let answer = self.line()?;
        match answer.as_deref().and_then(|answer| answer.strip_prefix(REFUSAL)) {
            Some(reason) => Err(self.failed(&format!("it refuses: {reason}"))),
            None => Ok(answer),
        }
    }

    /// Waits for a line; `None` at the end of the connection.
    fn line(&mut self) -> Result<Option<String>> {
        match self.talk.hear(self.end) {
            Err(error) if is_end(&error) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(self.failed("it does not answer")),
            other => other.map_err(|error| self.failed(&error.to_string())),
        }
    }

    fn failed(&self, reason: &str) -> Error {
        address::failed(&self.path, reason)
    }
}

/// Returns whether the error means that the other end closed the connection, whether it had read everything or not.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}
