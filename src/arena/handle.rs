//! Handles: 24-byte references to an array or a loan. A handle leads to it as long as a process holds it.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Defines one kind of handle. Both kinds have the same bytes; as text they begin with different prefixes.
macro_rules! handle {
    ($(#[$attribute:meta])* $name:ident, $prefix:literal, $format:literal) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
        pub struct $name {
            pub(super) owner: u64,
            pub(super) entry: u32,
            pub(super) serial: u64,
        }

        impl $name {
            /// Bytes of a handle.
            pub const BYTES: usize = 24;

            /// Returns the handle as bytes: the file's number (8 bytes), entry (4), zero (4), serial (8),
            /// little-endian.
            pub fn to_bytes(self) -> [u8; Self::BYTES] {
                let mut bytes = [0; Self::BYTES];
                bytes[..8].copy_from_slice(&self.owner.to_le_bytes());
                bytes[8..12].copy_from_slice(&self.entry.to_le_bytes());
                bytes[16..].copy_from_slice(&self.serial.to_le_bytes());
                bytes
            }

            /// Reads a handle from the bytes that [`to_bytes`](Self::to_bytes) returns.
            ///
            /// # Errors
            ///
            /// [`InvalidSetting`](crate::ErrorKind::InvalidSetting): bytes that must be zero are not.
            pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Result<Self> {
                let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
                let Ok(entry) = u32::try_from(number(8)) else {
                    let expected = "24 bytes, of which the second eight are less than 2^32";
                    return Err(invalid(format!("{bytes:02x?}"), expected));
                };
                Ok(Self { owner: number(0), entry, serial: number(16) })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}{:016x}:{:08x}:{:016x}", $prefix, self.owner, self.entry, self.serial)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                let read = || {
                    let [owner, entry, serial] = numbers(text.strip_prefix($prefix)?)?;
                    Some(Self { owner, entry: u32::try_from(entry).ok()?, serial })
                };
                read().ok_or_else(|| invalid(text.chars().take(80).collect(), $format))
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;

            fn try_from(text: String) -> Result<Self> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(handle: $name) -> Self {
                handle.to_string()
            }
        }
    };
}

handle! {
    /// A 24-byte reference to an array in an arena, for any member of the arena.
    ///
    /// It can also be written as one line of text. A handle does not keep the array: if no process holds the array when
    /// the handle is used, [`Arena::get`](crate::Arena::get) fails with [`HandleSpent`](crate::ErrorKind::HandleSpent).
    /// It never leads to another array, even if the memory was used again.
    ///
    /// ```
    /// use ndarray_shm::arena::ArenaHandle;
    /// use ndarray_shm::Arena;
    ///
    /// let arena = Arena::create("arena-handle-example", 1 << 20)?;
    /// let array = arena.from_array(&ndarray_shm::ndarray::array![1.0f32, 2.0, 3.0])?;
    /// let text = array.handle().to_string();
    ///
    /// // in another process
    /// let handle: ArenaHandle = text.parse()?;
    /// let same = Arena::open("arena-handle-example")?.get::<f32, ndarray_shm::ndarray::Ix1>(&handle)?;
    /// assert_eq!(same.view().sum(), 6.0);
    /// # Ok::<(), ndarray_shm::Error>(())
    /// ```
    ArenaHandle, "ndshm-arena1:", "ndshm-arena1:ARENA:ENTRY:SERIAL, in hexadecimal"
}

handle! {
    /// A 24-byte reference to one loan, for any member of the counters. It can also be written as one line of text.
    ///
    /// It can be received once, by one receiver. Until then it keeps the memory, unless the producer ends or revokes
    /// it. [`Limbo`](crate::arena::loans::Limbo) has an example.
    CounterHandle, "ndshm-counter1:", "ndshm-counter1:COUNTERS:ENTRY:SERIAL, in hexadecimal"
}

/// Reads three hexadecimal numbers.
fn numbers(text: &str) -> Option<[u64; 3]> {
    let mut numbers = text.split(':').map(|digits| {
        let hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        u64::from_str_radix(digits, 16).ok().filter(|_| hexadecimal)
    });
    let mut next = || numbers.next().flatten();
    let three = [next()?, next()?, next()?];
    numbers.next().is_none().then_some(three)
}

fn invalid(value: String, expected: &'static str) -> Error {
    Error::setting("the handle", value, expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_handle_is_read_back() {
        let handle = ArenaHandle { owner: 0x1234_5678_9abc_def0, entry: 77, serial: 1 << 40 };
        assert_eq!(ArenaHandle::from_bytes(handle.to_bytes()).expect("its own bytes"), handle);
        assert_eq!(handle.to_string().parse::<ArenaHandle>().expect("its own text"), handle);
        let mut bytes = handle.to_bytes();
        bytes[13] = 1;
        assert!(ArenaHandle::from_bytes(bytes).is_err());
    }

    #[test]
    fn invalid_text_is_refused() {
        for text in ["", "ndshm-arena1:", "ndshm-arena1:1:2", "ndshm-arena1:1:2:3:4", "ndshm-arena1:1:+2:3", "1:2:3"] {
            assert!(text.parse::<ArenaHandle>().is_err(), "{text}");
        }
        assert!("ndshm-counter1:1:2:3".parse::<CounterHandle>().is_ok());
        assert!("ndshm-counter1:1:2:3".parse::<ArenaHandle>().is_err());
        assert!("ndshm-arena1:1:100000000:3".parse::<ArenaHandle>().is_err());
    }
}
