//! Handles: 24 bytes that lead to an array as long as somebody holds it.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

const PREFIX: &str = "ndshm-arena1:";

/// What an array of an arena can be got by, in any process that has the arena open.
///
/// It is 24 bytes, or one line of text. It keeps nothing alive: somebody has to hold the array until it is used, or
/// [`Arena::get`](super::Arena::get) answers [`HandleSpent`](Error::HandleSpent). A handle never leads to another array than the
/// one it was made for, however often its memory was used again.
///
/// ```
/// use ndarray_shm::{Arena, ArenaHandle};
///
/// let arena = Arena::create("arena-handle-example", 1 << 20)?;
/// let array = arena.from_array(&ndarray::array![1.0f32, 2.0, 3.0])?;
/// let text = array.handle().to_string();
///
/// // in another process
/// let handle: ArenaHandle = text.parse()?;
/// let same = Arena::open("arena-handle-example")?.get::<f32, ndarray::Ix1>(&handle)?;
/// assert_eq!(same.view().sum(), 6.0);
/// # Ok::<(), ndarray_shm::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
pub struct ArenaHandle {
    arena: u64,
    slot: u32,
    serial: u64,
}

impl ArenaHandle {
    /// Bytes of a handle.
    pub const BYTES: usize = 24;

    pub(super) fn new(arena: u64, slot: u32, serial: u64) -> Self {
        Self { arena, slot, serial }
    }

    pub(super) fn arena(&self) -> u64 {
        self.arena
    }

    pub(super) fn slot(&self) -> u32 {
        self.slot
    }

    pub(super) fn serial(&self) -> u64 {
        self.serial
    }

    /// Writes it down: arena (8 bytes), slot (4), zero (4), serial (8), little-endian.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.arena.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.slot.to_le_bytes());
        bytes[16..].copy_from_slice(&self.serial.to_le_bytes());
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    ///
    /// [`InvalidSetting`](Error::InvalidSetting): bytes that must be zero are not.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Result<Self> {
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let Ok(slot) = u32::try_from(number(8)) else {
            return Err(invalid(format!("{bytes:02x?}"), "24 bytes, of which the second eight are less than 2^32"));
        };
        Ok(Self { arena: number(0), slot, serial: number(16) })
    }
}

fn invalid(value: String, expected: &'static str) -> Error {
    Error::InvalidSetting { setting: "the handle", value, expected }
}

impl fmt::Display for ArenaHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{:016x}:{:08x}:{:016x}", self.arena, self.slot, self.serial)
    }
}

impl FromStr for ArenaHandle {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let read = || {
            let mut numbers = text.strip_prefix(PREFIX)?.split(':').map(|digits| {
                let hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                u64::from_str_radix(digits, 16).ok().filter(|_| hexadecimal)
            });
            let mut next = || numbers.next().flatten();
            let handle = Self { arena: next()?, slot: u32::try_from(next()?).ok()?, serial: next()? };
            numbers.next().is_none().then_some(handle)
        };
        read().ok_or_else(|| invalid(text.chars().take(80).collect(), "ndshm-arena1:ARENA:SLOT:SERIAL, in hexadecimal"))
    }
}

impl TryFrom<String> for ArenaHandle {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<ArenaHandle> for String {
    fn from(handle: ArenaHandle) -> Self {
        handle.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let handle = ArenaHandle::new(0x1234_5678_9abc_def0, 77, 1 << 40);
        assert_eq!(ArenaHandle::from_bytes(handle.to_bytes()).expect("its own bytes"), handle);
        assert_eq!(handle.to_string().parse::<ArenaHandle>().expect("its own text"), handle);
        let mut bytes = handle.to_bytes();
        bytes[13] = 1;
        assert!(ArenaHandle::from_bytes(bytes).is_err());
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "ndshm-arena1:", "ndshm-arena1:1:2", "ndshm-arena1:1:2:3:4", "ndshm-arena1:1:+2:3", "1:2:3"] {
            assert!(text.parse::<ArenaHandle>().is_err(), "{text}");
        }
        assert!("ndshm-arena1:1:100000000:3".parse::<ArenaHandle>().is_err());
    }
}
