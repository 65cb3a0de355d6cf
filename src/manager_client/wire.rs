//! The connection between a client and the manager, which carries lines of text, and the lines that a client sends.
//! `docs/layout/manager.md` describes the protocol for other languages.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::os::{self, FileId, Socket};
use crate::percent::encode;

/// The first line of a client, and its answer: name and version of the protocol.
pub(crate) const GREETING: &str = "ndshm-manager 1";

/// The answer to a request that was carried out.
pub(crate) const DONE: &str = "ok";

/// The beginning of the answer to a valid request that cannot be carried out. The connection stays open.
pub(crate) const CANNOT: &str = "no ";

/// The beginning of a refusal. The manager closes the connection after it.
pub(crate) const REFUSAL: &str = "error ";

/// Maximum length of a line in bytes, with its end: a path of 4096 bytes, all of them encoded, and some room.
const LONGEST_LINE: usize = 1 << 14;

/// One end of a connection, which sends and receives lines.
#[derive(Debug)]
pub(crate) struct Talk {
    pub(crate) socket: Socket,
    /// Bytes that arrived after the last line.
    rest: Vec<u8>,
}

impl Talk {
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket, rest: Vec::new() }
    }

    /// Sends a whole line without waiting, or fails. Lines are short, so a full buffer means that the other end does
    /// not read.
    pub(crate) fn say(&self, line: &str) -> io::Result<()> {
        let line = format!("{line}\n");
        let sent = self.socket.send(&[IoSlice::new(line.as_bytes())], &[], Some(Instant::now()))?;
        if sent == line.len() { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }

    /// Receives the next line, without its end; `None` at the end of the connection.
    ///
    /// # Errors
    ///
    /// `TimedOut`; `InvalidData` if the bytes are not a valid line. Then nothing that follows can be parsed either. The
    /// message may be sent to the other end.
    pub(crate) fn hear(&mut self, deadline: Instant) -> io::Result<Option<String>> {
        let mut arrived = [0; 4096];
        loop {
            if let Some(line) = next_line(&mut self.rest)? {
                return Ok(Some(line));
            }
            match self.socket.receive(&mut arrived, Some(deadline))? {
                0 => return Ok(None),
                count => self.rest.extend_from_slice(arrived.get(..count).unwrap_or_default()),
            }
        }
    }
}

/// Takes the first whole line, without its end; `None` if it has not arrived yet.
pub(crate) fn next_line(bytes: &mut Vec<u8>) -> io::Result<Option<String>> {
    let nonsense = |reason| io::Error::new(io::ErrorKind::InvalidData, reason);
    let Some(end) = bytes.iter().take(LONGEST_LINE).position(|&byte| byte == b'\n') else {
        let is_too_long = bytes.len() >= LONGEST_LINE;
        return if is_too_long { Err(nonsense("a line has at most 16384 bytes")) } else { Ok(None) };
    };
    let line = bytes.drain(..=end).take(end).collect();
    String::from_utf8(line).map(Some).map_err(|_| nonsense("a line must be text; percent-encode other bytes"))
}

/// A directory that a client uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Use {
    /// The identity of the directory, as the client sees it: the manager's mount namespace may have another directory
    /// under this path.
    pub(crate) id: FileId,
    /// The name of the backend.
    pub(crate) backend: String,
    /// The absolute path of the directory.
    pub(crate) path: PathBuf,
}

impl Use {
    /// Returns what to announce for a directory; `None` if it does not exist.
    pub(crate) fn of(directory: &Path, backend: &str) -> Option<Self> {
        let path = directory.canonicalize().ok()?;
        let facts = os::facts_at(&path).ok()?;
        Some(Self { id: facts.id, backend: backend.to_owned(), path })
    }

    /// Returns the request as a line.
    pub(crate) fn line(&self) -> String {
        let FileId { device, number } = self.id;
        let (backend, path) = (encode(self.backend.as_bytes()), encode(self.path.as_os_str().as_encoded_bytes()));
        format!("use {device} {number} {backend} {path}")
    }
}

/// Returns the line that asks for a search of a directory after this time, rounded up.
pub(crate) fn look_line(id: FileId, after: Duration) -> String {
    let FileId { device, number } = id;
    format!("look {} {device} {number}", after.as_millis() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_lines_arrive_whole() {
        let mut bytes = b"one\ntwo\n\nth".to_vec();
        let mut next = |more: &[u8]| {
            bytes.extend_from_slice(more);
            next_line(&mut bytes).map_err(|error| error.to_string())
        };
        for line in ["one", "two", ""] {
            assert_eq!(next(b""), Ok(Some(line.to_owned())));
        }
        for byte in b"ree" {
            assert_eq!(next(&[*byte]), Ok(None));
        }
        assert_eq!(next(b"\n\xff\n"), Ok(Some("three".to_owned())));
        assert!(next(b"").unwrap_err().contains("must be text"));
        assert_eq!(next(&[b'x'; LONGEST_LINE - 1]), Ok(None));
        assert!(next(b"x\n").unwrap_err().contains("at most"), "too long even with its end");
    }
}
