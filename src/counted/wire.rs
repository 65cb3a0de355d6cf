//! Messages on a stream socket. A message is a body of bytes and any number of open files.
//!
//! ```text
//! "NDSM" | length of the body, u32 little-endian | body | for each batch of at most 64 files: one byte, their number % 256
//! ```
//!
//! Each of these last bytes and its files are sent by one sendmsg(2) with one `SCM_RIGHTS`, so that Python's
//! `multiprocessing.reduction.recvfds` can receive them. The number of files is not in the frame. The layer above finds
//! it in the body.
//!
//! Receiving can be resumed. If a call fails for lack of time or descriptors, the part that arrived is kept here, the
//! rest stays in the socket, and the next call continues. A message is incomplete for ever only if its sender died or
//! timed out while sending it. Then the call that sends never returned success, and the receiver sees that the other
//! end was closed.

use std::fs::File;
use std::io::{self, IoSlice};
use std::time::{Duration, Instant};

use super::turns::Turns;
use crate::error::{Error, ErrorKind, Result};
use crate::os::{self, Socket};

const MAGIC: [u8; 4] = *b"NDSM";
const PREFIX: usize = MAGIC.len() + size_of::<u32>();

/// Maximum length of a body. A longer one is refused before any memory is taken for it.
pub(crate) const LONGEST_BODY: usize = 64 << 20;

/// Maximum number of files in one sendmsg(2). Linux allows 253, some systems fewer.
const BATCH: usize = 64;

/// The receive buffer grows in steps of this size, so that a peer that announces a long body and does not send it costs
/// no memory.
const STEP: usize = 1 << 20;

const TORN: &str = "an earlier message was sent only in part, and the receiver could not tell where the next one begins: \
                    connect again";
const FORKED: &str = "using a channel in a forked child, which would garble the messages of its parent (create the channel after \
                      the fork, or let the child adopt it)";
const NO_FILES: &str = "sending descriptors (they are lost if the receiver has none free); share arrays by name";
const LEFT_BEHIND: &str =
    "another thread was sending or receiving a message when this process was forked: connect again";

/// One end of a connection that carries messages, for any number of threads. One thread at a time sends, and one
/// receives.
///
/// Only the process that created it may use it. A forked child that read from the same stream would take parts of its
/// parent's messages. [`adopt`](Self::adopt) hands the connection over to the child.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(super) socket: Socket,
    /// The connection's name in errors.
    pub(super) name: String,
    /// The fork generation ([`os::fork_generation`]) of the process that may use it.
    generation: u64,
    /// The turn to send. The value is the reason why nothing can be sent any more, if there is one.
    outbox: Turns<Option<&'static str>>,
    /// The turn to receive.
    inbox: Turns<Inbox>,
}

/// The message that is being received, kept from one call to the next.
#[derive(Debug, Default)]
struct Inbox {
    /// The part of prefix and body that has arrived.
    bytes: Vec<u8>,
    /// The files that have arrived.
    files: Vec<File>,
    /// The reason why nothing can be received any more.
    broken: Option<String>,
}

impl Wire {
    /// Makes a wire of a connected socket, which is called `name` in errors.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Os`] if it is not a stream socket.
    pub(crate) fn new(socket: Socket, name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        socket.require_stream().map_err(|error| Error::os("use as a channel", &name, error))?;
        Ok(Self { socket, name, generation: os::fork_generation(), outbox: Turns::default(), inbox: Turns::default() })
    }

    /// Lets this process, a forked child, use the connection.
    ///
    /// The parent must not use its copy afterwards, not even for one direction: its messages would mix with the
    /// child's. A message that had arrived in part when the process was forked is completed by the child. If another
    /// thread of the parent was sending or receiving at that moment, the child cannot use that direction, because
    /// nothing tells where the next message begins.
    pub(crate) fn adopt(self) -> Self {
        let left_behind = || Inbox { broken: Some(LEFT_BEHIND.to_owned()), ..Inbox::default() };
        let outbox = self.outbox.into_inner().unwrap_or(Some(LEFT_BEHIND));
        let inbox = self.inbox.into_inner().unwrap_or_else(left_behind);
        Self { generation: os::fork_generation(), outbox: Turns::new(outbox), inbox: Turns::new(inbox), ..self }
    }

    /// Sends one message whole. Messages of several threads do not mix. It returns when the kernel has taken all of it,
    /// which may be before the message is received.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::TimedOut`] after `limit`; [`Duration::MAX`] waits for ever. If part of the message was sent by
    ///   then, the sending direction is shut down, and sending again fails with [`ErrorKind::Protocol`]. Receiving
    ///   still works.
    /// - [`ErrorKind::Closed`] if the other end was closed.
    /// - [`ErrorKind::Protocol`] if the body is longer than [`LONGEST_BODY`]; nothing was sent.
    /// - [`ErrorKind::Unsupported`] for files, if the platform can lose them on the way, and in a forked child.
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

    /// Writes a message, and counts in `sent` the bytes that were sent before an error.
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
            #[allow(clippy::cast_possible_truncation)] // modulo 256 by definition
            let count = [(batch.len() % 256) as u8];
            *sent += self.socket.send(&[IoSlice::new(&count)], batch, deadline)?;
        }
        Ok(())
    }

    /// Receives one message. `read` decodes the body, and returns its value and the number of files that belong to the
    /// message.
    ///
    /// A message is received whole or not at all. After any error, the next call receives the same message again, and
    /// calls its own `read`. `read` runs while this thread has the turn to receive, so it must not receive itself.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::TimedOut`] after `limit`.
    /// - [`ErrorKind::Closed`] if the other end was closed, and no complete message is left.
    /// - [`ErrorKind::TooManyOpenFiles`] if this process has too few free descriptors. Close some, or raise the limit,
    ///   and receive again.
    /// - [`ErrorKind::Protocol`] if the bytes are not a message; nothing can be received any more.
    /// - [`ErrorKind::Unsupported`] for files, if the platform can lose them on the way, and in a forked child.
    /// - those of `read`.
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

    /// Receives until prefix and body are complete.
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

    /// Receives until `files` has `count` files.
    fn take_files(&self, files: &mut Vec<File>, count: usize, deadline: Option<Instant>) -> io::Result<()> {
        // One batch is received whole or not at all. With several, the first is not received unless there is room for
        // the last: otherwise an incomplete message would occupy descriptors that the rest of the program needs.
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
                ErrorKind::Closed { reason: "the other end of the channel was closed" }.at(&self.name)
            }
            Kind::InvalidData => self.protocol(error.to_string()),
            _ => Error::os(op, &self.name, error),
        }
    }

    fn timed_out(&self, waited: Duration) -> Error {
        ErrorKind::TimedOut { waited }.at(&self.name)
    }

    pub(super) fn protocol(&self, reason: impl Into<String>) -> Error {
        ErrorKind::Protocol { reason: reason.into() }.at(&self.name)
    }

    fn require(&self, is_possible: bool, else_what: &'static str) -> Result<()> {
        if is_possible {
            return Ok(());
        }
        Err(ErrorKind::Unsupported { what: else_what.into() }.at(&self.name))
    }
}

/// Returns when a time limit ends. `None` means never: the clock cannot represent so late a time.
pub(super) fn deadline(limit: Duration) -> Option<Instant> {
    Instant::now().checked_add(limit)
}

/// Returns the bytes before a body of this length.
fn prefix(length: usize) -> Result<[u8; PREFIX], String> {
    let announced = u32::try_from(length).ok().filter(|_| length <= LONGEST_BODY).ok_or_else(|| too_long(length))?;
    let mut prefix = [0; PREFIX];
    prefix[..MAGIC.len()].copy_from_slice(&MAGIC);
    prefix[MAGIC.len()..].copy_from_slice(&announced.to_le_bytes());
    Ok(prefix)
}

/// Returns how long prefix and body are together, or just the prefix if `bytes` does not contain all of it yet.
fn announced(bytes: &[u8]) -> Result<usize, String> {
    // Refused at the first wrong byte. A peer with another protocol may never send as many bytes as a prefix has.
    let begin = &bytes[..bytes.len().min(MAGIC.len())];
    if !MAGIC.starts_with(begin) {
        return Err(format!("a message begins with \"{}\", not with \"NDSM\"", begin.escape_ascii()));
    }
    let Some([_, _, _, _, length @ ..]) = bytes.first_chunk::<PREFIX>() else { return Ok(PREFIX) };
    let length = u32::from_le_bytes(*length);
    let body = usize::try_from(length).ok().filter(|length| *length <= LONGEST_BODY);
    body.map(|body| PREFIX + body).ok_or_else(|| too_long(length))
}

fn too_long(length: impl std::fmt::Display) -> String {
    format!("a message has {length} bytes, but may have at most {LONGEST_BODY}")
}

#[cfg(test)]
crate::os::with_sockets! {
    mod tests;
}
