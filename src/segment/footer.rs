//! The last 64 bytes of every file with bookkeeping of this crate: one format, one parser.
//!
//! ```text
//! offset  size  field (little-endian)
//!      0     8  magic, "\x89NDSHM\r\n"
//!      8     2  layout version, 2
//!     10     2  kind: 1 = counted array, 2 = ledger of a renderbuffer, 3 = arena, 4 = counters, 5 = frames of a stream, 6 = keeper
//!               of a stream, 7 = cache of chunks (8 and above: reserved)
//!     12     4  length of the trailer: from the end of the payload to the end of the file, this footer included
//!     16     8  length of the payload
//!     24    16  random id
//!     40    16  zero
//!     56     4  CRC-32 of those bytes before the footer that never change: the trailer of a ledger, of a stream's files or of a cache; of the others file, name and record
//!     60     4  CRC-32 of the 60 bytes before
//! ```
//!
//! The bytes are input: [`RawFooter`] is what was read, [`Footer`] what was checked, and only the second has fields.

use std::ops::Range;

/// First bytes of a footer. They are not text, and any conversion of line endings damages them.
const MAGIC: [u8; 8] = *b"\x89NDSHM\r\n";

/// Layout version that this crate writes and reads.
const VERSION: u16 = 2;

/// Bytes of a footer.
pub(crate) const FOOTER: usize = 64;

// Each field begins where the one before it ends.
const MAGIC_AT: Range<usize> = 0..MAGIC.len();
const VERSION_AT: Range<usize> = MAGIC_AT.end..MAGIC_AT.end + 2;
const KIND_AT: Range<usize> = VERSION_AT.end..VERSION_AT.end + 2;
const TRAILER_AT: Range<usize> = KIND_AT.end..KIND_AT.end + 4;
const PAYLOAD_AT: Range<usize> = TRAILER_AT.end..TRAILER_AT.end + 8;
const ID_AT: Range<usize> = PAYLOAD_AT.end..PAYLOAD_AT.end + 16;
const FOOTER_CRC_AT: Range<usize> = FOOTER - 4..FOOTER;
const TRAILER_CRC_AT: Range<usize> = FOOTER_CRC_AT.start - 4..FOOTER_CRC_AT.start;
const ZERO_AT: Range<usize> = ID_AT.end..TRAILER_CRC_AT.start;

/// What a file with a footer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Kind {
    /// An array that counts its handles.
    Counted = 1,
    /// The ledger of a renderbuffer: which chunks are finished.
    Ledger = 2,
    /// Many arrays in one mapping, counted by holders.
    Arena = 3,
    /// Counts of memory that lies elsewhere.
    Counters = 4,
    /// The frames of a stream.
    Frames = 5,
    /// The writer's lock and the cursors of a stream.
    Keeper = 6,
    /// Chunks under keys.
    Cache = 7,
}

/// The last 64 bytes of a file, as they were read.
#[derive(Debug, Clone)]
pub(crate) struct RawFooter([u8; FOOTER]);

/// A footer. Every field was checked against the file it was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) kind: Kind,
    /// Bytes before the trailer.
    pub(crate) payload: u64,
    /// Bytes of the trailer, the footer included.
    pub(crate) trailer: u32,
    /// Random number of this file.
    pub(crate) id: u128,
}

impl Footer {
    /// Appends the footer to the other bytes of the trailer. They must never change, because a checksum covers them.
    pub(crate) fn append_to(kind: Kind, payload: u64, id: u128, trailer: &mut Vec<u8>) {
        let length = u32::try_from(trailer.len() + FOOTER).unwrap_or(u32::MAX);
        let footer = Self { kind, payload, trailer: length, id }.to_bytes(trailer);
        trailer.extend_from_slice(&footer);
    }

    /// Returns the footer as bytes. Its checksum of the trailer covers `constant`.
    pub(crate) fn to_bytes(&self, constant: &[u8]) -> [u8; FOOTER] {
        let mut bytes = [0; FOOTER];
        bytes[MAGIC_AT].copy_from_slice(&MAGIC);
        bytes[VERSION_AT].copy_from_slice(&VERSION.to_le_bytes());
        bytes[KIND_AT].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[TRAILER_AT].copy_from_slice(&self.trailer.to_le_bytes());
        bytes[PAYLOAD_AT].copy_from_slice(&self.payload.to_le_bytes());
        bytes[ID_AT].copy_from_slice(&self.id.to_le_bytes());
        bytes[TRAILER_CRC_AT].copy_from_slice(&crc32fast::hash(constant).to_le_bytes());
        let own = crc32fast::hash(&bytes[..FOOTER_CRC_AT.start]);
        bytes[FOOTER_CRC_AT].copy_from_slice(&own.to_le_bytes());
        bytes
    }
}

impl RawFooter {
    /// Takes the last bytes of a file. Returns `None` if the file is too short to have a footer.
    pub(crate) fn of(tail: &[u8]) -> Option<Self> {
        let start = tail.len().checked_sub(FOOTER)?;
        Some(Self(tail[start..].try_into().ok()?))
    }

    /// Returns whether the bytes begin like a footer of this crate. That is enough to refuse the file as a plain array.
    pub(crate) fn is_ours(&self) -> bool {
        self.0[MAGIC_AT] == MAGIC
    }

    /// Returns whether the bytes begin like a footer of this kind.
    pub(crate) fn claims(&self, kind: Kind) -> bool {
        self.is_ours() && u16::from_le_bytes(self.field(KIND_AT)) == kind as u16
    }

    /// Checks every field against the length of the file.
    ///
    /// # Errors
    ///
    /// What is wrong, in words.
    pub(crate) fn validate(&self, kind: Kind, file_length: u64) -> Result<Footer, String> {
        if !self.is_ours() {
            return Err("it has no footer of this crate".into());
        }
        let stored = u32::from_le_bytes(self.field(FOOTER_CRC_AT));
        if stored != crc32fast::hash(&self.0[..FOOTER_CRC_AT.start]) {
            return Err("the footer's checksum is wrong".into());
        }
        let version = u16::from_le_bytes(self.field(VERSION_AT));
        if version != VERSION {
            return Err(format!("it was written by layout version {version}, and this program reads {VERSION}"));
        }
        let found = u16::from_le_bytes(self.field(KIND_AT));
        if found != kind as u16 {
            return Err(format!("it is of kind {found}, not {}", kind as u16));
        }
        let trailer = u32::from_le_bytes(self.field(TRAILER_AT));
        let payload = u64::from_le_bytes(self.field(PAYLOAD_AT));
        if (trailer as usize) < FOOTER || payload.checked_add(trailer.into()) != Some(file_length) {
            return Err(format!("{payload} + {trailer} bytes do not make a file of {file_length}"));
        }
        if self.0[ZERO_AT].iter().any(|byte| *byte != 0) {
            return Err("bytes that must be zero are not".into());
        }
        Ok(Footer { kind, payload, trailer, id: u128::from_le_bytes(self.field(ID_AT)) })
    }

    /// Returns whether the checksum of the trailer matches these bytes.
    pub(crate) fn covers(&self, trailer_without_footer: &[u8]) -> bool {
        u32::from_le_bytes(self.field(TRAILER_CRC_AT)) == crc32fast::hash(trailer_without_footer)
    }

    fn field<const N: usize>(&self, range: Range<usize>) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.0[range]);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut bytes = b"trailer".to_vec();
        Footer::append_to(Kind::Ledger, 100, 7, &mut bytes);
        bytes
    }

    #[test]
    fn written_footer_is_read_back() {
        let bytes = sample();
        let raw = RawFooter::of(&bytes).expect("long enough");
        let footer = raw.validate(Kind::Ledger, 100 + bytes.len() as u64).expect("valid");
        assert_eq!(footer, Footer { kind: Kind::Ledger, payload: 100, trailer: 71, id: 7 });
        assert!(raw.covers(b"trailer"));
        assert!(!raw.covers(b"trailed"));
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let bytes = sample();
        let length = 100 + bytes.len() as u64;
        for bit in 0..FOOTER * 8 {
            let mut bytes = bytes.clone();
            let at = bytes.len() - FOOTER + bit / 8;
            bytes[at] ^= 1 << (bit % 8);
            let raw = RawFooter::of(&bytes).expect("long enough");
            assert!(raw.validate(Kind::Ledger, length).is_err(), "bit {bit}");
        }
        assert!(RawFooter::of(&bytes[..FOOTER - 1]).is_none());
        let raw = RawFooter::of(&bytes).expect("long enough");
        assert!(raw.validate(Kind::Ledger, length - 1).is_err());
    }
}
