//! Messages on a stream socket: a body of bytes, and open files.
//!
//! ```text
//! "NDSM" | length of the body, u32 little-endian | body | for each 64 files: one byte, number of them % 256
//! ```
//!
//! The byte and its files are one sendmsg(2) with one `SCM_RIGHTS`, so that Python's `multiprocessing.reduction.recvfds`
//! can take them. The body says how many files follow, in its writer's own format.
//!
//! Nothing is lost: what arrived of a message that could not be received yet, for want of time or of descriptors, is kept
//! here or left in the socket, and the next call goes on. A message is torn only if its sender died or gave up in the middle
//! of it, and such a sender never said that it was sent; to the receiver the other end is closed then.

use std::fs::File;
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use super::turns::Turns;
use crate::error::{Error, Result};
use crate::os::{self, Socket};

const MAGIC: [u8; 4] = *b"NDSM";
const PREFIX: usize = MAGIC.len() + size_of::<u32>();

/// The longest body: what announces more is no message of ours.
pub(crate) const LONGEST_BODY: usize = 64 << 20;

/// Files that are sent at once. Linux takes 253; some systems fewer.
const BATCH: usize = 64;

/// Memory is taken for so much of a body at a time, and not for what an announcement claims.
const STEP: usize = 1 << 20;

const TORN: &str = "an earlier message was sent only in part, and the other end could not tell where the next one begins: \
                    connect again";
const FORKED: &str = "using a channel in a forked child, where it would tear the messages of its parent (make the channel after \
                      the fork, or let the child adopt it)";
const NO_FILES: &str = "sending descriptors (they could be lost when the receiver has none free); share arrays by name";
const LEFT_BEHIND: &str = "another thread was in the middle of a message when this process was forked: connect again";

/// One end of a connection that carries messages, for any number of threads. One thread sends and one receives at a time.
///
/// Only in the process that made it. A forked child that read the same stream would tear its parent's messages; see
/// [`adopt`](Self::adopt).
#[derive(Debug)]
pub(crate) struct Wire {
    pub(super) socket: Socket,
    /// What errors call it.
    pub(super) name: String,
    /// Of the process that may use it: `os::fork_generation`.
    generation: u64,
    /// Why nothing can be sent any more.
    outbox: Turns<Option<&'static str>>,
    inbox: Turns<Inbox>,
}

/// The message that is being received.
#[derive(Debug, Default)]
struct Inbox {
    /// What has arrived of prefix and body.
    bytes: Vec<u8>,
    files: Vec<File>,
    /// Why nothing can be received any more.
    broken: Option<String>,
}

impl Wire {
    /// Begins to send and receive messages on a connected socket, which errors will call `name`.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if it is not a stream socket.
    pub(crate) fn new(socket: Socket, name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        socket.require_stream().map_err(|error| Error::os("use as a channel", &name, error))?;
        Ok(Self { socket, name, generation: os::fork_generation(), outbox: Turns::default(), inbox: Turns::default() })
    }

    /// Makes this process, a forked child, the one that uses the connection.
    ///
    /// The parent must not use its copy afterwards, not even at the same end of it for the other direction only; a parent that
    /// goes on sending interleaves its messages with the child's. What had arrived in part at the fork goes on here. If
    /// another thread of the parent was sending or receiving just then, that direction is an error here.
    pub(crate) fn adopt(self) -> Self {
        let left_behind = || Inbox { broken: Some(LEFT_BEHIND.to_owned()), ..Inbox::default() };
        let outbox = self.outbox.into_inner().unwrap_or(Some(LEFT_BEHIND));
        let inbox = self.inbox.into_inner().unwrap_or_else(left_behind);
        Self { generation: os::fork_generation(), outbox: Turns::new(outbox), inbox: Turns::new(inbox), ..self }
    }

    /// Sends one message, whole and not interleaved with another. It is on its way then, not necessarily received.
    ///
    /// # Errors
    ///
    /// - [`Error::TimedOut`] after `limit`; [`Duration::MAX`] is for ever. If part of the message was sent by then, it is the last one: the other end is told
    ///   that there is no more, and sending again is [`Error::Protocol`]. Receiving goes on.
    /// - [`Error::Closed`] if no process will receive it.
    /// - [`Error::Protocol`] if the body is longer than [`LONGEST_BODY`]; nothing was sent.
    /// - [`Error::Unsupported`] for files where they cannot be received safely, and in a forked child.
    pub(crate) fn send(&self, body: &[u8], files: &[&File], limit: Duration) -> Result<()> {
        self.require(os::fork_generation() == self.generation, FORKED)?;
        let prefix = prefix(body.len()).map_err(|reason| self.protocol(reason))?;
        self.require(files.is_empty() || os::SOCKETS_CARRY_FILES, NO_FILES)?;
        let deadline = deadline(limit);
        let Some(mut turn) = self.outbox.take(deadline) else { return Err(self.timed_out(limit)) };
        if let Some(reason) = *turn.thing {
            return Err(self.protocol(reason));
        }
        let mut sent = 0;
        self.write(prefix, body, files, deadline, &mut sent).map_err(|error| {
            if sent > 0 {
                *turn.thing = Some(TORN);
                self.socket.end_sending();
            }
            self.failed("send", error, limit)
        })
    }

    /// Writes a message and counts the bytes that are sent.
    fn write(
        &self,
        prefix: [u8; PREFIX],
        body: &[u8],
        files: &[&File],
        deadline: Option<Instant>,
        sent: &mut usize,
    ) -> io::Result<()> {
        while *sent < PREFIX + body.len() {
            let parts = [&prefix[PREFIX.min(*sent)..], &body[sent.saturating_sub(PREFIX)..]].map(IoSlice::new);
            *sent += self.socket.send(&parts, &[], deadline)?;
        }
        for batch in files.chunks(BATCH) {
            #[allow(clippy::cast_possible_truncation)] // that is what the byte is
            let count = [(batch.len() % 256) as u8];
            *sent += self.socket.send(&[IoSlice::new(&count)], batch, deadline)?;
        }
        Ok(())
    }

    /// Receives one message. `read` is shown the body and says what it means, and how many files come with it.
    ///
    /// A message is received whole or not at all: after any error the next call begins with the same message and asks `read`
    /// again. `read` is called with the turn to receive taken, so it must not receive.
    ///
    /// # Errors
    ///
    /// - [`Error::TimedOut`] after `limit`.
    /// - [`Error::Closed`] if there is no message any more, or none that was sent to its end.
    /// - [`Error::TooManyOpenFiles`] if its files cannot be had now. Close some, or raise the limit, and receive again.
    /// - [`Error::Protocol`] if what arrived is no message; then nothing can be received any more.
    /// - [`Error::Unsupported`] for files where they cannot be received safely, and in a forked child.
    /// - Those of `read`.
    pub(crate) fn receive<T>(
        &self,
        limit: Duration,
        read: impl FnOnce(&[u8]) -> Result<(T, usize)>,
    ) -> Result<(T, Vec<File>)> {
        self.require(os::fork_generation() == self.generation, FORKED)?;
        let deadline = deadline(limit);
        let Some(mut turn) = self.inbox.take(deadline) else { return Err(self.timed_out(limit)) };
        let inbox = &mut *turn.thing;
        if let Some(reason) = &inbox.broken {
            return Err(self.protocol(reason));
        }
        self.fill(&mut inbox.bytes, deadline).map_err(|error| self.receiving_failed(inbox, error, limit))?;
        let (message, count) = read(&inbox.bytes[PREFIX..])?;
        if count > 0 {
            self.require(os::SOCKETS_CARRY_FILES, NO_FILES)?;
            self.take_files(&mut inbox.files, count, deadline)
                .map_err(|error| self.receiving_failed(inbox, error, limit))?;
        }
        Ok((message, std::mem::take(inbox).files))
    }

    /// Receives until prefix and body are there.
    fn fill(&self, bytes: &mut Vec<u8>, deadline: Option<Instant>) -> io::Result<()> {
        loop {
            let arrived = bytes.len();
            let length = announced(bytes).map_err(|reason| io::Error::new(io::ErrorKind::InvalidData, reason))?;
            if arrived == length {
                return Ok(());
            }
            bytes.resize(length.min(arrived + STEP), 0);
            let received = self.socket.receive(&mut bytes[arrived..], deadline);
            bytes.truncate(arrived + received.as_ref().copied().unwrap_or(0));
            if received? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Receives until `count` files are there.
    fn take_files(&self, files: &mut Vec<File>, count: usize, deadline: Option<Instant>) -> io::Result<()> {
        // One batch comes whole or not at all. With more, the first must not be taken if there is no room for the last: the
        // rest of the program would have to do without.
        let missing = count.saturating_sub(files.len());
        if missing > BATCH {
            self.socket.room_for(missing)?;
        }
        while files.len() < count {
            let batch = BATCH.min(count - files.len());
            files.extend(self.socket.receive_files(batch, deadline)?);
        }
        Ok(())
    }

    fn receiving_failed(&self, inbox: &mut Inbox, error: io::Error, limit: Duration) -> Error {
        if error.kind() == io::ErrorKind::InvalidData {
            *inbox = Inbox { broken: Some(error.to_string()), ..Inbox::default() };
        }
        self.failed("receive", error, limit)
    }

    fn failed(&self, op: &'static str, error: io::Error, limit: Duration) -> Error {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::TimedOut => self.timed_out(limit),
            Kind::UnexpectedEof | Kind::BrokenPipe | Kind::ConnectionReset => {
                Error::Closed { location: self.name.clone(), reason: "the other end of the channel was closed" }
            }
            Kind::InvalidData => self.protocol(error.to_string()),
            _ => Error::os(op, &self.name, error),
        }
    }

    fn timed_out(&self, waited: Duration) -> Error {
        Error::TimedOut { location: self.name.clone(), waited }
    }

    pub(super) fn protocol(&self, reason: impl Into<String>) -> Error {
        Error::Protocol { location: self.name.clone(), reason: reason.into() }
    }

    fn require(&self, is_possible: bool, else_what: &'static str) -> Result<()> {
        if is_possible {
            return Ok(());
        }
        Err(Error::Unsupported { location: self.name.clone(), what: else_what.into() })
    }
}

/// A duration too long for the clock means for ever.
pub(super) fn deadline(limit: Duration) -> Option<Instant> {
    Instant::now().checked_add(limit)
}

/// The bytes before a body.
fn prefix(length: usize) -> Result<[u8; PREFIX], String> {
    let announced = u32::try_from(length).ok().filter(|_| length <= LONGEST_BODY).ok_or_else(|| too_long(length))?;
    let mut prefix = [0; PREFIX];
    prefix[..MAGIC.len()].copy_from_slice(&MAGIC);
    prefix[MAGIC.len()..].copy_from_slice(&announced.to_le_bytes());
    Ok(prefix)
}

/// The length of the message that begins with these bytes, as far as they tell.
fn announced(bytes: &[u8]) -> Result<usize, String> {
    // At the first wrong byte: a stranger may never send as many as a prefix has.
    let begin = &bytes[..bytes.len().min(MAGIC.len())];
    if !MAGIC.starts_with(begin) {
        return Err(format!("a message begins with \"{}\" and not with \"NDSM\"", begin.escape_ascii()));
    }
    let Some([_, _, _, _, length @ ..]) = bytes.first_chunk::<PREFIX>() else { return Ok(PREFIX) };
    let length = u32::from_le_bytes(*length);
    let body = usize::try_from(length).ok().filter(|length| *length <= LONGEST_BODY);
    body.map(|body| PREFIX + body).ok_or_else(|| too_long(length))
}

fn too_long(length: impl std::fmt::Display) -> String {
    format!("a message of {length} bytes, where at most {LONGEST_BODY} are allowed")
}

#[cfg(test)]
crate::os::with_sockets! {
    mod tests;
}
