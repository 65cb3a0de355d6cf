//! One error of each kind, for the tests of Rust, the program and Python that show what users read.

use std::io;
use std::time::Duration;

use super::{Error, ErrorKind, OtherWork};

/// Returns one error of each kind, in the order of [`ErrorKind`].
#[doc(hidden)] // for tests
pub fn one_error_of_each_kind() -> Vec<Error> {
    let kinds = [
        ErrorKind::NotFound,
        ErrorKind::Elsewhere { searched: "/dev/shm".into(), directory: "/tmp/ndshm-0".into(), emulate: 1 },
        ErrorKind::NoDirectory,
        ErrorKind::AlreadyExists,
        ErrorKind::InvalidLocation { reason: "it has a slash" },
        ErrorKind::Reserved { reason: "a lock has this name" },
        ErrorKind::NotAnArray { found: "a directory" },
        ErrorKind::NoSpace { needed: 4096, available: 100, in_flight: 1 << 20, advice: "free some of /dev/shm".into() },
        ErrorKind::TooLarge { shape: vec![1 << 30, 1 << 30], item: 16 },
        ErrorKind::SizeMismatch { expected: 24, found: 4, description: Some("uint8 [4] in C order".into()) },
        ErrorKind::DescriptionMismatch { expected: "uint8 [4]".into(), found: "float32 [1]".into() },
        ErrorKind::NotDescribed,
        ErrorKind::Changed,
        ErrorKind::DTypeMismatch { expected: "<f4".into(), found: "<u2".into() },
        ErrorKind::ShapeMismatch { expected: "[3]".into(), found: "[4]".into() },
        ErrorKind::CacheSize { asked: 1 << 34, found: 1 << 33 },
        ErrorKind::Mismatch { what: "shape", expected: "[3]".into(), found: "[4]".into(), state: OtherWork::Idle },
        ErrorKind::Trailer { reason: "the checksum is wrong".into() },
        ErrorKind::NotCounted,
        ErrorKind::HandleSpent,
        ErrorKind::TooManyHandles { limit: 128, doing: "in flight" },
        ErrorKind::TooManyProcesses { limit: 46 },
        ErrorKind::Unlinked,
        ErrorKind::WouldBlock,
        ErrorKind::WouldDeadlock,
        ErrorKind::TimedOut { waited: Duration::from_millis(1500) },
        ErrorKind::Interrupted,
        ErrorKind::HasWriter,
        ErrorKind::NoWriter,
        ErrorKind::HasReader { cursor: "disk".into() },
        ErrorKind::SlotsHeld { slots: 8, holders: vec![4711, 4712], cursors: vec!["disk".into()] },
        ErrorKind::Incomplete { done: 3, total: 8 },
        ErrorKind::TooManyOpenFiles { limit: 1024 },
        ErrorKind::PermissionDenied { owner: 1000, mode: 0o600, reason: "this user may not write it" },
        ErrorKind::ForeignOwner { owner: 1000, user: 0, reason: "such files are not opened" },
        ErrorKind::InvalidSetting { setting: "EMULATE_SHM", value: "maybe".into(), expected: "0 or 1" },
        ErrorKind::Manager { reason: "it does not answer (stop it)".into() },
        ErrorKind::Unsupported { what: "holes".into() },
        ErrorKind::Closed { reason: "the other end of the channel was closed" },
        ErrorKind::QueueFull { queue: 2, capacity: 64 },
        ErrorKind::Message { reason: "it has no arrays".into() },
        ErrorKind::Protocol { reason: "these bytes are not a message".into() },
        ErrorKind::Os { op: "opening" },
    ];
    kinds
        .into_iter()
        .map(|kind| match kind {
            ErrorKind::InvalidSetting { .. } => kind.at(""),
            ErrorKind::Os { .. } => kind.at("em").because(io::Error::other("input/output error")),
            kind => kind.at("em"),
        })
        .collect()
}
