//! What clients and manager say to each other: lines of text, read as input that anybody may have written.
//!
//! A client greets and then asks; every line of its has one line for an answer. docs/layout.md has the same for other
//! languages.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::os::{self, FileId, Socket};
use crate::percent::{decode, encode};

/// First line of a client, and of the answer: name and version of the protocol.
pub(crate) const GREETING: &str = "ndshm-manager 1";

/// What the manager answers to a request that it has done.
pub(crate) const DONE: &str = "ok";

/// How the manager answers what it understands and cannot do; the connection stays.
pub(crate) const CANNOT: &str = "no ";

/// How the manager's refusals begin, after which it hangs up.
pub(crate) const REFUSAL: &str = "error ";

/// Bytes of the longest line, its end included: a path of 4096 bytes with each of them encoded, and some room.
const LONGEST_LINE: usize = 1 << 14;

/// Bytes of the longest name of a backend.
const LONGEST_NAME: usize = 255;

/// One end of a connection, which says and hears lines.
#[derive(Debug)]
pub(crate) struct Talk {
    pub(crate) socket: Socket,
    /// What has arrived after the last line.
    rest: Vec<u8>,
}

impl Talk {
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket, rest: Vec::new() }
    }

    /// Sends all of a line at once, or fails: what is said here is short.
    pub(crate) fn say(&self, line: &str) -> io::Result<()> {
        let line = format!("{line}\n");
        let sent = self.socket.send(&[IoSlice::new(line.as_bytes())], &[], Some(Instant::now()))?;
        if sent == line.len() { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }

    /// Receives the next line, without its end; `None` at the end of the connection.
    ///
    /// # Errors
    ///
    /// `TimedOut`; `InvalidData` for what is no line, which the other end may be told: nothing that follows can be understood.
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
fn next_line(bytes: &mut Vec<u8>) -> io::Result<Option<String>> {
    let nonsense = |reason| io::Error::new(io::ErrorKind::InvalidData, reason);
    let Some(end) = bytes.iter().take(LONGEST_LINE).position(|&byte| byte == b'\n') else {
        let is_too_long = bytes.len() >= LONGEST_LINE;
        return if is_too_long { Err(nonsense("a line has at most 16384 bytes")) } else { Ok(None) };
    };
    let line = bytes.drain(..=end).take(end).collect();
    String::from_utf8(line).map(Some).map_err(|_| nonsense("a line must be text; percent-encode other bytes"))
}

/// What a client may ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// It speaks this protocol.
    Greeting,
    /// It uses counted arrays in a directory.
    Use(Use),
    /// What a client has left in a directory, one of those that it uses, will be nobody's after some time.
    Look {
        /// In how long.
        after: Duration,
        /// What the directory is for the client.
        id: FileId,
    },
    /// How are you?
    Status,
    /// Please end.
    Stop,
}

/// A directory that a client uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Use {
    /// What the directory is for the client: under the same path another mount namespace may have another one.
    pub(crate) id: FileId,
    /// Name of the backend.
    pub(crate) backend: String,
    /// The directory, absolute.
    pub(crate) path: PathBuf,
}

impl Use {
    /// Looks at a directory as it is now; `None` if no manager can be told of it.
    pub(crate) fn of(directory: &Path, backend: &str) -> Option<Self> {
        let path = directory.canonicalize().ok()?;
        let facts = os::facts_at(&path).ok()?;
        Some(Self { id: facts.id, backend: backend.to_owned(), path })
    }

    /// Whether this process sees the same directory at the path.
    pub(crate) fn is_seen_here(&self) -> bool {
        os::facts_at(&self.path).is_ok_and(|facts| facts.id == self.id && facts.other == Some("a directory"))
    }

    /// The line that says it.
    pub(crate) fn line(&self) -> String {
        let FileId { device, number } = self.id;
        let (backend, path) = (encode(self.backend.as_bytes()), encode(self.path.as_os_str().as_encoded_bytes()));
        format!("use {device} {number} {backend} {path}")
    }
}

/// The line that asks for a look at a directory after some time, and no earlier.
pub(crate) fn look_line(id: FileId, after: Duration) -> String {
    let FileId { device, number } = id;
    format!("look {} {device} {number}", after.as_millis() + 1)
}

/// What a manager says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Number of its process.
    pub pid: u32,
    /// Version of the crate it was built from.
    pub version: String,
    /// How long it has been running.
    pub uptime: Duration,
    /// Processes whose death it waits for.
    pub clients: usize,
    /// Directories that it knows.
    pub directories: usize,
    /// How often it looked through one of them.
    pub sweeps: u64,
    /// Arrays of dead processes that it removed.
    pub reclaimed: u64,
}

impl Status {
    /// The line that says it.
    pub(crate) fn line(&self) -> String {
        let Self { pid, version, uptime, clients, directories, sweeps, reclaimed } = self;
        let uptime = uptime.as_millis();
        format!(
            "status pid={pid} version={} uptime_ms={uptime} clients={clients} directories={directories} \
             sweeps={sweeps} reclaimed={reclaimed}",
            encode(version.as_bytes()),
        )
    }

    /// Reads the line; fields it does not know are those of a newer manager.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let fields = line.strip_prefix("status ")?;
        let field = |name: &str| {
            fields.split(' ').find_map(|field| field.split_once('=').filter(|(known, _)| *known == name)).map(|f| f.1)
        };
        let number = |name: &str| field(name)?.parse::<u64>().ok();
        Some(Self {
            pid: number("pid")?.try_into().ok()?,
            version: String::from_utf8(decode(field("version")?)?).ok()?,
            uptime: Duration::from_millis(number("uptime_ms")?),
            clients: number("clients")?.try_into().ok()?,
            directories: number("directories")?.try_into().ok()?,
            sweeps: number("sweeps")?,
            reclaimed: number("reclaimed")?,
        })
    }
}

/// Reads one line of a client, without its end.
///
/// # Errors
///
/// What is wrong with it, to be told to the client.
pub(crate) fn parse(line: &str) -> Result<Request, &'static str> {
    let words: Vec<&str> = line.split(' ').collect();
    match *words.as_slice() {
        ["ndshm-manager", "1"] => Ok(Request::Greeting),
        ["ndshm-manager", ..] => Err("this manager speaks version 1 of the protocol"),
        ["use", device, number, backend, path] => {
            let id = identity(device, number)?;
            let backend = decode(backend).and_then(|bytes| String::from_utf8(bytes).ok());
            let backend = backend.filter(|name| (1..=LONGEST_NAME).contains(&name.len()));
            let backend = backend.ok_or("a backend's name has 1 to 255 bytes of text")?;
            let path = decode(path).filter(|bytes| !bytes.contains(&0)).and_then(os::path_from);
            let path = path.filter(|path| path.is_absolute()).ok_or("a directory must be an absolute path")?;
            Ok(Request::Use(Use { id, backend, path }))
        }
        ["use", ..] => Err("use takes device, inode, backend and directory"),
        ["look", after, device, number] => {
            let after = after.parse::<u64>().map_err(|_| "the time must be a decimal number of milliseconds")?;
            Ok(Request::Look { after: Duration::from_millis(after), id: identity(device, number)? })
        }
        ["look", ..] => Err("look takes milliseconds, device and inode"),
        ["status"] => Ok(Request::Status),
        ["stop"] => Ok(Request::Stop),
        _ => Err("the requests are: ndshm-manager, use, look, status, stop"),
    }
}

fn identity(device: &str, number: &str) -> Result<FileId, &'static str> {
    let number_of = |word: &str| word.parse::<u64>().map_err(|_| "device and inode must be decimal numbers");
    Ok(FileId { device: number_of(device)?, number: number_of(number)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(path: &str) -> Use {
        Use { id: FileId { device: 1, number: u64::MAX }, backend: "a b%".to_owned(), path: PathBuf::from(path) }
    }

    #[test]
    fn what_is_said_is_understood() {
        if Path::new("/x").is_absolute() {
            for path in ["/", "/dev/shm", "/tmp/a b\nc%41/ü", "/~.-_"] {
                let line = used(path).line();
                assert!(line.is_ascii() && !line.contains('\n'), "{line:?}");
                assert_eq!(parse(&line), Ok(Request::Use(used(path))));
            }
        }
        assert_eq!(parse(GREETING), Ok(Request::Greeting));
        assert_eq!(parse("status"), Ok(Request::Status));
        let id = FileId { device: 1, number: u64::MAX };
        for millis in [0, 1, 604_800_000] {
            let line = look_line(id, Duration::from_millis(millis) + Duration::from_nanos(1));
            let after = Duration::from_millis(millis + 1);
            assert_eq!(parse(&line), Ok(Request::Look { after, id }), "never too early");
        }
        assert_eq!(parse("stop"), Ok(Request::Stop));
        let status = Status {
            pid: 7,
            version: "1 x".to_owned(),
            uptime: Duration::from_millis(1234),
            clients: 1,
            directories: 2,
            sweeps: 3,
            reclaimed: u64::MAX,
        };
        assert_eq!(Status::parse(&status.line()), Some(status.clone()));
        assert_eq!(Status::parse(&format!("{} newer=yes", status.line())), Some(status));
        assert_eq!(Status::parse("status pid=1"), None);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_reason() {
        for (line, reason) in [
            ("", "the requests are"),
            ("hello", "the requests are"),
            ("status ", "the requests are"),
            ("ndshm-manager 2", "version 1"),
            ("use", "use takes"),
            ("use 1 2 shm /dev/shm x", "use takes"),
            ("use 1 -2 shm /dev/shm", "decimal numbers"),
            ("use 99999999999999999999 2 shm /dev/shm", "decimal numbers"),
            ("use 1 2  /dev/shm", "backend's name"),
            ("use 1 2 %FF /dev/shm", "backend's name"),
            ("use 1 2 shm dev/shm", "absolute"),
            ("use 1 2 shm /%0", "absolute"),
            ("use 1 2 shm /%zz", "absolute"),
            ("use 1 2 shm /%00", "absolute"),
            ("use 1 2 shm ", "absolute"),
            ("look", "look takes"),
            ("look 1 2", "look takes"),
            ("look 1 2 3 4", "look takes"),
            ("look -1 2 3", "milliseconds"),
            ("look 18446744073709551616 2 3", "milliseconds"),
            ("look 1  3", "decimal numbers"),
            ("look 1 2 x", "decimal numbers"),
        ] {
            let refusal = parse(line).expect_err("refused");
            assert!(refusal.contains(reason), "{line:?}: {refusal}");
        }
    }

    #[test]
    fn lines_come_whole_however_they_arrive() {
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

    /// Not a fuzzer, but it runs everywhere: no bytes make it panic.
    #[test]
    fn no_bytes_make_it_panic() {
        let seeds =
            [&b"use 1 2 shm /dev/shm"[..], b"look 1 2 3", b"status pid=1 version=%41", b"ndshm-manager 1", b"%%%"];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..20_000_usize {
            let mut bytes = seeds[round % seeds.len()].to_vec();
            for _ in 0..round % 4 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let [at, byte, ..] = state.to_le_bytes();
                let at = usize::from(at) % bytes.len();
                bytes[at] = byte;
            }
            let text = std::str::from_utf8(&bytes).ok();
            let _either = text.map(parse);
            let _either = text.and_then(Status::parse);
            let _either = next_line(&mut bytes);
        }
    }
}
