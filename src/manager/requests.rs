//! What clients ask of a manager, parsed as untrusted input, and its answer to the question for its status.
//! `docs/layout/manager.md` describes the protocol.

use std::time::Duration;

use crate::manager_client::wire::Use;
use crate::os::{self, FileId};
use crate::percent::{decode, encode};

/// Maximum length of a backend's name in bytes.
const LONGEST_NAME: usize = 255;

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// The client speaks this protocol.
    Greeting,
    /// The client uses counted arrays in a directory.
    Use(Use),
    /// The client left an array in flight in a directory that it uses. Search there after its ticket has expired.
    Look {
        /// The time until then.
        after: Duration,
        /// The identity of the directory, as the client sees it.
        id: FileId,
    },
    /// Answer with the manager's status.
    Status,
    /// End the manager.
    Stop,
}

impl Use {
    /// Returns whether this process sees the same directory under the path.
    pub(crate) fn is_seen_here(&self) -> bool {
        os::facts_at(&self.path).is_ok_and(|facts| facts.id == self.id && facts.other == Some("a directory"))
    }
}

/// The status of a running manager.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Its process id.
    pub pid: u32,
    /// The version of the crate that it was built from.
    pub version: String,
    /// How long it has been running.
    pub uptime: Duration,
    /// Number of clients: processes that have announced a directory.
    pub clients: usize,
    /// Number of directories that it knows.
    pub directories: usize,
    /// How often it has searched a directory, all directories together.
    pub sweeps: u64,
    /// Number of orphaned arrays that it has removed.
    pub reclaimed: u64,
}

impl Status {
    /// Returns the status as a line.
    pub(crate) fn line(&self) -> String {
        let Self { pid, version, uptime, clients, directories, sweeps, reclaimed } = self;
        let uptime = uptime.as_millis();
        format!(
            "status pid={pid} version={} uptime_ms={uptime} clients={clients} directories={directories} \
             sweeps={sweeps} reclaimed={reclaimed}",
            encode(version.as_bytes()),
        )
    }

    /// Parses the line. Unknown fields are ignored: a newer manager may send more.
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

/// Parses one line of a client, without its end.
///
/// # Errors
///
/// The reason for the client: what is wrong with the line.
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
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::manager_client::wire::{GREETING, look_line, next_line};

    fn used(path: &str) -> Use {
        Use { id: FileId { device: 1, number: u64::MAX }, backend: "a b%".to_owned(), path: PathBuf::from(path) }
    }

    #[test]
    fn parsing_inverts_formatting_for_every_line() {
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
    fn malformed_request_is_refused_with_the_reason() {
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

    /// Not a fuzzer, but it runs on every platform.
    #[test]
    fn no_bytes_make_the_parsers_panic() {
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
            // Any result will do; only a panic fails the test.
            let _ = text.map(parse);
            let _ = text.and_then(Status::parse);
            let _ = next_line(&mut bytes);
        }
    }
}
