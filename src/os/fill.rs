//! Allocation by writing: the slow way, for file systems that cannot allocate ahead.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use crate::interrupt;

/// Bytes that are read and written at a time.
const STEP: usize = 1 << 20;

/// The caller's callback is asked each time when so many bytes are written.
const PIECE: u64 = 1 << 26;

/// Writes each of the first `length` bytes, so that room is allocated for each. Existing bytes stay, missing ones
/// become zero.
///
/// No other process may write to the file meanwhile: a write between the read and the write here would be undone.
pub(crate) fn fill(mut file: &File, length: u64) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(STEP);
    let mut at = 0;
    while at < length {
        if at % PIECE == 0 {
            interrupt::check()?;
        }
        let wanted = usize::try_from(length - at).map_or(STEP, |left| left.min(STEP));
        bytes.clear();
        file.seek(SeekFrom::Start(at))?;
        file.take(wanted as u64).read_to_end(&mut bytes)?;
        bytes.resize(wanted, 0);
        super::write_all_at(file, &bytes, at)?;
        at += wanted as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn existing_bytes_stay_and_missing_ones_become_zero() {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(b"kept").expect("a write");
        let length = STEP as u64 + 10;
        fill(&file, length).expect("room");
        let mut bytes = Vec::new();
        file.rewind().expect("the beginning");
        file.read_to_end(&mut bytes).expect("the bytes");
        assert_eq!(bytes.len() as u64, length);
        assert_eq!(&bytes[..4], b"kept");
        assert!(bytes[4..].iter().all(|byte| *byte == 0));
        fill(&file, 4).expect("room that is there");
        assert_eq!(file.metadata().expect("facts").len(), length);
    }
}
