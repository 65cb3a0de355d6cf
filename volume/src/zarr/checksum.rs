//! The checksums of numcodecs, stored before or behind the bytes: CRC-32, CRC-32C, Adler-32, Fletcher-32.

use serde_json::Value;
use zarrs::plugin::PluginCreateError;

use crate::error::Cause;
use crate::zarr::configuration::brief;

/// A checksum and its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Checksum {
    sum: Sum,
    /// Whether it is stored before the bytes.
    is_first: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sum {
    Crc32,
    Crc32c,
    Adler32,
    Fletcher32,
}

impl Checksum {
    /// Length of every checksum in bytes.
    pub(super) const BYTES: u64 = size_of::<u32>() as u64;

    /// Parses a configuration: `sum` names the checksum, `location` its place.
    ///
    /// # Errors
    ///
    /// The checksum or the place is unknown.
    pub(super) fn new(configuration: &Value) -> Result<Self, PluginCreateError> {
        let name = configuration["sum"].as_str().unwrap_or_default();
        let (sum, is_first) = match name {
            "crc32" => (Sum::Crc32, true),
            "crc32c" => (Sum::Crc32c, false),
            "adler32" => (Sum::Adler32, true),
            "fletcher32" => (Sum::Fletcher32, false),
            _ => {
                return Err(PluginCreateError::Other(format!(
                    "there is no checksum `{}`",
                    brief(&configuration["sum"])
                )));
            }
        };
        let is_first = match (configuration.get("location").unwrap_or(&Value::Null), sum) {
            (Value::Null, _) => is_first,
            (Value::String(place), Sum::Crc32 | Sum::Crc32c | Sum::Adler32) if place == "start" => true,
            (Value::String(place), Sum::Crc32 | Sum::Crc32c | Sum::Adler32) if place == "end" => false,
            (place, _) => return Err(PluginCreateError::Other(format!("{name} has no `location` {}", brief(place)))),
        };
        Ok(Self { sum, is_first })
    }

    /// Returns the bytes without their checksum.
    ///
    /// # Errors
    ///
    /// The checksum does not match, or is missing.
    pub(super) fn checked(self, bytes: &[u8]) -> Result<&[u8], Cause> {
        let parts = if self.is_first {
            bytes.split_first_chunk().map(|(sum, bytes)| (bytes, sum))
        } else {
            bytes.split_last_chunk()
        };
        let Some((bytes, sum)) = parts else {
            return Err(format!("{} bytes are too few for a checksum", bytes.len()).into());
        };
        if u32::from_le_bytes(*sum) == self.of(bytes) { Ok(bytes) } else { Err("the checksum does not match".into()) }
    }

    /// Returns the bytes with their checksum.
    pub(super) fn added(self, bytes: &[u8]) -> Vec<u8> {
        let sum = self.of(bytes).to_le_bytes();
        if self.is_first { [&sum, bytes].concat() } else { [bytes, &sum].concat() }
    }

    fn of(self, bytes: &[u8]) -> u32 {
        match self.sum {
            Sum::Crc32 => crc32fast::hash(bytes),
            Sum::Crc32c => crc32c::crc32c(bytes),
            Sum::Adler32 => adler32(bytes),
            Sum::Fletcher32 => fletcher32(bytes),
        }
    }
}

/// Adler-32 as in zlib (RFC 1950).
fn adler32(bytes: &[u8]) -> u32 {
    const MODULUS: u32 = 65_521;
    /// Number of bytes that cannot make the sums overflow.
    const RUN: usize = 5552;
    let (mut low, mut high) = (1u32, 0u32);
    for run in bytes.chunks(RUN) {
        for byte in run {
            low += u32::from(*byte);
            high += low;
        }
        low %= MODULUS;
        high %= MODULUS;
    }
    (high << 16) | low
}

/// Fletcher-32 as in HDF5: over big-endian words, the last one padded with 0, sums folded and not reduced.
fn fletcher32(bytes: &[u8]) -> u32 {
    /// Number of words that cannot make the sums overflow.
    const RUN: usize = 360;
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    let (mut low, mut high) = (0u32, 0u32);
    for run in bytes.chunks(2 * RUN) {
        for word in run.chunks(2) {
            low += u32::from(word[0]) << 8 | word.get(1).map_or(0, |byte| u32::from(*byte));
            high += low;
        }
        low = fold(low);
        high = fold(high);
    }
    (fold(high) << 16) | fold(low)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NAMES: [&str; 4] = ["crc32", "crc32c", "adler32", "fletcher32"];

    fn checksum(name: &str) -> Checksum {
        Checksum::new(&json!({"sum": name})).expect("known")
    }

    #[test]
    fn sums_are_those_of_numcodecs() {
        // From `numcodecs.CRC32().encode(b"123456789")` and so on.
        let known = [("crc32", 0xcbf4_3926u32), ("crc32c", 0xe306_9283), ("adler32", 0x091e_01de)];
        for (name, sum) in known {
            assert_eq!(checksum(name).of(b"123456789"), sum, "{name}");
        }
        let long: Vec<u8> = (0..9).flat_map(|_| 0..=255u8).collect();
        let known: [(&[u8], u32); 4] =
            [(b"abcdef", 0x5056_2a2d), (b"abcde", 0x4ff0_29c7), (&long, 0x7ca4_c23d), (&[0xff; 4001], 0xff00_ff00)];
        for (bytes, sum) in known {
            assert_eq!(fletcher32(bytes), sum, "{} bytes", bytes.len());
        }
    }

    #[test]
    fn bytes_come_back_and_damage_is_noticed() {
        for name in NAMES {
            for length in [0, 1, 2, 719, 720, 721, 5552, 100_001] {
                let bytes: Vec<u8> = (0..length).map(|at: u64| (at * at / 7).to_le_bytes()[0]).collect();
                let packed = checksum(name).added(&bytes);
                assert_eq!(checksum(name).checked(&packed).expect("sound"), bytes, "{name} {length}");
                for at in [0, packed.len() / 2, packed.len() - 1] {
                    let mut damaged = packed.clone();
                    damaged[at] ^= 0x10;
                    assert!(checksum(name).checked(&damaged).is_err(), "{name} {length} {at}");
                }
            }
            for short in 0..4 {
                assert!(checksum(name).checked(&vec![0; short]).is_err(), "{name} {short}");
            }
        }
    }

    #[test]
    fn place_is_where_the_configuration_says() {
        let first = Checksum::new(&json!({"sum": "crc32", "location": "start"})).expect("a place");
        let last = Checksum::new(&json!({"sum": "crc32", "location": "end"})).expect("a place");
        assert_eq!((first, first.added(&[7])[4], last.added(&[7])[0]), (checksum("crc32"), 7, 7));
        for wrong in [json!("middle"), json!(7)] {
            assert!(Checksum::new(&json!({"sum": "crc32", "location": wrong})).is_err());
        }
        assert!(Checksum::new(&json!({"sum": "fletcher32", "location": "start"})).is_err());
        assert!(Checksum::new(&json!({})).is_err());
    }
}
