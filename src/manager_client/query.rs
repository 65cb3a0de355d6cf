//! Asking a running manager something, and waiting for the answer.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::address;
use super::wire::{DONE, GREETING, Lines, REFUSAL, Status, say};
use crate::error::{Error, Result};
use crate::os::Socket;

/// How long a manager may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks this user's manager how it is; `None` if there is none.
///
/// `socket` is where it listens, if not where `NDSHM_MANAGER_SOCKET` or the system says.
///
/// # Errors
///
/// - [`PermissionDenied`](Error::PermissionDenied): it is another user's.
/// - [`Manager`](Error::Manager): it answers something else, or not in time.
/// - [`Unsupported`](Error::Unsupported) off Linux.
pub fn status(socket: Option<&Path>) -> Result<Option<Status>> {
    let path = address::socket_path(socket)?;
    let Some(mut talk) = Talk::begin(&path)? else { return Ok(None) };
    let Some(answer) = talk.ask("status")? else { return Ok(None) };
    let status = Status::parse(&answer).ok_or_else(|| talk.failed(&format!("it answers {answer:?}")))?;
    Ok(Some(status))
}

/// Asks this user's manager to end, and waits until its socket is gone; `false` if there is none.
///
/// # Errors
///
/// As [`status`].
pub fn stop(socket: Option<&Path>) -> Result<bool> {
    let path = address::socket_path(socket)?;
    let Some(mut talk) = Talk::begin(&path)? else { return Ok(false) };
    let Some(answer) = talk.ask("stop")? else { return Ok(false) };
    if answer != DONE {
        return Err(talk.failed(&format!("it answers {answer:?}")));
    }
    while talk.line()?.is_some() {}
    Ok(true)
}

struct Talk<'a> {
    path: &'a Path,
    socket: Socket,
    lines: Lines,
    end: Instant,
}

impl<'a> Talk<'a> {
    fn begin(path: &'a Path) -> Result<Option<Self>> {
        let Some(socket) = address::connect(path)? else { return Ok(None) };
        let mut talk = Self { path, socket, lines: Lines::default(), end: Instant::now() + PATIENCE };
        match talk.ask(GREETING)?.as_deref() {
            Some(GREETING) => Ok(Some(talk)),
            Some(_) => Err(talk.failed("it speaks another protocol")),
            None => Ok(None),
        }
    }

    /// Says a line and returns the answer; `None` if the manager ends just now.
    fn ask(&mut self, line: &str) -> Result<Option<String>> {
        match say(&self.socket, &format!("{line}\n")) {
            Err(error) if is_end(&error) => return Ok(None),
            other => other.map_err(|error| self.failed(&format!("it does not listen: {error}")))?,
        }
        let answer = self.line()?;
        match answer.as_deref().and_then(|answer| answer.strip_prefix(REFUSAL)) {
            Some(reason) => Err(self.failed(&format!("it refuses: {reason}"))),
            None => Ok(answer),
        }
    }

    /// Waits for a line; `None` at the end.
    fn line(&mut self) -> Result<Option<String>> {
        let mut bytes = [0; 4096];
        loop {
            if let Some(line) = self.lines.next().map_err(|reason| self.failed(reason))? {
                return Ok(Some(String::from_utf8_lossy(&line).into_owned()));
            }
            match self.socket.receive(&mut bytes, Some(self.end)) {
                Ok(0) => return Ok(None),
                Ok(count) => self.lines.push(bytes.get(..count).unwrap_or_default()),
                Err(error) if is_end(&error) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(self.failed("it does not answer")),
                Err(error) => return Err(self.failed(&error.to_string())),
            }
        }
    }

    fn failed(&self, reason: &str) -> Error {
        address::failed(self.path, reason)
    }
}

/// Whether the error says that the other end has gone, with or without having heard everything.
fn is_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}
