//! The identity of a GPU.

use std::fmt;

/// The identity of a GPU, or of a part of one (MIG). It is the same in all processes, unlike the number, which depends
/// on `CUDA_VISIBLE_DEVICES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uuid(pub [u8; 16]);

/// `GPU-` and 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12, as `nvidia-smi -L` prints it.
impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl Uuid {
    /// Reads the text that [`Display`](fmt::Display) writes. Returns `None` for any other.
    pub fn parse(text: &str) -> Option<Self> {
        let digits: String = text.strip_prefix("GPU-")?.chars().filter(|c| *c != '-').collect();
        if digits.len() != 32 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; 16];
        for (byte, at) in bytes.iter_mut().zip((0..32).step_by(2)) {
            *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_uuid_is_read_back() {
        let uuid = Uuid(std::array::from_fn(|at| u8::try_from(at * 17).expect("a byte")));
        assert_eq!(uuid.to_string(), "GPU-00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(Uuid::parse(&uuid.to_string()), Some(uuid));
        for text in
            ["", "GPU-", "00112233-4455-6677-8899-aabbccddeeff", "GPU-0011", "GPU-+0112233-4455-6677-8899-aabbccddeeff"]
        {
            assert_eq!(Uuid::parse(text), None, "{text}");
        }
    }
}
